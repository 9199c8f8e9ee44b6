"""What kernels fetch ahead: hints within the packed weights, or within a cache, which name all but what is first."""
import pytest

from tools import ROOT, compiler_for, emulation, generate, run, runner_for

# The hints of both compilers' headers, and of compilers themselves, as calls.
HINTS = ("#if defined(__x86_64__)\n#include <immintrin.h>\n#endif\nvoid note(const void *at);\n#undef _mm_prefetch\n"
         "#define _mm_prefetch(at, hint) note(at)\n#define __builtin_prefetch(...) NOTE(__VA_ARGS__, 0)\n"
         "#define NOTE(at, ...) note(at)\n"
         # Numbers are all zeros: products in plain C, for which a CPU without tiles would take minutes, show nothing.
         "#undef _tile_dpbf16ps\n#define _tile_dpbf16ps(...) (void)0\n"
         "#undef _tile_dpbssd\n#define _tile_dpbssd(...) (void)0\n")
STEP = "project=none dk=64 seq=1 seq_kv=2000 cache=append"
AHEAD = 8192
# Isa, config, and the bytes that are multiplied first, which nothing can have fetched: those of a product of weights,
# of a panel where panels are fetched, or so many as a hint is ahead. Of a cache those of keys and values, and scales.
KERNELS = [
    ("avx512", "h=4 d_model=128 dk=32 seq=80 fetch=shares", 4 * 128 * 32),
    ("avx512", "h=4 d_model=100 dk=24 seq=67 fetch=shares", 4 * 100 * 48),  # tiles of several sizes, for two heads
    ("avx512", "h=3 d_model=90 dk=30 seq=300 fetch=shares", 4 * 90 * 32),
    ("avx512", "h=2 d_model=60 dk=30 seq=800 kv_rows=5 fetch=shares", 4 * 60 * 64),  # more tiles than columns
    ("avx512", "h=2 d_model=96 dk=48 seq=3 qkv=separate fetch=shares", 4 * 96 * 96),  # one tile
    ("avx512", "h=10 d_model=900 dk=90 seq=30 fetch=shares", 4 * 900 * 64),  # a product is more than the cache
    ("avx512", "h=4 d_model=128 dk=32 seq=20 fetch=panels", 4 * 128 * 16),
    ("avx512", "h=4 d_model=128 dk=32 seq=20 kv_len=true causal=true fetch=panels", 4 * 128 * 16),
    ("avx512", "h=4 d_model=128 dk=32 seq=20 fetch=ahead q_lanes=columns", 2048),  # what is multiplied meanwhile
    ("avx512", "h=3 d_model=100 dk=30 seq=70 qkv=joint kv_len=false fetch=ahead", 2048),
    ("avx512", "h=2 d_model=300 dk=96 seq=3 q_lanes=columns fetch=ahead", 2048),
    ("avx2", "h=4 d_model=128 dk=32 seq=9 q_lanes=columns causal=true fetch=ahead", 2048),
    ("avx2", "h=4 d_model=128 dk=32 seq=80 fetch=shares", 4 * 128 * 32),
    ("avx2", "h=4 d_model=128 dk=32 seq=20 fetch=panels kv_vectors=1", 4 * 128 * 16),  # Wo's are twice as wide
    ("neon", "h=2 d_model=64 dk=16 seq=40 fetch=shares", 4 * 64 * 16),
    ("amx", "h=2 d_model=256 dk=64 seq=100 dtype=bf16 fetch=shares", 2 * 256 * 32),
    ("amx", "h=2 d_model=256 dk=64 seq=100 dtype=int8 fetch=shares", 256 * 64),
    ("amx", "h=2 d_model=512 dk=64 seq=300 dtype=bf16 fetch=shares", 2 * 512 * 64),  # a few tiles at a time
    ("amx", "h=2 d_model=1024 dk=64 seq=520 dtype=bf16 fetch=shares", 2 * 1024 * 64),  # by K, V and Q in turn
    # Each word has two hints, 4 and 24 KB ahead. Wo may be shorter than 24 KB. Then the near hint would lie before it.
    ("amx", "h=4 d_model=192 dk=48 seq=1 weight_dtype=int8 fetch=ahead", 4096),
    ("amx", "h=8 d_model=256 dk=48 seq=3 weight_dtype=int4 fetch=ahead", 4096),
    ("amx", "h=8 d_model=256 dk=48 seq=1 weight_dtype=int4 y_width=20 fetch=ahead", 4096),
    ("avx512", f"h=2 h_kv=2 {STEP} cache_dtype=f16", 4 * AHEAD),
    ("avx512", f"h=4 h_kv=1 {STEP}", 5 * AHEAD),  # blocks of 64 values, room behind the rows
    ("avx512", f"h=8 h_kv=1 {STEP} dv=48 cache_dtype=bf16", 2 * AHEAD),
    ("avx512", f"h=8 h_kv=1 {STEP} cache_dtype=int8", 2 * AHEAD + 8 * 2000),
    ("avx2", f"h=4 h_kv=1 {STEP} cache_dtype=int8", 2 * AHEAD + 8 * 2000),
    ("neon", f"h=4 h_kv=1 {STEP} cache_dtype=f16", 2 * AHEAD),
]
# Isa, config, these bytes, and the rows of some runs: at least so many that each share of a panel has a tile.
LAYER = "h=4 d_model=128 dk=32 ffn=256 norm=post residual=true q_len=true kv_len=true fetch=shares kv_rows=4"
SOME = [
    ("avx2", f"{LAYER} seq=128", 4 * (128 * 32 + 4 * 128 * 16), (13, 16, 37, 128)),
    ("avx2", f"{LAYER.replace('kv_rows=4', '')} seq=128", 4 * (128 * 32 + 4 * 128 * 16), (16, 45, 96, 128)),
    ("avx2", f"{LAYER.replace('kv_rows=4', '')} seq=61", 4 * (128 * 32 + 4 * 128 * 16), (16, 61)),
    ("avx2", "h=4 d_model=32 dk=8 seq=65 q_len=true fetch=shares", 4 * 32 * 32, (65,)),  # all K steps are one block
    ("avx512", f"{LAYER} seq=128", 4 * (128 * 32 + 4 * 128 * 32), (49, 128)),
]


def fetched(tmp_path, isa, config):
    """The command that counts what a kernel fetches ahead."""
    runner = runner_for(isa)
    source = generate(tmp_path, config, isa)
    (tmp_path / "hints.h").write_text(HINTS)
    run(*compiler_for(isa, "gcc"), "-O0", "-std=c11", *emulation(isa), "-include", tmp_path / "hints.h",
        f"-I{tmp_path}", *(["-static"] if runner else []), source, tmp_path / "mhagen.c",
        ROOT / "tests/kernels/fetch_test.c",
        "-o", tmp_path / "fetch", "-lm")
    return [*runner, tmp_path / "fetch"]


BIASES = 6144  # and the gaps behind them


@pytest.mark.parametrize("isa, config, first", KERNELS)
def test_fetched(tmp_path, isa, config, first):
    outside, missed = map(int, run(*fetched(tmp_path, isa, config)).split())
    assert outside == 0
    assert 0 < missed <= (first + BIASES) / 64


@pytest.mark.parametrize("isa, config, first, runs", SOME)
def test_runs_of_some_rows(tmp_path, isa, config, first, runs):
    command = fetched(tmp_path, isa, config)
    for rows in runs:
        outside, missed = map(int, run(*command, rows).split())
        assert outside == 0
        assert 0 < missed <= (first + BIASES) / 64
