-- The kinds of stages, a file or a row of convert.lua each, which has all about it; products have it for each nest of
-- their loops:
--
--   plan(plan, stage)          the cost of its tiles, and the fields that these are
--   stays_near(plan, stage)    whether several heads may be projected together; missing: they may
--   tell(plan, stage)          adds its reasons to those of the plan
--   sections(plan, stage, add) what memory it needs (schedule/memory.lua)
--   fills(pack, stage)         how its weights are packed (plan/pack.lua)
--   phase, title, per          where it is in the order: phase of tasks, title in the text, per = "heads" if it is
--                              done for each block of heads; without a phase another stage does it
--   axes(plan, stage), emit(K, place, stage, item, i, ...)   its tasks and their work (plan/walk.lua)
--   begin(K, place)            what comes before the first of these in a run or a task
--   cycles(plan, stage)        of a batch entry, at one FMA of a full vector a cycle
--   statements(count, plan, stage)   an estimate of its code (plan/budget.lua)
--   stack(plan, stage)         bytes of vectors that straight code keeps on the stack
--   describe(plan, stage)      lines { name, text }
--
-- All are optional. Without `cycles` they are counted by its multiply-adds.

local convert = require "stage.convert"

local M = {}
local added = {}

-- Adds a kind that is no file of this folder.
function M.add(name, kind) added[name] = kind end

function M.of(stage)
  local kind = added[stage.kind] or convert[stage.kind] or require("stage." .. stage.kind)
  return kind[stage.nest] or kind
end

-- What a stage's kind says by the function `name`; `default` if it has none.
function M.ask(name, default, plan, stage, ...)
  local answer = M.of(stage)[name]
  if not answer then return default end
  return answer(plan, stage, ...)
end

function M.cycles(plan, stage)
  return M.ask("cycles", nil, plan, stage) or 2.0 * stage:macs() / plan.per_cycle
end

return M
