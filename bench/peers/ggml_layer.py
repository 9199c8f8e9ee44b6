"""ggml: graphs of a layer by its C interface, with weights of one of its types, and with or without a cache.

    FORMS, BF16, INT8        for worker.py: self-attention of some rows
    step(p, weights, most)   for decode.py: a run with keys in a cache, its weights of one of TYPES -> (run, y)
    version()                its number, and what its libraries were compiled for

scripts/ggml.sh builds the libraries. One thread computes. The queries', keys' and values' matrices stand side by side,
so that they are one product.
"""
import ctypes
import functools
import itertools
import pathlib
import sys
import time
import weakref
from types import SimpleNamespace

import numpy as np

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}  # of ggml.h
KEPT = {kind: ("f32",) if kind == "f32" else ("f32", "f16") for kind in TYPES}  # types of keys and values
CPU = 0  # a kind of device
BUFFERS = "CPU", "CPU_REPACK", "AMX"  # where weights may lie; the last two change their order
ATTENTIONS = "flash_attn_ext", "soft_max"
ANY, INT, LONG, SIZE, REAL = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t, ctypes.c_float
TEXT = ctypes.c_char_p


class InitParams(ctypes.Structure):
    _fields_ = [("size", SIZE), ("buffer", ANY), ("no_alloc", ctypes.c_bool)]


class Feature(ctypes.Structure):
    _fields_ = [("name", TEXT), ("value", TEXT)]


LOG = ctypes.CFUNCTYPE(None, INT, TEXT, ANY)

SIGNATURES = {  # name without `ggml_`: result, arguments
    "version": (TEXT,),
    "log_set": (None, LOG, ANY),
    "init": (ANY, InitParams),
    "free": (None, ANY),
    "tensor_overhead": (SIZE,),
    "graph_overhead": (SIZE,),
    "row_size": (SIZE, INT, LONG),
    "nbytes": (SIZE, ANY),
    "quantize_chunk": (SIZE, INT, ANY, ANY, LONG, LONG, LONG, ANY),
    "new_tensor_3d": (ANY, ANY, INT, LONG, LONG, LONG),
    "view_3d": (ANY, ANY, ANY, LONG, LONG, LONG, SIZE, SIZE, SIZE),
    "reshape_2d": (ANY, ANY, ANY, LONG, LONG),
    "permute": (ANY, ANY, ANY, INT, INT, INT, INT),
    "cont": (ANY, ANY, ANY),
    "cpy": (ANY, ANY, ANY, ANY),
    "add": (ANY, ANY, ANY, ANY),
    "mul_mat": (ANY, ANY, ANY, ANY),
    "soft_max_ext": (ANY, ANY, ANY, ANY, REAL, REAL),
    "flash_attn_ext": (ANY, ANY, ANY, ANY, ANY, ANY, REAL, REAL, REAL),
    "new_graph": (ANY, ANY),
    "build_forward_expand": (None, ANY, ANY),
    "gallocr_new": (ANY, ANY),
    "gallocr_alloc_graph": (ctypes.c_bool, ANY, ANY),
    "gallocr_free": (None, ANY),
    "backend_cpu_init": (ANY,),
    "backend_cpu_set_n_threads": (None, ANY, INT),
    "backend_cpu_buffer_type": (ANY,),
    "backend_alloc_ctx_tensors_from_buft": (ANY, ANY, ANY),
    "backend_buffer_free": (None, ANY),
    "backend_tensor_set": (None, ANY, ANY, SIZE, SIZE),
    "backend_tensor_get": (None, ANY, ANY, SIZE, SIZE),
    "backend_graph_compute": (INT, ANY, ANY),
    "backend_dev_by_type": (ANY, INT),
    "backend_dev_backend_reg": (ANY, ANY),
    "backend_dev_supports_op": (ctypes.c_bool, ANY, ANY),
    "backend_reg_get_proc_address": (ANY, ANY, TEXT),
    "backend_buft_name": (TEXT, ANY),
}


