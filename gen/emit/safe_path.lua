-- The safe path of a head: the head is computed again, with its true maximum, if a sum overflowed or if NaN or Inf were
-- met. It rarely runs, so its code is short.

local begin = require "emit.begin"
local guard = require "emit.guard"
local head = require "emit.head"
local score = require "score.init"
local softmax = require "emit.softmax"
local stat = require "emit.stats".at
local statistics = require "emit.stats"

local M = {}

-- Whether tiles after the first have accumulators that start at a part of -m of their own.
local function has_two_parts(K, group) return group.keys.tiles > 1 and begin.from_maximum(K.plan) end

-- The sum of a lane. It becomes infinite if the lane sees a key but its sum is below the least one. Then m was too far
-- above all scores, because accumulators that started at zero were rounded differently. In other lanes a weight is at
-- least 1.
local function sum_of(K, w, name, load)
  local t, scores = K.t, K.plan.scores
  local sum = load "sum"
  if not scores.bounds.first and #scores.hides == 0 then return sum end
  local none = t:op("set", w, "lacking_" .. name, math.huge)
  if scores.keyless then
    none = t:op("sel", w, "mended_" .. name, head.blind(K, w, name, load), sum, none)
  end
  local low = t:op("lt", w, "low_" .. name, sum, softmax.least_sum(t, w, name, K.plan))
  return t:op("sel", w, "counted_" .. name, low, none, sum)
end

-- In straight-line code each group behind a mask has a span of its own, which is part of its functions.
local function name_of(K, group, ptrs)
  local own = K.full and K.plan.scores.masked and group.count > 1
  return own and ("%s_q%d"):format(group.name, ptrs.query) or group.name
end

-- Computes a head again. Lanes whose sum is good keep their maximum, with both of its parts, and so get the same bits
-- as before. With a mask, all tiles are handled like those at its edge, which saves a copy of the code.
local function safe_head(K, group, ptrs, span)
  local params = {
    { "q", "in", ptrs.q }, { "k", "in", ptrs.k }, { "v", "in", ptrs.v }, { "p", "out", ptrs.p },
    { "stats", "out", ptrs.stats }, { "o", "out", ptrs.o }, { "context", "out", ptrs.context },
  }
  score.add_head_params(K.plan.scores, params, ptrs.reads)
  score.add_span(params, span)
  K:part("safe_" .. name_of(K, group, ptrs),
    "The safe path: computes a head again with its true maximum, after an overflow, NaN or Inf.", params,
    function(p)
    local t, one = K.t, { span = score.own_span(p, span), safe = true }
    p.reads = p
    head.raise(K, group, p, one, function(w, name, load, put, minus_m)
      local most = t:op("set", w, "most_" .. name, softmax.accepted)
      local good = t:op("lt", w, "good_" .. name, sum_of(K, w, name, load), most)
      local negmax = t:op("sel", w, "negmax_" .. name, good, load "first_max", minus_m)
      put("negmax", negmax)
      put("first_max", negmax)
      if not has_two_parts(K, group) then return end
      if K.plan.scores.masked then
        put("next_max_end", t:op("sel", w, "next_max_end_" .. name, good, load "max_end", negmax))
      else
        put("next_max_end", t:op("zero_if", w, "next_max_end_" .. name, good, negmax))
      end
    end)
    head.pass(K, group, p, one)
  end, "cold")
end

-- Counts the keys that each lane sees, for masks that hide some.
local function count_seen(K, group, ptrs, span)
  local params = { { "stats", "out", ptrs.stats } }
  score.add_head_params(K.plan.scores, params, ptrs.reads)
  score.add_span(params, span)
  K:part("seen_" .. name_of(K, group, ptrs), "Counts the keys that each lane sees.", params, function(p)
    local t, own, counts = K.t, score.own_span(p, span), {}
    for c, v in ipairs(group.vecs) do counts[c] = t:start("zero", v.w, "count_c" .. c - 1) end
    local first = own.begin * group.keys.rows
    K:each("key", own.finish * group.keys.rows - first, function(i)
      local tile = { group = group, scores = K.plan.scores, stats = p.stats, key = first + i, reads = p }
      for c, v in ipairs(group.vecs) do
        local name = "c" .. c - 1
        local one = t:op("set", v.w, "one_" .. name, 1.0)
        local ends = softmax.ends(t, tile.scores, group, p.stats, c, name)
        for _, hidden in ipairs(softmax.hidden(t, tile, 0, c, ends, name)) do
          one = t:op("zero_if", v.w, "seen_" .. hidden[2], hidden[1], one)
        end
        t:update(counts[c], "add", counts[c], one)
      end
    end)
    for c, v in ipairs(group.vecs) do t:op("store", v.w, nil, stat(group, p.stats, "seen", c), counts[c]) end
  end, "cold")
end

-- After an attempt, runs `build` unless all sums are below the limit and all results are finite. build gets a function
-- that marks the bad lanes by an infinite sum.
local function unless_good(K, group, ptrs, attempt, build)
  local t, stats = K.t, ptrs.stats
  t:scope(function()
    local both, below, accepted = {}, {}, {}
    for c, v in ipairs(group.vecs) do
      local function name(word) return ("%s%d_c%d"):format(word, attempt, c - 1) end
      local sum = sum_of(K, v.w, name "of", function(row)
        return t:op("load", v.w, name(row), stat(group, stats, row, c))
      end)
      local test = t:op("load", v.w, name "test", stat(group, stats, "test", c))
      both[c] = t:op("add", v.w, name "both", sum, test)
      if ptrs.asked then -- lanes without a query that is asked for do not count
        both[c] = t:op("zero_if", v.w, name "counts", guard.idle(K, group, ptrs, c, v, name), both[c])
      end
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

-- Checks a head, and computes it again if it must. With a mask, NaN may have come from values that the lane does not
-- see. So a second attempt keeps these values out of the products, and lanes with a good sum keep their maximum. If a
-- lane is still not finite, products with a kept maximum may have overflowed, and a third attempt uses true maxima
-- there.
function M.check(K, group, ptrs, span)
  local scores = K.plan.scores
  local function check()
    unless_good(K, group, ptrs, 1, function(mark)
      if not scores.masked then
        mark()
        return safe_head(K, group, ptrs, span)
      end
      if has_two_parts(K, group) then
        K.t:scope(function()
          statistics.each(K, group, ptrs.stats, function(w, name, _, put)
            put("max_end", K.t:op("zero", w, "max_end_" .. name))
          end)
        end)
      end
      safe_head(K, group, ptrs, span)
      unless_good(K, group, ptrs, 2, function(mark_rest)
        mark_rest()
        safe_head(K, group, ptrs, span)
      end)
    end)
  end
  if #scores.hides == 0 then return check() end
  -- Before that, all lanes count as if they saw a key.
  unless_good(K, group, ptrs, 0, function()
    count_seen(K, group, ptrs, span)
    check()
  end)
end

return M
