-- What turns ids into rows in an ONNX graph, and which keys its masks hide. Both are proved by evaluation.
--
--   embeddings(find, value) -> {
--     words, types    { tensor, rows, width, scale, zero = of integers or nil } of words, and of types or nil
--     places          numbers of the rows that are added for positions, or nil
--     norm            of gen/onnx/whole_layers.lua, or nil
--     padding         an id that has no position, or nil }
--   check_masks(find, layer)    of gen/onnx/layers.lua
-- These raise a text that says why they do not know the graph.

local constants = require "onnx.constants"
local evaluate = require "onnx.evaluate"
local indices = require "onnx.indices"
local proposal = require "onnx.proposal"
local rows = require "onnx.rows"
local values = require "onnx.values"
local whole_layers = require "onnx.whole_layers"
local wording = require "base.wording"

local M = {}

local refuse = proposal.refuse

-- ---- inputs ----

local INTEGERS = { I64 = true, I32 = true }
local KINDS = { { "types", "type" }, { "types", "segment" }, { "mask", "mask" }, { "places", "position" } }

-- What an input of the graph is, by its name and type; nil if nothing of texts.
local function kind_of(find, name)
  local of, lower = find.graph.values[name] or {}, name:lower()
  for _, row in ipairs(KINDS) do
    if lower:find(row[2]) then return row[1] end
  end
  return INTEGERS[of.type] and "ids" or nil
end

-- The numbers of an input in a run with these ids, where `seen` keys of each sequence are no padding.
local function feed_of(find, name, draw, seen)
  local arrays, shape, kind = find.graph.tools.arrays, find.elements.shapes[name], kind_of(find, name)
  local count = shape and indices.count(shape)
  if not kind or not count or #shape ~= 2 then
    refuse("input %s is no ids, types, mask or positions of rows", wording.short(name))
  end
  local numbers
  if kind == "ids" then
    numbers = arrays.chosen(draw.number, count, draw.ids)
  elseif kind == "types" then
    numbers = arrays.chosen(draw.number + 1, count, draw.types)
  else
    local list, width = {}, shape[2]
    for i = 0, count - 1 do list[i + 1] = kind == "places" and i % width or i % width < seen and 1 or 0 end
    numbers = arrays.numbers(list)
  end
  local floats = (find.graph.values[name].type or ""):find "F%d"
  return { at = numbers, integer = not floats, kind = kind }
end

-- Evaluates values of the graph in such a run: { value = { at, shape } }, and the feeds.
local function evaluated(find, outputs, draw, seen)
  local plan, why = evaluate.plan(find.graph, find.elements.shapes, outputs, {})
  if not plan then refuse("%s", why) end
  local feeds = {}
  for _, name in ipairs(plan.inputs) do feeds[name] = feed_of(find, name, draw, seen or math.huge) end
  local made
  made, why = evaluate.run(plan, find.graph.tools.arrays, feeds, constants.of)
  if not made then refuse("%s", why) end
  return made, feeds
end

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

-- The table and the indices of a Gather of rows, or nil. Integers, of the table or of its rows, have a scale and a zero.
local function table_of(find, value)
  local taken, scale, zero = dequantized(find, value)
  local node = find.graph.makers[taken]
  if not node or node.op ~= "Gather" or (node.attributes.axis or 0) ~= 0 then return nil end
  local name, own, of_own = dequantized(find, node.inputs[1])
  local tensor = not (scale and own) and find.graph.tensors[name]
  return tensor and #tensor.shape == 2 and { tensor = tensor, rows = tensor.shape[1], width = tensor.shape[2],
    scale = scale or own, zero = zero or of_own, index = rows.origin(find, node.inputs[2]) } or nil
end

