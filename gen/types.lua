-- Number types: how numbers lie in memory, and what the operands of a product are rounded to. Sums, softmax and
-- all other arithmetic are float32.

local M = {}

-- name, doc; bytes of a number in memory, c = its type in C; unit = its largest rounding, as a part of a number;
-- error = the most that ||y - ref|| / ||ref|| is where operands are of this type and scores at most 16;
-- round(t, w, dst, x), but for float32: records the nearest numbers of the type, as float32.
M.names, M.by_name = {}, {}

function M.add(row)
  M.names[#M.names + 1] = row.name
  M.by_name[row.name] = row
end

M.add { name = "f32", doc = "IEEE 754 single precision", bytes = 4, c = "float", unit = 2.0 ^ -24,
        error = 1e-6 }

M.f32 = M.by_name.f32

return M
