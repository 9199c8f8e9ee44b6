-- Files of tensors, and their numbers as the packed weights of a kernel.

local host = require "host"
local errors = require "command.errors"
local fields = require "model.fields"
local families = require "model.families"
local gguf = require "model.gguf"
local gguf_families = require "model.gguf_families"
local json = require "base.json"
local layers = require "model.layers"
local npy = require "model.npy"
local npz = require "model.npz"
local onnx = require "onnx.file"
local operators = require "onnx.operators"
local pytorch = require "model.pytorch"
local quantized = require "model.quantized"
local rope = require "model.rope"
local safetensors = require "model.safetensors"
local tensors = require "model.tensors"

local must = errors.must

local M = {}

local function open(path) return must(host.open_file(path)) end

-- Bytes of memory for what the files of a model say of themselves: 1 GiB less an eighth, which is for the generator
-- itself and for what malloc leaves unused between its blocks.
local MOST = (1 << 30) * 7 // 8

-- Calls read(path), which may take so much.
local function within_limit(read, path)
  host.limit_memory(MOST)
  local results = table.pack(xpcall(read, errors.on_error, path))
  local exhausted = host.limit_memory()
  if results[1] then return table.unpack(results, 2, results.n) end
  local e = errors.on_error(results[2])
  if exhausted and (e.message or ""):find(errors.NO_MEMORY, 1, true) then
    e = { message = ("%s: to read it takes more than %d MiB of memory"):format(path, MOST >> 20) }
  end
  error(e, 0)
end

-- ---- models ----

-- nulls: whether null stays, as a value of its own.
local function read_json(path, nulls)
  local text = must(host.read_file(path))
  local values, why = json.decode(text, nulls)
  if type(values) ~= "table" then error({ message = ("%s: %s"):format(path, why or "is no object") }, 0) end
  return values
end

-- The fields of a file of JSON.
function M.fields_of(path) return fields.new(path, read_json(path, true)) end

