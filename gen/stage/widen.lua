-- Inputs of a smaller type, widened to float32 once: as all other stages read them.

local graph = require "graph.init"
local inputs = require "graph.inputs"
local options = require "options.init"
local tensors = require "graph.tensor"

local M = { phase = "widen", title = "inputs in float32" }

function M.applies(plan) return plan.arrays.round end

-- The list with a stage in front that widens what the others read of the inputs, and one for what fills a cache.
-- Stages that name an input (narrow.lua) read it as it is.
function M.rewrite(plan, list)
  local cfg = plan.cfg
  local known, stages, out = {}, {}, {}
  local function wide(tensor, fill)
    if not (tensor and tensor.at == "input") then return tensor end
    if known[tensor.name] then return known[tensor.name] end
    local to = tensors.wide(tensor)
    inputs.add(stages, "widen", fill, { name = tensor.name, to = to, cols = graph.row(cfg, tensor.name),
                                        rows = tensor.name == "q" and cfg.seq or options.key_rows(cfg) })
    known[tensor.name] = to
    return to
  end
  for i, stage in ipairs(list) do
    local fill = stage.fill
    out[i] = graph.with(stage, { a = wide(stage.a, fill), queries = wide(stage.queries, fill),
                                 keys = wide(stage.keys, fill), values = wide(stage.values, fill) })
  end
  return inputs.in_front(out, stages)
end

function M.plan(plan, stage)
  inputs.split(stage)
  return 0
end

function M.sections(_, stage, add) inputs.sections(stage, add, M.title) end

M.axes = inputs.axes

function M.emit(K, place, _, part, i)
  inputs.copy(K, place, part, i, { verb = "widen", done = "wide", text = " in float32" })
end

function M.cycles(plan, stage) return inputs.cycles(plan, stage, 2.0) end

return M
