"""tune: the search, the files that it leaves, and the key `tuned` that reads them.

In most tests a script replaces the compiler; the programs that it makes print figures that the test chooses.
"""
import json
import os
import random
import re
import shutil
import signal
import subprocess
import time

import pytest

from test_config import assert_refused
from tools import MHAGEN, need

pytestmark = pytest.mark.skipif(not shutil.which("ninja"), reason="no ninja")
SHAPE = "h=1 d_model=160 dk=4 seq=4 isa=scalar"
# Leaves two keys with four values each.
GIVEN = ("query_vectors=1 out_rows=1 q_lanes=queries qkv=separate q_rows=2 kv_vectors=1 kv_rows=2 out_vectors=1 "
         "head_block=1 key_block=64 k_block=256 fetch=none unroll=tile fold=off")

COMPILER = r"""#!/bin/sh
case "$*" in
  *--version*) echo "compiler 1"; exit ;;
  *" -x c-header "*) test -z "$NO_HEADERS" || exit 1 ;;
  *"$FAIL_COMPILE"*.c) for word; do :; done; grep -q "$FAIL_WORDS" "$word" && echo "x.c:1: error: refused" && exit 1 ;;
esac
echo "$*" >>HERE/compiled
case "$*" in *"/c_"*.c) sleep ${COMPILE_SECONDS:-0} ;; esac
for word; do
  test "$before" = -o && out=$word
  before=$word
done
case "$*" in
  *" -c "*) : >"$out" ;;
  *) cp HERE/program "$out" ;;
esac
"""
# The ratio of a schedule: the product of those of its keys in $RATIOS, "key_rows=2 0.9, ...", and what
# $PAIRED says of the paired runs. Each figure is a line of the log.
PROGRAM = r"""#!/usr/bin/env -S python3 -I -S
import os, re, sys, time
words = sys.argv[1:]
if words == ["--terse"]:  # the check of the winner
    time.sleep(300 if os.environ.get("SLOW") == "check" else 0)
    sys.exit(0)
samples = int(words[1]) if words[:1] == ["--samples"] else 0
names = words[2:] if samples else words
here = os.path.dirname(sys.argv[0])
for line in "cpu A CPU", "cores 2", "system an OS":
    print(line)
log = open("HERE/log", "a")
for name in names:
    schedule = re.search(r"command +mhagen gen (.*)", open(f"{here}/{name}.c").read())[1]
    log.write(f"{samples} {schedule}\n")
    log.flush()
    slow = os.environ.get("SLOW", "nothing")
    slow = samples > 100 if slow == "pairs" else slow in schedule
    time.sleep(300 if slow else float(os.environ.get("SECONDS_EACH", 0)))
    ratio = 1.0
    for key, value in re.findall(r"(\w+=\w+) ([\d.]+)", os.environ.get("RATIOS", "")):
        if key in schedule.split():
            ratio *= float(value)
    if samples > 100:
        ratio = float(os.environ.get("PAIRED", ratio))
    if samples:
        print("time", name, 100 * ratio, ratio)
    else:
        wrong = os.environ.get("WRONG", "none") in schedule.split()
        print("wrong" if wrong else "right", name, 3e-3 if wrong else 1e-7, 1e-6)
print("status ok")
"""


class Tune:
    """A directory where tunes run; words are options, capitals the environment."""

    def __init__(self, here):
        self.here = here
        for name, text in ("cc", COMPILER), ("program", PROGRAM):
            (here / name).write_text(text.replace("HERE", str(here)))
            (here / name).chmod(0o755)
        self.folder = here / "tuned"

    def start(self, *words, **environment):
        cc = environment.pop("CC", self.here / "cc")
        environment = {"FAIL_COMPILE": "no such file", **environment}
        return subprocess.Popen([MHAGEN, "tune", *" ".join(words).split()], cwd=self.here, text=True,
                                env={**os.environ, "CC": str(cc), **environment},
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)

    def __call__(self, *words, **environment):
        process = self.start(*words, **environment)
        out, err = process.communicate(timeout=600)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    @property
    def file(self):
        """That of this CPU, whose numbers follow its name."""
        found = list(self.folder.glob("*.lua"))
        return found[0] if found else self.folder / "none"

    def log(self):
        path = self.here / "log"
        return path.read_text().splitlines() if path.exists() else []

    def record(self):
        return dict(re.findall(r"^    (\w+) = \"?(.*?)\"?,$", self.file.read_text(), re.M))


