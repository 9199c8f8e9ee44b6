-- What a part of an ONNX graph computes, in double: each operator has a row with its meaning.
--
--   plan(graph, shapes, outputs, leaves) -> plan; nil and why not
--     leaves     { value = true }: where the part begins; inputs of the graph that it reads are leaves too
--     plan       { nodes = in their order, inputs = { name, .. } leaves that are read, products, numbers, work }
--                products: multiplications of its matrix products; numbers: the most that are alive at a time; work:
--                all that are computed; constants: those that were read, for the next run
--   run(plan, arrays, feeds, number, hides) -> { output = { at = array, shape, integer } }; nil and why not
--     arrays     the host's (gen/host/arrays.c)
--     feeds      { name = { at = array, integer } } of the leaves
--     number     of a tensor and i: number i of one that is written as a list
--     hides      whether padding is hidden where an operator adds a number to its scores
--   MOST_NUMBERS   that a plan may have at a time
--
-- Roundings are left out: a Cast between types of floats changes nothing, and a value that is quantized and dequantized
-- keeps its value. Limits of these types are left out, too.

local indices = require "onnx.indices"
local meanings = require "onnx.meanings"
local meanings_of_attention = require "onnx.meanings_of_attention"
local meanings_of_images = require "onnx.meanings_of_images"
local meanings_of_layers = require "onnx.meanings_of_layers"
local meanings_of_sums = require "onnx.meanings_of_sums"
local values_of = require "onnx.values"

local M = {}

local count_of = indices.count
local copied, Run, value = values_of.copied, values_of.Run, values_of.value

local rows = {}
for _, list in ipairs { meanings.rows, meanings_of_sums, meanings_of_attention, meanings_of_images,
                        meanings_of_layers.rows } do
  for name, row in pairs(list) do rows[name] = row end
end

local function row_of(node)
  return rows[node.domain == "" and node.op or ("%s %s"):format(node.domain, node.op)]
end

local none = {}

-- The values that a node is computed of.
local function inputs_of(node)
  return (node.op == "Shape" or node.op == "Size") and none or node.inputs
end

-- The operators that it knows, by their names.
function M.operators()
  local names = {}
  for name in pairs(rows) do names[#names + 1] = name end
  return names
end

M.MOST_NUMBERS = 1 << 28

local WITHIN = 3 -- values as large as its result that a node makes on its way

-- The multiplications of a plan, and the most numbers that it has at a time.
local function add_costs(made)
  local shapes, live = made.shapes, 0
  local function size(name) return shapes[name] and not made.graph.tensors[name] and count_of(shapes[name]) or 0 end
  for _, name in ipairs(made.inputs) do live = live + size(name) end
  for i, node in ipairs(made.nodes) do
    local most = 0
    for _, output in ipairs(node.outputs) do live, most = live + size(output), math.max(most, size(output)) end
    made.work = made.work + most
    made.numbers = math.max(made.numbers, live + WITHIN * most)
    if node.op:find "MatMul" then
      local a = shapes[node.inputs[1]]
      made.products = made.products + most * (a and a[#a] or 1)
    end
    for _, input in ipairs(inputs_of(node)) do
      if made.last[input] == i then live = live - size(input) end
    end
  end
end

function M.plan(graph, shapes, outputs, leaves)
  local made = { graph = graph, shapes = shapes, outputs = outputs, nodes = {}, inputs = {}, last = {}, constants = {},
                 products = 0, numbers = 0, work = 0 }
  local state, waiting = {}, copied(outputs) -- of values: nil, "open" while their inputs wait, "done"
  local why
  while #waiting > 0 and not why do
    local name = waiting[#waiting]
    local node = not leaves[name] and not graph.tensors[name] and graph.makers[name] or nil
    if state[name] == "done" or name == "" then
      table.remove(waiting)
    elseif not node then
      if not graph.tensors[name] then made.inputs[#made.inputs + 1] = name end
      state[name] = "done"
    elseif state[name] == "open" then
      if not state[node] then made.nodes[#made.nodes + 1] = node end
      state[node], state[name] = true, "done"
    else
      if not row_of(node) then
        why = ("%s (%s) is not known to the evaluation"):format(node.name, node.op)
      end
      state[name] = "open"
      for _, input in ipairs(inputs_of(node)) do
        if state[input] == "open" then why = ("%s depends on itself"):format(node.name) end
        if not state[input] then waiting[#waiting + 1] = input end
      end
    end
  end
  if why then return nil, why end
  for i, node in ipairs(made.nodes) do
    for _, input in ipairs(inputs_of(node)) do made.last[input] = i end
  end
  add_costs(made)
  return made
end

function M.run(plan, arrays, feeds, number, hides)
  local run = setmetatable({ arrays = arrays, shapes = plan.shapes, opset = plan.graph.opset, number = number,
                             hides = hides }, Run)
  local values, kept, found = {}, {}, {}
  for _, name in ipairs(plan.outputs) do kept[name] = true end
  for name, feed in pairs(feeds) do values[name] = value(feed.at, plan.shapes[name], feed.integer) end
  local function input(name)
    if name == "" then return nil end
    local tensor = not values[name] and plan.graph.tensors[name]
    if tensor and not plan.constants[name] then plan.constants[name] = run:tensor(tensor) end
    return tensor and plan.constants[name] or values[name]
  end
  for i, node in ipairs(plan.nodes) do
    local inputs = {}
    for k, name in ipairs(inputs_of(node)) do inputs[k] = input(name) end
    local made = table.pack(pcall(row_of(node), run, node, table.unpack(inputs, 1, #node.inputs)))
    if not made[1] then
      if type(made[2]) ~= "string" or made[2]:find("not enough memory", 1, true) then error(made[2], 0) end
      if made[2]:find "^gen/" then made[2] = "is not as its operator must be" end
      return nil, ("%s (%s): %s"):format(node.name, node.op, made[2])
    end
    for k, name in ipairs(node.outputs) do
      if name ~= "" then values[name] = made[k + 1] end
    end
    for _, name in ipairs(node.inputs) do
      if plan.last[name] == i and not kept[name] then values[name] = nil end
    end
  end
  for _, name in ipairs(plan.outputs) do found[name] = input(name) end
  return found
end

return M
