"""What `mhagen model` does with fields and tensors that it does not read: those that may change attention are refused
by name, and --ignore takes the layers without them."""
import json
import re
import subprocess

import pytest

from tools import MHAGEN, installed, run

if not installed("numpy", "torch", "safetensors"):
    pytest.skip("NumPy, PyTorch or safetensors is not installed", allow_module_level=True)

import numpy
import torch

from test_import import refused, write_model

D = 8
MAPS = {"bert": "encoder.layer.0.attention. self.query self.key self.value output.dense",
        "gpt_neox": "layers.0.attention. query_key_value dense",
        "mpt": "blocks.0.attn. Wqkv out_proj",
        "xclip_vision_model": "encoder.layers.0.self_attn. q_proj k_proj v_proj out_proj",
        **dict.fromkeys(["llama", "mistral", "gemma2", "cohere", "llama4_text", "ministral3", "gemma3n_text", "gpt_oss",
                         "smollm3", "qwen2", "qwen3_moe"],
                        "layers.0.self_attn. q_proj k_proj v_proj o_proj"),
        "phi": "layers.0.self_attn. q_proj k_proj v_proj dense", "phi3": "layers.0.self_attn. qkv_proj o_proj"}
SIZES = dict(hidden_size=D, num_attention_heads=2, num_hidden_layers=1)
ROPE = dict(rope_theta=100.0)
SHAPES = dict(head_dim=4, num_key_value_heads=2)
MORE = {"gemma2": SHAPES, "mpt": dict(d_model=D, n_heads=2, n_layers=1, num_attention_heads=None),
        "gpt_neox": dict(rotary_pct=0.5), "xclip_vision_model": dict(rope_theta=None),
        "phi3": dict(max_position_embeddings=64)}
KEYS = ["isa=scalar", "seq=4"]


def at(kind):
    return MAPS[kind].split()[0]


def model(folder, kind, fields={}, tensors={}):
    """One layer of random weights; fields that are None are not there."""
    draw = numpy.random.default_rng(4)
    first, *maps = MAPS[kind].split()
    config = {"model_type": kind, **SIZES, **({} if kind in ("bert", "mpt") else ROPE), **MORE.get(kind, {}), **fields}
    all_tensors = {f"{first}{name}.weight": draw.normal(size=(3 * D if len(maps) == 2 and name != maps[-1] else D, D))
                   for name in maps} | {first + name: numpy.ones(D) for name in tensors}
    return write_model(folder, {name: value for name, value in config.items() if value is not None}, {
        name: torch.from_numpy(x.astype("f4")) for name, x in all_tensors.items()})


def written(out, path, *words):
    run(MHAGEN, "model", path, *KEYS, *words, "-o", out)
    return {file.name: file.read_bytes() for file in out.iterdir()}


MRO = dict(rope_type="default", rope_theta=100.0, mrope_section=[1, 1])
REFUSED = [  # a type, its fields and tensors, and what is refused of them
    ("bert", dict(position_embedding_type="alibi"), [], ["position_embedding_type = alibi"]),
    ("bert", dict(position_embedding_type="relative_key"), ["self.distance_embedding.weight"],
     ["position_embedding_type = relative_key", "tensor self.distance_embedding.weight"]),
    ("bert", dict(add_cross_attention=True), [], ["add_cross_attention = true"]),
    ("bert", {}, ["self.query.lora_A.default.weight", "self.query.lora_B.default.weight"],
     ["tensor self.query.lora_A.default.weight", "tensor self.query.lora_B.default.weight"]),
    ("llama", dict(use_bidirectional_attention=True), [], ["use_bidirectional_attention = true"]),
    ("llama", dict(attn_logit_softcapping=50.0, attention_multiplier=0.1, sliding_window=4), [],
     ["attention_multiplier = 0.1", "attn_logit_softcapping = 50", "sliding_window = 4"]),
    ("llama", dict(partial_rotary_factor=0.5), [], ["partial_rotary_factor = 0.5"]),
    ("llama", dict(rope_interleaved=True), [], ["rope_interleaved = true"]),
    ("llama", dict(use_rope=False), [], ["use_rope = false"]),
    ("llama", {}, ["q_norm.weight", "k_norm.weight"], ["tensor k_norm.weight", "tensor q_norm.weight"]),
    ("llama", dict(rope_parameters=MRO), [], ["rope_parameters.mrope_section"]),
    ("llama", dict(rope_parameters=dict(rope_theta=100.0), rope_scaling=dict(rope_type="linear", factor=2.0)), [],
     ["rope_scaling"]),
    ("llama", dict(rope_parameters=dict(full_attention=dict(rope_theta=100.0))), [],
     ["rope_parameters.full_attention"]),
    ("llama", dict(attention_bias=False), ["q_proj.bias"],
     ["tensor q_proj.bias (attention_bias = false leaves it out)"]),
    ("llama", {}, ["o_proj.bias"], ["tensor o_proj.bias (attention_bias = false leaves it out)"]),
    ("phi3", {}, ["qkv_proj.bias"], ["tensor qkv_proj.bias (models of this type have none)"]),
    ("gpt_neox", dict(attention_bias=False), ["dense.bias"], ["tensor dense.bias (attention_bias = false leaves it"]),
    ("phi", dict(qk_layernorm=True), [], ["qk_layernorm = true"]),
    ("gemma2", dict(use_bidirectional_attention=True), [], ["use_bidirectional_attention = true"]),
    ("cohere", {}, ["q_norm.weight"], ["tensor q_norm.weight"]),
    ("mpt", dict(attn_config=dict(alibi=False, clip_qkv=8, qk_ln=True, prefix_lm=True)), [],
     ["attn_config.alibi = false", "attn_config.clip_qkv = 8", "attn_config.prefix_lm = true",
      "attn_config.qk_ln = true"]),
    ("gpt_neox", {}, ["rotary_emb.cos_cached"], ["tensor rotary_emb.cos_cached"]),
]


