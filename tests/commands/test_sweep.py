"""sweep: the grid, the plan, how it goes on after a failure or a kill, and the results.

In most tests a script replaces the compiler; the programs that it makes note what was run, and how often.
"""
import csv
import fcntl
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import time

import pytest

from test_bench import FIELDS
from test_config import assert_refused
from test_faults import wait_for
from tools import MHAGEN, ROOT, SEED, cpu_time, native, need

pytestmark = pytest.mark.skipif(not shutil.which("ninja"), reason="no ninja")

# Its programs fail where the name of the config holds $FAIL_..., are disturbed $DISTURBED times, and
# take $SECONDS. What is run is a line of LOG.
COMPILER = r"""#!/bin/sh
case "$*" in
  *--version*) echo "compiler 1"; exit ;;
  *" -x c-header "*) test -z "$NO_HEADERS" || exit 1 ;;
  *"$FAIL_COMPILE"*.c*) echo "x.c:1: error: ${FAIL_WITH:-refused}" >&2; exit 1 ;;
  *"$HANG_COMPILE"*.c*) trap "" TERM; HERE/sleeper 321 & HERE/sleeper 321; HERE/sleeper 321 ;;
esac
echo "$*" >>HERE/compiled
for word; do
  test "$before" = -o && out=$word
  before=$word
done
case "$*" in
  *" -c "*) cp HERE/empty.o "$out" ;;
  *) cp HERE/program "$out" ;;
esac
"""
PROGRAM = r"""#!/bin/sh
echo "${1:-time} $0" >>HERE/log
sleep ${SECONDS_EACH:-0}
case "${1:-time} $0" in
  check*"$HANG_CHECK"*|time*"$HANG_TIME"*) HERE/sleeper 321 & HERE/sleeper 321 ;;
esac
test -z "$EMPTIES" || : >"$EMPTIES"
case "${1:-time} $0" in
  check*"$FAIL_CHECK"*) echo "FAIL y[3] is wrong"; exit 1 ;;
  time*"$FAIL_TIME"*) echo "message too late"; echo "status time"; exit 1 ;;
  check*) echo ok; exit ;;
esac
disturbed=false
echo "$0" >>HERE/times
test "$(grep -cF "$0" HERE/times)" -le ${DISTURBED:-0} && disturbed=true
now=$(date +%s%N)
printf '%s\n' "cpu a CPU" "cores 1" "system an OS" "threads 1" "packed_bytes 1" "workspace_bytes 1" \
  "error 1e-7" "repetitions 5" "us_min 1" "us_median 1.${now#??????????}" "us_p99 2" "us_cold 3" \
  "gflops 1" "peak_gflops 2" "fraction 0.5" "disturbed $disturbed" ${SAYS:+"$SAYS"} "status ok"
"""
NOTHING = "no config has this in its name"


