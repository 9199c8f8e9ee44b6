-- How products are cut into register tiles: blocks of vectors, runs of rows, chunks of long sums, and
-- what a tile costs.

local choices = require "base.choices"
local cut = require "schedule.cut"
local isas = require "isa.init"
local ways = require "way.init"

-- `target` is { isa, cfg, cpu, scheme, why, k_block }: a plan for projections, plan.attending for attention.

local M = {}

-- A plan as a target of tiles that multiply by a scheme.
function M.target(plan, scheme) return setmetatable({ scheme = scheme, quant = scheme.quant }, { __index = plan }) end

-- Sums of more steps than this are long: their panels do not stay in the nearest cache.
M.LONG = 256

-- K steps in a round of a tile's loop; a divisor of the number of steps near it is better.
M.LOOP_STEPS = 4

-- Most steps of scores in float32 that are one chain. Longer sums are added chunk by chunk.
local ONE_CHAIN = 512

-- Row tiles of a panel that tile registers make together: while their sums are kept, a chunk of the panel stays in the
-- nearest cache.
M.TOGETHER = 4

-- Whether a product's chunks are of a panel, for all tiles of a few; else each tile takes all of its chunks in turn.
function M.keeps_sums(product) return ways.of(product.scheme).buffered and product.chunks.count > 1 end

-- Tiles of a set of rows of a product, the first one if none is named.
function M.count(product, set)
  local count = 0
  for _, run in ipairs(product.runs[set or 1]) do count = count + run.count end
  return count
end

M.ceil_div, M.round_up = cut.ceil_div, cut.round_up

function M.refuse(key, value, rule) error({ key = key, value = value, rule = rule }, 0) end

-- Words of a product that n numbers of a sum take: all that one of operand B is multiplied with.
function M.words(scheme, n)
  local together = math.max(ways.interleave(scheme), scheme.group > 1 and M.in_step(scheme) or 1)
  return M.round_up(M.ceil_div(n, scheme.group), together)
end

-- The same, and those of zeros behind them, where tile registers take whole rows of words.
function M.padded(scheme, words) return M.round_up(words, scheme.pad or 1) end

-- Rows behind those of an operand A, which tile registers may read.
function M.rows_behind(scheme) return (scheme.pad or 1) - 1 end

-- K steps that a word of operand B has: of quants several, whatever a step multiplies.
function M.in_step(scheme)
  local quant = scheme.quant
  return quant and quant.in_word // scheme.group or 1
end

-- K steps that share a scale of a column, or of a row, or nil.
function M.group_steps(scheme)
  return scheme.quant and scheme.quant.group and scheme.quant.group // scheme.group
end
function M.row_group_steps(scheme) return scheme.row_group and scheme.row_group // scheme.group or nil end

-- Rows of a panel of a product's operand B for sums of so many steps: of numbers or words; of integers then the scales,
-- and what sums begin with (mhagen.h).
function M.depth(scheme, steps)
  local quant, words = scheme.quant, M.ceil_div(steps, M.in_step(scheme))
  if not scheme.scales then return M.padded(scheme, words) end
  local group = M.group_steps(scheme)
  local scales = group and M.ceil_div(steps, group) or 1
  -- Tile registers take the scales for words, times zeros.
  return math.max(M.padded(scheme, words), words + scales + (quant.sums and 1 or 0))
end

-- Those of a plan's products. Where groups of steps have scales a chunk is of one group, all of it if it may be.
-- Rounded results are of one chunk, but where sums stay apart.
function M.k_chunks(target, steps, rounded)
  local quant = target.scheme.quant
  local most, of = ways.of(target.scheme).chunk(target, steps)
  if most then return cut.chunks(steps, most, of) end
  if rounded then return cut.one_chunk(steps) end
  local multiple = M.round_up(M.LOOP_STEPS, ways.interleave(target.scheme))
  if not quant then return cut.chunks(steps, target.k_block, multiple) end
  local integers, group = target.scheme.integers, M.group_steps(target.scheme) or M.row_group_steps(target.scheme)
  if not group then return integers and cut.one_chunk(steps) or cut.chunks(steps, target.k_block, quant.in_word) end
  local size = integers and group or M.round_up(math.min(group, target.k_block) - quant.in_word + 1, quant.in_word)
  while group % size > 0 do size = size - quant.in_word end
  local chunks = cut.pieces(steps, math.min(steps, size))
  chunks.group = quant.group or target.scheme.row_group
  return chunks
