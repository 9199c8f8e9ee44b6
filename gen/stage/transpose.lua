-- X of each group of queries, transposed: XT[d_model][group width], for products whose lanes are queries.

local transpose = require "emit.transpose"

local M = { phase = "transpose", title = "transpose" }

function M.sections(plan, _, add)
  add("lanes", { name = "xt", doc = "X transposed", rows = plan.cfg.d_model })
end

function M.axes(plan)
  return { { var = "g", items = plan.groups, total = plan.group_count } }
end

function M.emit(K, place, _, group, i)
  local d = K.plan.cfg.d_model
  transpose.panel(K, "transpose", group, d, d, place.q:at(i * (group.used * d) + group.q0 * d),
    K.plan.memory:of_group(place, "xt", group, i))
end

function M.cycles(plan) return 2.0 * plan.cfg.seq * plan.cfg.d_model / plan.per_cycle end

return M
