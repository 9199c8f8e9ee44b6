"""build.ninja: an edit rebuilds the programs that have the file inside, and no others."""
import os
import re
import shutil

from tools import ROOT, run

PROGRAMS = ["mhagen", "mhagen-toy", "optest", "unit"]
EDITS = [
    (["templates/kernel.c.in"], ["mhagen", "mhagen-toy"]),
    (["templates/a_new_one.in"], ["mhagen", "mhagen-toy"]),
    (["tests/optest.c.in", "tests/unit.lua"], ["optest", "unit"]),
]


def built(tree):
    """Builds all programs; the names of those that are new."""
    output = run("ninja", *(f"build/{name}" for name in PROGRAMS), cwd=tree,
                 env={**os.environ, "CFLAGS": "-O0"})
    return sorted(re.findall(r"link build/(\S+)$", output, re.M))


def test_edits(tmp_path):
    shutil.copy(ROOT / "build.ninja", tmp_path)
    for name in "bench", "gen", "runtime", "templates", "tests":
        shutil.copytree(ROOT / name, tmp_path / name)
    assert built(tmp_path) == sorted([*PROGRAMS, "embed"])
    for files, programs in EDITS:
        for path in (tmp_path / file for file in files):
            # As editors do it: the new text takes the old one's place in the directory.
            new = path.with_name("new")
            new.write_text((path.read_text() if path.exists() else "") + "\n")
            new.rename(path)
        assert built(tmp_path) == programs
        assert built(tmp_path) == []
