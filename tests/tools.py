"""Helpers of several test files: where things are, and how to call them."""
import collections
import fcntl
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import platform
import random
import re
import resource
import shutil
import subprocess
import time
import unittest
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
MHAGEN = pathlib.Path(os.environ.get("MHAGEN", ROOT / "build/mhagen"))  # or another, to be tested
MANY = MHAGEN.with_name("mhagen-many")  # the kernels of many configs by one process
WARNINGS = "-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror".split()

# What checks a kernel, and what it is compared with.
CHECKER = sorted((ROOT / "tests/check").glob("checker*.c"))
REFERENCE = [ROOT / f"tests/check/{name}.c" for name in ("reference", "composition", "bounds", "rounded")]

# What another ISA's CPU runs in its place, compiled against a header with the missing instructions in plain C.
EMULATED = {"amx": ("avx512_bf16", ROOT / "tests/ops/tiles.h"),
            "avx512_fp16": ("avx512_bf16", ROOT / "tests/ops/halves.h")}

# The oldest Clang that is supported, from 14 on, and the most recent there is.
CLANGS = sorted(path.name for path in pathlib.Path("/usr/bin").glob("clang-[0-9][0-9]") if path.name >= "clang-14")
CLANGS = list(dict.fromkeys([*CLANGS[:1], *CLANGS[-1:]])) or ["clang-14"]
COMPILERS = ["gcc", *CLANGS]
RECENT_COMPILERS = ["gcc", CLANGS[-1]]
CXX_COMPILERS = ["g++", *(name.replace("clang", "clang++") for name in CLANGS)]

# Draws what in_turn takes; pytest's workers inherit it. "all" takes everything.
SEED = os.environ.setdefault("MHAGEN_SEED", str(int(time.time())))


def seed_of(*what):
    """A number by which a program of the tests draws: another one for other words, the same again by MHAGEN_SEED and in
    any directory."""
    return zlib.crc32(repr((SEED, *(str(word).replace(f"{ROOT}/", "") for word in what))).encode()) >> 1


def in_turn(choices, *what, count=1):
    """Those of the choices that this run tests `what` with: so many, drawn by the seed. Another run takes
    others, so that several runs cover more than one that is as long as all of them."""
    choices = list(choices)
    return random.Random(f"{SEED} {what}").sample(choices, min(count, len(choices))) if SEED != "all" else choices


def once(path, make):
    """A directory that make(path) fills, by one process of all that want it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{path}.lock", "a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        if not lock.read():
            shutil.rmtree(path, ignore_errors=True)  # what a process began that was stopped
            path.mkdir()
            make(path)
            lock.write("made")
    return path


def shared(factory, name, make):
    """The same for all workers of pytest; factory: tmp_path_factory."""
    base = factory.getbasetemp()
    return once((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name, make)


def run(*command, **options):
    """Standard output and error of a command that must succeed."""
    result = subprocess.run([str(word) for word in command], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, **{"timeout": 600, **options})
    assert result.returncode == 0, f"{' '.join(map(str, command))}\n{result.stdout[-4000:]}"
    return result.stdout


def isas(program=MHAGEN):
    """{ name: row } of the ISAs of a program; none where it is not built, as tests are collected without it too."""
    return {row["name"]: row for row in json.loads(run(program, "isas", "--json"))["isas"]} if program.exists() else {}


FACTS = isas()
ISAS = list(FACTS)


def fact(isa, name):
    """None where the row has none, as those of ISAs of other programs, and of names for several ISAs."""
    return FACTS.get(isa, {}).get(name)


def cpu_time():
    """What the commands so far took, however busy the machine was."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def need(program):
    """Skips the test if a program is missing. pytest knows this exception; tests/fuzz.py has no pytest."""
    if not shutil.which(program):
        raise unittest.SkipTest(f"{program} is not installed")


def of_this_machine(isa):
    """Whether code of an ISA is for this kind of machine."""
    return fact(isa, "machine") in (None, platform.machine())


