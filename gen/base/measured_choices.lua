-- Choices of the plan that were measured: { id, choice, reason, rejected = { { alternative, figure }, .. } }.
--
-- A figure says how much slower or faster a whole kernel is with the alternative: a ratio of lower medians, both
-- measured in turn in one run (A B A B). The core is a Zen 4, with AVX-512 and gcc -O2, unless a row says otherwise.

return {
  { "attend_lanes", "lanes are queries in attend",
    "row maxima and sums are vertical, K and V are only broadcast",
    rejected = { { "lanes are keys", "prototype: micro 15 % slower, odd 13 %, large shapes within 2 %" } } },
  { "key_lanes", "lanes are keys in the scores of a step, and columns of V in its context",
    "few queries read a long cache: its rows are vectors, which the heads that share them find in the nearest cache",
    rejected = { { "lanes are queries", "Skylake-SP type, one query of 12 heads of 64: 49, 62 and 58 % slower with " ..
                   "256, 1024 and 2048 keys; of 32 heads that share 8 (d_model 2048): 8, 31 and 61 %; " ..
                   "with projections in int8, 4096 keys, Zen 5: 10 times the time" } } },
  { "widened", "rows of a small type are widened where they are multiplied",
    "by operations that take no place of FMAs, once for up to four heads",
    rejected = { { "in blocks of 64 keys, into the nearest cache", "Zen 5, one query of 32 heads that share 8, 4096 " ..
                   "keys: attention takes 1.31 times the time with bf16, 1.13 with int8; of 12 heads, 2048 keys: " ..
                   "1.34, 1.44" },
                 { "once for eight heads", "Zen 5, 64 heads that share 8, 4096 keys: .98 of the time with int8, " ..
                   "1.00 to 1.03 with f16" },
                 { "tiles of the context with more heads, as widening is counted", "the same: .99 with int8, 1.01 " ..
                   "with f16" } } },
  { "cache_words", "rows of a cache in int8 that four or more heads share are multiplied as integers",
    "by queries and weights of 16 bits, in half of the instructions; keys are turned into columns once for all heads",
    rejected = { { "float32", "Zen 5, 4096 keys, 4 or 8 heads that share each, dk 64 and 128: 1.5 to 1.75 times the " ..
                   "time in the third-level cache, 1.17 to 1.7 in none; AVX-512 alone 1.2 to 1.45, AVX2 1.26 to 1.36" },
                 { "heads that share no rows as well", "prototype, the same: as fast with dk 64, 1.07 with dk 128" },
                 { "rows fetched while they become columns", "1.1 to 1.17 times the time in no cache, but 1.0 with " ..
                   "4 heads of 64" },
                 { "16 KB ahead", "1.06 times the time with dk 64, .98 with dk 128" },
                 { "in halves of words when they become columns", "prototype: a store more for each, 1 to 3 %" } } },
  { "scales_last", "scales of integers in a cache are multiplied into scores and attention weights, not into rows",
    "rows have a product less for each vector, and scores and weights one for each key",
    rejected = { { "into keys", "Zen 5, 4096 keys, 1, 4 or 8 heads that share each, dk 64 and 128: 1.09 to 1.13 " ..
                   "times the time" },
                 { "into values", "the same: 1.05 to 1.15" } } },
  { "fetched", "rows of a cache are fetched 8 KB ahead, in their order, beside the products",
    "the hardware's own fetching comes too late for small types, and for float32 where four heads share rows",
    rejected = { { "no fetching", "Zen 5, 32 heads that share 8, 4096 keys in no cache: attention takes 1.7 times " ..
                   "the time with bf16, 1.35 with int8" },
                 { "16 KB ahead", "Zen 5, 4096 keys in no cache, dk 64 and 128: 1.03 to 1.12 times the time" },
                 { "4 KB ahead with bf16", "1.25 to 1.35 times the time" },
                 { "a tile's rows at once, and values by columns", "the same with f16 and int8: 1.14 to 1.55 times " ..
                   "the time, where heads share rows 1.02 to 1.08" },
                 { "float32 that fewer than four heads share", "7 % more with 4096 keys in no cache, and 36 % with " ..
                   "256 keys that three share; with four heads .88, with eight .54 to .60" },
                 { "the first values before the weights", "less than 1.5 %" } } },
  { "one_pass", "one pass over the keys",
    "the first tile's maximum serves all, until the sums behind a block of keys are too large: then it may rise",
    rejected = { { "a score buffer and a second pass for all scores", "prototype: the whole kernel 1 to 3 % slower" },
                 { "rescaling as in flash attention", "prototype: no gain up to 1500 keys" },
                 { "whole heads again where sums are above 2^32", "Zen 5, scores of standard deviation 10 to 100: 3 " ..
                   "times the time of calm ones, instead of 1.0 to 1.15" },
                 { "from then on for one head alone, not for all of a task", "Zen 5, standard deviation 50: 1.12 " ..
                   "instead of 1.10, causal 1.29 instead of 1.12" },
                 { "sums looked at behind few keys", "Zen 5: micro 2.9 % slower" },
                 { "where a maximum may rise, a rise in each tile, with the weights so far made smaller", "Zen 5, " ..
                   "standard deviation 100 / 10^4: 1.13 / 1.21 times the time of calm scores instead of 1.05 / " ..
                   "1.05, causal 1.17 / 1.26 instead of 1.05 / 1.06, with bf16 too 1.25 / 1.34 instead of 1.12 / " ..
                   "1.11: 20 to 36 rises in 51 tiles, instead of at most one in a block of 7" },
                 { "a maximum 40 above the scores where it rises", "1.08 at 50, but weights below 2^-60 are lost" },
                 { "with alibi the maximum of the first tile, and the slope times the distance to the last key",
                   "Zen 5, 12 heads of 64, 512 keys, deviation 20 to 100: 1.5 to 2.2 times the time of calm scores, " ..
                   "causal 1.8 to 2.4, in bf16 2.0 to 3.5: lanes whose maximum was too high were done again" },
                 { "the control register set by each run, for subnormal numbers", "Zen 5: 40 ns, 4 % of micro" } } },
  { "rises", "few queries beside others, and a last lower tile of keys, take blocks in which a maximum may rise",
    "peaky scores and the safe path need these anyway: so the text is shorter",
    rejected = { { "tiles of their own", "deit_s: 2,108 lines instead of 1,922, and 8 KB more machine code; Zen 5: " ..
                   "deit_s, kwt3 and odd as fast within 0.5 %, on avx2 too" } } },
  { "fold", "products of weights where they take fewer flops",
    "counted for each pair of matrices, see fold.lua",
    rejected = { { "V = X (Wv Wo) for one head", "as many flops as Y = (P X) (Wv Wo), and more for few queries" },
                 { "one key or one query, self-attention: weights are 1, no Q and K",
                   "half of the flops, but an infinite input would give inf, not NaN" },
                 { "equal inputs of keys and values in cross-attention", "no flops to save, Wk and Wv differ" } } },
  { "copied", "keys and values are copied, head by head", "rows of a block of keys share few sets of the nearest cache",
    rejected = { { "read where they lie", "Zen 5, 1024 queries, slower than layout=bhsd: 16, 32, 64 heads of 64 by " ..
                   "20, 25, 32 % (with copies 6, 4, 2), 8 and 12 by 3; avx2: 8, 12, 16 by 15, 7, 47 (copies 0 to 1)" },
                 { "the same for two groups of queries, but on Intel", "Zen 5: 64 queries of 1024 keys 27 % slower " ..
                   "instead of 18; on Emerald Rapids 12 to 18 % faster" } } },
  { "masked_unfolded", "no products of weights behind a mask",
    "an input has no margin for the last tile of keys, and may hold NaN there", rejected = {} },
  { "no_bk", "no bk", "it adds the same to all scores of a query, and softmax drops that", rejected = {} },
  { "bv_in_output", "bv within the output's bias, bo + bv Wo", "each row of weights sums to one", rejected = {} },
  { "exp2_table", "exp2 by a table of sixteen in a register and degree 3",
    "11 operations instead of 13, where the pipes are full",
    rejected = { { "degree 6 without a table", "exp2 takes 15 % more time; micro 0.9 % slower, small 0.65 %" },
                 { "the exponent by integer shift and add", "exp2 takes 2 % less time, but a range check more" },
                 { "a table of 32 and degree 2", "an operation less, but 1.5 ulp" } } },
  { "powers", "weights are made as pairs of bfloat16 by integers",
    "the high half of a float is a logarithm in fixed point, but for a part that is looked up: errors are an eighth " ..
    "larger in quadratic mean than those of the nearest bfloat16",
    rejected = { { "exp2 of float32, which is rounded then", "Zen 5: 2.35 ns instead of 0.95 for two vectors; " ..
                   "micro 13 % slower, small 4 %, whisper_tiny 3.5 %, minilm 1.5 %, bert_base_512 0.5 %" },
                 { "the scale in Q, and tiles of sums that begin with the offset",
                   "by hand in the text, Granite Rapids: whisper_tiny 3 % slower, minilm as fast: tiles of scores " ..
                   "are made beside, and an FMA is what they leave room for" },
                 { "no bound on what becomes an integer, where weights of far larger scores would be 0",
                   "by hand, with the above: whisper_tiny 2 % faster, minilm 0.5" },
                 { "sums of weights by a tile of ones", "by hand, without any sums: whisper_tiny 4 % faster, minilm " ..
                   "3; a tile of products for each 32 weights would take back most of it: not built" } } },
  { "shared_keys", "tiles of four keys where one would hold them all",
    "the exponentials of a tile run beside the FMAs of the next",
    rejected = { { "key_rows=16", "slower: micro by 1.5 %, dk = 4 by 2.3 %, dk = 12 by 0.8 %" },
                 { "key_rows=4 also for more keys", "slower: 32 keys by 1.9 %, small by 0.7 %, 64 keys by 0.6 %" } } },
  { "short_chains", "maxima and sums in short chains",
    "pairs of maxima, four sums: the exponentials can start earlier",
    rejected = { { "one chain each", "micro 0.5 % slower, small 0.2 %" } } },
  { "q_columns", "lanes are columns in the query projection",
    "X is read as it is, and few queries leave no lanes idle; Q is transposed afterwards",
    rejected = { { "q_lanes=queries", "slower: one query by 42 % (d_model 139, 3 heads), three by 24 %; " ..
                   "bert_base_512 by 1.9 %, kwt3 by 1.4 %, deit_s by 1.3 %, odd by 0.9 %, whisper_tiny by 0.8 %, " ..
                   "small and bert_base_128 by 0.4 %; merged weights: one query by 49 %, kwt1 by 0.9 %" },
                 { "the cheaper lanes by the model", "Zen 5, slower: 512_8_64_24 by 7 %, deit_s by 3, 384_12_32_32 " ..
                   "by 1.3; xformer_base as fast, on avx2 64_4_16_32, 192_3_64_32 and 384_6_64_48; in one product " ..
                   "of all: 40_3_12_16 and on avx2 100_5_20_48 as fast, faster: 40_3_12_32 by 1 %, on avx2 " ..
                   "100_5_20_16 by 3" },
                 { "q_lanes=queries with other rows of tiles", "Zen 5: small 2.3 % faster with q_rows=8, which " ..
                   "tune finds; minilm as fast, deit_ti and kwt1 2 % slower, odd 5" },
                 { "the same of weights from far (cpu.lua), where the model has it at most 2 % cheaper",
                   "Granite Rapids, slower: one query by 60 % (300_5_60), 13 (2048_32_64) and 3 (1024_16_64); with " ..
                   "fetch=ahead 768_12_64_10 and 512_8_64_8 by 5, 768_12_64_5 and 512_8_64_2 by 4; 512_8_64_4 1 % " ..
                   "faster" } } },
  { "q_queries", "lanes are queries in the query projection",
    "one vector of queries stays in the nearest cache, or the model finds fewer cycles",
    rejected = { { "q_lanes=columns", "slower: micro by 0.7 %, 16 queries of d_model 64 by 0.5 %; Zen 5: the same; " ..
                   "merged: 48_2_48_48 by 0.8 %, _98 as fast, on avx2 2.6 % faster; avx2: 192_3_64_8 and " ..
                   "384_12_32_8 as fast" },
                 { "the same for half a vector of queries", "Zen 5, avx512, 8 queries slower: of 32_4_8 by 17 %, " ..
                   "64_4_16 by 22, 192_3_64, 384_6_64 and 768_12_64 by 27, 384_12_32 by 24" },
                 { "q_rows=8 and 12", "Zen 5: micro as fast; four queries with Wk applied to them 1.5 % slower" },
                 { "q_rows=3 in plain C", "Zen 5, small: gcc 12 11 % faster, clang 14 33 % slower; out_rows=3: 18 % " ..
                   "faster and 12 slower; deit_ti and minilm with gcc 10 and 16 % faster" } } },
  { "pinned", "a vector that two or three FMAs use is pinned in a register",
    "left to it, gcc reads it from memory for each of them, and one load of 64 bytes a cycle is all there is",
    rejected = { { "left to the compiler", "three queries 18 % slower, two 12 %; with clang as fast" } } },
  { "chains", "sums of small tiles in two or four chains",
    "an FMA waits four cycles for the one before",
    rejected = { { "no straight code for up to 32 steps", "Zen 5: one query of 4 heads of 8, d_model 32 5 % slower" },
                 { "one chain", "slower: two queries by 9 %, one by 6 to 7 %, on avx2 by 3 %; odd by 2.4 %" },
                 { "four steps of two chains in a loop", "clang spills: odd on avx2 2 % slower" } } },
  { "head_block", "as many heads projected together as waste the fewest lanes",
    "while what is projected stays in half of the second-level cache, or is at most 256 columns wide",
    rejected = { { "at most 256 columns", "7 queries of 11 heads of 33: 12 % slower" },
                 { "one head where weights come from far", "Granite Rapids: 755_16_107_29 8 % faster, others " ..
                   "not timed" } } },
  { "key_block", "key blocks of 64",
    "a chain of n equal terms is off by n * 7.5e-9 in the mean; the promise is 1e-6",
    rejected = { { "key_block=96", "error up to 8.1e-7 on equal rows, 6.5e-7 with 64" },
                 { "key_block=128", "whisper_tiny 0.1 to 1.6 % faster, others within 0.3 %; error up to 1.2e-6 " ..
                   "on equal rows" },
                 { "key_block=256", "whisper_tiny 2 % slower; error 2.1e-6, 2.5e-5 with 4000" } } },
  { "tiled_block", "key blocks of 256",
    "a tile of the context is stored and added once for all of them; sums of bfloat16 err by their operands",
    rejected = { { "key_block=64", "Granite Rapids, bf16: whisper_tiny 13 % slower, deit_s 9 %, bert_base_512 4 %" },
                 { "key_block=128", "whisper_tiny 4 % slower, deit_s 7 %; bert_base_512 4 % faster" } } },
  { "model", "tiles by a cost model",
    "FMAs, loads, latency and, in long sums, cache lines; what the schedule keys do not give",
    rejected = { { "most rows that fit the registers", "4 to 490 spills; the ISA's product has what both " ..
                   "compilers keep" },
                 { "of weights in int8 and int4 the bytes that are read, and a slot for each vector of them",
                   "Zen 5, avx512, minilm, deit_s, bert_base_128: 4x64 in place of 8x32 1 % faster to 2 % slower; " ..
                   "22x16 with the slot, 3 to 6 % slower" },
                 { "on avx2 the costs of avx512, one FMA a cycle",
                   "2x32 tiles; slower: kwt3 by 20 %, micro by 13 %, berttiny by 9 %, minilm by 2 %" },
                 { "weights from far as fast as others (cpu.lua, far_bytes)",
                   "Granite Rapids, avx512, d_model 560 to 768, slower: 16 queries by 12 to 17 %, 32 by 17, 64 by 10" },
                 { "the same for more queries",
                   "Granite Rapids: minilm and deit_s 1 % faster, bert_base_128 3.5 % slower" },
                 { "those of weights of 1.125 to 2 MB (cpu.lua, far)",
                   "Granite Rapids, slower: 256_13_38_16 by 29 %, 233_7_76_16 by 23, 432_4_64_16 by 22, " ..
                   "171_14_37_17 by 12, 105_14_64_39 by 9, 640_6_26_48 by 15, 192_8_64_17 2 % faster; of 1 to " ..
                   "1.125 MB from 17 % faster (192_6_64_9) to 6 % slower" },
                 { "weights from far as fast as others, on Zen 5",
                   "few queries, slower: 704_10_20_16 by 5 %, 400_4_64_12 by 6, 749_8_32_24 by 2; d_model 560 to " ..
                   "1024 within 0.3 %" },
                 { "far_bytes = 16 there instead of 24", "400_4_64_12 7 % slower, 319_3_103_11 3 %" },
                 { "half a vector for half of a slot (cpu.lua, narrow), as Zen 4 has it, where it takes a slot",
                   "Zen 5, slower: 144_12_8_16 by 16 %, 173_4_9_5 by 10, 576_16_20_704 and 672_2_40_976 by 9, " ..
                   "848_4_20_848 by 8, 176_5_56_16 and 489_10_89_487 by 5" },
                 { "rows of X that share a set of the nearest cache as cheap as others",
                   "24x16, 22x16 and 16x16 tiles of d_model 1024, Zen 5: 24 and 64 queries in 2.6 times the time, " ..
                   "32 in 1.7 times, 16 in 1.4 times; d_model 512: 24 queries 14 % slower" },
                 { "kv_vectors=1 (22x16) on d_model 768",
                   "4.3 % slower: 22 rows of X are 22 streams in few sets of cache" } } },
  { "one_size", "one size of tile, unless two save 0.4 %",
    "each size is code of its own: 93 KB became 60 KB on deit_s",
    rejected = { { "always the cheapest", "kwt3 0.3 % faster, others within 0.1 %" } } },
  { "tail", "a lane tail takes the low part of a broadcast",
    "one load a row and step instead of two",
    rejected = { { "a broadcast for each width", "slower: odd by 4.8 %, kwt1 by 2.6 %, kwt3 by 1.4 %" },
                 { "tails of 4 lanes", "not timed: no fewer issue slots, twice the rows in the ISA's table" } } },
  { "same_tiles", "the last queries have the tiles of the others",
    "half a vector would save less than 1 % of the time, and its tiles are as much text as all the others",
    rejected = { { "tiles of half a vector", "deit_s: 1,702 lines instead of 1,319, 54 KB of machine code instead " ..
                   "of 39; Zen 5: deit_s and deit_ti as fast within 0.4 %" },
                 { "as many vectors for the last queries too, on avx2", "deit_s: 1,610 lines instead of 1,910, 31 " ..
                   "KB of machine code instead of 38; Zen 5: 0.7 to 1.3 % slower" } } },
  { "output_order", "panels of Wo in the outer loop of the output, queries in the inner",
    "Wo may be larger than the cache; a block of context stays in it",
    rejected = { { "queries outside", "d_model 512 and 768: 0.5 to 1 % slower" },
                 { "another number of queries in a block of context than half of the second-level cache holds",
                   "Zen 5: 16 to 1500 on minilm, deit_s, bert_base_512, gpt2_1024 and whisper_tiny from 0.5 % " ..
                   "faster to 1 % slower" },
                 { "rows of the feed-forward in groups of their own, so that avx2 has 5 x 16 instead of 4 x 16",
                   "Zen 3, layers of minilm, deit_s and bert_base_128 as fast, kwt3 2.5 % faster; 15 % more code" } } },
  { "panels_outside", "panels of weights in the outer loop of tile registers' projections",
    "a panel stays in the nearest cache, which rows of X pass by",
    rejected = { { "tiles of X outside", "Granite Rapids: bert_base_128 4 % slower" } } },
  { "query_pairs", "queries are scaled and become pairs as their projection ends",
    "that is done beside products, and half as much is stored, and turned from rows to lanes",
    rejected = { { "behind the transposition", "Granite Rapids, bf16, slower: micro by 27 %, small by 10, " ..
                   "whisper_tiny 6, minilm and deit_s 5, bert_base_512 1; int8: micro 18, small 4, deit_s 4" } } },
  { "interleaved_ends", "products of a tile interleaved with the end of the one before, some rows behind each K step",
    "tile registers and vectors work at the same time, as far as a core sees both",
    rejected = { { "the end behind the products", "Granite Rapids, slower: minilm by 6 % in bf16 and 7 in int8, " ..
                   "deit_s by 5 and 6, deit_ti 4 and 2, berttiny 4 and 1, bert_base_128 2 and 5; small as fast" } } },
  { "near_chunks", "chunks of a panel for four tiles of rows in turn, whose sums are kept meanwhile",
    "so a panel stays in the nearest cache, which other operands pass by",
    rejected = { { "all K steps of a tile at once", "Granite Rapids, 32x32 tiles of 768 " ..
                   "steps: 1030 ns instead of 750; gpt2_1024 13 % slower, bert_base_512 6, bert_base_128 4" },
                 { "two chunks for each tile in turn", "1000 ns" },
                 { "more heads together, so that rows of X are read less often", "gpt2_1024 2 % faster with " ..
                   "two, 7 with four; bert_base_512 6 and 7 % slower, bert_base_128 2 and 5" } } },
  { "panels_pass", "panels of weights in the outer loop of keys and values",
    "those of a product are more than half of the second-level cache, and tiles of X would read them anew from " ..
    "behind it",
    rejected = { { "tiles of X outside", "Granite Rapids, fetch=none, slower: 900_10_90_80 by 160 %, 800_5_90_100 " ..
                   "by 27, 900_5_90_100 by 24, 1000_4_90_100 by 15, 700_5_90_100 by 11, 755_16_107_29 by 8; " ..
                   "900_10_90_300 1 % faster" } } },
  { "parts", "some tiles of X at a time, by the weights of keys, values and queries in turn",
    "X is larger than half of the second-level cache: it is read from behind it once for three products",
    rejected = { { "all of X by each", "Granite Rapids, bf16: gpt2_1024 7 % slower" },
                 { "the same for less of X", "prototype: bert_base_512 and whisper_tiny within 1 %" } } },
  { "project_order", "tiles of X in the outer loop of keys and values, panels in the inner",
    "X is read once a product, and may be larger than the cache",
    rejected = { { "panels outside", "d_model 512 and 768: 3 % slower, together with the tiles' choice" },
                 { "one level of Strassen's algorithm, in Winograd's form",
                   "built, in 300 lines: minilm in 7 % less time, bert_base_512 in 5, bert_base_128 and " ..
                   "xformer_base in 3, whisper_tiny 1 % slower; twice the error" } } },
  { "separate", "keys, values and queries in products of their own",
    "each is read in rows of its own width, and one of all columns has hardly fewer idle lanes", rejected = {} },
  { "joint", "one product of all that reads the same rows",
    "their columns share vectors whose lanes would be idle else, or tiles whose sums would wait for each other",
    rejected = { { "the same where products of their own fetch (fetch=shares), unless it is 7 % cheaper by the model",
                   "Granite Rapids, slower: 900_5_90_100, 500_5_30_100 and 600_3_45_100 by 5 %, 800_10_45_100 by 4" },
                 { "the same of more weights than half of the second-level cache", "Granite Rapids: 900_5_65_100 in " ..
                   "2.7 times the time" },
                 { "qkv=separate", "Zen 5, d_model_h_dk_n, slower: 656_1_4_16 by 119 %, 928_1_4_352 by 105, " ..
                   "288_2_4_16 by 42, 585_1_17_19 by 37, 205_4_5_23 by 30, 139_3_11_1 by 17, 880_1_52_16 by 15, " ..
                   "256_3_12_16 by 12, 608_3_28_32 by 10, 749_4_9_23 by 9, 944_5_20_2 by 5, odd by 2" },
                 { "one product where it only saves X's transposition", "Zen 5: micro 1 % slower, 144_12_8_16 1 % " ..
                   "faster" },
                 { "K and V alone, Q with lanes over queries", "Zen 5, slower: 656_1_4_16 by 50 %, 928_1_4_352 by " ..
                   "49, 205_4_5_23 by 15, 608_3_28_32 by 8, 288_2_4_16 by 4" },
                 { "the same where the model has it 3 to 8 % cheaper", "Zen 5, slower: 352_2_4_496 and 372_2_3_22 " ..
                   "by 7 %, 288_2_4_16 by 4, 173_2_4_250 by 2; 93_2_4_108 1 % faster" },
                 { "lanes over rows for K and V as well", "by count: 928_1_4_352 has 25 % fewer FMAs, but X's " ..
                   "transposition takes a third of the cycles that FMAs take, on Intel by the ports of these; not " ..
                   "built" } } },
  { "loops", "loops wherever they fall",
    "the front end is not what tiles wait for",
    rejected = { { "loops aligned to 32 bytes", "micro and odd as fast, minilm within 0.5 %" } } },
  { "rounded", "numbers are rounded once: weights when packing, inputs ahead, what a product makes as it ends",
    "several tiles read a row, and rounding a number takes seven operations of integers",
    rejected = { { "where they are read", "Zen 5, bf16, minilm: 3.1 times the time on avx512, 2.6 on avx2" },
                 { "weights where they are read",
                   "Zen 5, bf16, slower: minilm by 13 % on avx512 and 35 on avx2, small by 10 and 24" } } },
  { "fetched_panels", "panels of weights in the outer loop, the next one fetched meanwhile",
    "few queries read a layer's weights from behind the second-level cache: once, and before they are multiplied",
    rejected = { { "fetch=none", "Zen 5, d_model_h_dk_n, slower: 1280_20_64_8 and _32 by 35 %, _64 by 20, " ..
                   "755_16_107_29 by 42, 752_16_112_29 by 16 to 27, 2048_32_64_64 by 6; bf16: 2048_32_64_32 by 13" },
                 { "the same for weights of less than 18 MB", "Zen 5: 672_16_88_16 7 % slower, 768_12_64_24 by 5, " ..
                   "896_14_64_24 by 3, 1024_16_64_16 2 % faster to 6 % slower" },
                 { "the same for one query, or more than 64", "Zen 5, slower: 2048_32_64_1 by 40 %, _256 by 24, " ..
                   "1280_20_64_96 by 6, _128 by 2" },
                 { "into the second-level cache alone", "Zen 5: 1280_20_64_32 12 % slower, _64 6 %, " ..
                   "752_16_112_29 10 %, 2048_32_64_64 as fast" },
                 { "the same on Intel", "Granite Rapids, slower: 755_16_107_29 by 8 %, 560_12_64_16 by 17, " ..
                   "672_16_88_16 and 768_12_64_64 by 12, 1280_20_64_8 by 3; 2048_32_64_64 2 % faster" } } },
  { "fetched_widened", "tiles fetch the words of weights 8 KB before they widen them, scales of groups too",
    "a core that widens weights looks few lines ahead, and one query waits for them; with hints more are under way",
    rejected = { { "no hints", "Zen 5, one query of 2048_32_64 with 64 keys, weights from behind all caches; the " ..
                   "time of a plain read is a part of: int4 .42, int8 .69, f16 .83, bf16 .89; with hints .67, .84, " ..
                   ".89, .90" },
                 { "2 KB ahead", "int4 .53, int8 .73, without hints for scales" },
                 { "4 KB ahead", "int4 .63, int8 .79" },
                 { "8 KB ahead, scales alone without hints", "int4 .55" },
                 { "scales behind all words of a panel", "int4 .67, behind the words of their group .77; with rows " ..
                   "in int8 .76 and .87" },
                 { "4, 12 or 16 KB ahead, int4 with rows in int8", "1.02, 1.05 and 1.09 times the time" },
                 { "8 to 32 KB ahead, into the second-level cache alone", "int4 .59 to .49, int8 .86 to .79" },
                 { "nibbles and bytes as digits of a large float, from which it is subtracted, in place of a look-up",
                   "int4 .34, with hints .58; int8 .67, with hints .87: constants take registers and loads" } } },
  { "fetched_ahead", "panels of weights in the outer loop, whose tiles fetch what they read 2 KB later",
    "few queries wait for weights from behind the second-level cache; with hints more lines of them are under way",
    rejected = { { "fetch=none", "Granite Rapids, d_model_h_dk_n, slower: 768_12_64_10 by 37 %, 512_8_64_8 by 34, " ..
                   "1024_16_64_8 by 29, 768_12_64_5 by 26, 512_8_64_4 by 24, 512_8_64_2 by 22, 1015_10_109_6 by 19, " ..
                   "279_14_57_3 by 9, 1024_16_64_16, 512_8_64_32 and _48 by 4, 1015_10_109_3 and 768_12_64_32 by 3" },
                 { "fetch=shares", "2048_32_64_8 slower by 35 %, _4 by 25, _16 by 7; _24 is 6 % faster" },
                 { "1 KB ahead", "512_8_64_4 6 % slower, 1015_10_109_3 and 1024_16_64_8 2 % faster" },
                 { "4 and 8 KB ahead", "1024_16_64_8 22 % slower, 1015_10_109_3 7, 512_8_64_4 5 to 8; one query " ..
                   "(2048_32_64) 2 to 4 % faster" },
                 { "the same for one query", "4096_32_128_1 7 % slower, 256_4_64_1 8; 1024_16_64_1 1 % faster" },
                 { "the same for tile registers",
                   "bf16, slower: 384_6_64_16 by 40 %, 1024_16_64_8 by 15, 768_12_64_8 by 12, _32 by 6" },
                 { "the same of weights of less than 1.125 MB", "128_4_64_4 5 % slower; 256_4_64_8 1 % faster, " ..
                   "256_4_32_2 8" } } },
  { "fetched_shares", "the next weights are fetched into the second-level cache, a share of them by each tile",
    "weights lie behind that cache, and come while those before them are multiplied",
    rejected = { { "fetch=none", "Granite Rapids, slower: 768_12_64_80 by 24 %, 2048_32_64_64 by 23, xformer_base " ..
                   "and bert_base_128 by 10, minilm by 9, deit_s by 7, bert_base_512 and gpt2_1024 by 4, " ..
                   "whisper_tiny by 2; with tile registers in bf16 and " ..
                   "int8 bert_base_128 by 10 and 5 %, bert_base_512 by 4 and 2, gpt2_1024 by 2 and 3, " ..
                   "1024_16_64_384 by 6 and 5; in bf16 448_7_64_150 by 7, deit_s by 6, 384_6_64_400 by 5, minilm " ..
                   "as fast; in int8 640_10_64_128 by 8, xformer_base as fast" },
                 { "the next panel instead of what follows all panels of a product, which a tile of X meets one by " ..
                   "one", "xformer_base 4 % slower, bert_base_512 and deit_s 2, bert_base_128 1.6" },
                 { "a hint in each K step instead of one for a line", "prototype: minilm 1 % slower" },
                 { "into the nearest cache", "minilm as fast; with tile registers bert_base_128 2 to 3 % slower" },
                 { "with tile registers 1.5, 2 or 3 panels ahead", "Emerald Rapids: bert_base_128 0.5 to 2 % slower" },
                 { "with tile registers no weights from far: those of one panel for all, with wrong results",
                   "Emerald Rapids: bert_base_128 .73 of the time, minilm .90, kwt3 .97; their products alone .56, " ..
                   ".59 and .56" },
                 { "the same for 4 to 64 queries whose weights are less than 32 MB",
                   "from 35 % slower (one tile of rows) to 12 % faster" },
                 { "the same for weights of less than 1 MB", "deit_ti, kwt3 and berttiny within 2 %" },
                 { "with tile registers for fewer queries, or weights of less than 1 MB", "d_model 768, slower: 8 " ..
                   "queries by 12 %, 16 by 21, 32 by 11, 64 by 2; 384_6_64_80 by 4; kwt3 by 3" } } },
  { "prefetch", "no prefetch",
    "tiles of few rows have the loads in flight already",
    rejected = { { "1, 2 or 4 KB ahead, few queries of d_model 700 to 944", "from 6 % slower to 0.1 % faster" },
                 { "4 KB ahead in the panels, 22x16 tiles", "2.8 % faster, as much as 5x64 tiles without it" },
                 { "4 KB ahead, 5x64 tiles", "0.8 % slower" },
                 { "the next panels, spread evenly over the tiles before", "bert_base_128 0.4 % slower; " ..
                   "faster: minilm by 1 %, bert_base_512 by 0.4 %, xformer_base by none: not worth an op" } } },
  { "k_block", "sums of up to 256 steps in one chain, the partial sums of a tile one after the other",
    "the error grows with the root of the length; a tile's partial sums are still in the nearest cache",
    rejected = { { "k_block=512", "Zen 5: minilm, xformer_base, bert_base_128 (bf16 too) and 1024_16_64_4 as fast " ..
                   "within 0.5 %; errors up to 1.6 times the bound, 19 draws of 100 above it, where rows grow with " ..
                   "their number (d_model 512, dk 256)" },
                 { "k_block=1024, 2048, 4096", "bert_base_128 in one chain 1 % faster; of the bound on normal rows " ..
                   ".91, 1.01 and 1.18 (d_model 4096, dk 1024), on equal rows .89, 1.07 and 1.38" },
                 { "k_block=128", "Zen 5: minilm 1.2 % slower, bert_base_128 with bf16 1.7 %, 1024_16_64_4 2 %, " ..
                   "xformer_base 0.5 %; bert_base_128, deit_s, and minilm on avx2 as fast; errors a fifth smaller" },
                 { "k_block=64", "Zen 5: minilm 2 % slower, bert_base_128 0.6 %; errors a third smaller" },
                 { "all tiles for one block of steps, then for the next",
                   "bert_base_128 1.5 % slower, xformer_base 1 %" } } },
  { "score_chunks", "scores of more than 512 steps are added in chunks of up to 256",
    "a score is as long as the model is wide where Wk is applied to the queries; its error is that of its weight",
    rejected = { { "one chain", "error of one query of 32 heads, 64 keys: 7.5e-7 with d_model 512, 9.9e-7 with " ..
                   "1024, 1.3e-6 with 2048, instead of 5 to 6e-7; Zen 5: 1024_32_64_4 and 640_1_640_64 as fast" },
                 { "K projected where d_model is above 512", "up to 20 times the multiply-adds of one query" } } },
  { "two_vectors", "two vectors of queries where sums are long",
    "10x2 tiles load 12 operands for 20 FMAs, 22x1 tiles 23 for 22",
    rejected = { { "query_vectors=1", "slower: bert_base_128 by 1.5 %, bert_base_512 by 0.7 %, " ..
                   "xformer_base by 1 %" } } },
  { "rolled", "K steps written once, in a loop that the compiler unrolls completely",
    "the text is half as long, the machine code of a tile is that of K steps written out",
    rejected = { { "a pragma on the loop over all K steps", "gcc does not unroll tiles of 16 rows or more" },
                 { "K steps written out", "minilm: 3,776 lines, then 2,234; micro, small and minilm as fast" } } },
  { "arrays", "rows, columns and chains written once, in loops over arrays that the compiler unrolls completely",
    "the text is less than half as long, for the same operations in the same order; from -O2 on the arrays are " ..
      "registers, at -O1 clang and gcc for Arm leave some on the stack",
    rejected = { { "every value written out with a name of its own", "deit_s: 5,362 lines instead of 1,691; Zen 5: " ..
                   "micro, small, odd, kwt1 and minilm as fast within 0.5 %, on avx2 too" },
                 { "on scalar with gcc's -ftree-ter",
                   "tiles become expressions that spill: micro has 1,921 accesses " ..
                   "of the stack instead of 2, and 26 % more instructions" },
                 { "gcc's -fno-tree-coalesce-vars, against single spills", "Zen 5: odd and kwt1 0.2 to 0.5 % " ..
                   "slower, by moves between registers" },
                 { "sums that an empty assembler keeps in their registers, between which gcc moves them",
                   "by hand, Granite Rapids, gcc: minilm 1 to 2 % faster, bert_base_128 1 % slower; " ..
                   "clang moves none, and is as fast" } } },
  { "sections", "what several tiles have in common is written once, in functions that the compiler puts into each",
    "the machine code is that of tiles written out",
    rejected = { { "written out in each", "deit_s: 1,881 lines instead of 1,684; Zen 5: deit_s, minilm, micro and " ..
                   "bert_base_128 as fast within 0.5 %, deit_s on avx2 too" },
                 { "strides as arguments, so that products of other operands share a tile", "by hand, Zen 5: deit_s " ..
                   "1 to 2 % slower; and no two of its products have tiles of one size" } } },
  { "loop_steps", "rounds of four K steps, or of a divisor of their number near four",
    "no K steps are left behind the loop",
    rejected = { { "unroll=full on micro", "12 % slower: 77 KB of text against 14" },
                 { "unroll=k", "Zen 5: small 12 % slower, odd 3 %, micro as fast; machine code of 54, 161 and 27 KB " ..
                   "instead of 17, 36 and 13" },
                 { "unroll=tile", "Zen 5: micro, small, odd, kwt1, kwt3 and minilm as fast within 0.5 %; avx2: " ..
                   "micro 0.7 % faster, small and odd 0.5 % slower; machine code 0 to 4 % shorter" },
                 { "straight code for sums of up to 32 steps in tiles of up to 400 FMAs",
                   "Zen 5: 1 head of 16, 20 queries, d_model 32 6 % slower; micro 1.4, odd 1, small as fast; avx2, " ..
                   "and micro and small with clang, from 0.7 % slower to 0.4 % faster" },
                 { "two", "Zen 5: micro 0.7 % faster, small 0.6, minilm and odd as fast; avx2: small 1.6 % faster, " ..
                   "minilm 0.4 % slower" },
                 { "one", "Zen 5: micro 1.3 % slower, small 0.8 %, odd, minilm and kwt3 as fast" },
                 { "eight", "Zen 5: odd 1.5 % slower, kwt3 0.7 %, micro 1.3 % faster, small and minilm as fast" },
                 { "sixteen", "Zen 5: odd 3.1 % slower, kwt3 0.8 %, micro, small and minilm as fast" } } },
  { "edge_steps", "two K steps in a round of tiles at the edge of a mask",
    "with what the mask adds behind the loop, gcc spills sums in a longer one",
    rejected = { { "four", "gpt2_1024 has 22 spills in two such loops; Zen 5: causal shapes as fast within 0.7 %" } } },
}
