-- Transposition: a square of L rows by L columns in registers, L the lanes of the full width, in log2(L)
-- steps, each exchanging blocks of 1, 2, 4, .. lanes between pairs of vectors; and a matrix in squares.

local M = {}

-- rows[i], i from 0, are vectors of the full width; the result's vector j holds column j.
function M.square(t, rows, prefix)
  local isa = t.isa
  local block = 1
  while block < isa.lanes do
    local out = {}
    for i = 0, isa.lanes - 1 do
      if i // block % 2 == 0 then
        local a, b = rows[i], rows[i + block]
        out[i] = t:op("trn_lo", isa.full, ("%s%d_%d"):format(prefix, block * 2, i), a, b, block)
        out[i + block] =
          t:op("trn_hi", isa.full, ("%s%d_%d"):format(prefix, block * 2, i + block), a, b, block)
      end
    end
    rows, block = out, block * 2
  end
  return rows
end

-- X[q][d] of one group, its rows `ld` floats apart -> XT[d][width], zeros in the lanes without a query.
function M.panel(K, label, group, d, ld, x, xt)
  local t, isa = K.t, K.plan.isa
  local lanes = isa.lanes
  K:part(label .. "_" .. group.name,
    ("XT[%d][%d] from %d rows of X[..][%d]."):format(d, group.width, group.used, ld),
    { { "x", "in", x }, { "xt", "out", xt } }, function(p)
    -- One of `columns` columns of `used` rows, those of vector c.
    local function square(column, columns, c, used)
      local rows = {}
      for r = 0, lanes - 1 do
        local name = "x_r" .. r
        local at = p.x:at(c * (lanes * ld) + column + r * ld)
        if r >= used then
          rows[r] = t:op("zero", isa.full, name)
        elseif columns < lanes then
          rows[r] = t:op("load_n", isa.full, name, at, columns)
        else
          rows[r] = t:op("load", isa.full, name, at)
        end
      end
      local out = M.square(t, rows, "t")
      for j = 0, columns - 1 do
        t:op("store", isa.full, nil, p.xt:at(column * group.width + c * lanes + j * group.width), out[j])
      end
    end
    local function squares(column, columns)
      local whole = group.used // lanes
      K:each("c", whole, function(c) t:block(function() square(column, columns, c, lanes) end) end)
      if group.used % lanes > 0 then
        t:block(function() square(column, columns, whole, group.used % lanes) end)
      end
    end
    K:each("block", d // lanes, function(i) squares(i * lanes, lanes) end)
    if d % lanes > 0 then squares(d - d % lanes, d % lanes) end
  end)
end

return M
