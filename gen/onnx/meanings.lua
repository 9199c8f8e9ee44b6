-- What operators of ONNX mean for gen/onnx/evaluate.lua: those on numbers, and those that move them.
--
--   rows    { name, behind its domain = function of (run, node, inputs ...) -> outputs }

local functions = require "onnx.functions"
local indices = require "onnx.indices"
local values = require "onnx.values"

local axis_of, count_of, steps_of = indices.axis_of, indices.count, indices.steps_of
local broadcast_steps, common, copied, joined = values.broadcast_steps, values.common, values.copied, values.joined
local mapped, refuse, reshaped, value = values.mapped, values.refuse, values.reshaped, values.value
local Run = values.Run

local rows = {}

local function add(names, row)
  for name in names:gmatch "%S+" do rows[name] = row end
end

-- An attribute, or an input that is given in its place since a version.
local function list_of(run, node, name, input)
  return node.attributes[name] or input and run:ints(input) or nil
end

-- Of one operand.
for name, op in pairs {
  Abs = "abs", Acos = "acos", Asin = "asin", Atan = "atan", Ceil = "ceil", Cos = "cos", Cosh = "cosh", Erf = "erf",
  Exp = "exp", Floor = "floor", Log = "log", Neg = "neg", Round = "round", Sign = "sign", Sin = "sin", Sinh = "sinh",
  Sqrt = "sqrt", Tan = "tan", Tanh = "tanh" } do
  rows[name] = function(run, _, x) return run:apply(op, x) end
end

local function flags(x) return value(x.at, x.shape, true) end

rows.Not = function(run, _, x) return flags(run:apply("not", x)) end
rows.IsNaN = function(run, _, x) return flags(run:apply("isnan", x)) end
rows.IsInf = function(run, node, x)
  if (node.attributes.detect_negative or 1) == 0 or (node.attributes.detect_positive or 1) == 0 then
    refuse("of one sign")
  end
  return flags(run:apply("isinf", x))
end
rows.Reciprocal = function(run, _, x) return run:apply("div", run:constant(1.0), x) end
rows.Relu = function(run, _, x) return run:apply("max", x, run:constant(0.0)) end
rows.Sigmoid = function(run, _, x)
  local e = run:apply("exp", run:apply("neg", x))
  return run:apply("div", run:constant(1.0), run:apply("add", e, run:constant(1.0)))
end
rows.Softplus = function(run, _, x)
  return run:apply("log", run:apply("add", run:apply("exp", x), run:constant(1.0)))
end

-- Of two.
for name, op in pairs { Add = "add", Sub = "sub", Mul = "mul", Pow = "pow" } do
  rows[name] = function(run, _, a, b) return run:apply(op, a, b) end
end
for name, op in pairs { Equal = "equal", Less = "less", LessOrEqual = "less_equal", And = "and", Or = "or",
                        Xor = "xor" } do
  rows[name] = function(run, _, a, b) return flags(run:apply(op, a, b)) end
end
rows.Greater = function(run, _, a, b) return flags(run:apply("less", b, a)) end
rows.GreaterOrEqual = function(run, _, a, b) return flags(run:apply("less_equal", b, a)) end
rows.Div = function(run, _, a, b) return run:apply(a.integer and "quotient" or "div", a, b) end
rows.Mod = function(run, node, a, b) return run:apply((node.attributes.fmod or 0) ~= 0 and "fmod" or "mod", a, b) end

-- Of any number.
local function folded(op)
  return function(run, _, first, ...)
    for _, x in ipairs { ... } do first = run:apply(op, first, x) end
    return first
  end
end
rows.Max, rows.Min, rows.Sum = folded "max", folded "min", folded "add"
rows.Mean = function(run, node, ...)
  return run:apply("div", rows.Sum(run, node, ...), run:constant(select("#", ...) + 0.0))
end

rows.Where = function(run, _, condition, a, b)
  local made = run:apply("where", condition, a, b)
  made.integer = a.integer
  return made
end

