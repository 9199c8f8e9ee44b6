-- The constants of decisions that the cost model cannot make by its costs alone. bench/refit.py compares those of
-- `fitted` with measurements (`ninja refit`); it finds a constant by its line, which has nothing but its value.
--
--   fitted   thresholds: a decision takes one alternative below it, and the other one from it on
--   given    limits that no measurement decides: what shorter code or a rare case may cost
--   below(plan, name, value)   whether a value is below a threshold: that of the plan's core if it has one of its own
--                              (machine/cpu.lua), else that of `fitted`. Keeps the value in the plan's table
--                              `compared`, for bench/refit.py

local M = {}

M.fitted = {
  -- Query projection, cost with lanes over columns / cost with lanes over queries: below these ratios lanes run over
  -- columns. base/measured_choices.lua has figures of other cores, q_columns and q_queries. The model does not know
  -- that one full vector of queries always stays in L1.
  columns_one_vector = 0.95,
  -- For several vectors: with columns X is not transposed, which the model does not count.
  columns_several = 1.03,
  -- For merged weights: X would be transposed once for all heads, but merged queries are transposed for each.
  columns_merged = 0.98,
  -- For a joint product, whose transposition is counted.
  columns_joint = 1.08,
  -- For at most one vector of queries, which waits for weights: lanes over columns read longer contiguous pieces.
  columns_far = 1.02,

  -- Cost of one product / cost of several with the same lanes: below this ratio projections are joined.
  joint_alone = 0.98,
  -- The same where several fetch shares of weights.
  joint_fetched = 0.93,

  -- Groups of queries that read the rows of a head: from this number on, a copy pays for rows that crowd their L1 sets.
  copied_from = 4,

  -- With one query vector and so many keys or more in a tile, tiles of `shared_keys` are faster: exp2 of one tile
  -- overlaps the FMAs of the next. This is a size, not a threshold: it is the best of those that are measured.
  shared_from = 9,
  shared_keys = 4,
}

M.given = {
  -- In groups with at most this share of all queries, a second kind of context tiles must save proportionally more.
  few_queries = 0.1,
  -- Padding the last group of queries to full vectors is accepted up to this share of the kernel's time.
  same_tiles = 0.01,
  -- With more keys than this, sums are checked after each block and a maximum may rise. With fewer, that costs more
  -- than it saves, so a head is computed again instead.
  few_keys = 32,
}

function M.below(plan, name, value)
  plan.compared[name] = value
  return value < (plan.cpu.costs[name] or M.fitted[name])
end

return M
