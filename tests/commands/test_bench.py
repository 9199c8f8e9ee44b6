"""bench: the rows that it gives, its messages when something fails, and the scripts around it. No test
depends on how fast something is."""
import importlib.util
import json
import os
import re
import subprocess
import sys

import pytest

from test_config import arguments, assert_refused
from tools import EMULATED, MHAGEN, REFERENCE, ROOT, SUITE, emulation, generate, in_turn, need, quick_cc, run

FIELDS = re.findall(r'^  \{ "(\w+)",', (ROOT / "gen/lab/results.lua").read_text(), re.M)
SHAPE = "h=2 d_model=40 dk=16 seq=35"
PEAKS = r"""
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "bench.h"

/* Whether no two sums begin alike, and all stay numbers. */
int main(void) {
  static float data[MHAGEN_PEAK_FLOATS], out[MHAGEN_PEAK_FLOATS];
  for (const mhagen_peak *const *p = mhagen_peaks; *p; p++) {
    if (!(*p)->run || !mhagen_cpu_has((*p)->cpu)) continue;
    for (int i = 0; i < MHAGEN_PEAK_FLOATS; i++) {
      const unsigned word = (i + 1) * 2654435761u, pair = 0x3F003F00u | (word & 0x807F807Fu);
      data[i] = sinf(1.0f + (float)i);
      if (strcmp((*p)->type, "f32")) memcpy(&data[i], strcmp((*p)->type, "int8") ? &pair : &word, sizeof word);
    }
    memset(out, 0, sizeof out);
    (*p)->run(out, data, 0);
    int different = 1, finite = 1, count = 0;
    while (count < MHAGEN_PEAK_FLOATS && out[count] != 0) count++;
    for (int i = 0; i < count; i++)
      for (int j = 0; j < i; j++) different &= memcmp(&out[i], &out[j], sizeof out[i]) != 0;
    (*p)->run(out, data, 1000);
    for (int i = 0; i < count; i++) finite &= !strcmp((*p)->type, "int8") || isfinite(out[i]);
    printf("%s %d %d\n", (*p)->type, different && count >= 8, finite);
  }
}
"""


