-- The attention operators of an ONNX graph as layers: keys, and which constants their weights are.
--
-- The operators take Q, K and V. A projection made them of a layer's input, if these nodes are there, in this order:
--   MatMul             of a constant matrix, MatMulNBits, or Gemm with alpha = beta = 1
--   Add                of a constant vector, or none
--   Split              of the columns, or none: Q, K and V in one
--   Reshape, Transpose(0, 2, 1, 3)   to heads, of an operator whose Q has four axes
--
-- That of Y is the same backwards, where nothing else uses Y: Transpose, Reshape, MatMul or Gemm, Add. A Reshape may
-- be around Gemm, and Identity before a constant. An operand of other nodes is an input of the kernel.

local fields = require "model.fields"
local graph_blocks = require "onnx.blocks"
local graph_layers = require "onnx.layers"
local graph_parts = require "onnx.parts"
local layers = require "model.layers"
local pack = require "plan.pack"
local tensors = require "model.tensors"
local words = require "base.words"

local HOPS = 4 -- of Identity before a constant

local Graph = {}
Graph.__index = Graph

-- ---- nodes and constants ----

local others = { MatMulNBits = "com.microsoft" } -- operators that are not ONNX's own

local function is(node, op) return node and node.op == op and node.domain == (others[op] or "") and node or nil end

-- The node of this kind that makes a value.
function Graph:maker(value, op) return is(self.makers[value], op) end

