"""SmolLM2-135M as one C program (`mhagen model --whole`), beside llama.cpp: milliseconds of a prompt and of a token,
on one thread, all in turn in one process.

    build/venv/bin/python bench/generate.py [--prompt 128] [--pasts 64,2000] [--rounds N] [KEYS...]

KEYS is a program each: keys of mhagen, joined by commas, such as isa=avx512,weight_dtype=int8. The model is that of
examples/smollm2, a GGUF file of Q4_1. llama.cpp runs it where llama_cpp is installed; --gguf FILE adds a file of other
types. Errors are of the logits behind the prompt, as a part of their deviation, against the formulas in float64.
"""
import argparse
import pathlib
import sys
import tempfile

import numpy

from program import Program, least_times, memory
from suite import ROOT

sys.path[:0] = [str(ROOT / "examples/smollm2"), str(ROOT / "examples")]
ROOM = 2176
IN_A_ROW = 4


class Ours(Program):
    """The model as C, with a cache."""

    def __init__(self, model, out, keys):
        super().__init__(model, out, ["seq=1,64", f"seq_kv={ROOM}", *keys.split(",")],
                         "ids length past packed cache workspace pool rows logits".split())
        self.logits, self.cache = numpy.zeros(self.sizes["VOCABULARY"], "f4"), memory(self.sizes["CACHE_BYTES"])

    def __call__(self, ids, past):
        self.run(ids=ids, length=len(ids), past=past, cache=self.cache[1], logits=self.logits)
        return self.logits


class LlamaCpp:
    """llama.cpp by its own C functions, so that Python costs nothing."""

    def __init__(self, path, extra):
        import llama_cpp
        self.c, default = llama_cpp, llama_cpp.llama_model_default_params

        def params():
            made = default()
            made.use_extra_bufts = extra
            return made
        llama_cpp.llama_cpp.llama_model_default_params = params
        self.llama = llama_cpp.Llama(str(path), n_ctx=ROOM, n_batch=512, n_threads=1, n_threads_batch=1, verbose=False)
        llama_cpp.llama_cpp.llama_model_default_params = default
        self.bytes = pathlib.Path(path).stat().st_size

    def __call__(self, ids, past):
        context, words = self.llama.ctx, (self.c.llama_token * len(ids))(*map(int, ids))
        self.c.llama_memory_seq_rm(self.c.llama_get_memory(context), 0, past, -1)
        assert self.c.llama_decode(context, self.c.llama_batch_get_one(words, len(ids))) == 0
        return numpy.ctypeslib.as_array(self.c.llama_get_logits_ith(context, -1), (self.llama.n_vocab(),))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--pasts", default="64,2000")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--gguf", action="append", default=[], metavar="FILE")
    parser.add_argument("--plain-buffers", action="store_true",
                        help="llama.cpp without the layouts of weights for AMX and AVX-512")
    parser.add_argument("keys", nargs="*", metavar="KEYS", default=["isa=native"])
    options = parser.parse_args()
    from model import Gguf
    from reference import NumpyReference
    gguf = Gguf()
    draw = numpy.random.default_rng(1)
    prompt, step = draw.integers(100, 40000, options.prompt).astype("i4"), numpy.array([500], "i4")
    right = NumpyReference(gguf)(list(prompt), [0])[0][0]
    with tempfile.TemporaryDirectory() as temporary:
        runs = {f"mhagen {keys}": Ours(gguf.path, pathlib.Path(temporary, str(i)), keys)
                for i, keys in enumerate(options.keys)}
        try:
            import llama_cpp
            runs |= {f"llama.cpp ({llama_cpp.__version__}) {pathlib.Path(path).stem}":
                     LlamaCpp(path, not options.plain_buffers)
                     for path in [gguf.path, *options.gguf]}
        except ImportError:
            print("llama.cpp: skipped, llama_cpp is not installed")
        for name, run in runs.items():
            off = run(prompt, 0) - right
            print(f"{name:44} {run.bytes:13,} bytes  error {off.std() / right.std():.1e}", flush=True)
        pasts = sorted(map(int, options.pasts.split(",")), reverse=True)
        longest = pasts[0]
        filling = draw.integers(100, 40000, longest).astype("i4")
        for run in runs.values():
            for past in range(0, longest, 500):
                run(filling[past:past + 500], past)
        # A run forgets what was behind its ids, so those behind the most come first.
        tasks = {f"a token behind {past}": (step, past) for past in pasts}
        tasks |= {f"a prompt of {options.prompt}": (prompt, 0)}
        for task, (ids, past) in tasks.items():
            best = least_times(runs, options.rounds, IN_A_ROW, ids, past)
            for name in runs:
                print(f"{task:22} {name:44} {1e3 * best[name]:8.2f} ms", flush=True)


if __name__ == "__main__":
    main()
