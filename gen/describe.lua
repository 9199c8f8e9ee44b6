-- A plan in words: the comment on top of a generated file, and what `explain` prints.

local config = require "config"
local floor = require "floor"
local kinds = require "stage.init"
local legend = require "legend"
local memory = require "memory"
local options = require "options.init"
local other_types = require "other_types"
local show = require "options.show"
local tape = require "tape"
local types = require "types"
local words = require "words"

local number = words.number

local M = {}

-- The lines of all stages, and of what is there instead of one.
local function phases(plan)
  local lines = {}
  local function add(name, text) lines[#lines + 1] = ("%-9s %s"):format(name, text) end
  for _, name in ipairs { "keys", "values", "queries", "attend", "output" } do
    local stage = plan.stage[name]
    for _, line in ipairs(stage and kinds.ask("describe", {}, plan, stage) or {}) do add(line[1], line[2]) end
    local instead = not stage and plan.attend.instead[name]
    if instead then add(name, instead) end
  end
  return lines
end

-- The most vectors that a tile needs at one K step: its sums and operands.
local function pressure(kernels)
  local most = 0
  for _, fn in ipairs(kernels.functions) do
    if fn.attr then most = math.max(most, tape.pressure(fn)) end
  end
  return most
end

-- What is rounded, and what that costs, or nil.
local function rounding(plan)
  local own, attend, told = plan.product.a, plan.attend_product.a, {}
  local quant = not own.quantized and plan.weights.quant
  if plan.arrays.round then told[1] = ("inputs and y in %s"):format(plan.arrays.name) end
  if own ~= types.f32 or attend ~= types.f32 or quant then
    told[#told + 1] = ("operands of projections in %s, of attention in %s"):format(own.name, attend.name)
  end
  if quant then
    told[#told + 1] = ("weights are integers of %d bits, with a scale for %s"):format(quant.bits,
      quant.group and ("%d rows of a column"):format(quant.group) or "each column")
    local of_values = plan.value_weights.quant
    if of_values ~= quant then told[#told] = told[#told] .. (", those of values of %d bits"):format(of_values.bits) end
  end
  if plan.cache ~= types.f32 then told[#told + 1] = ("rows of the cache in %s"):format(plan.cache.name) end
  if not told[1] then return nil end
  return ("%s; sums in %s; error at most %g for scores up to %d"):format(table.concat(told, "; "),
    own.quantized and "int32 and float32" or plan.product.coarse and "f16 and float32" or "float32", plan.error,
    plan.error_scores)
end

function M.header(recorded)
  local plan, lines = recorded.plan, {}
  local rounded = rounding(plan)
  for i, text in ipairs(phases(plan)) do
    lines[#lines + 1] = (" *   %-9s %s"):format(i == 1 and "plan" or "", text)
  end
  if rounded then
    lines[#lines + 1] = " *   numbers   " .. rounded:gsub("; ", ";\n *             ")
  end
  lines[#lines + 1] = (" *   cost      %s flops; %s bytes packed, %s bytes of workspace"):format(
    number(plan.flops), number(plan.packed_bytes), number(plan.workspace_bytes))
  if plan.cache_bytes > 0 then
    lines[#lines + 1] = (" *             %s bytes of cache for each batch entry"):format(number(plan.cache_bytes))
  end
  lines[#lines + 1] = (" *   registers sums and operands of a K step take at most %d of %d vectors"):format(
    pressure(recorded.tape), plan.isa.registers)
  lines[#lines + 1] = " *   names     <word>_r<row>_k<step>_c<vector>, places in a tile; the words are"
  if recorded.tape.rolled then
    lines[#lines] = " *   names     <word>_r<row>_k<step>_c<vector>, places in a tile, of which those that a loop" ..
      "\n *             counts are indices: <word>_c<vector>[row]; the words are"
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
  local most = { packed_bytes = 0, workspace_bytes = 0, cache_bytes = 0 }
  for _, recorded in ipairs(all) do
    statements = statements + recorded.statements
    for size, value in pairs(most) do most[size] = math.max(value, recorded.plan[size]) end
  end
  local function line(label, ...) lines[#lines + 1] = ("  %-10s %s"):format(label, string.format(...)) end
  line("code", "%s bytes of C, %s statements", number(bytes), number(statements))
  line("packed", "%s bytes", number(most.packed_bytes))
  line("workspace", "%s bytes", number(most.workspace_bytes))
  if most.cache_bytes > 0 then line("cache", "%s bytes for each batch entry", number(most.cache_bytes)) end
  line("compile", "%s", compile)
  return table.concat(lines, "\n") .. "\n"
end

-- What operations take at least, by phase, and in all.
local function floor_lines(recorded, counts, sum, line)
  line("floor (cycles of a batch entry, each phase by its fullest port; cpu=%s)", recorded.plan.cfg.cpu)
  local plan = recorded.plan
  local tiled = plan.product.tiled or plan.attend_product.tiled
  line("  %-9s %13s  %-8s%13s%13s%13s%13s%13s%s", "", "cycles", "port", "FMAs", "vector", "shuffle", "load", "store",
    tiled and ("%13s"):format "tile" or "")
  for _, phase in ipairs(counts) do
    line("  %-9s %13s  %-8s%13s%13s%13s%13s%13s%s", phase.phase, number(math.ceil(phase.cycles)), phase.port,
      number(math.ceil(phase.fma)), number(math.ceil(phase.vector)), number(math.ceil(phase.shuffle)),
      number(math.ceil(phase.load)), number(math.ceil(phase.store)),
      tiled and ("%13s"):format(number(math.ceil(phase.tile))) or "")
  end
  line("  %-9s %13s", "all", number(math.ceil(sum)))
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
local function type_lines(plan, line)
  line("types (bytes and cycles of a batch entry; the same config, and with another value of one key)")
  line("  %-20s %8s %15s %15s %15s %15s", "", "error", "packed", "workspace", "cache", "cycles")
  for _, row in ipairs(other_types.of(plan)) do
    local other = row[2]
    line("  %-20s %8g %15s %15s %15s %15s%s", row[1], other.error, number(other.packed_bytes),
      number(other.workspace_bytes // other.resident), number(other.cache_bytes),
      number(math.ceil(other.cost / other.cpu.fmas)),
      other.error_scores < 16 and ("  scores up to %d"):format(other.error_scores) or "")
  end
end

function M.explain(recorded)
  local plan, lines = recorded.plan, {}
  local cfg = plan.cfg
  local function line(...) lines[#lines + 1] = string.format(...) end
  line("%s", cfg.name)
  line("  command    mhagen gen %s", config.canonical(cfg))
  line("  shape      %s", show.shape(cfg))
  if rounding(plan) then line("  numbers    %s", rounding(plan)) end
  line("  isa        %s: %d lanes, %d registers", plan.isa.name, plan.isa.lanes, plan.isa.registers)
  line("  flops      %s (%s FMA vectors if no lane idles)%s", number(plan.flops),
    number(math.ceil(plan.flops / 2 / plan.isa.lanes)), multiplied(plan))
  if plan.folded_flops < plan.flops then
    line("  fold       %s flops are left to do (%.3g of them)", number(plan.folded_flops),
      plan.folded_flops / plan.flops)
  end
  local counts, sum, apart = floor.of(recorded)
  local tiles = plan.cost / plan.cpu.fmas
  line("  model      %s cycles of tiles for a batch entry, %s with what the fullest ports take beyond FMAs",
    number(math.ceil(tiles)), number(math.ceil(tiles + apart)))
  for _, idle in ipairs(options.idle(plan)) do line("  %-10s %s", idle[1].key, idle[2]) end
  local straight = cfg.unroll == "auto" and ("; tiles of up to %d FMAs and 32 steps are straight"):format(
    plan.straight) or ""
  line("  unrolling  %s: %s statements of at most %s (code_limit)%s", cfg.unroll,
    number(recorded.statements), number(cfg.code_limit), straight)
  line("  registers  sums and operands of a K step take at most %d of %d vectors", pressure(recorded.tape),
    plan.isa.registers)
  line("phases")
  for _, text in ipairs(phases(plan)) do line("  %s", text) end
  floor_lines(recorded, counts, sum, line)
  type_lines(plan, line)
  line("why")
  for _, list in ipairs { plan.why, recorded.tape.why } do
    for _, row in ipairs(list) do
      line("  %s: %s", row.choice, row.reason)
      for _, other in ipairs(row.rejected) do line("    not %s: %s", other[1], other[2]) end
    end
  end
  line("buffers (bytes)")
  local function buffer(name, count, bytes) line("  %-26s %15s", name, number(count * (bytes or memory.BYTES))) end
  for _, space in ipairs {
    { "packed", "packed" }, { "head", "  a block of heads, of it" },
    { "entry", "workspace of an entry" }, { "projected", "  a block of heads, of it" }, { "task", "  a task, of it" },
    { "cache", "cache of an entry", plan.cache.stored.bytes }, { "scales", "scales behind it" },
  } do
    local sections, bytes = plan.memory[space[1]], space[3]
    local always = space[1] ~= "cache" and space[1] ~= "scales"
    if always or sections.total > 0 then buffer(space[2], sections.total, bytes) end
    for _, section in ipairs(sections) do buffer("    " .. section.doc, section.count, bytes) end
  end
  if plan.resident > 1 then line("  (workspace holds %d batch entries)", plan.resident) end
  return table.concat(lines, "\n") .. "\n"
end

return M
