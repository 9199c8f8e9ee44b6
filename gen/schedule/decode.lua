-- Decode steps: few queries that read all of a long cache. With queries in the lanes, most lanes would be idle. So
-- lanes run over keys in scores and softmax, and over columns of V in the context. Rows of K and V are read as vectors,
-- in place, from the cache or the inputs. emit/decode.lua records the code.

local choices = require "base.choices"
local cut = require "schedule.cut"
local fetch = require "schedule.fetch"
local isas = require "isa.init"
local tiles = require "schedule.tiles"
local types = require "machine.types"
local ways = require "way.init"

local M = {}

M.STEPS = 32767.0 -- the largest magnitude of 16-bit integers

M.VECTORS = 4 -- vectors of scores that become weights together; rows of weights are padded for them

local HEADS = 4 -- the most heads sharing a row of keys that are multiplied at once, with their queries in registers

local FEW = 32 -- ISAs with fewer registers do not hold the queries as well

local AHEAD = 8192 -- bytes of a head's keys or values between what is read and what is prefetched

local KEY_BLOCK = ways.list.outer.key_block -- keys in one chain of sums of the context

-- Keys of a tile of scores: whole vectors, with about enough sums in flight to hide the FMA latency.
local function tile_keys(plan)
  return tiles.round_up(math.floor(plan.cpu.latency * plan.cpu.fmas), plan.isa.lanes)
end

-- Whether there are so few queries that most lanes would be idle with queries in the lanes.
function M.few_queries(plan) return plan.cfg.seq * 4 <= plan.isa.lanes end

-- How many of the heads that share keys are multiplied at once, a power of two. Few registers do not hold the queries
-- too. Then it pays only if rows have to be widened: avx2 in float32 is 2 to 11 % slower.
local function together(plan, attend)
  local heads = 1
  if plan.cache == types.f32 and plan.isa.registers < FEW then return heads end
  while heads < math.min(HEADS, plan.isa.lanes) and attend.share % (2 * heads) == 0 do heads = 2 * heads end
  return heads
end

-- Integer products, for int8 rows that heads share: the scheme, and blocks of heads. They need whole vectors of words
-- in a row, and four vectors of keys.
local function integers(plan, attend, block)
  local scheme, lanes = isas.of_bytes_in_cache(plan.isa), plan.isa.lanes
  local columns = 4 * lanes
  local whole = attend.depth % columns == 0 and attend.breadth % columns == 0 and block % (2 * lanes) == 0
  local side_by_side = attend.keys.row == attend.depth and attend.values.row == attend.breadth
  local floats = attend.scheme.b.round or not plan.cache.scaled or attend.share < HEADS
  local fits = math.max(attend.depth, block) * M.STEPS * 127 < 2 ^ 31
  if not scheme or floats or not (whole and side_by_side and fits)
    or plan.cfg.seq_kv < math.max(columns, block) then return nil end
  choices.add(plan.why, "cache_words")
  return { scheme = scheme, runs = { cut.balanced(attend.share, scheme.rows.rows[4]) } }
end

local function about_queries(key)
  return { function(plan) return plan.cfg[key] end, key .. " is given, which is about lanes over queries" }
end

