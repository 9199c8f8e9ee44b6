-- The statistics of a group of queries in the workspace, a row of `width` floats each.
--
--   negmax        -m, the maximum
--   sum, inverse  of weights, and 1 over it
--   test          not 0 where a result was not finite
--   last, first   the ends of the interval of keys that a lane sees
--   kept          the -m that an attempt begins with
--   begin, late   where m may rise: what sums of scores start at, and what is added to them last, both parts of -m;
--                 where weights are powers, begin is the offset of scores whose maximum is large
--   start         where weights are powers, what is added to a scaled score
--   before        the sum that a block of keys begins with
--   later         in another attempt: `late` of all tiles but the first
--   lift          how far m rises
--   place         the places of the queries among the keys
--   seen          how many keys a lane sees, as far as that is known

local M = { rows = { negmax = 0, sum = 1, test = 2, inverse = 3, last = 4, kept = 5, late = 6, start = 6, before = 7,
                     later = 7, lift = 8, begin = 9, first = 10, place = 11, seen = 12 } }

-- How many there are; `first` only where the interval has that end, `place` where a row asks for it, and `seen` where a
-- mask hides keys.
function M.count(scores)
  return #scores.hides > 0 and 13 or scores.places and 12 or scores.bounds.first and 11 or 10
end

-- The statistic `row` of vector c of a group.
function M.at(group, stats, row, c) return stats:at(M.rows[row] * group.width + (c - 1) * group.lanes) end

-- build(w, name, load, put) for each vector of the group: load(row) and put(row, value) are of its statistics.
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

return M
