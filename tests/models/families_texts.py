"""More rows as families.py has them: texts, and what has texts as a part."""
from architectures import (BERT, GAINS, LAYER, Q_K_V_O, RMS, ROPE, TINY, TINY_GQA,
                           TINY_MOE, TINY_T5, TINY_TOWER, WINDOW, Row, like)

SECOND = "layers.1.self_attn"
INTERLEAVED = ROPE.replace("half", "interleaved")
BOTH = "window_left={sliding_window} window_right={sliding_window} kv_len=true"
SINK = dict(sink="sinks")
TINY_GPT = dict(n_embd=64, n_head=4, num_hidden_layers=2)
TINY_EXPERTS = {**TINY_MOE, "n_routed_experts": 2, "shared_expert_intermediate_size": 8, "num_hidden_layers": 2}
TINY_LINEAR = dict(linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2, linear_num_value_heads=2)
TINY_MAMBA_2 = dict(mamba_num_heads=4, mamba_head_dim=8, ssm_state_size=8, n_groups=1, chunk_size=4,
                    use_mamba_kernels=False, moe_shared_expert_intermediate_size=8, mamba_expand=1)
ONE_KIND = ["sliding_attention", "full_attention"]


def rows_of(name, kind, cases, config, keys="", matrices=Q_K_V_O, at="layers.{}.self_attn", since=5, **more):
    """A row for each layer of two that differ: its name and keys."""
    return [Row(f"{name}, {case}" if case else name, kind, at.format(i), matrices, f"{keys} {own}".strip(),
                {**TINY_GQA, "num_hidden_layers": len(cases), **config}, since=since, **more)
            for i, (case, own) in enumerate(cases)]


GRANITE = dict(attention_multiplier=0.4, sliding_window=4, layer_rope_theta=[300.0, 0], shared_intermediate_size=8,
               layer_types=ONE_KIND, attention_bias=True, **TINY_EXPERTS)
MIMO_BASES = {kind: dict(rope_type="default", rope_theta=theta, partial_rotary_factor=0.5)
              for kind, theta in zip(ONE_KIND, (300.0, 700.0))}
MIMO = dict(sliding_window=4, v_head_dim=12, layer_types=ONE_KIND, rope_parameters=MIMO_BASES, rope_theta=None,
            attention_bias=True, mlp_layer_types=["dense", "dense"], **TINY_EXPERTS)
PART = " rope_dims={int(partial_rotary_factor * head_dim)}"

