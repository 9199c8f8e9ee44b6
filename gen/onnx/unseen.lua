-- Queries that see no key, for gen/onnx/proof.lua. Graphs have many results for them, so they are not compared, except
-- those that see no key in any run because the config or constants of the graph hide all.
--
--   fixed(find, layer) -> its masks that depend on no input.
--   flags(self, hidden, args, values) -> flags of the numbers of y that are not compared, or nil. Nil: all are.
--     self     { layer, fixed, shape, arrays } of gen/onnx/proof.lua
--     hidden   flags of those that depend on a query without keys
--     args     of the formula; values: of the graph

local arguments = require "onnx.arguments"
local evaluate = require "onnx.evaluate"

local M = {}

function M.fixed(find, layer)
  local fixed = {}
  for _, mask in ipairs(layer.inputs.masks) do
    local plan = evaluate.plan(find.graph, find.elements.shapes, { mask.value }, {})
    if plan and not plan.inputs[1] then fixed[mask], fixed[#fixed + 1] = true, mask end
  end
  return fixed
end

-- Flags of numbers whose queries see no key, by some of the masks and without some keys of the config.
local function hidden_by(self, args, values, masks, without)
  local shape, own = {}, {}
  for key, value in pairs(self.shape) do shape[key] = not without[key] and value or nil end
  for key, value in pairs(args) do own[key] = value end
  if not masks[1] then shape.mask = nil else own.mask = arguments.mask(self, values, masks) end
  return self.arrays.hidden(shape, own)
end

local of_inputs = { kv_len = true }
local of_config = { causal = true, window_left = true, window_right = true }

function M.flags(self, hidden, args, values)
  local open = {}
  for _, mask in ipairs(self.layer.inputs.masks) do
    if not self.fixed[mask] then open[#open + 1] = mask end
  end
  if not open[1] and not self.layer.inputs.kv_len then return nil end
  local arrays, shape = self.arrays, { #hidden // 8 }
  local always = hidden_by(self, args, values, self.fixed, of_inputs)
  local by_inputs = hidden_by(self, args, values, open, of_config)
  local compared = arrays.applied("less", shape, by_inputs, { 1 }, always, { 1 })
  return arrays.applied("less", shape, compared, { 1 }, hidden, { 1 })
end

return M
