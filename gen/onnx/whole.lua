-- An encoder of texts or images in an ONNX graph, from ids or pixels to rows: each layer with what is around its
-- attention, what makes the rows of the first one, and the norm behind the last one.
--
--   of(find, all) -> made; raises an error that says what is not known
--     find    of gen/onnx/layers.lua
--     all     layers of gen/onnx/operators.lua, which get further keys and weights
--     made    { ids = of gen/onnx/whole_ids.lua, or pixels = of gen/onnx/whole_pixels.lua, last = norm or nil, rows =
--               the value with the last rows, head = of gen/onnx/whole_head.lua or nil, left = what is left out:
--               other outputs, what is behind the head, and inputs of positions }

local graph_norms = require "onnx.norms"
local indices = require "onnx.indices"
local proposal = require "onnx.proposal"
local rows = require "onnx.rows"
local whole_head = require "onnx.whole_head"
local whole_ids = require "onnx.whole_ids"
local whole_layers = require "onnx.whole_layers"
local whole_outputs = require "onnx.whole_outputs"
local whole_pixels = require "onnx.whole_pixels"
local whole_tail = require "onnx.whole_tail"
local wording = require "base.wording"

local M = {}

local refuse = proposal.refuse

-- What a layer's kernel does not have in a whole model.
local function check_layer(found)
  if found.inputs.past_k then refuse("it has keys of earlier runs") end
  if found.inputs.masks[1] then refuse("mask %s is no padding", wording.short(found.inputs.masks[1].value)) end
  if found.tables then refuse("its angles of rope do not grow by the same from row to row") end
end

local function read_layer(find, layer, before)
  local made = whole_layers.surround(find, layer)
  check_layer(layer.found)
  if before and made.from ~= before then
    refuse("it reads %s, and the layer before makes %s", wording.short(made.from), wording.short(before))
  end
  local notes = {}
  for _, note in ipairs(layer.notes or {}) do
    if not note:find "left out, for kv_len" then notes[#notes + 1] = note end
  end
  layer.notes = notes
  return made
end

-- Calls read(...), and names what it was about if it is refused.
local function named(find, what, read, ...)
  local made, why = indices.attempt(read, ...)
  if why then error({ message = ("%s: --whole: %s: %s"):format(find.graph.path, what, why) }, 0) end
  return made
end

-- The norm behind the last layer, or nil where there is none, or where the graph returns the rows before it alone.
local function last_norm(find, made)
  local norm, several = rows.norm_of(find, made.to)
  if several and not rows.is_output(find, made.to) then refuse("%s has several", wording.short(made.to)) end
  if not norm or rows.is_output(find, made.to) and not rows.is_output(find, norm.out) then return nil end
  local shape = find.elements.shapes[made.to]
  return whole_layers.proved_norm(find, made.to, norm, shape[#shape])
end

local function sorted(names)
  local list = {}
  for name in pairs(names) do list[#list + 1] = name end
  table.sort(list)
  return list
end

-- The head: of the first output that is one, or of several that are its columns, or else of the first output that is
-- made of one alone. tails: { from, behind } of each, as whole_tail finds them.
local function head_of(find, whole, names, tails)
  local head
  for _, name in ipairs(names) do head = head or whole_head.of(find, whole, name, name) end
  head = head or whole_head.of_columns(find, whole, names)
  for i, name in ipairs(names) do
    local from, behind = table.unpack(tails[i])
    head = head or behind[1] and whole_head.of(find, whole, from, name) or nil
  end
  return head
end

-- What is behind the head before an output, in words.
local function told(behind, of, output)
  local nodes = {}
  for i = #behind, 1, -1 do
    nodes[#nodes + 1], of = wording.short(behind[i].node.name), behind[i].words:format(of)
  end
  return ("%s (%s %s before output %s), which stays with the caller"):format(of, nodes[2] and "nodes" or "node",
    table.concat(nodes, " and "), wording.short(output))
end

local function read_outputs(find, whole)
  local names, tails, left = {}, {}, whole.left
  for _, name in ipairs(sorted(find.graph.outputs)) do
    if rows.origin(find, name) ~= whole.rows then
      names[#names + 1], tails[#tails + 1] = name, { whole_tail.before(find, name) }
    end
  end
  whole.head = head_of(find, whole, names, tails)
  for i, name in ipairs(names) do
    local from, behind = table.unpack(tails[i])
    if whole.head and rows.origin(find, from) == whole.head.value then
      left[#left + 1] = behind[1] and told(behind, "args." .. whole.head.name, name)
    elseif not (whole.head and whole.head.outputs and whole.head.outputs[name]) then
      local words = whole.ids and (" (%s)"):format(whole_outputs.told(find, whole, name)) or ""
      left[#left + 1] = "output " .. wording.short(name) .. words
    end
  end
end

function M.of(find, all)
  find.row_norms = graph_norms.of(find.elements, true)
  local first, made
  for _, layer in ipairs(all) do
    made = named(find, "layer " .. layer.name, read_layer, find, layer, made and made.to)
    first = first or made
  end
  local whole, image = { left = {} }, whole_pixels.input(find, first.from)
  whole.last = named(find, "the last norm", last_norm, find, made)
  whole.rows = whole.last and whole.last.out or made.to
  if image then
    whole.pixels = named(find, "embeddings", whole_pixels.embeddings, find, first.from, image)
  else
    local all_found = {}
    for i, layer in ipairs(all) do all_found[i] = layer.found end
    whole.ids = named(find, "embeddings", whole_ids.embeddings, find, first.from, all_found)
    for _, layer in ipairs(all) do
      named(find, "layer " .. layer.name, whole_ids.check_masks, find, layer.found, whole.ids)
      for _, key in ipairs { "kv_len=true", "q_len=true" } do layer.keys[#layer.keys + 1] = key end
    end
  end
  read_outputs(find, whole)
  for _, name in ipairs(find.graph.inputs) do
    if find.elements.given(name, 0) then
      whole.left[#whole.left + 1] = ("input %s (row i has position i)"):format(wording.short(name))
    end
  end
  table.sort(whole.left)
  return whole
end

return M
