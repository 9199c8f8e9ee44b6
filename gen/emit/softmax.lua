-- Tiles of scores, and the softmax that is fused into them.
--
-- A score tile holds S^T[key][query lanes], scaled by log2(e)/sqrt(dk) at pack time, so the weights
-- are exp2(S - max). One pass: the maximum m of the first tile serves for all keys; later tiles
-- start their accumulators at -m and exponentiate at once. Any m gives the same softmax as long as
-- nothing overflows (Milakov & Gimelshein 2018, without the rescaling); the caller checks the sums
-- at the end and, where the check fails, finds the true maximum by `maximum` tiles and starts again.

local exp = require "emit.exp"
local gemm = require "emit.gemm"
local stat = require "emit.stats".at

local M = {}

-- The maximum of no scores: the lowest float.
local LOWEST = -(2.0 ^ 128 - 2.0 ^ 104)

-- Sums and finite tests below this are accepted. Weights up to 2^32 leave room for values up to 2^95.
M.accepted = 4294967296.0

-- Puts -inf where the key of row r is beyond the lane's limit. key is an integer expression. Returns also what
-- the maximum starts at: -inf, but for a lane that sees no key the lowest float, so that its weights are zero.
local function hide(t, group, stats, acc, rows, key)
  local out, least = {}, {}
  for r = 0, rows - 1 do out[r] = {} end
  for c, v in ipairs(group.vecs) do
    local limit = t:op("load", v.w, ("limit_c%d"):format(c - 1), stat(group, stats, "limit", c))
    local hidden_score = t:op("set", v.w, ("hidden_c%d"):format(c - 1), -math.huge)
    for r = 0, rows - 1 do
      local name = ("r%d_c%d"):format(r, c - 1)
      local index = t:op("index", v.w, "key_" .. name, key + r)
      local hidden = t:op("lt", v.w, "hide_" .. name, limit, index)
      out[r][c] = t:op("sel", v.w, "s_" .. name, hidden, hidden_score, acc[r][c])
      if r == 0 then
        local lowest = t:op("set", v.w, ("lowest_c%d"):format(c - 1), LOWEST)
        least[c] = t:op("sel", v.w, ("least_c%d"):format(c - 1), hidden, lowest, hidden_score)
      end
    end
  end
  return out, least
end

-- One value of list[1] .. list[n] by an op of two: in pairs, so that no chain is long.
local function reduce(t, w, op, list, prefix)
  local step = 1
  while step < #list do
    for i = 1, #list - step, 2 * step do
      list[i] = t:op(op, w, ("%s%d_%d"):format(prefix, step * 2, i - 1), list[i], list[i + step])
    end
    step = step * 2
  end
  return list[1]
end

-- kind: "first" finds m in this tile; "next" starts at the -m of the statistics; "again" is the first
-- tile with a known m, in the same operations; "maximum" only raises m.
-- tile: product, rows, a, b, steps, unroll, test (whether an infinite score makes the sum NaN), keyless (whether a
-- lane may see no key); ptrs: out
-- (weights), stats; key: index of the first key when masked.
function M.tile(t, group, tile, kind, ptrs, key)
  local stats = ptrs.stats
  tile.vecs = group.vecs
  tile.init = kind == "next"
    and function(_, c, w, name) return t:start("load", w, name, stat(group, stats, "negmax", c)) end
    or gemm.from_zero(t)
  local acc = gemm.tile(t, tile)
  local least
  if key then acc, least = hide(t, group, stats, acc, tile.rows, key) end

  for c, v in ipairs(group.vecs) do
    local m
    if kind ~= "next" then
      local negmax_at = stat(group, stats, "negmax", c)
      local zero = t:op("zero", v.w, ("zero_c%d"):format(c - 1))
      if kind ~= "first" then
        local old = t:op("load", v.w, ("negmax_c%d"):format(c - 1), negmax_at)
        m = t:op("sub", v.w, ("m_c%d"):format(c - 1), zero, old)
      end
      if kind ~= "again" then
        local scores = { m }
        if key and tile.keyless and kind == "first" then scores[1] = least[c] end
        for r = 0, tile.rows - 1 do scores[#scores + 1] = acc[r][c] end
        m = reduce(t, v.w, "max", scores, ("max_c%d_"):format(c - 1))
        t:op("store", v.w, nil, negmax_at, t:op("sub", v.w, ("minus_m_c%d"):format(c - 1), zero, m))
      end
    end
    if kind ~= "maximum" then
      local sums = {} -- of this tile first: one chain over all keys would round too often
      for r = 0, tile.rows - 1 do
        local name = ("r%d_c%d"):format(r, c - 1)
        local x = m and t:op("sub", v.w, "x_" .. name, acc[r][c], m) or acc[r][c]
        local p = exp.exp2(t, "p_" .. name, x)
        t:op("store", v.w, nil, ptrs.out:at(r * group.width + (c - 1) * group.lanes), p)
        local chain = r % 4 + 1
        if tile.test then
          local zero = t:op("zero", v.w, "zero_" .. name)
          p = t:op("fma", v.w, "tested_" .. name, acc[r][c], zero, p) -- 0 * inf is NaN
        end
        sums[chain] = sums[chain] and t:op("add", v.w, "sum_" .. name, sums[chain], p) or p
      end
      local sum = reduce(t, v.w, "add", sums, ("sum_c%d_"):format(c - 1))
      if kind == "next" then
        local old = t:op("load", v.w, ("old_sum_c%d"):format(c - 1), stat(group, stats, "sum", c))
        sum = t:op("add", v.w, ("sum_c%d"):format(c - 1), old, sum)
      end
      t:op("store", v.w, nil, stat(group, stats, "sum", c), sum)
    end
  end
end

return M