DECODERS = [
    Row("CodeGen", "codegen", "h.1.attn", "qkv_proj out_proj", "causal=true rope=interleaved "
        "rope_dims={rotary_dim}", dict(rotary_dim=8, **TINY_GPT)),
    Row("Cohere 2, experts, dense", "cohere2_moe", LAYER, Q_K_V_O, INTERLEAVED, dict(
        layer_types=["full_attention"], mlp_layer_types=["dense"], prefix_dense_intermediate_size=8,
        **{**TINY_GQA, **TINY_EXPERTS, "num_hidden_layers": 1}), since=5),
    Row("GPT-NeoX, Japanese", "gpt_neox_japanese", "layers.0.attention", "query_key_value[heads] dense",
        ROPE + " rope_dims={int(partial_rotary_factor * hidden_size // num_attention_heads)}",
        dict(rotary_pct=0.5, rotary_emb_base=500, num_hidden_layers=2)),
    *rows_of("Flint", "flint", [("windows", f"{ROPE} {WINDOW} {RMS}"), ("whole", f"causal=true {RMS}")], dict(
        sliding_window=4, layer_types=ONE_KIND, attention_bias=True, **TINY_EXPERTS), "sink=true",
        weights={**GAINS, **SINK}),
    *[row for kind in ("granite_swa", "granitemoe_swa") for row in rows_of(
        f"Granite, {kind}", kind,
        [("windows", f"rope=half rope_theta={{layer_rope_theta[0]}} {WINDOW}"), ("whole", "")],
        GRANITE, "causal=true sink=true scale={attention_multiplier}", weights=SINK)],
    *rows_of("MiMo V2 Flash", "mimo_v2_flash", [("windows", f"{WINDOW} h_kv=4 sink=true"), ("whole", "h_kv=2")], MIMO,
             ROPE + PART + " dv={v_head_dim}"),
    Row("OpenAI privacy filter", "openai_privacy_filter", LAYER, Q_K_V_O,
        f"rope=interleaved rope_theta={{rope_theta}} sink=true {BOTH}", dict(
            sliding_window=3, **{**TINY_GQA, **TINY_MOE, "max_position_embeddings": 4096 * 32}), SINK, since=5),
    *rows_of("MiniMax", "minimax", [("", WINDOW)], dict(
        sliding_window=4, layer_types=["full_attention", "linear_attention"], **TINY_EXPERTS), ROPE),
    *[row for row in rows_of("LARA mini", "lara_mini", [("linear", ""), ("windows", f"{ROPE} {WINDOW} {RMS}"),
                                                      ("whole", f"causal=true {RMS}")], {**dict(
        sliding_window=4, layer_types=["linear_attention", *ONE_KIND], attention_bias=True), **TINY_EXPERTS,
        **TINY_LINEAR, "num_hidden_layers": 3}, weights=GAINS) if "linear" not in row.name],
    Row("OLMo, hybrid", "olmo_hybrid", SECOND, Q_K_V_O, f"{ROPE} {RMS} norm_span=all", dict(
        layer_types=["linear_attention", "full_attention"], num_hidden_layers=2, attention_bias=True,
        rope_parameters=dict(rope_theta=500.0, rope_type="default"), **{**TINY_GQA, "rope_theta": None}, **TINY_LINEAR),
        GAINS, since=5),
    Row("OLMo, hybrid, without rope", "olmo_hybrid", SECOND, Q_K_V_O, f"causal=true {RMS} norm_span=all", dict(
        layer_types=["linear_attention", "full_attention"], num_hidden_layers=2,
        **{**TINY_GQA, "rope_theta": None}, **TINY_LINEAR), GAINS, since=5),
    Row("Nemotron-H", "nemotron_h", "layers.2.mixer", Q_K_V_O, "causal=true", dict(
        layers_block_type=["mlp", "moe", "attention"], num_key_value_heads=2, head_dim=16, **TINY_MAMBA_2,
        **{**TINY_EXPERTS, "num_hidden_layers": 3}), since=5),
    Row("RecurrentGemma", "recurrent_gemma", "layers.1.temporal_block", Q_K_V_O,
        f"{ROPE}{PART} {WINDOW}", dict(num_hidden_layers=2, block_types=["recurrent", "attention"],
        num_key_value_heads=2, lru_width=64, attention_window_size=4, rope_theta=500.0), since=5),
    Row("Decision transformer", "decision_transformer", "h.1.attn", "c_attn c_proj",
        "causal=true scale={(hidden_size // n_head) ** -0.5 / 2}",
        dict(n_head=4, num_hidden_layers=2, state_dim=3, act_dim=2, max_ep_len=64,
             scale_attn_by_inverse_layer_idx=True)),
    *rows_of("ModernBERT, decoder", "modernbert-decoder", [
        ("whole", ""), ("windows", "window_left={local_attention // 2 - 1}")], dict(
            local_attention=8, global_rope_theta=700.0, local_rope_theta=300.0, rope_theta=None, attention_bias=True,
            num_key_value_heads=None),
             "causal=true rope=half rope_theta={rope_theta}", "q_proj k_proj v_proj Wo", "layers.{}.attn"),
    *rows_of("UltraBERT", "ultrabert", [("whole", "kv_len=true"), ("windows", BOTH)], dict(
        sliding_window=3, layer_types=ONE_KIND[::-1], rope_theta=None, attention_bias=True),
             "rope=half rope_theta={rope_theta}"),
]

ENCODERS = [
    like("BERT", name="RoFormer", kind="roformer", keys="rope=interleaved kv_len=true"),
    like("BERT", name="RoFormer, decoder", kind="roformer", keys="causal=true rope=interleaved kv_len=true",
         config=dict(is_decoder=True)),
    like("BERT", name="X-MOD", kind="xmod", config=dict(languages=["en_XX"], default_language="en_XX")),
]