@pytest.fixture
def tune(tmp_path):
    return Tune(tmp_path)


def gen(folder, *words):
    return subprocess.run([MHAGEN, "gen", *" ".join(words).split(), "-o", folder], cwd=folder.parent,
                          text=True, capture_output=True)


def text_of(folder):
    return next(folder.glob("mha*.c")).read_text()


# ---- the search ----

def test_finds_what_is_joined(tune):
    """Two changes of different phases that each help a little, and one that does not."""
    ratios = "key_rows=3 0.95, context_rows=2 0.93, key_rows=1 1.2"
    done = tune(SHAPE, GIVEN, "--budget 60s", RATIOS=ratios)
    assert done.returncode == 0, done.stderr
    assert {"key_rows=3", "context_rows=2"} <= set(tune.record()["schedule"].split())
    assert tune.record()["ratios"] == " ".join(["0.8835"] * 5)
    assert float(tune.record()["us"]) == pytest.approx(88.35)
    assert "0.883 of the default's time" in done.stdout and f"tuned/{tune.file.name}" in done.stdout
    assert re.fullmatch(r"a_cpu(_\w+){2,3}\.lua", tune.file.name), "one name is that of many models"
    assert not [path.name for path in (tune.here / "tuned/.tune").iterdir() if path.name != "lock"]


def test_the_default_is_kept(tune):
    """Nothing is faster by more than 1 %."""
    done = tune(SHAPE, GIVEN, "--budget 60s", RATIOS="key_rows=3 0.992")
    assert done.returncode == 0 and "the default is kept" in done.stdout
    assert set(tune.record()["schedule"].split()) == set(GIVEN.split())
    assert tune.record()["us"] == tune.record()["default_us"] and tune.record()["ratios"] == ""
    assert gen(tune.here / "out", SHAPE, f"tuned={tune.file}").returncode == 0


def test_samples_in_proportion(tune):
    """The first measurement of schedules that take long to compile has many samples, for few tell little."""
    assert tune(SHAPE, GIVEN, "--budget 60s", COMPILE_SECONDS="0.3").returncode == 0
    first = next(line for line in tune.log() if "key_rows=3" in line and not line.startswith("0 "))
    assert first.startswith("12 ")


@pytest.mark.parametrize("environment", [{}, {"NO_HEADERS": "1"}])
def test_headers_are_precompiled(tune, environment):
    """For kernels alone; and a compiler that refuses it compiles all the same."""
    assert tune(SHAPE, GIVEN, "--budget 60s", **environment).returncode == 0
    commands = (tune.here / "compiled").read_text().splitlines()
    kernels = [line for line in commands if re.search(r"/c_\w+\.c$", line)]
    assert len(kernels) > 1 and all(re.search(r" -include \S+/headers\.h -c ", line) for line in kernels)
    assert not [line for line in commands if "-include" in line and line not in kernels]
    assert len([line for line in commands if "-x c-header" in line]) == ("NO_HEADERS" not in environment)


def test_ends_without_a_chance(tune):
    """What the cost model has far above the best is not built; the search says so, long before its time is over."""
    done = tune(SHAPE.replace("d_model=160", "d_model=8"), GIVEN, "--budget 600s", RATIOS="key_rows=3 0.5")
    assert done.returncode == 0 and "the search ends: 6 other changes have no chance by the cost model" in done.stdout
    assert "nothing was tried, the default is kept: no other schedule has a chance by the cost model" in done.stdout
    done = tune(SHAPE, GIVEN, "--budget 600s")
    assert "the search ends: 2 other changes have no chance" in done.stdout
    assert not [line for line in tune.log() if "key_rows=1" in line or "context_rows=1" in line]


def test_paired_runs_decide(tune):
    """What won the search by luck loses the paired runs."""
    done = tune(SHAPE, GIVEN, "--budget 60s", RATIOS="key_rows=3 0.9", PAIRED="0.995")
    assert "in 0 of 5 paired runs" in done.stdout and "the default is kept" in done.stdout


