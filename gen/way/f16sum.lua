-- Sums that are pairs of the operands' type. The low half of a word sums the even numbers of a row and a column, the
-- high half the odd ones. Short sums lose fewer digits, so there are three levels of sums:
--
--   block   BLOCK words are summed in registers,
--   span    sums of blocks are added in the same type, up to SPAN words, in memory near by,
--   all     the halves of these become float32 and are added as such; at the end the two halves are added, then the
--           bias.
--
-- Which words meet depends on their place in the sum alone: tiles of any size have the same bits. If a sum is not
-- finite, the tile is computed again with sums in float32, which replace the others.

local choices = require "base.choices"
local outer = require "way.outer"

local M = { chained = false, fetched = "none", dups = outer.dups, own_sums = true }

local BLOCK, SPAN = 8, 32

-- Where a tile has no accumulators, but sums in memory.
local in_memory = setmetatable({}, { __index = function() return {} end })

-- All K steps are one chunk: `alone` has parts of its own.
function M.chunk(_, steps) return steps, 1 end

-- build(at) for each sum of a tile; at as steps of an epilogue have it.
local function each_sum(tile, build)
  tile.code.run(tile, in_memory, { { apply = function(_, at) build(at) end } })
end

-- Where the vector of a sum is in a buffer that has so many vectors for each.
local function slot(t, tile, buffer, vectors, at)
  return buffer:at((at.r * tile.across + at.c - 1) * t.isa.lanes * vectors)
end

local function word_slot(t, tile, buffer, at) return slot(t, tile, buffer, 1, at) end

-- Of the two vectors of halves, i = 0 and 1.
local function half_slot(t, tile, buffer, at, i) return slot(t, tile, buffer, 2, at):at(i * t.isa.lanes) end

