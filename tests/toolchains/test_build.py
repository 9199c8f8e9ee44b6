"""build.ninja: an edit rebuilds the programs that have the file inside, and no others; `ninja sbom` lists what
others have made."""
import gzip
import hashlib
import json
import os
import re
import shutil

import pytest

from tools import ROOT, need, run

PROGRAMS = ["mhagen", "mhagen-toy", "mhagen-toy-scores", "optest", "unit"]
EDITS = [
    (["templates/kernel.c.in"], ["mhagen", "mhagen-toy", "mhagen-toy-scores"]),
    (["templates/a_new_one.in"], ["mhagen", "mhagen-toy", "mhagen-toy-scores"]),
    (["tests/ops/optest.c.in", "tests/unit/unit.lua"], ["optest", "unit"]),
]


def built(tree):
    """Builds all programs; the names of those that are new."""
    output = run("ninja", *(f"build/{name}" for name in PROGRAMS), cwd=tree,
                 env={**os.environ, "CFLAGS": "-O0"})
    return sorted(re.findall(r"link build/(\S+)$", output, re.M))


def test_edits(tmp_path):
    shutil.copy(ROOT / "build.ninja", tmp_path)
    for name in "bench", "gen", "runtime", "scripts", "templates", "tests":
        shutil.copytree(ROOT / name, tmp_path / name)
    assert built(tmp_path) == sorted([*PROGRAMS, "embed"])
    for files, programs in EDITS:
        for path in (tmp_path / file for file in files):
            # As editors do it: the new text takes the old one's place in the directory.
            new = path.with_name("new")
            new.write_text("\n" + (path.read_text() if path.exists() else ""))
            new.rename(path)
        assert built(tmp_path) == programs
        assert built(tmp_path) == []


def test_other_flags(tmp_path):
    """A change of the flags alone compiles anew."""
    rules = tmp_path / "build.ninja"
    shutil.copy(ROOT / "build.ninja", rules)
    shutil.copytree(ROOT / "runtime", tmp_path / "runtime")
    for flags, steps in ("-O0", 1), ("-O0", 0), ("-O1", 1):
        rules.write_text((ROOT / "build.ninja").read_text().replace("-std=c11 -O2", f"-std=c11 {flags}"))
        assert run("ninja", "build/runtime.o", cwd=tmp_path).count("cc runtime/mhagen.c") == steps


def test_tests_build_nothing_in_the_root():
    """A ninja of another version than the one that runs the tests would build the programs anew that others run."""
    every = [(path.name, line) for path in ROOT.glob("tests/**/*.py") for line in path.read_text().split("\n")]
    lines = [(name, line) for name, line in every if re.search(r'run\("ninja".*cwd=ROOT', line)]
    assert len(lines) > 3 and not [name for name, line in lines if '"ninja", "-t"' not in line]
    builders = [path.name for path in ROOT.glob("scripts/*.sh") if re.search("^ninja build/", path.read_text(), re.M)]
    assert "deb.sh" in builders
    calls = [f'ROOT / "scripts/{name}"' for name in builders]
    assert not [(name, line) for name, line in every if any(call in line for call in calls)]


# ---- what others made ----

def test_sbom():
    """What is in the program is in its list: the libraries by their own marks, the packages by dpkg."""
    need("dpkg-query")
    command = run("ninja", "-t", "commands", "build/mhagen.cdx.json", cwd=ROOT).splitlines()[-1]
    bill = json.loads(run(*re.match(r"(python3 .*) > \S*mhagen\.cdx\.json\.new", command)[1].split(), cwd=ROOT))
    program = (ROOT / "build/mhagen").read_bytes()
    assert bill["bomFormat"] == "CycloneDX" and bill["specVersion"] == "1.5"
    assert bill["metadata"]["component"]["hashes"][0]["content"] == hashlib.sha256(program).hexdigest()
    assert run(ROOT / "build/mhagen", "--version").split()[-1] == bill["metadata"]["component"]["version"]
    versions = {one["name"]: one["version"] for one in bill["components"]}
    assert set(versions) == {"liblua5.4-dev", "lua-cjson-dev", "lua-argparse", "lua-dkjson", "libjs-chart.js", "libc6"}
    static = {one["properties"][0]["value"].split()[0] for one in bill["components"]
              if one["properties"][0]["name"] == "mhagen:static"}
    assert static == set(re.findall(r"-l:(\S+\.a)", run("ninja", "-t", "commands", "build/mhagen", cwd=ROOT)))
    assert versions == {name: run("dpkg-query", "-W", "-f", "${Version}", name) for name in versions}
    for name, mark in ("liblua5.4-dev", rb"\$LuaVersion: Lua ([\d.]+)"), ("libjs-chart.js", rb"Chart\.js v([\d.]+)"):
        assert versions[name].startswith(re.search(mark, program)[1].decode())
    assert all(one["licenses"] == [{"license": {"id": "MIT"}}] for one in bill["components"] if one["name"] != "libc6")
    refs = [one["bom-ref"] for one in bill["components"]]
    assert bill["dependencies"] == [{"ref": "mhagen", "dependsOn": refs}] and all(":deb/" in ref for ref in refs)


@pytest.mark.parametrize("version, changes, holes", [
    ("5.4.4-3+deb12u1", "", ""),  # Debian 12
    ("5.4.4-1", "", "CVE-2022-28805 CVE-2022-33099"),
    ("5.4.4-1ubuntu0.1", "a patch against CVE-2022-28805", "CVE-2022-33099"),
    ("5.4.7-1+b2", "", ""),  # Debian 13
    ("5.4.3-1", "CVE-2021-43519 CVE-2021-44647 CVE-2021-44964 CVE-2021-45985 CVE-2022-28805", "CVE-2022-33099"),
    (None, "", "CVE-2022-28805 CVE-2022-33099"),
])
def test_holes_of_lua(version, changes, holes, tmp_path):
    """Without Debian's packages the header tells, which knows of no patch."""
    fake = tmp_path / "dpkg-query"
    fake.write_text(f"#!/bin/sh\nprintf %s '{version}'\n" if version else "#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    (tmp_path / "changes.gz").write_bytes(gzip.compress(changes.encode()))
    header = tmp_path / "lua.h"
    header.write_text("".join(f'#define LUA_VERSION_{name}\t"{number}"\n' for name, number in
                              (("MAJOR", 5), ("MINOR", 4), ("RELEASE", 4))))
    output = run("sh", ROOT / "scripts/lua-check.sh", header, env={
        **os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CHANGES": str(tmp_path / "changes.gz")})
    assert re.findall(r"CVE-\S+", output) == holes.split()
    assert output == "" or output.startswith(f"warning: Lua {version or '5.4.4'} has known holes")
