-- Tiles of scores as functions. A tile has some keys by the queries of a group, and the softmax is fused into it. Where
-- a maximum rises, sums and contexts are rescaled.

local begin = require "emit.begin"
local exp = require "tape.exp"
local score = require "score.init"
local softmax = require "emit.softmax"
local statistics = require "emit.stats"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = {}

-- How sums of scores are made apart from what follows, if they are (way/init.lua).
function M.buffered(K) return ways.of(K.plan.attend_scheme).buffered end

-- K steps of scores.
local function depth_of(plan) return tiles.words(plan.attend_scheme, plan.attend.depth) end

-- The product of so many rows of keys with the queries of a group, as gemm.tile has it.
local function product_of(plan, group, rows, k, q, unroll)
  return { scheme = plan.attend_scheme, name = "score_sums", rows = rows, vecs = group.vecs, steps = depth_of(plan),
           unroll = unroll, a = { p = k, row = plan.attend.keys.row, k_stride = 1 },
           b = { p = q, k_stride = group.width } }
end

-- Behind a rise of m: the factor of each lane in all that was multiplied with its weights so far, p_rows of them and
-- o_rows of sums with values. Weights that would be below the least one then are zeros, and sums below 2^-125.
local function rescale(K, group, ptrs)
  local t, scheme = K.t, K.plan.attend_scheme
  K:part("rescale_" .. group.name, "What was summed so far becomes smaller where the maximum rises.", {
    { "p", "out", ptrs.p }, { "o", "out", ptrs.o }, { "stats", "out", ptrs.stats }, { "p_rows", "int", ptrs.p_rows },
    { "o_rows", "int", ptrs.o_rows },
  }, function(p)
    local factors, least_p, least_o = {}, {}, {}
    local function scaled(least, c, w, name, value, round)
      t:open("shrink_" .. w.lanes, "Scales a vector down; what would be too small becomes zero.")
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
      -- In two factors, for a weight may be as far above the old m.
      local half = t:op("round", w, "half_" .. name, t:op("mul", w, "share_" .. name, rise, constant("part", 0.5)))
      factors[c] = { power("first", half), power("second", t:op("sub", w, "rest_" .. name, rise, half)) }
      local most = t:op("min", w, "most_" .. name, constant("limit", 200.0), rise)
      local function least(word, range)
        return exp.exp2(t, word .. "_" .. name, t:op("sub", w, ("log_%s_%s"):format(word, name), most,
          constant(word .. "_range", range)))
      end
      least_p[c], least_o[c] = least("least_p", -exp.lowest), least("least_o", 125.0)
      put("sum", scaled(least_p, c, w, "sum_" .. name, load "sum"))
      if not begin.from_maximum(K.plan) then return end -- m has risen already
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

-- One tile of scores: keys by the queries of the group. tile:
--
--   pass, key        what is done; the first key
--   rows             keys, if not those of all tiles
--   p_at             where its weights go
--   edge             whether some lanes do not see some of its keys
--   like             the rows of the tile whose roundings it has
--   next             { key, rows }: the tile whose products it makes, where products are interleaved
--   p_rows, o_rows   what is rescaled where m rises
function M.record(K, group, ptrs, tile)
  local plan, pass, next = K.plan, tile.pass, tile.next
  local scores = pass.shows and plan.scores.shown or plan.scores
  local rows = tile.rows or group.keys.rows
  local function keys(key) return ptrs.k:at(key * plan.attend.keys.row) end
  local params = { { "k", "in", keys(tile.key) }, { "q", "in", ptrs.q }, { "stats", "out", ptrs.stats } }
  local ahead = pass.ahead and ptrs.sums
  if ahead then
    params[1] = { "sums", "out", ptrs.sums }
    if next then table.insert(params, 2, { "next_k", "in", keys(next.key) }) end
  end
  if tile.p_at then params[#params + 1] = { "p", "out", ptrs.p:at(tile.p_at) } end
  params[#params + 1] = { "key", "int", tile.key }
  if pass.lifts then
    for _, param in ipairs { { "p_first", "out", ptrs.p:at(tile.p_first) }, { "o", "out", ptrs.o },
                             { "p_rows", "int", tile.p_rows }, { "o_rows", "int", tile.o_rows } } do
      params[#params + 1] = param
    end
  end
  score.add_head_params(scores, params, ptrs.reads)
  local like = tile.like and tile.like ~= group.keys.rows and "_rest" or ""
  local followed = not ahead and "" or not next and "_last" or next.rows < group.keys.rows and "_then_rest" or ""
  local word = pass.word .. (tile.edge and "_masked" or "") .. like .. followed
  K:part(("scores%s_%dx%s"):format(word, rows, group.name), pass.doc, params, function(p)
    local unroll, chains = K:summing(plan.attend_scheme, tile.like or rows, #group.vecs, depth_of(plan), tile.edge)
    local one = product_of(plan, group, rows, p.k, p.q, unroll)
    one.group, one.pass, one.chains, one.scores, one.key, one.edge = group, pass, chains, scores, p.key, tile.edge
    one.test, one.reads, one.out, one.stats = plan.attend.test_scores, p, p.p, p.stats
    if pass.lifts then
      one.among = plan.whole_p and plan.scores.wraps -- tiles behind this one may have been made before it
      function one.rescale()
        rescale(K, group, { p = p.p_first, o = p.o, stats = p.stats, p_rows = p.p_rows, o_rows = p.o_rows })
      end
    end
    if ahead then one.sums, one.next = p.sums, next and product_of(plan, group, next.rows, p.next_k, p.q, unroll) end
    softmax.tile(K.t, one)
  end)
end

-- The products of a tile of keys alone, for the softmax that follows.
function M.products(K, group, ptrs, key, rows)
  local plan = K.plan
  K:part(("products_%dx%s"):format(rows, group.name), "Scores of some keys, for the softmax that follows.", {
    { "k", "in", ptrs.k:at(key * plan.attend.keys.row) }, { "q", "in", ptrs.q }, { "sums", "out", ptrs.sums },
  }, function(p)
    local unroll = K:summing(plan.attend_scheme, rows, #group.vecs, depth_of(plan))
    M.buffered(K).products(K.t, product_of(plan, group, rows, p.k, p.q, unroll), p.sums)
  end)
end

return M
