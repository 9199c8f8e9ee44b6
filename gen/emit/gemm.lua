-- Register tiles of a matrix product, and the loops that cover a matrix with them.
--
-- A tile computes acc[r][c] = init + sum over k of A[r][k] * B[k][c], where c counts vectors:
-- B is loaded as vectors, A is broadcast element by element, or multiplied by lane where the ISA
-- can. All accumulators stay in registers; K runs in steps of a literal block.

local expr = require "expr"
local tiles = require "tiles"

local M = {}

-- K steps that are written together: one for each chain, and those of a vector of A.
local function step_group(t, tile)
  local by_lane = t.isa.rows.fma_lane and not tile.filter and tile.a.step == 1 and tile.a.row ~= 1
  return math.max(tile.chains or 1, by_lane and t.isa.lanes or 1)
end

-- n K steps at offset k0 from the pointers of A and B; `base` is the number of the step at the
-- pointers. Step i adds to sums[i % #sums + 1].
local function steps(t, tile, sums, k0, n, base)
  local isa, a, b = t.isa, tile.a, tile.b
  local by_lane = isa.rows.fma_lane and not tile.filter and isa.lanes
  local full = isa.full
  local load = tiles.kept(isa, tile.rows) and "load_kept" or "load"
  local rows_by_lane = by_lane and a.row == 1 and tile.rows - tile.rows % by_lane or 0
  local k_by_lane = by_lane and a.step == 1 and a.row ~= 1 and n - n % by_lane or 0

  local a_block -- rows of A, by_lane K steps each
  for i = 0, n - 1 do
    local k, of_k = k0 + i, ""
    if n > 1 then of_k = "_k" .. (expr.is_const(k) and k or i) end
    if n > 1 then t:note("k = " .. expr.text(k)) end
    local acc = sums[i % #sums + 1]
    local in_k_block = i < k_by_lane
    if in_k_block and i % by_lane == 0 then
      a_block = {}
      for r = 0, tile.rows - 1 do
        a_block[r] = t:op("load", full, ("a_r%d%s"):format(r, of_k), a.p:at(k + r * a.row))
      end
    end
    local bv = {}
    for c, v in ipairs(tile.vecs) do
      bv[c] = t:op(load, v.w, ("b%s_c%d"):format(of_k, c - 1), b.p:at(k * b.step + (c - 1) * isa.lanes))
    end
    local a_rows
    for r = 0, tile.rows - 1 do
      local a_name, a_at = ("a_r%d%s"):format(r, of_k), a.p:at(k * a.step + r * a.row)
      if in_k_block then
        for c = 1, #tile.vecs do
          t:update(acc[r][c], "fma_lane", bv[c], a_block[r], acc[r][c], i % by_lane)
        end
      elseif r < rows_by_lane then
        if r % by_lane == 0 then a_rows = t:op("load", full, a_name, a_at) end
        for c = 1, #tile.vecs do
          t:update(acc[r][c], "fma_lane", bv[c], a_rows, acc[r][c], r % by_lane)
        end
      else
        local dups = {} -- one broadcast, for a narrower width the low part of it
        for c, v in ipairs(tile.vecs) do
          if not dups[v.w] then
            local name = v.w == tile.vecs[1].w and a_name or a_name .. "_tail"
            dups[v.w] = dups[full] and isa.rows.low and t:op("low", v.w, name, dups[full])
              or t:op("dup", v.w, name, a_at)
          end
          local factor = dups[v.w]
          if tile.filter then
            factor = tile.filter(c, v.w, base + k, factor, ("r%d%s_c%d"):format(r, of_k, c - 1))
          end
          t:update(acc[r][c], "fma", factor, bv[c], acc[r][c])
        end
      end
    end
  end
end

-- A block of n K steps at the pointers of A and B.
local function block(t, tile, sums, n, base)
  local group = t.rolled and step_group(t, tile) or n
  local rounds, done = group > 0 and n // group or 0, 0
  if rounds > 1 then
    t:unrolled("i", rounds, function(i) steps(t, tile, sums, i * group, group, base) end)
    done = rounds * group
  end
  steps(t, tile, sums, done, n - done, base)
end

-- Adds the chains of each sum, those of a pair first: the result is in the first.
local function joined(t, tile, sums)
  local apart = 1
  while apart < #sums do
    for i = 1, #sums, 2 * apart do
      for r = 0, tile.rows - 1 do
        for c = 1, #tile.vecs do
          t:update(sums[i][r][c], "add", sums[i][r][c], sums[i + apart][r][c])
        end
      end
    end
    apart = 2 * apart
  end
  return sums[1]
end

-- tile: rows, vecs { {w=} .. }, steps (K, a literal) or blocks (a run-time number of K blocks),
-- unroll (K steps per block), chains (sums that the steps go to in turn, 1 if missing), a { p, row, step },
-- b { p, step }, init(r, c, w, name) starts one accumulator; filter(c, w, k, factor, name), if given,
-- returns what to use for the broadcast element of A in step k and column c. Returns acc[r][c], r from
-- 0, c from 1.
function M.tile(t, tile)
  local sums, zero = {}, M.from_zero(t)
  for i = 1, tile.chains or 1 do
    sums[i] = {}
    for r = 0, tile.rows - 1 do
      sums[i][r] = {}
      for c, v in ipairs(tile.vecs) do
        local name = ("acc_r%d_c%d"):format(r, c - 1)
        sums[i][r][c] = i == 1 and tile.init(r, c, v.w, name) or zero(r, c, v.w, name .. "_" .. i)
      end
    end
  end
  if not tile.blocks and tile.steps <= tile.unroll then
    block(t, tile, sums, tile.steps, 0)
    return joined(t, tile, sums)
  end
  local blocks = tile.blocks or tile.steps // tile.unroll
  t:loop("step", blocks, function(step)
    block(t, tile, sums, tile.unroll, step * tile.unroll)
    t:bump(tile.a.p, tile.unroll * tile.a.step)
    t:bump(tile.b.p, tile.unroll * tile.b.step)
  end)
  if not tile.blocks then
    block(t, tile, sums, tile.steps % tile.unroll, tile.steps - tile.steps % tile.unroll)
  end
  return joined(t, tile, sums)
end

-- Ways to start an accumulator.
function M.from_zero(t)
  return function(_, _, w, name) return t:start("zero", w, name) end
end

function M.from_row(t, bias) -- one value a row
  return function(r, _, w, name) return t:start("dup", w, name, bias:at(r)) end
end

function M.from_columns(t, bias) -- one value a column
  return function(_, c, w, name) return t:start("load", w, name, bias:at((c - 1) * t.isa.lanes)) end
end

-- Stores a tile: out has `row` floats from row to row; vectors lie `lanes` apart. `add` adds what
-- is there (the partial sum of earlier K chunks); `exact` keeps off floats that a vector does not use.
function M.store(t, tile, acc, out, row, add, exact)
  for r = 0, tile.rows - 1 do
    for c, v in ipairs(tile.vecs) do
      local p = out:at(r * row + (c - 1) * t.isa.lanes)
      local partial = exact and v.used < v.w.lanes
      local value = acc[r][c]
      if add then
        local name = ("r%d_c%d"):format(r, c - 1)
        local old = partial and t:op("load_n", v.w, "old_" .. name, p, v.used)
          or t:op("load", v.w, "old_" .. name, p)
        value = t:op("add", v.w, "sum_" .. name, old, value)
      end
      if partial then
        t:op("store_n", v.w, nil, p, value, v.used)
      else
        t:op("store", v.w, nil, p, value)
      end
    end
  end
end

return M
