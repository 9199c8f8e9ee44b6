-- The common part of the x86 ISAs: the header, and the text with which a file enables its instructions.

local M = {}

M.headers = "#include <immintrin.h>"
M.arch = "x86_64"
M.guard = "defined(__x86_64__)"
M.beyond = M.guard .. " && defined(__AVX__)" -- some systems have all that is older by default

-- gcc may read a vector from memory again wherever an instruction can: three FMAs would read it three times.
M.helpers = {
  load_pinned = [[
/* Keeps a in a register, so that no use of it reads memory again. */
static inline $t pinned$lanes($t a) {
  __asm__("" : "+$register"(a));
  return a;
}
]],
}

-- AVX-512's widths, by masks.
M.to_bf16 = [[
/* The nearest bfloat16, ties to even; NaN stays NaN. */
static inline $t to_bf16_$lanes($t a) {
  const $i bits = $p_castps_$si(a);
  const $i odd = $p_and_$si($p_srli_epi32(bits, 16), $p_set1_epi32(1));
  const $i sum = $p_add_epi32(bits, $p_add_epi32(odd, $p_set1_epi32(0x7FFF)));
  const $i high = $p_slli_epi32($p_srli_epi32(sum, 16), 16);
  return $p_mask_blend_ps($p_cmp_ps_mask(a, a, _CMP_UNORD_Q), $p_cast$si_ps(high), a);
}
]]

-- The orders below, for each width.
local quarter = "0x0C080400, 0x0D090501, 0x0E0A0602, 0x0F0B0703"
M.bytes_256 = quarter .. ",\n      " .. quarter
M.bytes_512 = M.bytes_256 .. ",\n      " .. M.bytes_256
M.words_256 = "0, 4, 1, 5, 2, 6, 3, 7"
M.words_512 = "0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15"
M.shorts_256 = "0, 1, 4, 5, 2, 3, 6, 7"
M.shorts_512 = "0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15"
M.short_nibbles = { [0] = "$p_srai_epi16($p_slli_epi16($1, 12), 12)",
                    [1] = "$p_srai_epi16($p_slli_epi16($1, 4), 12)",
                    [2] = "$p_srai_epi16($p_slli_epi16($1, 8), 12)", [3] = "$p_srai_epi16($1, 12)" }
M.zip_bytes = { [0] = "$p_unpacklo_epi8($1, $2)", [1] = "$p_unpackhi_epi8($1, $2)" }
M.zip_shorts = { [0] = "$p_unpacklo_epi16($1, $2)", [1] = "$p_unpackhi_epi16($1, $2)" }
M.shorts = { [0] = "$p_srai_epi16($p_slli_epi16($1, 8), 8)", [1] = "$p_srai_epi16($1, 8)" }