-- Reasons against decode steps, for a plan and its stage `attend`.
local against = {
  { function(plan) return not M.few_queries(plan) end,
    "lanes over keys would read the cache once for each query, and pay for up to a query for four lanes" },
  { function(plan) return plan.cfg.seq_kv < tile_keys(plan) end,
    function(plan) return ("lanes over keys take %d keys at a time"):format(tile_keys(plan)) end },
  { function(plan) return plan.cfg.unroll == "full" end,
    "straight code has no loop over the keys that a cache has now" },
  about_queries "query_vectors", about_queries "key_rows", about_queries "context_rows",
  { function(plan) return plan.scores.shown end, "scores are written with lanes over queries" },
  { function(plan, attend)
      local exact = (plan.scheme.b == types.f32 or plan.scheme.integers) and attend.scheme.b == types.f32
      return not exact and plan.cache == types.f32
    end, "operands of products are rounded as they are read" },
  { function(plan, attend)
      local columns = tiles.vector_runs(plan.isa, attend.breadth, 1)
      local last = columns[#columns].vecs[1]
      return attend.values.exact and plan.cache == types.f32 and last.used < last.w.lanes
    end, "rows of V in this cache are no whole vectors, and nothing may be read behind them" },
  { function(plan, attend)
      local lanes = plan.isa.lanes
      return attend.keys.at == "input" and attend.depth % lanes > 0 or
        attend.values.at == "input" and attend.breadth % lanes > 0
    end, "rows of the inputs are no whole vectors, and nothing may be read behind them" },
}

-- The decode step of a plan, or nil: keys of a tile of scores, heads that are multiplied at once, keys of a block of
-- the context, and the scheme of integer products. `planned` adds the prefetch distance, and the tiles of the context.
function M.choose(plan, attend)
  local found = choices.against(against, plan, attend)
  if found then return choices.say(plan.why, "no lanes over keys in attend", found) end
  local heads, block = together(plan, attend), plan.cfg.key_block or KEY_BLOCK
  choices.add(plan.why, "key_lanes")
  local words = plan.cache ~= types.f32 and integers(plan, attend, block) or nil
  if plan.cache ~= types.f32 and not words then
    choices.add(plan.why, "widened")
    if plan.cache.scaled and not attend.scheme.b.round then choices.add(plan.why, "scales_last") end
  end
  return { keys = words and 4 * plan.isa.lanes or tile_keys(plan), heads = heads, block = block, words = words }
end

-- Whether the hardware prefetcher keeps up: with float32, unless four heads share the rows.
local function comes_by_itself(plan, step, side_by_side)
  return plan.cache == types.f32 and (step.heads < HEADS or not side_by_side)
end

-- How rows of a longer cache are prefetched: how far ahead, in tiles of keys and in blocks of V.
--
--   beside    rows of keys are contiguous, so each vector of columns prefetches at least a cache line of later keys
--   numbers   how many numbers each step of a tile of the context prefetches, if rows of V are contiguous
local function ahead(plan, attend, product)
  local step, bytes, side_by_side = attend.step, plan.cache.stored.bytes, attend.keys.row == attend.depth
  local rows = AHEAD // (math.max(attend.depth, attend.breadth) * bytes)
  if not plan.isa.rows.prefetch or plan.cfg.seq_kv <= math.max(rows, step.block) then return nil end
  if comes_by_itself(plan, step, side_by_side) then return nil end
  choices.add(plan.why, "fetched")
  local panels = step.words and attend.breadth // (4 * plan.isa.lanes) or product.panels
  local numbers = attend.breadth // (panels * tiles.count(step.words or product))
  return { tiles = tiles.ceil_div(rows, step.keys), blocks = tiles.ceil_div(rows, step.block),
           beside = side_by_side and step.keys // step.heads * plan.isa.lanes * bytes >= fetch.LINE,
           numbers = attend.values.row == attend.breadth and numbers > 0 and numbers or nil }
end

-- The decode step with the tiles of the context and their cost. Their rows are the heads that share keys and values.
function M.planned(plan, attend)
  local step, lanes = attend.step, plan.isa.lanes
  local product, cost = tiles.columns(plan.attending, { rows = "context_rows", vectors = "query_vectors" },
    { { rows = attend.share, count = 1 } }, attend.breadth, { steps = step.block, order = "rows" })
  return { keys = step.keys, heads = step.heads, block = step.block, words = step.words, product = product,
           cost = cost, ahead = ahead(plan, attend, product),
           seen_row = attend.values.type and tiles.round_up(attend.breadth, lanes) or attend.values.row,
           p_row = tiles.round_up(plan.cfg.seq_kv + M.VECTORS * lanes, lanes) }
end

-- The cost of attention for the queries of a head.
function M.of_group(plan, _, attend)
  local cfg, step, lanes = plan.cfg, attend.step, plan.isa.lanes
  local scores = tiles.ceil_div(attend.depth, lanes) * lanes + 3 * (lanes - 1)
  return cfg.seq * (cfg.seq_kv / lanes * scores + cfg.seq_kv / step.block * step.cost / attend.share),
    { key_rows = 1 }
end

return M
