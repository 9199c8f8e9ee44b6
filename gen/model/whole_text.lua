-- The C of a model from ids to rows, besides its kernels.

local model_text = require "model.text"
local template = require "base.template"
local version = require "base.version"

local UNIT = 16 -- floats to which rows in the workspace are aligned

-- The initializers of kernels, { { kernel, where its packed weights are }, one for each member }, and their headers.
local function kernel_rows(kernels)
  local rows, includes = {}, {}
  for i, entry in ipairs(kernels) do
    local members = {}
    for k, packer in ipairs(entry.packers) do
      includes[#includes + 1] = template.file("include.h.in", { name = packer.cfg.name })
      members[k] = ("{ &%s_kernel, %d }"):format(packer.cfg.name, packer.at)
    end
    rows[i] = "  { " .. table.concat(members, ",\n    ") .. " },"
  end
  return table.concat(rows, "\n"), table.concat(includes)
end

-- Those of layers: { kernel, number of the packed weights }.
local function layer_rows(kernels, layers)
  local number, rows = {}, {}
  for i, entry in ipairs(kernels) do number[entry] = i - 1 end
  for i, layer in ipairs(layers) do rows[i] = ("  { %d, %d },"):format(number[layer.kernel], layer.index) end
  return table.concat(rows, "\n")
end

-- What a sum of embeddings has, with those of the types of ids if there are any.
local function sum_of(embeddings)
  if embeddings.types == 0 then return { types_at = "", type_of = "", sum = "word[i] + place[i]" } end
  return { types_at = template.file("whole_types.c.in", {}), type_of = template.file("whole_type.c.in", {}),
           sum = "word[i] + type[i] + place[i]" }
end

-- Places of the tables in the file.
local function places(embeddings)
  local list = {}
  for i, one in ipairs(embeddings.list) do list[i] = ("%s = %d"):format(one.name:upper(), one.at) end
  return table.concat(list, ", ")
end

-- name: prefix of all names; from: { path, type }; kernels, layers: as gen/model/text.lua has them, with the places
-- `at` of packers in the file; embeddings, layout: of gen/command/whole.lua.
return function(name, from, kernels, layers, embeddings, layout)
  local rows, workspace = 0, 0
  for _, entry in ipairs(kernels) do
    rows, workspace = math.max(rows, entry.cfg.seq), math.max(workspace, entry.workspace_bytes)
  end
  local row_floats = (rows * embeddings.width + UNIT - 1) // UNIT * UNIT
  local function file(template_name, more)
    more.name, more.NAME, more.version, more.what = name, name:upper(), version, model_text.WHOLE
    more.from = model_text.plain(("%s (%s)"):format(from.path, from.type))
    return template.file(template_name, more)
  end
  local initializers, includes = kernel_rows(kernels)
  local source = {
    includes = includes, members = tostring(#kernels[1].packers), kernels = tostring(#kernels),
    kernel_rows = initializers, layer_rows = layer_rows(kernels, layers), tables = places(embeddings),
    fingerprint = layout.fingerprint, blob_bytes = ("%d"):format(layout.bytes), eps = ("%.17g"):format(embeddings.eps),
    first_place = tostring(embeddings.first_place), row_floats = tostring(row_floats) }
  for key, text in pairs(sum_of(embeddings)) do source[key] = text end
  local normed = template.file(embeddings.last and "whole_last_norm.c.in" or "whole_norm.c.in", {})
  source.norm, source.last_norm = embeddings.last and "" or normed, embeddings.last and normed or ""
  local also = model_text.mark(name, model_text.LAYERS)
  return {
    { name = name .. ".h", also = also, text = file("whole.h.in", {
      rows = tostring(rows), width = tostring(embeddings.width), vocabulary = tostring(embeddings.vocabulary),
      types = tostring(embeddings.types), layers = tostring(#layers), padding = tostring(embeddings.first_place - 1),
      packed_bytes = ("%d"):format(layout.file_bytes),
      workspace_bytes = ("%d"):format(2 * 4 * row_floats + workspace) }) },
    { name = name .. ".c", also = also, text = file("whole.c.in", source) },
  }
end
