-- A block of keys in two passes: scores are stored first, and become weights afterwards. In between the maximum m may
-- rise, in lanes that have a score far above it (after Milakov & Gimelshein 2018, who have no threshold). Since m rises
-- at most once in a block, the time of a block hardly depends on its scores. With few keys m does not rise.
--
--   block(K, group, ptrs, part)      records a block; part: see below
--   top(K, group, ptrs, span)        finds the largest score over all keys, in the statistics
--   params(K, ptrs, part)            a block as parameters of a function
--   runs(K, group, part, open, edge)  the tiles of a block, as runs of tiles of one kind

local begin = require "emit.begin"
local exp = require "tape.exp"
local expr = require "base.expr"
local powers = require "isa.powers"
local score = require "score.init"
local score_tiles = require "emit.score_tiles"
local softmax = require "emit.softmax"
local statistics = require "emit.stats"
local weights = require "emit.weights"

local M = {}

-- m rises for a score that is at least so far above it.
local function threshold(scheme) return math.log(softmax.calm(scheme), 2) + 0.5 end

local MARGIN = 5.0 -- how far above such a score m is set: no weight of 2^-95 or more is lost

-- Rescales what was summed with the old m, by a factor for each lane: p_rows of weights, and o_rows of sums with V.
-- Weights that would fall below the least one become zero, as do sums that would fall below 2^-125.
local function rescale(K, group, ptrs)
  local t, scheme = K.t, K.plan.attend.scheme
  K:part("rescale_" .. group.name, "Rescales the running sums where the maximum has risen.", {
    { "p", "out", ptrs.p }, { "o", "out", ptrs.o }, { "stats", "out", ptrs.stats }, { "p_rows", "int", ptrs.p_rows },
    { "o_rows", "int", ptrs.o_rows },
  }, function(p)
    local factors, least_p, least_o = {}, {}, {}
    local function scaled(least, c, w, name, value, round)
      t:open("shrink_" .. w.lanes, "Scales a vector down, and flushes tiny results to zero.")
      local minus = t:op("sub", w, "minus_" .. name, t:op("zero", w, "zero_" .. name), value)
      local small = t:op("lt", w, "small_" .. name, t:op("max", w, "size_" .. name, minus, value), least[c])
      local result = t:op("zero_if", w, "large_" .. name, small, value)
      for i, factor in ipairs(factors[c]) do
        result = t:op("mul", w, ("scaled%d_"):format(i) .. name, result, factor)
      end
      t:close()
      return round and round(t, w, "rounded_" .. name, result) or result
    end
    statistics.each(K, group, p.stats, function(w, name, load, put)
      local c, rise, none = #factors + 1, load "lift", t:op("zero", w, "none_" .. name)
      local function constant(word, value) return t:op("set", w, word .. "_" .. name, value) end
      local function power(word, exponent)
        return exp.exp2(t, word .. "_" .. name, t:op("sub", w, "fall_" .. word .. "_" .. name, none, exponent))
      end
      -- The factor is split in two, because one could underflow where its product with a large weight does not.
      local half = t:op("round", w, "half_" .. name, t:op("mul", w, "share_" .. name, rise, constant("part", 0.5)))
      factors[c] = { power("first", half), power("second", t:op("sub", w, "rest_" .. name, rise, half)) }
      local most = t:op("min", w, "most_" .. name, constant("limit", 200.0), rise)
      local function least(word, range)
        return exp.exp2(t, word .. "_" .. name, t:op("sub", w, ("log_%s_%s"):format(word, name), most,
          constant(word .. "_range", range)))
      end
      least_p[c], least_o[c] = least("least_p", -exp.lowest), least("least_o", 125.0)
      put("sum", scaled(least_p, c, w, "sum_" .. name, load "sum"))
      if not begin.from_maximum(K.plan) then return end -- `rise` has already stored the new m
      put("negmax", t:op("sub", w, "minus_m_" .. name, load "negmax", rise))
      put("max_start", t:op("sub", w, "new_" .. name, load "max_start", rise))
    end)
    local function rows(base, count, change)
      K:each("row", count, function(i)
        for c, v in ipairs(group.vecs) do
          t:scope(function()
            local at = base:at(i * group.width + (c - 1) * group.lanes)
            t:op("store", v.w, nil, at, change(c, v.w, t:op("load", v.w, "value_c" .. c - 1, at)))
          end)
        end
      end)
    end
    rows(p.o, p.o_rows, function(c, w, value) return scaled(least_o, c, w, "c" .. c - 1, value) end)
    rows(p.p, p.p_rows, function(c, w, value)
      if scheme.group == 1 then return scaled(least_p, c, w, "c" .. c - 1, value, scheme.b.round) end
      local halves = {}
      for i, half in ipairs { "low", "high" } do
        local number = t:op(half .. "_half", w, half .. "_of_c" .. c - 1, value)
        halves[i] = scaled(least_p, c, w, half .. "_c" .. c - 1, number)
      end
      return t:op(scheme.pair, w, "pair_c" .. c - 1, table.unpack(halves))
    end)
  end, "cold")