class Library:
    """The functions of SIGNATURES as methods, and the device that computes."""

    def __init__(self):
        library = ctypes.CDLL(str(pathlib.Path(sys.prefix, "ggml/bin/libggml.so")))
        for name, (result, *arguments) in SIGNATURES.items():
            function = getattr(library, "ggml_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self.log = LOG(lambda *message: None)  # it tells of each matrix that it packs
        self.log_set(self.log, None)
        self.backend = self.backend_cpu_init()
        self.backend_cpu_set_n_threads(self.backend, 1)
        self.device = self.backend_dev_by_type(CPU)

    def asked(self, name, result, *arguments):
        """What a function gives that is found by its name."""
        address = self.backend_reg_get_proc_address(self.backend_dev_backend_reg(self.device), name)
        return ctypes.CFUNCTYPE(result, *[ANY] * len(arguments))(address)(*arguments)

    def buffer_type(self, name):
        extra = self.asked(b"ggml_backend_dev_get_extra_bufts", ctypes.POINTER(ANY), self.device)
        kinds = [self.backend_cpu_buffer_type(), *itertools.takewhile(bool, extra)]
        found = {self.backend_buft_name(kind).decode(): kind for kind in kinds}
        if name not in found:
            raise NotImplementedError(f"ggml has no buffer {name} on this CPU")
        return found[name]

    def features(self):
        features = self.asked(b"ggml_backend_get_features", ctypes.POINTER(Feature),
                              self.backend_dev_backend_reg(self.device))
        return [feature.name.decode() for feature in itertools.takewhile(lambda one: one.name, features)]


@functools.cache
def library():
    return Library()


def version():
    return " ".join([library().version().decode(), *library().features()])


def encoded(kind, rows):
    """Bytes of rows in one of ggml's types."""
    g, rows = library(), np.ascontiguousarray(rows, np.float32)
    count, width = rows.size // rows.shape[-1], rows.shape[-1]
    to = np.zeros(count * g.row_size(TYPES[kind], width), np.uint8)
    g.quantize_chunk(TYPES[kind], rows.ctypes.data, to.ctypes.data, 0, count, width, None)
    return to


def matrices(kind, wqkv, wo):
    """Both as ggml keeps them: a row for each column of the result."""
    if kind.startswith("q") and (wqkv.shape[0] % 32 or wo.shape[0] % 32):
        raise NotImplementedError("ggml's blocks have 32 columns")
    return [encoded(kind, w.T) for w in (wqkv, wo)]


def freed(*calls):
    for free, what in calls:
        free(what)


class Memory:
    """Tensors of one buffer."""

    def __init__(self, shapes, buffer="CPU"):
        """shapes: {name: (type, extents)}"""
        g, place = library(), library().buffer_type(buffer)
        self.kinds = {name: kind for name, (kind, _) in shapes.items()}
        context = g.init(InitParams((len(shapes) + 1) * g.tensor_overhead(), None, True))
        self.tensors = {name: g.new_tensor_3d(context, TYPES[kind], *extents, *[1] * (3 - len(extents)))
                        for name, (kind, extents) in shapes.items()}
        room = g.backend_alloc_ctx_tensors_from_buft(context, place)
        weakref.finalize(self, freed, (g.backend_buffer_free, room), (g.free, context))

    def __getitem__(self, name):
        return self.tensors[name]

    def set(self, name, data):
        if data.dtype != np.uint8:
            data = encoded(self.kinds[name], data)
        assert data.nbytes == library().nbytes(self[name]), name
        library().backend_tensor_set(self[name], data.ctypes.data, 0, data.nbytes)


class Layer:
    """The graph of a layer of some shape, in one form.

    shape    d, h, h_kv, dk, rows, keys (in the cache before), causal, biased
    form     weights, kept (the type of keys and values, also without a cache), attention, buffer (of the weights)
    data     that of another layer, to share its rows and its cache
    """

    def __init__(self, shape, form, data=None):
        self.g, self.shape, self.form = library(), shape, form
        self.total = shape.keys + shape.rows
        self.columns = (shape.h + 2 * shape.h_kv) * shape.dk
        self.own_kept = shape.keys or form.kept != "f32"  # otherwise keys are read where the product writes them
        self.data = data or Memory(self.shapes())
        self.layer = Memory({"wqkv": (form.weights, (shape.d, self.columns)),
                             "wo": (form.weights, (shape.h * shape.dk, shape.d))}, form.buffer)
        self.context = self.g.init(InitParams(64 * self.g.tensor_overhead() + self.g.graph_overhead(), None, True))
        self.graph = self.g.new_graph(self.context)
        self.y = self.build()
        self.g.build_forward_expand(self.graph, self.y)
        room = self.g.gallocr_new(self.g.backend_cpu_buffer_type())
        weakref.finalize(self, freed, (self.g.gallocr_free, room), (self.g.free, self.context))
        if not self.g.gallocr_alloc_graph(room, self.graph):
            raise MemoryError("ggml has no memory for the graph")

    def shapes(self):
        s, kept = self.shape, self.form.kept
        return {"x": ("f32", (s.d, s.rows)), "bqkv": ("f32", (self.columns,)), "bo": ("f32", (s.d,)),
                "k": (kept, (s.dk, self.total, s.h_kv)), "mask": ("f16", (self.total, s.rows)),
                "v": (kept, (self.total, s.dk, s.h_kv) if self.turned else (s.dk, self.total, s.h_kv))}

    @property
    def turned(self):
        """soft_max's second product wants a row of values for each of their columns."""
        return self.form.attention == "soft_max"

    def op(self, name, *arguments):
        return getattr(self.g, name)(self.context, *arguments)

    def product(self, name, x):
        y = self.op("mul_mat", self.layer[name], x)
        if not self.g.backend_dev_supports_op(self.g.device, y):
            raise NotImplementedError(f"ggml's buffer {self.form.buffer} has no {self.form.weights} of this shape")
        return self.op("add", y, self.data["b" + name[1:]]) if self.shape.biased else y

    def keep(self, name, new):
        """The keys or values of all rows, with those of this run behind the others."""
        s, kept, turned = self.shape, self.form.kept, self.turned and name == "v"
        new = self.op("permute", new, *((1, 2, 0, 3) if turned else (0, 2, 1, 3)))
        if not (self.own_kept or turned):
            return new
        width, count = (s.rows, s.dk) if turned else (s.dk, s.rows)
        row = self.g.row_size(TYPES[kept], self.total if turned else s.dk)
        head = row * (s.dk if turned else self.total)
        first = self.g.row_size(TYPES[kept], s.keys) if turned else s.keys * row
        place = self.op("view_3d", self.data[name], width, count, s.h_kv, row, head, first)
        self.g.build_forward_expand(self.graph, self.op("cpy", new, place))
        return self.data[name]

    def build(self):
        s = self.shape
        qkv = self.product("wqkv", self.data["x"])
        first, parts = 0, []
        for count in (s.h, s.h_kv, s.h_kv):
            parts.append(self.op("view_3d", qkv, s.dk, count, s.rows, 4 * s.dk, 4 * self.columns, 4 * first))
            first += count * s.dk
        q = self.op("permute", parts[0], 0, 2, 1, 3)
        k, v = self.keep("k", parts[1]), self.keep("v", parts[2])
        mask = self.data["mask"] if s.causal and s.rows > 1 else None
        if not self.turned:
            o = self.op("flash_attn_ext", q, k, v, mask, s.dk**-0.5, 0, 0)
        else:
            q = self.op("cont", q) if self.form.kept == "f32" else q  # others are converted, and so lie dense
            weights = self.op("soft_max_ext", self.op("mul_mat", k, q), mask, s.dk**-0.5, 0)
            o = self.op("cont", self.op("permute", self.op("mul_mat", v, weights), 0, 2, 1, 3))
        return self.product("wo", self.op("reshape_2d", o, s.h * s.dk, s.rows))

    def fill(self, x, weights, biases=None, past=None):
        """weights: what matrices() makes; past: keys and values [h_kv][keys][dk]"""
        s = self.shape
        self.data.set("x", x)
        self.data.set("mask", np.triu(np.full((s.rows, self.total), -np.inf), s.keys + 1))
        for name, data in zip(("wqkv", "wo"), weights):
            self.layer.set(name, data)
        for name, bias in zip(("bqkv", "bo"), biases or ()):
            self.data.set(name, bias)
        for name, rows in zip("kv", past or ()):
            rows = np.pad(rows, ((0, 0), (0, s.rows), (0, 0)))
            self.data.set(name, rows.swapaxes(1, 2) if name == "v" and self.turned else rows)

    def run(self):
        status = self.g.backend_graph_compute(self.g.backend, self.graph)
        if status:
            raise RuntimeError(f"ggml's graph gives {status}")

    def result(self):
        y = np.empty((self.shape.rows, self.shape.d), np.float32)
        self.g.backend_tensor_get(self.y, y.ctypes.data, 0, y.nbytes)
        return y


def setup(**form):
    form = SimpleNamespace(**form)

    def of(p):
        shape = SimpleNamespace(d=p.d_model, h=p.h, h_kv=p.h, dk=p.dk, rows=p.n, keys=0, causal=p.causal, biased=True)
        layer = Layer(shape, form)
        layer.fill(p.x, matrices(form.weights, np.concatenate([p.wq, p.wk, p.wv], 1), p.wo),
                   (np.concatenate([p.bq, p.bk, p.bv]), p.bo))
        return layer.run, layer.result
    return of


def forms(*kinds, buffers=("CPU",)):
    return {f"{kind} in {buffer}, {attention} of {kept}": setup(weights=kind, kept=kept, attention=attention,
                                                                buffer=buffer)
            for kind, attention, buffer in itertools.product(kinds, ATTENTIONS, buffers) for kept in KEPT[kind]}


FORMS = forms("f32")
BF16 = forms("bf16", "f16", buffers=BUFFERS)
INT8 = forms("q8_0", buffers=BUFFERS)


def step(p, weights, most):
    """The fastest form of a run with a cache that errs by `most` at the most; as many layers as p has."""
    shape = SimpleNamespace(d=p.d, h=p.h, h_kv=p.h_kv, dk=p.dk, rows=p.seq, keys=p.keys, causal=True, biased=False)
    data = matrices(weights, np.concatenate([p.w[name] for name in "qkv"], 1), p.w["o"])

    def layer(form, shared=None):
        made = Layer(shape, form, shared)
        made.fill(p.x, data, past=(p.k, p.v))
        made.run()
        return made

    errors, times = [], []
    for kept, attention, buffer in itertools.product(KEPT[weights], ATTENTIONS, BUFFERS):
        form = SimpleNamespace(weights=weights, kept=kept, attention=attention, buffer=buffer)
        try:
            tried = layer(form)
        except NotImplementedError:
            continue
        errors.append(p.error(tried.result()))
        if errors[-1] <= most:
            times.append((min(timed(tried.run) for _ in range(16)), len(errors), form))
    if not times:
        raise ValueError(f"wrong by {min(errors):.1e}")
    first = layer(min(times)[2])
    turn = itertools.cycle([first, *(layer(first.form, first.data) for _ in range(p.layers - 1))])
    return lambda: next(turn).run(), first.result


def timed(run):
    before = time.process_time()
    run()
    return time.process_time() - before
