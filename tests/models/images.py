"""Further rows of images, and of texts and images, as families.py has them."""
from architectures import BERT, GAINS, Q_K_V_O, Q_K_V_OUT, TINY, TINY_IMAGE, TINY_TOWER, VIT, Row

TOWER, AT_BERT = "encoder.layers.0.self_attn", "encoder.layer.0.attention"
MASK_OF_KEYS, MASK = dict(mask="attention_mask[:, 0, 0]"), dict(mask="attention_mask[:, 0]")
KEYS_SEEN, ROWS_SEEN = "mask=add mask_dims=bk", "mask=add mask_dims=bqk"
PROJECTION = "q_proj k_proj v_proj projection_layer"
LIKE_VIT = dict(at="layers.0.attention", matrices=Q_K_V_O)
IN_BERT = dict(at=f"{AT_BERT}.attention", matrices="query key value")
WIDE = {**TINY_TOWER, "hidden_size": 64, "num_attention_heads": 4}


def vit(name, kind, keys="", of_5=LIKE_VIT, since=4, args={}, **config):
    return Row(name, kind, AT_BERT, VIT, keys, {**TINY_IMAGE, **config}, args=args, since=since, of_5=of_5)


def tower(name, kind, keys="", at=TOWER, matrices=Q_K_V_OUT, since=4, **more):
    return Row(name, kind, at, matrices, keys, {**TINY_IMAGE, **more.pop("config", {})}, since=since, **more)


def of_two(name, kind, part, row, text={}, vision={}, **more):
    """A part of a model of a text and an image."""
    return row._replace(name=name, kind=kind, at=f"{part}_model.{row.at}", config={
        **dict(text_config={**TINY, **text}, vision_config={**WIDE, **vision}, projection_dim=16), **more})


BIAS = dict(keys="mask=add mask_dims=hqk", args=dict(mask="attention_mask[0]"), use_relative_position_bias=True)
ROWS = [
    vit("BEiT", "beit"),
    vit("BEiT, bias", "beit", **BIAS),
    vit("data2vec, vision", "data2vec-vision", of_5={}),
    vit("Pixio", "pixio", since=5),
    vit("ViTPose", "vitpose_backbone", of_5={}, image_size=[24, 24], patch_size=[8, 8]),
    vit("DPT", "dpt", of_5={}, backbone_out_indices=[0, 0, 0, 0]),
    vit("VideoMAE", "videomae", of_5={}, num_frames=2),
    vit("ViLT", "vilt", KEYS_SEEN, {}, args=MASK_OF_KEYS),
    *[vit(f"TimeSformer, {part}", "timesformer", of_5={}, num_frames=2)._replace(
        at=f"encoder.layer.0.{at}", matrices="attention.qkv output.dense")
      for part, at in [("places", "attention"), ("frames", "temporal_attention")]],
    Row("MGP-STR", "mgp-str", "encoder.blocks.0.attn", "qkv proj", "", dict(TINY_IMAGE, image_size=[12, 8])),
    Row("RADIO", "radio", "model.blocks.0.attn", "qkv proj", "", TINY_IMAGE, since=5, of_5=dict(
        at=AT_BERT, matrices=Q_K_V_O)),
    *[of_two(f"FLAVA, {part}", "flava", part, vit("", "", keys, {}), image_config=WIDE, multimodal_config=WIDE)
      for part, keys in [("text", "kv_len=true"), ("image", "")]],
    vit("FLAVA, multimodal", "flava_multimodal_model", "kv_len=true", {}),
    *[of_two(f"AIMv2, {part}", "aimv2", part, tower("", "", keys, "encoder.layers.0.attention"))
      for part, keys in [("text", "causal=true kv_len=true"), ("vision", "")]],
    of_two("AltCLIP, text", "altclip", "text", tower("", "", "kv_len=true", f"roberta.{AT_BERT}", BERT, 5, of_5=dict(
        at="text_model.roberta.encoder.layers.0.attention"))),
    Row("AltCLIP, text alone", "altclip_text_model", "encoder.layers.0.attention", BERT, "kv_len=true", since=5,
        of_5={}),
    of_two("AltCLIP, vision", "altclip", "vision", tower("", "", "", TOWER.replace("layers", "layer"), since=5,
                                                         of_5=dict(at=f"vision_model.{TOWER}"))),
]

