"""bench/peers.py: what it measures, and how it names peers that it cannot measure. No test is about speed."""
import json
import math
import sys

import pytest

from tools import ROOT

pytest.importorskip("numpy")
sys.path.insert(0, str(ROOT / "bench"))
import peers  # noqa: E402

WRONG = """
import numpy as np
def version(): return "1"
def refuse(p): raise NotImplementedError("not so wide")
FORMS = {"zeros": lambda p: (lambda: None, lambda: np.zeros((p.n, p.d_model))), "none": refuse}
"""


@pytest.fixture
def compare(tmp_path, monkeypatch):
    """Runs the driver in a directory of its own; -> the rows."""
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(peers, "WORK", tmp_path / "work")
    monkeypatch.setattr(peers, "VENV", tmp_path / "no-venv")

    def run(*words):
        peers.main([*words, "--rounds", "1", "--ms", "2", "--out", str(tmp_path / "out")])
        return json.loads((tmp_path / "out.json").read_text()), (tmp_path / "out.txt").read_text()
    return run


def test_form_of_the_rows(compare):
    (row,), text = compare("--shapes", "micro", "--peers", "plain")
    assert set(row) == {"id", "config", "flops", "peak_gflops", "fraction", "contestants", "ahead"}
    assert row["id"] == "micro" and row["flops"] == 2 * 16 * 32 * 128 + 4 * 16 * 16 * 32
    ours, plain = row["contestants"]["ours"], row["contestants"]["plain"]
    for one in ours, plain:
        assert set(one) == {"version", "form", "error", "us", "us_of_rounds", "us_of_forms", "ratio"}
        assert 0 < one["error"] < 2e-6 and [one["us"]] == one["us_of_rounds"] and one["us"] > 0
    assert len(plain["us_of_forms"]) == 2 and not ours["us_of_forms"]
    assert ours["ratio"] == 1 and plain["ratio"] == plain["us"] / ours["us"]
    assert row["ahead"] == (plain["ratio"] > 1)
    assert 0 < row["fraction"] < 1.5
    assert "micro" in text and "plain:\n  gcc" in text


def test_not_measured(compare, monkeypatch):
    absent = {"module": [peers.python("no_such_module")], "source": [peers.c("no_such.c")],
              "library": [peers.c("plain.c", "-lno-such")], "wrong": [peers.python("wrong")],
              "some": [peers.c("no_such.c"), peers.c("plain.c")]}
    monkeypatch.setattr(peers, "PEERS", {**peers.PEERS, **absent})
    (row,), text = compare("--shape", "d_model=9,h=2,dk=3,n=5,causal=true", "--peers", ",".join(absent),
                           "key_rows=2")
    reasons = {name: row["contestants"][name].get("not_measured") for name in absent}
    assert reasons["module"] == "ModuleNotFoundError: No module named 'no_such_module'"
    assert "no_such.c: No such file" in reasons["source"] and "-lno-such" in reasons["library"]
    assert reasons["wrong"] == "zeros: wrong by 1.0e+00" and reasons["some"] is None
    assert f"wrong:\n  not measured: {reasons['wrong']}" in text and text.count("not measured") == 8


def test_random_shapes():
    shapes = peers.random_shapes(40, 1)
    assert shapes == peers.random_shapes(40, 1) != peers.random_shapes(40, 2)
    for i, shape in enumerate(shapes.values()):
        d, h, dk, n = (int(shape[key]) for key in ("d_model", "h", "dk", "seq"))
        assert 16 <= d <= 1024 and 1 <= h <= 16 and 4 <= dk <= 128 and 1 <= n <= 1024
        assert {d % 2, dk % 2, n % 2} == {i % 2}
        assert 8 * n * d * h * dk + 4 * n * n * h * dk <= 1e10


def test_lower_median():
    assert peers.lower_median([3, 1, 2, 4]) == 2 and peers.lower_median([math.inf, 1]) == 1
