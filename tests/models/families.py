"""More rows as architectures.py has them: types of transformers whose attention is that of another type, or nearly.

tests/models/test_import.py compares each with transformers, as it does those of architectures.py."""
import axial
import families_composites
import families_texts
import images
import masks
import proposed
import scenes
import sounds
import speech
from architectures import (GAINS, LAYER, Q_K_V_O, Q_K_V_OUT, RMS, ROPE, TINY, TINY_BART, TINY_GQA, TINY_IMAGE, TINY_MOE,
                           TINY_SWIN, TINY_T5, TINY_TOWER, WINDOW, Row, like, of_parts)

KINDS = dict(num_hidden_layers=2, layer_types=["sliding_attention", "full_attention"])
SECOND = "layers.1.self_attn"
INTERLEAVED = ROPE.replace("half", "interleaved")
PART = " rope_dims={int(partial_rotary_factor * head_dim)}"
TINY_EXPERTS = {**TINY_MOE, "n_routed_experts": 2, "n_shared_experts": 1, "num_shared_experts": 1, "n_group": 1,
                "topk_group": 1, "moe_num_experts": 2, "moe_k": 1, "shared_intermediate_size": 8}
TINY_MAMBA = dict(num_hidden_layers=2, mamba_n_heads=4, mamba_d_head=32, mamba_d_state=4, mamba_d_conv=2,
                  mamba_d_ssm=128, mamba_n_groups=1, mamba_chunk_size=4, use_mamba_kernels=False)
TINY_GRANITE_4 = dict(attention_multiplier=0.4, layer_types=["mamba", "attention"], **{**TINY_EXPERTS, **TINY_MAMBA})
TINY_GPT = dict(n_embd=64, n_head=4, n_layer=1)


def llama(name, kind, keys="", since=4, **config):
    """A decoder with Llama's maps. config: what it has besides."""
    return Row(name, kind, LAYER, Q_K_V_O, f"{ROPE} {keys}".strip(), {**TINY_GQA, **config}, since=since)


def normed(name, kind, keys=RMS, since=4, **config):
    return llama(name, kind, keys, since, **config)._replace(weights=GAINS)


def windows(row, whole, since=None, **config):
    """The layers of a model of two kinds. whole: the keys of the one without a window, where it has others."""
    row = row._replace(config={**row.config, "sliding_window": 4, **KINDS, **config}, since=since or row.since)
    return [row._replace(name=f"{row.name}, windows", keys=f"{row.keys} {WINDOW}"),
            row._replace(name=f"{row.name}, whole", at=SECOND, keys=row.keys if whole is None else whole)]


