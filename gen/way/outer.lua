-- An element of A in every lane, times vectors of B: any ISA.

local choices = require "choices"

local function nothing() end

return function(t, tile, block)
  local isa, a = t.isa, tile.a
  local full, first = isa.full, tile.vecs[1].w
  local function multiply(r, k, b, acc)
    local dups = {} -- one broadcast, for a narrower width the low part of it
    for c, v in ipairs(tile.vecs) do
      if not dups[v.w] then
        local name = ("a_r%d_k%d%s"):format(r, k, v.w == first and "" or "_tail")
        if dups[full] and isa.rows.low then
          dups[v.w] = t:op("low", v.w, name, dups[full])
          choices.add(t.why, "tail")
        else
          dups[v.w] = t:operand(tile.product.a, "dup", v.w, name, a.p:at(r * a.row + k * a.step))
        end
      end
      local factor = dups[v.w]
      if tile.filter then
        factor = tile.filter(c, v.w, block.base + k, factor, ("r%d_k%d_c%d"):format(r, k, c - 1))
      end
      t:update(acc[c], "fma", factor, b[c], acc[c])
    end
  end
  return { begin = nothing, multiply = multiply }
end
