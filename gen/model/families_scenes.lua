-- Rows of models of documents, of objects in images, of videos, and of sounds as images, as gen/model/families.lua
-- describes them.

local family_rows = require "model.family_rows"
local k = require "model.family_keys"
local s = require "model.family_image_keys"
local shapes = require "model.family_shapes"

local stack = family_rows.stack
local always, joined = k.always, k.joined
local PADDED, CROSS, SOME_KEYS, SOME = k.PADDED, k.CROSS, s.SOME_KEYS, s.SOME
local BERT, OUT_PROJ, O_PROJ, sizes = shapes.BERT, shapes.OUT_PROJ, shapes.O_PROJ, shapes.sizes

local AT_BERT = "encoder.layer.%d.attention"
local MAPS = { "query", "key", "value", "output" }
local DETR = "position_embedding_type=sine mask_loss_coefficient backbone_config"
local OWN_NORM = { "^output%.LayerNorm%." }

-- Stages of blocks in windows, which those of every other block are shifted by, where there is more than one.
-- one: what a stage is called with the block's own name; width, heads, rows: of a stage by its number.
local function stages(c, one, keys, more)
  local depths, stacks = c:counts "depths", {}
  for i, depth in ipairs(depths) do
    for block = 0, depth - 1 do
      local shifted = block % 2 == 1 and one.rows(i) > one.window
      stacks[#stacks + 1] = stack(one.at:format(i - 1, block), BERT,
        joined(keys, always { mask = "add", mask_dims = shifted and "bhqk" or "hqk" }),
        { layers = false, h = one.heads(i), d_model = one.width(i), more = more })
    end
  end
  return stacks
end

local function clap_audio(c)
  local heads, width, stride = c:counts "num_attention_heads", c:int("patch_embeds_hidden_size", 96),
    c:counts "patch_stride"
  local rows = c:int("spec_size", 256) // stride[1]
  if #heads ~= #c:counts "depths" then c:fail("num_attention_heads", "has %d numbers", #heads) end
  return stages(c, { at = "audio_encoder.layers.%d.blocks.%d.attention", window = c:int("window_size", 8),
    heads = function(i) return heads[i] end, width = function(i) return width << (i - 1) end,
    rows = function(i) return rows >> (i - 1) end }, always {})
end

local function swin2sr(c)
  local heads, width = c:counts "num_heads", c:int("embed_dim", 180)
  local size = c:is_list "image_size" and math.min(table.unpack(c:counts("image_size", 1 << 20)))
    or c:int("image_size", 64)
  local rows = size // c:int("patch_size", 1)
  if #heads ~= #c:counts "depths" then c:fail("num_heads", "has %d numbers", #heads) end
  return stages(c, { at = "encoder.stages.%d.layers.%d.attention", window = c:int("window_size", 8),
    heads = function(i) return heads[i] end, width = function() return width end,
    rows = function() return rows end }, k.swinv2, shapes.SCALES)
end

-- Places are added to rows where queries and keys are made of them, so that the caller has three inputs.
local function detr()
  local function of(side, kind, keys)
    return stack({ ("%s.layers.%%d.%s"):format(side, kind) }, OUT_PROJ, joined(CROSS, keys), {
      layers = side .. "_layers", h = side .. "_attention_heads", d_model = "d_model" })
  end
  return { of("encoder", "self_attn", SOME_KEYS), of("decoder", "self_attn", always {}),
           of("decoder", "encoder_attn", SOME_KEYS) }
end

-- The encoder alone: in decoders, queries and keys are sums of rows and places, each by a map of its own.
local function encoder_of_detr() return { detr()[1] } end

-- Layers whose points see each other, and those of another image.
local function superglue(c)
  local kinds, stacks = c:list "gnn_layers_types" or {}, {}
  local count = #kinds > 0 and #kinds or 18
  for i = 0, count - 1 do
    local kind = kinds[i + 1] or i % 2 == 0 and "self" or "cross"
    if kind ~= "self" and kind ~= "cross" then c:fail("gnn_layers_types", "element %d is not known", i + 1) end
    stacks[i + 1] = stack(("gnn.layers.%d.attention"):format(i), BERT,
      kind == "self" and SOME_KEYS or joined(CROSS, SOME_KEYS), { layers = false })
  end
  return stacks
