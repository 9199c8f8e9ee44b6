"""Rules for the sources and for every generated text; each test is little more than a grep."""
import pathlib
import platform
import re
import shutil
import sys

import pytest

import mutate
from tools import COVER, FACTS, ISAS, MHAGEN, ROOT, generate, in_turn, run, seed_of

GEN = ROOT / "gen"
PURE = [path for path in GEN.rglob("*.lua")
        if path.parent.name != "command" and path.name not in ("main.lua", "prelude.lua")]
EMITTERS = sorted(GEN.glob("emit/*.lua"))
INTRINSIC = [r"\b_mm\d*_\w+\(", r"\b_tile_\w+\(", r"\bv\w+q?_(?:n_|lane_|laneq_)?[fsu]\d\d\b", "__m128", "__m256",
             "__m512", r"float32x\d"]


def code(path):
    """The text of a file, that of Lua without comments."""
    text = path.read_text()
    return re.sub(r"--(?!\[\[).*", "", text) if path.suffix == ".lua" else text


def strings(path):
    """The string literals of a Lua file."""
    return re.findall(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|\[\[[\s\S]*?\]\]', code(path))


def hits(pattern, paths, text=code):
    return [f"{path.relative_to(ROOT)}: {match[0]}" for path in paths
            for match in re.finditer(pattern, text(path))]


def wall(patterns, inside, outside, text=code):
    """Each of the patterns is inside, or it would guard a name that is gone; none of them is outside."""
    inside, outside = list(inside), list(outside)
    assert outside and not [pattern for pattern in patterns if not hits(pattern, inside, text)]
    assert not [hit for pattern in patterns for hit in hits(pattern, outside, text)]


def lua(*names):
    return [path for name in names for path in GEN.glob(f"{name}/*.lua")]


def test_walls_have_no_holes():
    """A name that is gone, and one that is on both sides."""
    inside = [GEN / "way/tile.lua"]
    wall([r"scheme\.tiled\b"], inside, lua("emit"))
    for patterns, outside in ([r"scheme\.tiled\b", r"scheme\.gone\b"], lua("emit")), ([r"scheme\.tiled\b"], inside):
        with pytest.raises(AssertionError):
            wall(patterns, inside, outside)


def folders():
    """The folders of gen in the order of docs/design.md."""
    listing = (ROOT / "docs/design.md").read_text().split("\n    gen/ ")[1].split("\n    templates/")[0]
    return re.findall(r"^      (\w+)/  ", listing, re.M)


def upward(paths, order):
    """The requires of folders that stand below."""
    found = []
    for path in paths:
        own = order.index(path.parent.name)
        for name in re.findall(r'require[ (]+"([\w.]+)"', code(path)):
            folder = name.split(".")[0]
            if folder in order and order.index(folder) > own:
                found.append(f"{path.relative_to(GEN)} requires {name}")
    return found


def test_folders_require_those_above():
    """docs/design.md lists every folder, and nothing but the command line lies beside them."""
    order, paths = folders(), sorted(GEN.glob("*/*.lua"))
    assert set(order) == {path.name for path in GEN.iterdir() if path.is_dir()}
    assert {path.name for path in GEN.glob("*.lua")} == {"main.lua", "prelude.lua"}
    assert len(paths) > 150 and not upward(paths, order)
    assert upward([GEN / "command/gen.lua"], order[::-1])  # the pattern is alive


def test_intrinsics_only_in_isa():
    outside = [path for path in GEN.rglob("*.lua") if path.parent.name != "isa"]
    wall(INTRINSIC, lua("isa"), [*outside, *ROOT.glob("templates/kernel.*.in")])
    own = [isa for isa in ISAS if FACTS[isa].get("machine")]
    assert own and all(hits("|".join(INTRINSIC), [GEN / f"isa/{isa}.lua"]) for isa in own)


def test_c_text_only_in_the_printer():
    """A Lua string with C in it: a statement, a directive, a block. Names, types and attributes of
    functions are data."""
    printers = {"cprint.lua", "expr.lua", "template.lua", "generate.lua", "own_names.lua"}  # the last one reads C
    paths = [path for path in PURE if path.name not in printers and path.parent.name != "isa"]
    c_text = [r"[)\w\]];(?:\\n|\n|[\"'])", r"\{(?:\\n|\n)", "#include", "#if", "#pragma", "#define",
              *(rf"\b{word}\s*\(" for word in ("for", "if", "while", "return"))]

    def joined(path):
        return " ".join(strings(path))
    wall(c_text, [GEN / "tape/cprint.lua", *lua("isa")], paths, joined)
    # generate.lua fills templates; what it writes itself are rows of tables.
    wall([r";", r"#\w", r"\b(?:for|if|return)\b"], lua("isa"), [GEN / "kernel/generate.lua"], joined)


def test_no_list_of_isas_in_tests():
    """A new ISA needs no edit of a test: lists come from `isas --json`. A test may choose some."""
    def lists(text):
        lines = text.splitlines()
        return any(sum(isa in near for isa in ISAS) > len(ISAS) // 2
                   for i in range(len(lines)) for near in [set(re.findall(r"\w+", " ".join(lines[i:i + 3])))])
    found = [path for path in (ROOT / "tests").rglob("*.py") if lists(path.read_text())]
    assert not found and lists(", ".join(ISAS))


def test_no_attention_in_isa():
    words = ["quer(?:y|ies)", "keys?", "values?", "heads?", "softmax", "scores?", "attention", "context", "probs?",
             "causal", "kv_len", "seq", "d_model"]

    def names(path):  # generic Lua speaks of keys and values too: only there
        generic = r"\b(?:key|value|values)\b" if path == GEN / "isa/init.lua" else r"$^"
        return re.sub(generic, "", code(path))
    wall([rf"(?i)\b{word}\b" for word in words], lua("options", "emit", "score"), lua("isa"), names)


def test_no_isa_by_name_in_emitters():
    """Where ISAs differ in kind there is an attribute or a derived op."""
    wall([rf"[\"']{isa}[\"']" for isa in ISAS], lua("isa"), lua("emit", "base", "plan", "tape"))


def test_masks_are_rows_of_scores():
    """What a mask is, the options and the rows of scores know alone."""
    wall([f'"{key}"' for key in ("causal", "kv_len", "kv_start", "window_left")], lua("options", "score"),
         lua("emit", "stage", "schedule", "rewrite", "tape", "way", "plan", "machine", "isa"))


def test_types_are_rows():
    """No number type by name where kernels are recorded. The programs that test ops and measure peaks have buffers of
    float32."""
    paths = [path for path in lua("emit", "stage", "score", "way") if path.name not in ("peak.lua", "self_test.lua")]
    wall([r"\bf32\b", r"\bf16\b", r"\bbf16\b", r"[\"']float\b", r"[\"']u?int\d+(?:_t)?\b"],
         [GEN / "machine/types.lua"], paths)


def test_machines_are_rows():
    """A fact of a machine has its figure in gen/machine/cpu.lua alone; other great numbers of the plan have names."""
    generic = (GEN / "machine/cpu.lua").read_text().split("local generic = {")[1].split("\n}\n")[0]
    facts = sorted(set(re.findall(r"\b(\w+) = ", generic)) - {"name", "doc", *ISAS, "columns", "rows"})
    others = [path for path in GEN.rglob("*.lua") if path.name != "cpu.lua"]
    assert len(facts) >= 8
    wall([rf"\b{fact}\s*=\s*[{{\d]" for fact in facts], [GEN / "machine/cpu.lua"], others)
    planning = [path for path in PURE if path.parent.name in ("schedule", "stage")
                or path == GEN / "plan/init.lua"]
    great = r"(?m)^(?! *local [A-Z]).*(?<![\w.])\d{4,}(?![\w.]).*$"
    wall([great], [GEN / "machine/cpu.lua"], planning)


def test_ways_are_asked():
    """How a product multiplies, its way tells; where a row of an ISA or a rewrite makes products, they may look."""
    others = [path for path in GEN.rglob("*.lua") if path.parent.name not in ("way", "isa", "rewrite")]
    wall([r"\bscheme\.way\b", r"\bscheme\.tiled\b"], lua("way"), others)
    listed = re.findall(r'M\.add\("(\w+)", require "way\.(\w+)"\)', (GEN / "way/init.lua").read_text())
    assert {path.stem for path in GEN.glob("way/*.lua")} == {name for pair in listed for name in pair} | {"init"}


def test_decode_steps_are_a_stage():
    """What decode steps are, their files know alone: nothing else asks whether a plan has them."""
    others = [path for path in GEN.rglob("*.lua") if path.stem != "decode"]
    wall([r"\battend\.step\b", r"\bstage\.step\b"], GEN.glob("*/decode.lua"), others)


def test_tensors_are_made_in_one_file():
    """Where a tensor is, its maker says alone; others read that."""
    folders_of_plans = "graph", "rewrite", "stage", "plan", "schedule", "emit"
    others = [path for path in lua(*folders_of_plans) if path.name != "tensor.lua"]
    places = "input", "wide", "workspace", "cache", "lanes", "rows"
    wall([rf"\b(?:made\(.*, |at = )\"{place}\"" for place in places], [GEN / "graph/tensor.lua"], others)


def test_stages_and_tensors_are_values():
    """Rewrites and planning make other ones of them. What walks them adds how to the stages that a plan is made of."""
    written = r"(?<![\w.])(?:stage|attend|tensor|group|copy|step|input|output|c|to)(?:\.\w+)+ = "
    others = [path for path in lua("graph", "rewrite", "stage", "plan", "schedule") if path != GEN / "plan/init.lua"]
    assert re.search(written, "stage.c.row = 1") and len(others) > 40 and not hits(written, others)


def test_stages_are_found_by_tensors():
    """From those of attention on; what lists the stages of a plan in words has their names."""
    by_name = r"\bplan\.stage\b"
    named = [GEN / name for name in ("plan/init.lua", "kernel/ladder.lua", "kernel/describe.lua")]
    wall([by_name], named, [path for path in GEN.rglob("*.lua") if path not in named])


def test_plans_and_configs_are_values():
    """Their makers alone write into them; tests/unit/unit_frozen.lua sees that recording does not."""
    written = r"(?m)^\s*(?:{})(?:\.\w+)+(?:, [\w.]+)* = "
    others = [path for path in PURE if path not in (GEN / "plan/init.lua", GEN / "options/config.lua",
                                                    GEN / "kernel/bundle.lua")]  # which makes a plan of several
    wall([written.format("plan|cfg")], [GEN / "plan/init.lua"], others)
    assert hits(r"\bcfg\.\w+", others)


def too_long(path, folder=GEN):
    """The functions of a Lua file with more than 60 lines or 6 parameters, and the file itself with more than 400."""
    lines, found = path.read_text().splitlines(), []
    for first, line in enumerate(lines):
        head = re.search(r"^(?! *--).*\bfunction\b[^()]*\(([^()]*)\)", line)
        if not head:
            continue
        count = 0
        if not re.search(r"\bend\b", line[head.end():]):  # its end has no more indentation than its first line
            indent = len(line) - len(line.lstrip())
            count = next(n for n, other in enumerate(lines[first + 1:], 2) if re.match(rf" {{0,{indent}}}end\b", other))
        if count > 60 or head[1].count(",") > 5:
            found.append(f"{path.relative_to(folder)}:{first + 1}")
    return found + [str(path.relative_to(folder))] * (len(lines) > 400)


def test_functions_and_files_are_short(tmp_path):
    paths = list(GEN.rglob("*.lua"))
    assert len(paths) > 150 and not [found for path in paths for found in too_long(path)]
    (tmp_path / "long.lua").write_text("function f(a, b, c, d, e, f, g)" + "\n" * 60 + "end\n" + "\n" * 400)
    assert too_long(tmp_path / "long.lua", tmp_path) == ["long.lua:1", "long.lua"]


def test_no_files_outside_the_host():
    names = ["io", "os", "debug", "dofile", "loadfile", "loadstring"]
    wall([rf"\b{name}\.\w|\"{name}\"" for name in names], [ROOT / "tests/unit/unit.lua"], PURE)  # it asks for none
    assert not hits(r"\b(?:dofile|loadfile|loadstring)\b", PURE)
    # The host's functions are for the commands, but for the texts that are embedded in the program, and
    # the JSON library, which sees values alone.
    allowed = {"embedded", "json"}
    used = {match for path in PURE for match in re.findall(r"\bhost\.(\w+)", code(path))}
    assert used <= allowed


def test_the_reference_is_the_formula_alone(tmp_path):
    """It links without bounds, roundings and the runtime, and is short enough to be read."""
    sources = [ROOT / "tests/check/reference.c", ROOT / "tests/check/composition.c"]
    run("cc", "-std=c11", "-shared", "-fPIC", "-Wl,-z,defs", f"-I{ROOT}/runtime", *sources, "-lm", "-o",
        tmp_path / "reference.so")
    assert all(len(path.read_text().splitlines()) <= 400 for path in sources)


def test_figures_have_no_signs():
    """`explain` says what is slower and what is faster."""
    texts = " ".join(" ".join(strings(path)) for path in GEN.glob("base/measured_*.lua"))
    signs = re.compile(r"[\" (][+-]\d[\d.]*(?: to|[^\"]?%)")
    assert "% slower" in texts and signs.search("takes -5 %") and not signs.search(texts)


def test_choices_are_named():
    """Each row of base/measured_*.lua where it is taken."""
    texts = "".join(path.read_text() for path in GEN.glob("base/measured_*.lua"))
    rows = re.findall(r'^  \{ "(\w+)", ', texts, re.M)
    named = [match for path in PURE for match in re.findall(r"choices\.add\(([^\n]*)\)", code(path))]
    named = {word for match in named for word in re.findall(r'"(\w+)"', match)}
    assert len(rows) > 20 and named == set(rows)


def test_mutations_are_of_this_source():
    """Each text that tests/mutate.py replaces is there, once."""
    assert len(mutate.MUTATIONS) > 50 and not mutate.stale()


@pytest.mark.skipif(not shutil.which("luac5.4"), reason="luac5.4 is not installed")
def test_mutations_are_lua():
    assert not mutate.no_lua()


def test_findings_have_their_form():
    """Each has a row of the page, pins what it installs in a folder of its own, and does without this project."""
    rows = re.findall(r"^\| \[([\w.-]+)\]\(\1\) \|", (ROOT / "findings/README.md").read_text(), re.M)
    assert rows == sorted(path.name for path in (ROOT / "findings").iterdir() if path.name != "README.md")
    for name in rows:
        text = (ROOT / "findings" / name).read_text()
        run("sh", "-n", ROOT / "findings" / name)
        installed = re.search(r"pip\" install -qq --disable-pip-version-check ((?:[^\\\n]|\\\n)*)\n", text)[1]
        assert all(re.fullmatch(r"[\w-]+==[\d.]+", word) for word in installed.replace("\\\n", "").split())
        assert "mktemp -d" in text and "this has changed" in text and "mhagen" not in text.lower()


def test_lines_of_sources():
    paths = [path for folder in ("gen", "python", "runtime", "templates", "tests", "scripts", "examples")
             for path in (ROOT / folder).rglob("*")
             if path.suffix in (".lua", ".c", ".h", ".in", ".css", ".js", ".py", ".sh")
             and path.parent.name != "golden"]
    long = [f"{path}:{number}" for path in paths
            for number, line in enumerate(path.read_text().splitlines(), 1) if len(line) > 120]
    assert len(paths) > 60 and not long


def test_draws_are_the_same_in_any_directory():
    assert seed_of(ROOT / "build/mhagen") == seed_of("build/mhagen") != seed_of("build/mhagen-toy")


# ---- generated texts ----

@pytest.fixture(scope="module")
def texts(covering_texts):
    """{name: text}"""
    return {path.name: path.read_text() for path in covering_texts.iterdir()}


def test_lines(texts):
    """At most 100 columns, but for what is one line by its nature: the command, a directive."""
    for name, text in texts.items():
        long = [line for line in text.splitlines() if len(line) > 100
                and not re.match(r" \*   command |#pragma clang attribute push|#pragma GCC target|#error ", line)]
        assert not long, (name, long[:3])
        assert not re.search(r"[ \t]+$|\t|\r|[^\x00-\x7f]", text, re.M), name
        assert text.endswith("\n") and not text.endswith("\n\n"), name


@pytest.mark.long
def test_a_reviewer_can_read_it(tmp_path):
    """The text of every shape of the suite has at most 2,000 lines and 90 KB, of which the tiles for peaky scores are
    a quarter, no condition that is constant, and a tile's registers are there."""
    sys.path.append(str(ROOT / "bench"))
    import suite
    for name, (config, _) in suite.suite().items():
        for isa in in_turn(("scalar", "avx2", "avx512", "neon"), "a text", name, count=2):  # others have these texts
            run(MHAGEN, "gen", *config, f"isa={isa}", f"name={name}", "-o", tmp_path)
            text = re.sub(r"#(undef|define) \w+( \w+_\w+)?\n", "", (tmp_path / f"{name}.c").read_text())  # names alone
            assert text.count("\n") <= 2000 and len(text) <= 90 * 1024, (name, isa)
            constant = [condition for condition in re.findall(r"\bif \((.*)\) \{|\((.*) \? ", text)
                        if re.fullmatch(r"-?\d+ [<>] -?\d+", "".join(condition))]
            assert not constant, (name, isa, constant)
            needed, there = map(int, re.search(r"take at most (\d+) of (\d+) vectors", text).groups())
            assert needed <= there, (name, isa)


def test_texts_are_tidy(tmp_path):
    """No void of a parameter that is used, no integer that is known as an expression, no number without its noun's
    form. Parts of scratch and of the statistics have names, but in straight code."""
    for i, config in enumerate(COVER[1::6]):
        generate(tmp_path, config, ISAS[i % len(ISAS)], f"of_cover_{i}")
    paths = [*(ROOT / "tests/golden").glob("*.c"), *tmp_path.glob("of_cover_*.c")]
    assert len(paths) > 20
    for path in paths:
        text = path.read_text()
        bodies = re.findall(r"^(?:static|mhagen_status) [^;{]*\{\n(.*?)^\}", text, re.M | re.S)
        assert len(bodies) > 4, path.name
        for body in bodies:
            for name in re.findall(r"^  \(void\)(\w+);", body, re.M):
                assert len(re.findall(rf"\b{name}\b", body)) == 1, (path.name, name)
        code = re.sub(r"/\*.*?\*/", "", text, flags=re.S)
        folded = re.findall(r"\(float\)\(-?\d+\)|[^.\w]0 \* \w|\w \* 0\b|\w \+ 0[;,)\]]", code)
        assert not folded, (path.name, folded)
        plural = [comment for comment in re.findall(r"/\*.*?\*/", text, re.S)
                  if re.search(r"(?<![\w.,-])1 (rows|columns|heads|queries|keys|steps|K steps|bytes)\b", comment)]
        assert not plural, (path.name, plural)
        if "unroll=full" not in text:
            places = re.sub(r"^ +\w+ \*const .*; *$", "", code, flags=re.M)
            assert not re.findall(r"\b(?:scratch|stats) \+ \d+", places), path.name


def test_nothing_of_this_machine(texts):
    """No date, path, host, user or commit."""
    commit = "git rev-parse --short HEAD 2>/dev/null || true"
    words = [str(ROOT), "/tmp", "/home", "/usr", platform.node(),
             run("sh", "-c", commit, cwd=ROOT).strip()]
    pattern = "|".join(re.escape(word) for word in words if len(word) > 2)
    for name, text in texts.items():
        assert not re.search(rf"{pattern}|\b20\d\d-\d\d-\d\d\b|__(DATE|TIME|FILE)__", text), name


def test_license(texts):
    """All that is copied into a product may be used without conditions, and says so at its top."""
    for name in "mhagen.h", "mhagen.c", "mhagen_onnxruntime.h", "mhagen_onnxruntime.c":
        texts = {**texts, name: (ROOT / "runtime" / name).read_text()}
    for name, text in texts.items():
        head = " ".join(text.split("*/")[0].replace("*", "").split())
        assert "may be used, changed and shipped without conditions" in head, name
        assert "SPDX-License-Identifier: 0BSD" in head, name
    assert "Apache License Version 2.0" in " ".join((ROOT / "LICENSE").read_text().split())
    assert "BSD Zero Clause License" in (ROOT / "runtime/LICENSE").read_text()


def test_literals_only(texts):
    """No shape is an argument: a loop's count is a literal, or what is left for the last task; only a mask makes it
    depend on lengths, and peaky scores on the block from which on a maximum may rise."""
    counts = []
    for name, text in texts.items():
        masked = re.search(r"causal|kv_len|kv_start|row_keys|q_len|keys to the|cache ", text.split("*/")[0])
        if re.match(r"k\d.*\.c$", name) and not masked:
            bounds = re.findall(r"for \(ptrdiff_t \w+ = 0; \w+ < ([^;]+);", text)
            counts.append(len(bounds))
            others = [bound for bound in bounds if not bound.isdigit() and " - first" not in bound
                      and not re.fullmatch(r"[po]_rows|(stop|bound) - (bound|start)( - 1)?", bound)]
            assert not others, (name, others)
    assert sum(counts) > len(counts) > 10


def test_full_is_straight(texts):
    """Without a loop; the only branches are the guards of the safe path, of rows behind those in a cache, of rows that
    a run may not ask for, and of keys behind the range of a row."""
    straight = {name: text for name, text in texts.items() if name.endswith(".c") and "unroll=full" in text}
    assert straight
    for name, text in straight.items():
        forward = text[text.index(" forward("):].split("\n}\n")[0]
        assert not re.search(r"\b(for|while|do|switch|goto)\b", forward), name
        guards = re.findall(r"\bif \((.*)\) \{", forward)
        known = re.compile(r"!|past < |\d+ < past \+ |\d+ < (rows|stop_row)( - \d+)?$")
        assert all(known.match(guard) for guard in guards), (name, guards)


@pytest.mark.long
@pytest.mark.slow  # the default build runs it by itself
def test_goldens():
    run("sh", ROOT / "tests/golden.sh")


def test_runtime_is_embedded(tmp_path):
    run(MHAGEN, "gen", *COVER[0].split(), "isa=scalar", "-o", tmp_path)
    for name in "runtime/mhagen.h", "build/runtime/mhagen.c":
        assert (tmp_path / pathlib.Path(name).name).read_bytes() == (ROOT / name).read_bytes()
    parts = [path.read_text() for path in (ROOT / "runtime/parts").iterdir()]
    assert len(parts) >= 5 and all(part in (tmp_path / "mhagen.c").read_text() for part in parts)


def test_collects_without_packages():
    """Who has not installed PyTorch gets the other tests, and no error."""
    lacking = ("import sys, pytest\n"
               "sys.modules.update(dict.fromkeys(('numpy', 'torch', 'safetensors', 'transformers', 'onnx', 'gguf')))\n"
               "sys.exit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', 'tests']))")
    run(sys.executable, "-B", "-c", lacking, cwd=ROOT)


def test_python_is_that_of_the_tests():
    """Another one lacks what scripts/venv.sh installs."""
    other = r"(?<=[(\[])\s*[\"']python3?[\"'],"
    assert not hits(other, (ROOT / "tests").rglob("*.py")) and re.search(other, 'run("' + 'python3", "-c")')
