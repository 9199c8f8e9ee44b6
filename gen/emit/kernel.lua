-- A whole kernel: the steps of a run, in the order that suits one thread, and as tasks for many.

local attend = require "emit.attend"
local code = require "emit.code"
local expr = require "expr"
local quadrants = require "emit.quadrants"
local project = require "emit.project"
local tape = require "tape"

local M = {}

-- Pointers of batch entry b: inputs and results, and its part of the workspace.
local function entry_pointers(K, b, slot)
  local plan, cfg = K.plan, K.plan.cfg
  local q_floats, kv_floats = cfg.seq * cfg.d_model, cfg.seq_kv * cfg.d_model
  local cross = cfg.attention == "cross"
  local e = {
    b = b,
    q = tape.pointer("args->q", b * q_floats),
    k = tape.pointer(cross and "args->k" or "args->q", b * kv_floats),
    v = tape.pointer(cross and "args->v" or "args->q", b * kv_floats),
    y = tape.pointer("args->y", b * q_floats),
    probs = cfg.probs and tape.pointer("args->probs", b * (cfg.h * cfg.seq * cfg.seq_kv)),
  }
  e.packed = tape.pointer("(const float *)args->packed")
  e.ws = tape.pointer("(float *)args->workspace", slot * plan.entry.total)
  return e
end

local function each_output_block(K, build)
  for _, out_block in ipairs(K.plan.out_blocks) do
    K:each("part", out_block.count, function(i) build(out_block, i) end)
  end
end

local function each_group(K, build)
  for _, group in ipairs(K.plan.groups) do
    K:each("g", group.count, function(i) build(group, i) end)
  end
end

-- The item with run-time number `index` of a list of items { first, count }: build(item, place in it).
local function pick(K, list, index, build)
  local function from(i)
    local item = list[i]
    if i == #list then return build(item, index - item.first) end
    K.t:when(index, item.first + item.count,
      function() build(item, index - item.first) end, function() from(i + 1) end)
  end
  from(1)
end

local steps = {}

function steps.transpose(K, e, group, i)
  local d = K.plan.cfg.d_model
  project.transpose(K, "transpose", group, d, d, e.q:at(i * (group.used * d) + group.q0 * d),
    e.ws:at(K.plan.entry.xt + group.xt + i * group.xt_floats))
end

function steps.sums(K, e, input, i)
  local first = (i * input.size + input.at) * K.plan.cfg.d_model
  quadrants.sums(K, input, e[input.name]:at(first), e.ws:at(K.plan.entry["sums_" .. input.name]):at(first))
end

function steps.attend(K, e, head_block, kv_slot, scratch_slot, group, i)
  local plan, cfg = K.plan, K.plan.cfg
  local q0 = i * group.used + group.q0
  local kv = e.ws:at(plan.entry.kv + kv_slot * plan.kv.total)
  attend.group(K, group, {
    xt = e.ws:at(plan.entry.xt + group.xt + i * group.xt_floats),
    packed = e.packed:at(plan.packed.heads + head_block * plan.head.total),
    queries = plan.projected.q and kv:at(plan.kv.q + q0 * plan.projected.q.ld),
    keys = plan.projected.k and kv:at(plan.kv.k) or e.k,
    values = plan.projected.v and kv:at(plan.kv.v) or e.v,
    scratch = e.ws:at(plan.entry.scratch + scratch_slot * plan.scratch.total),
    o = e.ws:at(plan.entry.o + group.o + i * group.o_floats + head_block * (plan.hb * plan.fold.out * group.width)),
    probs = cfg.probs and e.probs:at(head_block * (plan.hb * cfg.seq * cfg.seq_kv) + q0 * cfg.seq_kv),
    q0 = q0, len = e.len,
  })
end

function steps.keys_values(K, e, head_block, kv_slot, which)
  local plan = K.plan
  local input = plan.projected[which].input
  project.keys_values(K, which, e[which], e.packed:at(plan.packed.heads + head_block * plan.head.total),
    e.ws:at(plan.entry.kv + kv_slot * plan.kv.total), which ~= "q" and e.len or nil,
    input and e.ws:at(plan.entry["sums_" .. input]))
end

-- The panel of columns j of a block of equal panels, for the i-th of a block of equal output blocks.
function steps.output(K, e, out_block, i, block, j, panel)
  local plan, d = K.plan, K.plan.cfg.d_model
  local pieces = {}
  local column = j * block.width + block.at
  for n, piece in ipairs(out_block.pieces) do
    local group = plan.groups[piece.kind]
    local first = i * piece.count + piece.first
    pieces[n] = {
      group = group, kind = piece.kind, count = piece.count,
      o = e.ws:at(plan.entry.o + group.o + first * group.o_floats),
      y = e.y:at((first * group.used + group.q0) * d + column),
    }
  end
  project.output(K, pieces, block, e.packed:at(plan.packed.wo + panel), e.packed:at(plan.packed.bo + column))
end

local function read_len(K, e)
  if K.plan.cfg.kv_len then e.len = K.t:int_at("len", "args->kv_len", e.b) end
end

