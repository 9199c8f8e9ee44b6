-- From a checked config and an ISA to the plan: how every phase is tiled, where everything lies,
-- what it costs. Plain data; the emitters only follow it, `explain` prints it.
--
--   transpose   X[q][d_model] of a group of queries -> XT[d_model][group width]
--   sums        of the quadrants of X, where projections are made of quadrants (strassen.lua)
--   keys_values K[key][hb*dk] = X Wk + bk, V[key][hb*dv] = X Wv + bv, Q with lanes over columns as well,
--               for a block of hb heads
--   attend      Q^T = Wq^T XT (q), then per head S^T, softmax and O^T[dv][group width]
--   output      Y = O Wo + bo, one product over all heads
--
-- The lanes of a vector are queries in transpose and attend, columns in keys_values and output.
-- fold.lua may put X itself in the place of K or V: then Wk is applied to Q^T (kq), Wv to O^T (vc).

local cpu = require "cpu"
local fold = require "fold"
local isas = require "isa.init"
local score = require "score.init"
local stages = require "stage.init"
local stats = require "emit.stats"
local strassen = require "strassen"
local tiles = require "tiles"
local types = require "types"
local walk = require "walk"

local ceil_div, round_up, refuse = tiles.ceil_div, tiles.round_up, tiles.refuse

local M = {}

-- Keys per block of softmax: the sum over a block is one chain in a register, whose error grows with it.
M.key_block = 64

-- Sections of buffers start at multiples of this many floats (64 bytes).
M.align = 16

-- More keys than this in one tile of one vector: then tiles of so many are better, for the exponentials of
-- one tile run beside the FMAs of the next.
local ONE_TILE, SHARED = 8, 4

-- Whether the queries of a block of heads are projected with lanes over columns. Merged weights are as
-- wide as the model, and packed for one head at a time.
local function lanes_are_columns(plan, hb)
  return plan.q_lanes == "columns" and (plan.fold.qk ~= "merge" or hb == 1)
end

-- The tiles of one group of queries, and their cost.
local function plan_group(plan, group, hb)
  local cfg, f = plan.cfg, plan.fold
  local vecs, n = group.vecs, #group.vecs
  local function rows_cost(total, steps)
    return function(rows) return tiles.runs_cost(plan, tiles.balanced(total, rows), vecs, steps, "columns") end
  end
  local function score_cost(rows)
    local cost = cfg.seq_kv // rows * tiles.cost(plan, rows, vecs, f.depth, "rows")
    if cfg.seq_kv % rows > 0 then cost = cost + tiles.cost(plan, cfg.seq_kv % rows, vecs, f.depth, "rows") end
    return cost
  end
  local function product(rows, steps)
    local cost = rows_cost(rows, steps)
    local height = tiles.choose_rows(plan, "q_rows", rows, n, "columns", cost)
    return { runs = tiles.balanced(rows, height), rows = rows, steps = steps,
             chunks = tiles.chunks(steps, plan.k_block, plan.k_unroll) }, cost(height)
  end
  local key_rows = tiles.choose_rows(plan, "key_rows", cfg.seq_kv, n, "rows", score_cost)
  if not cfg.key_rows and n == 1 and cfg.seq_kv > ONE_TILE and cfg.seq_kv <= key_rows then
    key_rows = SHARED
  end
  local context_cost = rows_cost(f.breadth, cfg.seq_kv)
  local context_rows = tiles.choose_rows(plan, "context_rows", f.breadth, n, "columns", context_cost)
  group.context = tiles.balanced(f.breadth, context_rows)
  group.key_rows = math.min(key_rows, cfg.seq_kv)

  local head = score_cost(key_rows) + context_cost(context_rows)
  local function add(name, repeats, rows, steps)
    local cost
    group[name], cost = product(rows, steps)
    head = head + cost * repeats
  end
  head = head * hb
  local by_columns = lanes_are_columns(plan, hb)
  if f.qk ~= "merge" and not by_columns then add("q", 1, hb * cfg.dk, cfg.d_model) end
  if f.qk == "absorb" then add("kq", hb, f.depth, cfg.dk) end
  if f.qk == "merge" and not by_columns then add("kq", hb, f.depth, cfg.d_model) end
  if f.vo == "absorb" then add("vc", hb, cfg.dv, f.breadth) end
  return head
