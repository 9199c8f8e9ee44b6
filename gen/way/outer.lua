-- Broadcasts an element of A to all lanes, and multiplies it by vectors of B, on any ISA.

local choices = require "base.choices"

local M = { dups = true }

local function nothing() end

function M.steps(t, tile, block)
  local isa, a = t.isa, tile.a
  local full, first = isa.full, tile.vecs[1].w
  local function multiply(r, step, b, acc)
    local dups = {} -- one broadcast, for a narrower width the low part of it
    for c, v in ipairs(tile.vecs) do
      if not dups[v.w] then
        local name = ("a_r%d%s%s"):format(r, step.tag, v.w == first and "" or "_tail")
        local does = tile.scheme.does
        if dups[full] and does.low and isa.rows.low then
          dups[v.w] = t:op(does.low, v.w, name, dups[full])
          choices.add(t.why, "tail")
        else
          dups[v.w] = t:operand(tile.scheme.a, does.dup, v.w, name, a.p:at(step.k * a.k_stride + r * a.row))
        end
      end
      local factor = dups[v.w]
      if tile.filter then
        factor = tile.filter(c, v.w, block.base + step.k, factor, ("r%d%s_c%d"):format(r, step.tag, c - 1))
      end
      t:update(acc[c], tile.scheme.op, factor, b[c], acc[c])
    end
  end
  return { begin = nothing, multiply = multiply }
end

return M
