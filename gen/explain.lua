-- A checked config -> the plan as text.

local budget = require "budget"
local describe = require "describe"
local plan = require "plan"

return function(cfg)
  local built = plan.build(cfg)
  budget.check(built)
  return describe.explain(built)
end
