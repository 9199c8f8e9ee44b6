-- The statistics of a group of queries in the workspace, a row of `width` floats each. negmax: -m; test: not 0
-- where a result was not finite; last and first: the ends of the interval of keys that a lane sees; kept: the -m
-- of the first attempt; late: the part of -m that is subtracted last.

local M = { rows = { negmax = 0, sum = 1, test = 2, inverse = 3, last = 4, kept = 5, late = 6, first = 7 } }

-- How many there are; `first` only where the interval has that end.
function M.count(scores) return scores.bounds.first and 8 or 7 end

-- The statistic `row` of vector c of a group.
function M.at(group, stats, row, c) return stats:at(M.rows[row] * group.width + (c - 1) * group.lanes) end

return M