-- Words of bytes and of halves, for AVX2 and AVX-512. Packing works on quarters of 128 bits: the words of a, b, c and
-- d are there as rows, and as columns in the result. NaN becomes any integer.
M.words = {
  larger_size = [[
/* max(|a|, b) for b >= 0, as integers: the bits have the order of the floats, with NaN on top. */
static inline $t larger_size_$lanes($t a, $t b) {
  const $i size = $p_and_$si($p_castps_$si(a), $p_set1_epi32(0x7FFFFFFF));
  return $p_cast$si_ps($p_max_epi32(size, $p_castps_$si(b)));
}
]],
  words = [[
/* Rounds a, b, c, d to signed bytes; a word holds four that follow each other. */
static inline $i words_$lanes($t a, $t b, $t c, $t d) {
  const $i low = $p_packs_epi32($p_cvtps_epi32(a), $p_cvtps_epi32(b));
  const $i high = $p_packs_epi32($p_cvtps_epi32(c), $p_cvtps_epi32(d));
  const $i order = $p_setr_epi32(
      $words);
  return $permute$p_packs_epi16(low, high)$order;
}
]],
  lane_words = [[
/* Rounds to signed bytes; the word in a lane holds those of a, b, c and d. */
static inline $i lane_words_$lanes($t a, $t b, $t c, $t d) {
  const $i low = $p_packs_epi32($p_cvtps_epi32(a), $p_cvtps_epi32(b));
  const $i high = $p_packs_epi32($p_cvtps_epi32(c), $p_cvtps_epi32(d));
  const $i order = $p_setr_epi32(
      $bytes);
  return $p_shuffle_epi8($p_packs_epi16(low, high), order);
}
]],
  short_words = [[
/* Rounds a and b to signed 16-bit halves. Of each four numbers, the first word holds the first and
 * the third, the next one the second and the fourth. */
static inline $i short_words_$lanes($t a, $t b) {
  const $i order = $p_setr_epi32(
      $shorts);
  const $i first = $p_cvtps_epi32(a), second = $p_cvtps_epi32(b);
  const $i fours = $permute$p_packs_epi32(first, second)$order;
  return $p_shufflehi_epi16($p_shufflelo_epi16(fours, 0xD8), 0xD8);
}
]],
  lane_short_words = [[
/* Rounds to signed 16-bit halves; the word in a lane holds those of a and b. */
static inline $i lane_short_words_$lanes($t a, $t b) {
  const $i low = $p_and_$si($p_cvtps_epi32(a), $p_set1_epi32(0xFFFF));
  return $p_or_$si(low, $p_slli_epi32($p_cvtps_epi32(b), 16));
}
]],
  dot_shorts = [[
/* c + the products of the signed halves of a and b. Without the assembler line, gcc would reorder
 * the sums of a tile and spill products until then. */
static inline $i dot_shorts_$lanes($i a, $i b, $i c) {
  $i sum = $p_add_epi32(c, $p_madd_epi16(a, b));
  __asm__("" : "+$register"(sum));
  return sum;
}
]],
}

-- Part n of `bits` bits of each word, as a float: shifted to the upper end, and down again.
function M.part(bits, up, down, float)
  local rows = {}
  for n = 0, 32 // bits - 1 do
    local shift = 32 - bits * (n + 1)
    local shifted = shift > 0 and up:format("$1", shift) or "$1"
    rows[n] = float:format(down:format(shifted, 32 - bits))
  end
  return rows
end

M.as_bf16 = [[
/* The nearest bfloat16 in 16 bits, ties to even; NaN stays NaN. */
static inline $hi as_bf16_$lanes($t a) {
  const $i bits = $p_castps_$si(a);
  const $i odd = $p_and_$si($p_srli_epi32(bits, 16), $p_set1_epi32(1));
  const $i sum = $p_add_epi32(bits, $p_add_epi32(odd, $p_set1_epi32(0x7FFF)));
  const $i none = $p_set1_epi32(0x7FC00000);
  const $i all = $p_mask_blend_epi32($p_cmp_ps_mask(a, a, _CMP_UNORD_Q), sum, none);
  return $p_cvtepi32_epi16($p_srli_epi32(all, 16));
}
]]

local of_linux = { avxvnni = "avx_vnni", avx512bf16 = "avx512_bf16", avx512vnni = "avx512_vnni",
                   avx512fp16 = "avx512_fp16" } -- where it has another word

-- The words of /proc/cpuinfo for features, which are words of compilers with commas between.
function M.cpuinfo(features)
  return (features:gsub("[^,]+", of_linux):gsub("-", "_"):gsub(",", " "))
end

function M.begin(features)
  return table.concat({
    -- A spilled vector faults there: the stack is aligned to 16 bytes alone (gcc's bug 54412).
    "#if defined(_WIN32) && !defined(__clang__)",
    '#error "gcc for Windows does not align the stack for AVX: compile this file with clang"',
    "#endif",
    "#if defined(__clang__)",
    ('#pragma clang attribute push(__attribute__((target("%s"))), apply_to = function)'):format(features),
    "#else",
    "#pragma GCC push_options",
    ('#pragma GCC target("%s")'):format(features),
    "#endif",
  }, "\n")
end

M.finish = table.concat({
  "#if defined(__clang__)",
  "#pragma clang attribute pop",
  "#else",
  "#pragma GCC pop_options",
  "#endif",
}, "\n")

return M
