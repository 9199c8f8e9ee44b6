-- What a whole model makes of pixels, or of features of sound, before its layers: products of rows that are gathered
-- from its input, rows of tokens, positions and a norm. `inputs` of gen/model/whole_families.lua says which.

local host = require "host"
local errors = require "command.errors"
local image_processor = require "model.image_processor"
local layers = require "model.layers"
local resized = require "model.resized"
local weights = require "command.weights"
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

-- Files that say what a processor makes of images, and the object of it within.
local PROCESSORS = { { "preprocessor_config.json" }, { "processor_config.json", "image_processor" } }

local function read_processor(model, channels)
  for _, row in ipairs(PROCESSORS) do
    local path = model.data .. "/" .. row[1]
    local c = host.exists(path) and weights.fields_of(path)
    if c and row[2] then c = c:object(row[2]) end
    if c then return image_processor.of(c, channels), row[1] end
  end
end

-- Finds how pixels are normalized, which is the caller's work: made.processor, and words about it for the summary.
local function add_processor(model, made)
  local ok, found, file = pcall(read_processor, model, made.values.channels)
  if not ok then
    if type(found) ~= "table" or not found.message then error(found, 0) end
    model.pixels = found.message .. ", so the header does not say how pixels are normalized"
  elseif found then
    local height, width = made.values.image_height, made.values.image_width
    made.processor, found.file = found, file
    model.pixels = ("the header has scale, mean and deviation of %s"):format(file)
    if found.height and (found.height ~= height or found.width ~= width) then
      model.pixels = model.pixels .. ("; it makes images of %dx%d, and the program takes %dx%d"):format(found.height,
        found.width, height, width)
    end
  end
end

-- Takes what the model's row says of its input, and gives its layers their number of rows.
-- size: of images, as the user says it, or nil.
function M.begin(model, size)
  local whole, keys = model.whole, model.whole.keys
  if size and not whole.resized then
    error({ message = ("--image: type %s takes what its config.json says"):format(model.type) }, 0)
  end
  whole.made = whole.inputs(model.fields, size and M.size(size))
  if whole.made.input == "pixels" then add_processor(model, whole.made) end
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
  local own = { wo = part(of.module .. ".weight", width, depth, { width, table.unpack(of.axes) }) }
  own.bo = of.bias and part(of.module .. ".bias", width)
  local size = { rows = of.rows, depth = depth, width = width, act = of.act }
  local entry = whole_product.add(kernels, given, size, { { name = of.module, weights = own } })
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