DECODERS = [
    *[llama(name, kind, partial_rotary_factor=0.5, attention_bias=bias)._replace(keys=INTERLEAVED + PART)
      for name, kind, bias in [("GLM", "glm", False), ("GLM 4", "glm4", True)]],
    llama("GLM 4.5", "glm4_moe", partial_rotary_factor=0.5, **TINY_EXPERTS)._replace(keys=ROPE + PART),
    normed("GLM 4.5, norms", "glm4_moe", RMS + PART, use_qk_norm=True, attention_bias=True, **TINY_EXPERTS),
    *windows(llama("Cohere 2", "cohere2")._replace(keys=INTERLEAVED), "causal=true"),
    *windows(normed("EXAONE 4", "exaone4"), f"causal=true {RMS}"),
    normed("EXAONE 4, no windows", "exaone4", sliding_window=None, layer_types=["full_attention"]),
    *windows(normed("EXAONE, experts", "exaone_moe", since=5, **TINY_EXPERTS), f"causal=true {RMS}"),
    *windows(normed("Kolibri", "kolibri1", since=5, **TINY_EXPERTS), f"causal=true {RMS}"),
    *windows(llama("Ministral", "ministral", since=5), None),
    *windows(like("Gemma 2, windows", name="VaultGemma", kind="vaultgemma", keys=like(
        "Gemma 2, windows").keys.replace(f" {WINDOW}", "")), None),
    llama("Arcee", "arcee", attention_bias=True),
    llama("Jais 2", "jais2", since=5),
    llama("Seed-OSS", "seed_oss", attention_out_bias=True),
    *windows(llama("CWM", "cwm", rope_scaling=None), None, since=5),
    *windows(normed("Mellum", "mellum", since=5, rope_theta=None, **TINY_EXPERTS), None),
    *windows(normed("dots.llm1", "dots1", **TINY_EXPERTS), None),
    llama("ERNIE 4.5", "ernie4_5", use_bias=True)._replace(keys=INTERLEAVED),
    llama("ERNIE 4.5, experts", "ernie4_5_moe", **TINY_EXPERTS)._replace(keys=INTERLEAVED),
    llama("Helium", "helium", attention_bias=True)._replace(keys=INTERLEAVED),
    llama("HyperCLOVA X", "hyperclovax", "scale={attention_multiplier}", since=5, attention_multiplier=0.4),
    llama("Granite, shared experts", "granitemoeshared", "scale={attention_multiplier}", attention_multiplier=0.4,
          **TINY_EXPERTS),
    llama("Solar Open", "solar_open", since=5, **TINY_EXPERTS),
    llama("Nemotron 4", "nemotron", partial_rotary_factor=0.5, hidden_size=16)._replace(keys=ROPE + PART),
    llama("StableLM", "stablelm", partial_rotary_factor=0.25, use_qkv_bias=True, head_dim=None)._replace(
        keys=ROPE + " rope_dims={int(partial_rotary_factor * hidden_size // num_attention_heads)}"),
    llama("OLMo", "olmo", attention_bias=True),
    normed("OLMoE", "olmoe", f"{RMS} norm_span=all", **TINY_EXPERTS),
    normed("FlexOlmo", "flex_olmo", f"{RMS} norm_span=all", **TINY_EXPERTS),
    normed("MiniMax M2", "minimax_m2", f"{RMS} norm_span=all rope_dims={{rotary_dim}}", since=5, rotary_dim=8,
           **TINY_EXPERTS),
    normed("Hunyuan 3", "hy_v3", since=5, mlp_layer_types=["dense"], **TINY_EXPERTS),
    normed("Apertus", "apertus", rope_scaling=like("Llama 3.1").config["rope_scaling"]),
    llama("Phi-3.5 MoE", "phimoe", WINDOW, sliding_window=4, attention_bias=True, **TINY_MOE),
    *[normed(name, kind, "qk_norm=rms norm_eps={norm_eps}", num_hidden_layers=2, since=since, num_dense_layers=1,
             layer_types=["conv", "full_attention"], **TINY_EXPERTS)._replace(
          at=SECOND, matrices=Q_K_V_OUT, weights=dict(q_norm="q_layernorm.weight", k_norm="k_layernorm.weight"))
      for name, kind, since in [("LFM2", "lfm2", 4), ("LFM2, experts", "lfm2_moe", 5)]],
    llama("Granite 4, hybrid", "granitemoehybrid", "scale={attention_multiplier}", position_embedding_type="rope",
          **TINY_GRANITE_4)._replace(at=SECOND),
    llama("Granite 4, hybrid, without rope", "granitemoehybrid", **TINY_GRANITE_4)._replace(
        at=SECOND, keys="causal=true scale={attention_multiplier}"),
    llama("Bamba", "bamba", "rope_dims=8", attn_layer_indices=[1], **TINY_MAMBA)._replace(at=SECOND),
    Row("Jamba", "jamba", SECOND, Q_K_V_O, "causal=true", dict(
        num_key_value_heads=2, attn_layer_period=2, attn_layer_offset=1, num_experts=1, **TINY_MAMBA)),
    llama("Falcon H1", "falcon_h1", "scale={key_multiplier * head_dim ** -0.5}", key_multiplier=0.5, **TINY_MAMBA),
    *[Row(f"GPT-Neo, {kind}", "gpt_neo", f"h.{i}.attn.attention", Q_K_V_OUT, f"causal=true scale=1 {window}".strip(),
          dict(num_hidden_layers=2, num_layers=2, num_heads=4, window_size=4,
               attention_types=[[["global", "local"], 1]]))
      for i, (kind, window) in enumerate([("whole", ""), ("windows", "window_left={window_size - 1}")])],
    Row("StarCoder, GPT-BigCode", "gpt_bigcode", "h.0.attn", "c_attn c_proj", "causal=true h_kv=1", TINY_GPT),
    Row("GPT-BigCode, many heads of keys", "gpt_bigcode", "h.0.attn", "c_attn[heads] c_proj", "causal=true",
        {**TINY_GPT, "multi_query": False}),
]


