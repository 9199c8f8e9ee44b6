"""The command line: commands, exit statuses, what is written and what is left alone."""
import os
import re
import resource
import shutil
import subprocess

import pytest

from test_config import arguments, assert_refused, run
from tools import FACTS, ISAS, MHAGEN, ROOT, native, need, quick_cc, schema

NAME = "mha_f32_h2_d32_k16_s16_scalar"
# Commands in help.
SHOWN = ["gen", "explain", "check", "model", "pack", "bench", "tune", "sweep", "report", "isas", "schema"]
FILES = [NAME + ".c", NAME + ".h", "mhagen.c", "mhagen.h"]


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def gen(directory, *args, **options):
    return run("gen", *(args or arguments()), "-o", directory, **options)


def assert_done(result):
    assert (result.returncode, result.stderr) == (0, ""), result


# ---- commands ----

@pytest.mark.parametrize("args, message", [
    ([], "a command is required"),
    (["gne"], "unknown command 'gne', did you mean 'gen'?"),
    (["chek"], "did you mean 'check'?"),
    (["generate"], "unknown command 'generate', did you mean 'gen'?"),
    (["convert", "x"], "did you mean 'model'?"),
    (["doctor"], "did you mean 'isas'?"),
    (["x" * 4000], "unknown command"),
    (["x" * 100000], "argument longer than 4096 characters"),
    (["gen", "--" + "x" * 100000], "argument longer than 4096 characters"),
    (["\x1b[31m\n"], "unknown command"),
    (["gen"], "missing option '-o'"),
    (["gen", *arguments()], "missing option '-o'\n"),
    (["gen", "dmodel=32"], "missing option '-o'; config: dmodel = 32: unknown key, did you mean d_model?; "
                           "config: h, dk, seq, isa: are required, as in h=12 dk=32 seq=128 isa="),
    (["gen", "h=0", "foo=1", "-o", "a"], "h = 0: must be an integer from 1 to 1024; config: foo = 1: unknown key"),
    (["gen", *arguments(), "-o"], "option '-o' requires an argument"),
    (["gen", *arguments(), "-o", ""], "its name is empty"),
    (["gen", *arguments(), "-o", "a", "-o", "b"], "option '-o' must be used at most 1 time"),
    (["gen", "--outptu", "a"], "unknown option '--outptu', did you mean '--output'?"),
    (["explain", "-o", "a"], "unknown option '-o'"),
    (["model", "isa=avx2", "-o", "a"], "isa=avx2: is a key of the config, and PATH must stand before it"),
    (["sweep", "h=4", "-o", "a"], "h=4: is a key of the config, and GRID.lua must stand before it"),
    (["explain", "--causal"], "unknown option '--causal'; a key has no dashes, did you mean causal=VALUE?"),
    (["explain", "--num-heads", "4"], "unknown option '--num-heads'; a key has no dashes, did you mean h=VALUE?"),
    (["isas", "x"], "too many arguments"),
])
def test_bad_command_line(args, message, tmp_path):
    assert_refused(run(*args, cwd=tmp_path), message)
    assert list(tmp_path.iterdir()) == []


def test_help():
    general = run("--help")
    assert_done(general)
    groups = dict(re.findall(r"^(\w.*):\n((?:   .*\n)+)", general.stdout.split("   --version ")[1], re.M))
    commands = re.findall(r"^   (\w+)  ", "".join(groups.values()), re.M)
    assert list(groups) == ["Kernels", "Models", "Speed", "Lists"]
    assert commands == SHOWN
    for command in commands:
        result = run(command, "--help")
        assert_done(result)
        lines = result.stdout.splitlines()
        assert len(lines) <= 56 and max(map(len, lines)) <= 110
        if "--help-keys" in result.stdout:
            wanted = re.search(r"^  dk +1\.\.1024 +width .*\(required\)$", result.stdout, re.M)
            assert bool(wanted) == (command != "model") and re.search(r"^  seq +1\.\.65536 ", result.stdout, re.M)
            keys = {row["key"] for row in schema()}
            assert keys <= set(re.findall(r"\w+", result.stdout.split("Config keys")[1]))
            all_keys = run(command, "--help-keys")
            assert_done(all_keys)
            assert keys <= set(re.findall(r"^  (\w+) ", all_keys.stdout, re.M))
            assert re.search(r"^  dv +1\.\.1024 +.*\(default: dk\)$", all_keys.stdout, re.M)
            assert ", ".join(ISAS) in " ".join(all_keys.stdout.split())
            assert max(map(len, all_keys.stdout.splitlines())) <= 110
        assert ("skipped: check says so, and exits with status 0" in result.stdout) == (command == "check")


