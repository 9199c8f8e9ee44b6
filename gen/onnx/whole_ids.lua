-- What turns ids into rows in an ONNX graph, and which keys its masks hide. Both are proved by evaluation.
--
--   embeddings(find, value, layers) -> {
--     words, types    Tables of words, and of types or nil: { tensor, rows, width, scale, zero = of integers or nil,
--                     term = { factor }, across }. With `across`, the tensor has a row for each column.
--     places          numbers of the rows that are added for positions, or nil
--     norm            of gen/onnx/whole_layers.lua, or nil
--     projection      what is behind the norm: { matrix = as a layer of gen/onnx/layers.lua has it, bias }, or nil
--     padding         an id that has no position or is hidden, or nil
--     past            a value with rows of earlier runs, or nil
--     text, draws     of gen/onnx/whole_texts.lua }
--   check_masks(find, layer, embeddings)
--     layers, layer   of gen/onnx/layers.lua
-- These raise a text that says why they do not know the graph.

local indices = require "onnx.indices"
local proposal = require "onnx.proposal"
local rows = require "onnx.rows"
local values = require "onnx.values"
local whole_layers = require "onnx.whole_layers"
local whole_texts = require "onnx.whole_texts"
local wording = require "base.wording"

local M = {}

local refuse = proposal.refuse

-- ---- tables ----

-- What a value of integers with one scale was before it was dequantized, with the scale and the zero; else the value.
local function dequantized(find, value)
  value = rows.origin(find, value)
  local node = find.graph.makers[value]
  local is_one = node and node.op == "DequantizeLinear" and node.domain == ""
  local scale = is_one and find.elements:scalar(node.inputs[2])
  if not scale then return value end
  return rows.origin(find, node.inputs[1]), scale, find.elements:scalar(node.inputs[3] or "") or 0
end

-- The table and the indices of a Gather of rows, or nil. Integers, of the table or its rows, have a scale and a zero.
local function table_of(find, value)
  local taken, scale, zero = dequantized(find, value)
  local node = find.graph.makers[taken]
  if not node or node.op ~= "Gather" or (node.attributes.axis or 0) ~= 0 then return nil end
  local name, own, of_own = dequantized(find, node.inputs[1])
  local maker = find.graph.makers[name]
  local across = maker and maker.op == "Transpose" and find.graph.tensors[maker.inputs[1]] -- the weights of the head
  local tensor = not (scale and own) and (across or find.graph.tensors[name])
  if not tensor or #tensor.shape ~= 2 then return nil end
  local count, width = table.unpack(across and { tensor.shape[2], tensor.shape[1] } or tensor.shape)
  return { tensor = tensor, rows = count, width = width, across = across and true or nil, scale = scale or own,
           zero = zero or of_own, index = rows.origin(find, node.inputs[2]) }
end

-- The number that a node multiplies by, and its other operand; or nil.
local function factor_of(find, node)
  if not node or node.domain ~= "" or node.op ~= "Mul" and node.op ~= "Div" then return nil end
  for k = node.op == "Mul" and 1 or 2, 2 do
    local by = find.elements:scalar(node.inputs[k])
    if by and by ~= 0 then return node.op == "Mul" and by or 1 / by, node.inputs[3 - k] end
  end
end

