"""What the rows of texts, and of texts beside images, refuse by name or leave out, and layers that are no rows of
families_texts.py."""
import re

import pytest

from tools import MHAGEN, installed, run

if not installed("numpy", "torch", "safetensors"):
    pytest.skip("NumPy, PyTorch or safetensors is not installed", allow_module_level=True)

import torch

from architectures import BERT, Q_K_V_O, Q_K_V_OUT
from test_families import D, GAINS, SIZES, model
from test_import import Imported, refused, write_model
from test_models import pointers

AT_BERT = dict(at="encoder.layer.0.attention", maps=BERT)
SEQ2SEQ = dict(d_model=D, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2)
REFUSED = [
    ("mvp", dict(SEQ2SEQ, use_prompt=True), dict(at="encoder.layers.0.self_attn", maps=Q_K_V_OUT),
     "use_prompt: true is not supported"),
    ("ibert", dict(quant_mode=True), AT_BERT, "quant_mode: true is not supported"),
    ("luke", {}, AT_BERT, "use_entity_aware_attention: words and entities have other queries for each other"),
    ("roformer", dict(rotary_value=True), AT_BERT, "rotary_value: true is not supported"),
    ("zamba2", dict(use_shared_attention_adapter=True, layers_block_type=["hybrid"]),
     dict(at="layers.0.shared_transformer.self_attn", rows={}), "use_shared_attention_adapter: true is not supported"),
    ("granite_swa", dict(layer_rope_theta=[-1.0]), {}, "layer_rope_theta: element 1 is no base"),
    ("granite_swa", dict(layer_rope_theta=[]), {}, "layer_rope_theta: has no element 1"),
    ("olmo_hybrid", dict(layer_types=["full_attention"], rope_parameters=dict(rope_theta=None, rope_type="yarn")),
     dict(gains=GAINS), "rope_parameters.rope_type: yarn is not supported"),
    ("modernbert-decoder", dict(layer_types=["sliding_attention"], local_attention=8, sliding_window=3,
                                local_rope_theta=9.0), dict(
        at="layers.0.attn", maps="q_proj k_proj v_proj Wo"), "sliding_window: must be half of local_attention"),
    ("xmod", dict(add_cross_attention=True), AT_BERT, "add_cross_attention = true"),
    ("t5gemma", {**dict.fromkeys(SIZES), "encoder": {**SIZES, "layer_types": ["chunked_attention"]}, "decoder": SIZES},
     dict(at="encoder.layers.0.self_attn"), "encoder.layer_types: chunked_attention is not known"),
    ("internvl", dict(text_config={**SIZES, "model_type": "mamba"}), dict(at="language_model.layers.0.self_attn"),
     "text_config.model_type: is not supported: it has no attention"),
]


@pytest.mark.parametrize("kind, fields, tensors, message", REFUSED, ids=[f"{case[0]} {n}" for n, case in
                                                                          enumerate(REFUSED)])
def test_refused(kind, fields, tensors, message, tmp_path):
    path = model(tmp_path / "model", kind, fields, **tensors)
    assert message in refused(tmp_path, "model", path, "isa=scalar", "seq=4")


def test_chunks_of_characters(tmp_path):
    """CANINE's first layer sees all characters up to a length."""
    names = ["initial_char_encoder.layer.0", "encoder.layer.0", "final_char_encoder.layer.0"]
    tensors = {f"{at}.attention.{name}.weight": torch.ones(D, D) for at in names for name in BERT.split()}
    path = write_model(tmp_path / "model", {"model_type": "canine", **SIZES, "local_transformer_stride": 4}, tensors)
    assert "3 layers" in run(MHAGEN, "model", path, "isa=scalar", "seq=4", "-o", tmp_path / "out")
    assert "local_transformer_stride: longer texts see chunks of so many characters; a kernel may have up to 4" in (
        refused(tmp_path, "model", path, "isa=scalar", "seq=5"))


def layers_of(folder, path):
    run(MHAGEN, "model", path, "isa=scalar", "seq=4", "-o", folder)
    return re.findall(r'"([^"]*layers\.\d[^"]*)"', (folder / "model.c").read_text())


