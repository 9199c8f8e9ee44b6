-- Norms of rows, with lanes over their columns. A norm is { norm = "rms", "layer" or "l2", eps } (graph/qk.lua).

local transpose = require "emit.transpose"

local M = {}

-- Records build(at, used) for the vectors of n columns, each in a C block of its own.
function M.vectors(K, n, build)
  K:vectors("i", n, function(at, used) K.t:scope(function() build(at, used) end) end)
end

-- The factor of a row, from the sum of the squares of its n columns. It is zero if that sum has overflowed.
function M.factor(t, w, name, norm, n, sum)
  local function constant(word, value) return t:op("set", w, word .. name, value) end
  local m
  if norm.norm == "l2" then
    m = t:op("max", w, "bounded" .. name, constant("least", norm.eps * norm.eps), sum)
  else
    local mean = t:op("mul", w, "mean_square" .. name, sum, constant("share", 1.0 / n))
    m = t:op("add", w, "bounded" .. name, mean, constant("epsilon", norm.eps))
  end
  return t:op("div", w, "factor" .. name, constant("one", 1.0), t:op("sqrt", w, "length" .. name, m))
end

-- Sums of these kinds for each of so many rows: for each kind a vector, whose lanes are rows. add(acc, r, value, used)
-- is called for each vector of the n columns of row r; acc[kind] are the row's sums. Half of the registers have sums
-- of rows at a time.
local function sums(K, rows, n, kinds, at, add)
  local t, w, isa = K.t, K.plan.isa.full, K.plan.isa
  local lists, at_once = {}, math.max(1, math.min(rows, isa.registers // (2 * #kinds)))
  for i, kind in ipairs(kinds) do
    lists[i] = {}
    for r = 0, isa.lanes - 1 do lists[i][r] = t:start("zero", w, ("%s_r%d"):format(kind, r)) end
  end
  for first = 0, rows - 1, at_once do
    M.vectors(K, n, function(column, used)
      for r = first, math.min(first + at_once, rows) - 1 do
        local acc = {}
        for i, kind in ipairs(kinds) do acc[kind] = lists[i][r] end
        add(acc, r, t:read("load", w, "value_r" .. r, at(r, column), used), used)
      end
    end)
  end
  local results = {}
  for i, kind in ipairs(kinds) do
    results[i] = transpose.sums(t, lists[i], nil, kind .. "s", i > 1 and "_" .. kind)
  end
  return table.unpack(results)
end

-- Subtracts the mean of row r, and sets the lanes after the first `used` to zero.
local function centered(K, r, value, used, factors)
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  value = t:op("sub", w, "centered_r" .. r, value, t:op("dup", w, "mean_r" .. r, factors:at(lanes + r)))
  if used == lanes then return value end
  local last = t:op("set", w, "last_r" .. r, used - 0.5)
  local beyond = t:op("lt", w, "beyond_r" .. r, last, t:op("iota", w, "lane_r" .. r))
  return t:op("zero_if", w, "inside_r" .. r, beyond, value)
end

-- A sum over n.
local function share(t, w, name, n, sum)
  return t:op("mul", w, name, sum, t:op("set", w, "share_of_" .. name, 1.0 / n))
end

-- Stores the factors of so many rows in `factors`, which holds two vectors, and with layer also their means.
--
-- A mean is corrected by the mean of the remainders, because the rounding error of a sum may exceed the spread of its
-- numbers. So the mean of equal numbers is exact, and such a row becomes zeros. The variance is the mean square of the
-- first remainders, minus the square of the correction. The latter is kept finite, so that an infinite sum of squares
-- stays infinite.
function M.row_factors(K, norm, rows, n, factors, at)
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  local function add_square(acc, value) t:update(acc, "fma", value, value, acc) end
  if norm.norm ~= "layer" then
    return t:scope(function()
      local sum = sums(K, rows, n, { "sum" }, at, function(acc, _, value) add_square(acc.sum, value) end)
      t:op("store", w, nil, factors, M.factor(t, w, "", norm, n, sum))
    end)
  end
  t:scope(function()
    local sum = sums(K, rows, n, { "sum" }, at, function(acc, _, value) t:update(acc.sum, "add", acc.sum, value) end)
    t:op("store", w, nil, factors:at(lanes), share(t, w, "mean", n, sum))
  end)
  t:scope(function()
    local sum, square = sums(K, rows, n, { "sum", "square" }, at, function(acc, r, value, used)
      value = centered(K, r, value, used, factors)
      t:update(acc.sum, "add", acc.sum, value)
      add_square(acc.square, value)
    end)
    local left, mean = share(t, w, "left", n, sum), t:op("load", w, "first_mean", factors:at(lanes))
    t:op("store", w, nil, factors:at(lanes), t:op("add", w, "mean", mean, left))
    local lost = t:op("mul", w, "lost", t:op("mul", w, "all_left", left, t:op("set", w, "count", n)), left)
    lost = t:op("min", w, "finite", lost, t:op("set", w, "most", 2.0 ^ 127))
    t:op("store", w, nil, factors, M.factor(t, w, "", norm, n, t:op("max", w, "squares", t:op("zero", w, "none"),
      t:op("sub", w, "less", square, lost))))
  end)
end

return M
