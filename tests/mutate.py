#!/usr/bin/env python3
"""Breaks the generator in many ways, one at a time, and shows that the checker catches each.

  python3 tests/mutate.py            all of them
  python3 tests/mutate.py -k causal  those with this word

Goldens would catch any change of the text; here only results count, on the small configs below.
Not in the list, because results stay right: values behind kv_len that are not cleared. They are NaN
at worst, and the second attempt keeps these out; clearing them is what makes that rare.
Nor tasks that share their scratch: two must run at the same moment for that to show.
"""
import argparse
import concurrent.futures
import os
import pathlib
import queue
import shutil
import subprocess
import sys
import tempfile

import fuzz

# Small, and together they reach every path: tails of lanes and tiles, chunks, blocks, masks, levels.
CONFIGS = [
    "h=3 d_model=37 dk=5 seq=21",
    "h=2 d_model=20 dk=7 dv=9 seq=19 seq_kv=23 attention=cross probs=true",
    "h=2 d_model=20 dk=7 seq=37 causal=true probs=true",
    "h=2 d_model=12 dk=4 seq=9 kv_len=true batch=3 causal=true",
    "h=2 d_model=40 dk=8 dv=3 seq=35 key_block=8 k_block=16 k_unroll=4 batch=2",
    "h=2 d_model=18 dk=4 seq=33 key_block=8 k_block=16 kv_len=true probs=true",
    "h=2 d_model=8 dk=4 seq=17 unroll=full",
    "h=3 d_model=7 dk=13 dv=5 seq=37 batch=2",
    "h=2 d_model=40 dk=16 seq=2 seq_kv=33 attention=cross batch=2",
    "h=1 d_model=40 dk=16 seq=1 seq_kv=9 attention=cross",  # so small that several keys are made infinite
    "h=3 d_model=12 dk=5 seq=3",
    "h=1 d_model=38 dk=40 seq=2",
    "h=2 d_model=38 dk=16 seq=34 strassen=true",
    "h=16 d_model=4 dk=1 seq=6 strassen=true probs=true head_block=16",
    "h=2 d_model=9 dk=5 seq=20 fold=off out_block=8 query_vectors=1 kv_len=true",
]
ISAS = ["avx2", "avx512", "scalar"]

HEALTHY = ("nothing", "version.lua", "return", "return")  # must survive

KERNEL, RUNTIME = "../templates/kernel.c.in", "../runtime/mhagen.c"
RUN, REFUSE = "if (status == MHAGEN_OK) run_all(args);", "if (status != MHAGEN_OK) return status;"
PACK = "if (status == MHAGEN_OK) mhagen_pack("

