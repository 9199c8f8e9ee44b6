"""What runs do on awkward but finite data: how often they make blocks of scores again, which exceptions of floating
point they raise, and whether ordinary numbers come to subnormal ones. It is counted, not timed."""
import re

import pytest

from tools import COMPILERS, ROOT, WARNINGS, check, compiler_for, generate, in_turn, native, run, runs, shared

SHAPE = "h=2 d_model=32 dk=16 seq=200"
CONFIGS = {
    "plain": "", "causal": "causal=true kv_len=true", "mask": "mask=bool causal=true", "probs": "probs=true",
    "bf16": "dtype=bf16 kv_len=true", "keyless": "causal=true window_left=3 kv_len=true",
}
PLAIN = "plain", "causal"
# (isa, config): of each ISA one of the plain ones, and two of the others in turn.
DRAWN = [(isa, config) for isa in ("scalar", "avx2", "avx512", "avx512_bf16")
         for config in [*in_turn(PLAIN, "numbers", isa),
                        *in_turn([name for name in CONFIGS if name not in PLAIN], "numbers", isa, count=2)]]
COUNTED = ("safe", "rising", "rescale")


def count_calls(source):
    """The text of a kernel whose cold functions count their calls."""
    text = source.read_text()
    for word in COUNTED:
        text = re.sub(rf"(\nstatic NOINLINE void {word}_\w+\([^)]*\) {{\n)", rf"\1  {word}_calls++;\n", text)
    head, rest = text.split('#include "kernel.h"\n', 1)
    source.write_text(f'{head}#include "kernel.h"\n' + "".join(f"long {word}_calls;\n" for word in COUNTED) + rest)


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    def program(isa, config, compiler="gcc"):
        def make(out):
            generate(out, f"{SHAPE} {CONFIGS[config]}", isa)
            count_calls(out / "kernel.c")
            run(*compiler_for(isa, compiler), "-std=c11", "-O2", *WARNINGS, "-I", out,
                ROOT / "tests/kernels/numbers_test.c", out / "kernel.c", out / "mhagen.c", "-o", out / "test", "-lm",
                "-pthread")
        return shared(tmp_path_factory, f"numbers_{isa}_{config}_{compiler}", make) / "test"
    return program


def told(program, spread, size=1):
    words = run(program, str(spread), str(size)).split()
    return {word: int(number) for word, number in zip(words[::2], words[1::2])}


@pytest.mark.parametrize("compiler", [name for name in COMPILERS if "clang" not in name])  # which computes ahead
@pytest.mark.parametrize("isa, config", DRAWN)
def test_exceptions(programs, isa, config, compiler):
    """Masked or peaky, finite data raises none of the exceptions that programs trap."""
    if not native(isa) or not runs(isa):
        pytest.skip(f"no {isa} here")
    for spread in 1, 30, 300:
        result = told(programs(isa, config, compiler), spread)
        assert result["finite"]
        assert not (result["invalid"] or result["zero"] or result["overflow"]), (spread, result)


@pytest.mark.parametrize("isa, config", [(isa, config) for isa, config in DRAWN
                                         if isa in ("avx2", "avx512") and config in PLAIN])
def test_no_subnormals(programs, isa, config):
    """Where products are fused with sums, neither peaky scores nor small inputs make subnormal operands or results."""
    if not native(isa) or not runs(isa):
        pytest.skip(f"no {isa} here")
    for spread, size in (1, 1), (30, 1), (100, 1), (1, 1e-15), (1, 1e-20), (1, 1e-25):
        assert not told(programs(isa, config), spread, size)["tiny"], (spread, size)


@pytest.mark.parametrize("isa, config", [(isa, config) for isa, config in DRAWN
                                         if config in (*PLAIN, "mask", "bf16")])
def test_peaky_scores_are_made_once(programs, isa, config):
    """No head is done again, whatever the spread is, and calm data never leaves the fast way. But where a row sees none
    of the first keys its maximum is too high, and at great spreads its sum too low."""
    if not native(isa) or not runs(isa):
        pytest.skip(f"no {isa} here")
    program = programs(isa, config)
    calm = told(program, 1)
    for spread in 5, 10:
        result = told(program, spread)
        assert result["safe"] == result["rescale"] == 0 and result["rising"] == calm["rising"], (spread, result)
    for spread in 30, 100, 300:
        result = told(program, spread)
        assert result["safe"] <= (1 if config == "mask" and spread > 100 else 0), (spread, result)
    assert 0 < result["rescale"] <= result["rising"] > calm["rising"]


def test_large_scores_of_pairs_are_made_once(programs):
    """Where weights are powers of bf16, the product of a maximum above 2^22 and their scale loses digits."""
    if not native("avx512_bf16") or not runs("avx512_bf16"):
        pytest.skip("no avx512_bf16 here")
    for spread in 1e6, 1e7, 1e12:
        result = told(programs("avx512_bf16", "bf16"), spread)
        assert result["safe"] == 0 and result["finite"], (spread, result)


@pytest.mark.parametrize("isa", ["scalar", "avx2", "avx512"])
def test_a_maximum_is_found_again(isa):
    """Huge scores of operands in bf16: a product half way between two floats is rounded by what its sum begins with. A
    maximum that is not found again makes zeros of all weights."""
    if not native(isa) or not runs(isa):
        pytest.skip(f"no {isa} here")
    assert "ok: " in check("h=1", "d_model=4", "dk=4", "seq=9", "cache_dtype=bf16", "cache=append", f"isa={isa}")