GROUPS = dict(depths=[1, 1], num_group_tokens=[3, 0], num_output_groups=[3, 3])
FRAMES = dict(num_frames=2, mit_hidden_size=64, mit_num_attention_heads=4, mit_num_hidden_layers=1,
              mit_intermediate_size=32)
PROMPTS = dict(prompt_num_attention_heads=2, projection_dim=64)
VISION_OF_GIT = dict(vision_config=WIDE)
QFORMER = dict(encoder_hidden_size=32, cross_attention_frequency=1)
ASKS = "attention=cross k_width={encoder_hidden_size} v_width={encoder_hidden_size}"
ROWS += [
    *[Row(f"MobileViT, {i}", "mobilevit", f"encoder.layer.{i + 1}.transformer.layer.1.attention", VIT,
          f"d_model={{hidden_sizes[{i - 1}]}}", dict(image_size=64, hidden_sizes=[16, 24, 32]), of_5={})
      for i in (1, 3)],
    of_two("GroupViT, text", "groupvit", "text", tower("", "", "causal=true"), {}, GROUPS),
    of_two("GroupViT, vision", "groupvit", "vision", tower("", "", "", "encoder.stages.1.layers.0.self_attn"), {},
           GROUPS),
    of_two("GroupViT, groups", "groupvit", "vision", tower(
        "", "", "attention=cross", "encoder.stages.0.downsample.pre_assign_attn.attn"), {}, GROUPS),
    *[of_two(f"X-CLIP, {name}", "xclip", part, tower("", "", keys, at), {}, FRAMES, **PROMPTS)
      for name, part, keys, at in [
          ("text", "text", "causal=true", TOWER), ("vision", "vision", "", TOWER),
          ("messages", "vision", "", TOWER.replace("self", "message"))]],
    of_two("X-CLIP, frames", "xclip", "vision", tower("", ""), {}, FRAMES, **PROMPTS)._replace(at=f"mit.{TOWER}"),
    of_two("X-CLIP, prompts", "xclip", "vision", tower(
        "", "", "attention=cross h=2 d_model={projection_dim}", matrices="q_proj k_proj v_proj proj"), {}, FRAMES,
        **PROMPTS)._replace(at="prompts_generator.decoder.1.cross_attn"),
    Row("GIT", "git", AT_BERT, BERT, ROWS_SEEN, VISION_OF_GIT, args=MASK),
    tower("GIT, vision", "git", "", f"image_encoder.vision_model.{TOWER}", config=VISION_OF_GIT),
    of_two("TIPSv2, text", "tipsv2", "text", tower(
        "", "", "kv_len=true", matrices="in_proj out_proj", since=5, of_5=dict(
            matrices=Q_K_V_OUT, at=f"text_model.{TOWER}")))._replace(at="text_encoder.transformer.resblocks.0.attn"),
    of_two("TIPSv2, vision", "tipsv2", "vision", tower("", "", matrices="qkv proj", since=5, of_5=dict(
        matrices=Q_K_V_O, at=f"vision_model.{AT_BERT}")))._replace(at="vision_encoder.blocks.0.attn"),
    *[tower(f"{name}, vision", f"{kind}_vision_model", "", matrices="qkv projection")
      for name, kind in [("BLIP-2", "blip_2"), ("InstructBLIP", "instructblip"),
                         ("InstructBLIP, videos", "instructblipvideo")]],
    *[Row(f"{name}, {part}", f"{kind}_qformer", f"encoder.layer.0.{part}", VIT, keys, QFORMER, of_5={})
      for name, kind in [("BLIP-2", "blip_2"), ("InstructBLIP", "instructblip"),
                         ("InstructBLIP, videos", "instructblipvideo")]
      for part, keys in [("attention", "kv_len=true"), ("crossattention", ASKS)]],
    *[tower(f"{name}{more}", kind, "qk_norm=rms norm_eps=1e-6 norm_span=all" if more else "", at, PROJECTION, since,
            config=dict(use_qk_norm=bool(more), attention_bias=bool(more)), weights=GAINS if more else {}, of_5={})
      for name, kind, at, since in [("InternVL", "internvl_vision", AT_BERT, 4),
                                    ("Qianfan OCR", "qianfan_ocr_vision", "layers.0.attention", 5)]
      for more in ("", ", norms")],
    tower("Janus", "janus_vision_model", matrices=PROJECTION),
    *[tower(name, kind, KEYS_SEEN, args=MASK_OF_KEYS) for name, kind in [
        ("Idefics 2", "idefics2_vision"), ("Idefics 3", "idefics3_vision"), ("SmolVLM", "smolvlm_vision"),
        ("Phi-4, vision", "phi4_multimodal_vision")]],
    tower("Ovis 2", "ovis2_vision", at="encoder.layers.0.attention", config=dict(qkv_bias=True)),
    tower("Molmo 2", "molmo2_vision", at="layers.0.self_attn", matrices=Q_K_V_O, since=5,
          config=dict(image_size=[12, 12], num_key_value_heads=2, head_dim=24)),
    *[tower(f"Llama 3.2, {part}", "mllama_vision_model", f"h={{attention_heads}} {ROWS_SEEN}", at, Q_K_V_O, args=MASK,
            config=dict(attention_heads=4, num_global_layers=1, intermediate_layers_indices=[0], max_num_tiles=4))
      for part, at in [("tiles", "transformer.layers.0.self_attn"),
                       ("all tiles", "global_transformer.layers.0.self_attn")]],
    tower("Kosmos 2, vision", "kosmos_2_vision_model"),
    tower("Granite Docling, vision", "granite_docling_vision", since=5, config=dict(
        scale_factor=2, image_size=16, deepstack_visual_indexes=[0])),
]
# Types that transformers 4 has as parts of others only.
SINCE_5 = """flava_multimodal_model blip_2_vision_model instructblip_vision_model instructblip_qformer
    instructblipvideo_vision_model instructblipvideo_qformer janus_vision_model idefics2_vision phi4_multimodal_vision
    ovis2_vision mllama_vision_model kosmos_2_vision_model""".split()
