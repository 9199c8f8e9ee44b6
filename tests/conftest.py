"""Fixtures of more than one test file."""
import os
import pathlib
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
def unprivileged():
    """Options of subprocess.run for a user to whom file modes apply: they do not to root."""
    return {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
