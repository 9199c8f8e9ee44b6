-- The constants of decisions that the cost model cannot make by its costs alone. bench/refit.py compares those of
-- `fitted` with measurements (`ninja refit`); it finds a constant by its line, which has nothing but its value.
--
--   fitted   thresholds: what a decision compares takes one alternative below it, the other one from it on
--   given    what no time decides: limits of what shorter text or a rare case may cost
--   below(plan, name, value)   whether a value is below a threshold: that of the plan's core if it has one of its own
--                              (machine/cpu.lua), else that of `fitted`. Keeps the value in the plan's table
--                              `compared`, for bench/refit.py

local M = {}

M.fitted = {
  -- Of lanes over columns in the query projection: their cost over that of lanes over queries. Below it columns are
  -- taken. base/measured_choices.lua has figures of other cores, q_columns and q_queries.
  -- One vector of queries always stays in L1, which the model does not know; not if the queries fill a narrower vector.
  columns_one_vector = 0.95,
  -- X needs no transposition, which the model does not count.
  columns_several = 1.03,
  -- X would be transposed once for all heads, but merged queries are transposed for each head.
  columns_merged = 0.98,
  -- With one product of all, where the transposition is counted.
  columns_joint = 1.08,
  -- At most one vector of queries waits for weights, which lanes over columns read in longer pieces.
  columns_far = 1.02,

  -- The cost of one product over that of several with the same lanes. Below it projections are joined.
  joint_alone = 0.98,
  -- The same where several fetch shares of weights.
  joint_fetched = 0.93,

  -- Groups of queries that read the rows of a head. From so many on a copy of rows that crowd takes less time.
  copied_from = 4,

  -- With one query vector and so many keys or more in a tile, tiles of `shared_keys` are faster: exp2 of one tile
  -- overlaps the FMAs of the next. This is a size, not a threshold: it is the best of those that are measured.
  shared_from = 9,
  shared_keys = 4,
}

M.given = {
  -- A last group with at most this part of all queries has tiles of its own only where they save so much more.
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
