-- Tests of the ops, from their table: build/optest is the host with this file as its program.
--
--   build/optest DIR [NAME ISA [op=row ..]]
--
-- writes DIR/<isa>.c for every ISA. With NAME it writes DIR/<NAME>.c for one ISA whose rows are replaced as
-- given, and tests these rows alone: it tests the tests. Each file is tests/ops/optest.c.in with two functions for each
-- op, width and literal n: one runs the ISA's row, printed from a tape as in a kernel, and one has the op's meaning.
-- DIR/<isa>_activations.c is tests/ops/activations.c.in with the activation functions.

local activations = require "tape.activation"
local cprint = require "tape.cprint"
local exp = require "tape.exp"
local expr = require "base.expr"
local host = require "host"
local isas = require "isa.init"
local ops = require "isa.ops"
local derived = require "isa.derived"
local tape = require "tape.init"
local template = require "base.template"
local toy = require "tests.toys.toy"
local types = require "machine.types"

local operands = { { kind = "operands *", name = "o" } }
local literals = { 0.0, -0.0, 1.0, -126.0, 0.693147182, 3.40282347e38, 1e-40, math.huge, -math.huge }

-- The literals of an op at a width, or { false } where it has none.
local function choices(isa, op, w)
  local list = {}
  if op.sig:find("s$") then return literals end
  if not op.sig:find("n$") then return { false } end
  if op.name == "ishl" then return { 1, 23, 31 } end
  local parts = { byte = 4, shorts = 2, bf16_half = 2, unsigned_bytes = 1, nibble = 8, byte_nibbles = 2,
                  unsigned_nibbles = 2, short_nibbles = 4, zip_bytes = 2, zip_shorts = 2 }
  if parts[op.name] then
    local list = {}
    for n = 1, parts[op.name] do list[n] = n - 1 end
    return list
  end
  if op.name == "zip_halves" or op.name == "f16_halves" then return { 0, w.lanes } end
  if op.name:find "_lane$" then
    for n = 0, (op.name:find "halves" and 2 or 1) * isa.lanes - 1 do list[#list + 1] = n end
  elseif op.by == "n" then
    local n = 1
    while n < w.lanes do list[#list + 1], n = n, n * 2 end
  else
    for n = 1, w.lanes - 1 do list[#list + 1] = n end
  end
  return list
end

-- Records the function that runs one op on the arrays of `operands`.
local function record(t, name, op, w, literal)
  local function vector(k, width)
    return t:op("load", width, "v" .. k, tape.pointer(("o->v[%d]"):format(k - 1)))
  end
  local operand = {
    f = function(k) return vector(k, k == op.full and t.isa.full or w) end,
    m = function(k) return t:op("lt", w, "m" .. k, t:op("zero", w, "zero" .. k), vector(k, w)) end,
    i = function(k) return t:op("load_words", w, "i" .. k, tape.pointer(("o->v[%d]"):format(k - 1))) end,
    a = function() return tape.pointer("o->at") end,
    y = function() return tape.pointer("o->bytes") end,
    b = function() return tape.pointer("(int8_t *)o->bytes") end,
    u = function() return tape.pointer("o->words") end,
    x = function() return expr.var("o->index") end,
    n = function() return literal end,
  }
  operand.e, operand.s, operand.h = operand.a, operand.n, operand.u
  t:define({ name = name, params = operands, keep = true }, function()
    local args = {}
    for k, letter in ipairs(op.args) do args[k] = operand[letter](k) end
    local r = t:op(op.name, w, "r", table.unpack(args))
    if op.result == "-" then return end
    local out = tape.pointer("o->out")
    local function constant(word, value) return t:op("set", w, word, value) end
    if op.result == "i" then
      if t.isa.rows.store_words then return t:op("store_words", w, nil, out, r) end
      r = t:op("as_f", w, "bits", r)
    end
    if op.result == "m" then
      r = t:op("sel", w, "chosen", r, constant("yes", 1.0), constant("no", 0.0))
    end
    if op.result ~= "c" then return t:op("store", w, nil, out, r) end
    t:op("store", w, nil, out, constant("yes", 1.0))
    t:unless({ r }, function() t:op("store", w, nil, out, constant("no", 0.0)) end)
  end)
end

local MEANING = [[
static void ${name}(operands *o) {
  for (int i = 0; i < ${lanes}; ++i) {
${lane_values}    o->covered[i] = (${domain});
    if (!o->covered[i]) continue;
    o->want[i] = ${ref};
    o->other[i] = ${alt};
  }
}
]]

local function meaning(isa, name, op, w, literal)
  local alt = op.alt or not isa.fused and op.unfused or op.ref
  local mentioned = (op.domain or "") .. " " .. op.ref .. " " .. alt
  local values = {}
  local function value(word, ctype, text)
    if mentioned:find("%f[%w]" .. word .. "%f[%W]") then
      values[#values + 1] = ("    const %s %s = %s;\n"):format(ctype, word, text)
    end
  end
  for k, letter in ipairs(op.args) do
    local lane = ("o->v[%d][i]"):format(k - 1)
    local word = ("abcd"):sub(k, k)
    if letter == "f" then value(word, "float", lane) end
    if letter == "m" then value(word, "int", lane .. " != 0.0f") end
    if letter == "i" then value(word, "int32_t", "bits_of(" .. lane .. ")") end
    if letter == "n" then value("n", "int", tostring(literal)) end
    if letter == "s" then value("s", "float", cprint.float(literal)) end
  end
  local is_word = op.result == "i" or op.sig == "- <- a i"
  local result = is_word and "float_of((int32_t)(%s))" or "(float)(%s)"
  return template.fill(MEANING, {
    name = name, lanes = tostring(op.halves and op.result == "-" and w.lanes // 2 or w.lanes),
    lane_values = table.concat(values),
    domain = op.domain or "1", ref = result:format(op.ref), alt = result:format(alt),
  }, "meaning")
end

-- ---- tiles ----

local STEP = 19 -- words from row to row, in tests

-- Records the function that runs one op of tiles: its first register is D, which comes from memory and goes there, as
-- A and B do.
local function record_tile(t, name, op)
  local w, registers = t.isa.full, { "C10", "A1", "B0" }
  local function op_of(name, ...) t:op(name, w, nil, ...) end
  t:define({ name = name, params = operands, keep = true }, function()
    op_of "tiles_on"
    for k, register in ipairs(registers) do
      if op.args[k] == "t" then op_of("tile_load", register, tape.pointer(("o->tiles[%d]"):format(k - 1)), STEP) end
    end
    if op.args[2] == "a" then
      op_of(op.name, registers[1], tape.pointer(op.tile == "stores" and "o->stored" or "o->tiles[1]"), STEP)
    else
      op_of(op.name, table.unpack(registers, 1, #op.args))
    end
    if op.tile == "writes" then op_of("tile_store", registers[1], tape.pointer "o->stored", STEP) end
    op_of "tiles_off"
  end)
end

local TILE_MEANING = [[
static void ${name}(operands *o) {
  for (int i = 0; i < 256; ++i) {
    float low = 0, high = 0;
    for (int k = 0; k < ${steps}; ++k) {
      const float next_low = ${low}, next_high = ${high};
      low = next_low, high = next_high;
    }
    (void)low, (void)high;
    o->wanted[i] = ${ref};
  }
}
]]

local function tile_meaning(name, op)
  local words = op.ref:find "iadd"
  local function text(meaning)
    if not words then return "(float)(" .. meaning .. ")" end
    return "float_of(" .. meaning:gsub("%f[%w]%l+%f[%W]", { low = "bits_of(low)", high = "bits_of(high)" }) .. ")"
  end
  local fold = op.fold or { low = "low", high = "high" }
  return template.fill(TILE_MEANING, { name = name, steps = op.fold and "16" or "0", low = text(fold.low),
                                       high = text(fold.high), ref = text(op.ref) }, "meaning of a tile")
end

-- The tests of an ISA's ops of tiles, as initializers; their functions are recorded and their meanings added.
local function tile_tests(t, meanings, replaced)
  local tests = {}
  for _, op in ipairs(ops) do
    if op.ref and op.tile and t.isa.rows[op.name] and (not replaced or replaced[op.name]) then
      record_tile(t, "run_" .. op.name, op)
      meanings[#meanings + 1] = tile_meaning("mean_" .. op.name, op)
      tests[#tests + 1] = ('    { "%s", %d, run_%s, mean_%s },'):format(op.name, op.ref:find "iadd" and 1 or 0, op.name,
        op.name)
    end
  end
  return table.concat(tests, "\n")
end

-- A function over an array, which is a kernel's: what apply(t, w, x) returns. Returns its name.
local function record_sweep(t, w, name, apply)
  name = ("sweep_%s_%d"):format(name, w.lanes)
  t:define({ name = name, keep = true, params = {
    { kind = "const float *", name = "in" }, { kind = "float *", name = "out" },
    { kind = "ptrdiff_t", name = "count" },
  } }, function()
    t:loop("i", expr.var("count"), function(i)
      local y = apply(t, w, t:op("load", w, "x", tape.pointer("in", i * w.lanes)))
      t:op("store", w, nil, tape.pointer("out", i * w.lanes), y)
    end)
  end)
  return name
end

local function exp2(t, _, x) return exp.exp2(t, "y", x) end

-- What the C of an ISA begins and ends with, and how a test asks for it.
local function surroundings(isa)
  local all = {}
  for i, type_name in ipairs(types.names) do all[i] = types.by_name[type_name] end
  local asked = isas.asked(isa, all)
  return { isa = isa.name, guard = isa.guard, headers = isa.headers, begin = asked.begin or "", cpu = asked.cpu,
           prelude = isa.prelude or "", finish = isa.finish or "" }
end

local function activation_program(isa)
  local t, rows = tape.new(isa), {}
  local function add(activation)
    local widths = {}
    for k, w in ipairs(isa.widths) do
      widths[k] = ("{%d, %s}"):format(w.lanes, record_sweep(t, w, activation.name, function(_, _, x)
        return activation.apply(t, w, x, "_y")
      end))
    end
    widths[#widths + 1] = "{0, NULL}"
    rows[#rows + 1] = ('    {"%s", %g, %d, %s, {%s}, -1, 0},'):format(activation.name, activation.bound(isa),
      activation.of_x and 1 or 0, activation.exact, table.concat(widths, ", "))
  end
  for _, activation in ipairs(activations) do
    if isa.fused or not activation.of_x then add(activation) end -- others are not used where fma rounds twice
  end
  local values = surroundings(isa)
  values.functions, values.rows = cprint.functions(t), table.concat(rows, "\n")
  return template.fill(host.embedded("tests/ops/activations.c.in"), values, "activations.c.in")
end

local function program(isa, replaced)
  local t, meanings, tests, sweeps = tape.new(isa), {}, {}, {}
  for _, op in ipairs(ops) do
    for _, w in ipairs(isa.widths) do
      local wanted = not op.hint and not op.tile and (not replaced or replaced[op.name])
      local has = wanted and (isa.rows[op.name] or derived[op.name])
      for _, literal in ipairs(has and (op.by ~= "n" or w == isa.full) and choices(isa, op, w) or {}) do
        local name = ("%s_%d_%d"):format(op.name, w.lanes, #tests)
        local title = ("%s of %d lanes"):format(op.name, w.lanes)
        if literal then title = ("%s, n = %s"):format(title, literal) end
        local letters = table.concat(op.args)
        local count = letters:find("[aybuh]") and (literal or w.lanes) or letters:find("e") and 1 or 0
        if op.halves then count = count // 2 end
        if op.fours then count = count * 4 end
        local bytes = (letters:find("[yb]") and 1 or letters:find("[uh]") and 2 or 4) * count
        record(t, "run_" .. name, op, w, literal)
        meanings[#meanings + 1] = meaning(isa, "mean_" .. name, op, w, literal)
        tests[#tests + 1] = ("    { \"%s\", \"%s...\", '%s', %d, %d, run_%s, mean_%s },"):format(
          title, letters, op.result, w.lanes, bytes, name, name)
      end
    end
  end
  local tile_meanings = {}
  local of_tiles = tile_tests(t, tile_meanings, replaced)
  for i, w in ipairs(isa.widths) do
    sweeps[i] = ("    { %d, %s },"):format(w.lanes, record_sweep(t, w, "exp2", exp2))
  end
  local values = surroundings(isa)
  values.functions, values.meanings = cprint.functions(t), table.concat(meanings, "\n")
  values.tests, values.sweeps = table.concat(tests, "\n"), table.concat(sweeps, "\n")
  values.tile_tests, values.tile_meanings = of_tiles, table.concat(tile_meanings, "\n")
  return template.fill(host.embedded("tests/ops/optest.c.in"), values, "optest.c.in")
end

return function(arguments)
  local dir, name, isa_name = table.unpack(arguments)
  if not dir then return 2, "usage: optest DIR [NAME ISA [op=row ..]]" end
  isas.add(toy)
  local files = {}
  if name then
    local isa, replaced = isas.list[isa_name], {}
    for i = 4, #arguments do
      local op, row = arguments[i]:match("^([%w_]+)=(.*)$")
      isa.rows[op], replaced[op] = row, true
    end
    files[1] = { name = name .. ".c", text = program(isa, replaced) }
  else
    for _, isa in ipairs(isas.list) do
      files[#files + 1] = { name = isa.name .. ".c", text = program(isa) }
      files[#files + 1] = { name = isa.name .. "_activations.c", text = activation_program(isa) }
    end
  end
  local ok, message = host.write_files(dir, files)
  return ok and 0 or 1, message
end
