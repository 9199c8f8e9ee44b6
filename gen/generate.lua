-- A checked config -> the texts of <name>.h and <name>.c, and what was recorded for them.

local budget = require "budget"
local config = require "config"
local cprint = require "cprint"
local describe = require "describe"
local options = require "options.init"
local pack = require "pack"
local record = require "record"
local self_test = require "emit.self_test"
local show = require "options.show"
local tape = require "tape"
local template = require "template"
local version = require "version"

-- The version as mhagen.h has it, MHAGEN_VERSION.
local major, minor, patch = version:match("^(%d+)%.(%d+)%.(%d+)$")
local version_number = ("%d"):format(10000 * major + 100 * minor + patch)

-- Rounds of at most `resident` batch entries, each with all phases.
local function phase_rows(phases, plan)
  local rows = {}
  for first = 0, plan.cfg.batch - 1, plan.resident do
    local entries = math.min(plan.resident, plan.cfg.batch - first)
    for _, phase in ipairs(phases) do
      rows[#rows + 1] = ('  { "%s", task_%s, %d, %d, %.3g },'):format(phase.name, phase.name,
        first * phase.per_entry, entries * phase.per_entry, entries * phase.cycles)
    end
  end
  return table.concat(rows, "\n")
end

-- The inputs of the self-test, and the rows of bits that it must give.
local function test_values(rows)
  local inputs, bits = {}, {}
  for i, x in ipairs(self_test.inputs) do inputs[i] = cprint.float(x) end
  for i, row in ipairs(rows) do bits[i] = ("{ 0x%08X, 0x%08X }"):format(row[1], row[2]) end
  return cprint.list(inputs, "    "), cprint.list(bits, "    ")
end

-- The table of the pointers that a config needs, as initializers; and which of them are inputs.
local function needs_text(cfg, of)
  local lines, inputs = {}, {}
  for i, need in ipairs(options.needs(cfg, of)) do
    lines[i] = ("  { offsetof(mhagen_%s, %s), %s, %d },"):format(of, need.pointer,
      need.aligned and "MHAGEN_ALIGN" or "1", need.most or -1)
    if need.input then inputs[#inputs + 1] = need.pointer end
  end
  return table.concat(lines, "\n"), table.concat(inputs, ", ")
end

-- The numbers of options, as initializers.
local function numbers_text(cfg)
  local lines = {}
  for i, row in ipairs(options.numbers(cfg)) do lines[i] = ("\n  .%s = %s,"):format(row.key, cfg[row.key]) end
  return table.concat(lines)
end

-- A matrix as mhagen.h names it.
local function matrix_name(name) return "MHAGEN_" .. (name or "none"):upper() end

-- The tables of a list of fills, as initializers.
local function pack_text(list)
  local terms, fills, sizes = {}, {}, {}
  for i, matrix in ipairs(list.matrices) do sizes[i] = ("{ %d, %d }"):format(matrix[2], matrix[3]) end
  for i, fill in ipairs(list.fills) do
    local rounds = {}
    for j, round in ipairs(fill.rounds) do
      rounds[j] = ("{ %d, %d, %d, %d, %d }"):format(round.count, round.to, round.row or 0, round.column or 0,
        round.first or 0)
    end
    local numbers = ("{ %d, %d, %d, %d, %s, %d, %d"):format(fill.to, fill.steps, fill.used, fill.width,
      cprint.double(fill.scale), #terms, #fill.terms)
    local moves = ("{ %s } }, /* %s */"):format(#rounds > 0 and table.concat(rounds, ", ") or "{ 0 }", fill.text)
    fills[i] = cprint.list({ numbers, moves }, "  ")
    for _, term in ipairs(fill.terms) do
      terms[#terms + 1] = ("  { %s, %d, %s, %d, %d, %d, %d, %d, %d },"):format(matrix_name(term.a),
        term.a_flipped and 1 or 0, matrix_name(term.b), term.b_flipped and 1 or 0, term.row or 0, term.column or 0,
        term.first or 0, term.inner or 0, term.sign or 1)
    end
  end
  return { terms = table.concat(terms, "\n"), fills = table.concat(fills, "\n"), sizes = cprint.list(sizes, "    ") }
end

return function(cfg)
  local recorded = record(cfg)
  local plan = recorded.plan
  local isa = plan.isa
  local packing = pack_text(pack.list(plan))
  local testing = tape.new(isa, recorded.tape)
  local test_rows = self_test.emit(testing)

  local bits, weight_needs = options.bits(plan), needs_text(cfg, "weights")
  local needs, inputs = needs_text(cfg, "args")
  local common = {
    name = cfg.name, NAME = cfg.name:upper(), version = version, command = config.canonical(cfg),
    version_number = version_number,
    shape = show.shape(cfg, "\n *             "), isa = cfg.isa,
    h = tostring(cfg.h), h_kv = tostring(cfg.h_kv), d_model = tostring(cfg.d_model), dk = tostring(cfg.dk),
    dv = tostring(cfg.dv),
    seq = tostring(cfg.seq), seq_kv = tostring(cfg.seq_kv), batch = tostring(cfg.batch),
    k_width = tostring(cfg.k_width), v_width = tostring(cfg.v_width), y_width = tostring(cfg.y_width),
  }
  local function with(more)
    local values = {}
    for key, value in pairs(common) do values[key] = value end
    for key, value in pairs(more) do values[key] = value end
    return values
  end
  local header_values = with {
    packed_bytes = ("%d"):format(plan.packed_bytes),
    workspace_bytes = ("%d"):format(plan.workspace_bytes),
    stack = tostring(budget.stack(plan)), inputs = inputs,
  }
  local test_inputs, test_bits = test_values(test_rows)
  local source_values = with {
    plan = describe.header(recorded), guard = isa.guard,
    pack_terms = packing.terms, pack_fills = packing.fills, pack_sizes = packing.sizes,
    headers = isa.headers, begin = isa.begin or "", prelude = isa.prelude or "",
    functions = recorded.functions, test = cprint.functions(testing), test_inputs = test_inputs,
    test_bits = test_bits, lanes = tostring(isa.lanes), finish = isa.finish or "",
    phases = phase_rows(recorded.phases, plan), cpu = isa.cpu,
    error = cprint.double(plan.error), unit = ("%a"):format(plan.product.a.unit),
    options = #bits > 0 and table.concat(bits, " | ") or "0", needs = needs, weight_needs = weight_needs,
    numbers = numbers_text(cfg),
  }
  return {
    { name = cfg.name .. ".h", text = template.file("kernel.h.in", header_values) },
    { name = cfg.name .. ".c", text = template.file("kernel.c.in", source_values) },
  }, recorded
end
