"""The two lists of tasks of a kernel, and which of them is predicted to be faster."""
import re
import subprocess

import pytest

from tools import MHAGEN, run

MINILM = "h=12 d_model=384 dk=32 seq=128".split()


def phases(tmp_path, *words):
    """The rows (name, first, tasks, cycles) of the finest and of the coarse list."""
    run(MHAGEN, "gen", *words, "name=kernel", "-o", tmp_path, "--force")
    text = (tmp_path / "kernel.c").read_text()
    rows = re.findall(r'^  \{ "(\w+)", task_\1, (\d+), (\d+), ([\d.e+]+) \},$', text, re.M)
    finest, coarse = map(int, re.search(r"PHASES = (\d+) \};\nenum \{ COARSE = (\d+) ", text).groups())
    assert len(rows) == finest + coarse
    rows = [(name, int(first), int(tasks), float(cycles)) for name, first, tasks, cycles in rows]
    return rows[:finest], rows[finest:]


def predicted(*words, threads=(1, 2, 4, 8, 16)):
    """{ asked threads: (used threads, tasks, cycles, speedup) }"""
    told = run(MHAGEN, "explain", *words, "--threads", ",".join(map(str, threads)))
    table = told.split("\nthreads (")[1].split("\nchoices")[0]
    rows = re.findall(r"^ +(\d+) +(\d+)   (\S+|a run) +([\d,]+) +([\d.]+)$", table, re.M)
    return {int(asked): (int(used), tasks, int(cycles.replace(",", "")), float(speedup))
            for asked, used, tasks, cycles, speedup in rows}


@pytest.mark.parametrize("isa", ["scalar", "avx512", "amx dtype=bf16"])
def test_lists(isa, tmp_path):
    """Both lists do the same work: as many cycles. In the coarse one a block of heads is a task, and from 8 batch
    entries on an entry."""
    for batch in 1, 3, 20:
        finest, coarse = phases(tmp_path, *MINILM, f"batch={batch}", *f"isa={isa}".split())
        for rows in finest, coarse:
            assert sum(row[3] for row in rows) == pytest.approx(sum(row[3] for row in finest), rel=0.01)
        long = [row for row in coarse if row[0] in ("heads", "entry")]
        blocks = {1} if batch == 20 else {2, 3, 4, 6, 12}
        assert sum(tasks for _, _, tasks, _ in long) in {batch * of for of in blocks}
        assert [first for _, first, _, _ in long] == [sum(row[2] for row in long[:i]) for i in range(len(long))]
        assert len(coarse) < len(finest)


def test_where_there_is_no_coarse_list(tmp_path):
    """One block of heads is no task for several threads; nor is straight-line code."""
    assert not phases(tmp_path, *"h=1 d_model=32 dk=32 seq=16 isa=avx512".split())[1]
    assert not phases(tmp_path, *"h=2 d_model=8 dk=4 seq=4 isa=avx2 unroll=full".split())[1]


def test_prediction():
    """Never more cycles with more threads, never more threads than asked; small kernels stay on one."""
    for isa in "avx512", "amx dtype=bf16":
        rows = predicted(*MINILM, *f"isa={isa}".split())
        assert rows[1][:2] == (1, "a run") and rows[1][3] == 1
        cycles = [rows[n][2] for n in sorted(rows)]
        assert cycles == sorted(cycles, reverse=True)
        for asked, (used, tasks, _, speedup) in rows.items():
            assert used <= asked and speedup <= used and (tasks == "a run") == (used == 1)
    assert rows[4][1] == "coarse"
    small = predicted(*"h=4 d_model=32 dk=8 seq=16 isa=avx512".split())
    assert all(row[:2] == (1, "a run") for row in small.values())


def test_refused():
    for words in "0", "2,", "x", "1;2", "10000":
        result = subprocess.run([MHAGEN, "explain", *MINILM, "isa=scalar", "--threads", words], text=True,
                                capture_output=True, timeout=60)
        assert (result.returncode, result.stdout) == (2, "")
        assert f"option '--threads': '{words}' is not a list of numbers from 1 to 9999, such as 1,2,4" in result.stderr