def test_budget_too_small(tune):
    """What does not fit is not begun; the least that would do is told, and does."""
    done = tune(SHAPE, GIVEN, "--budget 1s", SECONDS_EACH="0.5")
    assert done.returncode == 0, done.stderr
    least = re.search(r"nothing was tried, .* no time to try another; the least is --budget (\d+)s\n", done.stdout)
    assert "tuned=" not in done.stdout
    assert least and len(tune.log()) == 2 and tune.record()["ratios"] == "" and tune.record()["tried"] == "0"
    assert gen(tune.here / "out", SHAPE, f"tuned={tune.file}").returncode == 0
    assert tune(SHAPE, GIVEN, f"--budget {3 * int(least[1])}s", SECONDS_EACH="0.5").returncode == 0
    found = tune.file.read_text()
    assert int(tune.record()["tried"]) >= 2
    assert "nothing was tried" in tune(SHAPE, GIVEN, "--budget 1s", SECONDS_EACH="0.5").stdout
    assert tune.file.read_text() == found, "what has tried nothing replaces nothing"


def test_the_default_has_its_time(tune):
    """However busy the machine is: where it takes more than the budget, nothing else is tried."""
    done = tune(SHAPE, GIVEN, "--budget 1s", SECONDS_EACH="6")
    assert done.returncode == 0 and "nothing was tried" in done.stdout and tune.file.exists(), done.stderr


@pytest.mark.parametrize("slow, budget, outcome", [
    ("key_rows=3", 8, "nothing was tried"),
    ("pairs", 16, "the time is over before the paired runs end"),
    ("check", 16, "the time is over before the check of key_rows=3"),
])
def test_the_budget_holds(tune, slow, budget, outcome):
    """What takes far longer than it took before is ended soon after the budget; what is known counts. On a busy machine
    the search may end before it comes so far."""
    done = tune(SHAPE, GIVEN, f"--budget {budget}s", SLOW=slow, RATIOS="key_rows=3 0.9")
    assert outcome in done.stdout or "nothing was tried" in done.stdout
    assert done.returncode == 0 and tune.file.exists()


def test_given_defaults_stay(tune):
    assert tune(SHAPE, GIVEN.replace("unroll=tile fold=off", "unroll=auto fold=auto"), "--budget 60s").returncode == 0
    assert not [line for line in tune.log() if "unroll=tile" in line or "unroll=k " in line or "fold=off" in line]
    assert {"unroll=auto", "fold=auto"} <= set(tune.record()["schedule"].split())


def test_given_keys_stay(tune):
    given = GIVEN.replace("kv_rows=2", "kv_rows=1")
    done = tune(SHAPE, given, "--budget 60s", RATIOS="kv_rows=2 0.5, context_rows=2 0.9")
    assert done.returncode == 0
    assert all("kv_rows=1" in line for line in tune.log()) and len(tune.log()) > 5
    assert "kv_rows=1" in tune.record()["schedule"].split()


def test_random_search(tune):
    done = tune(SHAPE, GIVEN, "--budget 60s --search random --trace tune.jsonl", RATIOS="context_rows=2 0.9")
    assert done.returncode == 0
    rows = [json.loads(line) for line in (tune.here / "tune.jsonl").read_text().splitlines()]
    assert rows and all(row["method"] == "random" and row["shape"].startswith("h1_d160_k4_s4") for row in rows)
    assert all(row["default_us"] == 100 and row["second"] > 0 for row in rows)
    assert [line for line in tune.log() if "key_rows" in line and "context_rows" in line]  # many keys at a time


def test_other_shapes_stay(tune):
    assert tune(SHAPE, "--budget 1s -o my.lua --quiet").stdout == ""
    other = SHAPE.replace("seq=4", "seq=5")
    assert tune(other, "--budget 1s -o my.lua").returncode == 0
    assert tune(SHAPE, "--budget 1s -o my.lua").returncode == 0
    text = (tune.here / "my.lua").read_text()
    assert re.findall(r'^  \["(.*)"\] = {$', text, re.M) == [SHAPE, other]


def test_the_same_code_once(tune):
    """What differs in comments and names alone is not built: blocks of more keys than there are."""
    assert tune(SHAPE, GIVEN.replace("key_block=64 ", ""), "--budget 60s").returncode == 0
    assert not [line for line in tune.log() if "key_block" in line]


