"""The reference in double, and generated kernels, as libraries of Python's: the structures are those of mhagen.h."""
import ctypes
import functools
import pathlib
import tempfile

from tools import MHAGEN, REFERENCE, ROOT, emulation, generate, in_turn, run, shared

CROSS, CAUSAL, KV_LEN, PROBS, WINDOW_LEFT, WINDOW_RIGHT, BOTTOM_RIGHT, ALIBI, KV_START, Q_LEN = (
    1 << bit for bit in (0, 1, 2, 3, 5, 6, 7, 8, 9, 10))
(MASK_BOOL, MASK_ADD, SOFTCAP, SINK, SCORES, QK_NORM, ROPE, CACHE_APPEND, CACHE_FIXED, UNPROJECTED, BHSD, CACHE_BHSD,
 SCALE) = (1 << bit for bit in range(11, 24))
(RESIDUAL, PRE_NORM, POST_NORM, BRANCH_NORM, FFN, FFN_GATE, PARALLEL, NO_ATTENTION, OUT_ACT, FFN_NORM, ROW_KEYS,
 ROPE_AT_RUN) = (1 << bit for bit in range(30, 42))
GELU, GELU_TANH, QUICK_GELU, RELU, RELU2, SILU, TANH = range(7)
HALF, INTERLEAVED = 1, 2
RMS, LAYER, L2 = 1, 2, 3
HEAD, EACH, ALL = range(3)
SCALED, CAPPED, MASKED = 1, 2, 3
WIDTHS = ["h_kv", "k_width", "v_width", "y_width"]
SHAPE = ["h", "d_model", "dk", "dv", "seq", "seq_kv", "batch"]


class RowNeed(ctypes.Structure):
    _fields_ = [("at", ctypes.c_size_t), ("rows_at", ctypes.c_size_t), ("ints", ctypes.c_int), ("most", ctypes.c_int)]


class Kernel(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("isa", ctypes.c_char_p),
                *[(key, ctypes.c_int) for key in SHAPE], ("options", ctypes.c_uint64),
                ("packed_bytes", ctypes.c_size_t), ("workspace_bytes", ctypes.c_size_t),
                *[(key, ctypes.c_void_p) for key in "supported pack run phases".split()],
                ("phase_count", ctypes.c_int), ("self_test", ctypes.c_void_p),
                ("needs", ctypes.c_void_p), ("need_count", ctypes.c_int),
                ("error", ctypes.c_double), ("unit", ctypes.c_double),
                ("window_left", ctypes.c_int), ("window_right", ctypes.c_int),
                *[(key, ctypes.c_int) for key in WIDTHS],
                ("qk_norm", ctypes.c_int), ("norm_span", ctypes.c_int), ("norm_eps", ctypes.c_double),
                ("rope", ctypes.c_int), ("rope_dims", ctypes.c_int), ("rope_theta", ctypes.c_double),
                ("project", ctypes.c_int), ("scale", ctypes.c_double), ("softcap", ctypes.c_double),
                ("mask_dims", ctypes.c_char_p), ("scores", ctypes.c_int),
                ("cache_bytes", ctypes.c_size_t), ("fill", ctypes.c_void_p), ("fill_needs", ctypes.c_void_p),
                ("fill_need_count", ctypes.c_int), ("fingerprint", ctypes.c_uint64), ("members", ctypes.c_void_p),
                ("by_length", ctypes.c_int), ("dtype", ctypes.c_char_p), ("attend_dtype", ctypes.c_char_p),
                ("folds", ctypes.c_uint), ("weight_dtype", ctypes.c_char_p), ("group", ctypes.c_int),
                *[(key, ctypes.c_char_p) for key in "value_weight_dtype io_dtype cache_dtype sum_dtype".split()],
                ("tables_bytes", ctypes.c_size_t), ("tables_fingerprint", ctypes.c_uint64),
                ("pack_tables", ctypes.c_void_p), ("coarse", ctypes.c_void_p), ("coarse_count", ctypes.c_int),
                ("norm_kind", ctypes.c_int), ("layer_eps", ctypes.c_double),
                ("ffn", ctypes.c_int), ("ffn_act", ctypes.c_int), ("out_act", ctypes.c_int),
                ("of_rows", RowNeed), ("ffn_dtype", ctypes.c_char_p)]


