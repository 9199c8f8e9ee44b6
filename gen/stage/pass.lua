-- No attention: the output multiplies rows of the input, or what other stages make of these. The stage stands for
-- attention in the list, and does nothing. Its groups are so many rows as make the output cheapest.

local graph = require "graph.init"
local product = require "stage.product"

local M = {}

function M.of_group(plan, group)
  return product.groups.cost(plan, graph.output(plan.stages), group), { context = {}, key_rows = 1 }
end

return M
