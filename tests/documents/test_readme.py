"""README.md and docs/ say what is true: commands run, tables and programs are those of the sources, links lead
somewhere."""
import json
import os
import re
import statistics
import sys
import textwrap
import xml.dom.minidom

import pytest

from tools import MHAGEN, ROOT, run

sys.path.append(str(ROOT / "scripts"))
import drawings
import support

PAGES = {str(path.relative_to(ROOT)): path.read_text()
         for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("findings/*.md")]}
README, CONTRIBUTING = PAGES["README.md"], PAGES["CONTRIBUTING.md"]
# What is marked as console is to be read: it takes long, or installs.
COMMANDS = [(page, commands) for page, text in PAGES.items()
            for commands in re.findall(r"^```sh\n(.*?)^```$", text, re.M | re.S)]
INSTALLING = ["sh scripts/demo.sh\n", "sh scripts/test.sh\n"]


def prose(text):
    """A page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)


def test_two_commands_install():
    assert [commands for page, commands in COMMANDS if page == "README.md"][-2:] == INSTALLING
    for command in INSTALLING:
        run("sh", "-n", ROOT / command.split()[1])


def write_graph(path):
    """An ONNX file with one layer of the shape of MiniLM."""
    onnx, np = (pytest.importorskip(name, reason=f"{name} is not installed") for name in ("onnx", "numpy"))
    numbers = np.random.default_rng(1)
    weights = {"w": numbers.standard_normal((384, 3 * 384), "f4"), "b": numbers.standard_normal(3 * 384, "f4"),
               "wo": numbers.standard_normal((384, 384), "f4")}
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Attention", ["x", "w", "b"], ["context"], domain="com.microsoft", num_heads=12),
         onnx.helper.make_node("MatMul", ["context", "wo"], ["y"])], "minilm",
        [value("x", onnx.TensorProto.FLOAT, [1, 128, 384])], [value("y", onnx.TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(0.1 * x, name) for name, x in weights.items()])
    onnx.save(onnx.helper.make_model(graph, ir_version=9, opset_imports=[
        onnx.helper.make_opsetid("", 20), onnx.helper.make_opsetid("com.microsoft", 1)]), path)


@pytest.mark.parametrize("commands", [commands for _, commands in COMMANDS if commands not in INSTALLING])
def test_commands(commands, tmp_path):
    """In a directory that looks like this one, but is not written to."""
    for name in "build", "examples":
        (tmp_path / name).symlink_to(ROOT / name)
    if "model.onnx" in commands:
        write_graph(tmp_path / "model.onnx")
    output = run("sh", "-eu", "-c", commands, cwd=tmp_path,
                 env={**os.environ, "PATH": f"{ROOT}/build:{os.environ['PATH']}"})
    assert output and "nan" not in output, output


def test_c_of_a_model(tmp_path):
    """The lines of C in README are those that its command writes."""
    command, = [commands for page, commands in COMMANDS if page == "README.md" and "model.onnx" in commands]
    shown, = re.findall(r"^```c\n(.*?)^```$", README, re.M | re.S)
    write_graph(tmp_path / "model.onnx")
    run(MHAGEN, *command.split()[1:], cwd=tmp_path)
    kernel, = tmp_path.glob("out/mha_*.c")
    assert shown.count("\n") >= 9 and shown in kernel.read_text(), "take the loop of the tile from the new text"


@pytest.mark.parametrize("path", ["model/main.cpp", "decoder/main.c"])
def test_transcripts(path):
    """Of files that come from elsewhere: they compile as the examples say, which tests do with other files."""
    commands = re.sub(r" +#.*", "", PAGES["docs/first-numbers.md"])
    head = re.findall(r"^//   (.*)$", (ROOT / "examples/use" / path).read_text(), re.M)
    compiled = head[1].rpartition(" && ")[0].replace("-Iout", "-I.").replace("out/", "")
    compiled = re.sub(r"main\.c\w*", f"../../examples/use/{path}", re.sub(r"-o \w+$", "-o run", compiled))
    assert re.search(rf"^\$ \(cd build/\w+ && {re.escape(compiled)}\)$", commands, re.M)
    keys = re.search(r"MODEL (.*) -o out", head[0])[1].replace("x86 seq=16", "native seq=257")
    assert re.search(rf"^\$ build/mhagen model \S+ {re.escape(keys)} -o build/\w+$", commands, re.M)


def test_main_part_of_the_example():
    page = PAGES["docs/integrate.md"]
    shown, = [block for block in re.findall(r"^```c\n(.*?)^```$", page, re.M | re.S) if "minilm_pack" in block]
    assert textwrap.indent(shown, "  ") in (ROOT / "examples/quickstart.c").read_text()


@pytest.mark.parametrize("page, table", [
    (page, table) for page, text in PAGES.items()
    for table in re.findall(r"^```lua\n(.*?)^```$", text, re.M | re.S)])
def test_tables_of_lua(page, table, tmp_path):
    """A config, a grid or a tuning file of a page is accepted."""
    path = tmp_path / "table.lua"
    path.write_text(table)
    if page == "docs/sweep.md":
        run(MHAGEN, "sweep", path, "-o", tmp_path / "out", "--dry-run")
    elif page == "docs/format.md":
        run(MHAGEN, "explain", *re.search(r'\["(.*)"\]', table)[1].split(), f"tuned={path}")
    else:
        run(MHAGEN, "explain", path)


def test_readme_is_short():
    assert README.count("\n") <= 120


def test_page_of_what_is_supported():
    """docs/support.md is made of the tests' tables, and README counts as it does."""
    assert PAGES["docs/support.md"] == support.page(), "scripts/support.py writes it"
    kinds, gguf = (len(support.types_of(f"gen/model/{name}.lua")) for name in ("families*", "gguf_families"))
    assert f"| {kinds} model types of transformers, {gguf} architectures of GGUF," in README


