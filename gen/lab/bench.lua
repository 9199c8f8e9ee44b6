-- Benchmarks: the files of one, how its output is read, and its row of results as text or JSON.

local config = require "options.config"
local cpu = require "machine.cpu"
local cprint = require "tape.cprint"
local floor = require "plan.floor"
local isas = require "isa.init"
local json = require "base.json"
local peak = require "emit.peak"
local results = require "lab.results"
local tape = require "tape.init"
local template = require "base.template"
local types = require "machine.types"
local version = require "base.version"
local ways = require "way.init"

local M = {}

-- ---- the files ----

-- The flops of a plan by the type that is multiplied, as C.
function M.work(plan)
  local rows = {}
  for i, part in ipairs(plan.work) do rows[i] = ('{"%s", %.17g}, '):format(part.type.name, part.flops) end
  return table.concat(rows)
end

-- The program that times one kernel; bench/bench.c does the work.
function M.main(recorded)
  local plan = recorded.plan
  return template.file("bench.c.in", { name = plan.cfg.name, work = M.work(plan) })
end

-- The functions of a tape as C. Those of all ISAs are in one file, and helpers of two may have the same name.
local function with_own_helpers(t)
  local text = cprint.functions(t)
  for helper in text:gmatch("static inline [%w_ *]-([%w_]+)%(") do
    text = text:gsub("%f[%w_]" .. helper .. "%f[^%w_]", helper .. "_of_" .. t.isa.name)
  end
  return text
end

-- Adds the loops of the products of an ISA.
local function add_loops(isa, loops, names)
  local t, peaks, others = tape.new(isa), {}, {}
  for i, product in ipairs(isas.own_products(isa)) do
    local type, name = isas.multiplied(product).name, ("%s_%s"):format(ways.of(product).op(product), isa.name)
    local flops = peak.emit(t, name, product)
    names[#names + 1] = "&peak_" .. name
    local row = 'static const mhagen_peak peak_%s = {"%s", %s, %s, %d};\n'
    peaks[i], others[i] = row:format(name, type, isa.cpu, name, flops), row:format(name, type, isa.cpu, "NULL", 0)
  end
  loops[#loops + 1] = template.file("peak_isa.c.in", {
    guard = isa.guard .. (isa.since and " && " .. isa.since or ""), headers = isa.headers, begin = isa.begin or "",
    prelude = not isa.extends and isa.prelude or "", -- which the other one has
    finish = isa.finish or "", functions = with_own_helpers(t), peaks = table.concat(peaks),
    others = table.concat(others),
  })
end

-- The loops of all products, the same for every kernel. The program takes the fastest of a type that runs.
function M.peak()
  local loops, names = {}, {}
  for _, isa in ipairs(isas.list) do add_loops(isa, loops, names) end
  return template.file("peak.c.in", { loops = table.concat(loops), peaks = table.concat(names, ", ") })
end

-- ---- phases ----

