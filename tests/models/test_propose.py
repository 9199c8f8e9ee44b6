"""scripts/propose.py: what it proposes of a type agrees with the row that the type has, which it does not read."""
import re
import sys

import pytest

from tools import MHAGEN, ROOT, in_turn, installed, run

if not installed("numpy", "torch", "safetensors", "transformers"):
    pytest.skip("NumPy, PyTorch, safetensors or transformers is not installed", allow_module_level=True)

sys.path.append(str(ROOT / "scripts"))

import propose
import small_models
from small_models import transformers

if int(transformers.__version__.split(".")[0]) < 5:
    pytest.skip("the script reads configs of transformers 5", allow_module_level=True)

KEYS = r"\b(h|h_kv|d_model|dk|causal|window_left|softcap|rope|rope_theta|scale|qk_norm|norm_eps)=(\S+)"

# A type, its stacks as the script writes them, and the fields that it is asked for.
CASES = {
    "gemma2": (['stack("layers.%d.self_attn", O_PROJ, joined(CAUSAL, rope "half", function(c, i, sizes) return { '
                'scale = c:number "query_pre_attn_scalar" ^ -0.5, softcap = c:number "attn_logit_softcapping", '
                'window_left = c:number "sliding_window" - 1 } end))'],
               "query_pre_attn_scalar attn_logit_softcapping sliding_window layer_types head_dim rms_norm_eps "
               "final_logit_softcapping"),
    "qwen3": (['stack("layers.%d.self_attn", O_PROJ, joined(CAUSAL, rope "half", function(c, i, sizes) return { '
               'norm_eps = c:number "rms_norm_eps", qk_norm = "rms" } end), { more = { '
               'k_norm = "k_norm.weight", q_norm = "q_norm.weight" } })'],
              "num_key_value_heads rope_parameters.rope_theta rms_norm_eps max_position_embeddings hidden_size"),
    "gpt2": (['stack("h.%d.attn", { "c_attn", "c_proj" }, CAUSAL, { layers = "n_layer", h = "n_head", '
              'd_model = "n_embd", in_out = true })'],
             "n_layer n_head n_embd scale_attn_weights scale_attn_by_inverse_layer_idx reorder_and_upcast_attn"),
    "bert": (['stack("encoder.layer.%d.attention", BERT, PADDED)'], "is_decoder num_attention_heads layer_norm_eps"),
    "vit": (['stack("encoder.layer.%d.attention", VIT, always {})'], "qkv_bias num_attention_heads layer_norm_eps"),
}


def by_the_row(kind, fields, folder):
    """{ layer: keys } as the row that exists reads a model with these fields."""
    tiny = small_models.Tiny(kind, fields)
    tiny.model.save_pretrained(folder / "model")
    text = run(MHAGEN, "model", folder / "model", "isa=scalar", f"seq={small_models.ROWS}", "--force", "-o",
               folder / "out")
    found = {}
    for name, keys in re.findall(r"^  \d+ +(\S.*)\n +(h=.*)$", text, re.M):
        first, _, last = name.partition(" .. ")
        for each in {first, last or first}:
            found[each] = dict(re.findall(KEYS, keys))
            found[each].setdefault("h_kv", found[each]["h"])
    return found


def without(keys, *names):
    return {key: value for key, value in keys.items() if key not in names}


@pytest.mark.parametrize("kind", in_turn(CASES, "proposals", count=2))
def test_proposal(kind, tmp_path):
    stacks, paths = CASES[kind]
    fields = small_models.small_fields(kind)
    tiny = small_models.Tiny(kind, fields)
    layers, left = small_models.layers_of(tiny)
    assert not left
    found, nothing, failed = propose.effects_of(kind, fields, only=paths.split())
    assert not failed and sorted([*found, *nothing]) == sorted(paths.split())
    padded = propose.sees_padding(tiny)
    texts = [propose.stack_text(layers, names, found, padded) for names in propose.stacks_of(layers).values()]
    assert [text.splitlines()[0] for text in texts] == stacks

    row = by_the_row(kind, fields, tmp_path / "small")
    assert {at: without(keys, "rope_theta") for at, keys in row.items()} == {
        at: without(layer.keys, "biases") for at, layer in layers.items()}
    config = small_models.plain_fields(tiny.config.to_dict())
    for path in paths.split():  # another value of a field moves the same by the row
        before, after, moved = found.get(path, (None, propose.others(config[path])[0], {}))
        changed = by_the_row(kind, {**fields, path: after}, tmp_path / path)
        assert {(at, {"rope_theta": propose.NUMBERS}.get(key, key)): (row[at].get(key), changed[at].get(key))
                for at in row.keys() & changed.keys() for key in {**row[at], **changed[at]}
                if row[at].get(key) != changed[at].get(key)}.keys() == {
                    (at, key) for at, key in moved if key not in ("layers", "biases")}
