"""The rows of the options: what mhagen.h and the sources say of an option is what its row says, and a toy option
that is one file goes through all that others do."""
import itertools
import json
import random
import re
import subprocess

import pytest

import covering
import fuzz
from test_config import arguments, assert_refused
from reference_lib import Weights
from tools import CHECKER, ISAS, MANY, MHAGEN, REFERENCE, ROOT, SEED, check, in_turn, run, schema

HEADER = (ROOT / "runtime/mhagen.h").read_text()
TOY = ROOT / "build/mhagen-toy"
NEED = re.compile(r"^  \{ offsetof\(mhagen_(\w+), (\w+)\), (\w+), (-?\d+) \},$", re.M)
ALWAYS = {("args", "q", "1", -1), ("args", "y", "1", -1), ("args", "packed", "MHAGEN_ALIGN", -1),
          ("args", "workspace", "MHAGEN_ALIGN", -1), *(("weights", f"w{x}", "1", -1) for x in "qkvo")}


def source(tmp_path, *config, program=MHAGEN):
    run(program, "gen", *config, "name=kernel", "-o", tmp_path)
    return (tmp_path / "kernel.c").read_text()


def needs(text):
    return {(of, pointer, align, int(most)) for of, pointer, align, most in NEED.findall(text)}


def bits_of(row):
    """The names of its bits: one, or one or more for each of some choices."""
    bit = row.get("bit", {})
    found = [bit] if isinstance(bit, str) else [bit[choice] for choice in row.get("choices", ()) if choice in bit]
    return list(dict.fromkeys(name for names in found for name in names.split(" | ")))


def test_bits_of_the_header():
    """An option that callers can ask for has a bit of its own, and each bit is an option's."""
    bits = dict(re.findall(r"^  (MHAGEN_\w+) = (\d+),? *(?:/\*|$)",
                           HEADER.split("bits of mhagen_kernel.options. */")[1].split("};")[0], re.M))
    bits.update((name, 1 << int(shift)) for name, shift in re.findall(
        r"^#define (MHAGEN_\w+) \(\(uint64_t\)1 << (\d+)\)", HEADER, re.M))
    assert sorted(bits) == sorted(bit for row in schema() for bit in bits_of(row))
    values = [int(value) for value in bits.values()]
    assert values == sorted(set(values)) and all(value.bit_count() == 1 for value in values)


def test_pointers_of_the_header():
    """Rows name pointers that there are, and no two rows the same."""
    members = {of: set(re.findall(r"\*(\w+)[,;]", re.search(rf"typedef struct mhagen_{of} \{{(.*?)\}} mhagen_{of};",
                                                            HEADER, re.S)[1])) for of in ("args", "weights")}
    told = json.loads(run(ROOT / "build/mhagen-toy", "schema", "--json"))
    used = [need["pointer"] for need in told["always"]["args"]]
    used += {need["pointer"]: need for row in schema() for need in row.get("args", ())}
    matrices = [matrix["pointer"] for matrix in told["matrices"]]
    for of, pointers in (("args", used), ("weights", matrices)):
        assert set(pointers) == members[of] and len(set(pointers)) == len(pointers)


def test_matrices_of_other_languages():
    """Python and the tests have all of the generator's list."""
    told = [matrix["pointer"] for matrix in json.loads(run(MHAGEN, "schema", "--json"))["matrices"]]
    layout = (ROOT / "python/mhagen/layout.c").read_text()
    assert set(re.findall(r"WEIGHT\((\w+)\),", layout)) == set(told)
    keys = re.search(r"class Weights\(.*?\n\n", (ROOT / "python/mhagen/_keys.py").read_text(), re.S)[0]
    assert set(re.findall(r"^    (\w+): ", keys, re.M)) == set(told)
    fields = [name for name, _ in Weights._fields_ if name != "layout"]
    assert sorted(fields) == sorted(told)


@pytest.mark.parametrize("config, more", [
    ("", set()), ("causal=true probs=false", set()),
    ("kv_len=true probs=true", {("args", "kv_len", "1", 16), ("args", "probs", "1", -1)}),
    ("attention=cross seq_kv=9 kv_len=true",
     {("args", "k", "1", -1), ("args", "v", "1", -1), ("args", "kv_len", "1", 9)}),
    ("cache=append seq_kv=21", {("args", "past", "1", 5), ("args", "cache", "MHAGEN_ALIGN", -1)}),
    ("cache=append cache_layout=bhsd", {("args", "past", "1", 0), ("args", "cache", "1", -1)}),
    ("cache=fixed attention=cross", {("args", "k", "1", -1), ("args", "v", "1", -1),
                                     ("args", "cache", "MHAGEN_ALIGN", -1)})])
