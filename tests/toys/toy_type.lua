-- A toy type: float32 that a product sees with 12 bits of the significand. It shows what a new type takes.

return {
  name = "f32r12", doc = "float32 rounded to 12 bits of the significand", bytes = 4, c = "float",
  unit = 2.0 ^ -12, error = 1e-3,
  round = function(t, w, dst, x) -- Veltkamp's splitting; Dekker, A floating-point technique, 1971
    local scaled = t:op("mul", w, dst .. "_scaled", x, t:op("set", w, dst .. "_factor", 4097.0))
    local rest = t:op("sub", w, dst .. "_rest", scaled, x)
    local rounded = t:op("sub", w, dst .. "_rounded", scaled, rest)
    local size = t:op("max", w, dst .. "_size", x, t:op("sub", w, dst .. "_minus", t:op("zero", w, dst .. "_zero"), x))
    local small = t:op("lt", w, dst .. "_small", size, t:op("set", w, dst .. "_most", 2.0 ^ 115))
    return t:op("sel", w, dst, small, rounded, x) -- infinity is no difference of infinities
  end,
}
