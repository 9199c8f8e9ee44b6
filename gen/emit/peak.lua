-- The peak of a core: a loop of FMAs that do not wait for each other.

local expr = require "expr"
local tape = require "tape"

local M = {}

-- Records void fma_<isa>(out, rounds); returns the flops of a round. Two registers hold constants;
-- what remains suffices for any latency, and the values stay near 1.
function M.emit(t)
  local isa, w = t.isa, t.isa.full
  local count = isa.registers - 4
  t:define({ name = "fma_" .. isa.name, keep = true, params = {
    { kind = "float *", name = "out" }, { kind = "ptrdiff_t", name = "rounds" },
  } }, function()
    local factor, summand = t:op("set", w, "factor", 0.999), t:op("set", w, "summand", 0.001)
    local acc = {}
    for i = 1, count do acc[i] = t:start("set", w, "acc" .. i, 1.0 + i) end
    t:loop("round", expr.var("rounds"), function()
      for i = 1, count do t:update(acc[i], "fma", acc[i], factor, summand) end
    end)
    for i = 1, count do
      t:op("store", w, nil, tape.pointer("out", (i - 1) * isa.lanes), acc[i])
    end
  end)
  return 2 * isa.lanes * count
end

return M
