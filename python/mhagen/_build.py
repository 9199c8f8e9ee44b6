"""From a config to a shared library in the cache.

    words(config)    its key=value, as the command line has them
    library(words)   the path of its library, which is made where it is not yet in the cache
    libraries(...)   makes those of several configs
    program()        the path of the generator
"""
from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import os
import pathlib
import shlex
import shutil
import stat
import subprocess
import sysconfig
import tempfile
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

log = logging.getLogger("mhagen")  # to stderr, unless the program has handlers
HERE = pathlib.Path(__file__).parent
NAME = "attention"  # of a kernel that has no name of its own
LIBRARY = "kernel.so"
FLAGS = ["-O2", "-shared", "-fPIC", "-pthread"]


@functools.cache
def program() -> str:
    """$MHAGEN, the program of this installation, or the one in PATH."""
    schemes = {sysconfig.get_default_scheme(), sysconfig.get_preferred_scheme("user")}
    folders = [HERE.parent / "bin", *(sysconfig.get_path("scripts", scheme) for scheme in schemes)]  # pip's --target
    found = [os.environ.get("MHAGEN"), *(shutil.which("mhagen", path=str(folder)) for folder in folders),
             shutil.which("mhagen")]
    for path in found:
        if path:
            return path
    raise FileNotFoundError("mhagen: no program mhagen beside Python, in $MHAGEN or PATH: pip install mhagen")


def say(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(say, value))
    return {"True": "true", "False": "false"}.get(str(value), str(value))  # also NumPy's


def say_type(value: object) -> str:
    """A number type by its name here, or by that of PyTorch or NumPy."""
    name = getattr(value, "__name__", str(value)).removeprefix("torch.")
    return {"float32": "f32", "bfloat16": "bf16", "float16": "f16"}.get(name, name)


def word(key: str, value: object) -> str:
    """key=value, as the command line has it."""
    return f"{key}={(say_type if key.endswith('dtype') else say)(value)}"


def words(config: Mapping[str, object]) -> tuple[str, ...]:
    """None stands for a key that is not given. The order of keys makes no other kernel."""
    given = {"name": NAME, **config}
    return tuple(sorted(word(key, value) for key, value in given.items() if value is not None))


def run(command: Iterable[str | os.PathLike[str]], umask: int = 0o077) -> subprocess.CompletedProcess[str]:
    """What the command writes is this user's alone, for require_own; umask = -1 is the user's."""
    return subprocess.run(list(command), text=True, capture_output=True, umask=umask)


def ask(*arguments: str, umask: int = 0o077) -> str:
    """What the generator prints; a config that it refuses is a ValueError."""
    result = run([program(), *arguments], umask)
    if result.returncode:
        error = result.stderr.strip() or f"mhagen: status {result.returncode}"
        raise (ValueError if result.returncode == 2 else RuntimeError)(error)
    return result.stdout.strip()


@functools.cache
def compiler() -> tuple[list[str], str]:
    """$CC, and what tells it from another one."""
    command = shlex.split(os.environ.get("CC", "cc"))
    path = shutil.which(command[0])
    if not path:
        raise FileNotFoundError(f"mhagen: CC = {command[0]}: no such compiler: apt-get install gcc, or set CC")
    return command, f"{os.path.realpath(path)} {run([*command, '--version']).stdout}"


@functools.cache
def generator() -> str:
    """What tells the generator from another one."""
    with open(program(), "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()


@functools.cache
def native(dtype: str) -> tuple[str, str]:
    """ISA and core that `native` stands for: homes with a cache may be those of several machines."""
    return ask("isas", "--widest", "--dtype", dtype), ask("isas", "--cpu")


def require_own(path: pathlib.Path, folder: pathlib.Path) -> None:
    """What another user could put there would run as code of this one."""
    state = path.lstat()
    if state.st_uid not in (os.getuid(), 0):
        raise PermissionError(f"mhagen: {folder}: {path} belongs to another user, and its code would run: "
                              "set XDG_CACHE_HOME to a folder of your own")
    sticky = state.st_mode & stat.S_ISVTX and path in folder.parents  # others cannot replace what is in it
    if state.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky:
        raise PermissionError(f"mhagen: {folder}: other users may write to {path}, and its code would run: "
                              f"chmod go-w {shlex.quote(str(path))}, or set XDG_CACHE_HOME")


def cache() -> pathlib.Path:
    """The folder of all kernels. It, and the folders that it is in, are this user's or the system's."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    folder = pathlib.Path(base if os.path.isabs(base) else pathlib.Path.home() / ".cache", "mhagen")
    for path in (*reversed(folder.parents), folder):
        if not path.exists():  # mkdir's own parents may get a group that writes
            path.mkdir(0o700, exist_ok=True)
    folder = folder.resolve()  # links are not followed again
    for path in (folder, *folder.parents):
        require_own(path, folder)
    return folder


def key(given: tuple[str, ...]) -> str:
    command, identity = compiler()
    parts = [*given, generator(), *command, identity, *FLAGS, (HERE / "layout.c").read_text()]
    values = dict(word.split("=", 1) for word in given)
    if "native" in (values.get("isa"), values.get("cpu")):
        with contextlib.suppress(ValueError):  # of a dtype that does not exist: `gen` says so of the config
            parts += native(values.get("dtype", "f32"))
    if "tuned" in values:
        parts.append(pathlib.Path(values["tuned"]).read_text())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def folder_of(given: tuple[str, ...]) -> pathlib.Path:
    return cache() / key(given)


def library(given: tuple[str, ...], count: str = "a kernel") -> pathlib.Path:
    """Two processes may make the same one; each writes a folder of its own, and the first one stays."""
    folder = folder_of(given)
    path = folder / LIBRARY
    if path.exists():
        for each in (folder, path):  # who could write to the cache once may have left them
            require_own(each, folder)
        return path
    command, _ = compiler()
    log.warning("mhagen: compiles %s, which takes seconds: %s", count, " ".join(given))
    with tempfile.TemporaryDirectory(prefix="new-", dir=folder.parent) as new:
        made = pathlib.Path(new, "kernel")
        ask("gen", *given, "-o", str(made), "--quiet")
        sources = map(str, [*sorted(made.glob("*.c")), HERE / "layout.c"])
        result = run([command[0], *FLAGS, *command[1:], f"-I{made}", *sources, "-o", str(made / path.name)])
        if result.returncode:
            raise RuntimeError(f"mhagen: {shlex.join(command)}: {result.stderr.strip() or 'failed'}")
        with open(made / path.name, "rb") as file:
            os.fsync(file.fileno())
        try:
            os.rename(made, folder)
        except OSError:
            if not path.exists():
                raise
    return path


def libraries(configs: Iterable[tuple[str, ...]]) -> None:
    """Those that are not in the cache, as many at a time as there are cores."""
    new = [given for given in configs if not (folder_of(given) / LIBRARY).exists()]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        counts = [f"kernel {at} of {len(new)}" for at in range(1, len(new) + 1)]
        list(pool.map(library, new, counts))
