-- The initial values of the accumulators of score tiles (-m, or a tiny constant), as statistics of a group with a value
-- for each lane. They matter where the maximum m may rise, or where m is known before the first tile.
--
--   START                 the tiny constant, used in place of zero
--   from_maximum(plan)    whether accumulators start at -m in all tiles but the first
--   unknown(t, plan, w, name, put)    puts the statistics of the tiles that find m, by put of statistics.each
--   known, next, next_attempt(t, plan, w, name, load, put)    put the statistics, by load and put of statistics.each
--     known               of the first tile, once m is found
--     next                of the tiles after the first
--     next_attempt        of the same tiles when the head is computed again

local M = {}

-- Products of tiny queries and keys are subnormal numbers, but sums that start at this constant are not. It is so small
-- that it adds the same to all scores of a query, or is lost in rounding.
M.START = 2.0 ^ -60

-- Whether accumulators of scores start at -m in all tiles but the first. They do not where a row of gen/score changes
-- the score before m is subtracted, nor where weights are made as powers (isa/powers.lua).
function M.from_maximum(plan) return #plan.scores.changes == 0 and not plan.attend.scheme.powers end

-- Whether they start at START: not where biases are their initial values, nor where products are of pairs.
local function is_raised(plan) return plan.attend.scheme.group == 1 and #plan.scores.biases == 0 end

local function is_not_zero(t, w, name, x)
  local zero = t:op("zero", w, "none_" .. name)
  return t:op("lt", w, "nonzero_" .. name, zero,
    t:op("max", w, "size_" .. name, t:op("sub", w, "minus_" .. name, zero, x), x))
end

-- The statistics of tiles whose scores determine m.
function M.unknown(t, plan, w, name, put)
  if not M.from_maximum(plan) then return end
  put("max_start", is_raised(plan) and t:op("set", w, "max_start_" .. name, M.START)
    or t:op("zero", w, "max_start_" .. name))
end

-- The statistics of the first tile, computed once m is known. Its accumulators start as they did when m was found,
-- because the initial value decides how a product that lies between two floats is rounded.
function M.known(t, plan, w, name, load, put)
  put("sum", t:op("zero", w, "empty_" .. name))
  if M.from_maximum(plan) then put("max_end", load("negmax", "first_max_end")) end
end

-- The statistics of the tiles after the first one.
function M.next(t, plan, w, name, load, put)
  local negmax = load "negmax"
  put("first_max", negmax)
  if not M.from_maximum(plan) then return end
  put("max_end", t:op("zero", w, "max_end_" .. name))
  put("max_start", negmax)
end

-- The same when the head is computed again. If m was found from accumulators that started at zero, it is subtracted
-- from such accumulators at their end. If they started at -m instead, large scores would be rounded differently, and
-- all weights of a row could become zero.
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
