"""Further rows of documents, of objects in images, of videos, and of sounds as images, as families.py has them."""
import images
from architectures import (BERT, Q_K_V_O, Q_K_V_OUT, SHIFTED, SWIN_BIAS, TINY, TINY_BART, TINY_IMAGE, TINY_SWIN, Row,
                           like)

AT_BERT = "encoder.layer.0.attention"
MAPS = "query key value output"
SOUND = dict(depths=[2], num_attention_heads=[4], patch_embeds_hidden_size=32, hidden_size=32, spec_size=32,
             num_mel_bins=8, window_size=4, patch_size=4, patch_stride=[4, 4], num_hidden_layers=1)
CLAP = dict(text_config=TINY, audio_config=SOUND, projection_dim=16)
PATCHES = dict(hidden_size=64, d_kv=16, num_attention_heads=4, num_hidden_layers=1, d_ff=32,
               patch_embed_hidden_size=48)
WORDS = dict(hidden_size=64, d_kv=16, num_heads=4, num_layers=1, d_ff=32, vocab_size=50)
SUPER = dict(image_size=8, patch_size=1, embed_dim=64, depths=[2], num_heads=[4], num_attention_heads=[4],
             window_size=4)
BACKBONE = dict(model_type="resnet", embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic",
                out_features=["stage2"])
OBJECTS = dict(d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=2,
               encoder_ffn_dim=32, decoder_ffn_dim=32, num_queries=5, use_timm_backbone=False, backbone_config=BACKBONE,
               use_pretrained_backbone=False)
BRIDGE = dict(hidden_size=128, num_attention_heads=2, num_hidden_layers=1, text_config=dict(
    TINY, hidden_size=128, num_attention_heads=4), vision_config=dict(TINY_IMAGE, hidden_size=128, num_hidden_layers=1))
FRAMES = dict(TINY_IMAGE, num_spatial_layers=1, num_temporal_layers=1, num_frames=2, tubelet_size=[1, 4, 4],
              attn_logit_softcapping=3.0)
CROSS_KEYS = "attention=cross mask=add mask_dims=bk"
OF_KEYS = dict(mask="attention_mask[:, 0, 0]")
ROWS = [
    Row("ALIGN, text", "align_text_model", AT_BERT, BERT, "kv_len=true", since=5),
    Row("CLAP, text", "clap", f"text_model.{AT_BERT}", BERT, "kv_len=true", CLAP),
    *[Row(f"CLAP, {name}", "clap", f"audio_model.audio_encoder.layers.0.blocks.{i}.attention", BERT,
          f"h=4 d_model=32 mask=add mask_dims={'b' * i}hqk", CLAP, args=dict(mask=SWIN_BIAS + more), of_5={})
      for i, name, more in [(0, "windows", ""), (1, "shifted windows", SHIFTED)]],
    *[like(f"Swin 2{name}", name=f"Swin2SR{name}", kind="swin2sr", config=SUPER,
           at=f"encoder.stages.0.layers.{i}.attention") for i, name in enumerate(["", ", shifted windows"])],
    Row("Pix2Struct, image", "pix2struct_vision_model", AT_BERT, MAPS, "scale=1 dk={d_kv} kv_len=true", PATCHES,
        since=5),
    *[Row(f"Pix2Struct, {part}", "pix2struct", f"decoder.layer.0.{at}.attention", MAPS, keys, dict(
        text_config=WORDS, vision_config=PATCHES), args=args)
      for part, at, keys, args in [
          ("text", "self_attention", "scale=1 mask=add mask_dims=hqk causal=true", dict(
              mask="compute_bias(seq_kv, seq_kv)[0]")),
          ("text to image", "encoder_decoder_attention", "attention=cross scale=1 kv_len=true", {})]],
    *[Row(f"VideoPrism, {part}", "videoprism_vision_model", f"{part}_layers.0.attention", Q_K_V_O,
          "softcap={attn_logit_softcapping}", FRAMES, since=5) for part in ("spatial", "temporal")],
    Row("VideoPrism, text", "videoprism_text_model", "layers.0.attention", Q_K_V_O,
        "softcap={attn_logit_softcapping} mask=add mask_dims=bqk", dict(attn_logit_softcapping=3.0),
        args=dict(mask="attention_mask[:, 0]"), since=5),
    *[Row(f"{name}, {part}", kind, f"{side}.layers.0.{at}", Q_K_V_OUT, keys, OBJECTS, args=args, of_5=of_5)
      for name, kind, of_5 in [("DETR", "detr", dict(matrices=Q_K_V_O)), ("Table Transformer", "table-transformer", {})]
      for part, side, at, keys, args in [
          ("encoder", "encoder", "self_attn", CROSS_KEYS, OF_KEYS),
          ("decoder", "decoder", "self_attn", "attention=cross", {}),
          ("decoder to encoder", "decoder", "encoder_attn", CROSS_KEYS, OF_KEYS)]],
    Row("BridgeTower, text", "bridgetower", f"text_model.{AT_BERT}", BERT, "kv_len=true", BRIDGE),
    *[Row(f"BridgeTower, {kind}, {at}", "bridgetower", f"cross_modal_{kind}_layers.0.{at}", BERT, keys, BRIDGE)
      for kind, at, keys in [("text", "attention", "kv_len=true"), ("text", "crossattention", "attention=cross"),
                             ("image", "attention", ""), ("image", "crossattention", "attention=cross kv_len=true")]],
]

