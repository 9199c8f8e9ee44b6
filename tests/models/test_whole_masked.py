"""Heads of masked words of `mhagen model --whole`, against the classes of transformers that have them."""
import ctypes

import pytest

from reference_lib import drawn_isa
from test_whole_heads import DISTILBERT, MODERN, TEXT
from tools import in_turn
from whole_lib import Whole, edited, expect_refusal, joined, numpy, torch, written

ROWS, MANY = 20, 17000  # more ids than a kernel has columns
SMALL = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 1}
LAST = {"eos_token_id": 2, "bos_token_id": 1, "cls_token_id": 1, "sep_token_id": 2}  # of ModernBERT: ids that exist
# kind, class, fields
MODELS = {
    "bert": ("bert", "BertForMaskedLM", TEXT),
    "bert, many ids": ("bert", "BertForMaskedLM", {**TEXT, **SMALL, "vocab_size": MANY, "hidden_act": "gelu_new"}),
    "bert, untied": ("bert", "BertForMaskedLM", {**TEXT, "tie_word_embeddings": False}),
    "roberta": ("roberta", "RobertaForMaskedLM", TEXT),
    "xlm-roberta": ("xlm-roberta", "XLMRobertaForMaskedLM", {**TEXT, "layer_norm_eps": 0.1, "hidden_act": "relu"}),
    "camembert": ("camembert", "CamembertForMaskedLM", TEXT),
    "mpnet": ("mpnet", "MPNetForMaskedLM", TEXT),
    "distilbert": ("distilbert", "DistilBertForMaskedLM", {**DISTILBERT, "activation": "relu"}),
    "modernbert": ("modernbert", "ModernBertForMaskedLM", {**MODERN, **LAST, "tie_word_embeddings": True}),
    "modernbert, otherwise": ("modernbert", "ModernBertForMaskedLM", {
        **MODERN, **LAST, "tie_word_embeddings": False, "decoder_bias": False, "classifier_bias": True,
        "norm_bias": True, "classifier_activation": "silu"}),
}


class Args(ctypes.Structure):
    _fields_ = [("ids", ctypes.c_void_p), ("types", ctypes.c_void_p), ("length", ctypes.c_int),
                ("packed", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("pool", ctypes.c_void_p),
                ("rows", ctypes.c_void_p), ("mean", ctypes.c_void_p), ("asked", ctypes.c_void_p),
                ("asked_count", ctypes.c_int), ("logits", ctypes.c_void_p)]


class Masked(Whole):
    def run(self, ids, asked, count=None):
        """The status, the logits of these rows, and a row behind them; asked: None is a null pointer."""
        ids = numpy.ascontiguousarray(ids[0].numpy(), "i4")
        count = len(asked) if count is None else count
        numbers = numpy.array(asked or [], "i4")
        logits = numpy.full((max(count, 0) + 1, self.sizes["VOCABULARY"]), numpy.nan, "f4")
        ctypes.memset(self.workspace_at, 0xFF, self.sizes["WORKSPACE_BYTES"])
        args = Args(ids=ids.ctypes.data, length=len(ids), packed=self.packed_at, workspace=self.workspace_at,
                    asked=None if asked is None else numbers.ctypes.data, asked_count=count,
                    logits=logits.ctypes.data)
        status = self.library.model_run(ctypes.byref(args))
        assert self.is_guarded()
        return status, torch.from_numpy(logits)


def expect_logits(whole, model, vocabulary, inputs=lambda ids: [ids]):
    """Any rows in any order, also several times."""
    for length, asked in (1, [0]), (7, [6, 0, 3, 3]), (ROWS, list(range(ROWS))), (ROWS, []):
        ids = torch.randint(5, vocabulary, (1, length))
        right = model(*inputs(ids))
        right = (right if torch.is_tensor(right) else right.logits)[0][asked]
        status, found = whole.run(ids, asked)
        assert status == 0 and found[len(asked):].isnan().all()
        assert not asked or (found[:len(asked)] - right).abs().max() <= 1e-4 * right.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(MODELS), "masked words", count=3))
def test_masked_words(name, tmp_path):
    kind, cls, fields = MODELS[name]
    model = written(kind, cls, tmp_path / "model", **fields)
    whole = Masked(tmp_path / "model", tmp_path / "out", f"isa={drawn_isa(name)}", f"seq={ROWS}", *joined(name))
    left = "left out: cls.predictions.bias\n" if name == "bert, untied" else ""  # which is not read then
    assert "LABELS" not in whole.sizes and left in whole.text and ("left out" in whole.text) == bool(left)
    expect_logits(whole, model, fields["vocab_size"])


def test_what_is_asked(tmp_path):
    """Rows that are not there are refused, and nothing is written then."""
    written("bert", "BertForMaskedLM", tmp_path / "model", **TEXT)
    whole = Masked(tmp_path / "model", tmp_path / "out", "isa=scalar", "seq=8")
    ids = torch.arange(5, 10)[None]
    refused = [whole.run(ids, asked, count) for asked, count in (([0, 5], 2), ([-1], 1), ([0], -1), (None, 1))]
    assert all(status != 0 and logits.isnan().all() for status, logits in refused)
    assert whole.run(ids, None, 0)[0] == 0 and whole.run(ids, [4])[0] == 0


def test_files(tmp_path):
    """Biases may have the name that they have in training; a head whose table or biases are not there is refused."""
    written("bert", "BertForMaskedLM", tmp_path / "own", **TEXT)
    bias = "cls.predictions.bias"
    renamed = edited(tmp_path / "own", tmp_path / "renamed", lambda all: {
        name.replace(bias, "cls.predictions.decoder.bias"): x for name, x in all.items()})
    one, two = (Masked(folder, tmp_path / f"{folder.name} out", "isa=scalar", "seq=8")
                for folder in (tmp_path / "own", renamed))
    ids = torch.arange(5, 10)[None]
    assert torch.equal(one.run(ids, [2])[1][:1], two.run(ids, [2])[1][:1])
    bare = edited(tmp_path / "own", tmp_path / "bare", lambda all: {n: x for n, x in all.items() if n != bias})
    expect_refusal(bare, tmp_path / "out", "cls.predictions.bias is missing", "isa=scalar", "seq=8")
    untied = edited(tmp_path / "own", tmp_path / "untied", tie_word_embeddings=False)
    expect_refusal(untied, tmp_path / "out", "cls.predictions.decoder.weight is missing", "isa=scalar", "seq=8")
