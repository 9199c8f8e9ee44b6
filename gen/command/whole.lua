-- `model --whole`: a model from ids, pixels or features of sound to rows as C, and all its weights in one file.
--
-- The file is laid out as a file of packed weights of one layer (docs/format.md), so that the runtime checks it. After
-- the fingerprint come the packed weights of the layers, kernel by kernel, then their tables of rope, and the tables
-- of the embeddings.

local host = require "host"
local families = require "model.whole_families"
local family_keys = require "model.family_keys"
local family_rows = require "model.family_rows"
local fingerprint = require "base.fingerprint"
local gguf_families = require "model.gguf_families"
local layers = require "model.layers"
local matrices = require "graph.matrices"
local memory = require "schedule.memory"
local options = require "options.init"
local packed_file = require "command.packed_file"
local part_rules = require "model.parts"
local weights = require "command.weights"
local single = require "kernel.single"
local whole_graph = require "command.whole_graph"
local whole_head = require "command.whole_head"
local whole_inputs = require "command.whole_inputs"
local whole_part = require "command.whole_part"
local whole_scores = require "command.whole_scores"
local whole_tables = require "command.whole_tables"
local whole_text = require "model.whole_text"
local wording = require "base.wording"

local M = {}

-- ---- what is asked for ----

-- Options that take layers out of a model, or write other files.
local OTHERS = { "onnxruntime", "values" }

-- Keys that may be given: all others would change what the model computes, or how rows lie.
local KEYS = { isa = true, seq = true, dtype = true, attend_dtype = true, ffn_dtype = true, sum_dtype = true,
               weight_dtype = true, group = true, value_weight_dtype = true, cpu = true, tuned = true, fold = true,
               unroll = true }

-- Those of decoders, too.
local CACHE_KEYS = { seq_kv = true, cache_dtype = true }

-- The tensors, with names of today: files of BERT's time have gamma and beta.
local function renamed(tensors)
  local all = {}
  for name, tensor in pairs(tensors) do
    local now = name:gsub("(LayerNorm%.)gamma$", "%1weight"):gsub("(LayerNorm%.)beta$", "%1bias")
    all[tensors[now] and name or now] = tensor
  end
  return all
end

-- Finds what the model has around its attention.
function M.begin(model, args)
  for _, name in ipairs(OTHERS) do
    if args[name] then error({ message = ("--%s is not made with --whole"):format(name) }, 0) end
  end
  model.without_head = args.no_head
  if model.graph then return whole_graph.begin(model, args.image) end
  whole_head.begin(model)
  whole_part.take(model, args.only)
  local rows = model.rows == gguf_families and families.gguf or families.rows
  local row, known = family_rows.find(rows, model.type)
  if not row then
    error({ message = ("%s: --whole does not know type %s; it knows %s"):format(model.path, wording.short(model.type),
      known) }, 0)
  end
  if row.head and args.no_head then
    error({ message = ("%s: --no-head: the logits of a decoder, %s, are its head"):format(model.path, model.type) }, 0)
  end
  model.whole, model.tensors = setmetatable({}, { __index = row }), renamed(model.tensors)
  if row.inputs then return whole_inputs.begin(model, args.image) end
  if args.image then error({ message = ("--image: type %s takes no images"):format(model.type) }, 0) end
end

-- The largest of the lengths that `seq` lists.
local function longest(seq)
  local most = 1
  for number in (seq or ""):gmatch "%d+" do most = math.max(most, tonumber(number)) end
  return most
end

-- Gives the layers of a decoder a cache, as long as the user says. A run of few rows may be one of a kernel for more,
-- and the cache has room for the rows that this one writes beside them.
local function add_cache(row, given)
  local places = math.tointeger(tonumber(given.seq_kv))
  if not given.seq_kv then
    error({ message = "seq_kv: is missing; it is the most ids of a text with its answer, such as seq_kv=2048" }, 0)
  end
  if not places or places < 1 then
    error({ key = "seq_kv", value = given.seq_kv, rule = "must be the most ids of a text, a number from 1 on" }, 0)
  end
  local beside = longest(given.seq) - 1
  local most = options.list.seq_kv.max - beside
  if places > most then
    error({ key = "seq_kv", value = places, rule = ("must be at most %d with seq = %s"):format(most, given.seq) }, 0)
  end
  row.places, row.own = places, { seq_kv = true }
  row.cache = { cache = "append", q_len = true, seq_kv = places + beside }
  row.keys = row.keys and family_keys.joined(row.keys, family_keys.always(row.cache))
