"""Only the work that is needed: what a run multiplies, counted by gcov, where masks and lengths leave something out."""
import json
import re
import subprocess

import pytest

from tools import generate, native, need, run

MAIN = """
#include "kernel.h"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static float *numbers(size_t count) {
  float *x = malloc(count * sizeof *x);
  for (size_t i = 0; i < count; i++) x[i] = (float)(i * 2654435761u % 1000) / 1000 - .5f;
  return x;
}

static void *aligned(size_t bytes) {
  void *room = malloc(bytes + MHAGEN_ALIGN);
  memset(room, 0xFF, bytes + MHAGEN_ALIGN); /* NaN */
  return (void *)(((uintptr_t)room + MHAGEN_ALIGN - 1) / MHAGEN_ALIGN * MHAGEN_ALIGN);
}

int main(int argc, char **argv) { /* kv_len, kv_start, q_len, rows of a document */
  const mhagen_kernel *k = &kernel_kernel;
  const size_t d = (size_t)k->d_model, n = (size_t)k->seq, wide = (size_t)k->h * (size_t)k->dk;
  int lengths[3];
  if (!k->supported()) return puts("unsupported"), 0;
  for (int i = 0; i < 3 && i + 1 < argc; i++) lengths[i] = atoi(argv[i + 1]);
  int *const ranges = malloc(2 * n * sizeof *ranges), rows = argc > 4 ? atoi(argv[4]) : k->seq;
  for (int i = 0; i < k->seq; i++) ranges[2 * i] = i / rows * rows, ranges[2 * i + 1] = i / rows * rows + rows;
  const mhagen_weights weights = {.wq = numbers(d * wide), .wk = numbers(d * wide), .wv = numbers(d * wide),
                                  .wo = numbers(wide * d)};
  void *packed = aligned(k->packed_bytes);
  const mhagen_args args = {.q = numbers(n * d), .y = aligned(n * d * sizeof(float)), .packed = packed,
                            .workspace = aligned(k->workspace_bytes), .kv_len = &lengths[0],
                            .kv_start = &lengths[1], .q_len = &lengths[2], .row_keys = ranges};
  return k->pack(&weights, packed) || k->run(&args);
}
"""
ISA = "avx2" if native("avx2") else "scalar"
LENGTHS = "kv_len=true kv_start=true q_len=true"


class Kernel:
    """A kernel that counts how often each of its lines runs. At unroll=tile none is a loop."""

    def __init__(self, directory, config):
        need("gcov")
        directory.mkdir()
        self.directory = directory
        self.text = generate(directory, f"{config} unroll=tile", ISA).read_text().splitlines()
        (directory / "main.c").write_text(MAIN)
        run("gcc", "-O0", "--coverage", "-c", "kernel.c", cwd=directory)
        run("gcc", "-O1", "main.c", "mhagen.c", "kernel.o", "--coverage", "-pthread", "-o", "main", cwd=directory)

    def fmas(self, kv_len, kv_start=0, q_len=None, rows=None):
        """Vectors that are multiplied and added to a sum: in all tiles, and in those of scores and context."""
        for old in self.directory.glob("*.gcda"):
            old.unlink()
        if "unsupported" in run("./main", kv_len, kv_start, kv_len if q_len is None else q_len, rows or kv_len,
                                cwd=self.directory):
            pytest.skip(f"this CPU has no {ISA}")
        found = subprocess.run(["gcov", "--json-format", "--stdout", "kernel.gcda"], cwd=self.directory, check=True,
                               capture_output=True, text=True).stdout
        total = attend = 0
        for line in next(file for file in json.loads(found)["files"] if file["file"].endswith("kernel.c"))["lines"]:
            if re.match(r"\s*acc_\S+ = (\w+fmadd_ps\(|\S+ \* \S+ \+)", self.text[line["line_number"] - 1]):
                total += line["count"]
                attend += line["count"] * line["function_name"].startswith(("kernel_scores", "kernel_context"))
        return total, attend


@pytest.mark.parametrize("more", ["", "causal=true"])
def test_short_sequences(more, tmp_path):
    """A sequence of 8 in a kernel for 128 takes no more than one for 16 does."""
    shape = f"h=12 d_model=384 dk=32 {more}"
    short, _ = Kernel(tmp_path / "short", f"{shape} seq=16").fmas(16)
    long = Kernel(tmp_path / "long", f"{shape} seq=128 {LENGTHS}")
    some, _ = long.fmas(8)
    print(f"{some} of {long.fmas(128)[0]} FMAs, {some / short:.2f} times those of a kernel for 16")
    assert 0 < some <= short


def test_keys_that_nobody_sees(tmp_path):
    """Tiles of keys that no row sees are left out, of projections as of scores."""
    shape = "h=2 d_model=64 dk=32 seq=128"
    whole, attend = Kernel(tmp_path / "whole", shape).fmas(128)
    assert 0 < attend < whole
    lengths = Kernel(tmp_path / "lengths", f"{shape} {LENGTHS}")
    assert lengths.fmas(128) == (pytest.approx(whole, rel=0.02), pytest.approx(attend, rel=0.02))
    for few in lengths.fmas(32, 0, 128), lengths.fmas(128, 96, 128), lengths.fmas(96, 64, 128):
        projected, seen = few[0] - few[1], few[1]
        assert seen <= 0.33 * attend and projected <= 0.7 * (whole - attend), few
    for config, part in ("causal=true", 0.6), ("window_left=15 window_right=0", 0.4):
        assert Kernel(tmp_path / config.replace(" ", "_"), f"{shape} {config}").fmas(128)[1] <= part * attend, config


def test_rows_that_nobody_asks_for(tmp_path):
    """Causal rows see no key behind the last one that is asked for; without rows there is nothing to do."""
    shape = "h=2 d_model=64 dk=32 seq=128"
    whole, _ = Kernel(tmp_path / "whole", f"{shape} causal=true").fmas(128)
    kernel = Kernel(tmp_path / "rows", f"{shape} causal=true q_len=true")
    assert kernel.fmas(128)[0] == pytest.approx(whole, rel=0.02)
    assert kernel.fmas(128, q_len=32)[0] <= 0.3 * whole
    assert kernel.fmas(128, q_len=0) == (0, 0)


def test_documents(tmp_path):
    """Rows of documents in a row compute about as many scores as the documents alone."""
    shape = "h=2 d_model=64 dk=32"
    _, attend = Kernel(tmp_path / "one", f"{shape} seq=64").fmas(64)
    packed = Kernel(tmp_path / "packed", f"{shape} seq=256 row_keys=range")
    _, whole = packed.fmas(256)
    _, four = packed.fmas(256, rows=64)
    print(f"{four} FMAs of 4 documents, {whole} of one; {four / attend:.2f} times those of a kernel for one")
    assert 3.5 * attend <= four <= 4.6 * attend and whole >= 3 * four
