"""What tests of `mhagen model --whole` share: models with drawn weights, and their C as a library."""
import ctypes
import json
import re
import shutil
import subprocess

import pytest

from reference_lib import aligned, runtime
from tools import MHAGEN, installed, run, seed_of

if not installed("numpy", "torch", "safetensors", "transformers"):
    pytest.skip("NumPy, PyTorch or transformers is not installed", allow_module_level=True)

import numpy  # noqa: F401
import torch
import transformers
from safetensors.torch import load_file, save_file


GUARD = bytes(range(256)) * 256


def written(kind, cls, folder, **fields):
    """A model with drawn weights, and its folder."""
    torch.manual_seed(6)
    model = getattr(transformers, cls)(transformers.AutoConfig.for_model(kind, **fields)).eval()
    for parameter in model.parameters():
        size = parameter.shape[-1] ** -0.5 if parameter.dim() > 1 else 0.2
        parameter.data = size * torch.randn_like(parameter) + (parameter.data == 1).float()
    model.save_pretrained(folder)
    return model


def edited(folder, to, tensors=lambda all: all, **fields):
    """A copy of a folder with other tensors and fields."""
    shutil.copytree(folder, to)
    config = json.loads((to / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **fields}))
    save_file(tensors(load_file(to / "model.safetensors")), to / "model.safetensors")
    return to


def joined(name):
    """Options of a model: half of them are one source."""
    return ["--single"] * (seed_of("joined", name) % 2)


def expect_refusal(folder, out, said, *keys):
    """One line that says so, and nothing written."""
    result = subprocess.run([MHAGEN, "model", folder, "--whole", "-o", out, *keys], text=True, capture_output=True)
    assert result.returncode == 2 and said in result.stderr and result.stderr.count("\n") == 1
    assert not out.exists()


class Whole:
    """A folder's model as C, compiled fast."""

    def __init__(self, folder, out, *keys):
        self.text = run(MHAGEN, "model", folder, "--whole", "-o", out, *keys)
        run("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC",
            *[path for path in out.glob("*.c") if path.name != "mhagen.c"], runtime()[0], "-o", out / "model.so")
        self.library = ctypes.CDLL(out / "model.so")
        self.sizes = {key: int(value) for key, value in re.findall(r"#define MODEL_(\w+) (\d+)",
                                                                  (out / "model.h").read_text())}
        data = (out / "model.packed").read_bytes()
        assert len(data) == self.sizes["PACKED_BYTES"] and len(data) % 64 == 0
        self.packed, self.packed_at = aligned(len(data))
        ctypes.memmove(self.packed_at, data, len(data))
        self.workspace, self.workspace_at = aligned(self.sizes["WORKSPACE_BYTES"] + len(GUARD))
        ctypes.memmove(self.workspace_at + self.sizes["WORKSPACE_BYTES"], GUARD, len(GUARD))

    def is_guarded(self):
        """Whether what is behind the workspace is as it was."""
        return ctypes.string_at(self.workspace_at + self.sizes["WORKSPACE_BYTES"], len(GUARD)) == GUARD

    def check(self, size):
        return self.library.model_check(ctypes.c_void_p(self.packed_at), ctypes.c_size_t(size))