class Sweep:
    """A directory, a grid, and a compiler that does nothing."""

    def __init__(self, path):
        self.path, self.out = path, path / "out"
        for name, text in ("compiler", COMPILER), ("program", PROGRAM):
            (path / name).write_text(text.replace("HERE", str(path)))
            (path / name).chmod(0o755)
        (path / "sleeper").symlink_to(shutil.which("sleep"))
        (path / "empty.c").write_text("const int x = 1;")
        subprocess.run(["cc", "-c", "-o", path / "empty.o", path / "empty.c"], check=True)
        self.env = {**os.environ, "CC": str(path / "compiler"), "FAIL_COMPILE": NOTHING,
                    "FAIL_CHECK": NOTHING, "FAIL_TIME": NOTHING, "HANG_COMPILE": NOTHING,
                    "HANG_CHECK": NOTHING, "HANG_TIME": NOTHING}
        self.program = MHAGEN

    def grid(self, text):
        (self.path / "grid.lua").write_text(text)

    def command(self, *args):
        return [self.program, "sweep", self.path / "grid.lua", "-o", self.out, *args]

    def run(self, *args, **env):
        return subprocess.run(self.command(*args), capture_output=True, text=True, timeout=600,
                              env={**self.env, **env})

    def done(self, *args, status=0, **env):
        """Runs; returns the rows by id."""
        result = self.run(*args, **env)
        assert result.returncode == status, result
        return self.rows()

    def rows(self):
        lines = (self.out / "results.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        assert all(list(row) == FIELDS for row in rows)
        return {row["command"].removeprefix("mhagen gen "): row for row in rows}

    def ran(self):
        """What has run since the last call: lines "check|time ID"."""
        log = self.path / "log"
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return sorted(re.sub(r" configs/(.*)/program", r" \1", line) for line in lines)


@pytest.fixture
def sweep(tmp_path):
    return Sweep(tmp_path)


def grid(**axes):
    axes = {"h": "1", "d_model": "8", "dk": "4", "seq": "{ 3, 4 }", "isa": '"scalar"', **axes}
    return "return { " + ", ".join(f"{key} = {value}" for key, value in axes.items()) + " }"


BASE = "h=1 d_model=8 dk=4 seq=3 isa=scalar"


def name(seq):
    return f"mha_f32_h1_d8_k4_s{seq}_scalar"


# ---- grids ----

@pytest.mark.parametrize("text, message", [
    (grid(sqe="{ 1 }"), "sqe: unknown key, did you mean seq?"),
    (grid(wher="1"), "wher: unknown key, did you mean where?"),
    (grid(heads="2"), "heads: unknown key: it is h here"),
    ("return { { 1 } }", "[1]: keys must be names"),
    ("return 1", "must return one table"),
    ("return {}", "no axis and no configs"),
    ("return {", "grid.lua:1: "),
    ("while true do end", "runs for more than"),
    ("local t = {} while true do t[#t + 1] = {} end", "runs for more than|needs more than"),
    (grid(seq="{}"), "axis seq is empty"),
    (grid(seq="{ a = 1 }"), "axis seq must be a list of values"),
    (grid(configs="{ { seq = 3 } }"), "seq is an axis and also in configs"),
    (grid(configs="{ 3 }"), "configs[1] is no table"),
    (grid(configs="{}"), "configs is empty"),
    (grid(configs="3"), "configs must be a list of tables"),
    (grid(where="3"), "where must be a function or a table"),
    (grid(where="{ 3 }"), "where[1] is no table"),
    (grid(where="function(c) return c.sqe > 3 end"), "grid.lua:1: where asks for sqe, which no axis"),
    (grid(where="{ sqe = 3 }"), "where asks for sqe"),
    (grid(where="function(c) return c.isa > 3 end"), "grid.lua:1: attempt to compare"),
    (grid(where="function(c) while true do end end"), "runs for more than"),
    (grid(where="function(c) return string.rep('a', 9) end"), "global 'string'"),
    (grid(where="function(c) return load('x') end"), "global 'load'"),
    (grid(where="function(c) return false end"), "where refuses all 2 configs"),
    (grid(seq="0"), "all 1 configs are invalid; d_model=8 dk=4 h=1 isa=scalar seq=0: config: seq = 0"),
    (grid(seq="{ {}, {} }"), "seq=a table: config: seq = a table: must be an integer"),
])
def test_refused_grids(text, message, sweep):
    sweep.grid(text)
    result = sweep.run("--quiet")
    assert re.search(re.escape(message).replace(r"\|", "|"), result.stderr), result
    assert_refused(result)
    assert not sweep.out.exists()


def test_long_texts_in_a_grid(sweep):
    """Each config would have a copy; and what is said of one is short."""
    text = "local s = 'x' for i = 1, 20 do s = s .. s end local list = {} for i = 1, 600 do list[i] = i end "
    sweep.grid(text + grid(name="s", seq="list"))
    assert_refused(sweep.run("--dry-run"), "grid.lua: returns more than 512 MiB of keys and values")
    sweep.grid(text + grid(name="s"))
    result = sweep.run("--dry-run")
    assert result.returncode == 2 and max(map(len, result.stdout.splitlines() + [result.stderr])) < 900


@pytest.mark.long
@pytest.mark.slow
def test_long_comparisons_in_a_grid(sweep):
    """Few instructions that take long each."""
    sweep.grid("local s = 'x' for i = 1, 24 do s = s .. s end local a, b = s .. 'a', s .. 'b' "
               "while true do local c = a < b end")
    start = cpu_time()
    assert_refused(sweep.run("--dry-run"), "grid.lua:1: runs for more than 10 seconds")
    assert cpu_time() - start < 20


@pytest.mark.parametrize("option", ["--dry-run", "--quiet", "--limit=3"])
def test_slurm_without_its_options(option, sweep):
    """They have been forgotten: what follows is an option of sweep."""
    sweep.grid(grid())
    assert_refused(sweep.run("--slurm", option), "option '--slurm' requires an argument")
    assert not sweep.out.exists()
    assert sweep.run("--slurm", "--exclusive", "--dry-run").returncode == 0


def listed(sweep, *args):
    assert sweep.run("--plan-only", *args).returncode == 0
    return (sweep.out / "configs.txt").read_text().splitlines()


def test_product(sweep):
    """In the order of the schema, whatever the order in the file; the last axis is the fastest."""
    sweep.grid(grid(h="{ 1, 2 }", causal="{ false, true }"))
    assert listed(sweep) == [
        f"h={h} d_model=8 dk=4 seq={seq} isa=scalar{causal}"
        for h in (1, 2) for seq in (3, 4) for causal in ("", " causal=true")]
    folders = sorted(path.name for path in (sweep.out / "configs").iterdir())
    assert len(folders) == 8 and folders[0] == "mha_f32_h1_d8_k4_s3_causal_scalar"


@pytest.mark.parametrize("where, seqs", [
    ("function(c) return c.seq % 2 == 0 end", [4, 6]), ("{ seq = 5 }", [5]),
    ("{ { seq = { 3, 5 } }, { h = 1, seq = 6 }, { h = 2 } }", [3, 5, 6])])
def test_where(where, seqs, sweep):
    sweep.grid(grid(seq="{ 3, 4, 5, 6 }", where=where))
    assert listed(sweep) == [BASE.replace("seq=3", f"seq={seq}") for seq in seqs]


def test_configs(sweep):
    """A list is an axis of several keys. What is listed twice is one."""
    sweep.grid("return { h = 1, d_model = 8, isa = 'scalar', key_rows = { 1, 2 }, "
               "where = { dk = { 4, 5 } }, configs = { { dk = 4, seq = 3 }, { dk = 4, seq = 3, dv = 4 }, "
               "{ dk = 5, seq = 3, q_rows = 2 }, { dk = 6, seq = 3 } } }")
    assert listed(sweep) == [f"{BASE} key_rows=1", f"{BASE} key_rows=2",
                             f"{BASE} key_rows=1 q_rows=2".replace("dk=4", "dk=5"),
                             f"{BASE} key_rows=2 q_rows=2".replace("dk=4", "dk=5")]
    folders = sorted(path.name for path in (sweep.out / "configs").iterdir())
    assert folders[0] == name(3) + ",key_rows=1"


def test_names_of_files(sweep):
    sweep.grid(grid(name='{ "program", "bench", "main" }', seq="3"))
    rows = sweep.done(status=1)
    assert [row["status"] for row in rows.values()] == ["ok", "generate", "ok"]
    assert "must not be the name of a file of the sweep" in rows[f"{BASE} name=bench"]["message"]


def test_a_name_does_not_hide_keys(sweep):
    sweep.grid(grid(name='"kernel"'))
    assert set(sweep.done()) == {f"{BASE} name=kernel", f"{BASE} name=kernel".replace("seq=3", "seq=4")}


def test_invalid_configs(sweep):
    sweep.grid(grid(h="{ 1, 2 }", head_block="{ 1, 2 }"))
    result = sweep.run("--plan-only")
    assert re.findall(r"^invalid: (.*)$", result.stdout, re.M) == [
        "config: head_block = 2: must divide h = 1 (2 configs, the first is d_model=8 dk=4 h=1 head_block=2 isa=scalar "
        "seq=3)"]
    assert "6 configs, 2 invalid" in result.stdout
    lines = (sweep.out / "invalid.txt").read_text().splitlines()
    assert len(lines) == 2 and all(line.endswith("head_block = 2: must divide h = 1") for line in lines)


@pytest.mark.parametrize("axes, limit, message", [
    ({"seq": "{ 1, 2, 3 }"}, 2, "has 3 configs, more than the limit of 2"),
    ({"seq": "{ 1, 2, 3 }", "where": "function() return true end"}, 2, "has 3 configs, more than"),
    ({"seq": "{ 1, 2, 3 }", "where": "{ seq = 3 }"}, 2, None),
    ({"seq": "{ 1, 2 }"}, 2, None),
    ({key: "{ 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 }" for key in ("seq", "h", "dk", "dv", "where")}
     | {"where": "{}"}, 2, "has 10000 configs before where, more than 100 times the limit of 2"),
])
def test_limit(axes, limit, message, sweep):
    sweep.grid(grid(**axes))
    result = sweep.run("--quiet", "--dry-run", "--limit", str(limit))
    if message:
        assert_refused(result, message)
    else:
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.slow
def test_large_grid(sweep):
    axis = ", ".join(map(str, range(1, 71)))
    sweep.grid(grid(seq=f"{{ {axis} }}", dk=f"{{ {axis} }}", where="function(c) return c.h > 0 end"))
    start = cpu_time()
    assert len(listed(sweep)) == 4900
    assert cpu_time() - start < 15  # 3 to 5 seconds; a step of quadratic cost would be half a minute


# ---- running ----

def test_results(sweep):
    sweep.grid(grid(causal="{ true, false }"))
    result = sweep.run()
    assert (result.returncode, result.stderr) == (0, "")
    assert "4 of 4 configs: 4 ok, 0 failed, 0 skipped, 0 invalid; 0 disturbed" in result.stdout
    rows = sweep.rows()
    row = rows[BASE]
    assert (row["status"], row["message"], row["compiler"]) == ("ok", "", "compiler 1")
    assert row["config"]["dv"] == 4 and row["flops"] > 0 and row["text_bytes"] > 0
    assert row["us_median"] > 1 and row["compile_seconds"] >= 0 and row["disturbed"] is False
    with open(sweep.out / "results.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["name"] for row in table] == [row["name"] for row in rows.values()]
    assert list(table[0])[:len(FIELDS)] == FIELDS
    assert table[1]["config"] == BASE and table[0]["causal"] == "true" and table[0]["seq"] == "3"
    assert len(sweep.ran()) == 8
    # Nothing is left to do.
    assert sweep.done() == rows and sweep.ran() == []
    assert sweep.run("--quiet").stdout == ""
    report = subprocess.run([MHAGEN, "report", sweep.out], capture_output=True, text=True)
    assert report.returncode == 0 and "4 configs, 4 measured" in report.stdout


@pytest.mark.parametrize("refuses, options, made", [("", "", True), ("1", "", False), ("", " -march=native", False)])
def test_headers_are_precompiled(refuses, options, made, sweep):
    """For kernels that have any. A compiler that refuses it compiles all the same; another CPU must not meet them."""
    isa = "avx2" if native("avx2") else "neon"
    sweep.grid(grid(seq="3", isa=f'{{ "scalar", "{isa}" }}'))
    rows = sweep.done(NO_HEADERS=refuses, CC=sweep.env["CC"] + options)
    assert [row["status"] for row in rows.values()] == ["ok", "ok"]
    commands = (sweep.path / "compiled").read_text().splitlines()
    including = [line for line in commands if re.search(r" -include common/\w+/headers\.h -c ", line)]
    assert len(including) == 1 and including[0].endswith(f"_{isa}.c")
    assert [path.name for path in sweep.out.glob("common/*/*.gch")] == ["headers.h.gch"] * made
    (sweep.path / "compiled").unlink()
    sweep.grid(grid(seq="4", isa=f'"{isa}"'))
    assert sweep.run("--force", "--launcher", "{}", "--launch", "compile", CC=sweep.env["CC"] + options).returncode == 0
    assert "-include" not in (sweep.path / "compiled").read_text()


def test_more_values(sweep):
    """Only what is new runs, also where an axis is new; the rest is in the results again."""
    sweep.grid(grid())
    rows = sweep.done()
    sweep.ran()
    sweep.grid(grid(seq="{ 2, 4, 3 }"))
    more = sweep.done()
    assert sweep.ran() == [f"check {name(2)}", f"time {name(2)}"]
    assert len(more) == 3 and rows.items() <= more.items()
    sweep.grid(grid(seq="{ 2, 3, 4 }", causal="{ false, true }"))
    assert more.items() <= sweep.done().items() and len(sweep.ran()) == 6


def test_another_grid(sweep):
    sweep.grid(grid(seq="{ 2, 3, 4 }"))
    rows = sweep.done()
    gone = "of its 3 configs are not in the grid:"
    for axes, message in [({"seq": "{ 1, 3 }"}, f"2 {gone} seq=2, seq=4; --force replaces it"),
                          ({"seq": "{ 2, 3, 4 }", "dk": "5"}, f"3 {gone} dk=4;"),
                          ({"seq": "{ 2, 3, 4 }", "where": "{ seq = 3 }"}, f"2 {gone} seq=2, seq=4;")]:
        sweep.grid(grid(**axes))
        assert_refused(sweep.run("--quiet"), "holds another sweep: ", message)
    assert_refused(sweep.run("--dry-run", "--quiet"), "holds another sweep")
    assert sweep.rows() == rows
    sweep.ran()
    assert sweep.done("--force") == {command: rows[command] for command in [BASE]}
    assert sweep.ran() == []


def test_other_settings(sweep):
    sweep.grid(grid())
    sweep.done()
    sweep.ran()
    cc = sweep.env["CC"] + " -O3"
    assert_refused(sweep.run("--quiet", CC=cc), f"its cc was '{cc[:-4]}', now '{cc}'")
    assert_refused(sweep.run("--quiet", "--samples", "3"), "its samples was none, now '3'")
    sweep.done("--samples", "3", "--force")
    assert sweep.ran() == [f"--samples {name(seq)}" for seq in (3, 4)]  # no check
    rows = sweep.done("--samples", "3", "--force", CC=cc)
    assert rows[BASE]["flags"].endswith("compiler -O3 -std=c11") and len(sweep.ran()) == 4


def test_foreign_directory(sweep):
    sweep.out.mkdir()
    (sweep.out / "build.ninja").write_text("mine")
    sweep.grid(grid())
    assert_refused(sweep.run("--quiet"), "out/build.ninja: not made by mhagen; --force replaces")
    assert (sweep.out / "build.ninja").read_text() == "mine"


@pytest.mark.parametrize("name", ["configs.txt", "invalid.txt", "settings.json", "results.jsonl", "results.csv"])
def test_files_of_others_stay(name, sweep):
    """These cannot say who made them; the build.ninja beside them does."""
    sweep.grid(grid())
    sweep.out.mkdir()
    (sweep.out / name).write_text("mine")
    for dry in ["--dry-run"], ["--plan-only"]:
        assert_refused(sweep.run("--quiet", *dry), f"out/{name}: not made by mhagen; --force replaces")
    assert [(path.name, path.read_text()) for path in sweep.out.iterdir()] == [(name, "mine")]
    assert sweep.run("--plan-only", "--force").returncode == 0
    assert sweep.run("--plan-only").returncode == 0


@pytest.mark.parametrize("step, message", [
    ("compile", r".*/compiler ended with status 1: x.c:1: error: refused"),
    ("check", r"configs/.*/program ended with status 1: FAIL y\[3\] is wrong"), ("time", "too late")])
def test_failures_are_results(step, message, sweep):
    sweep.grid(grid())
    result = sweep.run(**{f"FAIL_{step.upper()}": name(3)})
    assert result.returncode == 1 and f"1 ok, 1 failed ({step} 1)" in result.stdout
    rows = sweep.rows()
    row = rows[BASE]
    assert row["status"] == step and re.fullmatch(message, row["message"])
    assert row["us_median"] is None and row["flops"] > 0
    assert [row["status"] for row in rows.values()] == [step, "ok"]
    sweep.ran()
    assert sweep.done(status=1) == rows and sweep.ran() == []
    again = sweep.done("--retry")
    assert again[BASE]["status"] == "ok" and sum(again[key] != rows[key] for key in rows) == 1


def test_code_that_is_too_long(sweep):
    sweep.grid(grid(d_model="{ 4, 4096 }", unroll='"full"', seq="3"))
    rows = list(sweep.done(status=1).values())
    assert [row["status"] for row in rows] == ["ok", "generate"]
    assert rows[1]["message"].startswith("config: unroll = full: ")


@pytest.mark.parametrize("times, runs, disturbed", [(2, 3, False), (9, 4, True)])
def test_disturbed(times, runs, disturbed, sweep):
    sweep.grid(grid(seq="3"))
    row, = sweep.done(DISTURBED=str(times)).values()
    assert row["disturbed"] is disturbed and row["status"] == "ok"
    assert sweep.ran() == [f"check {name(3)}"] + [f"time {name(3)}"] * runs


def test_what_a_program_may_say(sweep):
    """The fields that gen/lab/results.lua says are from it, in their type; all others are mhagen's."""
    sweep.grid(grid(seq="3"))
    rows = sweep.done()
    lies = ("command rm -rf /", "name x", "config {}", "version 7", "flops 1", "compiler x", "flags 3", "same_as x",
            "text_bytes 9", "message x", "threads many", "colour 1")
    shutil.rmtree(sweep.out)
    again = sweep.done(SAYS="\n".join(lies))
    for lie in lies[:-1]:
        key = lie.split()[0]
        assert again[BASE][key] == rows[BASE][key], lie
    assert again[BASE].keys() == rows[BASE].keys()
    shutil.rmtree(sweep.out)
    assert sweep.done(SAYS="system \x1b[31m7")[BASE]["system"] == "an OS"  # the first that it says
    for says, said in ("fma_speedup inf", None), ("fma_speedup 1.5", 1.5), ("fma_speedup nan", None):
        shutil.rmtree(sweep.out)
        assert sweep.done(SAYS=says)[BASE]["fma_speedup"] == said


def test_formulas_in_csv(sweep):
    """A text that a spreadsheet would compute has an apostrophe before it; a number has none."""
    for first in "=1+1", "+1+1", "-1+cmd", "@SUM(1)":
        shutil.rmtree(sweep.out, ignore_errors=True)
        program = (sweep.path / "program").read_text()
        (sweep.path / "program").write_text(re.sub(r'"cpu [^"]*"', f'"cpu {first}" "fma_speedup -1.5"', program))
        sweep.grid(grid(seq="3"))
        row, = sweep.done().values()
        assert row["cpu"] == first and row["fma_speedup"] == -1.5
        with open(sweep.out / "results.csv", newline="") as file:
            cells, = csv.DictReader(file)
        assert cells["cpu"] == "'" + first and cells["fma_speedup"] == "-1.5"


def changed_program(sweep, old, new):
    """mhagen with a change in one of its embedded files."""
    assert len(old) == len(new)
    data = open(MHAGEN, "rb").read()
    old, new = old.encode("latin-1"), new.encode("latin-1")
    assert data.count(old) == 1
    sweep.program = sweep.path / "mhagen"
    sweep.program.write_bytes(data.replace(old, new))
    sweep.program.chmod(0o755)


def test_another_generator(sweep):
    """Only configs whose text is another are made again."""
    sweep.grid(grid(causal="{ false, true }", seq="3"))
    rows = sweep.done()
    sweep.ran()
    changed_program(sweep, "Writes specialized C", "writes specialized C")
    assert sweep.done() == rows and sweep.ran() == []
    length = "\x8e"  # before a constant of compiled Lua
    changed_program(sweep, f"{length}MHAGEN_CAUSAL", f"{length}MHAGEN_PROBS ")
    more = sweep.done()
    assert more[BASE] == rows[BASE]
    assert sweep.ran() == [f"{step} {name(3).replace('_scalar', '_causal_scalar')}"
                           for step in ("check", "time")]


SAME = "{ 32, 64 }"  # blocks of keys that are more than there are


def test_same_code(sweep):
    """Of configs whose C differs in name and comments alone one is compiled, checked and timed."""
    sweep.grid(grid(key_block=SAME, name='{ "mine", "yours" }', seq="3"))
    result = sweep.run()
    assert "3 have the code of another one, and take its numbers" in result.stdout
    rows = sweep.rows()
    first = next(iter(rows.values()))
    one = f"mine,{BASE.replace(' ', ',')},key_block=32"
    assert sweep.ran() == [f"{step} {one}" for step in ("check", "time")]
    assert first["same_as"] is None and first["us_median"] > 0
    own = {"name", "config", "command", "same_as", "generate_seconds"}
    for command, row in list(rows.items())[1:]:
        assert row["same_as"] == next(iter(rows)) != command
        assert row["config"]["name"] in command and f"key_block={row['config']['key_block']}" in command
        assert {key for key in row if row[key] != first[key]} <= own
    assert sweep.done() == rows and sweep.ran() == []
    report = subprocess.run([MHAGEN, "report", sweep.out], capture_output=True, text=True)
    assert "4 measured" in report.stdout and "note: 3 of 4 configs have the code of another" in report.stdout
    with open(sweep.out / "results.csv", newline="") as file:
        assert [row["same_as"] for row in csv.DictReader(file)] == ["", *[next(iter(rows))] * 3]


def test_other_code(sweep):
    """What the text says otherwise is not the same: a shape, an option, an ISA, a schedule that tells."""
    sweep.grid(grid(seq="{ 3, 4 }", key_rows="{ 1, 2 }", causal="{ true, false }", isa='{ "scalar", "avx2" }'))
    rows = sweep.done().values()
    assert len(rows) == 16 and {row["same_as"] for row in rows} == {None}


def test_what_was_measured_stays_so(sweep):
    """Also where the grid grows by an equal that comes before it; and another one is, where it goes away."""
    sweep.grid(grid(key_block="64", seq="3"))
    row, = sweep.done().values()
    sweep.ran()
    sweep.grid(grid(key_block=SAME, seq="3"))
    rows = sweep.done()
    assert rows[f"{BASE} key_block=64"] == row and sweep.ran() == []
    assert rows[f"{BASE} key_block=32"]["same_as"] == f"{BASE} key_block=64"
    sweep.grid(grid(key_block="32", seq="3"))
    alone, = sweep.done("--force").values()
    assert alone["same_as"] is None and len(sweep.ran()) == 2 and alone["us_median"] != row["us_median"]


def test_same_code_that_fails(sweep):
    sweep.grid(grid(key_block=SAME, seq="3"))
    rows = list(sweep.done(status=1, FAIL_CHECK=name(3)).values())
    assert [row["status"] for row in rows] == ["check", "check"] and rows[0]["message"] == rows[1]["message"]
    sweep.ran()
    assert [row["status"] for row in sweep.done("--retry").values()] == ["ok", "ok"]
    assert len(sweep.ran()) == 2


def test_same_code_no_more(sweep):
    """A generator that tells the configs apart: both are measured, the one for the first time."""
    sweep.grid(grid(key_block=SAME, seq="3"))
    assert [row["same_as"] for row in sweep.done().values()] == [None, f"{BASE} key_block=32"]
    sweep.ran()
    changed_program(sweep, "/* ---- packing ---- */", "#define X   ${command} ")
    assert [row["same_as"] for row in sweep.done().values()] == [None, None] and len(sweep.ran()) == 4
    sweep.program = MHAGEN
    again = sweep.done().values()  # the first that has been measured, as it is made now
    assert [row["same_as"] for row in again] == [None, f"{BASE} key_block=32"] and len(sweep.ran()) == 2


def test_launcher_and_stage(sweep):
    board = sweep.path / "board"
    board.mkdir()
    sweep.grid(grid())
    sweep.done("--launcher", f"cd {board} && {{}}", "--stage", f"cp {{src}} {board}/{{dst}}")
    assert sweep.ran() == sorted(f"{step} ./{name(seq)}" for step in ("check", "time") for seq in (3, 4))
    shutil.rmtree(sweep.out)
    sweep.done("--launcher", f"echo launched {{}} >>{sweep.path}/log; {{}}", "--launch", "compile")
    launched = [line for line in sweep.ran() if line.startswith("launched")]
    assert len(launched) == 8 and sum("compiler" in line for line in launched) == 4
    shutil.rmtree(sweep.out)
    rows = sweep.done("--launcher", "true qemu; {}")  # under an emulator times mean nothing
    assert {row["status"] for row in rows.values()} == {"skipped"} and len(sweep.ran()) == 2
    shutil.rmtree(sweep.out)
    rows = sweep.done("--launcher", "env LAUNCHED=1", "--retry")  # without {}: the program follows
    assert {row["status"] for row in rows.values()} == {"ok"}


# ---- time limits ----

def hanging(sweep):
    """What the scripts above sleep in, and is still there."""
    text = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
    return [line for line in text.splitlines() if f"{sweep.path}/sleeper" in line]


@pytest.mark.parametrize("step, message", [
    ("compile", r".*/compiler timed out after 1 s"), ("check", r"configs/.*/program timed out after 1 s"),
    ("time", r"configs/.*/program timed out after 1 s")])
def test_timeout(step, message, sweep):
    """A row, the other configs go on, and nothing is left running; also where SIGTERM is ignored."""
    sweep.grid(grid())
    result = sweep.run("--timeout", "1", "--quiet", **{f"HANG_{step.upper()}": name(3)})
    assert result.returncode == 1, result
    rows = sweep.rows()
    assert rows[BASE]["status"] == step and re.fullmatch(message, rows[BASE]["message"]), rows[BASE]
    assert [row["status"] for row in rows.values()] == [step, "ok"]
    assert hanging(sweep) == []
    assert sweep.done("--retry", "--timeout", "60")[BASE]["status"] == "ok"  # another limit is the same sweep


def test_timeout_of_what_all_share(sweep):
    sweep.grid(grid())
    result = sweep.run("--timeout", "1", "--quiet", HANG_COMPILE="mhagen_peak")
    assert result.returncode == 2 and "common/" in result.stderr and "timed out after 1 s" in result.stderr
    assert hanging(sweep) == [] and len(sweep.done()) == 2


def test_timeout_refused(sweep):
    sweep.grid(grid())
    for value in "0", "-1", "x":
        assert_refused(sweep.run(f"--timeout={value}"), f"option '--timeout': '{value}' is not a number from 1")


def test_interrupted_program(sweep):
    """An interrupt reaches the program in its group, and is no result."""
    sweep.grid(grid(seq="3"))
    process = subprocess.Popen(sweep.command("--quiet"), env={**sweep.env, "HANG_CHECK": name(3)},
                               start_new_session=True, stderr=subprocess.PIPE, text=True)
    while not hanging(sweep):
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    process.wait(600)
    assert hanging(sweep) == [] and not list(sweep.out.glob("configs/*/check.row"))
    assert sweep.done()[BASE]["status"] == "ok"


# ---- what goes wrong ----

def test_without_compiler_or_ninja(sweep):
    sweep.grid(grid())
    assert_refused(sweep.run("--quiet", CC="no-such-cc"), "no-such-cc: No such file")
    assert_refused(sweep.run("--quiet", CC="false"), "false --version ended with status 1")
    (sweep.path / "bin").mkdir()
    assert_refused(sweep.run("--quiet", PATH=str(sweep.path / "bin"), CC="/bin/echo"),
                   "ninja: No such file")
    assert not sweep.out.exists()


@pytest.mark.parametrize("size", [100, 3000, 9000])
def test_disk_that_is_full(size, sweep):
    """The sweep stops, and goes on later."""
    sweep.grid(grid())
    result = subprocess.run(sweep.command("--quiet"), capture_output=True, text=True, env=sweep.env,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)))
    assert_refused(result, "File too large")
    assert len(sweep.done()) == 2


