-- The activation functions of a feed-forward or of a product, on vectors of float32.
--
--   name         function                                            error in ulp   where fma rounds twice
--   gelu         x Phi(x), the form with erf                         4.08           4.15
--   gelu_tanh    x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2     3.79           5.67
--   quick_gelu   x / (1 + exp(-1.702 x))                             3.48           3.18
--   silu         x / (1 + exp(-x))                                   3.67           3.25
--   relu         max(x, 0)                                           0              0
--   relu2        max(x, 0)^2                                         0.5            0.5
--   tanh         tanh(x)                                             5.27           6.33
--
-- Errors are the largest over all 2^32 floats on avx512 and avx2 (tanh: avx2), and over every 31st on scalar. A result
-- between zero and -2^-93 may be zero. NaN stays NaN. At infinite x results are the limits, such as 0 for -inf. There
-- PyTorch 2.13 returns NaN, except for relu and tanh, and its gelu does so for inf too.
--
-- The smooth functions but tanh share a form: max(x, 0) - a tail(a), where a is |x|. The tail is Phi(-a), or
-- e / (1 + e) for a power e, which is zero below 2^-100. Nothing cancels for negative x, and nothing branches. A large
-- a is replaced by one whose tail is zero.
--
-- Where products round their operands to 16 bits or fewer and fma rounds once, both forms of gelu are a polynomial. Its
-- error is at most 2^-14.9 of |x|, where bf16 alone has 2^-9, and it is zero up to -4.

local exp = require "tape.exp"

-- Rows { name, exact = the function, apply = function(t, w, x, suffix), bound = function(isa), of_x = whether the bound
-- is of |x| and not in ulp }, also by name.
local M = {}

-- a tail(a) = a M(a) e / (C a M(a) + N(a)) is that of Phi, where e = exp(-a^2 / 2). M(0) is 1. For large a, rounding
-- errors of M cancel. Minimax for the relative error on [0, 11.78], by reweighted least squares (Lawson) for a rational
-- function: 1.4e-8. C, which is near sqrt(2 pi), was scanned for the least error. Single float32 steps then moved all
-- of them to smaller errors of the evaluated quotient. Highest power first.
local NUMERATOR = { 0.00961954333, 0.0905531421, 0.393926173, 0.91350776 } -- of (M(a) - 1) / a
local DENOMINATOR = { 0.0240198039, 0.228991762, 0.916150749, 2.0 } -- N
local C = 2.50663495

-- Of gelu_tanh: the exponent is a (a^2 + LINEAR) over an octave. LINEAR_HIGH is of so few bits that a^2 + LINEAR_HIGH
-- less LINEAR_HIGH is exact; where fma rounds twice, so are its products with multiples of 1/16.
local CUBIC = 0.044715
local LINEAR = 1.0 / CUBIC

local function to_bits(value, unit) return math.floor(value / unit + 0.5) * unit end

local function polynomial(t, w, name, x, coefficients)
  local p
  for i, value in ipairs(coefficients) do
    local power = #coefficients - i
    local c = t:op("set", w, ("%s_c%d"):format(name, power), value)
    p = p and t:op("fma", w, ("%s_p%d"):format(name, power), p, x, c) or c
  end
  return p
end

-- a to the next multiple of 2^-bits, and what it is above that. Without an fma that rounds once, products of the former
-- are exact by its few bits.
local function split(t, w, a, bits)
  local function constant(name, value) return t:op("set", w, name, value) end
  local units = t:op("round", w, "units", t:op("mul", w, "many", a, constant("per_unit", 2.0 ^ bits)))
  local near = t:op("mul", w, "near", units, constant("unit", 2.0 ^ -bits))
  return near, t:op("sub", w, "off", a, near)
end

-- x (1/2 + a P(a^2)), a being x between -4 and 4. Minimax for the error on [0, 4] with 1/2 at its end, so that the
-- result is 0 below -4; the last coefficient makes that exact in float32. Highest power first.
local CLAMPED = 4.0
local SHORT = {
  gelu = { -1.27572797e-09, 1.04311255e-07, -3.70656926e-06, 7.61544434e-05, -0.00102082267, 0.00958068203,
           -0.0660631284, 0.398805261 },
  gelu_tanh = { -1.69916969e-09, 1.30835417e-07, -4.38220286e-06, 8.51068471e-05, -0.00108577509, 0.00982316863,
                -0.0664149001, 0.398815751 },
}

