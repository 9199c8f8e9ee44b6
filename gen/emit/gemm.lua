-- Register tiles of a matrix product, and the loops that cover a matrix with them.
--
-- A tile computes acc[r][c] = init + sum over k of A[r][k] * B[k][c], where c counts vectors:
-- B is loaded as vectors; how an element of A meets them is the way of the ISA's product. All accumulators
-- stay in registers; K runs in steps of a literal block.

local choices = require "choices"
local tiles = require "tiles"
local ways = require "way.init"

local M = {}

-- One block of n K steps at offset k0 from the pointers of A and B; `base` is the number of the
-- step at the pointers. Step k adds to sums[k % #sums + 1].
local function steps(t, tile, sums, k0, n, base)
  local b, product = tile.b, tile.product
  -- A filter works on broadcasts.
  local way = ways[tile.filter and "outer" or product.way](t, tile, { first = k0, count = n, base = base })
  local load = "load"
  if tiles.kept(t.isa, tile.rows) then
    load = "load_kept"
    choices.add(t.why, "kept")
  end
  for k = k0, k0 + n - 1 do
    t:note("k = " .. k)
    way.begin(k)
    local bv = {}
    for c, v in ipairs(tile.vecs) do
      local at = b.p:at(k * b.step + (c - 1) * t.isa.lanes)
      bv[c] = t:operand(product.b, load, v.w, ("b_k%d_c%d"):format(k, c - 1), at)
    end
    local acc = sums[k % #sums + 1]
    for r = 0, tile.rows - 1 do way.multiply(r, k, bv, acc[r]) end
  end
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

-- tile: product (of the ISA), rows, vecs { {w=} .. }, steps (K, a literal) or blocks (a run-time number of K blocks),
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
    steps(t, tile, sums, 0, tile.steps, 0)
    return joined(t, tile, sums)
  end
  choices.add(t.why, "loops")
  choices.add(t.why, "prefetch")
  local blocks = tile.blocks or tile.steps // tile.unroll
  t:loop("step", blocks, function(step)
    steps(t, tile, sums, 0, tile.unroll, step * tile.unroll)
    t:bump(tile.a.p, tile.unroll * tile.a.step)
    t:bump(tile.b.p, tile.unroll * tile.b.step)
  end)
  if not tile.blocks then
    steps(t, tile, sums, 0, tile.steps % tile.unroll, tile.steps - tile.steps % tile.unroll)
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

return M