def test_keys_that_gain_nothing(tune):
    """Nobody's kernel takes 1 % less time by these."""
    words = GIVEN.replace("unroll=tile ", "").replace("k_block=256 ", "")
    assert tune(SHAPE, words, "--budget 60s").returncode == 0
    assert tune.log() and not [line for line in tune.log() if "unroll=" in line or " k_block=" in line]


@pytest.mark.parametrize("dtype, most", [("f32", 32), ("bf16", 512)])
def test_long_key_blocks(tune, dtype, most):
    """Where operands are rounded, what long chains of float32 add to the error does not show. 64 is the default."""
    words = GIVEN.replace("key_block=64 ", "") + f" key_rows=4 context_rows=1 seq=600 dtype={dtype}"
    assert tune(SHAPE.replace(" seq=4", ""), words, "--budget 60s").returncode == 0
    assert max(int(block) for block in re.findall(r"key_block=(\d+)", "\n".join(tune.log()))) == most


# ---- what goes wrong ----

@pytest.mark.parametrize("words, message", [
    ("key_rows=24", "config: key_rows = 24: scalar keeps at most"),
    ("unroll=full code_limit=1000", "code_limit = 1000"),
    ("-o a,b.lua", "option '--output': 'a,b.lua': must be the path of a file"),
])
def test_refused_before_the_search(tune, words, message):
    assert_refused(tune(SHAPE.replace("dk=4", "dk=40"), words), message)
    assert not tune.log()


def test_no_shell_reads_the_compiler(tune):
    """Its words are split at spaces, as everywhere."""
    mark = "-DX=$(touch${IFS}HERE/touched)".replace("HERE", str(tune.here))
    done = tune(SHAPE, GIVEN, "--budget 60s", CC=f"{tune.here}/cc {mark} -D'Y=\"1\";")
    assert done.returncode == 0, done.stderr
    assert not (tune.here / "touched").exists()
    assert f"{mark} -D'Y=".replace("\\", "") in tune.file.read_text().replace("\\", "")


def test_files_of_others_stay(tune):
    """Refused before the search; replaced with --force."""
    (tune.here / "mine.lua").write_text("return { secret = 1 }\n")
    (tune.here / "notes").write_text("mine\n")
    for words in "-o mine.lua", "--trace notes":
        assert_refused(tune(SHAPE, GIVEN, words), "not made by mhagen; --force replaces")
    assert (tune.here / "mine.lua").read_text() == "return { secret = 1 }\n" and not tune.log()
    assert tune(SHAPE, GIVEN, "--budget 60s -o mine.lua --trace trace --force").returncode == 0
    assert (tune.here / "mine.lua").read_text().startswith("-- Written by mhagen tune")
    assert tune(SHAPE, GIVEN, "--budget 60s -o mine.lua --trace trace").returncode == 0


def test_interrupted(tune):
    process = tune.start(SHAPE, "--budget 600s", SECONDS_EACH="300")
    wait_for(tune.log)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 2 and "mhagen: tune: interrupted; the same command goes on\n" in err


def test_broken_compiler(tune):
    """Not taken for a bad schedule."""
    done = tune(SHAPE, FAIL_COMPILE="c_", FAIL_WORDS="h=1")
    assert_refused_after_words(done, "tune: the default: ninja ended with status 1: x.c:1: error: refused")


def assert_refused_after_words(done, message):
    assert done.returncode == 2 and message in done.stderr and "bug" not in done.stderr


@pytest.mark.parametrize("environment, message", [
    ({"WRONG": "context_rows=2"}, "the error is 0.003, more than 1e-06"),
    ({"FAIL_COMPILE": "c_", "FAIL_WORDS": "context_rows=2"}, "ninja ended with status 1: x.c:1: error: refused"),
])
def test_a_wrong_schedule_is_a_bug(tune, environment, message):
    done = tune(SHAPE, GIVEN, "--budget 60s", **environment)
    assert done.returncode == 1 and not tune.file.exists()
    assert done.stderr.startswith("mhagen: tune: a schedule failed, please report it as a bug: ")
    assert message in done.stderr and "mhagen check h=1" in done.stderr and done.stderr.count("\n") == 1
    if "WRONG" in environment:
        assert "context_rows=2" in done.stderr


