"""The rows of gen/score: toy rows in one file go through the whole check, and what rarely runs is short."""
import ctypes
import math
import mmap
import os
import re
import sys

import pytest

from reference_lib import Generated, drawn_isa
from tools import COVER, ISAS, ROOT, check, generate, in_turn, native, run, shared, write_meaning

TOY = ROOT / "build/mhagen-toy-scores"
SOURCE = (ROOT / "tests/toys/toy_score.lua").read_text()

# With each toy row alone, with all, with none; lengths and a first key; groups that no tile is open to.
CONFIGS = ["h=2 d_model=9 dk=3 dv=2 seq=19", "h=2 d_model=9 dk=2 dv=4 seq=19",
           "h=1 d_model=9 dk=2 dv=3 seq=70 kv_len=true batch=2",
           "h=3 d_model=6 dk=3 dv=4 seq=130 causal=true kv_len=true probs=true key_rows=3 key_block=16",
           "h=1 d_model=4 dk=28 dv=27 seq=17 attention=cross seq_kv=12 probs=true fold=off unroll=tile",
           "h=1 d_model=3 dk=2 dv=3 seq=3 attention=cross seq_kv=4 kv_len=true unroll=full",
           "h=1 d_model=1 dk=1 seq=1 dtype=f16",  # where huge scores are not finite
           "h=3 d_model=9 dk=3 dv=4 seq=21 causal=true mask=bool scores=masked"]


@pytest.fixture(scope="module")
def meaning(tmp_path_factory):
    """A header with what the toy rows mean, for the reference."""
    folder = shared(tmp_path_factory, "toy_score", lambda out: write_meaning("toy_score", out))
    return f"-include {folder}/toy_score.h"


@pytest.mark.parametrize("config", CONFIGS)
def test_toy_scores(config, meaning):
    isa = [isa for isa in ISAS if native(isa)][CONFIGS.index(config) % 2]  # the random ones have them all
    assert "ok: " in check(*config.split(), f"isa={isa}", program=TOY, flags=meaning)


@pytest.mark.long
def test_toy_scores_random(meaning):
    """Without keys that the toy rows leave out; without scores as a result, for half of what a mask's clamp leaves is
    no longer huge; without ALiBi, for the reference knows by which maximum its rounded weights are made."""
    isas = ",".join(isa for isa in ISAS if native(isa))
    run(sys.executable, ROOT / "tests/fuzz.py", "--mhagen", TOY, "--isa", isas, "--count", 3, "--cc", "gcc",
        "--without", "project,layout,io_dtype,scores,alibi",
        *in_turn([[], ["--sanitize", "address,undefined"]], "toy_scores")[0],
        env={**os.environ, "REFERENCE_FLAGS": meaning})


def test_maxima_that_rise_among_huge_scores(meaning):
    """To the largest score, for the old maximum and the distance from it lose digits."""
    run(sys.executable, ROOT / "tests/fuzz.py", "--mhagen", TOY, "--replay",
        "h=2 d_model=1 dk=1 seq=33 kv_len=true probs=true", "--isa", "avx2", "--cc", "gcc", "--level", 1,
        "--seed", 651109845, env={**os.environ, "REFERENCE_FLAGS": meaning})


def test_no_row_depends_on_another_query(meaning):
    """Neither with the toy rows, one of which reads a query for all of them."""
    run(sys.executable, ROOT / "tests/fuzz.py", "--mhagen", TOY, "--replay",
        "h=2 d_model=1 dk=1 seq=3 seq_kv=1 attention=cross batch=2", "--isa", "scalar", "--cc", "gcc", "--level", 0,
        "--seed", 632114785, env={**os.environ, "REFERENCE_FLAGS": meaning})


def test_toy_scores_are_small():
    lines = len(SOURCE.splitlines())
    print(f"tests/toys/toy_score.lua: three rows and their meaning in {lines} lines")
    assert lines <= 45


@pytest.mark.parametrize("isa, lanes, load, cap", [
    ("scalar", 1, "*(x)", "0.3"), ("scalar", 1, "*(x)", "1e9"), ("avx2", 8, "_mm256_loadu_ps(x)", "50"),
    ("avx512", 16, "_mm512_loadu_ps(x)", "1e-9"), ("avx512", 16, "_mm512_loadu_ps(x)", "50")])
def test_softcap(isa, lanes, load, cap, tmp_path):
    """Within 3 ulp of tanh, at any size; NaN and Inf."""
    if not native(isa):
        pytest.skip(f"this CPU has no {isa}")
    kernel = generate(tmp_path, f"h=1 d_model=4 dk=2 seq=40 softcap={cap}", isa)
    run("gcc", "-O1", "-march=native", "-DMHAGEN_NO_POOL", f'-DKERNEL="{kernel}"', f"-DSOFTCAP=kernel_softcap_{lanes}",
        f"-DLANES={lanes}", f"-DLOAD(x)={load}", f"-DCAP={cap}", "-I", ROOT / "runtime",
        ROOT / "tests/kernels/softcap.c",
        ROOT / "runtime/mhagen.c", "-o", tmp_path / "softcap", "-lm")
    print(run(tmp_path / "softcap"))


NEAR = 256  # keys beside those that a query sees which may be read as well: of its group and of whole tiles