@pytest.mark.parametrize("config, most", [
    ("h=12 d_model=384 dk=32 seq=128 isa=avx512", 48),
    ("h=4 d_model=32 dk=8 seq=16 isa=avx2 causal=true probs=true", 45),
    ("h=32 h_kv=8 d_model=2048 dk=64 seq=1 seq_kv=4096 isa=avx512_bf16 rope=half cache=append dtype=bf16 "
     "weight_dtype=int4 cache_dtype=int8", 58),
])
def test_a_plan_is_a_screen(config, most):
    """Its command is in one line, to be copied; reasons and what was rejected come with --why."""
    short = run("explain", *config.split()).stdout.splitlines()
    assert len(short) <= most and f"  command    mhagen gen {config}" in short
    sections = [line.split(" (")[0] for line in short[1:] if not line.startswith(" ")]
    assert sections == ["phases", "floor", "choices", "buffers"]
    why = run("explain", *config.split(), "--why", "--types").stdout.splitlines()
    for lines in short, why:
        assert max(len(line) for line in lines if not line.startswith("  command ")) <= 110
    assert sum(line.startswith("    not ") for line in why) > 20
    assert not [line for line in short if "slower" in line]
    choices = " ".join(" ".join(short).split("--why) ")[1].split("buffers (")[0].split()).split("; ")
    whole = " ".join(" ".join(why).split())
    assert len(choices) > 12 and all(f"{choice}: " in whole for choice in choices)


@pytest.mark.parametrize("config, bound, key, type_", [
    ("h=12 d_model=384 dk=32 seq=128 isa=avx512", r"operations: [\d,]+ cycles at least, \d+ % in keys_values, by ",
     "none by the model; `mhagen tune` ", "dtype=int8, 0."),
    ("h=12 d_model=768 dk=64 seq=512 isa=avx2 cpu=zen5", "operations: ", "isa=avx512, 0.", "weight_dtype=int4, 0."),
    ("h=32 h_kv=8 d_model=2048 dk=64 seq=1 seq_kv=2048 cache=append isa=avx2", r"memory: 50,[\d,]+ bytes at ",
     "more rows in a run ", "dtype=int8, 0."),
    ("h=8 d_model=512 dk=64 seq=64 isa=avx512 project=none", "operations: ", "none by the model", "none by the model"),
])
def test_why_ends_in_short(config, bound, key, type_):
    """Three lines: what bounds a kernel, which key may help, and which type would."""
    head, *lines = run("explain", *config.split(), "--why").stdout.splitlines()[-4:]
    assert head == "in short (by the cost model)"
    assert [line[:12] for line in lines] == ["  bound by  ", "  keys      ", "  types     "]
    assert re.match(bound, lines[0][12:]) and key in lines[1] and type_ in lines[2], lines


def test_version():
    assert run("--version").stdout == "mhagen 0.2.0\n"


def test_isas():
    result = run("isas")
    assert_done(result)
    rows = {line.split()[0]: line.split() for line in result.stdout.splitlines()}
    files = {path.stem for path in (ROOT / "gen/isa").glob("*.lua") if "\n  name = " in path.read_text()}
    assert list(rows) == ["isa", *ISAS] and files <= set(ISAS)
    assert rows["scalar"][3] == "yes"
    for name, row in FACTS.items():
        assert rows[name][1:4] == [str(row["lanes"]), str(row["registers"]), "yes" if native(name) else "no"]
        assert row["native"] == native(name) and " ".join(rows[name]).endswith(" ".join(row.get("emulator", [])))
    here = [name for name, row in rows.items() if row[3] == "yes"]
    result = run("isas", "--widest")
    assert_done(result)
    assert result.stdout == max(here, key=lambda name: FACTS[name]["lanes"]) + "\n"