def test_disk_that_is_full_for_the_compiler(sweep):
    """Says nothing about the config."""
    sweep.grid(grid())
    result = sweep.run("--quiet", FAIL_COMPILE=name(3), FAIL_WITH="No space left on device")
    assert_refused(result, "No space left on device")
    assert {row["status"] for row in sweep.done().values()} == {"ok"}


def test_one_at_a_time(sweep):
    sweep.grid(grid())
    first = subprocess.Popen(sweep.command("--quiet"), env={**sweep.env, "SECONDS_EACH": "1"})
    while not (sweep.out / "build.ninja").exists():
        time.sleep(0.01)
    assert_refused(sweep.run("--quiet"), "a sweep is running in it")
    assert first.wait() == 0 and len(sweep.rows()) == 2


def test_steps_are_for_sweeps(sweep):
    sweep.grid(grid())
    sweep.done()
    assert_refused(subprocess.run([MHAGEN, "sweep-step", "common/x/built"], cwd=sweep.out, text=True,
                                  capture_output=True), "no sweep is running here")
    assert "sweep-step" not in subprocess.run([MHAGEN, "--help"], capture_output=True, text=True).stdout


# ---- kills ----

def family(pid):
    """A process and all that it has started."""
    children = {}
    for path in os.listdir("/proc"):
        try:
            stat = open(f"/proc/{path}/stat").read() if path.isdigit() else ""
        except OSError:
            continue
        if stat:
            children.setdefault(int(stat.rsplit(")", 1)[1].split()[1]), []).append(int(path))
    found = [pid]
    for one in found:
        found += children.get(one, [])
    return found


