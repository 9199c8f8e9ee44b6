"""Models of Hugging Face's transformers, and the keys of mhagen that their attention takes.

`python3 tests/models/architectures.py` prints the table of docs/models.md,
which says how to read it. tests/models/test_models.py
compares each row with transformers.
"""
import copy
import re
import typing


class Row(typing.NamedTuple):
    name: str
    kind: str  # the model_type of its config
    at: str  # the attention of a layer in the model
    matrices: str  # its linear maps: of q, k, v and o; or a joint one of q, k and v, then o's
    keys: str  # {...} is an expression of the config's fields
    config: dict = {}  # what the test sets besides TINY, to be fast, and to other values than the defaults; ... is none
    weights: dict = {}  # other pointers of mhagen_weights: expressions of the module's parts and its call's arguments
    args: dict = {}  # and of mhagen_args, also of seq, seq_kv, batch and past
    since: int = 4  # the version of transformers that computes so
    of_5: typing.Optional[dict] = None  # what modules of transformers 5 have otherwise, where OF_5 does not say it


VIT = "attention.query attention.key attention.value output.dense"
BERT = "self.query self.key self.value output.dense"
Q_K_V_OUT = "q_proj k_proj v_proj out_proj"
Q_K_V_O = "q_proj k_proj v_proj o_proj"
LAYER = "layers.0.self_attn"

ROPE = "causal=true rope=half rope_theta={rope_theta}"
WINDOW = "window_left={sliding_window - 1}"
T5_BIAS = dict(mask="compute_bias(seq_kv, seq_kv)[0, :, past:past + seq]")
SWIN_BIAS = "self.relative_position_bias_table[self.relative_position_index].permute(2, 0, 1)"
SHIFTED = " + attention_mask.repeat(batch // len(attention_mask), 1, 1)[:, None]"
SWIN2_BIAS = ("16 * self.continuous_position_bias_mlp(self.relative_coords_table).flatten(0, -2)"
              "[self.relative_position_index].permute(2, 0, 1).sigmoid()")
COSINE = "scale=1 qk_norm=l2 norm_span=each norm_eps=1e-12"
COSINE_SCALES = dict(q_norm="self.logit_scale.clamp(max=log(100)).exp().repeat(1, 1, self.attention_head_size)")
MOONSHINE = "rope=interleaved rope_theta={rope_theta} rope_dims={int(partial_rotary_factor * hidden_size // 4)}"
RMS = "qk_norm=rms norm_eps={rms_norm_eps}"
GAINS = dict(q_norm="q_norm.weight", k_norm="k_norm.weight")
GEMMA_GAINS = dict(q_norm="1 + q_norm.weight", k_norm="1 + k_norm.weight")
TABLES = dict(rope_cos="position_embeddings[0][0, :, :head_dim // 2]",
              rope_sin="position_embeddings[1][0, :, :head_dim // 2]")

TINY = dict(hidden_size=64, num_attention_heads=4, num_hidden_layers=1, intermediate_size=32, vocab_size=50,
            pad_token_id=0)
TINY_IMAGE = dict(image_size=12, patch_size=4)
TINY_SPEECH = dict(d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                   decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, max_source_positions=11)
TINY_T5 = dict(d_model=64, d_kv=6, num_heads=4, num_layers=1, d_ff=32)
TINY_BART = {**TINY_SPEECH, "max_position_embeddings": 64}
TINY_SWIN = dict(image_size=12, patch_size=2, embed_dim=32, depths=[2], num_heads=[4], num_attention_heads=[4],
                 window_size=3)
TINY_ROPE = dict(rope_theta=500.0)
TINY_GQA = dict(num_key_value_heads=2, head_dim=16, max_position_embeddings=64, **TINY_ROPE)
TINY_WINDOW = {**TINY_GQA, "sliding_window": 4}
# Version 5 makes two bases of one that has its older name: here are the defaults.
TINY_BASES = {name: value for name, value in TINY_WINDOW.items() if name != "rope_theta"}
TINY_MOE = dict(num_experts=2, num_local_experts=2, num_experts_per_tok=1, moe_intermediate_size=8)
TINY_LLAMA_4 = {**TINY_GQA, **TINY_MOE, "intermediate_size_mlp": 16, "num_hidden_layers": 2, "no_rope_layers": [1, 0]}
TINY_TOWER = dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16, **TINY_IMAGE)
TINY_MOONSHINE = dict(encoder_num_hidden_layers=1, decoder_num_hidden_layers=1, encoder_num_attention_heads=4,
                      decoder_num_attention_heads=4, **TINY_ROPE)

