-- Decode steps: few queries that read all of a long cache. With queries in the lanes most lanes would be idle; so they
-- are keys in scores and softmax, and columns of V in the context, and rows of both are read as vectors, where the
-- cache has them. The code is emit/step.lua's.

local choices = require "choices"
local tiles = require "tiles"
local types = require "types"

local M = {}

M.VECTORS = 4 -- of scores that become weights together; a row of weights has a margin of so many

local KEY_BLOCK = 64 -- keys of one chain of sums in the context, as groups.key_block

-- Keys of a tile of scores: whole vectors of them, whose sums are about enough to wait for no FMA.
local function tile_keys(plan)
  return tiles.round_up(math.floor(plan.cpu.latency * plan.cpu.fmas), plan.isa.lanes)
end

-- Whether there are so few that lanes over them would be idle for the most part.
function M.few_queries(plan) return plan.cfg.seq * 4 <= plan.isa.lanes end

-- What stands against it, as functions of the plan and the stage `attend`, the first one counts.
local against = {
  function(plan)
    if not M.few_queries(plan) then
      return "lanes over keys would read the cache once for each query, and pay for up to a query for four lanes"
    end
  end,
  function(plan)
    if plan.cfg.seq_kv < tile_keys(plan) then
      return ("lanes over keys take %d keys at a time"):format(tile_keys(plan))
    end
  end,
  function(plan)
    if plan.cfg.unroll == "full" then return "straight code has no loop over the keys that a cache has now" end
  end,
  function(plan)
    for _, key in ipairs { "query_vectors", "key_rows", "context_rows" } do
      if plan.cfg[key] then return key .. " is given, which is about lanes over queries" end
    end
  end,
  function(plan)
    if plan.scores.shown then return "scores are written with lanes over queries" end
  end,
  function(plan)
    if plan.product.integers then return "integers are made of a context with lanes over queries" end
  end,
  function(plan)
    local exact = plan.product.b == types.f32 and plan.attend_product.b == types.f32
    if not exact and plan.cache == types.f32 then return "operands of products are rounded as they are read" end
  end,
  function(plan, attend)
    local columns = tiles.vector_blocks(plan.isa, attend.breadth, 1)
    local last = columns[#columns].vecs[1]
    if attend.values.exact and plan.cache == types.f32 and last.used < last.w.lanes then
      return "rows of V in this cache are no whole vectors, and nothing may be read behind them"
    end
  end,
}

-- Decides whether a plan has steps.
function M.choose(plan, attend)
  if plan.cfg.cache == "none" then return end
  for _, reason in ipairs(against) do
    local found = reason(plan, attend)
    if found then
      choices.say(plan.why, "no lanes over keys in attend", found)
      return
    end
  end
  local step = { keys = tile_keys(plan), block = plan.cfg.key_block or KEY_BLOCK }
  plan.step = step
  choices.add(plan.why, "key_lanes")
  if plan.cache == types.f32 then return end
  choices.add(plan.why, "wide_rows")
  local rows = math.max(step.keys, math.min(KEY_BLOCK, plan.cfg.seq_kv) // step.keys * step.keys)
  step.wide = { keys = rows, values = math.min(step.block, plan.cfg.seq_kv),
                key_row = tiles.round_up(attend.depth, plan.isa.lanes),
                value_row = tiles.round_up(attend.breadth, plan.isa.lanes) }
end

-- Numbers that the rows take which are widened together: keys, and then values.
function M.wide_count(step)
  return math.max(step.wide.keys * step.wide.key_row, step.wide.values * step.wide.value_row)
end

-- Fills in the tiles of the context: rows are the heads that share keys and values. Returns the cost of all that is
-- done for the queries of a head.
function M.plan(plan, attend)
  local cfg, step, lanes = plan.cfg, plan.step, plan.isa.lanes
  local cost
  step.product, cost = tiles.columns(plan, { rows = "context_rows", vectors = "query_vectors" },
    { { rows = attend.share, count = 1 } }, attend.breadth, step.block, "rows")
  step.p_row = tiles.round_up(cfg.seq_kv + M.VECTORS * lanes, lanes)
  local scores = tiles.ceil_div(attend.depth, lanes) * lanes + 3 * (lanes - 1)
  return cfg.seq * (cfg.seq_kv / lanes * scores + cfg.seq_kv / step.block * cost / attend.share)
end

return M
