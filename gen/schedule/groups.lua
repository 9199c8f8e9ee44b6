-- Groups of queries, which are the lanes of attention: the vectors of a group, and the tiles of its scores, of its
-- context and of products that are applied to it.

local choices = require "base.choices"
local costs = require "schedule.costs"
local cut = require "schedule.cut"
local tiles = require "schedule.tiles"
local ways = require "way.init"

local ceil_div = tiles.ceil_div

local M = {}

-- The cost of scores and context for one group and head, and their tiles (context, key_rows).
local function plan_attention(plan, group, attend)
  local cfg, target = plan.cfg, plan.attending
  local vecs, n, keys = group.vecs, #group.vecs, cfg.seq_kv
  local depth = tiles.words(target.scheme, attend.depth)
  -- The cost of copying K and V, if a tile behind a mask would touch rows that they do not have (stage/copy.lua).
  local copied = 0
  if plan.scores.masked then
    copied = (attend.keys.heads and attend.depth or 0) + (attend.values.heads and attend.breadth or 0)
    copied = 2 * keys * copied // plan.isa.lanes * group.used // (cfg.seq * attend.share)
  end
  local function score_cost(rows)
    local cost = keys // rows * tiles.cost(target, rows, vecs, depth, "rows")
    if keys % rows > 0 then cost = cost + tiles.cost(target, keys % rows, vecs, depth, "rows") + copied end
    return cost
  end
  local even = target.scheme.group > 1
  local fixed = ways.of(target.scheme).key_rows(plan.isa)
  local key_rows = fixed
    or tiles.choose_rows(target, "key_rows", keys, tiles.most_rows(target, n, "rows"), score_cost, even)
  local in_one_tile = not cfg.key_rows and not fixed and n == 1 and keys <= key_rows
  if in_one_tile and not costs.below(plan, "shared_from", keys) then
    key_rows = costs.fitted.shared_keys
    choices.add(group.why, "shared_keys")
  end
  local in_pairs = attend.context.pairs
  local share = group.count * group.used / cfg.seq -- with few queries, a second kind of tiles saves less of the total
  local function context_cost(kind)
    return tiles.rows_cost(target, attend.breadth, vecs, tiles.words(target.scheme, keys), in_pairs, kind)
  end
  local most = tiles.most_rows(target, n, "columns")
  local context_rows = tiles.choose_rows(target, "context_rows", attend.breadth, most,
    context_cost(share <= costs.given.few_queries and tiles.KIND / share or nil), in_pairs)
  return score_cost(key_rows) + context_cost()(context_rows),
    { context = cut.rows_in(attend.breadth, context_rows, in_pairs), key_rows = math.min(key_rows, keys) }
end

-- A table with the fields of two tables.
local function with(one, other)
  local both = {}
  for _, part in ipairs { one, other } do
    for field, value in pairs(part) do both[field] = value end
  end
  return both
end