def test_needs(config, more, tmp_path):
    assert needs(source(tmp_path, *arguments(), *config.split())) == ALWAYS | more


@pytest.mark.parametrize("project, weights, packed", [
    ("none", "", False), ("o", "o", True), ("qkv", "qkv", True), ("kv", "kv", True)])
def test_needs_of_projections(project, weights, packed, tmp_path):
    """Matrices of what is not projected need not be given, and no packed weights where there are none; k and v are
    inputs of their own."""
    found = needs(source(tmp_path, *arguments(), f"project={project}"))
    cross = {("args", "k", "1", -1), ("args", "v", "1", -1)} if project != "qkv" else set()
    kept = {need for need in ALWAYS if need[0] == "args" and need[1] != "packed"}
    assert found == kept | cross | {("weights", f"w{letter}", "1", -1) for letter in weights} | {
        need for need in ALWAYS if need[1] == "packed" and packed}


def test_the_runtime_names_no_option():
    checks = "".join((ROOT / f"runtime/parts/{part}.c").read_text() for part in ("environment", "calls"))
    pointers = {need["pointer"] for row in schema() for need in row.get("args", ())}
    names = {bit for row in schema() for bit in bits_of(row)}
    names |= {f"->{pointer}" for pointer in pointers | {"wq", "q", "y"}}
    assert "mhagen_check_args" in checks and "mhagen_check_weights" in checks
    assert not [name for name in names if re.search(rf"{name}\b", checks)]


# Where it may be asked what an option says: its rows; what decides which stages there are; the stages themselves.
ASKING = ("options/", "plan/init.lua", "plan/arrange.lua", "plan/lanes.lua", "plan/walk.lua", "graph/", "rewrite/",
          "schedule/", "stage/", "score/", "base/measured_", "kernel/shape.lua", "kernel/known_answer.lua",
          "onnx/ends.lua", "onnx/constant_mask.lua", "command/model_summary.lua", "command/onnxruntime.lua")


def test_options_are_asked_for_in_few_places():
    keys = [row["key"] for row in schema()
            if row["kind"] in ("flag", "choice") and not row["schedule"] and not row.get("required")]
    asked = re.compile(rf"\b(?:cfg|config)\.({'|'.join(keys)})\b")
    found = {path.relative_to(ROOT / "gen").as_posix() for path in (ROOT / "gen").rglob("*.lua")
             if asked.search(re.sub(r"--.*", "", path.read_text()))}
    assert len(keys) > 4 and "rewrite/fold.lua" in found  # the pattern is alive
    assert not [path for path in found if not path.startswith(ASKING)]


def test_draws_keep_the_rules():
    """What is drawn is accepted, but for a schedule; and everything is drawn."""
    rng, rows, drawn = fuzz.random.Random(8), schema(), set()
    for i in range(400):
        config = fuzz.random_config(rng, rows)
        drawn |= set(config)
        if i < 12:
            result = subprocess.run([MHAGEN, "explain", *fuzz.text(config).split(), "isa=scalar"], capture_output=True,
                                    text=True)
            key = re.match(r"mhagen: config: (\w+) = ", result.stderr)
            refused = key and next(row for row in rows if row["key"] == key[1])["schedule"]
            assert result.returncode == 0 or refused, (config, result.stderr)
    assert {row["key"] for row in rows} - drawn == {"isa", "name", "tuned", "code_limit"}


# ---- the toy ----

def test_toy_option_is_small():
    lines = len((ROOT / "tests/toys/toy_option.lua").read_text().splitlines())
    print(f"tests/toys/toy_option.lua: {lines} lines")
    assert lines <= 15


@pytest.mark.parametrize("config", [
    "h=3 d_model=5 dk=2 seq=3 batch=3", "h=2 d_model=6 dk=4 seq=5 seq_kv=3 attention=cross causal=true probs=true"])
def test_toy_option(config):
    """All that the checker asks of a kernel, and of the pointers in its table; in drawn configs test_toy_isa_random
    has it too."""
    assert "ok: " in check(*config.split(), "isa=scalar", "tagged=true", program=TOY)