FLORENCE = dict(vision_config=dict(depths=[1, 2], patch_size=[3, 3], patch_stride=[2, 2], patch_padding=[1, 1],
                                   patch_prenorm=[False, True], embed_dim=[16, 32], num_heads=[2, 4], num_groups=[2, 4],
                                   window_size=3, projection_dim=64, qkv_bias=True), text_config=dict(
                                       model_type="bart", vocab_size=50, **TINY_BART), image_token_id=49)
POINTS = dict(keypoint_detector_config=dict(
    model_type="superpoint", encoder_hidden_sizes=[8, 8, 8, 8], decoder_hidden_size=8, descriptor_decoder_dim=64,
    keypoint_decoder_dim=65), gnn_layers_types=["self", "cross"], keypoint_encoder_sizes=[8])
MASKS = dict(backbone_config=dict(
    TINY_SWIN, model_type="swin", image_size=48, depths=[2, 1, 1, 1], num_heads=4 * [4],
    num_attention_heads=4 * [4], out_features=[f"stage{i}" for i in range(1, 5)]), fpn_feature_size=32,
             mask_feature_size=32, decoder_config=dict(OBJECTS, model_type="detr", decoder_layers=2))
ROWS += [
    Row("Conditional DETR", "conditional_detr", "encoder.layers.0.self_attn", Q_K_V_OUT, CROSS_KEYS, OBJECTS,
        args=OF_KEYS, since=5, of_5=dict(matrices=Q_K_V_O)),
    Row("DAB-DETR", "dab-detr", "encoder.layers.0.self_attn", Q_K_V_OUT, CROSS_KEYS, {
        **OBJECTS, "hidden_size": 64, "d_model": ...}, args=OF_KEYS, since=5, of_5={}),
    *[Row(name, kind, "head.encoder.svtr_block.0.self_attn", "qkv projection", "", dict(
        depth=1, head_out_channels=20, hidden_size=32), since=5)
      for name, kind in [("PP-OCRv5, mobile", "pp_ocrv5_mobile_rec"), ("PP-OCRv5, server", "pp_ocrv5_server_rec"),
                         ("PP-OCRv6, small", "pp_ocrv6_small_rec")]],
    Row("TVP", "tvp", AT_BERT, "query key value dense", "mask=add mask_dims=bk", dict(
        backbone_config=BACKBONE, num_frames=2, max_img_size=64, visual_prompt_size=8), args=OF_KEYS, since=5),
    *[Row(f"SuperGlue, {kind}", "superglue", f"gnn.layers.{i}.attention", BERT, keys, POINTS, args=dict(
          mask=f"zeros(batch, seq_kv) if {mask} is None else {mask}[:, 0, 0]"), since=5)
      for i, (kind, keys, mask) in enumerate([("one image", "mask=add mask_dims=bk", "attention_mask"),
                                              ("two images", CROSS_KEYS, "encoder_attention_mask")])],
    *[Row(f"Florence 2, {i}", "florence2", f"vision_tower.blocks.{i}.{i}.spatial_block.window_attn", "qkv proj",
          "h=4 d_model=32", FLORENCE, since=5) for i in (0, 1)],
    Row("Florence 2, text", "florence2", "language_model.decoder.layers.0.encoder_attn", Q_K_V_OUT,
        "attention=cross kv_len=true", FLORENCE, since=5),
    *[Row(f"MaskFormer, {name}", "maskformer", f"transformer_module.decoder.layers.1.{at}", Q_K_V_OUT, keys, MASKS,
          since=5, of_5=dict(matrices=Q_K_V_O))
      for name, at, keys in [("queries", "self_attn", "attention=cross"),
                             ("queries to image", "encoder_attn", "attention=cross")]],
    like("Swin", name="MaskFormer, image", kind="maskformer", config=MASKS, since=5,
         at="pixel_level_module.encoder.model.encoder.layers.0.blocks.0.attention"),
]