-- The only node that uses a value, if it is of this kind.
function Graph:user(value, op)
  local all = self.users[value]
  return is(all and #all == 1 and not self.outputs[value] and all[1], op)
end

function Graph:constant(value, axes)
  for _ = 1, HOPS do
    local node = value and self:maker(value, "Identity")
    if not node then break end
    value = node.inputs[1]
  end
  local tensor = value and value ~= "" and self.tensors[value]
  return tensor and (not axes or #tensor.shape == axes) and tensor or nil
end

-- The numbers of a constant list of few integers, or nil.
function Graph:integers(value)
  local tensor = self:constant(value, 1)
  local count = tensor and tensor.type == "I64" and tensor.shape[1]
  if not count or count > 16 or tensor.bytes ~= 8 * count then return nil end
  local bytes, list = tensor.file:bytes(tensor.at, tensor.bytes), {}
  for i = 1, bytes and count or 0 do list[i] = string.unpack("<i8", bytes, 8 * i - 7) end
  return list
end

-- Whether a node keeps rows of this width: a Reshape to a constant shape that ends with it.
function Graph:keeps(node, width)
  local shape = self:integers(node.inputs[2])
  return shape and shape[#shape] == width
end

local function transposes(node)
  local perm = node.attributes.perm
  return type(perm) == "table" and table.concat(perm, " ") == "0 2 1 3"
end

-- The Reshape to heads that made a value [batch][heads][rows][width], or nil.
function Graph:to_heads(value)
  local transpose = self:maker(value, "Transpose")
  return transpose and transposes(transpose) and self:maker(transpose.inputs[1], "Reshape") or nil
end

-- That to rows behind such a value, backwards.
function Graph:from_heads(value)
  local transpose = self:user(value, "Transpose")
  return transpose and transposes(transpose) and self:user(transpose.outputs[1], "Reshape") or nil
end

-- ---- projections ----

-- The matrix of a MatMul, a MatMulNBits or a Gemm that has x as its first input: { x, weight, in_out, all = its columns,
-- width = its rows, bias, stride and block of gen/onnx/blocks.lua or nil }.
function Graph:product(node)
  if node.op == "MatMulNBits" then
    local matrix, width, columns = graph_blocks.of_bits(self, node)
    local bias = self:constant(node.inputs[6], 1)
    if not matrix or (node.inputs[6] or "") ~= "" and not bias then return nil end
    return { x = node.inputs[1], weight = matrix.tensor, in_out = false, all = columns, width = width, bias = bias,
             stride = matrix.stride, block = matrix.block }
  end
  local weight = self:constant(node.inputs[2], 2)
  if not weight then return nil end
  local rows, columns = weight.shape[1], weight.shape[2]
  if rows * columns == 0 then return nil end
  if node.op == "MatMul" then
    return { x = node.inputs[1], weight = weight, in_out = true, all = columns, width = rows }
  end
  local a = node.attributes
  if (a.alpha or 1) ~= 1 or (a.beta or 1) ~= 1 or (a.transA or 0) ~= 0 then return nil end
  local turned = (a.transB or 0) ~= 0
  if turned then rows, columns = columns, rows end
  local made = { x = node.inputs[1], weight = weight, in_out = not turned, all = columns, width = rows }
  if node.inputs[3] and node.inputs[3] ~= "" then
    made.bias = self:constant(node.inputs[3], 1)
    if not made.bias or made.bias.shape[1] ~= columns then return nil end
  end
  return made
end

-- The constant vector that an Add adds, and the other input.
function Graph:added(node)
  for i = 1, 2 do
    local vector = self:constant(node.inputs[i], 1)
    if vector and vector.shape[1] > 1 then return vector, node.inputs[3 - i] end
  end
end

-- Some columns of a Split, as { from = value, first, count }, or nil.
function Graph:split(value)
  local node = self:maker(value, "Split")
  if not node then return nil end
  local axis = node.attributes.axis or 0
  local sizes, first = self:integers(node.inputs[2]), 0
  if (axis ~= -1 and axis ~= 2) or not sizes or #sizes ~= #node.outputs then return nil end
  for i, output in ipairs(node.outputs) do
    if sizes[i] < 1 or sizes[i] > 1 << 31 then return nil end
    if output == value then return { from = node.inputs[1], first = first, count = sizes[i] } end
    first = first + sizes[i]
  end
end

-- The projection that made a value, or nil. by_head: the value is [batch][heads][rows][width].
function Graph:projection(value, by_head)
  if by_head then
    local reshape = self:to_heads(value)
    if not reshape then return nil end
    value = reshape.inputs[1]
  end
  local split = self:split(value)
  if split then value = split.from end
  local bias, node = nil, self:maker(value, "Add")
  if node then
    bias, value = self:added(node)
    if not bias then return nil end
  end
  node = self:maker(value, "MatMul") or self:maker(value, "MatMulNBits")
  local reshape = not node and self:maker(value, "Reshape")
  node = node or self:maker(reshape and reshape.inputs[1] or value, "Gemm")
  local made = node and self:product(node)
  if not made or reshape and not self:keeps(reshape, made.all) or bias and made.bias then return nil end
  made.bias = made.bias or bias
  if bias and bias.shape[1] ~= made.all then return nil end
  if split and split.first + split.count > made.all then return nil end
  made.first, made.count = split and split.first or 0, split and split.count or made.all
  reshape = node.op == "Gemm" and self:maker(made.x, "Reshape")
  made.flat = node.op == "Gemm"
  if reshape and self:keeps(reshape, made.width) then made.x, made.flat = reshape.inputs[1], false end
  return made
end

-- That of Y, or nil.
function Graph:output_projection(value, by_head)
  if by_head then
    local reshape = self:from_heads(value)
    if not reshape then return nil end
    value = reshape.outputs[1]
  end
  local node = self:user(value, "MatMul") or self:user(value, "MatMulNBits")
  local reshape = not node and self:user(value, "Reshape")
  if reshape then value = reshape.outputs[1] end
  node = node or self:user(value, "Gemm")
  local made = node and node.inputs[1] == value and self:product(node)
  if not made or reshape and not self:keeps(reshape, made.width) then return nil end
  made.first, made.count = 0, made.all
  value = node.outputs[1]
  reshape = node.op == "Gemm" and self:user(value, "Reshape")
  made.flat = node.op == "Gemm"
  if reshape and self:keeps(reshape, made.all) then value, made.flat = reshape.outputs[1], false end
  local add = not made.bias and self:user(value, "Add")
  local bias = add and self:added(add)
  if bias and bias.shape[1] == made.all then made.bias, value = bias, add.outputs[1] end
  made.y = value
  return made
end

-- ---- layers ----

local Layer = {}
Layer.__index = Layer

function Layer:fail(...)
  error({ message = ("%s: node %s: %s"):format(self.graph.path, words.short(self.name), string.format(...)) }, 0)
end

-- The value of an input by its name, or nil where it is left out.
function Layer:input(name)
  local value = self.node.inputs[self.at[name] or 0]
  return value ~= "" and value or nil
end

-- The axes of an input, or nil where the file does not say them.
function Layer:dims(name)
  local value = self:input(name)
  local of = value and (self.graph.tensors[value] and { dims = self.graph.tensors[value].shape,
                                                       type = self.graph.tensors[value].type }
                        or self.graph.values[value])
  return of and of.dims, of and of.type
end

function Layer:refuse(name, why)
  if self:input(name) then self:fail("%s: %s", name, why or "is not supported") end
end

-- Refuses attributes and inputs that are not known, and keys of earlier runs without a cache.
function Layer:check_node()
  local known = {}
  for _, name in ipairs(self.operator.attributes) do known[name] = true end
  for name in pairs(self.node.attributes) do
    if not known[name] then self:fail("attribute %s: is not known", words.short(name)) end
  end
  for i = #self.operator.inputs + 1, #self.node.inputs do
    if self.node.inputs[i] ~= "" then self:fail("input %d, %s: is not known", i, words.short(self.node.inputs[i])) end
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
  return value ~= 0 and value ~= off and value or nil
end

-- The value that is the kernel's mask, and the letters of its axes.
function Layer:take_mask(name, axes)
  if self:input(name) then self.args.mask, self.mask_axes = self:input(name), axes or nil end
end

-- A mask that is added, or says what may be seen: its keys, by its axes. Axes without a size are whole.
function Layer:mask(name, kind)
  local dims, of = self:dims(name)
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
  if self.keys.mask then self:fail("%s: is a second mask, and a kernel has one", name) end
  self.keys.mask, self.keys.mask_dims = kind or of == "bool" and "bool" or "add", table.concat(letters)
end

-- Which keys are padding: a count for each sequence, or a flag for each key.
function Layer:padding(name)
  local dims = self:dims(name)
  local axes = dims and #dims
  if axes == 1 then self.args.kv_len = self:input(name) else self:take_mask(name, axes == 2 and "bk" or "bqk") end
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

-- ---- operators ----

-- A row has inputs, their names in order; past, the name of that of earlier runs; attributes, all that are known, also
-- those that change nothing here; and read, which makes keys and projections of a layer.
local operators = {}

operators["com.microsoft Attention"] = {
  inputs = { "input", "weights", "bias", "mask_index", "past", "attention_bias", "past_sequence_length" },
  past = "past",
  attributes = { "do_rotary", "mask_filter_value", "num_heads", "past_present_share_buffer", "qkv_hidden_sizes",
                 "rotary_embedding_dim", "scale", "unidirectional" },
  read = function(layer)
    local c, keys = layer.c, layer.keys
    c:only("do_rotary", 0)
    keys.h = c:int "num_heads"
    local weight = layer:constant("weights", 2)
    local bias = layer:input "bias" and layer:constant("bias", 1)
    local all = weight.shape[2]
    local sizes = { all // 3, all // 3, all // 3 }
    if c:has "qkv_hidden_sizes" then sizes = c:counts("qkv_hidden_sizes", 1 << 20) end
    if #sizes ~= 3 then c:fail("qkv_hidden_sizes", "must have 3 numbers") end
    layer:project_joint({ x = layer:input "input", weight = weight, in_out = true, width = weight.shape[1], bias = bias,
                          all = all, first = 0, count = all }, sizes)
    keys.causal = c:number("unidirectional", 0) ~= 0
    keys.scale = layer:given "scale"
    layer:mask "attention_bias"
    layer:padding "mask_index"
  end,
}

operators["com.microsoft MultiHeadAttention"] = {
  inputs = { "query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value",
             "past_sequence_length", "cache_indirection" },
  past = "past_key",
  attributes = { "mask_filter_value", "num_heads", "scale", "unidirectional" },
  read = function(layer)
    local c, keys = layer.c, layer.keys
    keys.h = c:int "num_heads"
    if not layer:input "key" or not layer:input "value" then layer:fail("Q, K and V of five axes are not supported") end
    layer:project_each { "query", "key", "value" }
    for letter, name in pairs { q = "query", k = "key", v = "value" } do
      local dims = layer:dims(name)
      if not layer.projections[letter] and dims and #dims ~= 3 then layer:fail("%s: %d axes, not 3", name, #dims) end
    end
    local bias = layer:input "bias" and layer:constant("bias", 1)
    local first = 0
    for _, letter in ipairs(bias and { "q", "k", "v" } or {}) do
      local made = layer.projections[letter]
      if not made then layer:fail("bias: %s is not projected before it", letter:upper()) end
      if made.bias then layer:fail("bias: the projection of %s has one too", letter:upper()) end
      made.joint_bias = { tensor = bias, first = first }
      first = first + made.count
    end
    if bias and bias.shape[1] ~= first then layer:fail("bias: has %d numbers, not %d", bias.shape[1], first) end
    keys.causal = c:number("unidirectional", 0) ~= 0
    keys.scale = layer:given "scale"
    layer:refuse "cache_indirection"
    layer:mask "attention_bias"
    layer:padding "key_padding_mask"
  end,
}

operators["com.microsoft GroupQueryAttention"] = {
  inputs = { "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache",
             "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale" },
  past = "past_key",
  attributes = { "do_rotary", "kv_num_heads", "local_window_size", "num_heads", "qk_output", "rotary_interleaved",
                 "scale", "smooth_softmax", "softcap" },
  read = function(layer)
    local c, keys = layer.c, layer.keys
    keys.h, keys.h_kv, keys.causal = c:int "num_heads", c:int "kv_num_heads", true
    if not layer:input "key" then
      local made = layer.graph:projection(layer:input "query" or "")
      if not made then layer:fail("query: is Q, K and V in one, and no projection is found before it") end
      local dk = made.count // (keys.h + 2 * keys.h_kv)
      layer:project_joint(made, { keys.h * dk, keys.h_kv * dk, keys.h_kv * dk })
    else
      layer:project_each { "query", "key", "value" }
    end
    keys.scale, keys.softcap = layer:given "scale", layer:given "softcap"
    local window = layer:given("local_window_size", -1)
    keys.window_left = window and window - 1
    if c:number("do_rotary", 0) ~= 0 then
      local cos, sin = layer:constant("cos_cache", 2), layer:constant("sin_cache", 2)
      keys.rope = c:number("rotary_interleaved", 0) ~= 0 and "interleaved" or "half"
      keys.rope_dims = 2 * cos.shape[2]
      layer.more.rope_cos, layer.more.rope_sin = cos, sin
    end
    if layer:input "head_sink" then
      keys.sink, layer.more.sink_logits = true, layer:constant("head_sink", 1)
    elseif c:number("smooth_softmax", 0) > 0 then
      keys.sink = true
    end
    layer:refuse("position_ids", "is not supported; rows follow each other")
    layer:refuse "k_scale"
    layer:refuse "v_scale"
    c:only("qk_output", 0)
    layer:mask("attention_bias", "add")
  end,
}

-- What its fourth output is, by qk_matmul_output_mode.
local written = { [0] = { "scores", "scaled" }, { "scores", "capped" }, { "scores", "masked" }, { "probs", true } }

operators[" Attention"] = {
  inputs = { "Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen" },
  past = "past_key",
  attributes = { "is_causal", "kv_num_heads", "left_window_size", "q_num_heads", "qk_matmul_output_mode",
                 "right_window_size", "scale", "softcap", "softmax_precision" },
  read = function(layer)
    local c, keys = layer.c, layer.keys
    local by_head = not c:has "q_num_heads"
    layer.by_head = by_head
    local function heads(name, field)
      if not by_head then return c:int(field) end
      local dims = layer:dims(name)
      local reshape = layer.graph:to_heads(layer:input(name) or "")
      local shape = reshape and layer.graph:integers(reshape.inputs[2])
      local count = dims and #dims == 4 and dims[2] or shape and #shape == 4 and shape[3]
      if not count or count < 1 then layer:fail("%s: the file does not say its heads", name) end
      return count
    end
    keys.h, keys.h_kv = heads("Q", "q_num_heads"), heads("K", "kv_num_heads")
    layer:project_each({ "Q", "K", "V" }, by_head)
    keys.causal = c:number("is_causal", 0) ~= 0
    keys.scale, keys.softcap = layer:given "scale", layer:given "softcap"
    keys.window_left, keys.window_right = c:number("left_window_size", -1), c:number("right_window_size", -1)
    for _, key in ipairs { "window_left", "window_right" } do if keys[key] < 0 then keys[key] = nil end end
    if layer:input "nonpad_kv_seqlen" then
      if keys.causal or keys.window_left or keys.window_right then
        layer:fail("nonpad_kv_seqlen: with is_causal or a window the kernel's cache says it; give cache and past")
      end
      keys.kv_len, layer.args.kv_len = true, layer:input "nonpad_kv_seqlen"
    end
    if (layer.node.outputs[4] or "") ~= "" then
      local mode = c:number("qk_matmul_output_mode", 0)
      local key = written[mode] or c:fail("qk_matmul_output_mode", "%s is not known", words.short(mode))
      if mode == 1 and not keys.softcap then key = written[0] end
      keys[key[1]] = key[2]
    end
    layer:mask "attn_mask"
  end,
}

-- ---- parts of weights ----

-- Some columns of a matrix, or numbers of a vector where there is no width; as many as `wanted`, { rows, columns }.
local function part(layer, tensor, all, width, made, wanted)
  if made.count ~= wanted[2] or (width or 1) ~= wanted[1] then
    layer:fail("constant %s gives [%d, %d], and by the config it must be [%d, %d]", words.short(tensor.name),
               width or 1, made.count, wanted[1], wanted[2])
  end
  return { name = tensor.name, tensor = tensor, features = all, width = width, blocks = 1, first = made.first,
           count = made.count, step = all }
end

-- The weights of a layer as cfg wants them.
local function features_of(layer, cfg)
  local all, sizes = {}, pack.sizes(cfg)
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
      all[matrix] = { name = tensor.name, features = tensor.shape[1], width = size[2], blocks = 1, first = 0,
                      count = size[1], step = size[1] }
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

-- The keys of what is projected, and of the widths of what is not.
local function add_projections(layer)
  local keys, p = layer.keys, layer.projections
  local names = layer.operator.inputs
  local h_kv = keys.h_kv or keys.h
  if keys.h % h_kv ~= 0 then layer:fail("%d heads, and %d of keys", keys.h, h_kv) end
  keys.dk = layer:head_width("q", names[1], keys.h) or layer:head_width("k", names[2], h_kv)
  keys.dv = layer:head_width("v", names[3], h_kv)
  local made = layer.graph:output_projection(layer.node.outputs[1] or "", layer.by_head)
  if made and keys.dv and made.width == keys.h * keys.dv then p.o = made end
  keys.scale = layers.scale(keys.scale, keys.dk, p.q and p.q.weight.type)
  local letters = ""
  for _, letter in ipairs { "q", "k", "v", "o" } do
    if p[letter] then letters = letters .. letter end
  end
  keys.project = letters ~= "" and letters or "none"
  if layer.by_head and letters ~= "qkvo" then keys.layout = "bhsd" end
  local joined = p.q and p.k and p.v and p.q.x == p.k.x and p.q.x == p.v.x
  if not joined then
    keys.attention = "cross"
    keys.k_width, keys.v_width = p.k and p.k.width, p.v and p.v.width
  end
  keys.d_model, keys.y_width = p.q and p.q.width, p.o and p.o.all
  layer.in_out = (p.q or p.k or p.v or p.o or { in_out = true }).in_out
end

-- Those that are written out, as model.layers has layers.
local function add_written(graph, from_user, all)
  local found, left, opened = graph_layers.of(graph, from_user)
  for _, layer in ipairs(found) do all[#all + 1] = graph_parts.layer(opened, layer) end
  return left
end

-- The values of the graph that the arguments of a kernel are.
local function add_values(layer)
  local names, p, args = layer.operator.inputs, layer.projections, layer.args
  for i, letter in ipairs { "q", "k", "v" } do
    if letter == "q" or layer.keys.attention == "cross" then
      args[letter] = p[letter] and p[letter].x or layer:input(names[i])
    end
  end
  args.y = p.o and p.o.y or layer.node.outputs[1]
end

-- graph: what gen/onnx/file.lua returns; from_user: { key = text } for keys that are given and win. Returns the
-- layers, and nodes that are none: { name, why }.
return function(graph, from_user)
  setmetatable(graph, Graph)
  local all = {}
  for _, node in ipairs(graph.nodes) do
    local operator = operators[("%s %s"):format(node.domain, node.op)]
    if operator then
      local prefix, values, at = ("node %s: "):format(words.short(node.name)), {}, {}
      for key, value in pairs(node.attributes) do values[prefix .. key] = value end
      for i, name in ipairs(operator.inputs) do at[name] = i end
      local layer = setmetatable({
        name = node.name, graph = graph, node = node, operator = operator, at = at, from_user = from_user, keys = {},
        projections = {}, more = {}, args = {}, c = fields.new(graph.path, values, prefix),
        features = features_of }, Layer)
      layer:check_node()
      operator.read(layer)
      add_projections(layer)
      add_values(layer)
      layer.keys = layers.key_list(layer.keys)
      all[#all + 1] = layer
    end
  end
  local left = add_written(graph, from_user, all)
  if #all == 0 then
    local more = {}
    for i, node in ipairs(left) do more[i] = { message = ("node %s: %s"):format(words.short(node.name), node.why) } end
    error({ message = graph.path .. ": no node is Attention, MultiHeadAttention or GroupQueryAttention, " ..
      "and no Softmax stands between two products of attention", more = more }, 0)
  end
  return all, left
end