@pytest.mark.parametrize("part", ["mask_dims=none", "tuned", "norm_eps=7"])
def test_features_without_tests_are_refused(part):
    """A value that a key has not, and a key that no fixed config has and no test draws."""
    with pytest.raises(SystemExit, match="support: "):
        support.tested(part, {row["key"]: row for row in support.tools.schema()}, support.configs())


def test_figures_of_speed():
    """Those of README are of the table of all shapes, and of that of small types."""
    page = PAGES["docs/bench.md"]
    row = re.search(r"^\| minilm \| 1544 \| 97 % \|.*$", page.split("### On Zen 5")[0], re.M)
    small = re.search(r"^\| minilm \| 125\.84 \(\S+\) \| 2\.97 ", page.split("### On Intel")[1], re.M)
    text = " ".join(README.split())
    assert row and "1,544 us in float32, 97 %" in text
    assert small and "126 us in bf16; the next fastest library takes 3.0 times as long" in text


def test_config_keys():
    """The tables of the keys are those that `mhagen schema --markdown` prints."""
    wanted = re.findall(r"^\| `.*\|$", run(MHAGEN, "schema", "--markdown"), re.M)
    tables = PAGES["docs/config.md"].split("## Unrolling")[0]
    assert len(wanted) > 20 and re.findall(r"^\| `.*\|$", tables, re.M) == wanted


def test_options_of_report():
    options = set(re.findall(r"(?:^| )(--?[a-z][-a-z]*)", run(MHAGEN, "report", "--help")))
    listed = set(re.findall(r"`(--?[a-z-]+)", PAGES["docs/sweep.md"].split("## The report")[1]))
    assert options - listed == {"-h", "--help", "--output"}


def test_commands_are_listed():
    commands = re.findall(r"^   (\w+)  ", run(MHAGEN, "--help").split("   --version ")[1], re.M)
    table = PAGES["docs/index.md"].split("## The commands")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)`", table, re.M)) == sorted(commands)


def test_fields_of_results():
    """The table is that of gen/lab/results.lua."""
    source = re.sub(r'" \.\.\s*"', "", (ROOT / "gen/lab/results.lua").read_text())
    fields = re.findall(r'^  \{ "(\w+)", "([^"]*)", "([^"]*)"', source, re.M)
    wanted = [f"| `{key}` | {unit} | {meaning} |" for key, unit, meaning in fields]
    page = PAGES["docs/format.md"].split("## Results")[1].split("\n## ")[0]
    assert len(wanted) > 20 and re.findall(r"^\| `.*\|$", page, re.M) == wanted


def test_statuses():
    header = (ROOT / "runtime/mhagen.h").read_text()
    wanted = re.findall(r"^  (MHAGEN_\w+) = \d+", header.split("enum mhagen_status")[1].split("}")[0], re.M)
    table = PAGES["docs/calling.md"].split("## Statuses")[1]
    assert re.findall(r"^\| `(\w+)`", table, re.M) == wanted


MOST_WORDS, MEDIAN_WORDS = 35, 18  # of a sentence, of half of a page's


