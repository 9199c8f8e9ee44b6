"""The examples of whole models for other systems: mingw-w64, and `zig cc` (ziglang of PyPI) where it is installed."""
import importlib.util
import shutil
import subprocess
import sys

import pytest

from tools import MHAGEN, ROOT, run
from whole_lib import torch, written

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 40, "vocab_size": 50,
         "max_position_embeddings": 40}
# the example: type and class of its model, keys, and its words behind the file; what it reads
EXAMPLES = {
    "embed": ("bert", "BertModel", ["seq=8"], [], "7 9 11\n9 11 30\n"),
    "generate": ("llama", "LlamaForCausalLM", ["seq=1,8", "seq_kv=32"], ["5", "-1"], "7 9 11\n")}
MINGW = "x86_64-w64-mingw32-gcc"
# compiler, ISA, and what runs the program where it is not this machine: None, nothing does
TARGETS = {
    "mingw": ([MINGW, "-static"], "scalar", ["wine"]),
    **{target: ([sys.executable, "-m", "ziglang", "cc", "-target", target, "-mcpu=baseline"], isa, runner)
       for target, isa, runner in [
           ("x86_64-linux-gnu.2.17", "x86", []), ("x86_64-linux-musl", "x86", []),
           ("x86_64-windows-gnu", "x86", ["wine"]),
           ("x86_64-macos", "x86", None), ("aarch64-linux-musl", "neon", ["qemu-aarch64"]),
           ("aarch64-macos", "neon", None), ("aarch64-windows-gnu", "neon", None),
           ("riscv64-linux-musl", "scalar", ["qemu-riscv64"])]}}


def made(example, isa, folder, compiler):
    """The program of an example, and its file of weights."""
    kind, cls, keys, *_ = EXAMPLES[example]
    if not (folder / "model").exists():
        written(kind, cls, folder / "model", **SIZES)
    out = folder / isa
    if not out.exists():
        run(MHAGEN, "model", folder / "model", "--whole", "--quiet", f"isa={isa}", *keys, "-o", out)
    program = folder / "program"
    run(*compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-I", out, ROOT / f"examples/{example}/{example}.c",
        *out.glob("*.c"), "-lm", "-lpthread", "-o", program)
    return program, out / "model.packed"


@torch.no_grad()
@pytest.mark.parametrize("example", EXAMPLES)
@pytest.mark.parametrize("target", TARGETS)
def test_examples_of_other_systems(example, target, tmp_path):
    """They compile without a warning, and print what a program of this system prints."""
    compiler, isa, runner = TARGETS[target]
    zig = "ziglang" in compiler
    if not (importlib.util.find_spec("ziglang") if zig else shutil.which(MINGW)):
        pytest.skip(f"{'ziglang' if zig else MINGW} is not installed")
    program, packed = made(example, isa, tmp_path, compiler)
    if runner is None or runner and not shutil.which(runner[0]):
        return  # nothing here runs it
    *_, words, text = EXAMPLES[example]

    def printed(*command):
        return subprocess.run([*command, *words], input=text, text=True, capture_output=True, check=True).stdout.split()
    assert printed(*runner, program, packed) == printed(*made(example, "scalar", tmp_path, ["cc"])) != []
