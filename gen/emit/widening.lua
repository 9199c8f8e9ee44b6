-- Numbers of a cache of a smaller type, as attention reads them: float32, times the scale of a row that has one,
-- rounded to the operands' type where that is another.

local M = {}

-- Whether numbers of a tensor are rounded as they are widened: their scales come before that.
function M.rounds(K, from)
  local scheme = K.plan.attend.scheme.b
  return from.type and scheme.round and from.type ~= scheme
end

-- A vector v of a row of the tensor `from`, at x, by the name `name`; scale: where that of the row is, if there is one.
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
