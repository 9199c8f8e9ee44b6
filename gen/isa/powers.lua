-- Powers of two as bfloat16, by integers (after Schraudolph, A fast, compact approximation of the exponential
-- function, 1999).
--
-- For m 2^e the high half of a float is 128 (e + 127) + 128 (m - 1), nearly 128 (log2 + 127). So the integer is a
-- logarithm in fixed point, up to a correction that is looked up. The op computes twice that integer, and a rounding
-- average halves it.

local M = {}

-- An op takes x = scale log2 + offset, rounds it, and returns (x + look(x / 4 mod 64) + 1) / 2. Errors are at most
-- 0.62 %, 0.19 % in quadratic mean, where the nearest bfloat16 has 0.39 % and 0.17 %; powers by integers are exact.
M.scale, M.offset = 256, 256 * 127 - 23.5
M.most = 0x7F80 * 2 -- which becomes infinity

M.look = {}
for k = 0, 63 do
  local part = (4 * k + 25) / 256 % 1
  M.look[k] = math.floor(23.5 + 256 * (2 ^ part - 1 - part))
end

-- The helper of x86 for each width. as: how the table is written, the type of its numbers and how many stand in a line;
-- look: what is looked up at `places`, as text. A width says how words / 4 are made (shifted), of whose bytes the low
-- six bits count.
function M.helper(as, look)
  local lines = {}
  for first = 0, 63, as.columns do
    lines[#lines + 1] = table.concat(M.look, ", ", first, math.min(first + as.columns - 1, 63))
  end
  return ([[
/* 2^(a/256 - 127) and 2^(b/256 - 127) in pairs of bfloat16, at most 0.62 %% off. a and b are
 * logarithms in fixed point with 8 bits of fraction, less %.1f. Half of one, plus a correction that
 * is looked up for every four, has the bits of the bfloat16. NaN becomes infinity. */
static inline $t powers_$lanes($t a, $t b) {
  static const %s parts[64] __attribute__((aligned(64))) = {
      %s};
  const $t most = $p_set1_ps(%.1ff);
  const $i order = $p_setr_epi32(
      $quarters);
  const $i low = $p_cvtps_epi32($p_min_ps(a, most));
  const $i high = $p_cvtps_epi32($p_min_ps(b, most));
  const $i words = $p_shuffle_epi8($p_packus_epi32(low, high), order);
  const $i places = $shifted;
  const __m512i found = %s;
  return $p_cast$si_ps($p_avg_epu16(words, $found));
}
]]):format(256 * 127 - M.offset, as.type, table.concat(lines, ",\n      "), M.most, look)
end

return M