def kill(process, whom):
    """mhagen, what it has started (Ninja), or everything. Where Ninja is left, it ends by a signal, and takes back
    what a step has written whose end it has not seen; so its end is awaited."""
    everyone = family(process.pid)
    for pid in {"mhagen": everyone[:1], "ninja": everyone[1:2], "all": everyone}[whom]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    process.wait()
    if whom == "mhagen":
        wait_for(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in everyone))


def test_ninja_does_not_outlive_a_sweep(sweep):
    """Nor do the steps that it has started."""
    sweep.grid(grid(seq="3"))
    process = subprocess.Popen(sweep.command("--quiet"), env={**sweep.env, "HANG_CHECK": name(3)},
                               stderr=subprocess.DEVNULL)
    wait_for(lambda: hanging(sweep))
    kill(process, "mhagen")
    wait_for(lambda: not hanging(sweep))
    assert sweep.done()[BASE]["status"] == "ok"


def results_so_far(sweep):
    return {path: path.read_bytes() for path in sweep.out.glob("configs/*/time.row")}


def kills(sweep, count, seed):
    """Kills a sweep again and again; each result that was there stays what it is. In the end all are."""
    draw = random.Random(seed)
    before, killed = {}, 0
    while killed < count:
        process = subprocess.Popen(sweep.command("--quiet"), env=sweep.env, stderr=subprocess.DEVNULL)
        try:
            assert process.wait(timeout=draw.uniform(0.05, 1)) in (0, 2)
            if len(results_so_far(sweep)) == sweep.configs:  # all done: once more from the start
                before = {}
                shutil.rmtree(sweep.out)
        except subprocess.TimeoutExpired:
            kill(process, draw.choice(["mhagen", "ninja", "all"]))
            killed += 1
        now = results_so_far(sweep)
        assert before.items() <= now.items()
        before = now
    rows = sweep.done()
    assert len(rows) == sweep.configs and {row["status"] for row in rows.values()} == {"ok"}
    assert before.items() <= results_so_far(sweep).items()