# what breaks, file below gen/, text, its replacement
MUTATIONS = [
    ("a stride of K rows", "stage/project.lua", "row * d + k0), row", "row * (d - 1) + k0), row"),
    ("a K step of A", "way/outer.lua", "a.p:at(step.k * a.step + r * a.row)", "a.p:at(step.k + r * a.row)"),
    ("a row of A in a tile", "way/outer.lua", "a.p:at(step.k * a.step + r * a.row)",
     "a.p:at(step.k * a.step + (r - r % 2) * a.row)"),
    ("the last K steps of a tile", "emit/gemm.lua", "block(t, tile, sums, tile.steps % tile.unroll,",
     "block(t, tile, sums, tile.steps % tile.unroll - 1,"),
    ("an accumulator that starts elsewhere", "emit/gemm.lua", 't:start("load", w, name, bias:at((c - 1)',
     't:start("load", w, name, bias:at(c'),
    ("the bias of queries", "emit/product.lua", "start = gemm.from_row", "start = gemm.from_zero"),
    ("the bias of columns", "emit/product.lua", "start = gemm.from_columns", "start = gemm.from_zero"),
    ("the bias of every chunk", "emit/product.lua", "(next_chunk or not bias)", "(not bias)"),
    ("partial sums lost between chunks", "emit/product.lua",
     "next_chunk and { epilogue.add(t, target), store } or { store }", "{ store }"),
    ("a write beyond the row of y", "emit/product.lua", "exact = tile.c.exact", "exact = false"),
    ("a read beyond the columns of x", "emit/transpose.lua", "elseif columns < lanes then",
     "elseif columns < 0 then"),
    ("a read of the row after x", "emit/transpose.lua", "if r >= used then", "if r > used then"),
    ("the maximum of a tile", "emit/softmax.lua", 'reduce(t, v.w, "max"', 'reduce(t, v.w, "min"'),
    ("the sum of weights", "emit/softmax.lua", 't:op("add", v.w, "sum_" .. name, sums[chain], p)',
     't:op("max", v.w, "sum_" .. name, sums[chain], p)'),
    ("a pair of sums lost", "emit/softmax.lua", "for i = 1, #list - step, 2 * step do",
     "for i = 1, #list - 2 * step, 2 * step do"),
    ("a dropped causal limit", "score/causal.lua", "return s.place end", "return s.cfg.seq_kv - 1 end"),
    ("a causal limit off by one", "score/causal.lua", "return s.place end", "return s.place + 1 end"),
    ("masked tiles taken for open ones", "score/init.lua", "expr.div(row.last(s) + 1, rows)",
     "expr.div(row.last(s) + rows, rows)"),
    ("too few causal tiles", "score/init.lua", "expr.ceil_div(row.last(final) + 1, rows)",
     "expr.div(row.last(final) + 1, rows)"),
    ("kv_len ignored", "score/kv_len.lua", "return s.len - 1 end", "return s.cfg.seq_kv - 1 end"),
    ("values of hidden keys that leak", "emit/head.lua", "filtered = masked and head.again", "filtered = false"),
    ("a row without keys that is not bo", "fold.lua", "if scores.keyless or shared(cfg) then", "if shared(cfg) then"),
    ("a row without keys divided by its sum", "emit/head.lua", "if K.plan.scores.keyless then", "if false then"),
    ("the maximum of a row without keys", "emit/softmax.lua", "if scores.keyless and not old_m then",
     "if false then"),
    ("no way back from an overflow", "emit/softmax.lua", "M.accepted = 4294967296.0",
     "M.accepted = math.huge"),
    ("no test for finite results", "emit/epilogue.lua",
     't:update(tests[at.c], "fma", value, zeros[at.c], tests[at.c])', ""),
    ("the maximum over the first keys only", "emit/head.lua", 'K:each("key", count, function(i)',
     'K:each("key", 1, function(i)'),
    ("a division by the sum left out", "emit/context.lua",
     'if block.final then steps[#steps + 1] = epilogue.scale(t, "o", inverse) end', ""),
    ("a chain of a sum left out", "emit/gemm.lua", "while apart < #sums do", "while apart < 1 do"),
    ("merged weights of another column", "stage/project.lua", "pack.term(weights, block.at)",
     "pack.term(weights, 0)"),
    ("a sign of the quadrants", "stage/quadrants.lua", "signs = { 1, -1, -1, 1 }", "signs = { 1, -1, 1, 1 }"),
    ("quadrants with rows that must not mix", "stage/quadrants.lua", "if cfg.probs then return false end", ""),
    ("weights not normalized", "emit/probs.lua", 'weight, inverse)', 'weight, weight)'),
    ("subnormal weights", "emit/probs.lua", "2.0 ^ -126", "0.0"),
    ("weights of unseen keys", "emit/probs.lua", "if K.plan.scores.masked then clear", "if false then clear"),
    ("a wrong scale of scores", "graph.lua", "1.4426950408889634 / math.sqrt(cfg.dk)",
     "1.4426950408889634 / math.sqrt(cfg.dk + 1)"),
    ("a packed column off by one", "stage/apply.lua", "pack.term(weights, run.at)", "pack.term(weights, run.at + 1)"),
    ("a root of two", "isa/avx512.lua", "1.04427373f", "1.04428373f"),
    ("exp2 of the lowest numbers", "emit/exp.lua", "M.lowest = -126.0", "M.lowest = -160.0"),
    ("heads that share their values", "stage/attend.lua", "kv * plan.attend.values.head", "0"),
    ("keys of tasks in one place", "walk.lua", "e.heads_slot, e.task_slot = e.hb, i",
     "e.heads_slot, e.task_slot = 0, i"),
    ("batch entries in one place", "walk.lua", "slot * plan.memory.entry.total", "0"),
    ("a workspace one section short", "stage/attend.lua", "statistics.count(plan.scores))", "1)"),
    ("a block of the output left out", "stage/output.lua", "run.at + i * run.size, {}", "run.at, {}"),
    ("the low part of another broadcast", "isa/avx512.lua", 'low = "$low$1)"',
     'low = "$p_setzero_ps()"'),
    ("a merged matrix transposed", "fold.lua", "b_flipped = true", "b_flipped = false"),
    ("the bias of a merged matrix", "fold.lua", 'bias = times_wk "bq"', "bias = false"),
    ("the next head's absorbed values", "stage/apply.lua", "at(at.head * size)",
     "at((plan.hb - 1 - at.head) * size)"),
    ("an infinite key that is lost", "emit/softmax.lua", "if tile.test then", "if false then"),
    ("the rows of transposed queries", "stage/attend.lua",
     "plan.hb * projected.cols, projected.c.row", "plan.hb * projected.cols, plan.hb * projected.cols"),
    ("the bias of values twice", "fold.lua", "values = { graph.with(values, { bias = false }) }",
     "values = { values }"),
    ("y written after an error", KERNEL, RUN, RUN + " else if (args && args->y) args->y[0] = 0;"),
    ("the workspace written after an error", KERNEL, RUN,
     RUN + " else if (args && args->workspace) *(char *)args->workspace = 0;"),
    ("packed weights written after an error", KERNEL, RUN,
     RUN + " else if (args && args->packed) *(char *)args->packed = 0;"),
    ("an input written after an error", KERNEL, RUN, RUN + " else if (args && args->q) *(char *)args->q = 0;"),
    ("y written after an error on a pool", RUNTIME, REFUSE,
     "if (status != MHAGEN_OK && args && args->y) args->y[0] = 0; " + REFUSE),
    ("the workspace written after an error on a pool", RUNTIME, REFUSE,
     "if (status != MHAGEN_OK && args && args->workspace) *(char *)args->workspace = 0; " + REFUSE),
    ("a length that is corrected", RUNTIME, "return MHAGEN_ERR_LENGTH;",
     "return *(int *)(uintptr_t)pointer = 0, MHAGEN_ERR_LENGTH;"),
    ("packed written after an error of packing", KERNEL, PACK,
     "if (status != MHAGEN_OK && packed) *(char *)packed = 0; " + PACK),
    ("a bias written after an error of packing", KERNEL, PACK,
     "if (status != MHAGEN_OK && weights && weights->bo) *(char *)weights->bo = 0; " + PACK),
    ("a variable that counts the runs", KERNEL, RUN,
     RUN + " static int runs; if (++runs < 0) return MHAGEN_ERR_NULL;"),
    ("a function of libc", KERNEL, RUN, RUN + " else if ((int)status == 100) __builtin_abort();"),
    ("a batch that rounds otherwise", "plan.lua", "cfg.k_block or 256", "cfg.k_block or cfg.batch > 1 and 16 or 256"),
]


