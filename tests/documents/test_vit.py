"""examples/vit end to end: a vision transformer gives the answers that it gives without mhagen."""
import re
import subprocess
from pathlib import Path

import pytest

from tools import installed, require_help

RUN = Path(__file__).resolve().parent.parent.parent / "examples/vit/run.sh"


def test_model(tmp_path):
    """The limits again, on the printed figures: the example's own verdict is not taken on trust."""
    if not installed("safetensors", "matplotlib"):
        pytest.skip("this Python lacks the packages of examples/vit/requirements.txt")
    torch = ["--torch"] if installed("torch", "transformers") else []
    result = subprocess.run([RUN, "--out", tmp_path, *torch], text=True, capture_output=True)
    output = result.stdout
    assert result.returncode == 0 and output.endswith("ok\n"), output + result.stderr
    right = re.search(r"^(\d+) of 360 digits are read right", output, re.M)
    assert right and int(right[1]) >= 340, output
    same = re.findall(r"^360 of 360 answers are those of .*max \|diff\| (\S+) of logits, (\S+) of att", output, re.M)
    assert len(same) == 1 + len(torch) and all(float(diff) <= 1e-5 for pair in same for diff in pair), output

    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "attention.svg").read_text("utf-8")
    assert all(f">reads {digit}<" in svg for digit in range(10)) and ">head 3<" in svg
    assert not re.search(r"<dc:date>|/home/|/tmp/", svg)


def test_help(tmp_path):
    require_help("vit", ["--isas=x"], tmp_path)
