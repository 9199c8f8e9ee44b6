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

-- `of`, if there is one, makes it 2^(-y / of.octave) of a y = x from 0 on: of.plus(start) is start + y, where start is
-- exact. Whole sixteenths of an octave's first part are exact too, so nothing is lost where y is large.

local function parts_of(octave)
  local unit = 2.0 ^ (math.floor(math.log(octave, 2)) - 11)
  local first = math.floor(octave / unit + 0.5) * unit
  return first, octave - first
end

-- What is left for the polynomial when n is taken away.
local function rest_of(t, w, x, n, of)
  if not of then return t:op("sub", w, "r", x, n) end
  local first, second = parts_of(of.octave)
  local start = t:op("mul", w, "start", n, t:op("set", w, "octave", first))
  return t:op("fma", w, "rest", n, t:op("set", w, "octave_low", second), of.plus(start))
end

-- The coefficient of a power of what is left.
local function scaled(coefficient, power, of)
  return of and coefficient / (-of.octave) ^ power or coefficient
end

local function octaves(t, w, of) return t:op("set", w, "octaves", -1.0 / of.octave) end

local function by_table(t, w, x, tiny, of)
  local function constant(name, value) return t:op("set", w, name, value) end
  local magic = constant("magic", SIXTEENTHS)
  local shifted = of and t:op("fma", w, "shifted", x, octaves(t, w, of), magic) or t:op("add", w, "shifted", x, magic)
  local n = t:op("sub", w, of and "whole" or "n", shifted, magic)
  local r = rest_of(t, w, x, n, of)
  local c3, c2, c1 = table.unpack(table_coefficients)
  local p2 = t:op("fma", w, "p2", constant("c3", scaled(c3, 3, of)), r, constant("c2", scaled(c2, 2, of)))
  local p1 = t:op("fma", w, "p1", p2, r, constant("c1", scaled(c1, 1, of)))
  local less_1 = t:op("mul", w, "less_1", p1, r) -- 2^r - 1
  local root = t:op("root", w, "root", shifted)
  local power = t:op("fma", w, "power", less_1, root, root)
  return t:op("scale2_floor", w, of and "fallen" or "result", tiny, power, n)
end

local function by_polynomial(t, w, x, tiny, of)
  local top = of and t:op("mul", w, "top", x, octaves(t, w, of)) or x -- the order of min's operands keeps a NaN
  if not of and not t.isa.saturates then top = t:op("min", w, "top", t:op("set", w, "most", M.highest), x) end
  local n = t:op("round", w, of and "whole" or "n", top)
  local r = rest_of(t, w, top, n, of)
  -- Where fma rounds twice, r/2, which is exact, is left for the end: 0.93 ulp instead of 1.08.
  local at_once = t.isa.fused or of
  local p
  for power = 6, 1, -1 do
    local coefficient = scaled(M.coefficients[7 - power], power, of) - (power == 1 and not at_once and 0.5 or 0.0)
    local c = t:op("set", w, "c" .. power, coefficient)
    p = p and t:op("fma", w, "p" .. power, p, r, c) or c
  end
  local one = t:op("set", w, "c0", M.coefficients[7])
  if at_once then
    p = t:op("fma", w, "p0", p, r, one)
  else
    local half = t:op("mul", w, "half", r, t:op("set", w, "c_half", 0.5))
    p = t:op("add", w, "p0", t:op("fma", w, "s", p, r, half), one)
  end
  return t:op("zero_if", w, of and "fallen" or "result", tiny, t:op("scale2", w, "scaled", p, n))
end

local function power(t, w, x, tiny, of)
  if t.isa.rows.root then choices.add(t.why, "exp2_table") end
  return (t.isa.rows.root and by_table or by_polynomial)(t, w, x, tiny, of)
end

-- The function exp2_<lanes> of a width.
local function define(t, w)
  local x = { name = "x", kind = "f", w = w }
  return t:define({
    name = "exp2_" .. w.lanes, w = w, attr = "inline __attribute__((always_inline))",
    params = { { kind = w.t, name = "x" } }, keep = true,
    doc = "2^x: within 1 ulp from -100 to 127, 0 below, at least 2^126 or infinite above; NaN stays NaN.",
  }, function()
    t:result(power(t, w, x, t:op("lt", w, "tiny", x, t:op("set", w, "lowest", M.lowest))))
  end)
end

function M.exp2(t, dst, x) return t:apply(define(t, x.w), dst, x) end

-- 2^(-y / octave) within a function, for y from 0 to 125 octaves; zero where it is below 2^-100. y may be rounded:
-- plus(start) is start + y without that error.
function M.falling(t, w, y, octave, plus)
  local tiny = t:op("lt", w, "tiny", t:op("set", w, "most", -M.lowest * octave), y)
  return power(t, w, y, tiny, { octave = octave, plus = plus })
end

return M
