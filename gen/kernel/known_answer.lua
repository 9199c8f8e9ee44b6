-- A kernel on inputs from a formula: what NAME_known_answer packs and runs, and where its arrays are.
--
--   M.of(plan)               the test of a plan: scale, arrays by name { first, count }, sections of the caller's
--                            memory, lengths by the names of arguments, runs, bytes
--   M.texts(cfg, test, sum)  the declaration and the function, for a checksum of all results
--   M.choosing(cfg, members, by_length, bytes)   the same of a bundle or a ladder
--
-- All matrices and inputs are parts of one array. A formula in templates/known_answer.c.in gives number i, exactly in
-- float32. Sums of their products are exact in double, whatever the compiler. Inputs of small types are parts of an
-- array of 16-bit words.

local graph = require "graph.init"
local matrices = require "graph.matrices"
local options = require "options.init"
local qk_of = require "graph.qk"
local template = require "base.template"

local M = {}

local ALIGN = 64
local DISTANCE = 97 -- from the first number of an array to that of the next one

-- Bits of a 16-bit word that are kept, and bits that are set. The word then is in [0.5, 1), of either sign.
local halves = { bf16 = { keep = 0x807F, set = 0x3F00 }, f16 = { keep = 0x83FF, set = 0x3800 } }

-- A power of two with which scores are a few units.
local function scale_of(cfg)
  local d = matrices.projects(cfg, "q") and cfg.d_model or 1
  return 2.0 ^ math.floor(math.log(18 / d, 2) / 4 + 0.5)
end

local function mask_count(cfg)
  local count, extent = 1, { b = cfg.batch, h = cfg.h, q = cfg.seq, k = cfg.seq_kv }
  for axis in cfg.mask_dims:gmatch "." do count = count * extent[axis] end
  return count
end

-- How many numbers an input has, or an array of angles; nil for other arguments.
local function input_count(cfg, name, is_input)
  if name == "mask" then return mask_count(cfg) end
  for _, angles in ipairs(qk_of.angles(cfg)) do
    if name == angles.name then return cfg.batch * angles.rows * cfg.rope_dims // 2 end
  end
  if not is_input then return nil end
  return cfg.batch * (name == "q" and cfg.seq or options.key_rows(cfg)) * graph.row(cfg, name)
end

-- The lengths that a run is given, of which some are fewer than there are.
local lengths = {
  kv_len = function(cfg) return cfg.seq_kv - cfg.seq_kv // 4 end,
  kv_start = function(cfg) return cfg.seq_kv // 8 end,
  q_len = function(cfg) return cfg.seq - cfg.seq // 8 end,
  past = function() return 0 end,
}

