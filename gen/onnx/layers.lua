-- The layers of attention in an ONNX graph that consist of simple operators: each Softmax between two products.
--
--   of(graph, given) -> layers, left, find
--     graph     of gen/onnx/file.lua
--     given     { key = text } of the command line
--     left      the Softmax nodes that are no layers, and bodies that have some: { name =, why =, node = of the file
--               that a Softmax is within, or nil, softmax = its node or nil }, in their order
--     find      { graph: with bodies in the place of their nodes; elements, with the axes of all values; few(),
--               shorter(), longer(), single(), first(), begin() and least() -> the same with other rows, where the
--               graph leaves them open }
--   longer(graph, given) -> shapes in runs of other lengths
--   branches(graph, given, opened) -> whether runs of other lengths take the branches of `opened` too
--
-- A layer. Another node may replace it in the graph:
--
--   name        of its Softmax
--   inputs      { q =, k =, v = values; masks = { { value, kind, hidden, axes, node }, .. }; past_k, past_v }
--               k and v are nil in self-attention. Several masks are added up, each by its node; `hidden`: a bool
--               says what is not seen.
--   output      the value that is Y
--   node        the node of the file that makes it
--   nodes       those of the file that only this layer needs, in their order, including `node`
--   keys        { key = value } of its config
--   weights     { wq = { tensor, in_out, width, features, columns }, .., bq = numbers, .., q_norm = numbers, .. }
--     columns         features of the matrix from 0, in the order of the kernel's columns
--     scales, zeros   of integers: a number for each column, or with by_row for each row
--     block, stride   of integers with scales of groups, see gen/onnx/blocks.lua
--     by              a factor for each column, or nil
--   notes       sentences for the summary: what our node does not do, and why
--   swapped     { q, k, v, y = true } of values whose rows lie as [rows][batch]: the kernel is for one sequence
--   turns       of the pairs of rope: the fraction of a turn from one position to the next, or nil
--   softmax     its Softmax node
--   shapes      { value = axes } of all values, with numbers for what is open
--   extents     { b, h, q, k } of its scores in these
--   hiding      its masks, of which some are left out for kv_len; or nil
--   conditions  values that say which attention weights are set to zero, perhaps by the size of scores; or nil
--   multiplied  the values that are Q K^T, and weights by V
--   beside      what it makes beside its result, of gen/onnx/beside.lua
--   roundings   what the graph rounds within it, of gen/onnx/roundings.lua
--   mask_file   function of its config -> what gen/onnx/constant_mask.lua writes of its masks, or nil

local bodies = require "onnx.bodies"
local constant_mask = require "onnx.constant_mask"
local constants = require "onnx.constants"
local graph_elements = require "onnx.elements"
local graph_indices = require "onnx.indices"
local graph_norms = require "onnx.norms"
local graph_open = require "onnx.open"
local graph_proof = require "onnx.proof"
local graph_shapes = require "onnx.shapes"
local layers = require "model.layers"
local lengths = require "onnx.lengths"
local proposal = require "onnx.proposal"
local roundings = require "onnx.roundings"
local unseen = require "onnx.unseen"
local wording = require "base.wording"

local M = {}

-- The type of the weights of a layer, in which its scale was rounded too.
local function type_of(layer)
  local own = layer.weights
  local matrix = own.wq or own.wk or own.wv or own.wo
  return matrix and matrix.tensor.type
end