ROWS = [
    Row("BERT", "bert", "encoder.layer.0.attention", BERT, "kv_len=true"),
    Row("DistilBERT", "distilbert", "transformer.layer.0.attention", "q_lin k_lin v_lin out_lin", "kv_len=true"),
    Row("ModernBERT, whole", "modernbert", "layers.0.attn", "Wqkv Wo",
        "rope=half rope_theta={rope_theta} kv_len=true", dict(global_rope_theta=700.0)),
    Row("ModernBERT, windows", "modernbert", "layers.1.attn", "Wqkv Wo",
        "rope=half rope_theta={rope_theta} window_left={local_attention // 2} "
        "window_right={local_attention // 2} kv_len=true",
        dict(local_attention=4, num_hidden_layers=2, local_rope_theta=300.0)),
    Row("ALBERT", "albert", "encoder.albert_layer_groups.0.albert_layers.0.attention", "query key value dense",
        "kv_len=true", dict(embedding_size=8)),
    Row("MPNet", "mpnet", "encoder.layer.0.attention.attn", "q k v o", "mask=add mask_dims=hqk kv_len=true",
        args=dict(mask="position_bias[0]")),
    Row("Nomic BERT", "nomic_bert", "encoder.layers.0.attn", "Wqkv out_proj",
        "rope=half rope_theta={rope_theta} kv_len=true", TINY_ROPE, since=5),
    Row("Jina embeddings v3", "jina_embeddings_v3", "encoder.layers.0.mixer", "Wqkv out_proj",
        "rope=half rope_theta={rope_theta} kv_len=true", TINY_ROPE, since=5),
    Row("ViT", "vit", "encoder.layer.0.attention", VIT, "", TINY_IMAGE),
    Row("DeiT", "deit", "encoder.layer.0.attention", VIT, "", TINY_IMAGE),
    Row("Swin", "swin", "encoder.layers.0.blocks.0.attention", BERT,
        "h={num_heads[0]} d_model={embed_dim} mask=add mask_dims=hqk", TINY_SWIN, args=dict(mask=SWIN_BIAS)),
    Row("Swin, shifted windows", "swin", "encoder.layers.0.blocks.1.attention", BERT,
        "h={num_heads[0]} d_model={embed_dim} mask=add mask_dims=bhqk", TINY_SWIN,
        args=dict(mask=SWIN_BIAS + SHIFTED)),
    Row("Swin 2", "swinv2", "encoder.layers.0.blocks.0.attention", BERT,
        f"h={{num_heads[0]}} d_model={{embed_dim}} {COSINE} mask=add mask_dims=hqk", TINY_SWIN, COSINE_SCALES,
        dict(mask=SWIN2_BIAS)),
    Row("Swin 2, shifted windows", "swinv2", "encoder.layers.0.blocks.1.attention", BERT,
        f"h={{num_heads[0]}} d_model={{embed_dim}} {COSINE} mask=add mask_dims=bhqk", TINY_SWIN, COSINE_SCALES,
        dict(mask=SWIN2_BIAS + SHIFTED.replace("+ ", "+ 2 * "))),
    Row("SigLIP, vision", "siglip_vision_model", "encoder.layers.0.self_attn", Q_K_V_OUT, "", TINY_IMAGE),
    Row("CLIP, text", "clip_text_model", "encoder.layers.0.self_attn", Q_K_V_OUT, "causal=true"),
    Row("CLIP, vision", "clip_vision_model", "encoder.layers.0.self_attn", Q_K_V_OUT, "", TINY_IMAGE),
    Row("Whisper, encoder", "whisper", "encoder.layers.0.self_attn", Q_K_V_OUT, "", TINY_SPEECH),
    Row("Whisper, decoder", "whisper", "decoder.layers.0.self_attn", Q_K_V_OUT, "causal=true", TINY_SPEECH),
    Row("Whisper, decoder to encoder", "whisper", "decoder.layers.0.encoder_attn", Q_K_V_OUT, "attention=cross",
        TINY_SPEECH),
    Row("wav2vec 2", "wav2vec2", "encoder.layers.0.attention", Q_K_V_OUT, "",
        dict(conv_dim=[16], conv_kernel=[10], conv_stride=[5], num_conv_pos_embeddings=4,
             num_conv_pos_embedding_groups=4)),
    Row("BART, encoder", "bart", "encoder.layers.0.self_attn", Q_K_V_OUT, "kv_len=true", TINY_BART),
    Row("BART, decoder", "bart", "decoder.layers.0.self_attn", Q_K_V_OUT, "causal=true", TINY_BART),
    Row("BART, decoder to encoder", "bart", "decoder.layers.0.encoder_attn", Q_K_V_OUT,
        "attention=cross kv_len=true", TINY_BART),
    Row("Moonshine, encoder", "moonshine", "encoder.layers.0.self_attn", Q_K_V_O, MOONSHINE, TINY_MOONSHINE),
    Row("Moonshine, decoder", "moonshine", "decoder.layers.0.self_attn", Q_K_V_O, "causal=true " + MOONSHINE,
        TINY_MOONSHINE),
    Row("T5, encoder", "t5", "encoder.block.0.layer.0.SelfAttention", "q k v o",
        "dk={d_kv} scale=1 mask=add mask_dims=hqk kv_len=true", TINY_T5, args=T5_BIAS),
    Row("T5, decoder", "t5", "decoder.block.0.layer.0.SelfAttention", "q k v o",
        "dk={d_kv} scale=1 mask=add mask_dims=hqk causal=true", TINY_T5, args=T5_BIAS),
    Row("T5, decoder to encoder", "t5", "decoder.block.0.layer.1.EncDecAttention", "q k v o",
        "attention=cross dk={d_kv} scale=1 kv_len=true", TINY_T5),
    Row("Perceiver, inputs", "perceiver", "encoder.cross_attention.attention", BERT,
        "attention=cross h={num_cross_attention_heads} d_model={d_latents} k_width={d_model} v_width={d_model} "
        "dk={qk_channels // num_cross_attention_heads} dv={v_channels // num_cross_attention_heads} kv_len=true",
        dict(d_latents=32, d_model=24, num_latents=5, num_blocks=1, num_self_attends_per_block=1,
             num_cross_attention_heads=4, num_self_attention_heads=4, qk_channels=48, v_channels=32)),
    Row("GPT-2", "gpt2", "h.0.attn", "c_attn c_proj", "causal=true kv_start=true"),
    Row("GPT-J", "gptj", "h.0.attn", Q_K_V_OUT, "causal=true rope=interleaved rope_dims={rotary_dim}",
        dict(rotary_dim=8)),
    Row("GPT-NeoX", "gpt_neox", "layers.0.attention", "query_key_value[heads] dense",
        ROPE + " rope_dims={int(partial_rotary_factor * hidden_size // num_attention_heads)}",
        dict(rotary_pct=0.5, rotary_emb_base=500)),
    Row("OPT", "opt", "decoder.layers.0.self_attn", Q_K_V_OUT, "causal=true",
        dict(word_embed_proj_dim=64, ffn_dim=32)),
    Row("BLOOM", "bloom", "h.0.self_attention", "query_key_value[heads] dense", "causal=true alibi=true kv_start=true"),
    Row("MPT, 12 heads", "mpt", "blocks.0.attn", "Wqkv out_proj", "causal=true alibi=true",
        dict(d_model=48, n_heads=12, max_seq_len=64)),
    Row("Falcon 7B", "falcon", "h.0.self_attention", "query_key_value dense", ROPE + " h_kv=1",
        dict(multi_query=True, alibi=False, new_decoder_architecture=False, **TINY_ROPE)),
    Row("Falcon 40B", "falcon", "h.0.self_attention", "query_key_value[heads] dense", ROPE + " h_kv={num_kv_heads}",
        dict(new_decoder_architecture=True, num_kv_heads=2, alibi=False, **TINY_ROPE)),
    Row("Llama", "llama", LAYER, Q_K_V_O, ROPE + " kv_start=true", TINY_GQA),
    Row("Llama 3.1", "llama", LAYER, Q_K_V_O, ROPE,
        {**TINY_GQA, "rope_scaling": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                          original_max_position_embeddings=16)}, TABLES),
    Row("Llama 4", "llama4_text", LAYER, Q_K_V_O,
        "causal=true rope=interleaved rope_theta={rope_theta} qk_norm=rms norm_eps={rms_norm_eps}", TINY_LLAMA_4),
    Row("Llama 4, without rope", "llama4_text", "layers.1.self_attn", Q_K_V_O, "causal=true", TINY_LLAMA_4),
    Row("SmolLM3, without rope", "smollm3", "layers.1.self_attn", Q_K_V_O, f"causal=true {WINDOW}",
        {**TINY_WINDOW, "num_hidden_layers": 2, "no_rope_layers": [1, 0], "use_sliding_window": True}),
    Row("Granite", "granite", LAYER, Q_K_V_O, ROPE + " scale={attention_multiplier}",
        {**TINY_GQA, "attention_multiplier": 0.4}),
    Row("Mistral", "mistral", LAYER, Q_K_V_O, f"{ROPE} {WINDOW}", TINY_WINDOW),
    Row("Qwen 2", "qwen2", LAYER, Q_K_V_O, ROPE, TINY_GQA),
    Row("Qwen 3", "qwen3", LAYER, Q_K_V_O, f"{ROPE} {RMS}", TINY_GQA, GAINS),
    Row("Gemma", "gemma", LAYER, Q_K_V_O, ROPE, TINY_GQA),
    Row("Gemma 2, windows", "gemma2", LAYER, Q_K_V_O,
        f"{ROPE} {WINDOW} scale={{query_pre_attn_scalar ** -0.5}} softcap={{attn_logit_softcapping}}",
        {**TINY_WINDOW, "attn_logit_softcapping": 3.0}),
    Row("Gemma 3, windows", "gemma3_text", LAYER, Q_K_V_O,
        f"{ROPE} {WINDOW} scale={{query_pre_attn_scalar ** -0.5}} {RMS}",
        {**TINY_WINDOW, "rope_local_base_freq": 300.0, "query_pre_attn_scalar": 64}, GEMMA_GAINS),
    Row("Gemma 3, whole", "gemma3_text", "layers.5.self_attn", Q_K_V_O,
        f"{ROPE} scale={{query_pre_attn_scalar ** -0.5}} {RMS}", {**TINY_WINDOW, "num_hidden_layers": 6}, GEMMA_GAINS),
    Row("Phi", "phi", LAYER, "q_proj k_proj v_proj dense",
        ROPE + " rope_dims={int(partial_rotary_factor * hidden_size // num_attention_heads)}",
        dict(partial_rotary_factor=0.25, **TINY_ROPE)),
    Row("Phi-3", "phi3", LAYER, "qkv_proj o_proj", f"{ROPE} {WINDOW}", TINY_WINDOW),
    Row("Cohere", "cohere", LAYER, Q_K_V_O, "causal=true rope=interleaved rope_theta={rope_theta}", TINY_GQA),
    Row("Cohere, Command R+", "cohere", LAYER, Q_K_V_O,
        "causal=true rope=interleaved rope_theta={rope_theta} qk_norm=layer norm_span=each norm_eps={layer_norm_eps}",
        {**TINY_GQA, "use_qk_norm": True}, GAINS),
    Row("OLMo 2", "olmo2", LAYER, Q_K_V_O, f"{ROPE} {RMS} norm_span=all", TINY_GQA, GAINS),
    Row("OLMo 3, windows", "olmo3", LAYER, Q_K_V_O, f"{ROPE} {WINDOW} {RMS} norm_span=all",
        {**TINY_BASES, "rope_theta": 500000.0}, GAINS),
    Row("gpt-oss", "gpt_oss", LAYER, Q_K_V_O, f"causal=true rope=half sink=true {WINDOW}",
        {**TINY_WINDOW, "num_local_experts": 2, "num_experts_per_tok": 1, "max_position_embeddings": 4096 * 32},
        dict(sink="sinks", rope_cos="position_embeddings[0][0]", rope_sin="position_embeddings[1][0]")),
    Row("StarCoder 2", "starcoder2", LAYER, Q_K_V_O, f"{ROPE} {WINDOW}", TINY_WINDOW),
]


