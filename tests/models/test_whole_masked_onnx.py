"""Heads of masked words in ONNX files that `mhagen model --whole` reads."""
import pytest

from test_whole_heads_onnx import Named
from test_whole_masked import MANY, Masked, expect_logits
from test_whole_onnx import MOST, ROWS, export, model_of, of, text_inputs
from tools import in_turn
from whole_lib import joined, torch


class Halved(Named):
    """Scores times a constant."""

    def forward(self, x, attention_mask=None, token_type_ids=None):
        return 0.5 * super().forward(x, attention_mask, token_type_ids)


SMALL = {"hidden_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1, **MOST}
MODELS = {
    "bert": of("Bert", "ForMaskedLM", vocab_size=60, **SMALL),
    "bert, many ids, halved": of("Bert", "ForMaskedLM", vocab_size=MANY, tie_word_embeddings=False, **SMALL),
    "roberta": of("Roberta", "ForMaskedLM", vocab_size=60, type_vocab_size=1, pad_token_id=1, **SMALL),
    "albert, projected": of("Albert", "ForMaskedLM", vocab_size=60, embedding_size=10, **SMALL),
}


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(MODELS), "masked words of graphs", count=2))
def test_masked_words(name, tmp_path):
    own = model_of(MODELS[name], name)
    model = (Halved if "halved" in name else Named)(own, "logits").eval()
    inputs = text_inputs(model, name)
    path = export(model, inputs, tmp_path / "m.onnx", name, ["scores"])
    whole = Masked(path, tmp_path / "out", "isa=scalar", f"seq={ROWS}", *joined(name))
    assert "LABELS" not in whole.sizes and "left out: output" not in whole.text
    expect_logits(whole, model, own.config.vocab_size,
                  lambda ids: [ids, torch.ones_like(ids), torch.zeros_like(ids)][:len(inputs)])