-- Lengths of the caller stand for masks that depend on inputs, as those of padding do. Others stay.
local function leave_masks(find, layer)
  local fixed = unseen.fixed(find, layer)
  for _, mask in ipairs(layer.inputs.masks) do
    if not fixed[mask] then
      local note = "mask %s is left out, for kv_len hides keys; a bias in it is left out too"
      layer.notes[#layer.notes + 1] = note:format(wording.short(mask.value))
    end
  end
  layer.hiding = layer.inputs.masks
  layer.inputs.masks = table.move(fixed, 1, #fixed, 1, {})
  layer.mask_keys = proposal.mask_keys(layer.inputs.masks)
end

-- Keys as a config has them: numbers are those of float32.
local function complete(find, layer, given)
  layer.keys.scale = layers.scale(layer.scale, layer.keys.dk, type_of(layer))
  if not given.mask then
    if given.kv_len == "true" then leave_masks(find, layer) end
    for key, value in pairs(layer.mask_keys) do layer.keys[key] = value end
  end
  for key, value in pairs(layer.keys) do
    if math.type(value) == "float" then layer.keys[key] = constants.short(value) end
  end
  local inputs
  layer.roundings, inputs = roundings.of(find, layer)
  layer.notes[#layer.notes + 1] = roundings.note(layer.roundings)
  for _, name in ipairs(inputs) do
    if find.elements.given(name, 0) then
      layer.notes[#layer.notes + 1] = ("%s is not read: row i has place i"):format(wording.short(name))
    end
  end
  function layer.mask_file(cfg) return constant_mask.of(find, layer, cfg) end
  return layer
end

-- Refuses a layer whose result is drawn, as in training.
local function check_inference(find, layer)
  for _, node in ipairs(find.graph.users[layer.output] or {}) do
    if node.op == "Dropout" and (find.elements:scalar(node.inputs[3] or "") or 0) ~= 0 then
      proposal.refuse("%s behind it draws numbers; export the graph for inference", node.name)
    end
  end
end

-- Why a layer is another one with other rows, or does not compute there what its config says; or nil.
local function fails_with(find, layer, left)
  local node = find.graph.makers[layer.softmax.outputs[1]]
  local other, why = graph_indices.attempt(proposal.propose, find, node, layer.given, left, "")
  find.elements:forget()
  return why or lengths.differs(layer, other) or (graph_proof.prove(find, other, true))
end

-- Why a proposal does not compute what its config says, or nil. One that is too large is tried with fewer rows, and one
-- that has rows of earlier runs also without them.
local function fails(find, layer, left)
  local why, large = graph_proof.prove(find, layer)
  if large then why = fails_with(find.few(), layer, left) end
  return why or find.begin and layer.inputs.past_k and fails_with(find.begin(), layer, left) or nil
end

-- What is taken as it is where the whole does not compute what the config says.
local PROPOSALS = { "", "m", "o", "q", "k", "qk", "v", "qkv", "qkvo", "qkvom" }

local function read(find, softmax, given)
  local first
  for _, left in ipairs(PROPOSALS) do
    local layer
    if left == "" then layer = proposal.propose(find, softmax, given, left)
    else layer = graph_indices.attempt(proposal.propose, find, softmax, given, left, first or "") end
    local why = layer and (fails(find, layer, left) or find.longer and lengths.changes(find, layer, left))
    if layer and not why then
      check_inference(find, layer)
      return complete(find, layer, given)
    end
    first = first or why
  end
  proposal.refuse("%s", first)
end

-- Sequences of runs, and whether these have as many keys as rows, in the order in which they are tried.
local tries = {
  longer = { { graph_open.BATCH + 1, true }, { graph_open.BATCH + 1 }, { graph_open.BATCH, true }, { graph_open.BATCH },
             { 1, true }, { 1 } },
  few = {}, least = {}, single = { { 1 } }, other = {},
}
for batch = graph_open.BATCH, 1, -1 do
  for _, how in ipairs { "few", "least" } do
    table.insert(tries[how], { batch, true })
    table.insert(tries[how], { batch })
  end
  table.insert(tries.other, { batch })
end

-- The axes of all values, and their elements. An open batch is of several sequences where the graph is for these.
local function shapes_of(graph, given, how)
  local best, least
  for _, try in ipairs(tries[how] or tries.other) do
    local shapes, opened = {}, bodies.opened(graph)
    local elements, doubts = graph_elements.new(opened, shapes), nil
    elements.unknown, doubts = graph_shapes.of(opened, shapes, elements, graph_open.new(given, how, try[1], try[2]))
    elements.given = graph_open.places(opened, shapes)
    if not best or doubts < least then best, least = elements, doubts end
    if doubts == 0 then break end
  end
  return best.shapes, best
end

function M.longer(graph, given) return (shapes_of(graph, given, "longer")) end

function M.branches(graph, given, opened)
  for _, how in ipairs { "longer", "single" } do
    local _, elements = shapes_of(graph, given, how)
    for branch in pairs(opened.taken) do
      if not elements.graph.taken[branch] then return false end
    end
  end
  return true
end

local OTHERS = { "few", "shorter", "longer", "single", "first", "begin", "least" }

local finder
function finder(graph, given, how)
  local _, elements = shapes_of(graph, given, how)
  local find = { graph = elements.graph, elements = elements, norms = graph_norms.of(elements), masks = {} }
  for value in pairs(find.norms) do elements.leaves[value] = true end
  local made = {}
  for _, other in ipairs(how and { "few" } or OTHERS) do
    find[other] = function()
      made[other] = made[other] or finder(graph, given, other)
      return made[other]
    end
  end
  return find
end

function M.of(graph, given)
  local find = finder(graph, given)
  local elements = find.elements
  graph = find.graph
  elements:forget()
  local found, left = {}, {}
  for _, node in ipairs(graph.nodes) do
    if node.op == "Softmax" and node.domain == "" then
      local layer, why = graph_indices.attempt(read, find, node, given)
      found[#found + 1] = layer
      if not layer then left[#left + 1] = { name = node.name, why = why, node = node.within, softmax = node } end
      elements:forget()
    end
  end
  return found, table.move(bodies.left(graph), 1, #graph.nodes, #left + 1, left), find
end

return M
