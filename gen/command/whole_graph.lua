-- `model --whole` of an ONNX file: its graph as layers and tables, as gen/command/whole.lua has them of other files.

local host = require "host"
local graph_whole = require "onnx.whole"
local layers = require "model.layers"
local parts = require "onnx.parts"
local proposal = require "onnx.proposal"
local whole_inputs = require "command.whole_inputs"
local whole_product = require "command.whole_product"
local whole_scores = require "command.whole_scores"
local whole_tail = require "onnx.whole_tail"
local wording = require "base.wording"

local M = {}

local IMAGE, COLORS = 4, 3 -- axes of images, [batch][channels][height][width]

-- The channels that the first convolution of images reads.
local function channels_of(graph)
  for _, node in ipairs(graph.nodes) do
    local weights = node.op == "Conv" and graph.tensors[node.inputs[2]]
    if weights and #weights.shape == IMAGE then return weights.shape[2] end
  end
  return COLORS
end

-- The inputs of a graph that may be images: none beside ids.
local function images_of(graph)
  for _, name in ipairs(graph.inputs) do
    local kind = (graph.values[name] or {}).type
    if kind == "I64" or kind == "I32" then return {} end
  end
  return graph.inputs
end

-- Gives images whose axes the graph leaves open the size that the user says.
local function set_size(model, text)
  local graph, size, open = model.graph, text and whole_inputs.size(text), nil
  for _, name in ipairs(images_of(graph)) do
    local dims = (graph.values[name] or {}).dims or {}
    if #dims == IMAGE and not (dims[2] and dims[3] and dims[4]) then
      open = name
      for k, extent in pairs { [2] = channels_of(graph), [3] = size and size[1], [4] = size and size[2] } do
        dims[k] = dims[k] or extent
      end
    end
  end
  if open and not size then
    error({ message = ("%s: --whole: the size of image %s is open; --image HEIGHTxWIDTH says it"):format(model.path,
      wording.short(open)) }, 0)
  end
  if size and not open then
    error({ message = ("%s: --image: no image of the graph leaves its size open"):format(model.path) }, 0)
  end
end

-- Refuses what may be attention and is no layer; find: of gen/onnx/layers.lua.
local function refuse_others(model, left, find)
  for _, each in ipairs(left) do
    if not (each.softmax and whole_tail.is_end(find, each.softmax)) then
      error({ message = ("%s: --whole: node %s: %s"):format(model.path, wording.short(each.name), each.why) }, 0)
    end
  end
end

-- Takes the layers of the graph with what is around them. size: of images, as the user says it, or nil.
function M.begin(model, size)
  local layers_of = model.layers
  set_size(model, size)
  model.whole, model.graph.of_parts = { graph = true }, true
  function model.layers(self, given)
    local with, cache = { kv_len = "true" }, model.whole.cache
    for key, value in pairs(given) do with[key] = value end
    if cache then graph_whole.take_rows(model.graph, with, model.whole.places)
    else graph_whole.refuse_past(model.graph) end
    local all, left, find = layers_of(self, with)
    refuse_others(model, left, find)
    model.whole.made = graph_whole.of(find, all, cache)
    for _, layer in ipairs(all) do layer.own = model.whole.own end
    return all, left
  end
end

local function refuse(model, ...)
  error({ message = ("%s: --whole: %s"):format(model.path, string.format(...)) }, 0)
end