end

function M.take_keys(model, given)
  local row = model.whole
  if given.seq and row.inputs then
    error({ key = "seq", value = given.seq, rule = ("is the model's own: %s makes %d rows"):format(row.made.of,
      row.made.rows) }, 0)
  end
  local decodes = row.head or row.graph and (given.seq_kv or given.cache_dtype)
  for key, value in pairs(given) do
    if not KEYS[key] and not (decodes and CACHE_KEYS[key]) and not (options.list[key] or {}).schedule then
      error({ key = key, value = value, rule = "is the model's own with --whole, or is not made with it" }, 0)
    end
  end
  if decodes then add_cache(row, given) end
end

-- ---- the embeddings ----

local UNIT = memory.ALIGN * memory.BYTES

-- The tensor of a decoder's head: that of the words where both are one, nil where the file has none.
local function head_of(model, prefix, words)
  local row, name = model.whole, nil
  if not row.head then return nil end
  for _, before in ipairs { "", prefix } do
    local full = ("%s%s.weight"):format(before, row.head)
    name = model.tensors[full] and full or name
  end
  local tied = not name
  if row.tied ~= nil then tied = model.fields:flag("tie_word_embeddings", row.tied) end
  return tied and words or name
end

-- Refuses more rows than the model has places for; rows: of the longest run.
local function check_places(model, places, first, rows)
  local key, wanted = "seq", rows
  if model.whole.places then key, wanted = "seq_kv", model.whole.places end
  if wanted <= places - first then return end
  error({ key = key, value = wanted, rule = ("must be at most %d, the places of %s"):format(places - first,
    model.path) }, 0)
end

-- Refuses a decoder whose rows see those behind them, which a run with the first part of a text does not have.
local function check_causal(model, all)
  for _, layer in ipairs(model.whole.head and all or {}) do
    local causal = false
    for _, word in ipairs(layer.keys) do causal = causal or word == "causal=true" end
    if not causal then
      error({ message = ("%s: rows of a decoder see none behind them with --whole, and those of %s do; without it " ..
        "mhagen model takes the layers"):format(model.path, layer.name) }, 0)
    end
  end
end