@pytest.mark.parametrize("kind, fields, tensors, names", REFUSED, ids=lambda value: value if isinstance(
    value, str) else "-")
def test_refused(kind, fields, tensors, names, tmp_path):
    path = model(tmp_path / "model", kind, fields, tensors)
    told = refused(tmp_path, "model", path, *KEYS)
    assert "config.json: " in told and "; --ignore NAME takes" in told and all(name in told for name in names), told
    ignored = [["--ignore", name.removeprefix("tensor ").split(" ")[0]] for name in names]
    told = refused(tmp_path, "model", path, *KEYS, *sum(ignored[1:], []))
    assert names[0] in told and not any(name in told for name in names[1:])
    assert written(tmp_path / "ignored", path, *sum(ignored, [])) == written(
        tmp_path / "plain", model(tmp_path / "model", kind))


def test_ignored_words(tmp_path):
    """A name that nothing has, and one of what is read, would be taken for done."""
    path = model(tmp_path / "model", "llama", dict(sliding_window=4), ["q_norm.weight"])
    for name in "rope_theta", "q_norm":
        assert f"--ignore {name}: nothing of this name is refused" in refused(
            tmp_path, "model", path, *KEYS, "--ignore", name)
    written(tmp_path / "out", path, "--ignore", "sliding_window", "--ignore", at("llama") + "q_norm.weight")


HARMLESS = [  # nothing there, or nothing that changes attention
    ("bert", dict(add_cross_attention=False, pruned_heads={}, use_qk_norm=False, attention_probs_dropout_prob=0.1,
                  layer_norm_eps=1e-5, position_embedding_type="absolute", output_attentions=True,
                  _attn_implementation_autoset=True), ["output.LayerNorm.weight"]),
    ("llama", dict(use_bidirectional_attention=False, attention_bias=False, partial_rotary_factor=1.0,
                   attention_dropout=0.1, rope_interleaved=False), ["rotary_emb.inv_freq"]),
    ("gpt_neox", dict(use_qk_norm=False), ["bias", "masked_bias"]),
    ("xclip_vision_model", dict(mit_num_attention_heads=8), []),
]


@pytest.mark.parametrize("kind, gains", [("qwen2", []), ("qwen3_moe", ["q_norm.weight", "k_norm.weight"])])
def test_windows_that_are_off(kind, gains, tmp_path):
    fields = dict(num_attention_heads=1, num_key_value_heads=1, head_dim=D)
    plain = written(tmp_path / "plain", model(tmp_path / "model", kind, fields, gains))
    for rows in 3, None:
        path = model(tmp_path / "model", kind, fields, gains)
        config = {**json.loads((path / "config.json").read_text()), "sliding_window": rows, "use_sliding_window": False}
        (path / "config.json").write_text(json.dumps(config))
        assert written(tmp_path / f"off {rows}", path) == plain


def test_biases(tmp_path):
    """A flag that is missing has the value of transformers, and a bias that the model has is read."""
    for kind, fields, bias in ("llama", dict(attention_bias=True), "k_proj.bias"), ("gpt_neox", {}, "dense.bias"):
        plain = written(tmp_path / f"plain {kind}", model(tmp_path / "model", kind, fields))
        assert written(tmp_path / kind, model(tmp_path / "model", kind, fields, [bias])) != plain