def like(model, **changed):
    return next(row for row in ROWS if row.name == model)._replace(**changed)


def second_layer(model, name, at, **config):
    """Where layers differ."""
    return like(model, name=name, at=at, config={**like(model).config, "num_hidden_layers": 2, **config})


def changed(model, name, keys=None, since=4, **config):
    row = like(model)
    return row._replace(name=name, keys=keys or row.keys, config={**row.config, **config}, since=since)


def of_parts(model, name, kind, text, vision=None, since=4, **more):
    """Where the config of a row is that of a part."""
    row = like(model, name=name, kind=kind, since=since)
    return row._replace(config=dict(text_config={**TINY, **row.config, **text}, vision_config=vision or {}, **more))


# Types that are parts of others, whose configs rows have within theirs.
PARTS = ["qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text", "siglip_text_model", "llama4", "gemma3n", "gemma4"]
QWEN_VISION = dict(depth=1, embed_dim=32, hidden_size=64, out_hidden_size=64, num_heads=2, intermediate_size=16,
                   deepstack_visual_indexes=[0])
SECTIONS = dict(rope_scaling=dict(rope_type="default", mrope_section=[2, 3, 3]))
NORMED = "v_norm(v_proj(hidden_states).unflatten(-1, (-1, head_dim))).flatten(2)"
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16)
LONG = dict(type="longrope", short_factor=[1 + 0.1 * i for i in range(8)], long_factor=8 * [4.0])
LINEAR = dict(rope_type="linear", factor=3.0)

