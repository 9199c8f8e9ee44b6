-- softcap: s = cap * tanh(s / cap), as in Gemma 2.
--
--   y = s / cap, z = y^2     result                                      because
--   small |y|                s + s * z * P(z)                            nothing cancels
--   other |y|                cap - 2 * cap / (1 + exp(2 |y|)), signed
--
-- Both err by a few roundings. NaN stays NaN, and an infinite score becomes the cap.

local exp = require "tape.exp"
local types = require "machine.types"

-- Up to here the polynomial is taken, and there its error is 3e-9 of the score: minimax for (tanh(y) / y - 1) / z,
-- highest power first.
local SMALL = 0.6
local coefficients = { -0.005890157, 0.020792982, -0.053783353, 0.13331923, -0.33333299 }
local MOST = 64.0 -- 2^-64 of the cap is nothing beside it

local function small(t, w, x, y)
  local z, p = t:op("mul", w, "square", y, y), nil
  for i, value in ipairs(coefficients) do
    local c = t:op("set", w, "tanh_c" .. #coefficients - i, value)
    p = p and t:op("fma", w, "tanh_p" .. #coefficients - i, p, z, c) or c
  end
  return t:op("fma", w, "near", x, t:op("mul", w, "less", z, p), x)
end

local function large(t, w, x, magnitude, cap)
  local power = t:op("mul", w, "power", magnitude, t:op("set", w, "twice_log2e", 2.0 * types.LOG2E))
  local top = t:op("min", w, "top", t:op("set", w, "most", MOST), power) -- the order keeps a NaN
  local below = t:op("add", w, "below", exp.exp2(t, "grown", top), t:op("set", w, "one", 1.0))
  local lack = t:op("div", w, "lack", t:op("set", w, "twice_cap", 2.0 * cap), below)
  local far = t:op("sub", w, "far", t:op("set", w, "cap", cap), lack)
  local zero = t:op("zero", w, "zero")
  return t:op("sel", w, "with_sign", t:op("lt", w, "negative", x, zero), t:op("sub", w, "minus_far", zero, far), far)
end

-- The function softcap_<lanes> of a width.
local function define(t, w, cap)
  local x = { name = "x", kind = "f", w = w }
  return t:define({
    name = "softcap_" .. w.lanes, w = w, attr = "inline __attribute__((always_inline))",
    params = { { kind = w.t, name = "x" } }, keep = true,
    doc = "cap * tanh(x / cap), in base 2; NaN stays NaN.",
  }, function()
    local y = t:op("mul", w, "ratio", x, t:op("set", w, "inverse_cap", 1.0 / cap))
    local magnitude = t:op("max", w, "magnitude", t:op("sub", w, "minus", t:op("zero", w, "none"), y), y)
    local is_small = t:op("lt", w, "is_small", magnitude, t:op("set", w, "bound", SMALL))
    t:result(t:op("sel", w, "result", is_small, small(t, w, x, y), large(t, w, x, magnitude, cap)))
  end)
end

return {
  key = "softcap", shown = "capped",
  change = function(t, w, name, at, score) return t:apply(define(t, w, at.softcap * types.LOG2E), name, score) end,
}
