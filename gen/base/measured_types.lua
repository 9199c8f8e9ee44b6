-- Measured choices about number types, in rows like those of measured_choices.lua. Figures are ratios in one run.

return {
  { "pairs", "products of pairs of bfloat16",
    "an instruction adds two products to a sum; operands take half of the memory",
    rejected = { { "float32", "Zen 5, bf16 over float32: bert_base_128 50 % of its time, xformer_base and kwt3 51, " ..
                   "deit_ti and deit_s 52, berttiny 53, minilm 55, small and odd 59, micro and kwt1 74" },
                 { "pairs by vectors where they are no faster (cpu.lua, slots)",
                   "Emerald Rapids: 90 GFLOP/s, FMAs of float32 179" } } },
  { "widened_once", "pairs of weights in small integers, made once for all queries",
    "a product of pairs takes half the time of float32, and tile registers take nothing else",
    rejected = { { "numbers widened where tiles read them, as float32",
                   "Zen 5, dtype=bf16, avx512_bf16: minilm in int8 1.6 times the time, in int4 3.0; 1024_16_64_128 " ..
                   "1.8 and 2.6, 2048_32_64_64 1.6 and 2.0, 1024_16_64_16 1.4 and 1.6; by count with " ..
                   "cpu=sapphirerapids, amx, not timed: 1024_16_64_128 in 12 times the cycles" },
                 { "the same for fewer than 8 queries", "1024_16_64_6: int8 9 % slower, int4 7 % faster; _4: 33 and " ..
                   "15 % slower; _8 3 and 21 % faster" },
                 { "all rows of a vector of columns before the next one", "int8: 1024_16_64_8 3 % slower" } } },
  { "ragged", "zeros behind the last pair of an odd dk or dv",
    "a word has two numbers; the other one would be of the next head",
    rejected = { { "no pairs", "Zen 5, avx512_bf16, slower: 384_12_31_128 by 86 %, 201_9_33_200 by 98, 64_4_7_32 by " ..
                   "83; by count with cpu=sapphirerapids, amx, not timed: 201_9_33_733 in 12 times the cycles" },
                 { "queries of more than a vector in pairs behind their transposition", "by count, amx: 32_4_31_16 " ..
                   "1,649 cycles instead of 1,461, 32_4_63_16 3,061 instead of 2,681; 32_4_7_16 705 instead of 726" },
                 { "the last row of a context in a tile of its own", "by count, amx: 384_6_31_128 3 % slower" } } },
  { "folded", "products of weights in the place of pairs", "they leave less than a fifth of the multiply-adds",
    rejected = { { "pairs", "Zen 5, avx512_bf16, slower: 20_6_100_40 by 65 %, 21_16_63_2 by 33, 26_4_89_16 by 8" },
                 { "the same of a fifth to a third", "42_3_90_12 18 % slower, 22_4_60_7 24, 37_2_64_2 2; 30_3_80_5 " ..
                   "16 % faster, 37_12_85_3 11, 31_9_62_1 27" } } },
  { "tiles", "products of tile registers, two by two tiles of sums",
    "an operand is loaded once for two products; sums go by way of a small buffer to the vectors of the epilogue",
    rejected = { { "one by four tiles", "prototype, Emerald Rapids: 35 cycles a product instead of 28" },
                 { "vectors in attention for a dk of 4 to 14", "by count with cpu=sapphirerapids, not timed: micro " ..
                   "1,812 cycles instead of 1,040; 8 heads of 8, 64 queries and keys: 45,344 instead of 14,368" } } },
  { "interleaved", "products of scores interleaved with the softmax of the tile before, some rows behind each product",
    "tile registers and vectors work at the same time, as far as a core sees both",
    rejected = { { "one after the other", "Granite Rapids, 32 keys by 32 queries: 157 ns instead of 116" },
                 { "all products, then all rows, or in halves", "146 to 155 ns" },
                 { "weights of peaky scores beside the products of later tiles, in blocks of 2 tiles where a " ..
                   "maximum may rise, in place of 8", "by hand, Emerald Rapids, bf16: standard deviation 20 / 30 / " ..
                   "50 / 1,000 1.09 / 1.13 / 1.20 / 1.27 times the time of calm scores instead of 1.17 / 1.27 / " ..
                   "1.15 / 1.15: up to 8 rises for 16 tiles, each of which makes sums and weights smaller; without " ..
                   "that work 1.12 to 1.18. Blocks of 4: 1.17 / 1.24 at 30 / 50; of 8, beside the next: as fast" },
                 { "table places by a shift", "130 ns instead of 122: beside products one port is left for FMAs, " ..
                   "conversions and shifts" } } },
  { "two_tiles", "two vectors of queries, of which tiles have all lanes",
    "two by two tiles of sums wait for each other half as often; but up to 62 KB of code instead of 45",
    rejected = { { "query_vectors=1", "Granite Rapids: whisper_tiny 19 % slower, small 12 %, bert_base_512 9 %; " ..
                   "odd is 6 % faster, kwt1 3 %: as many in each group would leave many unused" },
                 { "lanes over keys", "prototype, Emerald Rapids: V and context stay as they are; not built" } } },
  { "fetched_twice", "tiles fetch the words of weights 24 KB before they widen them into the second-level cache, " ..
      "and 4 KB before into the nearest one",
    "an Intel core has three times as many lines under way to its second-level cache",
    rejected = { { "8 KB ahead into the nearest cache, as on other cores", "Emerald Rapids, one query of 2048_32_64 " ..
                   "with 64 keys, eight layers in turn, slower: int4 by 6 to 23 %, with rows in int8 by 16 to 26, " ..
                   "int8 by 8 to 21, bf16 by 10 to 13, f16 by 16 to 19; one layer from the third-level cache: int4 " ..
                   "as fast, others from 3 % slower to 6 % faster" },
                 { "16 KB ahead into the second-level cache alone", "eight layers: int4 0 to 13 % slower, int8 9 to " ..
                   "14; one layer: int8 1 to 3 % slower" },
                 { "16 or 32 KB ahead in place of 24", "int4, int8: 0 to 3 % slower, and as fast" },
                 { "nibbles of a word by loads from each of its bytes, in place of shifts", "int4, 20 operations in " ..
                   "place of 23: 9 % faster from the second-level cache, else from 5 % faster to 2 % slower" } } },
  { "mmla", "products by mmla instructions in projections",
    "an instruction does twice the products of one by lane, and as many start in a cycle",
    rejected = { { "products by lane", "llvm-mca 22: neoverse-n2, v1, v2 and apple-m2 start 2, 4, 4 and 3 of bfdot, " ..
                   "sdot, bfmmla and smmla in a cycle" } } },
  { "halves", "products and sums of pairs of half precision",
    "an instruction does twice as many as of float32; operands take half of the memory", rejected = {} },
  { "deinterleaved", "products by a half of a word, whose weights are deinterleaved",
    "an instruction takes the half by itself, where a word in all lanes takes the time of a product",
    rejected = { { "a word in all lanes", "llvm-mca 22, neon_fp16, gcc: products of minilm reach .61, .81, .70 and " ..
                   ".75 of the rate of neoverse-n1, v1, v2 and apple-m1, by halves .95 on all; of micro .69 to .75, " ..
                   "and .93" },
                 { "vectors of words, which shuffles take apart", "two more instructions for eight columns and a K " ..
                   "step: at most .92 with twelve rows, .89 with eight" },
                 { "sums that start at zero", "an instruction more for each of eight words: minilm .84 to .90" },
                 { "intrinsics instead of assembler", "gcc 12 copies and spills sums: 94 to 152 copies in a tile " ..
                   "instead of 8 to 31" } } },
  { "levels", "sums in half precision of 8 words, those of 4 such sums, then float32",
    "errors of y up to 1.4e-3 of 3e-3, with sums in float32 0.7e-3; adding up takes a quarter of the products' time",
    rejected = { { "one sum of 96 words", "1.3e-3 on normal data with biases, where this has 0.4e-3; minilm 1.9e-3" },
                 { "16 words, 8 such sums", "1.7e-3, and so near the bound; adding up takes half as long" },
                 { "4 words, 4 such sums", "1.2e-3, and twice the work of adding up; 4 words, 2 such sums: 1.06e-3" },
                 { "float32 behind 4 words", "0.97e-3, but slower than float32" },
                 { "the same for attention", "scores of 16 would err by a unit of 2^-6" } } },
  { "shorts", "products of int8 by halves of words",
    "an instruction adds two products; bytes of weights become halves once for all rows of a tile",
    rejected = { { "bytes widened beside each product", "Zen 5, avx2: minilm 23 % slower, berttiny 16 %" },
                 { "halves in the order of memory", "an operation more for each word of weights; prototype, avx2, " ..
                   "tiles of 4x16: 9 % slower" },
                 { "5x16 or 8x8 on avx2", "prototype: 11 and 32 % slower than 4x16" } } },
  { "groups", "products of rows and weights of int8, with a scale for each group of both",
    "a large number takes digits from its group alone; sums of a group become float32 once",
    rejected = { { "a scale for a whole row and column", "Zen 3, avx2: SmolLM2's logits err by .17, in groups of 32 " ..
                   "by .064; prompts take .92 of the time; it is the default of dtype=int8" },
                 { "rows of 16 bits, whose products vpmaddwd adds as fast", "not built: weights alone err by .037, " ..
                   "and an instruction of VNNI does half as many products of 16 bits" } } },
  { "nibbles", "products of rows of int8 and weights of int4, in integers",
    "a word of weights becomes bytes by a mask and a shift; sums of a group become float32 once",
    rejected = { { "rows of float32", "Zen 5, one query of 2048_32_64 with 64 keys: from memory 1.13 times the " ..
                   "time, from the third-level cache 2.2 times; 128 rows of minilm 2.2 times" },
                 { "a scale for a row, not for each group of it", "as fast; rows with four columns 20 times as " ..
                   "large err by .096, those of groups by .082" },
                 { "no hints of weights ahead", "from memory 1.06 times the time" },
                 { "tiles of 2 vectors", "from memory as fast" },
                 { "rows of float32 as integers of two or three bytes, for weights of int4 without dtype=int8",
                   "prototype without their rounding, Emerald Rapids: .72 to .80 and .74 to .87 of the time of rows " ..
                   "of float32, where one byte takes .68 to .80; a number far below the largest of its group loses " ..
                   "digits, and an infinite one makes a whole row NaN: not built" },
                 { "tile registers on amx", "by count: a group of 32 is half of a product's depth, 16 cycles and 48 " ..
                   "operations of vectors in the place of 16 cycles of pairs of bfloat16" } } },
}
