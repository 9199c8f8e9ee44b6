-- What a processor of transformers makes of the pixels of an image before a model reads them, by the fields of its
-- preprocessor_config.json.
--
--   of(c, channels) -> { scale, mean, std = a number for each channel, said = words about the size of images,
--                        height, width = of the images that it makes, or nil where these depend on the image }
--     c    the fields; raises an error where one of them is not known, because numbers would then be other ones

local M = {}

-- Processors with the same formula. They rescale and normalize whatever their files leave out, and these crop too.
local CROPS = { ViT = false, DeiT = true, Bit = true, CLIP = true, Siglip = false }

-- Fields that are about the size of images or the order of numbers, or are told by the model itself.
local HARMLESS = {}
for name in ("do_convert_rgb processor_class _valid_processor_keys data_format input_data_format " ..
             "return_tensors device disable_grouping"):gmatch "%S+" do HARMLESS[name] = true end

local MOST_CHANNELS, LARGEST = 4, 1 << 14
local LEAST, MOST = 1e-30, 1e30 -- within the range of float32

-- As Pillow numbers them.
local FILTERS = { [0] = "nearest", "Lanczos", "bilinear", "bicubic", "box", "Hamming" }

-- The kind of processor, without what versions put behind its name.
local function kind_of(c)
  local name = c:word("image_processor_type", c:word("feature_extractor_type", false))
  if not name then c:fail("image_processor_type", "is missing") end
  local kind = name:match "^(%w-)ImageProcessor" or name:match "^(%w-)FeatureExtractor$"
  local rest = name:match "ImageProcessor(%a*)$"
  if CROPS[kind] == nil or rest and rest ~= "" and rest ~= "Fast" and rest ~= "Pil" then
    c:fail("image_processor_type", "%s is not known", name)
  end
  return kind
end

-- A number for each channel, from `least` on where that is given.
local function list_of(c, name, channels, least)
  local list = {}
  if channels > MOST_CHANNELS then c:fail(name, "images have %d channels", channels) end
  local given = c:is_list(name) and c:list(name)
  if given and #given ~= channels then
    c:fail(name, "must have %d numbers, as images have channels", channels)
  end
  for i = 1, channels do
    local x = given and given[i] or not given and c:number(name)
    local size = type(x) == "number" and math.abs(x) or -1
    if not (size >= (least or 0) and size <= MOST) then
      c:fail(name, "must be numbers in the range of float32%s", least and ", and not 0" or "")
    end
    list[i] = x
  end
  return list
end

local function extent(c, name)
  local value = c:int(name, false)
  if value and value > LARGEST then c:fail(name, "%d is more than %d", value, LARGEST) end
  return value or nil
end

-- The height and the width that a field says, or nil and the shortest edge; nothing where it says neither.
local function size_of(c, name, is_square)
  if not c:is_list(name) then
    local both = extent(c, name)
    if not is_square then return nil, both end
    return both and { both, both }
  end
  local of = c:object(name)
  local height, width = extent(of, "height"), extent(of, "width")
  return height and width and { height, width } or nil, extent(of, "shortest_edge")
end

-- What becomes of the size, in words, and the size if it is always the same.
local function sizes_of(c, kind)
  local words, size = {}, nil
  local filter = FILTERS[c:number("resample", -1)]
  if c:flag("do_resize", true) then
    local edge
    size, edge = size_of(c, "size", c:flag("default_to_square", kind ~= "CLIP" and kind ~= "Bit"))
    local to = size and ("%d x %d"):format(size[1], size[2]) or edge and ("a shortest edge of %d"):format(edge)
    words[1] = to and ("resized to %s%s"):format(to, filter and (" (%s)"):format(filter) or "")
  end
  if c:flag("do_center_crop", CROPS[kind]) then
    size = size_of(c, "crop_size", true)
    words[#words + 1] = size and ("cut to their middle, %d x %d"):format(size[1], size[2])
  end
  return #words > 0 and table.concat(words, ", then ") or "of the size that they have", size or {}
end

function M.of(c, channels)
  local kind, made = kind_of(c), { scale = 1.0, mean = {}, std = {} }
  if c:flag("do_rescale", true) then made.scale = c:number("rescale_factor", 1 / 255) + 0.0 end
  for i = 1, channels do made.mean[i], made.std[i] = 0.0, 1.0 end
  if c:flag("do_normalize", true) then
    made.mean, made.std = list_of(c, "image_mean", channels), list_of(c, "image_std", channels, LEAST)
  end
  local size
  made.said, size = sizes_of(c, kind)
  made.height, made.width = size[1], size[2]
  for _, name in ipairs { "feature_extractor_type", "resample", "rescale_factor", "image_mean", "image_std", "size",
                          "crop_size", "default_to_square" } do c:has(name) end
  local other = c:unread(function(name, value) return not HARMLESS[name] and value ~= false end)[1]
  if other then error({ message = ("%s: %s: is not known"):format(c.path, other.name) }, 0) end
  return made
end

return M
