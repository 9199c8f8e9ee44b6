-- Why the schedule is as it is: every choice with its reason and what was measured instead. Ratios of
-- lower medians in one run, A B A B, one Zen 4 core, AVX-512, gcc -O2, unless a row says otherwise: how
-- much slower or faster whole kernels are with the alternative.
-- `explain` prints the rows that a plan uses; `applies` says which, all if it is missing.
--
-- Each: { choice, reason, applies = function(plan), rejected = { { alternative, figure }, .. } }

local tiles = require "tiles"

local M = {}

local function long_sums(plan) return plan.cfg.d_model > 256 end

-- Whether a projection has a tile that accepts(rows, vectors, steps).
local function some_tile(plan, accepts)
  local function tries(product, runs, steps)
    for _, block in ipairs(product.blocks) do
      for _, run in ipairs(runs) do
        if accepts(run.size, #block.vecs, steps) then return true end
      end
    end
  end
  for _, product in pairs(plan.projected) do
    if tries(product, product.runs[1], product.chunks.size) then return true end
  end
  return tries(plan.out, plan.out.runs[1], plan.out.chunks.size)
end

local function several_kinds(plan) return plan.isa.widths[2] ~= nil end

M.rows = {
  { "lanes are queries in attend",
    "row maxima and sums are vertical, K and V are only broadcast",
    rejected = { { "lanes are keys", "prototype: micro 15 % slower, odd 13 %, large shapes within 2 %" } } },
  { "one pass over the keys",
    "the first tile's maximum serves all; sums are checked at the end, a bad one takes the safe way",
    rejected = { { "a score buffer and a second pass", "prototype: the whole kernel 1 to 3 % slower" },
                 { "rescaling as in flash attention", "prototype: no gain up to 1500 keys" } } },
  { "products of weights where they take fewer flops",
    "counted for each pair of matrices, see fold.lua; bk drops out, bv goes into the output's bias",
    applies = function(plan) return plan.cfg.fold == "auto" end,
    rejected = { { "behind a mask", "an input has no margin for the last tile of keys, and may hold NaN there" },
                 { "V = X (Wv Wo) for one head", "as many flops as Y = (P X) (Wv Wo), and more for few queries" },
                 { "one key or one query, self-attention: weights are 1, no Q and K",
                   "half of the flops, but an infinite input would give inf, not NaN" },
                 { "equal inputs of keys and values in cross-attention", "no flops to save, Wk and Wv " ..
                   "differ" } } },
  { "exp2 by a table of sixteen in a register and degree 3",
    "11 operations instead of 13, where the pipes are full",
    applies = function(plan) return plan.isa.rows.root ~= nil end,
    rejected = { { "degree 6 without a table", "exp2 takes 15 % more time; micro 0.9 % slower, small 0.65 %" },
                 { "the exponent by integer shift and add", "exp2 takes 2 % less time, but a range check more" },
                 { "a table of 32 and degree 2", "an operation less, but 1.5 ulp" } } },
  { "tiles of four keys where one would hold them all",
    "the exponentials of a tile run beside the FMAs of the next",
    applies = function(plan) return plan.groups[1].keys.rows == 4 and plan.cfg.seq_kv <= plan.isa.lanes end,
    rejected = { { "key_rows=16", "slower: micro by 1.5 %, dk = 4 by 2.3 %, dk = 12 by 0.8 %" },
                 { "key_rows=4 also for more keys", "slower: 32 keys by 1.9 %, small by 0.7 %, 64 keys by " ..
                   "0.6 %" } } },
  { "maxima and sums in short chains",
    "pairs of maxima, four sums: the exponentials can start earlier",
    rejected = { { "one chain each", "micro 0.5 % slower, small 0.2 %" } } },
  { "lanes are columns in the query projection",
    "X is read as it is, and few queries leave no lanes idle; Q is transposed afterwards",
    applies = function(plan) return plan.projected.q ~= nil end,
    rejected = { { "q_lanes=queries", "slower: one query by 42 % (d_model 139, 3 heads), three by 24 %; " ..
                   "bert_base_512 by 1.9 %, kwt3 by 1.4 %, deit_s by 1.3 %, odd by 0.9 %, whisper_tiny by " ..
                   "0.8 %, " ..
                   "small and bert_base_128 by 0.4 %; merged weights: one query by 49 %, kwt1 by 0.9 %" } } },
  { "lanes are queries in the query projection",
    "one vector of queries stays in the nearest cache, or the model finds fewer cycles",
    applies = function(plan) return plan.transposed end,
    rejected = { { "q_lanes=columns", "slower: micro by 0.7 %, 16 queries of d_model 64 by 0.5 %" } } },
  { "a vector that two or three FMAs use is kept in a register",
    "left to it, gcc reads it from memory for each of them, and one load of 64 bytes a cycle is all there is",
    applies = function(plan)
      return some_tile(plan, function(rows) return tiles.kept(plan.isa, rows) end)
    end,
    rejected = { { "left to the compiler", "three queries 18 % slower, two 12 %; with clang as fast" } } },
  { "sums of small tiles in two or four chains",
    "an FMA waits four cycles for the one before",
    applies = function(plan)
      return some_tile(plan, function(rows, vectors, steps)
        return tiles.chains(plan, rows, vectors, steps) > 1
      end)
    end,
    rejected = { { "one chain", "slower: two queries by 9 %, one by 6 to 7 %, on avx2 by 3 %; odd by 2.4 %" },
                 { "four steps of two chains in a loop", "clang spills: odd on avx2 2 % slower" } } },
  { "as many heads projected together as waste the fewest lanes",
    "while what is projected stays in half of the second-level cache, or is at most 256 columns wide",
    applies = function(plan) return plan.hb > 1 and not plan.sums[1] end,
    rejected = { { "at most 256 columns", "7 queries of 11 heads of 33: 12 % slower" } } },
  { "projections by seven products of quadrants",
    "an eighth fewer multiplications, as strassen = true asks; heads together up to 128 columns",
    applies = function(plan) return plan.sums[1] ~= nil end,
    rejected = { { "strassen=false", "slower: minilm by 7 %, bert_base_512 by 5 %, bert_base_128 and " ..
                   "xformer_base by 3 %; whisper_tiny 1 % faster; half of the error" },
                 { "head_block=4 on bert_base_512", "4.5 % slower: what is projected leaves the " ..
                   "second-level cache" },
                 { "tile by tile, the seven products in the nearest cache", "prototype: projections 1 to " ..
                   "4 % slower" },
                 { "the output by quadrants as well", "by count 1 % of bert_base_512; not built" } } },
  { "key blocks of 64",
    "a chain of n equal terms is off by n * 7.5e-9 in the mean; the promise is 1e-6",
    applies = function(plan) return plan.cfg.seq_kv > 64 end,
    rejected = { { "key_block=128", "whisper_tiny 0.1 to 1.6 % faster, others within 0.3 %; error 9.9e-7 " ..
                   "on equal rows" },
                 { "key_block=256", "whisper_tiny 2 % slower" } } },
  { "tiles by a cost model",
    "FMAs, loads, latency and, in long sums, cache lines; what the schedule keys do not give",
    rejected = { { "most rows that fit the registers", "4 to 490 spills; the ISA's product has what both " ..
                   "compilers keep" },
                 { "on avx2 the costs of avx512, one FMA a cycle",
                   "2x32 tiles; slower: kwt3 by 20 %, micro by 13 %, berttiny by 9 %, minilm by 2 %" },
                 { "kv_vectors=1 (22x16) on d_model 768",
                   "4.3 % slower: 22 rows of X are 22 streams in few sets of cache" } } },
  { "one size of tile, unless two save 0.4 %",
    "each size is code of its own: 93 KB became 60 KB on deit_s",
    rejected = { { "always the cheapest", "kwt3 0.3 % faster, others within 0.1 %" } } },
  { "a lane tail takes the low part of a broadcast",
    "one load a row and step instead of two",
    applies = several_kinds,
    rejected = { { "a broadcast for each width", "slower: odd by 4.8 %, kwt1 by 2.6 %, kwt3 by 1.4 %" },
                 { "tails of 4 lanes", "not timed: no fewer issue slots, twice the rows in the ISA's table" } } },
  { "panels of Wo in the outer loop of the output, queries in the inner",
    "Wo may be larger than the cache; a block of context stays in it",
    rejected = { { "queries outside", "d_model 512 and 768: 0.5 to 1 % slower" } } },
  { "tiles of X in the outer loop of keys and values, panels in the inner",
    "X is read once a product, and may be larger than the cache",
    applies = long_sums,
    rejected = { { "panels outside", "d_model 512 and 768: 3 % slower, together with the tiles' choice" } } },
  { "keys, values and queries in products of their own",
    "each is read in rows of its own width",
    applies = function(plan) return plan.projected.k ~= nil and plan.cfg.attention == "self" end,
    rejected = { { "one product of all three", "fewer idle lanes only where heads together are no whole " ..
                   "vectors: " ..
                   "LIBXSMM, which does so, takes 6 % less for one query of 3 heads of 11; not built" } } },
  { "loops wherever they fall",
    "the front end is not what tiles wait for",
    rejected = { { "loops aligned to 32 bytes", "micro and odd as fast, minilm within 0.5 %" } } },
  { "no prefetch",
    "tiles of few rows have the loads in flight already",
    applies = long_sums,
    rejected = { { "1, 2 or 4 KB ahead, few queries of d_model 700 to 944", "from 6 % slower to 0.1 % faster" },
                 { "4 KB ahead in the panels, 22x16 tiles", "2.8 % faster, as much as 5x64 tiles without it" },
                 { "4 KB ahead, 5x64 tiles", "0.8 % slower" },
                 { "the next panels, spread evenly over the tiles before", "bert_base_128 0.4 % slower; " ..
                   "faster: minilm by 1 %, bert_base_512 by 0.4 %, xformer_base by none: not worth an op" } } },
  { "sums of up to 256 steps in one chain, the partial sums of a tile one after the other",
    "the error grows with the root of the length; a tile's partial sums are still in the nearest cache",
    applies = long_sums,
    rejected = { { "k_block=512", "error 1.03e-6 at d_model 600, dk 304; 5.8e-7 at 256" },
                 { "all tiles for one block of steps, then for the next",
                   "bert_base_128 1.5 % slower, xformer_base 1 %" } } },
  { "two vectors of queries where sums are long",
    "10x2 tiles load 12 operands for 20 FMAs, 22x1 tiles 23 for 22",
    applies = function(plan) return long_sums(plan) and #plan.groups[1].vecs > 1 end,
    rejected = { { "query_vectors=1", "slower: bert_base_128 by 1.5 %, bert_base_512 by 0.7 %, " ..
                   "xformer_base by 1 %" } } },
  { "straight code for short sums",
    "sums of up to 32 steps where a tile has up to 400 FMAs",
    applies = function(plan) return plan.cfg.unroll == "auto" end,
    rejected = { { "unroll=full on micro", "12 % slower: 77 KB of text against 14" },
                 { "unroll=tile on micro", "within 0.1 %" } } },
}

-- The rows that a plan uses, each { choice, reason, rejected }.
function M.of(plan)
  local list = {}
  for _, row in ipairs(M.rows) do
    if not row.applies or row.applies(plan) then list[#list + 1] = row end
  end
  return list
end

return M
