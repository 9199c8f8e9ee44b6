"""What the rows of further families refuse by name, which their own models would compute otherwise, and which of the
layers are attention."""
import re

import pytest

from tools import MHAGEN, installed, run

if not installed("numpy", "torch", "safetensors"):
    pytest.skip("NumPy, PyTorch or safetensors is not installed", allow_module_level=True)

import torch

from test_import import refused, write_model

D = 8
O_PROJ = "q_proj k_proj v_proj o_proj"
VIT = "attention.query attention.key attention.value output.dense"
BERT = "self.query self.key self.value output.dense"
SIZES = dict(hidden_size=D, num_attention_heads=2, num_key_value_heads=2, head_dim=4, num_hidden_layers=1)
GAINS = {"q_norm": D, "k_norm": D}


def model(folder, kind, fields, at="layers.0.self_attn", maps=O_PROJ, gains={}, rows={}, width=D):
    """A layer of ones."""
    tensors = {f"{at}.{name}.weight": torch.ones(rows.get(name, D), width) for name in maps.split()}
    tensors |= {f"{at}.{name}.weight": torch.ones(size) for name, size in gains.items()}
    return write_model(folder, {"model_type": kind, **SIZES, **fields}, tensors)


PATCHES = dict(at="layer.0.attention")
LINEAR = "q_proj.linear k_proj.linear v_proj.linear o_proj.linear"
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=4)
REFUSED = [
    ("olmo", dict(clip_qkv=8.0), {}, "clip_qkv = 8"),
    ("stablelm", dict(qk_layernorm=True, partial_rotary_factor=0.5), {}, "qk_layernorm = true"),
    ("bamba", dict(attn_layer_indices=[0], partial_rotary_factor=1.0), {},
     "partial_rotary_factor: 1, and transformers takes 0.5 always"),
    ("minimax_m2", dict(rotary_dim=2, rope_parameters=dict(rope_theta=100.0, partial_rotary_factor=1.0)),
     dict(gains=GAINS), "rotary_dim: 2, and another part of a head is turned"),
    ("phimoe", dict(rope_scaling=dict(rope_type="longrope", short_factor=[1.0, 1.0], long_factor=[1.0, 1.0],
                                      short_mscale=1.2, long_mscale=1.2)), {}, "rope_scaling.short_mscale = 1.2"),
    ("cohere2", dict(layer_types=["chunked_attention"]), {}, "layer_types: chunked_attention is not known"),
    ("lfm2", dict(layer_types=["conv"]), {}, "tensor layers.0.self_attn.q_proj.weight is missing"),
    ("esm", dict(position_embedding_type="rotary", rope_scaling=YARN), dict(at="encoder.layer.0.attention", maps=BERT),
     "rope_scaling: this is not supported"),
    ("esm", dict(position_embedding_type="rotary", rope_parameters=dict(rope_theta=100.0)),
     dict(at="encoder.layer.0.attention", maps=BERT), "rope_parameters: this is not supported"),
    ("tapas", dict(is_decoder=True), dict(at="encoder.layer.0.attention", maps=BERT),
     "is_decoder: true is not supported"),
    ("bridgetower", dict(vision_config={}, text_config=dict(is_decoder=True)),
     dict(at="text_model.encoder.layer.0.attention", maps=BERT), "text_config.is_decoder: true is not supported"),
    ("esm", dict(position_embedding_type="relative_key"), dict(at="encoder.layer.0.attention", maps=BERT),
     "position_embedding_type: is not supported"),
    ("big_bird", dict(attention_type="sparse"), dict(at="encoder.layer.0.attention", maps=BERT),
     "attention_type: is not known"),
    ("ernie", dict(add_cross_attention=True), dict(at="encoder.layer.0.attention", maps=BERT),
     "add_cross_attention = true"),
    ("gpt_neo", dict(num_layers=1, num_heads=2, attention_types=[[["global"], "x"]]), dict(
        at="h.0.attn.attention", maps="q_proj k_proj v_proj out_proj"), "attention_types: must be a list of kinds"),
    ("gpt_neo", dict(num_layers=1, num_heads=2, attention_types=[1]), dict(
        at="h.0.attn.attention", maps="q_proj k_proj v_proj out_proj"), "attention_types: must be a list of kinds"),
    ("gpt_neo", dict(num_layers=1, num_heads=2, attention_layers=["far"]), dict(
        at="h.0.attn.attention", maps="q_proj k_proj v_proj out_proj"), "attention_layers: far is not known"),
    ("aya_vision", dict(text_config={**SIZES, "layer_types": ["chunked_attention"]}, vision_config={}),
     dict(at="language_model.model.layers.0.self_attn"), "text_config.layer_types: chunked_attention is not known"),
    ("gpt_bigcode", dict(n_layer=1, n_head=2, n_embd=D, scale_attn_by_inverse_layer_idx=True),
     dict(at="h.0.attn", maps="c_attn c_proj", rows=dict(c_attn=2 * D)), "scale_attn_by_inverse_layer_idx = true"),
    ("dpt", dict(backbone_config={}), dict(at="encoder.layer.0.attention", maps=VIT), "backbone_config: this is not"),
    ("janus_vision_model", dict(use_qk_norm=True), dict(at="encoder.layers.0.self_attn", maps=(
        "q_proj k_proj v_proj projection_layer")), "use_qk_norm: true is not supported"),
    ("informer", dict(encoder_layers=1, encoder_attention_heads=2, d_model=D), dict(
        at="encoder.layers.0.self_attn", maps="q_proj k_proj v_proj out_proj"), "attention_type: is not full"),
    ("moonshine_streaming_encoder", dict(sliding_windows=[[0, 4]]), {}, "sliding_windows: element 1 must be two numb"),
    ("moonshine_streaming_encoder", dict(sliding_windows=[4]), {}, "sliding_windows: element 1 must be two numbers"),
    ("moonshine_streaming_encoder", dict(sliding_windows=[]), {}, "sliding_windows: has no windows of some layers"),
    ("clap_audio_model", dict(depths=[1, 1], num_attention_heads=[2]), {}, "num_attention_heads: has 1 numbers"),
    ("swin2sr", dict(depths=[1, 1], num_heads=[2]), {}, "num_heads: has 1 numbers"),
    ("blip_text_model", {}, dict(at="bert.encoder.layer.0.attention", maps=BERT),
     "model type blip_text_model is not known"),
    ("vision-encoder-decoder", dict(encoder={}, decoder={}), {}, "encoder.model_type: is missing"),
    ("dinov3_vit", dict(image_size=64), PATCHES, "image_size: 4x4 patches and 1 rows in front are 17 rows, and a "
     "kernel has 4; --image says another size, --only takes other layers"),
    ("dinov3_vit", dict(image_size=[16, 16, 16]), PATCHES, "image_size: must have 2 numbers"),
    ("dinov3_vit", dict(image_size=16, num_register_tokens=2, hidden_size=4, head_dim=2), dict(
        PATCHES, rows=dict.fromkeys(O_PROJ.split(), 4), width=4), "num_attention_heads: a head has 1 pairs, which "
     "two axes cannot share"),
    ("dinov3_vit", dict(rope_parameters=dict(rope_type="linear", rope_theta=1.0)), PATCHES, "rope_parameters."
     "rope_type: linear is not supported"),
    ("sam3_vit_model", dict(image_size=[28, 56]), dict(at="layers.0.attention"), "image_size: must be that of squares"),
    ("sam3_vit_model", dict(image_size=28), dict(at="layers.0.attention"), "window_size: 24x24 patches are 576 rows, "
     "and a kernel has 4; --only takes other layers"),
    ("moshi", dict(sliding_window=3, audio_encoder_config={}), dict(maps=LINEAR), "sliding_window: a cache keeps so "
     "many rows; a kernel may have up to 3 rows and keys, not 4"),
    ("gradium_phonon_tts", dict(attention_bias=True), dict(maps="in_proj o_proj", rows=dict(in_proj=3 * D)),
     "attention_bias: true is not supported"),
    ("gradium_phonon_tts", dict(num_key_value_heads=1), dict(maps="in_proj o_proj", rows=dict(in_proj=2 * D)),
     "num_key_value_heads: must be num_attention_heads"),
    ("voxtral_realtime_encoder", dict(is_causal=False, sliding_window=3, rope_theta=1.0), {}, "is_causal: false is not "
     "supported"),
    ("gemma4_text", dict(is_causal=False), {}, "is_causal: false is not supported"),
    ("llama4_text", dict(is_causal=False), {}, "is_causal: false is not supported"),
    ("pix2struct_text_model", dict(is_decoder=False, num_layers=1, num_heads=2, d_kv=4), dict(
        at="layer.0.self_attention.attention", maps="query key value output"), "is_decoder: false is not supported"),
    ("neucodec", dict(rope_parameters=dict(rope_type="yarn")), dict(at="acoustic_decoder.layers.0.self_attn"),
     "rope_parameters.rope_type: yarn is not supported"),
    ("superglue", dict(gnn_layers_types=["both"]), dict(at="gnn.layers.0.attention", maps=BERT),
     "gnn_layers_types: element 1 is not known"),
    ("florence_vision", dict(depths=[1], num_heads=[2, 2], embed_dim=[D]), dict(
        at="blocks.0.0.spatial_block.window_attn", maps="qkv proj", rows=dict(qkv=3 * D)), "depths: has 1 numbers"),
    ("gemma4_unified_text", dict(use_bidirectional_attention="all", num_hidden_layers=1, layer_types=[
        "full_attention"], per_layer_config={}), dict(gains=GAINS), "use_bidirectional_attention: is not supported"),
    ("blt", dict(encoder_config={}), {}, "global_config: is missing"),
    ("sam3_vision_model", {}, {}, "backbone_config: is missing"),
]


