-- Attention of decode steps (schedule/step.lua), which makes rows of the context, not lanes.

local graph = require "graph.init"
local step = require "schedule.step"
local tiles = require "schedule.tiles"

local M = {}

function M.applies(plan) return plan.cfg.cache ~= "none" end

function M.rewrite(plan, list)
  local attend, output = graph.find(list, "attend"), graph.find(list, "output")
  local own = step.choose(plan, attend)
  if not own then return list end
  if not output then return graph.edited(list, { attend = { graph.with(attend, { step = own }) } }) end
  local rows = { name = "context", at = "rows", row = output.steps, head = attend.out }
  if not plan.product.integers then -- of which words are made once all heads are there
    rows.row, rows.head = tiles.words(plan.product, output.steps), tiles.words(plan.product, attend.out)
  end
  return graph.edited(list, { attend = { graph.with(attend, { step = own, context = rows }) },
                              output = { graph.with(output, { a = rows }) } })
end

return M
