-- Arguments for a run of a layer's formula, taken from values of its graph, for gen/onnx/proof.lua.
--
--   of(self, feeds, values) -> arrays by their names in the host's formula
--     self      { layer, arrays, past, rows } of gen/onnx/proof.lua
--     feeds, values   { name = { at = array } }: what was drawn, and what was computed of it.
--   mask(self, values, masks) -> some of the layer's masks as one, with the axes of its config.
--   turned(self, x, rows) -> rows that lie as [rows][batch] in the order of a kernel

local indices = require "onnx.indices"

local M = {}

local count_of = indices.count

local HIDDEN = -math.huge

function M.turned(self, at, rows)
  local arrays, batch = self.arrays, self.layer.extents.b
  local width = #at // 8 // (rows * batch)
  local to = arrays.numbers(rows * batch * width, 0)
  arrays.copy({ batch, rows, width }, to, 0, { rows * width, width, 1 }, at, 0, { width, batch * width, 1 })
  return to
end

-- Numbers of a mask for each place of some axes. Its own axes lie in the order of their letters; where the graph has
-- them otherwise, each is looked up.
local function spread(self, mask, at, dims, shape)
  local extents, arrays, steps, step = self.layer.extents, self.arrays, {}, 1
  local count, whole, own = #at // 8, 1, {}
  for letter in mask.axes:gmatch "." do whole = whole * extents[letter] end
  for i = #mask.axes, 1, -1 do
    local letter = mask.axes:sub(i, i)
    local size = letter == "k" and count < whole and 1 or extents[letter] -- which may be the same for all keys
    steps[letter], step = size > 1 and step or 0, step * size
  end
  for i = 1, #dims do own[i] = steps[dims:sub(i, i)] or 0 end
  if step == count then
    local to = arrays.numbers(count_of(shape), 0)
    arrays.copy(shape, to, 0, indices.steps_of(shape), at, 0, own)
    return to
  end
  local list, all = {}, indices.steps_of(shape)
  for i = 0, count_of(shape) - 1 do
    local place = { b = 0, h = 0, q = 0, k = 0 }
    for a = 1, #dims do place[dims:sub(a, a)] = i // all[a] % shape[a] end
    list[i + 1] = mask.at(place.b, place.h, place.q, place.k)
  end
  return arrays.taken(at, 1, count, 1, arrays.numbers(list))
end

function M.mask(self, values, masks)
  local layer, arrays = self.layer, self.arrays
  local dims, total, shape, none = layer.mask_keys.mask_dims, nil, {}, {}
  for i = 1, #dims do shape[i], none[i] = layer.extents[dims:sub(i, i)], 0 end
  local steps = indices.steps_of(shape)
  for _, mask in ipairs(masks) do
    local flat = spread(self, mask, values[mask.value].at, dims, shape)
    if mask.kind == "bool" then
      flat = arrays.applied(mask.hidden and "not" or "nonzero", shape, flat, steps)
      if layer.mask_keys.mask == "add" then
        local seen, unseen = arrays.numbers(1, 0.0), arrays.numbers(1, HIDDEN)
        flat = arrays.applied("where", shape, flat, steps, seen, none, unseen, none)
      end
    end
    total = total and arrays.applied("add", shape, total, steps, flat, steps) or flat
  end
  return total
end

-- Keys and values that are one value.
local function halves(arrays, at)
  local count = #at // 16
  local function half(first)
    local to = arrays.numbers(count, 0)
    arrays.copy({ count }, to, 0, { 1 }, at, first, { 1 })
    return to
  end
  return half(0), half(count)
end

function M.of(self, feeds, values)
  local layer, arrays, args = self.layer, self.arrays, {}
  local inputs, extents = layer.inputs, layer.extents
  local function array(letter)
    local name = inputs[letter]
    local at = name and (feeds[name] and feeds[name].at or values[name] and values[name].at)
    if at and layer.swapped[letter] then at = M.turned(self, at, letter == "q" and extents.q or self.rows) end
    return at
  end
  args.q, args.k, args.v, args.kv_len = array "q", array "k", array "v", array "kv_len"
  if self.past > 0 then -- rows of this run, behind those of earlier ones
    for _, letter in ipairs { "k", "v" } do
      local from = args[letter] or args.q
      local entries = extents.b * (layer.by_head and layer.by_head[letter] or 1) -- that rows follow each other in
      local width = #from // 8 // (entries * self.rows)
      local to = arrays.numbers(entries * extents.k * width, 0)
      arrays.copy({ entries, self.rows, width }, to, self.past * width, { extents.k * width, width, 1 }, from, 0,
                  { self.rows * width, width, 1 })
      args[letter] = to
    end
    args.past_k, args.past_v = array "past_k", array "past_v"
    if inputs.past_k == inputs.past_v then args.past_k, args.past_v = halves(arrays, args.past_k) end
  end
  if layer.mask_keys.mask then args.mask = M.mask(self, values, inputs.masks) end
  return args
end

return M