@pytest.mark.parametrize("kind, fields, tensors, message", REFUSED, ids=[f"{case[0]} {n}" for n, case in
                                                                          enumerate(REFUSED)])
def test_refused(kind, fields, tensors, message, tmp_path):
    path = model(tmp_path / "model", kind, fields, **tensors)
    assert message in refused(tmp_path, "model", path, "isa=scalar", "seq=4")


def test_sparse_texts(tmp_path):
    """BigBird sees all keys up to a length; behind it, only if the config says so."""
    fields = dict(block_size=1, num_random_blocks=1)
    path = model(tmp_path / "model", "big_bird", fields, "encoder.layer.0.attention", BERT)
    run(MHAGEN, "model", path, "isa=scalar", "seq=7", "-o", tmp_path / "out")
    assert "attention_type: longer texts see some blocks of keys only; a kernel may have up to 7 rows" in refused(
        tmp_path, "model", path, "isa=scalar", "seq=8")
    path = model(tmp_path / "model", "big_bird", {**fields, "attention_type": "original_full"},
                 "encoder.layer.0.attention", BERT)
    run(MHAGEN, "model", path, "isa=scalar", "seq=8", "-o", tmp_path / "full")


def test_parts_that_are_not_known(tmp_path):
    """The text of a model is read, and a tower of a type that has no row is named."""
    names = ["language_model.model.layers.0.self_attn", "vision_tower.transformer.layers.0.attention"]
    tensors = {f"{at}.{name}.weight": torch.ones(D, D) for at in names for name in O_PROJ.split()}
    fields = dict(text_config={"model_type": "llama", **SIZES},
                  vision_config=dict(model_type="kimi_k25_vision", rope_theta=1.0))
    path = write_model(tmp_path / "model", dict(model_type="llava", **fields), tensors)
    told = run(MHAGEN, "model", path, "isa=scalar", "seq=4", "-o", tmp_path / "out")
    assert f"no layer: {names[1]}: is attention that is not read" in told and "1 layer, " in told
    fields["text_config"]["model_type"] = "kimi_k25_vision"
    path = write_model(tmp_path / "model", dict(model_type="llava", **fields), tensors)
    assert "text_config.model_type: is not known; known are" in refused(tmp_path, "model", path, "isa=scalar", "seq=4")


