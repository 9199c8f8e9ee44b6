"""The configurations of formatters fit the tree: .clang-format, ruff.toml and .editorconfig. No formatter of Lua is
packaged by Debian or PyPI; .editorconfig has what editors need for it."""
import difflib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import ROOT

FOLDERS = "bench examples gen python runtime scripts templates tests".split()
MOST_DIFFERENT = 0.03  # of the lines of C: those that clang-format would change


def formatter(name):
    """The one of tests/requirements.txt, as others have other opinions."""
    version = re.search(rf"^{name}==([\d.]+)", (ROOT / "tests/requirements.txt").read_text(), re.M)[1]
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    if not program or version not in subprocess.run([program, "--version"], text=True, capture_output=True).stdout:
        pytest.skip(f"{name} {version} is not installed")
    return program


def sources(*suffixes):
    return [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))
            if path.suffix in suffixes and "golden" not in path.parts and "corpus" not in path.parts]


def changed_lines(program, text, name):
    """Lines that a format with .clang-format would change."""
    done = subprocess.run([program, "--style=file", f"--assume-filename={ROOT / name}"], input=text, text=True,
                          capture_output=True, check=True)
    return sum(line.startswith("- ") for line in difflib.ndiff(text.splitlines(), done.stdout.splitlines()))


def test_c():
    program, paths = formatter("clang-format"), sources(".c", ".h", ".hpp", ".cpp")
    changed = sum(changed_lines(program, path.read_text(), path.name) for path in paths)
    assert len(paths) > 80
    assert changed <= MOST_DIFFERENT * sum(path.read_text().count("\n") for path in paths), changed


def test_c_of_another_style():
    program = formatter("clang-format")
    assert changed_lines(program, "int f(int* a)\n{\n    return a[0];\n}\n", "a.c") == 3
    assert not changed_lines(program, "int f(int *a) {\n  if (!a) return 0;\n  return a[0];\n}\n", "a.c")


def ruff(*what, **options):
    return subprocess.run([formatter("ruff"), "check", "--no-cache", "--config", ROOT / "ruff.toml", *what], text=True,
                          capture_output=True, **options)


def test_python(tmp_path):
    assert ruff(cwd=ROOT).stdout == "All checks passed!\n"
    for text in "import os\n", "x = [1,2]\n", "def f():\n    pass\nf()\n", f"x = '{'x' * 120}'\n":
        assert ruff("-", input=text).returncode == 1, text


def untidy(text):
    """As .editorconfig has it."""
    return bool(re.search(r"\t|\r|[ ]+$", text, re.M)) or not text.endswith("\n")


def test_blanks():
    paths = sources(".lua", ".c", ".h", ".hpp", ".cpp", ".py", ".sh", ".css")
    assert len(paths) > 400 and not [str(path) for path in paths if untidy(path.read_text())]
    assert all(map(untidy, ("a \n", "\ta\n", "a\r\n", "a"))) and not untidy("a\n\nb\n")
