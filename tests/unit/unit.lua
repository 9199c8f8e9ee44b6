-- Unit tests of the generator's pure modules: build/unit is the host with this file as its program. `build/unit 2` runs
-- whole kernels on a fifth of the ISAs each, which the number chooses.

local host = require "host"
local bundle = require "kernel.bundle"
local config = require "options.config"
local errors = require "command.errors"
local expr = require "base.expr"
local kinds = require "options.kinds"
local name = require "options.name"
local options = require "options.init"
local tape = require "tape.init"
local template = require "base.template"
local weights = require "command.weights"
local wording = require "base.wording"

tape.verify = true

local failures = {}

local function check(condition, what)
  if not condition then failures[#failures + 1] = what end
end

local function same(got, want, what)
  check(got == want, ("%s: got %s, want %s"):format(what, tostring(got), tostring(want)))
end

local function split(text)
  local words = {}
  for word in text:gmatch("%S+") do words[#words + 1] = word end
  return words
end

local function load(text) return config.load(nil, split(text)) end

local SIZES = "h=2 d_model=32 dk=16 seq=16"
local BASE = SIZES .. " isa=avx2"

-- The canonical command makes the same config, and lists no default.
local function canonical()
  for given, want in pairs {
    [BASE] = BASE,
    ["isa=avx2 seq=16 dk=16 d_model=32 h=2"] = BASE,
    [BASE .. " dv=16 seq_kv=16 batch=1 causal=false unroll=auto attention=self"] = BASE,
    [BASE .. " code_limit=60000"] = BASE,
    [BASE .. " name=mha_f32_h2_d32_k16_s16_avx2"] = BASE,
    [BASE .. " name=other"] = BASE .. " name=other",
    [BASE .. " q_rows=4 probs=true dv=3"] =
      "h=2 d_model=32 dk=16 dv=3 seq=16 isa=avx2 probs=true q_rows=4",
    [BASE .. " attention=cross seq_kv=5"] =
      "h=2 d_model=32 dk=16 seq=16 seq_kv=5 isa=avx2 attention=cross",
    [BASE .. " project=none attention=cross k_width=32"] = "h=2 dk=16 seq=16 isa=avx2 project=none",
    [SIZES .. " isa=avx2 project=qkv layout=bhsd"] = BASE .. " project=qkv layout=bhsd",
    [SIZES .. " isa=avx2 project=qkv layout=bshd"] = BASE .. " project=qkv",
    ["h=2 h_kv=1 dk=16 seq=16 isa=avx2 project=o y_width=7"] =
      "h=2 h_kv=1 dk=16 seq=16 y_width=7 isa=avx2 project=o",
  } do
    local cfg = load(given)
    same(config.canonical(cfg), want, "canonical " .. given)
    local again = load(want)
    for key, value in pairs(cfg) do same(again[key], value, "reloaded " .. key) end
  end
end

-- What is always the same folds; what is not stays as it is.
local function expressions()
  local i, n = expr.var("i", { 0, 7 }), expr.var "n"
  for _, case in ipairs {
    { expr.mod(i, 8), "i" }, { expr.mod(i, 7), "(i % 7)" }, { expr.div(i, 8), "0" }, { expr.div(i, 7), "(i / 7)" },
    { expr.div(i + 8, 8), "1" }, { expr.mod(i + 8, 8), "i" }, { expr.mod(n, 8), "(n % 8)" },
    { expr.min(7, i), "i" }, { expr.min(6, i), "(6 < i ? 6 : i)" }, { expr.max(i, 0), "i" },
    { expr.max(i, 1), "(i > 1 ? i : 1)" }, { expr.min(4, 8 - expr.mod(i, 2) * 4), "4" },
    { expr.min(n, n + 1), "n" }, { 8 - n, "8 - n" }, { expr.max(n, n + 1), "n + 1" },
    { expr.min(n, 1), "(n < 1 ? n : 1)" },
    { expr.min(expr.div(n, 2), expr.min(n, 1)),
      "(n / 2 < (n < 1 ? n : 1) ? n / 2 : (n < 1 ? n : 1))" },
  } do same(expr.text(case[1]), case[2], "expression") end
  same(expr.less(i, 8), true, "less")
  same(expr.less(i, 0), false, "less")
  same(expr.less(i, 7), nil, "less")
  same(expr.less(n, n + 1), true, "less")
  same(expr.alone(expr.mod(i, 7)), "i % 7", "alone")
  same(expr.alone(expr.mod(i, 7) + 1), "(i % 7) + 1", "alone")
end

-- What is not projected is as wide as its heads, and makes three inputs.
local function unprojected()
  local cfg = load "h=6 h_kv=2 dk=5 dv=7 seq=3 isa=avx2 project=none"
  for key, want in pairs { d_model = 30, k_width = 10, v_width = 14, y_width = 42, attention = "cross" } do
    same(cfg[key], want, key .. " of project=none")
  end
  same(cfg.name, "mha_f32_h6_g2_k5_v7_s3_cross_pnone_avx2", "name of project=none")
  local some = load "h=6 d_model=9 dk=5 dv=7 seq=3 isa=avx2 project=ko"
  for key, want in pairs { d_model = 9, k_width = 9, v_width = 42, y_width = 9, attention = "cross" } do
    same(some[key], want, key .. " of project=ko")
  end
  same(load("h=6 dk=5 seq=3 isa=avx2 project=none layout=bhsd").name, "mha_f32_h6_k5_s3_cross_pnone_bhsd_avx2",
       "name of layout=bhsd")
  same(load("h=2 d_model=9 dk=5 seq=3 isa=avx2 project=qkv").attention, "self", "attention of project=qkv")
  for text, want in pairs { none = "none|", qkv_avx2 = "qkv|_avx2", obs_avx2 = "nil|", kq_avx2 = "nil|" } do
    local value, rest = kinds.letters.parse({ letters = "qkvo" }, text)
    same(("%s|%s"):format(value, value and rest or ""), want, "letters in " .. text)
  end
end

local function frozen()
  local cfg = load(BASE)
  same(cfg.dv, 16, "dv is dk")
  same(cfg.seq_kv, 16, "seq_kv is seq")
  same(cfg.q_rows, nil, "the plan decides")
  check(not pcall(function() cfg.h = 3 end), "a config can be changed")
  check(not pcall(function() cfg.new = 3 end), "a key can be added")
  check(not pcall(function() return cfg.d_mode end), "an unknown key can be read")
end

-- Values that the rows of the options may put into a name, as key=value; without those of required keys.
local function name_parts()
  local parts, some = {}, { letters = { "none", "qkv", "o" }, flag = { true } }
  for _, row in ipairs(options.list) do
    if row.name and not row.required then
      local usual = row.step or row.divides and 1 or row.even and 6 or 7
      local number = row.kind == "number" and { row.min + 1.5e-3 }
      for _, value in ipairs(row.choices or number or some[row.kind] or { usual }) do
        if value ~= row.default then parts[#parts + 1] = { row.key, ("%s=%s"):format(row.key, value) } end
      end
    end
  end
  return parts
end

-- full and parse are inverse on every two of the optional parts, and on a fourth of all threes. No two configs have one
-- name, which is the full one up to 40 characters.
local function names()
  local parts, seen, count = name_parts(), {}, 0
  local function try(text)
    local ok, cfg = pcall(load, text)
    if not ok then
      local refused = cfg.rule:match("^must .* with ") or cfg.rule:match("^has no effect without ")
      return check(refused, text .. ": " .. tostring(cfg.rule))
    end
    local full = name.full(cfg)
    local parsed = name.parse(full)
    local canonical_text = config.canonical(cfg) -- of words that others imply there are two texts
    check((seen[cfg.name] or canonical_text) == canonical_text, "two configs are named " .. cfg.name)
    seen[cfg.name], count = canonical_text, count + 1
    check(parsed, "no parse of " .. full)
    for key, value in pairs(parsed or {}) do same(value, cfg[key], full .. " " .. key) end
    same(name.full(parsed or cfg), full, "rebuilt")
    check(#cfg.name <= 40 and (#full > 40 or cfg.name == full) and options.accept(options.list.name, cfg.name),
      "name " .. cfg.name)
  end
  local function add(text, used, from, left, step)
    try(text)
    for i = from, left > 0 and #parts or 0, left == 1 and step or 1 do
      local key, word = table.unpack(parts[i])
      if not used[key] then
        used[key] = true
        add(text .. " " .. word, used, i + 1, left - 1, step)
        used[key] = nil
      end
    end
  end
  add(SIZES .. " isa=scalar", {}, 1, 3, 4)
  for _, isa in ipairs { "avx2", "avx512", "neon" } do add(SIZES .. " isa=" .. isa, {}, 1, 2, 1) end
  check(count > 400, "few names")
  same(load(BASE .. " dv=3 probs=true unroll=full").name,
       "mha_f32_h2_d32_k16_v3_s16_ujeuj2_avx2", "a name")
  local longest = load("h=1024 h_kv=512 d_model=16384 dk=1024 dv=1023 seq=65536 seq_kv=65535 batch=65536 " ..
                       "k_width=16383 v_width=16383 y_width=16383 " ..
                       "causal=true attention=cross kv_len=true probs=true unroll=tile isa=avx512")
  check(#longest.name <= 128, "the longest name is too long")
  for _, text in ipairs {
    "", "mha_f32", "mha_f32_h2", "mha_f32_h2_d32_k16_s16", "mha_f32_h02_d32_k16_s16_avx2",
    "mha_f32_d32_h2_k16_s16_avx2", "mha_f32_h2_d32_k16_v16_s16_avx2", "x_h2_d32_k16_s16_avx2",
    "mha_f32_h2_d32_k16_s16_t16_cross_avx2", "mha_f32_h2_d32_k16_s16_t8_avx2",
    "mha_f32_h2_d32_k16_s16_b1_avx2", "mha_f32_h2_d32_k16_s16_avx2_",
    "mha_f32_h-2_d32_k16_s16_avx2", "mha_f32_h2_d32_k16_avx2_s16",
    "mha_f32_h2_d32_k16_s16_uauto_avx2", "mha_f32_h99999999999999999999_d32_k16_s16_avx2",
  } do
    same(name.parse(text), nil, "parse " .. text)
  end
end

-- A row that lacks something, or has too much, is refused by name.
local function rows()
  for message, row in pairs {
    ["option x: no kind nil"] = { key = "x", doc = "" },
    ["option x: missing max"] = { key = "x", kind = "integer", doc = "", min = 1 },
    ["option x: unknown field word_"] = { key = "x", kind = "flag", doc = "", default = false, word_ = "x" },
    ["option x: missing doc"] = { key = "x", kind = "flag", default = false },
    ["option h is there already"] = { key = "h", kind = "flag", doc = "", default = false },
  } do
    local ok, told = pcall(options.add, row)
    check(not ok and told:find(message, 1, true), message .. ": got " .. tostring(told))
  end
end

-- In a name the longest choice counts, as long as it ends where the name or a word ends.
local function choices_in_names()
  local row = { choices = { "avx512", "avx512_bf16" } }
  for text, want in pairs { avx512 = "avx512|", avx512_bf16 = "avx512_bf16|", avx512_x = "avx512|_x" } do
    local value, rest = kinds.choice.parse(row, text)
    same(("%s|%s"):format(value, rest), want, "choice in " .. text)
  end
  same(kinds.choice.parse(row, "avx5123"), nil, "choice in avx5123")
end

-- A number is the same again from a command, from a name and from its digits.
local function numbers()
  local row = options.list.scale
  for text, want in pairs { ["0.125"] = "0p125", ["1e-3"] = "0p001", ["1E5"] = "100000", ["3e-7"] = "3em07",
                            ["0x1p-3"] = "0p125", [".3"] = "0p3", ["1.25e-8"] = "1p25em08" } do
    same(name.full(load(BASE .. " scale=" .. text)), "mha_f32_h2_d32_k16_s16_sc" .. want .. "_avx2", "name of " .. text)
  end
  for _, scale in ipairs { 1e-9, 1e9, 1 / 3, 0.1 + 0.2, 1 / math.sqrt(80), 1e9 - 2.0 ^ -23, 2.0 ^ -29 } do
    local cfg = config.load({ { key = "scale", key_type = "string", value = scale } }, split(BASE))
    same(load(config.canonical(cfg)).scale, scale, "scale in a command")
    same(name.parse(name.full(cfg)).scale, scale, "scale in " .. name.full(cfg))
  end
  for scale, want in pairs { [0.25] = 0, [0x1.000002p-2] = 0, [0.25 * (1 + 2.0 ^ -21)] = 1 } do -- of 1/sqrt(16)
    same(load(BASE .. (" scale=%.17g"):format(scale)).scale and 1 or 0, want, "scale that is the default's")
  end
  same(load(BASE .. " scale=2").scale, 2.0, "an integer")
  same(math.type(load(BASE .. " scale=2").scale), "float", "the type of an integer")
  for _, text in ipairs { "0", "-1", "-0.0", "nan", "inf", "1e999", "1e-320", "1e10", "", "1 ", "1,5", "0p5" } do
    local ok, e = pcall(config.load, nil, { "scale=" .. text, table.unpack(split(BASE)) })
    check(not ok and e.key == "scale" and e.rule == "must be a number from 1e-09 to 1000000000", "scale=" .. text)
  end
  for _, value in ipairs { 0 / 0, math.huge, 0, "0.5", true } do
    check(options.accept(row, value) == nil, "scale may be " .. tostring(value))
  end
  for _, text in ipairs { "p5", "1p", "1p2p3", "em3", "" } do
    same(name.parse("mha_f32_h2_d32_k16_s16_sc" .. text .. "_avx2"), nil, "scale in a name: " .. text)
  end
end

local function templates()
  same(template.fill("a ${x}${y} $ {x} ${x}", { x = "1%1", y = "${x}" }, "t"),
       "a 1%1${x} $ {x} 1%1", "filled")
  check(not pcall(template.fill, "${x} ${z}", { x = "1" }, "t"), "an unknown name passes")
  check(not pcall(template.fill, "${x}", { x = "1", y = "2" }, "t"), "an unused name passes")
  same(template.fill("${a[0]} ${#a}", {}, "t"), "${a[0]} ${#a}", "what is the shell's")
  check(not pcall(template.fill, "${x", { x = "1" }, "t"), "an open brace passes")
  check(not pcall(template.file, "no_such_template", {}), "a missing template passes")
end

-- Texts of generated code count one thing in the singular.
local function singular()
  same(wording.singular "1 rows of 1 K steps, 11 rows, 21 queries and 1 queries, p1 words",
    "1 row of 1 K step, 11 rows, 21 queries and 1 query, p1 words", "singular")
end

-- What gen/prelude.lua promises about order, and about what is out of reach.
local function sandbox()
  local keys = {}
  for key in pairs { b = 1, a = 1, [10] = 1, [2] = 1, [0.5] = 1 } do keys[#keys + 1] = key end
  same(table.concat(keys, " "), "0.5 2 10 a b", "sorted pairs")
  same(next({}), nil, "next of an empty table")
  same(next({ z = 1, y = 2 }), "y", "next")
  check(not pcall(function() for _ in pairs { [{}] = 1 } do keys = nil end end),
        "pairs over keys without an order")
  local items = {}
  for i = 1, 500 do items[i] = { key = i % 7, at = i } end
  table.sort(items, function(a, b) return a.key < b.key end)
  for i = 2, #items do
    check(items[i - 1].key < items[i].key or items[i - 1].at < items[i].at, "sort is not stable")
  end
  for _, global in ipairs { "io", "os", "load", "loadstring", "dofile", "loadfile", "debug",
                            "package", "collectgarbage", "coroutine", "print" } do
    check(not pcall(function() return _ENV[global] end), global .. " is within reach")
  end
  same(math.random, nil, "math.random")
  check(not pcall(function() an_accidental_global = 1 end), "a global can be made")
  check(not pcall(require, "no.such.module"), "a missing module")
  same(require("dkjson").encode({ 1, { a = "b" } }), '[1,{"a":"b"}]', "JSON")
end

-- How often a function of a module is called with a first argument in which the text is, while work() runs.
local function calls(module, name, text, work)
  local whole, count = module[name], 0
  module[name] = function(first, ...)
    if first:find(text, 1, true) then count = count + 1 end
    return whole(first, ...)
  end
  work()
  module[name] = whole
  return count
end

-- What takes long is done once.
local function once()
  local dir = host.temp_dir()
  local header = '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"b":{"dtype":"F32","shape":[1],' ..
    '"data_offsets":[4,8]}}'
  host.write_files(dir, { { name = "x.safetensors", text = string.pack("<s8", header) .. ("\0"):rep(8) } })
  local found
  local opened = calls(host, "open_file", dir, function()
    local at = dir .. "/x.safetensors:"
    found = weights.find_tensors { wq = at .. "a", wk = at .. "b", wv = at .. "a" }
  end)
  host.remove_dir(dir)
  same(opened, 1, "files opened for three matrices of one")
  same(table.concat({ found.wq.name, found.wk.name, found.wv.name }, " "), "a b a", "tensors found")
  for isa, kernels in pairs { avx2 = 1, ["avx2+avx512"] = 3 } do
    local cfg = load(SIZES .. " seq_kv=32 cache=append isa=" .. isa)
    local filled = template.file
    function template.file() return "" end -- there are none in this program
    same(calls(template, "file", "cache_size", function() bundle(cfg) end), kernels, "texts of caches, " .. isa)
    template.file = filled
  end
end

-- Whether a config runs on an ISA, both by their places in their lists; fifth: nil for all.
local function takes(fifth)
  return function(config_at, isa_at) return not fifth or (config_at + isa_at + fifth) % 5 == 0 end
end

local function run(fifth)
  for _, test in ipairs { canonical, expressions, unprojected, frozen, names, rows, choices_in_names, numbers, singular,
                          templates, sandbox, once } do
    test()
  end
  require "tests.unit.unit_pack"(check)
  require "tests.unit.unit_plan"(check)
  require "tests.unit.unit_floor"(check)
  require "tests.unit.unit_layout"(check, same)
  require "tests.unit.unit_frozen"(check)
  require "tests.unit.unit_families"(check)
  require "tests.unit.unit_tape"(check, same, takes(fifth))
  require "tests.unit.unit_roll"(check, same, takes(fifth))
end

return function(arguments)
  local ok, e = xpcall(run, errors.on_error, math.tointeger(tonumber(arguments[1])))
  if not ok then failures[#failures + 1] = e.internal or errors.one_line(e) end
  if #failures > 0 then return 1, "unit tests:\n  " .. table.concat(failures, "\n  ") end
  return 0
end
