-- Weights of a tile of scores, and their sums: steps of an epilogue.
--
--   weight(t, tile)                      makes weights of scores less m
--   add(t, tile, acc)                    adds them
--   powers(t, tile, m, small)            makes pairs of them at once, where the ISA has an op for it
--   pairs(t, tile, target, make)         stores those of each two rows in pairs, and adds them
--   reduce, is_small, whole, not_far     parts of these that softmax.lua uses too

local epilogue = require "emit.epilogue"
local exp = require "tape.exp"
local powers = require "isa.powers"
local stat = require "emit.stats".at
local tiles = require "schedule.tiles"

local M = {}

-- Behind a mask no score less m is below this, whose weight is zero too: of -inf exceptions would come.
M.FAR = -1000.0

-- One value of list[1] .. list[n] by an op of two: in pairs, so that no chain is long. Of their names the first number
-- is how many it is made of, the second counts.
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

-- Whether a maximum is so small that roundings of scores are below an integer.
function M.is_small(t, w, name, m)
  local size = t:op("max", w, "size_" .. name, m, t:op("sub", w, "minus_" .. name, t:op("zero", w, "none_" .. name), m))
  return t:op("lt", w, "small_" .. name, size, t:op("set", w, "large_" .. name, 2.0 ^ 22))
end

-- A maximum, to an integer: weights are rounded as their shares would be then, whatever the maximum is. Returns also
-- whether it is small.
function M.whole(t, w, name, m)
  local small = M.is_small(t, w, name, m)
  return t:op("sel", w, "whole_" .. name, small, t:op("round", w, "near_" .. name, m), m), small
end

-- Sums of weights go to so many chains in turn; of this tile first, for one chain of all would round too often.
local CHAINS = 4

function M.hides_keys(tile) return tile.edge or #tile.scores.hides > 0 end

-- Makes weights; the first one of a chain is its first sum, and called so, but where it is tested.
function M.weight(t, tile)
  local round, far = tile.scheme.b.round, M.hides_keys(tile) and not tile.far
  return { apply = function(value, at)
    local name = (at.r < CHAINS and not tile.test and "sum_" or "p_") .. at.name
    if far then value = M.not_far(t, at.v.w, at.name, value) end
    local p = exp.exp2(t, round and "exact_" .. at.name or name, value)
    return round and tile.scheme.group == 1 and round(t, at.v.w, name, p) or p
  end }
end

-- A score less m, but for those that are far below; NaN stays NaN.
function M.not_far(t, w, name, x) return t:op("max", w, "near_" .. name, t:op("set", w, "far_" .. name, M.FAR), x) end

-- Adds the sum of a tile's weights to that of the tiles before, if there are such.
function M.add_sum(t, tile, c, v, sum)
  local name, at = ("c%d"):format(c - 1), stat(tile.group, tile.stats, "sum", c)
  if tile.pass.adds then sum = t:op("add", v.w, "total_" .. name, t:op("load", v.w, "old_sum_" .. name, at), sum) end
  t:op("store", v.w, nil, at, sum)
end

-- The sum of the chains, which tile.made keeps for later, if it is there.
local function put_sum(t, tile, c, v, chains)
  local sum = M.reduce(t, v.w, "add", chains, ("sum_c%d_"):format(c - 1))
  t:close()
  if not tile.made then return M.add_sum(t, tile, c, v, sum) end
  tile.made[c] = sum
end

-- Adds weights; acc: the scores, of which an infinite one makes the sum NaN where that is asked for.
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

-- Pairs of weights as powers of what (score - m) scale + offset is; m[c] and small[c]: of each vector, as far as they
-- are known. What is added to scaled scores is infinite where m is so large that its product with the scale loses
-- digits: weights are infinite then. Where m may rise it is subtracted before in such lanes, and the offset that is
-- added is of the statistics: weights are infinite still, but on the safe path, which makes no tiles beside others.
function M.powers(t, tile, m, small)
  local of, pass, known = {}, tile.pass, tile.pass.adds and not tile.pass.lifts
  local any = pass.any or pass.lifts and not tile.next
  local floor = M.hides_keys(tile) and powers.scale * M.FAR
  local function start(c, v)
    local w, name = v.w, "c" .. c - 1
    local at = stat(tile.group, tile.stats, "start", c)
    of[c] = { scale = t:op("set", w, "scale_" .. name, powers.scale),
              floor = floor and t:op("set", w, "floor_" .. name, floor) }
    if known then of[c].start = t:op("load", w, "start_" .. name, at) end
    if known then return end
    local own = m[c] or t:op("sub", w, "m_" .. name, t:op("zero", w, "zero_" .. name),
      t:op("load", w, "negmax_" .. name, stat(tile.group, tile.stats, "negmax", c)))
    of[c].m, of[c].small = own, small[c] or M.is_small(t, w, name, own)
    local offset = t:op("set", w, "offset_" .. name, powers.offset)
    if any then
      of[c].large = t:op("load", w, "large_start_" .. name, stat(tile.group, tile.stats, "large_start", c))
    end
    local minus = t:op("set", w, "minus_scale_" .. name, -powers.scale)
    of[c].start = t:op("sel", w, "start_" .. name, of[c].small,
      t:op("fma", w, "from_" .. name, own, minus, offset), t:op("set", w, "infinite_" .. name, math.huge))
    t:op("store", w, nil, at, of[c].start)
  end
  local function pair(at, name, scores)
    local w, c = at.v.w, of[at.c]
    local function each(word, list, build)
      local out = {}
      for _, half in ipairs { "low", "high" } do
        local score = list[half]
        out[half] = score and build(("%s_%s_%s"):format(word, half, name), score, half)
      end
      return out
    end
    local x = each(any and "near" or "x", scores, function(dst, score)
      return t:op("fma", w, dst, score, c.scale, c.start)
    end)
    if any then
      local less = each("less", scores, function(dst, score) return t:op("sub", w, dst, score, c.m) end)
      local far = each("far", less, function(dst, score) return t:op("fma", w, dst, score, c.scale, c.large) end)
      x = each("x", far, function(dst, score, half) return t:op("sel", w, dst, c.small, x[half], score) end)
    end
    x.high = x.high or t:op("set", w, "none_" .. name, powers.scale * M.FAR)
    if floor then x = each("seen", x, function(dst, score) return t:op("max", w, dst, c.floor, score) end) end
    return t:op(tile.scheme.powers, w, "pair_" .. name, x.low, x.high)
  end
  return { start = start, pair = pair }
end

-- Stores the weights of each two rows in pairs, zeros behind them as far as tiles reach, and adds them as they are
-- rounded. make: start and pair, of what makes them of scores, if there is such.
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
