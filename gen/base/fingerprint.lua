-- The fingerprint of packed weights: 64 bits of the text that says how they are made, in hexadecimal (FNV-1a, of
-- Fowler, Noll and Vo).

local BASIS, PRIME = 0xCBF29CE484222325, 0x100000001B3

return function(text)
  local sum = BASIS
  for i = 1, #text do sum = (sum ~ text:byte(i)) * PRIME end
  return ("0x%016X"):format(sum)
end