def sounds(torch, config, batch):
    return dict(images.texts(torch, config.text_config, batch), input_features=torch.randn(batch, 1, 128, 8),
                is_longer=torch.zeros(batch, 1, dtype=torch.bool))


def flattened(torch, config, batch):
    """Patches with their places; the last are padding."""
    found = torch.randn(batch, 9, 2 + config.patch_embed_hidden_size)
    found[..., :2] = torch.arange(9).view(9, 1) % 4
    found[0, 6:] = 0
    return dict(flattened_patches=found, attention_mask=torch.arange(9) < torch.tensor([[6], [9]]))


def read(torch, config, batch):
    given = flattened(torch, config.vision_config, batch)
    return dict(given, decoder_input_ids=torch.randint(1, 50, (batch, 7)))


def objects(torch, config, batch):
    """Images of which some has padding."""
    real = torch.ones(batch, 64, 64, dtype=torch.long)
    real[0, :, 40:] = 0
    return dict(pixel_values=torch.randn(batch, 3, 64, 64), pixel_mask=real)


def bridged(torch, config, batch):
    size = config.vision_config.image_size
    return dict(images.texts(torch, config.text_config, batch), pixel_values=torch.randn(batch, 3, size, size),
                pixel_mask=torch.ones(batch, size, size, dtype=torch.long))


def frames(torch, config, batch):
    return dict(pixel_values_videos=torch.randn(batch, config.num_frames, 3, config.image_size, config.image_size))


def watched(torch, config, batch):
    """Frames and a text with padding, whose keys stand between others. The model takes one at a time."""
    given = {name: value[:1] for name, value in images.texts(torch, config, batch).items()}
    return dict(given, pixel_values=torch.randn(1, 2, 3, 64, 64))


def pairs(torch, config, batch):
    return dict(pixel_values=torch.rand(batch, 2, 3, 32, 48))


def shown(torch, config, batch):
    """An image, whose places in the text are the last ones, and what is written."""
    ids = torch.randint(1, 49, (batch, 18))
    ids[:, 8:] = 49
    return dict(pixel_values=torch.randn(batch, 3, 12, 12), input_ids=ids,
                attention_mask=torch.arange(18) < torch.tensor([[15], [18]]),
                decoder_input_ids=torch.randint(1, 49, (batch, 7)))


def lines(height, width):
    return lambda torch, config, batch: dict(pixel_values=torch.randn(batch, 3, height, width))


# As families.py has them.
INPUTS = {"pp_ocrv5_mobile_rec": lines(96, 64), "pp_ocrv5_server_rec": lines(48, 320),
          "pp_ocrv6_small_rec": lines(48, 320), "conditional_detr": objects, "dab-detr": objects, "tvp": watched,
          "superglue": pairs, "florence2": shown,
          "maskformer": lambda torch, config, batch: dict(pixel_values=torch.randn(batch, 3, 48, 48)),
          "clap": sounds, "pix2struct_vision_model": flattened, "pix2struct": read,
          "detr": objects, "table-transformer": objects, "bridgetower": bridged, "videoprism_vision_model": frames,
          "videoprism_text_model": images.texts}
BUILT_BY = {
    "superglue": "SuperGlueForKeypointMatching", "pp_ocrv5_mobile_rec": "PPOCRV5MobileRecForTextRecognition",
    "pp_ocrv5_server_rec": "PPOCRV5ServerRecForTextRecognition",
    "pp_ocrv6_small_rec": "PPOCRV6SmallRecForTextRecognition",
    "pix2struct": "Pix2StructForConditionalGeneration", "pix2struct_vision_model": "Pix2StructVisionModel",
    "align_text_model": "AlignTextModel", "videoprism_text_model": "VideoPrismTextModel"}
PARTS = ["florence_vision", "maskformer-swin", "clap_text_model",
         "clap_audio_model", "pix2struct_text_model", "bridgetower_text_model",
         "bridgetower_vision_model"]
OF_TWO = set()
WITHOUT_CACHE = {"conditional_detr", "dab-detr", "florence2", "maskformer", "superglue", "pix2struct",
                 "detr", "table-transformer", "bridgetower"}
