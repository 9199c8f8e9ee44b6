"""`mhagen report`: its tables and its page, of made-up results (tests/commands/synthetic.py).

What the page does is tested in a headless Chromium, if there is one.
"""
import base64
import copy
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

import synthetic
from test_config import MHAGEN, assert_refused, run
from tools import ROOT, cpu_time, need

ROWS = synthetic.results(400)
OK = [row for row in ROWS if row["status"] == "ok"]
SHAPE = ("h", "d_model", "dk", "seq")


def shape(row):
    return "h{h}_d{d_model}_k{dk}_s{seq}".format(**row["config"])


def report(directory, *options):
    result = run("report", directory, *options)
    assert (result.returncode, result.stderr) == (0, ""), result
    return result.stdout


def table(output, title):
    """The lines of the table below a line that starts with `title`, each cut into words."""
    lines = output[output.index("\n" + title):].split("\n\n")[0].strip().split("\n")[1:]
    return [line.split() for line in lines if not line.startswith("  ... and ")]


def data_of(page):
    """The data of a page, and its rows as lists of what varies."""
    text = pathlib.Path(page).read_text(encoding="utf-8")
    data, lists = (json.loads(re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text,
                                        re.S)[1]) for name in ("data", "lists"))
    columns = [[column["of"][n] if n is not None else None for n in column["at"]]
               if isinstance(column, dict) else column for column in lists]
    assert all(len(column) == data["count"] for column in columns)
    return {**data, "rows": [list(cells) for cells in zip(*columns)] or [[]] * data["count"]}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    directory = synthetic.write(tmp_path_factory.mktemp("sweep"), ROWS)
    return synthetic.write(directory, synthetic.tuning(), "tune.jsonl")


# ---- tables ----

def test_tables(sweep):
    output = report(sweep)
    assert max(map(len, output.replace(str(sweep), "").splitlines())) <= 100
    assert output.startswith(f"{sweep}: 400 configs, {len(OK)} measured, {400 - len(OK)} failed\n")
    assert output.endswith(f"\nPage: {sweep}/report.html\n")
    for title in ("Fastest config of each shape", "The fastest configs by isa",
                  "The fastest configs by unroll", "Failed or skipped", "Tuning, best found"):
        assert f"\n{title}\n" in output


def test_fastest_of_each_shape(sweep):
    lines = table(report(sweep, "--limit", 0), "Fastest")
    assert lines[0][:4] == ["shape", "isa", "unroll", "time"] and lines[1][:2] == ["us", "GFLOP/s"]
    best = {}
    for row in OK:
        if shape(row) not in best or row["us_median"] < best[shape(row)]["us_median"]:
            best[shape(row)] = row
    assert [line[0] for line in lines[2:]] == sorted(best, key=lambda text: [
        int(number) for number in re.findall(r"\d+", text)])
    for line in lines[2:]:
        row = best[line[0]]
        assert line[1:8] == [row["config"]["isa"], row["config"]["unroll"], f"{row['us_median']:.2f}",
                             f"{row['gflops']:.1f}", f"{100 * row['fraction']:.1f}",
                             str(row["text_bytes"]), f"{row['error']:.1e}"]


def test_numbers_are_aligned(sweep):
    text = report(sweep).split("Fastest config of each shape\n")[1].split("\n\n")[0]
    lines = [line for line in text.splitlines() if "avx512" in line]
    ends = [[match.end() for match in re.finditer(r"\d+\.\d+(?:e-\d+)?", line)] for line in lines]
    assert len(lines) > 10 and all(end == ends[0] for end in ends)


@pytest.mark.parametrize("key, within", [("isa", ("shape",)), ("unroll", ("shape", "isa"))])
def test_values_against_each_other(sweep, key, within):
    lines = table(report(sweep, "--limit", 0), f"The fastest configs by {key}")
    values = lines[0][len(within):]
    best = {}
    for row in OK:
        at = ", ".join([shape(row), row["config"]["isa"]][:len(within)])
        best.setdefault(at, {}).setdefault(row["config"][key], []).append(row["us_median"])
    assert len(lines) == len(best) + 3
    ratios = []
    for line in lines[2:-1]:
        times = {value: min(list_) for value, list_ in best[" ".join(line[:len(within)])].items()}
        assert line[len(within):] == [f"{times[v]:.2f}" if v in times else "-" for v in values]
        if len(times) == len(values):
            ratios.append([times[value] / min(times.values()) for value in values])
    means = [math.exp(sum(map(math.log, column)) / len(ratios)) for column in zip(*ratios)]
    assert lines[-1][-len(values):] == [f"{mean:.2f}" for mean in means]
    assert lines[-1][-len(values) - 1] == str(len(ratios))


def test_failures(sweep):
    lines = table(report(sweep), "Failed or skipped")
    for status, message in synthetic.FAILURES:
        count = sum(row["status"] == status for row in ROWS)
        assert [status, str(count)] in [line[:2] for line in lines]


