"""`mhagen model --whole` of GGUF files, against the models of transformers that gguf_written.py writes so."""
import pytest

from gguf_written import as_gguf
from reference_lib import drawn_isa
from test_whole import SIZES as ENCODER, Encoder
from test_whole_decoders import PLACES, TEXT, Decoder, model_of as decoder_of, near, sizes_of
from tools import MHAGEN, in_turn, run
from whole_lib import expect_refusal, joined, torch, written

YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1}


def longrope(trained):
    """Of a model with texts of up to 64 ids. Angles of the first half of each head's columns are divided."""
    return {"original_max_position_embeddings": trained, "rope_parameters": {
        "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": trained,
        "partial_rotary_factor": 0.5, "short_factor": [1.0, 1.5, 2.0], "long_factor": [1.5, 2.5, 4.0]}}


# what a config is besides; the class that writes it; further fields of the file
DECODERS = {
    "llama": ({}, "LlamaForCausalLM", {"vocab_size": 50}),
    "llama, tied": ({"tie_word_embeddings": True, "rms_norm_eps": 1e-5}, "LlamaForCausalLM", {}),
    "mistral": ({"sliding_window": None}, "MistralForCausalLM", {}),
    "ministral3": ({"rope_parameters": YARN, "max_position_embeddings": 256}, "Ministral3ForCausalLM", {}),
    "qwen2": ({}, "Qwen2ForCausalLM", {}),
    "qwen3": ({"tie_word_embeddings": True}, "Qwen3ForCausalLM", {"pooling_type": 3}),
    "phi3": ({}, "Phi3ForCausalLM", {}),
    "phi3, of short texts": (longrope(48), "Phi3ForCausalLM", {}),
    "phi3, of long texts": ({**longrope(8), "tie_word_embeddings": True}, "Phi3ForCausalLM", {}),
    "gemma3_text": ({"sliding_window": 5, "query_pre_attn_scalar": 12, "num_hidden_layers": 7}, "Gemma3ForCausalLM",
                    {}),
    "gemma3_text, of a list": ({"sliding_window": 5, "query_pre_attn_scalar": 12, "tie_word_embeddings": False,
                                "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
                               "Gemma3ForCausalLM", {"attention.sliding_window_pattern": [True, False, True]}),
    "gemma3_text, scaled": ({"sliding_window": 5, "query_pre_attn_scalar": 12, "num_hidden_layers": 6,
                             "rope_parameters": {
                                 "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
                                 "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
                            "Gemma3ForCausalLM", {}),
    "gpt2": ({"layer_norm_epsilon": 1e-4}, "GPT2LMHeadModel", {}),
    "gpt2, not tied": ({"tie_word_embeddings": False}, "GPT2LMHeadModel", {}),
}


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(DECODERS), "GGUF decoders", count=4))
def test_decoders(name, tmp_path):
    """A text in two parts: rows and logits are those of the whole text at once."""
    kind = name.split(",")[0]
    more, cls, fields = DECODERS[name]
    model = written(kind, cls, tmp_path / "model", **{**sizes_of(kind), **more})
    path = as_gguf(model, tmp_path / "model.gguf", **fields)
    whole = Decoder(path, tmp_path / "out", f"isa={drawn_isa(name)}", "seq=1,8", f"seq_kv={PLACES}", *joined(name))
    right, scores = model.base_model(torch.tensor([TEXT])).last_hidden_state[0], model(torch.tensor([TEXT])).logits[0]
    for first, last in (0, 9), (9, len(TEXT)):
        status, rows, logits = whole.run(TEXT[first:last], first)
        assert status == 0 and near(rows, right[first:last]) and near(logits, scores[last - 1])


@torch.no_grad()
def test_groups_of_gguf(tmp_path):
    """Groups of int8 as the file has them are its own numbers."""
    model = decoder_of("qwen3", tmp_path / "model", hidden_size=64, intermediate_size=96, head_dim=16)
    as_gguf(model, tmp_path / "model.gguf", "Q8_0", "Q8_0", vocab_size=50)
    said = run(MHAGEN, "model", tmp_path / "model.gguf", "isa=scalar", "seq=8", "-o", tmp_path / "attention")
    assert "as Q8_0, 13,056 bytes a layer: weight_dtype=int8 group=32 packs fewer, with the same integers" in said

    def logits(name, *keys):
        whole = Decoder(tmp_path / "model.gguf", tmp_path / name, f"isa={drawn_isa(name)}", "seq=8", f"seq_kv={PLACES}",
                        *keys)
        status, _, found = whole.run(TEXT)
        assert status == 0
        return found

    right = logits("floats")
    assert near(logits("groups", "weight_dtype=int8", "group=32"), right, 1e-5)
    assert not near(logits("columns", "weight_dtype=int8"), right, 1e-4)
    assert near(logits("rows", "dtype=int8", "weight_dtype=int8", "group=32"), right, 5e-2)


NO_PADDING = {"pad_token_id": None}
DISTILBERT = {"dim": 48, "n_layers": 3, "n_heads": 3, "hidden_dim": 80}
WIDE = {"num_key_value_heads": 1, "head_dim": 16}
ENCODERS = {
    "bert": ({}, "BertModel", {}),
    "bert, of one type": ({"type_vocab_size": 1, "layer_norm_eps": 1e-5}, "BertModel", {"pooling_type": 2}),
    "bert, of words masked": ({}, "BertForMaskedLM", {}),
    "bert, whose rows see none behind them": ({"is_decoder": True}, "BertModel", {"attention.causal": True}),
    "roberta": ({"type_vocab_size": 1, "layer_norm_eps": 1e-5}, "RobertaModel", {}),
    "xlm-roberta": ({"type_vocab_size": 1, "pad_token_id": 3}, "XLMRobertaModel", {}),
    "camembert": ({"type_vocab_size": 1}, "CamembertModel", {}),
    "distilbert": (DISTILBERT, "DistilBertModel", {}),
    "nomic_bert": ({"head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0}},
                   "NomicBertModel", {"pooling_type": 1}),
    "modernbert": ({"local_attention": 8, "num_hidden_layers": 5, **NO_PADDING}, "ModernBertModel", {}),
    "modernbert, gated by SiLU": ({"local_attention": 6, "hidden_activation": "silu", "norm_eps": 1e-3,
                                   "global_attn_every_n_layers": 2, **NO_PADDING}, "ModernBertModel",
                                  {"attention.sliding_window_pattern": 2}),
    "eurobert": ({**WIDE, **NO_PADDING}, "EuroBertModel", {}),
    "gemma3_text, whose rows see all": ({**WIDE, "use_bidirectional_attention": True, "sliding_window": 6,
                                         "num_hidden_layers": 7, "query_pre_attn_scalar": 16}, "Gemma3TextModel", {}),
}


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(ENCODERS), "GGUF encoders", count=4))
def test_encoders(name, tmp_path):
    more, cls, fields = ENCODERS[name]
    model = written(name.split(",")[0], cls, tmp_path / "model", **{**ENCODER, **more}).base_model
    path = as_gguf(model, tmp_path / "model.gguf", **fields)
    whole = Encoder(path, tmp_path / "out", f"isa={drawn_isa(name)}", "seq=24", *joined(name))
    for length in 1, 7, 24:
        ids = torch.randint(5, 50, (1, length))
        types = torch.randint(0, 2, (1, length)) if whole.sizes["TYPES"] > 1 else None
        right = model(ids, **({} if types is None else {"token_type_ids": types})).last_hidden_state[0]
        status, rows, mean = whole.run(ids[0], None if types is None else types[0])
        assert status == 0 and near(rows, right) and near(mean, right.mean(0))


