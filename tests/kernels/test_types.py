"""Kernels whose operands are rounded: beside PyTorch's layers of the same type, and numbers at the ends of a type. The
checker, which compares every number with what rounded operands make, is in the tests of all configs."""
import ctypes
import math
import os
import random
import re
import struct
import subprocess
import sys

import pytest

from reference_lib import Generated, aligned, drawn_isa
from tools import ISAS, MHAGEN, ROOT, check, explain, in_turn, native, run, runs


@pytest.mark.parametrize("dtype", ["bf16", "f16", "int8"])
@pytest.mark.parametrize("shape", ["micro", "berttiny"])
def test_no_less_exact_than_pytorch(shape, dtype, tmp_path):
    """`tests/errors.py` prints all shapes."""
    pytest.importorskip("torch")
    import errors
    ours, theirs, below = errors.errors(shape, dtype, drawn_isa(f"errors {shape} {dtype}"), 2, tmp_path)
    assert below and ours <= errors.BOUNDS[dtype], (ours, theirs)


@pytest.mark.parametrize("isa", [isa for isa in ISAS if runs(isa)])
def test_sums_beyond_half_precision(isa, tmp_path):
    """Where a sum of f16 overflows it is made again in float32."""
    d, columns = 150, 40
    rng = random.Random(4)
    x, w = ([rng.gauss(0, 1) for _ in range(n)] for n in (3 * d, d * columns))
    huge = [number * 3000 for number in x[:d]] + x[d:]

    def values(rows):
        kernel = Generated(dict(h=1, d_model=d, dk=columns, seq=3, attention="cross", project="v", dtype="f16",
                                sum_dtype="f16", attend_dtype="f32"), isa, tmp_path / "kernel")
        zeros, y = floats([0] * columns * 3), floats([0] * columns * 3)
        given = floats([50 * number for number in w])
        kernel.pack(wv=ctypes.addressof(given))
        q, v = floats([0] * columns * 3), floats(rows)
        kernel.run(**{name: ctypes.addressof(array) for name, array in dict(q=q, k=zeros, v=v, y=y).items()})
        return list(y)[:columns]

    def mean(rows):  # equal scores: the mean of the rows
        rounded = [[half(number) for number in rows[r * d:r * d + d]] for r in range(3)]
        return [sum(row[i] * half(50 * w[i * columns + c]) for row in rounded for i in range(d)) / 3
                for c in range(columns)]

    for rows in x, huge:
        largest = max(map(abs, mean(rows)))
        assert all(abs(got - want) < 2e-3 * largest for got, want in zip(values(rows), mean(rows)))


def test_sums_of_a_long_cache(tmp_path):
    """Of 65,536 equal values in f16, where sums in f16 would stop at 2,048 times a weight."""
    width, rows = 8, 1 << 16
    kernel = Generated(dict(h=1, d_model=width, dk=width, seq=1, seq_kv=rows, project="none", cache="fixed",
                            attention="cross", cache_dtype="f16", attend_dtype=in_turn(["f16", "f32"], "long")[0]),
                       drawn_isa("long cache"), tmp_path / "kernel")
    q, y, ones = floats([0.5] * width), floats([0] * width), floats([1] * width * rows)
    _, cache = aligned(kernel.shape.cache_bytes)
    given = {name: ctypes.addressof(array) for name, array in dict(q=q, k=ones, v=ones, y=y).items()}
    kernel.fill(**given, cache=cache)
    kernel.run(**given, cache=cache)
    assert all(abs(number - 1) <= 1e-3 for number in y)