CPUINFO = "processor\t: 0\n{}\n\nprocessor\t: 1\n{}\n"
AMD = "vendor_id\t: AuthenticAMD\ncpu family\t: {}\nmodel\t\t: {}\nmodel name\t: AMD"
INTEL = "vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: {}\nmodel name\t: Intel"
ARM = "CPU implementer\t: {}\nCPU architecture: 8\nCPU variant\t: 0x1\nCPU part\t: {}\nCPU revision\t: 0"


@pytest.mark.parametrize("cpu, cores", [
    ("zen4", 2 * [AMD.format(25, 17)]), ("zen4", 2 * [AMD.format(25, 97)]), ("zen5", 2 * [AMD.format(26, 2)]),
    ("zen3", 2 * [AMD.format(25, 1)]), ("zen3", 2 * [AMD.format(25, 33)]),
    ("generic", 2 * [AMD.format(26, 36)]),  # Zen 5 with 256-bit units
    ("sapphirerapids", 2 * [INTEL.format(143)]), ("sapphirerapids", 2 * [INTEL.format(207)]),
    ("generic", 2 * [INTEL.format(106)]),
    ("sapphirerapids", 2 * [INTEL.format(167) + "\nflags\t\t: fpu amx_tile amx_int8"]),  # a virtual machine
    ("generic", 2 * [INTEL.format(167) + "\nflags\t\t: fpu avx512f amx_tiles"]),
    ("neoverse_v1", 2 * [ARM.format("0x41", "0xd40")]), ("neoverse_v2", 2 * [ARM.format("0x41", "0xd4f")]),
    ("apple_m1", [ARM.format("0x61", "0x022"), ARM.format("0x61", "0x023")]),  # a small core first
    ("apple_m2", 2 * [ARM.format("0x61", "0x033")]), ("generic", 2 * [ARM.format("0x41", "0xd0c")]),
    ("generic", ["", ""])])
def test_cpu_of_cpuinfo(tmp_path, cpu, cores):
    (tmp_path / "cpuinfo").write_text(CPUINFO.format(*cores))
    assert run("isas", "--cpu", tmp_path / "cpuinfo").stdout == cpu + "\n"


def test_cpu_of_this_machine(tmp_path):
    cpu = run("isas", "--cpu").stdout.strip()
    assert cpu == run("isas", "--cpu", "/proc/cpuinfo").stdout.strip()
    assert run("explain", *arguments(isa="scalar"), f"cpu={cpu}").returncode == 0
    assert_refused(run("isas", "--cpu", tmp_path / "none"), "No such file or directory")


def test_widest_of_a_type():
    """Who multiplies pairs or words has so many times its lanes; who only widens them has no more."""
    here = [row for row in FACTS.values() if row["native"]]
    for dtype in "f32", "bf16", "f16", "int8":
        result = run("isas", "--widest", "--dtype", dtype)
        assert_done(result)
        widest = max(here, key=lambda row: row["lanes"] * row["products"].get(dtype, {"at_once": 1})["at_once"])
        assert result.stdout == widest["name"] + "\n"
    assert_refused(run("isas", "--dtype", "int9"), "argument for option '--dtype' must be one of 'f32'")


@pytest.mark.parametrize("args", [["isas"], ["--help"], ["gen", "--help"], ["--version"],
                                  ["explain", *arguments()]])
def test_output_that_fails(args):
    with open("/dev/full", "w") as full:
        result = subprocess.run([MHAGEN, *args], stdout=full, stderr=subprocess.PIPE, text=True)
    assert result.returncode == 2
    assert result.stderr == "mhagen: standard output: No space left on device\n"
    result = subprocess.run(["sh", "-c", '"$@" >&-', "sh", MHAGEN, *args], stderr=subprocess.PIPE,
                            text=True)
    assert result.returncode == 2
    assert result.stderr == "mhagen: standard output: Bad file descriptor\n"


def test_alone_in_a_directory(tmp_path):
    """One file is all it takes."""
    shutil.copy(MHAGEN, tmp_path / "program")
    result = subprocess.run(["./program", "gen", *arguments(), "-o", "."], cwd=tmp_path, env={},
                            capture_output=True, text=True)
    assert_done(result)
    assert sorted(contents(tmp_path)) == sorted(FILES + ["program"])


# ---- what gen writes ----