-- The halves of a vector of words, in their order.
local function halves(t, tile, words, at, i, name)
  local from = word_slot(t, tile, words, at):at(i * (at.v.w.lanes // 2))
  return t:op("load_halves", at.v.w, ("%s%d_%s"):format(name, i, at.name), from)
end

-- Words `from` on, as an operand.
local function moved(operand, from)
  return { p = operand.p:at(from * operand.k_stride), row = operand.row, k_stride = operand.k_stride }
end

-- Sums of `steps` words from `from` on, at most a block; added to those in memory, if there are any.
local function block(K, tile, words, from, steps, add)
  local t, scheme = K.t, setmetatable({ way = tile.scheme.inner }, { __index = tile.scheme })
  t:scope(function()
    local inner = { scheme = scheme, rows = tile.rows, vecs = tile.vecs, steps = steps, unroll = steps,
                    a = moved(tile.a, from), b = moved(tile.b, from) }
    tile.code.run(inner, tile.code.sums(t, inner), { { apply = function(value, at)
      local p, w = word_slot(t, tile, words, at), at.v.w
      if add then value = t:op("add_halves", w, "sum_" .. at.name, t:op("load", w, "old_" .. at.name, p), value) end
      t:op("store", w, nil, p, value)
    end } })
    t:fence(words)
  end)
end

-- The same of at most a span.
local function span(K, tile, words, from, steps)
  if steps <= BLOCK then return block(K, tile, words, from, steps) end
  local t, whole, rest = K.t, steps // BLOCK, steps % BLOCK
  t:scope(function()
    each_sum(tile, function(at)
      t:op("store", at.v.w, nil, word_slot(t, tile, words, at), t:op("zero", at.v.w, "none_" .. at.name))
    end)
    t:fence(words)
  end)
  K:each("block", whole, function(i) block(K, tile, words, i * BLOCK + from, BLOCK, true) end)
  if rest > 0 then block(K, tile, words, from + whole * BLOCK, rest, true) end
end

-- All sums: those of a span in `words`, of all in `totals`.
local function sums(K, tile, words, totals)
  local t, whole, rest = K.t, tile.steps // SPAN, tile.steps % SPAN
  local function each_half(build)
    each_sum(tile, function(at)
      for i = 0, 1 do build(at, i, half_slot(t, tile, totals, at, i)) end
    end)
  end
  local function add(from, steps)
    span(K, tile, words, from, steps)
    t:scope(function()
      each_half(function(at, i, p)
        local name = i .. "_" .. at.name
        local old = t:op("load", at.v.w, "old" .. name, p)
        t:op("store", at.v.w, nil, p, t:op("add", at.v.w, "total" .. name, old, halves(t, tile, words, at, i, "half")))
      end)
      t:fence(totals)
    end)
  end
  t:scope(function()
    each_half(function(at, i, p)
      t:op("store", at.v.w, nil, p, t:op("zero", at.v.w, ("none%d_%s"):format(i, at.name)))
    end)
  end)
  K:each("span", whole, function(i) add(i * SPAN, SPAN) end)
  if rest > 0 then add(whole * SPAN, rest) end
end

-- The sum of both halves, from p.totals: in lanes that follow each other, or in those of vectors that do.
local function both(t, tile, p, at)
  local half, deinterleave, op = {}, tile.scheme.deinterleave, "add_pairs"
  for i = 0, 1 do
    local place, part = at, i
    if deinterleave then
      place, part, op = { r = at.r, c = (at.c - 1) // deinterleave * deinterleave + i + 1 }, (at.c - 1) % deinterleave,
        "add"
    end
    half[i] = t:op("load", at.v.w, ("half%d_%s"):format(i, at.name), half_slot(t, tile, p.totals, place, part))
  end
  return t:op(op, at.v.w, "both_" .. at.name, half[0], half[1])
end

-- Vectors of words of operand B, made of those of numbers that lie apart.
local function words_of(t)
  return function(v, name, at, _, c)
    local part, lanes = (c - 1) % 2, t.isa.lanes
    local first = at:at(-part * lanes)
    return t:op("zip_halves", v.w, name, t:op("load", v.w, name .. "_first", first),
      t:op("load", v.w, name .. "_second", first:at(lanes)), part * lanes)
  end
end

-- The steps that end a tile, of which `first` makes its sums.
local function ends(K, tile, p, first)
  local t, start = K.t, p.bias and tile.start(K.t, p.bias)
  return tile.code.ending.of(K, tile, p, 0, tile.rows).steps(first, start and { apply = function(value, at)
    return t:op("add", at.v.w, "biased_" .. at.name, value, start(at.r, at.c, at.v.w, "bias_" .. at.name))
  end })
end

-- Makes a tile again with sums in float32, where others are not finite.
local function safe_path(K, tile, p)
  local t, deinterleave = K.t, tile.scheme.deinterleave
  local scheme = setmetatable({ op = "dot_halves", way = "outer", deinterleave = false, starts = false },
                               { __index = tile.scheme })
  local inner = { scheme = scheme, rows = tile.rows, vecs = tile.vecs, steps = tile.steps, unroll = 1,
                  a = { p = p.a, row = tile.a.row, k_stride = tile.a.k_stride },
                  b = { p = p.b, k_stride = tile.b.k_stride, value = deinterleave and words_of(t) } }
  tile.code.run(inner, tile.code.sums(t, inner), ends(K, tile, p, { apply = function(value, at)
    local w, own = at.v.w, both(t, tile, p, at)
    local none = t:op("mul", w, "none_" .. at.name, own, t:op("zero", w, "zero_" .. at.name)) -- NaN if it is not finite
    local finite = t:op("lt", w, "finite_" .. at.name, none, t:op("set", w, "one_" .. at.name, 1.0))
    return t:op("sel", w, "sum_" .. at.name, finite, own, value)
  end }))
end

-- Records the test that all sums are finite while they are passed on: the step of it, and what it finds, as conditions.
local function finite(t, tile, p)
  local tests, zeros = {}, {}
  for c, v in ipairs(tile.vecs) do
    tests[c] = t:start("zero", v.w, "test_c" .. c - 1)
    zeros[c] = t:op("zero", v.w, "zero_c" .. c - 1)
  end
  return { apply = function(_, at)
    local value = both(t, tile, p, at)
    t:update(tests[at.c], "fma", value, zeros[at.c], tests[at.c]) -- 0 while all are
    return value
  end }, function()
    local list = {}
    for c, v in ipairs(tile.vecs) do
      local below = t:op("lt", v.w, "below_c" .. c - 1, tests[c], t:op("set", v.w, "one_c" .. c - 1, 1.0))
      list[c] = t:op("all", v.w, "good_c" .. c - 1, below)
    end
    return list
  end
end

-- The vectors of a tile's sums: all that lie together in operand B, be columns in them or not.
local function vectors_of(tile, deinterleave)
  local vecs = {}
  for c = 1, math.ceil(#tile.vecs / (deinterleave or 1)) * (deinterleave or 1) do
    vecs[c] = tile.vecs[c] or tile.vecs[1]
  end
  return vecs
end

-- The function of a tile, as emit/product.lua has it. code has functions of that: sums, of a tile; run, an epilogue;
-- and ending, which makes one.
function M.alone(K, tile, code)
  local t, vecs = K.t, vectors_of(tile, tile.b.scheme.deinterleave)
  tile.across, tile.code, tile.scheme = #vecs, code, tile.b.scheme
  local size = tile.rows * #vecs * K.plan.isa.lanes
  local ending = code.ending
  local params = ending.add_params({ { "a", "in", tile.a.p }, { "b", "in", tile.b.p } }, tile, ending.of_rows(tile))
  local name, text = ("%s_k%d"):format(tile.name, tile.steps), ("%s, %d K steps"):format(tile.text, tile.steps)
  choices.add(t.why, "levels")
  K:part(name, text .. ".", params, function(p)
    local own = setmetatable({ a = { p = p.a, row = tile.a.row, k_stride = tile.a.k_stride },
                               b = { p = p.b, k_stride = tile.b.k_stride }, vecs = vecs }, { __index = tile })
    p.totals = t:buffer("totals", 2 * size)
    sums(K, own, t:buffer("words", size), p.totals)
    local test, found = finite(t, tile, p)
    code.run(tile, in_memory, ends(K, tile, p, test))
    t:unless(found(), function()
      local more = { { "a", "in", p.a }, { "b", "in", p.b }, { "totals", "in", p.totals } }
      ending.add_params(more, setmetatable({ bias = p.bias }, { __index = tile }), p)
      K:part(name .. "_safe", text .. ", with sums in float32 where others are not finite.", more,
        function(q) safe_path(K, tile, q) end, "cold")
    end)
  end)
end

return M
