"""`gen --selftest`: results for numbers by a formula have the bits that the generator's evaluator computes."""
import re

import pytest

from tools import COVER, ISAS, MHAGEN, WARNINGS, compiler_for, emulation, in_turn, run, runner_for, runs

SHAPE = "h=4 h_kv=2 d_model=20 dk=6 dv=9 seq=19 kv_len=true causal=true probs=true batch=2"
MAIN = """#include <stdio.h>
#include "kernel.h"
static _Alignas(MHAGEN_ALIGN) char memory[KERNEL_KNOWN_ANSWER_BYTES + 4];
int main(void) {
  printf("%d %d %d", kernel_known_answer(memory), kernel_known_answer(NULL), kernel_known_answer(memory + 4));
  return 0;
}
"""
GOOD, WRONG = "0 1 2", "7 1 2"  # MHAGEN_OK, ERR_ARITHMETIC; ERR_NULL, ERR_ALIGN


def generate(out, config, *options):
    run(MHAGEN, "gen", *config.split(), "name=kernel", "--selftest", *options, "-o", out)
    (out / "main.c").write_text(MAIN)


def told(out, isa="scalar", flags=("-O0",)):
    run(*compiler_for(isa, "gcc"), *emulation(isa), *flags, *sorted(out.glob("*.c")), "-o", out / "main",
        "-pthread", *(["-lm"] if emulation(isa) else []))
    return run(*runner_for(isa), out / "main")


@pytest.mark.parametrize("isa", ISAS)
def test_bits(isa, tmp_path):
    """Of every ISA, with options and number types in turn, and of memory that is null or not aligned."""
    config = in_turn([SHAPE, *COVER], "known answer", isa)[0]
    if "amx" != isa or runs(isa):
        generate(tmp_path, f"{config} isa={isa}", "--single")
        assert told(tmp_path, isa, ["-O1", *WARNINGS]) == GOOD, config


@pytest.mark.parametrize("more", [
    "dtype=bf16 io_dtype=bf16", "dtype=f16 io_dtype=f16 rope=half",
    "rope=interleaved rope_tables=apart attention=cross cache=fixed seq_kv=23", "dtype=int8",
    "weight_dtype=int4 qk_norm=rms",
    "cache=append seq_kv=45 cache_dtype=int8", "attention=cross cache=fixed seq_kv=23",
    "rope=half rope_at=run", "rope=interleaved rope_at=run cache=append seq_kv=45 dtype=bf16 io_dtype=bf16",
    "rope=interleaved rope_at=run attention=cross cache=fixed seq_kv=23",
    "rope=half rope_at=run attention=cross seq_kv=23",
    "row_keys=range q_len=true", "row_keys=range cache=append seq_kv=45",
    "mask=bool mask_dims=bqk sink=true", "mask=add mask_dims=hqk alibi=true", "project=none attention=cross"])
def test_bits_of_keys(more, tmp_path):
    isa = in_turn(list(filter(runs, ISAS)), "known answer", more)[0]
    generate(tmp_path, f"{SHAPE} {more} isa={isa}")
    assert told(tmp_path, isa) == GOOD, isa


@pytest.mark.parametrize("config", ["h=2 d_model=20 dk=8 seq=9 isa=x86",
                                    "h=2 d_model=20 dk=8 seq=4,9 q_len=true kv_len=true isa=scalar"])
def test_bundles_and_ladders(config, tmp_path):
    generate(tmp_path, config)
    assert told(tmp_path) == GOOD
    member = tmp_path / ("kernel_s4.c" if "seq=4" in config else "kernel_scalar.c")
    others = [path for path in tmp_path.glob("kernel_*.c")] if "x86" in config else [member]
    for path in others:
        text = path.read_text()
        path.write_text(re.sub(r"sum == 0x(.)", lambda found: f"sum == 0x{int(found[1], 16) ^ 1:X}", text))
    assert told(tmp_path) == WRONG


def test_what_is_wrong_is_found(tmp_path):
    """A bit of a constant, an operation, a loop's end."""
    generate(tmp_path, SHAPE + " isa=scalar")
    source = tmp_path / "kernel.c"
    text = source.read_text()
    changes = [(r"0\.0555031635f", "0.05550317f"), (r"a_r \* b_c0", "a_r * b_c0 * 1.0000001f"),
               (r"(sum == 0x\w+?)(\w)u", lambda found: f"{found[1]}{int(found[2], 16) ^ 1:X}u")]
    assert told(tmp_path) == GOOD
    for pattern, to in changes:
        changed = re.sub(pattern, to, text, count=1)
        assert changed != text, pattern
        source.write_text(changed)
        assert told(tmp_path) == WRONG, pattern


def test_the_command_in_the_file_makes_the_file(tmp_path):
    generate(tmp_path / "a", SHAPE + " isa=avx2")
    command = re.search(r"mhagen (gen .*)", (tmp_path / "a/kernel.c").read_text())[1].split()
    assert command[-1] == "--selftest"
    run(MHAGEN, *command, "-o", tmp_path / "b")
    for end in "ch":
        assert (tmp_path / f"a/kernel.{end}").read_bytes() == (tmp_path / f"b/kernel.{end}").read_bytes()
