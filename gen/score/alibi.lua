-- alibi: s += slope * (key - position of the query), with a slope for each head (Press, Smith and Lewis, Train Short,
-- Test Long, 2022).
--
-- A number that all scores of a query share does not change the weights. So distances are to the last key that the
-- query sees: they are exact, and small where weights are large, so that the product's rounding hardly matters. With a
-- sink the shared number matters, so distances are to the position of the query. Slopes are mostly positive, and scores
-- rise with the key.

local types = require "machine.types"

-- The slopes of the paper: for h a power of two 2^(-8/h), 2^(-16/h), ..; else those of the largest power below h, and
-- then every second one of twice as many.
local function slopes(h)
  local list, power = {}, 1
  while 2 * power <= h do power = 2 * power end
  for i = 1, h do
    list[i] = i <= power and 2.0 ^ (-8.0 * i / power) or 2.0 ^ (-4.0 * (2 * (i - power) - 1) / power)
  end
  return list
end

return {
  key = "alibi",
  packed = { name = "slope", matrix = "alibi", doc = "slopes of alibi", scale = types.LOG2E, default = slopes },
  bias = function(t, w, name, at)
    local key = at.index(t, w, "key_" .. name)
    local distance = t:op("sub", w, "distance_" .. name, key, at.origin)
    return t:op("mul", w, name, distance, t:op("dup", w, "slope_" .. name, at.slope))
  end,
  rises = true,
}
