-- Further results of a layer of an ONNX graph, for gen/onnx/proof.lua: rows of a cache, scores or weights.
--
--   of_past(graph, layer) -> a list of { value =, what = "k", "v" or "kv" }.
--                            These are results of the graph that depend on earlier rows, and not on scores.
--   differs(self, values, more, tolerance) -> why a value of a layer's list `beside` differs from the formula, or nil
--     self      { layer, shape, arrays } of gen/onnx/proof.lua; an operator's layer may have "scores" and "probs" too
--     values    of the graph; more: of the host's formula
--
-- A cache has the rows of earlier runs and of this one, behind norms and rope, as [batch][heads][rows][width]. A graph
-- may return only the last of them.

local wording = require "base.wording"

local M = {}

local unseen = { Shape = true, Size = true } -- which read no numbers

-- The values behind one, up to the products of attention.
local function behind(graph, value, stop)
  local seen, waiting = {}, { value }
  while #waiting > 0 do
    local name = table.remove(waiting)
    for _, node in ipairs(not (seen[name] or stop[name]) and graph.users[name] or {}) do
      for _, output in ipairs(unseen[node.op] and {} or node.outputs) do waiting[#waiting + 1] = output end
    end
    seen[name] = not stop[name]
  end
  return seen
end

function M.of_past(graph, layer)
  local list, inputs, stop = {}, layer.inputs, {}
  if not inputs.past_k then return list end
  for _, value in ipairs(layer.multiplied) do stop[value] = true end
  local of_k, of_v = behind(graph, inputs.past_k, stop), behind(graph, inputs.past_v, stop)
  for value in pairs(graph.outputs) do
    local what = (of_k[value] and "k" or "") .. (of_v[value] and "v" or "")
    if what ~= "" then list[#list + 1] = { value = value, what = what } end
  end
  table.sort(list, function(a, b) return a.value < b.value end)
  return list
end

local function joined(arrays, a, b)
  local first, second = #a // 8, #b // 8
  local to = arrays.numbers(first + second, 0)
  arrays.copy({ first }, to, 0, { 1 }, a, 0, { 1 })
  arrays.copy({ second }, to, first, { 1 }, b, 0, { 1 })
  return to
end

-- The last rows of a cache for a value of `count` numbers; all of them where these are not fewer.
local function last_rows(self, more, what, count)
  local layer, arrays = self.layer, self.arrays
  local at = what == "kv" and joined(arrays, more.k, more.v) or more[what]
  local entries = layer.extents.b * self.shape.h_kv * #what
  local all, own = #at // 8 // entries, count // entries
  if own >= all or own * entries ~= count then return at end
  local to = arrays.numbers(count, 0)
  arrays.copy({ entries, own }, to, 0, { own, 1 }, at, all - own, { all, 1 })
  return to
end

local names = { k = "K", v = "V", kv = "K and V" } -- of what is rows

-- What a value must be, in words.
local function words(layer, what)
  if names[what] then return ("rows of %s as a cache has them"):format(names[what]) end
  return ("what %s=%s says, with %s for a key that is not seen"):format(what, tostring(layer.keys[what]),
    what == "probs" and "0" or "-inf")
end

function M.differs(self, values, more, tolerance)
  local arrays = self.arrays
  for _, each in ipairs(self.layer.beside) do
    local at, wanted, flags, size = values[each.value].at, nil, nil, 1
    if names[each.what] then
      wanted = last_rows(self, more, each.what, #at // 8)
      size = arrays.difference(wanted, arrays.numbers(#wanted // 8, 0))
    else
      wanted, flags = more.scores, more.unseen
    end
    if #at ~= #wanted or arrays.difference(at, wanted, flags) > tolerance * size then
      return ("%s is not %s: drawn numbers differ"):format(wording.short(each.value), words(self.layer, each.what))
    end
  end
end

return M
