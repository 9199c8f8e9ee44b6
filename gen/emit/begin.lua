-- The values that sums of scores start at, as statistics of a group. They matter where a maximum may rise or is known.
--
--   START                 in place of zero
--   from_maximum(plan)    whether sums start at -m behind the first tile
--   unknown(t, plan, w, name, put)    puts the statistics of tiles whose scores become an m, by put of statistics.each
--   known, next, next_attempt(t, plan, w, name, load, put)    put the statistics, by load and put of statistics.each
--     known               of a first tile behind these
--     next                of the tiles behind a first one
--     next_attempt        of the same tiles in another attempt

local M = {}

-- Products of small queries and keys are subnormal numbers, sums of this with them are none. All scores of a query are
-- more by so little, or none.
M.START = 2.0 ^ -60

-- Whether sums of scores start at -m behind the first tile: not where m is subtracted from a changed score, nor where
-- weights are powers.
function M.from_maximum(plan) return #plan.scores.changes == 0 and not plan.attend.scheme.powers end

-- Whether they start at that: not where biases are their start, nor sums of pairs.
local function is_raised(plan) return plan.attend.scheme.group == 1 and #plan.scores.biases == 0 end

local function is_not_zero(t, w, name, x)
  local zero = t:op("zero", w, "none_" .. name)
  return t:op("lt", w, "nonzero_" .. name, zero,
    t:op("max", w, "size_" .. name, t:op("sub", w, "minus_" .. name, zero, x), x))
end

-- The statistics of tiles whose scores become an m.
function M.unknown(t, plan, w, name, put)
  if not M.from_maximum(plan) then return end
  put("max_start", is_raised(plan) and t:op("set", w, "max_start_" .. name, M.START)
    or t:op("zero", w, "max_start_" .. name))
end

-- The statistics of a first tile behind these. Its sums start as theirs, for the start of a sum decides how a product
-- between two floats is rounded.
function M.known(t, plan, w, name, load, put)
  put("sum", t:op("zero", w, "empty_" .. name))
  if M.from_maximum(plan) then put("max_end", load("negmax", "first_max_end")) end
end

-- Those of the tiles behind a first one.
function M.next(t, plan, w, name, load, put)
  local negmax = load "negmax"
  put("first_max", negmax)
  if not M.from_maximum(plan) then return end
  put("max_end", t:op("zero", w, "max_end_" .. name))
  put("max_start", negmax)
end

-- The same in another attempt. A maximum that sums from zero found is subtracted from such sums. Large scores round
-- otherwise behind -m, and all weights of a row could be zero.
function M.next_attempt(t, plan, w, name, load, put)
  local at_end = load "next_max_end"
  local at_start = t:op("sub", w, "rest_max_" .. name, load "negmax", at_end)
  if is_raised(plan) then
    local least = t:op("set", w, "least_" .. name, M.START)
    at_start = t:op("sel", w, "max_start_" .. name, is_not_zero(t, w, name, at_end), least, at_start)
  end
  put("max_end", at_end)
  put("max_start", at_start)
end

return M
