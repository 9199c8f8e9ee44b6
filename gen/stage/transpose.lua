-- X of each group of queries, transposed: XT[d_model][group width], for products whose lanes are queries.

local groups = require "groups"
local transpose = require "emit.transpose"
local types = require "types"

local M = { phase = "transpose", title = "transpose" }

function M.sections(plan, _, add)
  add("lanes", { name = "xt", doc = "X transposed", rows = plan.cfg.d_model, type = types.held(plan.product.b) })
end

function M.axes(plan)
  return { { var = "g", items = plan.groups, total = plan.group_count, queries = groups.queries } }
end

function M.emit(K, place, _, group, i)
  local d, round = K.plan.cfg.d_model, K.plan.product.b.round
  local function change(w, name, x) return round(K.t, w, "rounded_" .. name, x) end
  transpose.panel(K, "transpose", group,
    { p = place.q:at(i * (group.used * d) + group.q0 * d), row = d, columns = d, change = round and change },
    K.plan.memory:of_group(place, "xt", group, i))
end

function M.cycles(plan) return 2.0 * plan.cfg.seq * plan.cfg.d_model / plan.per_cycle end

return M
