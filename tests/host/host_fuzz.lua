-- The program that libFuzzer gives inputs to (tests/host/host_fuzz.c): the commands of gen/main.lua, with a host in
-- which the input is the only file, and nothing is run or written.

local host = require "host"
local config = require "options.config"
local errors = require "command.errors"
local families = require "model.families"
local fields = require "model.fields"
local gguf = require "model.gguf"
local gguf_families = require "model.gguf_families"
local json = require "base.json"
local kernel = require "command.kernel"
local layers = require "model.layers"
local main = require "main"
local npy = require "model.npy"
local npz = require "model.npz"
local onnx = require "onnx.file"
local operators = require "onnx.operators"
local pytorch = require "model.pytorch"
local quantized = require "model.quantized"
local report = require "command.report"
local safetensors = require "model.safetensors"
local sweep = require "command.sweep"
local tensors = require "model.tensors"
local qk_of = require "graph.qk"
local unread = require "model.unread"
local weights = require "command.weights"

local text -- the input

local function missing(path) return nil, tostring(path) .. ": No such file or directory" end
local function done() return true end

-- What else the results of a sweep lie beside is behind a line of its own.
local function part(path)
  local results, tuning = text:match("^(.-)\n%-%-%-\n(.*)$")
  if path:find("results.jsonl", 1, true) then return results or text end
  if path:find("tune.jsonl", 1, true) then return tuning end
end

local SHAPE = { "h=2", "d_model=20", "dk=6", "seq=19", "isa=avx2" }

-- Runs a function as gen/main.lua does; returns exit status and message.
local function attempt(...)
  local ok, e = xpcall(...)
  if ok then return 0 end
  return e.status or 2, e.internal or errors.one_line(e)
end