rows.Clip = function(run, node, x, low, high)
  local t = node.attributes
  low, high = low or t.min and run:constant(t.min), high or t.max and run:constant(t.max)
  if low then x = run:apply("max", x, low) end
  return high and run:apply("min", x, high) or x
end

rows.Cast = function(run, node, x)
  local kind = functions.kind(node.attributes.to)
  if kind == "bool" then return flags(run:apply("nonzero", x)) end
  if kind == "integer" then return value(run:apply("trunc", x).at, x.shape, true) end
  if not kind then refuse("to a type that is not known") end
  return mapped(x, false, function(own) return value(own.at, own.shape) end)
end

rows.CastLike = function(run, _, x, like)
  if like.integer and not x.integer then return value(run:apply("trunc", x).at, x.shape, true) end
  return value(x.at, x.shape, like.integer)
end

-- ---- other arrangements ----

rows.Identity = function(_, _, x) return x end

rows.Dropout = function(run, node, x, ratio, training)
  if training and run:ints(training)[1] ~= 0 or not training and run.opset < 7 and
      (node.attributes.is_test or 0) == 0 then
    refuse("draws numbers")
  end
  return x, ratio
end

-- The axes that a Reshape wants.
local function wanted_axes(x, wanted)
  local shape, open, count = {}, nil, 1
  for k, size in ipairs(wanted) do
    if size == 0 then size = x.shape[k] end
    if size == -1 then open = k else count = count * size end
    shape[k] = size
  end
  if open then shape[open] = count_of(x.shape) // math.max(1, count) end
  return shape
end

rows.Reshape = function(run, node, x, wanted)
  return reshaped(x, run.shapes[node.outputs[1]] or wanted_axes(x, run:ints(wanted)))
end

-- The axes are those of the graph.
add("Squeeze Unsqueeze Flatten", function(run, node, x)
  return reshaped(x, run.shapes[node.outputs[1]] or refuse("of axes that are not known"))
end)

rows.Transpose = function(run, node, x)
  local perm = {}
  for a = 1, #x.shape do perm[a] = node.attributes.perm and node.attributes.perm[a] + 1 or #x.shape - a + 1 end
  return run:transposed(x, perm)
end

rows.Expand = function(run, _, x, wanted)
  local shape = common { x.shape, run:ints(wanted) }
  return run:moved(x, shape, broadcast_steps(x.shape, shape))
end

