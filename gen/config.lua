-- A config: what the keys are, and how the values of a CONFIG.lua and of key=value arguments become
-- one checked, frozen table. The schema states each fact about a key once; parsing, defaults,
-- ranges, suggestions, the help text and the canonical command all come from it.

local cpu = require "cpu"
local isas = require "isa.init"
local name = require "name"

local M = {}

-- What any ISA allows; what the one of a config allows, the plan knows.
local isa_names, most_rows, most_vectors = {}, 0, 0
for i, isa in ipairs(isas.list) do
  isa_names[i] = isa.name
  for _, product in pairs(isa.products) do
    for _, rows in pairs(product.rows) do
      most_rows, most_vectors = math.max(most_rows, rows[1]), math.max(most_vectors, #rows)
    end
  end
end

-- key, doc; min and max of an integer, choices of a word, or a default of true or false;
-- required, or a default, or same_as (the key whose value it takes), or none: then a missing key
-- stays nil. also: what others call it, for suggestions. example: a value of a required key. schedule:
-- it changes the speed and the last bits alone.
M.schema = {
  { key = "h", min = 1, max = 1024, required = true, example = 12,
    also = { "heads", "num_heads", "n_heads", "num_attention_heads", "n_head", "nhead" },
    doc = "number of heads" },
  { key = "d_model", min = 1, max = 16384, required = true, example = 384,
    also = { "embed_dim", "dim", "width", "hidden_size", "hidden_dim", "n_embd" },
    doc = "width of the rows of Q, K, V and Y" },
  { key = "dk", min = 1, max = 1024, required = true, example = 32,
    also = { "head_dim", "kdim", "d_k", "d_head", "head_size" },
    doc = "width of one head's queries and keys" },
  { key = "dv", min = 1, max = 1024, same_as = "dk", also = { "vdim", "d_v", "v_head_dim" },
    doc = "width of one head's values" },
  { key = "seq", min = 1, max = 65536, required = true, example = 128,
    also = { "seq_len", "seq_q", "length", "max_position_embeddings", "n_positions", "n_ctx" },
    doc = "rows of Q and of Y" },
  { key = "seq_kv", min = 1, max = 65536, same_as = "seq", also = { "seq_k", "kv_seq" },
    doc = "rows of K and V" },
  { key = "isa", choices = isa_names, required = true, example = "avx2",
    also = { "arch", "target", "simd" },
    doc = "instruction set" },
  { key = "name", computed = "from the other keys", also = { "prefix" },
    doc = "C identifier, prefix of everything exported" },
  { key = "attention", choices = { "self", "cross" }, default = "self",
    doc = "one input, or three" },
  { key = "causal", default = false, also = { "is_causal" },
    doc = "row r sees keys 0..r" },
  { key = "kv_len", default = false, also = { "key_padding_mask", "lengths" },
    doc = "the number of valid keys is given at run time, per batch entry" },
  { key = "batch", min = 1, max = 65536, default = 1, also = { "batch_size" },
    doc = "sequences per call" },
  { key = "probs", default = false, also = { "weights", "need_weights" },
    doc = "also write the attention weights of every head" },
  { key = "strassen", default = false, also = { "winograd" },
    doc = "an eighth fewer multiplications in the projections; error up to 2e-6; not with causal or kv_len" },
  { key = "cpu", choices = cpu.names, default = "generic", schedule = true, also = { "mcpu", "march", "machine" },
    doc = "core whose caches and rates the plan goes by" },
  { key = "fold", choices = { "auto", "off" }, default = "auto", schedule = true,
    doc = "products of weights made when packing, where that takes fewer flops" },
  { key = "unroll", choices = { "auto", "tile", "k", "full" }, default = "auto", schedule = true,
    doc = "how much is straight-line code" },

  { key = "tuned", file = true,
    doc = "tuning file of `tune`: the schedule of this shape, for keys that are not given" },

  -- The schedule; what is not given is the plan's choice.
  { key = "query_vectors", min = 1, max = most_vectors, doc = "vectors of queries in one group" },
  { key = "key_rows", min = 1, max = most_rows, doc = "keys in a score tile" },
  { key = "context_rows", min = 1, max = most_rows, doc = "value columns in a context tile" },
  { key = "q_lanes", choices = { "queries", "columns" },
    doc = "the lanes of a vector in the query projection: several queries, or several columns" },
  { key = "q_rows", min = 1, max = most_rows, doc = "rows of a register tile of the query projection" },
  { key = "kv_rows", min = 1, max = most_rows, doc = "rows of a register tile of the key and value projections" },
  { key = "kv_vectors", min = 1, max = most_vectors, doc = "width of that tile, in vectors" },
  { key = "out_rows", min = 1, max = most_rows, doc = "rows of a register tile of the output projection" },
  { key = "out_vectors", min = 1, max = most_vectors, doc = "width of that tile, in vectors" },
  { key = "out_block", min = 1, max = 65536, doc = "queries per block of the output projection" },
  { key = "key_block", min = 1, max = 4096, doc = "keys per softmax block" },
  { key = "k_block", min = 16, max = 4096, doc = "longest accumulation chain" },
  { key = "k_unroll", min = 1, max = 64, doc = "K steps per loop iteration, but in tiles of few sums" },
  { key = "head_block", min = 1, max = 64, doc = "heads projected together; divides h" },
  { key = "code_limit", min = 1000, max = 10000000, default = 60000, schedule = false,
    doc = "statements of the kernel's functions" },
}
local FIRST_SCHEDULE_KEY = "query_vectors"

-- Words of other tools for what is no key here, and what is to be said of them.
local elsewhere = {
  { "is not supported yet: each head has keys and values of its own",
    "kv_heads", "num_kv_heads", "n_kv_heads", "num_key_value_heads", "n_head_kv", "num_query_groups",
    "gqa", "mqa" },
  { "is not supported yet: there are no positions in a kernel",
    "rope", "rope_theta", "rope_scaling", "rotary", "rotary_dim", "rotary_emb", "alibi", "position_bias",
    "relative_attention", "rel_pos" },
  { "is not supported yet: there are causal=true, and kv_len=true for lengths at run time",
    "mask", "attn_mask", "attention_mask", "additive_mask", "attn_bias", "window", "window_size", "sliding_window",
    "attention_window" },
  { "is not supported yet: scores are divided by sqrt(dk)",
    "scale", "scaling", "softmax_scale", "attn_scale", "qk_scale", "softcap", "logit_softcap", "qk_norm" },
  { "is not supported yet: each run projects all keys and values",
    "cache", "kv_cache", "use_cache", "past_key_values" },
  { "is not supported yet: all numbers are float32",
    "dtype", "torch_dtype", "precision", "fp16", "bf16", "int8", "quantization" },
  { "is not supported: a kernel does not train", "dropout", "attn_dropout", "attention_dropout" },
  { "is no key: a bias is a pointer in mhagen_weights, which may be null",
    "bias", "qkv_bias", "use_bias", "attention_bias", "add_bias_kv" },
  { "is no key: any kernel runs on a pool of threads", "threads", "num_threads", "n_threads" },
  { "is no key: a kernel is one attention block",
    "layers", "num_layers", "n_layer", "num_hidden_layers", "intermediate_size", "vocab_size" },
}

local rows, scheduling = {}, false
for _, row in ipairs(M.schema) do
  rows[row.key] = row
  scheduling = scheduling or row.key == FIRST_SCHEDULE_KEY
  if row.schedule == nil then row.schedule = scheduling end
end

-- ---- suggestions ----

-- Edit distance, where two neighbours in the wrong order are one mistake.
local function distance(a, b)
  local d = {}
  for i = 0, #a do d[i] = { [0] = i } end
  for j = 0, #b do d[0][j] = j end
  for i = 1, #a do
    for j = 1, #b do
      local change = a:byte(i) == b:byte(j) and 0 or 1
      d[i][j] = math.min(d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + change)
      if i > 1 and j > 1 and a:byte(i) == b:byte(j - 1) and a:byte(i - 1) == b:byte(j) then
        d[i][j] = math.min(d[i][j], d[i - 2][j - 2] + 1)
      end
    end
  end
  return d[#a][#b]
end

-- The closest of `words` (to each a list of other names may belong), and whether that is the text; or nil.
local function closest(text, words, others)
  local best, least = nil, 3
  local function try(candidate, word)
    local far = distance(text:lower(), candidate)
    if far < least and far < #candidate then best, least = word, far end
  end
  if #text > 32 then return nil end
  for _, word in ipairs(words) do
    try(word, word)
    for _, other in ipairs(others and others[word] or {}) do try(other, word) end
  end
  return best, least == 0
end

local keys, other_names, told_of = {}, {}, {}
for i, row in ipairs(M.schema) do keys[i], other_names[row.key] = row.key, row.also end
for _, row in ipairs(elsewhere) do
  for i = 2, #row do told_of[row[i]] = row[1] end
end

-- What is wrong with a key that is none of `words`, and which of them is meant.
local function unknown(key, value, words)
  local all = table.move(words, 1, #words, 1, {})
  for word in pairs(told_of) do all[#all + 1] = word end
  local meant, same = closest(key, all, other_names)
  local rule = "unknown key" .. (meant and (", did you mean %s?"):format(meant) or "")
  if told_of[meant] then rule = same and told_of[meant] or rule .. " It " .. told_of[meant] end
  error({ key = key, value = value, rule = rule, meant = meant }, 0)
end

-- ---- one value ----

local function refuse(key, value, rule) error({ key = key, value = value, rule = rule }, 0) end

local reserved = {} -- the keywords of C11, C17, C23 and C++17
for word in ([[
  alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t
  class compl const const_cast constexpr continue decltype default delete do double dynamic_cast
  else enum explicit export extern false float for friend goto if inline int long mutable
  namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
  reinterpret_cast restrict return short signed sizeof static static_assert static_cast struct
  switch template this thread_local throw true try typedef typeid typename typeof typeof_unqual
  union unsigned using virtual void volatile wchar_t while xor xor_eq]]):gmatch("%S+") do
  reserved[word] = true
end

-- <name>.h must not stand in for a header that the generated C, or a product, includes.
local headers = {}
for word in ([[
  arm_neon assert complex ctype errno fenv float immintrin inttypes iso646 limits locale math pthread
  setjmp signal stdalign stdarg stdatomic stdbool stddef stdint stdio stdlib stdnoreturn string
  tgmath threads time uchar unistd wchar wctype]]):gmatch("%S+") do
  headers[word] = true
end

local function name_rule(value)
  if type(value) ~= "string" or not value:match("^%a[%w_]*$") then
    return "must be a C identifier that starts with a letter"
  elseif #value > 128 then
    return "must have at most 128 characters"
  elseif reserved[value] then
    return "must not be a keyword of C or C++"
  elseif headers[value:lower()] then
    return "must not be the name of a header of C or POSIX"
  elseif value:lower():match("^mhagen") then
    return "must not start with mhagen, the prefix of the runtime"
  end
end

M.FILE_RULE = "must be the path of a file, whose name has only letters, digits and . _ + -"

-- What a row asks of a value, in words.
local function rule_of(row)
  if row.min then return ("must be an integer from %d to %d"):format(row.min, row.max) end
  if row.choices then return "must be one of " .. table.concat(row.choices, ", ") end
  if row.default == false then return "must be true or false" end
  if row.file then return M.FILE_RULE end
  return "must be a C identifier"
end

-- The name of a file without its directory: all that a generated text may tell of it.
function M.base(path) return path:match("^([%w._+-]+)$") or path:match("/([%w._+-]+)$") end

-- The value of a row in its own type; an error if it breaks the rule.
local function checked(row, value)
  if row.min then
    local integer = math.type(value) and math.tointeger(value)
    if integer and integer >= row.min and integer <= row.max then return integer end
  elseif row.choices then
    for _, choice in ipairs(row.choices) do
      if value == choice then return value end
    end
    local meant = type(value) == "string" and closest(value, row.choices)
    refuse(row.key, value, rule_of(row) .. (meant and (", did you mean %s?"):format(meant) or ""))
  elseif row.default == false then
    if type(value) == "boolean" then return value end
  elseif row.file then
    if type(value) == "string" and value:match("^[^%c]*$") and M.base(value) then return value end
  else
    local rule = name_rule(value)
    if not rule then return value end
    refuse(row.key, value, rule)
  end
  refuse(row.key, value, rule_of(row))
end

-- The value that the text of a key=value argument stands for; a text that stands for none is
-- returned as it is, and then breaks the rule.
local function from_text(row, text)
  if row.min and text:match("^%-?%d+$") then return math.tointeger(tonumber(text)) or text end
  if row.default == false and text == "true" then return true end
  if row.default == false and text == "false" then return false end
  return text
end

-- ---- a whole config ----

local function row_of(key, value) return rows[key] or unknown(key, value, keys) end

local MOST_MISTAKES = 5 -- to be told of at once; suggestions take time

-- Calls take(item) for each of a list; what it refuses is added to the mistakes.
local function each(list, mistakes, take)
  for _, item in ipairs(list) do
    local ok, e = pcall(take, item)
    if not ok and not (type(e) == "table" and e.rule) then error(e, 0) end
    if not ok then mistakes[#mistakes + 1] = e end
    if #mistakes == MOST_MISTAKES then return end
  end
end

-- Raises the first mistake, if there is one, with the others as its field `more`.
local function raise(mistakes)
  if #mistakes == MOST_MISTAKES then mistakes[MOST_MISTAKES + 1] = { message = "..." } end
  local first = table.remove(mistakes, 1)
  if not first then return end
  first.more = mistakes
  error(first, 0)
end

-- Refuses a word that is neither a key nor one of `others`.
function M.check_key(key, others)
  local words = table.move(keys, 1, #keys, 1, {})
  for _, word in ipairs(others) do words[#words + 1] = word end
  for _, word in ipairs(words) do
    if key == word then return end
  end
  unknown(key, nil, words)
end

-- entries: what host.eval_config returns, or nil. In sorted order, so that of several mistakes the
-- same ones are reported each time.
local function from_file(entries, mistakes)
  local values = {}
  local function text(entry) return tostring(entry.key) end
  table.sort(entries, function(a, b) return text(a) < text(b) end)
  each(entries, mistakes, function(entry)
    local value = entry.value
    if value == nil then value = "a " .. entry.value_type end
    if entry.key_type ~= "string" then
      local key = entry.key == nil and "a " .. entry.key_type or tostring(entry.key)
      refuse(("[%s]"):format(key), value, "keys must be names")
    end
    values[entry.key] = checked(row_of(entry.key, value), value)
  end)
  return values
end

local function from_arguments(arguments, mistakes)
  local values = {}
  each(arguments, mistakes, function(argument)
    local key, text = argument:match("^([^=]*)=(.*)$")
    local row = row_of(key, text)
    if values[key] ~= nil then refuse(key, text, "is given twice") end
    values[key] = checked(row, from_text(row, text))
  end)
  return values
end

local function default_of(row, values)
  if row.same_as then return values[row.same_as] end
  if row.computed then return name.build(values) end
  return row.default
end

local function check_together(cfg)
  if cfg.attention == "self" and cfg.seq_kv ~= cfg.seq then
    refuse("seq_kv", cfg.seq_kv,
           ("must equal seq = %d with attention = self, which has one input"):format(cfg.seq))
  end
  for _, mask in ipairs { "causal", "kv_len" } do
    if cfg.strassen and cfg[mask] then
      refuse("strassen", true, ("must be false with %s, for it mixes rows"):format(mask))
    end
  end
  if cfg.head_block and cfg.h % cfg.head_block ~= 0 then
    refuse("head_block", cfg.head_block, ("must divide h = %d"):format(cfg.h))
  end
end

local function freeze(values)
  return setmetatable({}, {
    __index = function(_, key)
      if not rows[key] then error("no such config key: " .. tostring(key), 2) end
      return values[key]
    end,
    __newindex = function(_, key) error("a config does not change: " .. tostring(key), 2) end,
    __pairs = function() return pairs(values) end,
    __metatable = false,
  })
end

-- The words that make a config of these values: the keys that `wanted` accepts, without defaults.
local function words_of(values, wanted)
  local words = {}
  for _, row in ipairs(M.schema) do
    local value = values[row.key]
    local told = row.required or values.tuned and row.schedule -- what the file might say otherwise
    if value ~= nil and wanted(row) and (told or value ~= default_of(row, values)) then
      words[#words + 1] = row.key .. "=" .. tostring(value)
    end
  end
  return table.concat(words, " ")
end

function M.is_schedule(key) return rows[key].schedule end

-- What a tuning file knows a config by: all but its name and its schedule.
function M.shape(values)
  return words_of(values, function(row) return not (row.schedule or row.computed or row.file) end)
end

-- Fills in the defaults.
local function complete(values)
  for pass = 1, 2 do -- the name is made from all others, so it comes last
    for _, row in ipairs(M.schema) do
      if values[row.key] == nil and (pass == 2) == (row.computed ~= nil) then
        values[row.key] = default_of(row, values)
      end
    end
  end
  return values
end

-- Takes the schedule from the file that `tuned` names, where keys are not given. The name stays what it
-- is without.
local function apply_tuning(values, read_tuning)
  local path, shape = values.tuned, M.shape(values)
  if not read_tuning then refuse("tuned", path, "can not be a key here; list the schedule's keys") end
  local schedule = read_tuning(path)[shape]
  if not schedule then refuse("tuned", path, ("has no schedule for %s; see mhagen tune"):format(shape)) end
  local plain = {}
  for key, value in pairs(values) do plain[key] = key ~= "tuned" and value or nil end
  values.name = complete(plain).name
  local mistakes = {}
  local found = from_arguments(schedule, mistakes)
  local first = mistakes[1]
  if first then refuse("tuned", path, ("%s = %s: %s"):format(first.key, tostring(first.value), first.rule)) end
  for key, value in pairs(found) do
    if not rows[key].schedule then refuse("tuned", path, ("sets %s, which is no schedule key"):format(key)) end
    if values[key] == nil then values[key] = value end
  end
  values.tuned = M.base(path)
end

-- Adds to the mistakes that required keys are missing, but those that another mistake is about.
local function require_keys(values, mistakes)
  local about, missing, names, example = {}, {}, {}, {}
  for _, mistake in ipairs(mistakes) do
    about[mistake.key] = true
    if mistake.meant then about[mistake.meant] = true end
  end
  for _, row in ipairs(M.schema) do
    if row.required then
      example[#example + 1] = ("%s=%s"):format(row.key, row.example)
      if values[row.key] == nil and not about[row.key] then
        missing[#missing + 1], names[#names + 1] = row, row.key
      end
    end
  end
  if #missing == 0 or #mistakes >= MOST_MISTAKES then return end
  local rule = "are required"
  if #missing == 1 then rule = "is required and " .. rule_of(missing[1]) end
  mistakes[#mistakes + 1] = { key = table.concat(names, ", "),
                              rule = ("%s, as in %s"):format(rule, table.concat(example, " ")) }
end

-- The checked config of a CONFIG.lua's entries (or nil) and key=value arguments, which win. Every
-- key has its value or default; a schedule key that is not given is nil. read_tuning(path) -> the
-- schedules of a tuning file, lists of key=value by shape. A config that breaks a rule raises
-- { key =, value =, rule = }, with `more` of them if there are. Also returns which keys were given.
function M.load(entries, arguments, read_tuning)
  local mistakes, given = {}, {}
  local values = from_file(entries or {}, mistakes)
  for key, value in pairs(from_arguments(arguments, mistakes)) do values[key] = value end
  require_keys(values, mistakes)
  raise(mistakes)
  for _, row in ipairs(M.schema) do given[row.key] = values[row.key] ~= nil end
  if values.tuned then apply_tuning(values, read_tuning) end
  check_together(complete(values))
  return freeze(values), given
end

-- The arguments that make this config: the required keys and those that differ from their default,
-- in the order of the schema.
function M.canonical(cfg)
  return words_of(cfg, function() return true end)
end

-- The keys as a table for --help.
function M.help()
  local lines = { "Config keys:" }
  for _, row in ipairs(M.schema) do
    if row.key == FIRST_SCHEDULE_KEY then
      lines[#lines + 1] = "\nSchedule keys (speed, and the last bits; what is not given, the plan chooses):"
    end
    local values = "identifier"
    if row.min then values = ("%d..%d"):format(row.min, row.max) end
    if row.choices then values = table.concat(row.choices, ", ") end
    if row.default == false then values = "true, false" end
    if row.file then values = "file" end
    local default = row.same_as or row.computed or row.file and "none" or row.default
    local note = row.required and " (required)"
      or default ~= nil and (" (default: %s)"):format(tostring(default)) or ""
    lines[#lines + 1] = ("  %-14s %-27s  %s%s"):format(row.key, values, row.doc, note)
  end
  return table.concat(lines, "\n")
end

return M