def test_sort_and_limit(sweep):
    def times(*options):
        return [float(line[3]) for line in table(report(sweep, *options), "Fastest")[2:]]
    everything = times("--limit", 0)
    assert times("--sort", "us_median", "--limit", 0) == sorted(everything)
    assert times("--sort", "us_median", "--reverse", "--limit", 3) == sorted(everything)[:-4:-1]
    assert "\n  ... and 21 more (--limit)\n" in report(sweep, "--limit", 3)
    by_seq = table(report(sweep, "--sort", "seq", "--limit", 0), "Fastest")[2:]
    assert [int(line[0].split("_s")[1]) for line in by_seq] == sorted(
        int(line[0].split("_s")[1]) for line in by_seq)


def test_filter(sweep, tmp_path):
    page = tmp_path / "page.html"
    report(sweep, "--filter", "isa=avx2,neon", "--filter", "threads=2", "-o", page)
    kept = [row for row in ROWS if row["config"]["isa"] != "avx512" and row["threads"] == 2]
    data = data_of(page)
    assert len(data["rows"]) == len(kept) and data["constants"]["threads"] == 2
    assert ["avx2", "neon"] in [axis["values"] for axis in data["axes"]]


# ---- the page as a file ----

def test_page_holds_the_results(sweep):
    report(sweep)
    text = (sweep / "report.html").read_text(encoding="utf-8")
    embedded = re.search(r'id="data">(.*?)<script>', text, re.S)[1].replace(
        '</script>\n<script type="application/json" id="lists">', "").replace("</script>\n", "")
    assert "<" not in embedded and "\u2028" not in embedded and "\u2029" not in embedded
    data = data_of(sweep / "report.html")
    keys = {column["key"] for column in data["columns"]}
    for cells, row in zip(data["rows"], ROWS, strict=True):
        shown = {**data["constants"], **dict(zip(data["varying"], cells))}
        assert shown["shape"] == shape(row)
        for key, value in row.items():
            if key == "fraction":
                assert shown[key] == pytest.approx(100 * value)
            elif key != "config":
                assert shown[key] == value
        for key, value in row["config"].items():
            assert key == "name" or shown[key] == ("plan" if value is None else value)
        assert set(row) - keys <= {"config"}
    assert [axis["key"] for axis in data["axes"]] == [
        "h", "d_model", "dk", "seq", "isa", "unroll", "key_rows", "threads", "shape"]
    assert {axis["key"]: axis["values"] for axis in data["axes"]}["key_rows"] == ["plan", 4]


def test_page_needs_nothing_else(sweep):
    report(sweep)
    text = (sweep / "report.html").read_text(encoding="utf-8")
    assert "Chart.js v3" in text and "Released under the MIT License" in text
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?!data:|#)[\w./]|@import|url\(""", text)
    assert text.count("</script>") == 5 and len(text) < 600_000


def test_from_a_copied_program(sweep, tmp_path):
    report(sweep)
    shutil.copy(MHAGEN, tmp_path / "program")
    shutil.copy(sweep / "results.jsonl", tmp_path)
    shutil.copy(sweep / "tune.jsonl", tmp_path)
    subprocess.run(["./program", "report", "."], cwd=tmp_path, env={}, check=True, capture_output=True)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.replace('"dir":"."', f'"dir":"{sweep}"') == (sweep / "report.html").read_text()


def test_files_of_others_stay(sweep, tmp_path):
    page = tmp_path / "page.html"
    page.write_text("<!doctype html>\n<title>mine</title>\n")
    result = subprocess.run([MHAGEN, "report", sweep, "-o", page], capture_output=True, text=True)
    assert_refused(result, "page.html: not made by mhagen; --force replaces")
    assert "mine" in page.read_text()
    report(sweep, "-o", page, "--force")
    assert page.read_text().startswith("<!doctype html>\n<!-- Written by mhagen report; do not edit. -->\n")
    report(sweep, "-o", page, "--limit", "1")


