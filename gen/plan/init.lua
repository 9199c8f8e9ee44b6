-- From a checked config and an ISA to the plan: the list of stages, with all that emitters follow and `explain` prints.
-- It is plain data, which nothing changes once it is built.
--
--   config    cfg, isa, cpu, scores; the types sums, arrays and cache; why, the reasons of all choices; compared, the
--             values that were compared with thresholds (schedule/costs.lua)
--   products  scheme: how the ISA multiplies projections. Targets of tiles (schedule/tiles.lua): attending, attention;
--             applying, for projections with lanes over queries; weights and value_weights, for the other projections;
--             stored and stored_values, the same for weights as packed, from which a run may make the others; feeding,
--             the plan itself, or one with all of these for products of the feed-forward in another type
--   work      flops, folded_flops, cycles, work by type
--   stages    the arrangement (plan/arrange.lua): q_lanes, hb, head_blocks, in_one, stages, groups; stage, by name
--   tasks     resident, tasks_wanted, groups_per_task, attend_tasks
--   memory    packed, tables, workspace, the bytes of all buffers; walked and filling, stages in their order
--   error     error, error_scores, unit
--
-- Lanes of a vector are queries in transpose and attend, and columns in keys_values and output. In decode steps lanes
-- are keys in the scores, and columns of V in the context (schedule/decode.lua).

local arrange = require "plan.arrange"
local mmla = require "rewrite.mmla"
local cpu = require "machine.cpu"
local fetch = require "schedule.fetch"
local graph = require "graph.init"
local groups = require "schedule.groups"
local isas = require "isa.init"
local kinds = require "stage.init"
local layer = require "graph.layer"
local memory = require "schedule.memory"
local paired = require "rewrite.paired"
local quantized = require "rewrite.quantized"
local rewrites = require "plan.rewrites"
local score = require "score.init"
local tasks = require "plan.tasks"
local tiles = require "schedule.tiles"
local types = require "machine.types"

local ceil_div, refuse = tiles.ceil_div, tiles.refuse

local M = {}

-- Parallel tasks: each is a block of heads and a range of groups of a batch entry.
local function tasks_of(plan)
  local batch, count = plan.cfg.batch, plan.group_count
  local resident = math.min(batch, math.max(8, ceil_div(batch, 64)))
  local wanted = ceil_div(16, resident * plan.head_blocks)
  local each = ceil_div(count, math.min(wanted, count))
  return { resident = resident, tasks_wanted = wanted, groups_per_task = each, attend_tasks = ceil_div(count, each) }
end

-- Bytes of the cache of a batch entry; its scales come last.
local function cache_bytes(plan, laid)
  local of_scales, bytes = memory.BYTES * laid.scales.total, plan.cache.stored.bytes * laid.cache.total
  return of_scales > 0 and tiles.round_up(bytes, memory.BYTES) + of_scales or bytes
end

-- The sections of memory, and the sizes of the two buffers.
local function memory_of(plan)
  local laid = memory.lay(plan, function(_, stage, add) kinds.ask("sections", nil, plan, stage, add) end)
  local packed, workspace = laid.packed, plan.resident * laid.entry.total
  memory.check_size(plan.cfg, "d_model", "packed", packed.total)
  memory.check_size(plan.cfg, "batch", "the workspace", workspace)
  memory.check_size(plan.cfg, "batch", "the cache", plan.cfg.batch * laid.cache.total)
  return { memory = laid, packed = packed, workspace = workspace, packed_bytes = memory.BYTES * packed.total,
           tables_bytes = memory.BYTES * laid.tables.total,
           workspace_bytes = memory.BYTES * workspace, cache_bytes = cache_bytes(plan, laid) }
end

-- The stages that a run goes through, with their phase, axes and cycles; the stages that fill a cache, and how many of
-- these need a workspace.
local function order_of(plan)
  local walked, filling, scratch = {}, {}, 0
  for _, stage in ipairs(plan.stages) do
    local kind = kinds.of(stage)
    if kind.phase then
      stage.phase, stage.title, stage.per = stage.phase or kind.phase, stage.title or kind.title, kind.per
      stage.axes, stage.cycles = kind.axes(plan, stage), kinds.cycles(plan, stage)
      table.insert(stage.fill and filling or walked, stage)
      local needs = stage.inputs or stage.as_given or stage.c and stage.c.staged or stage.qk and stage.qk.norm
      if stage.fill and needs then scratch = scratch + 1 end
    end
  end
  return { walked = walked, filling = filling, fill_workspace = scratch }
end

-- The types that numbers are rounded to: operands of projections, of the feed-forward and of attention, results, rows
-- of a cache, weights.
function M.types(plan)
  return { plan.scheme.a, plan.feeding.scheme.a, plan.attend.scheme.a, plan.arrays, plan.cache,
           types.quants[plan.cfg.weight_dtype] }
