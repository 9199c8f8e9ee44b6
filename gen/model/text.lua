-- C files of a model besides its kernels: the table of its layers, and packed weights to link.

local template = require "base.template"
local version = require "base.version"

local M = {}

-- A text as a literal of C.
local function literal(text)
  return '"' .. text:gsub('[%c"\\\x7f-\xff?]', function(c) return ("\\%03o"):format(c:byte()) end) .. '"'
end

-- What stands in a comment.
function M.plain(text) return (text:gsub("[^%w ._()-]", "?")) end

-- What a file of a kernel has: packed weights, or tables of rope.
M.PACKED = { suffix = "packed", what = "packed weights" }
M.TABLES = { suffix = "tables", what = "tables of rope" }

local LARGE = 1 << 29 -- bytes from which on a file has a section for large data: old assemblers of clang know none

-- The files that link a file of packed weights or tables of a kernel, of so many bytes, into a program.
function M.embedded(name, file, bytes, kind)
  local symbol = ("%s_%s"):format(name, kind.suffix)
  local function made(as, more)
    more.name, more.version, more.symbol, more.what = name, version, symbol, kind.what
    return { name = symbol .. as, text = template.file("packed" .. as .. ".in", more) }
  end
  local large = bytes >= LARGE and "1" or "0"
  return { made(".h", { bytes = tostring(bytes) }), made(".S", { file = literal(file), large = large }) }
end

-- The row of a packer; embed: with what is in its files; apart: with its tables.
local function row(packer, embed, apart)
  local words = { ("&%s_kernel"):format(packer.cfg.name) }
  local function add(file)
    local symbol = file and ("%s_%s"):format(file.cfg.name, file.kind.suffix)
    words[#words + 1] = file and literal(file.name) or "NULL"
    if embed then words[#words + 1] = file and ("%s,\n    sizeof %s"):format(symbol, symbol) or "NULL,\n    0" end
  end
  add(packer)
  if apart then add(packer.of_tables) end
  return "  { " .. table.concat(words, ",\n    ") .. " },"
end

-- Whether a kernel has tables that are apart.
local function any_tables(kernels)
  for _, entry in ipairs(kernels) do
    if entry.tables then return true end
  end
  return false
end

-- What the files have more then; else nothing.
local function tables_texts(name, apart, embed)
  if not apart then return { row = "", layer = "", doc = "", some = "" } end
  local linked = embed and template.file("row_tables_linked.h.in", {}) or ""
  return { row = template.file("row_tables.h.in", { tables = linked }),
           layer = template.file("layer_tables.h.in", {}), doc = ", tables",
           some = template.file("some_tables.h.in", { NAME = name:upper() }) }
end

-- name: prefix of all names; from: { path, type }; kernels: { cfg, packers, tables } each, a packer being { cfg, name,
-- kind, of_tables }: its file, and that of its tables or nil; layers: { name, kernel, index, tables } each in order.
-- embed: whether the rows have the bytes of the files too.
function M.table(name, from, kernels, layers, embed)
  local includes, kernel_rows, layer_rows, at, apart = {}, {}, {}, {}, any_tables(kernels)
  local more = tables_texts(name, apart, embed)
  local function include(header) includes[#includes + 1] = template.file("include.h.in", { name = header }) end
  for i, entry in ipairs(kernels) do
    at[entry.cfg.name] = i
    if #entry.packers > 1 then include(entry.cfg.name) end
    for _, packer in ipairs(entry.packers) do
      include(packer.cfg.name)
      for _, file in ipairs(embed and { packer, packer.of_tables } or {}) do
        include(("%s_%s"):format(file.cfg.name, file.kind.suffix))
      end
      kernel_rows[#kernel_rows + 1] = row(packer, embed, apart)
    end
  end
  for i, layer in ipairs(layers) do
    layer_rows[i] = ("  { %s, %d, %d%s },"):format(literal(layer.name), at[layer.kernel.cfg.name] - 1, layer.index,
      apart and (", %d"):format(layer.tables or 0) or "")
  end
  local head = { name = name, NAME = name:upper(), version = version,
                 from = M.plain(("%s (%s)"):format(from.path, from.type)) }
  local function with(more)
    for key, value in pairs(head) do more[key] = value end
    return more
  end
  return {
    { name = name .. ".h", text = template.file("model.h.in", with {
      kernels = tostring(#kernels), members = tostring(#kernels[1].packers), layers = tostring(#layers),
      includes = table.concat(includes),
      packed = embed and template.file("row_packed.h.in", {}) or "",
      tables = more.row, place = more.layer, some = more.some }) },
    { name = name .. ".c", text = template.file("model.c.in", with {
      kernels = table.concat(kernel_rows, "\n"), layers = table.concat(layer_rows, "\n"), tables = more.doc }) },
  }
end

-- What the operators of ONNX Runtime take of this table; source: which file the model was.
function M.onnxruntime(name, source, layers)
  local inputs, kernels = {}, {}
  for i, layer in ipairs(layers) do
    local ends, axes = layer.ends, {}
    kernels[i] = layer.kernel
    for k, name in ipairs { "q", "k", "v", "mask", "y" } do
      axes[k] = ends.args[name] and ends.axes[name] and literal(ends.axes[name]) or "NULL"
    end
    inputs[i] = ("  { { %s }, %d },"):format(table.concat(axes, ", "), ends.mask_hidden and 1 or 0)
  end
  return { name = name .. "_onnxruntime.c", text = template.file("onnxruntime.c.in", {
    name = name, NAME = name:upper(), version = version, source = literal(source),
    tables = any_tables(kernels) and template.file("onnxruntime_tables.c.in", {}) or "",
    inputs = table.concat(inputs, "\n") }) }
end

return M