local function list_of(numbers) return { numbers = numbers, features = #numbers } end

-- Adds the vectors of the norms behind the embeddings and behind the last layer: ones and zeros where only one of them
-- has some. Returns what model.embeddings has of them.
local function add_norms(model, list, first, last, width)
  local one, other = first or last, last or first
  if not one then return {} end
  if one.eps ~= other.eps or one.kind ~= other.kind then
    refuse(model, "the norms before and behind the layers have two epsilons, or are of two kinds")
  end
  local biased = one.bias ~= nil or other.bias ~= nil
  for _, each in ipairs { { "first_", first }, { "", last } } do
    local function add(name, numbers, x)
      local all = table.move(numbers or {}, 1, numbers and width or 0, 1, {})
      for i = #all + 1, width do all[i] = x end
      list[#list + 1] = { name = each[1] .. name, part = list_of(all) }
    end
    if each[2] then add("gains", each[2].gains, 1.0) end
    if each[2] and biased then add("biases", each[2].bias, 0.0) end
  end
  return { eps = one.eps, norm_kind = one.kind, biased = biased, first = first ~= nil, last = last ~= nil }
end

-- A table of rows, perhaps of integers with one scale.
local function table_part(model, of)
  local part = layers.part(model, of.tensor.name, of.rows, of.width, host.type_size, { integers = of.scale ~= nil,
    across = of.across })
  part.scaled = of.scale and { { by = { of.scale }, zeros = { of.zero }, columns = of.width, down = of.rows,
                                 across = of.width } }
  part.factor = of.term.factor ~= 1 and of.term.factor or nil
  return part
end

-- The product behind the tables, whose rows have a norm of their own.
local function add_projection(list, of, kernels, width, add_product)
  local bias, norm = of.projection.bias, of.norm
  local layer = { in_out = false, name = "embeddings" }
  local weights = { wo = parts.matrix(layer, "wo", of.projection.matrix, { of.words.width, width }) }
  weights.bo = bias and { numbers = bias, features = width } or nil
  local entry = add_product({ rows = kernels[1].cfg.seq, depth = of.words.width, width = width, lengths = true },
    { { name = layer.name, weights = weights } })
  local own = norm and add_norms(nil, list, norm, nil, of.words.width)
  return { width = of.words.width, number = entry.number, norm = own }
end

local function add_ids(model, list, made, width, kernels, add_product)
  local of = made.ids
  for _, name in ipairs { "words", "types" } do
    list[#list + 1] = of[name] and { name = name, part = table_part(model, of[name]) }
  end
  list[#list + 1] = of.places and { name = "places", part = list_of(of.places) } or nil
  local embeddings = add_norms(model, list, not of.projection and of.norm or nil, made.last, width)
  if of.projection then
    embeddings.projected = add_projection(list, of, kernels, width, add_product)
    embeddings.first = of.norm ~= nil
  end
  embeddings.padding, embeddings.has_places, embeddings.vocabulary = of.padding, of.places ~= nil, of.words.rows
  embeddings.types = of.types and of.types.rows or 0
  return embeddings
end

local function add_pixels(model, list, made, width, add_product)
  local of = made.pixels
  local patches, tokens = of.patches, {}
  local channels, height, across = table.unpack(patches.axes)
  local depth = channels * height * across
  for i, numbers in ipairs(of.tokens) do
    tokens[i] = { name = "token" .. i, part = list_of(numbers), token = true }
    list[#list + 1] = tokens[i]
  end
  list[#list + 1] = { name = "places", part = list_of(of.places) }
  local embeddings = add_norms(model, list, of.norm, made.last, width)
  local part = patches.tensor and layers.part(model, patches.tensor.name, width, depth, host.type_size, {
    shape = patches.tensor.shape }) or { numbers = patches.numbers, features = width, width = depth }
  local inputs = {
    input = "pixels", template = "images", first = #tokens, norm = of.norm ~= nil,
    values = { channels = channels, image_height = of.image[1], image_width = of.image[2], patches = patches.rows,
               down = patches.down, across = patches.across, patch_height = height, patch_width = across,
               depth = depth } }
  local entry = add_product({ rows = patches.rows, depth = depth, width = width },
    { { name = "patches", weights = { wo = part } } })
  entry.gathered = patches.rows * depth
  embeddings.types, embeddings.inputs, embeddings.tokens, embeddings.products = 0, inputs, tokens, { entry }
  return embeddings
end

-- The weights of a product of the head: of all its columns, or of so many from a first one on.
local function weights_of(step, first, count)
  local matrix, norm, bias, columns = step.matrix, step.norm, step.bias, {}
  if count then
    for i = 1, count do columns[i] = first + i - 1 end
    matrix = proposal.matrix_of(step.product, columns, step.by and table.move(step.by, 1, count, 1, {}))
    bias = bias and table.move(bias, first + 1, first + count, 1, {})
  end
  return { wo = parts.matrix({ in_out = false, name = "head" }, "wo", matrix, { step.depth, #matrix.columns }),
           bo = bias and list_of(bias), norm1 = norm and norm.gains and list_of(norm.gains),
           norm1_bias = norm and norm.bias and list_of(norm.bias) }
end

-- Adds the kernels of the head, as gen/command/whole_head.lua does it. That of a decoder is one of the last row.
local function add_head(embeddings, head, rows, kernels, given, decodes)
  local of_rows, between, number = head.rows == "all", 0, nil
  for i, step in ipairs(head.steps) do
    local norm = step.norm and { place = "pre", kind = step.norm.kind, eps = step.norm.eps }
    between = i < #head.steps and math.max(between, step.width) or between
    local entry
    if head.rows == "asked" and i == #head.steps then
      entry = whole_scores.add(kernels, given, { count = step.width, width = step.depth, norm = norm,
        weights = function(first, ids) return weights_of(step, first, ids) end })
      embeddings.scores = entry
    else
      entry = whole_product.add(kernels, given, { rows = of_rows and rows or 1, depth = step.depth, width = step.width,
        act = step.act, norm = norm, lengths = of_rows and not embeddings.inputs or nil },
        { { name = "head", weights = weights_of(step) } })
    end
    number = number or entry.number
  end
  if decodes then return end
  embeddings.output_head = { name = head.name, rows = head.rows, said = head.said, number = number, steps = #head.steps,
                             between = between, count = head.steps[#head.steps].width }
end

-- Finds the tables of the embeddings and the vectors of the norms, as gen/command/whole.lua has them.
function M.add(model, kernels, given)
  local made, width, list = model.whole.made, kernels[1].cfg.y_width, {}
  local function add_product(...) return whole_product.add(kernels, given, ...) end
  if made.pixels then model.embeddings = add_pixels(model, list, made, width, add_product)
  else model.embeddings = add_ids(model, list, made, width, kernels, add_product) end
  local head, places = not model.without_head and made.head, model.whole.places
  if head then add_head(model.embeddings, head, kernels[1].cfg.seq, kernels, given, places ~= nil) end
  for key, value in pairs { list = list, width = width, first_place = 0, decodes = places ~= nil, places = places } do
    model.embeddings[key] = value
  end
  model.without = made.left
end

return M