-- The bytes of what runs write, by the names of arguments.
local function written(plan)
  local cfg = plan.cfg
  local list = { { name = "y", bytes = cfg.batch * cfg.seq * graph.row(cfg, "y") * plan.arrays.stored.bytes } }
  for _, name in ipairs(graph.sheets(cfg)) do
    list[#list + 1] = { name = name, bytes = 4 * cfg.batch * cfg.h * cfg.seq * cfg.seq_kv }
  end
  return list
end

function M.of(plan)
  local cfg, arrays, count = plan.cfg, {}, 0
  local small = halves[cfg.io_dtype]
  local test = { scale = scale_of(cfg), arrays = arrays, matrices = {}, inputs = {}, lengths = {}, sections = {},
                 small = small, numbers = 0, words = 0, written = written(plan), fills = plan.filling[1] ~= nil,
                 tables = plan.tables_bytes > 0,
                 runs = cfg.cache == "append" and math.min(2, cfg.seq_kv // cfg.seq) or 1, bytes = 0 }
  local rows = cfg.batch * cfg.seq
  local function add(list, name, size, of)
    local first = DISTANCE * count
    count, arrays[name] = count + 1, { first = first, count = size, of = of }
    list[#list + 1] = name
    test[of] = math.max(test[of], first + size)
  end
  for name, size in pairs(matrices.sizes(cfg)) do
    if size[1] * size[2] > 0 then add(test.matrices, name, size[1] * size[2], "numbers") end
  end
  local needs = options.needs(plan, "args")
  for _, need in ipairs(test.fills and options.needs(plan, "fill") or {}) do needs[#needs + 1] = need end
  for _, need in ipairs(needs) do
    local name, size = need.pointer, input_count(cfg, need.pointer, need.input)
    if lengths[name] and not test.lengths[name] then
      test.lengths[#test.lengths + 1], test.lengths[name] = name, lengths[name](cfg)
    elseif name == "row_keys" then
      test.ranges = { rows = rows, seq_kv = cfg.seq_kv }
    elseif size and not arrays[name] then
      add(test.inputs, name, size, small and need.input and "words" or "numbers")
    end
  end
  local function section(name, bytes)
    test.sections[#test.sections + 1] = { name = name, at = test.bytes, bytes = bytes }
    test.bytes = test.bytes + (bytes + ALIGN - 1) // ALIGN * ALIGN
  end
  section("packed", plan.packed_bytes)
  section("tables", plan.tables_bytes)
  section("workspace", plan.workspace_bytes)
  section("cache", cfg.batch * plan.cache_bytes)
  section("numbers", 4 * test.numbers)
  section("words", 2 * test.words)
  section("lengths", 4 * cfg.batch * #test.lengths)
  section("row_keys", test.ranges and 8 * rows or 0)
  test.first_written = test.bytes
  for _, result in ipairs(test.written) do section(result.name, result.bytes) end
  return test
end

-- ---- C ----

local function number(x) return ("%d"):format(x) end

local function list(rows) return table.concat(rows, "\n") end

-- The initializers of mhagen_weights and of mhagen_args.
local function fields(cfg, test)
  local weights, args = {}, {}
  for i, name in ipairs(test.matrices) do
    weights[i] = ("    .%s = numbers + %d,"):format(name, test.arrays[name].first)
  end
  for _, name in ipairs(test.inputs) do
    local array = test.arrays[name]
    args[#args + 1] = ("    .%s = (const void *)(%s + %d),"):format(name, array.of, array.first)
  end
  for i, name in ipairs(test.lengths) do
    args[#args + 1] = ("    .%s = lengths + %d,"):format(name, (i - 1) * cfg.batch)
  end
  for _, section in ipairs(test.sections) do
    local is_argument = section.bytes > 0 and not ("numbers words lengths"):find(section.name, 1, true)
    if is_argument then args[#args + 1] = ("    .%s = (void *)(at + %d),"):format(section.name, section.at) end
  end
  return list(weights), list(args)
end

local function declaration(cfg, bytes)
  return template.file("known_answer.h.in", { name = cfg.name, NAME = cfg.name:upper(), bytes = number(bytes) })
end

-- What fills the arrays that there are.
local function arrays_text(cfg, test, at)
  local text, values = {}, {}
  if test.numbers > 0 then
    text[1] = template.file("known_numbers.c.in", { at = number(at.numbers), count = number(test.numbers),
                                                    scale = ("%a"):format(test.scale / 32768) })
  end
  if test.words > 0 then
    text[#text + 1] = template.file("known_words.c.in", {
      at = number(at.words), count = number(test.words), keep = ("0x%X"):format(test.small.keep),
      set = ("0x%X"):format(test.small.set) })
  end
  for i, name in ipairs(test.lengths) do values[i] = number(test.lengths[name]) end
  if #values > 0 then
    text[#text + 1] = template.file("known_lengths.c.in", {
      at = number(at.lengths), count = number(#values * cfg.batch), batch = number(cfg.batch),
      values = table.concat(values, ", ") })
  end
  if test.ranges then
    text[#text + 1] = template.file("known_ranges.c.in", {
      at = number(at.row_keys), rows = number(test.ranges.rows), seq_kv = number(test.ranges.seq_kv) })
  end
  return table.concat(text)
end

-- What each run has more rows before it.
local function past_text(cfg, test)
  for i, name in ipairs(test.lengths) do
    if name == "past" then
      return template.file("known_past.c.in", { seq = number(cfg.seq), batch = number(cfg.batch),
                                                first = number((i - 1) * cfg.batch) })
    end
  end
  return ""
end

function M.texts(cfg, test, sum)
  local weights, args = fields(cfg, test)
  local at = {}
  for _, section in ipairs(test.sections) do at[section.name] = section.at end
  return declaration(cfg, test.bytes), template.file("known_answer.c.in", {
    name = cfg.name, weights = weights, args = args, past = past_text(cfg, test), arrays = arrays_text(cfg, test, at),
    tables = test.tables and template.file("known_tables.c.in", { name = cfg.name,
                                                                               at = number(at.tables) }) or "",
    fill = test.fills and template.file("known_fill.c.in", { name = cfg.name }) or "", runs = number(test.runs),
    results_at = number(test.first_written), bytes = number(test.bytes), sum = ("0x%016X"):format(sum),
  })
end

function M.choosing(cfg, members, by_length, bytes)
  local rows = {}
  for i, member in ipairs(members) do
    rows[i] = template.file(by_length and "known_length.c.in" or "known_cpu.c.in", { member = member.name })
  end
  return declaration(cfg, bytes), template.file("known_answer_of.c.in", {
    name = cfg.name, members = table.concat(rows), start = by_length and "MHAGEN_OK" or "MHAGEN_ERR_CPU" })
end

return M
