#!/usr/bin/env python3
"""Times layers on several threads, ours and other libraries' in turn: A B C A B C ...

    python3 bench/threads.py [--threads 1,2,4,8,16] [--shapes minilm] [--types f32,bf16] [--out FILE.json]

Each contestant is a process for each number of threads, with as many CPUs, evenly spread, because neighbours may share
a core. One process runs at a time, for some 30 ms. A time is the least of all runs, in microseconds. Loops of FMAs, or
of products of tiles, say how much faster so many threads can be on this machine. The peers are those of bench/peers
that can be imported; another is named with the reason. --plot FILE.svg draws the times of an --out.
"""
import argparse
import ctypes
import importlib
import json
import os
import pathlib
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE / "peers")]
from peers import Problem  # noqa: E402
from suite import MHAGEN, ROOT, suite  # noqa: E402
from worker import read_problem  # noqa: E402

WORK = ROOT / "build/threads"
SHAPES = "minilm,deit_s,bert_base_128,bert_base_512"
PEERS = {"f32": ("ort", "pytorch"), "bf16": ("pytorch:bf16",)}
FORMS = {"ort": ("com.microsoft.Attention",),  # the fastest; and none that compiles
         "pytorch": ("linear and scaled_dot_product_attention", "linear, matmul and softmax")}
TOLERANCE = {"f32": 1e-4, "bf16": 3e-2}
NAMES = {"ours": "mhagen", "loops": "loops", "ort": "ONNX Runtime", "pytorch": "PyTorch"}
TURN = 0.03  # s

LOOPS = r"""
#include "mhagen.h"
#include <immintrin.h>
static int yes(void) { return 1; }
#ifdef TILES
static int has(void) { return mhagen_cpu_has(MHAGEN_CPU_AMX); } /* asks the system for them */
static void loop(const mhagen_args *args, int index) {
  unsigned char config[64] = {1};
  (void)args, (void)index;
  for (int i = 0; i < 8; i++) config[16 + 2 * i] = 64, config[48 + i] = 16;
  _tile_loadconfig(config);
  for (int i = 0; i < 2000; i++) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}
#else
static int has(void) { return 1; }
static volatile float sink;
static void loop(const mhagen_args *args, int index) {
  typedef float vector __attribute__((vector_size(64)));
  vector x = {0}, sums[12] = {{0}};
  (void)args, (void)index;
  x += 0.5f;
  for (int i = 0; i < 20000; i++) {
    for (int j = 0; j < 12; j++) sums[j] = sums[j] * x + x;
    __asm__ volatile("" ::: "memory");
  }
  for (int j = 1; j < 12; j++) sums[0] += sums[j];
  sink = sums[0][0];
}
#endif
/* As many loops as threads. */
mhagen_status loops(mhagen_pool *pool, int threads) {
  const mhagen_phase phase = {"loops", loop, 0, threads, 1e9};
  const mhagen_kernel kernel = {.supported = yes, .phases = &phase, .phase_count = 1};
  const mhagen_args args = {0};
  if (!has()) return MHAGEN_ERR_CPU;
  if (threads > 1) return mhagen_run_parallel(&kernel, &args, pool);
  loop(&args, 0);
  return MHAGEN_OK;
}
"""


# ---- contestants, each in a process of its own ----

def problem_of(shape):
    """The data that build() has written."""
    keys = dict(word.split("=") for word in suite()[shape][0])
    return read_problem(WORK / shape / "data", *(int(keys[key]) for key in ("d_model", "h", "dk", "seq")), "0")


def aligned(numpy, size):
    room = numpy.zeros(size + 64, numpy.uint8)
    start = -room.ctypes.data % 64
    return room[start:start + size]


def ours(shape, dtype, threads):
    """A run and its result, by the shared library that build() has made."""
    import numpy as np
    p, lib = problem_of(shape), ctypes.CDLL(str(WORK / f"{shape}_{dtype}.so"))
    for name in "packed", "workspace":
        getattr(lib, f"bench_{name}").restype = ctypes.c_size_t
    lib.mhagen_pool_create.restype = ctypes.c_void_p
    packed, workspace = (aligned(np, lib[f"bench_{name}"]()) for name in ("packed", "workspace"))
    names = ("wq", "wk", "wv", "wo", "bq", "bk", "bv", "bo")
    pointers = (ctypes.c_void_p * 8)(*(getattr(p, name).ctypes.data for name in names))
    y = np.zeros((p.n, p.d_model), np.float32)
    if lib.bench_pack(pointers, ctypes.c_void_p(packed.ctypes.data)):
        raise RuntimeError("this CPU lacks the instructions of the kernel")
    pool = ctypes.c_void_p(lib.mhagen_pool_create(threads) if threads > 1 else None)
    arrays = p.x, y, packed, workspace  # as long as there are runs
    at = [ctypes.c_void_p(array.ctypes.data) for array in arrays]

    def run(_=arrays):
        if lib.bench_run(*at, pool):
            raise RuntimeError("the run failed")
    return run, lambda: y