end

-- The chunks of the sums of scores, or nil where they are one chain.
function M.score_chunks(target, steps)
  if target.scheme.b.round or steps <= (target.cfg.k_block or ONE_CHAIN) then return nil end
  return cut.chunks(steps, target.k_block, M.LOOP_STEPS)
end

-- Vectors in blocks of at most `most`, evenly; equal neighbours become one run:
-- { vecs, count, at = first float, used = floats of one block, width = its slots }. whole: of full width all; "equal":
-- and as many in each block, the last of them perhaps unused. together: so many of them stay in a block, which is as
-- wide. All blocks of a size but the very last one are equal, so that their number costs nothing.
function M.vector_runs(isa, n, most, whole, together)
  local total = M.ceil_div(n, isa.lanes)
  if whole == "equal" and total > most then total = M.round_up(total, most) end
  together = together or 1
  local function block(first, size)
    local vecs, used = {}, 0
    for i = first, math.min(first + size, total) - 1 do
      local v = i * isa.lanes < n and isas.vector(isa, n, i * isa.lanes) or { used = 0, at = n }
      if whole then v.w = isa.full end
      vecs[#vecs + 1], used = v, used + v.used
    end
    return { vecs = vecs, count = 1, at = vecs[1].at, used = used, width = size * isa.lanes, lanes = isa.lanes }
  end
  local runs, first = {}, 0
  local function add(count, size)
    if count == 0 then return end
    local new, last = block(first, size), runs[#runs]
    local same = last and #last.vecs == #new.vecs and last.vecs[#last.vecs].w == new.vecs[#new.vecs].w
      and last.used == new.used
    if same then last.count = last.count + count else runs[#runs + 1], new.count = new, count end
    first = first + count * size
  end
  local sizes = cut.balanced(M.ceil_div(total, together), M.ceil_div(most, together))
  for i, run in ipairs(sizes) do
    local ends = i == #sizes and 1 or 0
    add(run.count - ends, run.size * together)
    add(ends, run.size * together)
  end
  return runs
end

-- Chains of a sum in a tile of so many rows and vectors: 2 or 4 where too few sums would run at once,
-- none of less than 4 steps.
function M.chains(target, rows, vectors, steps)
  local chains, sums, cpu = 1, rows * vectors, target.cpu
  while chains < 4 and 8 * chains <= steps and sums * chains < cpu.latency * cpu.fmas
    and 2 * chains * sums + vectors + 2 < target.isa.registers do
    chains = 2 * chains
  end
  return chains
end

-- Whether the vectors of a tile of so many rows are pinned in registers: up to three uses of one, gcc reads
-- it from memory for each of them.
function M.pinned(isa, rows) return isa.rows.load_pinned ~= nil and rows > 1 and rows <= 3 end

-- What an operation on a vector of some width takes of one of the full width; and one on each of several.
function M.share(target, w) return w.lanes < target.isa.lanes and target.cpu.narrow or 1 end

local function slots_of(target, vecs)
  local sum = 0
  for _, v in ipairs(vecs) do sum = sum + M.share(target, v.w) end
  return sum
end

-- Whether rows of so many words, one behind the other, and a panel collide. Their lines then are more than their sets
-- of the nearest cache hold.
function M.crowded(cpu, rows, words)
  local bytes, all = 4 * words, 2 * cpu.near // cpu.set_lines
  local sets = all // math.min(bytes & -bytes, all) -- a power of two, as their distance is
  return M.ceil_div(rows, sets) >= cpu.set_lines
end

-- The time of a register tile, in FMA slots of the full width, of which a cycle has cpu.fmas. It is the longest of the
-- FMAs, the loads and the latency of the accumulators, and a start and end. A load of a vector takes a slot, a
-- broadcast half a cycle.
function M.cost(target, rows, vecs, steps, a_order)
  local scheme, way = target.scheme, ways.of(target.scheme)
  if way.cost then return way.cost(target, rows, vecs, steps) end
  local isa, cpu, interleave = target.isa, target.cpu, ways.interleave(scheme)
  local fma = slots_of(target, vecs)
  if ways.deinterleave(scheme) > 1 then fma = M.round_up(fma, ways.deinterleave(scheme)) end
  steps, rows = M.ceil_div(steps, interleave), M.round_up(rows, interleave)
  local bytes = scheme.b.bytes * isa.lanes * #vecs * interleave
  local far = bytes * steps >= cpu.near and bytes / cpu.near_bytes or 0
  local latency = cpu.latency * cpu.fmas / (way.chained and M.chains(target, rows, #vecs, steps) or 1)
  local alone = scheme.integers and way.dups -- no instruction reads broadcasts by itself
  local broadcasts = (alone or interleave > 1) and rows / interleave or rows * cpu.fmas / 2
  local loads = #vecs * interleave + broadcasts
  if interleave > 1 then loads = (rows * fma + loads) / cpu.dispatch end -- as many as can be taken in
  local slots = rows * (fma + (scheme.dup or 0)) -- what fills the ports of FMAs
  local step = math.max(slots, loads, latency, far * cpu.fmas)
  if steps > cpu.long then step = step + cpu.miss_vector * #vecs + cpu.miss_row[a_order] * rows end
  if a_order == "rows" and M.crowded(cpu, rows, steps) then step = step + rows end -- each is read anew
  return steps * step + 20 + 2 * rows * #vecs
end

-- The share of the time that a second kind of tiles or groups must save: each has code of its own.
M.KIND = 0.004

-- The same for all rows of some runs. kind: the share for a second kind, where it is not that.
function M.runs_cost(target, runs, vecs, steps, a_order, kind)
  local sum = 0
  for _, run in ipairs(runs) do sum = sum + run.count * M.cost(target, run.size, vecs, steps, a_order) end
  return sum * (1 + (kind or M.KIND) * #runs)
end

-- The same as a function of a tile's rows, for `total` rows whose lanes are those of a group of queries.
function M.rows_cost(target, total, vecs, steps, even, kind)
  return function(rows) return M.runs_cost(target, cut.rows_in(total, rows, even), vecs, steps, "columns", kind) end
end

-- Most rows of a tile with this many vectors. a_order: whether A is contiguous from row to row
-- ("columns") or from step to step ("rows"), which matters where FMAs are by lane.
function M.most_rows(target, vectors, a_order) return target.scheme.rows[a_order][vectors] or 0 end

-- The most rows that a tile of a product has whose A is contiguous from step to step, whatever the schedule.
function M.highest(scheme) return math.max(table.unpack(scheme.rows.rows)) end

-- Whether tiles of this many vectors fit the registers, with the rows that the schedule asks for.
-- keys: { schedule key, order of A } each.
local function fits(target, vectors, keys)
  for _, key in ipairs(keys) do
    if M.most_rows(target, vectors, key[2]) < (target.cfg[key[1]] or 1) then return false end
  end
  return true
end

-- The vector counts to try, up to 6: all that fit, or the one that the schedule asks for.
function M.vector_counts(target, vectors_key, keys)
  local from, to, isa, cfg = 1, 6, target.isa, target.cfg
  if cfg[vectors_key] then from, to = cfg[vectors_key], cfg[vectors_key] end
  local counts = {}
  for vectors = from, to do
    if fits(target, vectors, keys) then counts[#counts + 1] = vectors end
  end
  if counts[1] then return counts end
  for _, key in ipairs(keys) do
    local most = M.most_rows(target, from, key[2])
    if cfg[key[1]] and cfg[key[1]] > most then
      M.refuse(key[1], cfg[key[1]], ("%s keeps at most %d rows of %d vectors in its %d registers"):format(
        isa.name, most, from, isa.registers))
    end
  end
  M.refuse(vectors_key, from, ("%s keeps no tile of that width in its %d registers"):format(
    isa.name, isa.registers))
end

-- Rows of a tile, of which there are n in all: the schedule key if it is set, else the cheapest, at most `most`; even:
-- an even number of them.
function M.choose_rows(target, key, n, most, cost, even)
  if target.cfg[key] then return target.cfg[key] end
  choices.add(target.why, "model")
  choices.add(target.why, "one_size")
  local best, best_cost
  local step = even and 2 or 1
  for rows = math.max(step, most // 3 // step * step), most, step do
    local c = cost(rows)
    if not best or c < best_cost then best, best_cost = rows, c end
    if rows >= n then break end
  end
  return best
end

-- Whether queries are few for the weights: tiles that read these first, and wait for them, are much of the time.
function M.few(queries) return queries <= 64 end

-- Bytes of a layer's weights.
function M.weight_bytes(target)
  local cfg = target.cfg
  return target.scheme.b.bytes * (cfg.h + cfg.h_kv) * (cfg.dk + cfg.dv) * M.words(target.scheme, cfg.d_model)
end

-- Whether few queries wait for weights that come from behind the second-level cache, as far as a core's facts say.
function M.far(target, queries)
  return target.cpu.far_bytes and M.few(queries) and M.weight_bytes(target) > target.cpu.far
end

-- What a tile that is the first to read its weights takes longer, in FMA slots, where these come from far: so many
-- numbers a K step, in which it has `rows` FMAs of each of the vectors.
function M.first_cost(target, queries, numbers, rows, vecs, steps)
  local cpu, scheme = target.cpu, target.scheme
  if not M.far(target, queries) then return 0 end
  local fma = rows * slots_of(target, vecs)
  return steps * math.max(0, scheme.b.bytes * numbers / cpu.far_bytes * cpu.fmas - fma)
end

-- The runs of a set of rows, as `columns` has it.
local function runs_of(set, most) return (set.twice and cut.one_size or cut.in_pairs)(set.rows, most, set.even) end

-- A product with vectors over `columns`. Callers pass
--   keys      the schedule's keys for rows and vectors
--   sets      each of `count` times `rows` rows, stored two and two if `even`; tiles may make rows `twice`
--   sum       steps; order of A ("rows", "columns"); rounded: results are stored rounded, so no chunk is added to them
-- and get
--   blocks    of columns
--   runs      of tiles, for each set
--   scheme    the target's
--   ld        numbers from row to row
--   steps, chunks
--   panels, floats   panels of B, each as wide as a block and of `depth` rows: their number and size
--   first            of a block: the number of its first panel
function M.columns(target, keys, sets, columns, sum)
  local steps, a_order = sum.steps, sum.order
  local isa, best, best_cost = target.isa, nil, nil
  local deinterleave = target.scheme.quant and target.scheme.quant.deinterleave
  for _, vectors in ipairs(M.vector_counts(target, keys.vectors, { { keys.rows, a_order } })) do
    local product = { panel_runs = M.vector_runs(isa, columns, vectors, deinterleave, ways.deinterleave(target.scheme)),
      runs = {} }
    local product_cost = 0
    for i, set in ipairs(sets) do
      local function cost(tile_rows)
        local sum = 0
        for _, panels in ipairs(product.panel_runs) do
          local runs = runs_of(set, tile_rows)
          sum = sum + panels.count * M.runs_cost(target, runs, panels.vecs, steps, a_order)
          if i == 1 then
            local first = M.first_cost(target, set.rows * set.count, panels.width, runs[1].size, panels.vecs, steps)
            sum = sum + panels.count / set.count * first
          end
        end
        return sum
      end
      local most = M.most_rows(target, #product.panel_runs[1].vecs, a_order)
      local tile_rows = M.choose_rows(target, keys.rows, set.rows, most, cost, set.even)
      product.runs[i] = runs_of(set, tile_rows)
      product_cost = product_cost + set.count * cost(tile_rows)
    end
    if not best or product_cost < best_cost then best, best_cost = product, product_cost end
    if vectors * isa.lanes >= columns then break end
  end
  best.ld = M.round_up(columns, isa.lanes)
  best.steps, best.chunks, best.depth = steps, M.k_chunks(target, steps, sum.rounded), M.depth(target.scheme, steps)
  best.scheme = target.scheme
  best.panels, best.floats = 0, 0
  for _, panels in ipairs(best.panel_runs) do
    panels.first = best.panels
    best.panels = best.panels + panels.count
    best.floats = best.floats + panels.count * panels.width * best.depth
  end
  return best, best_cost
end

-- The panels of a product as they are packed by another scheme, where those of a run are made of them.
function M.packed(product, scheme, steps)
  local depth = M.depth(scheme, steps)
  return setmetatable({ scheme = scheme, steps = steps, depth = depth,
                        floats = product.floats // product.depth * depth }, { __index = product })
end

-- Where panel j of a block begins, among all of a product.
function M.panel_at(product, panels, j)
  local columns = j * panels.width
  for _, block in ipairs(product.panel_runs) do
    if block == panels then return columns * product.depth end
    columns = columns + block.count * block.width
  end
end

return M
