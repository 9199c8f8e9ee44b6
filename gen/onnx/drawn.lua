-- Numbers that are drawn for the inputs of a part of an ONNX graph, for gen/onnx/proof.lua.
--
--   count                                   how many times numbers are drawn
--   feeds(self, number, size) -> { name = { at = array of the host, integer } }
--     self     { find, layer, plan, leaves, shapes, arrays } of gen/onnx/proof.lua
--     number   of the draw; size: of rows
--
-- In the first draw, all rows have about the same size. In later draws some are tiny, some so large that scores are in
-- the thousands, and few keys or many are hidden.

local indices = require "onnx.indices"
local wording = require "base.wording"

local M = {}

local count_of = indices.count

-- Sizes of rows, beside that of the others; whether few keys are hidden.
local draws = {
  { by = { 1 }, few = true },
  { by = { 1, 0.03, 20, 1, 1e-3, 1, 3 }, few = false },
  { by = { 20, 1e-3, 1, 1, 3, 0.03 }, few = true },
  { by = { 30 }, few = false },
}
M.count = #draws

local function choice(...) return { n = select("#", ...), ... } end

local HIDDEN = -math.huge
local flags = { [true] = choice(0, 1, 1, 1), [false] = choice(0, 0, 1) }
local added = { [true] = choice(0, 0, nil, HIDDEN, nil, 0), [false] = choice(HIDDEN, HIDDEN, nil) }
local parts = { [true] = choice(0, 1, 1, 1, nil), [false] = choice(0, 0, 1) }
local function scaled(list, by)
  local all = {}
  for i, x in ipairs(list) do all[i] = x * by end
  return all
end

local SPARSE = 8 -- one of so many numbers of a wide row is drawn, for products by zeros cost nothing

local function kind_of(graph, name)
  local of = graph.values[name]
  return of and of.type or "F32"
end

local function feed_of(self, name, draw, size, seed)
  local arrays, shape, keys = self.arrays, self.shapes[name], self.layer.extents.k
  local count, letter = count_of(shape), self.leaves[name]
  if name == self.layer.inputs.kv_len then return arrays.chosen(seed, count, choice(keys, 1, keys // 2 + 1)) end
  if letter then
    local width = math.max(1, shape[#shape] or 1)
    local every = width >= 64 and SPARSE or 1
    return arrays.drawn(seed, count // width, width, every, scaled(draw.by, size * every ^ 0.5))
  end
  for _, mask in ipairs(self.layer.inputs.masks) do
    if mask.value == name then return arrays.chosen(seed, count, (mask.kind == "bool" and flags or added)[draw.few]) end
  end
  local fed = (self.layer.given_values or {})[name]
  if fed then return arrays.numbers(count, fed) end
  local given, list = self.find.elements.given, {}
  for i = 1, given and given(name, 0) and count or 0 do list[i] = given(name, i - 1) end
  if list[1] then return arrays.numbers(list) end
  if kind_of(self.find.graph, name):find "F%d" then return arrays.chosen(seed, count, parts[draw.few]) end
  if #shape > 1 or kind_of(self.find.graph, name):find "^bool" then
    return arrays.chosen(seed, count, flags[draw.few])
  end
  return arrays.chosen(seed, count, choice(keys, 1, keys // 2 + 1))
end

-- The name and the drawn numbers of each input.
function M.feeds(self, number, size)
  local feeds = {}
  for i, name in ipairs(self.plan.inputs) do
    if not self.shapes[name] then error(("the axes of %s are not known"):format(wording.short(name)), 0) end
    local integer = name == self.layer.inputs.kv_len
      or not self.leaves[name] and not kind_of(self.find.graph, name):find "F%d"
    feeds[name] = { at = feed_of(self, name, draws[number], size, number * 64 + i), integer = integer }
  end
  return feeds
end

return M
