"""The reference in double as a library of Python's: its structures are those of mhagen.h."""
import ctypes
import subprocess

from tools import ROOT

CROSS, CAUSAL, KV_LEN, PROBS, STRASSEN, WINDOW_LEFT, WINDOW_RIGHT, BOTTOM_RIGHT = (1 << i for i in range(8))
WIDTHS = ["h_kv", "k_width", "v_width", "y_width"]
SHAPE = ["h", "d_model", "dk", "dv", "seq", "seq_kv", "batch"]


class Kernel(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("isa", ctypes.c_char_p),
                *[(key, ctypes.c_int) for key in SHAPE], ("options", ctypes.c_uint),
                ("packed_bytes", ctypes.c_size_t), ("workspace_bytes", ctypes.c_size_t),
                *[(key, ctypes.c_void_p) for key in "supported pack run phases".split()],
                ("phase_count", ctypes.c_int), ("self_test", ctypes.c_void_p),
                ("needs", ctypes.c_void_p), ("need_count", ctypes.c_int),
                ("error", ctypes.c_double), ("unit", ctypes.c_double),
                ("window_left", ctypes.c_int), ("window_right", ctypes.c_int),
                *[(key, ctypes.c_int) for key in WIDTHS]]


class Weights(ctypes.Structure):
    _fields_ = [*[(key, ctypes.c_void_p) for key in "wq wk wv wo bq bk bv bo".split()], ("layout", ctypes.c_int)]


class Args(ctypes.Structure):
    _fields_ = [(key, ctypes.c_void_p) for key in "q k v y packed workspace kv_len probs".split()]


def shape_of(options, **shape):
    """A float32 kernel as far as the reference reads it."""
    for key in WIDTHS:
        shape.setdefault(key, shape["h" if key == "h_kv" else "d_model"])
    return Kernel(options=options, error=2e-6 if options & STRASSEN else 1e-6, unit=2.0**-24, **shape)


def build(out):
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-I", ROOT / "runtime", ROOT / "tests/reference.c", "-o", out,
                    "-lm"], check=True)
    library = ctypes.CDLL(out)
    library.mhagen_promised_error.restype = ctypes.c_double
    library.mhagen_promised_error.argtypes = [ctypes.c_void_p, ctypes.c_double]
    return library