-- The terms of a sum.
local function terms_of(find, value, list)
  value = rows.origin(find, value)
  local node = find.graph.makers[value]
  if node and node.op == "Add" then
    for k = 1, 2 do terms_of(find, node.inputs[k], list) end
  else
    list[#list + 1] = value
  end
  return list
end

-- Tables of what inputs say, by the kind of the input, and the other terms.
local function tables_of(find, value)
  local found, others = {}, {}
  for _, term in ipairs(terms_of(find, value, {})) do
    local of = table_of(find, term)
    local kind = of and not find.graph.makers[of.index] and find.graph.values[of.index] and kind_of(find, of.index)
    if kind == "ids" or kind == "types" then
      if found[kind] then refuse("two tables are read by %s", kind) end
      found[kind] = of
    else
      others[#others + 1] = term
    end
  end
  if not found.ids then refuse("%s is no sum with a row of a table for each id", wording.short(value)) end
  return found, others
end

-- ---- draws ----

local DRAWS, IDS, FIRST = 3, 61, 4

-- The ids that nodes behind the terms compare with, as those of padding.
local function compared(find, terms)
  local plan, found = evaluate.plan(find.graph, find.elements.shapes, terms, {}), nil
  for _, node in ipairs(plan and plan.nodes or {}) do
    for k = 1, node.op == "Equal" and 2 or 0 do
      local kind = kind_of(find, rows.origin(find, node.inputs[3 - k]))
      local x = kind == "ids" and find.elements:scalar(node.inputs[k])
      if x and found and found ~= x then refuse "positions depend on several ids" end
      found = x or found
    end
  end
  return found
end

-- Ids of the whole vocabulary but for that of padding, and types. The last draw has the first ids alone, which mean
-- something of their own in most vocabularies.
local function draw_of(found, padding, number)
  local ids, types = { n = 0 }, { n = 0 }
  local last = (number > DRAWS and math.min(FIRST, found.ids.rows) or found.ids.rows) - 1
  for i = 0, IDS - 1 do
    local id = i * last // (IDS - 1)
    if id ~= padding then ids.n, ids[ids.n + 1] = ids.n + 1, id end
  end
  for i = 0, found.types and found.types.rows - 1 or 0 do types.n, types[types.n + 1] = types.n + 1, i end
  return { ids = ids, types = types, number = 100 + 2 * number }
end

-- ---- positions ----

-- The sum of terms that no id changes, as a list of numbers for all rows of a run.
local function places_of(find, terms, draws, width, count)
  local run = rows.run(find)
  local first
  for _, draw in ipairs(draws) do
    local made = evaluated(find, terms, draw)
    local sum = run:constant(0.0)
    for _, term in ipairs(terms) do sum = run:apply("add", sum, made[term]) end
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

-- ---- all ----

-- Flags of the rows of padding behind `seen` rows of each sequence, as a value [rows][1].
local function of_padding(run, shape, seen)
  local list, count = {}, shape[#shape - 1]
  for r = 0, indices.count(shape) // shape[#shape] - 1 do list[r + 1] = r % count < seen and 0.0 or 1.0 end
  return values.value(run.arrays.numbers(list), { #list, 1 })
end

-- Compares the rows of the graph with those of the tables, in a run where some rows are padding or none.
local function check(find, value, made, draw, padded)
  local run = rows.run(find)
  local all = find.elements.shapes[value]
  local seen = padded and all[#all - 1] // 2 + 1 or all[#all - 1]
  local got, feeds = evaluated(find, { value }, draw, seen)
  local shape = got[value].shape
  local width, count = shape[#shape], indices.count(shape)
  local sum = values.value(run.arrays.numbers(count, 0.0), { count // width, width })
  for _, of in ipairs { made.words, made.types } do
    local index = values.value(feeds[of.index].at, { count // width })
    local taken = run:taken(run:tensor(of.tensor), 1, index)
    if of.scale then
      taken = run:apply("mul", run:apply("sub", taken, run:constant(of.zero)), run:constant(of.scale))
    end
    sum = run:apply("add", sum, taken)
  end
  local own = shape[#shape - 1] * width
  if made.places then
    local places = values.value(run.arrays.numbers(table.move(made.places, 1, own, 1, {})), { 1, own })
    sum = run:apply("add", values.value(sum.at, { count // own, own }), places)
    sum = values.value(sum.at, { count // width, width })
  end
  if made.norm then sum = whole_layers.normed(run, made.norm, sum) end
  local largest = run:largest(sum)
  local flags = run:apply("add", of_padding(run, shape, seen), run:apply("mul", sum, run:constant(0.0)))
  local off = run.arrays.difference(got[value].at, sum.at, flags.at)
  if off > rows.near(find) * largest then
    refuse("%s is not the sum of the tables of ids: drawn ids differ by %.1e of the largest", wording.short(value),
      off / largest)
  end
end

function M.embeddings(find, value)
  local norm = find.row_norms[value]
  local found, terms = tables_of(find, norm and norm.x or value)
  local made = { words = found.ids, types = found.types, padding = compared(find, terms) }
  local width, shape, draws = found.ids.width, find.elements.shapes[value], {}
  for i = 1, DRAWS + 1 do draws[i] = draw_of(found, made.padding, i) end
  local count = shape[#shape - 1]
  made.norm = norm and whole_layers.norm(find, norm, width)
  made.places = terms[1] and places_of(find, terms, draws, width, count) or nil
  for _, draw in ipairs(draws) do
    for _, other in ipairs { find, find.few(), find.single() } do
      check(other, value, made, draw, false)
      check(other, value, made, draw, true)
    end
  end
  return made
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
local function check_mask(find, layer, mask)
  local shape = find.elements.shapes[mask.value]
  local keys, queries = shape[#shape], shape[#shape - 1] or 1
  local draw = draw_of({ ids = { rows = IDS } }, 0, 1)
  for _, seen in ipairs { keys, keys // 2 + 1, 1 } do
    local at = evaluated(find, { mask.value }, draw, seen)[mask.value].at
    for i, x in ipairs(find.graph.tools.arrays.list(at, 0, indices.count(shape))) do
      local k, q = (i - 1) % keys, (i - 1) // keys % queries
      local good = q >= seen or is_expected(mask, x, k < seen)
        or is_far(layer.keys, q, k) and is_expected(mask, x, false)
      if not good then refuse("mask %s does more than to hide the keys of padding", wording.short(mask.value)) end
    end
  end
end

-- Refuses masks that do not hide the keys of padding alone, besides those that the kernel hides by causal or a window.
function M.check_masks(find, layer)
  find.hide_padding = find.hide_padding or {}
  for _, mask in ipairs(layer.hiding or {}) do
    local keys = layer.keys
    local how = ("%s %s %s %s"):format(mask.value, keys.causal, keys.window_left, keys.window_right)
    for _, other in ipairs(find.hide_padding[how] and {} or { find, find.few(), find.single() }) do
      check_mask(other, layer, mask)
    end
    find.hide_padding[how] = true
  end
end

return M
