-- Rows of encoders of images and of sound, as gen/model/whole_families.lua describes them.

local activation = require "model.activation"

local M = {}

local LARGEST = 1 << 14 -- height or width of an image or a patch, and numbers of an axis

-- A number of a field, of an axis of the input.
local function size(c, name, default)
  local value = c:int(name, default)
  if value > LARGEST then c:fail(name, "%d is more than %d", value, LARGEST) end
  return value
end

-- The height and the width that a field has: a number for both, or where there may be `lists` a list of the two.
local function extents(c, name, default, lists)
  if not lists or not c:is_list(name) then
    local both = size(c, name, default)
    return both, both
  end
  local list = c:counts(name, LARGEST)
  if #list ~= 2 then c:fail(name, "must have 2 numbers, or be one") end
  return list[1], list[2]
end

-- Of models of images, `inputs` of a row. `of` has
--   patch, lists          the default of patch_size; whether sizes may have two numbers
--   square                only squares have their positions as the file has them; those of others are interpolated,
--                         sharp or smooth (gen/model/resized.lua)
--   module, bias          of the projection of patches; whether it has one
--   registers             of (fields): as inputs has them, or nil
--   tokens, places, norm  as inputs has them
local function images(of)
  return function(c, asked)
    local channels, height, width = size(c, "num_channels", 3), extents(c, "image_size", 224, of.lists)
    local patch_height, patch_width = extents(c, "patch_size", of.patch, of.lists)
    local side = height // patch_height
    if of.square and (height ~= width or asked and patch_height ~= patch_width) then
      c:fail(height ~= width and "image_size" or "patch_size", "must be that of squares, whose positions the file has")
    end
    if asked then height, width = asked[1], asked[2] end
    local down, across = height // patch_height, width // patch_width
    if down * across == 0 then c:fail("patch_size", "must be at most image_size") end
    local patches, registers = down * across, of.registers and of.registers(c)
    local tokens = #of.tokens + (registers and registers.rows or 0)
    return {
      of = "an image", input = "pixels", template = "images", rows = tokens + patches,
      products = { { module = of.module, bias = of.bias, rows = patches,
                     axes = { channels, patch_height, patch_width } } },
      resize = asked and (down ~= side or across ~= side) and
        { first = #of.tokens, side = side, down = down, across = across, smooth = of.square == "smooth" } or nil,
      first = tokens, tokens = of.tokens, registers = registers, places = of.places, norm = of.norm,
      values = { channels = channels, image_height = height, image_width = width,
                 patches = patches, down = down, across = across,
                 patch_height = patch_height, patch_width = patch_width,
                 depth = channels * patch_height * patch_width } }
  end
end

-- Norms in front of attention and of the feed-forward.
local function pre_norm(eps, ffn, act, gate)
  return { norm = "pre", residual = true, layer_eps = eps, ffn = ffn, ffn_act = act, ffn_gate = gate }
end

-- ---- ViT, DeiT and DINOv2 ----

local HEADS = { "^pooler%.", "^classifier%.", "^cls_classifier%.", "^distillation_classifier%.", "^decoder%.",
                "mask_token$" }

-- Their embeddings have the same names. of: as of images; tokens without what stands in front of their names.
local function embeddings(of)
  for i, token in ipairs(of.tokens) do of.tokens[i] = "embeddings." .. token end
  of.module, of.bias, of.places = "embeddings.patch_embeddings.projection", true, "embeddings.position_embeddings"
  of.lists = true
  return images(of)
end

local function like_vit(kind, tokens)
  return { types = { kind }, module = "attention", maps = { ["1"] = "intermediate.dense", ["2"] = "output.dense" },
    norms = { "layernorm_before", "layernorm_after" }, last = "layernorm", left_out = HEADS,
    harmless = "encoder_stride", inputs = embeddings { patch = 16, tokens = tokens },
    keys = function(c)
      return pre_norm(c:positive("layer_norm_eps", 1e-12), c:int("intermediate_size", 3072),
        activation(c, "hidden_act", "gelu"))
    end }
end

local function is_gated(c) return c:flag("use_swiglu_ffn", false) end

local function maps_of_dinov2(c)
  if not is_gated(c) then return { ["1"] = "mlp.fc1", ["2"] = "mlp.fc2" } end
  return { ["1"] = { "mlp.weights_in", 0, 2 }, ["2"] = "mlp.weights_out", ["3"] = { "mlp.weights_in", 1, 2 } }
end

-- A gated feed-forward has two thirds of the width, a multiple of 8.
local function keys_of_dinov2(c)
  local eps = c:positive("layer_norm_eps", 1e-6)
  local wide = math.floor(c:int("hidden_size", 768) * c:positive("mlp_ratio", 4))
  if is_gated(c) then return pre_norm(eps, (math.floor(wide * 2 / 3) + 7) // 8 * 8, "silu", true) end
  return pre_norm(eps, wide, activation(c, "hidden_act", "gelu"))
end

-- patch: the default of patch_size; square, registers: as of images.
local function dinov2(kind, patch, square, registers)
  return { types = { kind }, module = "attention", norms = { "norm1", "norm2" }, last = "layernorm",
    maps = maps_of_dinov2, gains = { gain1 = "layer_scale1.lambda1", gain2 = "layer_scale2.lambda1" },
    inputs = embeddings { patch = patch, tokens = { "cls_token" }, square = square, registers = registers },
    resized = true,
    left_out = HEADS, keys = keys_of_dinov2,
    harmless = "apply_layernorm reshape_hidden_states out_features out_indices stage_names layerscale_value " ..
      "use_mask_token hidden_act intermediate_size" }
end

local function registers(c) return { name = "embeddings.register_tokens", rows = size(c, "num_register_tokens", 4) } end

-- ---- the towers of CLIP and SigLIP ----

-- of: as of images; and the defaults of fields, eps and act.
local function tower(kind, of)
  of.module, of.places = "embeddings.patch_embedding", "embeddings.position_embedding.weight"
  return { types = { kind }, module = "self_attn", maps = { ["1"] = "mlp.fc1", ["2"] = "mlp.fc2" },
    norms = { "layer_norm1", "layer_norm2" }, last = "post_layernorm", left_out = { "^visual_projection%.", "^head%." },
    inputs = images(of),
    keys = function(c)
      return pre_norm(c:positive("layer_norm_eps", of.eps), c:int("intermediate_size", 3072),
        activation(c, "hidden_act", of.act))
    end }
end

-- ---- the encoder of Whisper ----

-- Two convolutions of three frames each, with GELU whatever the layers have; the second takes every other frame.
local function sound(c)
  local bins, rows = size(c, "num_mel_bins", 80), size(c, "max_source_positions", 1500)
  local width = size(c, "d_model", 384)
  return {
    of = "a sound", input = "features", template = "sound", rows = rows,
    products = { { module = "encoder.conv1", bias = true, act = "gelu", rows = 2 * rows, axes = { bins, 3 } },
                 { module = "encoder.conv2", bias = true, act = "gelu", rows = rows, axes = { width, 3 } } },
    first = 0, tokens = {}, places = "encoder.embed_positions.weight", values = { bins = bins, frames = 2 * rows } }
end

local EPS_OF_WHISPER = 1e-5 -- its class has no field for it

local whisper = {
  types = { "whisper" }, stacks = 1, module = "self_attn", maps = { ["1"] = "fc1", ["2"] = "fc2" },
  norms = { "self_attn_layer_norm", "final_layer_norm" }, last = "encoder.layer_norm", inputs = sound,
  left_out = { "^decoder%.", "^proj_out%.", "^projector%.", "^classifier%.", "^layer_weights$" },
  -- those of the decoder, of training, and of what chooses or classifies tokens
  harmless = "decoder_layers decoder_ffn_dim vocab_size max_target_positions suppress_tokens begin_suppress_tokens " ..
    "forced_decoder_ids init_std classifier_proj_size use_weighted_layer_sum median_filter_width apply_spec_augment " ..
    "is_encoder_decoder max_length num_hidden_layers",
  keys = function(c)
    return pre_norm(EPS_OF_WHISPER, c:int("encoder_ffn_dim", 1536), activation(c, "activation_function", "gelu"))
  end }

M.rows = {
  like_vit("vit", { "cls_token" }),
  like_vit("deit", { "cls_token", "distillation_token" }),
  dinov2("dinov2", 14, "sharp"),
  dinov2("dinov2_with_registers", 16, "smooth", registers),
  tower("clip_vision_model", { patch = 32, tokens = { "embeddings.class_embedding" }, norm = "pre_layrnorm", eps = 1e-5,
                               act = "quick_gelu" }),
  tower("siglip_vision_model", { patch = 16, bias = true, tokens = {}, eps = 1e-6, act = "gelu_pytorch_tanh" }),
  whisper,
}

return M
