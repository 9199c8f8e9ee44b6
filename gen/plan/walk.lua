-- From the list of stages to functions: a run on one thread, and tasks for many.
--
-- A stage that is walked has { phase, title, per, axes, cycles } of its kind (stage/init.lua). Its work is the product
-- of its axes, outermost first, for each batch entry. With per = "heads" it is so for each block of heads. emit(K,
-- place, stage, item, i, ...) records the work at one place: an item, and the place in it, for each axis. Neighbouring
-- stages of one phase do not wait for each other.
--
-- An axis is { var, items, total, grain, queries, along }. Its places are numbered.
--   items      { first, count }: places from `first` on
--   grain      places of a task, one if it is missing
--   queries    (item): the first query of its first place, and how many each place has
--   along      a text: what is read along the axis; neighbouring stages with the same text share the axis
--
-- `place` has
--   pointers     of a batch entry (entry_pointers)
--   lengths      that are read
--   hb           the number of the head block
--   heads_slot, task_slot   parts of the workspace: of projected heads, and of a task

local code = require "emit.code"
local expr = require "base.expr"
local graph = require "graph.init"
local kinds = require "stage.init"
local options = require "options.init"
local score = require "score.init"
local sections = require "schedule.sections"
local tape = require "tape.init"
local types = require "machine.types"
local ways = require "way.init"

local M = {}