local function clamped(t, w, x, coefficients)
  local from = t:op("max", w, "from", t:op("set", w, "least", -CLAMPED), x) -- the order keeps NaN
  local a = t:op("min", w, "a", t:op("set", w, "most", CLAMPED), from)
  local p = polynomial(t, w, "odd", t:op("mul", w, "square", a, a), coefficients)
  return t:op("mul", w, "result", from, t:op("fma", w, "part", a, p, t:op("set", w, "half", 0.5)))
end

-- ---- exponents: 2^(-y / octave), as exp.falling has it ----

-- exp(-rate a).
local function linear(rate)
  return function(t, w, a)
    return exp.falling(t, w, a, math.log(2.0) / rate, function(start) return t:op("add", w, "sum", start, a) end)
  end
end

-- exp(-a^2 / 2), of the square and a.
local function of_square(t, w, square, a)
  return exp.falling(t, w, square, 2.0 * math.log(2.0), function(start)
    if t.isa.fused then return t:op("fma", w, "sum", a, a, start) end
    local near, off = split(t, w, a, 8)
    local sum = t:op("add", w, "near_sum", start, t:op("mul", w, "near_square", near, near))
    return t:op("fma", w, "sum", off, t:op("add", w, "both", a, near), sum)
  end)
end

-- exp(-2 sqrt(2/pi) (a + 0.044715 a^3)).
local function cubic(t, w, a)
  local fused = t.isa.fused
  local high = to_bits(LINEAR, fused and 2.0 ^ -17 or 2.0 ^ -11)
  local function constant(name, value) return t:op("set", w, name, value) end
  local linear_high, linear_low = constant("linear", high), constant("linear_low", LINEAR - high)
  local slope = t:op("fma", w, "slope", a, a, linear_high)
  local octave = math.log(2.0) / (2.0 * math.sqrt(2.0 / math.pi) * CUBIC)
  return exp.falling(t, w, t:op("mul", w, "cube", slope, a), octave, function(start)
    if fused then
      local error = t:op("fma", w, "slope_error", a, a, t:op("sub", w, "minus_square", linear_high, slope))
      local sum = t:op("fma", w, "high_sum", a, slope, start)
      return t:op("fma", w, "sum", a, t:op("add", w, "slope_low", error, linear_low), sum)
    end
    local near, off = split(t, w, a, 4)
    local near_square = t:op("mul", w, "near_square", near, near)
    local high_sum = t:op("fma", w, "high_sum", near, linear_high, t:op("fma", w, "near_sum", near, near_square, start))
    local mixed = t:op("fma", w, "mixed", a, t:op("add", w, "both", a, near), near_square)
    local low_sum = t:op("fma", w, "low_sum", near, linear_low, high_sum)
    return t:op("fma", w, "sum", off, t:op("add", w, "off_slope", mixed, linear_high), low_sum)
  end)
end

-- ---- results ----

-- What is left of max(x, 0) when a tail(a) is taken away: where the tail is that of Phi,
local function less_normal(t, w, a, positive)
  local square = t:op("mul", w, "square", a, a)
  local power = of_square(t, w, square, a)
  local above = t:op("fma", w, "above", square, polynomial(t, w, "above", a, NUMERATOR), a)
  local below = t:op("fma", w, "below", above, t:op("set", w, "root_two_pi", C),
    polynomial(t, w, "below", a, DENOMINATOR))
  local part = t:op("mul", w, "part", power, t:op("div", w, "ratio", above, below))
  return t:op("sub", w, "result", positive, part)
end

-- and where it is e / (1 + e) for the power e.
local function less_logistic(power_of)
  return function(t, w, a, positive)
    local power = power_of(t, w, a)
    local below = t:op("add", w, "below", t:op("set", w, "one", 1.0), power)
    local part = t:op("div", w, "part", t:op("mul", w, "product", power, a), below)
    return t:op("sub", w, "result", positive, part)
  end
end

-- formula; less: its result of a = |x| and max(x, 0); most: an a whose tail is zero; bounds of the error in ulp, where
-- fma rounds once and where it rounds twice.
local SMOOTH = {
  { name = "gelu", formula = "x Phi(x)", less = less_normal, most = 11.9, bounds = { 4.1, 4.5 } },
  { name = "gelu_tanh", formula = "gelu by tanh", less = less_logistic(cubic), most = 9.25,
    bounds = { 3.8, 6.5 } },
  { name = "quick_gelu", formula = "x / (1 + exp(-1.702 x))", less = less_logistic(linear(1.702)), most = 41.0,
    bounds = { 3.5, 3.5 } },
  { name = "silu", formula = "x / (1 + exp(-x))", less = less_logistic(linear(1.0)), most = 70.0,
    bounds = { 3.7, 3.7 } },
}

