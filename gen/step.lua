-- Decode steps: few queries that read all of a long cache. With queries in the lanes most lanes would be idle; so they
-- are keys in scores and softmax, and columns of V in the context, and rows of both are read as vectors, where the
-- cache has them. The code is emit/step.lua's.

local choices = require "choices"
local tiles = require "tiles"
local types = require "types"

local M = {}

M.VECTORS = 4 -- of scores that become weights together; a row of weights has a margin of so many

local HEADS = 4 -- of those that share a row of keys, which are multiplied together: by queries in registers

local KEY_BLOCK = 64 -- keys of one chain of sums in the context, as groups.key_block

-- Keys of a tile of scores: whole vectors of them, whose sums are about enough to wait for no FMA.
local function tile_keys(plan)
  return tiles.round_up(math.floor(plan.cpu.latency * plan.cpu.fmas), plan.isa.lanes)
end

-- Whether there are so few that lanes over them would be idle for the most part.
function M.few_queries(plan) return plan.cfg.seq * 4 <= plan.isa.lanes end

-- Heads of those that share keys which are multiplied together, a power of two.
local function together(plan, attend)
  local heads = 1
  while heads < math.min(HEADS, plan.isa.lanes) and attend.share % (2 * heads) == 0 do heads = 2 * heads end
  return heads
end

local function about_queries(key)
  return { function(plan) return plan.cfg[key] end, key .. " is given, which is about lanes over queries" }
end

-- What stands against it, of a plan and the stage `attend`.
local against = {
  { function(plan) return not M.few_queries(plan) end,
    "lanes over keys would read the cache once for each query, and pay for up to a query for four lanes" },
  { function(plan) return plan.cfg.seq_kv < tile_keys(plan) end,
    function(plan) return ("lanes over keys take %d keys at a time"):format(tile_keys(plan)) end },
  { function(plan) return plan.cfg.unroll == "full" end,
    "straight code has no loop over the keys that a cache has now" },
  about_queries "query_vectors", about_queries "key_rows", about_queries "context_rows",
  { function(plan) return plan.scores.shown end, "scores are written with lanes over queries" },
  { function(plan) return plan.product.integers end, "integers are made of a context with lanes over queries" },
  { function(plan)
      local exact = plan.product.b == types.f32 and plan.attend_product.b == types.f32
      return not exact and plan.cache == types.f32
    end, "operands of products are rounded as they are read" },
  { function(plan, attend)
      local columns = tiles.vector_blocks(plan.isa, attend.breadth, 1)
      local last = columns[#columns].vecs[1]
      return attend.values.exact and plan.cache == types.f32 and last.used < last.w.lanes
    end, "rows of V in this cache are no whole vectors, and nothing may be read behind them" },
}

-- Decides whether a plan has steps.
function M.choose(plan, attend)
  if plan.cfg.cache == "none" then return end
  local found = choices.against(against, plan, attend)
  if found then return choices.say(plan.why, "no lanes over keys in attend", found) end
  local step = { keys = tile_keys(plan), heads = together(plan, attend), block = plan.cfg.key_block or KEY_BLOCK }
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
  step.product, cost = tiles.columns(plan.attending, { rows = "context_rows", vectors = "query_vectors" },
    { { rows = attend.share, count = 1 } }, attend.breadth, step.block, "rows")
  step.p_row = tiles.round_up(cfg.seq_kv + M.VECTORS * lanes, lanes)
  local scores = tiles.ceil_div(attend.depth, lanes) * lanes + 3 * (lanes - 1)
  return cfg.seq * (cfg.seq_kv / lanes * scores + cfg.seq_kv / step.block * cost / attend.share)
end

return M
