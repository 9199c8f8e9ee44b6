-- Tiles of scores as functions. A tile has some keys and the queries of a group, and the softmax is fused into it.
--
--   buffered(K)                           how a tile's products go to a buffer before its softmax, if they do
--                                         (way/init.lua)
--   products(K, group, ptrs, key, rows)   only these sums, stored at ptrs.sums
--   record(K, group, ptrs, tile)          a tile of scores
--   weigh(K, group, ptrs, tile)           the weights of a tile whose scores are stored

local choices = require "base.choices"
local score = require "score.init"
local softmax = require "emit.softmax"
local statistics = require "emit.stats"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local M = {}

-- The field of way/init.lua, for the product kernel of attention.
function M.buffered(K) return ways.of(K.plan.attend.scheme).buffered end

-- K steps of a score.
local function depth_of(plan) return tiles.words(plan.attend.scheme, plan.attend.depth) end

-- K steps that one chain of a score has.
local function chain_of(plan)
  local chunks = tiles.score_chunks(plan.attending, depth_of(plan))
  return chunks and chunks.size or depth_of(plan)
end

-- The product of so many rows of keys with the queries of a group, as gemm.tile takes it.
local function product_of(plan, group, rows, k, q, unroll)
  local steps = depth_of(plan)
  return { scheme = plan.attend.scheme, name = "score_sums", rows = rows, vecs = group.vecs, unroll = unroll,
           steps = steps, chunks = tiles.score_chunks(plan.attending, steps),
           a = { p = k, row = plan.attend.keys.row, k_stride = 1 },
           b = { p = q, k_stride = group.width } }
end

-- One tile of scores. tile:
--
--   pass, key        one of softmax.passes; the first key
--   rows             number of keys, if it is not that of all tiles
--   p_at             where its weights go
--   kept             where its scores are stored
--   edge             whether some lanes do not see some of its keys
--   next             { key, rows }: the tile whose products are made meanwhile, where the two are interleaved
function M.record(K, group, ptrs, tile)
  local plan, pass, next = K.plan, tile.pass, tile.next
  local scores = pass.shows and plan.scores.shown or plan.scores
  local rows = tile.rows or group.keys.rows
  local function keys(key) return ptrs.k:at(key * plan.attend.keys.row) end
  local params = { { "k", "in", keys(tile.key) }, { "q", "in", ptrs.q }, { "stats", "out", ptrs.stats } }
  local ahead, made = pass.ahead and ptrs.sums, pass.stores and M.buffered(K)
  if pass.stores then
    params[made and 1 or 4] = { "s", "out", tile.kept }
  elseif ahead then
    params[1] = { "sums", "out", ptrs.sums }
    if next then table.insert(params, 2, { "next_k", "in", keys(next.key) }) end
  end
  if tile.p_at then params[#params + 1] = { "p", "out", ptrs.p:at(tile.p_at) } end
  params[#params + 1] = { "key", "int", tile.key }
  score.add_head_params(scores, params, ptrs.reads)
  local followed = not ahead and "" or not next and "_last" or next.rows < group.keys.rows and "_then_rest" or ""
  local word = pass.word .. (tile.edge and "_masked" or "") .. followed
  K:part(("scores%s_%dx%s"):format(word, rows, group.name), pass.doc, params, function(p)
    if chain_of(plan) < depth_of(plan) and not plan.cfg.k_block then choices.add(K.t.why, "score_chunks") end
    local unroll, chains = K:summing(plan.attend.scheme, rows, #group.vecs, chain_of(plan), tile.edge)
    local one = product_of(plan, group, rows, p.k, p.q, unroll)
    one.group, one.pass, one.chains, one.scores, one.key, one.edge = group, pass, chains, scores, p.key, tile.edge
    one.test, one.reads, one.out, one.stats = plan.attend.test_scores, p, p.p, p.stats
    one.kept = pass.stores and { p = p.s, row = group.width }
    if made then one.sums = p.s end
    if ahead then one.sums, one.next = p.sums, next and product_of(plan, group, next.rows, p.next_k, p.q, unroll) end
    softmax.tile(K.t, one)
  end)
end

-- The weights of a tile of `rows` keys whose scores are at `kept`; they go to p_at. With a mask, a score may be far
-- below m in any tile.
function M.weigh(K, group, ptrs, tile)
  local plan, p = K.plan, ptrs.p:at(tile.p_at)
  local params = { { "stats", "out", ptrs.stats }, { "p", "out", p } }
  if statistics.apart(plan) then table.insert(params, 1, { "s", "in", tile.kept }) end
  K:part(("weights_%dx%s"):format(tile.rows, group.name), softmax.passes.weighed.doc, params, function(of)
    softmax.weigh(K.t, {
      scheme = plan.attend.scheme, rows = tile.rows, group = group, pass = softmax.passes.weighed, scores = plan.scores,
      edge = plan.scores.masked, test = plan.attend.test_scores, out = of.p, stats = of.stats,
      kept = { p = of.s or of.p:as(of.stats.type), row = group.width },
    })
  end)
end

-- Only the products of a tile of keys, for the softmax that follows.
function M.products(K, group, ptrs, key, rows)
  local plan = K.plan
  K:part(("products_%dx%s"):format(rows, group.name), "Dot products of some keys, for the softmax that follows.", {
    { "k", "in", ptrs.k:at(key * plan.attend.keys.row) }, { "q", "in", ptrs.q }, { "sums", "out", ptrs.sums },
  }, function(p)
    local unroll = K:summing(plan.attend.scheme, rows, #group.vecs, chain_of(plan))
    M.buffered(K).products(K.t, product_of(plan, group, rows, p.k, p.q, unroll), p.sums)
  end)
end

return M