def test_what_gen_says(tmp_path):
    """The files, their sizes, and a command that compiles them."""
    out = tmp_path / "with space"
    result = gen(out)
    assert_done(result)
    first, *lines = result.stdout.splitlines()
    assert first == " ".join(f"'{out}/{name}'" for name in [NAME + ".h", NAME + ".c", "mhagen.h", "mhagen.c"])
    told = {line.split()[0]: line.split(maxsplit=1)[1] for line in lines}
    assert list(told) == ["code", "packed", "workspace", "compile"]
    size = sum((out / f"{NAME}.{end}").stat().st_size for end in "ch")
    assert told["code"].startswith(f"{size:,} bytes of C, ")
    header = (out / f"{NAME}.h").read_text()
    for key in "packed", "workspace":
        assert f"_{key.upper()}_BYTES {told[key].removesuffix(' bytes').replace(',', '')}\n" in header
    subprocess.run(["sh", "-eu", "-c", told["compile"]], cwd=tmp_path, check=True)
    assert {path.name for path in tmp_path.glob("*.o")} == {"mhagen.o", NAME + ".o"}
    assert gen(out, *arguments(), "--quiet").stdout == ""
    assert "aarch64-linux-gnu-gcc -O2 -c " in gen(tmp_path / "neon", *arguments(isa="neon")).stdout \
        or os.uname().machine != "x86_64"


@pytest.mark.parametrize("text", [
    "int main(void) { return 0; }\n", "\n", "/* main.c: uses a kernel, generated by mhagen */",
    '#include "mhagen.h"\n', "/* other: multi-head attention, generated by mhagen 1"])
def test_files_of_others_stay(text, tmp_path):
    """A file whose first lines do not say that it is the one that mhagen would write."""
    (tmp_path / "main.c").write_text(text)
    (tmp_path / "mhagen.h").write_text("mine")
    before = contents(tmp_path)
    args = arguments(name="main")
    assert_refused(gen(tmp_path, *args),
                   f"mhagen: {tmp_path}/main.c, {tmp_path}/mhagen.h: not made by mhagen; --force replaces")
    assert contents(tmp_path) == before
    assert_done(gen(tmp_path, *args, "--force"))
    assert "generated by mhagen" in (tmp_path / "main.c").read_text()


def test_older_files_are_replaced(tmp_path):
    """Those of another version, of another config, and empty ones; through a link that goes to one of them."""
    assert_done(gen(tmp_path, *arguments(name="kernel", causal="true")))
    wanted = gen(tmp_path / "new", *arguments(name="kernel"))
    for name in "kernel.c", "kernel.h":
        text = (tmp_path / name).read_text()
        (tmp_path / name).write_text(text.replace("generated by mhagen 0.2.0", "generated by mhagen 0.0.9"))
    (tmp_path / "mhagen.h").write_text("/* mhagen.h: the types of an older version */\n")
    (tmp_path / "mhagen.c").write_text("")
    (tmp_path / "kernel.h").rename(tmp_path / "old.h")
    (tmp_path / "kernel.h").symlink_to("old.h")
    assert_done(gen(tmp_path, *arguments(name="kernel")))
    (tmp_path / "old.h").unlink()
    new = tmp_path / "new"
    assert wanted.returncode == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == contents(new)


def test_what_cannot_be_read_stays(open_dir, unprivileged):
    (open_dir / "mhagen.h").write_text("/* mhagen.h: */")
    (open_dir / "mhagen.h").chmod(0)
    assert_refused(gen(open_dir, **unprivileged), "mhagen.h: Permission denied")
    assert sorted(path.name for path in open_dir.iterdir() if path.name != "mhagen") == ["mhagen.h"]


