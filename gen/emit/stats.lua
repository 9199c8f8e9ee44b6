-- The statistics of a group of queries in the workspace, a row of `width` floats each. negmax: -m; test: not 0
-- where a result was not finite; limit: the last key that a lane sees; kept: the -m of the first attempt.

local M = { rows = { negmax = 0, sum = 1, test = 2, inverse = 3, limit = 4, kept = 5 }, count = 6 }

-- The statistic `row` of vector c of a group.
function M.at(group, stats, row, c) return stats:at(M.rows[row] * group.width + (c - 1) * group.lanes) end

return M