def test_layers_that_stand_twice(tmp_path):
    """CSM has a decoder and one for depth, whose layers have the same names; each of them alone may stand anywhere."""
    def tensors(*places):
        return {f"{at}layers.0.self_attn.{name}.weight": torch.ones(D, D) for at in places for name in Q_K_V_O.split()}

    places = ["backbone_model.", "depth_decoder.model."]
    fields = {"model_type": "csm", **SIZES, "depth_decoder_config": SIZES, "codec_config": {}}
    path = write_model(tmp_path / "both", fields, tensors(*places))
    assert layers_of(tmp_path / "out", path) == [f"{at}layers.0.self_attn" for at in places]
    path = write_model(tmp_path / "one", fields, tensors("anything."))
    assert layers_of(tmp_path / "out one", path) == ["layers.0.self_attn"]
    path = write_model(tmp_path / "llama", {"model_type": "llama", **SIZES}, tensors("one.", "two."))
    twice = "tensor layers.0.self_attn.q_proj.weight is there behind "
    assert re.search(twice + "(one. and behind two|two. and behind one)",
                     refused(tmp_path, "model", path, "isa=scalar", "seq=4"))


@pytest.mark.parametrize("kind, fields, layers", [
    ("nemotron_h", dict(hybrid_override_pattern="M*-*"), [1, 3]), ("nemotron_h", {}, [2]),
    ("nemotron_h", dict(layers_block_type=["attention", "mlp", "full_attention"]), [0, 2]),
    ("minimax", dict(layer_types=["linear_attention", "full_attention"], num_hidden_layers=2), [1]),
    ("minimax", dict(num_hidden_layers=3), [0, 2]),
    ("olmo_hybrid", dict(num_hidden_layers=3), [2]), ("olmo_hybrid", dict(num_hidden_layers=5), [3]),
    ("lara_mini", dict(num_hidden_layers=6), [1, 3, 4]),
    ("recurrent_gemma", dict(num_hidden_layers=6, block_types=["attention", "recurrent"]), [0, 2, 4]),
    ("recurrent_gemma", dict(num_hidden_layers=6), [2, 5])])
def test_layers_that_are_attention(kind, fields, layers, tmp_path):
    at = {"nemotron_h": "mixer", "recurrent_gemma": "temporal_block"}.get(kind, "self_attn")
    tensors = {f"layers.{i}.{at}.{name}.weight": torch.ones(D, D) for i in layers for name in Q_K_V_O.split()}
    gains = {"olmo_hybrid": D, "lara_mini": 4}.get(kind)
    tensors |= {f"layers.{i}.{at}.{of}_norm.weight": torch.ones(gains) for i in layers for of in "qk" if gains}
    path = write_model(tmp_path / "model", {"model_type": kind, **SIZES, **fields}, tensors)
    assert layers_of(tmp_path / "out", path) == [f"layers.{i}.{at}" for i in layers]


def test_bias_of_the_last_layer(tmp_path):
    """GPT-NeoX's Japanese kin have one, of the map of o: a kernel adds what the model adds behind it."""
    tensors = {f"layers.{i}.attention.{name}.weight": torch.randn(rows, D)
               for i in range(2) for name, rows in (("query_key_value", 3 * D), ("dense", D))}
    bias = tensors["layers.1.attention.dense_bias"] = torch.randn(D)
    y = []
    for name, given in ("with", tensors), ("without", {**tensors, "layers.1.attention.dense_bias": 0 * bias}):
        path = write_model(tmp_path / name, {"model_type": "gpt_neox_japanese", **SIZES, "num_hidden_layers": 2}, given)
        imported = Imported(path, tmp_path / f"{name} out", "isa=scalar", "seq=4")
        x = torch.linspace(-1, 1, 4 * D).reshape(1, 4, D)
        y.append([torch.empty(1, 4, D) for _ in range(2)])
        for i, of in enumerate(y[-1]):
            imported.run(f"layers.{i}.attention", **pointers(dict(q=x)), y=of.data_ptr())
    assert torch.equal(y[0][0], y[1][0])
    assert (y[0][1] - y[1][1] - bias).abs().max() < 1e-5
