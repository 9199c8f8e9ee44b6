"""Files of llama.cpp's architectures, and what llama.cpp makes of them, by its source at commit 0c1e57098:
src/models/NAME.cpp has the keys that it reads, their defaults and its graph. tests/models/test_gguf.py has the formula.

Each value of a formula is the same in all blocks, or a function of the block's number.
"""
import typing


class Case(typing.NamedTuple):
    arch: str
    fields: dict  # of the file besides FIELDS, without the architecture before their names
    formula: dict
    blocks: int = 2
    joint: bool = False  # Q, K and V have one matrix
    biases: str = ""  # the letters of maps that have one
    tensors: dict = {}  # shapes of further tensors by their names; each block has those that begin with attn_
    name: str = ""  # where an architecture has several
    has: typing.Callable = lambda il: True  # whether a block has attention


# Heads are wider than the rows' width by their number, but in models where llama.cpp takes none that are.
FIELDS = {"embedding_length": 32, "context_length": 64, "attention.head_count": 4, "attention.head_count_kv": 2,
          "attention.key_length": 12, "attention.value_length": 12, "rope.freq_base": 500.0}
NARROW = {"attention.key_length": 8, "attention.value_length": 8}
BARE = {"rope.freq_base": None}
RMS = {"attention.layer_norm_rms_epsilon": 1e-3}
LAYER = {"attention.layer_norm_epsilon": 1e-3}
WINDOW = {"attention.sliding_window": 3}
SWA = {**WINDOW, "rope.freq_base_swa": 70.0}
BASE = dict(base=500.0)
NEOX, NORM = dict(rope="neox", **BASE), dict(rope="norm", **BASE)
BOTH = dict(causal=False)
HEADS = dict(norm="rms", eps=1e-3)
GAINS = {"attn_q_norm.weight": (12,), "attn_k_norm.weight": (12,)}


def last(period):
    """Blocks with a window: all but the last of so many, as set_swa_pattern has them."""
    return lambda il: il % period < period - 1


def first(period):
    """All but the first."""
    return lambda il: il % period != 0


def where(blocks, yes, no=None):
    return lambda il: yes if blocks(il) else no


def plain(names, formula, fields={}, **more):
    return [Case(name, {**NARROW, **fields}, formula, **more) for name in names.split()]


def windows(arch, slides, formula, fields={}, **more):
    """Rope in blocks with a window alone."""
    return Case(arch, {**WINDOW, **fields}, dict(formula, rope=where(slides, formula["rope"]),
                                                 window=where(slides, 3)), **more)


PARTLY = {"rope.dimension_count": 4}
LINEAR = {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}
YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 16}
LONGROPE = {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0, "rope.scaling.original_context_length": 16}
LONG = dict(tensors={"rope_factors_short.weight": (6,), "rope_factors_long.weight": (6,)})
SHORT = dict(divisors="rope_factors_short.weight", factor=2.0)
FREQS = dict(tensors={"rope_freqs.weight": (6,)})
DIVIDED = dict(divisors="rope_freqs.weight")
KV = {"attention.head_count_kv": [0, 2, 0, 1]}
KV_HEADS = dict(h_kv=lambda il: KV["attention.head_count_kv"][il])
HAS_KV = dict(blocks=4, has=lambda il: KV["attention.head_count_kv"][il] > 0)
HEADS_OF_BLOCKS = {"attention.head_count": [4, 2], "attention.head_count_kv": [2, 1]}
OF_BLOCKS = dict(h=lambda il: [4, 2][il], h_kv=lambda il: [2, 1][il])
LIST = {"attention.sliding_window_pattern": [True, False, True, False]}
LISTED = last(2)
SECTIONS = {"rope.dimension_sections": [3, 2, 1, 0]}