def seq2seq(name, kind, cross="encoder_attn", **config):
    """Those of BART."""
    return [like(f"BART, {part}", name=f"{name}, {part}", kind=kind, config={**like(f"BART, {part}").config, **config},
                 **({"at": f"decoder.layers.0.{cross}"} if part.endswith("to encoder") else {}))
            for part in ("encoder", "decoder", "decoder to encoder")]


def of_two(name, kind, text="causal=true"):
    """Types with a text and an image, each with layers of CLIP's names."""
    config = dict(text_config=dict(TINY), vision_config={**TINY_TOWER, "hidden_size": 64}, projection_dim=16)
    return [like("CLIP, vision", name=f"{name}, {part}", kind=kind, keys=keys, config=config,
                 at=f"{part}_model.encoder.layers.0.self_attn") for part, keys in (("text", text), ("vision", ""))]


TINY_BERTS = dict(input_embedding_size=8, output_embedding_size=8, pronunciation_embed_dim=8, shape_embed_dim=8,
                  visual_embedding_dim=8, xpath_unit_hidden_size=4)
TINY_BLIP = dict(text_config={**TINY, "encoder_hidden_size": 32}, vision_config=TINY_TOWER, projection_dim=16,
                 image_text_hidden_size=16)
TINY_PATCHES = dict(TINY_IMAGE, num_frames=2, tubelet_size=[1, 4, 4], num_detection_tokens=3)
TINY_SWITCH = dict(TINY_T5, num_experts=2, num_sparse_encoder_layers=1, num_sparse_decoder_layers=1, num_layers=1,
                   num_decoder_layers=1)
TINY_DONUT = dict(encoder=dict(model_type="donut-swin", **{**TINY_SWIN, "image_size": [12, 12]}),
                  decoder=dict(model_type="mbart", **TINY, **TINY_BART, add_cross_attention=True, is_decoder=True))
TINY_TROCR = dict(encoder=dict(model_type="deit", **TINY_TOWER), decoder=dict(
    model_type="trocr", d_model=64, decoder_layers=1, decoder_attention_heads=4, decoder_ffn_dim=32, vocab_size=50,
    cross_attention_hidden_size=32, max_position_embeddings=64, is_decoder=True, add_cross_attention=True))
DECODER = "decoder.model.decoder.layers.0"