-- max(x, 0), the order of whose operands keeps a NaN, and zero.
local function positive_of(t, w, x)
  local zero = t:op("zero", w, "zero")
  return t:op("max", w, "positive", zero, x), zero
end

-- The function <name>_<lanes> of a width.
local function define(t, w, name, doc, build)
  return t:define({ name = ("%s_%d"):format(name, w.lanes), w = w, attr = "inline __attribute__((always_inline))",
                    params = { { kind = w.t, name = "x" } }, keep = true, doc = doc .. "; NaN stays NaN." },
    function() t:result(build(t, w, { name = "x", kind = "f", w = w })) end)
end

-- Adds a function. doc_of(bound): what its comment says.
local function add(name, bounds, doc_of, build)
  local row = { name = name, exact = name }
  function row.bound(isa) return bounds[isa.fused and 1 or 2] end
  function row.apply(t, w, x, suffix)
    return t:apply(define(t, w, name, doc_of(row.bound(t.isa)), build), name .. suffix, x)
  end
  M[name], M[#M + 1] = row, row
  return row
end

for _, row in ipairs(SMOOTH) do
  local function doc_of(bound)
    return ("%s: at most %g ulp, or zero above -2^-93; 0 at -inf"):format(row.formula, bound)
  end
  add(row.name, row.bounds, doc_of, function(t, w, x)
    local positive, zero = positive_of(t, w, x)
    local size = t:op("max", w, "size", t:op("sub", w, "minus", zero, x), x)
    return row.less(t, w, t:op("min", w, "a", t:op("set", w, "largest", row.most), size), positive)
  end)
end

add("relu", { 0.0, 0.0 }, function() return "max(x, 0)" end, function(t, w, x) return (positive_of(t, w, x)) end)
add("relu2", { 0.5, 0.5 }, function() return "max(x, 0)^2" end, function(t, w, x)
  local positive = positive_of(t, w, x)
  return t:op("mul", w, "result", positive, positive)
end)

-- x P(x^2) / Q(x^2), between -9.05 and 9.05. Minimax for the relative error there, by reweighted least squares for a
-- rational function: 2.3e-8. All coefficients are positive, so nothing cancels. Highest power first.
local TANH_MOST = 9.05
local TANH_ABOVE = { 1.33309968e-08, 2.05975739e-05, 0.00349514186, 0.133807406, 1.0 }
local TANH_BELOW = { 7.7685013e-07, 0.000328472408, 0.0258755591, 0.467140615, 1.0 }

-- x between -most and most; NaN stays NaN.
local function between(t, w, name, most, x)
  local least = t:op("max", w, name .. "_above", t:op("set", w, name .. "_least", -most), x)
  return t:op("min", w, name, t:op("set", w, name .. "_most", most), least)
end

add("tanh", { 5.6, 7.0 }, function(bound) return ("tanh(x): at most %g ulp, and 1"):format(bound) end, function(t, w, x)
  local a = between(t, w, "a", TANH_MOST, x)
  local square = t:op("mul", w, "square", a, a)
  local above = t:op("mul", w, "part", a, polynomial(t, w, "above", square, TANH_ABOVE))
  local ratio = t:op("div", w, "ratio", above, polynomial(t, w, "below", square, TANH_BELOW))
  return between(t, w, "result", 1.0, ratio)
end)

local SHORT_BOUND = 2.0 ^ -14.8

for _, row in ipairs(SMOOTH) do
  local coefficients = SHORT[row.name]
  if coefficients then
    local short = add(row.name .. "_short", { SHORT_BOUND, SHORT_BOUND }, function(bound)
      return ("%s: the error is at most %.1e |x|; 0 up to -4"):format(row.formula, bound)
    end, function(t, w, x) return clamped(t, w, x, coefficients) end)
    short.exact, short.of_x = row.name, true
  end
end

-- The function of this name behind a product of a scheme.
function M.behind(name, scheme, isa)
  local short = isa.fused and (scheme.b.round or scheme.integers) and M[tostring(name) .. "_short"]
  return short or M[name]
end

return M
