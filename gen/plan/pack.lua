-- How packed weights are made of the given ones, as data: a list of fills, which mhagen_pack of the runtime executes.
--
-- A fill writes panel[steps][width]: some columns of a matrix, K step by K step, padded with zeros. The matrix is
-- `scale` times a sum of terms, each a given matrix or a product of two. `rounds` repeat the fill for blocks of heads,
-- for heads and for panels; each round moves on in the packed weights and in the matrix.
--
-- Panels of weights for Q^T are as wide as a tile of Q^T is high. Those of Wk, Wv and Wo are whole vectors wide. Each
-- kind of stage says what is packed for it.

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

-- The matrices of a plan (graph/matrices.lua): { matrix, rows, columns } each. `instead` has the numbers for a null
-- pointer, if a row of gen/score defines some. tables: lists the rope tables that are packed apart, or else all that
-- are with the weights.
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

-- A matrix as a term, from its column `column` on; see graph/init.lua.
function Pack.term(matrix, column)
  return { a = matrix.a, b = matrix.b, a_flipped = matrix.a_flipped, b_flipped = matrix.b_flipped, inner = matrix.inner,
           column = column }
end

-- The offset of a section in its space.
function Pack:at(name) return self.plan.memory.sections[name].offset end

-- The lists of fills, by what numbers become: float32; float32 rounded to a type; halves of a word; integers in a word;
-- and integers for Wv, if these are of another kind. Beside them, `tables` has the fills of rope tables that are packed
-- apart.
M.lists = { "fills", "rounded", "pairs", "quants", "value_quants" }

-- Adds a fill, without rounds that repeat nothing.
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

-- Adds a fill for the weights of a block of heads.
function Pack:add_heads(matrix, fill)
  local plan, rounds = self.plan, fill.rounds
  fill.to = fill.to + self:at "head"
  fill.rounds = { { count = plan.head_blocks, to = plan.memory.head.total,
                    [matrix.along] = graph.in_block(plan, matrix) * matrix.width },
                  rounds[1] or rounds[2], rounds[1] and rounds[2] }
  self:add(matrix.text, fill)
end

-- Calls build(block, to, round) for the panels of a product with vectors over columns.
function Pack:panels(product, to, build)
  for _, panels in ipairs(product.panel_runs) do
    local round = { count = panels.count, to = panels.width * product.depth, column = panels.width }
    build(panels, to + tiles.panel_at(product, panels, 0), round)
  end
end

-- Calls build(run, to, round) for the panels of a product with lanes over queries, which are as high as its tiles.
function Pack:rows(product, to, build)
  for _, run in ipairs(product.runs) do
    build(run, to + run.at * product.steps, { count = run.count, to = run.size * product.steps, column = run.size })
  end
end

-- Marks a fill of weights with the form that the product needs: pairs, rounded or quantized. Weights of 16 bits are
-- packed as pairs.
function Pack.of_weights(scheme, fill)
  local short = fill.quant and fill.quant.type
  if short then fill.quant = nil end
  fill.list = (short or scheme.group > 1) and "pairs" or scheme.packed and "rounded"
  return fill
end

-- How weights become integers, if they do.
local function integers(plan)
  local quant = plan.stored.quant
  return quant and not quant.type and quant or nil
end

-- The 16-bit type of weights, which may differ from that of the operands.
local function short_type(plan)
  local quant = plan.stored.quant
  return quant and quant.type or plan.scheme.b
end

-- For so many columns at a time, panels store the first numbers of all words before the second ones, because some ISAs
-- multiply by one part of a word. 0: they do not.
local function deinterleave(plan)
  local quant, spread = plan.stored.quant, ways.deinterleave(plan.scheme)
  if quant and quant.deinterleave then return quant.deinterleave end
  return spread > 1 and spread * plan.isa.lanes or 0
end

-- The lists of a packing, and how numbers of them become words.
local function form(pack)
  local plan, lists = pack.plan, pack.lists
  return { lists = lists, interleave = ways.interleave(plan.scheme), deinterleave = deinterleave(plan),
           quant = integers(plan), f16 = #lists.pairs + #lists.rounded > 0 and short_type(plan) == types.by_name.f16 }
end

-- Packing of a kernel:
--   matrices   as matrices_of returns them; terms name them
--   lists      the fills, by the names of their lists
--   interleave words of a column that lie side by side
--   deinterleave   see above
--   quant      how weights become integers, or nil
--   f16        whether pairs and rounded numbers are half precision
--   beside     the same but matrices, for products of the feed-forward in another type; or nil
--
-- A fill is { text, to, steps, used, width, scale, terms, rounds }, and perhaps gain, the name of a matrix by which its
-- columns are multiplied. A term of it:
--   a, b       the names of its matrices; without b it is a alone
--   a_flipped, b_flipped   whether they are transposed
--   row, column   where the panel begins
--   inner      for a product: columns of a, from the first of them on
function M.list(plan)
  local function new(of)
    local pack = setmetatable({ plan = of, lists = { tables = {} } }, Pack)
    for _, name in ipairs(M.lists) do pack.lists[name] = {} end
    return pack
  end
  local pack, feeding = new(plan), plan.feeding ~= plan and new(plan.feeding) or nil
  for _, stage in ipairs(graph.by_matrix(plan.stages)) do
    kinds.ask("fills", nil, stage.apart and feeding or pack, stage)
  end
  kinds.ask("fills", nil, pack, plan.attend)
  local list = form(pack)
  list.matrices, list.beside = matrices_of(plan, false), feeding and form(feeding)
  return list
end

-- The same for rope tables that are packed apart, from the result of M.list; nil if there are none.
function M.tables(plan, list)
  if plan.tables_bytes == 0 then return nil end
  local lists = {}
  for _, name in ipairs(M.lists) do lists[name] = {} end
  lists.fills = list.lists.tables
  return { matrices = matrices_of(plan, true), lists = lists, interleave = 1, deinterleave = 0 }
end

M.WEIGHTS, M.TABLES = "weights", "tables of rope"

-- The bytes of packed weights by kind: { text, bytes }, the largest first.
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

-- Adds what the host's pack needs for rope tables: the part of a full turn of each pair, and the first position.
local function with_turns(packing, qk)
  if qk_of.packs(qk) then packing.turns, packing.first = qk_of.turns(qk), qk.first end
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

-- What the host's pack takes: the lists of fills, the fingerprint at the beginning of packed weights, and the matrices.
-- A second result is the same for rope tables that are packed apart, or nil.
function M.packing(plan, fingerprint, tables_fingerprint)
  local list, qk = M.list(plan), plan.attend.qk
  local tables = M.tables(plan, list)
  return with_turns({
    bytes = plan.packed_bytes, fingerprint = fingerprint, lists = list.lists, f16 = list.f16, quant = list.quant,
    deinterleave = list.deinterleave, interleave = list.interleave, beside = list.beside,
    matrices = for_host(list.matrices) }, not tables and qk or nil),
    tables and with_turns({ bytes = plan.tables_bytes, fingerprint = tables_fingerprint, lists = tables.lists,
                            matrices = for_host(tables.matrices) }, qk)
end

return M
