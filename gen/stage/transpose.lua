-- X of each group of queries, transposed: XT[d_model][group width], for products whose lanes are queries.

local groups = require "schedule.groups"
local tiles = require "schedule.tiles"
local transpose = require "emit.transpose"

local M = { phase = "transpose", title = "transpose" }

function M.sections(plan, _, add)
  add("lanes", { name = "xt", doc = "X transposed", rows = tiles.words(plan.scheme, plan.cfg.d_model),
                 type = plan.scheme.held })
end

function M.axes(plan)
  return { { var = "g", items = plan.groups, total = plan.group_count, queries = groups.queries } }
end

function M.emit(K, place, stage, group, i)
  local row, scheme = stage.a.row, K.plan.scheme
  local x = K.plan.memory:tensor(place, stage.a)
  local round = scheme.group == 1 and x.type.rounded ~= scheme.b and scheme.b.round
  local function change(w, name, number) return round(K.t, w, "rounded_" .. name, number) end
  transpose.panel(K, "transpose", group, { p = x:at(i * (group.used * row) + group.q0 * row), row = row,
      columns = tiles.words(scheme, K.plan.cfg.d_model), words = stage.a.block and stage.a,
      change = round and change },
    K.plan.memory:of_group(place, "xt", group, i))
end

-- In slots of an FMA, as tiles have it: squares of vectors are shuffled in log2(lanes) steps, then stored.
function M.cost(plan)
  local lanes, ports, cfg = plan.isa.lanes, plan.cpu.ports, plan.cfg
  local vectors = tiles.ceil_div(cfg.seq, lanes) * cfg.d_model
  return vectors * math.max(math.log(lanes, 2) / ports.shuffle, 1 / ports.store) * plan.cpu.fmas
end

function M.cycles(plan) return 2.0 * plan.cfg.seq * plan.cfg.d_model / plan.per_cycle end

return M