-- The terms of a sum, { value, factor }.
local function terms_of(find, value, list, factor)
  value = rows.origin(find, value)
  local node = find.graph.makers[value]
  local by, before = factor_of(find, node)
  if node and node.op == "Add" then
    for k = 1, 2 do terms_of(find, node.inputs[k], list, factor) end
  elseif by then
    terms_of(find, before, list, factor * by)
  else
    list[#list + 1] = { value = value, factor = factor }
  end
  return list
end

-- Tables that are added up, and the other terms.
local function tables_of(find, value)
  local tables, others = {}, {}
  for _, term in ipairs(terms_of(find, value, {}, 1)) do
    local of = table_of(find, term.value)
    if of and find.graph.values[of.index] and not find.graph.makers[of.index] then
      of.term, tables[#tables + 1] = term, of
    else
      others[#others + 1] = term
    end
  end
  return tables, others
end

-- The tables of words and of types. That of positions is one of the other terms.
local function by_kinds(text, tables, others, value)
  local found = {}
  for _, of in ipairs(tables) do
    local kind = text.kinds[of.index]
    if found[kind] then refuse("two tables are read by %s", kind) end
    if kind == "ids" or kind == "types" then found[kind] = of else others[#others + 1] = of.term end
  end
  if not found.ids then refuse("%s is no sum with a row of a table for each id", wording.short(value)) end
  return found
end

-- Rows of earlier runs.
local function past_rows(find, made) return made.past and find.elements.shapes[made.past][3] or 0 end

-- ---- positions ----

local function values_of(terms)
  local list = {}
  for i, term in ipairs(terms) do list[i] = term.value end
  return list
end

-- The sum of terms that no id changes, as a list of numbers for all rows of a run.
local function places_of(find, text, terms, draws, width, count)
  local run = rows.run(find)
  local first
  for _, draw in ipairs(draws) do
    local made, why = indices.attempt(whole_texts.evaluated, find, text, values_of(terms), draw)
    if not made then refuse("positions of %d rows: %s", count, why) end
    local sum = run:constant(0.0)
    for _, term in ipairs(terms) do
      sum = run:apply("add", sum, run:apply("mul", made[term.value], run:constant(term.factor)))
    end
    local lead = { indices.count(sum.shape) // (count * width), count * width }
    if lead[1] * lead[2] ~= indices.count(sum.shape) then -- one row for all
      sum = run:apply("add", sum, values.value(run.arrays.numbers(count * width, 0.0), { count, width }))
      lead = { indices.count(sum.shape) // (count * width), count * width }
    end
    local all = values.value(sum.at, lead)
    first = first or run:moved(all, { 1, lead[2] }, { 0, 1 })
    local off = run:apply("sub", all, first)
    if run:largest(off) > 0 then
      refuse("what is added to the rows of ids depends on ids or on the sequence")
    end
  end
  return run.arrays.list(first.at, 0, count * width)
end

-- ---- masks ----

local HIDDEN = -1e4 -- what is added to scores at most

-- Whether a mask says what is expected of a key: 0 or true where it may be seen.
local function is_expected(mask, x, expected)
  if mask.kind == "bool" then return ((x ~= 0) == mask.hidden) == not expected end
  if expected then return x == 0 end
  return x <= HIDDEN
end

-- Whether the kernel hides a key from a query by its keys.
local function is_far(keys, q, k)
  local right, left = keys.causal and 0 or keys.window_right, keys.window_left
  return right and k > q + right or left and k < q - left
end

-- Evaluates a mask with all keys, half of them and one, and compares its numbers. A mask has a row of keys for each
-- query, or one for all.
local function check_mask(find, made, layer, mask)
  local shape, past = find.elements.shapes[mask.value], past_rows(find, made)
  local keys, queries = shape[#shape], shape[#shape - 1] or 1
  for i, seen in ipairs { keys, keys // 2 + 1, 1, keys // 2 + 1 } do
    local draw = made.draws[#made.draws + 1 - i] -- from that of the first ids on
    local at = whole_texts.evaluated(find, made.text, { mask.value }, draw, seen)[mask.value].at
    for n, x in ipairs(find.graph.tools.arrays.list(at, 0, indices.count(shape))) do
      local k, q = (n - 1) % keys, (n - 1) // keys % queries + past
      local good = q >= seen or is_expected(mask, x, k < seen)
        or is_far(layer.keys, q, k) and is_expected(mask, x, false)
      if not good then refuse("mask %s does more than to hide the keys of padding", wording.short(mask.value)) end
    end
  end
end

local SHOWN = { { 1, 0 }, { 0, 1 }, { 0, -1e9 } } -- in masks of callers: keys that are seen, and padding

-- Finds out which of these hides padding, by the first mask of the layers.
local function find_shown(find, made, layers)
  local first
  for _, layer in ipairs(layers) do
    for _, mask in ipairs(layer.hiding or {}) do first = first or { layer, mask } end
  end
  for _, shown in ipairs(first and SHOWN or {}) do
    made.text.shown = shown
    local _, why = indices.attempt(check_mask, find.few(), made, first[1], first[2])
    if not why then return end
  end
  made.text.shown = SHOWN[1]
end

local MOST = 1 << 25 -- numbers of a mask that are compared; those of few rows always are

-- Refuses masks that do not hide the keys of padding alone, besides those that the kernel hides by causal or a window.
function M.check_masks(find, layer, made)
  find.hide_padding = find.hide_padding or {}
  for _, mask in ipairs(layer.hiding or {}) do
    local keys = layer.keys
    local how = ("%s %s %s %s"):format(mask.value, keys.causal, keys.window_left, keys.window_right)
    local first = made.past and find.begin() or nil
    for _, other in ipairs(find.hide_padding[how] and {} or { find, find.few(), find.single(), first }) do
      local all = other == find and indices.count(find.elements.shapes[mask.value]) or 0
      if all <= MOST then check_mask(other, made, layer, mask) end
    end
    find.hide_padding[how] = true
  end
end

-- Refuses lengths of an operator with a cache that are not those of texts without padding.
function M.check_lengths(find, layer, made)
  local node = layer.softmax.within
  if not node or node.op ~= "GroupQueryAttention" then return end
  local how = table.concat({ node.inputs[6], node.inputs[7] }, " ")
  made.lengths = made.lengths or {}
  for _, other in ipairs(made.lengths[how] and {} or { find, find.few(), find.single(), find.first() }) do
    local shapes = other.elements.shapes
    local all = shapes[node.inputs[4]][3] + shapes[node.inputs[1]][2]
    for k, wanted in pairs { [6] = all - 1, [7] = all } do
      local value = node.inputs[k]
      local got = whole_texts.evaluated(other, made.text, { value }, made.draws[1])[value]
      for _, x in ipairs(find.graph.tools.arrays.list(got.at, 0, indices.count(got.shape))) do
        if x ~= wanted then
          refuse("%s is %g where texts of %d rows have %d", wording.short(value), x, all, wanted)
        end
      end
    end
  end
  made.lengths[how] = true
end

-- ---- all ----

-- Flags of the rows of padding behind `seen` rows of each sequence, as a value [rows][1]. past: rows before these.
local function of_padding(run, shape, seen, past)
  local list, count = {}, shape[#shape - 1]
  for r = 0, indices.count(shape) // shape[#shape] - 1 do list[r + 1] = past + r % count < seen and 0.0 or 1.0 end
  return values.value(run.arrays.numbers(list), { #list, 1 })
end

local function projected(find, run, projection, x)
  local bias, y = projection.bias, run:product(x, whole_layers.numbers_of(find, run, projection.matrix))
  return bias and run:apply("add", y, values.value(run.arrays.numbers(bias), { #bias })) or y
end

-- The product that makes a value, and the value that it reads; or nil and the value.
local function projection_of(find, value)
  local found = rows.projection(find, value)
  if not found then return nil, value end
  return { matrix = proposal.matrix_of(found.product), bias = found.bias }, rows.origin(find, found.product.x)
end

-- Compares the rows of the graph with those of the tables, in a run where some rows are padding or none.
local function check(find, value, made, draw, padded)
  local run, past = rows.run(find), past_rows(find, made)
  local all = find.elements.shapes[value]
  local seen = past + all[#all - 1]
  if padded then seen = seen // 2 + 1 end
  local got, feeds = whole_texts.evaluated(find, made.text, { value }, draw, seen)
  local shape, width = got[value].shape, made.words.width
  local count = indices.count(shape) // shape[#shape] * width
  local sum = values.value(run.arrays.numbers(count, 0.0), { count // width, width })
  for _, of in ipairs { made.words, made.types } do
    local index = values.value(feeds[of.index].at, { count // width })
    local numbers = run:tensor(of.tensor)
    if of.across then numbers = run:moved(numbers, { of.rows, of.width }, { 1, of.rows }) end
    local taken = run:taken(numbers, 1, index)
    if of.scale then
      taken = run:apply("mul", run:apply("sub", taken, run:constant(of.zero)), run:constant(of.scale))
    end
    sum = run:apply("add", sum, run:apply("mul", taken, run:constant(of.term.factor)))
  end
  local own = shape[#shape - 1] * width
  if made.places then
    local from = past * width
    local list = table.move(made.places, from + 1, from + own, 1, {})
    local places = values.value(run.arrays.numbers(list), { 1, own })
    sum = run:apply("add", values.value(sum.at, { count // own, own }), places)
    sum = values.value(sum.at, { count // width, width })
  end
  if made.norm then sum = whole_layers.normed(run, made.norm, sum) end
  if made.projection then sum = projected(find, run, made.projection, sum) end
  local largest = run:largest(sum)
  local flags = run:apply("add", of_padding(run, shape, seen, past), run:apply("mul", sum, run:constant(0.0)))
  local off = run.arrays.difference(got[value].at, sum.at, flags.at)
  if off > rows.near(find) * largest then
    refuse("%s is not the sum of the tables of ids: drawn ids differ by %.1e of the largest", wording.short(value),
      off / largest)
  end
end

function M.embeddings(find, value, layers)
  local projection, embedded = projection_of(find, value)
  local norm, masks = find.row_norms[embedded], {}
  for _, layer in ipairs(layers) do
    for _, mask in ipairs(layer.hiding or {}) do masks[#masks + 1] = mask.value end
  end
  local tables, terms = tables_of(find, norm and norm.x or embedded)
  local text = whole_texts.of(find, tables, values_of(terms), masks)
  local found = by_kinds(text, tables, terms, embedded)
  local made = { words = found.ids, types = found.types, padding = text.padding, text = text,
                 past = layers[1].inputs.past_k }
  local width, shape, draws = found.ids.width, find.elements.shapes[value], {}
  for i = 1, whole_texts.DRAWS do
    draws[i] = whole_texts.draw(text, found.ids.rows, found.types and found.types.rows or 0, i)
  end
  made.draws, made.projection = draws, projection
  find_shown(find, made, layers)
  local count = past_rows(find, made) + shape[#shape - 1]
  local from_first = made.past and find.first() or find
  made.norm = norm and whole_layers.norm(find, norm, width)
  made.places = terms[1] and places_of(from_first, text, terms, draws, width, count) or nil
  for _, draw in ipairs(draws) do
    for _, other in ipairs { find, find.few(), find.least(), find.single() } do
      check(other, value, made, draw, false)
      check(other, value, made, draw, true)
    end
  end
  return made
end

return M
