-- The context of each query as a row of words, as an output product of tile registers takes it: of all heads together,
-- which tasks of attention have apart, with lanes over queries. Zeros are behind each row.

local graph = require "graph.init"
local groups = require "schedule.groups"
local tensors = require "graph.tensor"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"
local ways = require "way.init"

local M = { phase = "context_rows", title = "context in rows" }

function M.applies(plan, list)
  local output = graph.find(list, "output")
  return ways.of(plan.scheme).rows_of_a and output and output.a.at == "lanes"
end

-- The list with this stage in front of the output.
function M.rewrite(plan, list)
  local output = graph.find(list, "output")
  local count = tiles.words(plan.scheme, output.steps)
  local rows = tensors.rows("context_rows", { scales = output.a.scales, scaled = output.a.scaled })
  tiles.lay(rows, plan.scheme, plan.cfg.seq, count)
  local stage = { name = "context_rows", kind = "context_rows", a = output.a, to = rows, words = count,
                  macs = function() return 0.0 end }
  return graph.edited(list, { output = { stage, graph.with(output, { a = rows }) } })
end

function M.sections(plan, stage, add)
  add("entry", { name = stage.to.name, doc = "context in rows", cols = stage.to.row, count = stage.to.count,
                 type = plan.scheme.held })
end

function M.axes(plan)
  return { { var = "g", items = plan.groups, total = plan.group_count, queries = groups.queries } }
end

function M.emit(K, place, stage, group, i)
  local to, memory = stage.to, K.plan.memory
  local first = i * group.used + group.q0
  transpose.rows(K, "context_rows", group, memory:of_group(place, stage.a.name, group, i),
    { p = memory:tensor(place, to):at(first * to.row), row = to.row, columns = stage.words, words = to,
      filled = true })
end

-- A word is read, goes through as many exchanges as there are steps of a transposition, and is stored.
function M.cycles(plan, stage) return 6.0 * plan.cfg.seq * stage.words / plan.per_cycle end

return M
