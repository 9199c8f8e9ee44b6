"""Ladders: several lengths behind the functions of one kernel, on one packed buffer."""
import re
import subprocess

import pytest

from tools import ISAS, MHAGEN, ROOT, WARNINGS, check, compiler_for, generate, in_turn, run, runner_for

BASE = "h=2 d_model=12 dk=5"


@pytest.mark.parametrize("isa", in_turn(ISAS, "a ladder"))
def test_lengths(isa, tmp_path):
    """Each run takes the shortest kernel that is enough, and what one packs all can read."""
    generate(tmp_path, BASE + " seq=2,7,18 q_len=true kv_len=true", isa)
    run(*compiler_for(isa, "gcc"), "-std=c11", "-O1", *WARNINGS, "-I", tmp_path, ROOT / "tests/kernels/ladder_test.c",
        *tmp_path.glob("*.c"), "-o", tmp_path / "test", "-lm", "-pthread")
    run(*runner_for(isa), tmp_path / "test")


def test_steps_fill_the_cache(tmp_path):
    """A kernel for one row takes it where the one for four has no room behind what is in the cache."""
    generate(tmp_path, BASE + " seq=1,4 seq_kv=8 q_len=true cache=append", "scalar")
    run("gcc", "-std=c11", "-O1", *WARNINGS, "-I", tmp_path, ROOT / "tests/kernels/ladder_steps_test.c",
        *tmp_path.glob("*.c"), "-o", tmp_path / "test", "-lm", "-pthread")
    run(tmp_path / "test")


@pytest.mark.parametrize("config", in_turn([
    "attention=cross seq=3 seq_kv=4,9 kv_len=true isa=scalar", "seq=1,4 seq_kv=8 q_len=true cache=append isa=scalar",
    "seq=1,3 seq_kv=8 q_len=true cache=append causal=true rope=half rope_dims=4 qk_norm=rms isa=scalar",
    "seq=1,3 seq_kv=8 q_len=true cache=append rope=half rope_dims=4 rope_tables=apart isa=scalar",
    "seq=5 rope=half rope_dims=4 rope_tables=apart isa=scalar+avx2",
    "seq=5 rope=interleaved rope_dims=4 rope_at=run isa=scalar+avx2",
    "seq=4,8 q_len=true kv_len=true rope=half rope_dims=4 rope_at=run isa=scalar",
    "seq=3 seq_kv=4,9 attention=cross kv_len=true rope=interleaved rope_dims=4 rope_at=run isa=avx2",
    "seq=1,9 seq_kv=20 q_len=true cache=append dv=6 dtype=bf16 weight_dtype=int8 isa=avx512_bf16",
    "attention=cross seq=1,4 seq_kv=7 q_len=true cache=fixed isa=scalar", "seq=2,5 q_len=true kv_len=true isa=x86"],
    "ladders"))
def test_check(config, tmp_path):
    """All promises, of the ladder and each member; one in turn, for compilers take long."""
    told = check(*BASE.split(), *config.split(), "name=k")
    assert len(re.findall("^ok|^skip|: skipped", told, re.M)) in (1, 3, 10) and "FAIL" not in told


def test_the_command_in_the_file_makes_the_file(tmp_path):
    words = (BASE + " seq=2,7 q_len=true kv_len=true isa=scalar+avx2 name=k").split()
    run(MHAGEN, "gen", *words, "--quiet", "-o", tmp_path / "all")
    names = [f"k{part}.{c}" for part in ("", "_avx2", "_avx2_s2", "_avx2_s7", "_scalar", "_scalar_s2", "_scalar_s7")
             for c in "ch"]
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == sorted([*names, "mhagen.c", "mhagen.h"])
    for name in names:
        text = (tmp_path / "all" / name).read_text()
        run(MHAGEN, "gen", *re.search("command   mhagen gen (.*)", text)[1].split(), "--quiet", "-o", tmp_path / "one")
        assert (tmp_path / "one" / name).read_text() == text


LENGTHS = "q_len=true kv_len=true"


@pytest.mark.parametrize("words, told", [
    ("seq=8,4", "seq = 8,4: must be an integer from 1 to 65536, or several in rising order with commas"),
    ("seq=4,", "seq = 4,: must be an integer"), ("seq=4,0", "seq = 4,0: must be"), ("seq=4,x", "seq = 4,x: must be"),
    ("seq=4,8", "q_len = false: must be true with seq = 4,8, which chooses the kernel by it"),
    ("seq=4,8 q_len=true", "kv_len = false: must be true with seq = 4,8, which chooses the kernel"),
    (f"seq=4,8 {LENGTHS} batch=2", "batch = 2: must be 1 with seq = 4,8, since the next entry begins after"),
    (f"seq=4,8 {LENGTHS} probs=true", "probs = true: must be false with seq = 4,8, since the length of its rows"),
    (f"seq=4,8 {LENGTHS} mask=add", "mask_dims = qk: must be k with seq = 4,8"),
    (f"seq=4,8 {LENGTHS} rope=half rope_dims=4", "rope = half: must be none with seq = 4,8, since its tables"),
    ("seq=4 seq_kv=6,9 attention=cross", "kv_len = false: must be true with seq_kv = 6,9"),
    (f"seq=4,6 seq_kv=6,9 attention=cross {LENGTHS}", "seq_kv = 6,9: must be one number with seq = 4,6"),
    *[(f"seq=4,6 seq_kv=9 attention=cross {LENGTHS} {more} rope_dims=4",
       "causal_align = bottom_right: must be top_left with seq = 4,6")
      for more in ("rope=half causal_align=bottom_right", "rope=half cache=fixed")],
    (f"seq=4,6 seq_kv=9 attention=cross {LENGTHS} causal=true causal_align=bottom_right",
     "causal_align = bottom_right: must be top_left with seq = 4,6"),
    *[(f"seq=4,6 seq_kv=5 attention=cross {LENGTHS} rope=half rope_dims=4 rope_tables={tables}",
       "needs kernels that pack the same") for tables in ("packed", "apart")],
    (f"seq=2 seq_kv=6,9 {LENGTHS} cache=append", "cache = append: must be none with seq_kv = 6,9")])
def test_refused(words, told, tmp_path):
    result = subprocess.run([MHAGEN, "gen", *BASE.split(), *words.split(), "isa=scalar", "-o", tmp_path / "out"],
                            text=True, capture_output=True)
    assert result.returncode == 2 and result.stderr.count("\n") == 1 and told in result.stderr
    assert not (tmp_path / "out").exists()


def test_bench_takes_one():
    result = subprocess.run([MHAGEN, "bench", *BASE.split(), "seq=4,8", *LENGTHS.split(), "isa=scalar"],
                            text=True, capture_output=True)
    assert (result.returncode, result.stderr) == (
        2, "mhagen: config: seq = 4,8: bench takes one kernel: one of 4, 8\n")