def test_files(tmp_path):
    out = tmp_path / "new" / "deep" / ".." / "out"
    assert_done(gen(out))
    files = contents(tmp_path / "new" / "out")
    assert sorted(files) == FILES
    for name in "mhagen.h", "mhagen.c":
        assert files[name] == (ROOT / ("build/runtime" if name == "mhagen.c" else "runtime") / name).read_bytes()
    umask = os.umask(0)
    os.umask(umask)
    for path in out.iterdir():
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_the_command_in_the_file_makes_the_file(tmp_path):
    assert_done(gen(tmp_path / "a", *arguments(dv=3, causal="true", k_block=64, code_limit=50000)))
    name = NAME.replace("_s16", "_v3_s16").replace("_scalar", "_causal_scalar")
    text = (tmp_path / "a" / f"{name}.c").read_text()
    command = re.search(r"mhagen (gen .*)", text).group(1).split()
    assert_done(run(*command, "-o", tmp_path / "b"))
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_same_bytes_everywhere(open_dir, unprivileged):
    """Directory, locale, time zone, user, environment, and (by address randomization) Lua's hash
    seed make no difference."""
    wanted = None
    variants = [{"cwd": "/"}, {"env": {}}, {"env": {"LC_ALL": "de_DE.UTF-8", "LANG": "tr_TR"}},
                {"env": {"LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo", "CC": "none"}}, unprivileged]
    for i, options in enumerate(variants + [{}] * 25):
        out = open_dir / str(i)
        assert_done(gen(out, *arguments(isa="avx2"), **options))
        wanted = wanted or contents(out)
        assert contents(out) == wanted


def test_unchanged_files_are_not_touched(tmp_path):
    def stamps():
        return {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in tmp_path.iterdir()}

    assert_done(gen(tmp_path))
    before, text = stamps(), contents(tmp_path)
    assert_done(gen(tmp_path))
    assert stamps() == before
    (tmp_path / "mhagen.c").write_bytes(text["mhagen.c"].replace(b"return", b"retern", 1))
    with open(tmp_path / "mhagen.h", "ab") as file:
        file.write(b"/* longer */")
    assert_done(gen(tmp_path))
    assert contents(tmp_path) == text
    after = stamps()
    assert {name for name in FILES if after[name] == before[name]} == {NAME + ".c", NAME + ".h"}


def test_links_are_replaced(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    out = tmp_path / "out"
    out.mkdir()
    (out / (NAME + ".c")).symlink_to(precious)
    (out / (NAME + ".h")).symlink_to("nowhere")
    assert_refused(gen(out), f"{NAME}.c: not made by mhagen")
    assert_done(gen(out, *arguments(), "--force"))
    assert precious.read_text() == "precious"
    assert not any(path.is_symlink() for path in out.iterdir())


@pytest.mark.parametrize("more", [{}, {"kv_len": "true", "qk_norm": "rms", "norm_span": "all"}])
def test_the_largest_shapes(more, tmp_path):
    """What a plan has in memory does not grow with the shape, nor do the statements of a row of a million columns."""
    largest = arguments(h=1024, d_model=16384, dk=1024, seq=65536, isa="avx512", name="kernel", **more)
    most = (48 << 20, 48 << 20)
    if MHAGEN.name == "mhagen-sanitized":  # whose shadow memory is terabytes of addresses
        most = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    assert_done(gen(tmp_path, *largest, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, most)))
    assert len((tmp_path / "kernel.c").read_text()) < 200000


# ---- what stays as it was after an error ----

def limited(size):
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))}


@pytest.mark.parametrize("size", [0, 1, 1000, 6000])
def test_file_size_limit(size, tmp_path):
    assert_done(gen(tmp_path / "out", *arguments(name="kernel")))
    before = contents(tmp_path / "out")
    changed = arguments(name="kernel", causal="true", seq=15)
    assert_refused(gen(tmp_path / "out", *changed, **limited(size)), "out/", ": File too large")
    assert contents(tmp_path / "out") == before
    assert_refused(gen(tmp_path / "new" / "dirs", *changed, **limited(size)), "File too large")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_full_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", tmp_path]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("no right to mount a tmpfs")
    try:
        (tmp_path / "mhagen.h").write_text("/* mhagen.h: old */")
        (tmp_path / "mhagen.c").write_text("/* mhagen.c: old */")
        before = contents(tmp_path)
        args = arguments(name="kernel", seq=64, causal="true", isa="avx512")
        assert_refused(gen(tmp_path, *args), ": No space left on device")
        assert contents(tmp_path) == before
        assert_refused(gen(tmp_path / "new" / "dirs", *args), ": No space left on device")
        assert contents(tmp_path) == before
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_read_only_directory(open_dir, unprivileged):
    out = open_dir / "out"
    out.mkdir()
    (out / "mhagen.h").write_text("/* mhagen.h: old */")
    out.chmod(0o555)
    assert_refused(gen(out, **unprivileged), "Permission denied")
    assert_refused(gen(out / "new" / "dirs", **unprivileged), "out/new/dirs: Permission denied")
    assert contents(out) == {"mhagen.h": b"/* mhagen.h: old */"}
    out.chmod(0o755)