def test_output_file(sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    report(sweep, "-o", "new/dir/page.html")
    report(sweep, "-o", "page.html")
    assert (tmp_path / "page.html").read_bytes() == (tmp_path / "new/dir/page.html").read_bytes()
    assert_refused(run("report", sweep, "-o", "new/"), "output file: its name is empty")
    (tmp_path / "file").write_text("old")
    assert_refused(run("report", sweep, "-o", "file/page.html"), "Not a directory")


def test_ten_thousand_rows(tmp_path):
    """Of 100,000 the limits are ten times these. Memory does not depend on how busy a machine is."""
    synthetic.write(tmp_path, synthetic.results(10_000))
    before = cpu_time()
    used = json.loads(subprocess.run(
        [sys.executable, "-c", "import json, resource, subprocess, sys; subprocess.run(sys.argv[1:], check=True, "
         "stdout=subprocess.DEVNULL); print(json.dumps(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss))",
         MHAGEN, "report", tmp_path], check=True, capture_output=True, text=True).stdout)
    assert cpu_time() - before < 10 and used < 50_000  # KB
    page = tmp_path / "report.html"
    assert len(data_of(page)["rows"]) == 10_000 and page.stat().st_size < 3_500_000


# ---- what is refused ----

def lines_of(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def changed(row, **changes):
    row = copy.deepcopy(row)
    row["config"].update(changes.pop("config", {}))
    return {key: value for key, value in {**row, **changes}.items() if value is not None}


GOOD = lines_of(OK[0])


@pytest.mark.parametrize("text, message", [
    (None, "results.jsonl: No such file or directory"),
    ("", "results.jsonl: no results"),
    ("\n\n", "results.jsonl: no results"),
    ("nonsense\n", "results.jsonl:1: not a JSON object"),
    (GOOD[:-3] + "\n", "results.jsonl:1: not a JSON object"),
    (GOOD[:-1] + "}\n", "results.jsonl:1: not a JSON object"),
    ("{false:1}\n", "results.jsonl:1: not a JSON object"),
    ('{"config":' + "[" * 15 + "]" * 15 + "}\n", "results.jsonl:1: no name"),
    (GOOD.replace('"us_min": ', '"us_min": 1e999, "us_was": '), "results.jsonl:1: us_min is not a number"),
    (GOOD.replace('"us_min": ', '"us_min": NaN, "us_was": '), "results.jsonl:1: not a JSON object"),
    ("[1]\n", "results.jsonl:1: not a JSON object"),
    ("3\n", "results.jsonl:1: not a JSON object"),
    ("\0\n", "results.jsonl:1: not a JSON object"),
    (GOOD[:50], "results.jsonl: no results"),
    (lines_of(changed(OK[0], colour=1)), "results.jsonl:1: unknown column 'colour'"),
    (lines_of(changed(OK[0], config={"hue": 1})), "results.jsonl:1: unknown config key 'hue'"),
    (lines_of(changed(OK[0], status=None)), "results.jsonl:1: no status"),
    (lines_of(changed(OK[0], us_median=None)), "results.jsonl:1: no us_median"),
    (lines_of(changed(OK[0], us_median=0)), "results.jsonl:1: no us_median"),
    (lines_of(changed(OK[0], us_median="fast")), "results.jsonl:1: us_median is not a number"),
    (lines_of(changed(OK[0], name=[])), "results.jsonl:1: name is not a string"),
    (lines_of(changed(OK[0], disturbed=3)), "results.jsonl:1: disturbed is not a boolean"),
    (lines_of({**OK[0], "config": "h=3"}), "results.jsonl:1: config is not a table"),
    (lines_of(changed(OK[0], config={"h": None})), "results.jsonl:1: the config has no h"),
    (lines_of(changed(OK[0], config={"h": "4"})), "results.jsonl:1: config: h is of the wrong type"),
    (lines_of(changed(OK[0], config={"isa": {}})), "results.jsonl:1: config: isa is of the wrong"),
    (lines_of(changed(OK[0], config={"isa": "A-B"})), "results.jsonl:1: config: isa = 'A-B' is not known"),
    (lines_of(changed(OK[0], config={"h": -4})), "results.jsonl:1: config: h is of the wrong type"),
    (lines_of(changed(OK[0], config={"h": 1.5})), "results.jsonl:1: config: h is of the wrong type"),
    (lines_of(changed(OK[0], config={"causal": "x"})), "results.jsonl:1: config: causal is of the wrong type"),
    (lines_of({**OK[0], "config": [1]}), "results.jsonl:1: the config has no h"),
])
def test_bad_results(text, message, tmp_path):
    if text is not None:
        (tmp_path / "results.jsonl").write_text(text)
    before = sorted(path.name for path in tmp_path.iterdir())
    assert_refused(run("report", tmp_path), f"mhagen: {tmp_path}/{message}")
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_lines_that_are_wrong(tmp_path):
    """They are left out and told; the rest is shown. What must not pass by a loss of rows, does not."""
    bad = ["nonsense\n", "{false:1}\n", lines_of(changed(OK[1], colour=1)),
           lines_of(changed(OK[2], config={"isa": "A-B"}))]
    (tmp_path / "results.jsonl").write_text(GOOD + "".join(bad) + GOOD)
    output, path = report(tmp_path), f"{tmp_path}/results.jsonl"
    assert ": 2 configs, 2 measured" in output
    assert [line for line in output.splitlines() if line.startswith("note: ")] == [
        f"note: {path}:2: not a JSON object; left out", f"note: {path}:3: not a JSON object; left out",
        f"note: {path}:4: unknown column 'colour'; left out", f"note: 4 lines of {path} are left out"]
    synthetic.write(tmp_path / "good", OK[:3])
    for here, there in (tmp_path, tmp_path / "good"), (tmp_path / "good", tmp_path):
        assert_refused(run("report", here, "--compare", there, "--fail-on", "regression", "-o", tmp_path / "page"),
                       f"report: --fail-on: 4 lines of {path} are wrong")


@pytest.mark.parametrize("opening", ["[", '{"a":', '{"config":[', "[["])
def test_deep_json(opening, tmp_path):
    (tmp_path / "results.jsonl").write_text(opening * 100_000 + "\n")
    assert_refused(run("report", tmp_path), f"mhagen: {tmp_path}/results.jsonl:1: not a JSON object")


def test_numbers_as_words(tmp_path):
    """What is a text may look like a number: a version, a model of a CPU."""
    report(synthetic.write(tmp_path, [changed(OK[0], version=2, cpu=3.5), changed(OK[0], version="2", cpu="3.5")]))
    assert data_of(tmp_path / "report.html")["constants"]["version"] == "2"


ESCAPES = "\x1b]0;title\x07 \x9b31m \x1b[2J\r\n \u202e \x7f"


def test_nothing_steers_the_terminal(tmp_path):
    """Escapes in whatever a row, a directory or an argument says."""
    folder = tmp_path / "a\x1b[31mb\nc\x9b"
    fields = ("cpu", "compiler", "flags", "version", "system", "message")
    rows = [changed(OK[0], **{key: ESCAPES for key in fields}), changed(OK[1], status=ESCAPES, message=ESCAPES)]
    synthetic.write(folder, rows)
    (folder / "tune.jsonl").write_text(json.dumps({**synthetic.tuning()[0], "shape": ESCAPES}) + "\n")
    results = [run("report", folder), run("report", folder, "--compare", folder), run("report", folder / "x\x1b[0m"),
               run("report", folder, "--filter", "\x1b[0m=1"), run("check", "\x1b[0m\x9b=1")]
    for result in results:
        text = result.stdout + result.stderr
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]", text), result
        assert result.stderr.count("\n") <= 1
    head = results[0].stdout.split("\n\n")[0].splitlines()
    assert len(head) == 7 and head[1].startswith("  cpu  ") and "title" in head[1]


@pytest.mark.parametrize("options, message", [
    (["--sort", "speed"], "report: --sort speed: no such column"),
    (["--filter", "isa"], "report: --filter isa: must be KEY=VALUE[,VALUE...]"),
    (["--filter", "color=red"], "report: --filter color: no such column"),
    (["--filter", "isa=sve"], "report: --filter isa=sve: no row of"),
    (["--limit=-1"], "'-1' is not an integer from 0"),
    (["--limit", "many"], "option '--limit': 'many' is not an integer from 0"),
    (["--band", "3%"], "option '--band': '3%' is not a number from 0"),
    (["--fail-on", "regression"], "report: --fail-on needs --compare"),
    (["--fail-on", "rain", "--compare", "."], "option '--fail-on' must be one of 'regression'"),
    (["--compare", "nowhere"], "nowhere/results.jsonl: No such file or directory"),
])
def test_bad_options(options, message, tmp_path):
    synthetic.write(tmp_path, ROWS[:5])
    assert_refused(run("report", tmp_path, *options), message)
    assert [path.name for path in tmp_path.iterdir()] == ["results.jsonl"]


def test_bad_tuning(tmp_path):
    synthetic.write(tmp_path, ROWS[:5])
    (tmp_path / "tune.jsonl").write_text('{"shape": "a", "method": "model"}\n')
    assert_refused(run("report", tmp_path), "tune.jsonl:1: default_us is not a number")
    (tmp_path / "tune.jsonl").unlink()
    (tmp_path / "tune.jsonl").mkdir()
    assert_refused(run("report", tmp_path), "tune.jsonl: is a directory")


def test_a_sweep_that_was_killed(tmp_path):
    """The last line is cut short; what is before it counts."""
    (tmp_path / "results.jsonl").write_text(GOOD * 3 + GOOD[:-5])
    output = report(tmp_path)
    assert ": 3 configs, 3 measured" in output
    note = f"{tmp_path}/results.jsonl:4: the last line is incomplete and left out"
    assert f"\nnote: {note}\n" in output
    assert data_of(tmp_path / "report.html")["notes"] == [note]
    (tmp_path / "results.jsonl").write_text(GOOD * 3 + GOOD[:-1])  # only the newline is missing
    assert ": 4 configs, 4 measured" in report(tmp_path) and "note:" not in report(tmp_path)


def test_nothing_was_measured(tmp_path):
    failed = [row for row in ROWS if row["status"] != "ok"]
    output = report(synthetic.write(tmp_path, failed))
    assert f": {len(failed)} configs, 0 measured" in output and "\nFailed or skipped\n" in output


# ---- comparing ----

def test_compare(sweep, tmp_path):
    """Rows of the same config, whatever their names: some slower, faster, failing and gone."""
    factors = [1.05, 0.9, 1.029, 0.972, 1.0]
    there = [changed(row, name="other", config={"name": "other"},
                     us_median=row["us_median"] * factors[i % 5]) for i, row in enumerate(OK[:100])]
    broken = [changed(row, status="check", us_median=None) for row in OK[100:103]]
    new = [changed(OK[0], config={"h": 16})]
    other = synthetic.write(tmp_path / "other", there + broken + new)
    output = report(sweep, "--compare", other, "-o", tmp_path / "page.html", "--limit", 0)
    assert "\n  20 slower, 20 faster, 60 within; geometric mean 0.989\n" in output
    assert "\n  3 fail there only, 0 here only, 0 in both\n" in output
    assert f"\n  {len(ROWS) - 103} configs only here, 1 only there\n" in output
    assert len(table(output, "Changed")) == 2 + 43 and len(table(output, "Only here")) == 2 + 297
    assert table(output, "Only there")[2][0] == shape(new[0])
    assert max(map(len, output.replace(str(tmp_path), "").replace(str(sweep), "").splitlines())) <= 100
    comparison = data_of(tmp_path / "page.html")["comparison"]
    assert comparison["counts"]["slower"] == 20 and comparison["only_there"] == [new[0]["name"]]

    assert "\n  40 slower, 40 faster, 20 within;" in report(sweep, "--compare", other, "--band", 2.5)
    swapped = report(other, "--compare", sweep, "-o", tmp_path / "page.html")
    assert "\n  20 slower, 20 faster, 60 within; geometric mean 1.011\n" in swapped
    assert "\n  0 fail there only, 3 here only, 0 in both\n" in swapped


def test_skipped(sweep, tmp_path):
    """What a CPU can not run is neither a failure nor a regression, nor gone."""
    skip = {"status": "skipped", "message": "this CPU does not have it", "us_median": None}
    other = synthetic.write(tmp_path, [changed(row, **skip if i < 5 else {}) for i, row in enumerate(OK)])
    output = report(other)
    assert output.startswith(
        f"{other}: {len(OK)} configs, {len(OK) - 5} measured, 0 failed, 5 skipped\n")
    assert table(output, "Failed or skipped")[1][:2] == ["skipped", "5"]
    output = report(sweep, "--compare", other, "--fail-on", "regression", "-o", tmp_path / "page.html")
    assert f"\n  0 slower, 0 faster, {len(OK) - 5} within;" in output
    assert "\n  0 fail there only" in output


def test_fail_on_regression(sweep, tmp_path):
    def status(rows, *options):
        other = synthetic.write(tmp_path, rows)
        result = run("report", sweep, "--compare", other, "--fail-on", "regression", *options)
        assert result.stdout.startswith(f"{sweep}: 400 configs")
        return result.returncode, result.stderr

    assert status(ROWS) == (0, "")
    slower = [changed(row, us_median=row["us_median"] * 1.04) for row in OK[:7]]
    message = "mhagen: report: of {} configs {} are slower by more than {} %; {} fail that did not\n"
    assert status(slower) == (1, message.format(7, 7, 3, 0))
    assert status(slower, "--band", 4.5) == (0, "")
    assert status([changed(OK[0], status="check", us_median=None)]) == (1, message.format(1, 0, 3, 1))
    assert status(ROWS[:1]) == (0, "")  # what is gone is listed, no regression


# ---- the page in a browser ----

@pytest.fixture(scope="module")
def driver():
    pytest.importorskip("selenium", reason="python3-selenium is not installed")
    import browser
    need(browser.DRIVER)
    started = browser.start()
    yield started
    started.quit()


class Page:
    """A page that is open; every test ends with a look at the console."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path, **options):
        import browser
        browser.show(self.driver, path, **options)

    def run(self, script, *args):
        return self.driver.execute_script(script, *args)

    def value(self, expression, *args):
        return self.run(f"return {expression}", *args)

    def text(self, selector):
        return self.value("document.querySelector(arguments[0]).innerText", selector)

    def click(self, selector):
        self.driver.find_element("css selector", selector).click()

    def press(self, *keys):
        from selenium.webdriver import ActionChains
        ActionChains(self.driver).send_keys(*keys).perform()

    def choose(self, name, key):
        self.run("const s = document.getElementById('choose-' + arguments[0]);"
                 "s.value = arguments[1]; s.onchange()", name, key)

    def filter(self, axis, value):
        self.run("document.querySelector(`#axes [name='${arguments[0]}'][value='${arguments[1]}']`)"
                 ".click()", axis, value)

    def column(self, table, title):
        """What all pages of a table have in a column."""
        return self.value("""(() => {
            const [root, title] = [document.getElementById(arguments[0]), arguments[1]];
            const [before, after] = root.querySelectorAll(".pager button");
            const heads = [...root.querySelectorAll("thead .head")].map((head) => head.textContent);
            const at = heads.indexOf(title), texts = [];
            while (!before.disabled) before.click();
            for (;;) {
              for (const row of root.querySelectorAll("tbody tr")) texts.push(row.cells[at].innerText);
              if (after.disabled) return texts;
              after.click();
            }
        })()""", table, title)

    def numbers(self, table, title):
        return [float(text.replace(",", "")) for text in self.column(table, title)]

    def scale(self, chart, axis):
        return self.value("(({ type, options }) => ({ type, title: options.title.text,"
                          " color: options.ticks.color }))(charts.get(arguments[0]).scales[arguments[1]])",
                          chart, axis)

    def picture(self, name, whole=False):
        import browser
        browser.picture(self.driver, ROOT / f"build/report-{name}.png", whole)


@pytest.fixture
def page(driver, sweep):
    report(sweep)
    opened = Page(driver)
    driver.get_log("browser")
    opened.open(sweep / "report.html")
    yield opened
    assert driver.get_log("browser") == []


in_browser = pytest.mark.slow
PAINTED = """[...document.querySelectorAll("section:not([hidden]) canvas")].map((canvas) => (
  [canvas.id, canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)]))"""


@in_browser
def test_page_shows_everything(page):
    assert page.value("document.title").startswith("mhagen report: ")
    assert page.text("#count") == "All 400 configs"
    assert page.text("#summary").split()[:4] == ["configs", "400", "failed", str(400 - len(OK))]
    assert page.text("#notes") == "7 of 400 measurements were disturbed by other work"
    painted = dict(page.value(PAINTED))
    assert set(painted) == {"left-chart", "right-chart", "size-chart", "errors-chart",
                            "tuning-chart-0", "tuning-chart-1"}
    assert all(painted.values())
    assert page.text("#contents").split("\n") == [
        "Speed over each axis", "Heat map", "Speed against code size or error", "Errors", "Tuning", "Configs",
        "Failed or skipped", "Machine"]
    assert "Example 9000 CPU" in page.text("#machine-list") and "Linux 6.1.0" in page.text("#machine-list")
    page.picture("desktop", whole=True)


@in_browser
def test_filters(page):
    page.filter("isa", "avx2")
    page.filter("unroll", "tile")
    kept = [row for row in ROWS if (row["config"]["isa"], row["config"]["unroll"]) == ("avx2", "tile")]
    ok = [row for row in kept if row["status"] == "ok"]
    assert page.text("#count") == f"{len(kept)} of 400 configs: isa avx2; unroll tile"
    assert page.numbers("configs-table", "time") == pytest.approx(
        sorted(row["us_median"] for row in ok), abs=.006)
    assert set(page.column("configs-table", "isa")) == {"avx2"}
    assert len(page.column("failures-table", "status")) == len(kept) - len(ok)
    points = "charts.get('left-chart').data.datasets.flatMap((set) => set.data).filter(({ row }) => row)"
    assert page.value(f"{points}.length") == len(ok)
    assert page.value(f"new Set({points}.map(({{ row }}) => row.isa + row.unroll)).size") == 1
    page.filter("isa", "neon")
    assert "isa avx2 or neon" in page.text("#count")
    page.click("#clear")
    assert page.text("#count") == "All 400 configs"
    for isa in "avx2", "avx512", "neon":  # none is left
        page.filter("isa", isa)
    page.filter("seq", 32), page.filter("shape", "h4_d128_k32_s128")
    assert page.text("#count").startswith("0 of 400") and page.text(".pager") .endswith("No configs")


@in_browser
def test_fastest_of_each_shape_on_the_page(page):
    page.click("#fastest")
    best = {}
    for row in OK:
        best[shape(row)] = min(row["us_median"], best.get(shape(row), math.inf))
    shown = zip(page.column("configs-table", "shape"), page.numbers("configs-table", "time"))
    assert dict(shown) == {key: pytest.approx(value, abs=.006) for key, value in best.items()}


@in_browser
@pytest.mark.parametrize("title, key, first", [
    ("time", "us_median", "ascending"), ("speed", "gflops", "descending"),
    ("code", "text_bytes", "ascending"), ("threads", "threads", "ascending")])
def test_sorting_by_keyboard(page, title, key, first):
    from selenium.webdriver.common.keys import Keys
    head = f"[...document.querySelectorAll('#configs-table th')].find((th) => th.innerText.startsWith('{title}'))"
    page.run(f"{head}.querySelector('button').focus()")
    if title != "time":  # it is the order at the start
        page.press(Keys.ENTER)
    order = {"ascending": sorted, "descending": lambda values: sorted(values, reverse=True)}
    values = [row[key] for row in OK]
    for expected in first, ({*order} - {first}).pop():
        assert page.value(f"{head}.ariaSort") == expected
        assert page.value("document.querySelectorAll('#configs-table [aria-sort$=ending]').length") == 1
        assert page.numbers("configs-table", title) == pytest.approx(order[expected](values), abs=.06)
        page.run(f"{head}.querySelector('button').focus()")
        page.press(Keys.SPACE)


@in_browser
def test_order_of_words(page):
    """In the order of the values, not of the alphabet; k comes after tile."""
    page.run("document.querySelectorAll('#configs-table thead button')[3].click()")
    assert page.text("#configs-table th:nth-child(4)").startswith("unroll")
    levels = page.column("configs-table", "unroll")
    assert levels == sorted(levels, key=["auto", "tile", "k"].index)
    page.run("document.querySelectorAll('#configs-table thead button')[4].click()")
    rows = page.column("configs-table", "key_rows")
    assert rows == sorted(rows, key=["plan", "4"].index)


@in_browser
def test_axes_are_labelled_with_units(page):
    units = {"us": "µs", "x": "×"}
    columns = {column["key"]: column for column in page.value("[...columns.values()]")}
    for axis in page.value("plainAxes.map(({ key }) => key)"):
        page.choose("x", axis)
        title = page.scale("left-chart", "x")["title"]
        what = re.split("[;:]", columns[axis]["doc"])[0]
        assert title == columns[axis]["title"] + (f": {what}" if len(what) <= 48 else "") and len(title) < 70
        if axis == "seq":
            assert title == "seq: rows of Q and of Y"
            places = page.value("charts.get('left-chart').data.datasets.flatMap(({ data }) => data.map(({ x }) => x))")
            assert set(places) <= set(page.value("axes.get('seq').values")), "each point stands at its value"
    metrics = page.value("metrics.map(({ key }) => key)")
    assert {"us_median", "us_cold", "gflops", "fraction", "slowdown", "text_bytes", "error"} <= set(metrics)
    for metric in metrics:
        page.choose("left", metric)
        unit = columns[metric]["unit"]
        assert page.scale("left-chart", "y")["title"] == columns[metric]["title"] + (
            f" ({units.get(unit, unit)})" if unit else "")
    assert page.scale("size-chart", "x")["title"] == "code (bytes)"
    assert page.scale("size-chart", "y")["title"] == "speed (GFLOP/s)"
    assert page.scale("tuning-chart-0", "x")["title"] == "search (s)"
    assert page.scale("tuning-chart-0", "y")["title"] == "best time (µs)"


@in_browser
def test_scales(page):
    """Logarithmic where values differ by much, until told otherwise."""
    def types():
        return [page.scale(f"{side}-chart", axis)["type"] for side in ("left", "right") for axis in "xy"]
    assert types() == ["logarithmic", "logarithmic", "logarithmic", "linear"]
    page.click("#log-x"), page.click("#log-left"), page.click("#log-right")
    assert types() == ["linear", "linear", "linear", "logarithmic"]
    page.choose("x", "h")
    assert types()[0] == "linear" and page.value("document.querySelector('#log-x').disabled") is False
    page.choose("x", "unroll")
    assert types()[0] == "linear" and page.value("document.querySelector('#log-x').disabled") is True


@in_browser
def test_heat_map(page):
    cells = page.value("[...document.querySelectorAll('#heat-table tr')].map((row) => "
                       "[...row.cells].map((cell) => cell.innerText))")
    assert cells[0] == ["seq ↓ isa →", "avx2", "avx512", "neon"]
    for line in cells[1:]:
        for isa, text in zip(cells[0][1:], line[1:]):
            best = max(row["fraction"] for row in OK
                       if (row["config"]["seq"], row["config"]["isa"]) == (int(line[0]), isa))
            assert float(text) == pytest.approx(100 * best, abs=.06)
    page.choose("row", "d_model"), page.choose("column", "unroll"), page.choose("value", "us_median")
    page.choose("of", "median")
    assert page.text("#heat-table th") == "d_model ↓ unroll →"
    assert page.text("#heat-scale").startswith("time (µs), the median of the configs of a cell: from ")


@in_browser
def test_pareto_front(page):
    for cost in "text_bytes", "error":
        front, best = [], 0
        for row in sorted(OK, key=lambda row: (row[cost], -row["gflops"])):
            if row["gflops"] > best:
                front.append(row["name"])
                best = row["gflops"]
        page.choose("against", cost)
        assert page.value("[...document.querySelectorAll('#front button')].map((b) => b.textContent)") == front


@in_browser
@pytest.mark.parametrize("key, values", [("weight_dtype", ["dtype", "int4", "int8"])] + [
    (f"{key}dtype", ["f32", "bf16", "f16"]) for key in ("", "attend_", "cache_", "io_")])
def test_types_stand_against_their_error(page, tmp_path, key, values):
    """Speed against error comes first where types differ, and the front has the exact ones and the fast ones."""
    rows = [changed(OK[0], config={**OK[0]["config"], key: value}, name=f"k{us}", us_median=us, gflops=1 / us,
                    error=error) for value, us, error in zip(values, (9, 5, 7), (1e-7, 1e-3, 2e-3))]
    report(synthetic.write(tmp_path, rows))
    page.open(tmp_path / "report.html")
    assert page.value("size.against") == "error"
    assert page.value("[...document.querySelectorAll('#front button')].map((b) => b.textContent)") == ["k9", "k5"]


@in_browser
def test_distribution_of_errors(page):
    counts = "charts.get('errors-chart').data.datasets.flatMap(({ data }) => data)"
    assert page.value(f"{counts}.reduce((a, b) => a + b)") == len(OK)


@in_browser
def test_failures_on_the_page(page):
    messages = page.column("failures-table", "message")
    assert len(messages) == 400 - len(OK)
    for _, message in synthetic.FAILURES:
        visible = message.replace("\u2028", "").replace("\u2029", "")
        assert visible in [text.replace("\u2028", "").replace("\u2029", "") for text in messages]


@in_browser
def test_details_and_copy(page):
    from selenium.webdriver.common.keys import Keys
    page.driver.execute_cdp_cmd("Browser.grantPermissions", {
        "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]})
    fastest = min(OK, key=lambda row: row["us_median"])
    page.run("document.querySelector('#configs-table tbody button').focus()")
    page.press(Keys.ENTER)
    assert page.value("document.querySelector('dialog').open")
    assert page.text("#details-name") == fastest["name"]
    assert page.text("#details-command") == fastest["command"]
    details = page.text("#details-table")
    assert f"{fastest['us_median']:.2f} µs" in details and fastest["cpu"] in details
    page.picture("details")
    page.press(Keys.ENTER)  # the button has the focus
    wait = "return new Promise((done) => setTimeout(() => done(document.querySelector('#copy').textContent), 200))"
    assert page.run(wait) == "Copied"
    assert page.run("return navigator.clipboard.readText()") == fastest["command"]
    page.press(Keys.ESCAPE)
    assert not page.value("document.querySelector('dialog').open")
    assert page.value("document.activeElement.textContent") == shape(fastest)


@in_browser
def test_a_point_opens_its_details(page):
    page.run("""
        const chart = charts.get("left-chart");
        const n = chart.data.datasets.findIndex((set) => set.data[0]?.row);
        const { x, y } = chart.getDatasetMeta(n).data[0];
        const { left, top } = chart.canvas.getBoundingClientRect();
        for (const type of ["mousemove", "click"]) {
          chart.canvas.dispatchEvent(new MouseEvent(type, { clientX: left + x, clientY: top + y, bubbles: true }));
        }
        return new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));  // it waits for one""")
    assert page.value("document.querySelector('dialog').open")
    assert page.text("#details-name") in {row["name"] for row in OK}


