"""Fixtures that tests of the Python package share; importing one is enough, for all are autouse."""
import os

import pytest

from tools import MHAGEN, shared


@pytest.fixture(scope="session", autouse=True)
def package_environment(tmp_path_factory):
    """The program of this build, and a cache of the tests' own."""
    cache = shared(tmp_path_factory, "python-cache", lambda _: None)
    os.environ.update(MHAGEN=str(MHAGEN), XDG_CACHE_HOME=str(cache), CC="cc -O0")


@pytest.fixture(autouse=True)
def inference():
    import torch
    torch.manual_seed(5)
    with torch.no_grad():
        yield
