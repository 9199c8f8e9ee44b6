-- The angles of rope, computed by sums and products alone. They become literals in the generated C, and exp and log of
-- different C libraries differ in the last bit.

local M = {}

local TWO_PI, LOG_2 = 6.283185307179586, 0.6931471805599453

-- log x for x >= 1: that of a power of two, plus for the rest in (0.75, 1.5] the series of 2 artanh((x - 1) / (x + 1)).
local function log(x)
  local twos = 0
  while x > 1.5 do x, twos = x / 2.0, twos + 1 end
  local z = (x - 1.0) / (x + 1.0)
  local sum, power = 0.0, z
  for k = 1, 31, 2 do
    sum, power = sum + power / k, power * (z * z)
  end
  return 2.0 * sum + twos * LOG_2
end

-- e^-x for x >= 0: Taylor's series of x / 2^n, squared n times.
local function exp_of_minus(x)
  local squarings = 0
  while x > 0.5 do x, squarings = x / 2.0, squarings + 1 end
  local sum, term = 1.0, 1.0
  for k = 1, 20 do
    term = -term * x / k
    sum = sum + term
  end
  for _ = 1, squarings do sum = sum * sum end
  return sum
end

-- The part of a full turn by which each pair rotates from one position to the next: theta^(-i / pairs) / 2 pi.
function M.turns(theta, pairs)
  local turns = {}
  for i = 0, pairs - 1 do turns[i + 1] = exp_of_minus(log(theta) * i / pairs) / TWO_PI end
  return turns
end

return M
