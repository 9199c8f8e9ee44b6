-- The kinds of stages. All facts about a kind are in one file, or in one row of convert.lua, or for products in one
-- table per loop nest:
--
--   plan(plan, stage)          the cost of its tiles, and fields to add to the stage
--   stays_near(plan, stage)    whether several heads may be projected together; missing: they may
--   tell(plan, stage)          adds its reasons to those of the plan
--   sections(plan, stage, add) the memory it needs (schedule/memory.lua)
--   fills(pack, stage)         how its weights are packed (plan/pack.lua)
--   phase, title, per          its phase of tasks, its title in comments, and per = "heads" if it is done for each
--                              block of heads. Without a phase, another stage records it
--   axes(plan, stage), emit(K, place, stage, item, i, ...)   its tasks and their work (plan/walk.lua)
--   begin(K, place)            recorded before the first of these in a run or a task
--   cycles(plan, stage)        of a batch entry, at one FMA of a full vector a cycle
--   statements(count, plan, stage)   an estimate of its code size (plan/budget.lua)
--   stack(plan, stage)         bytes of vectors that straight-line code keeps on the stack
--   describe(plan, stage)      lines { name, text }
--
-- All are optional. Without `cycles`, the multiply-adds of the stage count.

local convert = require "stage.convert"

local M = {}
local added = {}

-- Adds a kind that has no file in this folder.
function M.add(name, kind) added[name] = kind end

function M.of(stage)
  local kind = added[stage.kind] or convert[stage.kind] or require("stage." .. stage.kind)
  return kind[stage.nest] or kind
end

-- Calls the function `name` of a stage's kind; returns `default` if the kind has none.
function M.ask(name, default, plan, stage, ...)
  local answer = M.of(stage)[name]
  if not answer then return default end
  return answer(plan, stage, ...)
end

function M.cycles(plan, stage)
  return M.ask("cycles", nil, plan, stage) or 2.0 * stage:macs() / plan.per_cycle
end

return M
