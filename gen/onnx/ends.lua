-- The values that our node reads and writes in the place of a layer of an ONNX graph, and their axes.
--
--   of(layer) -> ends, or nil and why there is no such node
--     layer   of onnx/operators.lua or onnx/layers.lua
--     ends    { args = { q, k, v, mask, kv_len, y }: names of values,
--               axes = { q, k, v, mask, y }: a letter for each axis, mask_hidden,
--               sum: the values whose sum is the mask, where there are several }
--
-- Letters: b batch, also several of them; s rows; h heads; d a head's width; w the width of all heads; g batch and
-- heads in one; f batch and rows in one; 1 none. Of a mask b, h, q, k, g and 1.

local indices = require "onnx.indices"
local kinds = require "options.kinds"
local wording = require "base.wording"

local M = {}

-- ---- axes ----

-- The letters of axes before `last`, which have `count` batch entries or heads; one: the letter of all in one axis.
local function leads(shape, last, count, one)
  if indices.count(shape, 1, last) ~= count then return nil end
  if last == 1 and one then return one end
  return ("b"):rep(last)
end

-- The letters of rows [batch][rows][heads][width].
local function flat_axes(shape, extents, rows, heads, width)
  local all, first, behind = heads * width, #shape, nil
  while first > 1 and indices.count(shape, first, #shape) < all do first = first - 1 end
  if first == 0 or indices.count(shape, first, #shape) ~= all then return nil end
  local count = #shape - first + 1
  if count == 1 then behind = "w" elseif count == 2 and shape[first] == heads then behind = "hd" else return nil end
  if first == 2 and extents.b > 1 and shape[1] == extents.b * rows then return "f" .. behind end
  local at = first - 1
  while at > 1 and shape[at] == 1 and rows ~= 1 do
    at, behind = at - 1, "1" .. behind
  end
  if at < 1 or shape[at] ~= rows then return nil end
  local before = leads(shape, at - 1, extents.b)
  return before and before .. "s" .. behind
end

-- Those of [batch][heads][rows][width].
local function head_axes(shape, extents, rows, heads, width)
  local n = #shape
  if n < 3 or shape[n] ~= width or shape[n - 1] ~= rows then return nil end
  local before = shape[n - 2] == heads and leads(shape, n - 3, extents.b)
  if before then return before .. "hsd" end
  return n == 3 and shape[1] == extents.b * heads and "gsd" or nil
end

-- Those of scores, from the shape of all of them; "x" for an axis that is a part of the heads.
local function score_axes(shape, extents)
  local n = #shape
  if n < 2 or shape[n] ~= extents.k or shape[n - 1] ~= extents.q then return nil end
  local first, letters = n - 1, "qk"
  if first > 1 and shape[first - 1] == extents.h then
    first, letters = first - 1, "hqk"
  elseif first == 2 and shape[1] == extents.b * extents.h then
    return "gqk"
  else
    while first > 1 and indices.count(shape, first, n - 2) < extents.h do first, letters = first - 1, "x" .. letters end
  end
  if indices.count(shape, first, n - 2) ~= extents.h then return nil end
  local before = leads(shape, first - 1, extents.b)
  return before and before .. letters
end

-- ---- a layer that is written out ----

local same = { Reshape = true, Flatten = true, Squeeze = true, Unsqueeze = true, Identity = true }
local HOPS = 8

-- A value whose axes tell its batch and its rows: itself, or one that it is a Reshape of.
local function told(found, graph, value, axes_of)
  for _ = 1, HOPS do
    local shape = found.shapes[value]
    local axes = shape and axes_of(shape)
    if axes and not axes:find "f" and not graph.inner[value] then return value, axes end
    local node = graph.makers[value]
    if not node or node.domain ~= "" or not same[node.op] then return nil end
    value = node.inputs[1]
  end
end

-- Y, or what Reshape makes of it, where that has an axis for the batch: its shape may come from what is replaced.
local function output_of(found, graph, axes_of)
  local value, axes = found.output, axes_of(found.shapes[found.output] or {})
  local users = axes and axes:find "f" and not graph.outputs[value] and graph.users[value] or {}
  local node = #users == 1 and users[1]
  if node and node.domain == "" and same[node.op] and node.inputs[1] == value then
    local behind = axes_of(found.shapes[node.outputs[1]] or {})
    if behind and not behind:find "f" then return node.outputs[1], behind end
  end
  return value, axes
end

-- The sizes of an argument: rows, heads, width of a head; and whether heads lie before rows.
local function sides_of(cfg, extents)
  local function side(letter, rows, heads, width, all)
    local projected = kinds.letters_of(cfg.project):find(letter)
    if projected then heads, width = 1, all end
    return { rows = rows, heads = heads, width = width, by_head = not projected and cfg.layout == "bhsd" }
  end
  return {
    q = side("q", extents.q, cfg.h, cfg.dk, cfg.d_model), k = side("k", extents.k, cfg.h_kv, cfg.dk, cfg.k_width),
    v = side("v", extents.k, cfg.h_kv, cfg.dv, cfg.v_width), y = side("o", extents.q, cfg.h, cfg.dv, cfg.y_width),
  }
end

local function reader(extents, side)
  return function(shape)
    return (side.by_head and head_axes or flat_axes)(shape, extents, side.rows, side.heads, side.width)
  end
end

-- The letters of the axes of one mask, which are the last ones of the scores; and those of the scores.
local function mask_axes(found, mask)
  local shape, scores = found.shapes[mask.value], found.shapes[mask.node.outputs[1]]
  local letters = scores and score_axes(scores, found.extents)
  if not shape or not letters or #shape > #letters then return nil end
  local own = letters:sub(-#shape)
  for i, size in ipairs(shape) do
    if size ~= 1 and own:sub(i, i) == "x" then return nil end
  end
  own = #shape > 0 and own:gsub("x", "1") or ""
  return select(2, own:gsub("b", "")) < 2 and own or nil, letters
end

-- Gives the ends the mask. Several that are added become one before the node.
local function add_mask(found, ends)
  local masks, longest, sum, first = found.inputs.masks, "", {}, nil
  for i, mask in ipairs(masks) do
    local axes, letters = mask_axes(found, mask)
    first = first or letters
    if not axes then return ("the axes of mask %s are not those of scores"):format(wording.short(mask.value)) end
    if #masks > 1 and mask.kind ~= "add" then return ("it has %d masks, and not all are added"):format(#masks) end
    if letters ~= first then return ("it has %d masks, for scores of different axes"):format(#masks) end
    if #axes > #longest then longest = axes end
    sum[i] = mask.value
  end
  if #masks == 0 then return nil end
  ends.args.mask, ends.axes.mask, ends.mask_hidden = sum[1], longest, masks[1].hidden or false
  if #masks > 1 then ends.args.mask, ends.sum = "mhagen: " .. table.concat(sum, " + "), sum end
end

-- Whether y has one axis for the batch, or the same axes as q.
local function same_batch(found, ends)
  local axes, q = ends.axes.y:match "^b*", ends.axes.q:match "^b*"
  if #axes < 2 then return true end
  for i = 1, #axes do
    if found.shapes[ends.args.y][i] ~= found.shapes[ends.args.q][i] then return false end
  end
  return #axes == #q
end

local function of_written(layer)
  local found, graph, extents = layer.found, layer.graph, layer.found.extents
  local inputs, ends = found.inputs, { args = {}, axes = {} }
  if inputs.past_k then return nil, "it has keys of earlier runs" end
  local sides = sides_of(layer.cfg, extents)
  local function untold(letter, value)
    return nil, ("the axes of %s, %s, do not tell batch and rows apart"):format(letter, wording.short(value))
  end
  for _, letter in ipairs { "q", "k", "v" } do
    local input = inputs[letter]
    if input then
      ends.args[letter], ends.axes[letter] = told(found, graph, input, reader(extents, sides[letter]))
      if not ends.args[letter] then return untold(letter, input) end
    end
  end
  ends.args.y, ends.axes.y = output_of(found, graph, reader(extents, sides.y))
  if not ends.axes.y or not same_batch(found, ends) then return untold("y", found.output) end
  local why = add_mask(found, ends)
  for _, values in ipairs { ends.args, ends.sum or {} } do
    for _, value in pairs(values) do
      why = why or graph.inner[value] and ("%s is within a node"):format(wording.short(value))
    end
  end
  return not why and ends or nil, why
end

-- ---- an operator ----

local function of_operator(layer)
  for letter, made in pairs(layer.projections) do
    if made.flat then return nil, ("the rows of %s have no axis of their own"):format(letter) end
  end
  local cfg, axes = layer.cfg, { mask = layer.mask_axes }
  for letter, of in pairs { q = "q", k = "k", v = "v", y = "o" } do
    axes[letter] = cfg.layout == "bhsd" and not kinds.letters_of(cfg.project):find(of) and "bhsd" or "bsw"
  end
  return { args = layer.args, axes = axes, mask_hidden = false }
end

function M.of(layer)
  if layer.found then return of_written(layer) end
  return of_operator(layer)
end

return M