def test_waits_for_what_is_left_running(sweep):
    """The steps of a killed sweep hold a lock of their own; the next sweep goes on when they end."""
    sweep.grid(grid(seq="3"))
    sweep.done()
    with open(sweep.out / ".steps", "w") as steps:
        fcntl.flock(steps, fcntl.LOCK_EX)
        process = subprocess.Popen(sweep.command(), env=sweep.env, stdout=subprocess.DEVNULL)
        time.sleep(0.5)
        assert process.poll() is None
        fcntl.flock(steps, fcntl.LOCK_UN)
        assert process.wait(600) == 0


def test_what_is_left_running_is_named(sweep):
    """Where nobody is left to end it, it is not waited for without end."""
    sweep.grid(grid(seq="3"))
    sweep.done()
    with open(sweep.out / ".steps", "w") as steps:
        fcntl.flock(steps, fcntl.LOCK_EX)
        orphan = subprocess.Popen(["sleep", "321"], stdout=steps)
        result = sweep.run("--timeout", "1")
        who = rf"process .*\b{orphan.pid} \(sleep\).*"
        assert result.returncode == 2 and re.search("waiting for an earlier sweep: " + who,
                                                    result.stdout)
        assert re.search(who + " of an earlier sweep still runs after 1 s", result.stderr)
    orphan.kill()
    orphan.wait()
    assert len(sweep.done()) == 1