@pytest.fixture(scope="module", autouse=True)
def objects_of_every_bench(objects):
    """Scripts too take what all programs are linked with from where it is, and leave kernels slow."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CC", quick_cc())
        yield


def bench(tmp_path, *args, **env):
    """Runs bench with its own TMPDIR, which must be empty afterwards."""
    temp = tmp_path / "temp"
    temp.mkdir(exist_ok=True)
    result = subprocess.run([MHAGEN, "bench", "--samples", "7", *args], capture_output=True, text=True,
                            timeout=600, env={**os.environ, "CC": quick_cc(), "TMPDIR": str(temp), **env})
    assert list(temp.iterdir()) == []
    return result


def bench_row(tmp_path, *args, status=0, **env):
    result = bench(tmp_path, "--json", *args, **env)
    assert result.returncode == status, result
    assert result.stdout.count("\n") == 1
    return json.loads(result.stdout)


def sane(row, error=1e-6):
    assert (row["status"], row["message"], row["repetitions"]) == ("ok", "", 7)
    assert 0 < row["us_min"] <= row["us_median"] <= row["us_p99"] and row["us_cold"] > 0
    assert row["gflops"] == pytest.approx(row["flops"] / row["us_median"] / 1e3, rel=1e-3)
    assert row["gflops"] < 1.6 * row["threads"] * row["peak_gflops"]
    assert 0 < row["fraction"] < 1.6 and 0 < row["peak_low"] <= row["peak_gflops"]
    assert 0 < row["error"] < error and row["disturbed"] in (True, False)
    for key in "flops", "statements", "text_bytes", "packed_bytes", "workspace_bytes", "cores":
        assert row[key] > 0 and isinstance(row[key], int), key
    for key in "compile_seconds", "generate_seconds":
        assert 0 <= row[key] < 60
    for key in "cpu", "system", "compiler", "flags", "version":
        assert row[key] and isinstance(row[key], str), key


# ---- rows ----

def test_row(tmp_path):
    """And not a warning on the way."""
    cc = "cc -O1 -Werror -Wall -Wextra -Wpedantic -Wshadow"
    row = bench_row(tmp_path, *SHAPE.split(), "isa=scalar", CC=cc)
    assert list(row) == FIELDS
    sane(row)
    assert row["threads"] == 1
    assert row["flags"] == cc + " -std=c11" and "cc" in row["compiler"]
    assert row["command"] == f"mhagen gen {SHAPE} isa=scalar"
    assert row["flops"] == 2 * 35 * 40 * 3 * 32 + 4 * 35 * 35 * 32 + 2 * 35 * 32 * 40
    config = row["config"]
    assert config["name"] == row["name"] and config["causal"] is False and config["dv"] == 16
    assert list(config)[:6] == ["h", "h_kv", "d_model", "dk", "dv", "seq"] and "kv_rows" not in config


def test_error_of_long_scores(tmp_path):
    """Wk is applied to two queries, so their scores are sums over d_model."""
    sane(bench_row(tmp_path, "isa=scalar", *"h=16 d_model=2048 dk=16 seq=2 seq_kv=33 attention=cross".split()))


@pytest.mark.parametrize("config", [
    "dv=9 seq=19 attention=cross seq_kv=23 causal=true kv_len=true probs=true batch=3 unroll=tile",
    "seq=19 kv_start=true q_len=true mask=add mask_dims=hqk scores=masked alibi=true sink=true batch=2",
    "seq=3 seq_kv=23 cache=append rope=half qk_norm=rms scores=scaled batch=2",
    "seq=3 seq_kv=23 attention=cross cache=append q_len=true kv_len=true kv_start=true mask=add probs=true "
    "scores=masked rope=half rope_tables=apart alibi=true sink=true io_dtype=bf16"])
def test_every_argument(config, tmp_path):
    error = 4e-3 if "io_dtype=bf16" in config else 1e-6
    sane(bench_row(tmp_path, *f"h=2 d_model=20 dk=6 isa=scalar {config}".split()), error)


def test_threads(tmp_path):
    cores = len(os.sched_getaffinity(0))
    refused = bench(tmp_path, *SHAPE.split(), "isa=scalar", "--threads", "9999")
    assert refused.returncode == 1
    assert f": time: 9999 threads need as many cores, and this process may use {cores}\n" in refused.stderr
    if cores < 2:
        pytest.skip("one core")
    row = bench_row(tmp_path, *SHAPE.split(), "isa=scalar", "--threads", "2")
    sane(row)
    assert row["threads"] == 2 and 0 < row["fma_speedup"] < 3
    text = bench(tmp_path, *SHAPE.split(), "isa=scalar", "--threads", "2", "--samples", "5").stdout
    assert re.search(r"^  threads   2 FMA loops at once do [\d.]+ times the work of one$", text, re.M), text


def test_threads_in_turn(tmp_path):
    """Several numbers of threads make a table, and a row of JSON each; the gain is that of the first row's time."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    text = bench(tmp_path, *SHAPE.split(), "isa=scalar", "--threads", "1,2", "--samples", "5").stdout
    head, *rows = text.split("\n  threads        us")[1].splitlines()
    assert head.split() == ["speedup", "FMA", "loops", "efficiency", "predicted"]
    one, two = ([float(word) for word in row.split()] for row in rows)
    assert one[0] == 1 and one[2:] == [1, 1, 1, 1] and two[0] == 2
    assert abs(two[2] - one[1] / two[1]) < 0.01 and abs(two[4] - two[2] / two[3]) < 0.02 and 1 <= two[5] <= 2
    lines = bench(tmp_path, *SHAPE.split(), "isa=scalar", "--threads", "1,2", "--samples", "5", "--json").stdout
    assert [json.loads(line)["threads"] for line in lines.splitlines()] == [1, 2]