def prepare(directory):
    """A copy of what the generator is built from, already built."""
    for name in "bench", "gen", "scripts", "templates", "runtime":
        shutil.copytree(fuzz.ROOT / name, directory / name)
    (directory / "tests").mkdir()
    for name in "checker.c", "checker.h", "reference.c", "reference.h":
        shutil.copy(fuzz.ROOT / "tests" / name, directory / "tests")
    shutil.copy(fuzz.ROOT / "build.ninja", directory)
    build(directory)


def build(directory):
    subprocess.run(["ninja", "-C", directory, "build/mhagen"], check=True, stdout=subprocess.DEVNULL)


def stale():
    """The mutations whose text is not there exactly once."""
    return [name for name, file, old, _ in MUTATIONS if (fuzz.ROOT / "gen" / file).read_text().count(old) != 1]


def survives(directory, mutation, run_directory):
    """None if the checker catches it, else what happened."""
    _, file, old, new = mutation
    source = directory / "gen" / file
    text = source.read_text()
    source.write_text(text.replace(old, new))
    try:
        build(directory)
        run = fuzz.Run(directory / "build/mhagen", run_directory, 1, precompile=True)
        for isa in ISAS:
            chains, _ = fuzz.toolchains(isa)
            if not chains:
                continue
            items = [fuzz.Item(fuzz.parse_config(config), isa, chains[0], 1, i)
                     for i, config in enumerate(CONFIGS)]
            run.check(items)
            if any(item.failed for item in items):
                return None
        return "survived: every config passed"
    finally:
        source.write_text(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("-k", metavar="WORD", default="", help="only mutations with this word")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if stale():
        sys.exit(f"mutate: these are stale: {', '.join(stale())}")
    chosen = [mutation for mutation in MUTATIONS if options.k in mutation[0]]
    chosen.insert(0, HEALTHY)
    alive = 0
    with tempfile.TemporaryDirectory(prefix="mhagen-mutate-") as temporary:
        trees = queue.Queue()
        for i in range(options.jobs):
            tree = pathlib.Path(temporary) / f"tree{i}"
            tree.mkdir()
            prepare(tree)
            trees.put(tree)

        def one(number):
            tree = trees.get()
            run_directory = pathlib.Path(temporary) / f"run{number}"
            run_directory.mkdir()
            try:
                return survives(tree, chosen[number], run_directory)
            finally:
                trees.put(tree)

        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for mutation, outcome in zip(chosen, pool.map(one, range(len(chosen)))):
                if mutation is HEALTHY:
                    if outcome is None:
                        sys.exit("mutate: the healthy generator fails; see tests/fuzz.py --grid")
                    continue
                alive += outcome is not None
                print(f"{'caught ' if outcome is None else 'MISSED '} {mutation[0]}"
                      + (f": {outcome}" if outcome else ""), flush=True)
    print(f"{len(chosen) - 1} mutations, {len(chosen) - 1 - alive} caught, {alive} missed")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