@pytest.mark.parametrize("words, message", [
    (f"{SHAPE} --budget soon", "option '--budget': 'soon' is not a time from 1s to 24h"),
    (f"{SHAPE} --budget 0s", "'0s' is not a time"),
    (f"{SHAPE} --search luck", "--search"),
    (f"{SHAPE} tuned=x.lua", "tuned: x.lua: No such file or directory"),
    (SHAPE.replace("scalar", "neon"), "tune: isa = neon: can not be timed here: it is code for aarch64"),
    (f"{SHAPE} -o broken.lua", "broken.lua:2: "),
    (f"{SHAPE} -o config.lua", "config.lua: h: must be a shape with a table"),
])
def test_refused(tune, words, message):
    (tune.here / "broken.lua").write_text("-- Written by mhagen tune\nreturn {")
    (tune.here / "config.lua").write_text("-- Written by mhagen tune\nreturn { h = 2 }\n")
    done = tune(words)
    assert_refused(done, message)
    assert not tune.log() and not (tune.here / "tuned").exists()


def test_no_ninja(tune):
    (tune.here / "bin").mkdir()
    for program in "sh", "cp", "python3", "env":
        (tune.here / "bin" / program).symlink_to(shutil.which(program))
    assert_refused(tune(SHAPE, PATH=str(tune.here / "bin")), "ninja: No such file or directory")


def test_one_at_a_time(tune):
    first = tune.start(SHAPE, "--budget 600s", SECONDS_EACH="300")
    wait_for(lambda: tune.log())
    assert_refused(tune(SHAPE, "--budget 1s"), "a tune is running here")
    os.killpg(first.pid, signal.SIGINT)
    assert first.communicate() and first.returncode == 2


def wait_for(condition):
    end = time.time() + 600
    while not condition():
        assert time.time() < end
        time.sleep(0.01)


def test_goes_on_after_kills(tune):
    """What the log has is not measured again."""
    log = tune.here / "tuned/.tune"

    def in_order(key):
        return " ".join(sorted(key.split()))

    def known():
        text = "".join(path.read_text() for path in log.glob("*/log.jsonl"))
        found = (row.get("key", "") for row in map(json.loads, text.splitlines()))
        return {in_order(key[:-17]) for key in found if re.match(r"(check|\d+ samples) .* ?[0-9a-f]{16}$", key)}

    def keys(lines):
        """The keys of figures, but for paired runs: these are numbered."""
        for samples, schedule in (line.split(" ", 1) for line in lines):
            words = " ".join(re.findall(r"(?:key|context|kv)_rows=\w+", schedule))
            yield in_order(f"check {words}" if samples == "0" else f"{samples} samples {words}")

    shape, given = SHAPE.replace("dk=4 seq=4", "dk=10 seq=10"), GIVEN.replace("kv_rows=2 ", "")
    rng, kills, killed = random.Random(1), 6, 0
    for run in range(kills + 1):
        have, before = known(), len(tune.log())
        assert {key for key in have if "#" not in key} <= set(keys(tune.log()))
        process = tune.start(shape, given, "--budget 600s", RATIOS="key_rows=3 0.9",
                             SECONDS_EACH="0.02" if run < kills else "0")
        if run < kills:
            lines = rng.randrange(1, 8)
            wait_for(lambda: len(tune.log()) > before + lines or process.poll() is not None)
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                killed += len(have) > 0
        out, _ = process.communicate()
        assert not have & set(keys(tune.log()[before:]))
        if process.returncode == 0:
            break
    assert process.returncode == 0 and re.search(r"goes on: \d+ figures are there", out)
    assert killed > 2 and "key_rows=3" in tune.record()["schedule"]
    assert len(set(keys(tune.log()))) > 15


# ---- what is tuned ----

TUNED = """return { ["%s"] = { schedule = "key_rows=3 kv_rows=2", us = 1.5 } }\n"""