-- Pointers of batch entry b: inputs and results, and its part of the workspace.
local function entry_pointers(K, b, slot)
  local plan, cfg = K.plan, K.plan.cfg
  local cross, rows, stored = cfg.attention == "cross", options.key_rows(cfg), plan.cache.stored
  local type = plan.arrays.stored
  local function array(name, kind, off)
    local cast = type ~= types.f32 and ("(%s%s *)"):format(kind, type.c) or ""
    return tape.pointer(cast .. "args->" .. name, off, type)
  end
  local e = {
    b = b,
    q = array("q", "const ", b * (cfg.seq * graph.row(cfg, "q"))),
    k = array(cross and "k" or "q", "const ", b * (rows * cfg.k_width)),
    v = array(cross and "v" or "q", "const ", b * (rows * cfg.v_width)),
    y = array("y", "", b * (cfg.seq * cfg.y_width)),
  }
  for _, name in ipairs(graph.sheets(cfg)) do
    e[name] = tape.pointer("args->" .. name, b * (cfg.h * cfg.seq * cfg.seq_kv))
  end
  local function buffer(pointer, name)
    if K.full then return pointer end
    local cut = pointer:cut(sections.of(plan, name))
    K.t:places(cut)
    return cut
  end
  if plan.packed_bytes > 0 then
    e.packed = buffer(tape.pointer("(const float *)args->packed"), "packed")
  end
  if plan.tables_bytes > 0 then
    e.tables = buffer(tape.pointer("(const float *)args->tables"), "tables")
  end
  e.ws = buffer(tape.pointer("(float *)args->workspace", slot * plan.memory.entry.total), "ws")
  if plan.cache_bytes == 0 then return e end
  e.cache = buffer(tape.pointer(("(%s *)args->cache"):format(stored.c), b * (plan.cache_bytes // stored.bytes), stored),
    "cache")
  if plan.memory.scales.total > 0 then
    local floats = plan.cache_bytes // types.f32.bytes
    local first = floats - plan.memory.scales.total
    e.scales = buffer(tape.pointer("(float *)args->cache", b * floats + first), "scales")
  end
  return e
end

-- ---- rows that are asked for ----

-- Records what is done for a batch entry: where a run says how many rows are asked for, if there are any.
local function for_entry(K, place, build)
  if not place.rows then return build() end
  K.t:when(0, place.rows, function()
    place.rows = expr.var("rows", { 1, K.plan.cfg.seq })
    build()
  end)
end

-- The same for place i of an item of an axis, if one of its queries is asked for.
local function if_asked(K, place, axis, item, i, build)
  if not place.rows or not axis.queries then return build() end
  local first, count = axis.queries(item)
  K.t:when(first + i * count, place.rows, build)
end

-- build(item, i, ...) for the places of all axes, one inside another; along(n, inside) has the places of axis n, and
-- calls inside(item, i) for each.
local function nested(K, place, axes, along, build)
  local function from(n, ...)
    local axis = axes[n]
    if not axis then return build(...) end
    local outer = table.pack(...)
    along(n, function(item, i)
      if_asked(K, place, axis, item, i, function()
        local at = table.move(outer, 1, outer.n, 1, {})
        at[outer.n + 1], at[outer.n + 2] = item, i
        from(n + 1, table.unpack(at, 1, outer.n + 2))
      end)
    end)
  end
  from(1)
end

-- What stages have done before their first place of a run or a task.
local function begin(K, place, stages)
  for _, stage in ipairs(stages) do
    local first = kinds.of(stage).begin
    if first then first(K, place) end
  end
end

-- ---- one thread ----

-- build(item, i, ...) for every place of the axes, the last of which varies fastest.
local function each_place(K, place, axes, build)
  nested(K, place, axes, function(n, inside)
    for _, item in ipairs(axes[n].items) do
      K:each(axes[n].var, item.count, function(i) inside(item, i) end)
    end
  end, build)
end

-- All of a batch entry in the order that keeps the caches warm: what is projected of a block of heads is
-- used at once, in the same place for every block.
local function forward(K, e)
  local stages, told = K.plan.walked, nil
  local function run(first, last)
    local stage = stages[first]
    if stage.title and stage.title ~= told then K.t:note(stage.title) end
    told = stage.title
    each_place(K, e, stage.axes, function(...)
      for j = first, last do K:of(stages[j].phase, kinds.of(stages[j]).emit, e, stages[j], ...) end
    end)
  end
  local function in_common(j)
    local along = stages[j].axes[1].along
    return along and stages[j + 1].axes[1].along == along
  end
  e.heads_slot, e.task_slot = 0, 0
  begin(K, e, stages)
  local i = 1
  while stages[i] do
    local last = i
    while stages[i].per == "heads" and stages[last + 1] and stages[last + 1].per == "heads" do last = last + 1 end
    local function all()
      local first = i
      for j = i, last do
        if j == last or not in_common(j) then
          run(first, j)
          first = j + 1
        end
      end
    end
    if stages[i].per == "heads" then
      K:each("hb", K.plan.head_blocks, function(hb)
        e.hb, told = hb, nil
        all()
      end)
    else
      all()
    end
    i = last + 1
  end
end

-- record(K, place) with the pointers of a batch entry; straight code is a function of these, and of what `scores` read.
local function with_pointers(K, e, of, record)
  if not K.full then return record(K, e) end
  local params = {}
  for _, p in ipairs { { "q", "in" }, { "k", "in" }, { "v", "in" }, { "y", "out" }, { "probs", "out" },
                       { "scores", "out" }, { "packed", "in" }, { "tables", "in" }, { "ws", "out" },
                       { "cache", "out" }, { "scales", "out" } } do
    if e[p[1]] then params[#params + 1] = { p[1], p[2], e[p[1]] } end
  end
  if of.scores then score.add_params(of.scores, params, e) end
  K:part(of.name, of.doc, params, function(p)
    if K.plan.cfg.attention == "self" then p.k, p.v = p.q, p.q end
    record(K, p)
  end, "whole")
end

local function run_entry(K, b, slot)
  local e = entry_pointers(K, b, slot)
  score.read(K.plan.scores, K.t, e)
  for_entry(K, e, function()
    with_pointers(K, e, { name = "forward", doc = "Everything for one batch entry, without a loop.",
                          scores = K.plan.scores }, forward)
  end)
end

-- Fills the cache of a batch entry.
local function fill_entry(K, b)
  local plan = K.plan
  with_pointers(K, entry_pointers(K, b, 0), {
    name = "fill_forward", doc = "Keys and values of one batch entry, without a loop." }, function(_, place)
    place.heads_slot = 0
    local function run(per)
      for _, stage in ipairs(plan.filling) do
        if stage.per == per then
          each_place(K, place, stage.axes, function(...) kinds.of(stage).emit(K, place, stage, ...) end)
        end
      end
    end
    run(nil)
    K:each("hb", plan.head_blocks, function(hb)
      place.hb = hb
      run "heads"
    end)
  end)
end

-- ---- tasks ----

-- The item with run-time number `index` of a list of items { first, count }: build(item, place in it). var: the
-- name of what is numbered.
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

-- Tasks of a stage for a batch entry or a block of heads.
local function tasks_of(stage)
  local tasks = 1
  for _, axis in ipairs(stage.axes) do tasks = tasks * -(-axis.total // (axis.grain or 1)) end
  return tasks
end

-- build(item, i, ...) for the places of the task with run-time number `index`.
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
  nested(K, place, axes, function(n, inside)
    local axis = axes[n]
    local function at(number) pick(K, axis.items, axis.var, number, inside) end
    if not axis.grain then return at(numbers[n]) end
    local first = t:int("first", numbers[n] * axis.grain)
    K:each("j", expr.min(axis.grain, axis.total - first), function(j) at(t:int(axis.var, j + first)) end)
  end, build)
end

-- Records what a function that is called from outside does, between what products take before and after them.
local function with_products(K, build)
  local own = ways.of_all { K.plan.scheme, K.plan.attend_scheme }
  for _, way in ipairs(own) do way.enter(K.t) end
  build()
  for _, way in ipairs(own) do way.leave(K.t) end
end

local args_param = { kind = "const mhagen_args *", name = "args" }

-- A task function, void task(args, index): index counts the `count` tasks of all batch entries.
local function define_task(K, name, count, build)
  K.t:define({ name = "task_" .. name, keep = true,
               params = { args_param, { kind = "int", name = "index" } } },
    function()
      with_products(K, function() build(count > 1 and expr.var("index", { 0, count - 1 }) or 0) end)
    end)
end

-- The phases of a plan, each the stages of one name behind each other: { name, items = { stage, first, count } with
-- the tasks of a batch entry or block of heads, inner = their number, per_entry, cycles }.
local function phases_of(plan)
  local list = {}
  for _, stage in ipairs(plan.walked) do
    local phase = list[#list]
    if not phase or phase.name ~= stage.phase then
      phase = { name = stage.phase, items = {}, inner = 0, cycles = 0 }
      list[#list + 1] = phase
    end
    local count = tasks_of(stage)
    phase.items[#phase.items + 1] = { stage = stage, first = phase.inner, count = count }
    phase.inner, phase.cycles = phase.inner + count, phase.cycles + stage.cycles
    phase.per_entry = stage.per == "heads" and plan.head_blocks * phase.inner or phase.inner
  end
  return list
end

-- Records a phase as tasks.
local function phase_tasks(K, phase)
  local t, plan = K.t, K.plan
  local items, inner, per_entry = phase.items, phase.inner, phase.per_entry
  local by_heads, stages = items[1].stage.per == "heads", {}
  for n, item in ipairs(items) do stages[n] = item.stage end
  define_task(K, phase.name, plan.cfg.batch * per_entry, function(index)
    local e, i
    if plan.cfg.batch == 1 then
      e, i = entry_pointers(K, 0, 0), t:int("i", index)
    else
      local b = t:int("b", expr.div(index, per_entry))
      e = entry_pointers(K, b, plan.resident > 1 and expr.mod(b, plan.resident) or 0)
      i = t:int("i", expr.mod(index, per_entry))
    end
    score.read(K.plan.scores, K.t, e)
    for_entry(K, e, function()
      local rest = i
      if by_heads then
        e.hb = t:int("hb", expr.div(i, inner))
        rest = expr.mod(i, inner)
      end
      e.heads_slot, e.task_slot = e.hb, i
      begin(K, e, stages)
      pick(K, items, "task", rest, function(item, number)
        task_places(K, e, item.stage.axes, number, function(...)
          K:of(phase.name, kinds.of(item.stage).emit, e, item.stage, ...)
        end)
      end)
    end)
  end)
end

-- ---- all of it ----

-- Records everything; returns the phases.
function M.record(t, plan)
  local cfg = plan.cfg
  local K = code.new(t, plan)

  local slots = plan.resident > 1 -- where an entry's part of the workspace can be another than the first
  local entry_params = { args_param, { kind = "ptrdiff_t", name = "b" } }
  if K.full and slots then entry_params[3] = { kind = "ptrdiff_t", name = "slot" } end
  local entry = t:define({ name = "run_entry", params = entry_params,
                           doc = "Everything for one batch entry." }, function()
    run_entry(K, expr.var("b"), K.full and slots and expr.var("slot") or 0)
  end)
  local args = tape.pointer("args")
  t:define({ name = "run_all", keep = true, params = { args_param } }, function()
    with_products(K, function()
      K:each("b", cfg.batch, function(b)
        t:call(entry, { args, b, K.full and slots and 0 or nil })
      end)
    end)
  end)
  if plan.filling[1] then
    local fill = t:define({ name = "fill_entry", params = { args_param, { kind = "ptrdiff_t", name = "b" } },
                            doc = "Keys and values of one batch entry, into the cache." }, function()
      fill_entry(K, expr.var("b"))
    end)
    t:define({ name = "fill_all", keep = true, params = { args_param } }, function()
      with_products(K, function()
        K:each("b", cfg.batch, function(b) t:call(fill, { args, b }) end)
      end)
    end)
  end
  if K.full then
    define_task(K, "entry", cfg.batch, function(index)
      t:call(entry, { args, index, slots and expr.mod(index, plan.resident) or nil })
    end)
    return { { name = "entry", per_entry = 1, cycles = plan.cycles } }
  end

  local phases = phases_of(plan)
  for _, phase in ipairs(phases) do phase_tasks(K, phase) end
  return phases
end

-- Refuses a plan with more tasks than an int can count.
function M.check_tasks(plan)
  local most = 0
  for _, phase in ipairs(phases_of(plan)) do most = math.max(most, phase.per_entry) end
  local cfg = plan.cfg
  if cfg.batch * most <= 2 ^ 31 - 1 then return end
  error({ key = "batch", value = cfg.batch,
          rule = ("would make %d tasks, more than an int can count"):format(cfg.batch * most) }, 0)
end

return M