OURS = r"""
#include "KERNEL.h"
size_t bench_packed(void) { return KERNEL_kernel.packed_bytes; }
size_t bench_workspace(void) { return KERNEL_kernel.workspace_bytes; }
int bench_pack(const float *const *of, void *packed) {
  const mhagen_weights weights = {.wq = of[0], .wk = of[1], .wv = of[2], .wo = of[3],
                                  .bq = of[4], .bk = of[5], .bv = of[6], .bo = of[7]};
  return KERNEL_pack(&weights, packed);
}
int bench_run(const float *x, float *y, const void *packed, void *workspace, mhagen_pool *pool) {
  const mhagen_args args = {.q = x, .y = y, .packed = packed, .workspace = workspace};
  return mhagen_run_parallel(&KERNEL_kernel, &args, pool);
}
"""


def loops(dtype, threads):
    lib = ctypes.CDLL(str(WORK / f"loops_{dtype}.so"))
    lib.mhagen_pool_create.restype = ctypes.c_void_p
    pool = ctypes.c_void_p(lib.mhagen_pool_create(threads) if threads > 1 else None)
    if lib.loops(pool, threads):
        raise RuntimeError("this CPU has no tiles")
    return lambda: lib.loops(pool, threads), None


def peer(module, shape):
    """The fastest of a peer's forms."""
    name, _, dtype = module.partition(":")
    library = importlib.import_module(name)
    forms, best = getattr(library, dtype.upper() or "FORMS"), None
    for form in FORMS[name]:
        kept = WORK / f"{shape}_{form}.onnx"  # for a machine without the package onnx
        if name == "ort" and library.onnx is None:
            run, y = library.opened(kept.read_bytes(), problem_of(shape))
        else:
            if name == "ort" and not kept.exists():
                library.KEEP[0] = str(kept)
            run, y = forms[form](problem_of(shape))
        took = min(timed(run, 0.1))
        if best is None or took < best[0]:
            best = took, run, y
    return best[1:]


def timed(run, seconds):
    run()
    times, end = [], time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return times


