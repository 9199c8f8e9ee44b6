-- From the list of stages to tasks for many threads. A phase is a list of tasks that need not wait for each other; the
-- next phase begins when all of them have ended. There are two lists of phases, with the same results to the bit:
--
--   finest    a task is a part of one stage: many short tasks, with a barrier after each stage
--   coarse    a task does all stages of a block of heads, or in large batches of an entry. So projected rows stay in
--             the caches of one core, and there are fewer barriers
--
-- A phase is { name, stages, by_heads, inner, per_entry, items }. It has `per_entry` tasks for a batch entry; with
-- by_heads there are `inner` for each block of heads. items: { stage, first, count }, the tasks of each stage.

local expr = require "base.expr"
local floor = require "plan.floor"
local kinds = require "stage.init"
local score = require "score.init"
local tape = require "tape.init"
local walk = require "plan.walk"

local M = {}

-- Finds the item of place number `index`, known at run time, in a list of items { first, count }: build(item, place in
-- it). var: names the number.
local function pick(K, list, var, index, build)
  local function take(item)
    build(item, item.count == 1 and 0 or K.t:int("this_" .. var, index - item.first))
  end
  local function from(i)
    local item = list[i]
    if i == #list then return take(item) end
    K.t:when(index, item.first + item.count, function() take(item) end, function() from(i + 1) end)
  end
  from(1)
end

