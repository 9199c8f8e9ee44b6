-- A layer of an ONNX graph whose attention is one node: its keys, and the parts of its weights. Its fields:
--
--   name, graph, node
--   operator           a row of gen/onnx/operators.lua
--   at                 { name of an input = its number }
--   c                  fields of its attributes
--   keys, projections, args, from_user
--   more               other constants
--   known(value)       axes as the graph makes them: a list, with false for what inputs leave open; or nil

local constants = require "onnx.constants"
local graph_parts = require "onnx.parts"
local matrices = require "graph.matrices"
local plain_attention = require "onnx.plain_attention"
local tensors = require "model.tensors"
local wording = require "base.wording"

local Layer = {}
Layer.__index = Layer

function Layer:fail(...)
  error({ message = ("%s: node %s: %s"):format(self.graph.path, wording.short(self.name), string.format(...)) }, 0)
end

-- The value of an input by its name, or nil where it is left out.
function Layer:input(name)
  local value = self.node.inputs[self.at[name] or 0]
  return value ~= "" and value or nil
end

-- The axes of a value, or nil where they are not known.
function Layer:axes(value)
  local tensor, of = self.graph.tensors[value], self.graph.values[value]
  return tensor and tensor.shape or of and of.dims or value and self.known(value) or nil
end

-- Those of an input.
function Layer:dims(name) return self:axes(self:input(name)) end

function Layer:refuse(name, why)
  if self:input(name) then self:fail("%s: %s", name, why or "is not supported") end
end