# Types, layers and fields that the table of docs/models.md does not have.
MORE = [
    *[like("BERT", name=name, kind=kind) for name, kind in [
        ("RoBERTa", "roberta"), ("XLM-RoBERTa", "xlm-roberta"), ("CamemBERT", "camembert"), ("ELECTRA", "electra")]],
    *[like("ViT", name=name, kind=kind) for name, kind in [
        ("DINOv2", "dinov2"), ("DINOv2, registers", "dinov2_with_registers")]],
    *[like(f"BART, {part}", name=f"{name}, {part}", kind=kind) for name, kind in [
        ("Marian", "marian"), ("mBART", "mbart"), ("M2M-100", "m2m_100"), ("Pegasus", "pegasus")]
      for part in ("encoder", "decoder", "decoder to encoder")],
    like("Whisper, decoder to encoder", name="Moonshine, decoder to encoder", kind="moonshine", matrices=Q_K_V_O,
         config=TINY_MOONSHINE),
    changed("BERT", "BERT, decoder", "causal=true kv_len=true", is_decoder=True),
    like("wav2vec 2", name="HuBERT", kind="hubert"),
    second_layer("Gemma 2, windows", "Gemma 2, whole", "layers.1.self_attn"),
    second_layer("gpt-oss", "gpt-oss, whole", "layers.1.self_attn"),
    second_layer("GPT-2", "GPT-2, scaled by layer", "h.1.attn", scale_attn_by_inverse_layer_idx=True),
    like("Llama", name="SmolLM3", kind="smollm3", config={**TINY_GQA, "no_rope_layers": [1]}),
    like("Granite", name="Granite, experts", kind="granitemoe", config={**like("Granite").config, **TINY_MOE}),
    like("Mistral", name="Mixtral", kind="mixtral", config={**TINY_WINDOW, **TINY_MOE}),
    like("Mistral", name="Ministral 3", kind="ministral3", since=5, config={
        **TINY_WINDOW, "rope_scaling": dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=512,
                                            llama_4_scaling_beta=0.1, mscale=1.0, mscale_all_dim=1.0)}),
    like("Mistral", name="Qwen 2, experts, windows", kind="qwen2_moe",
         config={**TINY_WINDOW, **TINY_MOE, "use_sliding_window": True}),
    like("Qwen 3", name="Qwen 3, experts", kind="qwen3_moe", config={**TINY_GQA, **TINY_MOE}),
    like("Mistral", name="Qwen 3, experts, windows", kind="qwen3_moe", matrices=Q_K_V_O, weights=GAINS,
         keys=f"{ROPE} {WINDOW} {RMS}", config={**TINY_WINDOW, **TINY_MOE, "use_sliding_window": True}),
    second_layer("OLMo 3, windows", "OLMo 3, whole", "layers.1.self_attn",
                 layer_types=["sliding_attention", "full_attention"], rope_scaling=YARN),
    changed("Llama 3.1", "Llama, linear", rope_scaling=LINEAR),
    changed("Llama 3.1", "Llama, YaRN", rope_scaling=YARN),
    changed("Llama 4", "Llama 4, YaRN", since=5, rope_scaling=YARN),
    changed("Llama 3.1", "Llama, dynamic", rope_scaling=dict(rope_type="dynamic", factor=2.0)),
    changed("Llama", "Llama, both directions", "kv_len=true", 5, is_causal=False),
    changed("Mistral", "Mistral, both directions", "kv_len=true", 5, is_causal=False),
    changed("Gemma 3, windows", "Gemma 3, windows, linear", rope_scaling=LINEAR),
    changed("Gemma 3, whole", "Gemma 3, whole, linear", rope_scaling=LINEAR),
    # 4.57.3 halves the window whenever it reads a config, also one that it has written.
    changed("Gemma 3, windows", "Gemma 3, both directions", "kv_len=true", 5, use_bidirectional_attention=True),
    changed("Phi-3", "Phi-3, some columns", partial_rotary_factor=0.75),
    of_parts("Gemma 3, whole", "Gemma 3 of texts and images", "gemma3", {}, TINY_TOWER),
    of_parts("Mistral", "Mistral 3 of texts and images", "mistral3", dict(model_type="mistral"),
             dict(model_type="pixtral", **TINY_TOWER)),
    of_parts("Qwen 2", "Qwen 2 VL", "qwen2_vl", SECTIONS, QWEN_VISION),
    of_parts("Qwen 2", "Qwen 2.5 VL", "qwen2_5_vl", SECTIONS, QWEN_VISION),
    of_parts("Qwen 3", "Qwen 3 VL", "qwen3_vl", SECTIONS, QWEN_VISION),
    of_parts("CLIP, text", "CLIP", "clip", {}, TINY_TOWER)._replace(at="text_model.encoder.layers.0.self_attn"),
    of_parts("SigLIP, vision", "SigLIP", "siglip", {}, {**TINY_TOWER, "hidden_size": 64})._replace(
        at="vision_model.encoder.layers.0.self_attn"),
    of_parts("SigLIP, vision", "SigLIP, text", "siglip", {}, {**TINY_TOWER, "hidden_size": 64})._replace(
        at="text_model.encoder.layers.0.self_attn"),
    *[like("Gemma 3, windows", name=name, kind=kind, args=dict(v=NORMED), weights=GAINS, since=since, config={
        **TINY_BASES, "vocab_size_per_layer_input": 50, "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 8,
        **more}, keys=f"attention=cross project=qko {ROPE} {WINDOW} scale=1 {RMS}") for name, kind, since, more in [
            ("Gemma 3n, windows", "gemma3n_text", 4, dict(laurel_rank=8)),
            ("Gemma 4, windows", "gemma4_text", 5, dict(num_hidden_layers=2))]],
    like("Gemma 3, windows", name="Gemma 4, whole", kind="gemma4_text", at="layers.1.self_attn", since=5,
         args=dict(v=NORMED), weights=GAINS, keys=f"attention=cross project=qko {ROPE} scale=1 {RMS}",
         config={**TINY_BASES, "vocab_size_per_layer_input": 50, "hidden_size_per_layer_input": 8,
                 "num_hidden_layers": 2, "global_head_dim": 24}),
    # A model changes its factors in the midst of a text, and then has keys of both in its cache: not in these.
    *[changed("Phi-3", name, rope_scaling=LONG, original_max_position_embeddings=most)
      for name, most in [("Phi-3, LongRoPE", 4), ("Phi-3, LongRoPE, short", 64)]],
]

