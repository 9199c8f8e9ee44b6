-- Tiles of scores, and the softmax that is fused into them.
--
-- A score tile holds S^T[key][query lanes], scaled by log2(e)/sqrt(dk) at pack time, so the weights
-- are exp2(S - max). One pass: the maximum m of the first tile serves for all keys; later tiles
-- start their accumulators at -m and exponentiate at once. Any m gives the same softmax as long as
-- nothing overflows (Milakov & Gimelshein 2018, without the rescaling); the caller checks the sums
-- at the end and, where the check fails, finds the true maximum by `maximum` tiles and starts again.

local choices = require "choices"
local exp = require "emit.exp"
local gemm = require "emit.gemm"
local stat = require "emit.stats".at

local M = {}

-- The maximum of no scores: the lowest float.
M.LOWEST = -(2.0 ^ 128 - 2.0 ^ 104)

-- Sums and finite tests below this are accepted. Weights up to 2^32 leave room for values up to 2^95.
M.accepted = 4294967296.0

-- What is done in a tile. from_m: sums start at the -m of the statistics, but for the part of it that is subtracted
-- late; else m is subtracted from them: old_m, the m of the statistics, new_m, raised by the scores of this tile.
-- weighs: makes weights; adds: their sum is added to that of the tiles before. word: of the function's name.
M.passes = {
  first = { word = "_first", new_m = true, weighs = true,
            doc = "Scores of the first keys: their maximum, the weights and their sum." },
  next = { word = "", from_m = true, weighs = true, adds = true,
           doc = "Weights exp2(score - maximum) of some keys, added to the sum." },
  -- The first tile with a known m, in the operations of `first`.
  again = { word = "_again", old_m = true, weighs = true, doc = "Weights of the first keys with a known maximum." },
  -- A maximum that was found by sums from zero is subtracted from such: large scores round otherwise behind -m, and
  -- all weights of a row could be zero.
  next_again = { word = "_next_again", from_m = true, late = true, weighs = true, adds = true,
                 doc = "Weights of some keys, added to the sum; a new maximum is subtracted last." },
  maximum = { word = "_maximum", old_m = true, new_m = true, doc = "Raises the maximum by the scores of some keys." },
}

