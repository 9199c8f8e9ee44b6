-- Divides rows and sums into blocks.
--
--   balanced(n, most)           n rows in the fewest blocks of at most `most` rows, with at most two sizes
--   in_pairs(n, most, even)     the same, or with `even` for rows that are stored in pairs
--   rows_in(n, most, even)      the same for rows with a group of queries in the lanes
--   one_size(n, most, even)     the same in blocks of one size
--   chunks(n, most, multiple)   a sum in chunks of at most `most` steps; pieces(n, size) in chunks of this size
--   ceil_div, round_up          integers
--
-- Blocks of rows are a list of { size, count, at }, chunks of a sum are { total, size, count, last }.

local M = {}

function M.ceil_div(a, b) return (a + b - 1) // b end
function M.round_up(a, b) return M.ceil_div(a, b) * b end

function M.balanced(n, most)
  local blocks = M.ceil_div(n, most)
  local small, big_count = n // blocks, n % blocks
  local runs = {}
  if big_count > 0 then runs[1] = { size = small + 1, count = big_count, at = 0 } end
  if blocks > big_count then
    runs[#runs + 1] = { size = small, count = blocks - big_count, at = big_count * (small + 1) }
  end
  return runs
end

-- With rows in pairs, sizes are even, and the last row of an odd n is alone.
function M.in_pairs(n, most, even)
  if not even then return M.balanced(n, most) end
  local runs = n > 1 and M.balanced(n // 2, math.max(1, most // 2)) or {}
  for _, run in ipairs(runs) do run.size, run.at = 2 * run.size, 2 * run.at end
  if n % 2 > 0 then runs[#runs + 1] = { size = 1, count = 1, at = n - 1 } end
  return runs
end

-- The last row of an odd n is in the last block.
function M.rows_in(n, most, even)
  local runs = M.in_pairs(even and M.round_up(n, 2) or n, most, even)
  if not even or n % 2 == 0 then return runs end
  local last = runs[#runs]
  last.count = last.count - 1
  runs[last.count == 0 and #runs or #runs + 1] = { size = last.size - 1, count = 1, at = n + 1 - last.size }
  return runs
end

-- Some rows may be computed twice: the last block then begins among the rows of the block before.
function M.one_size(n, most, even)
  local blocks, step = M.ceil_div(n, most), even and 2 or 1
  local size = M.round_up(M.ceil_div(n, blocks), step)
  if size * blocks == n or n % step > 0 or size > most then return M.in_pairs(n, most, even) end
  return { { size = size, count = blocks - 1, at = 0 }, { size = size, count = 1, at = n - size } }
end

-- Chunks have the same size, but the last one may be shorter. They bound the footprint in cache, and the rounding
-- error, which grows with the root of a chain's length.
function M.chunks(n, most, multiple)
  local count = M.ceil_div(n, most)
  return M.pieces(n, math.min(n, M.round_up(M.ceil_div(n, count), multiple)))
end

function M.pieces(n, size)
  local count = M.ceil_div(n, size)
  return { total = n, size = size, count = count, last = n - (count - 1) * size }
end

function M.one_chunk(n) return M.chunks(n, n, 1) end

return M
