"""Compares a generated kernel with its peers, on the same data, in turn: A B C A B C ...

    bench/peers.py [OPTION...] [key=value ...]      key=value: keys of the config, such as a schedule

Every contestant is a process of its own on the same core, and one of them runs at a time. Each must agree with
float64 first. A peer has several forms (bench/peers: layouts, blocks, operators, builds); the fastest one on
the shape counts. A ratio is peer / ours, of the lower medians over the rounds. The suite takes a quarter
of an hour.

The table and its rows go to OUT.txt and OUT.json. scripts/peers.sh installs the peers; a peer that cannot run
is named with the reason. With --random, shapes are drawn instead of taken from the suite, and listed by ratio.
They are log-uniform in d_model 16..1024, h 1..16, dk 4..128 and n 1..1024. Every second shape has odd d_model,
dk and n; in the others d_model and n are multiples of 16, and dk of 4. Shapes of more than 1e10 flops
are drawn again.

With --dtype everyone multiplies a smaller type: our kernel is that of dtype=TYPE, each peer takes its best form for
the type, and the error of each stands beside its time, so that nobody is taken for what he does not compute: who is as
precise as float32 is not measured. (In the table of float32, who errs as smaller types do is wrong.) The fraction is of
the peak of float32's FMAs all the same.

With --layers the shapes are the suite's whole layers, with norms, the residual connection and the feed-forward. Peers
are the libraries that run such a layer as it is: those that would be our own composition are left out.
"""
import argparse
import json
import math
import os
import pathlib
import random
import re
import subprocess
import sys

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of NumPy, and of the contestants
for variable in "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE":
    os.environ.pop(variable, None)  # OpenBLAS finds out itself what this CPU is
try:
    import numpy as np
except ImportError:
    np = None  # --help does without

from suite import MHAGEN, ROOT, suite, widest

HERE = ROOT / "bench/peers"
WORK = ROOT / "build/peers"
VENV = ROOT / "build/peers-venv"
LAYERS = "onnxruntime", "openvino", "pytorch", "jax", "iree", "zentorch"  # who run whole layers
TOLERANCE = {"f32": 1e-5, "bf16": 2e-2, "int8": 2e-1}  # of results by type; ours is checked elsewhere as well
QUIET = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0",
         "TORCHINDUCTOR_CACHE_DIR": str(WORK / "inductor"), "PYTHONDONTWRITEBYTECODE": "1"}
NATIVE = ["gcc", "-O3", "-march=native"]


# ---- the peers ----

def c(source, *flags, **environment):
    """One build of a peer in C."""
    return {"source": source, "flags": flags, "environment": environment}


def python(module):
    return {"module": module}


def onednn(source, prefix):
    return c(source, f"-I{prefix}/include", f"-L{prefix}/lib", "-ldnnl", "-Wl,--allow-shlib-undefined",
             LD_LIBRARY_PATH=f"{prefix}/lib", OCL_ICD_FILENAMES=f"{prefix}/lib/libintelocl.so")


def openblas_of_pypi():
    root = next(VENV.glob("lib/python3*/site-packages/scipy_openblas32"), VENV / "scipy_openblas32")
    names = [f"-D{name}=scipy_{name}" for name in
             ("cblas_sgemm", "openblas_get_config", "openblas_get_corename")]
    return c("openblas.c", *names, f"-I{root}/include", f"-L{root}/lib", f"-Wl,-rpath,{root}/lib",
             "-lscipy_openblas")


ONEDNN = VENV, VENV / "onednn-openmp"
PEERS = {"f32": {  # name: its builds
    "libxsmm": [c("libxsmm.c", "-lxsmm", "-lxsmmnoblas", "-lpthread", "-lrt", "-ldl")],
    "openblas": [c("openblas.c", "-lopenblas"), openblas_of_pypi()],
    "onednn": [onednn("onednn.c", prefix) for prefix in ONEDNN],
    "onnxruntime": [python("ort")],
    "openvino": [python("ov")],
    "pytorch": [python("pytorch")],
    "jax": [python("jax_layer")],
    "iree": [python("iree_layer")],
    "zentorch": [python("zen")],
    "ncnn": [python("ncnn_layer")],
    "ggml": [python("ggml_layer")],
    "plain": [c("plain.c"), c("plain.c", "-ffast-math")],
}, "bf16": {
    "onednn": [onednn("onednn_bf16.c", prefix) for prefix in ONEDNN],
    "openvino": [python("ov:bf16")],
    "pytorch": [python("pytorch:bf16")],
    "zentorch": [python("zen:bf16")],
    "ncnn": [python("ncnn_layer:bf16")],
    "ggml": [python("ggml_layer:bf16")],
}, "int8": {
    "onnxruntime": [python("ort:int8")],
    "openvino": [python("ov:int8")],
    "pytorch": [python("pytorch:int8")],
    "ncnn": [python("ncnn_layer:int8")],
    "ggml": [python("ggml_layer:int8")],
}}


