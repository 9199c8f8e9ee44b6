-- The keys of attention in further models of images, as gen/model/family_keys.lua has them.

local fields = require "model.fields"
local k = require "model.family_keys"

local M = {}

-- Keys that rows see: padding of images is between others, so it is no length but a mask, which is the caller's.
M.SOME_KEYS = k.always { mask = "add", mask_dims = "bk" }
M.SOME = k.always { mask = "add", mask_dims = "bqk" }

-- A bias of places, of each layer or of all.
function M.relative(c)
  local own, shared = c:flag("use_relative_position_bias", false), c:flag("use_shared_relative_position_bias", false)
  return (own or shared) and k.BIAS() or {}
end

-- The layers are those of a model of its own, unless that is of convolutions.
function M.dpt(c)
  if not c:flag("is_hybrid", false) then c:only "backbone_config" end
  return {}
end

-- Keys and values of another width, that of an encoder. default: where the config does not say it.
function M.of_encoder(default)
  return function(c)
    local width = c:int("encoder_hidden_size", default)
    return { attention = "cross", k_width = width, v_width = width }
  end
end

-- Norms of all heads of a row at once. The model's code has the number that is added, whatever layer_norm_eps is.
function M.internvl(c)
  return c:flag("use_qk_norm", false) and { qk_norm = "rms", norm_span = "all", norm_eps = 1e-6 } or {}
end

-- Its norms would be of a width that no head has.
function M.janus(c)
  c:only("use_qk_norm", false)
  return {}
end

-- { height, width } of a field that has both, or one for squares.
local function extents(c, name, default)
  local size = c:is_list(name) and c:counts(name, 1 << 14) or c:int(name, default)
  if type(size) == "number" then return { size, size } end
  if #size ~= 2 then c:fail(name, "must have 2 numbers") end
  return size
end

-- Rope by the places of patches. of: { kind = of rope, type = that of rope_parameters, axes, theta, image, patch =
-- defaults, unit, first, first_at, before }, as gen/model/axial.lua has them; first may be of (fields, number of the
-- layer).
function M.axial(of)
  return function(c, i)
    local rope = c:object "rope_parameters"
    if rope then rope:only("rope_type", of.type or "axial") end
    local first = type(of.first) == "function" and of.first(c, i) or of.first or 0
    return { rope = of.kind or "half", angles = {
      axes = of.axes, theta = fields.agreed({ { rope or c, "rope_theta" }, { c, "rope_theta" } }, of.theta),
      image = extents(c, "image_size", of.image), patch = extents(c, "patch_size", of.patch), unit = of.unit,
      first = first, first_at = of.first_at, before = of.before } }
  end
end

-- The class token, and tokens without a place. default: their number where the config does not say it.
function M.registers(default)
  return function(c) return 1 + c:number("num_register_tokens", default) end
end

-- Some layers have fewer heads of keys, and norms that the others have too.
function M.sapiens2(c, i, sizes)
  local list, layers = c:list "num_key_value_heads_per_layer", c:int "num_hidden_layers"
  local first, last = c:number("num_first_full_attention_layers", 8), c:number("num_last_full_attention_layers", 8)
  local fewer = c:int("num_key_value_attention_heads", 8)
  local whole = i < first or i >= layers - last
  local keys = { h_kv = list and list[i + 1] or whole and sizes.h or fewer }
  if c:flag("use_qk_norm", true) then keys.qk_norm, keys.norm_eps = "rms", c:positive("rms_norm_eps", 1e-6) end
  return keys
end

-- Layers of a list see the image, and others a window of it; places are those of a window, so that an image has
-- fractions of these.
local sam3 = M.axial { kind = "interleaved", axes = "xy", theta = 10000, image = 1008, patch = 14 }
function M.sam3(c, i)
  local keys, window, whole = sam3(c), c:int("window_size", 24), false
  local angles = keys.angles
  for _, number in ipairs(c:list "global_attn_indexes" or { 7, 15, 23, 31 }) do whole = whole or number == i end
  if angles.image[1] ~= angles.image[2] or angles.patch[1] ~= angles.patch[2] then
    c:fail("image_size", "must be that of squares")
  end
  if whole then angles.unit, angles.fixed = window / (angles.image[2] // angles.patch[2]), true
  else angles.size = { window, window } end
  return keys
end

M.AUGMENTED = "pos_embed_shift pos_embed_jitter pos_embed_rescale "

M.BUCKETS = "relative_attention_num_buckets relative_attention_max_distance"

-- Stacks with a head for each 64 columns.
function M.heads_of_64(of)
  return function(c)
    of.h = math.max(1, c:int "hidden_size" // 64)
    return { of }
  end
end

return M