def test_phases(tmp_path):
    row = bench_row(tmp_path, *SHAPE.split(), "isa=scalar", "--phases")
    assert list(row) == FIELDS + ["phases", "of_floor"]
    assert set(row["of_floor"]) - {"all"} < set(row["phases"])
    assert {"keys_values", "attend", "scores", "context", "output"} < set("+".join(row["phases"]).split("+"))
    assert list(row["phases"])[-1] == "other" and row["phases"]["other"] < 0.5
    assert sum(row["phases"].values()) == pytest.approx(1, abs=1e-3)
    assert row["phases"]["scores"] > 0 and row["phases"]["context"] > 0


@pytest.mark.parametrize("cpu", in_turn(["generic", "sapphirerapids", "zen4"], "floors"))
def test_floor_of_the_core_that_runs(cpu, tmp_path):
    """It does not depend on the plan's CPU. tests/unit/unit_floor.lua has its numbers, for measured ones vary."""
    core = run(MHAGEN, "isas", "--cpu").strip()
    shape = "h=2 d_model=256 dk=64 seq=200 isa=native"
    floors = bench_row(tmp_path, *shape.split(), f"cpu={cpu}", "--phases")["of_floor"]
    assert list(floors)[:1] == ["all"][:core != "generic"]
    assert all(part > 0 for part in floors.values())


def test_phases_of_straight_code(tmp_path):
    config = ["h=2", "d_model=3", "dk=2", "seq=3", "unroll=full", "isa=scalar"]
    assert bench_row(tmp_path, *config, "--phases")["phases"] == {}


@pytest.mark.parametrize("shape, parts", [
    ("h=2 d_model=40 dk=16 seq=35 q_lanes=queries", {"transpose", "query", "scores", "context", "attend"}),
    ("h=2 d_model=40 dk=16 seq=2 seq_kv=33 attention=cross q_lanes=columns", {"key_query", "value_context"})])
def test_parts_of_phases(shape, parts, tmp_path):
    """Those of the kernel, with what is done in attention."""
    row = bench_row(tmp_path, *shape.split(), "isa=scalar", "unroll=tile", "--phases")
    assert parts <= set("+".join(row["phases"]).split("+"))


@pytest.mark.parametrize("unroll, phases", [
    ("tile", r"\w+ [\d.]+ %, .*scores [\d.]+ %.*, other [\d.]+ %"),
    ("full", "not told apart: at unroll=full a run is one function")])
def test_text(unroll, phases, tmp_path):
    result = bench(tmp_path, *arguments(seq=2, d_model=3), f"unroll={unroll}", "--phases")
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0].startswith("mha_f32_h2_d3_k16_s2_")
    labels = [line.split()[0] for line in lines[1:]]
    assert labels == ["machine", "compiler", "time", "speed", "floor", "error", "size", "phases"]
    assert re.fullmatch("  phases    " + phases, lines[-1]) and max(map(len, lines)) < 150


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs an x86-64 host")
def test_foreign_code_is_skipped(tmp_path):
    result = bench(tmp_path, *arguments(isa="neon"), PATH="/nonexistent")
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == "mha_f32_h2_d32_k16_s16_neon: skipped: it is code for aarch64\n"
    row = bench_row(tmp_path, *arguments(isa="neon"))
    assert list(row) == FIELDS
    assert (row["status"], row["message"]) == ("skipped", "it is code for aarch64")
    assert row["us_median"] is None and row["flops"] > 0