class Failure(Exception):
    """Why a contestant cannot be measured, in one line."""


def compile_c(output, command, inputs):
    if not output.exists() or any(path.stat().st_mtime > output.stat().st_mtime for path in inputs):
        result = subprocess.run([*map(str, command), "-o", output], text=True, capture_output=True)
        if result.returncode:
            lines = result.stderr.splitlines()
            reasons = [line for line in lines if re.search(r"error:|cannot find|undefined", line)]
            raise Failure(re.sub(r"^\S*: ", "", (reasons or lines or ["the compiler failed"])[0]))
    return output


def worker_object():
    source = HERE / "worker.c"
    return compile_c(WORK / "worker.o", [*NATIVE, "-c", source], [source, HERE / "peer.h"])


def command_of(build, name):
    """-> command, environment, whether it starts in no time"""
    if "module" in build:
        own = VENV / "bin/python"
        return [own if own.exists() else sys.executable, HERE / "worker.py", build["module"]], {}, False
    source = HERE / build["source"]
    program = compile_c(WORK / f"{name}_{source.stem}",
                        [*NATIVE, f"-I{HERE}", source, worker_object(), *build["flags"], "-lm"],
                        [source, worker_object(), *HERE.glob("*.h")])
    return [program], build["environment"], True


def command_of_ours(shape, folder, isa, keys):
    config = [f"{key}={value}" for key, value in shape.items()]
    result = subprocess.run([MHAGEN, "gen", *config, f"isa={isa}", *keys, "name=mha", "--quiet", "-o", folder])
    if result.returncode:
        sys.exit(result.returncode)  # the reason is on standard error already
    sources = [HERE / "ours.c", folder / "mha.c", folder / "mhagen.c"]
    program = compile_c(folder / "ours", ["cc", "-O2", f"-I{HERE}", f"-I{folder}", *sources, worker_object(),
                                          "-pthread"], [*sources, *folder.glob("*.h"), worker_object()])
    return [program], {}, True


# ---- the contestants ----

class Problem:
    """The data of one shape, in a file for all, and the result in float64."""

    def __init__(self, shape, folder, dtype):
        self.dtype = dtype
        d, h, dk, n = (int(shape[key]) for key in ("d_model", "h", "dk", "seq"))
        causal, e, ffn = shape.get("causal") == "true", h * dk, int(shape.get("ffn", 0))
        self.numbers, self.folder = [d, h, dk, n, int(causal), ffn], folder
        self.flops = 2 * n * d * 3 * e + 4 * n * n * e / (2 if causal else 1) + 2 * n * e * d + 4 * n * d * ffn
        rng = np.random.default_rng(1)
        shapes = [(n, d), (d, e), (d, e), (d, e), (e, d), e, e, e, d]  # x, weights, biases
        scales = [1, d ** -0.5, d ** -0.5, d ** -0.5, e ** -0.5, 1, 1, 1, 1]
        if ffn:  # two norms, each a gain and a bias; two products, likewise
            self.numbers += [shape["norm"], shape.get("ffn_act", "gelu")]
            shapes += [d, d, d, d, (d, ffn), ffn, (ffn, d), d]
            scales += [1, 1, 1, 1, d ** -0.5, 1, ffn ** -0.5, 1]
        data = [(scale * rng.standard_normal(size)).astype(np.float32) for scale, size in zip(scales, shapes)]
        folder.mkdir(parents=True, exist_ok=True)
        self.data = folder / "data"
        self.data.write_bytes(b"".join(array.tobytes() for array in data))
        data = [array.astype(np.float64) for array in data]
        self.reference = layer_of(shape, data) if ffn else attention_of(shape, *data)

    def error(self, y):
        return float(np.linalg.norm(y - self.reference.ravel()) / np.linalg.norm(self.reference))