@functools.cache
def cpu_flags():
    """What Linux says that this CPU has."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)", pathlib.Path("/proc/cpuinfo").read_text(), re.M)
    return set(found[1].split()) if found else set()


def native(isa):
    """Whether this CPU runs code of an ISA."""
    return of_this_machine(isa) and set((fact(isa, "cpuinfo") or "").split()) <= cpu_flags()


def need_sums_of_bytes():
    """Skips what ONNX Runtime multiplies in bytes on an x86 CPU without VNNI, where its sums of pairs saturate."""
    if "avx2" in cpu_flags() and not {"avx512_vnni", "avx_vnni"} & cpu_flags():
        raise unittest.SkipTest("ONNX Runtime's sums of bytes saturate on a CPU without VNNI")


def emulation(isa):
    """Flags with which code of an ISA runs here, where that needs instructions that this CPU lacks; else none."""
    if native(isa) or isa not in EMULATED or not native(EMULATED[isa][0]):
        return []
    return ["-include", EMULATED[isa][1], f"-I{ROOT}/runtime"]


def runs(isa):
    """Whether code of an ISA runs on this CPU, compiled with its emulation."""
    return native(isa) or bool(emulation(isa))


def cross_prefix(isa):
    """What the names of compilers and binutils for an ISA begin with; empty for this machine's."""
    if of_this_machine(isa):
        return ""
    if not fact(isa, "compiler"):
        raise unittest.SkipTest(f"{isa} is not for {platform.machine()}")
    return fact(isa, "compiler").removesuffix("gcc")


def compiler_for(isa, compiler):
    """The command that compiles code of an ISA; skips the test if there is none."""
    command, prefix = [compiler], cross_prefix(isa)
    if prefix:
        need(f"{prefix}gcc")  # its headers and libraries are Clang's too
        command = [f"{prefix}gcc"] if compiler == "gcc" else [compiler, f"--target={prefix[:-1]}"]
    need(command[0])
    return command


def runner_for(isa):
    """What stands before a program of an ISA's code: an emulator, for another machine's."""
    if not cross_prefix(isa):
        if not runs(isa):
            raise unittest.SkipTest(f"this CPU has no {isa}")
        return []
    emulator = fact(isa, "emulator")
    need(emulator[0])
    return emulator


def toolchains(chosen=ISAS, compilers=COMPILERS):
    """The head lines of a report: the compilers and emulators with their versions, and what is missing."""
    used, missing = {}, {}
    for isa, compiler in itertools.product(chosen, compilers):
        try:
            for command in compiler_for(isa, compiler), runner_for(isa):
                used.update(dict.fromkeys(command[:1]))
        except unittest.SkipTest as reason:
            missing[str(reason)] = None
    versions = [f"{program} {re.search(r'[0-9]+[.][0-9.]+|$', run(program, '--version'))[0]}"
                for program in used]
    return ["toolchains: " + (", ".join(versions) or "none"), *(f"skipped: {reason}" for reason in missing)]


@functools.cache
def explain(*words):
    """What `explain` prints of a kernel with all reasons, in one line."""
    return " ".join(run(MHAGEN, "explain", *words, "--why").split())


def schema(program=MHAGEN):
    """The rows of the options."""
    return json.loads(run(program, "schema", "--json"))["options"]


def generate(out, config, isa, name="kernel"):
    """Generates a config; returns the path of its .c."""
    run(MHAGEN, "gen", *config.split(), f"isa={isa}", f"name={name}", "-o", out)
    return out / f"{name}.c"


def quick_cc(flags=""):
    """$CC for programs that many tests make; conftest.py has the directory of its objects."""
    return f"sh {ROOT}/tests/cc.sh {flags}"


def check(*config, program=MHAGEN, flags=""):
    """What `check` says of a config that must pass. Only numbers count: other levels are fuzz.py's."""
    return run(program, "check", *config, env={**os.environ, "CC": quick_cc(f"-O0 {flags}")})


def write_meaning(toy, folder):
    """Writes TOY.h, which tells the reference what a toy of tests/toys means."""
    source = (ROOT / f"tests/toys/{toy}.lua").read_text()
    (folder / f"{toy}.h").write_text(re.search(r"meaning = \[\[\n(.*)\]\]", source, re.S)[1])