ROWS = [row._replace(since=5) if row.kind in SINCE_5 else row for row in ROWS]


def images(torch, config, batch, *frames):
    size = config.image_size
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.randn(batch, *frames, 3, height, width)


def image(torch, config, batch):
    return dict(pixel_values=images(torch, config, batch))


def both(torch, config, batch):
    """Rows of both, which the model puts one before."""
    return dict(hidden_states=torch.randn(batch, 10, config.hidden_size),
                attention_mask=torch.arange(11) < torch.tensor([[7], [11]]))


def queries(torch, config, batch):
    """Of a model that asks an image."""
    return dict(query_embeds=torch.randn(batch, 5, config.hidden_size), encoder_hidden_states=torch.randn(
        batch, 9, config.encoder_hidden_size), attention_mask=torch.arange(5) < torch.tensor([[3], [5]]))


def queries_and_texts(torch, config, batch):
    return dict(queries(torch, config, batch), input_ids=torch.randint(1, config.vocab_size, (batch, 11)),
                attention_mask=torch.arange(16) < torch.tensor([[13], [16]]))


def some_patches(torch, config, batch):
    """Of images of 9 patches, and of 2 by 2 of these."""
    real = torch.ones(batch, 3, 3, dtype=torch.bool)
    real[0, 2] = real[0, :, 2] = False
    return dict(image(torch, config, batch), patch_attention_mask=real)


def patches(torch, config, batch):
    return dict(pixel_values=torch.randn(batch, 9, 3 * config.patch_size**2))