def attention_of(shape, x, *weights):
    """In the type of the numbers."""
    wq, wk, wv, wo, bq, bk, bv, bo = weights
    h, dk, n = (int(shape[key]) for key in ("h", "dk", "seq"))
    q, k, v = ((x @ w + b).reshape(n, h, dk).swapaxes(0, 1) for w, b in ((wq, bq), (wk, bk), (wv, bv)))
    scores = q @ k.swapaxes(1, 2) * dk ** -0.5
    if shape.get("causal") == "true":
        scores += np.triu(np.full((n, n), -np.inf), 1)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    heads = e / e.sum(-1, keepdims=True) @ v
    return heads.swapaxes(0, 1).reshape(n, h * dk) @ wo + bo


ACTIVATIONS = {"gelu": lambda x: x * (1 + np.vectorize(math.erf)(x * 0.5 ** 0.5)) / 2,
               "gelu_tanh": lambda x: x * (1 + np.tanh((2 / math.pi) ** 0.5 * (x + 0.044715 * x ** 3))) / 2}


def layer_of(shape, data):
    """Of docs/layer.md: a norm in front of attention and of the feed-forward, or behind each sum."""
    x, attention, (norm1, bias1, norm2, bias2, w1, b1, w2, b2) = data[0], data[1:9], data[9:]
    first, second = (lambda x, g=g, b=b: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5) * g
                     + b for g, b in ((norm1, bias1), (norm2, bias2)))

    def feed_forward(x):
        return ACTIVATIONS[shape.get("ffn_act", "gelu")](x @ w1 + b1) @ w2 + b2
    if shape["norm"] == "pre":
        x = x + attention_of(shape, first(x), *attention)
        return x + feed_forward(second(x))
    x = first(x + attention_of(shape, x, *attention))
    return second(x + feed_forward(x))


class Worker:
    """One process; see worker.c for the conversation."""

    def __init__(self, *start):
        self.start = name, command, environment, self.quick, problem, core = start
        self.y, self.log = problem.folder / f"{name}.y", problem.folder / f"{name}.log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [*map(str, command), problem.data, self.y, *map(str, problem.numbers)], text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                env={**os.environ, **QUIET, **environment},
                preexec_fn=lambda: os.sched_setaffinity(0, {core}))
        self.version, *self.forms = self.answer().split("\t")

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            lines = self.log.read_text(errors="replace").split("\n")
            lines = [line.strip() for line in lines if line.strip()]
            raise Failure(lines[-1] if lines else f"ended with {self.process.wait()}")
        return line.rstrip("\n")

    def ask(self, question):
        try:
            print(question, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # the missing answer will tell
        return self.answer()

    def end(self):
        self.process.communicate()


class Form:
    """One way of a worker, and the least time seen of it."""

    def __init__(self, worker, name, problem):
        self.worker, self.name, self.us = worker, name, math.inf
        self.select()
        self.error = problem.error(np.fromfile(worker.y, np.float32))
        if not self.error <= TOLERANCE[problem.dtype]:
            raise Failure(f"{name}: wrong by {self.error:.1e}")
        if problem.dtype != "f32" and self.error <= TOLERANCE["f32"]:
            raise Failure(f"{name}: as precise as float32 ({self.error:.1e})")

    def select(self):
        answer = self.worker.ask(f"form {self.name}")
        if answer != "ok":
            raise Failure(f"{self.name}: {answer}")

    def run(self, ms):
        us = float(self.worker.ask(f"run {ms}"))
        self.us = min(self.us, us)
        return us

    def restart(self):
        self.worker.end()
        self.worker = Worker(*self.worker.start)
        self.select()


class Contestant:
    """The fastest form of all builds of a peer."""

    def __init__(self, name, commands, problem, core, ms):
        self.name, self.medians = name, []
        workers, forms, reasons = [], [], []
        for i, command in enumerate(commands):
            try:
                workers.append(Worker(f"{name}{i}", *command(f"{name}{i}"), problem, core))
            except Failure as e:
                reasons.append(str(e))
        for worker in workers:
            for form in worker.forms:
                try:
                    forms.append(Form(worker, form, problem))
                except Failure as e:
                    reasons.append(str(e))
        if not forms:
            for worker in workers:
                worker.end()
            raise Failure(reasons[0])
        for share in (0.2, 0.3, 0.5) if len(forms) > 1 else ():
            limit = 1.1 * min(form.us for form in forms)  # who is far behind gets no more time
            for form in forms:
                if form.us <= limit:
                    form.select()
                    form.run(share * ms)
        self.form = min(forms, key=lambda form: form.us)
        self.tried = {f"{form.worker.version}, {form.name}": form.us for form in forms if form.us < math.inf}
        self.form.select()
        for worker in workers:
            if worker is not self.form.worker:
                worker.end()

    def run(self, ms):
        """In a new process if that starts in no time: where its pages fall is worth 1 or 2 %."""
        if self.form.worker.quick:
            self.form.restart()
        self.medians.append(self.form.run(ms))

    @property
    def us(self):
        return lower_median(self.medians)

    def row(self):
        return {"version": self.form.worker.version, "form": self.form.name, "error": self.form.error,
                "us": self.us, "us_of_rounds": self.medians, "us_of_forms": self.tried}


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2]


