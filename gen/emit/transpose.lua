-- Transposes a square of L rows by L columns in registers, L the lanes of the full width: log2(L)
-- steps, each exchanging blocks of 1, 2, 4, .. lanes between pairs of vectors.

local M = {}

-- rows[i], i from 0, are vectors of the full width; the result's vector j holds column j.
function M.square(t, rows, prefix)
  local isa = t.isa
  local block = 1
  while block < isa.lanes do
    local out = {}
    for i = 0, isa.lanes - 1 do
      if i // block % 2 == 0 then
        local a, b = rows[i], rows[i + block]
        out[i] = t:op("trn_lo", isa.full, ("%s%d_%d"):format(prefix, block * 2, i), a, b, block)
        out[i + block] =
          t:op("trn_hi", isa.full, ("%s%d_%d"):format(prefix, block * 2, i + block), a, b, block)
      end
    end
    rows, block = out, block * 2
  end
  return rows
end

return M
