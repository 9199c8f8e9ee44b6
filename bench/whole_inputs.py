"""DeiT-S or the encoder of Whisper tiny as one C program (`mhagen model --whole`), beside PyTorch: milliseconds an
image or half a minute of sound on one thread, all in turn in one process. Weights and inputs are drawn.

    build/venv/bin/python bench/whole_inputs.py [--model deit|whisper] [--rounds N] [KEY=VALUE...]

Keys go to mhagen: a second program, say isa=amx dtype=bf16, is timed beside the float32 one of the widest ISA, and then
PyTorch in bf16 too. Errors are the largest of the last hidden states against PyTorch in float32, as a part of the
largest number.
"""
import argparse
import copy
import pathlib
import tempfile

import numpy
import torch
import transformers

from program import Program, least_times

IN_A_ROW = 3


def drawn(name):
    """A model, its module that is written, and an input."""
    torch.manual_seed(1)
    if name == "whisper":
        model = transformers.WhisperModel(transformers.WhisperConfig()).eval()
        return model, model.encoder, torch.randn(1, 80, 3000)
    model = transformers.DeiTModel(transformers.DeiTConfig(hidden_size=384, num_attention_heads=6,
                                                           intermediate_size=1536), add_pooling_layer=False).eval()
    return model, model, torch.randn(1, 3, 224, 224)


class Whole(Program):
    """The model as C, for one input."""

    def __init__(self, folder, out, keys, data):
        name = "pixels" if data.dim() == 4 else "features"
        super().__init__(folder, out, keys, [name, "packed", "workspace", "pool", "rows", "mean"])
        self.rows = numpy.empty((self.sizes["ROWS"], self.sizes["WIDTH"]), "f4")
        self.fields = {name: data.numpy(), "rows": self.rows}

    def __call__(self):
        self.run(**self.fields)
        return torch.from_numpy(self.rows)


def by_torch(module, data):
    return lambda: module(data).last_hidden_state[0].float()


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=["deit", "whisper"], default="deit")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, module, data = drawn(options.model)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model.save_pretrained(folder / "model")
        runs = {f"PyTorch {torch.__version__}": by_torch(module, data),
                "mhagen isa=native": Whole(folder / "model", folder / "float32", ["isa=native"], data)}
        if options.keys:
            runs["PyTorch, bf16"] = by_torch(copy.deepcopy(module).bfloat16(), data.bfloat16())
            runs["mhagen " + " ".join(options.keys)] = Whole(folder / "model", folder / "other", options.keys, data)
        right, best = next(iter(runs.values()))(), least_times(runs, options.rounds, IN_A_ROW)
        for name, run in runs.items():
            print(f"{name:32} {1e3 * best[name]:8.2f} ms  error {(run() - right).abs().max() / right.abs().max():.1e}")


if __name__ == "__main__":
    main()