@pytest.mark.parametrize("kind, fields, tensors", HARMLESS, ids=lambda value: value if isinstance(value, str) else "-")
def test_harmless(kind, fields, tensors, tmp_path):
    path = model(tmp_path / "model", kind, fields, tensors)
    assert written(tmp_path / "out", path) == written(tmp_path / "plain", model(tmp_path / "model", kind))


LISTS = dict(short_factor=[1.0, 1.0], long_factor=[2.0, 2.0])
WRONG = [
    ("llama", dict(rope_parameters=dict(rope_theta=7.0)), "rope_theta: 100, and rope_parameters.rope_theta is 7"),
    ("gpt_neox", dict(partial_rotary_factor=0.25),
     "partial_rotary_factor: 0.25, and rotary_pct is 0.5"),
    ("phi", dict(partial_rotary_factor=1.5), "partial_rotary_factor: must be at most 1"),
    ("cohere", dict(rope_theta=None), "rope_theta: is missing"),
    ("llama", dict(rope_scaling=dict(rope_type="linear")), "rope_scaling.factor: is missing"),
    ("llama", dict(rope_scaling=[1, 2]), "rope_scaling: it must be an object"),
    ("llama", dict(rope_parameters=[dict(rope_theta=100.0)]), "rope_parameters: it must be an object"),
    ("smollm3", dict(no_rope_layers={"0": 1}), "no_rope_layers: it must be a list"),
    ("phi3", dict(rope_scaling=dict(rope_type="longrope", short_factor=[1.0, 1.0])),
     "rope_scaling.long_factor: is missing"),
    ("phi3", dict(rope_scaling=dict(rope_type="longrope", factor=3.0, **LISTS), original_max_position_embeddings=32),
     "rope_scaling.factor: 3, and max_position_embeddings / original_max_position_embeddings is 2.0"),
    ("phi3", dict(rope_scaling=dict(rope_type="longrope", **LISTS), original_max_position_embeddings=32,
                  partial_rotary_factor=0.5), "rope_scaling.short_factor: has 2 numbers, not 1"),
    ("mistral", dict(layer_types=["chunked_attention"]), "layer_types: chunked_attention is not known"),
]


@pytest.mark.parametrize("kind, fields, message", WRONG, ids=lambda value: value if isinstance(value, str) else "-")
def test_wrong(kind, fields, message, tmp_path):
    assert message in refused(tmp_path, "model", model(tmp_path / "model", kind, fields), *KEYS)


# ---- what is missing, and what is null ----

DEFAULTS = [  # fields, what becomes of them, and what becomes of null
    ("mistral", SHAPES, "sliding_window", "window_left=4095", "causal=true rope=half rope_theta=100\n"),
    ("gemma2", {}, "attn_logit_softcapping", "softcap=50",
     "window_left=4095 rope=half rope_theta=100 scale=0.0625\n"),
    ("mistral", dict(sliding_window=3), "num_key_value_heads", "h_kv = 8: must divide h = 2", "h=2 d_model=8 dk=4"),
    ("llama4_text", SHAPES, "attention_chunk_size", "causal=true qk_norm=rms norm_eps=1e-05", "qk_norm=rms"),
]


def told_by(path, *words):
    result = subprocess.run([MHAGEN, "model", path, *KEYS, *words, "-o", path / "out", "--force"], capture_output=True,
                            text=True)
    return result.stdout + result.stderr


@pytest.mark.parametrize("kind, fields, name, missing, null", DEFAULTS, ids=lambda value: value if isinstance(
    value, str) else "-")
def test_defaults(kind, fields, name, missing, null, tmp_path):
    """tests/unit/unit_families.lua compares all defaults with those of transformers."""
    path = model(tmp_path / "model", kind, fields)
    assert missing in told_by(path)
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, name: None}))
    assert null in told_by(path)


def test_dictionaries_of_clip(tmp_path):
    """Older files have the configs of their parts twice; transformers takes the one that ends in _dict, as a whole."""
    names = [f"{side}_model.encoder.layers.0.self_attn.{name}.weight" for side in ("text", "vision")
             for name in ("q_proj", "k_proj", "v_proj", "out_proj")]
    parts = {f"{side}_config": SIZES for side in ("text", "vision")}
    more = dict(text_config_dict={**SIZES, "num_attention_heads": 4}, vision_config_dict=None)
    for config, heads in ({**parts, **more}, "42"), (parts, "22"), ({**more, **parts, "text_config": {}}, "42"):
        path = write_model(tmp_path / "model", dict(model_type="clip", **config), {
            name: torch.ones(D, D) for name in names})
        assert set(re.findall(r" h=(\d)", told_by(path))) == set(heads)
    whole = dict(model_type="gemma3", text_config=dict(model_type="qwen2_5_vl"), vision_config={})
    path = write_model(tmp_path / "whole", whole, {"a": torch.ones(1)})
    assert "text_config.model_type: is not known; known are " in refused(tmp_path, "model", path, *KEYS)
    path = write_model(tmp_path / "model", dict(model_type="clip", text_config=SIZES), {"a": torch.ones(1)})
    assert "config.json: vision_config: is missing" in refused(tmp_path, "model", path, *KEYS)