def test_applied(tmp_path):
    """The same code as with the keys themselves; the comment names the file, without its directory."""
    (tmp_path / "my.lua").write_text(TUNED % SHAPE)
    outputs = {}

    def code(name):
        return outputs[name].replace(" tuned=my.lua", "").replace(" cpu=generic fold=auto unroll=auto", "")

    for name, words in {"tuned": f"tuned={tmp_path}/my.lua", "keys": "key_rows=3 kv_rows=2",
                        "both": f"tuned={tmp_path}/my.lua key_rows=4", "fours": "key_rows=4 kv_rows=2"}.items():
        assert gen(tmp_path / name, SHAPE, words).returncode == 0
        outputs[name] = text_of(tmp_path / name)
    assert code("tuned") == code("keys") != code("fours") == code("both")
    assert f"{SHAPE} cpu=generic fold=auto unroll=auto tuned=my.lua key_rows=3 kv_rows=2\n" in outputs["tuned"]
    assert str(tmp_path) not in outputs["tuned"]
    # The name is that of the shape, whatever the schedule.
    (tmp_path / "k.lua").write_text((TUNED % SHAPE).replace("kv_rows=2", "unroll=k"))
    assert gen(tmp_path / "k", SHAPE, "tuned=k.lua").returncode == 0
    assert (tmp_path / "k/mha_f32_h1_d160_k4_s4_scalar.c").exists()
    # The command in the file makes the same file, where the tuning file is.
    command = re.search(r"command +mhagen gen (.*)", outputs["tuned"])[1]
    again = subprocess.run([MHAGEN, "gen", *command.split(), "-o", "again"], cwd=tmp_path)
    assert again.returncode == 0 and text_of(tmp_path / "again") == outputs["tuned"]


def test_applied_from_a_config(tmp_path):
    (tmp_path / "my.lua").write_text(TUNED % SHAPE)
    (tmp_path / "config.lua").write_text(
        'return { h = 1, d_model = 160, dk = 4, seq = 4, isa = "scalar", tuned = "my.lua" }\n')
    assert gen(tmp_path / "out", "config.lua").returncode == 0
    assert "key_rows=3 kv_rows=2" in text_of(tmp_path / "out")


@pytest.mark.parametrize("text, message", [
    (TUNED % SHAPE.replace("seq=4", "seq=5"), f"has no schedule for {SHAPE}; see mhagen tune"),
    (TUNED.replace("key_rows=3", "h=3") % SHAPE, "sets h, which is no schedule key"),
    (TUNED.replace("key_rows", "key_row") % SHAPE, "unknown key, did you mean key_rows?"),
    (TUNED.replace("schedule", "plan") % SHAPE, "unknown field plan"),
    (TUNED.replace("1.5", '"fast"') % SHAPE, "us must be a number"),
    ('return { ["a shape"] = { us = 1 } }', "a shape: has no schedule"),
    ("return { 1 }", "1: must be a shape with a table"),
    (TUNED.replace("key_rows=3", "key_rows") % SHAPE, "schedule: key_rows is no key=value"),
    (TUNED.replace("key_rows=3", "key_rows=99") % SHAPE, "config: tuned = my.lua: key_rows = 99: must be"),
    ("while true do end", "runs for more than"),
])
def test_files_refused(tmp_path, text, message):
    (tmp_path / "my.lua").write_text(text)
    done = gen(tmp_path / "out", SHAPE, "tuned=my.lua")
    assert_refused(done, message)
    assert not (tmp_path / "out").exists()


def test_no_axis_of_a_sweep(tmp_path):
    (tmp_path / "grid.lua").write_text(
        'return { h = 1, d_model = 8, dk = 4, seq = 4, isa = "scalar", tuned = "my.lua" }\n')
    done = subprocess.run([MHAGEN, "sweep", "grid.lua", "-o", "out"], cwd=tmp_path, text=True, capture_output=True)
    assert done.returncode == 2 and "cannot be a key here" in done.stderr
    assert not (tmp_path / "out").exists()


# ---- for real ----

def test_real(tune):
    """With a compiler and real times: a schedule that was checked, or the default."""
    need("cc")
    done = tune(SHAPE, "--budget 20s", CC="cc")
    assert done.returncode == 0, done.stderr
    file = next((tune.here / "tuned").glob("*.lua"))
    record = dict(re.findall(r"^    (\w+) = \"?(.*?)\"?,$", file.read_text(), re.M))
    assert 0 < float(record["us"]) <= float(record["default_us"]) and 0 < float(record["error"]) < 1e-6
    assert int(record["tried"]) >= 2 or "there is no time to try another" in done.stdout
    assert record["compiler"] and "-O2" in record["flags"]
    assert gen(tune.here / "out", SHAPE, f"tuned={file}").returncode == 0
    if record["schedule"]:
        assert len([r for r in record["ratios"].split() if float(r) < 0.99]) >= 4
