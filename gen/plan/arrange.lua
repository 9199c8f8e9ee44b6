-- The arrangement of a plan: the lanes of the query projection, how many heads are projected together, which
-- projections are joined, and the tiles. Each possible arrangement is a value, and the cheapest one is taken.
--
--   M.best(plan, list) -> an arrangement for the list of stages that plan/rewrites.lua has made of the formula
--   q_lanes          "columns", "queries", or "none" where Q is not projected
--   hb, head_blocks  heads of a block, and the number of blocks
--   in_one           whether projections that read the same rows are one product
--   stages, groups   the list with its tiles, without those of the output; the groups of queries
--   cost             of all stages but the output, in FMA slots

local choices = require "base.choices"
local costs = require "schedule.costs"
local fetch = require "schedule.fetch"
local graph = require "graph.init"
local groups = require "schedule.groups"
local joint = require "rewrite.joint"
local kinds = require "stage.init"
local lanes_of = require "plan.lanes"
local memory = require "schedule.memory"
local queries_of = require "rewrite.queries"
local rewrites = require "plan.rewrites"
local tiles = require "schedule.tiles"
local transpose = require("stage.convert").transpose

local M = {}

-- The fields of an arrangement that become fields of the plan.
M.fields = { "q_lanes", "hb", "head_blocks", "in_one", "stages", "groups" }

-- The arrangement for given lanes, heads of a block, and joint or separate products. It inherits what the plan has
-- decided.
local function arrange(plan, list, q_lanes, hb, in_one)
  local own = setmetatable({ q_lanes = q_lanes, hb = hb, head_blocks = plan.cfg.h // hb, in_one = in_one },
    { __index = plan })
  own.stages = rewrites.apply(rewrites.of_arrangement, own, list)
  local cost = 0
  for i = 1, #own.stages do
    local stage = own.stages[i]
    local one, fields = 0, nil
    if stage.nest ~= "groups" then one, fields = kinds.ask("plan", 0, own, stage) end
    own.stages = graph.planned(own.stages, i, fields)
    cost = cost + (stage.fill and 0 or one)
  end
  local attend
  own.groups, attend = groups.plan(own, own.stages, hb, graph.macs(own.stages))
  own.stages = rewrites.apply(rewrites.of_groups, own, own.stages)
  own.cost = (cost + attend) * own.head_blocks
  return own
end

-- Whether the projected rows of a block of heads stay in cache: in the half of L2 that counts, or because they are
-- narrow.
local function stays_near(plan)
  local cfg = plan.cfg
  local widest = math.max(cfg.dk, cfg.dv)
  local bytes = memory.BYTES * widest * (plan.hb * cfg.seq + 2 * (cfg.h_kv // plan.head_blocks) * cfg.seq_kv)
  local near = plan.hb * widest <= 256 or bytes <= plan.cpu.cached
  for _, stage in ipairs(plan.stages) do near = near and kinds.ask("stays_near", true, plan, stage) end
  return near
end

-- The cheapest number of heads to project together. More columns waste fewer lanes, and fewer columns stay in cache.
local function choose_head_block(plan, list, lanes, in_one)
  local cfg = plan.cfg
  local best
  local least = cfg.h // cfg.h_kv -- heads that share keys and values stay together
  if lanes_of.spans_heads(list) then least = cfg.h end
  local most = lanes_of.cached(plan) and least or lanes_of.one_head(list, lanes) and 1 or cfg.h
  for hb = cfg.head_block or least, cfg.head_block or most, least do
    if cfg.h % hb == 0 then
      local own = arrange(plan, list, lanes, hb, in_one)
      if (hb == least or hb == cfg.head_block or stays_near(own)) and (not best or own.cost < best.cost * 0.995) then
        best = own
      end
    end
  end
  return best
end

-- The better of the possible lanes, with separate projections or (in_one) a joint one. With a joint product, lanes over
-- queries are also charged with the transposition of X.
local function choose_lanes(plan, list, possible, in_one)
  local cfg, projected = plan.cfg, graph.projection(list, graph.attend(list).queries)
  local found = {}
  for i, lanes in ipairs(possible) do found[i] = choose_head_block(plan, list, lanes, in_one) end
  local queries, columns = table.unpack(found)
  if not columns then return queries end
  if cfg.q_len then return columns end
  local function cheaper(name, other)
    return costs.below(plan, name, columns.cost / other) and columns or queries
  end
  if in_one then return cheaper("columns_joint", queries.cost + transpose.cost(plan)) end
  local waits = tiles.far(plan, cfg.seq) and (cfg.seq == 1 or fetch.kind(plan) == "ahead") and not projected.merged
  local one, narrow = cfg.seq <= plan.isa.lanes, plan.isa.widths[2]
  local narrower = narrow and cfg.seq == narrow.lanes
  return cheaper(one and waits and "columns_far" or one and not narrower and "columns_one_vector"
    or projected.merged and cfg.h > 1 and "columns_merged" or "columns_several", queries.cost)
end

-- The best arrangement. Projections are joined if that fills lanes which would be idle in separate ones.
local function choose_products(plan, list, possible)
  local key, joinable = plan.cfg.qkv, {}
  for _, lanes in ipairs(key ~= "separate" and possible or {}) do
    if not joint.against(plan, queries_of.moved(list, lanes)) then joinable[#joinable + 1] = lanes end
  end
  local one = joinable[1] and choose_lanes(plan, list, joinable, true)
  if key == "joint" then return one end
  local several = choose_lanes(plan, list, possible, false)
  if not one then return several end
  local function total(own) return own.cost + (own.q_lanes == "queries" and transpose.cost(plan) or 0) end
  local same = choose_head_block(plan, list, one.q_lanes, false)
  if total(one) >= total(several) then return several end
  local name = fetch.kind(plan) == "shares" and "joint_fetched" or "joint_alone"
  return costs.below(plan, name, one.cost / same.cost) and one or several
end

-- ---- why ----

local function tell_head_block(plan)
  local cfg, whole = plan.cfg, lanes_of.spans_heads(plan.stages)
  local free = not cfg.head_block and not lanes_of.cached(plan) and not whole
  if plan.hb > 1 and free then choices.add(plan.why, "head_block") end
  choices.say(plan.why, ("%d of %d heads projected together"):format(plan.hb, cfg.h),
    whole and "norm_span = all is a norm of all of them"
    or lanes_of.cached(plan) and "those that share keys and values, which lie head by head in a cache"
    or cfg.head_block and "as head_block says" or "the least cost by the model")
end

local function tell_products(plan)
  local keys, values = graph.origin(plan.stages, plan.attend.keys), graph.origin(plan.stages, plan.attend.values)
  if plan.in_one then
    choices.add(plan.why, "joint")
  elseif keys and values and plan.cfg.attention == "self" then
    choices.add(plan.why, "separate")
  end
end

-- Adds the reasons for the arrangement. The reasons for its lanes are added where they are chosen.
function M.tell(plan)
  if plan.attend.passes then return end
  tell_head_block(plan)
  tell_products(plan)
end

function M.best(plan, list)
  local possible = lanes_of.possible(plan, list)
  local best = choose_products(plan, list, possible)
  lanes_of.tell(plan, list, best.q_lanes, possible)
  return best
end

return M
