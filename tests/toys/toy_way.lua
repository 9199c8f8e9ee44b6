-- A toy way of multiplying: outer products of four rows and a vector, as SME's FMOPA makes them, in ops that every ISA
-- has. And the toy ISA (tests/toys/toy.lua) with it.

local extend = require "isa.extend"

local ROWS = 4

local M = {}

local function nothing() end

-- An outer product takes as long for one row as for four.
function M.cost(target, rows, vecs, steps)
  return steps * -(-rows // ROWS) * #vecs * target.cpu.fmas + 20 + 2 * rows * #vecs
end

-- The elements of four rows are read at once, before the products of the first of them.
function M.steps(t, tile)
  local a, held = tile.a, nil
  local function multiply(r, step, b, acc)
    if r % ROWS == 0 then
      held = {}
      for i = r, math.min(r + ROWS, tile.rows) - 1 do
        held[i] = t:operand(tile.scheme.a, tile.scheme.does.dup, t.isa.full, ("a_r%d%s"):format(i, step.tag),
          a.p:at(step.k * a.k_stride + i * a.row))
      end
    end
    for c in ipairs(tile.vecs) do t:update(acc[c], tile.scheme.op, held[r], b[c], acc[c]) end
  end
  return { begin = nothing, multiply = multiply }
end

function M.isa(toy)
  return extend(toy, { name = "toy_fours", widths = { {} }, products = {
    ["f32 f32"] = { way = "fours", rows = { columns = { 8, 4 }, rows = { 8, 4 } } } } })
end

return M