end

-- The bound of ||y - ref|| / ||ref||: the largest of the types.
local function error_of(plan)
  local error = math.max(plan.scheme.error or 0, plan.feeding.scheme.error or 0)
  for _, type in ipairs(M.types(plan)) do error = math.max(error, type.error) end
  return error
end

local function check_inputs(cfg)
  for _, name in ipairs { "q", "k", "v", "y" } do
    local rows = (name == "q" or name == "y") and "seq" or "seq_kv"
    memory.check_size(cfg, rows, name, cfg.batch * cfg[rows] * graph.row(cfg, name))
  end
  for _, name in ipairs(graph.sheets(cfg)) do
    memory.check_size(cfg, name, name, cfg.batch * cfg.h * cfg.seq * cfg.seq_kv)
  end
end

-- The flops of a run by the type of the operands: { type, flops } each, the most first.
local function work_of(plan, formula)
  local work, by = {}, {}
  for _, stage in ipairs(formula) do
    local type = isas.multiplied(stage.scheme or plan.scheme)
    local flops = stage.fill and 0.0 or 2.0 * stage:macs() * plan.cfg.batch
    if flops > 0 and not by[type] then
      by[type] = { type = type, flops = 0.0 }
      work[#work + 1] = by[type]
    end
    if flops > 0 then by[type].flops = by[type].flops + flops end
  end
  table.sort(work, function(a, b) return a.flops > b.flops end)
  return work
end

-- How the ISA multiplies the operands of a config: those of its projections, or those of another key.
function M.scheme(cfg, key)
  local isa, type = isas.list[cfg.isa], types.by_name[cfg[key or "dtype"]]
  if not isas.has(isa, type) then
    refuse(key or "dtype", type.name, ("isa = %s has no rounding to it"):format(isa.name))
  end
  if not type.quantized then return isas.scheme(isa, type) end
  local kind = types.quants[cfg.weight_dtype]
  return isas.integers(isa, type, cfg.group and kind, cfg.group)
    or refuse("weight_dtype", kind.name, ("isa = %s has no products of it with %s"):format(isa.name, type.name))
end

-- The plan as a target of tiles whose operand B is weights, which may be quantized.
local function of_weights(plan, kind)
  local quant, own = types.quants[kind], plan.scheme.quant
  if own and kind == plan.cfg.weight_dtype then return setmetatable({ quant = own }, { __index = plan }) end
  if own then
    return tiles.target(plan, isas.bytes_beside(plan.isa, plan.scheme))
  end
  if not quant then return plan end
  if not isas.has(plan.isa, quant) then
    refuse("weight_dtype", kind, ("isa = %s has nothing to widen it with"):format(plan.isa.name))
  end
  local group = kind == plan.cfg.weight_dtype and not quant.type and plan.cfg.group or nil
  return tiles.target(plan, isas.quantized(plan.isa, plan.scheme, quant, group))
end

-- The type of arrays in memory, from a key.
local function in_memory(cfg, key, type)
  local isa = isas.list[cfg.isa]
  if not isas.has(isa, type.stored) then
    refuse(key, type.name, ("isa = %s has nothing to load it with"):format(isa.name))
  end
  return type
end

-- ---- all of it ----

local function config_of(cfg)
  local isa = isas.list[cfg.isa]
  local facts = cpu.facts(cfg.cpu, isa)
  local plan = { cfg = cfg, isa = isa, why = {}, compared = {}, cpu = facts, scores = score.of(cfg),
                 scheme = M.scheme(cfg),
                 sums = types.by_name[cfg.sum_dtype],
                 arrays = in_memory(cfg, "io_dtype", types.by_name[cfg.io_dtype]),
                 cache = in_memory(cfg, "cache_dtype",
                   cfg.cache == "none" and types.f32 or types.of_cache[cfg.cache_dtype]),
                 k_block = cfg.k_block or 256,
                 per_cycle = 2.0 * isa.lanes, -- flops at one FMA of a full vector a cycle
                 whole_p = #graph.sheets(cfg) > 0 } -- keeps the weights of all keys, not only of a block
  if not facts then refuse("cpu", cfg.cpu, ("has no isa = %s"):format(isa.name)) end
  plan.feeding = plan
  if cfg.ffn > 0 and cfg.ffn_dtype ~= cfg.dtype then
    plan.feeding = setmetatable({ scheme = M.scheme(cfg, "ffn_dtype"), feeds = true }, { __index = plan })
  end
  return plan
end

-- How the ISA multiplies in attention.
local function attention_of(cfg)
  local scheme = M.scheme(cfg, "attend_dtype")
  local most = groups.most_keys(scheme)
  if most and cfg.key_block and cfg.key_block > most then
    refuse("key_block", cfg.key_block, ("must be at most %d with attend_dtype = %s: "
      .. "longer sums may err by more than mhagen_kernel.error"):format(most, cfg.attend_dtype))
  end
  return scheme
end

-- Copies the fields of a table into a plan.
local function add(plan, fields)
  for name, value in pairs(fields) do plan[name] = value end
end

-- The targets of a plan's weights, as they are packed and multiplied.
local function add_weights(plan)
  local cfg = plan.cfg
  plan.stored = of_weights(plan, cfg.weight_dtype)
  plan.stored_values = types.quants[cfg.value_weight_dtype] and of_weights(plan, cfg.value_weight_dtype) or plan.stored
  plan.weights, plan.value_weights = plan.stored, plan.stored_values
end

-- Lets products multiply by a chosen scheme, or by blocks of it. Weights become pairs where it has these.
local function add_scheme(plan, formula, scheme)
  plan.scheme = scheme
  if plan.weights.quant and not scheme.integers and scheme.group > 1 then
    plan.weights, plan.value_weights = plan, plan
    -- A pair has 16 bits for a weight as well.
    if plan.stored.quant.type then plan.stored, plan.stored_values = plan, plan end
  end
  plan.scheme = mmla.choose(plan, formula, scheme)
end

-- Decides how products multiply, and returns the list with these decisions.
local function add_products(plan, formula)
  local cfg, feeding = plan.cfg, plan.feeding
  add_weights(plan)
  if feeding ~= plan then add_weights(feeding) end
  check_inputs(cfg)
  local chosen = paired.choose(plan, formula)
  add_scheme(plan, formula, chosen.products)
  if feeding ~= plan then add_scheme(feeding, formula, paired.choose_feeding(feeding, formula)) end
  if graph.attend(formula).passes then chosen.attention = plan.scheme end
  plan.attending = tiles.target(plan, chosen.attention)
  plan.applying = tiles.target(plan, isas.by_vectors(plan.scheme))
  return graph.multiplied(formula, function(stage)
    local own = stage.feeds and feeding or plan
    local multiplied, stored = own.weights, own.stored
    if stage.c.operand == "values" then multiplied, stored = own.value_weights, own.stored_values end
    return { scheme = own.scheme, multiplied = multiplied.scheme, stored = stored.scheme,
             apart = own ~= plan or nil }
  end, { scheme = chosen.attention })
end

local function add_work(plan, formula, list)
  plan.flops, plan.folded_flops = 2.0 * graph.macs(formula) * plan.cfg.batch, 2.0 * graph.macs(list) * plan.cfg.batch
  plan.cycles = 2.0 * graph.macs(list) / plan.per_cycle
  plan.work = work_of(plan, formula)
end

local function add_stages(plan, list)
  plan.attend = graph.attend(list) -- arrangements read it, and then change it
  local best = arrange.best(plan, list)
  for _, name in ipairs(arrange.fields) do plan[name] = best[name] end
  plan.attend = graph.attend(plan.stages)
  plan.fetch = fetch.choose(plan)
  kinds.ask("tell", nil, plan, plan.attend)
  arrange.tell(plan)
  add(plan, groups.finish(plan))
  plan.cost = best.cost
  for i = 1, #plan.stages do
    local stage = plan.stages[i]
    if stage.nest == "groups" then
      local cost, fields = kinds.of(stage).plan(plan, stage)
      plan.cost, plan.stages = plan.cost + cost, graph.planned(plan.stages, i, fields)
    end
  end
  plan.stage = {}
  for _, stage in ipairs(plan.stages) do plan.stage[stage.name] = stage end
end

local function add_error(plan)
  plan.error = error_of(plan)
  plan.unit = 0
  for _, type in ipairs(M.types(plan)) do plan.unit = math.max(plan.unit, type.unit) end
  local quant = types.quants[plan.cfg.weight_dtype]
  plan.error_scores = quant and quant.scores or types.scores(plan.unit)
end

function M.build(cfg)
  local plan = config_of(cfg)
  local formula = graph.multiplied(layer.around(cfg, graph.of(cfg, plan.scores)),
    function(stage) return { scheme = (stage.feeds and plan.feeding or plan).scheme } end,
    { scheme = attention_of(cfg) })
  formula = add_products(plan, formula)
  local list = rewrites.apply(rewrites.of_formula, plan, formula)
  add_work(plan, formula, list)
  add_stages(plan, list)
  add(plan, tasks_of(plan))
  add(plan, memory_of(plan))
  add(plan, order_of(plan))
  add_error(plan)
  quantized.tell(plan)
  tasks.check(plan)
  return plan
end

return M
