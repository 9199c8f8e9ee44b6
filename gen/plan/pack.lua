-- How the packed weights are made of the given ones, as data: a list of fills, which mhagen_pack of the runtime
-- carries out.
--
-- A fill writes panel[steps][width]: some columns of a matrix, K step by K step, and zeros behind. The matrix is a sum
-- of terms, each a given matrix or a product of two, times `scale`. `rounds` repeat it for blocks of heads, heads and
-- panels; each round moves the places in packed weights and matrix.
--
-- A panel of weights for Q^T is as wide as a tile of Q^T is high. Those of Wk, Wv and Wo are whole vectors.
-- The kinds of stages say what is packed for them.

local graph = require "graph.init"
local kinds = require "stage.init"
local matrices = require "graph.matrices"
local memory = require "schedule.memory"
local tiles = require "schedule.tiles"
local qk_of = require "graph.qk"
local types = require "machine.types"
local ways = require "way.init"

local M = {}

local Pack = {}
Pack.__index = Pack

-- The matrices of a plan (graph/matrices.lua), whose tables of rope may be apart: { matrix, rows, columns }, and
-- instead, the numbers of a null pointer where a row of scores has some. tables: those of rope, or all that are with
-- weights.
local function matrices_of(plan, tables)
  local list, defaults = {}, {}
  for _, row in ipairs(plan.scores.packed) do defaults[row.matrix] = row.default and row.default(plan.cfg.h) end
  for _, of in ipairs(matrices.of(plan.cfg)) do
    if (of.matrix.table and plan.tables_bytes > 0 or false) == tables then
      list[#list + 1] = { matrix = of.matrix, rows = of.rows, columns = of.columns, instead = defaults[of.matrix.name] }
    end
  end
  return list
end

-- One matrix from its column `column` on, as a term: see graph/init.lua.
function Pack.term(matrix, column)
  return { a = matrix.a, b = matrix.b, a_flipped = matrix.a_flipped, b_flipped = matrix.b_flipped, inner = matrix.inner,
           column = column }
end

-- Where a section begins in its space.
function Pack:at(name) return self.plan.memory.sections[name].offset end

-- The lists of fills, by what a number becomes: float32, the nearest one of a type as float32, one of two in a word,
-- one of the integers in a word; and one of those where Wv has others. Beside them `tables` has the fills of tables
-- that are apart.
M.lists = { "fills", "rounded", "pairs", "quants", "value_quants" }

-- Adds a fill, with the rounds that do more than one.
function Pack:add(text, fill)
  local rounds = {}
  for i = 1, 3 do
    local round = fill.rounds[i]
    if round and round.count > 1 then rounds[#rounds + 1] = round end
  end
  fill.text, fill.rounds = text, rounds
  local quants = fill.quant and (fill.quant == self.plan.stored.quant and "quants" or "value_quants")
  table.insert(self.lists[quants or fill.list or "fills"], fill)
end

-- Adds one of the weights of blocks of heads.
function Pack:add_heads(matrix, fill)
  local plan, rounds = self.plan, fill.rounds
  fill.to = fill.to + self:at "head"
  fill.rounds = { { count = plan.head_blocks, to = plan.memory.head.total,
                    [matrix.along] = graph.in_block(plan, matrix) * matrix.width },
                  rounds[1] or rounds[2], rounds[1] and rounds[2] }
  self:add(matrix.text, fill)
end

-- build(block, to, round) for the panels of a product with vectors over columns.
function Pack:panels(product, to, build)
  for _, panels in ipairs(product.panel_runs) do
    local round = { count = panels.count, to = panels.width * product.depth, column = panels.width }
    build(panels, to + tiles.panel_at(product, panels, 0), round)
  end
end

-- build(run, to, round) for those of a product by rows, as high as its tiles.
function Pack:rows(product, to, build)
  for _, run in ipairs(product.runs) do
    build(run, to + run.at * product.steps, { count = run.count, to = run.size * product.steps, column = run.size })
  end
end

-- A fill of the weights of a product, in pairs or rounded where it has them so, or as quants of a kind: two of 16 bits
-- are a pair.
function Pack.of_weights(scheme, fill)
  local short = fill.quant and fill.quant.type
  if short then fill.quant = nil end
  fill.list = (short or scheme.group > 1) and "pairs" or scheme.packed and "rounded"
  return fill
end

-- How weights are quantized that are integers.
function M.integers(plan)
  local quant = plan.stored.quant
  return quant and not quant.type and quant or nil
end

-- The type of weights of 16 bits, where operands may have another one.
local function short_type(plan, scheme)
  local quant = plan.stored.quant
  return quant and quant.type or scheme.b
end

-- Packing of a kernel:
--   matrices   as matrices_of has them; terms name them
--   lists      the fills, by the names of their lists
--   interleave words of a column that lie side by side
--   f16        pairs and rounded numbers are half precision
--
-- A fill is { text, to, steps, used, width, scale, terms, rounds }. A term of it:
--   a, b       the names of its matrices; without b it is a alone
--   a_flipped, b_flipped   taken transposed
--   row, column   where the panel begins
--   inner      of a product: the columns of a, from the first of them on
function M.list(plan)
  local pack = setmetatable({ plan = plan, lists = { tables = {} } }, Pack)
  for _, name in ipairs(M.lists) do pack.lists[name] = {} end
  for _, stage in ipairs(graph.by_matrix(plan.stages)) do kinds.ask("fills", nil, pack, stage) end
  kinds.of(plan.attend).fills(pack, plan.attend)
  local scheme, halves = graph.scheme(plan.stages), #pack.lists.pairs + #pack.lists.rounded > 0
  return { matrices = matrices_of(plan, false), lists = pack.lists,
           interleave = scheme and ways.interleave(scheme) or 1,
           f16 = halves and short_type(plan, scheme) == types.by_name.f16 }
end

-- The same of tables that are apart, of what M.list returns; nil without such.
function M.tables(plan, list)
  if plan.tables_bytes == 0 then return nil end
  local lists = {}
  for _, name in ipairs(M.lists) do lists[name] = {} end
  lists.fills = list.lists.tables
  return { matrices = matrices_of(plan, true), lists = lists, interleave = 1 }
end

-- Columns whose numbers of a word lie apart, those of a step before those of the next one; 0: none.
function M.deinterleave(plan)
  local quant, scheme = plan.stored.quant, graph.scheme(plan.stages)
  if quant and quant.deinterleave then return quant.deinterleave end
  local spread = scheme and ways.deinterleave(scheme) or 1
  return spread > 1 and spread * plan.isa.lanes or 0
end

M.WEIGHTS, M.TABLES = "weights", "tables of rope"

-- The bytes of packed weights by what they are: { text, bytes }, the largest first.
function M.parts(plan)
  local of, list = {}, {}
  for _, section in ipairs(plan.memory.packed) do
    local text = section.doc:find "^rotations" and M.TABLES or section.name == "fingerprint" and section.name
      or M.WEIGHTS
    if not of[text] then
      of[text] = { text = text, bytes = 0 }
      list[#list + 1] = of[text]
    end
    of[text].bytes = of[text].bytes + types.f32.bytes * memory.aligned(section.count)
  end
  table.sort(list, function(a, b) return a.bytes > b.bytes end)
  return list
end

-- Adds to what the host's pack takes: turns, for tables of rope, the part of a turn of each pair; and the first place.
local function with_turns(packing, qk)
  if qk and qk.pairs > 0 then packing.turns, packing.first = qk_of.turns(qk), qk.first end
  return packing
end

-- A list of matrices as the host's pack takes it.
local function for_host(list)
  local out = {}
  for i, of in ipairs(list) do
    local matrix = of.matrix
    out[i] = { name = matrix.name, null = matrix.null, rows = of.rows, columns = of.columns, instead = of.instead }
  end
  return out
end

-- What the host's pack takes: the lists of fills, the fingerprint that packed weights begin with, and the matrices.
-- Behind it the same of tables that are apart, or nil.
function M.packing(plan, fingerprint, tables_fingerprint)
  local list, qk = M.list(plan), plan.attend.qk
  local tables = M.tables(plan, list)
  return with_turns({
    bytes = plan.packed_bytes, fingerprint = fingerprint, lists = list.lists, f16 = list.f16,
    deinterleave = M.deinterleave(plan),
    interleave = list.interleave, quant = M.integers(plan),
    matrices = for_host(list.matrices) }, not tables and qk),
    tables and with_turns({ bytes = plan.tables_bytes, fingerprint = tables_fingerprint, lists = tables.lists,
                            matrices = for_host(tables.matrices) }, qk)
end

return M
