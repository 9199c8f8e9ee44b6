-- The attention operators of an ONNX graph as layers; onnx/layers.lua has those made of simple operators.

local Graph = require "onnx.around"
local Layer = require "onnx.node_layer"
local fields = require "model.fields"
local graph_layers = require "onnx.layers"
local graph_parts = require "onnx.parts"
local layers = require "model.layers"
local node_proof = require "onnx.node_proof"
local wording = require "base.wording"

-- ---- operators ----

-- A row has inputs, their names in order; keys, the name of that with K; past, of that of earlier runs; masks, of those
-- that hide; outputs, what they are (gen/onnx/beside.lua); attributes, all that are known, also those that change
-- nothing here; and read, which makes keys and projections of a layer.
local operators = {}

operators["com.microsoft Attention"] = {
  inputs = { "input", "weights", "bias", "mask_index", "past", "attention_bias", "past_sequence_length" },
  past = "past",
  outputs = { "y", "kv" },
  masks = { mask_index = true, attention_bias = true },
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
    layer:mask("attention_bias", "add")
    layer:padding "mask_index"
    layer:check_filter "mask_index"
  end,
}

operators["com.microsoft MultiHeadAttention"] = {
  inputs = { "query", "key", "value", "bias", "key_padding_mask", "attention_bias", "past_key", "past_value",
             "past_sequence_length", "cache_indirection" },
  keys = "key",
  past = "past_key",
  outputs = { "y", "k", "v", "scores" },
  masks = { key_padding_mask = true, attention_bias = true },
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
    layer:mask("attention_bias", "add")
    layer:padding "key_padding_mask"
    layer:check_filter "key_padding_mask"
  end,
}

operators["com.microsoft GroupQueryAttention"] = {
  inputs = { "query", "key", "value", "past_key", "past_value", "seqlens_k", "total_sequence_length", "cos_cache",
             "sin_cache", "position_ids", "attention_bias", "head_sink", "k_scale", "v_scale" },
  keys = "key",
  past = "past_key",
  outputs = { "y", "k", "v", "scores" },
  masks = { attention_bias = true },
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
      keys.sink, layer.more.sink = true, layer:constant("head_sink", 1)
    elseif c:number("smooth_softmax", 0) == 1 then
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
  keys = "K",
  past = "past_key",
  outputs = { "y", "k", "v", "scores" },
  masks = { attn_mask = true, nonpad_kv_seqlen = true },
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
      local key = written[mode] or c:fail("qk_matmul_output_mode", "%s is not known", wording.short(mode))
      if mode == 1 and not keys.softcap then key = written[0] end
      keys[key[1]] = key[2]
    end
    layer:mask "attn_mask"
  end,
}

-- Operators that compute attention and are not read, with the way out.
local unfused = "is not read; write the file without fusing it"
local unread = {
  ["com.microsoft QAttention"] = unfused, ["com.microsoft QOrderedAttention"] = unfused,
  ["com.microsoft PackedAttention"] = unfused, ["com.microsoft PackedMultiHeadAttention"] = unfused,
  ["com.microsoft DecoderAttention"] = unfused, ["com.microsoft DecoderMaskedMultiHeadAttention"] = unfused,
  ["com.microsoft DecoderMaskedSelfAttention"] = unfused, ["com.microsoft LongformerAttention"] = unfused,
  ["com.microsoft SparseAttention"] = unfused,
  ["com.microsoft QLinearSoftmax"] = "is of integers; quantize the file with QuantFormat.QDQ",
}

-- ---- all ----

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
  layer.scale = keys.scale
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

-- The axes of a value as the graph makes them: sizes are those that all runs have.
local function known_axes(find, graph, from_user)
  local longer
  return function(value)
    local shape, dims = find.elements.shapes[value], {}
    longer = longer or graph_layers.longer(graph, from_user)
    local other = longer[value]
    if not shape or not other or #other ~= #shape then return nil end
    for i, size in ipairs(shape) do dims[i] = other[i] == size and size end
    return dims
  end
end

-- A layer of an operator that is one node.
local function read_operator(graph, node, from_user, known)
  local operator = operators[("%s %s"):format(node.domain, node.op)]
  local prefix, values, at = ("node %s: "):format(wording.short(node.name)), {}, {}
  for key, value in pairs(node.attributes) do values[prefix .. key] = value end
  for i, name in ipairs(operator.inputs) do at[name] = i end
  local layer = setmetatable({
    name = node.name, graph = graph, node = node, operator = operator, at = at, from_user = from_user, keys = {},
    projections = {}, more = {}, args = {}, known = known, c = fields.new(graph.path, values, prefix) }, Layer)
  layer:check_node()
  operator.read(layer)
  add_projections(layer)
  add_values(layer)
  return layer
end

-- The same, once it computes what its keys say.
local function proved(find, graph, node, from_user)
  find.known = find.known or known_axes(find, graph, from_user)
  local layer = read_operator(graph, node, from_user, find.known)
  local why = node_proof.prove(find, layer)
  if why then layer:fail("%s", why) end
  layer.keys = layers.key_list(layer.keys)
  return layer
end

-- Of an operator that is also written out in its products that layer, unless its rows lie as [rows][batch] alone.
local function chosen(find, graph, node, from_user, written)
  if written and not next(written.found.swapped) then return written end
  local good, layer = pcall(proved, find, graph, node, from_user)
  if not good and (not written or type(layer) == "string") then error(layer, 0) end
  return good and layer or written
end

-- graph: what gen/onnx/file.lua returns; from_user: { key = text } for keys that are given and win. Returns the
-- layers, nodes that are none, { name, why }, and how they were found, of gen/onnx/layers.lua.
-- `unwritten` of a layer: why an operator of attention is no layer in its products, if these were tried.
return function(graph, from_user)
  setmetatable(graph, Graph)
  local found, left, find = graph_layers.of(graph, from_user)
  local all, own, rest, whys = {}, {}, {}, {}
  for _, each in ipairs(left) do whys[each.node or ""] = each.why end
  for i, each in ipairs(found) do
    found[i] = graph_parts.layer(find.graph, each)
    own[each.softmax.within or ""] = found[i]
  end
  for _, node in ipairs(graph.nodes) do
    local name = ("%s %s"):format(node.domain, node.op)
    if operators[name] then
      all[#all + 1] = chosen(find, graph, node, from_user, own[node])
      all[#all].unwritten, own[node] = whys[node], true
    elseif unread[name] then
      rest[#rest + 1] = { name = node.name, why = ("%s %s"):format(node.op, unread[name]) }
    end
  end
  for _, layer in ipairs(found) do
    if own[layer.node] ~= true then all[#all + 1] = layer end
  end
  for _, each in ipairs(left) do
    if own[each.node] ~= true then rest[#rest + 1] = each end
  end
  if #all == 0 then
    local more = {}
    for i, node in ipairs(rest) do
      more[i] = { message = ("node %s: %s"):format(wording.short(node.name), node.why) }
    end
    error({ message = graph.path .. ": no node is Attention, MultiHeadAttention or GroupQueryAttention, " ..
      "and no Softmax stands between two products of attention", more = more }, 0)
  end
  return all, rest, find
end
