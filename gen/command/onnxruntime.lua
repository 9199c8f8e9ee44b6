-- `model --onnxruntime`: a library of operators and the graph that uses them, for ONNX Runtime.
--
--   add_keys(model, layers, given)      adds keys for what the graph says of lengths and types
--   choose(model, layers, given)        -> the layers that can be replaced, by cfg; sets model.swap
--   check_size(packers)                 refuses more than a library can have
--   sources(model, args, layers)        -> the files of the library beside the kernels
--   marks(model, args)                  -> the other files that are written, for takes.refuse_foreign
--   graph_files(model, args)            -> the graph and its data
--   compile(args, files, cfg)           compiles the library; returns the command

local host = require "host"
local build = require "command.build"
local errors = require "command.errors"
local fixed = require "onnx.fixed"
local graph_layers = require "onnx.layers"
local kernel = require "command.kernel"
local layers_of = require "model.layers"
local model_text = require "model.text"
local onnx_ends = require "onnx.ends"
local onnx_graph = require "onnx.replace"
local roundings = require "onnx.roundings"
local shell = require "base.shell"
local takes = require "command.takes"
local wording = require "base.wording"

local must = errors.must

local M = {}

-- ---- what the model is ----

local function crc(file, path) return must(file:crc32(0, file:size()), path) end

