-- Rounding of a product's operands where they are made: once, and not wherever they are read.

local M = {}

-- A matrix with lanes over queries; label: of the function. x: p, rows, type, and scale, if there is one: its numbers
-- times the scale, as the type has them.
function M.lanes(K, label, group, x)
  local t, round = K.t, x.type.round
  if not round and not x.scale then return end
  K:part(("%s_%dx%s"):format(label, x.rows, group.name),
    ("%s%s%d rows for a group of queries."):format(x.scale and "Scales " or "", round and "Rounds " or "", x.rows),
    { { "x", "out", x.p } }, function(p)
    K:each("row", x.rows, function(row)
      t:block(function()
        for c, v in ipairs(group.vecs) do
          local at, name = p.x:at(row * group.width + (c - 1) * group.lanes), "_c" .. c - 1
          local value = t:op("load", v.w, "value" .. name, at)
          if x.scale then
            value = t:op("mul", v.w, "scaled" .. name, value, t:op("set", v.w, "scale" .. name, x.scale))
          end
          t:op("store", v.w, nil, at, round and round(t, v.w, "rounded" .. name, value) or value)
        end
      end)
    end)
  end)
end

return M
