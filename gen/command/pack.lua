-- `pack`: the packed weights of a kernel, from files of single matrices.

local host = require "host"
local config = require "options.config"
local errors = require "command.errors"
local kernel = require "command.kernel"
local layers = require "model.layers"
local matrices = require "graph.matrices"
local model_text = require "model.text"
local packed_file = require "command.packed_file"
local takes = require "command.takes"
local tensors = require "model.tensors"
local weights = require "command.weights"
local wording = require "base.wording"

local known = {}
for _, name in ipairs(matrices.names) do known[name] = true end
local switches = { ["true"] = true, ["false"] = true } -- alibi and sink are keys of a config too

-- A word that is closest to the name of a matrix; what else is wrong with keys the config says.
local function refuse_misspelt(name, value)
  local ok, e = pcall(config.check_key, name, matrices.names, value)
  if not ok and (type(e) ~= "table" or known[e.meant]) then error(e, 0) end
end

-- The words of a config, and the files by the names of matrices.
local function divide(arguments)
  local keys, files = {}, {}
  for _, argument in ipairs(arguments) do
    local name, value = argument:match("^([^=]*)=(.*)$")
    if known[name] and not switches[value] then
      if files[name] then error({ message = name .. ": is given twice" }, 0) end
      files[name] = value
    else
      if name then refuse_misspelt(name, value) end
      keys[#keys + 1] = argument
    end
  end
  return keys, files
end

-- Tensors of the wanted sizes as parts; those of one row may have any axes.
local function parts_of(cfg, files, in_out)
  local parts, sizes = {}, matrices.sizes(cfg)
  for name in pairs(files) do
    local size = sizes[name]
    if not size or size[1] * size[2] == 0 then error({ message = name .. ": the kernel has no such matrix" }, 0) end
  end
  for name, tensor in pairs(weights.find_tensors(files)) do
    local size = sizes[name]
    local matrix, rows, columns = name:find("^w"), size[1], size[2]
    if not in_out and matrix then rows, columns = columns, rows end
    local part = { tensor = tensor, features = rows, width = columns, blocks = 1, count = rows, first = 0, step = rows }
    layers.by_rows(part)
    if not host.type_size(part.tensor.type) then
      tensors.fail(tensor, "numbers of type %s are not read", errors.show(tensor.type))
    end
    local wanted = { rows, columns }
    local same = rows == 1 and tensors.count(tensor) == columns
      or tensors.shape_text(tensor.shape) == tensors.shape_text(wanted)
    if not same then
      local other = tensors.shape_text(tensor.shape) == tensors.shape_text { columns, rows }
      tensors.fail(tensor, "its shape is %s, and %s must be %s%s", tensors.shape_text(tensor.shape), name,
        tensors.shape_text(rows == 1 and { columns } or wanted),
        other and matrix and ("; see --layout %s"):format(in_out and "out_in" or "in_out") or "")
    end
    parts[name] = part
  end
  local missing = {}
  for _, need in ipairs(matrices.needs(cfg)) do
    if not parts[need.pointer] then missing[#missing + 1] = need.pointer end
  end
  if #missing > 0 then
    error({ message = ("%s %s missing: %s=FILE.npy or %s=FILE.safetensors:TENSOR"):format(table.concat(missing, ", "),
      #missing > 1 and "are" or "is", missing[1], missing[1]) }, 0)
  end
  return parts
end

-- The name of a file; of several, each has the ISA behind the name that is given. Tables have an extension of theirs.
local function file_name(name, packer, several, kind)
  local stem, extension = name:match("^(.+)(%.[^.]*)$")
  if kind == model_text.TABLES then extension = "." .. kind.suffix end
  return (stem or name) .. (several and "_" .. packer.cfg.isa or "") .. (extension or "")
end

-- The files of packers, of weights and of tables: { cfg, packing, kind, file } each.
local function files_of(packers, name)
  local list = {}
  local function add(packer, packing, kind)
    list[#list + 1] = { cfg = packer.cfg, packing = packing, kind = kind,
                        file = file_name(name, packer, #packers > 1, kind) }
  end
  for _, packer in ipairs(packers) do
    add(packer, packer.packing, model_text.PACKED)
    if packer.tables then add(packer, packer.tables, model_text.TABLES) end
    if #list > 1 and list[#list].file == list[#list - 1].file then
      error({ message = ("-o: %s: is the name of the tables; name the packed weights otherwise"):format(
        errors.show(name)) }, 0)
    end
  end
  return list
end

local function run(args)
  if not args.output then error({ message = "missing option '-o'" }, 0) end
  local keys, files = divide(args.config)
  local cfg = kernel.load_config(keys)
  local _, recorded = kernel.files_of(cfg)
  local dir, name = takes.split(args.output)
  local packers, in_out = files_of(kernel.packers(cfg, recorded), name), args.layout == "in_out"
  local parts = parts_of(packers[1].cfg, files, in_out)
  local written, replaced, lines = {}, {}, {}
  for i, packer in ipairs(packers) do
    replaced[i] = { name = packer.file, mark = packed_file.MARK }
    local linked = args.embed and model_text.embedded(packer.cfg.name, packer.file,
                                                      packed_file.bytes(packer.packing.bytes, 1), packer.kind) or {}
    table.move(linked, 1, #linked, #written + 1, written)
  end
  takes.refuse_foreign(dir, table.move(written, 1, #written, #replaced + 1, replaced), args.force)
  local given = weights.read(parts, in_out)
  for i, packer in ipairs(packers) do
    local file = packed_file.new(dir, packer.file, packer.cfg.name, packer.packing)
    local packed = host.pack(packer.packing, given)
    file:add(packed)
    packed:free()
    written[#written + 1] = file:finish()
    lines[i] = ("%s: %s bytes of %s for %s\n"):format(args.output:sub(1, -#name - 1) .. packer.file,
      wording.number(packer.packing.bytes), packer.kind.what, packer.cfg.name)
  end
  errors.must(host.write_files(dir, written))
  if not args.quiet then errors.must(host.print(table.concat(lines))) end
  return 0
end

local function options(cmd)
  cmd:argument("config", "at most one CONFIG.lua, key=value of the config, and NAME=FILE for each matrix")
    :args("*"):argname("<CONFIG.lua, key=value or NAME=FILE>")
  cmd:option("-o --output", "file of packed weights; a bundle has one for each ISA, with _ISA in its name")
    :argname("<FILE>"):overwrite(false)
  cmd:option("--layout", "layout of matrices: out_in is y = x W^T, as in torch.nn.Linear", "out_in")
    :choices { "in_out", "out_in" }
  takes.embed(cmd)
  takes.force(cmd)
  takes.quiet(cmd)
  takes.help_keys(cmd)
end

return {
  name = "pack", run = run, options = options,
  summary = "Write the packed weights of one kernel, from single matrices.",
  about = "Example: mhagen pack minilm.lua wq=wq.npy wk=a.safetensors:key.weight wv=v.npy wo=o.npy -o a.packed\n" ..
    wording.hung("NAME is one of mhagen_weights: ", table.concat(matrices.names, ", ") .. ".", 0) ..
    "\nFILE is FILE.npy, FILE.npz:NAME, FILE.safetensors:TENSOR, FILE.gguf:TENSOR or FILE.bin:TENSOR.",
}