-- Which file the model is, by sums and sizes of it and of those of its data.
local function source_of(model)
  local names = {}
  for name in pairs(model.others) do names[#names + 1] = name end
  table.sort(names)
  local graph = model.graph.file
  local sums = { ("%08x-%d"):format(crc(graph, model.path), graph:size()) }
  for _, name in ipairs(names) do
    local file = model.others[name]
    sums[#sums + 1] = ("%08x-%d"):format(crc(file, name), file:size())
  end
  return host.hash(table.concat(sums, " "))
end

-- ---- keys ----

-- Adds what the graph says of types and lengths. Lengths that it does not say are those of a run, up to seq and seq_kv.
local function add_layer_keys(model, layer, longer)
  layer.own = {}
  local keys, args = {}, layer.found and layer.found.inputs or layer.args
  local seq, seq_kv = fixed.rows(layer, longer)
  keys.io_dtype = roundings.half(model.graph, args.q)
  if seq then keys.seq, layer.own.seq = seq, true end
  if seq_kv then keys.seq_kv, layer.own.seq_kv = seq_kv, true end
  if not seq or not seq_kv then keys.q_len, keys.kv_len = true, true end
  local there = {}
  for i, word in ipairs(layer.keys) do
    there[word:match("^[^=]*")] = true
    if word:find("^mask_dims=") then layer.keys[i] = word:gsub("=b", "=", 1) end -- an operator takes its entry's
  end
  for _, word in ipairs(layers_of.key_list(keys)) do
    if not there[word:match("^[^=]*")] then table.insert(layer.keys, word) end
  end
end

function M.add_keys(model, layers, given)
  if not model.graph then
    error({ message = ("%s: --onnxruntime is for ONNX files"):format(model.path) }, 0)
  end
  local longer = graph_layers.longer(model.graph, given)
  for _, layer in ipairs(layers) do add_layer_keys(model, layer, longer) end
end

-- Keys whose arguments no node has, and their values without.
local off = { batch = 1, cache = "none", probs = false, scores = "none", kv_start = false, row_keys = "none",
              rope_at = "pack" }

local operators = { f32 = "Attention", f16 = "AttentionF16", bf16 = "AttentionBF16" }

local function check_config(layer, ends)
  local cfg, args = layer.cfg, ends.args
  for key, value in pairs(off) do
    if cfg[key] ~= value then
      error({ key = key, value = tostring(cfg[key]), rule = "no node of ONNX Runtime has it; leave it out" }, 0)
    end
  end
  local function refuse(key, rule)
    error({ key = key, value = tostring(cfg[key]), rule = rule:format(layer.name) }, 0)
  end
  if cfg.mask ~= "none" and not args.mask then refuse("mask", "layer %s has no mask in the graph") end
  if cfg.mask == "none" and args.mask then refuse("mask", "layer %s has a mask; leave mask and kv_len out") end
  if not cfg.kv_len and args.kv_len then refuse("kv_len", "layer %s has lengths in the graph; leave it out") end
end

-- ---- layers ----

-- Names that two layers have get the name of their value.
local function name_apart(layers)
  local count = {}
  for _, layer in ipairs(layers) do count[layer.name] = (count[layer.name] or 0) + 1 end
  for _, layer in ipairs(layers) do
    if count[layer.name] > 1 then layer.name = ("%s of %s"):format(layer.name, layer.node.outputs[1]) end
  end
end

-- Roundings for which a layer stays as it is; those to f16 are told alone.
local large = { integers = "%s rounds its activations; dtype=int8 or dtype=f32 says that other roundings will do",
                bf16 = "%s rounds to bfloat16; dtype=bf16 or dtype=f32 says that other roundings will do" }

-- Why a layer stays whose graph rounds what a kernel does not, or nil.
local function rounded(layer, given)
  if given.dtype then return nil end
  for _, each in ipairs(layer.found and layer.found.roundings or {}) do
    local dynamic = each.node.op == "DynamicQuantizeLinear"
    if large[each.to] and not dynamic then return large[each.to]:format(each.node.name) end
  end
end

-- Why a layer stays whose rows are float64, which no node of ours takes.
local function double(model, layer)
  local args = layer.found and layer.found.inputs or layer.args
  return roundings.type_of(model.graph, args.q) == "F64" and "its rows are float64; a node takes float32, f16 and bf16"
    or nil
end

-- Why a layer stays that has a body in it of which runs of other lengths take another branch, or nil.
local function branched(model, layer, given)
  local body
  for _, node in ipairs(layer.found and layer.found.nodes or {}) do body = body or node.op == "If" and node end
  if body and model.same_branches == nil then
    model.same_branches = graph_layers.branches(model.graph, given, layer.graph)
  end
  return body and not model.same_branches and ("%s takes another branch for other lengths"):format(body.name) or nil
end

function M.choose(model, layers, given)
  name_apart(layers)
  model.source = source_of(model)
  local able, left, stays, replaced = {}, {}, {}, {}
  for _, layer in ipairs(layers) do
    local ends, why = onnx_ends.of(layer)
    why = why or double(model, layer) or rounded(layer, given) or branched(model, layer, given)
    if not why then
      check_config(layer, ends)
      layer.ends, layer.op, layer.source = ends, operators[layer.cfg.io_dtype], model.source
      able[#able + 1] = layer
    else
      left[#left + 1] = { layer = layer, why = why }
    end
  end
  model.swap = onnx_graph.replace(model.graph, able)
  table.move(model.swap.left, 1, #model.swap.left, #left + 1, left)
  model.swap.left = left
  for _, entry in ipairs(left) do stays[entry.layer] = true end
  for _, layer in ipairs(able) do
    if not stays[layer] then replaced[#replaced + 1] = layer end
  end
  if #replaced == 0 then
    error({ message = ("%s: no layer can be replaced; layer %s: %s"):format(
      model.path, errors.show(left[1].layer.name), left[1].why) }, 0)
  end
  return replaced
end

-- ---- files ----

local CHUNK = 1 << 20

-- A file of pieces: texts, and parts of files.
local function stream_of(args, name, pieces)
  local stream = must(host.stream(args.output, name))
  for _, piece in ipairs(pieces) do
    if type(piece) == "string" then must(stream:write(piece)) else
      local stop = piece.at + piece.bytes
      for at = piece.at, stop - 1, CHUNK do
        must(stream:write(must(piece.file:bytes(at, math.min(CHUNK, stop - at)))))
      end
    end
  end
  return { name = name, stream = stream }
end

local function library_of(args) return ("lib%s.so"):format(args.name) end

-- Whether the file beside the new graph has these bytes already.
local function is_there(path, file)
  if not host.exists(path) then return false end
  local other = must(host.open_file(path))
  local same = other:size() == file:size() and crc(other, path) == crc(file, path)
  other:close()
  return same
end

-- The sources of the library.
function M.sources(model, args, layers)
  local files = { model_text.onnxruntime(args.name, model.source, layers) }
  for _, ending in ipairs { "h", "c" } do files[#files + 1] = kernel.of_runtime("mhagen_onnxruntime." .. ending) end
  return files
end

-- Names and marks of what else is written, for takes.refuse_foreign; sets model.data_files, the data that is not there.
function M.marks(model, args)
  local list = { { name = args.name .. ".onnx", mark = onnx_graph.MARK } }
  local source = ("%s/%s_onnxruntime.c"):format(args.output, args.name)
  local made = host.exists(source) and takes.made(source, model_text.onnxruntime(args.name, "", {}).text)
  if not made then list[2] = { name = library_of(args) } end
  model.data_files = {}
  for name, file in pairs(model.others) do
    if not is_there(args.output .. "/" .. name, file) then
      list[#list + 1], model.data_files[name] = { name = name }, file
    end
  end
  return list
end

-- The graph and the files of its data, as host.write_files takes them.
function M.graph_files(model, args)
  local name = args.name .. ".onnx"
  local pieces = {}
  for i, piece in ipairs(onnx_graph.pieces(model.swap)) do
    pieces[i] = type(piece) == "string" and piece or { file = model.graph.file, at = piece.at, bytes = piece.bytes }
  end
  local files = { stream_of(args, name, pieces) }
  for data, file in pairs(model.data_files) do
    files[#files + 1] = stream_of(args, data, { { file = file, at = 0, bytes = file:size() } })
  end
  return files
end

local MOST = 1 << 31 -- bytes that code reaches in a library, less than what it has besides
local BESIDES = 1 << 26

function M.check_size(packers)
  local bytes = 0
  for _, packer in ipairs(packers) do bytes = bytes + packer.packing.bytes * packer.layers end
  if bytes <= MOST - BESIDES then return end
  error({ message = ("--onnxruntime: %s bytes of packed weights are more than a library can have; dtype=bf16 or " ..
    "weight_dtype=int8 makes them fewer, --only takes some of the layers"):format(wording.number(bytes)) }, 0)
end

local SECONDS = 3600

function M.compile(args, files, cfg)
  local emulated, library = build.emulated(cfg), ("%s/%s"):format(args.output, library_of(args))
  local command = build.joined(build.compiler(emulated and emulated.cc or host.cc),
    { "-shared", "-fPIC", "-fvisibility=hidden", "-DMHAGEN_API=", "-I", args.output, "-o", library },
    build.sources(args.output, files, function() return true end), { "-pthread" })
  local status, output, why = build.run(command, SECONDS, true)
  must(status, output)
  if why then
    error({ message = ("%s: %s: %s; its sources are written"):format(library, why, build.telling_line(output)) }, 0)
  end
  return shell.line(command)
end

return M
