-- From the list of stages to the work of a run for a batch entry, as nested loops. plan/tasks.lua has the tasks.
--
-- A stage has { phase, title, per, axes, cycles } of its kind (stage/init.lua). Its work is the product of its axes,
-- outermost first, for each batch entry, or with per = "heads" for each block of heads. emit(K, place, stage, item, i,
-- ...) records the work at one place, given an item and the place in it for each axis. Neighbouring stages of one phase
-- do not wait for each other.
--
-- An axis is { var, items, total, grain, queries, along }. The positions along it, called places, are numbered.
--   items      { first, count }: places from `first` on
--   grain      places of a task, one if it is missing
--   queries    (item): the first query of its first place, and the number of queries of each place
--   along      a text that says what is read along the axis; neighbouring stages with the same text share the axis
--
-- The argument `place` says where in a run the work is:
--   pointers     of a batch entry (entry_pointers)
--   lengths      that the run reads
--   hb           the number of the head block
--   heads_slot, task_slot   parts of the workspace: of projected heads, and of a task

local expr = require "base.expr"
local graph = require "graph.init"
local kinds = require "stage.init"
local options = require "options.init"
local qk_of = require "graph.qk"
local score = require "score.init"
local sections = require "schedule.sections"
local tape = require "tape.init"
local types = require "machine.types"
local ways = require "way.init"

local M = {}

