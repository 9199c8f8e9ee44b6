-- Rows of a cache of a smaller type, as attention reads them: float32, times the scale of a row that has one, rounded
-- to the operands' type where that is another.

local expr = require "expr"

local M = {}

local LINE = 64 -- bytes that are fetched together
local STRAIGHT = 16 -- vectors of a row that are straight code

-- A vector v of a row of the tensor `from`, at x; scale: where that of the row is, if there is one.
function M.value(K, from, v, x, scale)
  local t, round = K.t, K.plan.attend_product.b.round
  local value = t:read("load", v.w, from.type and "kept" or "given", x, v.used)
  if not from.type then return value end
  if scale then value = t:op("mul", v.w, "unscaled", value, t:op("dup", v.w, "scale", scale)) end
  local rounded = round and from.type ~= K.plan.attend_product.b
  return rounded and round(t, v.w, "operand", value) or value
end

-- Hints that row number `next` will be read.
local function fetch(K, p, from, n, next)
  local bytes = from.type.stored.bytes
  for line = 0, (n * bytes - 1) // LINE do
    K.t:op("prefetch", K.plan.isa.full, nil, p.x:at(next * from.row + line * LINE // bytes))
  end
end

-- `rows` rows of a head, from x on, to rows of `row` numbers; scales: of those rows, if there are any; last: the number
-- of the last row that will be read, of which those that come next, `ahead` rows behind, are fetched meanwhile.
function M.rows(K, label, from, n, ptrs)
  local params = { { "x", "in", ptrs.x }, { "wide", "out", ptrs.wide } }
  if ptrs.scales then params[3] = { "scales", "in", ptrs.scales } end
  params[#params + 1] = { "rows", "int", ptrs.rows }
  params[#params + 1] = { "last", "int", ptrs.last }
  K:part("widen_" .. label, ("Rows of %d numbers of the cache, in float32."):format(n), params, function(p)
    local w = K.plan.isa.full
    K:each("row", p.rows, function(r)
      if K.plan.isa.rows.prefetch then
        fetch(K, p, from, n, K.t:int("next", expr.min(r + ptrs.ahead, p.last)))
      end
      local function vector(at, used)
        K.t:block(function()
          local value = M.value(K, from, { w = w, used = used }, p.x:at(r * from.row + at), p.scales and p.scales:at(r))
          K.t:op("store", w, nil, p.wide:at(r * ptrs.row + at), value)
        end)
      end
      local whole = n // w.lanes
      if whole > 0 and whole <= STRAIGHT then
        K.t:unrolled("i", whole, function(i) vector(i * w.lanes, w.lanes) end)
        if n % w.lanes > 0 then vector(n - n % w.lanes, n % w.lanes) end
      else
        K:vectors("i", n, vector)
      end
    end)
  end)
end

return M