def test_peaks_of_types(tmp_path):
    """One that is multiplied has its own; the flops of several are over the peak of each; what becomes float32 has
    that of FMAs. Words of four bytes are multiplied by any ISA."""
    shape = "h=2 d_model=64 dk=32 seq=32 isa=scalar"
    for keys, error, other in ("", 1e-6, False), ("dtype=bf16", 8e-3, False), ("dtype=int8", 3e-2, True):
        row = bench_row(tmp_path, *shape.split(), *keys.split())
        sane(row, error)
        assert (abs(row["peak_gflops"] / row["fma_gflops"] - 1) > 1e-4) == other
        attention = 4 * 32 * 32 * 64 / row["flops"]  # takes its part of the time at the peak, and no more
        assert not other or attention * row["peak_gflops"] < row["fma_gflops"]
    text = bench(tmp_path, *shape.split(), "dtype=int8").stdout
    assert re.search(r"^  speed .* % of the int8 and FMA peak of 1 core, ", text, re.M), text


def test_every_peak_is_measured(tmp_path):
    """The loops of all products that this CPU has, one by one: no two of its sums begin alike, of which a
    compiler would make one, and none leaves the ordinary numbers."""
    run(MHAGEN, "bench", *SHAPE.split(), "isa=scalar", "--samples", "1", "-o", tmp_path / "b")
    (tmp_path / "main.c").write_text(PEAKS)
    for isa, more in [(None, []), *((isa, emulation(isa)) for isa in EMULATED if emulation(isa))]:
        run("cc", "-std=c11", "-O2", *more, f"-I{ROOT}/runtime", f"-I{ROOT}/bench", tmp_path / "main.c",
            *(tmp_path / "b" / name for name in ("mhagen_peak.c", "mhagen.c")), "-o", tmp_path / "peaks", "-lm",
            "-pthread")
        lines = [line.split() for line in run(tmp_path / "peaks").splitlines()]
        assert {"f32", "int8", *(["bf16"] if isa else [])} <= {kind for kind, *_ in lines}
        for kind, different, finite in lines:
            assert (different, finite) == ("1", "1"), (isa, kind)


# ---- what goes wrong ----

@pytest.mark.parametrize("args, message", [
    (["h=0"], "config: h = 0: must be"),
    (arguments() + ["--samples", "0"], "option '--samples': '0' is not a number from 1"),
    (arguments() + ["--threads", "x"], "option '--threads': 'x' is not"),
    (arguments() + ["--threads", "-1"], "'-1'"),
    (arguments() + ["--jsn"], "unknown option '--jsn', did you mean '--json'?"),
    (arguments(name="reference"), "config: name = reference: must not be the name of a file of the bench"),
])
def test_refused(args, message, tmp_path):
    assert_refused(bench(tmp_path, *args), message)


def test_without_compiler(tmp_path):
    assert_refused(bench(tmp_path, *arguments(), CC="no-such-cc"), "mhagen: no-such-cc: ")


def test_that_does_not_compile(tmp_path):
    message = "false ended with status 1"
    result = bench(tmp_path, *arguments(), CC="false -x")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"mhagen: bench of mha_f32_h2_d32_k16_s16_scalar: compile: {message}\n"
    row = bench_row(tmp_path, *arguments(), CC="false -x", status=1)
    assert list(row) == FIELDS and (row["status"], row["message"]) == ("compile", message)


@pytest.mark.parametrize("script, status, message", [
    ("echo message wrong; echo status check; exit 1", "check", "wrong"),
    ("kill -SEGV $$", "time", "mhagen_bench ended with status 139"),
    ("echo threads; head -c 3000000 /dev/zero; exit 3", "time", "mhagen_bench ended with status 3")])
