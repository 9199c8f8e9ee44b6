-- Attention of ai.onnx, expanded to its products, so that what lies between it and its projections is read as in other
-- graphs.
--
--   new() -> nodes of such a body, none yet
--   is_flags(graph, value) -> whether a mask is of bool; nil where that is not known
--   body(graph, node, shapes) -> { node, input, output } for gen/onnx/file.lua; nil for a node with a cache, with
--                                other outputs, or with a mask of which the file does not say what it is

local M = {}

local INPUTS = { "Q", "K", "V", "mask" }
local KNOWN = { is_causal = "integer", kv_num_heads = "integer", q_num_heads = "integer", scale = "float",
                softcap = "float", qk_matmul_output_mode = "integer", softmax_precision = "integer" }
local BOOL = 9 -- of a Cast
local FLAGS = { And = true, Or = true, Xor = true, Not = true, Equal = true, Less = true, LessOrEqual = true,
                Greater = true, GreaterOrEqual = true, IsNaN = true, IsInf = true }
local MOVES = { Expand = true, Unsqueeze = true, Squeeze = true, Reshape = true, Slice = true, Identity = true,
                Transpose = true, Gather = true, Concat = true }
local NUMBERS = { Add = true, Sub = true, Mul = true, Div = true, Neg = true, Max = true, Min = true, Clip = true,
                  Relu = true, Softmax = true, MatMul = true }
local HOPS = 16

function M.is_flags(graph, value)
  for _ = 1, HOPS do
    local tensor, of, maker = graph.tensors[value], graph.values[value], graph.makers[value]
    local kind = tensor and tensor.type or of and of.type
    if kind then return kind:find "^bool" ~= nil end
    if not maker then return nil end
    if FLAGS[maker.op] then return true end
    if NUMBERS[maker.op] then return false end
    if maker.op == "Cast" then return maker.attributes.to == BOOL end
    if not MOVES[maker.op] and maker.op ~= "Where" then return nil end
    value = maker.inputs[maker.op == "Where" and 2 or 1]
  end
end

local Body = {}
Body.__index = Body

-- A node; returns its output, which has the number of the node as its name.
function Body:node(op, inputs, attributes, name, domain)
  local list = {}
  for key, value in pairs(attributes or {}) do
    local kind = type(value) == "table" and 7 or math.type(value) == "integer" and 2 or 1
    list[#list + 1] = { name = key, type = kind, ints = value, i = value, f = value, graphs = {} }
  end
  local nodes = self.nodes
  local output = tostring(#nodes + 1)
  nodes[#nodes + 1] = { op_type = op, name = name, domain = domain, input = inputs, output = { output },
                        attribute = list }
  return output
end

function Body:ints(...) return self:node("Constant", {}, { value_ints = { ... } }) end

function Body:number(x) return self:node("Constant", {}, { [math.type(x) == "integer" and "value_int" or
  "value_float"] = x }) end

-- Rows with their heads side by side as [batch][heads][rows][width]; `each` heads of those share one.
function Body:heads(value, shape, heads, each)
  local batch, rows, width = shape[1], shape[#shape - 1], shape[#shape]
  if #shape == 3 then
    width = width // heads
    value = self:node("Transpose", { self:node("Reshape", { value, self:ints(batch, rows, heads, width) }) },
                      { perm = { 0, 2, 1, 3 } })
  end
  if each == 1 then return value end
  value = self:node("Unsqueeze", { value, self:ints(2) })
  value = self:node("Expand", { value, self:ints(batch, heads, each, rows, width) })
  return self:node("Reshape", { value, self:ints(batch, heads * each, rows, width) })
end

-- Heads [batch][heads][rows][width] as rows with their heads side by side.
function Body:rows(heads)
  return self:node("Reshape", { self:node("Transpose", { heads }, { perm = { 0, 2, 1, 3 } }), self:ints(0, 0, -1) })
end

-- Scores whose keys are not behind the row, and no more than `window` of them with its own. past: rows before these.
function Body:causal(scores, rows, columns, past, window)
  local function places(count, axis, first)
    local all = self:node("Range", { self:number(first), self:number(first + count), self:number(1) })
    return self:node("Unsqueeze", { all, self:ints(axis) })
  end
  local own = places(rows, 1, past or 0)
  local seen = self:node("LessOrEqual", { places(columns, 0, 0), own })
  if window then seen = self:node("And", { seen, self:node("Greater", { places(columns, 0, window), own }) }) end
  return self:node("Where", { seen, scores, self:number(-math.huge) })
end

function Body:scores(q, k, t, scale)
  local scores = self:node("MatMul", { q, self:node("Transpose", { k }, { perm = { 0, 1, 3, 2 } }) })
  scores = self:node("Mul", { scores, self:number(scale) })
  if t.softcap and t.softcap ~= 0 then
    local cap = self:number(t.softcap + 0.0)
    scores = self:node("Mul", { self:node("Tanh", { self:node("Div", { scores, cap }) }), cap })
  end
  return scores
end

-- The heads of Q and how many of them share one of K and V, by the axes of these; nil where they do not fit.
local function heads_of(node, q, k, v)
  local t = node.attributes
  if #q ~= #k or #q ~= #v then return nil end
  local h, h_kv = t.q_num_heads or #q == 4 and q[2], t.kv_num_heads or #k == 4 and k[2]
  if not h or not h_kv or h < 1 or h_kv < 1 or h % h_kv ~= 0 or #q == 3 and q[3] % h ~= 0 then return nil end
  return h, h // h_kv
end

function M.new() return setmetatable({ nodes = {} }, Body) end

function M.body(graph, node, shapes)
  local t, q, k, v = node.attributes, shapes[node.inputs[1]], shapes[node.inputs[2]], shapes[node.inputs[3]]
  for key, value in pairs(t) do
    if not KNOWN[key] or math.type(value) ~= KNOWN[key] then return nil end
  end
  for i = 5, #node.inputs do if node.inputs[i] ~= "" then return nil end end
  for i = 2, #node.outputs do if node.outputs[i] ~= "" then return nil end end
  local h, each
  if q and k and v then h, each = heads_of(node, q, k, v) end
  local mask, flags = (node.inputs[4] or "") ~= "", nil
  if mask then flags = M.is_flags(graph, node.inputs[4]) end
  if not h or mask and flags == nil then return nil end
  local body = M.new()
  local kt, values = body:heads("K", k, h // each, each), body:heads("V", v, h // each, each)
  local width = #q == 4 and q[4] or q[3] // h
  local scores = body:scores(body:heads("Q", q, h, 1), kt, t, t.scale and t.scale + 0.0 or width ^ -0.5)
  if mask and flags then scores = body:node("Where", { "mask", scores, body:number(-math.huge) })
  elseif mask then scores = body:node("Add", { scores, "mask" }) end
  if (t.is_causal or 0) ~= 0 then scores = body:causal(scores, q[#q - 1], k[#k - 1]) end
  local y = body:node("MatMul", { body:node("Softmax", { scores }, { axis = -1 }, node.name), values })
  if #q == 3 then y = body:rows(y) end
  return { node = body.nodes, input = INPUTS, output = { y } }
end

return M
