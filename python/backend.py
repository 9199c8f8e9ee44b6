"""Builds the wheel and the sdist of mhagen (PEP 517, PEP 660), with Python's library alone.

    build_wheel(DIR)     the program, in bin/, the package mhagen, and CMake's; returns the file's name
    build_editable(DIR)  the same with a path to python/ in the place of the package
    build_sdist(DIR)     all that build_wheel needs

The program is linked without shared libraries, so one wheel serves every Linux of an architecture. It is built by
ninja, out of the source tree. What ninja needs are the packages of scripts/install.sh.
"""
import base64
import contextlib
import gzip
import hashlib
import io
import os
import pathlib
import re
import shlex
import shutil
import stat
import struct
import subprocess
import sysconfig
import tarfile
import tempfile
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ["build.ninja", "bench", "gen", "runtime", "scripts", "templates", "tests"]  # what build/mhagen is made of
SOURCES = ["LICENSE", "README.md", "cmake", "pyproject.toml", "python", *PROGRAM]
PREFIX = {  # what CMake takes of an installed mhagen, by its folder below the prefix
    "share/cmake/mhagen": ["cmake/mhagen-config.cmake"], "share/mhagen": ["runtime/LICENSE"],
    "include/mhagen": ["runtime/mhagen.h", "runtime/mhagen.hpp"],
}
LINKED = ["libc6-dev", "libjs-chart.js", "liblua5.4-dev", "lua-argparse", "lua-cjson-dev", "lua-dkjson"]
LEFT_OUT = {"__pycache__", "golden", "corpus"}
EARLIEST = 315532800  # the first second that a zip file has a date for
OLDEST_GLIBC, OLDEST_MUSL = "2_17", "1_1"  # of the tags that pip knows; the program needs neither


# ---- hooks of PEP 517 ----

def get_requires_for_build_wheel(config_settings=None):
    return [] if ninja() else ["ninja"]


get_requires_for_build_editable = get_requires_for_build_wheel


def get_requires_for_build_sdist(config_settings=None):
    return []


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    return write_wheel(wheel_directory, files_of("python/mhagen", below="python"))


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    return write_wheel(wheel_directory, [("mhagen.pth", f"{ROOT / 'python'}\n".encode())])


