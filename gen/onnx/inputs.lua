-- What a layer of attention in an ONNX graph reads: values with the layout of a kernel's inputs.
--
--   read(work, projects_o) -> layout, scale
--     work          { find, layer, scores, operands, heads, leads, weights, fail } of gen/onnx/layers.lua
--     projects_o    whether the context is projected; otherwise the layer gets its output here
--     scale         a factor of the scores: of operators between inputs that are not projected and their product
--     gives the layer its inputs q, k and v, `swapped`, and the key h_kv

local edges = require "onnx.indices".edges
local graph_output = require "onnx.output"

local M = {}

local HOPS = 24 -- of nodes behind an input

-- Indices of some elements in a value, each beside the place that it must have: { at =, .. }. Moved back, value by
-- value; visit(value, list, factor) gets each, and ends the walk by true. Elements are those times the factor.
local function walk_back(elements, value, list, visit)
  local factor = 1
  for _ = 1, HOPS do
    if visit(value, list, factor) then return end
    local source, node = elements:source(value), elements.graph.makers[value]
    local by = not source and node and (node.op == "Mul" or node.op == "Div") and elements:scalar(node.inputs[2] or "")
    if source then
      for _, entry in ipairs(list) do entry.at = source.at(entry.at) end
      value = source.from
    elseif by and by ~= 0 then
      value, factor = node.inputs[1], node.op == "Mul" and factor * by or factor / by
    else
      return
    end
  end
end

-- The value whose rows [batch][rows][width] a projection has: its input, or one whose axes were moved; rather one
-- with these three axes, and rather one outside of bodies. Without one its input with rows [rows][batch], and true;
-- or nil and why there is none.
local function projected_input(find, operand, heads)
  local product, list, first, swapped = operand.product, {}, nil, true
  for l = 1, operand.side.leads do
    for _, row in ipairs(edges(operand.rows)) do
      local cells = operand.cell(l, row, 0)
      if not cells then return nil, "its row " .. row .. " is not what the product gives" end
      for _, i in ipairs(edges(product.width)) do
        local batch, at = heads.batch[l], product.x_at(cells[1].row, i)
        list[#list + 1] = { at = at, wanted = (batch * operand.rows + row) * product.width + i }
        swapped = swapped and at == (row * heads.batches + batch) * product.width + i
      end
    end
  end
  local best, inner
  walk_back(find.elements, product.x, list, function(value, all, factor)
    for _, entry in ipairs(all) do
      if entry.at ~= entry.wanted then return false end
    end
    if factor ~= 1 then return true end
    if find.graph.inner[value] then
      inner = inner or value
      return false
    end
    first = first or value
    best = #find.elements.shapes[value] == 3 and value or nil
    return best
  end)
  best = best or first or inner
  if not best and swapped then return product.x, true end
  if not best then return nil, "rows of its input do not follow each other" end
  return best
end

-- The value that an operand is as a kernel takes it, in a layout, with the fewest heads: value, number of its heads,
-- factor; or nil.
local function input_as(find, operand, heads, layout)
  local side, list = operand.side, {}
  for l = 1, side.leads do
    for _, row in ipairs(edges(side.rows)) do
      for _, i in ipairs(edges(side.width)) do
        list[#list + 1] = { at = side.at(l, row, i), batch = heads.batch[l], head = heads.head[l], row = row, i = i }
      end
    end
  end
  local place, each = graph_output.places[layout], heads.count
  local best, count, by
  walk_back(find.elements, side.value, list, function(value, all, factor)
    local shape, numbers = find.elements.shapes[value], 1
    for _, size in ipairs(shape or {}) do numbers = numbers * size end
    local own = numbers // (heads.batches * side.rows * side.width)
    if not shape or own < 1 or each % own ~= 0 or own * heads.batches * side.rows * side.width ~= numbers
        or count and (own > count or own == count and not find.graph.inner[best]) then
      return false
    end
    for _, entry in ipairs(all) do
      local e = { batch = entry.batch, head = entry.head // (each // own), row = entry.row, i = entry.i }
      if entry.at ~= place(e, side.rows, own, side.width) then return false end
    end
    best, count, by = value, own, factor
  end)
  return best, count, by
end

-- Q, K, V and the context, as far as they are not projected, in a layout: { layout, values, heads by letter, scale,
-- y }; nil if one of them does not lie so.
local function unprojected(work, layout, projects_o)
  local made = { layout = layout, values = {}, heads = {}, scale = 1 }
  made.y = projects_o or graph_output.as(work, layout)
  if not made.y then return nil end
  for _, letter in ipairs { "q", "k", "v" } do
    if not work.operands[letter].product then
      local value, count, factor = input_as(work.find, work.operands[letter], work.heads, layout)
      if not value or letter == "v" and factor ~= 1 then return nil end
      made.values[letter], made.heads[letter] = value, count
      if letter ~= "v" then made.scale = made.scale * factor end
    end
  end
  return made
end

function M.read(work, projects_o)
  local layer, inputs, fail = work.layer, work.layer.inputs, work.fail
  for _, letter in ipairs { "q", "k", "v" } do
    if work.operands[letter].product then
      local input, more = projected_input(work.find, work.operands[letter], work.heads)
      if not input then fail("the projection of %s: %s", letter:upper(), more) end
      inputs[letter], layer.swapped[letter] = input, more
    end
  end
  local chosen = unprojected(work, "bshd", projects_o) or unprojected(work, "bhsd", projects_o)
  if not chosen then fail("Q, K, V and the context that are not projected lie in different orders of their axes") end
  for letter, value in pairs(chosen.values) do inputs[letter] = value end
  local h_kv = layer.keys.h_kv or chosen.heads.k or chosen.heads.v
  for _, letter in ipairs { "k", "v" } do
    if chosen.heads[letter] and chosen.heads[letter] ~= h_kv then fail("K and V have different numbers of heads") end
  end
  if chosen.heads.q and chosen.heads.q ~= work.heads.count then fail("heads share queries") end
  layer.keys.h_kv = h_kv
  if not projects_o then layer.output = chosen.y end
  return chosen.layout, chosen.scale
end

return M