@in_browser
def test_every_point_is_found(page):
    """Whatever the order of the rows is."""
    assert page.value("""[...charts.values()].every((chart) => chart.options.parsing || chart.data.datasets.every(
        ({ data }) => data.every(({ x }, i) => i === 0 || data[i - 1].x <= x)))""")


@in_browser
def test_order_of_the_keyboard(page):
    from selenium.webdriver.common.keys import Keys
    seen = []
    for _ in range(14):
        page.press(Keys.TAB)
        seen.append(page.value("(({ id, tagName, name }) => id || name || tagName)(document.activeElement)"))
    assert seen[:2] == ["main", "theme"] or seen[:2] == ["A", "theme"]
    assert seen[2:10] == ["A"] * 8 and seen[10] == "SUMMARY" and seen[11:13] == ["h", "h"]
    page.press(Keys.SPACE)
    assert page.text("#count").endswith(": d_model 128")
    assert page.value("getComputedStyle(document.activeElement.nextSibling).outlineStyle") == "solid"


@in_browser
def test_dark_and_light(page, sweep):
    def lightness():
        color = page.value("getComputedStyle(document.documentElement).backgroundColor")
        return sum(map(int, re.findall(r"\d+", color)[:3])) / 3
    light, ticks = lightness(), page.scale("left-chart", "x")["color"]
    assert light > 240
    page.click("#theme")
    assert lightness() < 40 and page.scale("left-chart", "x")["color"] != ticks
    page.open(sweep / "report.html", dark=True)
    assert lightness() < 40 and page.text("#theme") == "Light theme"
    page.picture("dark", whole=True)
    page.run("dispatchEvent(new Event('beforeprint'))")
    assert lightness() > 240 and page.scale("left-chart", "x")["color"] == ticks
    page.run("dispatchEvent(new Event('afterprint'))")
    assert lightness() < 40