BETA = dict(rope_theta=100.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=4,
            llama_4_scaling_beta=0.1)
LIMITS = [
    ("llama4_text", {**SHAPES, "attention_chunk_size": 4}, "attention_chunk_size: layers see chunks of so many keys; "
     "a kernel may have up to 4 rows and keys, not 5"),
    ("llama4_text", {**SHAPES, "no_rope_layers": [0], "floor_scale": 5},
     "floor_scale: the scale of this layer changes"),
    ("ministral3", {**SHAPES, "rope_theta": None, "rope_parameters": BETA},
     "original_max_position_embeddings: the scale changes behind it"),
]


@pytest.mark.parametrize("kind, fields, message", LIMITS, ids=[case[0] for case in LIMITS])
def test_limits(kind, fields, message, tmp_path):
    """Texts are refused where a model begins to compute them otherwise."""
    path = model(tmp_path / "model", kind, fields)
    written(tmp_path / "out", path)
    assert message in refused(tmp_path, "model", path, "isa=scalar", "seq=5")


def test_many_groups(tmp_path):
    """A layer for each group, however many a small config says, would take all memory."""
    path = write_model(tmp_path / "model", dict(model_type="albert", num_hidden_groups=1 << 30, **SIZES), {
        "a": torch.ones(1)})
    assert "num_hidden_groups: 1 layers in 1073741824 groups" in refused(tmp_path, "model", path, *KEYS)


def test_shared_layers(tmp_path):
    path = model(tmp_path / "model", "gemma3n_text", {**SHAPES, "num_kv_shared_layers": 1}, ["q_norm.weight"])
    assert "num_kv_shared_layers: this layer takes keys and values of another, which no kernel does; --only" in refused(
        tmp_path, "model", path, *KEYS)


# ---- GGUF ----


