"""Fixtures of more than one test file."""
import os
import pathlib
import shutil
import tempfile

import pytest

import tools


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: not part of the default build")


def pytest_report_header(config):
    return tools.toolchains()


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
