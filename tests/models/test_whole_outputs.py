"""`mhagen model --whole` of ONNX files: what the summary says of outputs besides the last rows."""
import pytest

from test_whole_onnx import MOST, export, model_of, of, text_inputs
from tools import MHAGEN, run
from whole_lib import torch


def mean(rows, mask):
    mask = mask[..., None].float()
    return (rows * mask).sum(1) / mask.sum(1).clamp(min=1e-9)


# What is made of the rows, and what the summary says of it
OUTPUTS = {
    "mean": (mean, "the mean of the rows"),
    "length": (lambda rows, mask: torch.nn.functional.normalize(mean(rows, mask), dim=-1),
               "the mean of the rows, divided by its length"),
    "first": (lambda rows, mask: rows[:, 0] + 0.0 * mask[:, :1], "the first row"),
    "first of length": (lambda rows, mask: torch.nn.functional.normalize(rows[:, :1], dim=-1),
                        "the first row, divided by its length"),
    "tanh": (lambda rows, mask: rows[:, 0].tanh(), "16 numbers of each text"),
    "mean of all": (lambda rows, mask: rows.mean(1), "16 numbers of each text"),
    "second": (lambda rows, mask: rows[:, 1], "16 numbers of each text"),
    "sum": (lambda rows, mask: (rows * mask[..., None]).sum(1), "16 numbers of each text"),
    "scores": (lambda rows, mask: rows[..., :5] * 2, "5 numbers of each row"),
}


class Several(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        rows = self.model(input_ids=input_ids, attention_mask=attention_mask,
                          token_type_ids=token_type_ids).last_hidden_state
        return rows, *(make(rows, attention_mask) for make, _ in OUTPUTS.values())


@torch.no_grad()
@pytest.mark.parametrize("exporter", ["outputs", "other outputs"])
def test_outputs(exporter, tmp_path):
    model = Several(model_of(of("Bert", vocab_size=60, num_hidden_layers=1, hidden_size=16, num_attention_heads=2,
                                intermediate_size=24, **MOST), "bert")).eval()
    path = export(model, text_inputs(model, "bert"), tmp_path / "m.onnx", exporter, ["rows", *OUTPUTS])
    told = run(MHAGEN, "model", path, "--whole", "isa=scalar", "seq=8", "-o", tmp_path / "out")
    for name, (_, said) in OUTPUTS.items():
        assert f"output {name} ({said})" in told or f'output "{name}" ({said})' in told