def gguf_model(path, kind="llama", keys={}, tensors={}):
    import gguf
    draw = numpy.random.default_rng(4)
    writer = gguf.GGUFWriter(path, kind)
    for key, value in {"block_count": 1, "embedding_length": D, "context_length": 64, "attention.head_count": 2,
                       **keys}.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
               list: writer.add_array}
        add[type(value)](f"{kind}.{key}", value)
    maps = {"attn_qkv": 3 * D, "attn_output": D} if kind in ("phi3", "nomic-bert") else dict.fromkeys(
        ["attn_q", "attn_k", "attn_v", "attn_output"], D)
    wide = 2 * keys.get("attention.key_length", D // 2)  # of two heads
    value = 2 * keys.get("attention.value_length", D // 2)
    for name, rows in maps.items():
        rows = {"attn_output": D, "attn_qkv": 2 * wide + value, "attn_v": value}.get(name, wide)
        shape = (rows, D if name != "attn_output" else value)
        writer.add_tensor(f"blk.0.{name}.weight", draw.normal(size=shape).astype("f4"))
    for name, x in {"blk.0.attn_norm.weight": D * [1.0], "blk.0.ffn_up.weight": D * [1.0], **tensors}.items():
        writer.add_tensor(name, numpy.array(x, "f4"))
    for write in writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close:
        write()
    return path


EPS = {"attention.layer_norm_rms_epsilon": 1e-6}
GAINS = {"blk.0.attn_q_norm.weight": 4 * [1.0], "blk.0.attn_k_norm.weight": 4 * [1.0]}
WHOLE_GAINS = {name: 2 * list for name, list in GAINS.items()}

SLIDES = {"attention.sliding_window": 3}
NARROW_SWA = {**SLIDES, "attention.sliding_window_pattern": [True], "attention.key_length_swa": 4,
              "attention.value_length_swa": 4}
LINEAR = {"rope.scaling.factor": 2.0}

GGUF_REFUSED = [
    ("llama", {"attention.sliding_window": 4}, {}, "attention.sliding_window = 4"),
    ("llama", {"attention.max_alibi_bias": 8.0}, {}, "attention.max_alibi_bias = 8.0"),
    ("llama", {"attention.scale": 0.5, "rope.dimension_sections": 2}, {},
     "llama.attention.scale = 0.5, llama.rope.dimension_sections = 2"),
    ("llama", {}, {"rope_factors_long.weight": [1.0, 1.0]}, "tensor rope_factors_long.weight"),
    ("llama", {}, {"blk.0.attn_q_norm.weight": 4 * [1.0]}, "tensor attn_q_norm.weight"),
    ("phi3", {}, {"blk.0.attn_sinks.weight": 2 * [1.0]}, "tensor attn_sinks.weight"),
    ("llama", {"rope.scaling.type": "ntk", "rope.scaling.factor": 4.0}, {}, "rope.scaling.type: ntk is not supported"),
    ("llama", {"rope.scaling.type": "yarn", "rope.freq_base": 1.0}, {}, "rope.freq_base: must be larger than 1"),
    ("mpt", {"attention.max_alibi_bias": 4.0}, {}, "attention.max_alibi_bias: 4.0; must be 8"),
    ("bloom", {"attention.max_alibi_bias": 0.0}, {}, "attention.max_alibi_bias: 0.0; must be 8"),
    ("bert", {}, {}, "attention.causal: is missing"),
    ("qwen3", {}, GAINS, "attention.layer_norm_rms_epsilon: is missing"),
    ("gpt-oss", {}, {"blk.0.attn_sinks.weight": 2 * [1.0]}, "attention.sliding_window: is missing"),
    ("gemma2", {"attention.sliding_window": 0}, {}, "attention.sliding_window: 0 must be a number from 1 on"),
    ("gemma2", {"attention.sliding_window_pattern": [True, False]}, {},
     "sliding_window_pattern: has 2 elements, and there are 1 blocks"),
    ("gemma2", {"rope.scaling.type": "none", "rope.scaling.factor": 2.0}, {},
     "rope.scaling.factor: 2.0 must be 1 with rope.scaling.type none: llama.cpp takes it in layers with a window"),
    ("olmo2", {"attention.sliding_window": 3, "rope.freq_base_swa": 500.0, **EPS}, WHOLE_GAINS,
     "rope.freq_base_swa: 500.0 must be rope.freq_base, 10000, which llama.cpp takes in all layers of this model"),
    ("llama", {"rope.scaling.type": "yarn", "rope.scaling.factor": 0.5}, {}, "rope.scaling.factor: 0.5 must be at"),
    ("llama", {"rope.scaling.type": "yarn", "rope.scaling.yarn_beta_fast": 16.0}, {}, "scaling.yarn_beta_fast = 16"),
    ("llama", {"rope.scaling.type": "yarn", "rope.scaling.yarn_beta_slow": 2.0}, {}, "rope.scaling.yarn_beta_slow = 2"),
    ("llama", {"rope.scaling.type": "yarn", "rope.scaling.yarn_ext_factor": 0.5}, {}, "rope.scaling.yarn_ext_factor ="),
    ("llama", {"rope.scaling.type": "yarn", "rope.scaling.yarn_attn_factor": 1.5}, {}, "yarn_attn_factor = 1.5"),
    ("qwen2vl", {}, {}, "qwen2vl.rope.dimension_sections: is missing"),
    ("qwen2vl", {"rope.dimension_sections": [1, 0, 0, 1]}, {}, "rope.dimension_sections: must be 4 numbers, of which"),
    ("phi3", {}, {"rope_freqs.weight": [1.0, 1.0]}, "tensor rope_freqs.weight"),
    ("gemma3", {"attn_logit_softcapping": 50.0, **EPS}, GAINS, "attn_logit_softcapping = 50"),
    ("llama", {"attention.shared_kv_layers": 1, "attention.temperature_scale": 0.1, "rope.freq_base_swa": 3.0}, {},
     "attention.shared_kv_layers = 1, llama.attention.temperature_scale = 0.1"),
    ("llama", {}, {"blk.0.attn_q.scale": [2.0]}, "tensor attn_q.scale"),
    ("smollm3", {}, {"rope_freqs.weight": [2.0, 2.0]}, "tensor rope_freqs.weight"),
    ("mpt", {"attention.clamp_kqv": 8.0}, {}, "attention.clamp_kqv = 8"),
    ("llama", {"rope.scaling.factor": 4.0, "rope.scale_linear": 2.0}, {}, "rope.scale_linear: 2.0, and llama.rope"),
    ("llama", {}, {"blk.0.attn_gate.weight": 2 * [1.0]}, "tensor attn_gate.weight"),
    ("llama", {"attention.head_count": [2]}, {}, "attention.head_count: it must be a number from 1 on"),
    ("cohere2", {}, {}, "attention.sliding_window: is missing"),
    ("cohere2moe", SLIDES, {}, "leading_dense_block_count: is missing"),
    ("exaone-moe", EPS, GAINS, "attention.sliding_window: is missing"),
    ("gemma-embedding", EPS, GAINS, "attention.sliding_window: is missing"),
    ("mimo2", SLIDES, {}, "sliding_window_pattern: is missing"),
    ("maple", {**SLIDES, **EPS, "attention.sliding_window_pattern": 2}, GAINS, "window_pattern: must be a list"),
    ("granite_swa", SLIDES, {"blk.0.attn_sinks.weight": 2 * [1.0]}, "sliding_window_pattern: is missing"),
    ("granite_swa", {**SLIDES, "attention.sliding_window_pattern": [True]}, {}, "tensor blk.0.attn_sinks.weight is"),
    ("granite_swa", {**SLIDES, "attention.sliding_window_pattern": [True], "attention.rope_pattern": [1.5]}, {},
     "attention.rope_pattern: element 1 must be a number from 0 on"),
    ("qwen3vl", EPS, GAINS, "rope.dimension_sections: is missing"),
    ("qwen3vl", {**EPS, "rope.dimension_sections": [0, 0, 0, 0]}, GAINS, "rope.dimension_sections: has no pairs"),
    ("glm4", {"rope.dimension_sections": [1, 1, 0]}, {}, "rope.dimension_sections: must be 4 numbers, of which"),
    ("glm4moe", {}, GAINS, "attention.layer_norm_rms_epsilon: is missing"),
    ("glm4moe", EPS, {"blk.0.attn_q_norm.weight": 4 * [1.0]}, "tensor blk.0.attn_k_norm.weight is missing"),
    ("glm4moe", EPS, {"blk.0.attn_k_norm.weight": 4 * [1.0]}, "tensor attn_k_norm.weight"),
    ("stablelm", {}, GAINS, "attention.layer_norm_epsilon: is missing"),
    ("olmoe", {}, WHOLE_GAINS, "attention.layer_norm_rms_epsilon: is missing"),
    ("apertus", EPS, {**GAINS, "blk.0.attn_q_norm.bias": 4 * [1.0]}, "tensor attn_q_norm.bias"),
    ("jina-bert-v2", {"attention.causal": False}, {"blk.0.attn_q_norm.weight": D * [1.0]}, "tensor attn_q_norm.weight"),
    ("olmo", {"attention.clamp_kqv": 8.0}, {}, "attention.clamp_kqv = 8"),
    ("ernie4_5", {}, {"blk.0.attn_output.bias": D * [1.0]}, "attn_output.bias (models of this type have none)"),
    ("gemma4", EPS, GAINS, "attention.key_length_swa: is missing"),
    ("gemma4", {**EPS, **NARROW_SWA, "attention.shared_kv_layers": 1}, GAINS,
     "shared_kv_layers: this layer takes keys and values of another"),
    ("llama4", {**EPS, "attention.sliding_window": 0}, {}, "attention.sliding_window: 0 must be a number from 1 on"),
    ("mistral3", {"attention.temperature_scale": 0.1, "rope.scaling.original_context_length": 3}, {},
     "temperature_scale: the scale changes behind the length of the training; a kernel may have up to 3 rows"),
    ("openelm", {**EPS, "attention.head_count_kv": [0]}, GAINS, "head_count_kv: element 1 must be a number from 1 on"),
    ("jamba", {"attention.head_count_kv": [0.5]}, {}, "head_count_kv: element 1 must be a number from 0 on"),
    ("jais", {"attention.max_alibi_bias": 4.0}, {}, "attention.max_alibi_bias: 4.0; must be 8"),
    ("cohere2", {**SLIDES, "rope.freq_base_swa": 7.0}, {}, "rope.freq_base_swa: 7.0 must be rope.freq_base, 10000"),
    ("deepseek2-ocr", LINEAR, {}, "rope.scaling.factor = 2"),
    *[(kind, {}, {}, f"model type {kind} is not supported: it has") for kind in (
        "deepseek2", "gptj", "dbrx", "bitnet", "hunyuan-moe", "maincoder", "t5", "mamba", "afmoe")],
]


@pytest.mark.skipif(not installed("gguf"), reason="gguf is not installed")
@pytest.mark.parametrize("kind, keys, tensors, message", GGUF_REFUSED, ids=[case[3] for case in GGUF_REFUSED])
def test_gguf_refused(kind, keys, tensors, message, tmp_path):
    assert message in refused(tmp_path, "model", gguf_model(tmp_path / "x.gguf", kind, keys, tensors), *KEYS)


@pytest.mark.skipif(not installed("gguf"), reason="gguf is not installed")
@pytest.mark.parametrize("kind", ["NVFP4", "Q1_0"])
def test_gguf_types(kind, tmp_path):
    """Types that are not read have their names."""
    import gguf
    quantized = getattr(gguf.GGMLQuantizationType, kind)
    elements, size = gguf.GGML_QUANT_SIZES[quantized]
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    for key in "block_count", "attention.head_count":
        writer.add_uint32(f"llama.{key}", 1)
    writer.add_uint32("llama.embedding_length", elements)
    for name in "attn_q", "attn_k", "attn_v", "attn_output":
        writer.add_tensor(f"blk.0.{name}.weight", numpy.zeros((elements, size), "u1"), raw_dtype=quantized)
    for write in writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close:
        write()
    assert f": numbers of type {kind} are not read" in refused(tmp_path, "model", tmp_path / "x.gguf", *KEYS)


EPS_TEXT = "qk_norm=rms norm_eps=9.9999999747524271e-07"
NORM = f"{EPS_TEXT} rope=half\n"
GGUF_KEYS = [
    ("llama", {"attention.causal": False}, "kv_len=true rope"), ("llama", {"attention.causal": True}, "causal=true"),
    ("bert", {"attention.causal": False}, "scalar kv_len=true\n"),
    ("bert", {"attention.causal": True}, "causal=true kv_len=true"),
    ("phi3", {"attention.sliding_window": 0}, "causal=true rope=half\n"),
    ("phi3", {"attention.sliding_window": 3}, "causal=true rope=half\n"),
    ("gemma2", {}, "window_left=4095 softcap=50 rope=half\n"),
    ("gemma2", {"attention.sliding_window": 3, "rope.freq_base_swa": 7.0},
     "window_left=2 softcap=50 rope=half rope_theta=7\n"),
    ("gemma2", {"attention.sliding_window_pattern": 1}, "causal=true softcap=50 rope=half\n"),
    ("gemma2", {"attention.sliding_window_pattern": 0}, "window_left=4095 softcap=50 rope=half\n"),
    ("gemma2", {"attention.sliding_window_pattern": [False]}, "causal=true softcap=50 rope=half\n"),
    ("gemma2", {"attention.sliding_window_pattern": [True]}, "window_left=4095 softcap=50 rope=half\n"),
    ("gemma2", {"attention.sliding_window_pattern": [0]}, "causal=true softcap=50 rope=half\n"),
    ("qwen2vl", {"rope.dimension_sections": [1, 1, 0, 0]}, "causal=true rope=half\n"),
    ("gemma2", {"attention.key_length": 16, "block_count": 46}, "dk=16 dv=4 seq=4 isa=scalar causal=true "),
    ("gemma2", {"attention.key_length": 16, "block_count": 46}, "softcap=50 rope=half scale=0.5\n"),
    ("gemma2", {"attention.key_length": 16, "block_count": 45, "attn_logit_softcapping": 3.0}, "softcap=3 rope=half\n"),
    ("phi3", {"rope.scaling.attn_factor": 1.1, "rope.dimension_count": 2}, "rope=half rope_dims=2\n"),
    ("granite", {"attention.scale": 0.0}, "causal=true rope=interleaved\n"),
    ("granite", {"attention.scale": 0.25, "rope.scaling.finetuned": False, "rope.freq_base": 7.0},
     "causal=true scale=0.25\n"),
    ("mpt", {}, "causal=true\n"), ("mpt", {"attention.max_alibi_bias": 0.0}, "causal=true\n"),
    ("mpt", {"attention.max_alibi_bias": 8.0}, "causal=true alibi=true\n"), ("bloom", {}, "causal=true alibi=true\n"),
    ("nomic-bert", {"attention.causal": False, "rope.freq_base": 1000.0}, "kv_len=true rope=half rope_theta=1000\n"),
    ("smollm3", {}, "causal=true rope=interleaved\n"),
    ("phi3", {"rope.scaling.attn_factor": 2.0, "rope.scaling.original_context_length": 16}, "scale=2\n"),
    ("refact", {}, "causal=true alibi=true\n"), ("jais", {}, "causal=true scale=0.25\n"),
    ("baichuan", {}, "causal=true\n"), ("cohere2", SLIDES, "causal=true window_left=2 rope=interleaved\n"),
    ("cohere2", {**SLIDES, "attention.sliding_window_pattern": 1}, "causal=true\n"),
    ("exaone4", {**EPS, "block_count": 64}, f"causal=true window_left=4095 {NORM}"),
    ("exaone4", {**EPS, "block_count": 64, "nextn_predict_layers": 1}, f"causal=true {NORM}"),
    ("smallthinker", {"attention.sliding_window": 7, "attention.sliding_window_pattern": [True]},
     "causal=true window_left=4095\n"),
    ("llada", {"attention.causal": True}, "scalar kv_len=true rope=interleaved\n"),
    ("grok", {}, "softcap=30 rope=half scale=0.088388347648318447\n"),
    ("granitemoe", {"attention.scale": 0.0, "rope.scaling.finetuned": False}, "causal=true rope=interleaved\n"),
    ("talkie", EPS, "causal=true qk_norm=rms norm_span=each norm_eps="),
    ("mellum", EPS, f"causal=true {NORM}"),
    ("mellum", {**EPS, **SLIDES, **LINEAR}, f"causal=true window_left=2 {NORM}"),
    ("modern-bert", {"attention.causal": False, **SLIDES, "attention.sliding_window_pattern": 0},
     "kv_len=true window_left=1 window_right=1 rope=half\n"),
    ("llama4", {**EPS, "attention.sliding_window": 5}, f"causal=true {EPS_TEXT} rope=interleaved\n"),
]

NORMED = {"exaone4", "mellum"}


@pytest.mark.skipif(not installed("gguf"), reason="gguf is not installed")
@pytest.mark.parametrize("kind, keys, text", GGUF_KEYS, ids=[f"{case[0]}-{case[1]}" for case in GGUF_KEYS])
def test_gguf_keys(kind, keys, text, tmp_path):
    more = GAINS if kind in NORMED else {"blk.0.attn_q_norm.weight": 2 * [1.0]} if kind == "talkie" else {}
    path = gguf_model(tmp_path / "x.gguf", kind, keys, more)
    assert text in run(MHAGEN, "model", path, *KEYS, "--only", "blk.0", "-o", tmp_path / "out")


@pytest.mark.skipif(not installed("gguf"), reason="gguf is not installed")
def test_gguf_angles(tmp_path):
    """All names of a factor make the same; tables of long texts are those of more keys than the model was trained on;
    their packed weights are those of the same divisors by other names."""
    def packed(name, kind="llama", keys={}, tensors={}, *words):
        files = written(tmp_path / name, gguf_model(tmp_path / f"{name}.gguf", kind, keys, tensors), *words)
        (data,) = [data for file, data in files.items() if file.endswith(".packed")]
        return data

    plain = packed("plain")
    assert plain == packed("none", keys={"rope.scaling.type": "none", "rope.scaling.factor": 2.0})
    linear = packed("linear", keys={"rope.scaling.type": "linear", "rope.scaling.factor": 2.0})
    assert linear == packed("bare", keys={"rope.scaling.factor": 2.0})
    assert linear == packed("old", keys={"rope.scale_linear": 2.0})
    assert linear == packed("divided", tensors={"rope_freqs.weight": [2.0, 2.0]}) != plain
    yarn = {"rope.scaling.type": "yarn", "rope.scaling.factor": 2.0, "rope.freq_base": 2.0}
    told = {f"rope.scaling.yarn_{name}": value for name, value in [("beta_fast", 32.0), ("beta_slow", 1.0),
                                                                   ("ext_factor", 1.0)]}
    assert packed("yarn", keys=yarn) == packed("told", keys={**yarn, **told}) != packed("yarn2", keys={
        **yarn, "rope.scaling.original_context_length": 600})
    # Of 2 pairs those from 3 to 3 are between, or from 4 to 3: neither is stretched.
    assert packed("yarn3", keys={**yarn, "rope.scaling.original_context_length": 600}) == packed("yarn4", keys={
        **yarn, "rope.scaling.original_context_length": 1000})
    trained = {"rope.scaling.original_context_length": 8}
    short, long = {"rope_factors_short.weight": [1.0, 1.0]}, {"rope_factors_long.weight": [2.0, 3.0]}
    both, alone = {**short, **long}, {"rope_factors_short.weight": [2.0, 3.0]}
    assert packed("short", "phi3", trained, both) == packed("phi3", "phi3") == packed("one", "phi3", trained, long)
    more = ["seq_kv=9", "cache=append"]
    assert packed("long", "phi3", trained, both, *more) == packed("freqs", "phi3", {}, alone, *more)
    assert packed("long3", "phi3", trained, both, *more) == packed("freqs3", "phi3", trained, long, *more)
    assert packed("long2", "phi3", trained, both, *more) != packed("phi4", "phi3", {}, {}, *more)