@in_browser
@pytest.mark.parametrize("width", [320, 390, 768, 1024])
def test_narrow(page, sweep, width):
    page.open(sweep / "report.html", width=width, height=800)
    assert page.value("document.documentElement.scrollWidth") == width
    assert page.value("document.querySelector('#filters').open") is (width > 800)
    assert all(painted for _, painted in page.value(PAINTED))
    page.picture(f"{width}", whole=True)
    page.run("document.querySelector('#configs-table tbody button').click()")
    box = page.value("document.querySelector('dialog').getBoundingClientRect()")
    assert box["left"] >= 0 and box["right"] <= width
    assert page.value("document.documentElement.scrollWidth") == width


@in_browser
def test_print(page):
    result = page.driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": True})
    (ROOT / "build/report.pdf").write_bytes(base64.b64decode(result["data"]))
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    hidden = page.value("['aside', '#contents', '.controls', '#theme'].map((selector) => "
                        "getComputedStyle(document.querySelector(selector)).display)")
    assert hidden == ["none"] * 4
    page.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@in_browser
def test_comparison_on_the_page(page, sweep, tmp_path):
    there = [changed(row, us_median=row["us_median"] * (1 + (i % 9 - 3) / 50)) for i, row in enumerate(OK)]
    other = synthetic.write(tmp_path / "other", there[:300] + [changed(OK[0], name="new", config={"h": 16})])
    report(sweep, "--compare", other, "-o", tmp_path / "page.html")
    page.open(tmp_path / "page.html")
    text = page.text("#comparison-text")
    slower = int(re.match(r"(\d+) configs are slower there by more than 3 %", text)[1])
    assert slower == sum(i % 9 - 3 >= 2 for i in range(300))
    assert "100 are only here, 1 only there." in text
    assert page.value("document.querySelector('#only-there-list').textContent") == "new"
    counts = "charts.get('comparison-chart').data.datasets.flatMap(({ data }) => data)"
    assert page.value(f"{counts}.reduce((a, b) => a + b)") == 300
    page.filter("verdict", "slower")
    assert page.text("#count").startswith(f"{slower} of 400 configs")
    assert min(page.numbers("configs-table", "there / here")) > 1.03
    page.picture("comparison")


