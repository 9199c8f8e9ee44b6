"""What several test files share: where things are, and how to call them."""
import pathlib
import platform
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
MHAGEN = ROOT / "build/mhagen"
ISAS = ["scalar", "avx2", "avx512", "neon"]
WARNINGS = "-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror".split()

# The most recent Clang there is, besides the oldest that is supported.
NEW_CLANG = max((path.name for path in pathlib.Path("/usr/bin").glob("clang-[0-9][0-9]")),
                default="clang-19")
COMPILERS = ["gcc", "clang-14", NEW_CLANG]


def run(*command, **options):
    """Standard output and error of a command that must succeed."""
    result = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, **{"timeout": 600, **options})
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout[-4000:]}"
    return result.stdout


def need(program):
    if not shutil.which(program):
        pytest.skip(f"{program} is not installed")


def compiler_for(isa, compiler):
    """The command that compiles code of an ISA; skips the test if there is none."""
    command = [compiler]
    if isa.startswith("avx") and platform.machine() != "x86_64":
        pytest.skip(f"{isa} is not for {platform.machine()}")
    if isa == "neon" and platform.machine() != "aarch64":
        need("aarch64-linux-gnu-gcc")  # its headers are Clang's too
        command = {"gcc": ["aarch64-linux-gnu-gcc"],
                   NEW_CLANG: [NEW_CLANG, "--target=aarch64-linux-gnu"]}.get(compiler)
        if not command:
            pytest.skip("one Clang for another machine is enough")
    need(command[0])
    return command


def generate(out, config, isa, name="kernel"):
    """Generates a config; returns the path of its .c."""
    run(MHAGEN, "gen", *config.split(), f"isa={isa}", f"name={name}", "-o", out)
    return out / f"{name}.c"


# (id, config): the shapes that times and sizes are promised for
SUITE = [(name, f"d_model={d} h={h} dk={dk} seq={seq}{more}") for name, d, h, dk, seq, more in [
    ("micro", 32, 4, 8, 16, ""), ("small", 64, 4, 16, 32, ""), ("odd", 100, 5, 20, 37, ""),
    ("kwt1", 64, 1, 64, 98, ""), ("berttiny", 128, 2, 64, 128, ""), ("kwt3", 192, 3, 64, 98, ""),
    ("deit_ti", 192, 3, 64, 197, ""), ("minilm", 384, 12, 32, 128, ""),
    ("deit_s", 384, 6, 64, 197, ""), ("xformer_base", 512, 8, 64, 128, ""),
    ("bert_base_128", 768, 12, 64, 128, ""), ("bert_base_512", 768, 12, 64, 512, ""),
    ("gpt2_1024", 768, 12, 64, 1024, " causal=true"), ("whisper_tiny", 384, 6, 64, 1500, "")]]

# Every option, level and ISA-dependent corner in a dozen configs, small enough for many compilers.
COVER = [
    "h=1 d_model=1 dk=1 seq=1",
    "h=2 d_model=32 dk=16 seq=16",
    "h=2 d_model=20 dk=6 seq=19 causal=true",
    "h=2 d_model=20 dk=6 dv=9 seq=19 kv_len=true probs=true batch=3",
    "h=2 d_model=20 dk=6 dv=9 seq=19 attention=cross seq_kv=23 unroll=tile",
    "h=3 d_model=17 dk=5 seq=33 causal=true kv_len=true probs=true unroll=k",
    "h=2 d_model=3 dk=2 seq=3 unroll=full",
    "h=2 d_model=3 dk=2 dv=3 seq=3 attention=cross seq_kv=4 causal=true kv_len=true probs=true "
    "batch=3 unroll=full",
    "h=5 d_model=37 dk=13 dv=11 seq=17 attention=cross seq_kv=41 causal=true kv_len=true "
    "probs=true batch=2",
    "h=4 d_model=70 dk=8 seq=50 query_vectors=2 key_block=16 k_block=16 k_unroll=3 head_block=2",
    "h=1 d_model=9 dk=2 seq=130 causal=true key_rows=1 context_rows=1",
    "h=6 d_model=96 dk=16 seq=64 kv_len=true probs=true",
]


# ---- machine code ----

class Instruction:
    def __init__(self, address, text):
        self.address, self.text = address, text
        self.fma = bool(re.match(r"vfn?m(add|sub)\d*ps\b|fml[as]\s+v", text))
        # Jumps in Intel's syntax and in Arm's; calls are none.
        jump = re.match(r"(?:j\w+|b(?:\.\w+)?|cbn?z|tbn?z)\s+(?:.*,\s*)?([0-9a-f]+) <", text)
        self.target = int(jump[1], 16) if jump else None

    def uses_stack(self, frame):
        """Whether a vector register goes to or comes from the stack; `frame` names the registers
        that point there."""
        return bool(re.search(r"%[xyz]mm|\b[qdsv]\d", self.text)
                    and re.search(r"(?:\(|\[)(?:" + "|".join(frame) + r")\b", self.text))


class Function:
    def __init__(self, name):
        self.name, self.code = name, []

    @property
    def frame(self):
        texts = [i.text for i in self.code]
        frame = ["%rsp", "sp"]
        if any(re.match(r"mov\s+%rsp,%rbp", text) for text in texts):
            frame.append("%rbp")
        if any(re.match(r"mov\s+x29, sp", text) for text in texts):
            frame.append("x29")
        return frame

    def fma_loops(self, least=8):
        """The innermost loops with at least so many FMAs, each a list of instructions."""
        ranges = [(i.target, i.address) for i in self.code
                  if i.target is not None and self.code[0].address <= i.target <= i.address]
        inner = [a for a in ranges
                 if not any(b != a and a[0] <= b[0] and b[1] <= a[1] for b in ranges)]
        loops = [[i for i in self.code if first <= i.address <= last] for first, last in inner]
        return [loop for loop in loops if sum(i.fma for i in loop) >= least]

    def between_fmas(self):
        """All code from the first FMA to the last."""
        at = [n for n, i in enumerate(self.code) if i.fma]
        return self.code[at[0]:at[-1] + 1] if len(at) >= 8 else []


def disassemble(objdump, path):
    functions = []
    for line in run(objdump, "-d", "--no-show-raw-insn", path).splitlines():
        if match := re.match(r"[0-9a-f]+ <(.+)>:$", line):
            functions.append(Function(match[1]))
        elif match := re.match(r"\s*([0-9a-f]+):\s+(.+)$", line):
            functions[-1].code.append(Instruction(int(match[1], 16), match[2]))
    return [function for function in functions if function.code]
