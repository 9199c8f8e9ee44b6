"""More rows as architectures.py has them: types of transformers whose attention is that of another type, or nearly.

tests/models/test_import.py compares each with transformers, as it does those of architectures.py."""
from architectures import GAINS, LAYER, Q_K_V_O, Q_K_V_OUT, RMS, ROPE, TINY_GQA, TINY_MOE, WINDOW, Row, like

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

FAMILIES = DECODERS