@in_browser
def test_ten_thousand_rows_on_the_page(page, tmp_path):
    report(synthetic.write(tmp_path, synthetic.results(10_000)))
    page.open(tmp_path / "report.html")
    assert page.text("#count") == "All 10,000 configs"
    assert "2,000 are drawn" in page.text("#speed")
    assert [page.value(f"median([{values}])") for values in ("7", "3, 1, 2", "10, 2, 1, 3")] == [7, 2, 2.5]
    page.run("""
        document.querySelector("#axes [value=avx2]").click();
        document.querySelector("#configs-table thead button").click();""")
    assert page.value("document.querySelectorAll('#configs-table tbody tr').length") == 25
    assert len(page.column("configs-table", "shape")) == page.value("shown.length") > 3000
    page.picture("10000")


@in_browser
@pytest.mark.parametrize("rows", [OK[:1], [row for row in ROWS if row["status"] != "ok"],
                                  [changed(OK[0], threads=n, fraction=None, text_bytes=None, error=None,
                                           gflops=None, command=None) for n in (1, 2)]])
def test_little_data(page, tmp_path, rows):
    """One config, none that was measured, no more than a time: what has no data is not there."""
    report(synthetic.write(tmp_path, rows))
    page.open(tmp_path / "report.html")
    assert page.text("#count") == f"All {len(rows)} configs"
    assert all(painted for _, painted in page.value(PAINTED))
