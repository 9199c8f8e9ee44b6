-- A model of texts or images in an ONNX graph, from ids or pixels to rows: each layer with what is around its
-- attention, what makes the rows of the first one, and the norm behind the last one.
--
--   take_rows(graph, given, places)   gives a decoder's keys the rows with which it is read: of the longest text, so
--                                     that windows show, perhaps behind rows of earlier runs
--   refuse_past(graph)                refuses a decoder's graph where no places are given
--   of(find, all, cache) -> made; raises an error that says what is not known
--     find    of gen/onnx/layers.lua
--     all     layers of gen/onnx/operators.lua, which get further keys and weights
--     cache   of a decoder, whose rows do not depend on later ones: keys of the layers that say so; else nil
--     made    { ids = of gen/onnx/whole_ids.lua, or pixels = of gen/onnx/whole_pixels.lua, last = norm or nil, rows =
--               the value with the last rows, head = of gen/onnx/whole_head.lua or nil, left = what is left out:
--               other outputs, what is behind the head, and inputs of positions }

local graph_norms = require "onnx.norms"
local graph_open = require "onnx.open"
local indices = require "onnx.indices"
local layers = require "model.layers"
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
local function check_layer(found, cache)
  if found.inputs.past_k and not cache then refuse("it has keys of earlier runs") end
  if found.inputs.masks[1] then refuse("mask %s is no padding", wording.short(found.inputs.masks[1].value)) end
  if found.tables then refuse("its angles of rope do not grow by the same from row to row") end
end

local function check_causal(found)
  if not found.keys.causal then refuse("its rows depend on later ones, so the model is no decoder") end
end

local function read_layer(find, layer, before, cache)
  local made = whole_layers.surround(find, layer)
  check_layer(layer.found, cache)
  if before and made.from ~= before then
    refuse("it reads %s, and the layer before makes %s", wording.short(made.from), wording.short(before))
  end
  local notes = {}
  for _, note in ipairs(layer.notes or {}) do
    if not note:find "left out, for kv_len" and not note:find "row i has place i" then notes[#notes + 1] = note end
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

-- The head: of the first output that is one, perhaps times a constant, or of several that are its columns, or else of
-- the first output that is made of one alone.
local function head_of(find, whole, names)
  local before = {}
  for _, name in ipairs(names) do before[name] = whole_tail.before(find, whole, name) end
  local function first(is_one)
    for _, name in ipairs(names) do
      local head = is_one(name) and whole_head.of(find, whole, before[name], name)
      if head and whole_tail.told(find, whole, head, name) then return head end
    end
  end
  return first(function(name) return not whole_tail.behind(find, whole, name)[1] end)
    or first(function(name) return before[name] == name end)
    or whole_head.of_columns(find, whole, names)
    or first(function() return true end)
end

-- of_cache: values that a cache has for the next run.
local function read_outputs(find, whole, of_cache)
  local names, left = {}, whole.left
  for _, name in ipairs(sorted(find.graph.outputs)) do
    if rows.origin(find, name) ~= whole.rows and not of_cache[name] then names[#names + 1] = name end
  end
  whole.head = head_of(find, whole, names)
  for _, name in ipairs(names) do
    local words = whole.head and whole_tail.told(find, whole, whole.head, name)
    if not words then
      words = whole.ids and (" (%s)"):format(whole_outputs.told(find, whole, name)) or ""
      words = "output " .. wording.short(name) .. words
    end
    left[#left + 1] = words ~= "" and words or nil
  end
end

-- An input with rows of earlier runs, or nil.
local function past_of(graph)
  for _, name in ipairs(graph.inputs) do
    if graph_open.is_past(graph, name) then return name end
  end
end

function M.refuse_past(graph)
  local name = past_of(graph)
  if not name then return end
  error({ message = ("%s: --whole: input %s has keys or values of earlier runs, so this is a decoder; give seq_kv, " ..
    "the most ids of a text with its answer, such as seq_kv=2048"):format(graph.path, wording.short(name)) }, 0)
end

function M.take_rows(graph, given, places)
  given.q_len, given.cache_dtype = "true", nil
  given.seq, given.seq_kv = tostring(places), nil
  if not past_of(graph) then return end
  given.cache, given.seq, given.seq_kv = "append", tostring(places - graph_open.PAST), tostring(places)
end

-- Refuses a layer that sees the rows of a run alone, beside others that see those of earlier ones; and a cache that
-- gives the next run fewer rows than it has.
local function check_past(find, all)
  local with, without
  for _, layer in ipairs(all) do
    if layer.found.inputs.past_k then with = with or layer.name else without = without or layer.name end
    for _, each in ipairs(layer.found.beside) do
      local shape = find.elements.shapes[each.value]
      if shape[#shape - 1] ~= layer.found.extents.k then refuse("%s has some rows alone", wording.short(each.value)) end
    end
  end
  if with and without then refuse("%s has keys of earlier runs, and %s has none", with, without) end
end

local LENGTHS = { kv_len = true, q_len = true }

-- What a decoder's program has not.
local function check_decoder(find, whole)
  local ids = whole.ids or refuse("a decoder reads ids")
  if ids.types then refuse("%s has types, which a decoder has not", wording.short(find.graph.path)) end
  if ids.padding then refuse("id %d has another meaning than others, as that of padding", ids.padding) end
  if ids.projection then refuse("a product behind the tables is made of encoders alone") end
  if ids.norm then refuse("a norm behind the tables is made of encoders alone") end
  if not whole.last then refuse("no norm is behind the last layer") end
end

function M.of(find, all, cache)
  find.row_norms = graph_norms.of(find.elements, true)
  local of_cache, first, made = {}, nil, nil
  for _, layer in ipairs(all) do
    for _, each in ipairs(layer.found and layer.found.beside or {}) do of_cache[each.value] = true end
    made = named(find, "layer " .. layer.name, read_layer, find, layer, made and made.to, cache)
    first = first or made
  end
  if cache then named(find, "layers", check_past, find, all) end
  local whole, image = { left = {}, decodes = cache ~= nil }, whole_pixels.input(find, first.from)
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
      if cache then
        named(find, "layer " .. layer.name, check_causal, layer.found)
        named(find, "layer " .. layer.name, whole_ids.check_lengths, find, layer.found, whole.ids)
      end
      for _, word in ipairs(layers.key_list(cache or LENGTHS)) do layer.keys[#layer.keys + 1] = word end
    end
  end
  if cache then named(find, "seq_kv", check_decoder, find, whole) end
  read_outputs(find, whole, of_cache)
  for _, name in ipairs(find.graph.inputs) do
    if find.elements.given(name, 0) then
      local position = cache and "args.past + i" or "i"
      whole.left[#whole.left + 1] = ("input %s (row i has position %s)"):format(wording.short(name), position)
    end
  end
  table.sort(whole.left)
  return whole
end

return M