ENCODERS = [
    *[like("BERT", name=f"BERT, as {kind}", kind=kind, config=TINY_BERTS) for kind in (
        "ernie bert-generation data2vec-text roc_bert roberta-prelayernorm xlm-roberta-xl megatron-bert rembert "
        "layoutlm splinter markuplm visual_bert tapas").split()],
    like("BERT", name="RemBERT, decoder", kind="rembert", keys="causal=true kv_len=true",
         config=dict(TINY_BERTS, is_decoder=True)),
    like("BERT", name="BigBird", kind="big_bird", config=dict(use_bias=False)),
    like("BERT", name="BigBird, all", kind="big_bird", config=dict(attention_type="original_full", block_size=1,
                                                                     num_random_blocks=1)),
    like("BERT", name="ESM", kind="esm"),
    like("BERT", name="ESM, rope", kind="esm", keys="rope=half kv_len=true", config=dict(
        position_embedding_type="rotary")),
    like("Nomic BERT", name="GTE", kind="gte", at="encoder.layer.0.attention", matrices="qkv_proj o_proj"),
    llama("EuroBERT", "eurobert", attention_bias=True)._replace(keys=ROPE.replace("causal", "kv_len"), since=5),
    *[like("ViT", name=f"ViT, as {kind}", kind=kind, config=TINY_PATCHES) for kind in (
        "vit_mae vit_msn ijepa vivit").split()],
    like("ViT", name="YOLOS", kind="yolos", config={**TINY_PATCHES, "image_size": [12, 12]}),
    like("ViT", name="AST", kind="audio-spectrogram-transformer", config=dict(
        max_length=8, num_mel_bins=8, patch_size=4, frequency_stride=4, time_stride=4)),
    *[like("wav2vec 2", name=f"wav2vec 2, as {kind}", kind=kind) for kind in (
        "data2vec-audio unispeech unispeech-sat sew").split()],
    *seq2seq("Blenderbot", "blenderbot"), *seq2seq("Blenderbot, small", "blenderbot-small"),
    *seq2seq("PLBART", "plbart"), *seq2seq("NLLB, experts", "nllb-moe", "cross_attention", num_experts=2),
    *seq2seq("Speech to text", "speech_to_text", input_feat_per_channel=8, conv_channels=16),
    like("OPT", name="BioGPT", kind="biogpt", at=LAYER, config={}),
    like("OPT", name="XGLM", kind="xglm", at=LAYER, config=dict(d_model=64, ffn_dim=32, num_layers=1,
                                                                 attention_heads=4)),
    *[like(f"T5, {part}", name=f"{name}, {part}", kind=kind, config=config)
      for name, kind, config in [("mT5", "mt5", TINY_T5), ("UMT5", "umt5", TINY_T5),
                                 ("Pop2Piano", "pop2piano", TINY_T5),
                                 ("Switch", "switch_transformers", TINY_SWITCH)]
      for part in ("encoder", "decoder", "decoder to encoder")],
    like("GPT-2", name="ImageGPT", kind="imagegpt", keys="causal=true"),
    like("GPT-2", name="GPT", kind="openai-gpt", keys="causal=true"),
    Row("CTRL", "ctrl", "h.0.multi_head_attention", "Wq Wk Wv dense", "causal=true", dict(dff=32, **TINY_GPT)),
    like("SigLIP, vision", name="SigLIP 2, vision", kind="siglip2_vision_model", keys="kv_len=true",
         config=dict(patch_size=2, num_patches=16)),
    *[of_parts("SigLIP, vision", f"SigLIP 2 of both, {part}", "siglip2", {}, dict(
        TINY_TOWER, hidden_size=64, patch_size=2, num_patches=16))._replace(
            at=f"{part}_model.encoder.layers.0.self_attn", keys=keys)
      for part, keys in [("text", ""), ("vision", "kv_len=true")]],
    *of_two("OWL-ViT", "owlvit"), *of_two("OWLv2", "owlv2"), *of_two("MetaCLIP 2", "metaclip_2"),
    *of_two("CLIPSeg", "clipseg"), of_two("Chinese CLIP", "chinese_clip")[1],
    like("BERT", name="Chinese CLIP, text", kind="chinese_clip", at="text_model.encoder.layer.0.attention",
         config=of_two("Chinese CLIP", "chinese_clip")[0].config),
    like("BERT", name="BLIP, text", kind="blip", at="text_model.encoder.layer.0.attention", config=TINY_BLIP),
    like("BERT", name="BLIP, decoder", kind="blip", at="text_decoder.bert.encoder.layer.0.attention",
         keys="causal=true kv_len=true", config=TINY_BLIP),
    like("BERT", name="BLIP, decoder to encoder", kind="blip", at="text_decoder.bert.encoder.layer.0.crossattention",
         keys="attention=cross", config=TINY_BLIP),
    Row("BLIP, vision", "blip", "vision_model.encoder.layers.0.self_attn", "qkv projection",
        "h={vision_config.num_attention_heads} d_model={vision_config.hidden_size}", TINY_BLIP),
    like("Swin", name="Donut, encoder", kind="vision-encoder-decoder", at="encoder.encoder.layers.0.blocks.0.attention",
         config=TINY_DONUT),
    like("Swin, shifted windows", name="Donut, encoder, shifted", kind="vision-encoder-decoder",
         at="encoder.encoder.layers.0.blocks.1.attention", config=TINY_DONUT),
    *[Row(f"{name}, {part}", "vision-encoder-decoder", f"{DECODER}.{at}", Q_K_V_OUT, keys, config)
      for name, config in [("Donut", TINY_DONUT), ("TrOCR", TINY_TROCR)]
      for part, at, keys in [("decoder", "self_attn", "causal=true"),
                             ("decoder to encoder", "encoder_attn", "attention=cross")]],
]
ENCODERS = [row._replace(keys=row.keys + " kv_len=true") if row.name == "Donut, decoder to encoder" else row
            for row in ENCODERS]

# Texts and images: the text, whose config is that of a type, and the tower of images.
LLAVAS = [of_parts("Llama", f"{name}, text", kind, dict(model_type="llama", num_hidden_layers=2), dict(
    model_type=tower, **TINY_TOWER), image_grid_pinpoints=[[12, 12]])._replace(at=SECOND, keys=ROPE)
    for name, kind, tower in [
        ("LLaVA", "llava", "clip_vision_model"), ("LLaVA NeXT", "llava_next", "clip_vision_model"),
        ("LLaVA NeXT, videos", "llava_next_video", "clip_vision_model"), ("ViP-LLaVA", "vipllava", "clip_vision_model"),
        ("LLaVA OneVision", "llava_onevision", "siglip_vision_model"),
        ("Aya Vision", "aya_vision", "siglip_vision_model")]]

