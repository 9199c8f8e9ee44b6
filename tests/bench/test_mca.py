"""bench/mca.py finds the products of a kernel, and llvm-mca gives a number for each."""
import re
import sys

import pytest

from tools import RECENT_COMPILERS, ROOT, compiler_for, need, run

sys.path.append(str(ROOT / "bench"))
import mca  # noqa: E402


@pytest.mark.parametrize("compiler", RECENT_COMPILERS)
def test_micro(compiler, tmp_path):
    command = " ".join(compiler_for("neon", compiler))
    for program in "qemu-aarch64", mca.CROSS + "gcc":
        need(program)
    if why := mca.newest_mca()[1]:
        pytest.skip(why)
    text = run(sys.executable, ROOT / "bench/mca.py", "--shapes", "micro", "--cc", command,
               "--cpu", "neoverse-n1,neoverse-v2", "--out", tmp_path)
    assert "no Arm hardware was measured" in text
    assert text == (tmp_path / "bench-mca.txt").read_text()
    row = r"^micro +(\w+ (?:loop|line)|all) +(\d+) +([\d.]+) +\d+ +([\d.]+) ([\d.]+)[ <] +([\d.]+) ([\d.]+)"
    rows = {name: [float(number) for number in numbers] for name, *numbers in re.findall(row, text, re.M)}
    assert len(rows) > 4 and sum(name.endswith("loop") for name in rows) >= 3
    # 20,480 are the products', as explain says; the others are those of exp.
    fmas, share, *rates = rows["all"]
    assert 20480 < fmas < 1.2 * 20480 and 0.8 < share < 1
    for fmas, share, n1, of_n1, v2, of_v2 in rows.values():
        assert fmas >= mca.LEAST and mca.SHARE <= share < 1
        assert 0.3 < of_n1 < 1.01 and 0.3 < of_v2 < 1.01
        assert n1 == pytest.approx(2 * of_n1, abs=0.01) and v2 == pytest.approx(4 * of_v2, abs=0.01)
    instructions, part = re.search(r"(\d+) instructions, ([\d.]+) FMAs", text).groups()
    assert float(part) == pytest.approx(rows["all"][0] / int(instructions), abs=0.001)


@pytest.mark.parametrize("there, wanted", [
    ({"llvm-mca-14": "14.0.6", "llvm-mca-22": "22.1.8", "llvm-mca": "14.0.6"}, "llvm-mca-22"),
    ({"llvm-mca": "19.1.7", "llvm-mca-9": "9.0.1"}, "llvm-mca"),
    ({"llvm-mca-17": "17.0.6", "llvm-mca-22": None}, "llvm-mca-17"),
    ({"llvm-mca-14": "14.0.6"}, "llvm-mca of LLVM 17 or later is needed; {}/llvm-mca-14 is of 14"),
    ({"llvm-mca-html": "30.0"}, "llvm-mca of LLVM 17 or later is needed"),
])
def test_newest(there, wanted, tmp_path, monkeypatch):
    """An old llvm-mca, which comes with many a Clang, is not asked about CPUs that it does not know. One that does not
    start is none."""
    for name, number in there.items():
        says = f"echo 'Debian LLVM version {number}'" if number else "exit 127"
        (tmp_path / name).write_text(f"#!/bin/sh\n{says}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    program, why = mca.newest_mca()
    assert (why or program.name) == wanted.format(tmp_path)