# ---- what is said, and what is refused ----

HEADS = {"cls.weight": (48, 48), "cls.bias": (48,), "cls.output.weight": (1, 48)}
KEYS = {name: "seq=8" for name in ENCODERS} | {name: "seq=1,8 seq_kv=20" for name in DECODERS}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A function of a name to its model, which is made once."""
    models = {}

    def made(name):
        if name not in models:
            more, cls, _ = {**DECODERS, **ENCODERS}[name]
            kind = name.split(",")[0]
            sizes = sizes_of(kind) if name in DECODERS else ENCODER
            models[name] = written(kind, cls, tmp_path_factory.mktemp("own") / "model", **{**sizes, **more})
        return models[name]
    return made


@pytest.mark.parametrize("name, fields, tensors, said", [
    ("qwen3", {"pooling_type": 3}, {}, "  pooling_type: a text is represented by the last row\n"),
    ("bert", {"pooling_type": 1}, {}, "  pooling_type: a text is represented by the mean of the rows\n"),
    ("bert", {"pooling_type": 4, "classifier.pooling_type": 2}, HEADS,
     "  pooling_type: a text is represented by what a classifier makes of the rows, which is left out\n"
     "  left out: cls\n"),
    ("phi3", {"attention.sliding_window": 30}, {},
     "  attention.sliding_window: 30 is not taken, as in llama.cpp: rows see all keys before them\n"),
    ("phi3", {"attention.sliding_window": 64}, {}, "--embeddings rounds them to fewer\npacked"),
    ("gemma3_text", {"final_logit_softcapping": 0.0}, {}, "--embeddings rounds them to fewer\npacked"),
    ("gemma3_text, whose rows see all", {"dense_2_feat_in": 48, "dense_2_feat_out": 96}, {
        "dense_2.weight": (96, 48), "dense_3.weight": (48, 96)}, "  left out: dense_2, dense_3\n"),
])
def test_summaries(name, fields, tensors, said, model, tmp_path):
    path = as_gguf(model(name), tmp_path / "model.gguf", tensors={
        key: torch.ones(shape) for key, shape in tensors.items()}, **fields)
    assert said in run(MHAGEN, "model", path, "--whole", "isa=scalar", "-o", tmp_path / "out", *KEYS[name].split())


@pytest.mark.parametrize("name, fields, tensors, said", [
    ("gemma3_text", {"final_logit_softcapping": 30.0}, {}, "gemma3.final_logit_softcapping: 30.0: a cap of logits is"),
    ("gemma3_text", {"attn_logit_softcapping": 50.0}, {}, "gemma3.attn_logit_softcapping = 50.0: may change the model"),
    ("phi3", {"expert_count": 8}, {}, "phi3.expert_count = 8: may change the model"),
    ("phi3", {}, {"rope_freqs.weight": (6,)}, "tensor rope_freqs.weight: may change the model"),
    ("phi3", {"feed_forward_length": 160}, {}, "blk.0.ffn_up.weight: its shape is [160, 48], and by the config it"),
    ("llama", {"attention.causal": False}, {}, "rows of a decoder see none behind them with --whole, and those of "
     "blk.0 do; without it mhagen model takes the layers"),
    ("ministral3", {"rope.scaling.original_context_length": 26}, {}, "mistral3.attention.temperature_scale: the scale"),
    ("llama", {"logit_scale": 2.0}, {}, "llama.logit_scale = 2.0: may change the model"),
    ("llama", {"pooling_type": 5}, {}, "llama.pooling_type: 5 must be a number from 0 to 4"),
    ("gpt2", {"context_length": 8}, {}, "position_embd.weight: its shape is [64, 48], and by the config it must be [8"),
    ("gpt2", {}, {"output.bias": (50,)}, "tensor output.bias: may change the model"),
    ("bert", {"attention.causal": None}, {}, "bert.attention.causal: is missing"),
    ("bert", {"attention.layer_norm_epsilon": None}, {}, "bert.attention.layer_norm_epsilon: is missing"),
    ("bert", {}, {"blk.1.attn_q_norm.weight": (48,)}, "tensor blk.1.attn_q_norm.weight: may change the model"),
    ("nomic_bert", {"moe_every_n_layers": 2}, {}, "nomic-bert.moe_every_n_layers = 2: may change the model"),
    ("nomic_bert", {}, {"blk.0.ffn_up.bias": (80,)}, "tensor blk.0.ffn_up.bias: may change the model"),
    ("modernbert", {"hidden_activation": "mish"}, {}, "modern-bert.hidden_activation: mish is no activation function"),
    ("modernbert", {}, {"dense_2.weight": (48, 48)}, "tensor dense_2.weight: may change the model"),
    ("eurobert", {"attention.clamp_kqv": 8.0}, {}, "eurobert.attention.clamp_kqv = 8.0: may change the model"),
])
def test_refusals(name, fields, tensors, said, model, tmp_path):
    path = as_gguf(model(name), tmp_path / "model.gguf", tensors={
        key: torch.ones(shape) for key, shape in tensors.items()}, **fields)
    expect_refusal(path, tmp_path / "out", said, "isa=scalar", *KEYS[name].split())
