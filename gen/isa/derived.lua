-- Ops made of other ops, for ISAs without a row of their own. Same arguments as Tape:op.

local M = {}

-- a * 2^b by adding b to the exponent bits. A NaN has no integer. The number that it converts to has no low bits, so
-- the shifted one is 0, and the NaN stays.
function M.scale2(t, w, dst, a, b)
  local b_int = t:op("to_i", w, dst .. "_int", b)
  local exponent = t:op("ishl", w, dst .. "_exponent", b_int, 23)
  local bits = t:op("as_i", w, dst .. "_bits", a)
  local sum = t:op("iadd", w, dst .. "_sum", bits, exponent)
  return t:op("as_f", w, dst, sum)
end

return M
