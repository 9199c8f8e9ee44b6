"""Faults around the program: a rename that fails, signals, closed streams. The program reports each in one line,
and leaves nothing half-done. test_host.py lets memory run out."""
import os
import pathlib
import signal
import subprocess
import time

import pytest

from test_config import arguments, assert_refused
from tools import MHAGEN, ROOT, run

GRID = ('return { h = 1, d_model = 8, dk = 4, seq = { 3, 4, 5 }, isa = "scalar", '
        'where = function(c) return c.seq > 3 end }')


@pytest.fixture(scope="module")
def shim(tmp_path_factory):
    path = tmp_path_factory.mktemp("shim") / "shim.so"
    run("cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", path, ROOT / "tests/host/fault_shim.c", "-ldl")
    return path


def faulty(shim, fail, *args, **options):
    """Runs mhagen with calls that fail."""
    env = {**os.environ, "LD_PRELOAD": str(shim), "FAIL": fail, **options.pop("env", {})}
    return subprocess.run([MHAGEN, *map(str, args)], capture_output=True, text=True, timeout=600, env=env, **options)


def contents(directory):
    return {str(path.relative_to(directory)): path.read_bytes()
            for path in sorted(directory.rglob("*")) if path.is_file()}


# ---- renames ----

@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_rename_fails(nth, shim, tmp_path):
    """Old files, and files that were not there: all is as before."""
    out = tmp_path / "out"
    run(MHAGEN, "gen", *arguments(name="kernel"), "-o", out)
    (out / "mhagen.h").write_text("/* mhagen.h: an older one */")
    (out / "mhagen.c").unlink()
    (out / "link.h").symlink_to("nowhere")
    before = contents(out)
    changed = arguments(name="kernel", causal="true")
    assert_refused(faulty(shim, f"renameat {nth} 1", "gen", *changed, "-o", out), "out/", ": Input/output error\n")
    assert contents(out) == before
    assert_refused(faulty(shim, f"renameat {nth} 1", "gen", *changed, "-o", tmp_path / "new/dir"),
                   "new/dir/", ": Input/output error\n")
    assert not (tmp_path / "new").exists()
    assert faulty(shim, "renameat 5", "gen", *changed, "-o", out).returncode == 0
    assert sorted(path.name for path in out.iterdir()) == ["kernel.c", "kernel.h", "link.h", "mhagen.c", "mhagen.h"]


def test_what_cannot_be_put_back(shim, tmp_path):
    """The message says which files are new, and where the old ones are."""
    out = tmp_path / "out"
    run(MHAGEN, "gen", *arguments(name="kernel"), "-o", out)
    old = (out / "kernel.h").read_bytes()
    changed = arguments(name="kernel", causal="true")
    result = faulty(shim, "renameat 2", "gen", *changed, "-o", out)
    assert_refused(result, "out/kernel.c: Input/output error; kernel.h is new already, the old one: .kernel.h.")
    kept = out / result.stderr.strip().rsplit(" ", 1)[1]
    assert kept.read_bytes() == old != (out / "kernel.h").read_bytes()
    kept.unlink()
    assert sorted(path.name for path in out.iterdir()) == ["kernel.c", "kernel.h", "mhagen.c", "mhagen.h"]
    run(MHAGEN, "gen", *arguments(name="kernel"), "-o", out)
    result = faulty(shim, "linkat 1; renameat 2", "gen", *changed, "-o", out)
    assert_refused(result, "kernel.h is new already, the old one: lost")


# ---- signals ----

def wait_for(condition):
    for _ in range(12000):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("waited too long")


def alive(pid):
    """Not ended, nor a zombie of a shell that has ended."""
    try:
        return "\nState:\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_signal_while_a_compiler_runs(number, tmp_path):
    """It ends too, the temporary directory is removed, and the status is that of the signal."""
    compiler, temp = tmp_path / "compiler", tmp_path / "temp"
    compiler.write_text(f"#!/bin/sh\necho $$ >{tmp_path}/pid\nexec sleep 60\n")
    compiler.chmod(0o755)
    temp.mkdir()
    process = subprocess.Popen([MHAGEN, "check", *arguments()], stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "TMPDIR": str(temp), "CC": str(compiler)})
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    assert len(list(temp.iterdir())) == 1
    process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (-number, "mhagen: interrupted\n")
    assert list(temp.iterdir()) == []
    wait_for(lambda: not alive(int((tmp_path / "pid").read_text())))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_while_generating(number, tmp_path):
    """Lua runs, with the directory made already."""
    large = arguments(seq=512, d_model=768, h=12, isa="avx512", unroll="k", code_limit=10000000)
    process = subprocess.Popen([MHAGEN, "check", *large], stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "TMPDIR": str(tmp_path), "CC": "false"})
    wait_for(lambda: list(tmp_path.iterdir()))
    process.send_signal(number)
    _, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (-number, "mhagen: interrupted\n")
    assert list(tmp_path.iterdir()) == []


def test_an_ignored_signal_stays_ignored(tmp_path):
    """As nohup wants it."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\nkill -HUP $PPID\nexit 3\n")
    compiler.chmod(0o755)
    result = subprocess.run(["nohup", MHAGEN, "check", *arguments()], capture_output=True, text=True,
                            env={**os.environ, "CC": str(compiler)})
    assert result.returncode == 1 and "ended with status 3" in result.stderr


# ---- streams ----

def test_closed_streams(tmp_path):
    """No file that is opened becomes standard output."""
    (tmp_path / "grid.lua").write_text(GRID)
    command = '"$@" <&- >&-'
    result = subprocess.run(["sh", "-c", command, "sh", MHAGEN, "sweep", "grid.lua", "-o", "out", "--plan-only"],
                            cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert (result.returncode, result.stderr) == (2, "mhagen: standard output: Bad file descriptor\n")
    assert all(path.read_bytes() == b"" for path in tmp_path.glob("out/.s*"))
    result = subprocess.run(["sh", "-c", command + " 2>&-", "sh", MHAGEN, "gen", *arguments(), "--quiet", "-o", "new"],
                            cwd=tmp_path)
    assert result.returncode == 0 and len(list((tmp_path / "new").iterdir())) == 4
