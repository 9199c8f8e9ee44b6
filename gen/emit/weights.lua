-- Weights of a tile of scores, and their sums: steps of an epilogue.
--
--   weight(t, tile)                      makes weights of scores less m
--   add(t, tile, acc)                    adds the weights up
--   powers(t, tile, m, small)            makes pairs of weights at once, where the ISA has an op for it
--   start_of_powers, start_or_infinite   the constant of that op's FMA, which includes m
--   pairs(t, tile, target, make)         stores the weights of every two rows in pairs, and adds them up
--   reduce, is_small, whole, not_far     helpers that softmax.lua uses too

local epilogue = require "emit.epilogue"
local exp = require "tape.exp"
local powers = require "isa.powers"
local stat = require "emit.stats".at
local tiles = require "schedule.tiles"

local M = {}

-- With a mask, scores less m are bounded from below by this; its weight is zero too. -inf would raise FP exceptions.
M.FAR = -1000.0

-- Reduces list[1] .. list[n] by an op of two operands, pairwise, so that no dependency chain is long. In the names, the
-- first number is how many values went in, and the second one counts.
function M.reduce(t, w, op, list, prefix)
  local step = 1
  while step < #list do
    for i = 1, #list - step, 2 * step do
      list[i] = t:op(op, w, ("%s%d_%d"):format(prefix, step * 2, i // (2 * step)), list[i], list[i + step])
    end
    step = step * 2
  end
  return list[1]
end

-- Whether a maximum is small enough for scores of its size to have a rounding error below 1.
function M.is_small(t, w, name, m)
  local size = t:op("max", w, "size_" .. name, m, t:op("sub", w, "minus_" .. name, t:op("zero", w, "none_" .. name), m))
  return t:op("lt", w, "small_" .. name, size, t:op("set", w, "large_" .. name, 2.0 ^ 22))
end

-- Rounds a maximum to an integer. Weights then are a power of two times those for any other such m, so rounding changes
-- them by the same factor. Also returns whether m is small.
function M.whole(t, w, name, m)
  local small = M.is_small(t, w, name, m)
  return t:op("sel", w, "whole_" .. name, small, t:op("round", w, "near_" .. name, m), m), small
end

-- The weights of a tile are added in so many chains, and their sum to that of all tiles. A single chain over all keys
-- would round too often.
local CHAINS = 4

function M.hides_keys(tile) return tile.edge or #tile.scores.hides > 0 end

-- Makes weights. The first weight of a chain is also its first sum, and is named so, unless scores are tested.
function M.weight(t, tile)
  local round, far = tile.scheme.b.round, M.hides_keys(tile) and not tile.far
  return { apply = function(value, at)
    local name = (at.r < CHAINS and not tile.test and "sum_" or "p_") .. at.name
    if far then value = M.not_far(t, at.v.w, at.name, value) end
    local p = exp.exp2(t, round and "exact_" .. at.name or name, value)
    return round and tile.scheme.group == 1 and round(t, at.v.w, name, p) or p
  end }
end

-- A score less m, bounded from below; NaN stays NaN.
function M.not_far(t, w, name, x) return t:op("max", w, "near_" .. name, t:op("set", w, "far_" .. name, M.FAR), x) end

-- Adds the sum of a tile's weights to that of earlier tiles, if there are any.
function M.add_sum(t, tile, c, v, sum)
  local name, at = ("c%d"):format(c - 1), stat(tile.group, tile.stats, "sum", c)
  if tile.pass.adds then sum = t:op("add", v.w, "total_" .. name, t:op("load", v.w, "old_sum_" .. name, at), sum) end
  t:op("store", v.w, nil, at, sum)
end

-- Adds up the chains. tile.made, if given, keeps the sum for later.
local function put_sum(t, tile, c, v, chains)
  local sum = M.reduce(t, v.w, "add", chains, ("sum_c%d_"):format(c - 1))
  t:close()
  if not tile.made then return M.add_sum(t, tile, c, v, sum) end
  tile.made[c] = sum
end

-- Adds weights. acc: the scores; if the tile tests them, an infinite one makes the sum NaN.
function M.add(t, tile, acc)
  local chains
  return {
    start = function() chains = {} end,
    apply = function(value, at)
      local w, chain = at.v.w, at.r % CHAINS + 1
      if tile.test then
        local zero = t:op("zero", w, "zero_" .. at.name)
        local name = (chains[chain] and "tested_" or "sum_") .. at.name
        value = t:op("fma", w, name, acc[at.r][at.c], zero, value) -- 0 * inf is NaN
      end
      chains[chain] = chains[chain] and t:op("add", w, "sum_" .. at.name, chains[chain], value) or value
      return value
    end,
    finish = function(c, v) put_sum(t, tile, c, v, chains) end,
  }
end

local ONES = string.unpack("<f", "\x80\x3F\x80\x3F") -- a pair of ones

-- Weights are powers of score * scale + start. If m is small, start includes it. The product of a large m and the scale
-- would lose digits. So a large m is subtracted from the score first, or else start is infinite, and so are the
-- weights.

-- The start of lanes whose m is small, and the mask of these lanes.
function M.start_of_powers(t, w, name, m, small)
  small = small or M.is_small(t, w, name, m)
  local offset = t:op("set", w, "offset_" .. name, powers.offset)
  local minus = t:op("set", w, "minus_scale_" .. name, -powers.scale)
  return t:op("fma", w, "from_" .. name, m, minus, offset), small
end

-- The start if m is not subtracted first: infinite for a large m.
function M.start_or_infinite(t, w, name, from, small)
  return t:op("sel", w, "start_" .. name, small, from, t:op("set", w, "infinite_" .. name, math.huge))
end

-- Pairs of weights as such powers, from the scores of two rows. m[c] and small[c] are those of each vector in a first
-- tile; other tiles load the start.
function M.powers(t, tile, m, small)
  local of = {}
  local floor = M.hides_keys(tile) and powers.scale * M.FAR
  local function start(c, v)
    local w, name = v.w, "c" .. c - 1
    local function at(row) return stat(tile.group, tile.stats, row, c) end
    of[c] = { scale = t:op("set", w, "scale_" .. name, powers.scale),
              floor = floor and t:op("set", w, "floor_" .. name, floor) }
    if tile.pass.adds then
      of[c].start = t:op("load", w, "start_" .. name, at(tile.pass.stored and "block_start" or "start"))
    else
      of[c].start = M.start_or_infinite(t, w, name, M.start_of_powers(t, w, name, m[c], small[c]))
      t:op("store", w, nil, at "start", of[c].start)
    end
  end
  local function pair(at, name, scores)
    local w, c = at.v.w, of[at.c]
    local function power_of(half)
      return scores[half] and t:op("fma", w, ("x_%s_%s"):format(half, name), scores[half], c.scale, c.start)
    end
    local x = { low = power_of "low", high = power_of "high" }
    x.high = x.high or t:op("set", w, "none_" .. name, powers.scale * M.FAR)
    for _, half in ipairs(floor and { "low", "high" } or {}) do
      x[half] = t:op("max", w, ("seen_%s_%s"):format(half, name), c.floor, x[half])
    end
    return t:op(tile.scheme.powers, w, "pair_" .. name, x.low, x.high)
  end
  return { start = start, pair = pair }
end

-- Stores the weights of every two rows in pairs, followed by zeros as far as tiles read, and adds them up as rounded.
-- make: { start, pair } of what makes pairs directly from scores, if anything does.
function M.pairs(t, tile, target, make)
  local scheme, chains = tile.scheme, nil
  local pair_up = epilogue.pairs_of_rows(t, scheme, make and make.pair)
  local function place(row, c) return epilogue.place(target, tile.group.lanes, { r = row, c = c }) end
  return {
    start = function(c, v)
      chains = {}
      if make then make.start(c, v) end
    end,
    apply = function(value, at)
      local pair, row, name = pair_up(at, value, at.r + 1 == tile.rows)
      if not pair then return value end
      local w, chain = at.v.w, row % CHAINS + 1
      t:op("store", w, nil, place(row, at.c), pair)
      local sum = chains[chain] or t:op("zero", w, "start_" .. name)
      chains[chain] = t:op(scheme.op, w, "sum_" .. name, pair, t:op("set", w, "ones_" .. name, ONES), sum)
      return value
    end,
    finish = function(c, v)
      for row = tiles.words(scheme, tile.rows), tiles.padded(scheme, 1) - 1 do
        t:op("store", v.w, nil, place(row, c), t:op("zero", v.w, ("none%d_c%d"):format(row, c - 1)))
      end
      put_sum(t, tile, c, v, chains)
    end,
  }
end

return M
