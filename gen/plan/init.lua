-- From a checked config and an ISA to the plan: the list of stages with all that emitters follow and `explain`
-- prints. Plain data.
--
--   transpose   X[q][d_model] of a group of queries -> XT[d_model][group width]
--   sums        of the quadrants of X, where projections are made of quadrants
--   keys_values K[key][hb*dk] = X Wk + bk, V[key][hb*dv] = X Wv + bv, Q with lanes over columns as well,
--               for a block of hb heads; or copies of K and V where they are inputs
--   keep        rows of keys and values into a cache of a smaller type
--   copies      of keys and values that are in a cache as others have them, or in a smaller type
--   attend      Q^T = Wq^T XT (q), then per head S^T, softmax and O^T[dv][group width]
--   output      Y = O Wo + bo, one product over all heads
--
-- The lanes of a vector are queries in transpose and attend, columns in keys_values and output; in attend of few
-- queries and a long cache they are keys, and columns of V (schedule/step.lua).

local blocks = require "rewrite.blocks"
local choices = require "base.choices"
local context_rows = require "stage.context_rows"
local copy = require "stage.copy"
local cpu = require "machine.cpu"
local fetch = require "schedule.fetch"
local fold = require "rewrite.fold"
local graph = require "graph.init"
local groups = require "schedule.groups"
local isas = require "isa.init"
local joint = require "stage.joint"
local keep = require "stage.keep"
local key_rows = require "stage.key_rows"
local kinds = require "stage.init"
local memory = require "schedule.memory"
local paired = require "rewrite.paired"
local quantized = require "rewrite.quantized"
local score = require "score.init"
local quadrants = require "stage.quadrants"
local round = require "stage.round"
local step = require "schedule.step"
local tiles = require "schedule.tiles"
local transpose = require "stage.transpose"
local types = require "machine.types"
local value_rows = require "stage.value_rows"
local walk = require "plan.walk"
local widen = require "stage.widen"

local ceil_div, refuse = tiles.ceil_div, tiles.refuse

local M = {}

-- ---- the choice of lanes and heads ----

-- The list with the queries' product where its lanes put it. Lanes over columns: behind keys and values. Lanes over
-- queries: in attention, which needs X transposed; merged weights are applied for each head.
local function with_queries(list, lanes)
  local queries, moved = graph.find(list, "queries"), nil
  if not queries then return list end
  if lanes == "columns" then
    moved = queries
  else
    local transpose = { name = "transpose", kind = "transpose", macs = function() return 0.0 end, a = queries.a }
    local first = 1
    while list[first].inputs do first = first + 1 end -- behind what makes X of the inputs
    list = graph.edited(list, {})
    table.insert(list, first, transpose)
    if not queries.merged then
      return graph.edited(list, { queries = { graph.with(queries, { name = "query", kind = "apply" }) } })
    end
    moved = graph.with(queries, { name = "key_query", kind = "apply", per = "head" })
  end
  local next_one = graph.find(list, "key_query") or graph.find(list, "attend")
  return graph.edited(list, { queries = {}, [next_one.name] = { moved, next_one } })
end

-- Fills in the list of stages, for a choice of lanes, of heads together and of products (joint: one for what reads the
-- same rows), and the tiles but those of the output. Returns their cost for a block of heads.
local function arrange(plan, list, lanes, hb, in_one)
  plan.q_lanes, plan.hb, plan.head_blocks = lanes, hb, plan.cfg.h // hb
  plan.stages = quadrants.rewrite(plan, with_queries(list, lanes))
  if in_one then plan.stages = joint.rewrite(plan, plan.stages) end
  local cost = 0
  for _, stage in ipairs(plan.stages) do
    local own = stage.kind ~= "output" and kinds.ask("plan", 0, plan, stage) or 0
    cost = cost + (stage.fill and 0 or own)
  end
  local attend
  plan.groups, attend = groups.plan(plan, plan.stages, hb)
  plan.stages = copy.rewrite(plan, keep.rewrite(plan.stages))
  plan.stages = value_rows.rewrite(plan, key_rows.rewrite(plan, plan.stages))
  return cost + attend
end