ROWS = [
    *plain("gptneox phi2", dict(NEOX, dims=4), PARTLY, joint=True, biases="qkvo"),
    *plain("qwen", NEOX, {"attention.head_count_kv": 4}, joint=True, biases="qkv"),
    *plain("orion plamo", NEOX), *plain("codeshell jais2 pangu-embedded", NEOX, biases="qkvo"),
    *plain("nemotron", dict(NEOX, dims=4), PARTLY), *plain("seed_oss", NEOX, biases="qkv"),
    *plain("internlm2 xverse olmo arctic deepseek", NORM),
    *plain("chatglm", dict(NORM, dims=4), PARTLY, joint=True, biases="qkv"),
    *plain("pockettts", NORM, joint=True),
    Case("llama-embed", {"attention.causal": False}, dict(NORM, **BOTH)),
    Case("exaone", {}, dict(NEOX, **DIVIDED), **FREQS),
    *[Case(name, {}, dict(NORM, **DIVIDED), **FREQS) for name in ("arcee", "nanbeige")],
    Case("deci", {"attention.head_count": [4, 4, 0, 4], "attention.head_count_kv": [2, 0, 0, 1]},
         dict(NORM, h=4, h_kv=lambda il: [2, 0, 0, 1][il]), 4, has=lambda il: il in (0, 3)),
    Case("minicpm", {**LONGROPE, "residual_scale": 0.2, "embedding_scale": 12.0}, dict(NORM, **SHORT), **LONG),
    *[Case(name, {**LONGROPE, "rope.scaling.original_context_length": 8}, dict(
        NORM, divisors="rope_factors_long.weight", factor=2.0), name=f"{name}, long texts", **LONG)
      for name in ("llama", "granite", "minicpm")],
    *[Case(name, {}, NORM) for name in ("ernie4_5", "ernie4_5-moe")],
    Case("paddleocr", SECTIONS, NEOX),
    Case("glm4", PARTLY, dict(NORM, dims=4), biases="qkv"),
    Case("glm4", SECTIONS, NEOX, name="glm4, sections"),
    Case("glm4moe", {**PARTLY, **RMS, "nextn_predict_layers": 1, "expert_weights_scale": 2.5,
                     "expert_weights_norm": True}, dict(NEOX, dims=4, **HEADS), 3, has=lambda il: il < 2, biases="qkv",
         tensors=GAINS),
    Case("glm4moe", {}, NEOX, name="glm4moe, without norms"),
    *[Case(name, RMS, dict(NEOX, **HEADS), tensors=GAINS) for name in ("grovemoe", "hy_v3")],
    Case("dots1", {**RMS, "attention.head_count_kv": 4}, dict(NEOX, h_kv=4, **HEADS), tensors=GAINS),
    Case("bailingmoe2", {**RMS, **PARTLY}, dict(NEOX, dims=4, **HEADS), joint=True, tensors=GAINS),
    *[Case(name, {**RMS, "rope.dimension_sections": [2, 3, 1, 0]},
           dict(NEOX, sections=[2, 3, 1], **HEADS), tensors=GAINS) for name in ("qwen3vl", "qwen3vlmoe", "qwen3tts")],
    Case("apertus", RMS, dict(NEOX, **HEADS, **DIVIDED), tensors={**GAINS, **FREQS["tensors"]}),
    Case("openelm", {**RMS, **HEADS_OF_BLOCKS}, dict(NEOX, **HEADS, **OF_BLOCKS), joint=True, tensors=GAINS),
    *[Case(name, {**RMS, **KV}, dict(NEOX, **HEADS, **KV_HEADS), tensors=GAINS, **HAS_KV) for name in ("lfm2",
                                                                                                   "lfm2moe")],
    Case("lfm2", {**RMS, **KV, **WINDOW}, dict(NEOX, window=3, **HEADS, **KV_HEADS), tensors=GAINS,
         name="lfm2, windows", **HAS_KV),
    Case("olmoe", {**RMS, **NARROW}, dict(NEOX, span="all", **HEADS),
         tensors={"attn_q_norm.weight": (32,), "attn_k_norm.weight": (16,)}),
    Case("minimax-m2", {**RMS, **PARTLY}, dict(NEOX, dims=4, span="all", **HEADS),
         tensors={"attn_q_norm.weight": (48,), "attn_k_norm.weight": (24,)}),
    Case("plamo2", {**RMS, "attention.head_count_kv": [2, 0], "attention.value_length": 10},
         dict(NEOX, h_kv=2, span="each", scale=10 ** -0.5, **HEADS), joint=True, has=lambda il: il == 0,
         tensors={"attn_q_norm.weight": (4, 12), "attn_k_norm.weight": (2, 12)}),
    *plain("stablelm", dict(NEOX, dims=4), PARTLY, biases="qkv"),
    Case("stablelm", {**NARROW, **LAYER}, dict(NEOX, norm="layer", span="each", eps=1e-3), name="stablelm, norms",
         tensors={"attn_q_norm.weight": (4, 8), "attn_k_norm.weight": (2, 8)}),
    Case("chameleon", NARROW, dict(NORM, norm="layer", span="each", eps=1e-5),
         tensors={"attn_q_norm.weight": (4, 8), "attn_k_norm.weight": (2, 8)}),
    Case("talkie", RMS, dict(NEOX, norm="rms", span="behind", eps=1e-3), tensors={"attn_q_norm.weight": (4, 1)}),
    Case("talkie", {**RMS, "rope.scaling.attn_factor": 1.5}, dict(NEOX, norm="rms", span="behind", eps=1e-3),
         tensors={"attn_q_norm.weight": (4, 1)}, name="talkie, a factor"),
    *plain("bailingmoe", NORM),
    *plain("deepseek2-ocr", dict(NEOX, base=10000.0), {**BARE, "attention.head_count_kv": 4}),
    *plain("cogvlm", dict(NEOX, base=10000.0), {"attention.head_count_kv": 4}, joint=True),
    *plain("grok", dict(NEOX, scale=0.08838834764831845, softcap=30.0)),
    Case("grok", {"attention.output_scale": 0.5, "attn_logit_softcapping": 2.0, **YARN,
                  "rope.scaling.yarn_beta_slow": 2.0}, dict(
        NEOX, scale=0.5, softcap=2.0, factor=4.0, yarn=(8.0, 2.0, 0.0)), name="grok, yarn"),
    Case("gemma3n", {**RMS, **SWA, **LINEAR, "activation_sparsity_scale": [1.5, 0.0]}, dict(
        NEOX, scale=1.0, normed=True, base=where(last(5), 70.0, 500.0), factor=where(last(5), 1.0, 2.0),
        window=where(last(5), 3), **HEADS), 6, tensors=GAINS),
    Case("gemma4", {**RMS, **SWA, **LIST, "attention.key_length_swa": 8, "attention.value_length_swa": 8,
                    "rope.dimension_count_swa": 4, "attention.head_count_kv": [2, 1, 2, 1]}, dict(
        NEOX, scale=1.0, normed=True, base=where(LISTED, 70.0, 500.0), window=where(LISTED, 3), eps=1e-3, norm="rms",
        dk=where(LISTED, 8, 12), dv=where(LISTED, 8, 12), dims=where(LISTED, 4, 12), h_kv=where(LISTED, 2, 1),
        divisors=where(LISTED, None, "rope_freqs.weight")), 4, tensors={
            "attn_q_norm.weight": ("dk",), "attn_k_norm.weight": ("dk",), **FREQS["tensors"]}),
    Case("gemma-embedding", {**RMS, **WINDOW, **LINEAR, "final_logit_softcapping": 30.0}, dict(
        NEOX, norm="rms", eps=1e-3, base=where(last(6), 10000.0, 500.0), factor=where(last(6), 1.0, 2.0),
        both=where(last(6), 1), **BOTH), 7, tensors=GAINS),
    Case("mellum", {**RMS, **WINDOW, **LINEAR}, dict(NEOX, window=where(last(4), 3), factor=where(last(4), 1.0, 2.0),
                                                     **HEADS), 4, tensors=GAINS),
    Case("mellum", RMS, dict(NEOX, **HEADS), tensors=GAINS, name="mellum, whole"),
    Case("plamo3", {**RMS, **WINDOW}, dict(NEOX, window=where(last(8), 3), base=where(last(8), 10000.0, 500.0),
                                           **HEADS), 8, joint=True, tensors=GAINS),
    windows("maple", LISTED, dict(NEOX, base=70.0, **HEADS), {**RMS, **SWA, **LIST, "swiglu_clamp_exp": 7.0},
            blocks=4, tensors=GAINS),
    Case("mimo2", {**SWA, **LIST, "attention.value_length": 10, "attention.value_scale": 0.6,
                   "attention.head_count_kv": [2, 1, 2, 1]},
         dict(NEOX, base=where(LISTED, 70.0, 500.0), window=where(LISTED, 3), sink=True, out=0.6,
              h_kv=where(LISTED, 2, 1)), 4, tensors={"attn_sinks.weight": (4,)}),
    windows("cohere2", last(4), NORM, NARROW, blocks=4),
    Case("cohere2moe", {**WINDOW, "leading_dense_block_count": 1}, dict(
        BASE, rope=where(lambda il: il % 4 != 0 or il < 1, "norm"), window=where(first(4), 3)), 5),
    windows("exaone-moe", last(4), dict(NEOX, **HEADS), RMS, blocks=4, tensors=GAINS),
    windows("exaone4", last(4), dict(NEOX, **HEADS, **DIVIDED), {**RMS, **NARROW}, blocks=64, tensors={
        "attn_q_norm.weight": (8,), "attn_k_norm.weight": (8,), "rope_freqs.weight": (4,)}),
    Case("exaone4", {**RMS, **SWA}, dict(NEOX, **HEADS), tensors=GAINS, name="exaone4, small"),
    Case("smallthinker", SWA, dict(base=where(first(4), 70.0, 500.0), rope=where(first(4), "neox"),
                                   window=where(first(4), 4096)), 4),
    Case("smallthinker", {}, NEOX, name="smallthinker, whole"),
    Case("granitemoe", {"attention.scale": 0.4, "rope.scaling.finetuned": False}, dict(NORM, scale=0.4)),
    Case("granitehybrid", {**KV, "attention.scale": 0.4, "rope.scaling.finetuned": False},
         dict(scale=0.4, **KV_HEADS), **HAS_KV),
    Case("granitehybrid", KV, dict(NORM, **KV_HEADS, **DIVIDED), name="granitehybrid, rope", **HAS_KV, **FREQS),
    Case("granite_swa", {**WINDOW, **LIST, "attention.rope_pattern": [1, 0, 0, 1]}, dict(
        BASE, rope=where(lambda il: il in (0, 3), "norm"), window=where(LISTED, 3), sink=True), 4,
         tensors={"attn_sinks.weight": (4,)}),
    Case("llama4", RMS, dict(BASE, rope=where(last(4), "norm"), norm=where(last(4), "rms"), eps=1e-3), 4),
    Case("llama4", {**RMS, "rope.scaling.attn_factor": 1.5},  # which the norms behind rope undo
         dict(BASE, rope=where(last(4), "norm"), norm=where(last(4), "rms"), eps=1e-3), 4, name="llama4, a factor"),
    Case("llama4", {**RMS, "expert_count": 128}, dict(BASE, rope=where(last(4), "norm"), **DIVIDED), 4,
         name="llama4, many experts", **FREQS),
    Case("mistral3", {**YARN, "attention.temperature_scale": 0.1, "rope.scaling.yarn_beta_fast": 4.0,
                      "rope.scaling.yarn_beta_slow": 2.0, "rope.scaling.yarn_log_multiplier": 0.7},
         dict(NORM, factor=4.0, yarn=(4.0, 2.0, 0.7))),
    Case("mistral3", YARN, dict(NORM, factor=4.0, yarn=(32.0, 1.0, 0.0)), name="mistral3, defaults"),
    Case("phimoe", {**NARROW, **WINDOW, "rope.scaling.attn_factor": 1.2}, dict(
        NEOX, divisors="rope_factors_short.weight", attn_factor=1.2), biases="qkvo",
         tensors={"rope_factors_short.weight": (4,), "rope_factors_long.weight": (4,)}),
    *[Case(name, {**NARROW, "attention.causal": False}, dict(NEOX, **BOTH), joint=True, biases="qkvo")
      for name in ("nomic-bert-moe", "jina-bert-v3")],
    *plain("eurobert", dict(NEOX, **BOTH), {"attention.causal": False}),
    *plain("neo-bert", dict(NORM, **BOTH), {"attention.causal": False}, joint=True),
    *plain("modern-bert", dict(NEOX, base=where(first(3), 10000.0, 500.0), both=where(first(3), 2), **BOTH),
           {"attention.causal": False, "attention.sliding_window": 4}, blocks=4, joint=True),
    *plain("modern-bert", dict(NEOX, **BOTH), {"attention.causal": False}, joint=True, name="modern-bert, whole"),
    *plain("jina-bert-v2", dict(alibi=True, masked=True, **BOTH), {**BARE, "attention.causal": False}, biases="qkvo"),
    *plain("t5encoder", dict(scale=1.0, drawn=True, masked=True, **BOTH), {
        **BARE, "attention.relative_buckets_count": 32}),
    Case("llada", {}, dict(NORM, **BOTH), biases="qkv"),
    *plain("dream", dict(NEOX, **BOTH), {"attention.causal": False}, biases="qkv"),
    *[Case(name, RMS, dict(NEOX, **BOTH, **HEADS), tensors=GAINS) for name in ("llada-moe", "rnd1")],
    Case("falcon-h1", {}, NEOX),
    Case("minimax-01", {**PARTLY, "full_attention_interval": 2}, dict(NEOX, dims=4), 4, has=lambda il: il % 2 == 1),
    Case("minimax-01", {"attention.recurrent_layers": [True, False, False]}, NEOX, 3, has=lambda il: il > 0,
         name="minimax-01, a list"),
    Case("jamba", {**BARE, **KV}, KV_HEADS, **HAS_KV),
    *[Case(name, {**KV, "feed_forward_length": [0, 0, 64, 0]}, KV_HEADS, **HAS_KV)
      for name in ("nemotron_h", "nemotron_h_moe")],
    *plain("starcoder", dict(h_kv=1), {**BARE, "attention.head_count_kv": 1}, joint=True, biases="qkvo"),
    Case("refact", {**BARE, "attention.head_count": 6}, dict(h=6, alibi=True)),
    *plain("baichuan", NORM, blocks=32), *plain("baichuan", dict(alibi=True), blocks=40, name="baichuan, ALiBi"),
    *plain("baichuan", {}, name="baichuan, of another size"),
    *plain("jais", dict(scale=1 / 8, alibi=True), {**BARE, "attention.max_alibi_bias": 8.0}, joint=True,
           biases="qkvo"),
]