def test_integers_are_the_same(tmp_path):
    """On every ISA that this CPU has: what follows their sums is float32, whose roundings differ."""
    d, rows, columns = 70, 5, 40
    rng = random.Random(3)
    x, w = ([rng.gauss(0, 1) for _ in range(n)] for n in (rows * d, d * columns))
    results = []
    for isa in filter(runs, ISAS):
        kernel = Generated(dict(h=1, d_model=d, dk=columns, seq=1, seq_kv=rows, attention="cross", project="v",
                                dtype="int8", attend_dtype="f32"), isa, tmp_path / isa)
        given, y, zeros = {"wv": floats(w)}, floats([0] * columns), floats([0] * columns * rows)
        kernel.pack(**{name: ctypes.addressof(array) for name, array in given.items()})
        arrays = {"q": zeros, "k": zeros, "v": floats(x), "y": y}
        kernel.run(**{name: ctypes.addressof(array) for name, array in arrays.items()})
        results.append(list(y))
    assert len(results) > 1 or not native("avx2")
    for got in results:
        assert got == pytest.approx(results[0], rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("isa", [isa for isa in ("avx512_bf16", "amx") if runs(isa)])
def test_values_that_nobody_sees_change_no_bit(isa, tmp_path):
    """A NaN in V has the safe path keep it out of rows that do not see its key: in the roundings of the other path."""
    dk, rows = 32, 70
    kernel = Generated(dict(h=1, dk=dk, seq=rows, project="none", causal="true", dtype="bf16"), isa, tmp_path)
    rng = random.Random(5)
    q, k, v = (floats(rng.gauss(0, 1) * 2.0 ** rng.randint(0, size) for _ in range(rows * dk)) for size in (0, 0, 30))
    results = []
    for value in 1.0, math.nan:
        y = floats([0] * rows * dk)
        v[rows * dk - 1] = v[40 * dk] = value
        kernel.run(**{name: ctypes.addressof(array) for name, array in {"q": q, "k": k, "v": v, "y": y}.items()})
        results.append(y)
    assert bytes(results[0])[:40 * dk * 4] == bytes(results[1])[:40 * dk * 4]
    assert all(math.isnan(x) == (row >= 40 and column == 0 or row == rows - 1 and column == dk - 1)
               for row in range(rows) for column, x in enumerate(results[1][row * dk:][:dk]))


def half(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


def floats(values):
    values = list(values)
    return (ctypes.c_float * len(values))(*values)


@pytest.mark.parametrize("dtype, values, wanted", [
    ("bf16", [1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, -1e-30, 3.4e38, 3.396e38],
     [1, 1 + 2**-6, 1 + 2**-7, -162 * 2.0**-107, math.inf, 255 * 2.0**120]),
    ("f16", [1 + 2**-11, 1 + 3 * 2**-11, 65504, 65519.996, 65520, 2**-24, 2**-25, 3 * 2**-25, 1e-5, -5.97e-8],
     [1, 1 + 2**-9, 65504, 65504, math.inf, 2**-24, 0, 2**-23, half(1e-5), half(-5.97e-8)])])
def test_values(dtype, values, wanted, tmp_path):
    """With one key y is its value, as the type has it."""
    n = len(values)
    kernel = Generated(dict(h=n, dk=1, seq=1, project="none", dtype=dtype), drawn_isa(f"values {dtype}"), tmp_path)
    y, zeros = floats([float("nan")] * n), floats([0] * n)
    given = {"q": zeros, "k": zeros, "v": floats(values), "y": y}
    kernel.run(**{name: ctypes.addressof(array) for name, array in given.items()})
    for got, want, value in zip(y, wanted, values):
        assert got == want or want == math.inf and not abs(got) < want, (value, got, want)


def test_what_the_files_say(tmp_path):
    shape = "h=2 d_model=8 dk=4 seq=5 isa=scalar".split()
    run(MHAGEN, "gen", *shape, "dtype=bf16", "attend_dtype=f32", "-o", tmp_path)
    text = (tmp_path / "mha_bf16_h2_d8_k4_s5_attend_f32_scalar.c").read_text()
    assert '.dtype = "bf16"' in text and '.attend_dtype = "f32"' in text
    assert "MHAGEN_DTYPE | MHAGEN_ATTEND_DTYPE" in text
    assert "projections in bf16, of attention in f32" in " ".join(text.split()).replace("* ", "")
    header = (tmp_path / "mha_bf16_h2_d8_k4_s5_attend_f32_scalar.h").read_text()
    assert re.search(r"shape .*\n?.*bf16", header)
    for isa, says in (("scalar", "it saves memory, and little time"), ("avx2", "an instruction does two"),
                      ("avx512_bf16", "an instruction does four")):
        said = explain(*shape[:-1], f"isa={isa}", "dtype=int8")
        assert says in said
        sizes = re.search("error at most 0.03 instead of 1e-06; weights of ([0-9,]+) bytes instead of ([0-9,]+)", said)
        own, floats_ = (int(size.replace(",", "")) for size in sizes.groups())
        assert 4 * own == floats_
    said = explain(*shape, "attend_dtype=f16")
    assert "operands of projections in f32, of attention in f16" in said and "error at most 0.0015" in said


def test_what_the_files_say_of_a_feed_forward(tmp_path):
    shape = "h=2 d_model=8 dk=4 seq=5 ffn=16 dtype=bf16 ffn_dtype=int8".split()
    run(MHAGEN, "gen", *shape, "isa=scalar", "name=k", "-o", tmp_path)
    text = (tmp_path / "k.c").read_text()
    assert '.dtype = "bf16"' in text and '.ffn_dtype = "int8"' in text and "MHAGEN_FFN_DTYPE" in text
    said = " ".join(text.split()).replace("* ", "")
    assert "of projections in bf16, of attention in bf16, of the feed-forward in int8" in said
    said = explain(*shape, "isa=avx512_bf16")
    assert "feed-forward in int8" in said and "projections in int8" not in said
    assert "no pairs in the feed-forward" in explain(
        *shape[:-2], "ffn_dtype=bf16", "isa=avx512_bf16", "cpu=sapphirerapids")


@pytest.mark.parametrize("config, says", [
    ("isa=avx512_fp16", "sums in float32; error at most 0.0015"),
    ("isa=avx512_fp16 sum_dtype=f16", "sums in f16 and float32; error at most 0.003"),
    ("isa=avx512 sum_dtype=f16", "sum_dtype not here: avx512 does not add it "),
    ("isa=avx512_fp16 sum_dtype=f16 weight_dtype=int8", "sum_dtype not here: projections have no pairs ")])
def test_what_explain_says_of_sums(config, says):
    """Those of half precision are for who asks for them, and the error is then another one."""
    assert says in explain(*f"h=2 d_model=40 dk=4 seq=5 dtype=f16 {config}".split())


def test_what_the_files_say_of_quantized_weights(tmp_path):
    shape = "h=2 d_model=40 dk=4 seq=5 isa=scalar weight_dtype=int4 group=16".split()
    run(MHAGEN, "gen", *shape, "name=k", "-o", tmp_path)
    text = (tmp_path / "k.c").read_text()
    for said in ('.weight_dtype = "int4"', ".group = 16", ".quant_bits = 4", ".quant_group = 16", ".error = 0.24",
                 ".unit = 0x1p-3", "MHAGEN_WEIGHT_DTYPE"):
        assert said in text, said
    said = explain(*shape)
    assert "weights are integers of 4 bits, with a scale for 16 rows of a column" in said
    run(MHAGEN, "gen", *shape, "value_weight_dtype=int8", "name=v", "-o", tmp_path)
    text = (tmp_path / "v.c").read_text()
    for said in ('.weight_dtype = "int4"', '.value_weight_dtype = "int8"', ".quant_bits = 4", ".value_quant_count = ",
                 ".error = 0.24", "MHAGEN_WEIGHT_DTYPE | MHAGEN_VALUE_WEIGHT_DTYPE"):
        assert said in text, said
    said = explain(*shape, "value_weight_dtype=int8")
    assert "with a scale for 16 rows of a column, those of values of 8 bits; sums" in said
    # int8 takes a quarter of float32's bytes, and scales; int4 half of that, and more scales; a quarter is Wv.
    sizes = {kind: packed_bytes(f"h=4 d_model=256 dk=64 seq=1 isa=scalar weight_dtype={kind}", tmp_path)
             for kind in ("dtype", "bf16", "f16", "int8", "int4", "int4 value_weight_dtype=int8")}
    assert 0.5 < sizes["bf16"] / sizes["dtype"] < 0.505 and sizes["f16"] == sizes["bf16"], sizes
    assert 0.25 < sizes["int8"] / sizes["dtype"] < 0.26 and 0.156 < sizes["int4"] / sizes["dtype"] < 0.17, sizes
    assert abs(sizes["int4 value_weight_dtype=int8"] - (sizes["int8"] + 3 * sizes["int4"]) / 4) < 2000, sizes
    run(MHAGEN, "gen", *shape, "dtype=int8", "name=i", "-o", tmp_path)
    text = (tmp_path / "i.c").read_text()
    for said in ('.dtype = "int8"', '.weight_dtype = "int4"', ".quant_beside = 1", ".quant_bytes = 1", ".error = 0.24"):
        assert said in text, said
    run(MHAGEN, "gen", *shape[:-2], "weight_dtype=int8", "group=24", "dtype=int8", "name=g", "-o", tmp_path)
    text = (tmp_path / "g.c").read_text()
    for said in ".group = 24", ".quant_bits = 8", ".quant_group = 24", ".quant_beside = 1", ".error = 0.03":
        assert said in text, said
    assert ".quant_bytes" not in text and "a scale for 24 rows of a column" in explain(*shape[:-2], "weight_dtype=int8",
                                                                                       "group=24")
    said = explain(*shape, "dtype=int8")
    assert "attention in f32" in said and "integers of 4 bits, with a scale for 16 rows of a column" in said
    bytes_of = packed_bytes("h=4 d_model=256 dk=64 seq=1 isa=scalar dtype=int8 weight_dtype=int4", tmp_path)
    assert bytes_of == sizes["int4"]


@pytest.mark.parametrize("isa", filter(runs, ["scalar", "avx2", "avx_vnni", "avx512_bf16", "neon_i8mm"]))
@pytest.mark.parametrize("shape", [
    "h=2 d_model=300 dk=30 dv=21 y_width=133 seq=20",
    "h=2 d_model=40 dk=6 seq=9 group=16 attend_dtype=bf16",
    "h=4 h_kv=2 d_model=76 dk=16 seq=1 seq_kv=40 cache=append group=24 value_weight_dtype=int8"])
def test_int4_weights_and_int8_rows(shape, isa):
    """Of groups that end within a word of weights, or within a vector of words of a row; and attention in pairs, whose
    values are several groups' sums."""
    check(*shape.split(), "dtype=int8", "weight_dtype=int4", f"isa={isa}")


@pytest.mark.parametrize("isa", filter(runs, ISAS))
@pytest.mark.parametrize("shape", [
    "h=2 d_model=300 dk=30 dv=21 y_width=133 seq=20 group=32 dtype=int8",
    "h=2 d_model=40 dk=6 seq=9 group=16 dtype=int8 attend_dtype=bf16",
    "h=4 h_kv=2 d_model=76 dk=16 seq=1 seq_kv=40 cache=append group=24 ffn=90 ffn_dtype=int8",
    "h=4 h_kv=2 d_model=300 dk=16 seq=20 group=40 k_block=16 dtype=bf16"])
def test_groups_of_int8(shape, isa):
    check(*shape.split(), "weight_dtype=int8", f"isa={isa}")


def test_what_groups_of_int8_gain(tmp_path):
    """Rows and columns whose parts differ in size by a factor of a hundred lose less. Groups as long as a column give
    the bytes of a scale for each column."""
    width, seq, draw = 256, 8, random.Random(1)
    sizes = [100.0 if i < 16 else 1.0 for i in range(width)]
    x = floats([draw.gauss(0, 1) * sizes[i % width] for i in range(seq * width)])
    w = floats([draw.gauss(0, 1) / sizes[i // width] for i in range(width * width)])
    right = [sum(x[r * width + i] * w[i * width + c] for i in range(width)) for r in range(seq) for c in range(width)]

    def off(name, **keys):
        kernel = Generated(dict(attention="none", d_model=width, y_width=width, seq=seq, dtype="int8", **keys),
                           "scalar", tmp_path / name)
        y = floats([0] * seq * width)
        kernel.pack(wo=ctypes.addressof(w))
        kernel.run(q=ctypes.addressof(x), y=ctypes.addressof(y))
        return math.sqrt(sum((a - b) ** 2 for a, b in zip(y, right)) / sum(b * b for b in right)), bytes(y)

    errors = {group: off(f"g{group}", weight_dtype="int8", group=group) for group in (16, 32, 256)}
    whole = off("whole")
    assert errors[16][0] < 0.012 and errors[32][0] < 0.2 < whole[0], (errors[16][0], errors[32][0], whole[0])
    assert errors[256][1] == whole[1]


@pytest.mark.parametrize("kind, error, unit", [("bf16", "0.012", "0x1p-8"), ("f16", "0.0015", "0x1p-11")])
def test_what_the_files_say_of_weights_of_16_bits(kind, error, unit, tmp_path):
    shape = f"h=2 d_model=40 dk=4 seq=5 isa=scalar weight_dtype={kind}".split()
    run(MHAGEN, "gen", *shape, "name=k", "-o", tmp_path)
    text = (tmp_path / "k.c").read_text()
    for said in f'.weight_dtype = "{kind}"', f".error = {error}", f".unit = {unit}", f"of_{kind}(":
        assert said in text, said
    assert ".quant_bits" not in text
    assert f"weights in {kind}; sums in float32" in explain(*shape)
    assert run(MHAGEN, "gen", *shape, "group=32", "name=k", "-o", tmp_path / "same") and (
        tmp_path / "same/k.c").read_text() == text  # the default, which bears to be said


def packed_bytes(config, folder):
    run(MHAGEN, "gen", *config.split(), "name=sized", "--force", "-o", folder)
    return int(re.search(r"SIZED_PACKED_BYTES (\d+)", (folder / "sized.h").read_text())[1])


def squares_of_groups(weights, rows, columns, off, group):
    """off(numbers, first row, column) of each group of rows of a column."""
    return [off([weights[row * columns + column] for row in range(first, min(first + group, rows))], first, column)
            for first in range(0, rows, group) for column in range(columns)]


def off_by_largest(numbers, *_):
    """The squared error of integers from -8 to 7 times the largest number over -8, as GGML's Q4_0."""
    scale = max(numbers, key=abs) / -8
    return sum((max(-8, min(7, math.floor(x / scale + 0.5))) * scale - x) ** 2 for x in numbers)


@pytest.mark.parametrize("group", [8, 32, 64])
def test_scales_of_int4(group, tmp_path):
    """No group errs by more than with its largest number over -8, and all together by less."""
    rows, columns, rng = 100, 48, random.Random(group)
    kernel = Generated(dict(h=1, d_model=rows, dk=1, dv=rows, y_width=columns, seq=1, seq_kv=1, batch=rows,
                            attention="cross", project="o", weight_dtype="int4", group=group),
                       "scalar", tmp_path / "kernel")
    y, nothing = floats([0] * rows * columns), floats([0] * rows)
    unit = floats([float(row == column) for row in range(rows) for column in range(rows)])
    draws = [(lambda: rng.gauss(0, 1), 0.96), (lambda: rng.uniform(-1, 1), 0.96), (lambda: rng.gauss(0, 1) ** 3, 0.99)]
    for draw, most in 3 * draws:
        given = floats([draw() for _ in range(rows * columns)])
        kernel.pack(wo=ctypes.addressof(given))
        kernel.run(**{name: ctypes.addressof(array) for name, array in dict(q=nothing, k=nothing, v=unit, y=y).items()})

        def off(numbers, first, column):
            return sum((y[(first + i) * columns + column] - x) ** 2 for i, x in enumerate(numbers))

        ours, theirs = (squares_of_groups(given, rows, columns, f, group) for f in (off, off_by_largest))
        assert all(mine <= other * (1 + 1e-5) + 1e-12 for mine, other in zip(ours, theirs))
        assert math.sqrt(sum(ours) / sum(theirs)) < most


@pytest.mark.parametrize("shape", ["h=4 d_model=96 dk=24 seq=12",
                                   "h=2 d_model=64 dk=32 seq=40 value_weight_dtype=int8"])
def test_error_of_int4_without_biases(shape):
    """These add nothing that is exact then."""
    check(*shape.split(), "weight_dtype=int4", "isa=scalar")


@pytest.mark.parametrize("given, refused", [
    ("q_lanes=queries weight_dtype=int8",
     "q_lanes = queries: must be columns with weight_dtype = int8, whose words have weights of one column"),
    ("project=none weight_dtype=int4",
     "weight_dtype = int4: must be dtype with project = none, which leaves no weights"),
    ("group=64", "group = 64: has no effect without weight_dtype"),
    ("group=64 weight_dtype=bf16", "group = 64: must be 32 with weight_dtype = bf16, which has no scales"),
    ("group=64 weight_dtype=int8 io_dtype=bf16", "group = 64: must not be given with io_dtype, "
     "since the sums of groups are added up in y, in float32"),
    ("weight_dtype=f16 value_weight_dtype=int8",
     "value_weight_dtype = int8: must be weight_dtype with weight_dtype = f16, which is more precise"),
    ("weight_dtype=f16 dtype=int8",
     "weight_dtype = f16: must be dtype with dtype = int8, which multiplies integers"),
    ("weight_dtype=int8 dtype=int8",
     "weight_dtype = int8: must be dtype with dtype = int8, which has a scale for each column anyway; "
     "group = 32 makes smaller ones"),
    ("ffn=8 weight_dtype=f16 ffn_dtype=int8",
     "weight_dtype = f16: must be dtype with ffn_dtype = int8, which multiplies integers"),
    ("ffn_dtype=bf16", "ffn_dtype = bf16: has no effect without ffn"),
    ("ffn=200000 ffn_dtype=int8",
     "ffn_dtype = int8: has sums of 200000 products with w2, of at most 133144 that int32 holds"),
    ("sum_dtype=f16", "sum_dtype = f16: has no effect without dtype"),
    ("sum_dtype=f16 dtype=bf16", "sum_dtype = f16: must be f32 with dtype = bf16, whose sums are float32"),
    ("group=12 weight_dtype=int4", "group = 12: must be a multiple of 8 from 8 to 16384"),
    ("value_weight_dtype=int8", "value_weight_dtype = int8: has no effect without weight_dtype"),
    ("weight_dtype=int8 value_weight_dtype=int8",
     "value_weight_dtype = int8: must be weight_dtype with weight_dtype = int8, which makes all weights int8"),
    ("weight_dtype=int4 value_weight_dtype=int8 project=qk",
     "value_weight_dtype = int8: must be weight_dtype with project = qk, which does not project V"),
])
def test_refusals_of_quantized_weights(given, refused):
    result = subprocess.run([MHAGEN, "explain", *f"h=2 d_model=8 dk=4 seq=4 isa=avx2 {given}".split()],
                            capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr == f"mhagen: config: {refused}\n", result.stderr


def test_reference_with_fused_products():
    """Compilers of other machines make these of the reference's; ALiBi's poisoned slopes make huge scores."""
    if not native("avx2"):
        pytest.skip("this CPU has no avx2")
    config = "h=1 d_model=2 dk=1 seq=25 alibi=true sink=true attend_dtype=f16"
    run(sys.executable, ROOT / "tests/fuzz.py", "--replay", config, "--isa", "avx2", "--cc", "gcc",
        env={**os.environ, "REFERENCE_FLAGS": "-mfma -ffp-contract=fast"})


def types_told(*words):
    """{ changed key: error, packed, workspace, cache, cycles } of explain's table of types."""
    told = run(MHAGEN, "explain", *words, "--types").split("\ntypes (")[1].split("\nchoices")[0].splitlines()[2:]
    return {line.split()[0]: line.replace(",", "").split()[1:6] for line in told}


@pytest.mark.parametrize("config, smaller", [
    ("h=2 d_model=24 dk=8 seq=9 isa=scalar batch=20", "weight_dtype=int8 weight_dtype=int4 dtype=int8"),
    ("h=2 d_model=64 dk=8 seq=9 isa=scalar weight_dtype=int8", "weight_dtype=int4"),
    ("h=2 d_model=40 dk=8 seq=5 isa=neon_fp16 dtype=f16", "sum_dtype=f16 weight_dtype=int8"),
    ("h=2 d_model=64 dk=16 seq=20 isa=avx512_bf16 kv_rows=4", "dtype=bf16 weight_dtype=int8 dtype=int8"),
    ("h=4 h_kv=2 d_model=32 dk=8 seq=1 seq_kv=40 cache=append isa=avx2 dtype=bf16 cache_dtype=int8", "")])
def test_what_types_cost(config, smaller):
    """A row with another type is the first row of that config."""
    words, told = config.split(), types_told(*config.split())
    assert list(told)[0] == "this" and len(told) > 7
    for key, values in list(told.items())[1:]:
        others = [word for word in words if word.split("=")[0] != key.split("=")[0]]
        assert types_told(*others, key)["this"] == values, key
    assert all(int(told[key][1]) < int(told["this"][1]) and float(told[key][0]) > 1e-6 for key in smaller.split())
    cached = [int(told[key][3]) for key in ("this", "cache_dtype=bf16", "cache_dtype=f32") if key in told]
    assert cached == sorted(cached) and (cached[0] > 0) == ("cache" in config)
