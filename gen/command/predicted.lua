-- Predicts what the runtime does with several threads, by the model of mhagen_choose on the phases of a kernel.

local host = require "host"
local tasks = require "plan.tasks"
local wording = require "base.wording"

local M = {}

-- A function of a number of threads: the list of phases that is run, nil where one thread runs everything; the threads
-- that take part; the cycles of a run; how many times as fast that is as one thread.
function M.of(recorded)
  local phases, coarse = tasks.rows(recorded)
  local _, _, alone = host.choose(phases, coarse, 1)
  return function(threads)
    local name, used, cycles = host.choose(phases, coarse, threads)
    return name, used, cycles, alone / cycles
  end
end

-- A table of the asked numbers of threads.
function M.lines(recorded, numbers)
  local predicted = M.of(recorded)
  local lines = { "threads (predicted: the cycles of a run, and how many times as fast as one thread)",
                  "  asked  used   tasks           cycles  speedup" }
  for _, threads in ipairs(numbers) do
    local name, used, cycles, speedup = predicted(threads)
    lines[#lines + 1] = ("  %5d %5d   %-8s %13s  %7.2f"):format(threads, used, name or "a run",
      wording.number(math.ceil(cycles)), speedup)
  end
  return lines
end

return M