HYBRIDS = [
    ("lfm2", dict(layer_types=["conv", "full_attention", "conv"]), "1"),
    ("lfm2", dict(full_attn_idxs=[2]), "2"), ("lfm2", {}, "012"),
    ("granitemoehybrid", dict(layer_types=["mamba", "attention", "attention"]), "12"),
    ("bamba", dict(attn_layer_indices=[0, 2]), "02"),
    ("jamba", dict(attn_layer_period=2, attn_layer_offset=1), "1"),
]


@pytest.mark.parametrize("kind, fields, layers", HYBRIDS)
def test_layers_that_are_attention(kind, fields, layers, tmp_path):
    maps = f"{O_PROJ} out_proj".split()
    tensors = {f"model.layers.{i}.self_attn.{name}.weight": torch.ones(D, D) for i in layers for name in maps
               if name != ("o_proj" if kind == "lfm2" else "out_proj")}
    if kind == "lfm2":
        tensors |= {f"model.layers.{i}.self_attn.{of}_layernorm.weight": torch.ones(4) for i in layers for of in "qk"}
    config = {"model_type": kind, **SIZES, "num_hidden_layers": 3, **fields}
    run(MHAGEN, "model", write_model(tmp_path / "model", config, tensors), "isa=scalar", "seq=4", "-o",
        tmp_path / "out")
    found = re.findall(r'"layers\.(\d)\.self_attn"', (tmp_path / "out/model.c").read_text())
    assert found == list(layers)