-- Reads all numbers of the tensors of a file, by rows and by columns.
local function numbers(all)
  for _, tensor in pairs(all) do
    local columns = tensor.shape[#tensor.shape] or 1
    if host.type_size(tensor.type) and tensors.count(tensor) > 0 then
      local count = tensors.count(tensor) // columns
      local part = { tensor = tensor, features = count, width = columns, blocks = 1, first = 0, count = count,
                     step = count }
      weights.floats(part):free()
      part.in_out, part.features, part.width, part.count = true, columns, count, 1
      part.first = columns - 1
      weights.floats(part):free()
    end
  end
end

-- A reader of the input. What is read is closed here, for the collector may come late.
local function reads(read)
  return function(path)
    local file = errors.must(host.open_file(path))
    local status, message = attempt(function() numbers(read(file)) end, errors.on_error)
    file:close()
    return status, message
  end
end

-- The configs of the layers of a model, the parts of its tensors, and the angles of rope.
local function read_layers(model)
  local found = layers.of(model)
  for _, layer in ipairs(found) do
    local words = table.move(layer.keys, 1, #layer.keys, 3, { "seq=5", "isa=scalar" })
    local cfg = config.load(nil, words)
    layer.weights = layers.weights(model, layer, cfg, host.type_size)
    local of = qk_of.of(cfg)
    weights.turns(layer, cfg, of and of.pairs > 0 and qk_of.turns(of) or nil)
  end
  unread.refuse(model, found, {})
end

-- Widths of a row and settings with which weights are read that are quantized.
local WIDTHS = { 8, 16, 64 }
local SETTINGS = { {}, { quant_method = "gptq", bits = 4 }, { quant_method = "gptq", bits = 8 },
                   { quant_method = "awq", bits = 4 } }

-- The numbers of those tensors that are joined, of several widths.
local function read_joined(all)
  quantized.join(all)
  for name, tensor in pairs(all) do
    for _, width in ipairs(tensor.joined and WIDTHS or {}) do
      for _, settings in ipairs(SETTINGS) do
        local quants, scales = tensor.joined.quants, tensor.joined.scales
        settings.group_size = width // math.max(1, scales.shape[1] or 1)
        local count = math.max(1, (settings.bits and scales.shape[2] or quants.shape[1]) or 1)
        local part = { name = name, features = count, width = width, blocks = 1, first = 0, count = count,
                       step = count }
        local good, e = pcall(function()
          quantized.fit(part, tensor, settings.bits and fields.new("config.json", settings))
          weights.floats(part):free()
        end)
        if not good and type(e) ~= "table" then error(e, 0) end
      end
    end
  end
  return all
end

-- A file without an end.
local SEVENS = { size = function() return 1 << 40 end, bytes = function(_, _, count) return ("\x77"):rep(count) end }

-- A weight of 64 x 64 that is quantized.
local function joined_weight(name)
  local all, base = {}, name:match "^(.*%.)weight$"
  for behind, kind in pairs { qweight = "I32 8 64", scales = "F16 2 64", qzeros = "I32 2 8" } do
    local of, rows, columns = kind:match "^(%S+) (%S+) (%S+)$"
    all[base .. behind] = { name = base .. behind, path = "model", type = of, at = 0, file = SEVENS,
                            shape = { math.tointeger(rows), math.tointeger(columns) } }
  end
  quantized.join(all)
  return all[name]
end

-- The layers of a model whose config is the input, and which has every tensor.
local function read_model()
  local values, why = json.decode(text, true)
  if type(values) ~= "table" then error({ message = why or "is no object" }, 0) end
  local of = fields.new("config.json", values)
  local all = setmetatable({}, { __index = function(_, name)
    if values.quantization_config and name and name:find "%.weight$" then return joined_weight(name) end
    return { name = name, path = "model", type = "F32", shape = { 64, 64 }, at = 0 }
  end })
  local model = { path = "config.json", data = "model", type = of:word "model_type", rows = families.rows, fields = of,
                  tensors = all }
  read_layers(model)
end

-- Those of a GGUF file, and the numbers of all its tensors.
local function read_gguf(file)
  local all, values = gguf(file, "input", host.type_size)
  numbers(all)
  local kind = fields.new("input", values):word("general.architecture", "llama")
  read_layers { path = "input", data = "input", type = kind, rows = gguf_families, tensors = all,
                fields = fields.new("input", values, kind .. ".") }
  return {}
end

-- The layers of an ONNX file, and the numbers of all its constants.
local function read_onnx(file)
  local graph = onnx.read(file, "input", host.type_size, function(name) return nil, errors.must(missing(name)) end)
  graph.tools = { most = 1 << 20 }
  for name, tool in pairs(weights.tools) do graph.tools[name] = tool end
  for _, layer in ipairs(operators(graph, {})) do
    local words = table.move(layer.keys, 1, #layer.keys, 3, { "seq=5", "isa=scalar" })
    for _, part in pairs(layers.weights(graph, layer, config.load(nil, words), host.type_size)) do
      weights.floats(part):free()
    end
  end
  return graph.tensors
end

-- Every target gets the name of the input's file and returns exit status and message. Without a need the
-- kernel is not generated: that takes long, and tests/fuzz.py looks for faults there.
local targets = {
  config = function(file) return attempt(kernel.load_config, errors.on_error, { file }) end,
  tuning = function(file)
    return attempt(kernel.load_config, errors.on_error, { "tuned=" .. file, table.unpack(SHAPE) })
  end,
  grid = function(file)
    return attempt(sweep.run, errors.on_error, { grid = file, output = "out", dry_run = true, limit = "2000" })
  end,
  results = function()
    return attempt(report.run, errors.on_error, { dir = "dir", compare = "dir", filter = {}, band = "3",
                                                  sort = "us_median", limit = "20" })
  end,
  safetensors = reads(function(file) return read_joined(safetensors(file, "input", host.type_size)) end),
  gguf = reads(read_gguf),
  npy = reads(function(file) return { npy(file, "input", host.type_size) } end),
  npz = reads(function(file) return npz(file, "input", host.type_size) end),
  pytorch = reads(function(file) return pytorch(file, "input") end),
  onnx = reads(read_onnx),
  model = function() return attempt(read_model, errors.on_error) end,
  command = function(file)
    local words = {}
    for line in text:gmatch("[^\n]*") do words[#words + 1] = (line:gsub("FILE", file)) end
    return main(words)
  end,
}

-- The arguments { target, file }: the file holds the input too. Returns the function that runs one.
return function(arguments)
  local target, file = targets[arguments[1]], arguments[2]
  local eval_config, eval_grid = host.eval_config, host.eval_grid
  function host.eval_config(path, depth)
    if path ~= file then return missing(path) end
    return eval_config(path, depth)
  end
  function host.eval_grid(path, axes_of, limit)
    if path ~= file then return missing(path) end
    return eval_grid(path, axes_of, limit)
  end
  function host.read_file(path)
    local found = part(path)
    if not found then return missing(path) end
    return found
  end
  function host.exists(path) return part(path) ~= nil end
  function host.run() return nil, "fuzz: nothing is run" end
  function host.temp_dir() return "temp" end
  host.locked, host.lock, host.write_files, host.remove_file = done, done, done, done
  host.remove_dir, host.print = done, done
  return target and function(input)
    text = input
    local status, message = target(file)
    if status ~= 0 and status ~= 1 and status ~= 2 then error("exit status " .. tostring(status), 0) end
    if message and (message:find("^internal error") or message:find("%c") or #message > 500) then
      error(message, 0)
    end
  end
end