def test_program_that_fails(script, status, message, tmp_path):
    """With a compiler whose programs do as told."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\n"
                        'case "$*" in *" -c "* | *--version*) exec cc "$@" ;; esac\n'
                        "while test $1 != -o; do shift; done\n"
                        f"printf '#!/bin/sh\\n{script}\\n' >$2; chmod +x $2\n")
    compiler.chmod(0o755)
    row = bench_row(tmp_path, *arguments(), CC=str(compiler), status=1)
    assert row["status"] == status and row["message"].endswith(message)


@pytest.mark.parametrize("command, options, message", [
    ("bench", [], "bench of .*: compile: .*/compiler timed out after 1 s"),
    ("check", [], "check of .*: .*/compiler timed out after 1 s"),
    ("tune", ["--budget", "1s", "--quiet"], "tune: the default: ninja timed out after [0-9]+ s")])
def test_timeout(command, options, message, tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text('#!/bin/sh\ncase "$*" in *--version*) echo 1; exit ;; esac\nsleep 300\n')
    compiler.chmod(0o755)
    options += ["-o", tmp_path / "tuned/x.lua"] if command == "tune" else []
    result = subprocess.run([MHAGEN, command, *arguments(), "--timeout", "1", *options], capture_output=True,
                            text=True, timeout=600, env={**os.environ, "CC": str(compiler)})
    assert result.returncode == (2 if command == "tune" else 1) and re.search(message, result.stderr), result


# ---- the program ----

@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The directory of a benchmark."""
    out = tmp_path_factory.mktemp("kept") / "new"
    run(MHAGEN, "bench", *SHAPE.split(), "isa=scalar", "name=kernel", "--samples", "3", "-o", out)
    return out


@pytest.mark.parametrize("name", ["kernel.c", "mhagen_bench.c", "mhagen_peak.c", "bench.c", "reference.c", "mhagen.h",
                                  "kernel.o", "mhagen_bench"])
def test_files_of_others_stay(name, tmp_path):
    """Sources, and what compilers make of them."""
    (tmp_path / name).write_text("mine")
    arguments = ["bench", *SHAPE.split(), "isa=scalar", "name=kernel", "--samples", "1", "-o", tmp_path]
    result = subprocess.run([MHAGEN, *arguments], capture_output=True, text=True, env={**os.environ, "CC": "false"})
    assert_refused(result, f"{tmp_path}/{name}: not made by mhagen; --force replaces")
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"


def test_kept_files_are_replaced(kept):
    """Every file that bench writes says that mhagen made it; by another kernel of the same name too."""
    for path in kept.glob("*.[ch]"):
        path.write_text(path.read_text() + "/* changed */\n")
    run(MHAGEN, "bench", *SHAPE.split(), "isa=scalar", "name=kernel", "--samples", "3", "-o", kept)
    assert not [path for path in kept.glob("*.[ch]") if "/* changed */" in path.read_text()]


def test_program_is_kept(kept):
    lines = run(kept / "mhagen_bench", "--quick", "--samples", "3").splitlines()
    keys = [line.split(" ", 1)[0] for line in lines]
    assert set(keys) < set(FIELDS) and len(set(keys)) == len(keys)
    assert "us_median" in keys and not {"error", "us_cold"} & set(keys)
    assert lines[-1] == "status ok"


@pytest.mark.parametrize("args", [["--samples"], ["--samples", "0"], ["-x"], ["--threads", "-2"]])
def test_usage_of_the_program(args, kept):
    result = subprocess.run([kept / "mhagen_bench", *args], capture_output=True, text=True)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("usage: ")


def test_wrong_results_are_not_timed(kept, tmp_path):
    for path in kept.glob("*.[ch]"):
        text = path.read_text()
        assert path.name != "kernel.c" or text.count("  .fill_count = sizeof") == 1
        (tmp_path / path.name).write_text(text.replace("  .fill_count = sizeof", "  .fill_count = 0 * sizeof"))
    run("sh", "-c", "cc -std=c11 -O1 -o program *.c -lm -pthread", cwd=tmp_path)
    result = subprocess.run([tmp_path / "program"], capture_output=True, text=True)
    assert result.returncode == 1
    assert re.search(r"\nmessage the error is 1, more than 1e-06\nstatus check\n$", result.stdout)


# ---- the suite ----