-- The pointers of batch entry b: inputs and results, and its part of the workspace.
function M.entry_pointers(K, b, slot)
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
  for _, angles in ipairs(qk_of.angles(cfg)) do
    e[angles.name] = tape.pointer("args->" .. angles.name, b * (angles.rows * cfg.rope_dims // 2))
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

-- Records the work of a batch entry. If a run says how many rows it asks for, it is left out for no rows.
function M.for_entry(K, place, build)
  if not place.rows then return build() end
  K.t:when(0, place.rows, function()
    place.rows = expr.var("rows", { 1, K.plan.cfg.seq })
    build()
  end)
end

-- Records the work of place i of an item of an axis; it is left out if none of its queries is asked for.
local function if_asked(K, place, axis, item, i, build)
  if not place.rows or not axis.queries then return build() end
  local first, count = axis.queries(item)
  K.t:when(first + i * count, place.rows, build)
end

-- Records build(item, i, ...) for the places of nested axes. along(n, inside) goes through the places of axis n and
-- calls inside(item, i) for each.
function M.nested(K, place, axes, along, build)
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

-- Records what stages need before their first place in a run or a task.
function M.begin(K, place, stages)
  for _, stage in ipairs(stages) do
    local first = kinds.of(stage).begin
    if first then first(K, place) end
  end
end

-- ---- one thread ----

-- Records build(item, i, ...) for every place of the axes, the last of which varies fastest.
local function each_place(K, place, axes, build)
  M.nested(K, place, axes, function(n, inside)
    for _, item in ipairs(axes[n].items) do
      K:each(axes[n].var, item.count, function(i) inside(item, i) end)
    end
  end, build)
end

-- Records stages first .. last at one place. Each has its title as a comment, unless the title is `told`, the last one
-- written. Returns the last title. Neighbours that read along the same axis share its loop.
function M.in_turn(K, e, stages, told)
  local function run(first, last)
    local stage = stages[first]
    if stage.title and stage.title ~= told then K.t:note(stage.title) end
    told = stage.title
    each_place(K, e, stage.axes, function(...)
      for j = first, last do K:of(stages[j].phase, kinds.of(stages[j]).emit, e, stages[j], ...) end
    end)
  end
  local first = 1
  for j, stage in ipairs(stages) do
    local along = stage.axes[1].along
    if not (along and stages[j + 1] and stages[j + 1].axes[1].along == along) then
      run(first, j)
      first = j + 1
    end
  end
  return told
end

-- The stages in order, as lists of neighbours that are done for each block of heads, and lists of a single other stage.
local function by_blocks(stages)
  local lists = {}
  for _, stage in ipairs(stages) do
    local last = lists[#lists]
    if last and last.per == "heads" and stage.per == "heads" then
      last[#last + 1] = stage
    else
      lists[#lists + 1] = { stage, per = stage.per }
    end
  end
  return lists
end

-- Records all of a batch entry in the order that suits caches: projected rows of a block of heads are used at once, and
-- take the same place in memory for every block.
local function forward(K, e)
  local told
  e.heads_slot, e.task_slot = 0, 0
  M.begin(K, e, K.plan.walked)
  for _, stages in ipairs(by_blocks(K.plan.walked)) do
    if stages.per == "heads" then
      K:each("hb", K.plan.head_blocks, function(hb)
        e.hb = hb
        told = M.in_turn(K, e, stages)
      end)
    else
      told = M.in_turn(K, e, stages, told)
    end
  end
end

-- Records record(K, place) with the pointers of a batch entry. Straight-line code is a function of these pointers and
-- of what `scores` read.
local function with_pointers(K, e, of, record)
  if not K.full then return record(K, e) end
  local params = {}
  for _, p in ipairs { { "q", "in" }, { "k", "in" }, { "v", "in" }, { "y", "out" }, { "probs", "out" },
                       { "scores", "out" }, { "packed", "in" }, { "tables", "in" }, { "ws", "out" },
                       { "cache", "out" }, { "scales", "out" }, { "rope_cos", "in" }, { "rope_sin", "in" },
                       { "k_rope_cos", "in" }, { "k_rope_sin", "in" } } do
    params[#params + 1] = { p[1], p[2], e[p[1]] }
  end
  if of.scores then score.add_params(of.scores, params, e) end
  K:part(of.name, of.doc, params, function(p)
    if K.plan.cfg.attention == "self" then p.k, p.v = p.q, p.q end
    record(K, p)
  end, "whole")
end

local function run_entry(K, b, slot)
  local e = M.entry_pointers(K, b, slot)
  score.read(K.plan.scores, K.t, e)
  M.for_entry(K, e, function()
    with_pointers(K, e, { name = "forward", doc = "Everything for one batch entry, without a loop.",
                          scores = K.plan.scores }, forward)
  end)
end

-- Fills the cache of a batch entry.
local function fill_entry(K, b)
  local plan = K.plan
  with_pointers(K, M.entry_pointers(K, b, 0), {
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

-- ---- functions ----

-- Records the body of a function that is called from outside, between what products need before and after them.
function M.with_products(K, build)
  local own = ways.of_all(graph.schemes(K.plan.stages))
  for _, way in ipairs(own) do way.enter(K.t) end
  build()
  for _, way in ipairs(own) do way.leave(K.t) end
end

-- The parameter of run, fill and task functions.
M.args_param = { kind = "const mhagen_args *", name = "args" }

-- Records the functions that run and fill on one thread. Returns the function of a batch entry.
function M.record(K)
  local t, plan, cfg = K.t, K.plan, K.plan.cfg
  local slots = plan.resident > 1 -- where the part of the workspace depends on the entry
  local entry_params = { M.args_param, { kind = "ptrdiff_t", name = "b" } }
  if slots then entry_params[3] = { kind = "ptrdiff_t", name = "slot" } end
  local entry = t:define({ name = "run_entry", params = entry_params,
                           doc = "Everything for one batch entry." }, function()
    run_entry(K, expr.var("b"), slots and expr.var("slot") or 0)
  end)
  local args = tape.pointer("args")
  t:define({ name = "run_all", keep = true, params = { M.args_param } }, function()
    M.with_products(K, function()
      K:each("b", cfg.batch, function(b)
        t:call(entry, { args, b, slots and 0 or nil })
      end)
    end)
  end)
  if plan.filling[1] then
    local fill = t:define({ name = "fill_entry", params = { M.args_param, { kind = "ptrdiff_t", name = "b" } },
                            doc = "Keys and values of one batch entry, into the cache." }, function()
      fill_entry(K, expr.var("b"))
    end)
    t:define({ name = "fill_all", keep = true, params = { M.args_param } }, function()
      M.with_products(K, function()
        K:each("b", cfg.batch, function(b) t:call(fill, { args, b }) end)
      end)
    end)
  end
  return entry
end

return M
