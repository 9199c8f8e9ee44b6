-- Measures the peak of a core for a number type: a loop of products that do not depend on each other.

local expr = require "base.expr"
local tape = require "tape.init"
local ways = require "way.init"

local M = {}

M.STEPS = 8 -- steps of a round, each with three vectors of data, because zeros would take less power and less time
M.MOST = 16 -- independent sums, enough to hide any latency

local function define(t, name, build)
  t:define({ name = name, keep = true, params = {
    { kind = "float *", name = "out" }, { kind = "const float *", name = "data" },
    { kind = "ptrdiff_t", name = "rounds" },
  } }, build)
end

-- Repeats steps(odd), where odd alternates between 0 and 1. The data are read from that offset, so they differ from
-- those of the round before, and no compiler keeps them in registers.
local function rounds(t, steps)
  t:loop("round", expr.var("rounds"), function(round)
    steps(t:int("odd", round - 2 * expr.div(round, 2)))
  end)
end

-- Each sum starts with a value of its own, because a compiler would merge equal sums. Where no instruction adds the
-- product, the sums are operands too, so that a compiler cannot share a multiplication between them.
local function by_vectors(t, name, scheme)
  local isa, w, load, store = t.isa, t.isa.full, scheme.does.load, scheme.does.store
  local several = scheme.widens or scheme.quant and scheme.quant.op
  local instruction = scheme.group == 1 and isa.fused or scheme.group > 1 and not several
  local count = math.min(isa.registers - 4, M.MOST)
  define(t, name, function()
    local acc = {}
    for i = 1, count do acc[i] = t:start(load, w, "acc" .. i, tape.pointer("data", (i - 1) * isa.lanes)) end
    rounds(t, function(odd)
      for step = 0, M.STEPS - 1 do
        local vectors = {}
        for i, role in ipairs { "even", "odd", "other" } do
          local at = tape.pointer("data", (odd + 3 * step + (i - 1)) * isa.lanes)
          vectors[i] = t:op(load, w, ("%s_k%d"):format(role, step), at)
        end
        for i = 1, count do
          local a, b, c = vectors[1 + i % 2], vectors[3], acc[i]
          if not instruction then a, b, c = c, a, b end
          t:update(acc[i], scheme.op, a, b, c)
        end
      end
    end)
    for i = 1, count do t:op(store, w, nil, tape.pointer("out", (i - 1) * isa.lanes), acc[i]) end
  end)
  return 2 * M.STEPS * isa.lanes * scheme.group * ways.interleave(scheme) * count
end

-- Records void <name>(out, data, rounds) of a product of the tape's ISA; returns the flops of a round.
function M.emit(t, name, scheme)
  local own = ways.of(scheme).peak
  if not own then return by_vectors(t, name, scheme) end
  return own(t, scheme, { steps = M.STEPS, at = tape.pointer, define = function(build) define(t, name, build) end,
                           rounds = function(steps) rounds(t, steps) end })
end

return M