def test_a_directory_or_fifo_in_the_way(tmp_path):
    for make, message in (os.mkdir, "Is a directory"), (os.mkfifo, "File exists"):
        out = tmp_path / message
        out.mkdir()
        make(out / "mhagen.c")
        assert_refused(gen(out), f"mhagen.c: {message}")
        assert [path.name for path in out.iterdir()] == ["mhagen.c"]


def test_a_file_as_directory(tmp_path):
    (tmp_path / "file").write_text("old")
    for out in tmp_path / "file", tmp_path / "file" / "x":
        assert_refused(gen(out), ": Not a directory")
    assert contents(tmp_path) == {"file": b"old"}


def test_long_names(tmp_path):
    assert_done(gen(tmp_path / "a", *arguments(name="n" * 128)))
    assert_refused(gen(tmp_path / ("x" * 256)), "File name too long")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_manual(tmp_path):
    """It has every command, option and key, as the program has, and no mistake of troff's."""
    page = run("schema", "--man").stdout
    plain = re.sub(r"\\f[BIR]|\\&", "", page).replace("\\-", "-")
    assert re.findall(r"^\.SS mhagen (\w+)$", page, re.M) == SHOWN
    for command in SHOWN:
        options = re.findall(r"(?<![\w-])(--?[a-z][-a-z]*)", run(command, "--help").stdout.split("Config keys:")[0])
        section = plain.split(f".SS mhagen {command}\n")[1].split("\n.SS ")[0]
        assert not [option for option in options if option not in section]
    for row in schema():
        assert re.search(rf"^\.TP\n{row['key']}=.*\n" + re.escape(row["doc"].split("'")[0]), plain, re.M), row["key"]
    need("man")
    (tmp_path / "mhagen.1").write_text(page)
    done = subprocess.run(["man", "-l", "--warnings", "-Tutf8", tmp_path / "mhagen.1"], text=True,
                          capture_output=True, env={**os.environ, "MANWIDTH": "100", "MANROFFSEQ": ""})
    assert done.returncode == 0 and not done.stderr, done.stderr


COMPLETE = """
. ./completion
compopt() { :; }
complete_words() { COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); _mhagen; echo "${COMPREPLY[*]}"; }
"""


@pytest.mark.parametrize("words, offered", [
    ("mhagen ''", "gen explain check model pack bench tune sweep report isas schema --help --version"),
    ("mhagen ge", "gen"), ("mhagen gen --c", "--cxx"), ("mhagen gen h_", "h_kv="),
    ("mhagen gen isa =", " ".join([*ISAS, "x86", "arm", "native"])),
    ("mhagen gen isa = avx5", " ".join(isa for isa in ISAS if isa.startswith("avx5"))),
    ("mhagen check causal = t", "true"), ("mhagen gen h = 1", ""), ("mhagen isas h_", ""),
    ("mhagen isas --w", "--widest"),
])
def test_completion(words, offered, tmp_path):
    """In bash; of the other shells the syntax alone."""
    (tmp_path / "completion").write_text(run("schema", "--bash").stdout)
    done = subprocess.run(["bash", "-c", COMPLETE + f"complete_words {words}"], cwd=tmp_path, text=True,
                          capture_output=True)
    assert (done.stdout, done.stderr) == (offered + "\n", "")


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_of(shell, tmp_path):
    """Its syntax; and that every command and key is in it."""
    text = run("schema", f"--{shell}").stdout
    for word in SHOWN + [row["key"] for row in schema()]:
        assert re.search(rf"['\s]{word}[:='\s]", text), word
    need(shell)
    (tmp_path / "completion").write_text(text)
    subprocess.run([shell, "-n", tmp_path / "completion"], check=True)


# ---- check ----

def check(tmp_path, *args, **env):
    """Runs check with its own TMPDIR, which must be empty afterwards."""
    temp = tmp_path / "temp"
    temp.mkdir(exist_ok=True)
    result = subprocess.run([MHAGEN, "check", *args], capture_output=True, text=True, timeout=600,
                            env={**os.environ, "TMPDIR": str(temp), **env})
    assert list(temp.iterdir()) == []
    return result