end

-- Puts the m that is subtracted from scores, as it is or in the form that weights as powers need.
local function put_fall(K, w, name, m, put)
  local t = K.t
  if not K.plan.attend.scheme.powers then return put("fall", m) end
  local from, small = weights.start_of_powers(t, w, name, m)
  local at_zero = t:op("set", w, "at_zero_" .. name, powers.offset)
  put("start", weights.start_or_infinite(t, w, name, from, small))
  put("block_start", t:op("sel", w, "near_start_" .. name, small, from, at_zero))
  put("fall", t:op("zero_if", w, "less_" .. name, small, m))
end

-- Puts an m that does not rise.
local function stay(K, group, p)
  local from_m = begin.from_maximum(K.plan)
  statistics.each(K, group, p.stats, function(w, name, load, put)
    local known = load(from_m and "max_end" or "negmax")
    local m = K.t:op("sub", w, "m_" .. name, K.t:op("zero", w, "zero_" .. name), known)
    put_fall(K, w, name, m, put)
  end)
end

-- The rise of m in each lane: none, or up to the largest score of the block. Returns the mask of lanes without a rise.
-- If m is subtracted from finished scores, m becomes that score itself, because the old m plus the distance would lose
-- digits.
local function rise(K, w, name, load, put)
  local t, scheme, from_m = K.t, K.plan.attend.scheme, begin.from_maximum(K.plan)
  local function constant(word, value) return t:op("set", w, word .. "_" .. name, value) end
  local top = load "top"
  local old = from_m and load "max_end"
    or t:op("sub", w, "old_m_" .. name, t:op("zero", w, "zero_" .. name), load "negmax")
  local above = t:op(from_m and "add" or "sub", w, "above_" .. name, top, old)
  if from_m then top = above end
  local below = t:op("lt", w, "below_" .. name, above, constant("far", threshold(scheme)))
  if scheme.b.round then top = weights.whole(t, w, "top_" .. name, top) end
  if not scheme.b.most then top = t:op("add", w, "room_" .. name, top, constant("margin", MARGIN)) end
  if from_m then
    local lift = t:op("zero_if", w, "lift_" .. name, below, top)
    put("lift", lift)
    put("fall", t:op("sub", w, "fall_" .. name, lift, old))
    return below
  end
  local m = t:op("sel", w, "m_" .. name, below, old, top)
  put("lift", t:op("sub", w, "lift_" .. name, m, old))
  put("negmax", t:op("sub", w, "minus_m_" .. name, t:op("zero", w, "empty_" .. name), m))
  put_fall(K, w, name, m, put)
  return below
end

