-- Turns a layer of gen/onnx/layers.lua into one of gen/model/layers.lua: keys as words, and weights as parts of
-- tensors.

local blocks = require "onnx.blocks"
local layers = require "model.layers"
local matrices = require "graph.matrices"
local quantized = require "model.quantized"
local wording = require "base.wording"

local M = {}

-- Columns of a matrix as blocks that lie side by side: the first of each, and how many each has.
local function runs(columns)
  local firsts, count = { columns[1] }, nil
  for i = 2, #columns do
    if columns[i] ~= columns[i - 1] + 1 then
      local length = i - 1
      for _, known in ipairs(firsts.at or {}) do length = i - known end
      count = count and (count == length and count or 1) or length
      firsts.at = { i }
      firsts[#firsts + 1] = columns[i]
    end
  end
  local length = #columns - (firsts.at and firsts.at[1] - 1 or 0)
  count = count and (count == length and count or 1) or length
  if count > 1 or #columns == 1 then return firsts, count end
  return columns, 1
end

local function fail(layer, matrix, has, wanted)
  error({ message = ("%s: node %s: %s is [%d, %d], and by the config it must be [%d, %d]"):format(
    layer.graph.path, wording.short(layer.name), matrix, has[1], has[2], wanted[1], wanted[2]) }, 0)
end

-- What numbers of a matrix are multiplied by, as host's memory:scale takes it. part: of the matrix, in the order of the
-- layer; it gets the keys that pack it in the same groups.
function M.scaled(layer, of, part)
  local list, count = {}, part.blocks * part.count
  local function add(by, zeros, inputs, features)
    list[#list + 1] = { by = by, zeros = zeros, columns = layer.in_out and count or of.width,
                        down = layer.in_out and inputs or features, across = layer.in_out and features or inputs }
  end
  if of.scales then add(of.scales, of.zeros, of.by_row and 1 or of.width, of.by_row and count or 1) end
  local function beside(tensor, stride, integers)
    return { tensor = tensor, features = of.features, width = (of.width - 1) // of.block.size + 1, stride = stride,
             in_out = part.in_out, turned = part.turned, blocks = part.blocks, firsts = part.firsts,
             first = part.first, step = part.step, count = part.count, integers = integers }
  end
  if of.block then
    local zeros = of.block.zeros
    local bits, middle = blocks.BITS[part.tensor.type], part.tensor.type:find "^U" and 8 or 0
    add(beside(of.block.scales), type(zeros) == "table" and beside(zeros, zeros.stride, zeros.integers) or zeros,
        of.block.size, 1)
    part.alike = quantized.alike(bits, of.block.size, zeros == middle)
  end
  if of.by then add(of.by, nil, of.width, 1) end
  return list
end

-- The part of a matrix of a layer, with so many rows and columns.
function M.matrix(layer, matrix, of, wanted)
  local count = #of.columns
  if of.width ~= wanted[1] or count ~= wanted[2] then fail(layer, matrix, { of.width, count }, wanted) end
  local firsts, each = runs(of.columns)
  local part = { name = of.tensor.name, tensor = of.tensor, features = of.features, width = of.width,
                 stride = of.stride, in_out = of.in_out, turned = of.in_out ~= layer.in_out, blocks = #firsts,
                 firsts = firsts, count = each, integers = blocks.BITS[of.tensor.type] ~= nil }
  part.scaled = M.scaled(layer, of, part)
  return part
end

local function numbers_part(layer, matrix, numbers, wanted)
  local all = wanted[1] * wanted[2]
  local table_of = matrix:find "^rope" and layer.found.tables
  if #numbers < all or #numbers > all and not table_of then
    local width = table_of and table_of.pairs or #numbers
    fail(layer, matrix, { #numbers // width, width }, wanted)
  end
  return { numbers = table.move(numbers, 1, all, 1, {}), name = matrix, blocks = 1, count = all, first = 0, step = all,
           features = all }
end

-- The parts of the weights of a layer as cfg wants them.
local function features_of(layer, cfg)
  local all, sizes = {}, matrices.sizes(cfg)
  for matrix, of in pairs(layer.found.weights) do
    local size = sizes[matrix]
    if size and size[1] * size[2] > 0 then -- otherwise another key has switched it off
      all[matrix] = of.tensor and M.matrix(layer, matrix, of, size) or numbers_part(layer, matrix, of, size)
    end
  end
  for _, letter in ipairs { "q", "k", "v", "o" } do
    local size = sizes["w" .. letter]
    if size[1] * size[2] > 0 and not all["w" .. letter] then
      error({ message = ("%s: node %s: project: no projection of %s is found"):format(layer.graph.path,
        wording.short(layer.name), letter == "o" and "Y" or letter:upper()) }, 0)
    end
  end
  return all
end

-- The value of the same numbers before Unsqueeze nodes, or nil if there are none.
local function unsqueezed(graph, value)
  local from, maker = nil, graph.makers[value]
  while maker and maker.op == "Unsqueeze" do
    from = maker.inputs[1]
    maker = graph.makers[from]
  end
  return from
end

-- The layer's inputs for JSON, without nodes.
local function inputs_of(graph, found)
  local inputs = {}
  for key, value in pairs(found.inputs) do inputs[key] = value end
  inputs.masks = {}
  for i, mask in ipairs(found.inputs.masks) do
    inputs.masks[i] = { value = mask.value, unsqueezed = unsqueezed(graph, mask.value), kind = mask.kind,
                        hidden = mask.hidden, axes = mask.axes }
  end
  return inputs
end

-- What a layer stands for in its graph, for JSON.
local function values_of(layer)
  local found, nodes = layer.found, {}
  for i, node in ipairs(found.nodes) do nodes[i] = node.name end
  return { layer = layer.name, inputs = inputs_of(layer.graph, found), output = found.output,
           node = found.node.name, nodes = nodes,
           swapped = next(found.swapped) and found.swapped or nil,
           kernel = layer.kernel.cfg.name, notes = found.notes[1] and found.notes or nil,
           mask_file = layer.mask_file }
end

function M.layer(graph, found)
  local own = found.weights
  local first = own.wq or own.wk or own.wv or own.wo or { in_out = true }
  return { name = found.name, graph = graph, found = found, node = found.softmax.within or found.softmax,
           in_out = first.in_out, notes = found.notes, keys = layers.key_list(found.keys), features = features_of,
           values = values_of, divide = found.turns and function() return found.turns end or nil }
end

return M
