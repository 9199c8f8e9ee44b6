-- A few results that a compiler's flags change first: what the file's arithmetic must come to.

local exp = require "emit.exp"
local tape = require "tape"

local M = {}

-- Inputs come from memory, so that nothing is computed when compiling.
M.inputs = { 1.0, 3.0, 5.0, 0.25, 1 + 2.0 ^ -12, -(1 + 2.0 ^ -11), 1e8, -1e8, math.huge,
             -0.3125, -37.6875, 9.375, -130.0 }
local place = {}
for i, x in ipairs(M.inputs) do place[x] = i - 1 end

local NAN = { 0x7F800001, 0x7FFFFFFF }

-- The bits of a float without its sign, `ulp` around those of x.
local function around(x, ulp)
  local bits = ("<I4"):unpack(("<f"):pack(x)) & 0x7FFFFFFF
  return { bits - ulp, bits + ulp }
end

-- Records the function self_test(in, out), out[row][lane]; returns for each row the least and the greatest
-- bits that a result may have, without the sign.
function M.emit(t)
  local w, rows = t.isa.full, {}
  local params = { { kind = "const float *", name = "in" }, { kind = "float *", name = "out" } }
  t:define({ name = "self_test", params = params, keep = true, attr = "__attribute__((noinline))",
             doc = "What flags that change arithmetic change first." }, function()
    local function given(x)
      return t:op("dup", w, "in_" .. place[x], tape.pointer("in", place[x]))
    end
    local function op(name, ...) return t:op(name, w, name .. "_of", ...) end
    local function must(result, bits)
      t:op("store", w, nil, tape.pointer("out", #rows * w.lanes), result)
      rows[#rows + 1] = bits
    end
    local function equal(result, x) must(result, around(x, 0)) end
    t:note("a product and a sum are rounded each")
    t:block(function()
      local x = given(1 + 2.0 ^ -12)
      equal(op("add", op("mul", x, x), given(-(1 + 2.0 ^ -11))), 0.0)
    end)
    t:note(t.isa.fused and "but not here" or "here too")
    t:block(function()
      local x = given(1 + 2.0 ^ -12)
      equal(op("fma", x, x, given(-(1 + 2.0 ^ -11))), t.isa.fused and 2.0 ^ -24 or 0.0)
    end)
    t:note("sums are in this order, and in float32")
    t:block(function()
      local magic = op("set", 12582912.0)
      equal(op("sub", op("add", given(0.25), magic), magic), 0.0)
    end)
    t:block(function()
      local one = given(1.0)
      local first = t:op("add", w, "first", one, given(1e8))
      equal(op("add", t:op("add", w, "second", first, given(-1e8)), one), 1.0)
    end)
    t:note("quotients are rounded once")
    for _, x in ipairs { 1.0, 5.0 } do
      t:block(function() equal(op("div", given(x), given(3.0)), x / 3.0) end)
    end
    t:note("infinity and NaN are numbers too")
    t:block(function()
      local zero = op("zero")
      must(op("fma", given(math.huge), zero, zero), NAN)
    end)
    t:block(function()
      local infinity, zero = given(math.huge), op("zero")
      local nan = op("sub", infinity, infinity)
      must(op("fma", nan, zero, zero), NAN)
    end)
    t:block(function()
      local infinity = given(math.huge)
      local nan = op("sub", infinity, infinity)
      equal(op("sel", op("lt", nan, infinity), infinity, op("zero")), 0.0)
    end)
    t:block(function()
      local infinity = given(math.huge)
      must(exp.exp2(t, "power", op("sub", infinity, infinity)), NAN)
    end)
    t:block(function()
      local hidden = op("sub", op("zero"), given(math.huge))
      equal(exp.exp2(t, "power", hidden), 0.0)
    end)
    t:note("powers of two")
    for _, x in ipairs { -0.3125, -37.6875, 9.375 } do
      t:block(function() must(exp.exp2(t, "power", given(x)), around(2.0 ^ x, 2)) end)
    end
    t:block(function() equal(exp.exp2(t, "power", given(-130.0)), 0.0) end)
  end)
  return rows
end

return M
