"""The constants of the cost model are those that bench/refit.py fits to the tables of bench/costs. Nothing is timed."""
import math
import re
import sys

import pytest

from tools import ROOT, run

sys.path.append(str(ROOT / "bench"))
import refit  # noqa: E402

CONSTANTS = refit.constants(refit.CONSTANTS.read_text())
CORES = refit.of_cores(refit.CORES.read_text())
OWN = {name for own in CORES.values() for name in own}


@pytest.fixture(scope="module")
def rows():
    return refit.measured(refit.TABLES)


def outcome(rows, path, capsys, write=False):
    """Whether all constants of a file may have their values, and the names of those that may not."""
    good = refit.refit(rows, refit.read_kept(refit.TABLES), path, write)
    return good, re.findall(r"^(\w+) .*<- (?:outside|inside, but in kept.tsv)$", capsys.readouterr().out, re.M)


def outside(found):
    """A value beside an interval, as a text; or None where all numbers are inside."""
    low, high = found.allowed
    if low > -math.inf:
        return f"{low * 0.999:.5f}"
    return f"{high * 1.001:.5f}" if high < math.inf else None


def test_the_source_agrees_with_the_tables():
    """As `ninja refit` says it; also that no plan compares something else by now."""
    text = run(sys.executable, "-B", ROOT / "bench/refit.py")
    assert re.findall(r"^(\w+) +[\d.]+ ", text, re.M) == list(CONSTANTS)
    assert "no row" not in text and "has changed" not in text


@pytest.mark.parametrize("name", [name for name in CONSTANTS if name not in OWN])
def test_a_constant_that_is_moved_is_found(name, rows, tmp_path, capsys):
    """Out of its interval, and also one that stays outside of it: that may have no other value."""
    text = refit.CONSTANTS.read_text()
    value = outside(refit.fit([row for row in rows if row.constant == name], CONSTANTS[name]))
    if name in refit.SIZES:
        value = str(min(refit.SIZES[name]))
    moved = tmp_path / "costs.lua"
    moved.write_text(refit.with_values(text, {name: value}))
    assert value and refit.constants(moved.read_text())[name] == value
    assert outcome(rows, moved, capsys) == (False, [name])
    outcome(rows, moved, capsys, write=True)
    assert outcome(rows, moved, capsys) == (True, []) or name in refit.read_kept(refit.TABLES)


def test_values_of_a_core(rows, capsys):
    """They are compared with that core's rows: the value that all share would be outside."""
    assert CORES == {"sapphirerapids": {"copied_from": "2"}}
    shared = {"sapphirerapids": {"copied_from": CONSTANTS["copied_from"]}}
    assert not refit.refit(rows, {}, refit.CONSTANTS, False, shared)
    assert re.search(r"^copied_from +4 .*<- outside$", capsys.readouterr().out, re.M)


def test_the_page_has_the_fit(rows):
    page = (ROOT / "docs/bench.md").read_text()
    for name, text, _, own in refit.values(refit.CONSTANTS.read_text(), CORES, rows):
        assert refit.markdown(name, text, own) in page


def test_what_is_kept_has_reasons():
    lines = [line.split("\t") for line in (refit.TABLES / "kept.tsv").read_text().splitlines()[1:]]
    assert lines and all(CONSTANTS[name] == value and len(reason) > 20 for name, value, reason in lines)


def row(compared, ratio, name="copied_from"):
    return refit.Row(name, compared, ratio, 0.0, f"seq={compared}", "generic")


def test_fit_of_a_threshold():
    """The first alternative is faster up to 3, the other one from 5 on; at 4 they are alike."""
    own = [row(1, 0.8), row(3, 0.9), row(4, 1.001), row(5, 1.1), row(9, 1.2)]
    found = refit.fit(own, "4")
    assert (found.fitted, found.best, found.allowed) == (4, (3, 4), (3, 5)) and found.loss == found.least == 0
    found = refit.fit(own, "9")
    assert found.fitted == 4 and found.loss == pytest.approx((math.log(1.001) + math.log(1.1)) / 5)
    assert found.worst.compared == 5


def test_fit_of_a_size():
    own = [row(value, ratio, "shared_keys") for value, ratio in ((2, 1.1), (4, 1.0), (8, 1.004))]
    assert refit.fit(own, "2").fitted == 4 and refit.fit(own, "2").loss == pytest.approx(math.log(1.1))
    assert refit.fit(own, "4").worst.compared == 4