def tiles(torch, config, batch):
    """Two tiles of four each, of which the last images have one."""
    size = config.image_size
    return dict(pixel_values=torch.randn(batch, 1, 4, 3, size, size), aspect_ratio_ids=torch.tensor([[2], [1]]),
                aspect_ratio_mask=torch.tensor([[[1, 1, 0, 0]], [[1, 0, 0, 0]]]))


def texts_and_videos(torch, config, batch):
    size = config.vision_config.image_size
    return dict(input_ids=torch.randint(1, config.text_config.vocab_size, (batch, 11)),
                pixel_values=torch.randn(batch, config.vision_config.num_frames, 3, size, size))


def videos(torch, config, batch):
    return dict(pixel_values=images(torch, config, batch, config.num_frames))


def texts(torch, config, batch):
    """Texts of padding."""
    return dict(input_ids=torch.randint(1, config.vocab_size, (batch, 11)),
                attention_mask=torch.arange(11) < torch.tensor([[7], [11]]))


def texts_and_images(torch, config, batch):
    return dict(texts(torch, config, batch), pixel_values=images(torch, config, batch))


def of_parts(torch, config, batch):
    """For models that have an image_config or a vision_config besides that of their texts."""
    vision = getattr(config, "image_config", config.vision_config)
    return dict(texts(torch, config.text_config, batch), pixel_values=images(torch, vision, batch))


# As families.py has them.
QFORMERS = ["blip_2_qformer", "instructblip_qformer", "instructblipvideo_qformer"]
MODULES = "models.{0}.modeling_{0}.{1}"
TOWERS = {"blip_2_vision_model": "Blip2VisionModel", "instructblip_vision_model": "InstructBlipVisionModel",
          "instructblipvideo_vision_model": "InstructBlipVideoVisionModel", "janus_vision_model": "JanusVisionModel",
          "internvl_vision": "InternVLVisionModel", "qianfan_ocr_vision": "QianfanOCRVisionModel",
          "ovis2_vision": MODULES.format("ovis2", "Ovis2VisionModel"),
          "kosmos_2_vision_model": MODULES.format("kosmos2", "Kosmos2VisionModel")}
NAVIT = {"idefics2_vision": MODULES.format("idefics2", "Idefics2VisionTransformer"),
         "idefics3_vision": "Idefics3VisionTransformer", "smolvlm_vision": "SmolVLMVisionTransformer",
         "phi4_multimodal_vision": "Phi4MultimodalVisionModel"}
INPUTS = {
    "vilt": texts_and_images, "flava": of_parts, "altclip": of_parts, "AIMv2, text": of_parts,
    "flava_multimodal_model": both, "videomae": videos, "timesformer": videos, "blip_2_qformer": queries,
    **{kind: queries_and_texts for kind in QFORMERS[1:]}, **{kind: image for kind in TOWERS},
    **{kind: some_patches for kind in NAVIT}, "molmo2_vision": patches, "mllama_vision_model": tiles,
    "granite_docling_vision": image,
    "xclip": texts_and_videos, "GIT, vision": texts_and_images, "TIPSv2, text": of_parts}
BUILT_BY = {
    **TOWERS, **NAVIT, "vitpose_backbone": "VitPoseBackbone", "molmo2_vision": "Molmo2VisionModel",
    "altclip_text_model": MODULES.format("altclip", "AltRobertaModel"),
    "mllama_vision_model": "MllamaVisionModel", "flava_multimodal_model": "FlavaMultimodalModel",
    **{kind: f"{name}QFormerModel" for kind, name in zip(QFORMERS, ("Blip2", "InstructBlip", "InstructBlipVideo"))}}
PARTS = [f"{kind}_{part}_model" for kind in ("aimv2", "altclip", "flava", "groupvit", "xclip", "tipsv2")
         for part in ("text", "vision") if (kind, part) != ("flava", "vision")] + [
    "flava_image_model", "flava_multimodal_model", "git_vision_model"]
OF_TWO = {"aimv2", "groupvit", "tipsv2"}
WITHOUT_CACHE = {"aimv2", "groupvit", "xclip", *QFORMERS}