def test_windows_of_layers(tmp_path):
    """Rows before with the row itself, and rows behind with it: of a layer without these, none."""
    tensors = {f"layers.{i}.self_attn.{name}.weight": torch.ones(D, D) for i in (0, 1) for name in O_PROJ.split()}
    config = {**SIZES, "num_hidden_layers": 2, "sliding_windows": [[3, 2], [4, 0]]}
    path = write_model(tmp_path / "model", {"model_type": "moonshine_streaming_encoder", **config}, tensors)
    told = run(MHAGEN, "model", path, "isa=scalar", "seq=8", "-o", tmp_path / "out")
    assert re.findall(r"window_left=(\d) window_right=(\d)", told) == [("2", "1"), ("3", "0")]


def test_images_of_another_size(tmp_path):
    """--image says it of layers whose angles are those of places; both layers have the same tables. A model without
    such layers takes no --image."""
    tensors = {f"layer.{i}.attention.{name}.weight": torch.ones(D, D) for i in (0, 1) for name in O_PROJ.split()}
    config = dict(SIZES, model_type="dinov3_vit", image_size=32, num_hidden_layers=2)
    path = write_model(tmp_path / "model", config, tensors)
    told = run(MHAGEN, "model", path, "isa=scalar", "seq=7", "rope_tables=apart", "--image", "32x48", "-o",
               tmp_path / "out")
    assert "2 layers, 1 kernel" in told and "bytes of tables of rope, packed once" in told
    path = model(tmp_path / "other", "llama", {})
    assert "--image is made with --whole, or of layers whose angles" in refused(
        tmp_path, "model", path, "isa=scalar", "seq=4", "--image", "32")


def test_angles_that_turn_back(tmp_path):
    """Those of a run would be the model's own, whose sines a kernel takes with the other sign."""
    path = model(tmp_path / "model", "nanochat", {})
    run(MHAGEN, "model", path, "isa=scalar", "seq=4", "rope_tables=apart", "-o", tmp_path / "out")
    assert "model_type: turns back: with rope_at=run sines would have the other sign; leave rope_at out" in refused(
        tmp_path, "model", path, "isa=scalar", "seq=4", "rope_at=run")
