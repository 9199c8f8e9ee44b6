-- The ways in which an ISA multiplies, a file each. A scheme of isa/init.lua names its way; who plans or records
-- tiles asks the way, and never which one it is.
--
-- Layout and tiles, when planning:
--   whole      groups of queries are of full vectors all, as many in each
--   rows_of_a  operand A is rows of words in attention too, of K, of V transposed and of the context
--   tile_words(scheme)     words of a block of such rows; nil: a row is one piece
--   key_rows(isa)      keys of a tile of scores, where no other number is possible
--   key_block          keys of a block of softmax
--   twice      rows of a tile may be made twice, so that all tiles are of one size
--   columns    why weights are operand B and nothing else, as text
--   chained    sums of few steps may be in several chains
--   fetched    weights that tiles fetch ahead: "all", "shares" of them, or "none"
--   words      such weights may be words of quants
--   dups       elements of A are put into all lanes by an op of their own
--   by_lane    elements of A are lanes of vectors
--   chunk(target, steps)   K steps of a chunk, and what they are a multiple of; nil: as a vector's sums have it
--   cost(target, rows, vecs, steps)   of a tile, in FMA slots; nil: that of vectors (schedule/tiles.lua)
--   facts(cpu) what is known of the core about it
--
-- Code:
--   enter(t), leave(t)     around all products of a run or a task
--   steps(t, tile, block)  the K steps of a tile, of which block = { count, base } follow each other in the text:
--                          { begin, multiply, read }. begin(step) records what a step reads before the vectors of B.
--                          multiply(r, step, b, acc) adds the products of row r with the vectors b[c] to acc[c].
--                          read(step), if it is there, returns b. A step has i, k and tag: its number in the block,
--                          its number from the pointers of A and B, and a text that tells its values apart.
--   together(t, tile)      K steps that are written together
--   finish(t, tile, acc)   sums as rows of vectors, where they are others
--   tile(t, tile)          a whole tile as emit/gemm.lua has it, in place of steps
--   buffered   { size, products, sums, interleaved }: sums lie in a buffer, so that the end of a tile may be recorded
--              apart from its products; see way/tile.lua
--   alone(K, tile, code)   a whole function of a tile, in place of all that (way/f16sum.lua)
--   peak(t, scheme, own)   the loop of emit/peak.lua; returns the flops of a round. op(scheme): what it is named by
--   own_sums   sums are of the operands' type at first

local M = { list = {} }

local function none() end

local defaults = {
  key_block = 64, chained = true, fetched = "all",
  tile_words = none, key_rows = none, chunk = none, enter = none, leave = none,
  together = function() return 1 end,
  facts = function(cpu) return cpu end,
  op = function(scheme) return scheme.op end,
}

-- One line to add for a new way.
function M.add(name, way) M.list[name] = setmetatable(way, { __index = defaults }) end

M.add("outer", require "way.outer")
M.add("lane", require "way.lane")
M.add("mmla", require "way.mmla")
M.add("tile", require "way.tile")
M.add("f16sum", require "way.f16sum")

-- That of a scheme.
function M.of(scheme) return M.list[scheme.way] end

-- Words of a row that lie side by side with those of as many rows, which an instruction takes at once; and vectors of
-- operand B that the numbers of a word are spread over.
function M.interleave(scheme) return scheme.interleave or 1 end
function M.deinterleave(scheme) return scheme.deinterleave or 1 end

-- Why weights are operand B, or nil.
function M.columns(scheme)
  return scheme.interleave and M.list.mmla.columns or scheme.deinterleave and M.list.lane.columns
end

-- Those of several schemes, each once.
function M.of_all(products)
  local ways, known = {}, {}
  for _, scheme in ipairs(products) do
    if not known[scheme.way] then known[scheme.way], ways[#ways + 1] = true, M.of(scheme) end
  end
  return ways
end

return M
