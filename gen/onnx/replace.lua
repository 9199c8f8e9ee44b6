-- An ONNX file with a node of ours in the place of each attention layer. All other bytes are copied from the file.
--
--   replace(graph, layers)      decides which nodes and constants are removed, and tells what stays
--   pieces(swap)                what the new file is made of: texts, and places { at, bytes } of the old one
--
-- graph: of onnx/file.lua. layer: { name, node, ends = of onnx/ends.lua }, for `pieces` also op and source.

local cursor = require "model.cursor"
local protobuf = require "onnx.protobuf"
local wording = require "base.wording"

local M = {}

M.DOMAIN = "mhagen"
M.INPUTS = { "q", "k", "v", "mask", "kv_len" }

-- ---- what goes ----

-- Whether a node that has not gone, or a node of ours, reads a value, or the graph returns it.
local function is_read(self, value)
  if self.graph.outputs[value] or self.ours[value] then return true end
  for _, node in ipairs(self.graph.users[value] or {}) do
    if not self.gone[node] then return true end
  end
  return false
end

-- Takes away the node that makes y, and all that is for it alone. Returns what has gone.
local function take_away(self, y)
  local gone, todo = {}, { self.graph.makers[y] }
  while #todo > 0 do
    local node = table.remove(todo)
    self.gone[node], gone[#gone + 1] = true, node
    for _, input in ipairs(node.uses) do
      local maker = self.graph.makers[input]
      local needed = not maker or self.gone[maker]
      for _, output in ipairs(maker and maker.outputs or {}) do
        needed = needed or output ~= "" and is_read(self, output)
      end
      if not needed then todo[#todo + 1] = maker end
    end
  end
  return gone
end

-- Why a layer can not be replaced, or nil.
local function replace_layer(self, layer)
  local y = layer.ends.args.y
  local maker = self.graph.makers[y]
  for i, output in ipairs(maker.outputs) do
    if output ~= "" and output ~= y and is_read(self, output) then
      return ("output %d, %s, is read"):format(i, wording.short(output))
    end
  end
  local inputs = {}
  local function take(value)
    if value and not self.ours[value] then
      self.ours[value], inputs[#inputs + 1] = true, value
    end
  end
  for _, role in ipairs(M.INPUTS) do take(layer.ends.args[role]) end
  for _, value in ipairs(layer.ends.sum or {}) do take(value) end
  local gone = take_away(self, y)
  if self.gone[layer.node] then
    self.at[maker] = layer
    return nil
  end
  for _, node in ipairs(gone) do self.gone[node] = nil end
  for _, value in ipairs(inputs) do self.ours[value] = nil end
  return "another node reads what it is made of"
end

-- -> { gone = { node = true }, at = { node that goes: layer that comes there }, left = { { layer, why } } }
function M.replace(graph, layers)
  for _, node in ipairs(graph.nodes) do
    if node.domain == M.DOMAIN then
      error({ message = ("%s: node %s is of mhagen already"):format(graph.path, wording.short(node.name)) }, 0)
    end
  end
  local self = { graph = graph, gone = {}, at = {}, ours = {}, left = {} }
  for _, layer in ipairs(layers) do
    local why = replace_layer(self, layer)
    if why then self.left[#self.left + 1] = { layer = layer, why = why } end
  end
  return self
end

-- ---- the new file ----

-- Fields of the messages of onnx.proto.
local MODEL = { graph = 7, opset_import = 8, metadata_props = 14 }
local GRAPH = { node = 1, initializer = 5, input = 11 }
local NODE = { input = 1, output = 2, name = 3, op_type = 4, attribute = 5, domain = 7 }
local STRING = 3 -- AttributeProto.type

local function text_attribute(name, value)
  return protobuf.bytes(1, name) .. protobuf.bytes(4, value) .. protobuf.int(20, STRING)
end

local function node_text(layer)
  local fields, last, args = {}, 0, layer.ends.args
  for i, role in ipairs(M.INPUTS) do if args[role] then last = i end end
  -- Before 1.24 ONNX Runtime ends where an input that is left out has no type; so q stands there.
  for i = 1, last do fields[i] = protobuf.bytes(NODE.input, args[M.INPUTS[i]] or args.q) end
  fields[#fields + 1] = protobuf.bytes(NODE.output, layer.ends.args.y) .. protobuf.bytes(NODE.name, layer.name)
    .. protobuf.bytes(NODE.op_type, layer.op)
  for _, attribute in ipairs { { "layer", layer.name }, { "source", layer.source } } do
    fields[#fields + 1] = protobuf.bytes(NODE.attribute, text_attribute(attribute[1], attribute[2]))
  end
  fields[#fields + 1] = protobuf.bytes(NODE.domain, M.DOMAIN)
  return protobuf.bytes(GRAPH.node, table.concat(fields))
end

-- Nodes that add up values; each sum is made once.
local function sum_text(self, layer)
  local ends, fields = layer.ends, {}
  local value = ends.sum and not self.sums[ends.args.mask] and ends.sum[1]
  self.sums[ends.args.mask or ""] = true
  for i = 2, value and #ends.sum or 0 do
    local sum = i == #ends.sum and ends.args.mask or ("%s to %d"):format(ends.args.mask, i)
    local node = { protobuf.bytes(NODE.input, value), protobuf.bytes(NODE.input, ends.sum[i]),
                   protobuf.bytes(NODE.output, sum), protobuf.bytes(NODE.op_type, "Add") }
    fields[#fields + 1] = protobuf.bytes(GRAPH.node, table.concat(node))
    value = sum
  end
  return table.concat(fields)
end

local named = { [GRAPH.initializer] = { message = "TensorProto", [8] = { "name", "text" } },
                [GRAPH.input] = { message = "ValueInfoProto", [1] = { "name", "text" } } }

local function within(at, place) return cursor.new(at.file, at.path, place.first, place.at + place.bytes) end

-- Whether a constant was for nodes alone that have gone.
local function has_gone(self, name)
  local users = self.graph.users[name]
  return self.graph.tensors[name] and users and #users > 0 and not is_read(self, name)
end

-- The pieces of the graph: texts, and places of the file.
local function graph_pieces(self, at, place)
  local pieces, number = {}, 0
  self.sums = {}
  protobuf.fields(within(at, place), "GraphProto", function(field, part)
    local node
    if field == GRAPH.node then
      number = number + 1
      node = self.graph.nodes[number]
    end
    local layer = node and self.at[node]
    local away = node and self.gone[node]
      or named[field] and has_gone(self, protobuf.read(within(at, part), named[field]).name or "")
    if layer then
      pieces[#pieces + 1] = sum_text(self, layer) .. node_text(layer)
    elseif not away then
      pieces[#pieces + 1] = part
    end
  end)
  return pieces
end

local function bytes_of(pieces)
  local bytes = 0
  for _, piece in ipairs(pieces) do bytes = bytes + (type(piece) == "string" and #piece or piece.bytes) end
  return bytes
end

-- What such a file begins with: an entry of its metadata.
M.MARK = protobuf.bytes(MODEL.metadata_props, protobuf.bytes(1, M.DOMAIN) .. protobuf.bytes(2, "attention"))

-- The new file as pieces. swap: of M.replace.
function M.pieces(swap)
  local at = cursor.new(swap.graph.file, swap.graph.path)
  local pieces = { M.MARK }
  protobuf.fields(at, "ModelProto", function(field, place)
    if field ~= MODEL.graph then
      pieces[#pieces + 1] = place
      return
    end
    local inner = graph_pieces(swap, at, place)
    pieces[#pieces + 1] = protobuf.head(MODEL.graph, bytes_of(inner))
    table.move(inner, 1, #inner, #pieces + 1, pieces)
  end)
  pieces[#pieces + 1] = protobuf.bytes(MODEL.opset_import, protobuf.bytes(1, M.DOMAIN) .. protobuf.int(2, 1))
  return pieces
end

return M
