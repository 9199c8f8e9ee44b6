"""Times a whole model in ONNX Runtime, alone and with the nodes of `mhagen model --onnxruntime`, in turn on one core.

    taskset -c 1 python3 bench/onnxruntime_model.py FILE.onnx OUT ... [--shape INPUT=1,128 ...] [--rounds N]

OUT are directories of the command. Times are the process's, so that waiting for the core does not count: the least of
all rounds, and the median of the ratios of each round. Inputs are normal numbers, or integers from 0 to --most, and
ones where the name has "mask". The error is that of all outputs together, in the norm.
"""
import argparse
import pathlib
import statistics
import time

import numpy as np
import onnxruntime


def session(path, library=None):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if library:
        options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs_of(alone, shapes, most):
    numbers, feeds = np.random.default_rng(0), {}
    for given in alone.get_inputs():
        shape = shapes.get(given.name) or [size if isinstance(size, int) else 1 for size in given.shape]
        if given.type == "tensor(float)":
            feeds[given.name] = numbers.standard_normal(shape, dtype="f4")
        else:
            drawn = np.ones(shape) if "mask" in given.name else numbers.integers(0, most, shape)
            feeds[given.name] = drawn.astype({"tensor(int64)": "i8", "tensor(int32)": "i4"}[given.type])
    return feeds


def timed(run, feeds):
    start = time.process_time()
    run.run(None, feeds)
    return time.process_time() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path")
    parser.add_argument("outs", nargs="+", type=pathlib.Path)
    parser.add_argument("--shape", action="append", default=[], metavar="INPUT=1,128")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--most", type=int, default=1000)
    args = parser.parse_args()
    shapes = {name: [int(size) for size in sizes.split(",")]
              for name, sizes in (word.split("=") for word in args.shape)}
    alone = session(args.path)
    feeds = inputs_of(alone, shapes, args.most)
    expected = alone.run(None, feeds)
    runs = {"alone": alone, **{out.name: session(out / "model.onnx", out / "libmodel.so") for out in args.outs}}
    times = {name: [] for name in runs}
    for name, run in runs.items():
        got = run.run(None, feeds)
        error = sum(np.sum((a - b) ** 2.0) for a, b in zip(expected, got)) / sum(np.sum(a ** 2.0) for a in expected)
        print(f"{name:20} error {error ** 0.5:.1e}")
    for _ in range(args.rounds):
        for name, run in runs.items():
            times[name].append(timed(run, feeds))
    for name, all_of in times.items():
        ratio = statistics.median(a / b for a, b in zip(times["alone"], all_of))
        print(f"{name:20} {min(all_of) * 1e3:9.2f} ms   {min(times['alone']) / min(all_of):.3f} times as fast"
              f"   (median of rounds {ratio:.3f})")


main()
