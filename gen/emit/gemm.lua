-- Register tiles of a matrix product, and the loops that cover a matrix with them.
--
-- A tile computes acc[r][c] = init + sum over k of A[r][k] * B[k][c], where c counts vectors, because B is loaded as
-- vectors. The product kernel of the ISA (gen/way) decides how an element of A multiplies them. All accumulators stay
-- in registers, and the loop over K takes a literal number of steps each time.

local choices = require "base.choices"
local expr = require "base.expr"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = {}

-- A filter needs broadcast elements of A.
local function way_of(tile)
  local way = ways.of(tile.scheme)
  return tile.filter and not way.tile and ways.list.outer or way
end

-- With mmla, a vector of sums belongs to two rows.
local function rows_of_sums(tile) return tiles.round_up(tile.rows, ways.interleave(tile.scheme)) end

-- K steps that are written together: one for each chain, and all that read the same vector of A by lane.
local function together(t, tile)
  return ways.interleave(tile.scheme)
    * math.max(tile.chains or 1, way_of(tile).together(t, tile), tiles.in_step(tile.scheme))
end

-- Operand B of a K step as vectors, from numbers in memory. Returns the function read(step).
local function numbers(t, tile)
  local b, does = tile.b, tile.scheme.does
  local load = does.load
  if does.pinned and tiles.pinned(t.isa, tile.rows) then
    load = does.pinned
    choices.add(t.why, "pinned")
  end
  return function(step)
    local vectors = {}
    if b.fetch then b.fetch(step.k) end
    for c, v in ipairs(tile.vecs) do
      local name, at = ("b%s_c%d"):format(step.tag, c - 1), b.p:at(step.k * b.k_stride + (c - 1) * t.isa.lanes)
      vectors[c] = b.value and b.value(v, name, at, step.k, c) or t:operand(tile.scheme.b, load, v.w, name, at)
    end
    return vectors
  end
end

-- The same for int8/int4 weights. A word of them serves several K steps and is loaded once, so the steps begin at a
-- whole word.
local function quants(t, tile)
  local b, in_step, quant, words = tile.b, tiles.in_step(tile.scheme), tile.scheme.quant, {}
  return function(step)
    local part, vectors = step.i % in_step, {}
    for c, v in ipairs(tile.vecs) do
      local name = ("%s_c%d"):format(step.tag, c - 1)
      if part == 0 then
        local word = expr.share(step.k, in_step)
        if b.fetch and c == 1 then b.fetch(word) end
        local at = b.p:at(word * b.k_stride + (c - 1) * t.isa.lanes)
        words[c] = b.words and b.words(v, name, word, c) or t:op("load_words", v.w, "words" .. name, at)
      end
      vectors[c] = t:op(quant.op, v.w, "b" .. name, words[c], part * (quant.deinterleave or 1))
    end
    return vectors
  end
end