-- Finds the tables of the embeddings, and the vectors of their norm or of the last one: model.embeddings.list has
-- { name, part, at } each, `at` from M.layout, and model.read has their tensors. rows: of the longest run.
local function read_embeddings(model, all, rows)
  local row, prefix, cfg = model.whole, all[1].prefix, all[1].cfg
  local made, list = row.embeddings(all[1].fields), {}
  model.read = {}
  local function add(name, module, count, columns)
    local full = prefix .. module
    local tensor = model.tensors[full]
    local part = layers.part(model, full, count or tensor and tensor.shape[1] or 1, columns, host.type_size)
    list[#list + 1], model.read[full] = { name = name, part = part }, true
    return part
  end
  for _, name in ipairs { "words", "types", "places" } do
    local of = made[name]
    if of then of.count = add(name, of[1] .. ".weight", of[2], cfg.y_width).features end
  end
  local kind = matrices.sizes(cfg).norm2_bias and "layer" or "rms" -- layers with norms have the second one
  local biased = kind == "layer" and part_rules.has_bias(all[1], row.norm_biases, "bias")
  local function add_norm(before, norm)
    add(before .. "gains", norm .. ".weight", cfg.y_width).change = row.change
    if biased then add(before .. "biases", norm .. ".bias", cfg.y_width) end
  end
  if made.norm then add_norm("first_", made.norm) end
  if row.last then add_norm("", row.last) end
  if made.bias then
    local bias = add("bias", made.bias[1] .. ".weight", made.bias[2] * cfg.h)
    function bias.change(numbers) return made.bias[3](numbers, cfg.h, cfg.seq) end
    list[#list].floats = cfg.h * cfg.seq * cfg.seq
  end
  local first, words = made.places and made.places[3] or 0, ("%s%s.weight"):format(prefix, made.words[1])
  if made.places then check_places(model, made.places.count, first, rows) end
  model.embeddings = {
    list = list, width = cfg.y_width, eps = cfg.layer_eps, first = made.norm ~= nil, last = row.last ~= nil,
    norm_kind = kind, biased = biased, first_place = first, factor = made.factor,
    has_places = made.places ~= nil, has_bias = made.bias ~= nil, decodes = row.head ~= nil,
    places = row.places, said = made.said, words = words, head = head_of(model, prefix, words),
    vocabulary = made.words.count, types = made.types and made.types.count or 0 }
end

-- ---- the head ----

local function add_head(model, kernels, given)
  local embeddings = model.embeddings
  if not embeddings.head then return end
  local count, width = embeddings.vocabulary, embeddings.width
  model.read[embeddings.head] = true
  embeddings.scores = whole_scores.add(kernels, given, { count = count, width = width,
    weights = whole_scores.of_tensors(model, { embeddings.head }, count, width) })
end

-- Finds what the model has besides its layers, all: tensors, model.embeddings, and products as further kernels.
local function find_parts(model, kernels, all, given)
  if model.graph then return whole_graph.add(model, kernels, given) end
  check_causal(model, all)
  if model.whole.made then whole_inputs.add(model, kernels, all, given)
  else read_embeddings(model, all, kernels[1].cfg.seq) end
  if model.whole.head then add_head(model, kernels, given) else whole_head.add(model, kernels, all[1], given) end
end

-- Finds that, and chooses the types of tables. wanted: that of the table of words, or nil.
function M.surround(model, kernels, all, given, wanted)
  find_parts(model, kernels, all, given)
  whole_tables.choose(model, wanted)
end

-- ---- the file of weights ----

-- Calls visit(packer, layer) with all that is packed, in the order of the file: the weights of the layers of all
-- kernels, for each CPU, and then their tables of rope. Layers with the same numbers have one place, which the first
-- one fills.
local function each_packed(kernels, visit)
  local function each(packers, layers_of_them, first)
    for _, packer in ipairs(packers) do
      for _, layer in ipairs(layers_of_them) do
        if layer[first] then visit(packer, layer) end
      end
    end
  end
  local with, sets = {}, {}
  for _, entry in ipairs(kernels) do
    local set = entry.tables
    each(entry.packers, entry.layers, "first")
    if set and not with[set] then sets[#sets + 1], with[set] = set, {} end
    if set then table.move(entry.layers, 1, #entry.layers, #with[set] + 1, with[set]) end
  end
  for _, set in ipairs(sets) do each(set, with[set], "first_tables") end
end

-- Gives each packer and each table of the embeddings its place behind the head of the file. Returns { fingerprint =,
-- bytes = those behind the head, file_bytes = all }.
function M.layout(kernels, all, embeddings)
  local at, words = UNIT, {}
  local function place(bytes, of)
    of.at, at = at, at + (bytes + UNIT - 1) // UNIT * UNIT
    words[#words + 1] = ("%d %s %s"):format(bytes, of.name, of.type or "")
  end
  each_packed(kernels, function(packer)
    if packer.at then return end
    place(packer.packing.bytes * packer.layers, packer)
    words[#words + 1] = packer.packing.fingerprint
  end)
  for _, layer in ipairs(all) do
    words[#words + 1] = ("%s %d %d"):format(layer.kernel.cfg.name, layer.index, layer.tables or 0)
  end
  for _, of in ipairs(embeddings.list) do place(whole_tables.bytes(of), of) end
  return { fingerprint = fingerprint(table.concat(words, "\n")), bytes = at, file_bytes = packed_file.bytes(at, 1) }
end

local NO_FILLS = { fills = {}, rounded = {}, pairs = {}, quants = {}, value_quants = {} }

-- Writes the weights; tell(done, all): after each layer. Returns the file.
function M.pack(args, kernels, embeddings, layout, tell)
  local name, done, all = args.name .. ".packed", 0, 0
  local file = packed_file.new(args.output, name, name, layout)
  local function add(made)
    made:fill()
    file:add(made, true)
    made:free()
  end
  add(host.pack({ bytes = UNIT, fingerprint = layout.fingerprint, lists = NO_FILLS, matrices = {} }, {}))
  each_packed(kernels, function() all = all + 1 end)
  each_packed(kernels, function(packer, layer)
    weights.pack({ packer }, layer, function(_, packed) file:add(packed, true) end)
    done = done + 1
    tell(done, all)
  end)
  for _, of in ipairs(embeddings.list) do whole_tables.pack(of, add) end
  return file:finish()
end

M.texts = whole_text

-- The files of a whole model, with its kernels and the runtime, as one header and one source.
function M.joined(name, files)
  local of = {}
  for _, file in ipairs(files) do of[file.name] = file end
  local made = single(name, files, { header = of["mhagen.h"].text, source = of["mhagen.c"].text })
  for _, file in ipairs(made) do file.also = of[file.name].also end
  return made
end

return M