-- Whether what is projected of a block of heads stays in the cache: in half of it, or where it is narrow.
local function stays_near(plan)
  local cfg = plan.cfg
  local widest = math.max(cfg.dk, cfg.dv)
  local width = plan.hb * widest
  local bytes = memory.BYTES * widest * (plan.hb * cfg.seq + 2 * (cfg.h_kv // plan.head_blocks) * cfg.seq_kv)
  local near = width <= 256 or bytes <= plan.cpu.cached
  for _, stage in ipairs(plan.stages) do near = near and kinds.ask("stays_near", true, plan, stage, width, bytes) end
  return near
end

-- Weights merged for lanes over columns are as wide as the model, and packed for one head at a time.
local function one_head(list, lanes) return lanes == "columns" and graph.find(list, "queries").merged end

-- Whether keys and values are kept between runs. Where they lie does not depend on a kernel's schedule then.
local function cached(plan) return plan.cfg.cache ~= "none" end

-- Whether a norm is of all heads together, which then are in one block.
local function spans_heads(list)
  local turn = graph.find(list, "attend").turn
  return turn and turn.norm and turn.all
end

-- Heads projected together, and the cost: more columns waste fewer lanes, fewer columns stay in the cache. in_one:
-- whether what reads the same rows is one product.
local function choose_head_block(plan, list, lanes, in_one)
  local cfg = plan.cfg
  local best
  local least = cfg.h // cfg.h_kv -- heads that share keys and values are together
  if spans_heads(list) then least = cfg.h end
  local most = cached(plan) and least or one_head(list, lanes) and 1 or cfg.h
  for hb = cfg.head_block or least, cfg.head_block or most, least do
    if cfg.h % hb == 0 then
      local cost = arrange(plan, list, lanes, hb, in_one) * (cfg.h // hb)
      if (hb == least or hb == cfg.head_block or stays_near(plan)) and (not best or cost < best.cost * 0.995) then
        best = { lanes = lanes, hb = hb, in_one = in_one, cost = cost }
      end
    end
  end
  return best
end

local function tell_head_block(plan)
  local cfg, whole = plan.cfg, spans_heads(plan.stages)
  local free = not cfg.head_block and not cached(plan) and not whole
  if plan.hb > 1 and free and not plan.stage.sums then choices.add(plan.why, "head_block") end
  choices.say(plan.why, ("%d of %d heads projected together"):format(plan.hb, cfg.h),
    whole and "norm_span = all is a norm of all of them"
    or cached(plan) and "those that share keys and values, which lie head by head in a cache"
    or cfg.head_block and "as head_block says" or "the least cost by the model")
end

-- What the cost of lanes over columns in the query projection may be, of that of lanes over queries: the
-- model does not know that X needs no transposition then, nor that one vector of queries is in the nearest
-- cache all the time. Merged weights have X transposed once for all heads, but the queries of each. With one product
-- of all (joint) the transposition is counted, and still lanes over columns are faster than the model has them. One
-- vector of queries that waits for weights from far has these read in longer pieces by them.
local COLUMNS = { one_vector = 0.95, several = 1.03, merged = 0.98, joint = 1.08, far = 1.02 }

-- The keys that nothing would obey, or not as they are given, with these lanes in the query projection ("none": there
-- is no such), each with the rule.
local function disobeyed(plan, list, lanes)
  local cfg = plan.cfg
  local found = {}
  local function unless_obeyed(keys, rule)
    for _, key in ipairs(keys) do
      if cfg[key] then found[#found + 1] = { key, cfg[key], "has no effect with " .. rule } end
    end
  end
  local project, with = "project = " .. cfg.project, "q_lanes = " .. lanes
  if plan.weights.quant and lanes == "queries" then
    found[1] = { "q_lanes", lanes, ("must be columns with %s = %s, whose words have weights of one column"):format(
      plan.product.integers and "dtype" or "weight_dtype", plan.product.integers and cfg.dtype or cfg.weight_dtype) }
  end
  if lanes == "none" then
    with = project
    unless_obeyed({ "q_lanes" }, project .. ", which does not project Q")
  end
  if not graph.find(list, "output") then
    unless_obeyed({ "out_rows", "out_vectors", "out_block" }, project .. ", which does not project Y")
  end
  if lanes ~= "queries" and not graph.find(list, "key_query") and not graph.find(list, "value_context") then
    unless_obeyed({ "q_rows" }, with .. ": no product has lanes over queries")
  end
  if lanes ~= "columns" and not graph.projection(list, "keys") and not graph.projection(list, "values") then
    local both = graph.projects(cfg, "k") and graph.projects(cfg, "v")
    unless_obeyed({ "kv_rows", "kv_vectors" },
      with .. " where neither K nor V is projected" .. (both and "; with fold = off both are" or ""))
  end
  local against = cfg.qkv == "joint" and joint.against(plan, with_queries(list, lanes))
  if against then found[#found + 1] = { "qkv", cfg.qkv, against } end
  local sharing = cfg.h // cfg.h_kv
  if cached(plan) and not spans_heads(list) and cfg.head_block and cfg.head_block ~= sharing then
    found[#found + 1] = { "head_block", cfg.head_block,
                          ("must be h / h_kv = %d with a cache, which lies head by head"):format(sharing) }
  end
  if spans_heads(list) and cfg.head_block and cfg.head_block ~= cfg.h then
    found[#found + 1] = { "head_block", cfg.head_block, "must be h with norm_span = all, a norm of all heads" }
  end
  if one_head(list, lanes) and cfg.head_block ~= 1 then
    if cfg.head_block then
      found[#found + 1] = { "head_block", cfg.head_block,
                            "must be 1 with q_lanes = columns where Wq Wk^T is made when packing" }
    end
  end
  return found
end

local QUANTS = "a vector of words has weights of as many columns; for lanes over queries each would be unpacked alone"
local BLOCKS = "products of blocks have weights as columns"
local HALVES = "products by halves of words have weights as columns"

-- The lanes that the product which makes the queries may have: queries, as in all of attend, or columns, and the
-- product is transposed then; "none" where there is no such.
local function possible_lanes(plan, list)
  local cfg = plan.cfg
  local refused, lanes = {}, {}
  local projected = graph.find(list, "queries")
  local one_way = plan.weights.quant or plan.product.deep or plan.product.apart
  local possible = one_way and { cfg.q_lanes or "columns" } or { "queries", "columns" }
  for _, one in ipairs(projected and possible or { "none" }) do
    if not projected or one == (cfg.q_lanes or one) then
      local first = disobeyed(plan, list, one)[1]
      refused[#refused + 1] = first
      if not first then lanes[#lanes + 1] = one end
    end
  end
  if #lanes == 0 then refuse(table.unpack(refused[1])) end
  return lanes
end

-- A way among the lanes with products of their own, or (in_one) with one: { lanes, hb, in_one, cost of all but the
-- output }. Beside one product of K, V and Q it counts that X needs a transposition for other lanes.
local function choose_lanes(plan, list, possible, in_one)
  local cfg, projected = plan.cfg, graph.find(list, "queries")
  local ways = {}
  for i, lanes in ipairs(possible) do ways[i] = choose_head_block(plan, list, lanes, in_one) end
  local queries, columns = table.unpack(ways)
  if not columns then return queries end
  if cfg.q_len then return columns end
  if in_one then
    return columns.cost < COLUMNS.joint * (queries.cost + transpose.cost(plan)) and columns or queries
  end
  local waits = tiles.far(plan, cfg.seq) and (cfg.seq == 1 or fetch.kind(plan) == "ahead") and not projected.merged
  local most = cfg.seq <= plan.isa.lanes and (waits and COLUMNS.far or COLUMNS.one_vector)
    or projected.merged and cfg.h > 1 and COLUMNS.merged or COLUMNS.several
  return columns.cost < most * queries.cost and columns or queries
end

-- What one product may cost of the cost of several, with the same lanes; and where several fetch shares of weights.
local JOINT = { alone = 0.98, fetched = 0.93 }

-- The best way: with one product where that fills lanes that are idle in several.
local function choose_products(plan, list, possible)
  local key, joinable = plan.cfg.qkv, {}
  for _, lanes in ipairs(key ~= "separate" and possible or {}) do
    if not joint.against(plan, with_queries(list, lanes)) then joinable[#joinable + 1] = lanes end
  end
  local one = joinable[1] and choose_lanes(plan, list, joinable, true)
  if key == "joint" then return one end
  local several = choose_lanes(plan, list, possible, false)
  if not one then return several end
  local function total(way) return way.cost + (way.lanes == "queries" and transpose.cost(plan) or 0) end
  local same = choose_head_block(plan, list, one.lanes, false)
  local most = fetch.kind(plan) == "shares" and JOINT.fetched or JOINT.alone
  return one.cost < most * same.cost and total(one) < total(several) and one or several
end

-- Tells why lanes are these, where others would have been possible.
local function tell_lanes(plan, lanes, possible)
  local cfg = plan.cfg
  if lanes == "none" then return end
  local function say(reason) choices.say(plan.why, ("lanes are %s in the query projection"):format(lanes), reason) end
  if not possible[2] then
    say(cfg.q_lanes and "as q_lanes says" or plan.weights.quant and QUANTS or plan.product.deep and BLOCKS
      or plan.product.apart and HALVES
      or "the only way in which the given keys have an effect")
  elseif cfg.q_len then
    say "its tiles end where q_len does; of a group of queries, which are lanes else, all would be projected"
  else
    local by_columns = lanes == "columns"
    choices.add(plan.why, by_columns and "q_columns" or "q_queries")
  end
end

-- The lanes, heads and products of all but the output.
local function choose_way(plan, list)
  local possible = possible_lanes(plan, list)
  local way = choose_products(plan, list, possible)
  tell_lanes(plan, way.lanes, possible)
  return way
end

-- ---- all of it ----

-- Parallel tasks: of a batch entry, head blocks times ranges of groups.
local function plan_tasks(plan)
  local batch = plan.cfg.batch
  plan.resident = math.min(batch, math.max(8, ceil_div(batch, 64)))
  plan.tasks_wanted = ceil_div(16, plan.resident * plan.head_blocks)
  plan.groups_per_task = ceil_div(plan.group_count, math.min(plan.tasks_wanted, plan.group_count))
  plan.attend_tasks = ceil_div(plan.group_count, plan.groups_per_task)
end

-- Bytes of the cache of a batch entry, whose scales are the last of it.
local function cache_bytes(plan)
  local of_scales, bytes = memory.BYTES * plan.memory.scales.total, plan.cache.stored.bytes * plan.memory.cache.total
  return of_scales > 0 and tiles.round_up(bytes, memory.BYTES) + of_scales or bytes
end

-- The sections of memory, and the sizes of the two buffers.
local function plan_memory(plan)
  plan.memory = memory.lay(plan, function(_, stage, add) kinds.ask("sections", nil, plan, stage, add) end)
  plan.packed, plan.workspace = plan.memory.packed, plan.resident * plan.memory.entry.total
  memory.check_size(plan.cfg, "d_model", "packed", plan.packed.total)
  memory.check_size(plan.cfg, "batch", "the workspace", plan.workspace)
  memory.check_size(plan.cfg, "batch", "the cache", plan.cfg.batch * plan.memory.cache.total)
  plan.packed_bytes, plan.workspace_bytes = memory.BYTES * plan.packed.total, memory.BYTES * plan.workspace
  plan.cache_bytes = cache_bytes(plan)
end

-- The stages that are walked, with their phase, axes and cycles; and those that fill the cache.
local function plan_order(plan)
  plan.walked, plan.filling, plan.fill_workspace = {}, {}, 0
  for _, stage in ipairs(plan.stages) do
    local kind = kinds.of(stage)
    if kind.phase then
      stage.phase, stage.title, stage.per = stage.phase or kind.phase, kind.title, kind.per
      stage.axes, stage.cycles = kind.axes(plan, stage), kinds.cycles(plan, stage)
      table.insert(stage.fill and plan.filling or plan.walked, stage)
      local scratch = stage.inputs or stage.c and stage.c.passing or stage.turn and stage.turn.norm
      if stage.fill and scratch then plan.fill_workspace = plan.fill_workspace + 1 end
    end
  end
end

-- The types that numbers are rounded to: operands of projections and of attention, results, rows of a cache, weights.
function M.types(plan)
  return { plan.product.a, plan.attend_product.a, plan.arrays, plan.cache, types.quants[plan.cfg.weight_dtype] }
end

-- What ||y - ref|| / ||ref|| is at most: that of the operands' types, more where a stage rounds more.
local function error_of(plan)
  local factor = 1
  for _, stage in ipairs(plan.stages) do factor = math.max(factor, kinds.of(stage).error or 1) end
  local error = plan.product.error or 0
  for _, type in ipairs(M.types(plan)) do error = math.max(error, type.error) end
  return error * factor
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

-- The list as it is where a plan has steps: they make rows of the context.
local function with_steps(plan, list)
  local attend, output = graph.find(list, "attend"), graph.find(list, "output")
  step.choose(plan, attend)
  if not (plan.step and output) then return list end
  local rows = { name = "context", at = "rows", row = output.steps, head = attend.out }
  if not plan.product.integers then -- of which words are made once all heads are there
    rows.row, rows.head = tiles.words(plan.product, output.steps), tiles.words(plan.product, attend.out)
  end
  return graph.edited(list, { attend = { graph.with(attend, { context = rows }) },
                              output = { graph.with(output, { a = rows }) } })
end

-- The flops of a run by the type that is multiplied: { type, flops } each, the most first.
local function work_of(plan, formula)
  local work, by = {}, {}
  for _, stage in ipairs(formula) do
    local type = isas.multiplied(stage.weights and plan.product or plan.attend_product)
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

-- What the ISA multiplies the operands of a config with: those of its projections, or as the key says.
function M.product(cfg, key)
  local isa, type = isas.list[cfg.isa], types.by_name[cfg[key or "dtype"]]
  if not isas.has(isa, type) then
    refuse(key or "dtype", type.name, ("isa = %s has no rounding to it"):format(isa.name))
  end
  return (type.quantized and isas.integers or isas.product)(isa, type)
end

-- The plan as a target of tiles whose operand B is weights, which may be quants of a kind.
local function of_weights(plan, kind)
  local quant, own = types.quants[kind], plan.product.quant
  if own then return setmetatable({ quant = own }, { __index = plan }) end
  if not quant then return plan end
  local product = isas.quantized(plan.isa, plan.product, quant, not quant.columns and plan.cfg.group or nil)
  return setmetatable({ product = product, quant = product.quant }, { __index = plan })
end

-- The type that a key says of arrays in memory.
local function in_memory(cfg, key, type)
  local isa = isas.list[cfg.isa]
  if not isas.has(isa, type.stored) then
    refuse(key, type.name, ("isa = %s has nothing to load it with"):format(isa.name))
  end
  return type
end

function M.build(cfg)
  local isa = isas.list[cfg.isa]
  local plan = { cfg = cfg, isa = isa, why = {}, cpu = cpu.facts(cfg.cpu, isa), scores = score.of(cfg),
                 product = M.product(cfg), attend_product = M.product(cfg, "attend_dtype"),
                 sums = types.by_name[cfg.sum_dtype],
                 arrays = in_memory(cfg, "io_dtype", types.by_name[cfg.io_dtype]),
                 cache = in_memory(cfg, "cache_dtype",
                   cfg.cache == "none" and types.f32 or types.of_cache[cfg.cache_dtype]),
                 k_unroll = cfg.k_unroll or 4, k_block = cfg.k_block or 256,
                 straight = 400, -- at `auto` sums of up to 32 steps are straight code where a tile has so many FMAs
                 per_cycle = 2.0 * isa.lanes } -- flops at one FMA of a full vector a cycle
  plan.whole_p = #graph.sheets(cfg) > 0 -- the weights of all keys are kept, not of a block
  if not plan.cpu then refuse("cpu", cfg.cpu, ("has no isa = %s"):format(isa.name)) end
  plan.weights = of_weights(plan, cfg.weight_dtype)
  plan.value_weights = types.quants[cfg.value_weight_dtype] and of_weights(plan, cfg.value_weight_dtype) or plan.weights
  check_inputs(cfg)
  local formula = graph.of(cfg, plan.scores)
  paired.choose(plan, formula)
  blocks.choose(plan, formula)
  plan.attending = setmetatable({ product = plan.attend_product }, { __index = plan })
  plan.applying = setmetatable({ product = isas.by_vectors(plan.product) }, { __index = plan })
  local list = fold.rewrite(formula, plan)
  plan.flops, plan.folded_flops = 2.0 * graph.macs(formula) * cfg.batch, 2.0 * graph.macs(list) * cfg.batch
  plan.cycles = 2.0 * graph.macs(list) / plan.per_cycle
  plan.work = work_of(plan, formula)

  list = quantized.rewrite(plan, paired.rewrite(plan, with_steps(plan, list)))
  list = widen.rewrite(plan, context_rows.rewrite(plan, round.rewrite(plan, list)))
  local way = choose_way(plan, list)
  arrange(plan, list, way.lanes, way.hb, way.in_one)
  plan.stage = {}
  for _, stage in ipairs(plan.stages) do plan.stage[stage.name] = stage end
  plan.attend = plan.stage.attend
  plan.fetch = fetch.choose(plan)
  if not plan.step then choices.add(plan.why, "attend_lanes") end
  tell_head_block(plan)
  if way.in_one then
    choices.add(plan.why, "joint")
  elseif plan.stage.keys and plan.stage.values and cfg.attention == "self" then
    choices.add(plan.why, "separate")
  end
  groups.finish(plan)
  local output = plan.stage.output
  plan.cost = way.cost + (output and kinds.of(output).plan(plan, output) or 0)
  plan_tasks(plan)
  plan_memory(plan)
  plan_order(plan)
  plan.error = error_of(plan)
  plan.unit = 0
  for _, type in ipairs(M.types(plan)) do plan.unit = math.max(plan.unit, type.unit) end
  local quant = types.quants[cfg.weight_dtype]
  plan.error_scores = quant and quant.scores or 16
  quantized.tell(plan)
  walk.check_tasks(plan)
  return plan
end

return M