-- symbols: the output of nm -n, lines "address kind name" in the order of addresses.
local function symbol_table(symbols)
  local list = {}
  for address, name in symbols:gmatch("(%x+) %a (%S+)\n") do
    list[#list + 1] = { at = tonumber(address, 16), name = name }
  end
  return list
end

-- The name of the function at an address.
local function function_at(symbols, address)
  local low, high = 0, #symbols -- the last symbol that is not behind the address
  while low < high do
    local middle = (low + high + 1) // 2
    if symbols[middle].at <= address then low = middle else high = middle - 1 end
  end
  return low > 0 and symbols[low].name:match("^[^.]*") or "" -- compilers add .part.0 and the like
end

local function rounded(fraction) return math.floor(fraction * 1e4 + 0.5) / 1e4 end

local OTHER = "other" -- control, and what is of no phase

-- The fraction of time in each phase, from a program's output and symbols: { order = names, and the fractions by
-- them, ticks = how many samples they are of }. The tape knows of which phases a function is a part: those of the
-- kernel, and in attention what is done there.
function M.phases(recorded, output, symbols)
  local of, order, count, total = {}, {}, {}, 0
  local function add(phase)
    if not count[phase] then count[phase], order[#order + 1] = 0, phase end
  end
  for _, fn in ipairs(recorded.tape.functions) do
    if fn.phases and fn.phases[1] then
      local phase = table.concat(fn.phases, "+")
      of[recorded.plan.cfg.name .. "_" .. fn.name] = phase -- as kernel/own_names.lua names it
      add(phase)
    end
  end
  add(OTHER)
  local list = symbol_table(symbols)
  for address in output:gmatch("pc (%x+)\n") do
    local phase = of[function_at(list, tonumber(address, 16))] or OTHER
    count[phase] = count[phase] + 1
    total = total + 1
  end
  local fractions = { order = order, ticks = total }
  for _, phase in ipairs(order) do fractions[phase] = rounded(count[phase] / math.max(total, 1)) end
  return fractions
end

-- ---- the floor ----

-- The most flops of a cycle that a core has, with the widest of its ISAs.
local function flops_of_a_cycle(name)
  local most = 0
  for _, isa in ipairs(isas.list) do
    local facts = cpu.facts(name, isa)
    most = math.max(most, facts and 2 * isa.lanes * facts.fmas or 0)
  end
  return most
end

-- The most that a fraction may be which is drawn so many times: three standard deviations more, and three samples.
local function most_of(fraction, samples)
  return fraction + 3 * math.sqrt(fraction * (1 - fraction) / samples) + 3 / samples
end

local LEAST_ALONE = 0.75 -- of the cycles of a phase: of shorter ones a profile says too little

-- Adds the floor of the kernel's own operations to a row, as a fraction of its time at least. Phases have one as well,
-- if they are told apart and long enough. core: the name of the one that it ran on. A core without a row of its own has
-- no floor, for no facts would be a bound. The row knows the time as a fraction of the peak, and the peak in terms of
-- the FMA peak.
function M.add_floor(row, recorded, core)
  local facts = core ~= cpu.generic and cpu.facts(core, recorded.plan.isa)
  row.of_floor = { order = {} }
  if not facts then return end
  local counts, sum = floor.of(recorded, facts)
  local cycle = row.fraction * flops_of_a_cycle(core) * row.peak_gflops / row.fma_gflops
  local of_time = cycle * recorded.plan.cfg.batch / row.flops -- a cycle of a batch entry, as a part of the time
  row.of_floor = { order = { "all" }, all = rounded(of_time * sum), core = core }
  local known = {}
  for _, phase in ipairs(counts) do known[phase.phase] = phase end
  for _, phase in ipairs(row.phases and row.phases.order or {}) do
    local cycles, alone = 0, 0
    for name in phase:gmatch("[^+]+") do
      local own = known[name] or { cycles = 0, alone = 0 }
      cycles, alone = cycles + own.cycles, alone + own.alone
    end
    if cycles > 0 and alone >= LEAST_ALONE * cycles then
      table.insert(row.of_floor.order, phase)
      row.of_floor[phase] = rounded(of_time * alone / most_of(row.phases[phase], row.phases.ticks))
    end
  end
end

-- ---- results ----

local keys = {}
for i, field in ipairs(results.fields) do keys[i] = field[1] end

local LONGEST = 300 -- text of a program in a row

-- A text as one printable line.
function M.plain(text) return (text:sub(1, LONGEST):gsub("[^\32-\126]", "?")) end

-- A word as a value of a type; nil if it is none.
local value_of = { string = M.plain }
function value_of.number(text)
  local number = tonumber(text)
  return number and number == number and math.abs(number) < math.huge and number or nil
end
function value_of.boolean(text)
  if text == "true" or text == "false" then return text == "true" end
end

-- The types whose peak is that of a plan, in words.
local function multiplied(plan)
  local names = {}
  for i, part in ipairs(plan.work) do names[i] = part.type == types.f32 and "FMA" or part.type.name end
  return table.concat(names, " and ")
end

-- The fields that the generator knows of a kernel.
function M.row(cfg, recorded)
  return {
    name = cfg.name, config = cfg, command = "mhagen gen " .. config.canonical(cfg), version = version,
    message = "", flops = math.tointeger(recorded.plan.flops) or recorded.plan.flops,
    statements = recorded.statements, multiplied = multiplied(recorded.plan),
  }
end

-- Bytes of code from the output of `size` in its default format.
function M.text_bytes(sizes) return math.tointeger(sizes:match("\n%s*(%d+)")) end

local function said(output, key) return ("\n" .. output):match("\n" .. key .. " ([^\n]*)") end

-- Adds the fields that a benchmark's program has printed, if it may say them.
function M.add(row, output)
  for _, field in ipairs(results.fields) do
    local word = field.from_program and said(output, field[1])
    local value = word and value_of[field.type or "number"](word)
    if value ~= nil then row[field[1]] = value end
  end
end

-- Does so for a program that has ended well; returns whether its output is a result.
function M.add_result(row, output)
  M.add(row, output)
  row.status = "time"
  if said(output, "status") ~= "ok" then
    row.message = "the program has not said ok"
  elseif (row.us_median or 0) <= 0 then
    row.message = "the program has not said us_median"
  else
    row.status = "ok"
  end
end

-- Does so for a program that has failed, with the step that failed and the reason if it says them.
function M.add_failure(row, output)
  M.add(row, output)
  local step, message = said(output, "status"), said(output, "message")
  if step == "check" or step == "time" then row.status = step end
  if message then row.message = M.plain(message) end
end

local function ordered(values, order)
  local all = setmetatable({}, { __jsonorder = order, __jsontype = "object" })
  for _, key in ipairs(order) do all[key] = values[key] end
  return all
end

-- The row with all fields, null where nothing is known, and with its phases if it has them.
function M.json(row)
  local order = table.move(keys, 1, #keys, 1, {})
  local config_keys = {}
  for i, key in ipairs(config.schema) do config_keys[i] = key.key end
  local all = ordered(row, order)
  for _, key in ipairs(keys) do
    if all[key] == nil then all[key] = json.null end
  end
  all.config = ordered(row.config, config_keys)
  if row.phases then
    table.move({ "phases", "of_floor" }, 1, 2, #order + 1, order)
    all.phases, all.of_floor = ordered(row.phases, row.phases.order), ordered(row.of_floor, row.of_floor.order)
  end
  return json.encode(all) .. "\n"
end

local function bytes(n)
  if n < 10000 then return ("%d bytes"):format(n) end
  if n < 1e7 then return ("%.1f KB"):format(n / 1e3) end
  return ("%.1f MB"):format(n / 1e6)
end

local function microseconds(t)
  return (t < 10 and "%.3f" or t < 1000 and "%.2f" or "%.1f"):format(t)
end

-- The row for a reader.
function M.text(row)
  if row.status == "skipped" then return ("%s: skipped: %s\n"):format(row.name, row.message) end
  local lines = { row.name }
  local function line(label, ...) lines[#lines + 1] = ("  %-9s %s"):format(label, string.format(...)) end
  local plural = row.threads > 1 and "s" or ""
  line("machine", "%s, %d cores, %s; %d thread%s", row.cpu, row.cores, row.system, row.threads, plural)
  line("compiler", "%s; %s; %.1f s", row.compiler, row.flags, row.compile_seconds)
  line("time", "%s us, median of %d samples; fastest %s, 99th percentile %s; cold %s",
    microseconds(row.us_median), row.repetitions, microseconds(row.us_min), microseconds(row.us_p99),
    microseconds(row.us_cold))
  line("speed", "%.1f GFLOP/s, %.1f %% of the %s peak of %d core%s, %.1f GFLOP/s each%s", row.gflops,
    100 * row.fraction, row.multiplied, row.threads, plural, row.peak_gflops,
    row.disturbed and ("; the machine was disturbed, the peak down to %.1f"):format(row.peak_low or 0) or "")
  if row.of_floor and not row.of_floor.core then
    line("floor", "not known: gen/machine/cpu.lua has no row of this core")
  elseif row.of_floor then
    local parts = {}
    for i, phase in ipairs(row.of_floor.order) do
      parts[i] = ("%s %.0f %%"):format(phase, 100 * row.of_floor[phase])
    end
    line("floor", "at least so much of the time, on %s: %s", row.of_floor.core, table.concat(parts, ", "))
  end
  if row.fma_speedup then
    line("threads", "%d FMA loops at once do %.2f times the work of one", row.threads, row.fma_speedup)
  end
  line("error", "%.2g against float64", row.error)
  line("size", "%s of code, %s packed, %s workspace", bytes(row.text_bytes), bytes(row.packed_bytes),
    bytes(row.workspace_bytes))
  if row.phases and not row.phases[OTHER] then
    line("phases", "not told apart: at unroll=full a run is one function")
  elseif row.phases then
    local parts = {}
    for i, phase in ipairs(row.phases.order) do
      parts[i] = ("%s %.1f %%"):format(phase, 100 * row.phases[phase])
    end
    line("phases", "%s", table.concat(parts, ", "))
  end
  return table.concat(lines, "\n") .. "\n"
end

-- Rows of several numbers of threads as a table: times, how many times as fast as the first, and that over what FMA
-- loops gain. predicted: command/predicted.lua.
function M.threads_text(rows, predicted)
  local lines = { "  threads        us  speedup  FMA loops  efficiency  predicted" }
  local _, _, first = predicted(rows[1].threads)
  for _, row in ipairs(rows) do
    local speedup, loops = rows[1].us_median / row.us_median, (row.fma_speedup or 1) / (rows[1].fma_speedup or 1)
    local _, _, cycles = predicted(row.threads)
    lines[#lines + 1] = ("  %7d %9s  %7.2f  %9.2f  %10.2f  %9.2f"):format(row.threads, microseconds(row.us_median),
      speedup, loops, speedup / loops, first / cycles)
  end
  return table.concat(lines, "\n") .. "\n"
end

return M
