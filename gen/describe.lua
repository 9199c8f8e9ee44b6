-- A plan in words: the comment on top of a generated file, and what `explain` prints.

local choices = require "choices"
local config = require "config"
local options = require "options.init"
local show = require "options.show"
local tape = require "tape"

local M = {}

-- 1234567 -> "1,234,567"
local function number(n)
  local text = ("%.0f"):format(n)
  local grouped = text:reverse():gsub("(%d%d%d)", "%1,"):reverse()
  return (grouped:gsub("^,", ""))
end

local function tiles(runs, width)
  local words = {}
  for _, run in ipairs(runs) do
    words[#words + 1] = ("%d of %dx%s"):format(run.count, run.size, tostring(width))
  end
  return table.concat(words, " + ")
end

local function column_tiles(product)
  local words = {}
  for _, block in ipairs(product.blocks) do
    for _, runs in ipairs(product.runs) do
      for _, run in ipairs(runs) do
        local word = ("%dx%d"):format(run.size, block.used)
        if not words[word] then words[#words + 1] = word end
        words[word] = true
      end
    end
  end
  return table.concat(words, ", ")
end

-- What stands in the place of a product that fold.lua avoids.
local ways = {
  absorbk = "the inputs themselves; Wk is applied to the queries",
  absorbv = "the inputs themselves; Wv is applied to the context",
  mergek = "the inputs themselves; the queries' weights are Wq Wk^T",
  mergev = "the inputs themselves; the output's weights are Wv Wo",
}

-- One line a phase.
local function phases(plan)
  local cfg, lines = plan.cfg, {}
  local function line(name, text) lines[#lines + 1] = ("%-9s %s"):format(name, text) end
  local function chain(chunks)
    return chunks.count == 1 and "k" .. chunks.last or ("k%dx%d"):format(chunks.count, chunks.size)
  end
  local projected = { { "keys", "k", plan.fold.qk }, { "values", "v", plan.fold.vo } }
  if plan.projected.q then projected[3] = { "queries", "q" } end
  for _, row in ipairs(projected) do
    local product = plan.projected[row[2]]
    local quadrants = product and product.quadrants and ("; %d products of quadrants"):format(product.quadrants)
    line(row[1], product and ("tiles %s, %s; %d of %d heads together%s"):format(column_tiles(product),
      chain(product.chunks), plan.hb, cfg.h, quadrants or "") or ways[row[3] .. row[2]])
  end
  for _, group in ipairs(plan.groups) do
    local width = group.width == group.used and group.used or group.used .. " of " .. group.width
    local first = plan.q or plan.kq
    line("attend", ("%d x %s queries%s"):format(group.count, width,
      first and ": Q " .. tiles(first.runs, group.used) or ""))
    line("", ("scores %dx%d k%d | context %s k%d"):format(group.keys.rows, group.used, plan.fold.depth,
      tiles(group.context, group.used), math.min(cfg.seq_kv, group.keys.block_tiles * group.keys.rows)))
  end
  line("output", ("tiles %s, %s"):format(column_tiles(plan.out), chain(plan.out.chunks)))
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
    number(plan.flops), number(plan.packed.total * 4), number(plan.workspace * 4))
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
  line("packed", "%s bytes", number(plan.packed.total * 4))
  line("workspace", "%s bytes", number(plan.workspace * 4))
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
  if plan.fold.flops < plan.flops then
    line("  fold       %s flops are left to do (%.3g of them)", number(plan.fold.flops),
      plan.fold.flops / plan.flops)
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
  for _, row in ipairs(choices.of(plan)) do
    line("  %s: %s", row[1], row[2])
    for _, other in ipairs(row.rejected) do line("    not %s: %s", other[1], other[2]) end
  end
  line("  %d of %d heads projected together: %s", plan.hb, cfg.h,
    cfg.head_block and "as head_block says" or "the least cost by the model")
  line("buffers (bytes)")
  local function buffer(name, floats) line("  %-22s %15s", name, number(floats * 4)) end
  buffer("packed", plan.packed.total)
  buffer("  a block of heads", plan.head.total)
  buffer("  Wo", plan.packed.bo - plan.packed.wo)
  buffer("workspace", plan.workspace)
  buffer("  X transposed", plan.entry.o - plan.entry.xt)
  local sums = plan.sums[1] and plan.entry["sums_" .. plan.sums[1].name] or plan.entry.kv
  buffer("  context of all heads", sums - plan.entry.o)
  if plan.sums[1] then buffer("  sums of quadrants", plan.entry.kv - sums) end
  buffer("  what is projected", plan.entry.scratch - plan.entry.kv)
  buffer("  Q, weights, sums", plan.entry.total - plan.entry.scratch)
  if plan.resident > 1 then line("  (workspace holds %d batch entries)", plan.resident) end
  return table.concat(lines, "\n") .. "\n"
end

return M
