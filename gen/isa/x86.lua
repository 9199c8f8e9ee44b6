-- What the x86 ISAs share: the header and how a file switches its instructions on by itself.

local M = {}

M.headers = "#include <immintrin.h>"
M.arch = "x86_64"
M.guard = "defined(__x86_64__)"

-- gcc may read a vector from memory again wherever an instruction can: three FMAs would read it three times.
M.helpers = {
  load_kept = [[
/* a, in a register: no use of it reads memory again. */
static inline $t kept$lanes($t a) {
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
