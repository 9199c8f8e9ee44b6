-- `model`: the kernels, the packed weights and a table of the attention layers of a model.

local host = require "host"
local build = require "command.build"
local config = require "options.config"
local constant_mask = require "onnx.constant_mask"
local errors = require "command.errors"
local fixed = require "onnx.fixed"
local json = require "base.json"
local kernel = require "command.kernel"
local layers = require "model.layers"
local layers_around = require "command.layers_around"
local matrices = require "graph.matrices"
local model_text = require "model.text"
local onnxruntime = require "command.onnxruntime"
local options = require "options.init"
local packed_file = require "command.packed_file"
local shell = require "base.shell"
local summary = require "command.model_summary"
local source = require "model.source"
local tables = require "command.tables"
local takes = require "command.takes"
local unread = require "model.unread"
local weights = require "command.weights"
local whole = require "command.whole"
local whole_inputs = require "command.whole_inputs"
local whole_tables = require "command.whole_tables"

local must = errors.must

local function append(list, more) table.move(more, 1, #more, #list + 1, list) end

-- ---- configs ----

-- The keys that are given, but for those of the layers themselves.
local function given_keys(arguments)
  local given = {}
  for _, argument in ipairs(arguments) do
    local key = argument:match("^([^=]*)=")
    if not key then
      kernel.refuse_word(argument, "an option")
      error({ message = errors.show(argument) .. ": is no key=value" }, 0)
    end
    if key == "name" then error({ message = "name: kernels are named by their keys; --name is for the table" }, 0) end
    if given[key] then error({ key = key, value = argument:match("=(.*)$"), rule = "is given twice" }, 0) end
    given[key] = argument:match("=(.*)$")
  end
  return given
end

local off = { none = true, ["false"] = true }

-- Whether a key says more of others that are switched off.
local function is_idle(key, given)
  local beside = options.list[key].beside
  for _, other in ipairs(beside or {}) do
    local name, but = other, nil
    if type(other) == "table" then name, but = other.key, other.but end
    if not off[given[name]] and not (but and given[but[1]] == but[2]) then return false end
  end
  return beside ~= nil
end

-- The config of a layer: the keys of the model, but where others are given. Of a layer's own keys those of the model.
local function config_of(layer, arguments, given)
  local all, own = {}, layer.own or {}
  for _, word in ipairs(arguments) do
    if not own[word:match("^[^=]*")] then all[#all + 1] = word end
  end
  for _, word in ipairs(layer.keys) do
    local key = word:match("^[^=]*")
    if (own[key] or not given[key]) and not is_idle(key, given) then all[#all + 1] = word end
  end
  local ok, cfg = pcall(kernel.load_config, all)
  if ok then return cfg end
  if type(cfg) ~= "table" then error(cfg, 0) end
  error({ message = ("layer %s: %s"):format(layer.name, errors.one_line(cfg)) }, 0)
end

-- ---- the command ----

-- Refuses --image where nothing depends on the size of images.
local function refuse_image(model, all)
  if not model.image then return end
  for _, layer in ipairs(all) do
    if layer.angles and layer.angles.image then return end
  end
  error({ message = "--image is made with --whole, or of layers whose angles are those of places in an image" }, 0)
end

-- The layers whose names have the text, with their configs.
local function layers_of(model, args, given)
  local found, left = model:layers(given)
  local all = {}
  model.left = not args.whole and left or {} -- of a whole model other lines say what is left out
  for _, layer in ipairs(found) do
    if not args.only or args.whole or layer.name:find(args.only, 1, true) then all[#all + 1] = layer end
  end
  if #all == 0 then error({ message = ("--only: no layer's name has %s"):format(errors.show(args.only)) }, 0) end
  refuse_image(model, all)
  if args.onnxruntime then onnxruntime.add_keys(model, all, given)
  elseif model.graph then fixed.add(model.graph, all, given) end
  local function reconfigured(layer) return config_of(layer, args.config, given) end
  if model.graph and given.rope_at == "run" then
    error({ key = "rope_at", value = "run", rule = "is not for ONNX files, whose graphs have angles; leave it out" }, 0)
  end
  tables.place(all, given)
  for _, layer in ipairs(all) do layer.cfg = reconfigured(layer) end
  tables.choose(all, given, reconfigured, model.whole)
  return args.onnxruntime and onnxruntime.choose(model, all, given) or all
end

-- Refuses a key that is given and asks for a matrix that the layer has not, unless it is the model's own.
local function refuse_absent(layer, given)
  local own = {}
  for _, word in ipairs(layer.keys) do own[word] = true end
  for _, of in ipairs(matrices.of(layer.cfg)) do
    local name, key = of.matrix.name, of.matrix.key
    local value = key and given[key]
    if value and not layer.weights[name] and not own[key .. "=" .. value] then
      error({ key = key, value = value, rule = ("asks for %s, which layer %s has not; `mhagen pack` packs matrices")
        :format(name, layer.name) }, 0)
    end
  end
end

-- The layers with the parts of their weights: kernels in the order in
-- which they come, each { cfg, layers }. Nothing is written yet, and no weights are read.
local function plan(model, args)
  local given = given_keys(args.config)
  if args.whole then whole.take_keys(model, given) end
  local kernels, all = {}, layers_of(model, args, given)
  for _, layer in ipairs(all) do
    local cfg = layer.cfg
    layer.weights = layers.weights(model, layer, cfg, host.type_size)
    refuse_absent(layer, given)
    local entry = kernels[cfg.name]
    if entry and config.canonical(entry.cfg) ~= config.canonical(cfg) then
      error({ message = ("layer %s: another kernel has the name %s too; take it alone, by --only"):format(
        layer.name, cfg.name) }, 0)
    end
    if not entry then
      entry = { cfg = cfg, layers = {} }
      kernels[#kernels + 1], kernels[cfg.name] = entry, entry
    end
    entry.layers[#entry.layers + 1] = layer
    layer.kernel = entry
  end
  if args.whole then whole.surround(model, kernels, all, given, args.embeddings) end
  unread.refuse(model, all, args.ignore)
  return kernels, all
end

-- The place of what is packed of a layer in the files of a list of packers, and whether it is new there.
local function place_of(packers, own)
  local known = packers.known
  if known[own] then return known[own], false end
  known[own], known.places = known.places, known.places + 1
  for _, packer in ipairs(packers) do packer.layers = known.places end
  return known[own], true
end

-- Gives each layer its place in the files of its kernel, and what angles of rope are made of. Layers with the same
-- weights have one place; `first` is the layer that is packed there. The same of tables, for first_tables.
local function share(kernels)
  for _, entry in ipairs(kernels) do
    local packers, apart = entry.packers, entry.tables
    for _, layer in ipairs(entry.layers) do
      layer.turns = weights.turns(layer, entry.cfg, (packers[1].tables or packers[1].packing).turns)
      local own = apart and source(layer, nil, false) or source(layer, layer.turns)
      layer.index, layer.first = place_of(packers, own)
      if apart then layer.tables, layer.first_tables = place_of(apart, source(layer, layer.turns, true)) end
    end
  end
end

-- The files of all kernels, each once; and all packers, of weights and of tables, which get the name of their file.
local function generate(kernels)
  local files, packers, seen, sets = {}, {}, {}, {}
  for _, entry in ipairs(kernels) do
    local made, recorded = kernel.files_of(entry.cfg)
    entry.packers = kernel.packers(entry.cfg, recorded)
    entry.packers.known, entry.workspace_bytes, entry.cache_bytes = { places = 0 }, 0, 0
    for _, one in ipairs(recorded) do
      entry.workspace_bytes = math.max(entry.workspace_bytes, one.plan.workspace_bytes)
      entry.cache_bytes = math.max(entry.cache_bytes, one.plan.cache_bytes)
    end
    for _, packer in ipairs(entry.packers) do
      packer.name, packer.kind = packer.cfg.name .. ".packed", model_text.PACKED
    end
    entry.tables = tables.of(entry, sets)
    append(packers, entry.packers)
    append(packers, entry.tables and entry.tables.owner == entry and entry.tables or {})
    for _, file in ipairs(made) do
      if not seen[file.name] then files[#files + 1], seen[file.name] = file, true end
    end
  end
  return files, packers
end

-- Files of the masks that no input changes. Each layer that has one gets its name, and a note.
local function mask_files(all, args)
  local files, known = {}, {}
  for _, layer in ipairs(args.onnxruntime and {} or all) do
    local text = layer.found and layer.found.mask_file(layer.cfg)
    if text and not known[text] then
      known[text] = ("%s_mask%d.npy"):format(args.name, #files)
      files[#files + 1] = { name = known[text], text = text, mark = constant_mask.MARK }
    end
    if text then
      layer.mask_file = known[text]
      table.insert(layer.notes, ("its mask depends on no input: args.mask is %s from byte 128 on"):format(known[text]))
    end
  end
  return files
end

local SOON = 2 -- seconds between lines that say how far it is

-- Packs what is new in a layer, for each CPU; returns how many bytes that are.
local function pack_layer(layer)
  local packers, done = {}, 0
  append(packers, layer.first and layer.kernel.packers or {})
  append(packers, layer.first_tables and layer.kernel.tables or {})
  weights.pack(packers, layer, function(packer, packed)
    packer.file:add(packed)
    done = done + #packed
  end)
  return done
end

-- Says from time to time how many layers are packed: the function of that and of all.
local function progress(args)
  local told = host.clock()
  return function(done, all)
    if args.quiet or args.values or host.clock() - told <= SOON then return end
    told = host.clock()
    must(host.print(("packed %d of %d layers\n"):format(done, all)))
  end
end

-- Packs all layers, into a file for each packer; returns the files, and how many bytes that are.
local function pack_layers(all, packers, args)
  local tell, done, files = progress(args), 0, {}
  for _, packer in ipairs(packers) do
    packer.file = packed_file.new(args.output, packer.name, packer.cfg.name, packer.packing)
  end
  for i, layer in ipairs(all) do
    done = done + pack_layer(layer)
    tell(i, #all)
  end
  for i, packer in ipairs(packers) do files[i] = packer.file:finish() end
  return files, done
end

-- A line of JSON for each layer that has values of a graph: those that are its arguments. Also for each node that is
-- no layer.
local function values_of(model, all)
  local lines = {}
  for _, layer in ipairs(all) do
    local values = layer.values and layer:values()
    if values then
      values.config = config.canonical(layer.cfg)
      lines[#lines + 1] = json.encode(values)
    end
  end
  for _, node in ipairs(model.left) do
    lines[#lines + 1] = json.encode { no_layer = node.name, why = node.why }
  end
  return table.concat(lines, "\n") .. "\n"
end

local function compile_line(args, files, cfg)
  local emulated = build.emulated(cfg)
  return shell.line(build.joined({ emulated and emulated.cc or "cc", "-O2", "-c" },
    args.embed and { "-I", args.output } or {},
    build.sources(args.output, files, function() return true end)))
end

-- What the files say that a model was.
local function source_of(model, args)
  return { path = args.path:match("([^/]+)/*$") or args.path, type = model.type }
end

-- The rest of the command for a whole model.
local function run_whole(model, args, kernels, all, files, start)
  local embeddings = model.embeddings
  local layout = whole.layout(kernels, all, embeddings)
  append(files, whole.texts(args.name, source_of(model, args), kernels, all, embeddings, layout))
  if args.single then files = whole.joined(args.name, files) end
  if args.cxx then files[#files + 1] = kernel.cxx() end
  local packed = args.name .. ".packed"
  append(files, args.embed and model_text.embedded(args.name, packed, layout.file_bytes, model_text.PACKED) or {})
  local written = { { name = packed, mark = packed_file.MARK }, table.unpack(files) }
  takes.refuse_foreign(args.output, written, args.force)
  local packing = host.clock()
  files[#files + 1] = whole.pack(args, kernels, embeddings, layout, progress(args))
  packing = build.seconds_since(packing)
  must(host.write_files(args.output, files))
  if args.quiet then return 0 end
  must(host.print(summary(model, all, kernels, { bytes = layout.bytes, packing = packing,
    seconds = build.seconds_since(start), compile = compile_line(args, files, kernels[1].cfg) })))
  return 0
end

local function run(args)
  if not args.output then error({ message = "missing option '-o'" }, 0) end
  local start = host.clock()
  kernel.refuse_key(args.path, "PATH")
  args.embed = args.embed or args.onnxruntime
  local model = weights.open_model(args.path)
  if args.single and not args.whole then error({ message = "--single is made with --whole, or by mhagen gen" }, 0) end
  for _, name in ipairs { "embeddings", "no_head" } do
    if args[name] and not args.whole then
      error({ message = ("--%s is made with --whole"):format((name:gsub("_", "-"))) }, 0)
    end
  end
  if args.image and not args.whole then model.image = whole_inputs.size(args.image) end
  if args.layers and args.whole then
    error({ message = "--layers and --whole: a whole model has whole layers; give one of them" }, 0)
  end
  if args.whole then whole.begin(model, args) elseif args.layers then layers_around.begin(model) end
  local kernels, all = plan(model, args)
  local files, packers = generate(kernels)
  share(kernels)
  if args.whole then return run_whole(model, args, kernels, all, files, start) end
  if args.onnxruntime then onnxruntime.check_size(packers) end
  if args.cxx then files[#files + 1] = kernel.cxx() end
  append(files, model_text.table(args.name, source_of(model, args), kernels, all, args.embed))
  append(files, mask_files(all, args))
  local written = {}
  for i, packer in ipairs(packers) do
    append(files, args.embed and model_text.embedded(packer.cfg.name, packer.name, packed_file.bytes(
      packer.packing.bytes, packer.layers), packer.kind) or {})
    written[i] = { name = packer.name, mark = packed_file.MARK }
  end
  append(files, args.onnxruntime and onnxruntime.sources(model, args, all) or {})
  append(written, files)
  append(written, args.onnxruntime and onnxruntime.marks(model, args) or {})
  takes.refuse_foreign(args.output, written, args.force)
  local packing = host.clock()
  local packed, bytes = pack_layers(all, packers, args)
  packing = build.seconds_since(packing)
  append(files, packed)
  append(files, args.onnxruntime and onnxruntime.graph_files(model, args) or {})
  must(host.write_files(args.output, files))
  if args.values then must(host.print(values_of(model, all))) end
  local compile = args.onnxruntime and onnxruntime.compile(args, files, kernels[1].cfg)
    or compile_line(args, files, kernels[1].cfg)
  if args.quiet or args.values then return 0 end
  must(host.print(summary(model, all, kernels, {
    bytes = bytes, packing = packing, seconds = build.seconds_since(start),
    compile = compile })))
  return 0
end

local function add_options(cmd)
  cmd:argument("path", "a folder with config.json and model.safetensors, a GGUF or an ONNX file"):argname("<PATH>")
  cmd:argument("config", "keys of a config, which win over those of the model; isa and seq are required")
    :args("*"):argname("<key=value>")
  cmd:option("-o --output", "output directory, created if missing"):argname("<DIR>"):overwrite(false)
  cmd:option("--name", "name of the table of layers: NAME.h, NAME.c, NAME_layers", "model"):argname("<NAME>")
    :convert(takes.number("--name", "^[%a_][%w_]*$", "a C identifier"))
  cmd:option("--only", "take only layers with this text in their names, such as encoder."):argname("<TEXT>")
  cmd:option("--ignore", "ignore this field or tensor, although it may change attention; repeatable")
    :argname("<NAME>"):count("*")
  cmd:flag("--layers", "of an ONNX file: kernels of whole layers, with norms, residual and feed-forward")
  cmd:flag("--whole", "write the whole model, from ids or pixels on, and one file of weights, NAME.packed")
  cmd:flag("--single", "with --whole: write all its C as one NAME.c and one NAME.h")
  cmd:option("--image", "height and width of images, where these matter, as 224x280; default: the model's")
    :argname("<SIZE>")
  cmd:option("--embeddings", "with --whole: type of the table of words: " .. table.concat(whole_tables.NAMES, ", "))
    :argname("<TYPE>"):choices(whole_tables.NAMES)
  cmd:flag("--no-head", "with --whole: leave out what an encoder has behind its last rows")
  cmd:flag("--onnxruntime", "also write NAME.onnx and libNAME.so for ONNX Runtime; $CC compiles the library")
  takes.embed(cmd)
  takes.cxx(cmd)
  takes.force(cmd)
  takes.quiet(cmd)
  cmd:flag("--values", "print a line of JSON for each layer instead: its values of an ONNX graph")
  takes.help_keys(cmd, "Exit status: 0 done, 2 the command line or a file is wrong; nothing is written then.",
    { h = true, d_model = true, dk = true })
end

return {
  name = "model", run = run, options = add_options,
  summary = "Write the kernels and the packed weights of a model's attention.",
  about = "Example: mhagen model MiniLM/ isa=avx2 seq=128 -o out\n" ..
    "It writes a kernel for each distinct config, its NAME.packed of weights, and model.h, a table of the layers.",
}