def sentences(text):
    """Those of a page's prose, of its lists and of the cells of its tables."""
    text = re.sub(r"^    .*$", "", prose(text), flags=re.M)
    cells = [part for row in re.findall(r"^ *\|(.*)\|$", text, re.M) for cell in re.split(r"(?<!\\)\|", row)
             for part in cell.split("; ")]
    text = re.sub(r"^ *\|.*\|$", "", text, flags=re.M)
    for part in [*re.split(r"\n\s*\n|\n *(?=[-*] |\d+\. |#)", text), *cells]:
        part = re.sub(r"\]\([^)]*\)", "]", " ".join(part.split()))
        yield from re.split(r"(?<=[.?!:])\**\)? (?=[A-Z`(\[*])", part)


def words_of(sentence):
    """How many; code is one word."""
    return len(re.findall(r"[^\s]*\w[^\s]*", re.sub(r"`[^`]*`", "code", sentence)))


def too_long(text):
    """Sentences that are, and the median where it is too large."""
    lengths = [words for sentence in sentences(text) if (words := words_of(sentence))]
    median = statistics.median(lengths) if lengths else 0
    return [sentence for sentence in sentences(text) if words_of(sentence) > MOST_WORDS] + (
        [median] if median > MEDIAN_WORDS else [])


def test_sentences_are_short():
    """They are read once."""
    long = {page: found for page, text in PAGES.items() if (found := too_long(text))}
    assert not long


def test_long_sentences_are_found():
    words = " ".join(["word"] * 18)
    assert too_long(f"- {words} {words}.") and not too_long(f"{words}. A {words[5:]}.\n\n| {words}; {words} |")
    assert too_long(f"A {words}. A {words}.") == [19] and not too_long(f"A {words}. Word. Word.")


