"""DeiT-S or the encoder of Whisper tiny as one C program (`mhagen model --whole`), beside PyTorch: milliseconds an
image or half a minute of sound on one thread, all in turn in one process. Weights and inputs are drawn.

    build/venv/bin/python bench/whole_inputs.py [--model deit|whisper] [--rounds N] [KEY=VALUE...]

Keys go to mhagen: a second program, say isa=amx dtype=bf16, is timed beside the float32 one of the widest ISA, and then
PyTorch in bf16 too. Errors are the largest of the last hidden states against PyTorch in float32, as a part of the
largest number.
"""
import argparse
import copy
import ctypes
import pathlib
import re
import subprocess
import tempfile
import time

import torch
import transformers

from suite import MHAGEN
from whole import memory

IN_A_ROW = 3  # runs of a program, which finds its weights in the caches then, as a program of its own would


class Args(ctypes.Structure):
    _fields_ = [("input", ctypes.c_void_p), ("packed", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("pool", ctypes.c_void_p), ("rows", ctypes.c_void_p), ("mean", ctypes.c_void_p)]


def drawn(name):
    """A model, its module that is written, and an input."""
    torch.manual_seed(1)
    if name == "whisper":
        model = transformers.WhisperModel(transformers.WhisperConfig()).eval()
        return model, model.encoder, torch.randn(1, 80, 3000)
    model = transformers.DeiTModel(transformers.DeiTConfig(hidden_size=384, num_attention_heads=6,
                                                           intermediate_size=1536), add_pooling_layer=False).eval()
    return model, model, torch.randn(1, 3, 224, 224)


class Whole:
    """The model as C, for one input."""

    def __init__(self, folder, out, keys, data):
        subprocess.run([MHAGEN, "model", folder, "--whole", "-o", out, "--quiet", *keys], check=True)
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", *out.glob("*.c"), "-lpthread", "-o", out / "model.so"],
                       check=True)
        self.library = ctypes.CDLL(out / "model.so")
        sizes = {key: int(value) for key, value in re.findall(r"#define MODEL_(\w+) (\d+)",
                                                              (out / "model.h").read_text())}
        packed = (out / "model.packed").read_bytes()
        self.packed, self.workspace = memory(len(packed)), memory(sizes["WORKSPACE_BYTES"])
        ctypes.memmove(self.packed[1], packed, len(packed))
        self.data, self.rows = data, torch.empty(sizes["ROWS"], sizes["WIDTH"])
        self.args = Args(input=data.data_ptr(), packed=self.packed[1], workspace=self.workspace[1],
                         rows=self.rows.data_ptr())

    def __call__(self):
        status = self.library.model_run(ctypes.byref(self.args))
        assert status == 0, f"status {status}"
        return self.rows


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
        right, best = next(iter(runs.values()))(), dict.fromkeys(runs, 1e9)
        for _ in range(options.rounds):
            for name, run in runs.items():
                for _ in range(IN_A_ROW):
                    start = time.perf_counter()
                    run()
                    best[name] = min(best[name], time.perf_counter() - start)
        for name, run in runs.items():
            print(f"{name:32} {1e3 * best[name]:8.2f} ms  error {(run() - right).abs().max() / right.abs().max():.1e}")


if __name__ == "__main__":
    main()