def worker(who, shape, dtype, threads):
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[i * len(cpus) // threads] for i in range(threads)})
    try:
        run, y = (ours(shape, dtype, threads) if who == "ours" else loops(dtype, threads) if who == "loops"
                  else peer(who, shape))
        run()
        if y is not None:
            import numpy as np
            want = np.fromfile(WORK / shape / "reference")
            error = float(np.linalg.norm(y().ravel() - want) / np.linalg.norm(want))
            if not error < TOLERANCE[dtype]:
                raise RuntimeError(f"its error is {error:.1e}")
        print("ready", file=out, flush=True)
    except Exception as error:  # whatever a library raises
        print((str(error) or type(error).__name__).splitlines()[0], file=out, flush=True)
        return
    for _ in sys.stdin:
        print(f"{1e6 * min(timed(run, TURN)):.2f}", file=out, flush=True)


# ---- the comparison ----

def build(args):
    """The data of the shapes, and the shared libraries of our kernels and of the loops."""
    for shape in args.shapes:
        problem = Problem(dict(word.split("=") for word in suite()[shape][0]), WORK / shape, "f32")
        problem.reference.tofile(WORK / shape / "reference")
    cc, jobs = ["gcc", "-O2", "-shared", "-fPIC", "-pthread"], []
    for dtype in args.types:
        keys = [] if dtype == "f32" else [f"dtype={dtype}", f"attend_dtype={dtype}"]
        isa = args.isa or subprocess.run([MHAGEN, "isas", "--widest", "--dtype", dtype], text=True, check=True,
                                         capture_output=True).stdout.strip()
        args.isas[dtype] = isa
        for shape in args.shapes:
            name, folder = f"{shape}_{dtype}", WORK / f"{shape}_{dtype}"
            subprocess.run([MHAGEN, "gen", *suite()[shape][0], f"isa={isa}", *keys, f"name={name}", "-o", folder,
                            "--force"], check=True, stdout=subprocess.DEVNULL)
            (folder / "ours.c").write_text(OURS.replace("KERNEL", name))
            jobs.append(subprocess.Popen([*cc, folder / f"{name}.c", folder / "mhagen.c", folder / "ours.c",
                                          "-o", WORK / f"{name}.so"]))
        (WORK / f"loops_{dtype}.c").write_text(LOOPS)
        machine = "-DTILES -mamx-tile -mamx-bf16" if isa == "amx" and dtype != "f32" else "-march=native"
        folder = WORK / f"{args.shapes[0]}_{dtype}"
        jobs.append(subprocess.Popen([*cc, *machine.split(), "-I", folder, WORK / f"loops_{dtype}.c",
                                      folder / "mhagen.c", "-o", WORK / f"loops_{dtype}.so"]))
    if any(job.wait() for job in jobs):
        sys.exit("a kernel does not compile")


def start(who, shape, dtype, threads):
    quiet = {"PEER_THREADS": str(threads), "OMP_NUM_THREADS": str(threads), "KMP_BLOCKTIME": "1",
             "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, __file__, "--worker", who, shape, dtype, str(threads)], text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                            env={**os.environ, **quiet})


def compare(args, shape, dtype):
    """{contestant: {threads: us}} of a shape in a type; who cannot run is missing, and told."""
    running = {(who, n): start(who, shape, dtype, n) for n in args.threads
               for who in ("loops", "ours", *(() if args.alone else PEERS[dtype]))}
    for (who, n), process in list(running.items()):
        answer = process.stdout.readline().strip() or "it ended"
        if answer != "ready":
            print(f"{shape} {dtype}: {who} on {n} threads: {answer}", file=sys.stderr)
            if who == "ours":
                sys.exit(1)
            process.kill()
            del running[who, n]
    times = {}
    for _ in range(args.rounds):
        for (who, n), process in running.items():
            print("run", file=process.stdin, flush=True)
            took = float(process.stdout.readline())
            row = times.setdefault(who.partition(":")[0], {})
            row[n] = min(row.get(n, took), took)
            time.sleep(0.005)  # threads of the last one stop to look for work
    for process in running.values():
        process.stdin.close()
        process.wait()
    return times


def table(shape, dtype, times, threads):
    one = {who: row.get(threads[0]) for who, row in times.items()}
    loops_row = times.get("loops", {})
    print(f"\n{shape}, {dtype}: us, the least of all runs")
    print(f"  {'threads':<14}" + "".join(f"{n:>10}" for n in threads))
    for who, row in times.items():
        if who != "loops":
            print(f"  {NAMES[who]:<14}" + "".join(f"{row[n]:>10.1f}" if n in row else f"{'-':>10}" for n in threads))
    if loops_row and one.get("ours"):
        gains = {n: n * one["loops"] / loops_row[n] / threads[0] for n in threads if n in loops_row}
        print(f"  {'loops gain':<14}" + "".join(f"{gains[n]:>10.2f}" for n in gains))
        print(f"  {'we gain':<14}" + "".join(f"{one['ours'] / times['ours'][n]:>10.2f}" for n in threads))
        print(f"  {'efficiency':<14}" + "".join(f"{one['ours'] / times['ours'][n] / gains[n]:>10.2f}" for n in gains))
    sys.stdout.flush()


def plot(source, path):
    import matplotlib
    matplotlib.use("svg")
    import matplotlib.pyplot as plt
    found = json.loads(pathlib.Path(source).read_text())
    style = {"font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans", "Verdana"], "font.size": 8,
             "svg.hashsalt": "mhagen", "svg.fonttype": "none"}
    colors = {"ours": "#c2410c", "ort": "#6b8f71", "pytorch": "#9db4cc"}
    with plt.rc_context(style):
        types = list(dict.fromkeys(row["type"] for row in found["rows"]))
        shapes = list(dict.fromkeys(row["shape"] for row in found["rows"]))
        figure, panels = plt.subplots(len(types), len(shapes), figsize=(10, 2.4 * len(types)), squeeze=False)
        for row in found["rows"]:
            axes = panels[types.index(row["type"])][shapes.index(row["shape"])]
            for who, times in row["us"].items():
                if who in colors:
                    axes.plot([int(n) for n in times], times.values(), marker="o", markersize=3, color=colors[who],
                              label=NAMES[who])
            axes.set(xscale="log", yscale="log", title=f"{row['shape']}, {row['type']}", xticks=found["threads"])
            axes.set_xticklabels(found["threads"])
            axes.minorticks_off()
            axes.spines[["top", "right"]].set_visible(False)
        panels[0][0].legend(frameon=False)
        panels[0][0].set_ylabel("us")
        figure.supxlabel(f"threads; {found['cpu']}", fontsize=8)
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None})


def cpu():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return "unknown CPU"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    most = len(os.sched_getaffinity(0))
    parser.add_argument("--threads", default=",".join(str(n) for n in (1, 2, 4, 8, 16, 32) if n <= most))
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--types", default="f32,bf16")
    parser.add_argument("--alone", action="store_true", help="without other libraries")
    parser.add_argument("--isa", help="default: the widest of this CPU")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", help="also write the times here, as JSON")
    parser.add_argument("--plot", nargs=2, metavar=("FILE.json", "FILE.svg"), help="only draw the times of a file")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return worker(*args.worker[:3], int(args.worker[3]))
    if args.plot:
        return plot(*args.plot)
    args.threads, args.isas = [int(n) for n in args.threads.split(",")], {}
    args.shapes, args.types = args.shapes.split(","), args.types.split(",")
    build(args)
    rows = []
    for dtype in args.types:
        for shape in args.shapes:
            times = compare(args, shape, dtype)
            table(shape, dtype, times, args.threads)
            rows.append({"shape": shape, "type": dtype, "isa": args.isas[dtype], "us": times})
    if args.out:
        pathlib.Path(args.out).write_text(json.dumps({"cpu": cpu(), "threads": args.threads, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
