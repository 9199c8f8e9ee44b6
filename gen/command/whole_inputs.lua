-- What a whole model makes of pixels, or of features of sound, before its layers: products of rows that are gathered
-- from its input, rows of tokens, positions and a norm. `inputs` of gen/model/whole_families.lua says which.

local host = require "host"
local errors = require "command.errors"
local layers = require "model.layers"
local resized = require "model.resized"
local whole_product = require "command.whole_product"

local M = {}

local MOST = 1 << 14 -- as gen/model/whole_images.lua has it of fields

-- The height and the width that the option --image says.
function M.size(text)
  local height, width = text:match "^(%d+)x(%d+)$"
  local size = { tonumber(height or text:match "^%d+$"), tonumber(width or text:match "^%d+$") }
  for i = 1, 2 do
    if not size[i] or size[i] < 1 or size[i] > MOST then
      error({ message = ("--image %s: must be a number from 1 to %d, or two such as 224x280"):format(
        errors.show(text), MOST) }, 0)
    end
  end
  return size
end

-- Takes what the model's row says of its input, and gives its layers their number of rows.
-- size: of images, as the user says it, or nil.
function M.begin(model, size)
  local whole, keys = model.whole, model.whole.keys
  if size and not whole.resized then
    error({ message = ("--image: type %s takes what its config.json says"):format(model.type) }, 0)
  end
  whole.made = whole.inputs(model.fields, size and M.size(size))
  function whole.keys(c, i)
    local all = keys(c, i)
    all.seq = whole.made.rows
    return all
  end
end

-- Adds the kernel of a product; part: of M.add.
local function add_product(kernels, given, width, of, part)
  local depth = 1
  for _, size in ipairs(of.axes) do depth = depth * size end
  local weights = { wo = part(of.module .. ".weight", width, depth, { width, table.unpack(of.axes) }) }
  weights.bo = of.bias and part(of.module .. ".bias", width)
  local size = { rows = of.rows, depth = depth, width = width, act = of.act }
  local entry = whole_product.add(kernels, given, size, { { name = of.module, weights = weights } })
  entry.gathered = of.rows * depth
  return entry
end

-- Adds the positions of a square of patches, of which others are made. placed: rows that have some.
local function add_resized(add, made, placed, width)
  local of = made.resize
  local places = add("places", made.places, (of.first + of.side * of.side) * width)
  of.width, places.floats = width, placed * width
  function places.part.change(list) return resized(list, of) end
end

-- Finds tables and products as M.surround of gen/command/whole.lua does it.
function M.add(model, kernels, all, given)
  local whole, prefix, cfg = model.whole, all[1].prefix, all[1].cfg
  local made, width, list, tokens, products = whole.made, all[1].cfg.y_width, {}, {}, {}
  model.read = {}
  local function part(name, count, columns, shape)
    model.read[prefix .. name] = true
    return layers.part(model, prefix .. name, count, columns, host.type_size, shape and { shape = shape })
  end
  local function add(name, ...)
    list[#list + 1] = { name = name, part = part(...) }
    return list[#list]
  end
  local function add_table(name, module, rows)
    local tensor = model.tensors[prefix .. module]
    add(name, module, rows, width, tensor and #tensor.shape == 3 and { 1, rows, width } or nil)
  end
  for i, name in ipairs(made.tokens) do
    tokens[i] = add("token" .. i, name, width)
    tokens[i].token = true
  end
  if made.registers then add_table("registers", made.registers.name, made.registers.rows) end
  local placed = made.rows - (made.registers and made.registers.rows or 0)
  if made.resize then add_resized(add, made, placed, width)
  else add_table("places", made.places, placed) end
  local function add_norm(before, module)
    add(before .. "gains", module .. ".weight", width)
    add(before .. "biases", module .. ".bias", width)
  end
  if made.norm then add_norm("first_", made.norm) end
  add_norm("", whole.last)
  for i, of in ipairs(made.products) do products[i] = add_product(kernels, given, width, of, part) end
  model.embeddings = { list = list, width = width, eps = cfg.layer_eps, last = true, norm_kind = "layer",
                       biased = true, first_place = 0, types = 0, inputs = made, tokens = tokens, products = products }
end

return M