ENCODERS += [
    *[Row(f"{name}{what}", kind, "attentions.0", "q_lin k_lin v_lin out_lin", keys, dict(
        causal=keys != "kv_len=true", use_lang_emb=False), since=since)
      for name, kind, since in [("XLM", "xlm", 5), ("FlauBERT", "flaubert", 5)]
      for what, keys in [("", "kv_len=true"), (", causal", "causal=true")]],
    *[like("BERT", name=f"CANINE, {part}", kind="canine", at=f"{at}.attention",
           config=dict(num_hash_buckets=64, downsampling_rate=1, num_hidden_layers=2)) for part, at in [
        ("characters", "initial_char_encoder.layer.0"), ("molecules", "encoder.layer.1"),
        ("characters again", "final_char_encoder.layer.0")]],
    *[Row(f"LXMERT, {part}", "lxmert", f"encoder.{at}", BERT, "kv_len=true",
          dict(l_layers=2, r_layers=2, x_layers=1, visual_feat_dim=8, num_hidden_layers=None), since=5)
      for part, at in [("text", "layer.1.attention"), ("regions", "r_layers.1.attention"),
                       ("text, late", "x_layers.0.lang_self_att"),
                       ("regions, late", "x_layers.0.visn_self_att")]],
    *[Row(f"MobileBERT{name}", "mobilebert", "encoder.layer.0.attention", BERT, "attention=cross kv_len=true d_model="
          f"{width} v_width={values}", dict(
              intra_bottleneck_size=32, embedding_size=16, normalization_type="layer_norm", **config), since=5)
      for name, width, values, config in [
          ("", 32, 64, {}), (", narrow values", 32, 32, dict(use_bottleneck_attention=True)),
          (", no bottleneck", 64, 64, dict(use_bottleneck=False))]],
    Row("ESM C", "esmc", LAYER, Q_K_V_O, "rope=half rope_theta={rope_theta} kv_len=true qk_norm=layer norm_span=all "
        "norm_eps=1e-5", dict(rope_theta=500.0, attention_bias=True), GAINS, since=5),
    like("BERT", name="I-BERT", kind="ibert"),
    like("BERT", name="LUKE", kind="luke", config=dict(use_entity_aware_attention=False, entity_vocab_size=8)),
    *[like("BERT", name=f"LayoutLM 3{name}", kind="layoutlmv3", keys=keys, config=dict(
        coordinate_size=10, shape_size=12, input_size=8, visual_embed=False, patch_size=4, **config), args=args)
      for name, keys, config, args in [
          ("", "kv_len=true mask=add mask_dims=bhqk", {}, dict(mask="position_bias")),
          (", no distances", "kv_len=true", dict(has_relative_attention_bias=False, has_spatial_attention_bias=False),
           {})]],
]


def seq2seq(name, kind, parts=("encoder", "decoder", "decoder to encoder"), since=4, **config):
    """Those of BART."""
    return [like(f"BART, {part}", name=f"{name}, {part}", kind=kind, since=since,
                 config={**like(f"BART, {part}").config, **config}) for part in parts]


PROPHET = dict(num_encoder_layers=1, num_decoder_layers=1, num_encoder_attention_heads=4, num_decoder_attention_heads=4,
               encoder_ffn_dim=32, decoder_ffn_dim=32, num_hidden_layers=...)
TINY_LONG = dict(TINY_T5, num_decoder_layers=1, local_radius=8, pad_token_id=0)
TINY_UDOP = dict(TINY_T5, num_decoder_layers=1, image_size=8, patch_size=4)
GEMMA = {**TINY, **TINY_GQA, "num_hidden_layers": 2, "sliding_window": 4, "query_pre_attn_scalar": 64,
         "layer_types": ONE_KIND, "attention_bias": True, "attn_logit_softcapping": 3.0}
TINY_T5GEMMA = dict(encoder={**GEMMA, "hidden_size": 32}, decoder={**GEMMA, "cross_attention_hidden_size": 32},
                    vocab_size=50, hidden_size=None, num_attention_heads=None)
OF_GEMMA = "scale={decoder.query_pre_attn_scalar ** -0.5} softcap={decoder.attn_logit_softcapping} h=4 h_kv=2 dk=16"
GEMMA_ROPE = "rope=half rope_theta={decoder.rope_parameters['rope_theta']}"
GEMMA_2 = {name: value for name, value in {**GEMMA, "attn_logit_softcapping": None}.items() if name != "rope_theta"}
TINY_T5GEMMA_2 = dict(encoder=dict(text_config=GEMMA_2, vision_config=TINY_TOWER, vocab_size=50, image_token_index=49),
                      decoder=GEMMA_2, hidden_size=None, num_attention_heads=None, image_token_index=49)