# ---- one shape ----

def compare(name, shape, args):
    """-> the row of results of one shape"""
    folder = WORK / f"{name}{'_layer' * args.layers}_{args.dtype}"
    problem = Problem(shape, folder, args.dtype)
    ours = Contestant("ours", [lambda _: command_of_ours(shape, folder, args.isa, args.keys)], problem,
                      args.core, args.ms)
    contestants, absent = [ours], {}
    for peer in args.peers:
        commands = [lambda program, build=build: command_of(build, program) for build in args.table[peer]]
        try:
            contestants.append(Contestant(peer, commands, problem, args.core, args.ms))
        except Failure as e:
            absent[peer] = {"not_measured": str(e)}
    peaks = []
    for _ in range(args.rounds):
        peaks.append(float(ours.form.worker.ask("peak 5")))
        for contestant in contestants:
            contestant.run(args.ms)
    peaks.append(float(ours.form.worker.ask("peak 5")))
    peak = lower_median(peaks)
    rows = {contestant.name: contestant.row() for contestant in contestants}
    for contestant in contestants:
        contestant.form.worker.end()
    for row in rows.values():
        row["ratio"] = row["us"] / ours.us
    rows.update(absent)
    measured = [row["ratio"] for row in rows.values() if "ratio" in row][1:]
    return {"id": name, "dtype": args.dtype, "config": shape, "flops": problem.flops, "peak_gflops": peak,
            "fraction": problem.flops / ours.us / peak * 1e-3, "contestants": rows,
            "ahead": bool(measured) and min(measured) > 1}


# ---- what is shown ----

def cell(row, error):
    if "us" not in row:
        return f"{'not measured':>{16 + 8 * error}}"
    return f"{row['us']:10.2f} {row['ratio']:5.2f}" + (f" {row['error']:7.0e}" if error else "")


def table_row(row, peers):
    ours, error = row["contestants"]["ours"], row["dtype"] != "f32"
    return (f"{row['id']:<14} {ours['us']:10.2f} {row['fraction']:7.3f} " + (f"{ours['error']:7.0e} " if error else "")
            + " ".join(cell(row["contestants"][peer], error) for peer in peers)
            + f"  {'yes' if row['ahead'] else 'no'}")


def table_head(peers, dtype):
    error = dtype != "f32"
    return (f"{'us, times ours':<14} {'ours':>10} {'of peak':>7} " + ("  error " if error else "")
            + " ".join(f"{peer:>{16 + 8 * error}}" for peer in peers) + "  ahead of every peer")


def notes(rows, peers):
    """Versions, the forms that won, and who is missing."""
    for name in ["ours", *peers]:
        found = [(row["id"], row["contestants"][name]) for row in rows]
        yield f"{name}:"
        grouped = {}
        for shape, row in found:
            text = (f"not measured: {row['not_measured']}" if "not_measured" in row
                    else f"{row['version']}, {row['form']}")
            grouped.setdefault(text, []).append(shape)
        yield from (f"  {text}: {', '.join(shapes)}" for text, shapes in grouped.items())


def spread(rows, peers):
    """The rows of random shapes by their ratio to the fastest peer."""
    def least(row):
        return min((r["ratio"] for n, r in row["contestants"].items() if n != "ours" and "ratio" in r),
                   default=math.nan)
    rows = sorted(rows, key=least)
    yield table_head(peers, rows[0]["dtype"])
    yield from (table_row(row, peers) for row in rows)
    ratios = [least(row) for row in rows]
    yield (f"{len(rows)} shapes: peer / ours at least {ratios[0]:.3f}, median {lower_median(ratios):.3f}; "
           f"of peak at least {min(row['fraction'] for row in rows):.3f}, "
           f"median {lower_median([row['fraction'] for row in rows]):.3f}")


