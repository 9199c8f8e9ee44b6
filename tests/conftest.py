"""Fixtures of several test files, and a clock that says how much CPU time each file takes."""
import collections
import os
import pathlib
import shutil
import sys
import tempfile
import zlib

import pytest

import programs
import tools

# Files of tests that others use are found by their name alone.
sys.path += [str(folder) for folder in sorted(tools.ROOT.glob("tests/*")) if folder.is_dir()]


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: not part of the default build")
    config.addinivalue_line("markers", "long: takes many seconds")
    if not hasattr(config, "workerinput") and shutil.which("dpkg-query"):  # workers inherit PATH
        folder = tempfile.TemporaryDirectory()
        config.add_cleanup(folder.cleanup)
        programs.put_first(pathlib.Path(folder.name), programs.packages())
        os.environ["PATH"] = f"{folder.name}:{os.environ['PATH']}"


def pytest_report_header(config):
    return [f"drawn by MHAGEN_SEED={tools.SEED} (all: everything)", *tools.toolchains()]


def pytest_make_parametrize_id(val):
    """Of a long text as much as tells it from others."""
    if isinstance(val, str) and len(val) > 60:
        return f"{ascii(val[:40])[1:-1]}...{zlib.crc32(val.encode('utf-8', 'surrogateescape')):08x}"


SHORT = "test_config", "test_cli"  # files of several hundred tests, each of which takes a moment


def pytest_collection_modifyitems(items):
    """What takes longest comes first, and what is short last, so that no worker waits for another one at the end.
    MHAGEN_PARTS=2 takes half of the tests in turn."""
    parts = int(os.environ.get("MHAGEN_PARTS", 1))
    chosen = set(tools.in_turn([item.nodeid for item in items], "parts", count=-(-len(items) // parts)))
    items[:] = [item for item in items if item.nodeid in chosen]
    items.sort(key=lambda item: (item.get_closest_marker("long") is None, item.path.stem in SHORT))


# ---- the clock ----

used = 0.0  # of this process, at the last report
spent = collections.Counter()  # seconds, by file


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
    """CPU time, which other work on the machine hardly changes, of the test and its programs."""
    global used
    before, used = used, sum(os.times()[:4])
    (yield).get_result().cpu = used - before  # xdist hands it to the process that prints


def pytest_runtest_logreport(report):
    spent[report.nodeid.split("::")[0]] += getattr(report, "cpu", 0)  # a worker that died says none


def pytest_terminal_summary(terminalreporter):
    line = ", ".join(f"{pathlib.Path(path).stem} {seconds:.0f}" for path, seconds in spent.most_common()
                     if seconds >= 1)
    terminalreporter.write_line(f"CPU seconds: {sum(spent.values()):.0f}" + (f"; {line}" if line else ""))


@pytest.fixture(scope="session", autouse=True)
def objects(tmp_path_factory):
    """Where tests/cc.sh keeps them."""
    os.environ["OBJECTS"] = str(tools.shared(tmp_path_factory, "objects", lambda _: None))


@pytest.fixture(scope="session")
def covering_texts(tmp_path_factory):
    """A directory of texts of all kinds of configs, each of an ISA in turn: COVER[3] for avx2 is k3_avx2."""
    configs = {f"k{i}_{isa}": f"{config} isa={isa}" for i, config in enumerate(tools.COVER)
               for isa in tools.in_turn(tools.ISAS, config)}
    return tools.shared(tmp_path_factory, "texts", lambda out: tools.generate_many(out, configs))


@pytest.fixture
def open_dir():
    """A directory that other users may enter and write to (pytest's own are private)."""
    with tempfile.TemporaryDirectory() as path:
        os.chmod(path, 0o777)
        yield pathlib.Path(path)


@pytest.fixture
def unprivileged(open_dir):
    """Options of subprocess.run for a user to whom file modes apply: they do not to root. That user
    may not be able to enter the directory of the sources, so the program is elsewhere too."""
    if os.geteuid() != 0:
        return {}
    return {"executable": shutil.copy(tools.MHAGEN, open_dir / "mhagen"),
            "user": 65534, "group": 65534, "extra_groups": []}
