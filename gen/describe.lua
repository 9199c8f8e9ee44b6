-- A plan in words: the comment on top of a generated file, and what `explain` prints.

local config = require "config"
local kinds = require "stage.init"
local memory = require "memory"
local options = require "options.init"
local show = require "options.show"
local tape = require "tape"
local words = require "words"

local number = words.number

local M = {}

-- The lines of all stages; what an input stands in the place of says so.
local function phases(plan)
  local lines = {}
  local function add(name, text) lines[#lines + 1] = ("%-9s %s"):format(name, text) end
  for _, name in ipairs { "keys", "values", "queries", "attend", "output" } do
    local stage = plan.stage[name]
    for _, line in ipairs(stage and kinds.ask("describe", {}, plan, stage) or {}) do add(line[1], line[2]) end
    local instead = not stage and plan.attend.instead[name]
    if instead then add(name, "the inputs themselves; " .. instead) end
  end
  return lines
end

-- The most vectors alive at one place of a tile, as counted on the tape (those inside exp2 apart).
local function pressure(kernels)
  local most = 0
  for _, fn in ipairs(kernels.functions) do
    if fn.attr then most = math.max(most, tape.pressure(fn)) end
  end
  return most
end

function M.header(recorded)
  local plan, lines = recorded.plan, {}
  for i, text in ipairs(phases(plan)) do
    lines[#lines + 1] = (" *   %-9s %s"):format(i == 1 and "plan" or "", text)
  end
  lines[#lines + 1] = (" *   cost      %s flops; %s bytes packed, %s bytes of workspace"):format(
    number(plan.flops), number(plan.packed_bytes), number(plan.workspace_bytes))
  lines[#lines + 1] = (" *   registers at most %d of %d vectors live at once"):format(
    pressure(recorded.tape), plan.isa.registers)
  lines[#lines + 1] = " *   names     acc_r<row>_c<vector>, a_r<row>_k<step>, b_k<step>_c<vector>"
  return table.concat(lines, "\n")
end

-- What `gen` has written: the paths of the files, the bytes of the kernel's own, and how to compile it.
function M.written(recorded, paths, bytes, compile)
  local plan, lines = recorded.plan, { table.concat(paths, " ") }
  local function line(label, ...) lines[#lines + 1] = ("  %-10s %s"):format(label, string.format(...)) end
  line("code", "%s bytes of C, %s statements", number(bytes), number(recorded.statements))
  line("packed", "%s bytes", number(plan.packed_bytes))
  line("workspace", "%s bytes", number(plan.workspace_bytes))
  line("compile", "%s", compile)
  return table.concat(lines, "\n") .. "\n"
end

function M.explain(recorded)
  local plan, lines = recorded.plan, {}
  local cfg = plan.cfg
  local function line(...) lines[#lines + 1] = string.format(...) end
  line("%s", cfg.name)
  line("  command    mhagen gen %s", config.canonical(cfg))
  line("  shape      %s", show.shape(cfg))
  line("  isa        %s: %d lanes, %d registers", plan.isa.name, plan.isa.lanes, plan.isa.registers)
  line("  flops      %s (%s FMA vectors if no lane idles)", number(plan.flops),
    number(math.ceil(plan.flops / 2 / plan.isa.lanes)))
  if plan.folded_flops < plan.flops then
    line("  fold       %s flops are left to do (%.3g of them)", number(plan.folded_flops),
      plan.folded_flops / plan.flops)
  end
  line("  model      %s cycles of tiles for a batch entry, exponentials apart",
    number(math.ceil(plan.cost / plan.cpu.fmas)))
  for _, idle in ipairs(options.idle(plan)) do line("  %-10s %s", idle[1].key, idle[2]) end
  local straight = cfg.unroll == "auto" and ("; tiles of up to %d FMAs and 32 steps are straight"):format(
    plan.straight) or ""
  line("  unrolling  %s: %s statements of at most %s (code_limit)%s", cfg.unroll,
    number(recorded.statements), number(cfg.code_limit), straight)
  line("  registers  at most %d of %d vectors live at once", pressure(recorded.tape), plan.isa.registers)
  line("phases")
  for _, text in ipairs(phases(plan)) do line("  %s", text) end
  line("why")
  for _, list in ipairs { plan.why, recorded.tape.why } do
    for _, row in ipairs(list) do
      line("  %s: %s", row.choice, row.reason)
      for _, other in ipairs(row.rejected) do line("    not %s: %s", other[1], other[2]) end
    end
  end
  line("buffers (bytes)")
  local function buffer(name, count) line("  %-26s %15s", name, number(count * memory.BYTES)) end
  for _, space in ipairs {
    { "packed", "packed" }, { "head", "  a block of heads, of it" },
    { "entry", "workspace of an entry" }, { "projected", "  a block of heads, of it" }, { "task", "  a task, of it" },
  } do
    local sections = plan.memory[space[1]]
    buffer(space[2], sections.total)
    for _, section in ipairs(sections) do buffer("    " .. section.doc, section.count) end
  end
  if plan.resident > 1 then line("  (workspace holds %d batch entries)", plan.resident) end
  return table.concat(lines, "\n") .. "\n"
end

return M
