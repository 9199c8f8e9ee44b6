-- What operators of ONNX mean for gen/onnx/evaluate.lua: sums, norms, products, and integers.
--
--   rows    as gen/onnx/meanings.lua has them

local indices = require "onnx.indices"
local values = require "onnx.values"
local meanings = require "onnx.meanings"

local axis_of, count_of, steps_of = indices.axis_of, indices.count, indices.steps_of
local copied, joined, mapped, refuse = values.copied, values.joined, values.mapped, values.refuse
local reshaped, value = values.reshaped, values.value

local rows, list_of = {}, meanings.list_of

-- ---- sums ----

local function axes_of(run, node, x, input)
  local list = list_of(run, node, "axes", input)
  if not list or #list == 0 and (node.attributes.noop_with_empty_axes or 0) == 0 then
    list = {}
    for a = 1, #x.shape do list[a] = a - 1 end
  end
  local axes = {}
  for _, axis in ipairs(list) do axes[(axis < 0 and axis + #x.shape or axis) + 1] = true end
  return axes
end

local function without(shape, axes)
  local left = {}
  for a, size in ipairs(shape) do
    if not axes[a] then left[#left + 1] = size end
  end
  return left
end

local function reduction(make)
  return function(run, node, x, input)
    local axes = axes_of(run, node, x, input)
    local made = make(run, x, axes)
    made.integer = x.integer
    return (node.attributes.keepdims or 1) ~= 0 and made or reshaped(made, without(x.shape, axes))
  end
end

for name, how in pairs { ReduceSum = "sum", ReduceProd = "prod", ReduceMax = "max", ReduceMin = "min" } do
  rows[name] = reduction(function(run, x, axes) return run:reduced(how, x, axes) end)
end
rows.ReduceMean = reduction(values.Run.mean)
rows.ReduceSumSquare = reduction(function(run, x, axes) return run:reduced("sum", run:apply("mul", x, x), axes) end)
rows.ReduceL1 = reduction(function(run, x, axes) return run:reduced("sum", run:apply("abs", x), axes) end)
rows.ReduceL2 = reduction(function(run, x, axes)
  return run:apply("sqrt", run:reduced("sum", run:apply("mul", x, x), axes))
end)

-- Before version 13 all axes from `axis` on are one.
local function softmax_axes(run, node, x)
  local axis = axis_of(node, run.opset < 13 and 1 or -1, #x.shape)
  local axes = {}
  for a = axis, run.opset < 13 and #x.shape or axis do axes[a] = true end
  return axes
end

rows.Softmax = function(run, node, x) return run:softmax(x, softmax_axes(run, node, x)) end
rows.LogSoftmax = function(run, node, x) return run:apply("log", run:softmax(x, softmax_axes(run, node, x))) end

-- ---- norms ----

local function axes_from(x, axis)
  local axes = {}
  for a = (axis < 0 and axis + #x.shape or axis) + 1, #x.shape do axes[a] = true end
  return axes
end

local function normed(run, x, axes, eps)
  local square = run:mean(run:apply("mul", x, x), axes)
  return run:apply("div", x, run:apply("sqrt", run:apply("add", square, run:constant(eps))))
end

local function rms(run, node, x, gains)
  if node.outputs[2] and node.outputs[2] ~= "" then refuse("with more outputs") end
  return run:apply("mul", normed(run, x, axes_from(x, node.attributes.axis or -1), node.attributes.epsilon or 1e-5),
                   gains)
end

rows.RMSNormalization, rows.SimplifiedLayerNormalization = rms, rms

rows.LayerNormalization = function(run, node, x, gains, bias)
  if node.outputs[2] and node.outputs[2] ~= "" then refuse("with more outputs") end
  local axes = axes_from(x, node.attributes.axis or -1)
  local centered = run:apply("sub", x, run:mean(x, axes))
  local y = run:apply("mul", normed(run, centered, axes, node.attributes.epsilon or 1e-5), gains)
  return bias and run:apply("add", y, bias) or y
end

rows.LpNormalization = function(run, node, x)
  if (node.attributes.p or 2) ~= 2 then refuse("of another power") end
  local axes = { [axis_of(node, -1, #x.shape)] = true }
  return run:apply("div", x, run:apply("sqrt", run:reduced("sum", run:apply("mul", x, x), axes)))
end

rows.BatchNormalization = function(run, node, x, ...)
  local gains, bias, mean, variance = ...
  if (node.attributes.training_mode or 0) ~= 0 then refuse("in training") end
  local function channels(v)
    local shape = {}
    for a = 1, #x.shape do shape[a] = a == 2 and x.shape[2] or 1 end
    return reshaped(v, shape)
  end
  local by = run:apply("div", gains, run:apply("sqrt", run:apply("add", variance,
    run:constant(node.attributes.epsilon or 1e-5))))
  return run:apply("add", run:apply("mul", run:apply("sub", x, channels(mean)), channels(by)), channels(bias))
end

-- ---- products ----

local function swapped(run, x)
  local perm = {}
  for a = 1, #x.shape do perm[a] = a end
  perm[#perm], perm[#perm - 1] = perm[#perm - 1], perm[#perm]
  return run:transposed(x, perm)
end

local function matmul(run, _, a, b)
  local one_a, one_b = #a.shape == 1, #b.shape == 1
  if one_a then a = reshaped(a, { 1, a.shape[1] }) end
  if one_b then b = reshaped(b, { b.shape[1], 1 }) end
  local y = run:product(a, b)
  local axes = { [#y.shape - 1] = one_a or nil, [#y.shape] = one_b or nil }
  return reshaped(y, without(y.shape, axes))
end

rows.MatMul = matmul

rows["com.microsoft FusedMatMul"] = function(run, node, a, b)
  local t = node.attributes
  if (t.transBatchA or 0) + (t.transBatchB or 0) > 0 then refuse("with transposed batches") end
  if (t.transA or 0) ~= 0 then a = swapped(run, a) end
  if (t.transB or 0) ~= 0 then b = swapped(run, b) end
  return run:apply("mul", matmul(run, node, a, b), run:constant(t.alpha or 1.0))
end

rows.Gemm = function(run, node, a, b, c)
  local t = node.attributes
  if (t.transA or 0) ~= 0 then a = swapped(run, a) end
  if (t.transB or 0) ~= 0 then b = swapped(run, b) end
  local y = run:apply("mul", run:product(a, b), run:constant(t.alpha or 1.0))
  return c and run:apply("add", y, run:apply("mul", c, run:constant(t.beta or 1.0))) or y
end

rows.MatMulInteger = function(run, node, a, b, zero_a, zero_b)
  if zero_a then a = run:apply("sub", a, zero_a) end
  if zero_b then b = run:apply("sub", b, zero_b) end
  return matmul(run, node, a, b)
end

-- The letters of an equation with two operands by what they are: of both and the result, `lead`; of one and the result,
-- `rows` and `columns`; of both alone, `inner`.
local function letters_of(left, right, result)
  local kinds = { lead = "", rows = "", columns = "", inner = "" }
  for c in (left .. right):gmatch "." do
    local in_left, in_right, out = left:find(c, 1, true), right:find(c, 1, true), result:find(c, 1, true)
    local kind = in_left and in_right and (out and "lead" or "inner") or out and (in_left and "rows" or "columns")
    if not kind then refuse("with a sum of one operand") end
    if not kinds[kind]:find(c, 1, true) then kinds[kind] = kinds[kind] .. c end
  end
  return kinds
end

-- The extents of letters, which may be broadcast.
local function sizes_of(operands)
  local size = {}
  for text, x in pairs(operands) do
    if #x.shape ~= #text then refuse("of other axes") end
    for i = 1, #text do
      local c = text:sub(i, i)
      if text:find(c, i + 1, true) then refuse("with a letter twice in an operand") end
      size[c] = math.max(size[c] or 1, x.shape[i])
    end
  end
  return function(text)
    local list = {}
    for c in text:gmatch "." do list[#list + 1] = size[c] end
    return list
  end
end

-- Two operands; axes with the same letter are multiplied, and those that the result lacks are summed.
rows.Einsum = function(run, node, a, b, more)
  local left, right, result = (node.attributes.equation or ""):gsub("%s", ""):match "^(%a+),(%a+)%->(%a*)$"
  if not left or not b or more or left == right then refuse("of another form") end
  local of, sizes = letters_of(left, right, result), sizes_of { [left] = a, [right] = b }
  local function arranged(x, text, first, last) -- as matrices [lead][first][last]
    local order, steps, all = of.lead .. first .. last, steps_of(x.shape), {}
    for i = 1, #order do
      local at = text:find(order:sub(i, i), 1, true)
      all[i] = x.shape[at] == 1 and 0 or steps[at]
    end
    return reshaped(run:moved(x, sizes(order), all), { count_of(sizes(of.lead)), count_of(sizes(first)),
                                                       count_of(sizes(last)) })
  end
  local y = run:product(arranged(a, left, of.rows, of.inner), arranged(b, right, of.inner, of.columns))
  local made, perm = of.lead .. of.rows .. of.columns, {}
  for i = 1, #result do perm[i] = made:find(result:sub(i, i), 1, true) end
  return run:transposed(reshaped(y, sizes(made)), perm)
end

-- ---- integers ----

-- Scales or zeros of an axis, or of blocks along it, for each number of x.
local function beside(run, node, x, by)
  local rank, size = #x.shape, node.attributes.block_size or 0
  if count_of(by.shape) == 1 then return reshaped(by, {}) end
  local axis = axis_of(node, 1, rank)
  if size == 0 then
    local shape = {}
    for a = 1, rank do shape[a] = a == axis and x.shape[a] or 1 end
    return reshaped(by, shape)
  end
  local index = {}
  for i = 1, x.shape[axis] do index[i] = (i - 1) // size end
  local at = value(run.arrays.numbers(index), { #index }, true)
  return meanings.rows.Gather(run, { attributes = { axis = axis - 1 } }, by, at)
end

-- Whether x was quantized by the same numbers.
local function is_quantized(run, x, scale, zero)
  local by = x.quantized
  local function same(a, b)
    if not a or not b then return a == b end
    return #a.at == #b.at and (a.at == b.at or run.arrays.difference(a.at, b.at) == 0)
  end
  return by and same(by.scale, scale) and same(by.zero, zero)
end

-- What is quantized and back is what it was: scales may be infinite.
rows.DequantizeLinear = function(run, node, x, scale, zero)
  if is_quantized(run, x, scale, zero) then return x.quantized.x end
  local function of(own)
    if zero then own = run:apply("sub", own, beside(run, node, own, zero)) end
    local y = run:apply("mul", own, beside(run, node, own, scale))
    return value(y.at, y.shape)
  end
  if count_of(scale.shape) > 1 then return of(x) end
  return mapped(x, false, of)
end

rows.QuantizeLinear = function(run, node, x, scale, zero)
  local y = run:apply("div", x, beside(run, node, x, scale))
  if zero then y = run:apply("add", y, beside(run, node, x, zero)) end
  y.quantized = { x = x, scale = scale, zero = zero }
  return y
end

rows.DynamicQuantizeLinear = function(run, _, x) return x, run:constant(1.0), run:constant(0.0) end

-- Integers of 4 or 8 bits, the low half of a byte first, in groups of block_size along K; zero points likewise.
rows["com.microsoft MatMulNBits"] = function(run, node, x, packed, scales, ...)
  local zeros, groups, bias = ...
  local t = node.attributes
  local bits, size, width, columns = t.bits or 4, t.block_size, t.K, t.N
  if groups or bits ~= 4 and bits ~= 8 then refuse("of another form") end
  local blocks = (width - 1) // size + 1
  local function integers(bytes, numbers)
    if bits == 8 then return reshaped(bytes, { columns, count_of(bytes.shape) // columns }) end
    local high = run:apply("floor", run:apply("div", value(bytes.at, bytes.shape), run:constant(16.0)))
    local low = run:apply("sub", bytes, run:apply("mul", high, run:constant(16.0)))
    local half = count_of(bytes.shape) // columns
    local at = run.arrays.numbers(columns * half * 2, 0)
    for k, part in ipairs { low, high } do
      run.arrays.copy({ columns * half }, at, k - 1, { 2 }, part.at, 0, { 1 })
    end
    return run:moved(value(at, { columns, 2 * half }), { columns, numbers }, { 2 * half, 1 })
  end
  local w, by = integers(packed, blocks * size), reshaped(scales, { columns, blocks, 1 })
  w = reshaped(w, { columns, blocks, size })
  local middle = zeros and zeros.integer and integers(zeros, blocks) or zeros
  middle = middle and run:moved(middle, { columns, blocks }, { count_of(middle.shape) // columns, 1 })
  w = run:apply("sub", w, middle and reshaped(middle, { columns, blocks, 1 }) or run:constant(1 << bits - 1))
  w = reshaped(run:apply("mul", w, by), { columns, blocks * size })
  local y = matmul(run, node, x, run:transposed(run:moved(w, { columns, width }, { blocks * size, 1 }), { 2, 1 }))
  return bias and run:apply("add", y, bias) or y
end

return rows
