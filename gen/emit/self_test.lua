-- The self-test: a few results that unsafe compiler flags would change, and the bits that they must have.

local exp = require "tape.exp"
local tape = require "tape.init"

local M = {}

-- Inputs come from memory, so that a compiler computes nothing in advance.
M.inputs = { 1.0, 3.0, 5.0, 0.25, 1 + 2.0 ^ -12, -(1 + 2.0 ^ -11), 1e8, -1e8, math.huge,
             -0.3125, -37.6875, 9.375, -130.0, 1 + 3 * 2.0 ^ -12, -(1 + 3 * 2.0 ^ -11 + 2.0 ^ -21) }

local NAN = { 0x7F800001, 0x7FFFFFFF }

-- The bits of a float without its sign, `ulp` around those of x.
local function around(x, ulp)
  local bits = ("<I4"):unpack(("<f"):pack(x)) & 0x7FFFFFFF
  return { bits - ulp, bits + ulp }
end

-- Records the function of the self-test, with results out[row][lane]. Returns the least and the greatest bits that each
-- result may have, without the sign.
function M.emit(t)
  local w, rows = t.isa.full, {}
  local params = { { kind = "const float *", name = "in" }, { kind = "float *", name = "out" } }
  t:define({ name = "arithmetic", params = params, keep = true, attr = "NOINLINE",
             doc = "Results that unsafe compiler flags would change." }, function()
    local given = {}
    for i, x in ipairs(M.inputs) do
      given[x] = t:op("dup", w, ("given_i%d"):format(i - 1), tape.pointer("in", i - 1))
    end
    local function op(name, dst, ...) return t:op(name, w, dst, ...) end
    local function must(result, bits)
      t:op("store", w, nil, tape.pointer("out", #rows * w.lanes), result)
      rows[#rows + 1] = bits
    end
    local function equal(result, x) must(result, around(x, 0)) end
    local root, less = given[1 + 2.0 ^ -12], given[-(1 + 2.0 ^ -11)]
    t:note("a product is rounded before it is added")
    equal(op("add", "rounded", op("mul", "square", root, root), less), 0.0)
    -- This takes other numbers, because a product that has two uses is never contracted.
    t:note(t.isa.fused and "an FMA rounds once" or "fma rounds the product, too")
    local own, rest = given[1 + 3 * 2.0 ^ -12], given[-(1 + 3 * 2.0 ^ -11 + 2.0 ^ -21)]
    equal(op("fma", "fused", own, own, rest), t.isa.fused and 2.0 ^ -24 or 0.0)
    t:note("sums keep their order, and are in float32")
    local magic = op("set", "magic", 12582912.0)
    equal(op("sub", "none", op("add", "nearest", given[0.25], magic), magic), 0.0)
    local large = op("add", "large", given[1.0], given[1e8])
    equal(op("add", "one", op("add", "lost", large, given[-1e8]), given[1.0]), 1.0)
    t:note("quotients are rounded once")
    for i, x in ipairs { 1.0, 5.0 } do equal(op("div", ("quotient_%d"):format(i), given[x], given[3.0]), x / 3.0) end
    t:note("infinity and NaN follow IEEE 754")
    local infinity, zero = given[math.huge], op("zero", "zero")
    local nan = op("sub", "undefined", infinity, infinity)
    must(op("fma", "no_product", infinity, zero, zero), NAN)
    must(op("fma", "no_number", nan, zero, zero), NAN)
    equal(op("sel", "chosen", op("lt", "below", nan, infinity), infinity, zero), 0.0)
    must(exp.exp2(t, "no_power", nan), NAN)
    equal(exp.exp2(t, "hidden", op("sub", "least", zero, infinity)), 0.0)
    t:note("powers of two")
    for i, x in ipairs { -0.3125, -37.6875, 9.375, -130.0 } do
      must(exp.exp2(t, ("power_i%d"):format(i + 8), given[x]), x < -126 and around(0.0, 0) or around(2.0 ^ x, 2))
    end
  end)
  return rows
end

return M
