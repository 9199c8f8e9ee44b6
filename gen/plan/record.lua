-- From a checked config to its plan, recorded on a tape and printed, within the code limit. The files of a kernel are
-- filled with it, and `explain` describes it.

local budget = require "plan.budget"
local code = require "emit.code"
local cprint = require "tape.cprint"
local plan_of = require "plan.init"
local tape = require "tape.init"
local tasks = require "plan.tasks"
local walk = require "plan.walk"

local function record(plan)
  local kernels = tape.new(plan.isa)
  local K = code.new(kernels, plan)
  local phases, coarse = tasks.record(K, walk.record(K))
  local functions = cprint.functions(kernels)
  return {
    plan = plan, tape = kernels, phases = phases, coarse = coarse, functions = functions,
    statements = budget.count(kernels.functions),
  }
end

return function(cfg)
  local plan = plan_of.build(cfg)
  budget.check_estimate(plan)
  local recorded = record(plan)
  budget.check(plan, recorded.statements)
  return recorded
end
