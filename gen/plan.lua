-- From a checked config and an ISA to the plan: how every phase is tiled, where everything lies,
-- what it costs. Plain data; the emitters only follow it, `explain` prints it.
--
--   transpose   X[q][d_model] of a group of queries -> XT[d_model][group width]
--   keys_values K[key][hb*dk] = X Wk + bk, V[key][hb*dv] = X Wv + bv, for a block of hb heads
--   attend      Q^T = Wq^T XT, then per head S^T, softmax and O^T[dv][group width]
--   output      Y = O Wo + bo, one product over all heads
--
-- The lanes of a vector are queries in transpose and attend, columns in keys_values and output.

local isas = require "isa.init"

local M = {}

local function ceil_div(a, b) return (a + b - 1) // b end
local function round_up(a, b) return ceil_div(a, b) * b end

-- Bytes of context that one block of the output product reads again and again: half of a second-level
-- cache of 1 MB, where a panel of Wo passes through as well.
M.cached = 524288

-- Sections of buffers start at multiples of this many floats (64 bytes).
M.align = 16

-- n rows in the fewest blocks of at most `most`, of at most two sizes: { size, count, at } each.
function M.balanced(n, most)
  local blocks = ceil_div(n, most)
  local small, big_count = n // blocks, n % blocks
  local runs = {}
  if big_count > 0 then runs[1] = { size = small + 1, count = big_count, at = 0 } end
  if blocks > big_count then
    runs[#runs + 1] = { size = small, count = blocks - big_count, at = big_count * (small + 1) }
  end
  return runs
end

-- A long sum in chunks of equal size (the last may be shorter): bounds the rounding error, which
-- grows with the root of a chain's length, and the footprint in cache.
local function chunks(n, most, multiple)
  local count = ceil_div(n, most)
  local size = math.min(n, round_up(ceil_div(n, count), multiple))
  count = ceil_div(n, size)
  return { total = n, size = size, count = count, last = n - (count - 1) * size }
end

-- Vectors in blocks of at most `most`, evenly; equal neighbours become one run:
-- { vecs, count, at = first float, used = floats of one block, width = its slots }.
local function vector_blocks(isa, n, most)
  local cover = isas.cover(isa, n)
  local runs, i = {}, 1
  for _, run in ipairs(M.balanced(#cover, most)) do
    for _ = 1, run.count do
      local vecs, used = {}, 0
      for c = 1, run.size do
        vecs[c] = cover[i]
        used = used + cover[i].used
        i = i + 1
      end
      local last, tail = runs[#runs], vecs[#vecs]
      local same = last and #last.vecs == #vecs and last.vecs[#vecs].w == tail.w
        and last.used == used
      if same then
        last.count = last.count + 1
      else
        runs[#runs + 1] = { vecs = vecs, count = 1, at = vecs[1].at, used = used,
                            width = #vecs * isa.lanes, lanes = isa.lanes }
      end
    end
  end
  return runs
end

local LATENCY = 4 -- of an FMA, in cycles
local STREAM = 0.04 -- a row of X: cache lines of its own, d_model floats from the next row's

-- Cycles of a register tile, in FMA slots of the full width: the FMAs, the loads (one vector or two
-- broadcasts a cycle) or the latency of the accumulators, whichever is most, and a start and end.
local function tile_cost(isa, rows, vecs, steps, streams)
  local fma = 0
  for _, v in ipairs(vecs) do fma = fma + v.w.cost end
  local step = math.max(rows * fma, #vecs + rows / 2, LATENCY) + (streams and rows * STREAM or 0)
  return steps * step + 20 + 2 * rows * #vecs
end

local function runs_cost(isa, runs, vecs, steps, streams)
  local sum = 0
  for _, run in ipairs(runs) do
    sum = sum + run.count * tile_cost(isa, run.size, vecs, steps, streams)
  end
  return sum
end

-- Most rows of a tile with this many vectors. a_order: whether A is contiguous from row to row
-- ("columns") or from step to step ("rows"), which matters where FMAs are by lane.
local function most_rows(isa, vectors, a_order) return isa.tiles[a_order][vectors] or 0 end

local function refuse(key, value, rule) error({ key = key, value = value, rule = rule }, 0) end

-- Whether tiles of this many vectors fit the registers, with the rows that the schedule asks for.
-- keys: { schedule key, order of A } each.
local function fits(isa, cfg, vectors, keys)
  for _, key in ipairs(keys) do
    if most_rows(isa, vectors, key[2]) < (cfg[key[1]] or 1) then return false end
  end
  return true
end

-- The vector counts to try, up to 6: all that fit, or the one that the schedule asks for.
local function vector_counts(isa, cfg, vectors_key, keys)
  local from, to = 1, 6
  if cfg[vectors_key] then from, to = cfg[vectors_key], cfg[vectors_key] end
  local counts = {}
  for vectors = from, to do
    if fits(isa, cfg, vectors, keys) then counts[#counts + 1] = vectors end
  end
  if counts[1] then return counts end
  for _, key in ipairs(keys) do
    local most = most_rows(isa, from, key[2])
    if cfg[key[1]] and cfg[key[1]] > most then
      refuse(key[1], cfg[key[1]], ("%s keeps at most %d rows of %d vectors in its %d registers"):format(
        isa.name, most, from, isa.registers))
    end
  end
  refuse(vectors_key, from, ("%s keeps no tile of that width in its %d registers"):format(
    isa.name, isa.registers))
end

-- Rows of a tile: the schedule key if it is set, else the cheapest.
local function choose_rows(isa, cfg, key, n, vectors, a_order, cost)
  if cfg[key] then return cfg[key] end
  local most = most_rows(isa, vectors, a_order)
  local best, best_cost
  for rows = math.max(1, most // 3), most do
    local c = cost(rows)
    if not best or c < best_cost then best, best_cost = rows, c end
    if rows >= n then break end
  end
  return best
end

-- The tiles of one group of queries, and their cost.
local function plan_group(isa, cfg, group, hb)
  local vecs, n = group.vecs, #group.vecs
  local function rows_cost(total, steps)
    return function(rows) return runs_cost(isa, M.balanced(total, rows), vecs, steps) end
  end
  local function score_cost(rows)
    local cost = cfg.seq_kv // rows * tile_cost(isa, rows, vecs, cfg.dk)
    if cfg.seq_kv % rows > 0 then cost = cost + tile_cost(isa, cfg.seq_kv % rows, vecs, cfg.dk) end
    return cost
  end
  local q_rows = choose_rows(isa, cfg, "q_rows", hb * cfg.dk, n, "columns",
    rows_cost(hb * cfg.dk, cfg.d_model))
  local key_rows = choose_rows(isa, cfg, "key_rows", cfg.seq_kv, n, "rows", score_cost)
  local context_rows = choose_rows(isa, cfg, "context_rows", cfg.dv, n, "columns",
    rows_cost(cfg.dv, cfg.seq_kv))
  group.q = M.balanced(hb * cfg.dk, q_rows)
  group.context = M.balanced(cfg.dv, context_rows)
  group.key_rows = math.min(key_rows, cfg.seq_kv)
  return rows_cost(hb * cfg.dk, cfg.d_model)(q_rows)
    + hb * (score_cost(key_rows) + rows_cost(cfg.dv, cfg.seq_kv)(context_rows))
end

local group_keys = { { "q_rows", "columns" }, { "key_rows", "rows" }, { "context_rows", "columns" } }

-- Groups of queries: the number of vectors that makes attend cheapest, unless the schedule says.
local function plan_groups(isa, cfg, hb)
  local function with(vectors)
    local runs, cost = vector_blocks(isa, cfg.seq, vectors), 0
    for _, group in ipairs(runs) do cost = cost + group.count * plan_group(isa, cfg, group, hb) end
    return runs, cost
  end
  local best, best_cost
  for _, vectors in ipairs(vector_counts(isa, cfg, "query_vectors", group_keys)) do
    local runs, cost = with(vectors)
    if not best or cost < best_cost then best, best_cost = runs, cost end
    if vectors * isa.lanes >= cfg.seq then break end
  end
  return best, best_cost
end

-- A product with vectors over `columns`: the column blocks, and for each set of `sets`, `count` times
-- `rows` rows, the runs of its tiles.
local function plan_columns(isa, cfg, keys, sets, columns, steps, a_order)
  local best, best_cost
  for _, vectors in ipairs(vector_counts(isa, cfg, keys.vectors, { { keys.rows, a_order } })) do
    local product = { blocks = vector_blocks(isa, columns, vectors), runs = {} }
    local product_cost = 0
    for i, set in ipairs(sets) do
      local function cost(tile_rows)
        local sum = 0
        for _, block in ipairs(product.blocks) do
          sum = sum + block.count * runs_cost(isa, M.balanced(set.rows, tile_rows), block.vecs, steps,
            a_order == "rows" and steps > 256)
        end
        return sum
      end
      local tile_rows = choose_rows(isa, cfg, keys.rows, set.rows, #product.blocks[1].vecs, a_order, cost)
      product.runs[i] = M.balanced(set.rows, tile_rows)
      product_cost = product_cost + set.count * cost(tile_rows)
    end
    if not best or product_cost < best_cost then best, best_cost = product, product_cost end
    if vectors * isa.lanes >= columns then break end
  end
  best.ld = #isas.cover(isa, columns) * isa.lanes
  return best, best_cost
end

local kv_keys = { rows = "kv_rows", vectors = "kv_vectors" }
local out_keys = { rows = "out_rows", vectors = "out_vectors" }

local function plan_keys_values(isa, cfg, hb)
  local sets = { { rows = cfg.seq_kv, count = 1 } }
  local k, k_cost = plan_columns(isa, cfg, kv_keys, sets, hb * cfg.dk, cfg.d_model, "rows")
  local v, v_cost = plan_columns(isa, cfg, kv_keys, sets, hb * cfg.dv, cfg.d_model, "rows")
  return k, v, k_cost + v_cost
end

-- Heads projected together: more columns waste fewer lanes, fewer columns stay in the cache.
local function choose_head_block(isa, cfg)
  if cfg.head_block then return cfg.head_block end
  local best, best_cost
  for hb = 1, cfg.h do
    if cfg.h % hb == 0 and (hb == 1 or hb * math.max(cfg.dk, cfg.dv) <= 256) then
      local _, _, kv_cost = plan_keys_values(isa, cfg, hb)
      local _, attend_cost = plan_groups(isa, cfg, hb)
      local cost = (kv_cost + attend_cost) * (cfg.h // hb)
      if not best or cost < best_cost * 0.995 then best, best_cost = hb, cost end
    end
  end
  return best
end

-- Blocks of groups for the output product: as many groups as the second-level cache holds the context
-- of, so that each panel of Wo is read from farther away once a block. { count, pieces } each, a
-- piece being `count` groups of a kind from number `first` of the kind on; in the i-th of several
-- equal blocks from first + i * count on.
local function output_blocks(plan)
  local cfg = plan.cfg
  local queries = cfg.out_block or M.cached // (4 * cfg.h * cfg.dv)
  local most = math.max(1, queries // plan.groups[1].width)
  local blocks, total = {}, 0
  for _, run in ipairs(M.balanced(plan.group_count, most)) do
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

-- Lays sections behind each other; `total` in floats.
local function layout()
  local l = { total = 0 }
  function l.add(name, floats)
    l[name] = l.total
    l.total = l.total + round_up(floats, M.align)
  end
  return l
end

local function panels_floats(product, steps)
  local sum = 0
  for _, block in ipairs(product.blocks) do sum = sum + block.count * block.width * steps end
  return sum
end

-- Buffers are below 2^45 floats; the factors of a size are so bounded that 64 bits hold it.
local function check_size(cfg, key, what, floats)
  if floats > 2 ^ 45 then
    refuse(key, cfg[key], ("%s would have %d floats, at most 2^45 are possible"):format(what, floats))
  end
end

-- As a float: the count may be beyond 64 bits.
function M.flops(cfg)
  local n, m, d = cfg.seq, cfg.seq_kv, 1.0 * cfg.d_model
  local pairs_seen = n * m
  if cfg.causal then
    local short = math.min(n, m)
    pairs_seen = short * (short + 1) // 2 + (n - short) * m
  end
  local project = 2 * d * cfg.h * (n * cfg.dk + m * (cfg.dk + cfg.dv))
  local attend = 2.0 * pairs_seen * cfg.h * (cfg.dk + cfg.dv)
  local output = 2 * n * cfg.h * cfg.dv * d
  return (project + attend + output) * cfg.batch
end

function M.build(cfg)
  local isa = isas.list[cfg.isa]
  local plan = { cfg = cfg, isa = isa }
  local n, m, d = cfg.seq, cfg.seq_kv, cfg.d_model
  check_size(cfg, "seq", "q", cfg.batch * n * d)
  check_size(cfg, "seq_kv", "k", cfg.batch * m * d)
  if cfg.probs then check_size(cfg, "probs", "probs", cfg.batch * cfg.h * n * m) end

  plan.masked = cfg.causal or cfg.kv_len
  local hb = choose_head_block(isa, cfg)
  plan.hb, plan.head_blocks = hb, cfg.h // hb
  plan.groups = plan_groups(isa, cfg, hb)
  plan.k, plan.v = plan_keys_values(isa, cfg, hb)
  plan.k_unroll = cfg.k_unroll or 4
  -- At `auto` sums of up to 32 steps are straight code where a tile has up to this many FMAs.
  plan.straight = 400
  plan.k_chunks = chunks(d, cfg.k_block or 512, plan.k_unroll)
  plan.out_chunks = chunks(cfg.h * cfg.dv, cfg.k_block or 512, plan.k_unroll)

  -- Every group kind: its keys in tiles and blocks, its output tiles, its place in the buffers.
  plan.group_count = 0
  local xt, o, p_floats, q_floats, stats_floats = 0, 0, 0, 0, 0
  for _, group in ipairs(plan.groups) do
    local rows = group.key_rows
    local tiles = ceil_div(m, rows)
    local block_tiles = ceil_div(tiles, math.min(tiles, ceil_div(m, cfg.key_block or 64)))
    group.keys = { rows = rows, tiles = tiles, block_tiles = block_tiles,
                   blocks = ceil_div(tiles, block_tiles), rest = m % rows }
    group.name = group.used < group.width and group.used .. "of" .. group.width or tostring(group.used)
    group.first, group.q0, group.xt, group.o = plan.group_count, group.at, xt, o
    group.xt_floats, group.o_floats = d * group.width, cfg.h * cfg.dv * group.width
    plan.group_count = plan.group_count + group.count
    xt = xt + group.count * group.xt_floats
    o = o + group.count * group.o_floats
    local p_rows = (cfg.probs and tiles or block_tiles) * rows
    p_floats = math.max(p_floats, p_rows * group.width)
    q_floats = math.max(q_floats, hb * cfg.dk * group.width)
    stats_floats = math.max(stats_floats, 6 * group.width)
    group.k_rows = plan.masked and tiles * rows or m
  end
  local sets = {}
  for i, group in ipairs(plan.groups) do sets[i] = { rows = group.used, count = group.count } end
  plan.out = plan_columns(isa, cfg, out_keys, sets, d, cfg.h * cfg.dv, "columns")
  plan.out_blocks, plan.out_block_count = output_blocks(plan)
  plan.panel_count = 0
  local panel = 0
  for _, block in ipairs(plan.out.blocks) do
    block.first, block.panel = plan.panel_count, panel
    plan.panel_count = plan.panel_count + block.count
    panel = panel + block.count * block.width * cfg.h * cfg.dv
  end

  local kv_rows = 0
  for _, group in ipairs(plan.groups) do kv_rows = math.max(kv_rows, group.k_rows) end

  -- Packed weights: per head block the panels of Wq, Wk, Wv and their biases; then Wo and bo.
  -- The panels of Wq are as high as the tiles of Q^T, which all groups share: the first group has the
  -- most vectors, so what fits there fits all.
  plan.q = plan.groups[1].q
  local head = layout()
  head.add("wq", hb * cfg.dk * d)
  head.add("bq", hb * cfg.dk)
  head.add("wk", panels_floats(plan.k, d))
  head.add("bk", plan.k.ld)
  head.add("wv", panels_floats(plan.v, d))
  head.add("bv", plan.v.ld)
  local packed = layout()
  packed.add("heads", plan.head_blocks * head.total)
  packed.add("wo", panels_floats(plan.out, cfg.h * cfg.dv))
  packed.add("bo", plan.out.ld)
  plan.head, plan.packed = head, packed
  check_size(cfg, "d_model", "packed", packed.total)

  -- Parallel tasks: of a batch entry, head blocks times `chunks_per_head` ranges of groups.
  plan.resident = math.min(cfg.batch, math.max(8, ceil_div(cfg.batch, 64)))
  local wanted = ceil_div(16, plan.resident * plan.head_blocks)
  plan.groups_per_task = ceil_div(plan.group_count, math.min(wanted, plan.group_count))
  plan.attend_tasks = ceil_div(plan.group_count, plan.groups_per_task)

  local scratch = layout()
  scratch.add("q", q_floats)
  scratch.add("p", p_floats)
  scratch.add("stats", stats_floats)
  local kv = layout()
  kv.add("k", kv_rows * plan.k.ld)
  kv.add("v", kv_rows * plan.v.ld)
  local entry = layout()
  entry.add("xt", xt)
  entry.add("o", o)
  entry.add("kv", plan.head_blocks * kv.total)
  entry.add("scratch", plan.head_blocks * plan.attend_tasks * scratch.total)
  plan.scratch, plan.kv, plan.entry = scratch, kv, entry
  plan.kv_rows = kv_rows
  plan.workspace = plan.resident * entry.total
  check_size(cfg, "batch", "the workspace", plan.workspace)
  plan.flops = M.flops(cfg)

  local tasks = math.max(plan.group_count, plan.head_blocks * math.max(2, plan.attend_tasks),
    plan.out_block_count * plan.panel_count)
  if cfg.batch * tasks > 2 ^ 31 - 1 then
    refuse("batch", cfg.batch, ("would make %d tasks, more than an int can count"):format(cfg.batch * tasks))
  end
  return plan
end

return M