end

local group_keys = { { "q_rows", "columns" }, { "key_rows", "rows" }, { "context_rows", "columns" } }

-- Groups of queries: the number of vectors that makes attend cheapest, unless the schedule says.
local function plan_groups(plan, hb)
  local isa, cfg = plan.isa, plan.cfg
  local best, best_cost
  for _, vectors in ipairs(tiles.vector_counts(plan, "query_vectors", group_keys)) do
    local groups, cost = tiles.vector_blocks(isa, cfg.seq, vectors), 0
    for _, group in ipairs(groups) do cost = cost + group.count * plan_group(plan, group, hb) end
    cost = cost * (1 + tiles.KIND * #groups)
    if not best or cost < best_cost then best, best_cost = groups, cost end
    if vectors * isa.lanes >= cfg.seq then break end
  end
  return best, best_cost
end

local kv_keys = { rows = "kv_rows", vectors = "kv_vectors" }
local out_keys = { rows = "out_rows", vectors = "out_vectors" }

local function panels_floats(product, steps)
  local sum = 0
  for _, block in ipairs(product.blocks) do sum = sum + block.count * block.width * steps end
  return sum
end

-- A projection by seven products of quadrants: the tiles of one, for each kind of a block of rows.
local function plan_quadrants(plan, rows, columns)
  local cfg = plan.cfg
  local row_blocks, sets = tiles.balanced(rows // 2, strassen.rows), {}
  for i, run in ipairs(row_blocks) do sets[i] = { rows = run.size, count = run.count } end
  local product, cost = tiles.columns(plan, kv_keys, sets, columns // 2, cfg.d_model // 2, "rows")
  product.quadrants, product.rows, product.row_blocks = #strassen.products, rows, row_blocks
  product.steps, product.ld = cfg.d_model // 2, columns
  product.m_floats = #strassen.products * row_blocks[1].size * product.blocks[1].width
  local read = strassen.read * (rows // 2) * product.steps
  local join = strassen.join * (rows // 2) * (columns // 2 // plan.isa.lanes)
  return product, #strassen.products * (cost + read) + join
end

-- What is projected of a block of heads with lanes over columns: { k =, v =, q = } with a product each,
-- where the fold leaves it.
local function plan_projected(plan, hb)
  local cfg, f = plan.cfg, plan.fold
  local projected, sum = {}, 0
  for _, row in ipairs {
    { "k", f.qk == "project", cfg.seq_kv, cfg.dk }, { "v", f.vo == "project", cfg.seq_kv, cfg.dv },
    { "q", lanes_are_columns(plan, hb), cfg.seq, f.query },
  } do
    local which, wanted, rows, width = table.unpack(row)
    if wanted then
      local product, cost
      if strassen.applies(cfg, f, which, rows, hb * width, plan.isa.lanes) then
        product, cost = plan_quadrants(plan, rows, hb * width)
        product.input = cfg.attention == "cross" and which or "q"
      else
        product, cost = tiles.columns(plan, kv_keys, { { rows = rows, count = 1 } }, hb * width,
          cfg.d_model, "rows")
        product.steps = cfg.d_model
      end
      product.chunks = tiles.chunks(product.steps, plan.k_block, plan.k_unroll)
      product.floats = panels_floats(product, product.steps)
      projected[which], sum = product, sum + cost
    end
  end
  return projected, sum
end

-- Whether what is projected of some heads stays in the cache: in half of it, or where it is narrow. By
-- quadrants the cost of several heads is worth all of the cache, but not more columns than a tile has.
local function stays_near(plan, hb, projected)
  local cfg = plan.cfg
  local width = hb * math.max(cfg.dk, cfg.dv)
  local bytes = 4 * width * (cfg.seq + 2 * cfg.seq_kv)
  for _, product in pairs(projected) do
    if product.quadrants then return width <= strassen.columns and bytes <= 2 * plan.cpu.cached end
  end
  return width <= 256 or bytes <= plan.cpu.cached
end

-- Heads projected together, and the cost: more columns waste fewer lanes, fewer columns stay in the cache.
local function choose_head_block(plan)
  local cfg = plan.cfg
  local alone = cfg.q_lanes == "columns" and plan.fold.qk == "merge"
  if alone and (cfg.head_block or 1) > 1 then
    refuse("head_block", cfg.head_block, "must be 1 with q_lanes = columns where Wq Wk^T is made when packing")
  end
  local best, best_cost
  for hb = cfg.head_block or 1, cfg.head_block or alone and 1 or cfg.h do
    local projected, projected_cost
    if cfg.h % hb == 0 then projected, projected_cost = plan_projected(plan, hb) end
    if projected and (hb == 1 or hb == cfg.head_block or stays_near(plan, hb, projected)) then
      local _, attend = plan_groups(plan, hb)
      local cost = (projected_cost + attend) * (cfg.h // hb)
      if not best or cost < best_cost * 0.995 then best, best_cost = hb, cost end
    end
  end
  return best, best_cost
end

-- What the cost of lanes over columns in the query projection may be, of that of lanes over queries: the
-- model does not know that X needs no transposition then, nor that one vector of queries is in the nearest
-- cache all the time. Merged weights have X transposed once for all heads, but the queries of each.
local COLUMNS = { one_vector = 0.95, several = 1.03, merged = 0.98 }

-- The lanes of the product that makes the queries: queries, as in all of attend, or columns, and the
-- product is transposed then; the heads projected together; the cost of all but the output.
local function choose_q_lanes(plan)
  local cfg = plan.cfg
  local function with(lanes)
    plan.q_lanes = lanes
    local hb, cost = choose_head_block(plan)
    return { lanes, hb, cost }
  end
  if cfg.q_lanes then return table.unpack(with(cfg.q_lanes)) end
  local queries, columns = with "queries", with "columns"
  local most = cfg.seq <= plan.isa.lanes and COLUMNS.one_vector
    or plan.fold.qk == "merge" and cfg.h > 1 and COLUMNS.merged or COLUMNS.several
  return table.unpack(columns[3] < most * queries[3] and columns or queries)
end

-- Blocks of groups for the output product: as many groups as the second-level cache holds the context
-- of, so that each panel of Wo is read from farther away once a block. { count, first, pieces } each, a
-- piece being `count` groups of a kind from number `first` of the kind on; in the i-th of several
-- equal blocks from first + i * count on.
local function output_blocks(plan)
  local queries = plan.cfg.out_block or plan.cpu.cached // (4 * plan.out.steps)
  local most = math.max(1, queries // plan.groups[1].width)
  local blocks, total = {}, 0
  for _, run in ipairs(tiles.balanced(plan.group_count, most)) do
    for i = 0, run.count - 1 do
      local from, pieces = run.at + i * run.size, {}
      for kind, group in ipairs(plan.groups) do
        local first = math.max(from, group.first)
        local count = math.min(from + run.size, group.first + group.count) - first
        if count > 0 then
          pieces[#pieces + 1] = { kind = kind, first = first - group.first, count = count }
        end
      end
      local last = blocks[#blocks]
      if last and #pieces == 1 and #last.pieces == 1 and pieces[1].kind == last.pieces[1].kind
        and pieces[1].count == last.pieces[1].count then
        last.count = last.count + 1
      else
        blocks[#blocks + 1] = { count = 1, first = total, pieces = pieces }
      end
      total = total + 1
    end
  end
  return blocks, total
end

-- Y = O Wo: its blocks of queries, and the number and place of its panels. Returns its cost.
local function plan_output(plan)
  local cfg, sets = plan.cfg, {}
  local steps = cfg.h * plan.fold.out
  for i, group in ipairs(plan.groups) do sets[i] = { rows = group.used, count = group.count } end
  local cost
  plan.out, cost = tiles.columns(plan, out_keys, sets, cfg.d_model, steps, "columns")
  plan.out.steps = steps
  plan.out.chunks = tiles.chunks(steps, plan.k_block, plan.k_unroll)
  plan.out_blocks, plan.out_block_count = output_blocks(plan)
  plan.panel_count = 0
  local panel = 0
  for _, block in ipairs(plan.out.blocks) do
    block.first, block.panel = plan.panel_count, panel
    plan.panel_count = plan.panel_count + block.count
    panel = panel + block.count * block.width * steps
  end
  return cost
end

-- Lays sections behind each other; `total` in floats.
local function layout()
  local l = { total = 0 }
  function l.add(name, floats)
    l[name] = l.total
    l.total = l.total + round_up(floats, M.align)
  end
  return l
end

-- Buffers are below 2^45 floats; the factors of a size are so bounded that 64 bits hold it.
local function check_size(cfg, key, what, floats)
  if floats > 2 ^ 45 then
    refuse(key, cfg[key], ("%s would have %d floats, at most 2^45 are possible"):format(what, floats))
  end
end

-- Packed weights: per head block those of the queries, of what is projected, of what is absorbed; then
-- Wo and bo.
local function plan_packed(plan, hb)
  local cfg, f = plan.cfg, plan.fold
  local head = layout()
  if plan.q then
    head.add("wq", plan.q.rows * cfg.d_model)
    head.add("bq", plan.q.rows)
  end
  for _, which in ipairs { "k", "v", "q" } do
    local product = plan.projected[which]
    if product then
      head.add("w" .. which, product.floats * (product.quadrants or 1))
      if not f.without[which] then head.add("b" .. which, product.ld) end
    end
  end
  if plan.kq then head.add("wk", hb * plan.kq.rows * plan.kq.steps) end
  if f.qk == "merge" and plan.kq then head.add("bq", hb * plan.kq.rows) end
  if plan.vc then head.add("wv", hb * plan.vc.rows * plan.vc.steps) end
  local packed = layout()
  packed.add("heads", plan.head_blocks * head.total)
  packed.add("wo", panels_floats(plan.out, plan.out.steps))
  packed.add("bo", plan.out.ld)
  plan.head, plan.packed = head, packed
  check_size(cfg, "d_model", "packed", packed.total)
end

-- Where scores find keys and context values: `row` floats from key to key, a head `head` floats on.
local function operand(projected, width, cfg)
  if projected then return { row = projected.ld, head = width } end
  return { row = cfg.d_model, head = 0 }
end

-- The inputs of which quadrants are added, each once, and its rows in blocks for as many tasks:
-- { name, rows, size and count of the blocks, at = first row, first = number of the first task }.
-- Returns the number of tasks as well.
local function summed_inputs(plan)
  local cfg, list, tasks = plan.cfg, {}, 0
  for _, which in ipairs { "q", "k", "v" } do
    local product = plan.projected[which]
    if product and product.quadrants and (cfg.attention == "cross" or not list[1]) then
      for _, run in ipairs(tiles.balanced(product.rows // 2, 64)) do
        list[#list + 1] = { name = product.input, rows = product.rows,
                            size = run.size, count = run.count, at = run.at, first = tasks }
        tasks = tasks + run.count
      end
    end
  end
  return list, tasks
end

-- What the ISA multiplies the operands of a config with.
function M.product(cfg) return isas.product(isas.list[cfg.isa], types.by_name[cfg.dtype]) end

function M.build(cfg)
  local isa = isas.list[cfg.isa]
  local scores = score.of(cfg)
  local f = fold.choose(cfg, scores)
  local plan = { cfg = cfg, isa = isa, scores = scores, fold = f, cpu = cpu.facts(cfg.cpu, isa) }
  plan.product = M.product(cfg)
  if not plan.cpu then refuse("cpu", cfg.cpu, ("has no isa = %s"):format(isa.name)) end
  local n, m, d = cfg.seq, cfg.seq_kv, cfg.d_model
  check_size(cfg, "seq", "q", cfg.batch * n * d)
  check_size(cfg, "seq_kv", "k", cfg.batch * m * d)
  if cfg.probs then check_size(cfg, "probs", "probs", cfg.batch * cfg.h * n * m) end

  plan.k_unroll, plan.k_block = cfg.k_unroll or 4, cfg.k_block or 256
  -- At `auto` sums of up to 32 steps are straight code where a tile has up to this many FMAs.
  plan.straight = 400
  local q_lanes, hb, cost = choose_q_lanes(plan)
  plan.q_lanes, plan.hb, plan.head_blocks = q_lanes, hb, cfg.h // hb
  plan.groups = plan_groups(plan, hb)
  plan.projected = plan_projected(plan, hb)
  plan.keys = operand(plan.projected.k, cfg.dk, cfg)
  plan.values = operand(plan.projected.v, cfg.dv, cfg)
  -- Weights are packed for tiles of Q^T, which all groups share: the first group has the most
  -- vectors, so what fits there fits all.
  plan.q, plan.kq, plan.vc = plan.groups[1].q, plan.groups[1].kq, plan.groups[1].vc

  -- Every group kind: its keys in tiles and blocks, its place in the buffers.
  local head_rows = cfg.h * plan.fold.out
  plan.group_count = 0
  local xt, o, kv_rows, widest, p_floats = 0, 0, 0, 0, 0
  for _, group in ipairs(plan.groups) do
    local rows = group.key_rows
    local count = ceil_div(m, rows)
    local block_tiles = ceil_div(count, math.min(count, ceil_div(m, cfg.key_block or M.key_block)))
    group.keys = { rows = rows, tiles = count, block_tiles = block_tiles,
                   blocks = ceil_div(count, block_tiles), rest = m % rows }
    group.name = group.used < group.width and group.used .. "of" .. group.width or tostring(group.used)
    group.first, group.q0, group.xt, group.o = plan.group_count, group.at, xt, o
    group.xt_floats, group.o_floats = d * group.width, head_rows * group.width
    plan.group_count = plan.group_count + group.count
    xt = xt + group.count * group.xt_floats
    o = o + group.count * group.o_floats
    p_floats = math.max(p_floats, (cfg.probs and count or block_tiles) * rows * group.width)
    widest = math.max(widest, group.width)
    kv_rows = math.max(kv_rows, scores.masked and count * rows or m)
  end
  plan.cost = cost + plan_output(plan)
  plan_packed(plan, hb)

  -- Parallel tasks: of a batch entry, head blocks times `chunks_per_head` ranges of groups.
  plan.resident = math.min(cfg.batch, math.max(8, ceil_div(cfg.batch, 64)))
  local wanted = ceil_div(16, plan.resident * plan.head_blocks)
  plan.groups_per_task = ceil_div(plan.group_count, math.min(wanted, plan.group_count))
  plan.attend_tasks = ceil_div(plan.group_count, plan.groups_per_task)

  local scratch = layout()
  if plan.q or plan.projected.q then scratch.add("q", hb * f.query * widest) end
  if plan.kq then scratch.add("kq", plan.kq.rows * widest) end
  scratch.add("p", p_floats)
  if plan.vc then scratch.add("c", plan.vc.steps * widest) end
  scratch.add("stats", stats.count(scores) * widest)
  local kv = layout()
  for _, row in ipairs { { "k", kv_rows }, { "v", kv_rows }, { "q", n } } do
    local product = plan.projected[row[1]]
    if product then kv.add(row[1], row[2] * product.ld) end
    if product and product.quadrants then kv.add("m" .. row[1], product.m_floats) end
  end
  local entry = layout()
  -- XT is for products whose lanes are queries.
  plan.transposed = plan.q ~= nil or f.qk == "merge" and plan.kq ~= nil
  entry.add("xt", plan.transposed and xt or 0)
  entry.add("o", o)
  plan.sums, plan.sum_tasks = summed_inputs(plan)
  plan.error = plan.product.a.error * (plan.sums[1] and strassen.error or 1)
  for _, input in ipairs(plan.sums) do
    if input.at == 0 then entry.add("sums_" .. input.name, input.rows * d) end
  end
  entry.add("kv", plan.head_blocks * kv.total)
  entry.add("scratch", plan.head_blocks * plan.attend_tasks * scratch.total)
  plan.scratch, plan.kv, plan.entry = scratch, kv, entry
  plan.kv_rows = kv_rows
  plan.workspace = plan.resident * entry.total
  check_size(cfg, "batch", "the workspace", plan.workspace)
  plan.flops = f.formula
  plan.per_cycle = 2.0 * isa.lanes -- flops at one FMA of a full vector a cycle
  plan.cycles = f.flops / cfg.batch / plan.per_cycle
  plan.stages = stages(plan)
  walk.check_tasks(plan)
  return plan
end

return M
