"""Bundles: several ISAs behind the functions of one kernel."""
import re
import subprocess

import pytest

from tools import (CLANGS, ISAS, MHAGEN, ROOT, WARNINGS, check, compiler_for, generate, hidden, native, need, run,
                   runner_for)

CONFIG = "h=2 d_model=12 dk=5 seq=9"
OK, NO_CPU, NO_TARGET = 0, 4, 6
X86 = pytest.mark.skipif(not native("avx2"), reason="the bundle is for x86-64")


def build(out, arch, *flags):
    """Two bundles in one program: the first can run everywhere, the second not on a CPU without AVX2."""
    generate(out, CONFIG, "x86", "one")
    generate(out, CONFIG + " attention=cross seq_kv=7 cache=fixed", "avx512+avx2", "two")
    sources = sorted(path for path in out.glob("*.c"))
    assert len(sources) == 8
    assert not [line for line in (out / "two.c").read_text().splitlines() if len(line) > 100 and "command" not in line]
    for source in sources:
        run(*compiler_for(arch, "gcc"), "-std=c11", "-O1", *flags, *WARNINGS, "-c", source, cwd=out)
    run(*compiler_for(arch, "gcc"), "-std=c11", *WARNINGS, "-I", out, ROOT / "tests/kernels/bundle_test.c",
        *out.glob("*.o"), "-static", "-o", out / "test", "-lm", "-pthread")
    return out / "test"


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("bundles"), "scalar")


@X86
@pytest.mark.parametrize("cpu, expected", [
    ("Haswell", f"avx2 1, avx2 1, scalar {OK}, avx2 {OK}, avx512 {NO_CPU}"),
    ("IvyBridge", f"scalar 1, avx2 0, scalar {OK}, avx2 {NO_CPU}, avx512 {NO_CPU}"),
    # The instructions, but no operating system that saves their registers.
    ("Haswell,-xsave", f"scalar 1, avx2 0, scalar {OK}, avx2 {NO_CPU}, avx512 {NO_CPU}"),
    (None, None)])
def test_choice(cpu, expected, program):
    """The best that the CPU has, by the bundle, with a pool, and asked for by name."""
    need("qemu-x86_64")
    emulator = ["qemu-x86_64", "-cpu", cpu] if cpu else []
    if not cpu:
        has = {isa: "yes" in line for isa, line in
               (line.split(None, 1) for line in run(MHAGEN, "isas").splitlines()[1:])}
        best = [isa for isa in ("scalar", "avx2", "avx512") if has[isa]][-1]
        members = [f"{isa} {OK if has[isa] else NO_CPU}" for isa in ("scalar", "avx2", "avx512")]
        expected = f"{best} 1, {best if has['avx2'] else 'avx2'} {int(has['avx2'])}, {', '.join(members)}"
    *_, told = run(*emulator, program, "scalar", "avx2", "avx512").splitlines()  # QEMU warns of other features
    assert told == expected


@X86
def test_nothing_hidden(program):
    """No state, and no names but those of each kernel."""
    for path in program.parent.glob("*.o"):
        if path.stem != "mhagen":
            members = "bundle" if path.stem in ("one", "two") else None
            found = hidden(path, path.stem, "scalar")
            assert not [name for name in found if not (members and re.match(rf"{path.stem}_\w+_kernel ", name))], found


@pytest.mark.parametrize("isa, compiler, flags, told", [
    ("x86", "gcc", "", False), ("x86", "gcc", "-march=x86-64-v2", False), ("x86", "gcc", "-mavx", True),
    ("x86", "gcc", "-march=x86-64-v4 -DMHAGEN_NO_CPU_NOTE", False), ("avx2+avx512", "gcc", "-march=haswell", False),
    ("avx2+avx512", "gcc", "-march=x86-64-v4", True), ("x86", CLANGS[-1], "-march=x86-64-v3", True),
    ("neon+neon_fp16", "aarch64-linux-gnu-gcc", "", False),
    ("neon+neon_fp16", "aarch64-linux-gnu-gcc", "-march=armv8.2-a", True),
    ("x86", "aarch64-linux-gnu-gcc", "-march=armv8.2-a -DMHAGEN_ALLOW_STUBS", True)])
def test_flags_for_newer_cpus(isa, compiler, flags, told, tmp_path):
    """A note says that the bundle will not run where its first kernel would, also under -Werror."""
    need(compiler)
    generate(tmp_path, CONFIG, isa, "one")
    result = subprocess.run([compiler, "-std=c11", *WARNINGS, *flags.split(), "-c", "one.c"], cwd=tmp_path,
                            capture_output=True, text=True, check=True)
    base = isa.split("+")[0].replace("x86", "scalar")
    said = f"one: compiled for newer CPUs than its kernel {base} needs, so "
    assert (said in result.stderr) if told else result.stderr == "", result.stderr


