-- Weights in small integers, of which a run makes pairs before it multiplies them: those of a block of heads in front
-- of its projections, and those of the output in front of it.

local graph = require "graph.init"

local M = {}

function M.applies(plan) return plan.widens end

local kinds = { rows = "widen_heads", groups = "widen_output" }

function M.rewrite(_, list)
  local out, first = {}, nil -- of a block of heads all are widened together
  for _, stage in ipairs(list) do
    local kind = kinds[stage.nest]
    if kind then
      local wide = graph.moving { name = "wide_" .. stage.weights.section, kind = kind }
      if stage.nest == "rows" then first = first and first + 1 or #out + 1 end
      table.insert(out, stage.nest == "rows" and first or #out + 1, wide)
      stage = graph.with(stage, { wide = wide.name })
    end
    out[#out + 1] = stage
  end
  return out
end

return M
