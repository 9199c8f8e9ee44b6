-- Angles of rope for the patches of an image, whose places have two dimensions: tables of cosines and sines that are
-- made when weights are packed. `angles`, a key of attention that gen/model/family_image_keys.lua makes, says how:
--
--   axes        of the pairs: "yx" has the lines in the first half of the pairs and the columns in the second, "xy" the
--               other way round; "alternate" is "yx" where a line has each other frequency, and a column those between
--   theta       the base: pair i of so many of an axis turns by theta^(-i / count) from one place to the next
--   image, patch    { height, width } of images and of patches in pixels; or size: of a window in patches
--   unit        a factor of places; or "centers": places are those of the middles of patches, from -1 to 1, in turns
--   first       rows in front, which are not turned
--   first_at    or the tensor of their angles, which stands where the layers stand; before: the pattern of the names of
--               these
--
--   M.add(layer, cfg, all)   adds both tables to the weights of a layer

local parts = require "model.parts"

local M = {}

-- The places of so many patches.
local function places_of(angles, count)
  local places = {}
  for i = 0, count - 1 do
    places[i] = angles.unit == "centers" and 2 * math.pi * (2 * (i + 0.5) / count - 1) or i * (angles.unit or 1)
  end
  return places
end

-- Of pair i of so many: the axis, 1 for lines, and the angle from one place to the next.
local function turn_of(angles, i, pairs)
  local half = pairs // 2
  local axis, number = i // half + 1, i % half
  if angles.axes == "alternate" then return axis, angles.theta ^ -((2 * number + axis - 1) / pairs) end
  return angles.axes == "xy" and 3 - axis or axis, angles.theta ^ -(number / half)
end

-- The angles of all patches, a row behind another.
local function of_patches(angles, size, pairs)
  local places = { places_of(angles, size[1]), places_of(angles, size[2]) }
  local axes, turns, list = {}, {}, {}
  for i = 0, pairs - 1 do axes[i], turns[i] = turn_of(angles, i, pairs) end
  for y = 0, size[1] - 1 do
    for x = 0, size[2] - 1 do
      for i = 0, pairs - 1 do list[#list + 1] = turns[i] * places[axes[i]][axes[i] == 1 and y or x] end
    end
  end
  return list
end

-- The number of patches down and across: of the user's images, or of the config's.
local function size_of(layer)
  local angles = layer.angles
  if angles.size then return angles.size end
  local image, patch = layer.image or angles.image, angles.patch
  return { image[1] // patch[1], image[2] // patch[2] }
end

-- A table of cosines or of sines as a function of the angles of the rows in front. Layers with the same angles have the
-- same one, which tells that their tables are the same.
local known = setmetatable({}, { __mode = "v" })
local function table_of(angles, size, pairs, name)
  local key = ("%s %s %.17g %d %d %s %d"):format(name, angles.axes, angles.theta, size[1], size[2], angles.unit, pairs)
  known[key] = known[key] or function(front)
    local wave, list = name == "rope_cos" and math.cos or math.sin, {}
    for i, angle in ipairs(front) do list[i] = wave(angle) end
    for _, angle in ipairs(of_patches(angles, size, pairs)) do list[#list + 1] = wave(angle) end
    return list
  end
  return known[key]
end

-- The same of rows in front that are not turned.
local function still(key, change, count)
  local front = {}
  for i = 1, count do front[i] = 0.0 end
  known[key] = known[key] or change(front)
  return known[key]
end

-- Refuses another number of rows than the image has, and pairs that the axes cannot share.
local function check(layer, cfg, size, pairs)
  local c, first = layer.fields, layer.angles.first
  local rows = first + size[1] * size[2]
  if cfg.seq ~= rows or cfg.seq_kv ~= rows then
    c:fail(layer.angles.size and "window_size" or "image_size",
      "%dx%d patches%s are %d rows, and a kernel has %d%s", size[1], size[2],
      first > 0 and (" and %d rows in front"):format(first) or "", rows, cfg.seq,
      layer.angles.size and "; --only takes other layers" or "; --image says another size, --only takes other layers")
  end
  if pairs % 2 ~= 0 then c:fail("num_attention_heads", "a head has %d pairs, which two axes cannot share", pairs) end
end

function M.add(layer, cfg, all)
  local angles, pairs, size = layer.angles, (cfg.rope_dims or cfg.dk) // 2, size_of(layer)
  local count = angles.first * pairs
  check(layer, cfg, size, pairs)
  for _, name in ipairs { "rope_cos", "rope_sin" } do
    local change = table_of(angles, size, pairs, name)
    if angles.first_at then
      all[name] = parts.features(layer.at:gsub(angles.before .. ".*$", "") .. angles.first_at, count)
      all[name].change = change
    else
      local numbers = still(("%p %d"):format(change, count), change, count)
      all[name] = { name = name, numbers = numbers, features = #numbers }
    end
  end
end

return M
