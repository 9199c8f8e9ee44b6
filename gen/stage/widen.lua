-- Inputs of a smaller type, widened to float32 once: as all other stages read them.

local graph = require "graph"
local inputs = require "inputs"
local options = require "options.init"

local M = { phase = "widen", title = "inputs in float32" }

-- The list with a stage in front that widens what the others read of the inputs, and one for what fills a cache.
-- Stages that name an input (narrow.lua) read it as it is.
function M.rewrite(plan, list)
  local cfg = plan.cfg
  if not plan.arrays.round then return list end
  local known, stages, out = {}, {}, {}
  local function wide(tensor, fill)
    if not (tensor and tensor.at == "input") then return tensor end
    if known[tensor.name] then return known[tensor.name] end
    local to = graph.with(tensor, { name = "wide_" .. tensor.name, at = "wide" })
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

function M.sections(_, stage, add)
  for _, input in ipairs(stage.inputs) do
    add("entry", { name = input.to.name, doc = "inputs in float32", cols = input.cols,
                   count = input.rows * input.cols })
  end
end

M.axes = inputs.axes

-- Rows lie side by side, whatever they are of.
function M.emit(K, place, _, part, i)
  local t, input, count = K.t, part.input, part.size * part.input.cols
  local first = (i * part.size + part.at) * input.cols
  local params = { { "x", "in", place[input.name]:at(first) },
                   { "wide", "out", K.plan.memory:at(place, input.to.name):at(first) } }
  K:part("widen_" .. count, ("%d numbers in float32."):format(count), params, function(p)
    K:covered(count, function(v, at, suffix)
      t:write(v.w, p.wide:at(at), t:read("load", v.w, "number" .. suffix, p.x:at(at), v.used), v.used)
    end)
  end)
end

function M.cycles(plan, stage) return inputs.cycles(plan, stage, 2.0) end

return M