# ---- the shapes ----

def random_shapes(count, seed):
    rng = random.Random(seed)

    def draw(low, high, step):
        value = math.exp(rng.uniform(math.log(low), math.log(high + 1)))
        if step == "odd":
            return min(max(int(value) | 1, low + (low + 1) % 2), high - (high + 1) % 2)
        return min(max(round(value / step) * step, step), high)

    shapes = {}
    while len(shapes) < count:
        odd = len(shapes) % 2 == 1
        shape = {"d_model": draw(16, 1024, "odd" if odd else 16), "h": draw(1, 16, 1),
                 "dk": draw(4, 128, "odd" if odd else 4), "seq": draw(1, 1024, "odd" if odd else 16)}
        d, h, dk, n = shape.values()
        if 8 * n * d * h * dk + 4 * n * n * h * dk <= 1e10:
            shapes["{}_{}_{}_{}".format(*shape.values())] = {k: str(v) for k, v in shape.items()}
    return shapes


def names(text):
    return [word for word in text.split(",") if word]


def given_shape(text):
    """d_model=64,h=2,dk=32,seq=10 (seq or n) -> (id, config)"""
    shape = dict(word.split("=", 1) for word in text.split(","))
    if "n" in shape:
        shape["seq"] = shape.pop("n")
    return "_".join(shape[key] for key in ("d_model", "h", "dk", "seq", "causal") if key in shape), shape


def main(words=None):
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("keys", nargs="*", metavar="key=value")
    parser.add_argument("--shapes", type=names, default=None, help="of the suite, such as micro,minilm")
    parser.add_argument("--shape", type=given_shape, action="append", default=[],
                        help="another one: d_model=64,h=2,dk=32,seq=10[,causal=true]; may be repeated")
    parser.add_argument("--random", type=int, metavar="N", help="so many random shapes instead")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--layers", action="store_true", help="the suite's whole layers")
    parser.add_argument("--dtype", choices=PEERS, default="f32")
    parser.add_argument("--peers", type=names, default=None,
                        help=f"default: {','.join(PEERS['f32'])}; with --random libxsmm, with --dtype the type's")
    parser.add_argument("--isa", default=None, help="default: the widest that this CPU has")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ms", type=float, default=100, help="of one contestant in one round")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build/bench-peers")
    args = parser.parse_args(words)
    if np is None:
        sys.exit("peers: this Python lacks NumPy; scripts/peers.sh makes build/peers-venv/bin/python, which has it")
    args.table = {name: builds for name, builds in PEERS[args.dtype].items() if not args.layers or name in LAYERS}
    args.peers = args.peers or (["libxsmm"] if args.random and args.dtype == "f32" else list(args.table))
    args.keys += [f"dtype={args.dtype}"] if args.dtype != "f32" else []
    known = suite(args.layers)
    for chosen, table in (args.peers, args.table), (args.shapes or [], known):
        unknown = [name for name in chosen if name not in table]
        if unknown:
            parser.error(f"no {', '.join(unknown)}; there are {', '.join(table)}")
    args.isa = args.isa or widest(args.keys)
    if args.random:
        shapes = random_shapes(args.random, args.seed)
    else:
        chosen = args.shapes if args.shapes is not None else [] if args.shape else known
        shapes = {name: dict(word.split("=") for word in known[name][0]) for name in chosen}
        shapes.update(args.shape)

    lines, rows = [], []

    def show(*more):
        lines.extend(more)
        print(*more, sep="\n", flush=True)

    show(" ".join([f"{args.isa}, {args.rounds} rounds of {args.ms:g} ms", *args.keys]),
         table_head(args.peers, args.dtype))
    for name, shape in shapes.items():
        rows.append(compare(name, shape, args))
        show(table_row(rows[-1], args.peers))
    show("", *(spread(rows, args.peers) if args.random else notes(rows, args.peers)))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".txt").write_text("\n".join(lines) + "\n")
    args.out.with_suffix(".json").write_text(
        "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    try:
        main()
    except Failure as e:  # of ours, or in the middle of a round
        sys.exit(f"peers: {e}")
