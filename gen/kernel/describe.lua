-- A plan in words.
--
--   header(recorded)                     the comment on top of a generated file
--   written(all, paths, bytes, compile)  the output of `gen`
--   explain(recorded, more)              the output of `explain`; more: why, types

local advice = require "kernel.advice"
local config = require "options.config"
local floor = require "plan.floor"
local graph = require "graph.init"
local kinds = require "stage.init"
local legend = require "tape.legend"
local memory = require "schedule.memory"
local options = require "options.init"
local other_types = require "kernel.other_types"
local pressure_of = require "tape.pressure"
local sections = require "schedule.sections"
local shape = require "kernel.shape"
local types = require "machine.types"
local ways = require "way.init"
local wording = require "base.wording"

local number = wording.number

local M = {}

-- The lines of all stages, and of what is there instead of one: { name, text }.
local function phases(plan)
  local lines = {}
  local function add(name, text) lines[#lines + 1] = { ("%-9s"):format(name), text } end
  local function add_stage(stage)
    for _, line in ipairs(kinds.ask("describe", {}, plan, stage)) do add(line[1], line[2]) end
  end
  for i = 1, graph.behind_inputs(plan.stages) - 1 do add_stage(plan.stages[i]) end
  for _, name in ipairs { "keys", "values", "queries", "attend", "output" } do
    local stage = plan.stage[name]
    local instead = not stage and plan.attend.instead[name]
    if stage then add_stage(stage) elseif instead then add(name, instead) end
  end
  local behind = false -- stages behind the output
  for _, stage in ipairs(plan.stages) do
    if behind then add_stage(stage) end
    behind = behind or stage == plan.stage.output
  end
  return lines
end

-- The most vectors that a tile needs at one K step: its sums and operands.
local function pressure(kernels)
  local most = 0
  for _, fn in ipairs(kernels.functions) do
    if fn.attr then most = math.max(most, pressure_of(fn)) end
  end
  return most
end

-- What is rounded, and what that costs, or nil.
local function rounding(plan)
  local scheme, attend, told = graph.scheme(plan.stages), plan.attend.scheme.a, {}
  local own, fed = scheme and scheme.a or types.f32, plan.feeding ~= plan and plan.feeding.scheme.a
  local quant = plan.stored.quant
  if own.quantized and not quant.group then quant = nil end -- which its type says
  if plan.arrays.round then told[1] = ("inputs and y in %s"):format(plan.arrays.name) end
  if own ~= types.f32 or attend ~= types.f32 or quant or fed then
    told[#told + 1] = scheme and ("operands of projections in %s, of attention in %s"):format(own.name, attend.name)
      or "operands of attention in " .. attend.name
    if fed then told[#told] = ("%s, of the feed-forward in %s"):format(told[#told], fed.name) end
  end
  if quant and quant.type then told[#told + 1] = ("weights in %s"):format(quant.type.name) end
  if quant and not quant.type then
    told[#told + 1] = ("weights are integers of %d bits, with a scale for %s"):format(quant.bits,
      quant.group and ("%d rows of a column"):format(quant.group) or "each column")
    local of_values = plan.stored_values.quant
    if of_values ~= quant then told[#told] = told[#told] .. (", those of values of %d bits"):format(of_values.bits) end
  end
  if plan.cache ~= types.f32 then told[#told + 1] = ("rows of the cache in %s"):format(plan.cache.name) end
  if not told[1] then return nil end
  local sums = (own.quantized or fed and fed.quantized) and "int32 and float32"
    or scheme and ways.of(scheme).own_sums and "f16 and float32" or "float32"
  return ("%s; sums in %s; error at most %g for scores up to %d"):format(table.concat(told, "; "),
    sums, plan.error, plan.error_scores)
end

-- The sections of a buffer by their names in C, and the bytes of each.
local function parts(list, space)
  local told = {}
  for i, section in ipairs(list) do
    local name = space == "task" and sections.name(section.name) or section.name
    told[i] = ("%s %s%s"):format(name, number(section.count * memory.BYTES), list[i + 1] and ";" or "")
  end
  return told
end

-- The parts of the workspace of an entry, of what is projected of a block of heads and of a task, as lines.
local function workspace(plan)
  local lines = {}
  for _, space in ipairs { "entry", "projected", "task" } do
    for i, line in ipairs(wording.filled(parts(plan.memory[space], space), 70)) do
      lines[#lines + 1] = (" *   %-9s %-9s %s"):format(#lines == 0 and "bytes" or "", i == 1 and space or "", line)
    end
  end
  return lines
end

function M.header(recorded)
  local plan, lines = recorded.plan, {}
  local rounded = rounding(plan)
  for i, line in ipairs(phases(plan)) do
    lines[#lines + 1] = wording.singular((" *   %-9s %s %s"):format(i == 1 and "plan" or "", table.unpack(line)))
  end
  if rounded then
    lines[#lines + 1] = " *   numbers   " .. rounded:gsub("; ", ";\n *             ")
  end
  lines[#lines + 1] = (" *   cost      %s flops; %s bytes packed, %s bytes of workspace"):format(
    number(plan.flops), number(plan.packed_bytes), number(plan.workspace_bytes))
  if plan.tables_bytes > 0 then
    lines[#lines + 1] = (" *             %s bytes of tables, which layers share"):format(number(plan.tables_bytes))
  end
  if plan.cache_bytes > 0 then
    lines[#lines + 1] = (" *             %s bytes of cache for each batch entry"):format(number(plan.cache_bytes))
  end
  local own = workspace(plan)
  table.move(own, 1, #own, #lines + 1, lines)
  lines[#lines + 1] = (" *   registers sums and operands of a K step take at most %d of %d vectors"):format(
    pressure(recorded.tape), plan.isa.registers)
  lines[#lines + 1] = " *   names     <word>_r<row>_k<step>_c<vector>: a word, and a position in a tile. The words are"
  if recorded.tape.rolled then
    lines[#lines] = " *   names     <word>_r<row>_k<step>_c<vector>: a word, and a position in a tile. In a loop the" ..
      "\n *             coordinate that it counts is an index: <word>_c<vector>[row]. The words are"
  end
  for _, row in ipairs(legend.of(recorded.tape.functions)) do
    lines[#lines + 1] = (" *               %s: %s"):format(row[1], row[2])
  end
  return table.concat(lines, "\n")
end

-- What `gen` has written for some kernels with the same buffers: the paths of the files, the bytes of the kernels'
-- own, and how to compile them.
function M.written(all, paths, bytes, compile)
  local lines, statements = { table.concat(paths, " ") }, 0
  local most = { packed_bytes = 0, tables_bytes = 0, workspace_bytes = 0, cache_bytes = 0 }
  for _, recorded in ipairs(all) do
    statements = statements + recorded.statements
    for size, value in pairs(most) do most[size] = math.max(value, recorded.plan[size]) end
  end
  local function line(label, ...) lines[#lines + 1] = ("  %-10s %s"):format(label, string.format(...)) end
  line("code", "%s bytes of C, %s statements", number(bytes), number(statements))
  line("packed", "%s bytes", number(most.packed_bytes))
  if most.tables_bytes > 0 then line("tables", "%s bytes, which layers share", number(most.tables_bytes)) end
  line("workspace", "%s bytes", number(most.workspace_bytes))
  if most.cache_bytes > 0 then line("cache", "%s bytes for each batch entry", number(most.cache_bytes)) end
  line("compile", "%s", compile)
  return table.concat(lines, "\n") .. "\n"
end

-- ---- explain ----

-- Rows of cells in columns that are as wide as their cells: those in `left` begin at the left.
local function columns(rows, left)
  local width, lines = {}, {}
  for _, row in ipairs(rows) do
    for i, cell in ipairs(row) do width[i] = math.max(width[i] or 1, #cell) end
  end
  for n, row in ipairs(rows) do
    local cells = {}
    for i, cell in ipairs(row) do cells[i] = ("%" .. (left[i] and "-" or "") .. width[i] .. "s"):format(cell) end
    lines[n] = "  " .. table.concat(cells, "  "):gsub(" +$", "")
  end
  return lines
end

local function rounded_up(x) return number(math.ceil(x)) end

-- What operations take at least, by phase, and in all.
local function floor_lines(recorded, counts, sum)
  local plan = recorded.plan
  local tiled = false
  for _, way in ipairs(ways.of_all(graph.schemes(plan.stages))) do tiled = tiled or way.rows_of_a end
  local rows = { { "", "cycles", "port", "FMAs", "vector", "shuffle", "load", "store", tiled and "tile" or nil } }
  for _, phase in ipairs(counts) do
    rows[#rows + 1] = { phase.phase, rounded_up(phase.cycles), phase.port, rounded_up(phase.fma),
                        rounded_up(phase.vector), rounded_up(phase.shuffle), rounded_up(phase.load),
                        rounded_up(phase.store), tiled and rounded_up(phase.tile) or nil }
  end
  rows[#rows + 1] = { "all", rounded_up(sum) }
  local lines = columns(rows, { true, false, true })
  table.insert(lines, 1, ("floor (cycles of a batch entry, by the fullest port, on cpu=%s)"):format(plan.cfg.cpu))
  return lines
end

-- The flops by the type that is multiplied, where that is not float32 alone.
local function multiplied(plan)
  local parts = {}
  for i, part in ipairs(plan.work) do
    parts[i] = ("%.0f %% in %s"):format(100 * part.flops / plan.flops, part.type.name)
  end
  return plan.work[1] and (plan.work[2] or plan.work[1].type ~= types.f32) and "; " .. table.concat(parts, ", ") or ""
end

-- What this config and the same with other types cost.
local function type_lines(recorded)
  local rows = { { "", "error", "packed", "workspace", "cache", "cycles", "" } }
  for _, row in ipairs(other_types.of(recorded.plan)) do
    local other = row[2]
    rows[#rows + 1] = { row[1], ("%g"):format(other.error), number(other.packed_bytes),
      number(other.workspace_bytes // other.resident), number(other.cache_bytes),
      rounded_up(other.cost / other.cpu.fmas),
      other.error_scores < types.MOST_SCORES and ("scores up to %d"):format(other.error_scores) or "" }
  end
  local lines = columns(rows, { true, [7] = true })
  table.insert(lines, 1,
    "types (bytes and cycles of a batch entry; the same config, and with another value of one key)")
  return lines
end

-- The choices of a plan and its tape; with their reasons and what was rejected where that is asked for.
local function choice_lines(recorded, reasons)
  local lines, choices = { reasons and "why" or "choices (their reasons, and what was rejected: --why)" }, {}
  for _, list in ipairs { recorded.plan.why, recorded.tape.why } do
    for _, row in ipairs(list) do
      choices[#choices + 1] = row.choice
      if reasons then lines[#lines + 1] = wording.hung("  ", row.choice .. ": " .. row.reason, 6) end
      for _, other in ipairs(reasons and row.rejected or {}) do
        lines[#lines + 1] = wording.hung("    not ", ("%s: %s"):format(other[1], other[2]))
      end
    end
  end
  if not reasons then lines[2] = wording.hung("  ", table.concat(choices, "; ")) end
  return lines
end

local function buffer_lines(recorded)
  local plan, lines = recorded.plan, { "buffers (bytes)" }
  for _, space in ipairs {
    { "packed", "packed" }, { "head", "  a block of heads, of it" }, { "tables", "tables" },
    { "entry", "workspace of an entry" }, { "projected", "  a block of heads, of it" }, { "task", "  a task, of it" },
    { "cache", "cache of an entry", plan.cache.stored.bytes }, { "scales", "scales behind it" },
  } do
    local sections, bytes = plan.memory[space[1]], space[3] or memory.BYTES
    local always = space[1] ~= "cache" and space[1] ~= "scales" and space[1] ~= "tables"
    local parts = {}
    for i, section in ipairs(sections) do parts[i] = section.doc .. " " .. number(section.count * bytes) end
    if always or sections.total > 0 then
      lines[#lines + 1] = wording.hung(("  %-26s %13s  "):format(space[2], number(sections.total * bytes)),
        table.concat(parts, ", "))
    end
  end
  if plan.resident > 1 then lines[#lines + 1] = ("  (workspace holds %d batch entries)"):format(plan.resident) end
  return lines
end

-- The shape, what it costs, and how its code is made.
local function head_lines(recorded, alone)
  local plan = recorded.plan
  local cfg, tiles = plan.cfg, plan.cost / plan.cpu.fmas
  local lines = { cfg.name, "  command    mhagen gen " .. config.canonical(cfg) } -- in one line, to be copied
  local function line(label, ...)
    lines[#lines + 1] = wording.hung(("  %-10s "):format(label), string.format(...))
  end
  line("shape", "%s", shape.words(cfg))
  if rounding(plan) then line("numbers", "%s", rounding(plan)) end
  line("isa", "%s: %d lanes, %d registers", plan.isa.name, plan.isa.lanes, plan.isa.registers)
  line("flops", "%s (%s FMA vectors if no lane idles)%s", number(plan.flops),
    rounded_up(plan.flops / 2 / plan.isa.lanes), multiplied(plan))
  if plan.folded_flops < plan.flops then
    line("fold", "%s flops are left to do (%.3g of them)", number(plan.folded_flops), plan.folded_flops / plan.flops)
  end
  line("model", "%s cycles of tiles for a batch entry, %s with what ports take beyond FMAs",
    rounded_up(tiles), rounded_up(tiles + alone))
  for _, idle in ipairs(options.idle(plan)) do line(idle[1].key, "%s", idle[2]) end
  line("unrolling", "%s: %s statements of at most %s (code_limit)", cfg.unroll, number(recorded.statements),
    number(cfg.code_limit))
  line("registers", "sums and operands of a K step take at most %d of %d vectors", pressure(recorded.tape),
    plan.isa.registers)
  return lines
end

-- The plan of a kernel. more: { why =, types =, threads = }, which tables are wanted besides: the reasons of all
-- choices with what was rejected; what other types cost; lines on threads (command/predicted.lua).
function M.explain(recorded, more)
  local counts, sum, alone = floor.of(recorded)
  local lines = {}
  local function add(list) table.move(list, 1, #list, #lines + 1, lines) end
  add(head_lines(recorded, alone))
  add { "phases" }
  for _, line in ipairs(phases(recorded.plan)) do
    local begin, text = line[2]:match("^( *)(.*)$")
    add { wording.hung(("  %s %s"):format(line[1], begin), text) }
  end
  add(floor_lines(recorded, counts, sum))
  if more.threads then add(more.threads) end
  if more.types then add(type_lines(recorded)) end
  add(choice_lines(recorded, more.why))
  add(buffer_lines(recorded))
  if more.why then add(advice.lines(recorded.plan, counts, sum)) end
  return table.concat(lines, "\n") .. "\n"
end

return M