# Keys, their lengths and places, and the first and the last key that row r of a mask is read for, if any.
LOCAL = [("causal=true window_left=7", {}, lambda r: (r - 7, r)), ("causal=true", {}, lambda r: (0, r)),
         ("kv_len=true mask_dims=hqk", {"kv_len": 100}, lambda r: (0, 99)),
         ("kv_start=true mask_dims=k", {"kv_start": 3000}, lambda r: (3000, 4095)),
         ("causal=true cache=append", {"past": 1500}, lambda r: (0, 1500 + r)),
         ("cache=append window_left=40 seq=1", {"past": 3500}, lambda r: (3460, 3500))]


@pytest.mark.parametrize("keys, ints, read", LOCAL)
def test_masks_are_read_where_keys_are_seen(keys, ints, read, tmp_path):
    """Pages of a mask which no query needs cannot be read."""
    config = dict(h=1, d_model=4, dk=4, seq=64, seq_kv=4096, attention="cross", project="none", mask="add")
    config |= dict(word.split("=") for word in keys.split())
    columns, room = 4096, mmap.PAGESIZE
    rows = 1 if config.get("mask_dims") == "k" else int(config["seq"])
    kernel = Generated(config, "avx2" if native("avx2") else "scalar", tmp_path / "kernel")
    memory = mmap.mmap(-1, rows * columns * 4)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for first in range(0, rows * columns, room // 4):
        row, key = divmod(first, columns)
        low, high = read(row)
        if key + room // 4 <= low - NEAR or key > high + NEAR:
            assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(start + 4 * first), room, 0) == 0
    args = {name: (ctypes.c_int * 1)(value) for name, value in ints.items()}
    args |= {name: (ctypes.c_float * (4096 * 4))() for name in "qkvy"}
    if kernel.shape.cache_bytes:
        args["cache"] = (ctypes.c_char * (kernel.shape.cache_bytes + 64))()
    at = {name: (ctypes.addressof(array) + 63) // 64 * 64 if name == "cache" else ctypes.addressof(array)
          for name, array in args.items()}
    child = os.fork()
    if child == 0:
        kernel.run(mask=start, **at)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0


def test_rows_of_one_finite_number(tmp_path):
    """What others add to hide keys, to all keys of a row: -1e4, and the lowest number of f16, leave the weights of the
    scores, to their last bits; from -1e9 on a sum has no bit of a score, and weights are equal, as in PyTorch."""
    lows, scores = [0, -1e4, -65504, -1e9, -3.4028235e38], [0.5, -1.0, 2.0]
    kernel = Generated(dict(h=1, d_model=2, dk=2, seq=1, seq_kv=3, batch=len(lows), attention="cross", project="none",
                            scale=1, mask="add", mask_dims="bk", probs="true"), drawn_isa("lows"), tmp_path / "kernel")
    rows = dict(q=[1, 0] * len(lows), k=[x for score in scores for x in (score, 0)] * len(lows), v=[0] * 6 * len(lows),
                y=[0] * 2 * len(lows), mask=[low for low in lows for _ in scores], probs=[0] * 3 * len(lows))
    arrays = {name: (ctypes.c_float * len(numbers))(*numbers) for name, numbers in rows.items()}
    kernel.run(**{name: ctypes.addressof(array) for name, array in arrays.items()})
    sums = sum(map(math.exp, scores))
    for i, low in enumerate(lows):
        wanted = [1 / 3 if low <= -1e9 else math.exp(score) / sums for score in scores]
        error = 1e-6 + 2**-24 * abs(low) if low > -1e9 else 1e-6
        assert all(abs(got - want) < error for got, want in zip(arrays["probs"][3 * i:3 * i + 3], wanted)), low


def test_tiles_that_nobody_sees(tmp_path):
    """Four keys are one tile, at the edge for every group: there is no code for other tiles of scores."""
    text = generate(tmp_path, "h=3 d_model=30 dk=10 seq=4 causal=true kv_len=true probs=true", "scalar").read_text()
    assert set(re.findall(r" scores(\w*)_\d+x\d+\(", text)) == {"_first_masked", "_stored_masked"}


@pytest.mark.parametrize("config", ["dk=22 dv=1 seq=56 batch=4 kv_start=true", "dk=8 seq=70 window_left=40"])
def test_maxima_that_rise_before_the_first_tile(config):
    """All weights are kept, and tiles in front of the first one made are made behind it: only weights of other tiles
    become smaller where a maximum rises."""
    check("h=1", "d_model=5", "probs=true", "isa=scalar", *config.split())


def test_safe_path_is_short(tmp_path):
    """What looks for maxima and keeps hidden values out is at most two fifths of the tiles of scores and context: its
    tiles of scores are those of peaky scores."""
    for config in COVER[1], COVER[5]:
        text = generate(tmp_path, config, "avx2").read_text()
        sizes = {name: body.count("\n") for name, body in re.findall(r"void (\w+)\([^;{]*\) \{\n(.*?)\n\}", text, re.S)}
        rare = sum(size for name, size in sizes.items() if re.search("^safe|^known|context.*_masked", name))
        usual = sum(size for name, size in sizes.items() if re.match("scores|weights|rising|context|attend", name))
        print(f"{config}: {rare} of {usual} lines")
        assert 0 < rare <= usual * 2 / 5
