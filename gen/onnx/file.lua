-- An ONNX file: the nodes of its graph, the constants as tensors, and what it says of the types and shapes of values.
--
--   read(file, path, type_size, open) -> graph     open: of a name to another file of the folder, and its path
--   body(graph, node, place) -> nodes              of a graph that an attribute of a node is, and nodes which give its
--                                                  outputs to those of the node; all enter the lists of the graph
--   function_body(graph, node, place) -> nodes     of a function of the model that a node calls
--   nodes_of(graph, node, raw) -> nodes            of one that is no part of the file: { node, input, output } as in
--                                                  its message
--
-- A graph:
--
--   path, nodes         the file; its nodes in their order: { op, domain, name, inputs, outputs, attributes, value,
--                       uses, inner, within }
--     uses              inputs, and the values that bodies may read
--     inner             nodes of attention in bodies
--     within            the node of the file that has it in a body, or nil
--   makers, users       the node that makes a value; the nodes that read it
--   tensors             constants by name, as gen/model/tensors.lua has tensors
--   values              what the file says of a value: { type, dims, params }; an axis without a size is false in dims,
--                       and params may have its name
--   inputs, outputs     names of the inputs of the graph in their order; { name = true }
--   opset               the version of ONNX's own operators
--   functions           places of those of the model, by function_key(domain, name, overload)
--   inner               { name = true } of values within bodies

local cursor = require "model.cursor"
local protobuf = require "onnx.protobuf"
local tensors = require "model.tensors"
local wording = require "base.wording"

local M = {}

-- ---- messages, by the numbers of onnx.proto ----

local NODES, NAMES, AXES = 1 << 18, 1 << 12, 16 -- the most of a graph, of a node, of a tensor
local TEXT = 1 << 10 -- bytes of an attribute that is a text

local pair = { message = "StringStringEntryProto", [1] = { "key", "text" }, [2] = { "value", "text" } }
local tensor_message = {
  message = "TensorProto", [1] = { "dims", "ints" }, [2] = { "data_type", "int" }, [3] = { "segment", "place" },
  [4] = { "float_data", "place" }, [5] = { "int32_data", "place" }, [7] = { "int64_data", "place" },
  [8] = { "name", "text" }, [9] = { "raw_data", "place" }, [10] = { "double_data", "place" },
  [13] = { "external_data", pair, list = NAMES }, [14] = { "data_location", "int" },
}
local attribute = {
  message = "AttributeProto", [1] = { "name", "text" }, [2] = { "f", "float" }, [3] = { "i", "int" },
  [4] = { "s", "place" }, [5] = { "t", tensor_message }, [6] = { "g", "place" }, [8] = { "ints", "ints" },
  [11] = { "graphs", "place", list = NAMES }, [20] = { "type", "int" }, [21] = { "ref_attr_name", "text" },
}
local node_message = {
  message = "NodeProto", [1] = { "input", "text", list = NAMES }, [2] = { "output", "text", list = NAMES },
  [3] = { "name", "text" }, [4] = { "op_type", "text" }, [5] = { "attribute", attribute, list = NAMES },
  [7] = { "domain", "text" }, [8] = { "overload", "text" },
}
local dimension = { message = "TensorShapeProto.Dimension", [1] = { "value", "int" }, [2] = { "param", "text" } }
local shape = { message = "TensorShapeProto", [1] = { "dim", dimension, list = AXES } }
local tensor_type = { message = "TypeProto.Tensor", [1] = { "elem_type", "int" }, [2] = { "shape", shape } }
local value_info = {
  message = "ValueInfoProto", [1] = { "name", "text" },
  [2] = { "type", { message = "TypeProto", [1] = { "tensor_type", tensor_type } } },
}
local graph_message = {
  message = "GraphProto", [1] = { "node", node_message, list = NODES },
  [5] = { "initializer", tensor_message, list = NODES }, [11] = { "input", value_info, list = NODES },
  [12] = { "output", value_info, list = NODES }, [13] = { "value_info", value_info, list = NODES },
}
local opset = { message = "OperatorSetIdProto", [1] = { "domain", "text" }, [2] = { "version", "int" } }
local model_message = {
  message = "ModelProto", [1] = { "ir_version", "int" }, [7] = { "graph", graph_message },
  [8] = { "opset_import", opset, list = NAMES }, [25] = { "functions", "place", list = NODES },
}
local function_message = {
  message = "FunctionProto", [1] = { "name", "text" }, [4] = { "input", "text", list = NAMES },
  [5] = { "output", "text", list = NAMES }, [7] = { "node", node_message, list = NODES }, [10] = { "domain", "text" },
  [11] = { "attribute_proto", attribute, list = NAMES },
}
local function_head = { message = "FunctionProto", [1] = { "name", "text" }, [10] = { "domain", "text" },
                        [13] = { "overload", "text" } }

