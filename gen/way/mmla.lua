-- Two words of two rows of A times two words of two columns of B (bfmmla, smmla): a sum is a block of 2 x 2 numbers.
-- So each accumulator vector of columns needs two vectors of B. Accumulators of even rows hold the blocks of the first
-- one, those of odd rows the blocks of the second, and `finish` unpacks both into rows. In A the words of two rows are
-- interleaved.

local M = { columns = "products by mmla have weights as columns" }

local function nothing() end

function M.steps(t, tile)
  local a, b, isa, does = tile.a, tile.b, t.isa, tile.scheme.does
  local held
  local function read(step)
    local vectors = {}
    for c = 0, 2 * #tile.vecs - 1 do
      local at = b.p:at(step.k * b.k_stride + c * isa.lanes)
      vectors[c] = t:operand(tile.scheme.b, does.load, isa.full, ("b%s_c%d"):format(step.tag, c), at)
    end
    return vectors
  end
  local function multiply(r, step, vectors, acc)
    if r % 2 == 0 then
      local at = a.p:at(step.k * a.k_stride + r * a.row)
      held = t:operand(tile.scheme.a, does.load, isa.full, ("a_r%d%s"):format(r, step.tag), at)
    end
    for c = 1, #tile.vecs do t:update(acc[c], tile.scheme.op, held, vectors[2 * (c - 1) + r % 2], acc[c]) end
  end
  return { begin = nothing, read = read, multiply = multiply }
end

-- Sums of blocks as rows of vectors.
function M.finish(t, tile, acc)
  local words, rows = tile.scheme.integers, {}
  local function half(op, r, c, w)
    local low, high, name = acc[r - r % 2][c], acc[r - r % 2 + 1][c], ("r%d_c%d"):format(r, c - 1)
    if words then low, high = t:op("as_f", w, "low_" .. name, low), t:op("as_f", w, "high_" .. name, high) end
    local row = t:op(op, w, "row_" .. name, low, high, 2)
    return words and t:op("as_i", w, "integers_" .. name, row) or row
  end
  for r = 0, tile.rows - 1 do
    rows[r] = {}
    for c, v in ipairs(tile.vecs) do rows[r][c] = half(r % 2 == 0 and "trn_lo" or "trn_hi", r, c, v.w) end
  end
  return rows
end

return M
