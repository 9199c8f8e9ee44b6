"""Attention alone of a decode step, by the type of its cache: the time of a plain read over that of the kernel.

    bench/cache.py [OPTION...] [key=value ...]      key=value: keys of the config of all kernels

Heads of keys and values are 8, which 1, 4 or 8 heads of queries share. Kernels have no projections. Each run takes
another copy of the cache, together more than caches hold, and reads have as many bytes. Kernels and reads run in turn;
times are of the process, lower medians of rounds.
"""
import argparse
import os
import pathlib
import tempfile

import numpy as np

import decode
from ab import lower_median
from suite import MHAGEN, widest

import kernels  # decode has its folder

KV_HEADS = 8


class Step:
    """A kernel that attends over a filled cache, and a plain read of as many bytes."""

    def __init__(self, isa, words, share, dk, keys, kind, megabytes):
        h, folder = share * KV_HEADS, tempfile.TemporaryDirectory()
        config = {"name": "mha", "isa": isa, "h": h, "h_kv": KV_HEADS, "dk": dk, "seq": 1, "seq_kv": keys,
                  "attention": "cross", "project": "none", "cache": "fixed", "cache_dtype": kind,
                  **dict(word.split("=", 1) for word in words)}
        self.kernel = kernels.build(MHAGEN, pathlib.Path(folder.name), **config)
        rng = np.random.default_rng(1)
        q, k, v = (rng.standard_normal(n, np.float32) for n in (h * dk, *[keys * KV_HEADS * dk] * 2))
        y, packed, cache = np.zeros(h * dk, np.float32), self.kernel.pack(), kernels.aligned(self.kernel.cache_bytes)
        self.args = kernels.Args(q=q.ctypes.data, k=k.ctypes.data, v=v.ctypes.data, y=y.ctypes.data,
                                 packed=packed.ctypes.data, cache=cache.ctypes.data,
                                 workspace=self.kernel.workspace.ctypes.data)
        self.kernel.must(self.kernel.c_fill(self.args))
        copies = max(1, -(-megabytes * 2**20 // cache.nbytes))
        room, self.next = decode.copies_of(cache, copies)
        self.read, self.bytes = decode.reading(cache.nbytes, copies), cache.nbytes
        self.keep = folder, q, k, v, y, packed, cache, room  # of which the arguments have but the addresses

    def run(self):
        self.args.cache = self.next()
        self.kernel.must(self.kernel.c_run(self.args))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="key=value")
    parser.add_argument("--isa", default=None, help="default: the widest that this CPU has")
    parser.add_argument("--shares", default="1,4,8", help="heads of queries for one of keys and values")
    parser.add_argument("--dk", default="64,128")
    parser.add_argument("--contexts", default="4096,32768", help="keys in the cache")
    parser.add_argument("--types", default="f32,f16,bf16,int8", help="of the cache")
    parser.add_argument("--megabytes", type=int, default=256, help="of all copies; 0: one copy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=float, default=30, help="of one contestant in one round")
    args = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    lists = ([int(word) for word in words.split(",")] for words in (args.contexts, args.dk, args.shares))
    contexts, widths, shares = lists
    for keys, dk, share in ((keys, dk, share) for keys in contexts for dk in widths for share in shares):
        cells = []
        for kind in args.types.split(","):
            step = Step(args.isa or widest(), args.keys, share, dk, keys, kind, args.megabytes)
            ours, read = [], []
            for _ in range(args.rounds):
                ours.append(decode.sample(step.run, args.ms * 1e-3))
                read.append(decode.sample(step.read, args.ms * 1e-3))
            us = lower_median(ours)
            cells.append(f"{kind} {us:.0f} us {step.bytes / us * 1e-3:.1f} GB/s {lower_median(read) / us:.2f}")
        print(f"{keys} keys, dk {dk}, {share} heads share:  " + ";  ".join(cells), flush=True)


if __name__ == "__main__":
    main()