def broken(text):
    return {"empty": b"", "cut short": text[:-20], "without its end": text[:-1], "zeros": bytes(len(text)),
            "another's": text.replace(b"{", b"[")}


@pytest.mark.parametrize("step", ["generate", "compile", "check", "time"])
def test_broken_rows_are_made_again(step, sweep):
    sweep.grid(grid(seq="3"))
    row, = sweep.done().values()
    path = sweep.out / f"configs/{name(3)}/{step}.row"
    whole = path.read_bytes()
    for how, text in broken(whole).items():
        path.write_bytes(text)
        result = sweep.run()
        assert result.returncode == 0 and "1 broken file made anew" in result.stdout, how
        again, = sweep.rows().values()
        assert again["status"] == "ok" and path.read_bytes().split(b"\n")[0] == whole.split(b"\n")[0], how
        assert list(again) == FIELDS and again["flops"] == row["flops"]


@pytest.mark.parametrize("file", ["settings.json", "configs.txt", "build.ninja", "common"])
def test_broken_files_are_made_again(file, sweep):
    sweep.grid(grid(seq="3"))
    rows = sweep.done()
    path = next(sweep.out.glob("common/*/built")) if file == "common" else sweep.out / file
    whole = path.read_bytes()
    for text in b"", whole[:5], whole[:-3]:
        path.write_bytes(text)
        assert sweep.done().keys() == rows.keys() and path.read_bytes() == whole


