"""From a config to a Python callable: generate the C, compile it, bind it with ctypes.

The structures mirror runtime/mhagen.h, which says what every field means.
"""
import ctypes
import re
import subprocess
import time
from ctypes import POINTER, Structure, c_char_p, c_int, c_size_t, c_uint64, c_void_p

import numpy as np

ALIGN = 64  # MHAGEN_ALIGN
OUT_IN = 1  # MHAGEN_OUT_IN: a weight matrix is [out][in], as torch.nn.Linear stores it


class Weights(Structure):
    _fields_ = [*[(name, c_void_p) for name in "wq wk wv wo bq bk bv bo".split()], ("layout", c_int),
                *[(name, c_void_p) for name in "alibi sink q_norm k_norm rope_cos rope_sin".split()]]


class Args(Structure):
    _fields_ = [(name, c_void_p) for name in
                "q k v y packed workspace kv_len probs kv_start q_len mask scores past cache".split()]


class KernelData(Structure):  # the beginning of mhagen_kernel; the functions are found by their names
    _fields_ = [
        ("size", c_size_t), ("name", c_char_p), ("isa", c_char_p),
        *[(name, c_int) for name in "h d_model dk dv seq seq_kv batch".split()],
        ("options", c_uint64), ("packed_bytes", c_size_t), ("workspace_bytes", c_size_t),
    ]


def aligned(size):
    raw = np.empty(size + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start:start + max(size, 1)]  # an empty slice has the address of raw


class Kernel:
    """A kernel of one sequence."""

    def __init__(self, library, header, name):
        library = ctypes.CDLL(str(library))
        self.name = name
        self.data = KernelData.in_dll(library, f"{name}_kernel")
        self.isa = self.data.isa.decode()
        self.workspace = aligned(self.data.workspace_bytes)
        cache = re.search(rf"#define {name.upper()}_CACHE_BYTES (\d+)", header.read_text())
        self.cache_bytes = int(cache[1]) if cache else 0
        self.us = []  # the time of each run
        self.c_pack, self.c_run = library[f"{name}_pack"], library[f"{name}_run"]
        self.c_pack.argtypes = [POINTER(Weights), c_void_p]
        self.c_run.argtypes = [POINTER(Args)]
        self.c_fill = library[f"{name}_fill"] if "_fill(" in header.read_text() else None  # of a cache filled once
        if self.c_fill:
            self.c_fill.argtypes = [POINTER(Args)]
        self.status_text = library.mhagen_status_text
        self.status_text.restype = c_char_p

    def must(self, status):
        if status != 0:
            raise RuntimeError(f"{self.name}: {self.status_text(status).decode()}")

    def pack(self, **arrays):
        """The weights of one layer (wq, bq, ...) in the order in which the kernel reads them."""
        arrays = {name: np.ascontiguousarray(a, np.float32) for name, a in arrays.items()}
        packed = aligned(self.data.packed_bytes)
        weights = Weights(layout=OUT_IN, **{name: a.ctypes.data for name, a in arrays.items()})
        self.must(self.c_pack(weights, packed.ctypes.data))
        return packed

    def run(self, packed, x, **more):
        """x[n][d_model] -> y[n][d_model], n <= seq: the rows behind n are padding. more: arrays, or the integers of the
        only sequence, for the other arguments."""
        n = len(x)
        q = np.zeros((self.data.seq, self.data.d_model), np.float32)
        q[:n] = x
        y = np.empty_like(q)
        lengths = {name: c_int(value) for name, value in more.items() if isinstance(value, int)}
        pointers = {name: ctypes.addressof(lengths[name]) if name in lengths else value.ctypes.data
                    for name, value in more.items() if value is not None}
        args = Args(q=q.ctypes.data, y=y.ctypes.data, packed=packed.ctypes.data,
                    workspace=self.workspace.ctypes.data, **pointers)
        start = time.perf_counter()
        status = self.c_run(args)
        self.us.append((time.perf_counter() - start) * 1e6)
        self.must(status)
        return y[:n]


def best_isa(mhagen, dtype="f32"):
    """The ISA of this CPU that multiplies the most numbers of a type at once."""
    command = [mhagen, "isas", "--widest", "--dtype", dtype]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def build(mhagen, folder, **config):
    """Generates, compiles and loads the kernel of this config."""
    name = config["name"]
    pairs = [f"{key}={value}" for key, value in config.items()]
    subprocess.run([mhagen, "gen", *pairs, "--quiet", "-o", folder], check=True)
    library = folder / f"{name}.so"
    sources = [folder / f"{name}.c", folder / "mhagen.c"]
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-pthread", "-o", library, *sources], check=True)
    return Kernel(library, folder / f"{name}.h", name)