-- The number of tasks of a stage, for a batch entry or a block of heads.
local function tasks_of(stage)
  local tasks = 1
  for _, axis in ipairs(stage.axes) do tasks = tasks * -(-axis.total // (axis.grain or 1)) end
  return tasks
end

-- Records build(item, i, ...) for all places of the task with run-time number `index`.
local function task_places(K, place, axes, index, build)
  local t, numbers = K.t, {}
  for n = #axes, 1, -1 do
    local axis = axes[n]
    local number = index
    if n > 1 then
      number, index = expr.mod(index, axis.total), expr.div(index, axis.total)
    end
    numbers[n] = #axes > 1 and t:int(axis.var, number) or number
  end
  walk.nested(K, place, axes, function(n, inside)
    local axis = axes[n]
    local function at(number) pick(K, axis.items, axis.var, number, inside) end
    if not axis.grain then return at(numbers[n]) end
    local first = t:int("first", numbers[n] * axis.grain)
    K:each("j", expr.min(axis.grain, axis.total - first), function(j) at(t:int(axis.var, j + first)) end)
  end, build)
end

-- Defines a task function, void task(args, index); index counts the `count` tasks of all batch entries.
local function define_task(K, name, count, build)
  K.t:define({ name = "task_" .. name, keep = true,
               params = { walk.args_param, { kind = "int", name = "index" } } },
    function()
      walk.with_products(K, function() build(count > 1 and expr.var("index", { 0, count - 1 }) or 0) end)
    end)
end

-- ---- phases ----

-- The phases of the finest list: neighbouring stages with the same phase name are one phase.
local function finest(plan)
  local list = {}
  for _, stage in ipairs(plan.walked) do
    local phase = list[#list]
    if not phase or phase.name ~= stage.phase then
      phase = { name = stage.phase, stages = {}, items = {}, by_heads = stage.per == "heads", inner = 0 }
      list[#list + 1] = phase
    end
    local count = tasks_of(stage)
    phase.stages[#phase.stages + 1] = stage
    phase.items[#phase.items + 1] = { stage = stage, first = phase.inner, count = count }
    phase.inner = phase.inner + count
    phase.per_entry = phase.by_heads and plan.head_blocks * phase.inner or phase.inner
  end
  return list
end

-- A phase whose tasks are batch entries.
local function entries(plan) return { { name = "entry", stages = plan.walked, per_entry = 1 } } end

local LARGE = 8 -- a batch with at least so many entries has entries as tasks

-- The coarse list; nil if it would be the same as the finest, or a single task. Phases that are not done by blocks of
-- heads are those of the finest list.
local function coarse(plan, phases)
  if plan.cfg.batch >= LARGE then return entries(plan) end
  if plan.cfg.batch * plan.head_blocks == 1 then return nil end
  local list, joined = {}, false
  for _, phase in ipairs(phases) do
    local last = list[#list]
    if last and last.by_heads and phase.by_heads then
      joined = true
      table.move(phase.stages, 1, #phase.stages, #last.stages + 1, last.stages)
    elseif phase.by_heads then
      list[#list + 1] = { name = "heads", stages = table.move(phase.stages, 1, #phase.stages, 1, {}), by_heads = true,
                          inner = 1, per_entry = plan.head_blocks }
    else
      list[#list + 1] = phase
    end
  end
  return joined and list or nil
end

-- Records the function of a phase's tasks. build(place, rest) records task number `rest` of a batch entry, or of the
-- block of heads that is part of the place.
local function define_phase(K, phase, build)
  local t, plan, per_entry = K.t, K.plan, phase.per_entry
  define_task(K, phase.name, plan.cfg.batch * per_entry, function(index)
    local e, i
    if plan.cfg.batch == 1 then
      e, i = walk.entry_pointers(K, 0, 0), t:int("i", index)
    else
      local b = t:int("b", expr.div(index, per_entry))
      e = walk.entry_pointers(K, b, plan.resident > 1 and expr.mod(b, plan.resident) or 0)
      i = t:int("i", expr.mod(index, per_entry))
    end
    score.read(plan.scores, t, e)
    walk.for_entry(K, e, function()
      local rest = i
      if phase.by_heads then
        e.hb = t:int("hb", expr.div(i, phase.inner))
        rest = expr.mod(i, phase.inner)
      end
      e.heads_slot, e.task_slot = e.hb, i
      walk.begin(K, e, phase.stages)
      build(e, rest)
    end)
  end)
end

local function define_phases(K, phases)
  for _, phase in ipairs(phases) do
    define_phase(K, phase, function(e, rest)
      pick(K, phase.items, "task", rest, function(item, number)
        task_places(K, e, item.stage.axes, number, function(...)
          K:of(phase.name, kinds.of(item.stage).emit, e, item.stage, ...)
        end)
      end)
    end)
  end
end

-- Records the tasks of both lists; `entry` is the function of a batch entry. Returns the finest list, and the coarse
-- one if there is one.
function M.record(K, entry)
  local plan = K.plan
  local function define_entries()
    define_task(K, "entry", plan.cfg.batch, function(index)
      K.t:call(entry, { tape.pointer("args"), index, plan.resident > 1 and expr.mod(index, plan.resident) or nil })
    end)
  end
  if K.full then
    define_entries()
    return entries(plan)
  end
  local phases = finest(plan)
  local fewer = coarse(plan, phases)
  define_phases(K, phases)
  for _, phase in ipairs(fewer or {}) do
    if phase.name == "entry" then
      define_entries()
    elseif not phase.items then
      define_phase(K, phase, function(e) walk.in_turn(K, e, phase.stages) end)
    end
  end
  return phases, fewer
end

-- The cycles of a phase for a batch entry, from those of its stages' phases (plan/floor.lua).
local function cycles_of(phase, by_stages)
  local cycles, known = 0, {}
  for _, stage in ipairs(phase.stages) do
    if not known[stage.phase] then cycles, known[stage.phase] = cycles + (by_stages[stage.phase] or 0), true end
  end
  return math.max(cycles, 1)
end

-- The rows { name, first, tasks, cycles } of a list. All phases are repeated for each round of as many batch entries as
-- the workspace has room for.
local function rows_of(phases, plan, by_stages)
  local rows = {}
  for first = 0, plan.cfg.batch - 1, plan.resident do
    local entries = math.min(plan.resident, plan.cfg.batch - first)
    for _, phase in ipairs(phases) do
      rows[#rows + 1] = { name = phase.name, first = first * phase.per_entry, tasks = entries * phase.per_entry,
                          cycles = entries * cycles_of(phase, by_stages) }
    end
  end
  return rows
end

-- The rows of both lists, for a recorded kernel.
function M.rows(recorded)
  local plan, by_stages = recorded.plan, floor.by_stages(recorded)
  return rows_of(recorded.phases, plan, by_stages), rows_of(recorded.coarse or {}, plan, by_stages)
end

-- Refuses a plan with more tasks than an int can count.
function M.check(plan)
  local most = 0
  for _, phase in ipairs(finest(plan)) do most = math.max(most, phase.per_entry) end
  local cfg = plan.cfg
  if cfg.batch * most <= 2 ^ 31 - 1 then return end
  error({ key = "batch", value = cfg.batch,
          rule = ("would make %d tasks, more than an int can count"):format(cfg.batch * most) }, 0)
end

return M