def test_rows_that_are_missing(sweep):
    """They are told, and are not success."""
    sweep.grid(grid())
    result = sweep.run("--jobs", "1", EMPTIES=str(sweep.out / f"configs/{name(3)}/time.row"))
    assert result.returncode == 1 and "1 of 2 configs: 1 ok" in result.stdout
    assert result.stderr == f"mhagen: sweep: 1 of 2 configs have no result, start it again: {name(3)}\n"
    assert len(sweep.done()) == 2


def test_results_are_on_the_disk(sweep):
    """Synced before they get their names, and the directory after; by a library that notes it."""
    (sweep.path / "note.c").write_text("""
        #define _GNU_SOURCE
        #include <dlfcn.h>
        #include <stdio.h>
        #include <unistd.h>
        static void note(const char *what, const char *name) {
          FILE *log = fopen(LOG, "a");
          fprintf(log, "%s %s\\n", what, name);
          fclose(log);
        }
        int fsync(int fd) {
          char link[64], path[4096] = "";
          snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
          if (readlink(link, path, sizeof path - 1) > 0) note("sync", path);
          return 0;
        }
        int renameat(int a, const char *from, int b, const char *to) {
          int (*real)(int, const char *, int, const char *) = dlsym(RTLD_NEXT, "renameat");
          note("rename", from);
          return real(a, from, b, to);
        }""")
    library, log = sweep.path / "note.so", sweep.path / "notes"
    subprocess.run(["cc", "-shared", "-fPIC", f'-DLOG="{log}"', "-o", library, sweep.path / "note.c"], check=True)
    sweep.grid(grid(seq="3"))
    sweep.done(LD_PRELOAD=str(library))
    folder = sweep.out / "configs" / name(3)
    notes = [line.replace(str(sweep.out) + "/", "") for line in log.read_text().splitlines()]
    for file, place in [(f"{step}.row", folder) for step in ("generate", "compile", "check", "time")] + [
            (f"{name(3)}.c", folder), ("results.jsonl", sweep.out), ("settings.json", sweep.out)]:
        written = [i for i, line in enumerate(notes) if line.startswith("sync ") and f".{file}." in line]
        renamed = [i for i, line in enumerate(notes) if line.startswith(f"rename .{file}.")]
        assert len(written) == len(renamed) == 1 and written < renamed, (file, notes)
        assert f"sync {place}".replace(f"{sweep.out}/", "") in notes[renamed[0]:], (file, notes)
    assert f"sync configs/{name(3)}/program" in notes


