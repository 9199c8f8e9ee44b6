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

-- One sum for each of so many rows, as the lanes of one vector. add(sum, r, value, used) is called for each vector of
-- the n columns of row r.
local function sums(K, rows, n, at, add)
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  local list = {}
  for r = 0, lanes - 1 do list[r] = t:start("zero", w, "sum_r" .. r) end
  M.vectors(K, n, function(column, used)
    for r = 0, rows - 1 do add(list[r], r, t:read("load", w, "value_r" .. r, at(r, column), used), used) end
  end)
  return transpose.sums(t, list)
end

-- Stores the factors of so many rows in `factors`, and with layer also their means. It has room for two vectors.
function M.row_factors(K, norm, rows, n, factors, at)
  local t, w, lanes = K.t, K.plan.isa.full, K.plan.isa.lanes
  local centered = norm.norm == "layer"
  if centered then
    t:scope(function()
      local sum = sums(K, rows, n, at, function(acc, _, value) t:update(acc, "add", acc, value) end)
      t:op("store", w, nil, factors:at(lanes), t:op("mul", w, "mean", sum, t:op("set", w, "share", 1.0 / n)))
    end)
  end
  t:scope(function()
    local sum = sums(K, rows, n, at, function(acc, r, value, used)
      if centered then
        value = t:op("sub", w, "centered_r" .. r, value, t:op("dup", w, "mean_r" .. r, factors:at(lanes + r)))
        if used < lanes then
          local last = t:op("set", w, "last_r" .. r, used - 0.5)
          local beyond = t:op("lt", w, "beyond_r" .. r, last, t:op("iota", w, "lane_r" .. r))
          value = t:op("zero_if", w, "inside_r" .. r, beyond, value)
        end
      end
      t:update(acc, "fma", value, value, acc)
    end)
    t:op("store", w, nil, factors, M.factor(t, w, "", norm, n, sum))
  end)
end

return M