TINY_ZAMBA = dict(num_hidden_layers=3, layers_block_type=["linear_attention", "hybrid", "hybrid"], n_mamba_heads=2,
                  num_key_value_heads=2, mamba_d_state=4, use_mamba_kernels=False)

SEQ2SEQ = [
    *seq2seq("MVP", "mvp"), *seq2seq("FSMT", "fsmt", scale_embedding=False, langs=["en", "de"], src_vocab_size=50,
                                      tgt_vocab_size=50),
    *seq2seq("LED", "led", ("decoder", "decoder to encoder"), attention_window=4),
    *seq2seq("Pegasus X", "pegasus_x", ("decoder", "decoder to encoder"), block_size=4, num_global_tokens=2),
    *[row._replace(matrices="self.query self.key self.value output") if "encoder" == row.name[-7:] and
      "to" not in row.name else row for row in seq2seq("BigBird Pegasus", "bigbird_pegasus", use_bias=True)],
    Row("ProphetNet, encoder", "prophetnet", "encoder.layers.0.self_attn", "query_proj key_proj value_proj out_proj",
        "kv_len=true", PROPHET, since=5),
    Row("ProphetNet, decoder to encoder", "prophetnet", "decoder.layers.0.cross_attn",
        "query_proj key_proj value_proj out_proj", "attention=cross kv_len=true", PROPHET, since=5),
    *[like(f"T5, {part}", name=f"Long T5, {part}", kind="longt5", config=TINY_LONG, since=5)
      for part in ("decoder", "decoder to encoder")],
    *[like(f"T5, {part}", name=f"UDOP, {part}", kind="udop", config=TINY_UDOP, since=5, **more)
      for part, more in [
          ("encoder", dict(keys=like("T5, encoder").keys.replace("hqk", "bhqk"), args=dict(mask="position_bias"))),
          ("decoder", {}), ("decoder to encoder", {})]],
    *[Row(f"T5Gemma, {name}", "t5gemma", at, Q_K_V_O, f"{keys} {OF_GEMMA}", TINY_T5GEMMA, since=5)
      for name, at, keys in [
        ("encoder, windows", "encoder.layers.0.self_attn", f"{GEMMA_ROPE} d_model=32 window_left=4 window_right=4 "
         "kv_len=true"),
        ("encoder, whole", "encoder.layers.1.self_attn", f"{GEMMA_ROPE} d_model=32 kv_len=true"),
        ("decoder, windows", "decoder.layers.0.self_attn", f"{GEMMA_ROPE} causal=true d_model=64 window_left=3"),
        ("decoder, whole", "decoder.layers.1.self_attn", f"{GEMMA_ROPE} causal=true d_model=64"),
        ("decoder to encoder", "decoder.layers.1.cross_attn", "attention=cross k_width=32 v_width=32 d_model=64 "
         "kv_len=true")]],
    Row("Zamba", "zamba", "layers.1.shared_transf.self_attn", Q_K_V_O,
        "causal=true scale={(hidden_size / num_attention_heads) ** -0.5} d_model=128 dk=32 y_width=64", TINY_ZAMBA,
        since=5),
    *[Row(f"Zamba 2{name}", "zamba2", "layers.2.shared_transformer.self_attn", Q_K_V_O,
          f"causal=true scale={{(hidden_size / num_attention_heads) ** -0.5}} d_model=128 dk=32 y_width=64{keys}",
          dict(TINY_ZAMBA, num_mem_blocks=2, mamba_d_state=8, chunk_size=4, mamba_ngroups=1, **config), since=5)
      for name, keys, config in [("", "", {}), (", rope", " rope=half rope_theta={rope_theta}", dict(
          use_mem_rope=True, rope_theta=500.0))]],
]

BYTES = dict(hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16, vocab_size=50,
             hidden_size_global=64)
BLT = dict(local_attention_window_len=4, encoder_hash_byte_group_size=[2], encoder_hash_byte_group_vocab=20,
           vocab_size=50, patcher_config={**BYTES, "hidden_size_global": ...}, encoder_config=BYTES,
           decoder_config={**BYTES, "num_hidden_layers": 2},
           global_config={**BYTES, "hidden_size": 64, "num_attention_heads": 4, "hidden_size_global": ...})