def test_kills(sweep):
    sweep.configs = 12
    sweep.grid(grid(seq="{ 1, 2, 3, 4, 5, 6 }", h="{ 1, 2 }"))
    kills(sweep, 10, 1)


@pytest.mark.slow
def test_many_kills(sweep):
    """At other times in each run."""
    sweep.configs = 12
    sweep.grid(grid(seq="{ 1, 2, 3, 4, 5, 6 }", h="{ 1, 2 }"))
    kills(sweep, 100 if SEED == "all" else 30, SEED)


# ---- with a real compiler ----

def test_real_sweep(sweep):
    sweep.grid(grid(seq="{ 3, 4 }"))
    rows = sweep.done("--samples", "5", CC="cc -O1 -Werror -Wall -Wextra -Wpedantic -Wshadow")
    for row in rows.values():
        assert row["status"] == "ok" and 0 < row["error"] < 1e-6 and row["repetitions"] == 5


@pytest.mark.slow
def test_foreign_code(sweep):
    """Is checked by the emulator, not timed."""
    need("aarch64-linux-gnu-gcc")
    need("qemu-aarch64")
    sweep.grid(grid(isa='{ "neon", "scalar" }', seq="3"))
    rows = list(sweep.done("--samples", "3", CC="cc").values())
    assert [row["status"] for row in rows] == ["skipped", "ok"]
    assert rows[0]["message"] == "checked by an emulator, under which times mean nothing"
    assert rows[0]["text_bytes"] > 0 and "aarch64" in rows[0]["flags"] and rows[0]["us_median"] is None


def test_example():
    result = subprocess.run([MHAGEN, "sweep", ROOT / "examples/sweep.lua", "-o", "none", "--dry-run"],
                            capture_output=True, text=True)
    assert result.returncode == 0 and " 0 invalid" in result.stdout
