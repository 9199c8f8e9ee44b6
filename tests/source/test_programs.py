"""programs: what no package of scripts/install.sh has refuses to run in tests, as it is missing on a fresh system."""
import os
import shutil
import subprocess

import pytest

import programs

pytestmark = pytest.mark.skipif(not shutil.which("dpkg-query"), reason="only dpkg knows whose a program is")


@pytest.mark.parametrize("name", ["make", "git", "cmake"])
def test_program_of_no_package(tmp_path, name):
    """Were its package not in the list of install.sh, a test that starts it would fail on every machine."""
    if not shutil.which(name):
        pytest.skip(f"{name} is not installed")
    there, packages = tmp_path / name, programs.packages()
    programs.put_first(tmp_path, {"gcc": "installed"})
    done = subprocess.run([there, "--version"], text=True, capture_output=True)
    assert done.returncode == 127 and "no package of scripts/install.sh has this program" in done.stderr
    assert not (tmp_path / "gcc").exists()
    for path in tmp_path.iterdir():
        path.unlink()
    programs.put_first(tmp_path, packages)
    assert not there.exists()


@pytest.mark.parametrize("state", ["installed", "missing"])
def test_program_of_two_places(tmp_path, monkeypatch, state):
    """The one that a fresh system has is started, and not one that was put before it. What is only there may be that
    of a missing package."""
    first, folder = tmp_path / "first", tmp_path / "folder"
    for path in first, folder:
        path.mkdir()
    for name in "gcc", "of_nobody", "cc":
        (first / name).write_text("#!/bin/sh\n")
        (first / name).chmod(0o755)
    (first / "cc").unlink()
    (first / "cc").symlink_to(shutil.which("gcc"))  # as Debian's alternatives do
    monkeypatch.setenv("PATH", f"{first}:{os.environ['PATH']}")
    programs.put_first(folder, {"gcc": "installed", "cargo": state})
    assert os.readlink(folder / "gcc") == shutil.which("gcc", path="/usr/bin")
    assert (folder / "of_nobody").exists() == (state == "installed") and not (folder / "cc").exists()


def test_dependencies():
    """Of packages of install.sh, of every Debian, and none besides."""
    found = programs.with_dependencies({"gcc"})
    assert {"gcc", "cpp", "binutils", "dpkg", "apt", "coreutils"} <= found and not found & {"git", "make", "python3"}
    assert programs.names_in("libc6 (>= 2.34), debconf (>= 0.5) | debconf-2.0, perl:any") == [
        ["libc6"], ["debconf", "debconf-2.0"], ["perl"]]
