"""README.md says what is true: its commands run, its tables and its program are those of the sources."""
import re
import subprocess

import pytest

from tools import MHAGEN, ROOT, run

README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", README, re.M | re.S)
INSTALLING = ["sh scripts/demo.sh\n", "sh scripts/test.sh\n"]


def test_two_commands_install():
    assert COMMANDS[:2] == INSTALLING and len(COMMANDS) > 3
    for command in INSTALLING:
        run("sh", "-n", ROOT / command.split()[1])


@pytest.mark.parametrize("commands", COMMANDS[2:])
def test_commands(commands, tmp_path):
    """In a directory that looks like this one, but is not written to."""
    for name in "build", "examples":
        (tmp_path / name).symlink_to(ROOT / name)
    output = run("sh", "-eu", "-c", commands, cwd=tmp_path)
    assert output and "nan" not in output, output


def test_quickstart_is_the_example():
    assert re.findall(r"^```c\n(.*?)^```$", README, re.M | re.S) == [
        (ROOT / "examples/quickstart.c").read_text()]


def test_config_keys():
    """The tables of the keys are those that `mhagen schema --markdown` prints."""
    wanted = re.findall(r"^\| `.*\|$", run(MHAGEN, "schema", "--markdown"), re.M)
    tables = README[README.index("## Config keys"):]
    assert len(wanted) > 20 and re.findall(r"^\| `.*\|$", tables, re.M) == wanted


def test_options_of_report():
    options = set(re.findall(r"(?:^| )(--?[a-z][-a-z]*)", run(MHAGEN, "report", "--help")))
    table = README.split("### Look at a sweep")[1].split("\n## ")[0]
    assert options - set(re.findall(r"`(--?[a-z-]+)", table)) == {"-h", "--help", "--output"}


def test_links_and_names():
    """Every file that is linked or named exists."""
    names = re.findall(r"\]\(([^)#]+)\)", README)
    names += re.findall(r"`((?:gen|runtime|tests|examples|scripts|templates)/[\w./]*)`", README)
    assert len(names) > 15
    missing = [name for name in names if not name.startswith("http") and not (ROOT / name).exists()]
    assert not missing


def test_packages_have_reasons():
    """What install.sh installs is in the table of dependencies, but for headers and runtimes."""
    script = (ROOT / "scripts/install.sh").read_text()
    packages = " ".join(re.findall(r'packages="(?:\$packages )?([a-z0-9][^"]*)"', script)).split()
    table = README[README.index("## Dependencies"):]
    implied = {"gcc", "libc6-dev", "binutils", "libc6-dev-arm64-cross", "libc6-dev-armhf-cross",
               "libc6-dev-s390x-cross", "$(gcc32)"}  # lib32gcc of the version of gcc
    assert len(packages) > 15
    assert not [name for name in packages if name not in implied and name not in table]


def test_picture_is_well_formed():
    subprocess.run(["python3", "-c", "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])",
                    ROOT / "docs/data-flow.svg"], check=True)


def test_outputs_are_ignored():
    """What the commands write is not a change of the repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("no repository")
    outputs = set(re.findall(r" -o (\S+)", "".join(COMMANDS)))
    assert {"out", "quickstart", "sweep", "tuned/mine.lua"} <= outputs
    for output in outputs:
        folder = "" if output == "quickstart" or "." in output else "/"
        run("git", "check-ignore", "-q", output + folder, cwd=ROOT)