def generate_many(out, configs):
    """Generates many kernels by one process. configs: { name: config }, each with its ISA."""
    listed = out / "configs"
    listed.write_text("".join(f"name={name} {config}\n" for name, config in configs.items()))
    refused = run(MANY, out, listed)
    assert not refused, refused
    listed.unlink()


def stack(source):
    """Bytes of the frames of the chain of calls that takes the most, of a kernel that was compiled with -fstack-usage;
    and those that its header promises to stay below. Calls are taken from the text, for compilers move them about."""
    text, frames = source.read_text(), collections.Counter()
    short = {long: name for name, long in re.findall(r"^#define (\w+) (\w+_\1)$", text, re.M)}
    for line in source.with_suffix(".su").read_text().splitlines():
        place, size, _ = line.split("\t")
        name = place.split(":")[-1].split(".")[0]  # gcc makes parts and copies of functions
        frames[short.get(name, name)] += int(size)
    bodies = dict(re.findall(r"^\w[^;#{}=]*?(\w+)\([^;{}()]*\) \{\n(.*?)^\}", text, re.M | re.S))
    others = sum(size for name, size in frames.items() if name not in bodies)  # of an ISA, each on one line
    assert len(bodies) > 5

    @functools.cache
    def chain(name):
        called = {word for word in re.findall(r"\b(\w+)\(", bodies[name]) if word in bodies}
        return frames[name] + max(map(chain, called), default=0)
    said = re.search(r"the stack stays below (\d+) KB", source.with_suffix(".h").read_text())
    return max(map(chain, bodies)) + others, 1024 * int(said[1])


def symbols(names):
    """Those of the runtime's functions: one of them has the version in its symbol."""
    version = re.search(r"define MHAGEN_VERSION (\d+)", (ROOT / "runtime/mhagen.h").read_text())[1]
    return {f"{name}_{version}" if name == "mhagen_check_bits" else name for name in names}


