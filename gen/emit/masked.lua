-- What masks need beside the main path.

local expr = require "expr"

local M = {}

-- V rows from `from` on that a key tile may still touch: zeros, so that zero weights stay zeros.
function M.clear_values(K, v, from)
  local t, plan, isa = K.t, K.plan, K.plan.isa
  local most, ld = 0, plan.values.row
  for _, group in ipairs(plan.groups) do most = math.max(most, group.keys.rows) end
  K:each("row", expr.min(most, plan.kv_rows - from), function(i)
    t:block(function()
      local zero = t:op("zero", isa.full, "zero")
      for c = 0, ld // isa.lanes - 1 do
        t:op("store", isa.full, nil, v:at((from + i) * ld + c * isa.lanes), zero)
      end
    end)
  end)
end

return M