-- K steps that follow each other: part = { from, count, base, tagged }. base: the number of the step at the pointers.
-- The i-th step, or group of steps that an instruction takes at once, adds to sums[i % #sums + 1]. tagged: values have
-- a suffix even if it is one step.
local function steps(t, tile, sums, part)
  local n = part.count
  local way = way_of(tile).steps(t, tile, part)
  local quant, interleave = tile.scheme.quant, ways.interleave(tile.scheme)
  local read = way.read or (quant and quant.op and quants or numbers)(t, tile)
  for i = 0, n - 1, interleave do
    local k = part.from + i
    local step = { i = i, k = k, tag = (n > 1 or part.tagged) and "_k" .. (expr.is_const(k) and k or i) or "" }
    way.begin(step)
    if n > 1 and expr.is_const(k) then t:note("k = " .. expr.text(k)) end
    local b, acc = read(step), sums[i // interleave % #sums + 1]
    for r = 0, rows_of_sums(tile) - 1 do way.multiply(r, step, b, acc[r]) end
  end
end

-- A block of n K steps at the pointers of A and B. starting: products of the first steps start the accumulators.
local function block(t, tile, sums, n, base, starting)
  if tile.b.fetch_block and n > 0 then tile.b.fetch_block(n) end
  local group = t.rolled and together(t, tile) or n
  local first = starting and math.min(group, n) or 0
  if starting then steps(t, tile, sums, { from = 0, count = first, base = base, tagged = true }) end
  local rounds, done = group > 0 and (n - first) // group or 0, first
  if rounds > 1 then
    choices.add(t.why, "rolled")
    t:unrolled("i", rounds, function(i)
      steps(t, tile, sums, { from = i * group + first, count = group, base = base })
    end)
    done = first + rounds * group
  end
  steps(t, tile, sums, { from = done, count = n - done, base = base })
end

-- Adds the chains of each sum pairwise. The result is in the first chain.
local function joined(t, tile, sums)
  local distance = 1
  while distance < #sums do
    for i = 1, #sums, 2 * distance do
      for r = 0, rows_of_sums(tile) - 1 do
        for c = 1, #tile.vecs do
          t:update(sums[i][r][c], tile.scheme.does.add, sums[i][r][c], sums[i + distance][r][c])
        end
      end
    end
    distance = 2 * distance
  end
  local finish = way_of(tile).finish
  return finish and finish(t, tile, sums[1]) or sums[1]
end

-- Moves the pointers of A and B by n K steps.
local function advance(t, tile, n)
  t:bump(tile.a.p, n * tile.a.k_stride)
  t:bump(tile.b.p, n // tiles.in_step(tile.scheme) * tile.b.k_stride)
  for _, moving in ipairs(tile.b.moving or {}) do
    t:bump(moving.p, n // tiles.in_step(tile.scheme) * moving.k_stride)
  end
end

-- All K steps of a tile, as a loop over blocks.
local function in_loop(t, tile, sums)
  choices.add(t.why, "loops")
  if not (tile.b.fetch or tile.b.fetch_block) then choices.add(t.why, "prefetch") end
  local blocks = tile.blocks or tile.steps // tile.unroll
  t:loop("step", blocks, function(step)
    block(t, tile, sums, tile.unroll, step * tile.unroll)
    advance(t, tile, tile.unroll)
  end)
  if not tile.blocks then
    block(t, tile, sums, tile.steps % tile.unroll, tile.steps - tile.steps % tile.unroll)
  end
end

-- The name of the section that equal tiles of several functions share.
local function name_of_sums(tile)
  local lanes = 0
  for _, v in ipairs(tile.vecs) do lanes = lanes + v.w.lanes end
  return ("%s_%dx%d"):format(tile.name or "sums", tile.rows, lanes)
end

-- The accumulators of a tile, sums[chain][r][c], named `word`. With by_products there are none yet, because the first
-- products start them.
local function started(t, tile, word, by_products)
  local sums, chains, zero = {}, tile.chains or 1, M.from_zero(t, tile.scheme)
  for i = 1, chains do
    local start = i == 1 and tile.init or i > 1 and tile.rest or zero
    sums[i] = {}
    for r = 0, rows_of_sums(tile) - 1 do
      sums[i][r] = {}
      for c, v in ipairs(by_products and {} or tile.vecs) do
        local name = ("%s_r%d_c%d%s"):format(word, r, c - 1, chains > 1 and "_s" .. i - 1 or "")
        sums[i][r][c] = start(r, c, v.w, name)
      end
    end
  end
  return sums
end

-- A tile with long sums: each chunk of K steps has its own sums, which start at zero and are then added to those of the
-- tile. In a function without loops pointers do not move, so chunks of straight-line code take their steps by number.
local function in_chunks(t, tile)
  local chunks = tile.chunks
  local function of_tile(fields) return setmetatable(fields, { __index = tile }) end
  local acc = started(t, of_tile { chains = 1 }, "acc")[1]
  local straight = chunks.size <= tile.unroll
  local function add(n, from)
    local part = of_tile { steps = n, init = false, rest = false }
    local sums = started(t, part, "part")
    if straight then
      steps(t, part, sums, { from = from, count = n, base = 0, tagged = true })
    else
      local behind = n
      if n <= part.unroll then
        block(t, part, sums, n, 0)
      else
        in_loop(t, part, sums)
        behind = n % part.unroll
      end
      if behind > 0 then advance(t, part, behind) end
    end
    local total = joined(t, part, sums)
    for r = 0, rows_of_sums(tile) - 1 do
      for c in ipairs(tile.vecs) do t:update(acc[r][c], tile.scheme.does.add, acc[r][c], total[r][c]) end
    end
  end
  t:open(name_of_sums(tile), "Adds the products of all K steps to the sums of a tile, chunk by chunk.")
  local equal = chunks.last == chunks.size and chunks.count or chunks.count - 1
  if straight then
    for i = 0, equal - 1 do t:scope(function() add(chunks.size, i * chunks.size) end) end
  else
    t:loop("chunk", equal, function() add(chunks.size) end)
  end
  if equal < chunks.count then t:scope(function() add(chunks.last, equal * chunks.size) end) end
  t:close()
  return acc
end

-- Records a register tile and returns acc[r][c], r from 0, c from 1. tile:
--   scheme        how the ISA multiplies
--   rows, vecs    vecs { {w=} .. }
--   steps         K, a literal; or blocks, a run-time number of K blocks
--   chunks        of the steps, as schedule/cut.lua has them, summed separately; nil: all steps are one sum
--   unroll        K steps of a block
--   name          of the section that equal tiles share
--   chains        number of sums that the steps are added to in turn, 1 if missing
--   a             { p, row, k_stride, streamed }; streamed: tile registers load it past L1
--   b             { p, k_stride, value, words, fetch, fetch_block, moving }
--     value(v, name, at, k, c)       makes a vector of it, unless it is loaded as it lies
--     words(v, name, word, c)        makes a vector of its words, unless they are loaded as they lie
--     fetch(k), fetch_block(n)       record prefetches before a step, and before a block of n steps
--     moving                         { p, k_stride } of other memory that these functions read
--   init(r, c, w, name)              starts an accumulator, if not from zero
--   rest                             the same for all chains but the first
--   filter(c, w, k, factor, name)    if given, replaces the broadcast element of A in step k and column c
function M.tile(t, tile)
  local whole_tile = way_of(tile).tile
  if whole_tile then return whole_tile(t, tile) end
  if tile.chunks then return in_chunks(t, tile) end
  local whole = not tile.blocks and tile.steps <= tile.unroll
  local starting = whole and not tile.init and tile.scheme.starts
  local sums = started(t, tile, "acc", starting)
  t:open(name_of_sums(tile), "Adds the products of all K steps to the sums of a tile.")
  if whole then
    block(t, tile, sums, tile.steps, 0, starting)
  else
    in_loop(t, tile, sums)
  end
  t:close()
  return joined(t, tile, sums)
end

-- Initial values of accumulators. The scheme of a product gives the ops, unless it is one of floats.
function M.from_zero(t, scheme)
  local op = scheme and scheme.does.zero or "zero"
  return function(_, _, w, name) return t:start(op, w, name) end
end

function M.from_row(t, bias, scheme) -- one value a row
  local op = scheme and scheme.does.dup or "dup"
  return function(r, _, w, name) return t:start(op, w, name, bias:at(r)) end
end

function M.from_columns(t, bias, scheme) -- one value a column
  local op = scheme and scheme.does.load or "load"
  return function(_, c, w, name) return t:start(op, w, name, bias:at((c - 1) * t.isa.lanes)) end
end

return M
