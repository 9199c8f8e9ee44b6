-- From a checked config and an ISA to the plan: the list of stages with all that emitters follow and `explain`
-- prints. Plain data.
--
--   transpose   X[q][d_model] of a group of queries -> XT[d_model][group width]
--   sums        of the quadrants of X, where projections are made of quadrants
--   keys_values K[key][hb*dk] = X Wk + bk, V[key][hb*dv] = X Wv + bv, Q with lanes over columns as well,
--               for a block of hb heads
--   attend      Q^T = Wq^T XT (q), then per head S^T, softmax and O^T[dv][group width]
--   output      Y = O Wo + bo, one product over all heads
--
-- The lanes of a vector are queries in transpose and attend, columns in keys_values and output.

local choices = require "choices"
local cpu = require "cpu"
local fold = require "fold"
local graph = require "graph"
local groups = require "groups"
local isas = require "isa.init"
local kinds = require "stage.init"
local memory = require "memory"
local score = require "score.init"
local quadrants = require "stage.quadrants"
local tiles = require "tiles"
local types = require "types"
local walk = require "walk"

local ceil_div, refuse = tiles.ceil_div, tiles.refuse

local M = {}

-- ---- the choice of lanes and heads ----

-- The list with the queries' product where its lanes put it. Lanes over columns: behind keys and values. Lanes over
-- queries: in attention, which needs X transposed; merged weights are applied for each head.
local function with_queries(list, lanes)
  local queries, moved = graph.find(list, "queries"), nil
  if lanes == "columns" then
    moved = queries
  else
    local transpose = { name = "transpose", kind = "transpose", macs = function() return 0.0 end }
    table.insert(list, 1, transpose)
    if not queries.merged then
      return graph.edited(list, { queries = { graph.with(queries, { name = "query", kind = "apply" }) } })
    end
    moved = graph.with(queries, { name = "key_query", kind = "apply", per = "head" })
  end
  local next_one = graph.find(list, "key_query") or graph.find(list, "attend")
  return graph.edited(list, { queries = {}, [next_one.name] = { moved, next_one } })
end

-- Fills in the list of stages, for a choice of lanes and of heads together, and the tiles but those of the output.
-- Returns their cost for a block of heads.
local function arrange(plan, list, lanes, hb)
  plan.q_lanes, plan.hb, plan.head_blocks = lanes, hb, plan.cfg.h // hb
  plan.stages = quadrants.rewrite(plan, with_queries(graph.edited(list, {}), lanes))
  local cost = 0
  for _, stage in ipairs(plan.stages) do
    if stage.kind ~= "output" then cost = cost + kinds.ask("plan", 0, plan, stage) end
  end
  local attend
  plan.groups, attend = groups.plan(plan, plan.stages, hb)
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

