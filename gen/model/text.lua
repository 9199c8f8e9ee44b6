-- C files of a model besides its kernels: the table of its layers, and packed weights to link.

local template = require "base.template"
local version = require "base.version"

local M = {}

-- A text as a literal of C.
local function literal(text)
  return '"' .. text:gsub('[%c"\\\x7f-\xff?]', function(c) return ("\\%03o"):format(c:byte()) end) .. '"'
end

-- What stands in a comment.
local function plain(text) return (text:gsub("[^%w ._()-]", "?")) end

-- The files that link a file of packed weights, of so many bytes, into a program.
function M.embedded(name, file, bytes)
  return {
    { name = name .. "_packed.h", text = template.file("packed.h.in", {
      name = name, version = version, bytes = tostring(bytes) }) },
    { name = name .. "_packed.S", text = template.file("packed.S.in", {
      name = name, version = version, file = literal(file) }) },
  }
end

local function row(name, embed)
  local words = { ("&%s_kernel"):format(name), "\n    " .. literal(name .. ".packed") }
  if embed then words[3] = ("\n    %s_packed,\n    sizeof %s_packed"):format(name, name) end
  return "  { " .. table.concat(words, ",") .. " },"
end

-- name: prefix of all names; from: { path, type }; kernels: { cfg, packers = { { cfg }, .. } } each; layers: { name,
-- kernel, index } each in order. embed: whether the rows have the packed weights too.
function M.table(name, from, kernels, layers, embed)
  local includes, kernel_rows, layer_rows, at = {}, {}, {}, {}
  local function include(header) includes[#includes + 1] = template.file("include.h.in", { name = header }) end
  for i, entry in ipairs(kernels) do
    at[entry.cfg.name] = i
    if #entry.packers > 1 then include(entry.cfg.name) end
    for _, packer in ipairs(entry.packers) do
      include(packer.cfg.name)
      if embed then include(packer.cfg.name .. "_packed") end
      kernel_rows[#kernel_rows + 1] = row(packer.cfg.name, embed)
    end
  end
  for i, layer in ipairs(layers) do
    layer_rows[i] = ("  { %s, %d, %d },"):format(literal(layer.name), at[layer.kernel.cfg.name] - 1, layer.index)
  end
  local head = { name = name, NAME = name:upper(), version = version,
                 from = plain(("%s (%s)"):format(from.path, from.type)) }
  local function with(more)
    for key, value in pairs(head) do more[key] = value end
    return more
  end
  return {
    { name = name .. ".h", text = template.file("model.h.in", with {
      kernels = tostring(#kernels), members = tostring(#kernels[1].packers), layers = tostring(#layers),
      includes = table.concat(includes),
      fields = embed and template.file("row_packed.h.in", {}) or "" }) },
    { name = name .. ".c", text = template.file("model.c.in", with {
      kernels = table.concat(kernel_rows, "\n"), layers = table.concat(layer_rows, "\n") }) },
  }
end

-- What the operators of ONNX Runtime take of this table; source: which file the model was.
function M.onnxruntime(name, source, layers)
  local inputs = {}
  for i, layer in ipairs(layers) do
    local ends, axes = layer.ends, {}
    for k, name in ipairs { "q", "k", "v", "mask", "y" } do
      axes[k] = ends.args[name] and ends.axes[name] and literal(ends.axes[name]) or "NULL"
    end
    inputs[i] = ("  { { %s }, %d },"):format(table.concat(axes, ", "), ends.mask_hidden and 1 or 0)
  end
  return { name = name .. "_onnxruntime.c", text = template.file("onnxruntime.c.in", {
    name = name, NAME = name:upper(), version = version, source = literal(source),
    inputs = table.concat(inputs, "\n") }) }
end

return M