class Weights(ctypes.Structure):
    _fields_ = [*[(key, ctypes.c_void_p) for key in "wq wk wv wo bq bk bv bo".split()], ("layout", ctypes.c_int),
                *[(key, ctypes.c_void_p) for key in (
                    "alibi sink q_norm k_norm rope_cos rope_sin norm1 norm1_bias w1 w2 w3 b1 b2 b3 norm2 norm2_bias "
                    "norm1b norm2b gain1 gain2"
                ).split()]]


class Args(ctypes.Structure):
    _fields_ = [(key, ctypes.c_void_p) for key in
                ("q k v y packed workspace kv_len probs kv_start q_len mask scores past cache tables row_keys "
                 "rope_cos rope_sin k_rope_cos k_rope_sin").split()]


class Results(ctypes.Structure):
    """What mhagen_reference_rounded has."""
    _fields_ = [(key, ctypes.c_void_p) for key in "y y_off probs probs_off".split()]


def shape_of(options, **shape):
    """A float32 kernel as far as the reference reads it, or one in int8."""
    for key in WIDTHS:
        shape.setdefault(key, shape["h" if key == "h_kv" else "d_model"])
    shape.setdefault("scale", shape["dk"] ** -0.5)
    project = shape.pop("project", "qkvo")
    if project != "qkvo":
        options, shape["project"] = options | UNPROJECTED, sum(1 << "qkvo".index(letter) for letter in project)
    error, unit = (3e-2, 1 / 254) if "dtype" in shape else (1e-6, 2.0**-24)
    return Kernel(options=options, error=error, unit=unit, **shape)


def build(factory):
    """The reference, compiled once for all workers of pytest."""
    def make(out):
        run("cc", "-O2", "-shared", "-fPIC", "-I", ROOT / "runtime", *REFERENCE, "-o", out / "reference.so", "-lm")
    library = ctypes.CDLL(shared(factory, "reference", make) / "reference.so")
    library.mhagen_promised_error.restype = ctypes.c_double
    library.mhagen_promised_error.argtypes = [ctypes.c_void_p, ctypes.c_double]
    return library


def aligned(size):
    """Memory of which a kernel may take any part that begins at a multiple of 64 bytes, and where it begins."""
    room = ctypes.create_string_buffer(size + 63)
    return room, (ctypes.addressof(room) + 63) // 64 * 64


@functools.cache
def runtime():
    """The runtime compiled, in a folder that goes with the process."""
    folder = tempfile.TemporaryDirectory()
    path = pathlib.Path(folder.name) / "mhagen.o"
    run("cc", "-O1", "-c", "-fPIC", "-DMHAGEN_NO_POOL", ROOT / "runtime/mhagen.c", "-o", path)
    return path, folder


def drawn_isa(what):
    """Plain C for the most part, which compiles in a third of the time, or the widest ISA of this machine."""
    return in_turn(3 * ["scalar"] + [run(MHAGEN, "isas", "--widest").strip()], what)[0]


class Generated:
    """The kernel of a config, whose pack and run take the fields of mhagen_weights and mhagen_args by name. It is
    compiled fast, not to be fast."""

    def __init__(self, config, isa, out, *flags):
        source = generate(out, " ".join(f"{key}={value}" for key, value in config.items()), isa)
        path = source.with_suffix(".so")
        run("cc", *emulation(isa), "-O0", "-shared", "-fPIC", *flags, source, runtime()[0], "-o", path)
        self.library = ctypes.CDLL(path)
        self.shape = Kernel.in_dll(self.library, "kernel_kernel")
        self.packed, self.workspace = aligned(self.shape.packed_bytes), aligned(self.shape.workspace_bytes)

    def pack(self, **weights):
        assert self.library.kernel_pack(ctypes.byref(Weights(**weights)), ctypes.c_void_p(self.packed[1])) == 0

    def fill(self, **args):
        args = Args(**args, packed=self.packed[1])
        assert self.library.kernel_fill(ctypes.byref(args)) == 0

    def run(self, **args):
        args = Args(**args, packed=self.packed[1], workspace=self.workspace[1])
        assert self.library.kernel_run(ctypes.byref(args)) == 0
