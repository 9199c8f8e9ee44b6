"""Ops and tapes: every op of every ISA is compared with its meaning in gen/isa/ops.lua, exp2 and the
activation functions are tested over all floats, tapes run without a compiler, and the toy ISA passes the checker."""
import functools
import itertools
import os
import random
import re
import subprocess
import sys

import pytest

import fuzz
import tools
from tools import CLANGS, COMPILERS, ISAS, ROOT, WARNINGS, compiler_for, emulation, in_turn, native, runner_for

ISAS = [*ISAS, "toy"]
passes = functools.partial(tools.run, cwd=ROOT)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    directory = tmp_path_factory.mktemp("ops")
    passes("build/optest", directory)
    return directory


def build(isa, compiler, source, out, *flags):
    """The command that runs the test program; skips where this CPU can not."""
    passes(*compiler_for(isa, compiler), *emulation(isa), "-std=c11", "-ffp-contract=off", *flags, "-Iruntime",
           "-DMHAGEN_NO_POOL", source, "runtime/mhagen.c", "-o", out, "-lm")
    return [*runner_for(isa), out]


def run_test(program, *arguments, timeout=600):
    result = subprocess.run([*program, *arguments], text=True, timeout=timeout,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if result.returncode == 77:
        pytest.skip(result.stdout.strip())
    return result


@pytest.mark.parametrize("isa, compiler, level", [
    (isa, *chain) for isa in ISAS for chain in in_turn(list(itertools.product(COMPILERS, ["-O0", "-O2"])), "ops", isa)])
def test_ops(isa, compiler, level, sources, tmp_path):
    """And exp2 over a sample of all floats."""
    flags = [level, *(WARNINGS if level != "-O0" else [])]  # gcc's own macros warn at -O0
    program = build(isa, compiler, sources / f"{isa}.c", tmp_path / "test", *flags)
    result = run_test(program)
    assert result.returncode == 0, result.stdout
    assert re.search(r": \d\d+ ops, 0 failures$", result.stdout.strip()), result.stdout
    result = run_test(program, "exp2", "2503")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("isa", in_turn(list(filter(native, ISAS)), "exp2"))
def test_exp2(isa, sources, tmp_path):
    """A denser sample, of an ISA that this CPU has; -march=native is for the reference. MHAGEN_EXP2_STRIDE=1 takes
    all 2^32 floats."""
    program = build(isa, "gcc", sources / f"{isa}.c", tmp_path / "test", "-O3", "-march=native")
    result = run_test(program, "exp2", os.environ.get("MHAGEN_EXP2_STRIDE", "61"), timeout=3600)
    print(result.stdout)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("isa, compiler", [(isa, compiler) for isa in ISAS
                                           for compiler in in_turn(COMPILERS, "activations", isa)])
def test_activations(isa, compiler, sources, tmp_path):
    """Over a sample of all floats and their ends. MHAGEN_ACTIVATION_STRIDE=1 takes all 2^32 floats, in minutes."""
    program = build(isa, compiler, sources / f"{isa}_activations.c", tmp_path / "test", "-O2", *WARNINGS)
    stride = os.environ.get("MHAGEN_ACTIVATION_STRIDE", "1009" if native(isa) else "10007")
    result = run_test(program, stride, timeout=3600)
    print(result.stdout)
    assert result.returncode == 0, result.stdout


# Numbers and order of operands in the C of avx2, what breaks them, and the function that is wrong then.
BROKEN_ACTIVATIONS = [
    ("0.393926173f", "0.39393f", "gelu"),
    ("0.228991762f", "0.2290f", "gelu"),
    ("2.50663495f", "2.5066f", "gelu"),
    ("set1_ps(11.9f)", "set1_ps(11.7f)", "gelu"),
    ("22.3638611f", "22.3639f", "gelu_tanh"),
    ("_mm256_max_ps(zero, x)", "_mm256_max_ps(x, zero)", "relu"),
    ("0.00958068203f", "0.0095807f", "gelu_short"),
    ("0.398815751f", "0.39881578f", "gelu_tanh_short"),
    ("_mm256_max_ps(least, x)", "_mm256_max_ps(x, least)", "gelu_short"),
    ("_mm256_fmadd_ps(whole, octave_low, sum)", "sum", "silu"),
    ("0.133807406f", "0.13381f", "tanh"),
    ("set1_ps(9.05f)", "set1_ps(7.0f)", "tanh"),
]


@pytest.mark.parametrize("old, new, name", BROKEN_ACTIVATIONS)
def test_broken_activation_fails(old, new, name, sources, tmp_path):
    text = (sources / "avx2_activations.c").read_text()
    assert old in text
    (tmp_path / "broken.c").write_text(text.replace(old, new))
    result = run_test(build("avx2", "gcc", tmp_path / "broken.c", tmp_path / "test", "-O2"), "10007")
    assert result.returncode == 1 and f"FAIL avx2 {name}: " in result.stdout, result.stdout


# Broken rows, and what must be said about them.
BROKEN = [
    ("scalar", "sub=$2 - $1", "FAIL sub of 1 lanes"),
    ("scalar", "round=$1 < 0.0f ? -nearest(0.5f - $1) : nearest($1)", "FAIL round of 1 lanes"),
    ("toy", "zero_if=toy_sel($1, $2, toy_set(0.0f))", "FAIL zero_if of 2 lanes"),
    ("toy", "load_n=toy_load($1)", "FAIL load_n of 2 lanes, n = 1: touches memory"),
    ("toy", "store_n=toy_store($1, $2)", "FAIL store_n of 2 lanes, n = 1: "),
    ("toy", "all=$1.at[0]", "FAIL all of 2 lanes"),
    ("avx2", "sub=_mm256_sub_ps($2, $1)", "FAIL sub of 8 lanes"),
    ("avx2", "fma=_mm256_add_ps(_mm256_mul_ps($1, $2), $3)", "FAIL fma of 8 lanes"),
    ("avx2", "sel=_mm256_blendv_ps($2, $3, $1)", "FAIL sel of 8 lanes"),
    ("avx2", "max=_mm256_max_ps($2, $1)", "FAIL max of 8 lanes"),
    ("avx2", "lt=_mm256_cmp_ps($1, $2, _CMP_NGE_UQ)", "FAIL lt of 8 lanes"),
    ("avx2", "load_n=_mm256_loadu_ps($1)", "FAIL load_n of 8 lanes, n = 1: touches memory"),
    ("avx2", "store_n=_mm256_storeu_ps($1, $2)", "FAIL store_n of 8 lanes, n = 1: "),
    ("avx2", "load=_mm256_load_ps($1)", "FAIL load of 8 lanes: touches memory"),
    ("avx2", "load_bytes_n=bytes8($1, 8)", "FAIL load_bytes_n of 8 lanes, n = 1: touches memory"),
    ("scalar", "sqrt=$1 < 1e-30f ? 0.0f : square_root($1)", "FAIL sqrt of 1 lanes"),
    ("avx2", "sqrt=_mm256_mul_ps($1, _mm256_rsqrt_ps($1))", "FAIL sqrt of 8 lanes"),
    ("scalar", "store_bf16=$e1 = as_bf16($2 < 0.0f || $2 >= 0.0f ? $2 : 0.0f)", "FAIL store_bf16 of 1 lanes"),
    ("scalar", "store_f16=$e1 = as_f16($2 < 0x1p-15f && $2 > -0x1p-15f ? 0.0f * $2 : $2)", "FAIL store_f16 of 1 lanes"),
    ("toy", "load_bytes=(toy){ { (float)$e1, (float)$e1 } }", "FAIL load_bytes of 2 lanes"),
    ("avx2", "ishl=_mm256_slli_epi32($1, 23)", "FAIL ishl of 8 lanes, n = 1"),
    ("avx2", "as_i=_mm256_cvtps_epi32($1)", "FAIL as_i of 8 lanes"),
    ("avx2", "bf16_half=_mm256_castsi256_ps($1)", "FAIL bf16_half of 8 lanes, n = 0"),
    ("avx2", "f16_halves=_mm256_cvtph_ps(_mm256_castsi256_si128($1))", "FAIL f16_halves of 8 lanes, n = 8"),
    ("amx", "tile_zero=(void)$1", "FAIL tile_zero: row 0, column 0"),
    ("amx", "tile_load=_tile_loadd($1, $2, 64)", "FAIL tile_load: row 1, column 0"),
    ("amx", "tile_store=tile_store($1, $2, $3 - 1)", "FAIL tile_store: row 0, column 18"),
    ("amx", "tile_dot=_tile_dpbf16ps($1, $3, $2)", "FAIL tile_dot: row 0, column 0"),
    ("amx", "tile_dot_bytes=_tile_dpbssd($1, $3, $2)", "FAIL tile_dot_bytes: row 0, column 0"),
    ("avx512_fp16", "fma_halves=$p_fmadd_ps($1, $2, $3)", "FAIL fma_halves of 16 lanes"),
    ("avx512_fp16", "load_halves=halves_$lanes($1 + 1)", "FAIL load_halves of 16 lanes"),
    ("neon_fp16", "add_halves=vaddq_f32($1, $2)", "FAIL add_halves of 4 lanes"),
    ("neon_fp16", "add_pairs=vaddq_f32($1, $2)", "FAIL add_pairs of 4 lanes"),
]


@pytest.mark.parametrize("isa, row, message", BROKEN,
                         ids=[f"{isa}-{row.split('=')[0]}" for isa, row, _ in BROKEN])
def test_broken_row_fails(isa, row, message, tmp_path):
    passes("build/optest", tmp_path, "broken", isa, row)
    result = run_test(build(isa, "gcc", tmp_path / "broken.c", tmp_path / "test", "-O0"))
    assert result.returncode == 1 and message in result.stdout, result.stdout


@pytest.mark.parametrize("compiler", COMPILERS)
def test_tiles_in_plain_c(compiler, tmp_path):
    """The emulation that kernels of amx are tested with, beside the instructions; skipped where there are none."""
    passes(*compiler_for("amx", compiler), "-std=c11", "-O2", *WARNINGS, "-Iruntime", "-DMHAGEN_NO_POOL",
           "tests/ops/tiles_test.c", "runtime/mhagen.c", "-o", tmp_path / "test", "-lm")
    result = run_test([tmp_path / "test"])
    assert result.returncode == 0 and result.stdout == "ok: 4000 products\n", result.stdout


SHAPES = """static unsigned char all[64] = {1, [16] = 64, [18] = 64, [20] = 64, [48] = 16, 16, 8};
static float at[256];
"""


@pytest.mark.parametrize("code, message", [
    ("_tile_zero(0);", "an instruction without a configuration"),
    ("_tile_release();", "released twice"),
    ("_tile_loadconfig(all); _tile_loadconfig(all);", "configured twice"),
    ("_tile_loadconfig(all);", "not released"),
    ("_tile_loadconfig(all); _tile_loadd(3, at, 64);", "no such tile"),
    ("_tile_loadconfig(all); _tile_dpbf16ps(0, 1, 2);", "shapes that do not fit"),
    ("_tile_loadconfig(all); _tile_dpbssd(0, 1, 1);", "a product of a tile with itself"),
    ("all[50] = 17; _tile_loadconfig(all);", "a shape that no tile has"),
    ("_tile_loadconfig(all); _tile_loadd(0, at, 64); _tile_stored(0, at, 64); _tile_release();", "")])
def test_tiles_are_strict(code, message, tmp_path):
    (tmp_path / "use.c").write_text(f"{SHAPES}int main(void) {{ {code} return 0; }}\n")
    passes("gcc", "-include", "tests/ops/tiles.h", "-Iruntime", tmp_path / "use.c", "-o", tmp_path / "use", "-lm")
    result = subprocess.run([tmp_path / "use"], text=True, capture_output=True)
    assert result.stderr == (f"tiles: {message}\n" if message else "") and bool(result.returncode) == bool(message)


@pytest.mark.parametrize("compiler", COMPILERS)
def test_halves_in_plain_c(compiler, tmp_path):
    """The emulation that kernels of avx512_fp16 are tested with, beside integers and, where there are some, the
    instructions."""
    passes(*compiler_for("avx512_fp16", compiler), "-std=c11", "-O2", *WARNINGS, "-Iruntime", "-DMHAGEN_NO_POOL",
           "tests/ops/halves_test.c", "runtime/mhagen.c", "-o", tmp_path / "test")
    result = run_test([tmp_path / "test"])
    assert result.returncode == 0 and result.stdout.startswith("ok: exact"), result.stdout


@pytest.mark.long
@pytest.mark.slow  # the default build runs it by itself
def test_tapes_and_definitions():
    """The unit tests run whole kernels of every ISA, and wrong ISA tables, without a compiler."""
    passes("build/unit", *([] if tools.SEED == "all" else in_turn(range(5), "unit")))


@pytest.mark.parametrize("config", [
    "h=3 d_model=37 dk=5 seq=37", "h=2 d_model=3 dk=2 seq=3 unroll=full",
    "h=2 d_model=9 dk=4 seq=7 dv=3 batch=2 attention=cross seq_kv=5 causal=true kv_len=true probs=true",
])
def test_toy_isa(config):
    assert "ok: " in tools.check(*config.split(), "isa=toy", program=ROOT / "build/mhagen-toy")


def test_tests_know_a_new_isa():
    """By `isas --json` of the program that is tested: for the page of an ISA no test is edited."""
    told = passes(sys.executable, "-B", "-m", "pytest", "-p", "no:cacheprovider", "-v", "tests/kernels/test_floor.py",
                  "tests/commands/test_cli.py", "-k", "toy or test_isas",
                  env={**os.environ, "MHAGEN": ROOT / "build/mhagen-toy"})
    for test in "test_products[toy-32]", "test_products[toy_fours-128]", "test_isas":
        assert f"{test} PASSED" in told


def test_toy_way():
    """A way of multiplying is a file and a line: here with a cost and K steps of its own."""
    for config in "h=3 d_model=37 dk=5 seq=37", "h=2 d_model=9 dk=4 seq=7 causal=true kv_len=true batch=2":
        report = tools.check(*config.split(), "isa=toy_fours", program=ROOT / "build/mhagen-toy")
        assert "ok: " in report
    assert len((ROOT / "tests/toys/toy_way.lua").read_text().splitlines()) <= 50


def adds(key, config, isa, folder, *flags):
    """The kernel of a toy, which does something behind Y, beside the same one without it, which has float32 in
    memory."""
    plain = " ".join(word for word in config.split() if not word.startswith("io_dtype"))
    for name, words in ("with", [*config.split(), key]), ("without", plain.split()):
        tools.run(ROOT / "build/mhagen-toy", "gen", *words, f"isa={isa}", f"name={name}", "-o", folder)
    sources = [*(folder / f"{name}.c" for name in ("with", "without", "mhagen")), ROOT / "tests/toys/toy_behind_test.c"]
    tools.run("gcc", "-std=c11", "-O0", *emulation(isa), *flags, f"-I{folder}", *sources,
              "-pthread", "-lm", "-o", folder / "test")
    env = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    assert tools.run(folder / "test", env=env) == "ok\n", config


ADDING = [isa for isa in tools.ISAS if tools.runs(isa)]
ADDED = ["h=3 d_model=37 dk=5 seq=37 causal=true", "h=2 d_model=16 dk=8 seq=9 unroll=full",
         "h=2 d_model=9 dk=5 dv=3 seq=7 seq_kv=4 batch=2 project=qo"]


@pytest.mark.parametrize("config", ADDED)
def test_toy_stage(config, tmp_path):
    """A stage is a file and a line: its order, tasks and text come from the list of stages."""
    adds("added=true", config, "scalar", tmp_path)
    assert len((ROOT / "tests/toys/toy_stage.lua").read_text().splitlines()) <= 50


# Sums of one chunk, and of several; integers, pairs; rows that are asked for; words of bfloat16 in memory. And tile
# registers, whose ends are apart from the products.
ENDS = [ADDED[0], ADDED[2], "h=5 d_model=600 dk=80 seq=23 k_block=64", "h=3 d_model=37 dk=5 seq=37 dtype=int8",
        "h=2 d_model=64 dk=32 seq=90 q_len=true batch=2",
        "h=3 d_model=40 dk=8 seq=37 q_len=true io_dtype=bf16 batch=2", "h=2 d_model=70 dk=32 seq=1 io_dtype=bf16",
        "h=2 d_model=48 dk=8 seq=20 weight_dtype=int8",
        "h=2 d_model=48 dk=8 seq=9 dtype=int8 weight_dtype=int8 group=16",
        "h=2 d_model=600 dk=32 seq=20 weight_dtype=int4",
        "h=2 d_model=48 dk=16 seq=40 dtype=f16 sum_dtype=f16 q_len=true"]
TILED = "h=3 d_model=37 dk=16 seq=70 dtype=bf16"


@pytest.mark.parametrize("config", [TILED, *in_turn(ENDS, "residual", count=5)])
def test_residual(config, tmp_path):
    """What the end of a tile adds is a tensor that its product names: rows of X, in one rounding."""
    tiled = config == TILED and "amx" in ADDING
    for isa in ["amx"] if tiled else in_turn(ADDING, "residual", config):
        adds("residual=true", config, isa, tmp_path / isa)


@pytest.mark.parametrize("other", ["y_width=5", "project=qkv", "project=o", "io_dtype=bf16", "q_len=true"])
def test_toy_stage_refuses(other):
    """Rows of X are not those of Y there."""
    config = "h=2 d_model=16 dk=8 seq=9 isa=scalar added=true".split()
    command = [ROOT / "build/mhagen-toy", "explain", *config, other]
    result = subprocess.run(command, text=True, capture_output=True)
    assert result.returncode == 2 and "added = true: must be false with" in result.stderr


@pytest.mark.long
def test_toy_stage_drawn(tmp_path):
    """In drawn configs nothing is touched beyond an array, or one line says what the toy is not for."""
    rng, rows = random.Random(tools.seed_of("toy_stage")), tools.schema(ROOT / "build/mhagen-toy")
    keys = ["h", "d_model", "dk", "dv", "seq", "batch", "causal", "y_width", "io_dtype", "unroll", "dtype", "project",
            "attention", "seq_kv", "q_len"]
    ran = 0
    while ran < 4:
        drawn = fuzz.random_config(rng, rows)
        config = fuzz.text({key: drawn[key] for key in keys if key in drawn and drawn[key] != "f16"})
        isa = rng.choice(ADDING)
        told = subprocess.run([ROOT / "build/mhagen-toy", "explain", *config.split(), f"isa={isa}", "added=true"],
                              text=True, capture_output=True)
        if told.returncode:
            assert told.stderr.startswith("mhagen: config: ")
            continue
        ran += 1
        adds("added=true", config, isa, tmp_path / str(ran), "-fsanitize=address,undefined",
             "-fno-sanitize-recover=all")


def test_toy_isa_is_small():
    assert len((ROOT / "tests/toys/toy.lua").read_text().splitlines()) <= 130


@pytest.mark.parametrize("isa", [isa for isa in ISAS if native(isa)][:3])
@pytest.mark.parametrize("config", [
    "h=3 d_model=37 dk=5 seq=37",
    "h=2 d_model=9 dk=4 seq=7 dv=3 batch=2 attention=cross seq_kv=5 kv_len=true probs=true",
    "h=2 d_model=9 dk=4 seq=7 cache=append causal=true",
])
def test_toy_type(config, isa):
    """Its error is above what float32 may have, and below what it states itself."""
    report = tools.check(*config.split(), "dtype=f32r12", f"isa={isa}", program=ROOT / "build/mhagen-toy")
    assert float(re.search(r"worst error ([0-9.e-]+) of an allowed 0.001", report)[1]) > 1e-5


def test_stack_of_rounded_operands():
    """Compilers round operands ahead, and keep them on the stack: with float32's bound this one fails."""
    isa, config = "avx512", "h=1 d_model=1 dk=6 seq=19 mask_dims=hk dtype=f32r12 mask=bool"
    compiler_for(isa, CLANGS[-1])
    if not native(isa):
        pytest.skip("this CPU has no avx512")
    report = passes(sys.executable, "tests/fuzz.py", "--mhagen", "build/mhagen-toy", "--replay", config, "--isa", isa,
                    "--cc", CLANGS[-1], "--level", 2, "--seed", 1)
    assert "ok: " in report


def test_toy_type_is_small():
    assert len((ROOT / "tests/toys/toy_type.lua").read_text().splitlines()) <= 15


@pytest.mark.long
def test_toy_isa_random():
    """The toy ISA, way, option and type in drawn configs, which touch nothing beyond an array."""
    passes(sys.executable, "tests/fuzz.py", "--mhagen", "build/mhagen-toy", "--isa", "toy,toy_fours", "--count", "1",
           "--sanitize", "address,undefined")