-- Heads projected together, and the cost: more columns waste fewer lanes, fewer columns stay in the cache.
local function choose_head_block(plan, list, lanes)
  local cfg = plan.cfg
  local best, best_cost
  local least = cfg.h // cfg.h_kv -- heads that share keys and values are together
  for hb = cfg.head_block or least, cfg.head_block or one_head(list, lanes) and 1 or cfg.h, least do
    if cfg.h % hb == 0 then
      local cost = arrange(plan, list, lanes, hb) * (cfg.h // hb)
      if (hb == least or hb == cfg.head_block or stays_near(plan)) and (not best or cost < best_cost * 0.995) then
        best, best_cost = hb, cost
      end
    end
  end
  return best, best_cost
end

local function tell_head_block(plan)
  local cfg = plan.cfg
  if plan.hb > 1 and not cfg.head_block and not plan.stage.sums then choices.add(plan.why, "head_block") end
  choices.say(plan.why, ("%d of %d heads projected together"):format(plan.hb, cfg.h),
    cfg.head_block and "as head_block says" or "the least cost by the model")
end

-- What the cost of lanes over columns in the query projection may be, of that of lanes over queries: the
-- model does not know that X needs no transposition then, nor that one vector of queries is in the nearest
-- cache all the time. Merged weights have X transposed once for all heads, but the queries of each.
local COLUMNS = { one_vector = 0.95, several = 1.03, merged = 0.98 }

-- The keys that nothing would obey, or not as they are given, with these lanes in the query projection, each with
-- the rule.
local function disobeyed(plan, list, lanes)
  local cfg = plan.cfg
  local found = {}
  local function unless_obeyed(key, rule)
    if cfg[key] then found[#found + 1] = { key, cfg[key], rule } end
  end
  if lanes == "columns" and not graph.find(list, "key_query") and not graph.find(list, "value_context") then
    unless_obeyed("q_rows", "has no effect with q_lanes = columns: no product has lanes over queries")
  end
  if lanes == "queries" and not graph.find(list, "keys") and not graph.find(list, "values") then
    local rule = "has no effect with q_lanes = queries where neither K nor V is projected; with fold = off both are"
    unless_obeyed("kv_rows", rule)
    unless_obeyed("kv_vectors", rule)
  end
  if one_head(list, lanes) and cfg.head_block ~= 1 then
    unless_obeyed("head_block", "must be 1 with q_lanes = columns where Wq Wk^T is made when packing")
  end
  return found
end

-- The lanes of the product that makes the queries: queries, as in all of attend, or columns, and the
-- product is transposed then; the heads projected together; the cost of all but the output.
local function choose_lanes(plan, list)
  local cfg = plan.cfg
  local refused, ways = {}, {}
  for _, lanes in ipairs { "queries", "columns" } do
    if lanes == (cfg.q_lanes or lanes) then
      local first = disobeyed(plan, list, lanes)[1]
      refused[#refused + 1] = first
      if not first then ways[#ways + 1] = lanes end
    end
  end
  if #ways == 0 then refuse(table.unpack(refused[1])) end
  for i, lanes in ipairs(ways) do ways[i] = { lanes, choose_head_block(plan, list, lanes) } end
  local queries, columns = table.unpack(ways)
  if not columns then
    choices.say(plan.why, ("lanes are %s in the query projection"):format(queries[1]),
      cfg.q_lanes and "as q_lanes says" or "the only way in which the given keys have an effect")
    return table.unpack(queries)
  end
  local most = cfg.seq <= plan.isa.lanes and COLUMNS.one_vector
    or graph.find(list, "queries").merged and cfg.h > 1 and COLUMNS.merged or COLUMNS.several
  local by_columns = columns[3] < most * queries[3]
  choices.add(plan.why, by_columns and "q_columns" or "q_queries")
  return table.unpack(by_columns and columns or queries)
end

-- ---- all of it ----

-- Parallel tasks: of a batch entry, head blocks times ranges of groups.
local function plan_tasks(plan)
  local batch = plan.cfg.batch
  plan.resident = math.min(batch, math.max(8, ceil_div(batch, 64)))
  local wanted = ceil_div(16, plan.resident * plan.head_blocks)
  plan.groups_per_task = ceil_div(plan.group_count, math.min(wanted, plan.group_count))
  plan.attend_tasks = ceil_div(plan.group_count, plan.groups_per_task)
end

-- The sections of memory, and the sizes of the two buffers.
local function plan_memory(plan)
  plan.memory = memory.lay(plan, function(_, stage, add) kinds.ask("sections", nil, plan, stage, add) end)
  plan.packed, plan.workspace = plan.memory.packed, plan.resident * plan.memory.entry.total
  memory.check_size(plan.cfg, "d_model", "packed", plan.packed.total)
  memory.check_size(plan.cfg, "batch", "the workspace", plan.workspace)
  plan.packed_bytes, plan.workspace_bytes = memory.BYTES * plan.packed.total, memory.BYTES * plan.workspace
end

-- The stages by name; those that are walked, with their phase, axes and cycles.
local function plan_order(plan)
  plan.walked = {}
  for _, stage in ipairs(plan.stages) do
    local kind = kinds.of(stage)
    if kind.phase then
      stage.phase, stage.title, stage.per = kind.phase, kind.title, kind.per
      stage.axes, stage.cycles = kind.axes(plan, stage), kinds.cycles(plan, stage)
      plan.walked[#plan.walked + 1] = stage
    end
  end
end

-- What ||y - ref|| / ||ref|| is at most: that of the operands' type, more where a stage rounds more.
local function error_of(plan)
  local factor = 1
  for _, stage in ipairs(plan.stages) do factor = math.max(factor, kinds.of(stage).error or 1) end
  return plan.product.a.error * factor
end

local function check_inputs(cfg)
  memory.check_size(cfg, "seq", "q", cfg.batch * cfg.seq * cfg.d_model)
  memory.check_size(cfg, "seq_kv", "k", cfg.batch * cfg.seq_kv * cfg.k_width)
  memory.check_size(cfg, "seq_kv", "v", cfg.batch * cfg.seq_kv * cfg.v_width)
  memory.check_size(cfg, "seq", "y", cfg.batch * cfg.seq * cfg.y_width)
  if cfg.probs then memory.check_size(cfg, "probs", "probs", cfg.batch * cfg.h * cfg.seq * cfg.seq_kv) end
end

-- What the ISA multiplies the operands of a config with.
function M.product(cfg) return isas.product(isas.list[cfg.isa], types.by_name[cfg.dtype]) end

function M.build(cfg)
  local isa = isas.list[cfg.isa]
  local plan = { cfg = cfg, isa = isa, product = M.product(cfg), why = {}, cpu = cpu.facts(cfg.cpu, isa),
                 scores = score.of(cfg),
                 whole_p = cfg.probs, -- the weights of all keys are kept, not of a block
                 k_unroll = cfg.k_unroll or 4, k_block = cfg.k_block or 256,
                 straight = 400, -- at `auto` sums of up to 32 steps are straight code where a tile has so many FMAs
                 per_cycle = 2.0 * isa.lanes } -- flops at one FMA of a full vector a cycle
  if not plan.cpu then refuse("cpu", cfg.cpu, ("has no isa = %s"):format(isa.name)) end
  check_inputs(cfg)
  local formula = graph.of(cfg, plan.scores)
  local list = fold.rewrite(formula, plan)
  plan.flops, plan.folded_flops = 2.0 * graph.macs(formula) * cfg.batch, 2.0 * graph.macs(list) * cfg.batch
  plan.cycles = 2.0 * graph.macs(list) / plan.per_cycle

  local lanes, hb, cost = choose_lanes(plan, list)
  arrange(plan, list, lanes, hb)
  plan.stage = {}
  for _, stage in ipairs(plan.stages) do plan.stage[stage.name] = stage end
  plan.attend = plan.stage.attend
  choices.add(plan.why, "attend_lanes")
  tell_head_block(plan)
  if plan.stage.keys and plan.stage.values and cfg.attention == "self" then choices.add(plan.why, "separate") end
  groups.finish(plan)
  plan.cost = cost + kinds.of(plan.stage.output).plan(plan, plan.stage.output)
  plan_tasks(plan)
  plan_memory(plan)
  plan_order(plan)
  plan.error = error_of(plan)
  walk.check_tasks(plan)
  return plan
end

return M
