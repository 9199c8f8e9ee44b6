-- Operators that ONNX Runtime makes of several, as their parts: attention of an encoder, embeddings, norms of sums and
-- activations with a bias. So whole models are read from optimized files too.
--
--   body(node, shapes) -> { node, input, output } as of gen/onnx/plain_attention.lua; nil for other operators, and for
--                         inputs and outputs that an encoder has not

local plain_attention = require "onnx.plain_attention"

local M = {}

local bodies = {}
local BOOL, INTEGER = 9, 7 -- of a Cast

local function is_given(node, k) return (node.inputs[k] or "") ~= "" end

local function no_outputs(node, first, last)
  for i = first, last or #node.outputs do
    if (node.outputs[i] or "") ~= "" then return false end
  end
  return true
end

-- ---- norms and activations ----

local function sum_of(body, node, names)
  local sum
  for k, name in ipairs(names) do
    if name and is_given(node, k) then sum = sum and body:node("Add", { sum, name }) or name end
  end
  return sum
end

local function norm(body, op, x, gains, bias, eps)
  return body:node(op, { x, gains, bias }, { axis = -1, epsilon = eps or 1e-5 })
end

function bodies.SkipLayerNormalization(body, node)
  local names = { "x", "skip", false, false, "bias" }
  local sum = sum_of(body, node, names)
  local y = norm(body, "LayerNormalization", sum, "gains", is_given(node, 4) and "beta" or nil, node.attributes.epsilon)
  return no_outputs(node, 2, 3) and { "x", "skip", "gains", "beta", "bias" }, { y, "", "", sum }
end

function bodies.SkipSimplifiedLayerNormalization(body, node)
  local sum = sum_of(body, node, { "x", "skip", false, "bias" })
  local y = norm(body, "SimplifiedLayerNormalization", sum, "gains", nil, node.attributes.epsilon)
  return no_outputs(node, 2, 3) and { "x", "skip", "gains", "bias" }, { y, "", "", sum }
end

local function activation(op)
  return function(body, node)
    if not is_given(node, 2) then return nil end
    return { "x", "bias" }, { body:node(op, { body:node("Add", { "x", "bias" }) }, nil, nil, "com.microsoft") }
  end
end

bodies.BiasGelu, bodies.FastGelu = activation "Gelu", activation "FastGelu"

-- ---- embeddings ----

function bodies.EmbedLayerNormalization(body, node, shapes)
  local ids, rows = shapes[node.inputs[1]], nil
  if not ids or #ids ~= 2 or not no_outputs(node, 4) then return nil end
  local function taken(of, index) return body:node("Gather", { of, index }, { axis = 0 }) end
  local sum = taken("words", "ids")
  if is_given(node, 2) then sum = body:node("Add", { sum, taken("types", "of_types") }) end
  rows = is_given(node, 9) and "places" or body:node("Range", { body:number(0), body:number(ids[2]), body:number(1) })
  sum = body:node("Add", { sum, taken("of_places", rows) })
  local y = norm(body, "LayerNormalization", sum, "gains", "beta", node.attributes.epsilon)
  local counts = is_given(node, 8) and body:node("ReduceSum", { "mask", body:ints(1) }, { keepdims = 0 }) or ""
  return { "ids", "of_types", "words", "of_places", "types", "gains", "beta", "mask", "places" },
    { y, counts, is_given(node, 8) and sum or "" }
end

-- ---- attention ----

-- Scores without the keys of padding: of flags [batch][keys], or of counts [batch].
local function padded(body, scores, shape, keys)
  local flags
  if #shape == 2 then
    flags = body:node("Unsqueeze", { body:node("Cast", { "padding" }, { to = BOOL }), body:ints(1, 2) })
  else
    local places = body:node("Range", { body:number(0), body:number(keys), body:number(1) })
    local counts = body:node("Unsqueeze", { body:node("Cast", { "padding" }, { to = INTEGER }), body:ints(1, 2, 3) })
    flags = body:node("Less", { places, counts })
  end
  return body:node("Where", { flags, scores, body:number(-math.huge) })
end

