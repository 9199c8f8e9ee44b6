"""Attention without projections: generated kernels, PyTorch's FlexAttention compiled, and PyTorch's
scaled_dot_product_attention with a mask, in turn on one core.

    bench/flex.py [OPTION...] [key=value ...]      key=value: keys of the config of our kernels

A row is a variant of the scores. All have the same float32 queries, keys and values, and must agree with float64 first.
A block mask is made before. `documents` are four texts in one sequence, each of which sees its own keys alone; our
kernel has them as a mask of bytes. Times are of the whole process, which has one thread on one core; medians of rounds.
scripts/peers.sh installs PyTorch. Compiling takes 10 to 60 s a row.
"""
import argparse
import os
import pathlib
import tempfile

from decode import cell, sample, versions  # first: it sets NumPy's threads

import numpy as np

import kernels
from ab import lower_median
from suite import MHAGEN, widest

TOLERANCE = 1e-5
DOCUMENTS, WINDOW, CAP = 4, 128, 20.0

# Of a variant: keys of the config; which keys a query sees; what becomes of a score. The functions take arrays of NumPy
# and tensors: i is a query, j a key, s a score, p the problem, slope that of ALiBi, and tanh the library's.
VARIANTS = {
    "full": ({}, None, None),
    "causal": ({"causal": "true"}, lambda p, i, j: i >= j, None),
    "window": ({"causal": "true", "window_left": WINDOW}, lambda p, i, j: (i >= j) & (i - j <= WINDOW), None),
    "softcap": ({"softcap": CAP}, None, lambda s, slope, i, j, tanh: CAP * tanh(s / CAP)),
    "alibi": ({"alibi": "true", "causal": "true"}, lambda p, i, j: i >= j,
              lambda s, slope, i, j, tanh: s + slope * (j - i)),
    "documents": ({"mask": "bool", "mask_dims": "qk"},
                  lambda p, i, j: i // p.document == j // p.document, None),
}


def slopes(h):
    """Press et al. 2022: a power of two of heads, and then every second slope of twice as many."""
    power = 2 ** (h.bit_length() - 1)
    first = 2.0 ** (-8 / power * np.arange(1, power + 1))
    return np.concatenate([first, 2.0 ** (-4 / power * np.arange(1, 2 * power, 2))])[:h]


class Problem:
    """The data of a row, and the result in float64."""

    def __init__(self, variant, h, dk, rows):
        self.h, self.dk, self.rows, self.document = h, dk, rows, -(-rows // DOCUMENTS)
        self.config, self.seen, self.score = VARIANTS[variant]
        rng = np.random.default_rng(1)
        self.q, self.k, self.v = (rng.standard_normal((h, rows, dk), np.float32) for _ in "qkv")
        i, j = np.ogrid[:rows, :rows]
        self.slopes = slopes(h)
        self.mask = None if self.seen is None else self.seen(self, i, j)
        s = self.q.astype(np.float64) @ self.k.astype(np.float64).swapaxes(1, 2) * dk**-0.5
        s = s if self.score is None else self.score(s, self.slopes[:, None, None], i, j, np.tanh)
        s = s if self.mask is None else np.where(self.mask, s, -np.inf)
        w = np.exp(s - s.max(-1, keepdims=True))
        self.y = w / w.sum(-1, keepdims=True) @ self.v.astype(np.float64)

    def error(self, y):
        return float(np.linalg.norm(np.asarray(y).reshape(self.y.shape) - self.y) / np.linalg.norm(self.y))


# Each contestant: a function of the problem to (run, result): run() computes once, result() is what it made.

def ours(isa, words):
    def setup(p):
        config = {"name": "mha", "isa": isa, "h": p.h, "d_model": p.h * p.dk, "dk": p.dk, "seq": p.rows,
                  "project": "none", "layout": "bhsd", "attention": "cross", **p.config,
                  **dict(word.split("=", 1) for word in words)}
        with tempfile.TemporaryDirectory() as folder:
            kernel = kernels.build(MHAGEN, pathlib.Path(folder), **config)
        y, packed = np.zeros_like(p.q), kernel.pack()
        mask = np.array(False if p.mask is None else p.mask, np.uint8)
        args = kernels.Args(q=p.q.ctypes.data, k=p.k.ctypes.data, v=p.v.ctypes.data, y=y.ctypes.data,
                            packed=packed.ctypes.data, workspace=kernel.workspace.ctypes.data, mask=mask.ctypes.data)

        def run():
            kernel.must(kernel.c_run(args))

        run.keep = p, y, packed, mask  # of which the arguments have but the addresses
        return run, lambda: y
    return setup


def tensors(p):
    import torch
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    return (torch.from_numpy(rows)[None] for rows in (p.q, p.k, p.v))


def flex(p):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    q, k, v = tensors(p)
    torch.compiler.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    mask = change = None
    if p.seen:
        mask = create_block_mask(lambda b, h, i, j: p.seen(p, i, j), None, None, p.rows, p.rows, device="cpu")
    if p.score:
        held = torch.from_numpy(p.slopes).float()

        def change(s, b, h, i, j):
            return p.score(s, held[h], i, j, torch.tanh)
    result = [None]

    def run():
        result[0] = compiled(q, k, v, block_mask=mask, score_mod=change)

    return run, lambda: result[0].numpy()


def sdpa(p):
    import torch
    if p.score:
        raise NotImplementedError("has no such scores")
    q, k, v = tensors(p)
    mask = None if p.mask is None else torch.from_numpy(p.mask)
    result = [None]

    def run():
        result[0] = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return run, lambda: result[0].numpy()


PEERS = {"flex": flex, "sdpa": sdpa}


def compare(variant, args):
    """{name: (us, error) or why there are none}"""
    p = Problem(variant, args.heads, args.dk, args.rows)
    contestants, found = {}, {}
    for name, make in {"ours": ours(args.isa, args.keys), **{name: PEERS[name] for name in args.peers}}.items():
        try:
            run, result = make(p)
            run()
            error = p.error(result())
            if not error <= TOLERANCE:
                raise ValueError(f"wrong by {error:.1e}")
            contestants[name], found[name] = run, error
        except Exception as e:  # whatever a library raises
            found[name] = (str(e) or type(e).__name__).strip().splitlines()[0]
    times = {name: [] for name in contestants}
    for _ in range(args.rounds):
        for name, run in contestants.items():
            times[name].append(sample(run, args.ms * 1e-3))
    return {name: (lower_median(times[name]), error) if name in times else error for name, error in found.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="key=value")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--heads", type=int, default=12)
    parser.add_argument("--dk", type=int, default=64)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--isa", default=None, help="default: the widest that this CPU has")
    parser.add_argument("--peers", default=",".join(PEERS), help="with commas, or nothing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=float, default=100, help="of one contestant in one round")
    args = parser.parse_args()
    args.isa, args.peers = args.isa or widest(), [name for name in args.peers.split(",") if name]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for variant in args.variants.split(","):
        row = compare(variant, args)
        if not isinstance(row["ours"], tuple):
            raise SystemExit(f"flex: {row['ours']}")
        us = row["ours"][0]
        cells = " ".join(f" {name} " + cell(name, found, us) for name, found in row.items() if name != "ours")
        print(f"{variant:<9} ours {us:9.1f} us ({row['ours'][1]:.0e});  times ours:{cells}", flush=True)
    if args.peers:
        print(versions(["pytorch"]))


if __name__ == "__main__":
    main()
