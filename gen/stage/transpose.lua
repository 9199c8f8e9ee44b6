-- X of each group of queries, transposed: XT[d_model][group width], for products whose lanes are queries.

local transpose = require "emit.transpose"

local function emit(K, place, group, i)
  local d = K.plan.cfg.d_model
  transpose.panel(K, "transpose", group, d, d, place.q:at(i * (group.used * d) + group.q0 * d),
    place.ws:at(K.plan.entry.xt + group.xt + i * group.xt_floats))
end

return function(plan)
  if not plan.transposed then return {} end
  return { {
    phase = "transpose", title = "transpose", emit = emit,
    axes = { { var = "g", items = plan.groups, total = plan.group_count } },
    cycles = 2.0 * plan.cfg.seq * plan.cfg.d_model / plan.per_cycle,
  } }
end