def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / f"bench/{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_suite_is_that_of_the_tests():
    shapes = {name: sorted(config) for name, (config, _) in script("suite").suite().items()}
    assert shapes == {name: sorted(config.split()) for name, config in SUITE}


def test_suite(tmp_path):
    table = run(sys.executable, ROOT / "bench/suite.py", "--shapes", "micro", "--isa", "scalar", "--cc", "cc -O1",
                "--out", tmp_path / "new", "batch=2")
    assert (tmp_path / "new/bench.txt").read_text() == table
    assert re.search(r"^micro +[\d.]+ ", table, re.M)
    row, = json.loads((tmp_path / "new/bench.json").read_text())
    assert row["id"] == "micro" and row["config"]["batch"] == 2 and list(row)[2:] == FIELDS


def test_ab(tmp_path):
    text = run(sys.executable, ROOT / "bench/ab.py", "--rounds", 3, "--samples", 1, "--isa", "scalar",
               *SHAPE.split(), "--a", "key_rows=2", "--b", "key_rows=4 seq=3")
    lines = text.splitlines()
    assert "key_rows=2" in lines[0] and "seq=3 " in lines[1] and lines[2].endswith("faster in 3 of 3")


def test_variants():
    lines = run(sys.executable, ROOT / "bench/variants.py", "--isa", "scalar", "--shapes", "micro", "--variants",
                "softcap,causal", "--rounds", 1, "--samples", 1).splitlines()
    assert lines[0].split() == ["micro", "goal"]
    assert re.match(r"softcap +\d\.\d{3}[ <]  0\.80$", lines[1]) and lines[2].startswith("causal ")


def test_decode():
    """A kernel agrees with the formula in float64, and so does one with other keys, whose error is shown."""
    need("gcc")
    pytest.importorskip("numpy", reason="NumPy is not installed")
    line = run(sys.executable, ROOT / "bench/decode.py", "--isa", "scalar", "--models", "gpt2", "--contexts", 5,
               "--seq", 2, "--peers", "", "--rounds", 1, "--ms", 1, "--kernel", "bf16=dtype=bf16 cache_layout=bhsd")
    assert re.match(r"gpt2 +5 \+ 2 +ours +[\d.]+ us \([1-9]e-07\);  times ours: bf16 [\d.]+ \([1-9]e-03\) "
                    r" read [\d.]+  read_bf16 [\d.]+$", line), line


def test_cache():
    """Kernels read a cache that one call has filled."""
    need("gcc")
    pytest.importorskip("numpy", reason="NumPy is not installed")
    line = run(sys.executable, ROOT / "bench/cache.py", "--isa", "scalar", "--dk", 5, "--shares", 2, "--contexts", 20,
               "--types", "f32,int8", "--megabytes", 0, "--rounds", 1, "--ms", 1)
    assert re.match(r"20 keys, dk 5, 2 heads share:  f32 \d+ us [\d.]+ GB/s [\d.]+;  int8 \d+ us", line), line


def test_flex():
    """A kernel of each variant agrees with the formula in float64."""
    need("gcc")
    pytest.importorskip("numpy", reason="NumPy is not installed")
    lines = run(sys.executable, ROOT / "bench/flex.py", "--isa", "scalar", "--heads", 3, "--dk", 5, "--rows", 140,
                "--peers", "", "--rounds", 1, "--ms", 1).splitlines()
    assert [line.split()[0] for line in lines] == ["full", "causal", "window", "softcap", "alibi", "documents"]
    assert all(re.search(r" ours +[\d.]+ us \([1-9]e-0[78]\);  times ours:$", line) for line in lines), lines


def test_threads_of_layers():
    """A kernel agrees with the formula; who cannot run ends the script."""
    need("gcc")
    pytest.importorskip("numpy", reason="NumPy is not installed")
    table = run(sys.executable, ROOT / "bench/threads.py", "--shapes", "micro", "--types", "f32", "--threads", 1,
                "--isa", "scalar", "--alone", "--rounds", 1)
    assert re.search(r"^micro, f32: us, .*\n +threads +1\n +mhagen +\d+\.\d\n +loops gain +1\.00\n", table, re.M), table