def build_sdist(sdist_directory, config_settings=None):
    base = f"{project()['name']}-{version()}"
    files = [("PKG-INFO", metadata()), *(file for name in SOURCES for file in files_of(name))]
    target = pathlib.Path(sdist_directory, f"{base}.tar.gz")
    with open(target, "wb") as raw, gzip.GzipFile("", "wb", mtime=date(), fileobj=raw) as packed, \
            tarfile.open(mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as archive:
        for name, data in files:
            entry = tarfile.TarInfo(f"{base}/{name}")
            entry.size, entry.mtime, entry.mode = len(data), date(), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return target.name


# ---- what a distribution says of itself ----

def version():
    return re.search(r'"(.+)"', (ROOT / "gen/base/version.lua").read_text())[1]


def project():
    try:
        import tomllib
    except ImportError:  # Python 3.10
        import tomli as tomllib
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def metadata():
    known = project()
    lines = ["Metadata-Version: 2.4", f"Name: {known['name']}", f"Version: {version()}",
             f"Summary: {known['description']}", f"Requires-Python: {known['requires-python']}",
             "License-Expression: Apache-2.0 AND 0BSD AND MIT AND LGPL-2.1-or-later",
             *(f"License-File: {name}" for name, _ in licenses()),
             *(f"Requires-Dist: {need}" for need in known["dependencies"])]
    for extra, needs in known["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f'Requires-Dist: {need}; extra == "{extra}"' for need in needs)]
    lines += ["Description-Content-Type: text/markdown", "", (ROOT / known["readme"]).read_text()]
    return "\n".join(lines).encode()


def licenses():
    """[(name, bytes)] of mhagen's license, and of those of the packages that are linked into the program."""
    linked = [pathlib.Path("/usr/share/doc", package, "copyright") for package in LINKED]
    return [("LICENSE", (ROOT / "LICENSE").read_bytes()),
            *((path.parent.name, path.read_bytes()) for path in linked if path.exists())]


def date():
    return max(int(os.environ.get("SOURCE_DATE_EPOCH", EARLIEST)), EARLIEST)


# ---- the program ----

def ninja():
    return shutil.which("ninja") or shutil.which("ninja-build")


def missing_packages():
    """Those of Debian that build/mhagen needs, but for Python's."""
    listed = subprocess.run(["sh", ROOT / "scripts/install.sh", "--list"], text=True, capture_output=True)
    names = re.findall(r"^missing (?!python)(.+)", listed.stdout, re.M)
    return " ".join(names) or listed.stderr.strip()


@contextlib.contextmanager
def program():
    """The path of a program that is built for the while, from links to the sources."""
    with tempfile.TemporaryDirectory() as tree:
        for name in PROGRAM:
            os.symlink(ROOT / name, pathlib.Path(tree, name))
        compiler = os.environ.get("CC", "cc")
        # Other C libraries may have no static form; such a program is for this kind of system alone.
        for flags in " -static", "":
            result = subprocess.run([ninja(), "build/mhagen"], cwd=tree, env={**os.environ, "CC": compiler + flags},
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if result.returncode == 0:
                break
        else:
            print(result.stdout)
            raise SystemExit(f"mhagen: not built: missing packages: {missing_packages() or 'none, see above'}; "
                             "sh scripts/install.sh installs those of Debian and Ubuntu")
        path = pathlib.Path(tree, "build/mhagen")
        strip = shlex.split(os.environ.get("STRIP", "strip"))
        if shutil.which(strip[0]):
            subprocess.run([*strip, path], check=True)
        yield path


def is_static(path):
    """Whether an ELF program of 64 bits asks for no loader, and so for no shared library."""
    data = path.read_bytes()
    if data[:5] != b"\x7fELF\x02":
        return False
    order = "<" if data[5] == 1 else ">"
    table, = struct.unpack_from(order + "Q", data, 32)
    size, count = struct.unpack_from(order + "HH", data, 54)
    interpreter = 3
    return all(struct.unpack_from(order + "I", data, table + at * size) != (interpreter,) for at in range(count))


def tags(path):
    """The platforms that the program runs on, as pip calls them."""
    here = re.sub(r"[-.]", "_", sysconfig.get_platform())
    if not here.startswith("linux_") or not is_static(path):
        return [here]
    machine = here.removeprefix("linux_")
    return [f"manylinux_{OLDEST_GLIBC}_{machine}", f"musllinux_{OLDEST_MUSL}_{machine}"]


# ---- the wheel ----

def files_of(name, below=""):
    """[(name, bytes)] of a file or a folder of the sources; names in a wheel begin behind `below`."""
    start = ROOT / name
    paths = [start] if start.is_file() else sorted(path for path in start.rglob("*") if path.is_file()
                                                   and not LEFT_OUT & {*path.relative_to(ROOT).parts})
    return [(path.relative_to(ROOT / below).as_posix(), path.read_bytes()) for path in paths]


def prefix():
    """[(name below the prefix, bytes)] of CMake's package."""
    filled = (ROOT / "cmake/mhagen-config-version.cmake.in").read_text().replace("@version@", version())
    runtime = subprocess.run(["awk", "-f", "scripts/joined.awk", "runtime/mhagen.c"], cwd=ROOT, check=True,
                             stdout=subprocess.PIPE).stdout
    return [("share/cmake/mhagen/mhagen-config-version.cmake", filled.encode()),
            ("share/mhagen/mhagen.c", runtime),
            *((f"{folder}/{pathlib.Path(name).name}", (ROOT / name).read_bytes())
              for folder, names in PREFIX.items() for name in names)]


def write_wheel(directory, files):
    base = f"{project()['name']}-{version()}"
    with program() as path:
        platforms = tags(path)
        wheel = ["Wheel-Version: 1.0", "Generator: mhagen", "Root-Is-Purelib: false",
                 *(f"Tag: py3-none-{platform}" for platform in platforms), ""]
        files = [*files, (f"{base}.data/scripts/mhagen", path.read_bytes()),
                 *((f"{base}.data/data/{name}", data) for name, data in prefix()),
                 (f"{base}.dist-info/METADATA", metadata()),
                 (f"{base}.dist-info/WHEEL", "\n".join(wheel).encode()),
                 *((f"{base}.dist-info/licenses/{name}", data) for name, data in licenses())]
    record = f"{base}.dist-info/RECORD"
    rows = [f"{name},sha256={digest(data)},{len(data)}\n" for name, data in files]
    files.append((record, "".join([*rows, f"{record},,\n"]).encode()))
    target = pathlib.Path(directory, f"{base}-py3-none-{'.'.join(platforms)}.whl")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files:
            entry = zipfile.ZipInfo(name, time.gmtime(date())[:6])
            mode = stat.S_IFREG | (0o755 if name.endswith("/scripts/mhagen") else 0o644)
            entry.external_attr = mode << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return target.name


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
