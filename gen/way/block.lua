-- Two words of two rows of A times two words of two columns of B: a sum is a block of 2 x 2 numbers. A vector of
-- columns is two vectors of words then; acc[r] has blocks of the first two columns of each where r is even, of the
-- others where it is odd, and gemm.lua makes rows of them. A has the words of two rows side by side, whether rows or
-- steps follow each other.

local function nothing() end

return function(t, tile)
  local a, b, isa, does = tile.a, tile.b, t.isa, tile.product.does
  local held
  local function read(step)
    local vectors = {}
    for c = 0, 2 * #tile.vecs - 1 do
      local at = b.p:at(step.k * b.step + c * isa.lanes)
      vectors[c] = t:operand(tile.product.b, does.load, isa.full, ("b%s_c%d"):format(step.tag, c), at)
    end
    return vectors
  end
  local function multiply(r, step, vectors, acc)
    if r % 2 == 0 then
      local at = a.p:at(step.k * a.step + r * a.row)
      held = t:operand(tile.product.a, does.load, isa.full, ("a_r%d%s"):format(r, step.tag), at)
    end
    for c = 1, #tile.vecs do t:update(acc[c], tile.product.op, held, vectors[2 * (c - 1) + r % 2], acc[c]) end
  end
  return { begin = nothing, read = read, multiply = multiply }
end