def test_pack():
    lines = run(sys.executable, ROOT / "bench/pack.py", "--isa", "scalar", "--layers", 1, "--rounds", 1).splitlines()
    assert lines[0] == "1 layers, 42 MB of float32: MB/s"
    assert len(lines) == 7 and all(re.match(r"\w*dtype=\w+ +scalar +[1-9]\d*$", line) for line in lines[1:]), lines


def test_tuned(tmp_path):
    need("ninja")
    command = [sys.executable, ROOT / "bench/tuned.py", "--shapes", "micro", "--random", "micro", "--isa", "scalar",
               "--budget", "2s", "--out", tmp_path]
    table = run(*command).splitlines()[-1]
    assert re.match(r"micro +\d+\.\d\d +\d+\.\d\d +[01]\.\d{3} +[01]\.\d{3} +\d+  \w", table)
    assert {path.name for path in tmp_path.iterdir()} >= {"tuned.lua", "random.lua", "tuned.txt", "tune.jsonl"}
    assert run(*command).splitlines()[-1] == table  # from the files


def test_compared_kernels_are_checked(tmp_path):
    """A kernel that leaves out a part is wrong, also where another one has left the right numbers."""
    for name, change in ("good", lambda text: text), ("bad", leave_out_a_panel), ("also", lambda text: text):
        source = generate(tmp_path, "h=2 d_model=16 dk=8 seq=8", "scalar", name)
        source.write_text(change(source.read_text()))
    run(MHAGEN, "bench", *"h=2 d_model=16 dk=8 seq=8 isa=scalar --samples 1 -o".split(), tmp_path / "b")
    (tmp_path / "main.c").write_text(
        '#include "bench.h"\n#include "good.h"\n#include "bad.h"\n#include "also.h"\n'
        'int main(int argc, char **argv) {\n  static const mhagen_entry entries[] = {\n'
        '    {"good", &good_kernel}, {"bad", &bad_kernel}, {"also", &also_kernel}, {0, 0}};\n'
        "  return mhagen_compare_main(entries, 1e4, argc, argv);\n}\n")
    run("cc", "-std=c11", "-O1", f"-I{ROOT}/runtime", f"-I{ROOT}/bench", f"-I{ROOT}/tests/check", *tmp_path.glob("*.c"),
        tmp_path / "b/mhagen_peak.c", ROOT / "bench/bench.c", *REFERENCE, "-o", tmp_path / "compare", "-lm", "-pthread")
    assert re.findall(r"^(right|wrong) (\w+)", run(tmp_path / "compare"), re.M) == [
        ("right", "good"), ("wrong", "bad"), ("right", "also")]
    text = run(tmp_path / "compare", "--samples", 3, "bad")
    times = re.findall(r"^time (\w+) (\S+) (\S+)$", text, re.M)
    least = dict(re.findall(r"^least (\w+) (\S+)$", text, re.M))
    assert all(0 < float(least[name]) <= float(median) for name, median, _ in times)
    assert sorted(name for name, _, _ in times) == ["bad", "good"]
    assert [ratio for name, _, ratio in times if name == "good"] == ["1.00000"]


def leave_out_a_panel(text):
    """Of the output, which is the last loop over panels."""
    before, found, after = text.rpartition("panel < 4;")
    assert found
    return before + "panel < 3;" + after


@pytest.mark.parametrize("script", ["ab", "mca", "peers", "suite", "tuned"])
def test_help_needs_nothing(script):
    """Of Python no more than its own library (-S: no packages)."""
    assert "usage: " in run(sys.executable, "-S", "-B", ROOT / f"bench/{script}.py", "--help")