-- Refuses attributes and inputs that are not known, and keys of earlier runs without a cache.
function Layer:check_node()
  local known = {}
  for _, name in ipairs(self.operator.attributes) do known[name] = true end
  for name in pairs(self.node.attributes) do
    if not known[name] then self:fail("attribute %s: is not known", wording.short(name)) end
  end
  for i = #self.operator.inputs + 1, #self.node.inputs do
    if self.node.inputs[i] ~= "" then self:fail("input %d, %s: is not known", i, wording.short(self.node.inputs[i])) end
  end
  local name = self.operator.past
  local dims = self:dims(name)
  if not self:input(name) or self.from_user.cache or dims and dims[#dims - 1] == 0 then return end
  self:fail("%s: is of earlier runs: give cache=append and seq_kv, the rows that it has room for; or cache=none for " ..
    "runs that have none", name)
end

-- The constant that an input must be.
function Layer:constant(name, axes)
  local tensor = self.graph:constant(self:input(name), axes)
  return tensor or self:fail("%s: is no constant with %d axes", name, axes)
end

-- A number of an attribute; 0 or `off` mean that it is not there.
function Layer:given(name, off)
  local value = self.c:number(name, off or 0)
  if value == 0 or value == off then return nil end
  return math.type(value) == "float" and constants.short(value) or value
end

-- The value that is the kernel's mask, and the letters of its axes.
function Layer:take_mask(name, axes)
  if self:input(name) then self.args.mask, self.mask_axes = self:input(name), axes or nil end
end

-- The rows of K, or nil where the file does not say them.
function Layer:key_rows()
  local name = self.operator.keys
  local dims = self:dims(name and self:input(name) and name or self.operator.inputs[1])
  if self:input(self.operator.past) then return nil end
  return dims and dims[#dims == 4 and 3 or 2] or nil
end

-- A mask that is added, or says what may be seen: its keys, by its axes. Axes without a size are whole.
function Layer:mask(name, kind)
  local dims = self:dims(name)
  self:take_mask(name, dims and #dims <= 4 and ("bhqk"):sub(-#dims))
  if not self:input(name) or self.from_user.mask then return end
  if not dims or #dims < 1 or #dims > 4 then
    self:fail("%s: the file does not say its axes; give mask=none, or mask and mask_dims", name)
  end
  local letters = {}
  for i, size in ipairs(dims) do
    local letter = ("bhqk"):sub(i - #dims - 1, i - #dims - 1)
    if size ~= 1 or letter == "k" then letters[#letters + 1] = letter end
  end
  local keys = self:key_rows()
  if keys and dims[#dims] and dims[#dims] ~= keys then
    self:fail("%s: has %d columns for %d keys, and hides the others; pad it with -inf", name, dims[#dims], keys)
  end
  if self.keys.mask then self:fail("%s: is a second mask, and a kernel has one", name) end
  local flags = not kind and plain_attention.is_flags(self.graph, self:input(name))
  if flags == nil then self:fail("%s: the file does not say whether it is of bool; give mask=none, or mask", name) end
  self.keys.mask, self.keys.mask_dims = kind or flags and "bool" or "add", table.concat(letters)
end

-- Which keys are padding: a count for each sequence, or a flag for each key.
function Layer:padding(name)
  local dims = self:dims(name)
  local axes = dims and #dims
  if axes == 1 then self.args.kv_len = self:input(name)
  elseif not self.keys.mask then self:take_mask(name, axes == 2 and "bk" or "bqk") end
  local x = self:dims(self.operator.inputs[1])
  if axes == 1 and dims[1] and x and x[1] and dims[1] ~= x[1] then
    self:fail("%s: has %d numbers for %d sequences; only a count of keys for each is read", name, dims[1], x[1])
  end
  if not self:input(name) or self.from_user.kv_len or self.from_user.mask then return end
  if axes == 1 then
    self.keys.kv_len = true
  elseif axes == 2 or axes == 3 then
    if self.keys.mask then self:fail("%s: is a second mask, and a kernel has one", name) end
    self.keys.mask, self.keys.mask_dims = "bool", axes == 2 and "bk" or "bqk"
  else
    self:fail("%s: the file does not say that it has 1 to 3 axes; give kv_len or mask", name)
  end
end

-- Refuses padding that is not hidden: its scores get a number that is no low one.
function Layer:check_filter(name)
  local value = self.c:number("mask_filter_value", -1e4)
  if self:input(name) and value > -1e4 then
    self:fail("mask_filter_value: %.6g hides no key; a kernel hides them, as -10000 does", value)
  end
end

-- Takes a projection for some of the columns of its matrix.
function Layer:project(letter, made, first, count)
  local own = { first = made.first + first, count = count }
  for _, key in ipairs { "x", "weight", "in_out", "width", "bias", "all", "stride", "block", "flat" } do
    own[key] = made[key]
  end
  self.projections[letter] = own
end

-- One projection of Q, K and V, whose columns follow each other.
function Layer:project_joint(made, sizes)
  if sizes[1] + sizes[2] + sizes[3] ~= made.count then
    self:fail("the matrix of Q, K and V has %d columns, not %d + %d + %d", made.count, sizes[1], sizes[2], sizes[3])
  end
  local first = 0
  for i, count in ipairs(sizes) do
    self:project(("qkv"):sub(i, i), made, first, count)
    first = first + count
  end
end

-- Those of Q, K and V, each behind its input.
function Layer:project_each(names, by_head)
  for i, name in ipairs(names) do
    local made = self:input(name) and self.graph:projection(self:input(name), by_head)
    if made then self:project(("qkv"):sub(i, i), made, 0, made.count) end
  end
end

-- The width of a head of what an input has: of its projection, or of its last axis.
function Layer:head_width(letter, name, heads)
  local made, dims = self.projections[letter], self:dims(name)
  local width = made and made.count or dims and #dims == 3 and dims[3]
  if not made and dims and #dims == 4 then return dims[4] or nil end
  if not width then return nil end
  if width % heads ~= 0 or width == 0 then self:fail("%s: %d columns for %d heads", name, width, heads) end
  return width // heads
end

-- ---- parts of weights ----

-- Some columns of a matrix, or numbers of a vector where there is no width; as many as `wanted`, { rows, columns }.
local function part(layer, tensor, all, width, made, wanted)
  if made.count ~= wanted[2] or (width or 1) ~= wanted[1] then
    layer:fail("constant %s gives [%d, %d], and by the config it must be [%d, %d]", wording.short(tensor.name),
               width or 1, made.count, wanted[1], wanted[2])
  end
  return { name = tensor.name, tensor = tensor, features = all, width = width, blocks = 1, first = made.first,
           count = made.count, step = all }
end

-- The weights of a layer as cfg wants them.
function Layer.features(layer, cfg)
  local all, sizes = {}, matrices.sizes(cfg)
  local function add(matrix, tensor, count, width, made)
    if sizes[matrix][1] * sizes[matrix][2] > 0 then -- otherwise another key has switched it off
      all[matrix] = part(layer, tensor, count, width, made, sizes[matrix])
    end
    return all[matrix] or {}
  end
  for letter, made in pairs(layer.projections) do
    local weight = add("w" .. letter, made.weight, made.all, made.width, made)
    weight.in_out, weight.turned = made.in_out, made.in_out ~= layer.in_out
    if made.block and weight.name then
      weight.integers, weight.stride = true, made.stride
      weight.scaled = graph_parts.scaled(layer, { width = made.width, features = made.all, block = made.block }, weight)
    end
    if made.bias then add("b" .. letter, made.bias, made.all, nil, made) end
    local joint = made.joint_bias
    if joint then
      add("b" .. letter, joint.tensor, joint.tensor.shape[1], nil, { first = joint.first, count = made.count })
    end
  end
  for matrix, tensor in pairs(layer.more) do
    local size = sizes[matrix]
    if size and #tensor.shape == 1 then
      add(matrix, tensor, size[2], nil, { first = 0, count = tensor.shape[1] })
    elseif size then -- a table, of which the first places are used
      if tensor.shape[1] < size[1] then
        tensors.fail(tensor, "has %d places, and %d are wanted", tensor.shape[1], size[1])
      end
      all[matrix] = { name = tensor.name, tensor = tensor, features = tensor.shape[1], width = size[2], blocks = 1,
                      first = 0, count = size[1], step = size[1] }
    end
  end
  for _, letter in ipairs { "q", "k", "v", "o" } do
    local size = sizes["w" .. letter]
    if size[1] * size[2] > 0 and not all["w" .. letter] then
      layer:fail("project: no projection of %s is found", letter == "o" and "Y" or letter:upper())
    end
  end
  return all
end

return Layer