-- Attention of rows that are projected; widths: of those of Q and of V.
local function attended(body, node, shapes, sides, at)
  local t, h = node.attributes, node.attributes.num_heads
  local q, k, v = table.unpack(sides)
  local padding = is_given(node, at.padding) and shapes[node.inputs[at.padding]]
  if not h or q.shape[3] % h ~= 0 or v.shape[3] % h ~= 0 or t.do_rotary and t.do_rotary ~= 0
      or padding and (#padding > 2 or #padding == 1 and padding[1] ~= q.shape[1]) then
    return nil
  end
  local scale = t.scale and t.scale ~= 0 and t.scale or (q.shape[3] // h) ^ -0.5
  local scores = body:scores(body:heads(q.value, q.shape, h, 1), body:heads(k.value, k.shape, h, 1), {}, scale)
  if is_given(node, at.bias) then scores = body:node("Add", { scores, "attention_bias" }) end
  if padding then scores = padded(body, scores, padding, k.shape[2]) end
  if (t.unidirectional or 0) ~= 0 then scores = body:causal(scores, q.shape[2], k.shape[2]) end
  local weights = body:node("Softmax", { scores }, { axis = -1 }, node.name)
  return body:rows(body:node("MatMul", { weights, body:heads(v.value, v.shape, h, 1) }))
end

-- The columns of rows from one on.
local function columns(body, value, axis, first, count)
  return body:node("Slice", { value, body:ints(first), body:ints(first + count), body:ints(axis) })
end

function bodies.Attention(body, node, shapes)
  local x, w = shapes[node.inputs[1]], shapes[node.inputs[2]]
  if not x or not w or #x ~= 3 or is_given(node, 5) or is_given(node, 7) or not no_outputs(node, 2) then return nil end
  local sizes = node.attributes.qkv_hidden_sizes or { w[2] // 3, w[2] // 3, w[2] // 3 }
  local first, sides = 0, {}
  for i, count in ipairs(sizes) do
    local value = body:node("MatMul", { "x", columns(body, "weights", 1, first, count) })
    if is_given(node, 3) then value = body:node("Add", { value, columns(body, "of_bias", 0, first, count) }) end
    sides[i], first = { value = value, shape = { x[1], x[2], count } }, first + count
  end
  local y = attended(body, node, shapes, sides, { padding = 4, bias = 6 })
  return y and { "x", "weights", "of_bias", "padding", "past", "attention_bias" }, { y }
end

function bodies.MultiHeadAttention(body, node, shapes)
  local first, sides = 0, {}
  for i, name in ipairs { "q", "k", "v" } do
    local shape = shapes[node.inputs[i]]
    if not shape or #shape ~= 3 then return nil end
    sides[i] = { value = name, shape = shape }
    if is_given(node, 4) then
      sides[i].value = body:node("Add", { name, columns(body, "of_bias", 0, first, shape[3]) })
      first = first + shape[3]
    end
  end
  if is_given(node, 7) or is_given(node, 8) or not no_outputs(node, 2) then return nil end
  local y = attended(body, node, shapes, sides, { padding = 5, bias = 6 })
  return y and { "q", "k", "v", "of_bias", "padding", "attention_bias" }, { y }
end

-- ---- attention with keys of earlier runs ----

-- Numbers of an operator that stand for what is not there.
local NOTHING = { smooth_softmax = 0, qk_output = 0 }
local OF_GROUPS = { num_heads = true, kv_num_heads = true, scale = true, softcap = true, local_window_size = true,
                    do_rotary = true, rotary_interleaved = true }

local function has_only(attributes)
  for name, value in pairs(attributes) do
    if not OF_GROUPS[name] and NOTHING[name] ~= value then return false end
  end
  return true
end

-- Rope of heads [batch][heads][rows][width], by tables of the rows.
local function turned(body, x, width, tables, interleaved)
  local turns = tables.width
  local function taken(first, count, step)
    return body:node("Slice", { x, body:ints(first), body:ints(first + count), body:ints(3), body:ints(step) })
  end
  local function times(v, by) return body:node("Mul", { v, by }) end
  local step = interleaved and 2 or 1
  local count = interleaved and 2 * turns - 1 or turns
  local a, b = taken(0, count, step), taken(interleaved and 1 or turns, count, step)
  local made = { body:node("Sub", { times(a, tables.cos), times(b, tables.sin) }),
                 body:node("Add", { times(b, tables.cos), times(a, tables.sin) }) }
  if interleaved then
    for i, one in ipairs(made) do made[i] = body:node("Unsqueeze", { one, body:ints(4) }) end
    made = { body:node("Reshape", { body:node("Concat", made, { axis = 4 }), body:ints(0, 0, 0, 2 * turns) }) }
  end
  if width > 2 * turns then made[#made + 1] = taken(2 * turns, width - 2 * turns, 1) end
  return body:node("Concat", made, { axis = 3 })
end

-- The rows of Q, K and V by head, which may be columns of one value; and how wide a head is. Nil where they do not fit.
local function heads_of_groups(body, node, shapes)
  local t, q, k = node.attributes, shapes[node.inputs[1]], shapes[node.inputs[2]]
  local h, h_kv, joint = t.num_heads, t.kv_num_heads, not is_given(node, 2)
  if not h or not h_kv or h % h_kv ~= 0 or not q or #q ~= 3 or not joint and not (k and #k == 3) then return nil end
  local width = joint and q[3] // (h + 2 * h_kv) or q[3] // h
  if q[3] ~= width * (joint and h + 2 * h_kv or h) or not joint and k[3] ~= width * h_kv then return nil end
  local made, first = {}, 0
  for i, count in ipairs { h, h_kv, h_kv } do
    local value = ({ "q", "k", "v" })[i]
    if joint then value = columns(body, "q", 2, first, count * width) end
    made[i], first = body:heads(value, { q[1], q[2], count * width }, count, 1), first + count * width
  end
  return made, width
end

-- Texts have no padding, so that all sequences are as long as the cache says.
function bodies.GroupQueryAttention(body, node, shapes)
  local t, past, cos = node.attributes, shapes[node.inputs[4]], shapes[node.inputs[8] or ""]
  local heads, width = heads_of_groups(body, node, shapes)
  for k = 10, #node.inputs do
    if is_given(node, k) then return nil end
  end
  local turns, window = (t.do_rotary or 0) ~= 0, t.local_window_size or -1
  if not heads or not past or #past ~= 4 or turns and not cos or window == 0 or not has_only(t) then return nil end
  local q, k, v = table.unpack(heads)
  local batch, rows, before = shapes[node.inputs[1]][1], shapes[node.inputs[1]][2], past[3]
  for i = 4, 5 do shapes[node.inputs[i]] = { batch, t.kv_num_heads, before, width } end -- files may leave these open
  if turns then
    local tables = { width = cos[2], cos = columns(body, "cos", 0, before, rows),
                     sin = columns(body, "sin", 0, before, rows) }
    local interleaved = (t.rotary_interleaved or 0) ~= 0
    q, k = turned(body, q, width, tables, interleaved), turned(body, k, width, tables, interleaved)
  end
  k, v = body:node("Concat", { "past_k", k }, { axis = 2 }), body:node("Concat", { "past_v", v }, { axis = 2 })
  local shape, each = { batch, t.kv_num_heads, before + rows, width }, t.num_heads // t.kv_num_heads
  local scale = t.scale and t.scale ~= 0 and t.scale or width ^ -0.5
  local scores = body:scores(q, body:heads(k, shape, t.kv_num_heads, each), t, scale)
  scores = body:causal(scores, rows, before + rows, before, window > 0 and window or nil)
  local weights = body:node("Softmax", { scores }, { axis = -1 }, node.name)
  local y = body:rows(body:node("MatMul", { weights, body:heads(v, shape, t.kv_num_heads, each) }))
  return { "q", "k", "v", "past_k", "past_v", "lengths", "total", "cos", "sin" }, { y, k, v }
end

function M.body(node, shapes)
  local make = node.domain == "com.microsoft" and bodies[node.op]
  if not make then return nil end
  local body = plain_attention.new()
  local input, output = make(body, node, shapes)
  return input and { node = body.nodes, input = input, output = output } or nil
end

return M
