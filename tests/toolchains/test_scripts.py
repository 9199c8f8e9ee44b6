"""scripts/: the packages that install.sh asks for on each system, and what venv.sh makes of its lists.

Scripts that know the packages of a release replace Debian's programs; nothing is installed.
"""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

from tools import ROOT, run

# $HAVE: what is installed; $THERE: which Clangs the release has; the log gets what is run with effect.
FAKES = {
    "dpkg-query": """for word; do last=$word; done
case "$last" in
  "clang-*") for name in $HAVE; do case $name in clang-*) echo "$name installed" ;; esac; done ;;
  *) case " $HAVE " in *" $last "*) printf installed ;; *) exit 1 ;; esac ;;
esac""",
    "apt-cache": """case $1 in
  search) for version in $THERE; do echo "clang-$version - C, C++ and Objective-C compiler"; done ;;
  show) case $2 in libclang-rt-$NO_RUNTIME-dev) exit 100 ;; esac ;;
esac""",
    "apt-get": 'echo "apt-get $*" >> "$LOG"; echo "apt: $1"; [ "$1" != "${FAIL:-}" ]',
    "systemctl": 'echo "systemctl $*" >> "$LOG"',
    "update-rc.d": 'echo "update-rc.d $*" >> "$LOG"',
    "sudo": 'echo "sudo $1" >> "$LOG"; "$@"',
    "id": "echo ${UID_IS:-0}",
}
TOOLS = "sh env dirname grep sed awk sort uniq wc uname mkdir tail"


