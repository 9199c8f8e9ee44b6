-- Tests of a floor in a row of the bench: made rows, for what is measured differs from run to run.

local bench = require "lab.bench"
local config = require "options.config"
local cpu = require "machine.cpu"
local floor = require "plan.floor"
local record = require "plan.record"

return function(check)
  local recorded = record(config.load(nil, { "h=4", "d_model=128", "dk=32", "seq=64", "batch=2", "isa=avx512" }))

  -- A row whose kernel takes `times` the cycles of its floor, on zen4.
  local counts, sum = floor.of(recorded, cpu.facts("zen4", recorded.plan.isa))
  local function row_of(times, share)
    local flops = 1e6
    local of_a_cycle = 2 * 16 * cpu.facts("zen4", recorded.plan.isa).fmas
    local row = { flops = flops, peak_gflops = 80, fma_gflops = 80,
                  fraction = flops / (2 * times * sum * of_a_cycle) }
    row.phases = { order = { "output", "other" }, ticks = 1e12, output = share, other = 1 - share }
    bench.add_floor(row, recorded, "zen4")
    return row.of_floor
  end
  local function near(got, want, what)
    check(got and math.abs(got - want) < 2e-4, ("floor: %s is %s, not %.4f"):format(what, got, want))
  end
  near(row_of(1, 0.5).all, 1, "all of a kernel at its floor")
  near(row_of(2.5, 0.5).all, 0.4, "all of a kernel of 2.5 times its floor")

  local output
  for _, phase in ipairs(counts) do output = phase.phase == "output" and phase or output end
  check(output.alone >= 0.75 * output.cycles, "floor: the phase output is too short here")
  near(row_of(2, 0.25).output, output.alone / (2 * sum * 0.25), "the phase output of a fourth of the time")

  -- A core without a row of facts has no floor.
  local unknown = { phases = { order = {} } }
  bench.add_floor(unknown, recorded, "generic")
  check(next(unknown.of_floor.order) == nil and unknown.of_floor.all == nil, "floor: one of a core without facts")
end