rows.Tile = function(run, _, x, repeats)
  local by, shape, steps, all, sizes = run:ints(repeats), {}, steps_of(x.shape), {}, {}
  for a, size in ipairs(x.shape) do
    shape[a] = size * by[a]
    table.move({ by[a], size }, 1, 2, #sizes + 1, sizes)
    table.move({ 0, steps[a] }, 1, 2, #all + 1, all)
  end
  return reshaped(run:moved(x, sizes, all), shape)
end

rows.Slice = function(run, node, x, ...)
  local lists, inputs = {}, { ... }
  for k, name in ipairs { "starts", "ends", "axes", "steps" } do
    local input = inputs[k]
    lists[k] = list_of(run, node, name, input)
  end
  local shape, steps, base = copied(x.shape), steps_of(x.shape), 0
  for k, start in ipairs(lists[1]) do
    local axis, by, size = lists[3] and lists[3][k] or k - 1, lists[4] and lists[4][k] or 1, nil
    if axis < 0 then axis = axis + #shape end
    size = x.shape[axis + 1]
    local low, high = by > 0 and 0 or -1, by > 0 and size or size - 1
    local function bound(at)
      if at < 0 then at = at + size end
      return math.max(low, math.min(high, at))
    end
    local first, last = bound(start), bound(lists[2][k])
    shape[axis + 1] = math.max(0, math.tointeger(math.ceil((last - first) / by)))
    base, steps[axis + 1] = base + math.max(0, first) * steps[axis + 1], steps[axis + 1] * by
  end
  return run:moved(x, shape, steps, count_of(shape) > 0 and base or 0)
end

rows.Split = function(run, node, x, sizes)
  local axis, parts, first = axis_of(node, 0, #x.shape), {}, 0
  local list = list_of(run, node, "split", sizes)
  local count = #node.outputs
  local steps, each = steps_of(x.shape), (x.shape[axis] + count - 1) // count
  for k = 1, count do
    local shape = copied(x.shape)
    local left = x.shape[axis] - first
    shape[axis] = list and list[k] or math.min(each, left)
    if shape[axis] < 0 or shape[axis] > left then refuse("in parts that its axis of %d has not", x.shape[axis]) end
    parts[k] = run:moved(x, shape, steps, first * steps[axis])
    first = first + shape[axis]
  end
  return table.unpack(parts)
end

rows.Concat = function(run, node, ...)
  local all = { ... }
  local axis = axis_of(node, 0, #all[1].shape)
  local shape, first = copied(all[1].shape), 0
  for k = 2, #all do shape[axis] = shape[axis] + all[k].shape[axis] end
  local at, steps = run.arrays.numbers(count_of(shape), 0), steps_of(shape)
  for _, x in ipairs(all) do
    run.arrays.copy(x.shape, at, count_of(x.shape) > 0 and first * steps[axis] or 0, steps, x.at, 0, steps_of(x.shape))
    first = first + x.shape[axis]
  end
  return value(at, shape, all[1].integer)
end

rows.Gather = function(run, node, x, index)
  return run:taken(x, axis_of(node, 0, #x.shape), index)
end

-- The places in x of axes of which one, or the first ones, are given by indices.
function Run:places(shape, steps)
  local sum = self:constant(0)
  for a, step in ipairs(steps) do
    local own = {}
    for k = 1, #shape do own[k] = k == a and shape[k] or 1 end
    local list = {}
    for i = 1, shape[a] do list[i] = (i - 1) * step end
    sum = self:apply("add", sum, value(self.arrays.numbers(list), own, true))
  end
  return sum
end

-- Indices from 0, though they may be counted from the end.
function Run:counted(index, size)
  return self:apply("where", self:apply("less", index, self:constant(0)), self:apply("add", index, self:constant(size)),
                    index)
end

local function element_places(run, node, x, index)
  local axis, steps = axis_of(node, 0, #x.shape), steps_of(x.shape)
  local at = run:apply("mul", run:counted(index, x.shape[axis]), run:constant(steps[axis]))
  steps[axis] = 0
  return run:apply("add", at, run:places(index.shape, steps))
end

rows.GatherElements = function(run, node, x, index)
  local at = element_places(run, node, x, index)
  return value(run.arrays.taken(x.at, 1, count_of(x.shape), 1, at.at), index.shape, x.integer)
end

rows.ScatterElements = function(run, node, x, index, updates)
  if (node.attributes.reduction or "none") ~= "none" then refuse("with a reduction") end
  local made = run:moved(x, x.shape, steps_of(x.shape))
  run.arrays.put(made.at, element_places(run, node, x, index).at, 1, updates.at)
  return made
end

-- Of indices [.., k] the places of blocks of the axes behind the first k; and how many numbers these have.
local function block_places(run, x, index)
  local k, inner, at = index.shape[#index.shape], 1, nil
  inner = count_of(x.shape, k + 1)
  local steps = steps_of(x.shape)
  for a = 1, k do
    local own = run:moved(index, copied(index.shape, 1, #index.shape - 1), copied(steps_of(index.shape), 1,
      #index.shape - 1), a - 1)
    own = run:apply("mul", run:counted(own, x.shape[a]), run:constant(steps[a] // inner))
    at = at and run:apply("add", at, own) or own
  end
  return at, inner, copied(x.shape, k + 1)
end

rows.GatherND = function(run, node, x, index)
  if (node.attributes.batch_dims or 0) ~= 0 then refuse("with batch_dims") end
  local at, inner, behind = block_places(run, x, index)
  return value(run.arrays.taken(x.at, 1, count_of(x.shape) // math.max(1, inner), inner, at.at),
               joined(at.shape, behind), x.integer)
end

rows.ScatterND = function(run, node, x, index, updates)
  if (node.attributes.reduction or "none") ~= "none" then refuse("with a reduction") end
  local made, at, inner = run:moved(x, x.shape, steps_of(x.shape)), block_places(run, x, index)
  run.arrays.put(made.at, at.at, inner, updates.at)
  return made
end

rows.Pad = function(run, node, x, pads, by, axes)
  if (node.attributes.mode or "constant") ~= "constant" or axes then refuse("of another mode") end
  local list, shape, first = list_of(run, node, "pads", pads), {}, 0
  for a, size in ipairs(x.shape) do shape[a] = size + list[a] + list[a + #x.shape] end
  local steps = steps_of(shape)
  for a = 1, #shape do
    if list[a] < 0 or list[a + #shape] < 0 then refuse("that cuts") end
    first = first + list[a] * steps[a]
  end
  local at = run.arrays.numbers(count_of(shape), by and run:ints(by)[1] or node.attributes.value or 0)
  run.arrays.copy(x.shape, at, first, steps, x.at, 0, steps_of(x.shape))
  return value(at, shape, x.integer)
end

-- The axes of a value, which need not be computed for it.
local function told_axes(run, node)
  return run.shapes[node.inputs[1]] or refuse("of axes that are not known")
end

rows.Shape = function(run, node)
  local t, shape = node.attributes, told_axes(run, node)
  local rank = #shape
  local function bound(i) return math.max(0, math.min(rank, i < 0 and i + rank or i)) end
  local list = copied(shape, bound(t.start or 0) + 1, bound(t["end"] or rank))
  return value(run.arrays.numbers(list), { #list }, true)
end

rows.Size = function(run, node) return run:constant(count_of(told_axes(run, node))) end

rows.Constant = function(run, node)
  local t = node.attributes
  if t.value_ints then return value(run.arrays.numbers(t.value_ints), { #t.value_ints }, true) end
  return run:constant(t.value_int or t.value_float or refuse("of a type that is not known"))
end

rows.ConstantOfShape = function(run, node, shape)
  local list, of = run:ints(shape), node.value and run:tensor(node.value)
  return value(run.arrays.numbers(count_of(list), of and run:ints(of)[1] or 0.0), list, of and of.integer)
end

rows.Range = function(run, _, first, last, step)
  local from, to, by = run:ints(first)[1], run:ints(last)[1], run:ints(step)[1]
  local list = {}
  for k = 0, math.ceil((to - from) / by) - 1 do list[k + 1] = from + k * by end
  return value(run.arrays.numbers(list), { #list }, first.integer)
end

rows.Trilu = function(run, node, x, by)
  local shape = x.shape
  local rows_of, columns = shape[#shape - 1], shape[#shape]
  local k = by and run:ints(by)[1] or 0
  local list = {}
  for row = 0, rows_of - 1 do
    for column = 0, columns - 1 do
      local above = column - row - k
      if (node.attributes.upper or 1) ~= 0 then above = -above end
      list[#list + 1] = above <= 0 and 1 or 0
    end
  end
  local kept = value(run.arrays.numbers(list), { rows_of, columns }, true)
  local made = run:apply("where", kept, x, run:constant(0))
  made.integer = x.integer
  return made
end

rows.EyeLike = function(run, node, x)
  local list, shape, k = {}, x.shape, node.attributes.k or 0
  for row = 0, shape[1] - 1 do
    for column = 0, shape[2] - 1 do list[#list + 1] = column - row == k and 1 or 0 end
  end
  return value(run.arrays.numbers(list), shape)
end

rows.CumSum = function(run, node, x, axis)
  if (node.attributes.reverse or 0) ~= 0 then refuse("in reverse") end
  local a = run:ints(axis)[1]
  a = (a < 0 and a + #x.shape or a) + 1
  local at = run.arrays.reduced("cumulative", x.at, count_of(x.shape, 1, a - 1), x.shape[a], count_of(x.shape, a + 1))
  local sum = value(at, x.shape, x.integer)
  return (node.attributes.exclusive or 0) ~= 0 and run:apply("sub", sum, x) or sum
end

return { rows = rows, list_of = list_of }