-- The shards that an index names.
local function shards(path)
  local map, list, seen = read_json(path).weight_map, {}, {}
  if type(map) ~= "table" then error({ message = path .. ": weight_map is missing" }, 0) end
  for name, text in pairs(map) do
    local file = tensors.beside(text) or error({ message = ("%s: tensor %s: %s is no file of this folder"):format(
      path, errors.show(name), errors.show(text)) }, 0)
    if not seen[file] then list[#list + 1], seen[file] = file, true end
  end
  table.sort(list)
  return list
end

local CONVERTED = "is not read; take the folder that it was converted from"
local MISTRAL = "is of Mistral's or Meta's own folder, and is not read; take the model's folder of transformers, " ..
  "with config.json"
local ONNX = "is not looked for in a folder; give its path"

-- Files of weights that a folder may have in place of model.safetensors, how they begin, and what to do.
local others = {
  { "model.bin", "^.%z%z%z..%w+Spec%z", "is of CTranslate2, and " .. CONVERTED }, { "model.bin", "", CONVERTED },
  { "adapter_model.safetensors", "",
    "is an adapter; merge it by model.merge_and_unload() of peft, and save the model" },
  { "consolidated.safetensors", "", MISTRAL }, { "consolidated.00.pth", "", MISTRAL }, { "params.json", "", MISTRAL },
  { "model.onnx", "", ONNX }, { "onnx/model.onnx", "", ONNX },
}

local function refuse_others(dir)
  for _, row in ipairs(others) do
    local path = dir .. "/" .. row[1]
    if host.exists(path) and must(host.head(path)):find(row[2]) then
      error({ message = ("%s: no model.safetensors; %s %s"):format(dir, row[1], row[3]) }, 0)
    end
  end
end

-- The files of tensors in a folder, or nil. The first that is there is taken.
local function weight_files(dir)
  for _, name in ipairs { "model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                          "pytorch_model.bin.index.json" } do
    if host.exists(dir .. "/" .. name) then return name:find "json$" and shards(dir .. "/" .. name) or { name } end
  end
end

-- The tensors of some files of a folder.
local function tensors_of(dir, files)
  local all = {}
  for _, name in ipairs(files) do
    local file = dir .. "/" .. name
    local read = name:find "%.bin$" and pytorch or safetensors
    for tensor, at in pairs(read(open(file), file, host.type_size)) do
      if all[tensor] then
        error({ message = ("%s: tensor %s is in %s too"):format(file, errors.show(tensor), all[tensor].path) }, 0)
      end
      all[tensor] = at
    end
  end
  quantized.join(all)
  return all
end

-- A folder as Hugging Face's. What kind of model it is comes first: that is why others are refused, too.
local function open_folder(dir)
  local path, files = dir .. "/config.json", weight_files(dir)
  if not files and not host.exists(path) then refuse_others(dir) end
  local config = M.fields_of(path)
  if not files and not config:has "model_type" then refuse_others(dir) end
  local model = { path = path, data = dir, type = config:word "model_type", rows = families.rows, fields = config,
                  layers = layers.of }
  layers.row_of(model)
  if not files then refuse_others(dir) end
  model.tensors = tensors_of(dir, files or { "model.safetensors" })
  return model
end

-- What a file of several is, and the command that joins them; or nil.
local function split_of(path, values)
  local number, count = values["split.no"], values["split.count"]
  if math.type(number) ~= "integer" or math.type(count) ~= "integer" or count < 2 then return nil end
  local first = path:gsub("%d+(%-of%-%d+%.gguf)$", "00001%1")
  return ("is part %d of %d; llama-gguf-split joins them"):format(number + 1, count),
    { "llama-gguf-split", "--merge", first, "OUT.gguf" }
end

local MOST_PARTS = 1 << 12

-- The tensors of all parts of a file of several, and the values of the first. path: of any.
local function open_parts(path, count)
  local before, digits = path:match "^(.*%-)%d+%-of%-(%d+)%.gguf$"
  if not before or tonumber(digits) ~= count or count > MOST_PARTS then return nil end
  local all, values = {}, nil
  for i = 1, count do
    local part = ("%s%05d-of-%05d.gguf"):format(before, i, count)
    local tensors_of_part, own = gguf(open(part), part, host.type_size)
    if own["split.no"] ~= i - 1 or own["split.count"] ~= count then
      error({ message = ("%s: is not part %d of %d"):format(part, i, count) }, 0)
    end
    values = values or own
    for name, tensor in pairs(tensors_of_part) do
      if all[name] then tensors.fail(tensor, "is in %s too", all[name].path) end
      all[name] = tensor
    end
  end
  return all, values
end

-- What general.type says of files that are no whole model.
local parts_of_gguf = {
  { "adapter", "is an adapter; llama-export-lora -m MODEL.gguf --lora THIS.gguf -o OUT.gguf merges it into its model" },
  { "mmproj", "is the tower and projector of images or sound; take the file of the text model" },
  { "imatrix", "is a quantizer's matrix of importance; take the file of the model" },
}

local function open_gguf(path)
  local all, values = gguf(open(path), path, host.type_size)
  local split, joins = split_of(path, values)
  if split then
    all, values = open_parts(path, values["split.count"])
    if not all then error({ message = ("%s: %s"):format(path, split), command = joins }, 0) end
  end
  for _, row in ipairs(parts_of_gguf) do
    if values["general.type"] == row[1] then error({ message = ("%s: %s"):format(path, row[2]) }, 0) end
  end
  local kind = fields.new(path, values):word "general.architecture"
  if next(all) == nil then
    error({ message = path .. ": has no tensors, as a file of a vocabulary alone; take that of the model" }, 0)
  end
  return { path = path, data = path, type = kind, rows = gguf_families, fields = fields.new(path, values, kind .. "."),
           tensors = all, layers = layers.of }
end

local function open_onnx(path)
  local folder, others = path:match("^(.*/)[^/]*$") or "", {}
  local graph = onnx.read(open(path), path, host.type_size, function(name)
    others[name] = others[name] or open(folder .. name)
    return others[name], folder .. name
  end)
  graph.tools = M.tools
  return { path = path, data = path, type = "onnx", tensors = graph.tensors, graph = graph, others = others,
           layers = function(_, given)
             return within_limit(function() return operators(graph, given) end, path)
           end }
end

-- What is to be done about a path that is an address, or not there but like a name of the Hugging Face Hub.
local function elsewhere(path)
  if host.exists(path) then return nil end
  local id = path:match("^%w[%w._-]*/?[%w._-]*$")
  if path:find("^%a+://") then return "is an address; download the model, and give the path of its folder or file" end
  if not id or path:find "%.gguf$" or path:find "%.onnx$" then return nil end
  return ("No such file or directory; of a model of the Hugging Face Hub give the folder of `hf download %s " ..
    "--local-dir DIR`"):format(id)
end

-- What evaluates a graph, for gen/onnx/proof.lua.
M.tools = { arrays = host.arrays, floats = function(part) return M.floats(part) end, list = host.floats }

local function open_any(path)
  local why = elsewhere(path)
  if why then error({ message = ("%s: %s"):format(path, why) }, 0) end
  if host.exists(path .. "/.") then return open_folder((path:gsub("(.)/+$", "%1"))) end
  if path:find("%.onnx$") then return open_onnx(path) end
  if must(host.head(path)):sub(1, 4) == "GGUF" then return open_gguf(path) end
  open(path)
  local folder = path:match("^(.*)/[^/]*$") or "."
  local beside = host.exists(folder .. "/config.json") and "; of a model's folder give the path: " .. folder or ""
  error({ message = path .. ": is neither a folder with config.json and model.safetensors nor a .gguf or .onnx file" ..
    beside }, 0)
end

-- The model of a folder or a file.
function M.open_model(path) return within_limit(open_any, path) end

-- ---- single matrices ----

local readers = { npz = npz, safetensors = safetensors, gguf = gguf, bin = pytorch, pt = pytorch, pth = pytorch }

-- FILE.npy, or FILE:TENSOR with one of the readers -> path, tensor or nil, reader
local function place_of(text)
  if text:find("%.npy$") then return text, nil, npy end
  local path, name = text:match("^(.-%.%w+):(.+)$")
  local read = path and readers[path:match("%w+$")]
  if read then return path, name, read end
  error({ message = errors.show(text) .. ": must be FILE.npy, or FILE:TENSOR of a .npz, .safetensors, .gguf or .bin" },
    0)
end

-- { key = FILE.npy or FILE:TENSOR } -> { key = tensor }; each file is read once.
function M.find_tensors(texts)
  local readers_of, wanted, found, values, all = {}, {}, {}, {}, {}
  for _, text in pairs(texts) do
    local path, name, read = place_of(text)
    readers_of[path], wanted[path] = read, wanted[path] or {}
    if name then wanted[path][name] = true end
  end
  for path, read in pairs(readers_of) do
    found[path], values[path] = within_limit(function()
      return read(open(path), path, host.type_size, read ~= npy and wanted[path] or nil)
    end, path)
  end
  for key, text in pairs(texts) do
    local path, name = place_of(text)
    local split, joins = split_of(path, values[path] or {})
    all[key] = not name and found[path] or found[path][name]
      or error({ message = ("%s: tensor %s is missing%s"):format(path, errors.show(name),
                   split and "; the file " .. split or ""), command = joins }, 0)
  end
  return all
end

-- ---- numbers ----

-- Memory with the numbers that a part's function makes of a list of those in the file.
local function changed(memory, part)
  local list = part.change(memory:floats(0, part.features))
  memory:free()
  local made = host.floats(#list)
  made:set(list)
  return made
end

-- A list or a part in memory of the host; a number as it is.
local function numbers_of(x)
  if type(x) == "number" then return x end
  return x.tensor and M.floats(x) or host.floats(x)
end

-- The numbers of a part of a tensor, or of a list, in memory of the host.
function M.floats(part)
  if part.numbers then return host.floats(part.numbers) end
  local memory = host.floats(part.blocks * part.count * (part.width or 1))
  for _, piece in ipairs(layers.pieces(part, host.type_size)) do
    local good, why = memory:read(piece, part.tensor.file)
    if not good then error({ message = ("%s: %s"):format(part.tensor.path, why) }, 0) end
  end
  for _, scaled in ipairs(part.scaled or {}) do
    local by, zeros = numbers_of(scaled.by), numbers_of(scaled.zeros or 0)
    memory:scale(by, zeros, scaled.columns, scaled.down, scaled.across)
    by:free()
    if type(zeros) ~= "number" then zeros:free() end
  end
  if part.factor then
    local by, count = host.floats { part.factor }, #memory // 4
    memory:scale(by, 0, count, 1, count)
    by:free()
  end
  return part.change and changed(memory, part) or memory
end

local MOST_FLOATS, UNIT_ROWS = 1 << 22, 32 -- that are in memory at once; of rows of any width, whole units of a file

-- Calls add(memory) with the numbers of a part in their order, some rows at a time: tables may be larger than memory.
function M.by_rows(part, add)
  local all = part.count
  local by_rows = part.width and not part.numbers and not part.in_out and not part.change and part.blocks == 1
  for _, scaled in ipairs(part.scaled or {}) do by_rows = by_rows and scaled.down >= all end
  if not by_rows then return add(M.floats(part)) end
  local count = math.max(1, MOST_FLOATS // (part.width * UNIT_ROWS)) * UNIT_ROWS
  for first = 0, all - 1, count do
    local own = setmetatable({ first = part.first + first, count = math.min(count, all - first) }, { __index = part })
    add(M.floats(own))
  end
end

local function divided(turns, part)
  local memory = M.floats(part)
  local factors = memory:floats(0, part.features)
  memory:free()
  return rope.divided(turns, factors, function(...) tensors.fail(part.tensor, ...) end)
end

-- The parts of a turn of a layer's pairs, of those of rope_theta, and the `factor` of cosines and sines where the layer
-- has one; nil without rope.
function M.turns(layer, cfg, turns)
  if not turns then return nil end
  if layer.divide then turns = layer.divide(turns, cfg.seq_kv) end
  if layer.factors then turns = divided(turns, layer.factors) end
  if layer.rope_factor then turns = table.move(turns, 1, #turns, 1, { factor = layer.rope_factor }) end
  return turns
end

-- parts: by the names of matrices -> the weights that host.pack takes, in memory of the host until they are freed.
-- in_out: matrices lie so.
function M.read(parts, in_out)
  local given = { in_out = in_out }
  for matrix, part in pairs(parts) do given[matrix] = M.floats(part) end
  return given
end

function M.free(given)
  for matrix, memory in pairs(given) do
    if matrix ~= "in_out" then memory:free() end
  end
end

-- A packing with these parts of a turn.
local function turned(packing, turns)
  local own = {}
  for key, value in pairs(packing) do own[key] = value end
  own.turns = turns
  return own
end

-- Packs a layer by each of some packers of gen/command/kernel.lua: add(packer, packed), which is freed then.
function M.pack(packers, layer, add)
  if not packers[1] then return end
  local given = M.read(layer.weights, layer.in_out)
  for _, packer in ipairs(packers) do
    local packed = host.pack(turned(packer.packing, layer.turns), given)
    add(packer, packed)
    packed:free()
  end
  M.free(given)
end

return M
