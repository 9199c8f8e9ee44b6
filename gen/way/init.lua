-- Product kernels, called ways in code: how an ISA multiplies, one file each. A scheme of isa/init.lua names its way.
-- Other modules read the fields below, and never ask which way it is.
--
-- Layout and tiles, when planning:
--   whole      all groups of queries have full vectors, the same number in each
--   rows_of_a  attention has rows of words as operand A too: K, V transposed, the context
--   tile_words(scheme)     words of a block of such rows; nil: a row is one piece
--   key_rows(isa)      keys of a tile of scores, where no other number is possible
--   key_block          keys of a block of softmax
--   twice      neighbouring tiles may both compute some rows, so that all tiles have one size
--   columns    text: why weights must be operand B
--   chained    a sum of few steps may be several chains, added at the end
--   fetched    weights that tiles fetch ahead: "all", "shares" of them, or "none"
--   words      fetched weights may be quantized
--   dups       elements of A are put into all lanes by an op of their own
--   by_lane    elements of A are lanes of vectors
--   chunk(target, steps)   most K steps of a chunk, and their divisor; nil: as for vectors
--   cost(target, rows, vecs, steps)   of a tile, in FMA slots; nil: that of vectors (schedule/tiles.lua)
--   facts(cpu) the facts of a core for this way, or nil
--
-- Code:
--   enter(t), leave(t)     recorded before and after all products of a run or a task
--   steps(t, tile, block)  the K steps of a block = { count, base }, which follow each other in the text:
--                          { begin, multiply, read }. begin(step) records what a step reads before the vectors of B.
--                          multiply(r, step, b, acc) adds the products of row r with the vectors b[c] to acc[c].
--                          read(step), if it is there, returns b. A step has i, k and tag: its number in the block,
--                          its number from the pointers of A and B, and a suffix for names.
--   together(t, tile)      K steps that share operands, and stay in one round of a loop
--   finish(t, tile, acc)   makes rows of vectors of the sums, where these lie otherwise
--   tile(t, tile)          a whole tile as emit/gemm.lua has it, in place of steps
--   buffered   { size, products, sums, interleaved }: sums lie in a buffer, so that the end of a tile may be recorded
--              apart from its products; see way/tile.lua
--   alone(K, tile, code)   a whole function of a tile, in place of all these (way/f16sum.lua)
--   peak(t, scheme, own)   the loop of emit/peak.lua; returns the flops of a round. op(scheme): what it is named by
--   own_sums   partial sums have the operands' type

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
