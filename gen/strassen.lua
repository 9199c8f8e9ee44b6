-- One level of Strassen's algorithm in Winograd's form (Strassen 1969; Winograd 1971), for projections C = A B:
-- A, B and C in four quadrants each, seven products of quadrants instead of eight. The sums of B's quadrants are
-- made when packing, those of A's once for all heads:
--
--   S1 = A21 + A22   S2 = S1 - A11   S3 = A11 - A21   S4 = A12 - S2
--   T1 = B12 - B11   T2 = B22 - T1   T3 = B22 - B12   T4 = T2 - B21
--   M1 = A11 B11   M2 = A12 B21   M3 = S4 B22   M4 = A22 T4   M5 = S1 T1   M6 = S2 T2   M7 = S3 T3
--   C11 = M1 + M2   C12 = M1 + M6 + M5 + M3   C21 = M1 + M6 + M7 - M4   C22 = M1 + M6 + M7 + M5
--
-- A row of C then depends on two rows of A. It is done where no result is finite anyway if either row is not.

local M = {}

-- Errors are larger by this factor: rows and columns of a quadrant share sums.
M.error = 2

-- M1 to M7: the quadrant { row, column } of A, or of S1 S2 / S3 S4 where `sums`, and the signs of B11, B12,
-- B21, B22.
M.products = {
  { at = { 0, 0 }, signs = { 1, 0, 0, 0 } },
  { at = { 0, 1 }, signs = { 0, 0, 1, 0 } },
  { at = { 1, 1 }, signs = { 0, 0, 0, 1 }, sums = true },
  { at = { 1, 1 }, signs = { 1, -1, -1, 1 } },
  { at = { 0, 0 }, signs = { -1, 1, 0, 0 }, sums = true },
  { at = { 0, 1 }, signs = { 1, -1, 0, 1 }, sums = true },
  { at = { 1, 0 }, signs = { 0, -1, 0, 1 }, sums = true },
}

-- Rows of A's quadrants whose seven products are kept at a time: half a second-level cache at 64 columns.
M.rows = 256

-- Columns of C that are worth several heads together.
M.columns = 128

-- Issue slots for a vector of each of C's quadrants: seven loads, four stores.
M.join = 11
-- And to have a float of a quadrant of A, or of its sums, back in the near caches for the next heads.
M.read = 0.06

-- Whether K, V or Q (which = "k", "v", "q"), `rows` by `columns`, is projected so. An infinite input makes all
-- results of self-attention infinite or NaN, but not its weights; of a key of its own see fold.lua.
function M.applies(cfg, fold, which, rows, columns, lanes)
  if not cfg.strassen or rows % 2 > 0 or cfg.d_model % 2 > 0 or columns % (2 * lanes) > 0 then return false end
  if which == "q" and fold.qk == "merge" then return false end
  if which == "v" then return true end
  if cfg.probs then return false end
  return cfg.attention == "self" or which == "k" and cfg.dk >= 16
end

return M
