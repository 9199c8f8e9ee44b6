"""The host: it writes the same files on other machines and C libraries, and survives when memory runs out."""
import os
import random
import re
import subprocess

import pytest

from tools import COVER, ISAS, MHAGEN, ROOT, need, run, seed_of

slow = pytest.mark.slow


# ---- other machines and libcs ----

PORTS = {"aarch64": ("aarch64-linux-gnu-gcc", ["qemu-aarch64"]), "musl": ("musl-gcc", [])}


def build(compiler, directory):
    """mhagen with the Lua of its own package; its files are as build/mhagen has them."""
    need(compiler)
    lua = subprocess.run(["sh", ROOT / "scripts/lua.sh", directory / "liblua.a", compiler, "-O1"],
                         capture_output=True, text=True)
    headers = next((ROOT / "build/lua").glob("*/src"), None)  # those in /usr/include are of another libc
    if not headers:
        pytest.skip(f"the source of Lua is not to be had: {lua.stderr[-200:]}")
    assert lua.returncode == 0, lua.stderr[-2000:]
    sources = [path for path in (ROOT / "gen/host").glob("*.c") if path.name != "embed.c"]
    sources += [*(ROOT / f"tests/check/{name}.c" for name in ("reference", "composition")), ROOT / "runtime/mhagen.c",
                ROOT / "build/mhagen_files.c"]
    run(compiler, "-std=c11", "-O1", "-static", "-DMHAGEN_NO_POOL",
        *(word for path in (headers, *(ROOT / name for name in ("gen/host", "runtime", "tests/check")))
          for word in ("-I", path)),
        *sources, directory / "liblua.a", "-lm", "-o", directory / "mhagen")
    return directory / "mhagen"


@slow
@pytest.mark.parametrize("port", PORTS)
def test_same_bytes_from_another_build(port, tmp_path):
    compiler, runner = PORTS[port]
    for program in runner:
        need(program)
    program = build(compiler, tmp_path)
    configs = COVER[1:10:2]
    for i, config in enumerate(configs):
        for command, name in ([MHAGEN], "here"), ([*runner, program], "there"):
            run(*command, "gen", *config.split(), f"isa={ISAS[i % len(ISAS)]}", "-o", tmp_path / name)
    here, there = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()}
                   for name in ("here", "there"))
    assert len(here) == 2 * len(configs) + 2 and here == there


# ---- memory that runs out ----

FAILING = ROOT / "build/mhagen-failing"  # build.ninja has it, with sanitizers; see tests/host/failing_malloc.c
DRAWS = int(os.environ.get("MHAGEN_DRAWS", 10))
MICRO = "h=1 d_model=1 dk=1 seq=1 isa=scalar".split()


def commands(directory):
    (directory / "grid.lua").write_text(
        "return { h = { 1, 2 }, d_model = 8, dk = 4, seq = { 3, 5 }, isa = 'scalar', where = { { h = 1 } } }\n")
    (directory / "config.lua").write_text("return { h = 1, d_model = 1, dk = 1, seq = 1, isa = 'scalar' }\n")
    (directory / "tuned.lua").write_text("return { mha_f32_h1_d1_k1_s1 = { schedule = 'k_block=16' } }\n")
    row = ('{"name":"a","status":"ok","config":{"h":1,"d_model":2,"dk":1,"seq":1,"isa":"scalar"},'
           '"us_median":1.5,"gflops":2}\n')
    (directory / "results.jsonl").write_text(row + row.replace('"a"', '"b"'))
    return {"gen": ["gen", "config.lua", "tuned=tuned.lua", "-o", "out"],
            "explain": ["explain", "config.lua"],
            "tuned": ["explain", "config.lua", "tuned=tuned.lua"],
            "refused": ["explain", "config.lua", "kd=3"],
            "wrong": ["gen", "dmodel=3"],
            "help": ["gen", "--help"],
            "check": ["check", "config.lua"],
            "sweep": ["sweep", "grid.lua", "-o", "out", "--dry-run"],
            "report": ["report", ".", "-o", "out/page.html"]}


CJSON_ENDS = (255, "", "Out of memory\n")  # lua-cjson has a few allocations without which it ends the program itself


@slow
@pytest.mark.parametrize("name", ["gen", "explain", "tuned", "refused", "wrong", "help", "check", "sweep", "report"])
def test_out_of_memory(name, tmp_path):
    """Whichever allocation fails, alone or with all after it: one line and nothing written, or what the
    command does anyway. Sanitizers see that nothing leaks and nothing is used after its end."""
    if not FAILING.exists():
        pytest.skip("build/mhagen-failing is not built")
    command, out, temp = [FAILING, *commands(tmp_path)[name]], tmp_path / "out", tmp_path / "temp"
    temp.mkdir()

    def outcome(**env):
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True,
                                env={**os.environ, "CC": "true", "TMPDIR": str(temp), **env})
        assert list(temp.iterdir()) == []
        files = {path.name: path.read_bytes() for path in out.iterdir()} if out.exists() else {}
        for path in files:
            (out / path).unlink()
        if out.exists():
            out.rmdir()
        return result.returncode, result.stdout, result.stderr, files

    status, text, errors, files = outcome()
    total = int(re.search(r"^(\d+) allocations$", errors, re.M)[1])
    errors = re.sub(r"\d+ allocations\n", "", errors)
    seed = seed_of("allocations", name)
    draw = random.Random(seed)
    for i in range(DRAWS):
        number = round(total ** draw.random())  # the first ones are the most different, and the last ones
        number = total - number if i % 4 > 1 else number
        got = outcome(MHAGEN_FAIL=str(number), **({"MHAGEN_FAIL_ON": "1"} if i % 2 else {}))
        if got == (status, text, errors, files):
            continue
        where = f"seed {seed}: allocation {number} of {total}{' and all after it' if i % 2 else ''}: {got[:3]}"
        assert got[3] in ({}, files), where  # all of the files, or none
        if got[:3] != CJSON_ENDS:
            assert got[0] == 2 and re.fullmatch(r"mhagen: [ -~]*memory[ -~]*\n", got[2]), where
