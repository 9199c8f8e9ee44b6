-- What operators of ONNX make of elements, for gen/onnx/elements.lua.
--
--   numbers    op -> function(a, b, c, attributes) of numbers; flags are 1 and 0
--   linear     op -> function(a, b, attributes) of forms and numbers; nil where the result is no sum of multiples
--   short      op -> the result that one operand decides, whatever the other one is
--   kind       what a TensorProto.DataType is
--   folds      op -> function of two numbers, for all elements

local M = {}

local function flag(x) return x and 1 or 0 end

local function quotient(a, b)
  if math.type(a) == "integer" and math.type(b) == "integer" then
    if b == 0 then return nil end
    local q = a // b
    if q < 0 and q * b ~= a then q = q + 1 end -- towards zero
    return q
  end
  return a / b
end

local FLOATS, INTEGERS = { [1] = true, [10] = true, [11] = true, [16] = true }, {}
for _, kind in ipairs { 2, 3, 4, 5, 6, 7, 12, 13 } do INTEGERS[kind] = true end
local BOOL = 9

-- What numbers of a TensorProto.DataType are: "float", "integer" or "bool"; nil for others.
function M.kind(to)
  return FLOATS[to] and "float" or INTEGERS[to] and "integer" or to == BOOL and "bool" or nil
end

local function cast(x, _, _, attributes)
  local to = attributes.to
  if FLOATS[to] then return x + 0.0 end
  if to == BOOL then return flag(x ~= 0) end
  if not INTEGERS[to] then return nil end
  return math.type(x) == "integer" and x or x == x and math.abs(x) < 2 ^ 62
    and math.tointeger(x < 0 and math.ceil(x) or math.floor(x)) or nil
end

M.numbers = {
  Add = function(a, b) return a + b end,
  Sub = function(a, b) return a - b end,
  Mul = function(a, b) return a * b end,
  Div = quotient,
  Mod = function(a, b) return b ~= 0 and a % b or nil end,
  Pow = function(a, b)
    local x = a ^ b
    return math.type(a) == "integer" and math.tointeger(x) or x
  end,
  Min = function(a, b, c) return math.min(a, b or a, c or a) end,
  Max = function(a, b, c) return math.max(a, b or a, c or a) end,
  Equal = function(a, b) return flag(a == b) end,
  Less = function(a, b) return flag(a < b) end,
  Greater = function(a, b) return flag(a > b) end,
  LessOrEqual = function(a, b) return flag(a <= b) end,
  GreaterOrEqual = function(a, b) return flag(a >= b) end,
  And = function(a, b) return flag(a ~= 0 and b ~= 0) end,
  Or = function(a, b) return flag(a ~= 0 or b ~= 0) end,
  Xor = function(a, b) return flag((a ~= 0) ~= (b ~= 0)) end,
  Not = function(a) return flag(a == 0) end,
  Neg = function(a) return -a end,
  Abs = function(a) return math.abs(a) end,
  Sign = function(a) return a > 0 and 1 or a < 0 and -1 or 0 end,
  Sqrt = function(a) return a ^ 0.5 end,
  Reciprocal = function(a) return 1 / a end,
  Exp = function(a) return math.exp(a) end,
  Log = function(a) return math.log(a) end,
  Sin = function(a) return math.sin(a) end,
  Cos = function(a) return math.cos(a) end,
  Floor = function(a) return math.floor(a) + 0.0 end,
  Ceil = function(a) return math.ceil(a) + 0.0 end,
  IsNaN = function(a) return flag(a ~= a) end,
  Cast = cast,
}

-- ---- forms ----

local function scaled(form, by)
  local made = { constant = form.constant * by }
  for k, term in ipairs(form) do made[k] = { term[1], term[2], term[3] * by } end
  return made
end

local function as_form(x) return type(x) == "number" and { constant = x } or x end

local function sum(a, b, by)
  a, b = as_form(a), as_form(b)
  local made = { constant = a.constant + by * b.constant }
  for k, term in ipairs(a) do made[k] = { term[1], term[2], term[3] } end
  for _, term in ipairs(b) do
    local found
    for _, other in ipairs(made) do
      if other[1] == term[1] and other[2] == term[2] then found = other end
    end
    if found then
      found[3] = found[3] + by * term[3]
    else
      made[#made + 1] = { term[1], term[2], by * term[3] }
    end
  end
  return made
end

M.linear = {
  Add = function(a, b) return sum(a, b, 1) end,
  Sub = function(a, b) return sum(a, b, -1) end,
  Mul = function(a, b)
    if type(b) == "number" then return scaled(a, b) end
    return type(a) == "number" and scaled(b, a) or nil
  end,
  Div = function(a, b) return type(b) == "number" and b ~= 0 and scaled(a, 1 / b) or nil end,
  Neg = function(a) return scaled(a, -1) end,
  Cast = function(a, _, attributes) return FLOATS[attributes.to] and a or nil end,
}

M.short = { And = 0, Or = 1 }

M.folds = {
  ReduceSum = function(a, b) return a + b end,
  ReduceProd = function(a, b) return a * b end,
  ReduceMax = function(a, b) return math.max(a, b) end,
  ReduceMin = function(a, b) return math.min(a, b) end,
}

return M