-- Of a body the names alone, until it is read whole.
local body_node = { message = "NodeProto", [1] = { "input", "text", list = NAMES }, [4] = { "op_type", "text" },
                    [5] = { "attribute", { message = "AttributeProto", [6] = { "g", "place" },
                                           [11] = { "graphs", "place", list = NAMES } }, list = NAMES } }
local body_message = {
  message = "GraphProto", [1] = { "node", body_node, list = NODES },
  [12] = { "output", { message = "ValueInfoProto", [1] = { "name", "text" } }, list = NODES },
}

-- ---- tensors ----

local types = { "F32", "U8", "I8", "U16", "I16", "I32", "I64", "string", "bool", "F16", "F64", "U32", "U64",
                "complex64", "complex128", "BF16", [21] = "U4", [22] = "I4" }

-- Where the numbers of a type may be; as varints they are not read.
local places = { { "raw_data" }, { "float_data", "F32" }, { "double_data", "F64" }, { "int32_data" },
                 { "int64_data" } }

local EXTERNAL = 1

-- A number of external_data.
local function decimal(tensor, entries, key)
  local text = entries[key]
  local value = text and #text <= 15 and text:match("^%d+$") and math.tointeger(tonumber(text))
  if text and not value then tensors.fail(tensor, "external_data: %s = %s is no number", key, wording.short(text)) end
  return value
end

-- The place of a tensor in another file of the same folder.
local function external(self, tensor, raw)
  local entries = {}
  for _, entry in ipairs(raw.external_data) do entries[entry.key or ""] = entry.value or "" end
  local location = entries.location or tensors.fail(tensor, "external_data: location is missing")
  local name = tensors.beside(location)
    or tensors.fail(tensor, "external_data: location = %s is no file of this folder", wording.short(location))
  local file, path = self.open(name)
  tensor.file, tensor.path = file, path
  local at = decimal(tensor, entries, "offset") or 0
  if at > file:size() then tensors.fail(tensor, "begins behind the end of the file") end
  return { at = at, bytes = decimal(tensor, entries, "length") or file:size() - at }
end

-- The place of the numbers in a file, and how they are written there if not as numbers of the tensor's type.
local function place_of(self, tensor, raw)
  if raw.data_location == EXTERNAL then return external(self, tensor, raw) end
  local found
  for _, kind in ipairs(places) do
    if raw[kind[1]] then
      if found then tensors.fail(tensor, "has both %s and %s", found[1], kind[1]) end
      found = kind
    end
  end
  if not found then return { at = 0, bytes = 0 } end
  if found[1] ~= "raw_data" and found[2] ~= tensor.type then return raw[found[1]], found[1] end
  return raw[found[1]]
end

