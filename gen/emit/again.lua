-- The safe path of a head: it is done again with the true maximum where a sum overflowed, and where NaN or Inf
-- were met. All of it rarely runs, and is as short as can be.

local head = require "emit.head"
local score = require "score.init"
local softmax = require "emit.softmax"
local stat = require "emit.stats".at

local M = {}

-- The sum of a lane. Of a lane that sees a key it is infinite where it is below 1/2: the maximum was one of sums
-- from zero, behind which all scores of a row fell by their roundings. Other lanes have a weight of 1 at least.
local function sum_of(K, w, name, load)
  local t, scores = K.t, K.plan.scores
  local sum = load "sum"
  if not scores.bounds.first then return sum end
  local none = t:op("set", w, "lacking_" .. name, math.huge)
  if scores.keyless then
    none = t:op("sel", w, "mended_" .. name, head.blind(K, w, name, load), sum, none)
  end
  local low = t:op("lt", w, "low_" .. name, sum, t:op("set", w, "half_" .. name, 0.5))
  return t:op("sel", w, "counted_" .. name, low, none, sum)
end

-- Does a head again. Lanes whose sum is good keep their maximum, and so get the same bits as before. Behind a mask
-- all tiles go the way of those at the edge, which is one copy of the code less.
local function head_again(K, group, ptrs, span)
  local params = {
    { "q", "in", ptrs.q }, { "k", "in", ptrs.k }, { "v", "in", ptrs.v }, { "p", "out", ptrs.p },
    { "stats", "out", ptrs.stats }, { "o", "out", ptrs.o },
  }
  score.add_params(K.plan.scores, params, ptrs.reads)
  score.add_span(params, span)
  K:part("again_" .. group.name,
    "The same head with the true maximum: for sums that overflowed, and for NaN and Inf.", params,
    function(p)
    local t, own = K.t, score.own_span(p, span)
    p.reads = p
    head.raise(K, group, p, own, true)
    t:block(function()
      head.each_stat(K, group, p.stats, function(w, name, load, put)
        local most = t:op("set", w, "most_" .. name, softmax.accepted)
        local good = t:op("lt", w, "good_" .. name, sum_of(K, w, name, load), most)
        local negmax = t:op("sel", w, "m_" .. name, good, load "kept", load "negmax")
        put("negmax", negmax)
        put("late", t:op("zero_if", w, "late_" .. name, good, negmax))
      end)
    end)
    head.pass(K, group, p, { span = own, again = true })
  end, "cold")
end

-- After an attempt: runs `build` unless all sums are below the limit and all results finite.
-- build gets a function that marks the bad lanes by an infinite sum.
local function unless_good(K, group, stats, attempt, build)
  local t = K.t
  t:block(function()
    local both, below, accepted = {}, {}, {}
    for c, v in ipairs(group.vecs) do
      local function name(word) return ("%s%d_c%d"):format(word, attempt, c - 1) end
      local sum = sum_of(K, v.w, name "of", function(row)
        return t:op("load", v.w, name(row), stat(group, stats, row, c))
      end)
      local test = t:op("load", v.w, name "test", stat(group, stats, "test", c))
      both[c] = t:op("add", v.w, name "both", sum, test)
      below[c] = t:op("lt", v.w, name "below", both[c], t:op("set", v.w, name "most", softmax.accepted))
      accepted[c] = t:op("all", v.w, name "good", below[c])
    end
    t:unless(accepted, function()
      build(function()
        for c, v in ipairs(group.vecs) do
          local none = t:op("set", v.w, ("none_c%d"):format(c - 1), math.huge)
          t:op("store", v.w, nil, stat(group, stats, "sum", c),
            t:op("sel", v.w, ("mark_c%d"):format(c - 1), below[c], both[c], none))
        end
      end)
    end)
  end)
end

-- Checks a head, and does it again where it must. Behind a mask, NaN may have come from values that
-- the lane does not see: a second attempt keeps these out, and each sum that was good its maximum.
-- If a lane is not finite then either, products of a kept maximum may have overflowed: the third
-- attempt has true maxima there.
function M.check(K, group, ptrs, span)
  local masked = K.plan.scores.masked
  unless_good(K, group, ptrs.stats, 1, function(mark)
    if not masked then mark() end
    head_again(K, group, ptrs, span)
    if not masked then return end
    unless_good(K, group, ptrs.stats, 2, function(mark_again)
      mark_again()
      head_again(K, group, ptrs, span)
    end)
  end)
end

return M
