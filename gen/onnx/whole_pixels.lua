-- What turns pixels into rows in an ONNX graph: a convolution without overlaps, rows of tokens in front, positions. All
-- that is no product is read from the rows of an image of zeros.
--
--   input(find, value) -> the name of the image that a value is made of, or nil
--   embeddings(find, value, name) -> {
--     patches    { tensor, rows, axes = { channels, height, width } } of the product
--     image      { height, width }
--     tokens     numbers of each row in front of those of patches
--     places     numbers that are added to all rows
--     norm       of gen/onnx/whole_layers.lua, or nil }; raises a text that says why it does not know the graph

local constants = require "onnx.constants"
local evaluate = require "onnx.evaluate"
local indices = require "onnx.indices"
local proposal = require "onnx.proposal"
local rows = require "onnx.rows"
local values = require "onnx.values"
local whole_layers = require "onnx.whole_layers"
local wording = require "base.wording"

local M = {}

local all_are, refuse = indices.all_are, proposal.refuse
local AXES = 4 -- of images: [batch][channels][height][width]

function M.input(find, value)
  local plan = evaluate.plan(find.graph, find.elements.shapes, { value }, {})
  local name = plan and #plan.inputs == 1 and plan.inputs[1]
  local shape = name and find.elements.shapes[name]
  return shape and #shape == AXES and name or nil
end

-- The convolution that cuts an image into patches.
local function patches_of(find, value, name)
  local plan, found = evaluate.plan(find.graph, find.elements.shapes, { value }, {}), nil
  for _, node in ipairs(plan.nodes) do
    if node.op == "Conv" then
      if found then refuse("%s and %s are two convolutions", found.name, node.name) end
      found = node
    end
  end
  local t = found and found.attributes or refuse("no convolution makes rows of image %s", wording.short(name))
  local tensor = find.graph.tensors[rows.origin(find, found.inputs[2])]
  local image, shape = find.elements.shapes[name], tensor and tensor.shape or {}
  local plain = #shape == AXES and rows.origin(find, found.inputs[1]) == name and shape[2] == image[2]
    and all_are(t.pads, 0) and all_are(t.dilations, 1) and (t.group or 1) == 1
    and (t.auto_pad or "NOTSET") ~= "SAME_UPPER" and (t.auto_pad or "NOTSET") ~= "SAME_LOWER"
  for k = 1, 2 do plain = plain and (t.strides or { 1, 1 })[k] == shape[k + 2] end
  if not plain then refuse("convolution %s cuts no patches side by side", found.name) end
  local down, across = image[3] // shape[3], image[4] // shape[4]
  return { tensor = tensor, rows = down * across, down = down, across = across,
           axes = { shape[2], shape[3], shape[4] } }
end

-- The rows that the graph makes of an image.
local function rows_of(find, value, name, pixels)
  local plan = evaluate.plan(find.graph, find.elements.shapes, { value }, {})
  local made, why = evaluate.run(plan, find.graph.tools.arrays, { [name] = { at = pixels, integer = false } },
    constants.of)
  return made and made[value] or refuse("%s", why)
end

-- The patches of images times their matrix: [batch * patches][width].
local function product(find, run, made, pixels, image)
  local c, h, w = table.unpack(made.axes)
  local shape = { image[1], made.down, made.across, c, h, w }
  local step = indices.steps_of(image)
  local cut = run:moved(values.value(pixels, image), shape,
    { step[1], step[3] * h, step[4] * w, step[2], step[3], step[4] })
  local depth, columns = c * h * w, made.tensor.shape[1]
  local matrix = run:moved(run:tensor(made.tensor), { depth, columns }, { 1, depth })
  return run:product(values.value(cut.at, { image[1] * made.rows, depth }), matrix)
end

local SIZES = { 1, 0.1, 4 }

-- Compares the rows that the graph makes of drawn images with those of the tables.
local function check(find, value, name, made)
  local run, image = rows.run(find), find.elements.shapes[name]
  local pixels = run.arrays.drawn(1, indices.count(image) // image[4], image[4], 1, SIZES)
  local got = rows_of(find, value, name, pixels)
  local count, width = got.shape[#got.shape - 1], got.shape[#got.shape]
  local first = count - made.patches.rows
  local wanted = run.arrays.numbers(image[1] * count * width, 0.0)
  local of_patches = product(find, run, made.patches, pixels, image)
  local own = made.patches.rows * width
  run.arrays.copy({ image[1], own }, wanted, first * width, { count * width, 1 }, of_patches.at, 0, { own, 1 })
  local list = table.move(made.places, 1, #made.places, 1, {})
  for r, token in ipairs(made.tokens) do
    for i = 1, width do list[(r - 1) * width + i] = list[(r - 1) * width + i] + token[i] end
  end
  local sum = run:apply("add", values.value(wanted, { image[1], count * width }),
    values.value(run.arrays.numbers(list), { 1, count * width }))
  sum = values.value(sum.at, { image[1] * count, width })
  if made.norm then sum = whole_layers.normed(run, made.norm, sum) end
  local largest, off = run:largest(sum), run.arrays.difference(got.at, sum.at)
  if off > rows.near(find) * largest then
    refuse("%s is not the sum of patches, tokens and positions: drawn images differ by %.1e of the largest",
      wording.short(value), off / largest)
  end
end

function M.embeddings(find, value, name)
  local norm, image = find.row_norms[value], find.elements.shapes[name]
  local sum = norm and norm.x or value
  local made = { patches = patches_of(find, sum, name), image = { image[3], image[4] }, tokens = {}, places = {} }
  local run = rows.run(find)
  local zeros = rows_of(find, sum, name, run.arrays.numbers(indices.count(image), 0.0))
  local count, width = zeros.shape[#zeros.shape - 1], zeros.shape[#zeros.shape]
  local first = count - made.patches.rows
  if not count or first < 0 or width ~= made.patches.tensor.shape[1] or first * width > 1 << 20 then
    refuse("%s has not a row for each patch", wording.short(sum))
  end
  local list = run.arrays.list(zeros.at, 0, count * width)
  for i = 1, count * width do made.places[i] = i <= first * width and 0.0 or list[i] end
  for r = 1, first do made.tokens[r] = table.move(list, (r - 1) * width + 1, r * width, 1, {}) end
  made.norm = norm and whole_layers.norm(find, norm, width)
  check(find, value, name, made)
  return made
end

return M
