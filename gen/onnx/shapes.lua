-- The axes of all values of an ONNX graph, with numbers for the extents that its inputs leave open. Values have no axes
-- if these are not known, as after bodies, and after operators that are not in the rows below.
--
--   of(graph, shapes, elements, open) -> unknown, doubts
--     graph      of gen/onnx/bodies.lua, which is walked
--     shapes     { value = its axes }, which is filled
--     elements   of gen/onnx/elements.lua over these shapes: the numbers that shapes depend on
--     open       function of (name of an input, axis from 1, name of the extent or nil, number of axes, type) -> number
--     unknown    the first node whose output has no axes though its inputs have, or nil
--     doubts     how many nodes do not fit their inputs, or what the file says of their outputs

local bodies = require "onnx.bodies"
local indices = require "onnx.indices"

local axis_of, joined = indices.axis_of, indices.joined
local MOST = 1 << 47 -- elements

-- Each: of (self, node, a, b) -> the axes of its outputs, in their order; a, b: those of the first two inputs.
local rules = {}

local function add_rules(names, rule)
  for name in names:gmatch "%S+" do rules[name] = rule end
end

add_rules([[Abs Acos Asin Atan BatchNormalization BiasGelu BitwiseNot Cast CastLike Ceil Celu Clip Cos CumSum
  DequantizeLinear Dropout Elu Erf Exp EyeLike FastGelu Floor Gelu GroupNormalization HardSigmoid
  HardSwish Hardmax Identity InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Log LogSoftmax
  LpNormalization MeanVarianceNormalization Mish Neg Not PRelu QuantizeLinear QuickGelu RMSNormalization Reciprocal Relu
  RotaryEmbedding Round ScatterElements ScatterND Selu Shrink Sigmoid Sign SimplifiedLayerNormalization Sin Sinh Cosh
  Softmax Softplus Softsign Sqrt Swish Tan Tanh
  ThresholdedRelu Trilu]],
  function(_, _, a) return a end)

add_rules("SkipLayerNormalization SkipSimplifiedLayerNormalization", function(_, _, a) return a, nil, nil, a end)

function rules.DynamicQuantizeLinear(_, _, a) return a, {}, {} end

add_rules("Add And BitwiseAnd BitwiseOr Div Equal Greater GreaterOrEqual Less LessOrEqual Max Mean Min Mod Mul Or " ..
  "Pow Sub Sum Where Xor", function(self, node, a)
  local shape = a
  for k = 2, #node.inputs do shape = joined(shape, self.shapes[node.inputs[k]]) end
  return shape
end)

