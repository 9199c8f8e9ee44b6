-- Operands A rounded to their type once, as float32, where products are those of float32: else each tile would round
-- the rows that it reads. Inputs become copies in front of the projections; what a product makes is rounded as it ends,
-- weights as they are packed (plan/pack.lua).

local choices = require "base.choices"
local graph = require "graph.init"
local inputs = require "graph.inputs"
local quadrants = require "stage.quadrants"
local tensors = require "graph.tensor"

local M = { phase = "round", title = "inputs, rounded" }

local function rounds(scheme) return scheme.a.round and scheme.group == 1 end

-- Marks keys and values that attention reads as their projection leaves them. Sums of groups are stored and added.
local function held_rows(plan, list)
  local quant = plan.weights.quant
  if quant and quant.group then return end
  for _, name in ipairs { "keys", "values" } do
    local stage = graph.projection(list, name)
    if stage and stage.c.at == "workspace" and not stage.qk and not stage.c.staged then stage.c.held = true end
  end
end

-- Sums of quadrants are of numbers as they are.
function M.applies(plan) return not quadrants.asked(plan) end

-- The list with rounded operands.
function M.rewrite(plan, list)
  if rounds(plan.attend_scheme) or rounds(plan.scheme) then choices.add(plan.why, "rounded") end
  if rounds(plan.attend_scheme) then held_rows(plan, list) end
  if not rounds(plan.scheme) then return list end
  local attend = graph.find(list, "attend")
  local read = graph.projection(list, "output") and not graph.find(list, "value_context")
  if read and attend.context.at == "lanes" then attend.context.held = true end
  return inputs.rewrite(list, "round", function(input)
    return tensors.workspace("rounded_" .. input.name, input)
  end)
end

function M.plan(_, stage)
  inputs.split(stage)
  return 0
end

function M.sections(plan, stage, add) inputs.sections(stage, add, M.title, plan.scheme.held) end

M.axes = inputs.axes

function M.emit(K, place, _, part, i)
  inputs.copy(K, place, part, i, { verb = "round", done = "rounded", text = ", rounded" }, function(w, name, number)
    return K.plan.scheme.a.round(K.t, w, "nearest" .. name, number)
  end)
end

function M.cycles(plan, stage) return inputs.cycles(plan, stage, 4.0) end

return M
