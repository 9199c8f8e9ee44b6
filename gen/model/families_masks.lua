-- Rows of models that draw what a point or a box asks for, as gen/model/families.lua describes them: SAM and its kin,
-- whose decoders are alike.

local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local shapes = require "model.family_shapes"

local stack = family_rows.stack
local OUT_PROJ, O_PROJ = shapes.OUT_PROJ, shapes.O_PROJ

local SIZES = shapes.sizes(256, 8, 2, { attention_downsample_rate = 2 })

local MASKS = "iou_head_depth iou_head_hidden_dim num_multimask_outputs dynamic_multimask_via_stability " ..
  "dynamic_multimask_stability_thresh dynamic_multimask_stability_delta"

-- Tokens and places of the image, to which their positions are added where queries and keys are made of them. All but
-- the attention of tokens among each other is of fewer columns.
local function decoder(maps)
  return { within = { "mask_decoder_config" }, before = "mask_decoder.transformer.", row = {
    defaults = SIZES, harmless = MASKS,
    stacks = function(c)
      local heads = c:int "num_attention_heads"
      local fewer = math.max(1, c:int "hidden_size" // c:int "attention_downsample_rate" // heads)
      local function crossing(at, layers) return stack(at, maps, k.CROSS, { dk = fewer, layers = layers }) end
      return { stack("layers.%d.self_attn", maps, k.CROSS), crossing "layers.%d.cross_attn_token_to_image",
               crossing "layers.%d.cross_attn_image_to_token", crossing("final_attn_token_to_image", false) }
    end } }
end

local function model(maps, vision)
  return { decoder(maps), { within = { "vision_config" }, of = vision, before = "vision_encoder.", optional = true } }
end

return {
  { types = { "sam" }, harmless = "num_attention_heads", parts = model(OUT_PROJ, "sam_vision_model") },
  { types = { "sam_hq" }, harmless = "num_attention_heads", parts = model(OUT_PROJ, "sam_hq_vision_model") },
  { types = { "sam2" }, harmless = "num_attention_heads", parts = model(O_PROJ, "sam2_vision_model") },
  { types = { "sam3_tracker" }, harmless = "num_attention_heads", parts = model(O_PROJ, "sam3_vision_model") },
}