end

-- Windows of images; layers between these see channels instead of rows.
local function davit(c)
  local depths, heads, widths, stacks = c:counts "depths", c:counts "num_heads", c:counts("embed_dim", 1 << 14), {}
  if #heads ~= #depths or #widths ~= #depths then c:fail("depths", "has %d numbers", #depths) end
  for i, depth in ipairs(depths) do
    stacks[i] = stack(("blocks.%d.%%d.spatial_block.window_attn"):format(i - 1), { "qkv", "proj" }, always {}, {
      layers = depth, h = heads[i], d_model = widths[i] })
  end
  return stacks
end

-- The decoder of DETR, which sees the whole image, by the names of MaskFormer.
local MASKS = { stacks = function()
  local all = detr()
  all[3].keys = CROSS
  return { all[2], all[3] }
end, defaults = { decoder_layers = 6, decoder_attention_heads = 8, d_model = 256 },
  harmless = shapes.HALVES .. " " .. DETR }

-- Layers of both kinds of rows, which see each other, by the config of the text.
local function of_both(kind)
  local at = ("cross_modal_%s_layers.%%d."):format(kind)
  local own, other = kind == "text" and PADDED or always {}, kind == "text" and always {} or PADDED
  return { within = { "text_config" }, row = { beside = OWN_NORM, defaults = sizes(768, 12, 12), stacks = {
    stack(at .. "attention", BERT, own), stack(at .. "crossattention", BERT, joined(CROSS, other)) } } }
end

-- The texts of BridgeTower beside images, where their mask is that of an encoder, whatever is_decoder says.
local BRIDGED = { stacks = { stack(AT_BERT, BERT, shapes.texts) }, beside = OWN_NORM, defaults = sizes(768, 12, 12) }

