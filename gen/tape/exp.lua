-- exp2 of a vector, in one of two ways.
--
--   ISA                               r                                  2^x
--   without a look-up                 x - round(x), in [-1/2, 1/2]       2^r of degree 6, the exponent by scale2
--   looks up 2^(k/16) in a register   x - n, in [-1/32, 1/32];           2^r of degree 3, 2^n by table and exponent
--                                     n is x rounded to sixteenths       (Tang, Table-driven implementation of the
--                                                                        exponential function, 1989)
--
--   x                 result
--   [-100, 127]       error at most 1 ulp
--   below -100        exactly zero, so that products with ordinary numbers are not subnormal
--   above 127         at least 2^126; from 2^22 on also -inf, which makes NaN of a context
--   NaN               NaN
--
-- A finite x of at most 2^22 in size raises no exception but those of roundings. Narrow vectors of an ISA with a
-- table may also raise that of an overflow.

local choices = require "base.choices"

local M = {}

-- Minimax for the relative error on [-1/2, 1/2] with constant term 1; highest power first. Single float32 steps then
-- moved it to the least error of the evaluated polynomial, 0.78 ulp.
M.coefficients = {
  0.000155957678, 0.00134068797, 0.00961772259, 0.0555031635, 0.240226477, 0.693147182, 1.0,
}
M.lowest = -100.0
M.highest = 128.0 -- where powers are infinite

-- The same for 2^r on [-1/32, 1/32], 0.96 ulp with the errors of the table. Adding SIXTEENTHS rounds to sixteenths,
-- which then are the low bits of the sum.
local table_coefficients = { 0.0554668382, 0.240237862, 0.693147242 }
local SIXTEENTHS = 786432.0 -- 1.5 * 2^19

local function by_table(t, w, x, tiny)
  local function constant(name, value) return t:op("set", w, name, value) end
  local magic = constant("magic", SIXTEENTHS)
  local shifted = t:op("add", w, "shifted", x, magic)
  local n = t:op("sub", w, "n", shifted, magic)
  local r = t:op("sub", w, "r", x, n)
  local c3, c2, c1 = table.unpack(table_coefficients)
  local p2 = t:op("fma", w, "p2", constant("c3", c3), r, constant("c2", c2))
  local p1 = t:op("fma", w, "p1", p2, r, constant("c1", c1))
  local less_1 = t:op("mul", w, "less_1", p1, r) -- 2^r - 1
  local root = t:op("root", w, "root", shifted)
  return t:op("scale2_floor", w, "result", tiny, t:op("fma", w, "power", less_1, root, root), n)
end

local function by_polynomial(t, w, x, tiny)
  local top = x -- the order of min's operands keeps a NaN
  if not t.isa.saturates then top = t:op("min", w, "top", t:op("set", w, "most", M.highest), x) end
  local n = t:op("round", w, "n", top)
  local r = t:op("sub", w, "r", top, n)
  -- Where fma rounds twice, r/2, which is exact, is left for the end: 0.93 ulp instead of 1.08.
  local fused = t.isa.fused
  local p
  for power = 6, 1, -1 do
    local coefficient = M.coefficients[7 - power] - (power == 1 and not fused and 0.5 or 0.0)
    local c = t:op("set", w, "c" .. power, coefficient)
    p = p and t:op("fma", w, "p" .. power, p, r, c) or c
  end
  local one = t:op("set", w, "c0", M.coefficients[7])
  if fused then
    p = t:op("fma", w, "p0", p, r, one)
  else
    local half = t:op("mul", w, "half", r, t:op("set", w, "c_half", 0.5))
    p = t:op("add", w, "p0", t:op("fma", w, "s", p, r, half), one)
  end
  return t:op("zero_if", w, "result", tiny, t:op("scale2", w, "scaled", p, n))
end

-- The function exp2_<lanes> of a width.
local function define(t, w)
  local x = { name = "x", kind = "f", w = w }
  return t:define({
    name = "exp2_" .. w.lanes, w = w, attr = "inline __attribute__((always_inline))",
    params = { { kind = w.t, name = "x" } }, keep = true,
    doc = "2^x: at most 1 ulp from -100 to 127, 0 below; above at least 2^126 or infinite; NaN stays NaN.",
  }, function()
    if t.isa.rows.root then choices.add(t.why, "exp2_table") end
    local tiny = t:op("lt", w, "tiny", x, t:op("set", w, "lowest", M.lowest))
    t:result((t.isa.rows.root and by_table or by_polynomial)(t, w, x, tiny))
  end)
end

function M.exp2(t, dst, x) return t:apply(define(t, x.w), dst, x) end

return M
