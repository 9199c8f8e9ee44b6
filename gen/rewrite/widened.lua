-- Dequantizes int8/int4 weights to pairs before a run multiplies them, where a product multiplies others than those
-- that are packed. Those of a block of heads come before its projections, and those of the output before the output.

local graph = require "graph.init"

local M = {}

local kinds = { rows = "widen_heads", groups = "widen_output" }

function M.rewrite(_, list)
  local output, out, first = graph.output(list), {}, nil -- all weights of a block of heads are dequantized together
  for _, stage in ipairs(list) do
    local kind = stage.stored ~= stage.multiplied and kinds[stage.nest]
    if kind then
      local name = "wide_" .. stage.weights.section
      local of_layer = stage.nest == "groups" and stage ~= output
      local wide = graph.moving { name = name, kind = kind, phase = of_layer and name or nil }
      if stage.nest == "rows" then first = first and first + 1 or #out + 1 end
      table.insert(out, stage.nest == "rows" and first or #out + 1, wide)
      stage = graph.with(stage, { wide = wide.name })
    end
    out[#out + 1] = stage
  end
  return out
end

return M
