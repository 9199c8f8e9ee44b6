-- The context of each query as integers times a scale, for the output's product: of all heads together, which tasks of
-- attention have apart. Lanes are queries here as there, and a word has four rows, or two; what steps make are rows of
-- queries, as X has them.

local groups = require "schedule.groups"
local quantize = require "emit.quantize"
local tiles = require "schedule.tiles"

local M = { phase = "quantize_context", title = "context in int8" }

function M.sections(plan, stage, add)
  if stage.to.at == "rows" then
    add("entry", { name = stage.to.name, doc = "context in int8", cols = stage.to.row, count = stage.to.count,
                   type = plan.scheme.held })
    return add("entry", { name = stage.to.scales, doc = "scales of the context of queries", count = plan.cfg.seq })
  end
  add("lanes", { name = stage.to.name, doc = "context in int8", rows = tiles.words(plan.scheme, stage.rows),
                 type = plan.scheme.held })
  add("lanes", { name = stage.to.scales, doc = "scales of the context of queries", rows = 1 })
end

function M.axes(plan)
  return { { var = "g", items = plan.groups, total = plan.group_count, queries = groups.queries } }
end

function M.emit(K, place, stage, group, i)
  local to, memory, first = stage.to, K.plan.memory, i * group.used + group.q0
  if to.at == "rows" then
    return quantize.rows(K, { rows = group.used, cols = stage.rows, to = to,
      x = memory:tensor(place, stage.a):at(first * stage.a.row), words = memory:tensor(place, to):at(first * to.row),
      scales = memory:at(place, to.scales):at(first) })
  end
  local function of_group(name) return memory:of_group(place, name, group, i) end
  quantize.lanes(K, group, { rows = stage.rows, x = of_group(stage.a.name), words = of_group(to.name),
                             scales = of_group(to.scales) })
end

function M.cycles(plan, stage) return 3.0 * plan.cfg.seq * stage.rows / plan.per_cycle end

return M