# Fields that files on the hub have besides, of older versions and of other programs; none changes attention.
HUB = {
    "bert": dict(directionality="bidi", pooler_num_attention_heads=12, pooler_size_per_head=128,
                 position_embedding_type="absolute"),
    "modernbert": dict(position_embedding_type="absolute", global_attn_every_n_layers=3),
    "swin": dict(path_norm=True, use_absolute_embeddings=False),
    "wav2vec2": dict(no_mask_time_overlap=False, mask_channel_length=10, mask_channel_prob=0.0,
                     mask_channel_selection="static"),
    "bart": dict(normalize_before=False, normalize_embedding=True, add_final_layer_norm=False),
    "t5": dict(n_positions=512),
    "gpt2": dict(n_ctx=1024, n_positions=1024),
    "gptj": dict(rotary=True, scale_attn_weights=True),
    "bloom": dict(attention_softmax_in_fp32=True, masked_softmax_fusion=True, offset_alibi=100, num_attention_heads=4),
    "falcon": dict(apply_residual_connection_post_layernorm=False),
    "llama": dict(rope_interleaved=False, is_llama_config=True, pretraining_tp=1),
    "qwen2": dict(use_mrope=False, use_sliding_window=False, sliding_window=131072, max_window_layers=28),
    "gemma2": dict(sliding_window_size=4, cache_implementation="hybrid"),
    "starcoder2": dict(norm_type="layer_norm"),
}