def test_check_passes(tmp_path):
    result = check(tmp_path, *arguments(), CC="cc -O1")
    assert_done(result)
    assert NAME in result.stdout


def test_check_without_compiler(tmp_path):
    assert_refused(check(tmp_path, *arguments(), CC="no-such-cc"),
                   "mhagen: no-such-cc: No such file or directory; install a C compiler, or name yours in CC")


def test_check_that_does_not_compile(tmp_path):
    result = check(tmp_path, *arguments(), CC="false -x")
    assert result.returncode == 1
    assert result.stderr == f"mhagen: check of {NAME}: false ended with status 1\n"


def test_check_through_a_launcher(tmp_path):
    """It gets the program, in {} or at its end; what has not run is not passed."""
    for launcher in "env LAUNCHED=1", "echo launched {} && {}":
        result = check(tmp_path, *arguments(), "--launcher", launcher, CC=quick_cc())
        assert result.returncode == 0 and "ok: " in result.stdout, result
    assert result.stdout.startswith("launched /")
    for launcher, why in [("true", "the launcher's program has not said ok"),
                          ("false", "the launcher ended with status 1"),
                          ("{}; exit 3", "the launcher ended with status 3")]:
        result = check(tmp_path, *arguments(), "--launcher", launcher, CC=quick_cc())
        assert result.returncode == 1 and result.stderr == f"mhagen: check of {NAME}: {why}\n", result


def test_check_of_another_target(tmp_path):
    """$CC compiles for the target; a CPU that lacks the ISA says so."""
    need("aarch64-linux-gnu-gcc"), need("qemu-aarch64")
    result = check(tmp_path, *arguments(isa="neon"), "--launcher", "qemu-aarch64", CC="aarch64-linux-gnu-gcc -static")
    assert result.returncode == 0 and "ok: " in result.stdout, result
    if native("avx2") and shutil.which("qemu-x86_64"):
        result = check(tmp_path, *arguments(isa="avx2"), "--launcher", "qemu-x86_64 -cpu Nehalem", CC=quick_cc())
        assert result.returncode == 0 and "skip" in result.stdout and "this CPU has no avx2" in result.stdout


@pytest.mark.parametrize("script, status", [("exit 0", 0), ("exit 1", 1), ("kill -SEGV $$", 139)])
def test_outcome_of_a_check(script, status, tmp_path):
    """With a compiler whose programs do as told."""
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\n"
                        "test $1 = -first || exit 3\n"
                        "while test $1 != -o; do shift; done\n"
                        f"printf '#!/bin/sh\\n{script}\\n' >$2; chmod +x $2\n")
    compiler.chmod(0o755)
    result = check(tmp_path, *arguments(), CC=f"{compiler} -first")
    assert result.returncode == min(status, 1)
    if status:
        assert result.stderr.startswith(f"mhagen: check of {NAME}: ")
        assert result.stderr.endswith(f"/mhagen_check ended with status {status}\n")


def test_check_refuses_a_bad_config(tmp_path):
    assert_refused(check(tmp_path, "h=0"), "config: h = 0: must be")
    for name in "checker", "reference":
        (tmp_path / "temp").rmdir()
        assert_refused(check(tmp_path, *arguments(name=name)),
                       f"config: name = {name}: must not be the name of a file of the check")


def test_check_without_temporary_directory(tmp_path):
    result = run("check", *arguments(), env={**os.environ, "TMPDIR": str(tmp_path / "missing")})
    assert_refused(result, "missing: No such file or directory")


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="needs an x86-64 host")
def test_check_of_foreign_code_without_tools(tmp_path):
    result = check(tmp_path, *arguments(isa="neon"), PATH="/nonexistent")
    assert_done(result)
    assert "skipped: aarch64-linux-gnu-gcc: No such file or directory" in result.stdout


@pytest.mark.skipif(not all(map(shutil.which, ["aarch64-linux-gnu-gcc", "qemu-aarch64"])),
                    reason="no cross compiler or emulator")
def test_check_of_foreign_code(tmp_path):
    result = check(tmp_path, *arguments(isa="neon"))
    assert_done(result)
    assert "skipped" not in result.stdout
