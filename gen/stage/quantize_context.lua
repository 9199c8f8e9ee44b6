-- The context of each query as integers times a scale, for the output's product: of all heads together, which tasks of
-- attention have apart. Lanes are queries here as there; a word has four rows, or two.

local groups = require "groups"
local quantize = require "emit.quantize"
local tiles = require "tiles"

local M = { phase = "quantize_context", title = "context in int8" }

function M.sections(plan, stage, add)
  add("lanes", { name = stage.to.name, doc = "context in int8", rows = tiles.words(plan.product, stage.rows),
                 type = plan.product.held })
  add("lanes", { name = stage.to.scales, doc = "scales of the context of queries", rows = 1 })
end

function M.axes(plan)
  return { { var = "g", items = plan.groups, total = plan.group_count, queries = groups.queries } }
end

function M.emit(K, place, stage, group, i)
  local function of_group(name) return K.plan.memory:of_group(place, name, group, i) end
  quantize.lanes(K, group, { rows = stage.rows, x = of_group(stage.a.name), words = of_group(stage.to.name),
                             scales = of_group(stage.to.scales) })
end

function M.cycles(plan, stage) return 3.0 * plan.cfg.seq * stage.rows / plan.per_cycle end

return M
