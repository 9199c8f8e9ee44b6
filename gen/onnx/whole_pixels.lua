-- What turns pixels into rows in an ONNX graph: patches side by side that a matrix multiplies, rows of tokens in front,
-- positions. All that is no product is read from the rows of an image of zeros. The matrix is that of a convolution; in
-- other graphs, as those that normalize pixels or have products of their own, it is what they make of single pixels.
--
--   input(find, value) -> the name of the image that a value is made of, or nil
--   embeddings(find, value, name) -> {
--     patches    { tensor or numbers [width][pixels of a patch], rows, down, across, width, axes = { channels, height,
--                width } } of the product
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

-- The convolution that cuts an image into patches, or nil.
local function convolution_of(find, value, name)
  local plan, found, count = evaluate.plan(find.graph, find.elements.shapes, { value }, {}), nil, 0
  for _, node in ipairs(plan.nodes) do
    if node.op == "Conv" then found, count = node, count + 1 end
  end
  if count ~= 1 then return nil end
  local t = found.attributes
  local tensor = find.graph.tensors[rows.origin(find, found.inputs[2])]
  local image, shape = find.elements.shapes[name], tensor and tensor.shape or {}
  local plain = #shape == AXES and rows.origin(find, found.inputs[1]) == name and shape[2] == image[2]
    and all_are(t.pads, 0) and all_are(t.dilations, 1) and (t.group or 1) == 1
    and (t.auto_pad or "NOTSET") ~= "SAME_UPPER" and (t.auto_pad or "NOTSET") ~= "SAME_LOWER"
  for k = 1, 2 do plain = plain and (t.strides or { 1, 1 })[k] == shape[k + 2] end
  if not plain then return nil end
  local down, across = image[3] // shape[3], image[4] // shape[4]
  return { tensor = tensor, width = shape[1], rows = down * across, down = down, across = across,
           axes = { shape[2], shape[3], shape[4] } }
end

-- The rows that the graph makes of an image.
local function rows_of(find, value, name, pixels)
  local plan = evaluate.plan(find.graph, find.elements.shapes, { value }, {})
  local made, why = evaluate.run(plan, find.graph.tools.arrays, { [name] = { at = pixels, integer = false } },
    constants.of)
  return made and made[value] or refuse("%s", why)
end

-- ---- a matrix of single pixels ----

local MOST_RUNS = 1 << 6

-- The sizes of so many patches that an image may be cut into, square ones first.
local function sizes_of(image, count)
  local list = {}
  for down = 1, count do
    local across = count // down
    if down * across == count and image[3] % down == 0 and image[4] % across == 0 then
      local of = { rows = count, down = down, across = across,
                   axes = { image[2], image[3] // down, image[4] // across } }
      table.insert(list, of.axes[2] == of.axes[3] and 1 or #list + 1, of)
    end
  end
  return list
end

-- Pixel number d of a patch as its place in the batch of images.
local function place_of(of, image, patch, d)
  local c, h, w = table.unpack(of.axes)
  local batch, own = patch // of.rows, patch % of.rows
  local y, x = own // of.across * h + d // w % h, own % of.across * w + d % w
  return ((batch * c + d // (h * w)) * image[3] + y) * image[4] + x
end

-- Gives patches of a size their matrix. In each run every patch has another pixel that is 1, and all others are 0.
local function measure(find, value, name, of, zeros, first)
  local run, image = rows.run(find), find.elements.shapes[name]
  local patches, depth, all = image[1] * of.rows, of.axes[1] * of.axes[2] * of.axes[3], indices.count(image)
  local count, width = zeros.shape[#zeros.shape - 1], zeros.shape[#zeros.shape]
  if depth > patches * MOST_RUNS then return false end
  of.numbers = {}
  for done = 0, depth - 1, patches do
    local pixels, now = {}, math.min(patches, depth - done)
    for i = 1, all do pixels[i] = 0.0 end
    for patch = 0, now - 1 do pixels[place_of(of, image, patch, done + patch) + 1] = 1.0 end
    local got = rows_of(find, value, name, run.arrays.numbers(pixels))
    local off = run:apply("sub", got, zeros)
    for patch = 0, now - 1 do
      local row = patch // of.rows * count + first + patch % of.rows
      local list = run.arrays.list(off.at, row * width, width)
      for i = 1, width do of.numbers[(i - 1) * depth + done + patch + 1] = list[i] end
    end
  end
  return true
end

-- The rows in front that no pixel changes.
local function tokens_of(find, value, name, zeros)
  local run, image = rows.run(find), find.elements.shapes[name]
  local count, width = zeros.shape[#zeros.shape - 1], zeros.shape[#zeros.shape]
  local got = rows_of(find, value, name, run.arrays.drawn(1, indices.count(image) // image[4], image[4], 1, { 1 }))
  local off = run:apply("sub", got, zeros)
  local first = 0
  while first < count and run:largest(run:moved(off, { width }, { 1 }, first * width)) == 0 do first = first + 1 end
  return first
end

-- ---- the proof ----

-- The patches of images times their matrix: [batch * patches][width].
local function product(find, run, made, pixels, image)
  local c, h, w = table.unpack(made.axes)
  local shape = { image[1], made.down, made.across, c, h, w }
  local step = indices.steps_of(image)
  local cut = run:moved(values.value(pixels, image), shape,
    { step[1], step[3] * h, step[4] * w, step[2], step[3], step[4] })
  local depth = c * h * w
  local numbers = made.tensor and run:tensor(made.tensor) or values.value(run.arrays.numbers(made.numbers), {})
  local matrix = run:moved(numbers, { depth, made.width }, { 1, depth })
  return run:product(values.value(cut.at, { image[1] * made.rows, depth }), matrix)
end


-- Compares the rows that the graph makes of drawn images with those of the tables.
local function check(find, value, name, made)
  local run, image = rows.run(find), find.elements.shapes[name]
  local pixels = rows.drawn(run, 1, indices.count(image) // image[4], image[4])
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

-- What the rows of patches of a size and those of zeros are.
local function made_of(find, value, norm, patches, image, zeros)
  local made = { patches = patches, image = { image[3], image[4] }, tokens = {}, places = {} }
  local count, width = zeros.shape[#zeros.shape - 1], zeros.shape[#zeros.shape]
  local first = count - patches.rows
  if first < 0 or width ~= patches.width or first * width > 1 << 20 then
    refuse("%s has not a row for each patch", wording.short(value))
  end
  local list = rows.run(find).arrays.list(zeros.at, 0, count * width)
  for i = 1, count * width do made.places[i] = i <= first * width and 0.0 or list[i] end
  for r = 1, first do made.tokens[r] = table.move(list, (r - 1) * width + 1, r * width, 1, {}) end
  made.norm = norm and whole_layers.norm(find, norm, width)
  return made
end

function M.embeddings(find, value, name)
  local norm, image = find.row_norms[value], find.elements.shapes[name]
  local sum = norm and norm.x or value
  local zeros = rows_of(find, sum, name, rows.run(find).arrays.numbers(indices.count(image), 0.0))
  local patches = convolution_of(find, sum, name)
  if patches then
    local made = made_of(find, sum, norm, patches, image, zeros)
    check(find, value, name, made)
    return made
  end
  local first, why = tokens_of(find, sum, name, zeros), nil
  for _, of in ipairs(sizes_of(image, zeros.shape[#zeros.shape - 1] - first)) do
    of.width = zeros.shape[#zeros.shape]
    if measure(find, sum, name, of, zeros, first) then
      local made = made_of(find, sum, norm, of, image, zeros)
      local _, own = indices.attempt(check, find, value, name, made)
      if not own then return made end
      why = why or own
    end
  end
  refuse("%s", why or ("%s has not a row for each patch of an image"):format(wording.short(sum)))
end

return M