return {
  { types = { "align_text_model" }, stacks = { stack(AT_BERT, BERT, PADDED) }, beside = OWN_NORM,
    defaults = sizes(768, 12, 12) },
  { types = { "clap_text_model" }, stacks = { stack(AT_BERT, BERT, PADDED) }, beside = OWN_NORM,
    defaults = sizes(768, 12, 12) },
  { types = { "clap_audio_model" }, stacks = clap_audio, beside = { "^self%.relative_position_" },
    harmless = "enable_patch_layer_norm flatten_patch_embeds",
    defaults = { depths = { 2, 2, 6, 2 }, num_attention_heads = { 4, 8, 16, 32 }, patch_stride = { 4, 4 } } },
  { types = { "clap" }, harmless = "logit_scale_init_value", parts = {
    { within = { "text_config" }, of = "clap_text_model", before = "text_model." },
    { within = { "audio_config" }, of = "clap_audio_model", before = "audio_model." } } },
  { types = { "swin2sr" }, stacks = swin2sr, harmless = "path_norm upscale upsampler",
    beside = { "^self%.continuous_position_bias_mlp%.", "^self%.relative_coords_table$",
               "^self%.relative_position_index$" } },
  { types = { "pix2struct_vision_model" }, stacks = { stack(AT_BERT, MAPS, joined(PADDED, always { scale = 1 }),
    { dk = "d_kv" }) }, defaults = sizes(768, 12, 12, { d_kv = 64 }), harmless = s.BUCKETS },
  { types = { "pix2struct_text_model" }, defaults = { hidden_size = 768, num_heads = 12, num_layers = 12, d_kv = 64 },
    stacks = {
      stack("layer.%d.self_attention.attention", MAPS, joined(shapes.decodes, k.BIAS, always { scale = 1 }), {
        layers = "num_layers", h = "num_heads", dk = "d_kv" }),
      stack("layer.%d.encoder_decoder_attention.attention", MAPS, joined(CROSS, PADDED, always { scale = 1 }), {
        layers = "num_layers", h = "num_heads", dk = "d_kv" }) },
    beside = { "^relative_attention_bias%.weight$" }, harmless = s.BUCKETS },
  { types = { "pix2struct" }, parts = {
    { within = { "text_config" }, of = "pix2struct_text_model", before = "decoder." },
    { within = { "vision_config" }, of = "pix2struct_vision_model", before = "encoder." } } },
  { types = { "videoprism_vision_model" }, defaults = { hidden_size = 768, num_attention_heads = 12,
      num_spatial_layers = 12, num_temporal_layers = 4, attn_logit_softcapping = 50 }, harmless = "apply_l2norm",
    stacks = {
      stack("spatial_layers.%d.attention", O_PROJ, k.softcapped, { layers = "num_spatial_layers" }),
      stack("temporal_layers.%d.attention", O_PROJ, k.softcapped, { layers = "num_temporal_layers" }) } },
  { types = { "videoprism_text_model" }, defaults = sizes(768, 12, 12, { attn_logit_softcapping = 50 }),
    harmless = "apply_l2norm",
    stacks = { stack("layers.%d.attention", O_PROJ, joined(SOME, k.softcapped)) } },
  { types = { "detr", "table-transformer" }, stacks = detr, harmless = shapes.HALVES ..
    " " .. DETR },
  { types = { "conditional_detr" }, stacks = encoder_of_detr, harmless = shapes.HALVES ..
    " " .. DETR },
  { types = { "dab-detr" }, stacks = function()
    local of = detr()[1]
    of.d_model = "hidden_size"
    return { of }
  end, harmless = shapes.HALVES .. " backbone_config normalize_before sine_position_embedding_scale" },
  { types = { "tvp" }, stacks = { stack(AT_BERT, { "query", "key", "value", "dense" }, SOME_KEYS) },
    beside = { "^layer_norm%." } },
  { types = { "pp_ocrv5_mobile_rec", "pp_ocrv5_server_rec", "pp_ocrv6_small_rec" }, stacks = { stack(
    "head.encoder.svtr_block.%d.self_attn", { "qkv", "projection" }, always {}, { layers = "depth" }) },
    defaults = { hidden_size = 120, num_attention_heads = 8, depth = 2 }, harmless = "head_out_channels" },
  { types = { "superglue" }, stacks = superglue, defaults = { hidden_size = 256, num_attention_heads = 4 },
    harmless = "sinkhorn_iterations" },
  { types = { "florence_vision" }, stacks = davit, defaults = { depths = { 1, 1, 9, 1 }, num_heads = { 4, 8, 16, 32 },
    embed_dim = { 128, 256, 512, 1024 } }, harmless = "patch_prenorm window_size num_groups" },
  { types = { "florence2" }, parts = {
    { within = { "text_config" }, of = "bart", before = { "language_model.model.", "language_model." } },
    { within = { "vision_config" }, of = "florence_vision", before = "vision_tower." } } },
  { types = { "maskformer" }, parts = {
    { within = { "backbone_config" }, of = "swin", optional = true,
      before = { "pixel_level_module.encoder.model.", "pixel_level_module.encoder." } },
    { within = { "decoder_config" }, row = MASKS, before = "transformer_module." } },
    harmless = "mask_feature_size mask_weight num_attention_heads" },
  { types = { "sam3_lite_text_text_model" }, stacks = { stack("layers.%d.self_attn", OUT_PROJ, PADDED, {
    has = function(c, i) -- the first and the last layer may be convolutions
      return not c:flag("use_repmixer_blocks", true) or i > 0 and i < c:int "num_hidden_layers" - 1
    end }) }, defaults = sizes(512, 8, 12), harmless = "repmixer_kernel_size layer_scale_init_value" },
  { types = { "bridgetower_text_model" }, stacks = { stack(AT_BERT, BERT, shapes.bert) }, beside = OWN_NORM,
    defaults = BRIDGED.defaults },
  { types = { "bridgetower_vision_model" }, defaults = { hidden_size = 768, num_hidden_layers = 12 },
    stacks = s.heads_of_64(stack("transformer.resblocks.%d.attn", { "in_proj", "out_proj" }, always {})),
    harmless = "share_layernorm" },
  { types = { "bridgetower" }, harmless = "share_cross_modal_transformer_layers share_link_tower_layers " ..
      "num_attention_heads share_layernorm", parts = {
    { within = { "text_config" }, row = BRIDGED, before = "text_model." },
    { within = { "vision_config" }, of = "bridgetower_vision_model", before = "vision_model.visual." },
    of_both "text", of_both "image" } },
}