def test_toy_option_is_everywhere(tmp_path):
    text = source(tmp_path, *arguments(h=3), "tagged=true", program=TOY)
    assert needs(text) == ALWAYS | {("args", "kv_len", "1", 3)}
    assert "  .options = 0x4000000000000000u,\n" in text and "tagged" in re.search(r"shape [^/]*?\n \*   plan", text)[0]
    assert "mha_f32_h2_d32_k16_s16_tagged_scalar" in run(TOY, "explain", *arguments(), "tagged=true")
    assert "tagged" in run(TOY, "gen", "--help") and "| `tagged` | true, false |" in run(TOY, "schema", "--markdown")
    toys = [subprocess.run([TOY, "explain", *arguments(), *config.split()], capture_output=True, text=True)
            for config in ("tagged=true kv_len=true", "labelled=true")]
    assert_refused(toys[0], "config: tagged = true: must be false with kv_len, which has its lengths there")
    assert_refused(toys[1], "labelled = true: unknown key: it is tagged here")
    rows = schema(TOY)
    assert any("tagged" in fuzz.random_config(fuzz.random.Random(i), rows) for i in range(40))


def test_pairs(tmp_path):
    """Each pair of values of two options stands in a config that CI checks, or one line refuses it, which names
    them, or one of them where a third option would have to be there."""
    array, defaults = fuzz.pairs(schema(), fuzz.PAIRS), fuzz.defaults_of(schema())
    chosen = [{key: config.get(key) for key in array.levels} for config in array.configs]
    covered = set.union(*map(covering.pairs_of, chosen))
    every = {frozenset([(a, x), (b, y)]) for a, b in itertools.combinations(array.levels, 2)
             for x in array.levels[a] for y in array.levels[b]}
    assert every - covered == {frozenset(pair.items()) for pair in array.missed}
    print(f"{len(every)} pairs of values in {len(array.configs)} configs, {len(array.missed)} refused")
    missed = []
    for pair in array.missed:
        # A default is given too: a key that is left out may be what another one implies.
        given = {key: defaults[key] if value is None else value for key, value in pair.items()}
        missed.append({key: value for key, value in given.items() if value is not None})
    listed = tmp_path / "configs"
    listed.write_text("".join(f"{fuzz.text({**fuzz.PAIRS, **given})} isa=scalar\n" for given in missed))
    lines = run(MANY, tmp_path, listed).splitlines()
    assert len(lines) == len(missed)
    for given, line in zip(missed, lines):
        reason = re.match(r"refused: (config: .*) h=4 d_model=20 ", line)
        assert reason and any(re.search(rf"\b{key}\b", reason[1]) for key in given), (given, line)
        print(line)


@pytest.mark.parametrize("needs_of, wrong, told", [
    ("no table", ".need_count = sizeof run_needs / sizeof run_needs[0],", "is not needed as the options say"),
    ("a length", "offsetof(mhagen_args, kv_len), 1, 16", "kv_len is not needed as the options say")])
def test_checker_sees_wrong_tables(needs_of, wrong, told, tmp_path):
    text = source(tmp_path, *arguments(), "kv_len=true")
    assert wrong in text
    (tmp_path / "kernel.c").write_text(text.replace(wrong, wrong.replace("sizeof run_needs / sizeof run_needs[0]", "0")
                                                    .replace("1, 16", "1, 17")))
    (tmp_path / "main.c").write_text(
        '#include "kernel.h"\n#include "checker.h"\nint main(int argc, char **argv) {\n'
        "  const mhagen_kernel *kernels[] = {&kernel_kernel};\n"
        "  return mhagen_check_main(kernels, 1, argc, argv);\n}\n")
    run("gcc", "-I", tmp_path, "-I", ROOT / "tests/check", *(tmp_path / f"{name}.c" for name in
        ("kernel", "main", "mhagen")), *CHECKER, *REFERENCE, "-o", tmp_path / "check", "-lm", "-pthread")
    result = subprocess.run([tmp_path / "check"], capture_output=True, text=True)
    assert result.returncode == 1 and told in result.stdout


@pytest.mark.parametrize("isa", ISAS)
def test_a_name_is_of_one_function(isa, tmp_path):
    """Who defines a function again gets the one of that name. The toys' generator records it again, and says so where
    it is another one."""
    rng, rows = random.Random(f"{SEED} {isa}"), schema()
    drawn = [fuzz.text(fuzz.random_config(rng, rows)) for _ in range(6)]  # check_grid has more
    lengths = [f"h=1 d_model=128 dk=20 attention=cross seq={seq} seq_kv={keys} dtype={dtype}"
               for seq, keys in ((22, 20), (44, 22), (16, 48))
               for dtype in in_turn(("f32", "bf16", "int8"), "a name", isa, seq)]
    for config in drawn + lengths:
        command = [ROOT / "build/mhagen-toy-scores", "gen", "--quiet", *config.split(), f"isa={isa}", "-o", tmp_path]
        result = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert "internal" not in result.stderr, (config, result.stderr)
        assert result.returncode == 0 or config in drawn, result.stderr
