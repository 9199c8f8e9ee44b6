"""`mhagen model --whole` of decoders: from ids to the scores of the next id, with a cache, against transformers."""
import ctypes
import random
import subprocess

import pytest

from reference_lib import aligned, drawn_isa
from tools import MHAGEN, ROOT, in_turn, run, seed_of
from whole_lib import Whole, edited, expect_refusal, joined, torch, written

SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
         "intermediate_size": 80, "vocab_size": 50, "max_position_embeddings": 64, "pad_token_id": 0}
GPT2 = {"hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
        "intermediate_size": "n_inner", "vocab_size": "vocab_size", "max_position_embeddings": "n_positions"}
PLACES = 40
# what a config is besides; the class that writes it
MODELS = {
    "llama": ({}, "LlamaForCausalLM"),
    "llama, tied": ({"tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 1e5}, "LlamaForCausalLM"),
    "llama, with biases": ({"mlp_bias": True, "attention_bias": True, "hidden_act": "gelu"}, "LlamaForCausalLM"),
    "llama, without a head": ({}, "LlamaModel"),
    "llama, scaled": ({"num_hidden_layers": 2, "rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16}}, "LlamaForCausalLM"),
    "llama, of many ids": ({"vocab_size": 16450, "hidden_size": 20, "num_hidden_layers": 1}, "LlamaForCausalLM"),
    "mistral": ({"sliding_window": 9}, "MistralForCausalLM"),
    "qwen2": ({}, "Qwen2ForCausalLM"),
    "qwen3": ({"tie_word_embeddings": True}, "Qwen3ForCausalLM"),
    "phi3": ({}, "Phi3ForCausalLM"),
    "gemma3_text": ({"sliding_window": 9, "query_pre_attn_scalar": 20,
                     "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
                    "Gemma3ForCausalLM"),
    "gpt2": ({"layer_norm_epsilon": 1e-4}, "GPT2LMHeadModel"),
    "gpt2, of another width": ({"activation_function": "relu"}, "GPT2LMHeadModel"),
}


class Args(ctypes.Structure):
    _fields_ = [("ids", ctypes.c_void_p), ("length", ctypes.c_int), ("past", ctypes.c_int),
                ("packed", ctypes.c_void_p), ("cache", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("pool", ctypes.c_void_p), ("rows", ctypes.c_void_p), ("logits", ctypes.c_void_p)]


def sizes_of(kind, **changed):
    sizes = {**SIZES, **changed}
    if kind != "gpt2":
        return sizes
    return {GPT2[key]: value for key, value in sizes.items() if key in GPT2}


def model_of(name, folder, **changed):
    more, cls = MODELS[name]
    return written(name.split(",")[0], cls, folder, **{**sizes_of(name.split(",")[0], **changed), **more})


class Decoder(Whole):
    """A folder's decoder as C, with a cache."""

    def __init__(self, folder, out, *keys):
        super().__init__(folder, out, *keys)
        self.cache, self.cache_at = aligned(self.sizes["CACHE_BYTES"])
        ctypes.memset(self.cache_at, 0xFF, self.sizes["CACHE_BYTES"])

    def run(self, ids, past=0, /, **changes):
        """The status, rows and logits."""
        ids = torch.tensor(ids, dtype=torch.int32)
        rows, logits = (torch.full(shape, float("nan")) for shape in (
            (len(ids), self.sizes["WIDTH"]), (self.sizes["VOCABULARY"],)))
        ctypes.memset(self.workspace_at, 0xFF, self.sizes["WORKSPACE_BYTES"])
        args = Args(**{"ids": ids.data_ptr(), "length": len(ids), "past": past, "packed": self.packed_at,
                       "cache": self.cache_at, "workspace": self.workspace_at, "rows": rows.data_ptr(),
                       "logits": logits.data_ptr(), **changes})
        status = self.library.model_run(ctypes.byref(args))
        assert self.is_guarded()
        return status, rows, logits

    def parts(self, ids):
        """Of a prompt in parts, and then steps: where each begins and ends, its rows and its logits."""
        past = 0
        for count in 19, 1, 5, 8, 1, 1, 5:
            status, rows, logits = self.run(ids[past:past + count], past)
            assert status == 0
            yield past, past + count, rows, logits
            past += count
        assert past == len(ids) == PLACES


def near(found, right, part=1e-4):
    return (found - right).abs().max() <= part * right.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(MODELS), "whole decoders", count=4))
def test_models(name, tmp_path):
    """A prompt in parts, then steps: rows and logits are those of the whole text at once."""
    draw = random.Random(seed_of(name))
    shares, kept = draw.randint(1, 2), draw.randint(1, 2)
    model = model_of(name, tmp_path / "model", num_key_value_heads=kept, num_attention_heads=kept * shares,
                     head_dim=draw.choice([8, 12, 16]), hidden_size=48, intermediate_size=draw.randint(1, 100))
    ids = [draw.randint(1, 49) for _ in range(PLACES)]
    whole = Decoder(tmp_path / "model", tmp_path / "out", f"isa={drawn_isa(name)}", "seq=1,8", f"seq_kv={PLACES}",
                    *joined(name))
    right = model.base_model(torch.tensor([ids])).last_hidden_state[0]
    scores = model(torch.tensor([ids])).logits[0] if hasattr(model, "lm_head") else None
    for first, end, rows, logits in whole.parts(ids):
        assert near(rows, right[first:end])
        assert logits.isnan().all() if scores is None else near(logits, scores[end - 1])
    status, rows, _ = whole.run(ids[9:11], 9)  # a text that goes back, and on
    assert status == 0 and near(rows, right[9:11])


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama") / "model"
    return model_of("llama", folder), folder


TEXT = [7, 3, 44, 21, 9, 30, 2, 17, 5, 11, 28, 6]


@torch.no_grad()
def test_number_types_and_members(llama, tmp_path):
    """Weights and caches of fewer bits are as near as their kernels; each CPU takes the weights and the cache of its
    member."""
    model, folder = llama
    right = model(torch.tensor([TEXT])).logits[0, -1]
    for number, (keys, part) in enumerate({("isa=scalar", "weight_dtype=int8", "cache_dtype=int8"): 5e-2,
                                           ("isa=scalar+avx2", "cache_dtype=f16"): 1e-2,
                                           ("isa=scalar", "dtype=int8", "weight_dtype=int8", "group=16"): 5e-2,
                                           ("isa=scalar", "dtype=bf16"): 5e-2}.items()):
        whole = Decoder(folder, tmp_path / str(number), *keys, "seq=1,8", f"seq_kv={PLACES}")
        assert whole.run(TEXT[:-1])[0] == 0
        status, _, logits = whole.run(TEXT[-1:], len(TEXT) - 1)
        assert status == 0 and near(logits, right, part)


def test_what_is_wrong(llama, tmp_path):
    whole = Decoder(llama[1], tmp_path / "out", "isa=scalar", "seq=1,4", f"seq_kv={PLACES}")
    null, align, length, packed = 1, 2, 3, 8
    assert whole.check(whole.sizes["PACKED_BYTES"]) == 0 and whole.run(TEXT)[0] == 0
    assert whole.run([1], PLACES - 1)[0] == whole.run([1] * PLACES)[0] == 0
    for ids, past, changes, status in [
            ([50], 0, {}, length), ([-1], 0, {}, length), ([1], PLACES, {}, length), ([1], -1, {}, length),
            ([1, 2], PLACES - 1, {}, length), ([1] * (PLACES + 1), 0, {}, length), ([1], 0, {"length": 0}, length),
            ([1], 2**31 - 1, {}, length), ([1], 0, {"length": 2**31 - 1}, length),
            *(([1], 0, {name: None}, null) for name in ("ids", "packed", "cache", "workspace")),
            *(([1], 0, {name: getattr(whole, f"{name}_at") + 4}, align) for name in ("packed", "cache", "workspace"))]:
        found, rows, logits = whole.run(ids, past, **changes)
        assert found == status and rows.isnan().all() and logits.isnan().all()
    other = Decoder(llama[1], tmp_path / "other", "isa=scalar", "seq=1,4", f"seq_kv={PLACES - 1}")
    assert whole.run([1], packed=other.packed_at)[0] == packed


def test_what_is_kept(llama, tmp_path):
    """Results that are not asked for are not written. A text does not depend on what a cache had before, nor on how
    it is cut into runs that begin at the same places."""
    whole = Decoder(llama[1], tmp_path / "out", "isa=scalar", "seq=1,4", f"seq_kv={PLACES}")
    status, rows, logits = whole.run(TEXT)
    assert status == 0 and torch.equal(whole.run(TEXT, rows=None)[2], logits)
    assert whole.run(TEXT, rows=None)[1].isnan().all() and whole.run(TEXT, logits=None)[2].isnan().all()
    whole.run([49] * PLACES)
    assert torch.equal(whole.run(TEXT[:8])[1], rows[:8])
    _, others, end = whole.run(TEXT[8:], 8)
    assert torch.equal(others, rows[8:]) and torch.equal(end, logits)


@torch.no_grad()
def test_example(llama, tmp_path):
    """examples/generate compiles as its head says, and writes what the model does."""
    model, folder = llama
    run(MHAGEN, "model", folder, "--whole", "isa=scalar", "seq=1,8", f"seq_kv={PLACES}", "-o", tmp_path / "out")
    run("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-I", tmp_path / "out", ROOT / "examples/generate/generate.c",
        *tmp_path.glob("out/*.c"), "-lpthread", "-o", tmp_path / "generate")
    text = list(TEXT)
    for _ in range(20):
        text.append(int(model(torch.tensor([text])).logits[0, -1].argmax()))
    answer = text[len(TEXT):]
    words = [tmp_path / "generate", tmp_path / "out/model.packed"]

    def written_by(count, end):
        result = subprocess.run([*words, str(count), str(end)], input=" ".join(map(str, TEXT)), text=True,
                                capture_output=True)
        assert result.returncode == 0 and f"{len(TEXT)} tokens read" in result.stderr
        return [int(line) for line in result.stdout.split()]

    assert written_by(20, -1) == answer
    assert written_by(20, answer[7]) == answer[:answer.index(answer[7]) + 1]
    assert len(written_by(1000, -1)) == PLACES - len(TEXT) + 1
    result = subprocess.run([*words, "1", "0"], input="50", text=True, capture_output=True)
    assert result.returncode == 1 and "is not 1 to 40 ids of the model" in result.stderr
    assert subprocess.run(words, capture_output=True).returncode == 2


# ---- what is refused ----


@pytest.mark.parametrize("name, fields, keys, said", [
    ("llama", {}, "seq=1", "seq_kv: is missing; it is the most ids of a text with its answer, such as seq_kv=2048"),
    ("llama", {}, "seq=1 seq_kv=0", "seq_kv = 0: must be the most ids of a text, a number from 1 on"),
    ("llama", {}, "seq=1 seq_kv=x", "seq_kv = x: must be the most ids of a text, a number from 1 on"),
    ("llama", {}, "seq=1 seq_kv=9 batch=2", "batch = 2: is the model's own with --whole, or is not made with it"),
    ("llama", {"mlp_bias": True}, "seq=1 seq_kv=9", "layers.0.mlp."),
    ("llama", {"logits_scaling": 2.0}, "seq=1 seq_kv=9", "logits_scaling = 2: may change the model"),
    ("llama", {"is_causal": False}, "seq=1 seq_kv=9", "rows of a decoder see none behind them with --whole, and"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "seq=1 seq_kv=9", "rows of a decoder see none behind them"),
    ("llama", {"pretraining_tp": 2}, "seq=1 seq_kv=9", "pretraining_tp = 2: may change the model"),
    ("llama", {"vocab_size": 49}, "seq=1 seq_kv=9", "embed_tokens.weight: its shape is [50, 48], and by the config it"),
    ("gpt2", {}, "seq=1 seq_kv=65", "seq_kv = 65: must be at most 64, the places of"),
    ("gemma3_text", {"final_logit_softcapping": 30.0}, "seq=1 seq_kv=9", "final_logit_softcapping: is not made"),
    ("phi3", {"embd_scale": 2}, "seq=1 seq_kv=9", "embd_scale = 2: may change the model"),
])
def test_refusals(name, fields, keys, said, tmp_path):
    model_of(name, tmp_path / "own")
    folder = edited(tmp_path / "own", tmp_path / "model", **fields)
    expect_refusal(folder, tmp_path / "out", said, "isa=scalar", *keys.split())
