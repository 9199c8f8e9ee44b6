-- Rows of models of images whose rope turns by the places of patches in two dimensions, as gen/model/families.lua
-- describes them.

local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local s = require "model.family_image_keys"
local shapes = require "model.family_shapes"

local stack = family_rows.stack
local joined = k.joined
local O_PROJ, OUT_PROJ, GAINS, sizes = shapes.O_PROJ, shapes.OUT_PROJ, shapes.GAINS, shapes.sizes

local function centered(theta, registers)
  return s.axial { axes = "yx", theta = theta, image = 224, patch = 16, unit = "centers",
                   first = s.registers(registers) }
end

local SAM_3 = "layer_scale_init_value pretrain_image_size"

return {
  { types = { "dinov3_vit" }, stacks = { stack("layer.%d.attention", O_PROJ, centered(100, 0)) },
    harmless = s.AUGMENTED .. "layerscale_value apply_layernorm", defaults = sizes(384, 6, 12) },
  { types = { "sapiens2" }, stacks = { stack("blocks.%d.attn", { "wq", "wk", "wv", "proj" },
    joined(centered(100, 8), s.sapiens2), { more = GAINS }) }, beside = { "^gamma%.weight$" },
    harmless = s.AUGMENTED .. "layerscale_value normalize_backbone_outputs use_mask_token head_config",
    defaults = sizes(1024, 16, 24) },
  { types = { "pixtral" }, stacks = { stack("transformer.layers.%d.attention", O_PROJ, s.axial {
    axes = "alternate", theta = 10000, image = 1024, patch = 16 }) }, defaults = sizes(1024, 16, 24) },
  { types = { "mlcd_vision_model", "mlcd" }, stacks = { stack("encoder.layers.%d.self_attn", OUT_PROJ, s.axial {
    axes = "yx", theta = 10000, image = 336, patch = 14, first = 1, first_at = "class_pos_emb",
    before = "encoder%.layers%." }) }, defaults = sizes(1664, 16, 48), harmless = "num_key_value_groups=1" },
  { types = { "sam3_vit_model" }, stacks = { stack("layers.%d.attention", O_PROJ, s.sam3) },
    harmless = SAM_3, defaults = sizes(1024, 16, 32) },
  { types = { "sam3_vision_model" }, harmless = SAM_3 .. " scale_factors", stacks = function(c)
    local own = c:object "backbone_config"
    if not own then c:fail("backbone_config", "is missing") end
    own.defaults = sizes(1024, 16, 32)
    return { stack("backbone.layers.%d.attention", O_PROJ, s.sam3, { fields = own }) }
  end },
}
