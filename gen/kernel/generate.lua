-- A checked config -> the texts of <name>.h and <name>.c, and what was recorded for them.

local budget = require "plan.budget"
local config = require "options.config"
local cprint = require "tape.cprint"
local describe = require "kernel.describe"
local fingerprint = require "base.fingerprint"
local fold = require "rewrite.fold"
local graph = require "graph.init"
local isas = require "isa.init"
local known_answer = require "kernel.known_answer"
local matrices = require "graph.matrices"
local options = require "options.init"
local own_names = require "kernel.own_names"
local pack = require "plan.pack"
local plan_of = require "plan.init"
local record = require "plan.record"
local self_test = require "emit.self_test"
local statistics = require "emit.stats"
local shape = require "kernel.shape"
local tape = require "tape.init"
local tasks = require "plan.tasks"
local template = require "base.template"
local qk_of = require "graph.qk"
local types = require "machine.types"
local version = require "base.version"
local ways = require "way.init"

-- The version as mhagen.h has it, MHAGEN_VERSION.
local major, minor, patch = version:match("^(%d+)%.(%d+)%.(%d+)$")
local version_number = ("%d"):format(10000 * major + 100 * minor + patch)

-- What the file is filled with for the two lists of phases: their rows, and how many each has.
local function phases_text(recorded)
  local lines, lists = {}, { tasks.rows(recorded) }
  for _, rows in ipairs(lists) do
    for _, row in ipairs(rows) do
      lines[#lines + 1] = ('  { "%s", task_%s, %d, %d, %.3g },'):format(row.name, row.name, row.first, row.tasks,
        row.cycles)
    end
  end
  return table.concat(lines, "\n"), tostring(#lists[1]), tostring(#lists[2])
end

-- The inputs of the self-test, and the rows of bits that it must give.
local function test_values(rows)
  local inputs, bits = {}, {}
  for i, x in ipairs(self_test.inputs) do inputs[i] = cprint.float(x) end
  for i, row in ipairs(rows) do bits[i] = ("{ 0x%08X, 0x%08X }"):format(row[1], row[2]) end
  return cprint.list(inputs, "    "), cprint.list(bits, "    ")
end

-- The table of the pointers that a kernel needs, as initializers; and which of them are inputs.
local function needs_text(plan, of)
  local lines, inputs = {}, {}
  for i, need in ipairs(of == "weights" and matrices.needs(plan.cfg) or options.needs(plan, of)) do
    lines[i] = ("  { offsetof(mhagen_%s, %s), %s, %d },"):format(of == "fill" and "args" or of, need.pointer,
      need.aligned and "MHAGEN_ALIGN" or "1", need.most or -1)
    if need.input then inputs[#inputs + 1] = need.pointer end
  end
  return lines, table.concat(inputs, ", ")
end

-- What a kernel needs of the rows of a run, as an initializer, or nothing.
local function of_rows_text(plan)
  for _, need in ipairs(options.needs(plan, "args")) do
    if need.ints then
      return ("\n  .of_rows = { offsetof(mhagen_args, %s), %s, %d, %d },"):format(need.pointer,
        need.rows and ("offsetof(mhagen_args, %s)"):format(need.rows) or "0", need.ints, need.ints_most)
    end
  end
  return ""
end

-- The values of options, as initializers; and where operands are rounded, what is folded.
local function numbers_text(plan)
  local lines = {}
  for i, number in ipairs(options.numbers(plan.cfg)) do
    lines[i] = ("\n  .%s = %s,"):format(table.unpack(number))
  end
  local bits = fold.bits(plan)
  if bits[1] then lines[#lines + 1] = ("\n  .folds = %s,"):format(table.concat(bits, " | ")) end
  local scheme = graph.scheme(plan.stages)
  if scheme and ways.of(scheme).own_sums then lines[#lines + 1] = ('\n  .sum_dtype = "%s",'):format(scheme.a.name) end
  return table.concat(lines) .. of_rows_text(plan)
end

-- How a cache lies.
local function lies(cfg, plan)
  local small = plan.cache.stored ~= types.f32
  if not plan.memory.cache[1].exact then
    return ("How keys and values lie in it depends on h_kv, dk, dv, seq_kv%s and the ISA alone: kernels of other\n" ..
      " * seq, masks and schedules can share it."):format(small and ",\n * cache_dtype" or "")
  end
  local scaled = plan.cache.scaled and ",\n * and behind them, from the next multiple of 4 bytes on, the float32 " ..
    "scales of the keys' rows,\n * [h_kv][seq_kv], and those of the values'" or ""
  return ("It is the keys, [h_kv][seq_kv][dk] = [%d][%d][%d], and behind them the values,\n" ..
    " * [h_kv][seq_kv][dv] = [%d][%d][%d], all %s and without padding%s."):format(
    cfg.h_kv, cfg.seq_kv, cfg.dk, cfg.h_kv, cfg.seq_kv, cfg.dv, small and plan.cache.name or "float32", scaled)
end

-- What the files have more where there is a cache, by the names of templates; nothing where there is none.
local function cache_texts(cfg, plan)
  local texts = { cache_size = "", fill_declaration = "", fill_function = "", fill_stub = "", cache_fields = "" }
  local names = { name = cfg.name, NAME = cfg.name:upper() }
  if plan.cache_bytes == 0 then return texts end
  texts.cache_size = template.file("cache_size.h.in", {
    NAME = names.NAME, cache_bytes = ("%d"):format(plan.cache_bytes),
    lies = lies(cfg, plan) })
  texts.cache_fields = ("\n  .cache_bytes = %s_CACHE_BYTES,"):format(names.NAME)
  if not plan.filling[1] then return texts end
  local needs, inputs = needs_text(plan, "fill")
  local scratch = table.concat(needs):find("workspace", 1, true)
  local other = scratch and "and uses args->workspace" or "and nothing else"
  texts.fill_declaration = template.file("fill.h.in", { name = names.name, inputs = inputs, other = other })
  texts.fill_function = template.file("fill.c.in", {
    name = names.name, needs = table.concat(needs, "\n") })
  texts.fill_stub = template.file("fill_stub.c.in", {})
  texts.cache_fields = texts.cache_fields .. ("\n  .fill = %s_fill,\n  .fill_needs = cache_needs,"):format(names.name)
    .. "\n  .fill_need_count = sizeof cache_needs / sizeof cache_needs[0],"
  return texts
end

-- The given matrices as initializers.
local function matrices_text(list)
  local rows, number = {}, { [false] = "MHAGEN_NONE" }
  for i, of in ipairs(list) do
    local numbers, matrix = {}, of.matrix
    for j, x in ipairs(of.instead or {}) do numbers[j] = cprint.float(x) end
    rows[i] = ("  { offsetof(mhagen_weights, %s), %d, %d, MHAGEN_%s, %s },"):format(matrix.name, of.rows, of.columns,
      matrix.null:upper(), numbers[1] and ("(const float[]){\n%s\n  }"):format(cprint.list(numbers, "    ")) or "NULL")
    number[matrix.name] = ("%d"):format(i - 1)
  end
  return rows, number
end

-- The tables of a list of fills by their names, as initializers. matrices: those that terms name, if not of the list.
local function pack_text(list, matrices)
  local of_matrices, number = matrices_text(matrices or list.matrices)
  local terms, gains = {}, {}
  local function text(fill)
    local rounds = {}
    for j, round in ipairs(fill.rounds) do
      rounds[j] = ("{ %d, %d, %d, %d, %d }"):format(round.count, round.to, round.row or 0, round.column or 0,
        round.first or 0)
    end
    local numbers = ("{ %d, %d, %d, %d, %s, %d, %d"):format(fill.to, fill.steps, fill.used, fill.width,
      cprint.double(fill.scale), #terms, #fill.terms)
    local moves = ("{ %s } }, /* %s */"):format(#rounds > 0 and table.concat(rounds, ", ") or "{ 0 }", fill.text)
    if fill.gain then gains[#gains + 1] = ("  { %d, %s },"):format(#terms, number[fill.gain]) end
    for _, term in ipairs(fill.terms) do
      terms[#terms + 1] = ("  { %s, %d, %s, %d, %d, %d, %d, %d },"):format(number[term.a], term.a_flipped and 1 or 0,
        number[term.b or false], term.b_flipped and 1 or 0, term.row or 0, term.column or 0, term.first or 0,
        term.inner or 0)
    end
    return cprint.list({ numbers, moves }, "  ")
  end
  local rows = { matrices = not matrices and of_matrices or nil, terms = terms, gains = gains }
  for _, name in ipairs(pack.lists) do
    rows[name] = {}
    for i, fill in ipairs(list.lists[name]) do rows[name][i] = text(fill) end
  end
  return rows
end

-- A table of packing and the fields that lead to it; without rows there is neither. Tables apart have `tables_` in the
-- place of `pack_`.
local packing_tables = {
  { doc = "pointer, rows, columns, values of a null pointer: a constant, or these numbers", type = "mhagen_matrix",
    name = "pack_matrices", pointer = "matrices" },
  { doc = "a, transposed?, b, transposed?, row, column, first, inner", type = "mhagen_pack_term",
    name = "pack_terms", pointer = "terms" },
  { doc = "to, steps, used, width, scale, term, terms, { rounds: count, to, row, column, first }",
    type = "mhagen_pack_fill", name = "pack_fills", pointer = "fills", count = "fill_count" },
  { doc = "the same, rounded", type = "mhagen_pack_fill", name = "pack_rounded", pointer = "rounded",
    count = "rounded_count" },
  { doc = "likewise, pairs of bf16 or f16", type = "mhagen_pack_fill", name = "pack_pairs", pointer = "pairs",
    count = "pair_count" },
  { doc = "likewise, quantized weights", type = "mhagen_pack_fill", name = "pack_quants", pointer = "quants",
    count = "quant_count" },
  { doc = "likewise, quantized Wv", type = "mhagen_pack_fill", name = "pack_value_quants",
    pointer = "value_quants", count = "value_quant_count" },
  { doc = "first term of a fill, matrix that scales its columns", type = "mhagen_pack_gain", name = "pack_gains",
    pointer = "gains", count = "gain_count" },
  { doc = "offset, alignment, most", type = "mhagen_need", name = "weight_needs", pointer = "needs",
    count = "need_count" },
}

-- These, for the rows of the tables by their pointers.
local function packing_text(rows, prefix)
  local tables, fields = {}, {}
  for _, of in ipairs(packing_tables) do
    local list, name = rows[of.pointer] or {}, of.name:gsub("^pack_", prefix)
    if #list > 0 then
      tables[#tables + 1] = template.file("table.c.in", { doc = of.doc, type = of.type, name = name,
                                                          rows = table.concat(list, "\n") })
      fields[#fields + 1] = ("  .%s = %s,\n"):format(of.pointer, name)
      if of.count then
        fields[#fields + 1] = ("  .%s = sizeof %s / sizeof %s[0],\n"):format(of.count, name, name)
      end
    end
  end
  return table.concat(tables), table.concat(fields)
end

-- How words lie that are not row by row, as an initializer.
local function interleave_text(interleave) return interleave > 1 and ("  .deep = %d,\n"):format(interleave) or "" end

local function deinterleave_text(columns) return columns > 0 and ("  .apart = %d,\n"):format(columns) or "" end

-- How numbers are quantized, as initializers.
local function quant_text(quant)
  if not quant then return "" end
  return ("  .quant_bits = %d,\n  .quant_group = %d,\n  .quant_sums = %d,\n%s%s"):format(quant.bits, quant.group or 0,
    quant.sums and 1 or 0, quant.beside and "  .quant_beside = 1,\n" or "",
    quant.bytes and "  .quant_bytes = 1,\n" or "")
end

-- How numbers of a packing become words, as initializers; f16 where pairs and what is rounded are not bfloat16.
local function form_text(list)
  return quant_text(list.quant) .. (list.f16 and "  .f16 = 1,\n" or "") .. interleave_text(list.interleave)
    .. deinterleave_text(list.deinterleave)
end

-- What decides the packed bytes: all of their list but comments.
local function packed_by(...)
  return fingerprint((table.concat({ ... }, "\n"):gsub("/%*.-%*/", "")))
end

-- The rows of all lists of fills but the first, and of gains.
local function small_rows(rows)
  local small = {}
  for i = 2, #pack.lists do table.move(rows[pack.lists[i]], 1, #rows[pack.lists[i]], #small + 1, small) end
  return table.move(rows.gains, 1, #rows.gains, #small + 1, small)
end

-- The packing of products of the feed-forward in a type of their own: its rows, its text, and the field of the other
-- packing that leads to it. Nothing where there is none.
local function packing_beside(list)
  if not list.beside then return { rows = {}, text = "", field = "" } end
  local rows, form = pack_text(list.beside, list.matrices), form_text(list.beside)
  local all = { table.concat(rows.terms), table.concat(rows.fills), form, table.unpack(small_rows(rows)) }
  local tables, fields = packing_text(rows, "ffn_")
  return { rows = all, field = "  .beside = &ffn_packing,\n",
           text = template.file("packing_beside.c.in", { tables = tables, fields = fields .. form }) }
end

-- The angles of rope for tables that are not given, as initializers.
local function rope_text(qk)
  if not qk_of.packs(qk) then return "" end
  local numbers = {}
  for i, part in ipairs(qk_of.turns(qk)) do numbers[i] = cprint.double(part) end
  return ("  .rope_turns = (const double[]){\n%s\n  },\n  .rope_first = %d,\n"):format(cprint.list(numbers, "    "),
    qk.first)
end

-- What the files have more where tables are apart from packed weights, by the names of templates.
local function tables_texts(cfg, plan)
  if plan.tables_bytes == 0 then return { size = "", declaration = "", fields = "" } end
  local name, NAME, bytes = cfg.name, cfg.name:upper(), ("%d"):format(plan.tables_bytes)
  return { size = template.file("tables_size.h.in", { NAME = NAME, bytes = bytes }),
           declaration = template.file("pack_tables.h.in", { name = name, tables_bytes = bytes }),
           fields = ("\n  .tables_bytes = %s_TABLES_BYTES,\n  .pack_tables = %s_pack_tables,"):format(NAME, name) }
end

-- What fills tables that are apart, or nothing. list: of the weights.
local function tables_packing(recorded, list)
  local plan = recorded.plan
  local name, tables = plan.cfg.name, pack.tables(plan, list)
  if not tables then return "" end
  local rows = pack_text(tables)
  local rope, arrays, fields = rope_text(plan.attend.qk), packing_text(rows, "tables_")
  recorded.tables_fingerprint = packed_by(plan.tables_bytes, table.concat(rows.matrices),
    table.concat(rows.terms), table.concat(rows.fills), rope)
  return template.file("pack_tables.c.in", { name = name, NAME = name:upper(), arrays = arrays,
    fields = fields, rope = rope, fingerprint = recorded.tables_fingerprint })
end

-- ---- the files ----

-- A file of a config from its template, with more values than those that all have.
local function file(cfg, name, as, more)
  local values = {
    name = cfg.name, NAME = cfg.name:upper(), version = version, version_number = version_number,
    kind = shape.kind(cfg),
    command = config.canonical(cfg), shape = shape.words(cfg, "\n *             "), isa = config.told(cfg, "isa"),
  }
  for key, value in pairs(more) do values[key] = value end
  local text = template.file(name, values)
  return { name = cfg.name .. as, text = as == ".c" and own_names(text, cfg.name) or text }
end

-- The extents of a config, as values of templates, with more of them.
local function extents(cfg, values)
  for _, key in ipairs { "h", "h_kv", "d_model", "dk", "dv", "seq", "seq_kv", "batch", "k_width", "v_width",
                         "y_width" } do
    values[key] = tostring(cfg[key])
  end
  return values
end

-- What `of` needs, as a table of C.
local function needs_table(plan, of)
  return (table.concat(needs_text(plan, of), "\n"))
end

local M = { file = file, needs = needs_table }

-- The fingerprint of tables that are apart as an initializer, or nothing. of: what was recorded, or of several kernels
-- a plan with what all have.
function M.tables_fingerprint(of)
  return of.tables_fingerprint and ("  .tables_fingerprint = %s,\n"):format(of.tables_fingerprint) or ""
end

-- The header, what mhagen_kernel says of a config, and the texts of its cache. Of the plan only the sizes count, and
-- what the config asks for. answer: the declaration of a known answer, or nothing.
function M.outside(cfg, plan, stack, answer)
  local of_cache, bits, _, inputs = cache_texts(cfg, plan), options.bits(plan), needs_text(plan, "args")
  local tables = tables_texts(cfg, plan)
  local header = file(cfg, "kernel.h.in", ".h", extents(cfg, {
    packed_bytes = ("%d"):format(plan.packed_bytes), workspace_bytes = ("%d"):format(plan.workspace_bytes),
    cache_size = of_cache.cache_size .. tables.size, fill_declaration = of_cache.fill_declaration,
    pack_tables = tables.declaration, stack = tostring(stack), inputs = inputs, known_answer = answer,
  }))
  return header, template.file("facts.c.in", extents(cfg, {
    name = cfg.name, NAME = cfg.name:upper(), isa = config.told(cfg, "isa"),
    error = cprint.double(plan.error), unit = ("%a"):format(plan.unit),
    options = cprint.wrap(("  .options = %s,"):format(#bits > 0 and table.concat(bits, " | ") or "0"), "  "),
    numbers = numbers_text(plan), scale = cprint.double(cfg.scale or 1 / math.sqrt(cfg.dk)),
    cache_fields = of_cache.cache_fields .. tables.fields,
  })), of_cache
end

-- What stands before all functions: of the ISA, and of the types of its products.
local function prelude_of(plan)
  local own, declared = plan.isa.prelude or "", nil
  for _, scheme in ipairs(graph.product_schemes(plan.stages)) do declared = declared or scheme.declared end
  return own .. (declared and (own ~= "" and "\n" or "") .. declared or "")
end

-- The declaration and the function of a known answer, nothing where none is asked for.
local function answer_texts(recorded, answer)
  if not answer then return "", "" end
  local plan = recorded.plan
  local test = known_answer.of(plan)
  recorded.answer_bytes = test.bytes
  local declared, defined = known_answer.texts(plan.cfg, test,
    answer(test, recorded, pack.packing(plan, recorded.fingerprint, recorded.tables_fingerprint)))
  return declared, "\n" .. defined
end

-- The files of a config of one kernel, and what was recorded for them. answer: nil, or the function of a test, of what
-- was recorded and of the packing, that returns the checksum of the known answer.
function M.kernel(cfg, answer)
  local recorded = record(cfg)
  local plan = recorded.plan
  local isa, asked = plan.isa, isas.asked(plan.isa, plan_of.types(plan))
  local testing = tape.new(isa, recorded.tape)
  testing.rolled = recorded.tape.rolled
  local test_rows = self_test.emit(testing)

  local weight_needs = needs_text(plan, "weights")
  local list = pack.list(plan)
  local rows = pack_text(list)
  local rope, pack_tables = plan.tables_bytes == 0 and rope_text(plan.attend.qk) or "", tables_packing(recorded, list)
  local form, small, beside = form_text(list), small_rows(rows), packing_beside(list)
  table.move(beside.rows, 1, #beside.rows, #small + 1, small)
  recorded.fingerprint = packed_by(plan.packed_bytes, table.concat(rows.matrices), table.concat(rows.terms),
    table.concat(rows.fills), rope .. form, table.unpack(small))
  rows.needs = weight_needs
  local tables, fields = packing_text(rows, "pack_")
  local declared, defined = answer_texts(recorded, answer)
  local header, facts, of_cache = M.outside(cfg, plan, budget.stack(plan), declared)
  local test_inputs, test_bits = test_values(test_rows)
  local phases, phase_count, coarse_count = phases_text(recorded)
  local source = file(cfg, "kernel.c.in", ".c", {
    plan = describe.header(recorded), guard = isa.guard,
    packing_tables = tables .. beside.text, packing_fields = fields .. beside.field,
    headers = isa.headers, begin = asked.begin or "", prelude = prelude_of(plan),
    pack_rope = rope .. form, fingerprint = recorded.fingerprint, pack_tables = pack_tables,
    tables_fingerprint = M.tables_fingerprint(recorded),
    macros = recorded.tape.rolled and cprint.unroll or "",
    functions = cprint.constants(
      ("Statistics of a group of queries: rows of %d floats, one a query."):format(plan.widest),
      statistics.named(plan, recorded.functions)) .. recorded.functions,
    test = cprint.functions(testing), test_inputs = test_inputs, test_bits = test_bits,
    lanes = tostring(isa.lanes), finish = isa.finish or "",
    phases = phases, phase_count = phase_count, coarse_count = coarse_count,
    cpu = asked.cpu, needs = needs_table(plan, "args"),
    fill_function = of_cache.fill_function, fill_stub = of_cache.fill_stub, facts = facts, known_answer = defined,
  })
  return { header, source }, recorded
end

return M