local function copied(shape, first, last) return table.move(shape, first or 1, last or #shape, 1, {}) end

local function appended(shape, ...)
  for _, size in ipairs { ... } do shape[#shape + 1] = size end
  return shape
end

add_rules("MatMul FusedMatMul MatMulInteger", function(_, node, a, b)
  if not a or not b or #a < 1 or #b < 1 then return nil end
  if #b == 1 then return copied(a, 1, #a - 1) end
  if #a == 1 then return appended(copied(b, 1, #b - 2), b[#b]) end
  local t = node.attributes
  local rows = (t.transA or 0) ~= 0 and a[#a] or a[#a - 1]
  local columns = (t.transB or 0) ~= 0 and b[#b - 1] or b[#b]
  local lead = joined(copied(a, 1, #a - 2), copied(b, 1, #b - 2))
  return lead and appended(lead, rows, columns)
end)

function rules.MatMulNBits(_, node, a)
  return a and appended(copied(a, 1, #a - 1), node.attributes.N)
end

function rules.Gemm(_, node, a, b)
  local t = node.attributes
  return a and b and { a[(t.transA or 0) ~= 0 and 2 or 1], b[(t.transB or 0) ~= 0 and 1 or 2] }
end

function rules.Einsum(self, node)
  local equation = (node.attributes.equation or ""):gsub("%s", "")
  local left, right = equation:match "^([%a,]+)%->(%a*)$"
  local sizes, k = {}, 0
  for letters in (left or ""):gmatch "%a+" do
    k = k + 1
    local shape = self.shapes[node.inputs[k]]
    if not shape or #shape ~= #letters then return nil end
    for a = 1, #shape do
      local letter = letters:sub(a, a)
      sizes[letter] = math.max(sizes[letter] or 1, shape[a])
    end
  end
  local shape = {}
  for letter in (right or ""):gmatch "%a" do
    if not sizes[letter] then return nil end
    shape[#shape + 1] = sizes[letter]
  end
  return right and shape
end

for op, rule in pairs(require "onnx.windows") do rules[op] = rule end

-- ---- other arrangements ----

function rules.Shape(_, node, a)
  local t = node.attributes
  local function bound(x) return math.max(0, math.min(#a, x < 0 and x + #a or x)) end
  return a and { math.max(0, bound(t["end"] or #a) - bound(t.start or 0)) }
end

function rules.Size() return {} end

function rules.Constant(_, node)
  local t = node.attributes
  return t.value_ints and { #t.value_ints } or (t.value_int or t.value_float) and {} or nil
end

function rules.ConstantOfShape(self, node) return self.elements:list(node.inputs[1]) end

function rules.Range(self, node)
  local e = self.elements
  local first, last, step = e:scalar(node.inputs[1]), e:scalar(node.inputs[2]), e:scalar(node.inputs[3])
  if not first or not last or not step or step == 0 then return nil end
  return { math.max(0, math.tointeger(math.ceil((last - first) / step))) }
end

function rules.Reshape(self, node, a)
  local wanted = self.elements:list(node.inputs[2])
  if not a or not wanted then return nil end
  local shape, open = {}, nil
  for k, size in ipairs(wanted) do
    if size == 0 and (node.attributes.allowzero or 0) == 0 then size = a[k] end
    if size == -1 then open, size = k, 1 end
    shape[k] = size
    if not size then return nil end
  end
  local count, all = indices.count(shape), indices.count(a)
  if open then
    if count == 0 or all % count ~= 0 then return nil end
    shape[open] = all // count
  end
  return indices.count(shape) == all and shape or nil
end

function rules.Transpose(_, node, a)
  local perm, shape = node.attributes.perm, {}
  if not a or perm and #perm ~= #a then return nil end
  for k = 1, #a do shape[k] = a[perm and perm[k] + 1 or #a - k + 1] end
  return #shape == #a and shape or nil
end

-- The axes that an operator has as an attribute or as an input, from 1, as { axis = true }; nil if they are not known.
local function axes_of(self, node, rank)
  local input = node.inputs[2]
  local list = node.attributes.axes or input and input ~= "" and self.elements:list(input) or nil
  if not list and input and input ~= "" then return nil end
  local axes = list and {}
  for _, axis in ipairs(list or {}) do axes[(axis < 0 and axis + rank or axis) + 1] = true end
  return axes or false
end

function rules.Squeeze(self, node, a)
  local axes = a and axes_of(self, node, #a)
  if axes == nil then return nil end
  local shape = {}
  for k, size in ipairs(a) do
    if not (axes and axes[k] or not axes and size == 1) then shape[#shape + 1] = size end
  end
  return shape
end

function rules.Unsqueeze(self, node, a)
  local list = node.attributes.axes or node.inputs[2] and self.elements:list(node.inputs[2])
  if not a or not list then return nil end
  local axes, shape, at = axes_of(self, node, #a + #list), {}, 0
  for k = 1, #a + #list do
    if not axes[k] then at = at + 1 end
    shape[k] = axes[k] and 1 or a[at]
  end
  return shape
end

function rules.Flatten(_, node, a)
  if not a then return nil end
  local axis = node.attributes.axis or 1
  if axis < 0 then axis = axis + #a end
  return { indices.count(a, 1, axis), indices.count(a, axis + 1) }
end

function rules.Expand(self, node, a)
  local wanted = self.elements:list(node.inputs[2])
  return wanted and joined(a, wanted)
end

function rules.Tile(self, node, a)
  local by, shape = self.elements:list(node.inputs[2]), {}
  if not a or not by or #by ~= #a then return nil end
  for k = 1, #a do shape[k] = a[k] * by[k] end
  return shape
end

function rules.Slice(self, node, a)
  local bounds = a and self.elements:bounds(node, a)
  if not bounds then return nil end
  local shape = copied(a)
  for axis, bound in pairs(bounds) do shape[axis] = bound.count end
  return shape
end

function rules.Split(self, node, a)
  local axis = a and axis_of(node, 0, #a)
  if not axis then return nil end
  local count = #node.outputs
  local sizes = node.attributes.split or (node.inputs[2] or "") ~= "" and self.elements:list(node.inputs[2])
  local each, shapes = (a[axis] + count - 1) // count, {}
  if (node.inputs[2] or "") ~= "" and not sizes then return nil end
  for k = 1, count do
    shapes[k] = copied(a)
    shapes[k][axis] = sizes and sizes[k] or math.min(each, a[axis] - (k - 1) * each)
    if not shapes[k][axis] then return nil end
  end
  return table.unpack(shapes)
end

function rules.Concat(self, node, a)
  local axis = a and axis_of(node, 0, #a)
  local shape = axis and copied(a)
  for k = 2, axis and #node.inputs or 0 do
    local other = self.shapes[node.inputs[k]]
    if not other or #other ~= #a then return nil end
    shape[axis] = shape[axis] + other[axis]
  end
  return shape
end

function rules.Gather(_, node, a, b)
  local axis = a and b and axis_of(node, 0, #a)
  return axis and appended(appended(copied(a, 1, axis - 1), table.unpack(b)), table.unpack(a, axis + 1)) or nil
end

function rules.GatherElements(_, _, _, b) return b end

function rules.GatherND(_, node, a, b)
  if not a or not b or #b < 1 then return nil end
  local inner = b[#b] + (node.attributes.batch_dims or 0)
  return appended(copied(b, 1, #b - 1), table.unpack(a, inner + 1))
end

local function reduced(self, node, a)
  local axes = a and axes_of(self, node, #a)
  if axes == nil then return nil end
  if not axes and (node.attributes.noop_with_empty_axes or 0) ~= 0 then return a end
  local keep, shape = (node.attributes.keepdims or 1) ~= 0, {}
  for k, size in ipairs(a) do
    local gone = not axes or axes[k]
    if not gone or keep then shape[#shape + 1] = gone and 1 or size end
  end
  return shape
end

add_rules("ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum " ..
  "ReduceSumSquare", reduced)

add_rules("ArgMax ArgMin", function(_, node, a)
  local axis = a and axis_of(node, 0, #a)
  if not axis then return nil end
  local shape = copied(a)
  shape[axis] = 1
  if (node.attributes.keepdims or 1) == 0 then table.remove(shape, axis) end
  return shape
end)

-- ---- attention ----

-- Heads side by side: of rows like those of `a` as many columns as heads of V have.
function rules.Attention(self, node, a, b)
  local t, v = node.attributes, self.shapes[node.inputs[3]]
  if not a or not b then return nil end
  if node.domain ~= "" then return { a[1], a[2], (t.qkv_hidden_sizes or {})[3] or b[2] // 3 } end
  if #a == 4 then return v and { a[1], a[2], a[3], v[4] } end
  return v and { a[1], a[2], t.q_num_heads * (v[3] // t.kv_num_heads) }
end

function rules.MultiHeadAttention(self, node, a)
  local v = self.shapes[node.inputs[3]]
  return a and #a == 3 and v and { a[1], a[2], #v == 4 and v[2] * v[4] or v[3] } or nil
end

function rules.GroupQueryAttention(_, node, a)
  local t = node.attributes
  if not a or (node.inputs[2] or "") ~= "" then return a end
  return { a[1], a[2], a[3] // (t.num_heads + 2 * t.kv_num_heads) * t.num_heads }
end

function rules.EmbedLayerNormalization(self, node, a)
  local words = self.shapes[node.inputs[3]]
  return a and words and appended(copied(a), words[2])
end

-- ---- all ----

local function is_shape(shape)
  local count = 1
  for _, size in ipairs(shape) do
    if math.type(size) ~= "integer" or size < 0 or size > 0 and count > MOST // size then return false end
    count = count * math.max(1, size)
  end
  return true
end

-- What the file says of a value, with numbers for what it leaves open.
local function declared(graph, name, open)
  local of = graph.values[name]
  if not of or not of.dims then return nil end
  local shape = {}
  for a, size in ipairs(of.dims) do
    shape[a] = size or open(name, a, of.params[a], #of.dims, of.type)
  end
  return shape
end

local function all_known(shapes, node)
  for _, name in ipairs(node.inputs) do
    if name ~= "" and not shapes[name] then return false end
  end
  return true
end

-- Whether the file says other axes.
local function differs(graph, name, shape)
  local dims = (graph.values[name] or {}).dims
  for a, size in ipairs(dims or {}) do
    if size and size ~= shape[a] then return true end
  end
  return dims ~= nil and #dims ~= #shape
end

local function of(graph, shapes, elements, open)
  local unknown, doubts = nil, 0
  local self = { shapes = shapes, elements = elements }
  setmetatable(shapes, { __index = function(_, name) -- also of bodies, which are read on the way
    return graph.tensors[name] and graph.tensors[name].shape
  end })
  for _, name in ipairs(graph.inputs) do shapes[name] = declared(graph, name, open) end
  bodies.walk(graph, elements, function(node)
    local rule = rules[node.op]
    local a, b = shapes[node.inputs[1]], shapes[node.inputs[2]]
    local made = rule and table.pack(indices.attempt(rule, self, node, a, b)) or {}
    if made[1] == nil then
      made = {}
      if rule and all_known(shapes, node) then doubts = doubts + 1 end
    end
    for k, name in ipairs(node.outputs) do
      if not shapes[name] then
        local shape = made[k] and is_shape(made[k]) and made[k] or declared(graph, name, open)
        if shape and differs(graph, name, shape) then doubts = doubts + 1 end
        shapes[name] = shape and is_shape(shape) and shape or nil
      end
    end
    unknown = unknown or not shapes[node.outputs[1]] and all_known(shapes, node) and node or nil
  end)
  return unknown, doubts
end

return { of = of }