ASKED = ("attention=cross mask=add mask_dims=bqk", dict(mask="attention_mask[:, 0]"))
DECODERS += [
    *[Row(f"BLT, {name}", "blt", at, Q_K_V_O, keys, BLT, args=args, since=5)
      for name, at, keys, args in [
          ("bytes", "local_encoder.layers.0.self_attn", f"{INTERLEAVED} window_left=3", {}),
          ("pieces", "global_transformer.layers.0.self_attn", INTERLEAVED, {}),
          ("bytes to write", "local_decoder.layers.1.self_attn", f"{INTERLEAVED} window_left=3", {}),
          ("pieces to bytes", "local_encoder.cross_attn_layers.0", *ASKED),
          ("bytes to pieces", "local_decoder.cross_attn_layers.1", *ASKED)]],
    Row("CPM-Ant", "cpmant", "encoder.layers.0.self_att.self_attention",
        "project_q project_k project_v attention_out", "dk={dim_head} mask=add mask_dims=bhqk", dict(
            dim_head=8, dim_ff=16, prompt_length=4), args=dict(
                mask="position_bias.masked_fill(~attention_mask.view(batch, 1, seq, seq_kv).bool(), -inf)"), since=5),
]
FAMILIES = DECODERS + ENCODERS + SEQ2SEQ
PARTS = ["t5_gemma_module", "t5gemma2_text"]


def states(torch, config, batch):
    """Four steps, of three rows each."""
    return dict(states=torch.randn(batch, 4, config.state_dim), actions=torch.randn(batch, 4, config.act_dim),
                returns_to_go=torch.randn(batch, 4, 1), timesteps=torch.arange(4).repeat(batch, 1),
                rewards=torch.randn(batch, 4, 1))


def regions(torch, config, batch):
    """A text, and what an image has in as many places."""
    real = torch.arange(11) < torch.tensor([[7], [11]])
    return dict(input_ids=torch.randint(1, config.vocab_size, (batch, 11)), attention_mask=real,
                visual_feats=torch.randn(batch, 11, config.visual_feat_dim), visual_pos=torch.rand(batch, 11, 4),
                visual_attention_mask=real)


def placed(torch, config, batch, **more):
    """A text, with the box of each word."""
    corners = torch.randint(0, 500, (batch, 11, 2))
    return dict(input_ids=torch.randint(1, config.vocab_size, (batch, 11)),
                attention_mask=torch.arange(11) < torch.tensor([[7], [11]]),
                bbox=torch.cat([corners, corners + torch.randint(1, 400, (batch, 11, 2))], dim=2), **more)


def boxed(torch, config, batch):
    """The same, with parts of a side."""
    given = placed(torch, config, batch)
    return {**given, "bbox": given["bbox"] / 1000}


def padded(torch, config, batch):
    """A text and what is written of it, with a mask of numbers and without a cache."""
    mask = (torch.arange(11) < torch.tensor([[7], [11]])).long()
    return dict(input_ids=torch.randint(1, config.vocab_size, (batch, 11)), attention_mask=mask, use_cache=False,
                decoder_input_ids=torch.randint(1, config.vocab_size, (batch, 7)))


def pieces(torch, config, batch):
    """Bytes, in pieces of which each has two."""
    return dict(input_ids=torch.randint(1, 50, (batch, 16)), use_cache=False,
                patch_lengths=torch.tensor([[1] + 8 * [2]]).expand(batch, -1))


# Inputs, classes and types as families.py has them.
INPUTS = {
    "blt": pieces, "cpmant": lambda torch, config, batch: dict(input_ids=torch.tensor([5 * [0] + [3, 4, 5, 6], [
        *range(9, 0, -1)]])),
    "decision_transformer": states, "lxmert": regions, "layoutlmv3": placed, "udop": boxed, "fsmt": padded,
    "prophetnet": padded,
}
WITHOUT_CACHE = {"decision_transformer", "recurrent_gemma", "xlm", "flaubert",
                 "zamba", "zamba2",
                 "lxmert", "mobilebert", "fsmt", "prophetnet", "blt"}
# Types whose modules have rows first, and then the texts of a batch.
ROWS_FIRST = {"fsmt"}
# Types whose masks are not numbers in float64.
SINGLE = {"canine", "fsmt"}