-- A TensorProto as the readers of all formats return tensors.
local function make_tensor(self, raw, name)
  local tensor = { name = name, path = self.path, file = self.file, shape = raw.dims }
  tensor.type = types[raw.data_type] or ("type %d"):format(raw.data_type or 0)
  if #raw.dims > AXES then tensors.fail(tensor, "%d axes", #raw.dims) end
  if raw.segment then tensors.fail(tensor, "segment: parts of tensors are not read") end
  local count = tensors.count(tensor)
  local place, how = place_of(self, tensor, raw)
  tensor.at = place.at
  local elements, size = self.type_size(tensor.type)
  if how then
    tensor.type = ("%s in %s"):format(tensor.type, how)
  elseif elements then
    local bytes = tensors.bytes(tensor, elements, size)
    if raw.data_location == EXTERNAL then
      local list = self.places[tensor.path] or {}
      self.places[tensor.path] = list
      list[#list + 1] = { tensor = tensor, first = tensor.at, bytes = bytes, stop = tensor.file:size() }
    end
    tensors.require_bytes(tensor, bytes, place.bytes)
  end
  tensor.bytes = count > 0 and place.bytes or 0
  return tensor
end

local function read_tensor(self, raw, name, own)
  local tensor = make_tensor(self, raw, name)
  if self.tensors[name] then tensors.fail(tensor, "is there twice") end
  if self.makers[name] and name ~= "" and not own then tensors.fail(tensor, "is made by a node too") end
  self.tensors[name] = tensor
end

-- ---- the graph ----

-- Attributes by their names; those of a function may be attributes of the node that calls it.
local function attributes_of(self, list, given)
  local values = {}
  for _, attribute in ipairs(list) do
    local name, text = attribute.name or "", attribute.s
    if attribute.ref_attr_name then values[name] = given and given[attribute.ref_attr_name]
    elseif text and text.bytes <= TEXT then values[name] = self.file:bytes(text.at, text.bytes)
    elseif attribute.type == 2 then values[name] = attribute.i or 0 -- which some writers leave out where it is 0
    elseif attribute.type == 1 then values[name] = attribute.f or 0.0
    elseif attribute.t or attribute.g then values[name] = attribute.t or attribute.g
    elseif attribute.type == 7 then values[name] = attribute.ints
    else values[name] = attribute.i or attribute.f end
  end
  return values
end

local DEEPEST = 64 -- bodies in bodies

local function cursor_of(self, place) return cursor.new(self.file, self.path, place.at, place.at + place.bytes) end

-- Calls take(name) for each value that the bodies of a node may read, more than once where it is read so often; also
-- for values of their own. Calls take(nil, op) for each node in them.
local function names_of_bodies(self, raw, take, depth)
  for _, each in ipairs(raw.attribute) do
    local places = table.move(each.graphs, 1, #each.graphs, 1, {})
    places[#places + 1] = each.g
    for _, place in ipairs(places) do
      local at = cursor_of(self, place)
      if depth == DEEPEST then at:fail("more than %d graphs in each other", DEEPEST) end
      local body = protobuf.read(at, body_message)
      for _, output in ipairs(body.output) do take(output.name or "") end
      for _, node in ipairs(body.node) do
        take(nil, node.op_type)
        for _, name in ipairs(node.input) do take(name) end
        names_of_bodies(self, node, take, depth + 1)
      end
    end
  end
end

-- The names of a body, with what makes them other ones than those outside.
local function renamed(list, scope)
  local names = {}
  for i, name in ipairs(list) do names[i] = name ~= "" and scope.name(name) or "" end
  return names
end

local file_scope = { name = function(name) return name end, depth = 0 }
local of_attention = { Softmax = true, Attention = true, MultiHeadAttention = true, GroupQueryAttention = true }

-- scope: { name = function of a name in a body, attributes = of the node that calls a function, within, depth }
local function read_node(self, raw, scope)
  local node = { op = raw.op_type or "", domain = raw.domain or "", overload = raw.overload, uses = {},
                 inputs = renamed(raw.input, scope), outputs = renamed(raw.output, scope),
                 attributes = attributes_of(self, raw.attribute, scope.attributes),
                 inner = 0, within = scope.within, scope = scope }
  if node.domain == "ai.onnx" then node.domain = "" end -- its two names
  node.name = raw.name ~= nil and raw.name ~= "" and raw.name or ("%s of %s"):format(node.op, node.outputs[1] or "")
  for _, name in ipairs(node.outputs) do
    if name ~= "" then
      if self.tensors[name] then tensors.fail(self.tensors[name], "is made by a node too") end
      if self.makers[name] then
        error({ message = ("%s: value %s is made by two nodes"):format(self.path, wording.short(name)) }, 0)
      end
      self.makers[name], self.inner[name] = node, scope.within and true
    end
  end
  table.move(node.inputs, 1, #node.inputs, 1, node.uses)
  names_of_bodies(self, raw, function(name, op)
    if name then node.uses[#node.uses + 1] = scope.name(name) end
    if of_attention[op] then node.inner = node.inner + 1 end
  end, 1)
  local value = node.attributes.value
  if node.domain == "" and type(value) == "table" and value.dims and node.outputs[1] then
    if node.op == "Constant" then read_tensor(self, value, node.outputs[1], true)
    else node.value = make_tensor(self, value, node.outputs[1]) end
  end
  return node
end

-- The nodes that read each value, in their order.
function M.users_of(nodes)
  local users = {}
  for _, node in ipairs(nodes) do
    for _, name in ipairs(node.uses) do
      users[name] = users[name] or {}
      table.insert(users[name], node)
    end
  end
  return users
end

-- What a list says of the types and shapes of values; an axis without a size is false.
local function read_types(self, list, scope)
  for _, info in ipairs(list) do
    local of = info.type and info.type.tensor_type
    if of and info.name then
      local dims, params = of.shape and {}, {}
      for i, dim in ipairs(dims and of.shape.dim or {}) do
        dims[i] = dim.value and dim.value >= 0 and dim.value or false
        params[i] = dim.param
      end
      self.values[scope.name(info.name)] = { type = types[of.elem_type], dims = dims, params = params }
    end
  end
end

-- Reads the lists of a graph, in a scope of names; returns its nodes.
local function read_graph(self, raw, scope)
  local nodes = {}
  for _, tensor in ipairs(raw.initializer) do read_tensor(self, tensor, scope.name(tensor.name or "")) end
  for i, node in ipairs(raw.node) do nodes[i] = read_node(self, node, scope) end
  for _, list in ipairs { raw.input, raw.value_info, raw.output } do read_types(self, list, scope) end
  return nodes
end

-- Adds nodes that give values of a body to the outputs of its node.
local function add_outputs(self, nodes, node, names)
  for k, name in ipairs(node.outputs) do
    if name ~= "" and names[k] then
      local made = { op = "Identity", domain = "", name = node.name, inputs = { names[k] }, outputs = { name },
                     attributes = {}, uses = { names[k] }, inner = 0, within = node.within or node }
      self.makers[name], nodes[#nodes + 1] = made, made
    end
  end
  return nodes
end

-- A scope whose own names end with an output of the node, which no other node has.
local function inner_scope(self, node, name, attributes)
  if node.scope.depth == DEEPEST then
    error({ message = ("%s: node %s: more than %d bodies in each other"):format(self.path, wording.short(node.name),
                                                                                 DEEPEST) }, 0)
  end
  local behind = " in " .. node.name
  for k = #node.outputs, 1, -1 do
    if node.outputs[k] ~= "" then behind = " in " .. node.outputs[k] end
  end
  return { name = function(inner) return name(inner) or inner .. behind end, attributes = attributes,
           within = node.within or node, depth = node.scope.depth + 1 }
end

local function body(self, node, place)
  local raw, own, outputs = protobuf.read(cursor_of(self, place), graph_message), {}, {}
  for _, initializer in ipairs(raw.initializer) do own[initializer.name or ""] = true end
  for _, inner in ipairs(raw.node) do
    for _, name in ipairs(inner.output) do own[name] = true end
  end
  local scope = inner_scope(self, node, function(name) return not own[name] and node.scope.name(name) end,
                            node.scope.attributes)
  for k, output in ipairs(raw.output) do outputs[k] = scope.name(output.name or "") end
  return add_outputs(self, read_graph(self, raw, scope), node, outputs)
end

-- The nodes of a function, as its message has them, in the place of a node that calls it.
local function nodes_of(self, node, raw, attributes)
  local given, nodes = {}, {}
  for k, name in ipairs(raw.input) do given[name] = node.inputs[k] or "" end
  local scope = inner_scope(self, node, function(name) return given[name] end, attributes)
  for i, inner in ipairs(raw.node) do nodes[i] = read_node(self, inner, scope) end
  return add_outputs(self, nodes, node, renamed(raw.output, scope))
end

local function function_body(self, node, place)
  local raw = protobuf.read(cursor_of(self, place), function_message)
  local attributes = attributes_of(self, raw.attribute_proto)
  for name, value in pairs(node.attributes) do attributes[name] = value end
  return nodes_of(self, node, raw, attributes)
end

local REPLACEABLE = 4 -- from this version of the format on a caller may give what is an initializer and an input

-- The inputs of a graph without its initializers.
local function read_inputs(self, raw)
  for _, input in ipairs(raw.graph.input) do
    local tensor = self.tensors[input.name or ""]
    if tensor and (raw.ir_version or 0) >= REPLACEABLE then
      tensors.fail(tensor, "is an input too, so callers may replace it; python -m " ..
        "onnxruntime.tools.remove_initializer_from_input makes it a constant")
    end
    if input.name and not tensor then self.inputs[#self.inputs + 1] = input.name end
  end
end

-- By what a function of the model is told from others.
function M.function_key(domain, name, overload) return table.concat({ domain, name, overload or "" }, " ") end

local function read(file, path, type_size, open)
  local at = cursor.new(file, path)
  local raw = protobuf.read(at, model_message)
  if not raw.graph then error({ message = path .. ": is no ONNX file: it has no graph" }, 0) end
  local self = { path = path, file = file, type_size = type_size, open = open, places = {}, makers = {}, tensors = {},
                 values = {}, inputs = {}, outputs = {}, opset = 0, functions = {}, inner = {} }
  self.nodes = read_graph(self, raw.graph, file_scope)
  self.users = M.users_of(self.nodes)
  for _, place in ipairs(raw.functions) do
    local head = protobuf.read(cursor_of(self, place), function_head)
    self.functions[M.function_key(head.domain or "", head.name or "", head.overload)] = place
  end
  for _, output in ipairs(raw.graph.output) do self.outputs[output.name or ""] = true end
  read_inputs(self, raw)
  for _, import in ipairs(raw.opset_import) do
    if (import.domain or "") == "" or import.domain == "ai.onnx" then self.opset = import.version or 0 end
  end
  for _, list in pairs(self.places) do tensors.refuse_overlap(list, list[1].stop) end
  return self
end

M.read, M.body, M.function_body, M.nodes_of = read, body, function_body, nodes_of

return M
