-- Widens numbers of a cache of a smaller type to float32 for attention. They are multiplied by the scale of their row,
-- if it has one, and rounded to the operands' type, if that is not float32.

local M = {}

-- Whether numbers of a tensor are rounded after widening. Their scales must be applied before that.
function M.rounds(K, from)
  local scheme = K.plan.attend.scheme.b
  return from.type and scheme.round and from.type ~= scheme
end

-- Vector v of a row of the tensor `from` at x, named `name`; scale: the place of the row's scale, if it has one.
function M.value(K, from, v, name, x, scale)
  local t, scheme, rounds = K.t, K.plan.attend.scheme.b, M.rounds(K, from)
  local value = t:read("load", v.w, (scale and "kept_" or rounds and "exact_" or "") .. name, x, v.used)
  if scale then
    local factor = t:op("dup", v.w, "scale_" .. name, scale)
    value = t:op("mul", v.w, (rounds and "exact_" or "") .. name, value, factor)
  end
  return rounds and scheme.round(t, v.w, name, value) or value
end

return M