class System:
    def __init__(self, here):
        self.here, self.log = here, here / "log"
        (here / "bin").mkdir()
        for name, text in FAKES.items():
            (here / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
            (here / "bin" / name).chmod(0o755)
        for name in TOOLS.split():
            (here / "bin" / name).symlink_to(shutil.which(name))
        shutil.copytree(ROOT / "scripts", here / "scripts")  # logs are beside it

    def install(self, *kind, release="debian", **environment):
        (self.here / "os-release").write_text(f"ID={release}\n")
        self.log.write_text("")
        return self.start("install.sh", *kind, **environment)

    def start(self, script, *words, **environment):
        return subprocess.run(["sh", self.here / "scripts" / script, *words], text=True, capture_output=True, env={
            "PATH": str(self.here / "bin"), "LOG": str(self.log), "OS_RELEASE": str(self.here / "os-release"),
            "HAVE": "", "THERE": "", "NO_RUNTIME": "none", **environment})

    def asked(self):
        """The packages that apt-get was to install."""
        found = re.search(r"^apt-get install -y -q --no-install-recommends (.*)$", self.log.read_text(), re.M)
        return set(found[1].split()) if found else set()


@pytest.fixture
def system(tmp_path):
    return System(tmp_path)


@pytest.mark.parametrize("release, there, wanted", [
    ("debian", "13 14 15 16 19 22", "clang-14 libclang-rt-14-dev clang-22 libclang-rt-22-dev llvm-22 chromium"),
    ("debian", "15 17 18 19 21", "clang-15 libclang-rt-15-dev clang-21 libclang-rt-21-dev llvm-21 chromium"),
    ("debian", "19", "clang-19 libclang-rt-19-dev llvm-19 chromium"),
    ("ubuntu", "11 12 13 14 15", "clang-14 clang-15 libclang-rt-15-dev llvm-15"),
])
def test_clangs(system, release, there, wanted):
    """Debian 12 and 13, a release of one Clang, and Ubuntu 22.04."""
    done = system.install("tests", release=release, THERE=there, NO_RUNTIME="14" if release == "ubuntu" else "none")
    assert done.returncode == 0, done.stderr
    asked = system.asked()
    assert {name for name in asked if re.match("(lib)?clang|llvm|chromium$", name)} == set(wanted.split())
    assert {"lua5.4", "slurm-wlm", "ninja-build", "python3-pytest"} <= asked


def test_installed_clangs_do(system):
    """Newer ones in the archive do not matter then; with all packages there, nothing is run."""
    have = "clang-13 clang-16 clang-19"
    assert system.install("tests", HAVE=have, THERE="14 23").returncode == 0
    assert {"llvm-19", "libclang-rt-16-dev"} <= system.asked() and not system.asked() & {"clang-14", "clang-23"}
    have += " " + " ".join(system.asked())
    done = system.install("tests", HAVE=have + " munge slurmctld slurmd", THERE="14 23")
    assert done.returncode == 0 and not system.log.read_text()


def test_build_needs_little(system):
    done = system.install()
    assert done.returncode == 0 and "apt: " not in done.stdout + done.stderr
    assert (system.here / "build/install.log").read_text().splitlines() == ["apt: update", "apt: install"]
    assert "liblua5.4-dev" in system.asked() and not [name for name in system.asked() if "clang" in name]
    assert "munge" not in system.log.read_text()


def test_list(system):
    """Nothing is installed, and a package that is there is as much in the list as one that is not."""
    done = system.install("--list", "tests", HAVE="clang-16 clang-19 make", THERE="14 19")
    lines = done.stdout.splitlines()
    assert {"installed make", "installed clang-16", "missing llvm-19", "missing git", "missing gcc"} <= set(lines)
    assert done.returncode == 0 and not system.log.read_text() and len(lines) > 30
    assert "missing fish" in system.install("--list", "toolchains").stdout


def test_daemons_stay_off(system):
    done = system.install("tests", THERE="14 19")
    lines = system.log.read_text().splitlines()
    assert [line.split()[0:2] for line in lines] == [
        ["apt-get", "update"], ["systemctl", "mask"], ["apt-get", "install"], *[["update-rc.d", name] for name in
        ("munge", "slurmctld", "slurmd")], ["systemctl", "unmask"]]
    assert lines[1] == "systemctl mask munge slurmctld slurmd" and lines[3] == "update-rc.d munge disable"
    assert "not started, and not enabled: munge slurmctld slurmd" in done.stdout
    # Those that were there before are somebody's.
    system.install("tests", HAVE="munge", THERE="14 19")
    assert "munge" not in re.sub("apt-get.*", "", system.log.read_text())


def test_neither_root_nor_sudo(system):
    (system.here / "bin/sudo").unlink()
    done = system.install(UID_IS="1000", HAVE="gcc libc6-dev")
    assert done.returncode == 1 and not system.log.read_text()
    assert "install: neither root nor sudo; these packages are missing:" in done.stderr
    assert "apt-get install --no-install-recommends ninja-build liblua5.4-dev lua-argparse" in done.stderr
    assert " gcc " not in done.stderr and "not found" not in done.stderr


def test_sudo(system):
    assert system.install(UID_IS="1000").returncode == 0
    assert system.log.read_text().splitlines()[:2] == ["sudo apt-get", "apt-get update -q"]


def test_apt_fails(system):
    """What was masked is not left so."""
    done = system.install("tests", THERE="14 19", FAIL="install")
    assert done.returncode == 1 and "install: apt-get failed; these packages are missing:" in done.stderr
    assert "apt: install\n" in done.stderr
    assert system.log.read_text().splitlines()[-1].startswith("systemctl unmask munge")


# ---- what test.sh and bare.sh say ----

def started(tmp_path, *words, missing="", venv=0, status=0, told=""):
    """What test.sh does where these packages are missing; venv, status: how the environment and the tests end; told:
    what they print."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/test.sh", tmp_path / "scripts")
    query = "printf 'check_tests\\ncheck_grid\\ncheck_random\\nquick_random\\n'"
    for name, text in [("scripts/install.sh", f'[ "$1" != --list ] || for name in gcc {missing}; do '
                        '[ $name = gcc ] && echo installed $name || echo missing $name; done'),
                       ("scripts/venv.sh", f"exit {venv}"),
                       ("ninja", f'[ "$1" != -t ] || exec {query}\necho "$*" >&2; cat "$0.told"; exit {status}')]:
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "ninja.told").write_text(told)
    return subprocess.run(["sh", tmp_path / "scripts/test.sh", *words], text=True, capture_output=True,
                          env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})


@pytest.mark.parametrize("missing, venv, status", [("", 0, 0), ("cargo zsh", 0, 0), ("fish", 1, 2)])
def test_what_is_left_out(tmp_path, missing, venv, status):
    """test.sh all ends with it, and with the status of the tests."""
    done = started(tmp_path, "all", missing=missing, venv=venv, status=status)
    assert done.returncode == status
    said = [line for line in done.stderr.splitlines() if not line.startswith("test: failed: ")]
    assert done.stdout.splitlines()[-1] == "-k 0 check"
    assert (f"which need {missing}" in done.stderr) == bool(missing) and "gcc" not in done.stderr
    assert len(said) == 2 * bool(missing) + venv and ("of PyPI" in done.stderr) == bool(venv)


@pytest.mark.parametrize("status", [0, 1])
def test_what_the_quick_tests_leave_out(tmp_path, status):
    """The parts of `ninja check` that they have nothing of, and the command that has them."""
    done = started(tmp_path, missing="cargo", status=status)
    parts, how = done.stderr.splitlines()[:2]
    assert (done.returncode, done.stdout.splitlines()[-1]) == (status, "-k 0 quick")
    assert parts.startswith("test: left out: grid; most of tests,") and how.startswith("test: sh scripts/test.sh all ")


def test_what_failed_is_the_last_line(tmp_path):
    """By the name of each test and each part; ninja since 1.12 has the status before it."""
    told = ("FAILED: [code=1] quick_tests \nFAILED tests/a.py::test_x[h=1 dk=2] - AssertionError: x - y\n"
            "ERROR tests/b.py::test_y\nFAIL (check) scalar\nFAILED: quick_beside \nFAILED tests/b.py::test_y\n")
    last = started(tmp_path, status=1, told=told).stderr.splitlines()[-1]
    assert last == ("test: failed: quick_beside, quick_tests, tests/a.py::test_x[h=1 dk=2], tests/b.py::test_y; all "
                    "lines are in build/test.log")


@pytest.mark.parametrize("words, status, told", [(["--help"], 0, "usage: "), (["--no-such"], 2, "")])
def test_help_of_the_demo_installs_nothing(system, words, status, told):
    shutil.copytree(ROOT / "examples", system.here / "examples")
    (system.here / "bin/python3").symlink_to(sys.executable)
    done = system.start("demo.sh", *words)
    assert done.returncode == status and done.stdout.startswith(told) and not system.log.exists()


def test_all_parts_run():
    """Beside others, or alone where they take all cores."""
    parts = {target for target in run("ninja", "-t", "targets", "rule", "run", cwd=ROOT).split() if "check_" in target}
    beside = re.search(r"^beside = (.*)$", (ROOT / "build.ninja").read_text(), re.M)[1].split()
    alone = re.search(r"^build check: phony (.*)$", (ROOT / "build.ninja").read_text(), re.M)[1].split()
    assert len(beside) > 4 and sorted(beside + alone) == sorted(parts)


def test_parts_beside_each_other(tmp_path):
    """The output of each is in one piece, and one that fails ends neither the others nor well."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts/beside.sh", tmp_path / "scripts")
    (tmp_path / "ninja").write_text('#!/bin/sh\necho "of an input"\necho "echo $3 begins; sleep 0.1; echo $3 ends; '
                                    'test $3 != bad"\n')
    (tmp_path / "ninja").chmod(0o755)

    def told(*targets):
        done = subprocess.run(["sh", tmp_path / "scripts/beside.sh", *targets], text=True, capture_output=True,
                              env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"})
        return done.returncode, sorted(re.findall(r"(\w+) begins\n\1 ends\n", done.stdout))
    assert told("bad", "one", "two") == (123, ["bad", "one", "two"])
    assert told("one", "two", "three") == (0, ["one", "three", "two"])


def test_unknown_tests(tmp_path):
    done = started(tmp_path, "some")
    assert (done.returncode, done.stderr, done.stdout) == (2, "usage: scripts/test.sh [all]\n", "")


@pytest.mark.parametrize("words, message", [
    (["--keep"], "--keep has no value"), (["--page"], "--page has no value"),
    (["--suites", "trixie"], "--suites is no option"), ([], "not root")])
def test_bare_refuses(system, words, message):
    done = system.start("bare.sh", *words, UID_IS="1000")
    assert done.returncode == 2 and done.stderr.startswith(f"bare: {message}") and done.stderr.count("\n") == 1


# ---- Python's packages ----

def wheel(folder, name):
    """The smallest wheel there can be; its hash."""
    path, info = folder / f"{name}-1.0-py3-none-any.whl", f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", "there = True\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_venv(tmp_path):
    """Each list by itself; a wrong hash is told, and tried again the next time."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    hashes = {name: wheel(wheels, name) for name in ("first", "second")}
    lists = [tmp_path / f"{name}.txt" for name in hashes]
    lists[0].write_text(f"first==1.0 --hash=sha256:{'0' * 64}\n")
    lists[1].write_text(f"second==1.0 --hash=sha256:{hashes['second']}\n")
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheels), "PIP_CONFIG_FILE": os.devnull}

    def venv():
        return subprocess.run(["sh", ROOT / "scripts/venv.sh", tmp_path / "venv", *lists], text=True,
                              capture_output=True, env=environment)

    def imports(name):
        return subprocess.run([tmp_path / "venv/bin/python", "-B", "-c", f"import {name}"],
                              capture_output=True).returncode == 0

    done = venv()
    assert done.returncode == 1
    assert f"{lists[0]} was not installed; the last lines of {tmp_path}/venv.log" in done.stderr
    assert "DO NOT MATCH THE HASHES" in done.stderr and f"Expected sha256 {'0' * 64}" in done.stderr
    assert not imports("first") and imports("second") and "Processing " in done.stderr
    lists[0].write_text(f"first==1.0 --hash=sha256:{hashes['first']}\n")
    done = venv()
    assert done.returncode == 0 and imports("first") and imports("second"), done.stderr
    assert "second.txt" not in done.stderr
    assert venv().stderr == ""


BUILDERS = {  # what ggml.sh starts, and what it leaves
    "venv/bin/pip": """for word; do [ "$was" != -d ] || to=$word; was=$word; done
tar -czf "$to/it.tar.gz" -C "$HERE" top""",
    "cmake": """echo "cmake $*" >> "$HERE/log"
[ "$1" != "${FAIL:-}" ] || { echo broken; exit 1; }
mkdir -p $HERE/venv/ggml""",
}


def test_ggml(tmp_path):
    """It is built where the list has changed, and a build that failed is done again."""
    (tmp_path / "venv/bin").mkdir(parents=True)
    (tmp_path / "top/vendor/llama.cpp").mkdir(parents=True)
    for name, text in BUILDERS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)

    def build(**environment):
        (tmp_path / "log").write_text("")
        done = subprocess.run(["sh", ROOT / "scripts/ggml.sh", tmp_path / "venv"], text=True, capture_output=True, env={
            **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HERE": str(tmp_path), **environment})
        return done, [line.split()[1] for line in (tmp_path / "log").read_text().splitlines()]

    failed, steps = build(FAIL="--build")
    assert failed.returncode == 1 and failed.stderr.endswith("ggml:   broken\n") and steps == ["-S", "--build"]
    done, steps = build()
    assert done.returncode == 0 and steps == ["-S", "--build"], done.stderr
    assert sorted(path.name for path in (tmp_path / "venv").iterdir()) == ["bin", "ggml", "ggml.log"]
    done, steps = build()
    assert (done.returncode, done.stderr, steps) == (0, "", [])


LISTS = {path.with_suffix(".txt"): path for folder in ("tests", "examples/*", "bench/peers")
         for path in ROOT.glob(f"{folder}/*.in") if path.with_suffix(".txt").exists()}


@pytest.mark.parametrize("path", LISTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_hashes(path):
    """Every package that is wanted is in the list that is installed, with its version and hashes."""
    text, hashes = path.read_text(), r"((?:    --hash=sha256:[0-9a-f]{64}.*\n)+)"
    blocks = re.findall(r"^([a-z][\w-]*)==([^ ]+) .*\\\n" + hashes, text, re.M)
    lines = [line for line in text.splitlines() if re.match(r"\w", line)]
    assert len(blocks) == len(lines) >= 1
    for name, version in re.findall(r"^([a-z][\w-]*)(?:==([\w.]+))?", LISTS[path].read_text(), re.M):
        versions = [found for known, found, _ in blocks if known == name.replace("_", "-").lower()]
        assert versions and (not version or version in versions), name


def test_lists_are_complete():
    assert len(LISTS) == 8
    unhashed = [path for path in ROOT.glob("*/**/*.txt") if "build" not in path.parts
                and re.search(r"^\w+==", path.read_text(), re.M) and "--hash" not in path.read_text()]
    assert [path.name for path in unhashed] == ["torch.txt"]


def test_progress_in_files():
    """Python does not hold back what tests print when that goes to a file."""
    for target in "check_tests", "check_grid", "build/fast.ok":
        assert "PYTHONUNBUFFERED=1" in run("ninja", "-t", "commands", target, cwd=ROOT).splitlines()[-1]
