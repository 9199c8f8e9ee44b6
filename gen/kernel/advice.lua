-- What bounds a kernel, which key may help, and which number type would: by the cost model, in three lines.

local isas = require "isa.init"
local other_types = require "kernel.other_types"
local wording = require "base.wording"

local number = wording.number

local M = {}

local MEMORY = 5    -- bytes in a cycle that a core reads from memory, as that of laptops and servers is
local FEWER = 0.97  -- cycles, as a part of a plan's, from which on another plan is proposed
local SMALLER = 0.8 -- bytes, likewise

local function cycles_of(plan) return plan.cost / plan.cpu.fmas end

-- What every run reads of what it does not make.
local function bytes_of(plan) return plan.packed_bytes + plan.tables_bytes + plan.cache_bytes end

-- What L2 holds does not come from DRAM.
local function is_of_memory(plan, floor)
  return bytes_of(plan) > 2 * plan.cpu.cached and bytes_of(plan) / MEMORY > floor
end

local function bound(plan, counts, floor)
  if is_of_memory(plan, floor) then
    return ("memory: %s bytes at %d a cycle are %s cycles, operations %s"):format(number(bytes_of(plan)), MEMORY,
      number(math.ceil(bytes_of(plan) / MEMORY)), number(math.ceil(floor)))
  end
  local most, all = counts[1], 0
  for _, phase in ipairs(counts) do
    all = all + phase.cycles
    if phase.cycles > most.cycles then most = phase end
  end
  return ("operations: %s cycles at least, %.0f %% in %s, by the port %s"):format(number(math.ceil(floor)),
    100 * most.cycles / all, most.phase, most.port)
end

-- The narrowest of the ISAs with most lanes of a machine.
local function widest(arch)
  local best
  for _, isa in ipairs(isas.list) do
    if isa.arch == arch and isa.lanes > (best and best.lanes or 0) then best = isa end
  end
  return best
end

-- Keys that may help: more rows where memory bounds the kernel, and a wider ISA if the cost model gives it fewer
-- cycles.
local function keys(plan, floor)
  local told, wide = {}, widest(plan.isa.arch)
  if is_of_memory(plan, floor) then told[1] = "more rows in a run (seq, batch) share what is read" end
  local other = wide and wide.lanes > plan.isa.lanes and other_types.changed(plan, "isa", wide.name)
  local part = other and cycles_of(other) / cycles_of(plan) or 1
  if part < FEWER then told[#told + 1] = ("isa=%s, %.2f of the cycles"):format(wide.name, part) end
  return told[1] and table.concat(told, "; ") or "none by the model; `mhagen tune` tries schedules on a machine"
end

-- The type with the fewest cycles, and that with the fewest bytes.
local function types(plan)
  local told = {}
  local function best(size, least, what)
    local found, most = nil, least
    for _, row in ipairs(other_types.of(plan)) do
      local part = size(plan) > 0 and size(row[2]) / size(plan) or 1
      if part < most then found, most = row, part end
    end
    if found then
      told[#told + 1] = ("%s, %.2f of the %s, error %g"):format(found[1], most, what, found[2].error)
    end
  end
  best(cycles_of, FEWER, "cycles")
  best(bytes_of, SMALLER, "bytes")
  return told[1] and table.concat(told, "; ") or "none by the model"
end

-- counts, floor: what operations take at least, by phase and in all.
function M.lines(plan, counts, floor)
  return { "in short (by the cost model)", wording.hung("  bound by  ", bound(plan, counts, floor)),
           wording.hung("  keys      ", keys(plan, floor)), wording.hung("  types     ", types(plan)) }
end

return M
