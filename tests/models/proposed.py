"""Rows of types whose fields scripts/propose.py has tried, as families.py has them."""
from architectures import (GAINS, LAYER, MORE, NORMED, Q_K_V_O, Q_K_V_OUT, RMS, ROPE, TINY_BASES, TINY_GQA, Row)

SECOND = LAYER.replace("0", "1")
BARK = dict(hidden_size=64, num_heads=4, num_layers=2, block_size=64, input_vocab_size=50, output_vocab_size=50)
CODEC = dict(model_type="encodec", num_filters=4, hidden_size=16, upsampling_ratios=[2], codebook_size=8,
             codebook_dim=16)
WHOLE_BARK = dict(semantic_config=dict(BARK, bias=False), coarse_acoustics_config=BARK, codec_config=CODEC,
                  fine_acoustics_config=dict(BARK, n_codes_total=3), num_attention_heads=...)
EMBEDDING = dict(TINY_BASES, num_hidden_layers=2, sliding_window=5, hidden_size_per_layer_input=8, embedding_dim=16,
                 global_head_dim=24, attention_bias=True)
OF_CALLER = f"attention=cross project=qko rope=half rope_theta={{rope_theta}} scale=1 kv_len=true {RMS}"
ROWS = [
    Row("nanochat", "nanochat", LAYER, Q_K_V_O, f"{ROPE} {RMS}", dict(TINY_GQA, attention_bias=True), since=5),
    Row("nanochat, YaRN", "nanochat", LAYER, Q_K_V_O, f"{ROPE} {RMS}", dict(TINY_GQA, rope_scaling=dict(
        rope_type="yarn", factor=4.0, original_max_position_embeddings=16)), since=5),
    *[row._replace(name=row.name.replace("4", "4, unified"), kind="gemma4_unified_text")
      for row in MORE if row.kind == "gemma4_text"],
    *[Row(f"Embedding Gemma 2, {name}", "embedding_gemma2_text", at, Q_K_V_O, OF_CALLER + keys, EMBEDDING, GAINS,
          dict(v=NORMED), since=5)
      for name, at, keys in [("windows", LAYER, " window_left={sliding_window} window_right={sliding_window}"),
                             ("whole", SECOND, "")]],
    *[Row(f"Bark, {name}", "bark", f"{at}.layers.1.attn", "att_proj out_proj", f"{keys} h=4 d_model=64", WHOLE_BARK,
          since=5) for name, at, keys in [("texts", "semantic", "causal=true"),
                                          ("codes", "coarse_acoustics", "causal=true"),
                                          ("all codes", "fine_acoustics", "kv_len=true")]],
    Row("SAM 3, small text", "sam3_lite_text_text_model", SECOND, Q_K_V_OUT, "kv_len=true", dict(
        num_hidden_layers=3), since=5),
    Row("SAM 3, small text, layers alone", "sam3_lite_text_text_model", LAYER, Q_K_V_OUT, "kv_len=true", dict(
        use_repmixer_blocks=False), since=5),
]


def codes(torch, config, batch):
    """One of the codes of each row, from all of them."""
    return dict(codebook_idx=1, input_ids=torch.randint(1, 50, (batch, 11, 3)),
                attention_mask=torch.arange(11) < torch.tensor([[7], [11]]))


def padded(torch, config, batch):
    return dict(words(torch, config, batch), attention_mask=torch.arange(11) < torch.tensor([[7], [11]]))


def words(torch, config, batch):
    return dict(input_ids=torch.randint(1, 50, (batch, 11)))


# Inputs, classes and types as families.py has them.
INPUTS = {"sam3_lite_text_text_model": padded, "Bark, texts": words, "Bark, codes": words, "Bark, all codes": codes}
BUILT_BY = {"bark": "BarkModel"}
PARTS = []
OF_TWO = set()
WITHOUT_CACHE = {"bark", "embedding_gemma2_text"}
# Parts of models that run by themselves.
RUNS = {"Bark, texts": "semantic", "Bark, codes": "coarse_acoustics", "Bark, all codes": "fine_acoustics"}
