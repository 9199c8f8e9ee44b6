-- The statistics of a group of queries in the workspace: a row of floats for each statistic, with a float for each lane
-- of the widest group. The generated C has a name for each row.
--
--   at(group, stats, row, c)          the place of a statistic of vector c of a group
--   scores_of(plan, group, stats)     the place of the stored scores of a block, after all statistics
--   apart(plan)                       whether they are stored there; otherwise they take the place of weights
--   each(K, group, stats, build)      records build for each vector of the group
--   count(plan)                       the number of rows
--   named(plan, functions)            { name, number, meaning } of the rows that occur in the text of the functions

local expr = require "base.expr"

-- { statistic, number of its row, its name in C, its meaning }. Where m may rise, sums of scores start at max_start,
-- and max_end is added at their end. top, fall and block_start belong to one block of keys at a time; test and inverse,
-- which share their rows, are computed after the last block.
local rows = {
  { "negmax", 0, "MINUS_MAX", "minus the maximum of the scores" },
  { "sum", 1, "SUM", "the sum of the weights" },
  { "test", 2, "TEST", "0, or NaN where a result is not finite" },
  { "top", 2, "TOP", "the largest score that is stored" },
  { "block_start", 2, "BLOCK_START", "START of the stored scores of a block" },
  { "inverse", 3, "INVERSE", "1 over the sum" },
  { "fall", 3, "FALL", "what is subtracted from stored scores before exp2" },
  { "last", 4, "LAST_KEY", "the last key that is seen" },
  { "first_max", 5, "FIRST_MAX", "MINUS_MAX when a head begins, or begins again" },
  { "max_end", 6, "MAX_END", "the part of MINUS_MAX that is added after the dot product" },
  { "start", 6, "START", "what is added to a scaled score" },
  { "before", 7, "SUM_BEFORE", "the sum before a block of keys" },
  { "next_max_end", 7, "NEXT_MAX_END", "MAX_END of the tiles after the first" },
  { "lift", 8, "LIFT", "the increase of the maximum in a block" },
  { "max_start", 9, "MAX_START", "the part of MINUS_MAX that dot products start from" },
  { "first", 10, "FIRST_KEY", "the first key that is seen" },
  { "place", 11, "PLACE", "the position of the query among the keys" },
  { "seen", 12, "SEEN", "how many keys are seen" },
}

local by_name = {}
for _, row in ipairs(rows) do by_name[row[1]] = row end

local M = {}

-- The rows that there are: `first` only if the interval has that end, `place` if a row of gen/score asks for it, `seen`
-- if a mask hides keys.
local function count(scores)
  return #scores.hides > 0 and 13 or scores.places and 12 or scores.bounds.first and 11 or 10
end

-- Scores cannot take the place of weights where a word holds two weights, or where later tiles already have weights.
function M.apart(plan) return plan.attend.scheme.group > 1 or plan.whole_p and plan.scores.wraps end

-- The number of rows, including those of stored scores.
function M.count(plan)
  return count(plan.scores) + (M.apart(plan) and expr.ceil_div(plan.block_scores, plan.widest) or 0)
end

local SCORES = { "SCORES", "the stored scores of a block" }

function M.scores_of(plan, group, stats)
  return stats:at(expr.named(SCORES[1], count(plan.scores) * group.widest))
end

-- The place of statistic `row` for vector c of a group.
function M.at(group, stats, row, c)
  local of = by_name[row]
  return stats:at(expr.named(of[3], of[2] * group.widest) + (c - 1) * group.lanes)
end

-- Records build(w, name, load, put) for each vector of the group; load(row) and put(row, value) access its statistics.
function M.each(K, group, stats, build)
  local t = K.t
  for c, v in ipairs(group.vecs) do
    local function load(row, as)
      return t:op("load", v.w, ("%s_c%d"):format(as or row, c - 1), M.at(group, stats, row, c))
    end
    local function put(row, value) t:op("store", v.w, nil, M.at(group, stats, row, c), value) end
    build(v.w, "c" .. c - 1, load, put)
  end
end

function M.named(plan, functions)
  local used = {}
  local function add(number, name, meaning)
    if functions:find("%f[%w_]" .. name .. "%f[^%w_]") then
      used[#used + 1] = { name, number * plan.widest, meaning }
    end
  end
  for _, row in ipairs(rows) do add(row[2], row[3], row[4]) end
  add(count(plan.scores), table.unpack(SCORES))
  return used
end

return M
