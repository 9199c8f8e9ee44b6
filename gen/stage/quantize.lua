-- Rows of X, K and V as integers times a scale for each: words of four or two, zeros behind each row.

local inputs = require "graph.inputs"
local quantize = require "emit.quantize"
local tiles = require "schedule.tiles"

local M = { phase = "quantize", title = "inputs in int8" }

function M.plan(plan, stage)
  for _, input in ipairs(stage.inputs) do
    local words = tiles.round_up(tiles.words(plan.scheme, input.cols), plan.isa.lanes)
    tiles.lay(input.to, plan.scheme, input.rows, words)
  end
  inputs.split(stage)
  return 0
end

function M.sections(plan, stage, add)
  for _, input in ipairs(stage.inputs) do
    add("entry", { name = input.to.name, doc = "inputs in int8", cols = input.to.row, count = input.to.count,
                   type = plan.scheme.held })
    add("entry", { name = input.to.scales, doc = "scales of their rows", count = input.rows })
  end
end

M.axes = inputs.axes

function M.emit(K, place, _, part, i)
  local input, memory = part.input, K.plan.memory
  local first = i * part.size + part.at
  quantize.rows(K, { rows = part.size, cols = input.cols, x = place[input.name]:at(first * input.cols),
                     words = memory:at(place, input.to.name):at(first * input.to.row), to = input.to,
                     scales = memory:at(place, input.to.scales):at(first) })
end

-- A number is read twice, and multiplied.
function M.cycles(plan, stage) return inputs.cycles(plan, stage, 3.0) end

return M