def hidden(compiled, name, isa):
    """What the object of a kernel must not have: variables, foreign functions, names that are not its own."""
    nm = f"{cross_prefix(isa)}nm"
    need(nm)
    allowed = symbols(re.findall(r"\b(mhagen_\w+)\(", (ROOT / "runtime/mhagen.h").read_text()))
    allowed |= {"memset", "memcpy", "_GLOBAL_OFFSET_TABLE_"}
    # By what a distribution's compiler has on by default, as Ubuntu's: -fstack-protector-strong, _FORTIFY_SOURCE.
    allowed |= {"__stack_chk_fail", "__stack_chk_guard", "__memset_chk", "__memcpy_chk"}
    own, found, rows = {f"{name}_{part}" for part in ("pack", "pack_tables", "packed_check", "run", "fill", "supported",
                                               "self_test", "kernel")}, [], 0
    for line in run(nm, "-f", "sysv", compiled).splitlines():
        columns = [column.strip() for column in line.split("|")]
        if len(columns) != 7:
            continue
        symbol, kind, section, rows = columns[0], columns[2], columns[6], rows + 1
        if section == "*UND*":
            good = symbol in allowed
        else:  # with addresses in it a constant is relocated before it is read-only
            variable = re.match(r"\*COM\*|\.t?bss|\.t?data(?!\.rel\.ro)", section)
            good = not variable and (symbol in own or not kind.isupper())
        if not good:
            found.append(f"{symbol} ({section})")
    return found if rows else ["no symbols"]


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
    "h=4 d_model=70 dk=8 seq=50 query_vectors=2 key_block=16 k_block=16 head_block=2",
    "h=1 d_model=9 dk=2 seq=130 causal=true key_rows=1 context_rows=1",
    "h=6 h_kv=2 d_model=23 dk=5 dv=7 seq=29 causal=true kv_len=true probs=true batch=2",
    "h=2 d_model=20 dk=6 dv=9 seq=19 attention=cross seq_kv=23 k_width=31 v_width=13 y_width=27 batch=2",
    "h=6 d_model=96 dk=16 seq=64 kv_len=true probs=true",
    "h=2 d_model=20 dk=6 seq=70 window_left=5 window_right=0 kv_len=true probs=true",
    "h=6 h_kv=2 dk=5 dv=7 seq=19 seq_kv=23 causal=true kv_len=true probs=true project=none batch=2",
    "h=2 d_model=20 dk=6 seq=19 attention=cross seq_kv=40 project=o causal=true",
    "h=3 d_model=17 dk=20 dv=5 seq=2 attention=cross seq_kv=33 project=qv",
    "h=6 h_kv=2 dk=5 dv=7 seq=19 seq_kv=23 causal=true kv_len=true probs=true project=none layout=bhsd batch=2",
    "h=3 d_model=20 dk=6 dv=9 seq=37 project=qkv layout=bhsd q_len=true batch=2",
    "h=2 d_model=9 dk=5 seq=29 attention=cross seq_kv=13 causal=true window_left=3 causal_align=bottom_right",
    "h=6 d_model=24 dk=8 seq=150 causal=true alibi=true",
    "h=1 d_model=4 dk=6 seq=106 causal=true alibi=true kv_start=true",  # one block of keys, then loops over blocks
    "h=2 d_model=20 dk=6 seq=37 causal=true kv_start=true kv_len=true probs=true batch=3",
    "h=4 h_kv=2 d_model=20 dk=6 seq=9 seq_kv=70 attention=cross window_left=30 causal_align=bottom_right kv_start=true",
    "h=2 d_model=20 dk=6 dv=7 y_width=21 seq=49 causal=true kv_start=true q_len=true probs=true batch=2",
    "h=2 d_model=20 dk=6 seq=21 seq_kv=30 attention=cross q_len=true kv_len=true unroll=tile out_rows=4",
    "h=4 h_kv=2 d_model=20 dk=10 seq=70 rope=half rope_at=run probs=true batch=2",
    "h=2 d_model=20 dk=20 seq=37 rope=interleaved rope_at=run rope_dims=14 causal=true q_len=true kv_len=true batch=2",
    "h=4 h_kv=2 d_model=20 dk=6 dv=9 seq=37 seq_kv=90 attention=cross rope=interleaved rope_at=run qk_norm=rms "
    "kv_len=true",
    "h=6 h_kv=2 d_model=20 dk=18 dv=9 seq=2 seq_kv=90 cache=append rope=interleaved rope_at=run q_len=true batch=2",
    "h=4 h_kv=2 d_model=20 dk=6 seq=9 seq_kv=70 attention=cross cache=fixed rope=interleaved rope_at=run dtype=bf16",
    "h=4 h_kv=2 dk=6 seq=5 seq_kv=37 project=none layout=bhsd cache=append rope=half rope_at=run cache_dtype=int8",
    "h=2 d_model=20 dk=8 seq=130 rope=half rope_at=run dtype=int8 row_keys=range",
    "h=2 dk=8 seq=37 seq_kv=41 project=none rope=half rope_at=run io_dtype=bf16 dtype=bf16 kv_start=true batch=2",
    "h=2 d_model=3 dk=2 seq=5 rope=interleaved rope_at=run unroll=full",
    "h=2 d_model=20 dk=6 seq=70 row_keys=range probs=true batch=2",
    "h=4 h_kv=2 d_model=20 dk=6 dv=9 seq=37 seq_kv=90 attention=cross row_keys=range kv_len=true key_block=16",
    "h=2 d_model=20 dk=6 seq=37 row_keys=range causal=true q_len=true alibi=true sink=true scores=masked batch=2",
    "h=6 h_kv=2 d_model=20 dk=18 dv=9 seq=2 seq_kv=90 cache=append row_keys=range q_len=true mask=bool probs=true",
    "h=2 d_model=20 dk=6 seq=130 row_keys=range window_left=30 dtype=bf16",
    "h=2 d_model=3 dk=2 seq=5 row_keys=range q_len=true unroll=full",
    "h=4 h_kv=2 d_model=20 dk=6 seq=70 mask=bool mask_dims=bqk batch=2 probs=true",
    "h=3 d_model=20 dk=6 seq=37 mask=add mask_dims=hqk causal=true kv_len=true",
    "h=2 d_model=9 dk=5 seq=19 attention=cross seq_kv=23 mask=add mask_dims=bk batch=2 unroll=tile",
    "h=8 d_model=3 dk=19 seq=2 attention=cross seq_kv=85 causal=true causal_align=bottom_right alibi=true mask=bool "
    "mask_dims=bhqk batch=4",  # lanes that are done again, beside NaN in others
    "h=4 h_kv=2 d_model=20 dk=5 seq=40 causal=true sink=true probs=true",
    "h=3 d_model=12 dk=6 seq=37 softcap=5 alibi=true sink=true kv_len=true",
    "h=2 d_model=13 dk=7 seq=9 softcap=0.7 attention=cross seq_kv=50 window_left=9 causal_align=bottom_right",
    "h=4 h_kv=2 d_model=20 dk=6 seq=37 causal=true kv_len=true q_len=true scores=scaled batch=2",
    "h=2 d_model=13 dk=7 seq=9 seq_kv=50 attention=cross scores=capped softcap=3 kv_start=true q_len=true unroll=tile",
    "h=3 d_model=20 dk=6 seq=37 scores=masked mask=add mask_dims=hqk causal=true alibi=true probs=true",
    "h=4 h_kv=2 d_model=20 dk=6 seq=37 qk_norm=rms rope=half kv_len=true probs=true batch=2",
    "h=4 h_kv=2 d_model=20 dk=5 seq=19 qk_norm=layer norm_span=each head_block=2 causal=true unroll=tile",
    "h=3 d_model=13 dk=9 seq=9 seq_kv=41 attention=cross project=k qk_norm=l2 norm_span=all norm_eps=0.5",
    "h=2 d_model=20 dk=6 seq=19 scale=1 causal=true",
    "h=2 d_model=7 dk=9 dv=4 seq=5 seq_kv=12 attention=cross scale=1e-09 batch=2",  # merged weights
    "h=4 h_kv=2 d_model=20 dk=6 dv=9 seq=5 seq_kv=37 cache=append causal=true q_len=true rope=half probs=true batch=2",
    "h=2 d_model=3 dk=2 seq=2 seq_kv=5 cache=append window_left=2 unroll=full",
    "h=2 d_model=20 dk=6 dv=3 seq=1 seq_kv=23 attention=cross cache=fixed kv_len=true batch=2",
    "h=2 d_model=3 dk=2 seq=2 seq_kv=5 cache=append cache_layout=bhsd causal=true unroll=full",
    "h=4 h_kv=2 dk=6 dv=9 seq=5 seq_kv=37 project=none cache=append cache_layout=bhsd rope=half",
    "h=4 h_kv=2 d_model=20 dk=6 seq=5 seq_kv=19 attention=cross cache=fixed qk_norm=layer norm_span=all",
    "h=2 d_model=20 dk=6 dv=3 seq=3 seq_kv=23 attention=cross cache=fixed cache_layout=bhsd kv_len=true batch=2",
    "h=6 h_kv=2 d_model=20 dk=18 dv=9 seq=1 seq_kv=90 cache=append rope=half q_len=true alibi=true sink=true batch=2",
    "h=4 h_kv=2 dk=6 dv=16 seq=2 seq_kv=39 project=none cache=append cache_layout=bhsd causal=true",
    "h=4 h_kv=2 dk=16 dv=32 seq=1 seq_kv=39 project=none kv_len=true mask=bool probs=true batch=2",
    "h=6 h_kv=2 dk=32 seq=2 seq_kv=70 project=none layout=bhsd rope=half sink=true window_left=21",
    "h=4 h_kv=2 d_model=20 dk=6 seq=37 causal=true kv_len=true probs=true batch=2 dtype=bf16",
    "h=2 d_model=20 dk=16 dv=9 seq=3 seq_kv=33 attention=cross mask=add dtype=f16 unroll=tile",
    "h=2 d_model=9 dk=10 seq=19 dtype=bf16 attend_dtype=f16",  # merged weights
    "h=1 d_model=128 dk=2 seq=2 attention=cross project=v dtype=f16 sum_dtype=f16 unroll=full",
    "h=8 d_model=150 dk=6 dv=18 seq=9 dtype=f16 sum_dtype=f16 causal=true q_len=true",
    "h=4 h_kv=2 d_model=17 dk=6 dv=4 seq=21 seq_kv=35 attention=cross causal=true dtype=bf16",
    "h=2 d_model=20 dk=8 seq=3 seq_kv=70 attention=cross sink=true alibi=true attend_dtype=bf16 batch=2",
    "h=2 d_model=20 dk=6 seq=19 dtype=bf16 probs=true",
    "h=1 d_model=20 dk=6 seq=70 window_left=5 window_right=35 dtype=bf16",  # a maximum of all tiles, tiles behind it
    "h=1 d_model=2 dk=1 seq=37 causal=true unroll=full query_vectors=1",  # groups with spans of their own
    "h=1 d_model=2 dk=1 seq=37 seq_kv=2 attention=cross causal=true causal_align=bottom_right unroll=full "
    "query_vectors=1",  # groups that see no key
    "h=2 d_model=3 dk=2 seq=3 attend_dtype=bf16 alibi=true scores=masked unroll=full",
    "h=2 d_model=5 dk=3 seq=1 seq_kv=23 cache=append attend_dtype=f16",
    "h=1 d_model=16 dk=16 seq=40 attend_dtype=bf16",
    "h=4 h_kv=2 d_model=20 dk=6 dv=3 seq=9 seq_kv=21 attention=cross project=qo rope=half kv_start=true kv_len=true "
    "dtype=bf16 batch=2",
    "h=2 d_model=12 dk=6 seq=9 seq_kv=24 cache=append cache_layout=bhsd rope=half dtype=bf16",
    "h=2 d_model=20 dk=6 seq=19 dtype=int8 probs=true",
    "h=1 d_model=1 dk=2 seq=1 mask=bool dtype=int8",  # one key, but pairs of keys
    "h=4 h_kv=2 d_model=17 dk=5 dv=3 seq=21 seq_kv=35 attention=cross project=kvo dtype=int8 kv_len=true batch=2",
    "h=2 d_model=70 dk=8 seq=3 seq_kv=9 attention=cross cache=fixed qk_norm=rms rope=half rope_tables=apart dtype=int8",
    "h=1 d_model=5 dk=3 seq=3 dtype=int8 unroll=full",
    "h=1 d_model=5 dk=2 seq=3 dtype=int8 softcap=1 scores=capped",
    "h=4 h_kv=2 d_model=20 dk=6 dv=3 seq=19 batch=2 causal=true q_len=true io_dtype=bf16 dtype=bf16",
    "h=4 h_kv=2 dk=6 dv=3 seq=3 seq_kv=21 project=none layout=bhsd batch=2 io_dtype=f16",
    "h=2 d_model=7 dk=5 dv=3 seq=2 seq_kv=23 attention=cross cache=fixed io_dtype=bf16 unroll=full",
    "h=2 d_model=24 dk=16 seq=34 io_dtype=bf16",
    "h=1 d_model=5 dk=37 seq=5 k_block=16 fold=off unroll=full",
    "h=2 d_model=9 dk=10 seq=19 k_block=16 io_dtype=f16",  # merged weights
    "h=2 d_model=6 dk=32 seq=6 k_width=7 attention=cross io_dtype=bf16",  # and keys that are inputs
    "h=4 h_kv=2 d_model=20 dk=6 dv=9 seq=5 seq_kv=37 cache=append cache_dtype=int8 causal=true q_len=true rope=half",
    "h=4 h_kv=2 dk=6 dv=9 seq=5 seq_kv=37 project=none cache=append cache_layout=bhsd cache_dtype=int8 batch=2",
    "h=6 h_kv=2 d_model=20 dk=18 dv=9 seq=1 seq_kv=90 cache=append cache_dtype=bf16 kv_start=true sink=true q_len=true "
    "batch=2",
    "h=4 h_kv=2 d_model=20 dk=6 dv=3 seq=2 seq_kv=85 cache=append mask=add mask_dims=hqk sink=true probs=true",
    "h=4 h_kv=2 d_model=20 dk=6 dv=16 seq=2 seq_kv=85 cache=append dtype=bf16 kv_start=true batch=2",
    "h=4 h_kv=2 d_model=20 dk=6 dv=9 seq=1 seq_kv=33 cache=append cache_dtype=bf16 mask=bool mask_dims=bk q_len=true "
    "probs=true batch=2",
    "h=6 h_kv=2 d_model=20 dk=18 dv=9 seq=1 seq_kv=90 cache=append dtype=f16 rope=half alibi=true",
    "h=2 d_model=20 dk=6 dv=3 seq=1 seq_kv=23 attention=cross cache=fixed cache_dtype=f16 qk_norm=rms norm_span=all",
    "h=2 d_model=3 dk=2 seq=2 seq_kv=5 cache=append cache_dtype=int8 unroll=full",
    "h=4 h_kv=2 dk=6 seq=9 seq_kv=21 project=none cache=append cache_dtype=int8 rope=half batch=2",  # turned, and kept
    "h=2 dk=3 dv=5 d_model=6 seq=2 seq_kv=9 attention=cross project=q cache=fixed dtype=bf16 io_dtype=f16",
    "h=1 d_model=1 dk=32 dv=16 seq=1 mask=bool dtype=bf16",  # biases as far as tiles reach
    "h=4 h_kv=2 d_model=20 dk=18 dv=20 seq=19 seq_kv=37 attention=cross kv_start=true dtype=bf16 batch=2",  # and zeros
    "h=2 d_model=40 dk=10 seq=37 seq_kv=9 attention=cross k_block=16 q_len=true batch=2 residual=true",
    "h=2 d_model=20 dk=16 seq=37 causal=true dtype=bf16 io_dtype=bf16 residual=true",
    "h=4 h_kv=2 d_model=37 dk=6 dv=9 seq=21 q_len=true batch=2 norm=post residual=true",
    "h=2 d_model=20 dk=6 seq=7 attention=cross seq_kv=7 dtype=int8 norm=pre io_dtype=f16",  # rows of two types
    "h=2 d_model=20 dk=6 seq=19 attention=cross seq_kv=23 norm=pre norm_kind=rms io_dtype=bf16 batch=2",
    "h=2 d_model=33 dk=6 seq=5 seq_kv=19 cache=append rope=half norm=pre layer_eps=0.5 dtype=int8",
    "h=2 d_model=3 dk=2 seq=3 q_len=true norm=post norm_kind=rms unroll=full",
    "h=4 h_kv=2 d_model=37 dk=6 dv=9 seq=21 q_len=true batch=2 norm=post residual=true ffn=50",
    "h=2 d_model=20 dk=6 seq=19 attention=cross seq_kv=23 norm=pre norm_kind=rms residual=true batch=2 ffn=33 "
    "ffn_act=silu ffn_gate=true",
    "h=2 d_model=24 dk=8 seq=9 norm=pre residual=true io_dtype=bf16 ffn=40 ffn_act=gelu_tanh",
    "h=2 d_model=17 dk=5 y_width=9 seq=13 ffn=7 ffn_act=quick_gelu",
    "h=2 d_model=20 dk=6 seq=5 seq_kv=19 cache=append q_len=true ffn=70 ffn_act=relu2",
    "h=1 d_model=3 dk=2 seq=3 norm=post norm_kind=rms ffn=5 ffn_act=relu ffn_gate=true unroll=full",
    "h=2 d_model=33 dk=16 seq=34 residual=true ffn=1 ffn_act=gelu_tanh ffn_gate=true",
    "h=2 d_model=20 dk=6 seq=19 norm=sandwich norm_kind=rms residual=true io_dtype=bf16 batch=2 ffn=33 ffn_gate=true",
    "h=2 d_model=33 dk=5 y_width=9 seq=5 seq_kv=19 attention=cross norm=sandwich q_len=true",
    "h=2 d_model=20 dk=6 y_width=9 seq=19 norm=ffn q_len=true kv_len=true batch=2 ffn=33 ffn_gate=true",
    "h=2 d_model=20 dk=12 seq=5 seq_kv=19 attention=cross cache=append project=none qk_norm=layer dtype=bf16",
    "h=2 d_model=33 dk=5 seq=19 norm=pre residual=true causal=true q_len=true batch=2 ffn=40 parallel=true",
    "h=2 d_model=32 dk=8 seq=5 seq_kv=19 cache=append norm=sandwich norm_kind=rms ffn=64 ffn_gate=true parallel=true",
    "h=2 d_model=20 dk=6 seq=19 norm=post residual=true ffn=40 ffn_dtype=bf16 batch=2",
    "h=2 d_model=24 dk=8 seq=9 dtype=bf16 norm=pre residual=true ffn=33 ffn_act=silu ffn_gate=true ffn_dtype=int8",
    "h=2 d_model=20 dk=6 seq=19 dtype=int8 norm=pre residual=true ffn=40 parallel=true ffn_dtype=bf16 q_len=true",
    "h=2 d_model=40 dk=6 seq=9 dtype=bf16 weight_dtype=int8 norm=pre ffn=24 parallel=true ffn_dtype=f16",
    "h=2 d_model=20 dk=6 seq=3 dtype=f16 weight_dtype=int4 ffn=48 ffn_act=relu ffn_dtype=int8",
    "h=2 d_model=12 dk=6 seq=5 io_dtype=bf16 ffn=30 ffn_dtype=int8 unroll=full",
    "h=2 d_model=40 dk=6 seq=9 weight_dtype=int8 group=16 norm=pre residual=true ffn=21 ffn_gate=true",
    "h=4 h_kv=2 d_model=70 dk=6 dv=5 seq=19 dtype=int8 weight_dtype=int8 group=24 q_len=true batch=2",
    "h=2 d_model=33 dk=6 seq=3 seq_kv=21 cache=append dtype=int8 weight_dtype=int8 group=8 ffn=40",
    "h=2 d_model=20 dk=6 seq=19 dtype=bf16 weight_dtype=int8 group=8 ffn=24 ffn_dtype=int8",
    "attention=none d_model=75 y_width=29 seq=21 dtype=int8 weight_dtype=int8 group=32 unroll=full",
    "attention=none d_model=37 y_width=29 seq=21 dtype=int8 ffn=20 ffn_dtype=f32",
    "attention=none d_model=37 y_width=29 seq=21 q_len=true batch=2",
    "attention=none d_model=75 y_width=33 seq=50 out_act=gelu k_block=16",
    "attention=none d_model=40 seq=37 out_act=silu residual=true norm=pre io_dtype=bf16 dtype=bf16",
    "attention=none d_model=64 y_width=48 seq=33 dtype=int8 norm=post out_act=gelu_tanh",
    "attention=none d_model=33 seq=19 norm=sandwich norm_kind=rms residual=true ffn=40 ffn_gate=true parallel=true",
    "attention=none d_model=48 y_width=70 seq=5 weight_dtype=int4 ffn=20 ffn_act=quick_gelu",
    "attention=none d_model=3 y_width=5 seq=3 out_act=relu unroll=full",
    "attention=none d_model=70 y_width=1 seq=1 dtype=f16 weight_dtype=int8 out_act=relu2",
    "attention=none d_model=40 y_width=21 seq=1 out_act=tanh",
]


# ---- machine code ----

class Instruction:
    def __init__(self, address, text):
        self.address, self.text = address, text
        self.fma = bool(re.match(r"vfn?m(add|sub)\d*ps\b|vdpbf16ps\b|vpdpbusd\b|"
                             r"(fml[as]|bfdot|sdot|bfmmla|smmla)\s+v|"
                             r"fmul\s.*\.h\[\d\]$", text))  # the last one starts a sum of half precision
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


def installed(*packages):
    """Whether this Python has all of these."""
    return all(importlib.util.find_spec(name) for name in packages)


def require_help(example, refused, folder):
    """An example's help is there at once: nothing is installed for it, nor for the options that are refused."""
    environment = {**os.environ, "VENV": str(folder / "venv")}
    script = f"examples/{example}/run.sh"
    for word, status in [("--help", 0), *[(word, 2) for word in refused]]:
        result = subprocess.run([ROOT / script, word], text=True, capture_output=True, env=environment, timeout=600)
        assert result.returncode == status and f"usage: {script}" in result.stdout + result.stderr, result
    assert not list(folder.iterdir())