# What transformers 5 names otherwise in its modules than in files, whose names are those of version 4.
MAPS_OF_5 = dict(matrices=Q_K_V_O)
SWIN_OF_5 = "relative_position_bias()[0]"
NOMIC = dict(at="layers.0.self_attn", **MAPS_OF_5)
OF_5 = {"YOLOS": {}, "Nomic BERT": NOMIC, "GTE": NOMIC, "Jina embeddings v3": NOMIC,
        "DINOv2": MAPS_OF_5, "DINOv2, registers": MAPS_OF_5,
        "ViT": dict(at="layers.0.attention", **MAPS_OF_5), "DeiT": dict(at="layers.0.attention", **MAPS_OF_5),
        "Swin": dict(args=dict(mask=SWIN_OF_5), **MAPS_OF_5),
        "Swin, shifted windows": dict(args=dict(mask=SWIN_OF_5 + SHIFTED), **MAPS_OF_5)}


def in_module(transformers, row):
    """A row with the names that modules of the version have."""
    of_5 = OF_5.get(row.name, OF_5["ViT"] if row.matrices == VIT else {}) if row.of_5 is None else row.of_5
    return row._replace(**of_5) if int(transformers.__version__.split(".")[0]) >= 5 else row


class Fields(dict):
    """The fields of an object, and other names, for eval."""

    def __init__(self, of, **others):
        super().__init__(others)
        self.of = of

    def __missing__(self, name):
        try:
            return getattr(self.of, name)
        except AttributeError:
            raise KeyError(name) from None