-- A group with the tiles of all its products for `hb` heads, and their cost.
local function plan_group(plan, group, list, hb)
  local cfg, cost, products, of_attention = plan.cfg, 0, {}, nil
  for _, stage in ipairs(list) do
    if stage.context then cost, of_attention = (stage.of_group or plan_attention)(plan, group, stage) end
  end
  cost = cost * hb
  for _, stage in ipairs(list) do
    if stage.nest == "lanes" then
      local heads = stage.per == "head" and 1 or hb
      local rows = heads * stage.cols
      local steps = tiles.words(stage.scheme, stage.steps)
      local target = plan.applying
      local cost_of = tiles.rows_cost(target, rows, group.vecs, steps)
      local most = tiles.most_rows(target, #group.vecs, "columns")
      local height = tiles.choose_rows(target, "q_rows", rows, most, cost_of)
      products[stage.name] = {
        runs = cut.balanced(rows, height), rows = rows, steps = steps, chunks = tiles.k_chunks(target, steps) }
      local first = group.at == 0 and tiles.first_cost(target, cfg.seq, rows, rows, group.vecs, steps) or 0
      cost = cost + (cost_of(height) + first / group.count) * (hb // heads)
    end
  end
  return with(with(group, of_attention), { products = products }), cost
end

local keys = { { "q_rows", "columns" }, { "key_rows", "rows" }, { "context_rows", "columns" } }

-- Groups of so many vectors, and their cost for `hb` heads. whole: as in tiles.vector_runs.
local function groups_of(plan, list, hb, vectors, whole)
  local groups, cost = {}, 0
  for i, run in ipairs(tiles.vector_runs(plan.isa, plan.cfg.seq, vectors, whole)) do
    local group, own = plan_group(plan, with(run, { why = {} }), list, hb)
    groups[i], cost = group, cost + group.count * own
  end
  return groups, cost
end

-- The same groups, with full vectors in the last one too, if that hardly costs the kernel time.
local function with_same_tiles(plan, list, hb, macs, groups, cost)
  local first, last = groups[1].vecs, groups[#groups].vecs
  if #first ~= #last or first[#first].w == last[#last].w then return groups, cost end
  local same, same_cost = groups_of(plan, list, hb, #first, true)
  local slots = macs / (plan.isa.lanes * plan.attend.scheme.group)
  if (same_cost - cost) * plan.head_blocks > costs.given.same_tiles * slots then return groups, cost end
  choices.add(same[#same].why, "same_tiles")
  return same, same_cost
end

-- The groups with the number of vectors that makes attention cheapest, or that the schedule asks for, and their cost
-- for `hb` heads. macs: multiply-adds of the kernel. Fields of a group:
--   vecs, count, lanes         its vectors, how many such groups there are, the lanes of a vector
--   at                         its first query
--   used, width                queries and lanes
--   context, key_rows          its tiles
--   products                   by the names of stages
function M.plan(plan, list, hb, macs)
  local isa, cfg, whole = plan.isa, plan.cfg, ways.of(plan.attend.scheme).whole
  local best, best_cost
  for _, vectors in ipairs(tiles.vector_counts(plan.attending, "query_vectors", keys)) do
    local groups, cost = groups_of(plan, list, hb, vectors, whole and "equal")
    cost = cost * (1 + tiles.KIND * #groups)
    if not best or cost < best_cost then best, best_cost = groups, cost end
    if vectors * isa.lanes >= cfg.seq then break end
  end
  best, best_cost = with_same_tiles(plan, list, hb, macs, best, best_cost)
  if #best[1].vecs == 2 and (whole or cfg.d_model > tiles.LONG) and not cfg.query_vectors then
    choices.add(best[1].why, whole and "two_tiles" or "two_vectors")
  end
  return best, best_cost
end

-- The most keys that the schedule may put into a block, or nil. In float32, longer sums of equal terms would lose too
-- many digits.
function M.most_keys(scheme) return not scheme.b.round and ways.list.outer.key_block or nil end

-- The most keys of a block.
function M.key_block(plan) return plan.cfg.key_block or ways.of(plan.attend.scheme).key_block end

-- Returns `groups`, the groups with their keys in tiles and blocks, and with the places of their first queries and
-- groups among all. Also returns what they have in common:
--
--   group_count       number of groups
--   widest            lanes of the widest group
--   weights_floats    numbers in the weights of a group
--   block_scores      numbers in the scores of a block
--   kv_rows           keys that tiles touch
function M.finish(plan)
  local cfg = plan.cfg
  local all = { group_count = 0, widest = 0, weights_floats = 0, block_scores = 0, kv_rows = 0 }
  local groups = {}
  for kind, group in ipairs(plan.groups) do
    local rows, m = group.key_rows, cfg.seq_kv
    local count = ceil_div(m, rows)
    local usual = ways.list.outer.key_block
    local block = M.key_block(plan)
    local block_tiles = ceil_div(count, math.min(count, ceil_div(m, block)))
    local words = tiles.padded(plan.attend.scheme, tiles.words(plan.attend.scheme, rows))
    groups[kind] = with(group, {
      kind = kind, keys = { rows = rows, words = words, tiles = count, block_tiles = block_tiles,
                            blocks = ceil_div(count, block_tiles), rest = m % rows,
                            rises = count > 1 and m > costs.given.few_keys },
      name = group.used < group.width and group.used .. "of" .. group.width or tostring(group.used),
      first = all.group_count, q0 = group.at })
    if m > usual and not cfg.key_block then choices.add(group.why, block > usual and "tiled_block" or "key_block") end
    all.group_count = all.group_count + group.count
    all.widest = math.max(all.widest, group.width)
    local kept = plan.whole_p and count or block_tiles -- tiles whose weights are kept
    all.weights_floats = math.max(all.weights_floats, kept * words * group.width)
    -- Tile registers can only be stored whole.
    local scores = (block_tiles - 1) * rows + tiles.round_up(rows, plan.isa.tile or 1)
    all.block_scores = math.max(all.block_scores, scores * group.width)
    all.kv_rows = math.max(all.kv_rows, plan.scores.masked and count * rows or m)
    choices.join(plan.why, group.why)
  end
  for i, group in ipairs(groups) do groups[i] = with(group, { widest = all.widest }) end
  return with(all, { groups = groups })
end

-- Blocks of at most so many groups, { count, first, pieces } each, and their number. A piece is `count` groups of a
-- kind, from number `first` of the kind on; in the i-th of several equal blocks, from first + i * count on.
function M.blocks(plan, most)
  local blocks, total = {}, 0
  local function add(from, size)
    local pieces, last = {}, blocks[#blocks]
    for kind, group in ipairs(plan.groups) do
      local first = math.max(from, group.first)
      local count = math.min(from + size, group.first + group.count) - first
      if count > 0 then pieces[#pieces + 1] = { kind = kind, first = first - group.first, count = count } end
    end
    local one, other = pieces[1], last and last.pieces[1]
    if last and #pieces == 1 and #last.pieces == 1 and one.kind == other.kind and one.count == other.count then
      last.count = last.count + 1
    else
      blocks[#blocks + 1] = { count = 1, first = total, pieces = pieces }
    end
    total = total + 1
  end
  for _, run in ipairs(cut.balanced(plan.group_count, most)) do
    for i = 0, run.count - 1 do add(run.at + i * run.size, run.size) end
  end
  return blocks, total
end

-- The first query of the groups of a kind, and how many each has.
function M.queries(group) return group.q0, group.used end

-- The axis of a stage that is done for each group.
function M.axis(plan) return { var = "g", items = plan.groups, total = plan.group_count, queries = M.queries } end

-- The size of a matrix of `rows` rows with the queries of all groups in lanes, and where the groups of each kind begin.
function M.lanes(plan, rows)
  local at, total = {}, 0
  for kind, group in ipairs(plan.groups) do
    at[kind] = total
    total = total + group.count * rows * group.width
  end
  return total, at
end

return M
