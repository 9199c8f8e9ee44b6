"""Which programs the tests find in PATH: those of the packages that scripts/install.sh installs, as on a fresh system.

    packages()                   {name: "installed" or "missing"} of install.sh, for the tests and for other targets
    with_dependencies(packages)  those that are installed, what they depend on, and what every Debian has
    put_first(folder, packages)  fills a folder for the head of PATH, in which programs of all others refuse to run

A test that starts a program of another package fails on every machine, and not only on one that lacks it.
"""
import collections
import os
import subprocess

from tools import ROOT

OTHERS = {"wine"}  # 1 GB; a test runs what it has compiled for Windows where it is there
DEBIANS = {"/usr/bin", "/usr/sbin", "/bin", "/sbin"}  # folders to which nobody else installs programs
REFUSAL = """#!/bin/sh
echo "${0##*/}: no package of scripts/install.sh has this program, which a test starts; add the package there" >&2
exit 127
"""


def lines(*command):
    return subprocess.run(command, text=True, stdout=subprocess.PIPE, check=True).stdout.splitlines()


def packages():
    return {name: state for kind in ("tests", "toolchains")
            for state, name in map(str.split, lines("sh", ROOT / "scripts/install.sh", "--list", kind))}


def names_in(field):
    """The packages of a field such as Depends: a list of alternatives for each comma."""
    return [[word.split("(")[0].split(":")[0].strip() for word in part.split("|")]
            for part in field.split(",") if part.strip()]


def with_dependencies(packages):
    fields = "Package binary:Package db:Status-Status Essential Priority Pre-Depends Depends Provides".split()
    rows = lines("dpkg-query", "-W", "-f", "\\t".join(f"${{{field}}}" for field in fields) + "\\n")
    needs, providers, full = {}, collections.defaultdict(list), collections.defaultdict(list)
    todo, found = ["apt", *packages], set()
    for name, with_machine, state, essential, priority, first, then, provided in (row.split("\t") for row in rows):
        if state == "installed":
            needs[name] = names_in(first) + names_in(then)
            full[name].append(with_machine)
            for virtual, in names_in(provided):
                providers[virtual].append(name)
            if essential == "yes" or priority == "required":
                todo.append(name)
    while todo:
        name = todo.pop()
        if name not in found and name in needs:
            found.add(name)
            for alternatives in needs[name]:  # apt takes the first one that there is
                todo += next(filter(None, ([each] if each in needs else providers[each] for each in alternatives)), [])
    return {each for name in found for each in full[name]}


def has(paths, program):
    """Whether it is one of the paths, or leads to one; packages say /bin for /usr/bin."""
    both = program, os.path.realpath(program)
    return any({path, path.removeprefix("/usr"), f"/usr{path}"} & paths for path in both)


def put_first(folder, packages):
    """What is not Debian's (/usr/local, ~/.cargo) may stand for a package that is missing."""
    paths = set(lines("dpkg-query", "-L", *with_dependencies(packages)))
    places = collections.defaultdict(list)
    for directory in filter(os.path.isdir, os.get_exec_path()):
        for program in os.scandir(directory):
            if os.access(program, os.X_OK) and not program.is_dir():
                places[program.name].append(program.path)
    refusal = folder / ".refusal"
    refusal.write_text(REFUSAL)
    refusal.chmod(0o755)
    folder.chmod(0o755)
    for name in places.keys() - OTHERS - {refusal.name}:
        found = places[name]
        ours = [path for path in found if has(paths, path)]
        debians = any(os.path.dirname(path) in DEBIANS for path in found)
        if found[0] not in ours and (ours or debians or "missing" not in packages.values()):
            (folder / name).symlink_to(ours[0] if ours else refusal)