# Fields that have the config of a part: the model itself has no sizes then.
WITHIN = {"text_config", "encoder", "encoder_config", "audio_config", "text_encoder"}


def config_of(transformers, row):
    tiny = {} if WITHIN & set(row.config) else TINY
    return transformers.AutoConfig.for_model(row.kind, **copy.deepcopy(there({**tiny, **row.config})))


def there(fields):
    """Without those whose value is an ellipsis."""
    return {name: there(value) if isinstance(value, dict) else value
            for name, value in fields.items() if value is not ...}


# What transformers 4 calls rope_theta of a type and kind of layers.
THETAS = {("modernbert", "layers.0.attn"): "global_rope_theta", ("modernbert", "layers.1.attn"): "local_rope_theta",
          ("gemma3_text", LAYER): "rope_local_base_freq"}


def fields_of(row, config):
    """Those of a config; transformers 5 has those of rope in an object, or in one for each kind of layers."""
    rope = getattr(config, "rope_parameters", None)
    if rope is None:
        old = THETAS.get((row.kind, row.at))
        return Fields(config, **({"rope_theta": getattr(config, old)} if old else {}))
    kinds, layer = getattr(config, "layer_types", None), int(re.search(r"\.(\d+)\.", row.at)[1])
    return Fields(config, **rope.get(kinds and kinds[layer], rope))


def keys(row, config):
    """The keys of a row as a dictionary, with the numbers of a config; but for seq and batch."""
    numbers = re.sub(r"{(.*?)}", lambda found: str(eval(found[1], {}, fields_of(row, config))), row.keys)
    given = dict(word.split("=") for word in numbers.split())
    h, d_model = int(given.get("h") or config.num_attention_heads), int(given.get("d_model") or config.hidden_size)
    return {"h": h, "h_kv": getattr(config, "num_key_value_heads", None) or h, "d_model": d_model,
            "dk": getattr(config, "head_dim", None) or d_model // h} | given


def table():
    lines = ["| model | `model_type` and module | keys | matrices |", "|---|---|---|---|"]
    for row in ROWS:
        keys, more = (f"`{text}`" if text else "" for text in (
            row.keys, ", ".join(f"{name} = {value}" for name, value in {**row.weights, **row.args}.items())))
        lines.append(f"| {row.name} | `{row.kind}`: `{row.at}` | {keys} | "
                     f"{', '.join(f'`{name}`' for name in row.matrices.split())}{'; ' if more else ''}{more} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
