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

-- Sums of more steps than this are long, because their panels do not stay in L1.
M.LONG = 256

-- K steps in an iteration of a tile's loop. A divisor of the number of steps close to it is better.
M.LOOP_STEPS = 4

-- The most steps of scores in float32 that are a single chain. Longer sums are added chunk by chunk.
local ONE_CHAIN = 512

-- Row tiles of a panel that tile registers handle together: their sums are kept in a buffer, while a chunk of the panel
-- stays in L1.
M.TOGETHER = 4

-- Whether a chunk of a panel serves several row tiles, whose sums are kept; otherwise each tile takes all its chunks in
-- turn.
function M.keeps_sums(product) return ways.of(product.scheme).buffered and product.chunks.count > 1 end

-- The number of tiles for a set of rows of a product, the first set if none is named.
function M.count(product, set)
  local count = 0
  for _, run in ipairs(product.runs[set or 1]) do count = count + run.count end
  return count
end

-- The first row of each tile, and of one more. sets: { runs, count, size } each, `count` times `size` rows in equal
-- runs of tiles.
function M.starts(sets)
  local starts, from, last = {}, 0, nil
  for _, set in ipairs(sets) do
    for _ = 1, set.count do
      for _, run in ipairs(set.runs) do
        for i = 0, run.count - 1 do starts[#starts + 1] = from + run.at + i * run.size end
        last = run
      end
      from = from + set.size
    end
  end
  starts[#starts + 1] = starts[#starts] + last.size
  return starts
end

M.ceil_div, M.round_up = cut.ceil_div, cut.round_up

function M.refuse(key, value, rule) error({ key = key, value = value, rule = rule }, 0) end

-- Words along K for n numbers of a sum, rounded up to what an instruction or a word of operand B takes at once.
function M.words(scheme, n)
  local together = math.max(ways.interleave(scheme), scheme.group > 1 and M.in_step(scheme) or 1)
  return M.round_up(M.ceil_div(n, scheme.group), together)
end

-- The same with padding, because tile registers take whole rows of words.
function M.padded(scheme, words) return M.round_up(words, scheme.pad or 1) end

-- Rows after those of operand A that tile registers may read.
function M.rows_behind(scheme) return (scheme.pad or 1) - 1 end

-- K steps that a word of operand B serves: several for quantized weights, whatever a step multiplies.
function M.in_step(scheme)
  local quant = scheme.quant
  return quant and quant.in_word // scheme.group or 1
end

-- K steps that share a scale of a column, or of a row; nil without groups.
function M.group_steps(scheme)
  return scheme.quant and scheme.quant.group and scheme.quant.group // scheme.group
end
function M.row_group_steps(scheme) return scheme.row_group and scheme.row_group // scheme.group or nil end

-- Rows of a panel of operand B for so many steps: numbers or words; integers are followed by scales, and by the initial
-- values of sums (mhagen.h).
function M.depth(scheme, steps)
  local quant, words = scheme.quant, M.ceil_div(steps, M.in_step(scheme))
  if not scheme.scales then return M.padded(scheme, words) end
  local group = M.group_steps(scheme)
  local scales = group and M.ceil_div(steps, group) or 1
  -- Tile registers read the scales as words, but multiply them by zeros.
  return math.max(M.padded(scheme, words), words + scales + (quant.sums and 1 or 0))
end

-- The chunks of a product's sums. If groups of steps have scales, a chunk lies in one group, and is all of it if
-- possible. If results are rounded there is one chunk, unless sums are kept apart from results.
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

-- The chunks of the sums of scores, or nil if each is a single chain.
function M.score_chunks(target, steps)
  if target.scheme.b.round or steps <= (target.cfg.k_block or ONE_CHAIN) then return nil end
  return cut.chunks(steps, target.k_block, M.LOOP_STEPS)
end

-- Divides vectors evenly into blocks of at most `most`. Equal neighbours become one run: { vecs, count, at = first
-- float, used = floats of one block, width = its lanes }.
--   whole      all vectors have the full width; "equal": and all blocks as many, with perhaps unused ones at the end
--   together   so many vectors stay in one block
-- All blocks of a size but the very last one are equal, so their number does not add code.
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

-- Into how many chains a sum is split, in a tile of so many rows and vectors: 2 or 4 if too few sums would be in
-- flight, but with at least 4 steps each.
function M.chains(target, rows, vectors, steps)
  local chains, sums, cpu = 1, rows * vectors, target.cpu
  while chains < 4 and 8 * chains <= steps and sums * chains < cpu.latency * cpu.fmas
    and 2 * chains * sums + vectors + 2 < target.isa.registers do
    chains = 2 * chains
  end
  return chains
end

-- Whether the vectors of a tile with so many rows are pinned in registers: gcc loads a vector with up to three uses
-- again for each of them.
function M.pinned(isa, rows) return isa.rows.load_pinned ~= nil and rows > 1 and rows <= 3 end

-- What an operation on a vector of some width costs, relative to the full width; and the total for several vectors.
function M.share(target, w) return w.lanes < target.isa.lanes and target.cpu.narrow or 1 end

local function slots_of(target, vecs)
  local sum = 0
  for _, v in ipairs(vecs) do sum = sum + M.share(target, v.w) end
  return sum
end

-- Whether rows with a stride of so many words, together with a panel, need more lines than their sets of L1 hold.
function M.crowded(cpu, rows, words)
  local bytes, all = 4 * words, 2 * cpu.near // cpu.set_lines
  -- The sets that such rows use: a large power of two in their distance leaves few.
  local sets = all // math.min(bytes & -bytes, all)
  return M.ceil_div(rows, sets) >= cpu.set_lines
end

-- The time of a register tile in full-width FMA slots, of which a cycle has cpu.fmas. A step takes the longest of the
-- FMAs, the loads and the latency of the accumulators; a start and an end are added. A load of a vector takes a slot, a
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
  local alone = scheme.integers and way.dups -- no instruction broadcasts its memory operand
  local broadcasts = (alone or interleave > 1) and rows / interleave or rows * cpu.fmas / 2
  local loads = #vecs * interleave + broadcasts
  if interleave > 1 then loads = (rows * fma + loads) / cpu.dispatch end -- as many instructions as a cycle can issue
  local slots = rows * (fma + (scheme.dup or 0)) -- the operations on FMA ports
  local step = math.max(slots, loads, latency, far * cpu.fmas)
  if steps > cpu.long then step = step + cpu.miss_vector * #vecs + cpu.miss_row[a_order] * rows end
  if a_order == "rows" and M.crowded(cpu, rows, steps) then step = step + rows end -- each row is loaded into L1 again
  return steps * step + 20 + 2 * rows * #vecs
end

-- The share of the time that a second kind of tiles or groups must save, because each kind has code of its own.
M.KIND = 0.004

-- The cost for all rows of some runs. kind: the share for a second kind, if it is another.
function M.runs_cost(target, runs, vecs, steps, a_order, kind)
  local sum = 0
  for _, run in ipairs(runs) do sum = sum + run.count * M.cost(target, run.size, vecs, steps, a_order) end
  return sum * (1 + (kind or M.KIND) * #runs)
end

-- The same as a function of a tile's rows, for `total` rows with the queries of a group in the lanes.
function M.rows_cost(target, total, vecs, steps, even, kind)
  return function(rows) return M.runs_cost(target, cut.rows_in(total, rows, even), vecs, steps, "columns", kind) end
end

-- The most rows of a tile with so many vectors. a_order: whether A is contiguous from row to row ("columns") or from
-- step to step ("rows"), which matters where FMAs are by lane.
function M.most_rows(target, vectors, a_order) return target.scheme.rows[a_order][vectors] or 0 end

-- The most rows of any tile whose A is contiguous from step to step, whatever the schedule.
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

-- The rows of a tile, out of n in all: the schedule key if it is set, else the cheapest number that is at most `most`;
-- even: an even number.
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

-- Whether there are so few queries that tiles which read weights first, and wait for them, dominate the time.
function M.few(queries) return queries <= 64 end

-- Bytes of a layer's weights, in the type of those of `target`.
function M.weight_bytes(target)
  local cfg = target.cfg
  local columns = cfg.attention == "none" and cfg.y_width or (cfg.h + cfg.h_kv) * (cfg.dk + cfg.dv)
  columns = columns + cfg.ffn * (cfg.ffn_gate and 3 or 2)
  return target.scheme.b.bytes * columns * M.words(target.scheme, cfg.d_model)
end

-- Whether few queries wait for weights that do not fit L2; only if the facts of a core have a figure for that.
function M.far(target, queries)
  return target.cpu.far_bytes and M.few(queries) and M.weight_bytes(target) > target.cpu.far
end

-- How much longer a tile takes that reads its weights first, from L3 or DRAM, in FMA slots. A K step reads so many
-- numbers and has `rows` FMAs for each of the vectors.
function M.first_cost(target, queries, numbers, rows, vecs, steps)
  local cpu, scheme = target.cpu, target.scheme
  if not M.far(target, queries) then return 0 end
  local fma = rows * slots_of(target, vecs)
  return steps * math.max(0, scheme.b.bytes * numbers / cpu.far_bytes * cpu.fmas - fma)
end

-- The runs of a set of rows; see M.columns.
local function runs_of(set, most) return (set.twice and cut.one_size or cut.in_pairs)(set.rows, most, set.even) end

-- A product with vectors over `columns`. Callers pass
--   keys      the schedule's keys for rows and vectors
--   sets      each has `count` times `rows` rows; even: they are stored in pairs; twice: tiles may compute rows twice
--   sum       steps; order of A ("rows", "columns"); rounded: results are stored rounded, so no chunk may be added
-- and get
--   panel_runs       blocks of columns; first: the number of a block's first panel
--   runs             runs of tiles, for each set; first: the number of a run's first tile
--   columns          as they were passed
--   scheme           the target's
--   ld               numbers from row to row
--   steps, chunks
--   panels, floats   panels of B, each as wide as a block and `depth` rows high: their number and their total size
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
  for _, runs in ipairs(best.runs) do
    local first = 0
    for _, run in ipairs(runs) do run.first, first = first, first + run.count end
  end
  best.columns, best.ld = columns, M.round_up(columns, isa.lanes)
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

-- The panels of a product as packed by another scheme, if a run makes its own panels from those.
function M.packed(product, scheme, steps)
  local depth = M.depth(scheme, steps)
  return setmetatable({ scheme = scheme, steps = steps, depth = depth,
                        floats = product.floats // product.depth * depth }, { __index = product })
end

-- The offset of panel j of a block, among all panels of a product.
function M.panel_at(product, panels, j)
  local columns = j * panels.width
  for _, block in ipairs(product.panel_runs) do
    if block == panels then return columns * product.depth end
    columns = columns + block.count * block.width
  end
end

return M
