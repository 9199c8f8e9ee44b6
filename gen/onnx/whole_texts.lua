-- What the inputs of an ONNX graph of texts are, and runs of it with ids that are drawn.
--
--   of(find, tables, terms, masks) -> text
--     tables   { { rows =, index = an input }, .. }, in their order. Their rows for the ids are added up.
--     terms    values that are added to them.
--     masks    values that hide keys.
--     text     { kinds = { input = "ids", "types", "places" or "mask" }, shown = the numbers of masks for a key that is
--              seen and for one of padding, padding = an id that stands for none, or nil }.
--   draw(text, words, types, number) -> draw       of so many rows of tables.
--   evaluated(find, text, outputs, draw, seen, leaves) -> { value = { at, shape } }, feeds
--     seen     keys of each sequence that are no padding; nil: all.
--     leaves   { value = { at, integer } } that are given; nil: none
--   These raise a text that says why they do not know the graph.

local constants = require "onnx.constants"
local evaluate = require "onnx.evaluate"
local indices = require "onnx.indices"
local proposal = require "onnx.proposal"
local rows = require "onnx.rows"
local values = require "onnx.values"
local wording = require "base.wording"

local M = {}

local refuse = proposal.refuse

-- ---- kinds of inputs ----

local NAMED = { { "types", "type" }, { "types", "segment" }, { "mask", "mask" }, { "places", "position" } }
local FEW = 16 -- rows of a table that is one of types, whatever its input is called

local function plan_of(find, outputs, leaves)
  return evaluate.plan(find.graph, find.elements.shapes, outputs, leaves or {})
end

-- The kind that the name of an input says.
local function named(name)
  for _, row in ipairs(NAMED) do
    if name:lower():find(row[2]) then return row[1] end
  end
end

-- Inputs that are places in tables. The largest table is that of words.
local function add_indices(find, kinds, tables)
  local open, largest = {}, nil
  for _, of in ipairs(tables) do
    kinds[of.index] = named(of.index)
    if not kinds[of.index] then open[#open + 1] = of end
  end
  for _, of in ipairs(open) do
    if not largest or of.rows > largest.rows then largest = of end
  end
  for _, of in ipairs(open) do
    local kind = of.index == largest.index and "ids" or of.rows <= FEW and of.rows < largest.rows and "types"
    kinds[of.index] = kind or refuse("%s and %s are both like ids", wording.short(of.index),
                                     wording.short(largest.index))
  end
end

-- Inputs that masks depend on, or whose names say that they are masks.
local function add_masks(find, kinds, masks)
  local plan = plan_of(find, masks)
  for _, name in ipairs(plan and plan.inputs or {}) do kinds[name] = kinds[name] or named(name) or "mask" end
  for _, name in ipairs(find.graph.inputs) do kinds[name] = kinds[name] or named(name) end
end

-- The id that nodes compare with, or 0 where they make a mask of ids without comparing.
local function padding_of(find, kinds, terms, masks)
  local plan, found = plan_of(find, values.joined(terms, masks)), nil
  for _, node in ipairs(plan and plan.nodes or {}) do
    for k = 1, node.op == "Equal" and 2 or 0 do
      local x = kinds[rows.origin(find, node.inputs[3 - k])] == "ids" and find.elements:scalar(node.inputs[k])
      if x and found and found ~= x then refuse "positions or masks depend on several ids" end
      found = x or found
    end
  end
  plan = not found and plan_of(find, masks)
  for _, name in ipairs(plan and plan.inputs or {}) do
    if kinds[name] == "ids" then found = 0 end
  end
  return found
end

function M.of(find, tables, terms, masks)
  local kinds = {}
  add_indices(find, kinds, tables)
  add_masks(find, kinds, masks)
  return { kinds = kinds, shown = { 1, 0 }, padding = padding_of(find, kinds, terms, masks) }
end

-- ---- runs ----

local DRAWS, IDS, FIRST = 3, 61, 4

M.DRAWS = DRAWS + 1

-- Ids of the whole vocabulary but for that of padding, and types. The last draw has the first ids alone, which mean
-- something of their own in most vocabularies.
function M.draw(text, words, types, number)
  local ids, all = { n = 0 }, { n = 0 }
  local last = (number > DRAWS and math.min(FIRST, words) or words) - 1
  for i = 0, IDS - 1 do
    local id = i * last // (IDS - 1)
    if id ~= text.padding then ids.n, ids[ids.n + 1] = ids.n + 1, id end
  end
  for i = 0, types - 1 do all.n, all[all.n + 1] = all.n + 1, i end
  return { ids = ids, types = all, number = 100 + 2 * number }
end

-- The numbers of an input in a run.
local function feed_of(find, text, name, draw, seen)
  local arrays, shape, kind = find.graph.tools.arrays, find.elements.shapes[name], text.kinds[name]
  if not kind or not shape or #shape < 2 or kind ~= "mask" and #shape > 2 then
    refuse("input %s is no ids, types, mask or positions of rows", wording.short(name))
  end
  local count, width = indices.count(shape), shape[#shape]
  local list = {}
  if kind == "ids" then
    list = arrays.list(arrays.chosen(draw.number, count, draw.ids), 0, count)
  elseif kind == "types" then
    list = arrays.list(arrays.chosen(draw.number + 1, count, draw.types), 0, count)
  end
  for i = 0, count - 1 do
    local is_seen = i % width < seen
    if kind == "places" then list[i + 1] = find.elements.given(name, i) or i % width
    elseif kind == "mask" then list[i + 1] = text.shown[is_seen and 1 or 2]
    elseif kind == "ids" and not is_seen then list[i + 1] = text.padding or list[i + 1] end
  end
  local floats = (find.graph.values[name].type or ""):find "F%d"
  return { at = arrays.numbers(list), integer = not floats }
end

function M.evaluated(find, text, outputs, draw, seen, leaves)
  local plan, why = plan_of(find, outputs, leaves)
  if not plan then refuse("%s", why) end
  local feeds = {}
  for _, name in ipairs(plan.inputs) do
    feeds[name] = leaves and leaves[name] or feed_of(find, text, name, draw, seen or math.huge)
  end
  local made
  made, why = evaluate.run(plan, find.graph.tools.arrays, feeds, constants.of)
  if not made then refuse("%s", why) end
  return made, feeds
end

return M