-- The tiles of a block, { from, to, rows, edge } each: with `open` those that all lanes see; with `edge` those at the
-- edge of a mask, or without a mask the partial last tile.
function M.runs(K, group, part, open, edge)
  local masked, keys = K.plan.scores.masked, group.keys
  local runs = { open and { from = part.start, to = part.bound, rows = keys.rows } or nil }
  if edge then
    runs[#runs + 1] = { from = part.bound, to = part.stop, rows = masked and keys.rows or keys.rest, edge = masked }
  end
  return runs
end

local function each_tile(K, group, part, build)
  local masked, keys = K.plan.scores.masked, group.keys -- if m does not rise, a mask makes all tiles edge tiles
  for _, run in ipairs(M.runs(K, group, part, keys.rises or not masked, masked or keys.rest > 0)) do
    K:each("tile", run.to - run.from, function(i) build(run.from + i, run) end)
  end
end

-- The place of the scores of tile `at`, in a block whose first tile is `from`.
local function place_of(K, group, ptrs, at, from)
  local plan, keys = K.plan, group.keys
  if statistics.apart(plan) then
    return statistics.scores_of(plan, group, ptrs.stats):at((at - from) * (keys.rows * group.width))
  end
  return ptrs.p:at((plan.whole_p and at or at - from) * (keys.words * group.width)):as(ptrs.stats.type)
end

-- Computes the scores of a tile and stores them at `kept`.
local function store(K, group, ptrs, at, run, kept)
  local key = at * group.keys.rows
  if score_tiles.buffered(K) then
    score_tiles.products(K, group, { k = ptrs.k, q = ptrs.q, sums = kept }, key, run.rows)
  end
  score_tiles.record(K, group, ptrs, { pass = softmax.passes.stored, key = key, rows = run.rows, edge = run.edge,
                                       kept = kept })
end

-- Raises m in lanes where it must rise.
local function raise(K, group, p)
  local t, plan, p_tile = K.t, K.plan, group.keys.words * group.width
  t:scope(function()
    local low = {}
    statistics.each(K, group, p.stats, function(w, name, load, put)
      low[#low + 1] = t:op("all", w, "low_" .. name, rise(K, w, name, load, put))
    end)
    t:unless(low, function()
      local made, upto, first = p.from, p.start, p.p
      if plan.whole_p then made, upto, first = p.made, expr.max(p.start, p.upto), p.p:at(p.made * p_tile) end
      rescale(K, group, { p = first, o = p.o, stats = p.stats, o_rows = p.o_rows,
                          p_rows = (upto - made) * group.keys.words })
    end)
  end)
end

local function record(K, group, p)
  if group.keys.rises then
    statistics.each(K, group, p.stats, function(w, name, _, put)
      put("top", K.t:op("set", w, "lowest_" .. name, -math.huge))
    end)
  end
  each_tile(K, group, p, function(at, run) store(K, group, p, at, run, place_of(K, group, p, at, p.from)) end)
  if group.keys.rises then raise(K, group, p) else stay(K, group, p) end
  each_tile(K, group, p, function(at, run)
    local words = (K.plan.whole_p and at or at - p.from) * (group.keys.words * group.width)
    score_tiles.weigh(K, group, p, { rows = run.rows, kept = place_of(K, group, p, at, p.from), p_at = words })
  end)
end

-- All tiles store their scores in the same place, because only the maximum is needed. No weights exist yet.
function M.top(K, group, ptrs, span)
  local masked, full = K.plan.scores.masked, K.plan.cfg.seq_kv // group.keys.rows
  local part = masked and { start = span.begin, bound = span.begin, stop = span.finish }
    or { start = 0, bound = full, stop = group.keys.tiles }
  local kept = place_of(K, group, ptrs, 0, 0)
  K:of("scores", function()
    each_tile(K, group, part, function(at, run) store(K, group, ptrs, at, run, kept) end)
  end)
end

function M.params(K, ptrs, part)
  local params = { { "q", "in", ptrs.q }, { "k", "in", ptrs.k }, { "p", "out", ptrs.p }, { "stats", "out", ptrs.stats },
                   { "o", "out", ptrs.o } }
  local ints = { "o_rows", "from", "start", "bound", "stop" }
  if K.plan.whole_p then table.move({ "made", "upto" }, 1, 2, #ints + 1, ints) end
  for _, name in ipairs(ints) do params[#params + 1] = { name, "int", part[name] } end
  score.add_head_params(K.plan.scores, params, ptrs.reads)
  return params
end

-- part:
--
--   from          the first tile of the block; its weights are first in P, unless P has those of all keys
--   start         the first tile to compute
--   bound, stop   the first tile at an edge, and the end of the tiles
--   made, upto    if P has the weights of all keys: rescales tiles from `made` to `start`, or to `upto` if that
--                 is more
--   o_rows        rows of the context to rescale
function M.block(K, group, ptrs, part)
  K:of("scores", function()
    local word, doc = "known_", "Weights of a block of keys, whose maximum is known."
    if group.keys.rises then word, doc = "rising_", "Weights of a block of keys, whose maximum may rise." end
    K:part(word .. group.name, doc, M.params(K, ptrs, part), function(p)
        p.reads = p
        record(K, group, p)
      end, K.full and "cold" or nil)
  end)
end

return M