LLAVAS += [
    of_parts("Gemma", "PaliGemma, text", "paligemma", dict(model_type="gemma", num_hidden_layers=2), dict(
        model_type="siglip_vision_model", **TINY_TOWER), since=5)._replace(at=SECOND),
    of_parts("ModernBERT, whole", "ModernVBERT, text", "modernvbert", {}, TINY_TOWER, 5)._replace(
        at="text_model.layers.0.attn")]

# Types that are parts of others.
PARTS = [f"{kind}_{side}_model" for kind in ["owlvit", "owlv2", "metaclip_2", "clipseg", "chinese_clip", "blip",
                                             "siglip2"] for side in ("text", "vision")] + [
    "donut-swin", "trocr", *families_texts.PARTS, *families_composites.PARTS]


def patches(torch, config, batch):
    """Of images of 5 and of 9 patches."""
    real = torch.arange(9) < torch.tensor([[5], [9]])
    return dict(pixel_values=torch.randn(batch, 9, config.num_channels * config.patch_size**2),
                pixel_attention_mask=real, spatial_shapes=torch.tensor([[1, 5], [3, 3]]))


def captions(torch, config, batch):
    """Texts of padding, and images."""
    size = config.vision_config.image_size
    return dict(pixel_values=torch.randn(batch, 3, size, size),
                input_ids=torch.randint(1, config.text_config.vocab_size, (batch, 11)),
                attention_mask=torch.arange(11) < torch.tensor([[7], [11]]))


# Inputs that are not as their name says, of types and rows.
INPUTS = {
    "BLIP, decoder": captions, "BLIP, decoder to encoder": captions,
    "siglip2_vision_model": patches,
    "siglip2": lambda torch, config, batch: dict(patches(torch, config.vision_config, batch), input_ids=torch.randint(
        1, config.text_config.vocab_size, (batch, 11))),
    "vivit": lambda torch, config, batch: dict(pixel_values=torch.randn(
        batch, config.num_frames, config.num_channels, config.image_size, config.image_size)),
    "audio-spectrogram-transformer": lambda torch, config, batch: dict(input_values=torch.randn(
        batch, config.max_length, config.num_mel_bins)),
    "speech_to_text": lambda torch, config, batch: dict(input_features=torch.randn(
        batch, 44, config.input_feat_per_channel), attention_mask=torch.arange(44) < torch.tensor([[28], [44]])),
    "pop2piano": lambda torch, config, batch: dict(inputs_embeds=torch.randn(batch, 11, config.d_model)),
    **families_texts.INPUTS, **families_composites.INPUTS,
}
# Types and rows that are built by another class than AutoModel.
BUILT_BY = {"vision-encoder-decoder": "AutoModelForImageTextToText", "pop2piano": "Pop2PianoForConditionalGeneration",
            "BLIP, decoder": "BlipForConditionalGeneration", "BLIP, decoder to encoder": "BlipForConditionalGeneration",
            **families_composites.BUILT_BY}
# Those that take a text and an image.
OF_TWO = {"clip", "siglip", "owlvit", "owlv2", "metaclip_2", "clipseg", "chinese_clip", "blip"}
# Those that keep no keys, or number their places anew in each run.
WITHOUT_CACHE = {"owlvit", "owlv2", "metaclip_2", "clipseg", "openai-gpt", "switch_transformers", "bamba", "blip",
                 *families_texts.WITHOUT_CACHE, *families_composites.WITHOUT_CACHE}
ROWS_FIRST, SINGLE = families_texts.ROWS_FIRST, families_texts.SINGLE
LAST_ROWS_FIRST = ROWS_FIRST | axial.LAST_ROWS_FIRST
for more in (images, scenes, sounds, axial, speech, masks, proposed):
    INPUTS |= more.INPUTS
    BUILT_BY |= more.BUILT_BY
    PARTS += more.PARTS
    OF_TWO |= more.OF_TWO
    WITHOUT_CACHE |= more.WITHOUT_CACHE
FAMILIES = DECODERS + ENCODERS + LLAVAS + families_texts.FAMILIES + families_composites.COMPOSITES + images.ROWS + \
    scenes.ROWS + sounds.ROWS + axial.ROWS + speech.ROWS + masks.ROWS + proposed.ROWS