def anchors(page):
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(PAGES[page]), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(pages):
    """Relative links that lead nowhere: to no file, or to no heading of a page."""
    broken = []
    for page, text in pages.items():
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
            if re.match(r"\w+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (ROOT / page).parent / path if path else ROOT / page
            name = str(target.resolve().relative_to(ROOT))
            if not target.exists() or anchor and (name not in PAGES or anchor not in anchors(name)):
                broken.append((page, link))
    return broken


def test_links():
    assert sum(text.count("](") for text in PAGES.values()) > 40 and not broken_links(PAGES)


@pytest.mark.parametrize("link", ["docs/none.md", "docs/bench.md#none", "#none", "gen/main.lua#none"])
def test_broken_links_are_found(link):
    assert broken_links({"README.md": f"[a]({link})"}) == [("README.md", link)]


def test_every_page_is_linked():
    linked = {str((ROOT / page).parent.joinpath(link).resolve().relative_to(ROOT))
              for page, text in PAGES.items() for link in re.findall(r"\]\(([^):#\s]+)", prose(text))}
    assert set(PAGES) <= linked


def test_names():
    """Every file that is named exists, and every folder of the generator is in the listing."""
    folders = "gen|runtime|tests|examples|scripts|templates|bench|docs"
    names = [name for text in PAGES.values() for name in re.findall(rf"`((?:{folders})/[\w./-]*)`", text)]
    assert len(names) > 30
    assert not [name for name in names if not (ROOT / name).exists()]
    listing = PAGES["docs/design.md"].split("## The folders")[1].split("\n## ")[0]
    listed = re.findall(r"^    (?:  )?([\w.]+)/? {2,}", listing, re.M)
    here = [path.name for path in [*ROOT.iterdir(), *(ROOT / "gen").iterdir()] if path.is_dir()]
    assert {name for name in here if name not in ("build", ".git", "__pycache__")} <= set(listed)


def test_packages_have_reasons():
    """What install.sh installs is in a table of dependencies, but for headers and runtimes."""
    script = (ROOT / "scripts/install.sh").read_text()
    packages = " ".join(re.findall(r'packages="(?:\$packages )?([a-z0-9][^"]*)"', script)).split()
    tables = (CONTRIBUTING.split("## What mhagen depends on")[1]
              + PAGES["docs/bench.md"].split("## Other libraries")[1])
    implied = {"gcc", "libc6-dev", "binutils", "libc6-dev-arm64-cross", "libc6-dev-armhf-cross",
               "libc6-dev-s390x-cross", "$(gcc32)"}  # lib32gcc of the version of gcc
    assert len(packages) > 15
    assert not [name for name in packages if name not in implied and name not in tables]


@pytest.mark.parametrize("name", ["parts", "loops"])
def test_drawings(name):
    """They are made of the requires of gen and of the loops of a kernel, and a browser reads them."""
    drawn = getattr(drawings, name)()
    assert (ROOT / f"docs/{name}.svg").read_text() == drawn, "scripts/drawings.py draws it"
    xml.dom.minidom.parseString(drawn)
    words = {"parts": ["command/", "ONNX graphs"], "loops": ["for hb", "attend_16", "sums_8x32", "multiply-add"]}[name]
    assert all(f">{word}" in drawn for word in words) and not re.search(drawings.RARE, drawn)


def test_what_is_drawn():
    """An arrow that others imply is left out; a loop without a call is, and a function's second inside."""
    graph = {"a": {"b", "c"}, "b": {"c"}, "c": set()}
    assert drawings.reduced(graph) == {"a": ["b"], "b": ["c"], "c": []}
    assert drawings.levels(graph) == [["c"], ["b"], ["a"]]
    source = """/* Sums. */
static void sums(int n) {
  for (ptrdiff_t i = 0; i < 4; ++i) {
    x = _mm_fmadd_ps(a, b, x);
  }
  for (ptrdiff_t r = 0; r < 4; ++r) store(x);
}
static void run_entry(int n) {
  sums(1);
  for (ptrdiff_t hb = 0; hb < 2; ++hb) sums(2);
}
"""
    sums = ("loop", "i < 4", "K steps", [("fma", "multiply-add", "", [])])
    assert drawings.tree("run_entry", drawings.functions(source), set()) == [
        ("call", "sums", "Sums.", [sums]), ("loop", "hb < 2", "blocks of heads", [("call", "sums", "Sums.", [])])]


def test_outputs_are_ignored():
    """What the commands write is not a change of the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("no repository")
    outputs = set(re.findall(r" -o (\S+)", "".join(commands for _, commands in COMMANDS)))
    assert {"out", "quickstart", "sweep", "tuned/mine.lua"} <= outputs
    for output in outputs:
        folder = "" if output == "quickstart" or "." in output else "/"
        run("git", "check-ignore", "-q", output + folder, cwd=ROOT)


VERSION = "runtime/mhagen.h", r"^#define MHAGEN_VERSION (\d+)$"


def number_at(commit):
    """MHAGEN_VERSION there."""
    found = re.search(VERSION[1], run("git", "show", f"{commit}:{VERSION[0]}", cwd=ROOT), re.M)
    return found and int(found[1])


def test_versions_have_their_commits():
    """Each began with the commit of its heading, on that day, and the first one is that of the header."""
    headings = re.findall(r"^## (.*)$", PAGES["CHANGELOG.md"], re.M)
    versions = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) \((\w{8}), ([\d-]{10})\)", heading).groups() for heading in headings]
    numbers = [10000 * int(major) + 100 * int(minor) + int(patch) for major, minor, patch, *_ in versions]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] == int(re.search(VERSION[1], (ROOT / VERSION[0]).read_text(), re.M)[1])
    if not (ROOT / ".git").exists() or run("git", "rev-parse", "--is-shallow-repository", cwd=ROOT) == "true\n":
        pytest.skip("no repository with the history")
    for number, (*_, commit, date) in zip(numbers, versions):
        assert number_at(commit) == number != number_at(f"{commit}^")
        assert run("git", "show", "-s", "--format=%cs", commit, cwd=ROOT).strip() == date


def test_plots_of_times(tmp_path):
    """docs/speed.svg has the figures of docs/bench.md, docs/whole.svg those of docs/whole.md."""
    pytest.importorskip("matplotlib")
    run(sys.executable, ROOT / "bench/plot.py", tmp_path)
    for name in "speed.svg", "whole.svg":
        assert (tmp_path / name).read_text() == (ROOT / "docs" / name).read_text()


def test_plot_of_threads(tmp_path):
    """docs/threads.svg and the table of docs/threads.md have the figures of bench/threads.json."""
    run(sys.executable, ROOT / "bench/threads.py", "--plot", ROOT / "bench/threads.json", tmp_path / "new.svg")
    assert (tmp_path / "new.svg").read_text() == (ROOT / "docs/threads.svg").read_text()
    page, rows = PAGES["docs/threads.md"], json.loads((ROOT / "bench/threads.json").read_text())["rows"]
    for row in rows:
        ours = " | ".join(f"{time:.0f}" for time in row["us"]["ours"].values())
        assert f"| {row['shape']}, {row['type']} | {ours} |" in page
    assert len(rows) == 8


def test_page_of_the_interface(tmp_path):
    """docs/api.md is made of the headers."""
    run(sys.executable, ROOT / "scripts/api.py", tmp_path / "new.md")
    assert (tmp_path / "new.md").read_text() == PAGES["docs/api.md"]


def test_pages_are_not_small():
    """A question with a short answer is a section."""
    assert not [page for page, text in PAGES.items() if page.startswith("docs/") and len(text.split()) < 350]


def test_index_has_every_page():
    listed = set(re.findall(r"\]\((\w[\w-]*\.md)\)", PAGES["docs/index.md"].split("## The pages")[1]))
    assert listed == {name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")} - {"index.md"}