local function projected_of(plan)
  local list = {}
  for _, which in ipairs { "k", "v", "q" } do
    if plan.projected[which] then list[#list + 1] = which end
  end
  return list
end

-- All of a batch entry in the order that keeps the caches warm: each head block's K and V are used
-- at once, in the same place for every block.
local function forward(K, e)
  local t = K.t
  if K.plan.transposed then
    t:note("transpose")
    each_group(K, function(group, i) steps.transpose(K, e, group, i) end)
  end
  for _, input in ipairs(K.plan.sums) do
    K:each("part", input.count, function(i) steps.sums(K, e, input, i) end)
  end
  K:each("hb", K.plan.head_blocks, function(hb)
    t:note("keys and values")
    for _, which in ipairs(projected_of(K.plan)) do steps.keys_values(K, e, hb, 0, which) end
    t:note("attend")
    each_group(K, function(group, i) steps.attend(K, e, hb, 0, 0, group, i) end)
  end)
  t:note("output")
  each_output_block(K, function(out_block, i)
    project.each_panel(K, K.plan.out, K.plan.out.steps, function(block, j, panel)
      steps.output(K, e, out_block, i, block, j, panel)
    end)
  end)
end

local function run_entry(K, b, slot)
  local e = entry_pointers(K, b, slot)
  read_len(K, e)
  if not K.full then return forward(K, e) end
  local params = {}
  for _, p in ipairs { { "q", "in" }, { "k", "in" }, { "v", "in" }, { "y", "out" }, { "probs", "out" },
                       { "packed", "in" }, { "ws", "out" }, { "len", "int" } } do
    if e[p[1]] then params[#params + 1] = { p[1], p[2], e[p[1]] } end
  end
  K:part("forward", "Everything for one batch entry, without a loop.", params, function(p)
    if K.plan.cfg.attention == "self" then p.k, p.v = p.q, p.q end
    forward(K, p)
  end, "whole")
end

local args_param = { kind = "const mhagen_args *", name = "args" }

local function define_task(K, name, per_entry, build)
  K.t:define({ name = "task_" .. name, keep = true, params = { args_param, { kind = "int", name = "index" } } }, build)
  return { name = name, per_entry = per_entry }
end

-- A task function, void task(args, index): index counts the tasks of all batch entries.
local function task(K, name, per_entry, build)
  local t, plan = K.t, K.plan
  return define_task(K, name, per_entry, function()
    local index = expr.var("index")
    if plan.cfg.batch == 1 then return build(entry_pointers(K, 0, 0), t:int("i", index)) end
    local b = t:int("b", expr.div(index, per_entry))
    local e = entry_pointers(K, b, plan.resident > 1 and expr.mod(b, plan.resident) or 0)
    build(e, t:int("i", expr.mod(index, per_entry)))
  end)
end

-- Records everything; returns the phases { name, per_entry (tasks per batch entry) }.
function M.emit(t, plan)
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
    K:each("b", cfg.batch, function(b)
      t:call(entry, { args, b, K.full and slots and 0 or nil })
    end)
  end)
  if K.full then
    return { define_task(K, "entry", 1, function()
      local index = expr.var("index")
      t:call(entry, { args, index, slots and expr.mod(index, plan.resident) or nil })
    end) }
  end

  local phases = {}
  if plan.transposed then
    phases[#phases + 1] = task(K, "transpose", plan.group_count, function(e, g)
      pick(K, plan.groups, g, function(group, i) steps.transpose(K, e, group, i) end)
    end)
  end
  if plan.sums[1] then
    phases[#phases + 1] = task(K, "sums", plan.sum_tasks, function(e, i)
      pick(K, plan.sums, i, function(input, part) steps.sums(K, e, input, part) end)
    end)
  end
  local projected = projected_of(plan)
  if projected[1] then
    phases[#phases + 1] = task(K, "keys_values", plan.head_blocks * #projected, function(e, i)
      read_len(K, e)
      local hb = t:int("hb", expr.div(i, #projected))
      local items = {}
      for j, which in ipairs(projected) do items[j] = { which = which, first = j - 1, count = 1 } end
      pick(K, items, expr.mod(i, #projected), function(item)
        steps.keys_values(K, e, hb, hb, item.which)
      end)
    end)
  end
  phases[#phases + 1] = task(K, "attend", plan.head_blocks * plan.attend_tasks, function(e, i)
    read_len(K, e)
    local hb = t:int("hb", expr.div(i, plan.attend_tasks))
    local first = t:int("first", expr.mod(i, plan.attend_tasks) * plan.groups_per_task)
    K:each("j", expr.min(plan.groups_per_task, plan.group_count - first), function(j)
      local g = t:int("g", j + first)
      pick(K, plan.groups, g, function(group, at) steps.attend(K, e, hb, hb, i, group, at) end)
    end)
  end)
  phases[#phases + 1] = task(K, "output", plan.out_block_count * plan.panel_count, function(e, i)
    local panel_number = t:int("panel", expr.mod(i, plan.panel_count))
    pick(K, plan.out_blocks, t:int("part", expr.div(i, plan.panel_count)), function(out_block, at)
      pick(K, plan.out.blocks, panel_number, function(block, j)
        steps.output(K, e, out_block, at, block, j, j * (block.width * plan.out.steps) + block.panel)
      end)
    end)
  end)
  return phases
end

return M
