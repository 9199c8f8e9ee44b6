-- `model --whole`: a model from ids to rows as C, and all its weights in one file.
--
-- The file is laid out as a file of packed weights of one layer (docs/format.md), so that the runtime checks it. After
-- the fingerprint come the packed weights of the layers, kernel by kernel, and the tables of the embeddings.

local host = require "host"
local families = require "model.whole_families"
local family_rows = require "model.family_rows"
local fingerprint = require "base.fingerprint"
local layers = require "model.layers"
local memory = require "schedule.memory"
local options = require "options.init"
local packed_file = require "command.packed_file"
local weights = require "command.weights"
local whole_text = require "model.whole_text"
local wording = require "base.wording"

local M = {}

-- ---- what is asked for ----

-- Options that take layers out of a model, or write other files.
local OTHERS = { "only", "onnxruntime", "values" }

-- Keys that may be given: all others would change what the model computes, or how rows lie.
local KEYS = { isa = true, seq = true, dtype = true, attend_dtype = true, sum_dtype = true, weight_dtype = true,
               group = true, value_weight_dtype = true, cpu = true, tuned = true, fold = true, unroll = true }

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
  if model.path == model.data then error({ message = model.path .. ": --whole reads folders of transformers" }, 0) end
  local row, known = family_rows.find(families.rows, model.type)
  if not row then
    error({ message = ("%s: --whole does not know type %s; it knows %s"):format(model.path, wording.short(model.type),
      known) }, 0)
  end
  model.whole, model.tensors = row, renamed(model.tensors)
end

function M.refuse_keys(given)
  for key, value in pairs(given) do
    if not KEYS[key] and not (options.list[key] or {}).schedule then
      error({ key = key, value = value, rule = "is the model's own with --whole, or is not made with it" }, 0)
    end
  end
end

-- ---- the file of weights ----

local UNIT = memory.ALIGN * memory.BYTES

-- Finds the tables of the embeddings, and the vectors of their norm or of the last one: model.embeddings.list has
-- { name, part, at } each, `at` from M.layout, and model.read has their tensors. rows: of the longest run.
function M.read_embeddings(model, all, rows)
  local embeddings, width = model.whole.embeddings(all[1].fields), all[1].cfg.y_width
  local list = {}
  model.read = {}
  local function add(name, tensor, count, columns)
    local full = all[1].prefix .. tensor
    list[#list + 1], model.read[full] = { name = name, part = layers.part(model, full, count, columns,
                                                                          host.type_size) }, true
  end
  for _, name in ipairs { "words", "types", "places" } do
    if embeddings[name] then add(name, embeddings[name][1] .. ".weight", embeddings[name][2], width) end
  end
  local norm = embeddings.norm or model.whole.last
  add("gains", norm .. ".weight", width)
  add("biases", norm .. ".bias", width)
  local places, first = embeddings.places[2], embeddings.places[3] or 0
  if rows > places - first then
    error({ key = "seq", value = rows, rule = ("must be at most %d, the places of %s"):format(places - first,
      model.path) }, 0)
  end
  model.embeddings = {
    list = list, width = width, eps = all[1].cfg.layer_eps, last = not embeddings.norm, first_place = first,
    vocabulary = embeddings.words[2], types = embeddings.types and embeddings.types[2] or 0 }
end

-- How many numbers a part has; memory.aligned: how many there are in the file.
local function floats_of(part) return part.features * (part.width or 1) end

-- Gives each packer and each table of the embeddings its place behind the head of the file. Returns { fingerprint =,
-- bytes = those behind the head, file_bytes = all }.
function M.layout(kernels, all, embeddings)
  local at, words = UNIT, {}
  local function place(floats, of)
    of.at, at = at, at + memory.BYTES * memory.aligned(floats)
    words[#words + 1] = ("%d %s"):format(memory.BYTES * floats, of.name)
  end
  for _, entry in ipairs(kernels) do
    for _, packer in ipairs(entry.packers) do
      place(packer.packing.bytes * packer.layers // memory.BYTES, packer)
      words[#words + 1] = packer.packing.fingerprint
    end
  end
  for _, layer in ipairs(all) do words[#words + 1] = ("%s %d"):format(layer.kernel.cfg.name, layer.index) end
  for _, of in ipairs(embeddings.list) do place(floats_of(of.part), of) end
  return { fingerprint = fingerprint(table.concat(words, "\n")), bytes = at, file_bytes = packed_file.bytes(at, 1) }
end

local NO_FILLS = { fills = {}, rounded = {}, pairs = {}, quants = {}, value_quants = {} }

-- Writes the weights; tell(done, all): after each layer. Returns the file.
function M.pack(args, kernels, embeddings, layout, tell)
  local name, done, all = args.name .. ".packed", 0, 0
  local file = packed_file.new(args.output, name, name, layout)
  local function add(made)
    file:add(made, true)
    made:free()
  end
  add(host.pack({ bytes = UNIT, fingerprint = layout.fingerprint, lists = NO_FILLS, matrices = {} }, {}))
  for _, entry in ipairs(kernels) do all = all + #entry.packers * #entry.layers end
  for _, entry in ipairs(kernels) do
    for _, packer in ipairs(entry.packers) do
      for _, layer in ipairs(entry.layers) do
        weights.pack(layer.first and { packer } or {}, layer, function(_, packed) file:add(packed, true) end)
        done = done + 1
        tell(done, all)
      end
    end
  end
  for _, of in ipairs(embeddings.list) do
    local count = floats_of(of.part)
    local rest = memory.aligned(count) - count
    add(weights.floats(of.part))
    if rest > 0 then add(host.floats(rest)) end
  end
  return file:finish()
end

M.texts = whole_text

return M