def test_other_architecture(tmp_path):
    """There only the member that is for any machine can run."""
    program = build(tmp_path, "neon", "-DMHAGEN_ALLOW_STUBS")
    assert run(*runner_for("neon"), program, "scalar", "avx2", "avx512").strip() \
        == f"scalar 1, avx2 0, scalar {OK}, avx2 {NO_TARGET}, avx512 {NO_TARGET}"


@X86
def test_check(tmp_path):
    """All promises, of the bundle and of each member."""
    told = check(*"h=1 d_model=6 dk=3 seq=5 kv_len=true batch=2 isa=x86 name=k".split())
    assert re.findall(r"^(k\w*): (\S+),", told, re.M)[:2] == [("k", "scalar+avx2+avx512"), ("k_scalar", "scalar")]
    assert len(re.findall("^ok", told, re.M)) + len(re.findall("^skip", told, re.M)) == 4


@pytest.mark.skipif(not native("avx512_bf16"), reason="members whose weights take less space need BF16")
def test_packed_of_any_member(tmp_path):
    """No byte behind weights that take less space than another member's is left as it was."""
    check(*"h=1 d_model=16 dk=4 seq=5 dtype=bf16 isa=avx2+avx512_bf16 name=k".split())


def test_text(tmp_path):
    """The command in a file makes the same files; the order of the words and words said twice do not matter."""
    for i, isa in enumerate(["avx512+x86+scalar", "scalar+avx2+avx512"]):
        run(MHAGEN, "gen", *CONFIG.split(), f"isa={isa}", "--quiet", "-o", tmp_path / str(i))
    first, second = [{path.name: path.read_text() for path in (tmp_path / out).iterdir()} for out in "01"]
    assert first == second and "mha_f32_h2_d12_k5_s9_scalar_avx2_avx512.h" in first and len(first) == 10
    for name, text in first.items():
        if not name.startswith("mhagen"):
            command = re.search(r"command   mhagen gen (.*)", text)[1]
            run(MHAGEN, "gen", *command.split(), "--quiet", "-o", tmp_path / "again")
            assert (tmp_path / "again" / name).read_text() == text
    bytes_of = [int(re.search(rf"define \w+_{size}_BYTES (\d+)", text)[1]) for size in ("PACKED", "WORKSPACE")
                for name, text in sorted(first.items()) if name.endswith(".h") and name != "mhagen.h"]
    assert bytes_of[0] == max(bytes_of[:4]) and bytes_of[4] == max(bytes_of[4:])


@pytest.mark.parametrize("words, told", [
    ("gen isa=neon+avx2", "isa = neon+avx2: avx2 is for x86_64, neon for aarch64: a bundle is for one machine"),
    ("gen isa=avx2+", f"isa = avx2+: must be one of {', '.join(ISAS)}, several of one machine with +"),
    ("gen isa=avx2+avx51", "did you mean avx512?"),
    ("gen isa=avx2+neonn", "did you mean neon?"),
    ("gen isa=x86 cpu=neoverse_v2", "cpu = neoverse_v2: has no isa = avx2"),
    ("gen isa=avx2+avx_vnni cpu=zen4", "cpu = zen4: has no isa = avx_vnni"),
    (f"gen isa=x86 name={'k' * 124}", "must have at most 128 characters"),
    ("bench isa=x86", "isa = scalar+avx2+avx512: bench takes one kernel: one of scalar, avx2, avx512"),
    ("tune isa=avx2+avx512", "isa = avx2+avx512: tune takes one kernel: one of avx2, avx512")])
def test_refused(words, told, tmp_path):
    command, *more = words.split()
    out = ["-o", tmp_path / "out"] if command == "gen" else []
    result = subprocess.run([MHAGEN, command, *CONFIG.split(), *more, *out], text=True, capture_output=True)
    assert result.returncode == 2 and result.stderr.startswith("mhagen: config: ") and told in result.stderr
    assert result.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def test_sweep_takes_single_kernels(tmp_path):
    """A bundle in a grid is told of as an invalid config."""
    grid = tmp_path / "grid.lua"
    grid.write_text('return { h = 1, d_model = 6, dk = 3, seq = 4, isa = { "scalar", "x86" } }\n')
    told = run(MHAGEN, "sweep", grid, "-o", tmp_path / "out", "--dry-run")
    assert "isa = scalar+avx2+avx512: a sweep takes one kernel: one of scalar, avx2, avx512" in told
    assert "1 configs, 1 invalid" in told