-- Masks of the lanes that do not see a key: { mask, name } for each end of the interval. ends: as M.ends has them.
function M.hidden(t, w, ends, name, key)
  local index = t:op("index", w, "key_" .. name, key)
  local list = {}
  if ends.last then list[1] = { t:op("lt", w, "hide_" .. name, ends.last, index), name } end
  if ends.first then
    list[#list + 1] = { t:op("lt", w, "early_" .. name, index, ends.first), name .. (ends.last and "_early" or "") }
  end
  return list
end

-- The ends of the interval of keys, for the lanes of vector c: { last =, first = } as far as there are any.
function M.ends(t, scores, group, stats, c, name)
  local ends, w = {}, group.vecs[c].w
  for _, which in ipairs { "last", "first" } do
    if scores.bounds[which] then
      ends[which] = t:op("load", w, ("%s_%s"):format(which, name), stat(group, stats, which, c))
    end
  end
  return ends
end

-- Puts -inf where the key of row r, a C expression from `key` on, is hidden. Returns also what the maximum of a first
-- tile starts at: -inf, but for a lane that sees no key the lowest float, so that its weights are zero.
local function hide(t, tile, acc)
  local out, least = {}, {}
  for r = 0, tile.rows - 1 do out[r] = {} end
  for c, v in ipairs(tile.group.vecs) do
    local ends = M.ends(t, tile.scores, tile.group, tile.stats, c, "c" .. c - 1)
    local hidden_score = t:op("set", v.w, ("hidden_c%d"):format(c - 1), -math.huge)
    for r = 0, tile.rows - 1 do
      out[r][c] = acc[r][c]
      for _, hidden in ipairs(M.hidden(t, v.w, ends, ("r%d_c%d"):format(r, c - 1), tile.key + r)) do
        local mask, name = table.unpack(hidden)
        out[r][c] = t:op("sel", v.w, "s_" .. name, mask, hidden_score, out[r][c])
        if r == 0 and ends.last and not least[c] then
          local lowest = t:op("set", v.w, ("lowest_c%d"):format(c - 1), M.LOWEST)
          least[c] = t:op("sel", v.w, ("least_c%d"):format(c - 1), mask, lowest, hidden_score)
        end
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

-- What the accumulators start at: biases, and -m.
local function start(t, tile, from_m)
  local group, biases, late = tile.group, tile.scores.biases, tile.pass.late
  if not from_m and #biases == 0 then return gemm.from_zero(t) end
  return function(r, c, w, name)
    local negmax_at = stat(group, tile.stats, "negmax", c)
    local function early(dst, how) -- of -m
      if not late then return how(t, "load", w, dst, negmax_at) end
      return how(t, "sub", w, dst, t:op("load", w, "whole_" .. name, negmax_at),
        t:op("load", w, "late_" .. name, stat(group, tile.stats, "late", c)))
    end
    if #biases == 0 then return early(name, t.start) end
    local terms = {}
    for i, row in ipairs(biases) do
      terms[i] = row.bias(t, w, ("bias%d_%s"):format(i, name), M.place(tile, r, c))
    end
    terms[#terms + 1] = from_m and early("negmax_" .. name, t.op) or nil
    if #terms == 1 then terms[2] = t:op("zero", w, "zero_" .. name) end
    local last = table.remove(terms)
    return t:start("add", w, name, reduce(t, w, "add", terms, "biases_" .. name .. "_"), last)
  end
end

-- Where a vector of scores is, for the rows that bias or change it.
function M.place(tile, r, c) return setmetatable({ key = tile.key + r, c = c }, { __index = tile.reads }) end

-- tile: product, group, pass, rows, a, b, steps, unroll, chains, test (whether an infinite score makes the sum NaN),
-- scores, key (of the first row), edge (whether some lanes do not see some keys), reads (what the rows of
-- gen/score read); out (weights), stats.
function M.tile(t, tile)
  choices.add(t.why, "short_chains")
  local group, stats, pass, scores = tile.group, tile.stats, tile.pass, tile.scores
  -- Behind a change of a score -m is subtracted, as in the first tile.
  local from_m = pass.from_m and #scores.changes == 0
  local old_m = pass.old_m or pass.from_m and not from_m
  tile.vecs, tile.init = group.vecs, start(t, tile, from_m)
  local acc = gemm.tile(t, tile)
  for i, row in ipairs(scores.changes) do
    for r = 0, tile.rows - 1 do
      for c, v in ipairs(group.vecs) do
        acc[r][c] = row.change(t, v.w, ("s%d_r%d_c%d"):format(i, r, c - 1), M.place(tile, r, c), acc[r][c])
      end
    end
  end
  local least = {}
  if tile.edge then acc, least = hide(t, tile, acc) end

  for c, v in ipairs(group.vecs) do
    local m
    if old_m or pass.new_m then
      local negmax_at = stat(group, stats, "negmax", c)
      local zero = t:op("zero", v.w, ("zero_c%d"):format(c - 1))
      if old_m then
        local old = t:op("load", v.w, ("negmax_c%d"):format(c - 1), negmax_at)
        m = t:op("sub", v.w, ("m_c%d"):format(c - 1), zero, old)
      end
      if pass.new_m then
        local list = { m }
        if scores.keyless and not old_m then list[1] = least[c] end
        for r = 0, tile.rows - 1 do list[#list + 1] = acc[r][c] end
        m = reduce(t, v.w, "max", list, ("max_c%d_"):format(c - 1))
        t:op("store", v.w, nil, negmax_at, t:op("sub", v.w, ("minus_m_c%d"):format(c - 1), zero, m))
      end
    end
    local late = from_m and pass.late and t:op("load", v.w, ("late_c%d"):format(c - 1), stat(group, stats, "late", c))
    if pass.weighs then
      local sums = {} -- of this tile first: one chain over all keys would round too often
      for r = 0, tile.rows - 1 do
        local name = ("r%d_c%d"):format(r, c - 1)
        local x = m and t:op("sub", v.w, "x_" .. name, acc[r][c], m)
          or late and t:op("add", v.w, "x_" .. name, acc[r][c], late) or acc[r][c]
        local p = exp.exp2(t, "p_" .. name, x)
        t:op("store", v.w, nil, tile.out:at(r * group.width + (c - 1) * group.lanes), p)
        local chain = r % 4 + 1
        if tile.test then
          local zero = t:op("zero", v.w, "zero_" .. name)
          p = t:op("fma", v.w, "tested_" .. name, acc[r][c], zero, p) -- 0 * inf is NaN
        end
        sums[chain] = sums[chain] and t:op("add", v.w, "sum_" .. name, sums[chain], p) or p
      end
      local sum = reduce(t, v.w, "add", sums, ("sum_c%d_"):format(c - 1))
      if pass.adds then
        local old = t:op("load", v.w, ("old_sum_c%d"):format(c - 1), stat(group, stats, "sum", c))
        sum = t:op("add", v.w, ("sum_c%d"):format(c - 1), old, sum)
      end
      t:op("store", v.w, nil, stat(group, stats, "sum", c), sum)
    end
  end
end

return M
