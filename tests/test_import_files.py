"""The files around `mhagen model` and `mhagen pack`: what reading costs, what is told of files that are others, and
what is left of runs that are killed. Files are written by hand."""
import fcntl
import json
import os
import resource
import signal
import struct
import subprocess

import pytest

from test_config import assert_refused
from test_faults import wait_for
from tools import MHAGEN, run

MODEL = ["isa=scalar", "seq=4"]
SHAPE = "h=1 d_model=2 dk=2 seq=4 isa=scalar".split()
BERT = dict(model_type="bert", hidden_size=2, num_attention_heads=1, num_hidden_layers=1)


def safetensors_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def matrices(*names):
    """A file of 2 x 2 matrices."""
    header = {name: dict(dtype="F32", shape=[2, 2], data_offsets=[16 * i, 16 * i + 16]) for i, name in enumerate(names)}
    return safetensors_file(header, struct.pack("<4f", 1, 2, 3, 4) * len(names))


def bert(folder, layers=1, **config):
    """A folder with a small model."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**BERT, "num_hidden_layers": layers, **config}))
    (folder / "model.safetensors").write_bytes(matrices(*(
        f"encoder.layer.{i}.attention.{name}.weight" for i in range(layers)
        for name in ("self.query", "self.key", "self.value", "output.dense"))))
    return folder


def message(*command, **options):
    """Of a command that fails as it must."""
    result = subprocess.run([MHAGEN, *map(str, command)], capture_output=True, text=True, timeout=200, **options)
    assert_refused(result, "")
    return result.stderr


# ---- what it costs ----


def cost(*command):
    """The message, the seconds of CPU time and the MiB that a command which fails took."""
    process = subprocess.Popen([MHAGEN, *map(str, command)], stderr=subprocess.PIPE, text=True)
    with process.stderr:
        told = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 2
    return told, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


SECONDS = 6  # ten times what is used


def test_many_blocks(tmp_path):
    """A small config with 16,384 kinds of layers, among as many tensors."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(model_type="swin", depths=16 * [1024], num_heads=16 * [1])))
    (folder / "model.safetensors").write_bytes(matrices(*(f"a.b.c.d.e.f.{i}.query.weight" for i in range(16384))))
    told, seconds, _ = cost("model", folder, *MODEL, "-o", tmp_path / "out")
    assert "tensor encoder.layers.0.blocks.0.attention.self.query.weight is missing" in told
    assert seconds < SECONDS


def test_two_models_in_a_file(tmp_path):
    """A layer that two tensors may begin is refused; one without anything before it is taken."""
    folder, of = bert(tmp_path / "model"), "encoder.layer.0.attention.{}.weight"
    names = [of.format(name) for name in ("self.query", "self.key", "self.value", "output.dense")]
    (folder / "model.safetensors").write_bytes(matrices(*(side + name for side in ("a.", "b.c.") for name in names)))
    assert f"tensor {names[0]} is there behind a. and behind b.c." in message(
        "model", folder, *MODEL, "-o", tmp_path / "out")
    (folder / "model.safetensors").write_bytes(matrices(*(side + name for side in ("a.", "", "no") for name in names)))
    run(MHAGEN, "model", folder, *MODEL, "-o", tmp_path / "out")


def varint(x):
    data = b""
    while x > 127:
        data, x = data + bytes([x & 127 | 128]), x >> 7
    return data + bytes([x])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def test_empty_messages(tmp_path):
    """ONNX has 2 bytes for an attribute without anything, and 3 for a list of a byte in it."""
    for attribute, most in (b"", 200), (field(8, b"\1"), 250):
        nodes = field(1, field(5, attribute) * 4096) * (1500000 // (2 + len(attribute)) // 4096)
        (tmp_path / "x.onnx").write_bytes(field(7, nodes))
        told, seconds, mib = cost("model", tmp_path / "x.onnx", *MODEL, "-o", tmp_path / "out")
        assert "no node is Attention" in told and seconds < SECONDS and mib < most, (seconds, mib)


@pytest.mark.parametrize("reader", ["config", "index", "safetensors"])
def test_memory_is_limited(reader, tmp_path):
    """Three bytes of JSON are a table of Lua, of thirty times as many. Here 90 MB of such are refused."""
    folder, large = bert(tmp_path / "model"), b'{"a":[' + 30000000 * b"[]," + b"[]]}"
    if reader == "safetensors":
        (folder / "model.safetensors").write_bytes(safetensors_file(large))
    else:
        (folder / "model.safetensors").unlink()
        (folder / ("config.json" if reader == "config" else "model.safetensors.index.json")).write_bytes(large)
    told, seconds, mib = cost("model", folder, *MODEL, "-o", tmp_path / "out")
    assert told == f"mhagen: {folder}: to read it takes more than 1024 MiB of memory\n"
    assert seconds < SECONDS and mib < 1300, (seconds, mib)


# ---- what is told ----


@pytest.mark.parametrize("text, told", [
    (b'{"x": {"dtype": "F32"}, "y": {}, "x" : {}}', "header: key x is there twice"),
    (b'{"x": {"dtype": "F32", "shape": [], "dtype": "F16"}}', "header: key dtype is there twice"),
    (b'{"\\"{": {"dtype": "}\\\\"}, "\\"{": 1}', 'header: key \\"{ is there twice'),
    (b'{"x": {}, "\\u0078": {}}', "header: a key is there twice"),
    (b'{"x": {}}\0"', "header: has a null byte"),
    (b'{"x": null, "y": "x: x", "a": {"x": null, "z": {"x": 1}}}', "tensor a: dtype is no text"),
])
def test_keys_that_are_there_twice(text, told, tmp_path):
    """Of two tensors with one name, nobody knows which is meant."""
    (tmp_path / "x.safetensors").write_bytes(safetensors_file(text))
    assert f"x.safetensors: {told}" in message("pack", *SHAPE, f"wq={tmp_path}/x.safetensors:x", "-o", tmp_path / "out")


def test_config_with_a_key_twice(tmp_path):
    folder = bert(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(BERT)[:-1] + ', "hidden_size": 4}')
    assert "config.json: key hidden_size is there twice" in message("model", folder, *MODEL, "-o", tmp_path / "out")


def test_no_room(tmp_path):
    """The name is that of the file that is not made, not of the one that becomes it."""
    folder, files = bert(tmp_path / "model", layers=99), ["wq", "wk", "wv", "wo"]
    (tmp_path / "x.safetensors").write_bytes(matrices(*files))

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
    packed = message("pack", *SHAPE, *(f"{name}={tmp_path}/x.safetensors:{name}" for name in files),
                     "-o", "out/a.packed", preexec_fn=limit, cwd=tmp_path)
    assert packed == "mhagen: out/a.packed: File too large\n"
    told = message("model", folder, *MODEL, "-o", "out", preexec_fn=limit, cwd=tmp_path)
    assert told == "mhagen: out/mha_f32_h1_d2_k2_s4_len_scalar.packed: File too large\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "x.safetensors"]


# ---- what is left ----


def test_killed_runs(tmp_path):
    """What a killed run has left the next one takes away, but nothing that may be another's."""
    folder, out = bert(tmp_path / "model", layers=4000), tmp_path / "out"
    out.mkdir()
    process = subprocess.Popen([MHAGEN, "model", folder, *MODEL, "-o", out], stdout=subprocess.DEVNULL)
    wait_for(lambda: list(out.glob(".mhagen.*.tmp")))
    (left,) = out.glob(".mhagen.*.tmp")
    small = "model", bert(tmp_path / "small"), *MODEL, "-o", out
    run(MHAGEN, *small)
    assert left.exists() and process.poll() is None  # it runs
    process.send_signal(signal.SIGKILL)
    process.wait()
    dead = process.pid
    kept = [f".mhagen.{os.getpid()}.0.tmp", f".mhagen.{dead}.7.tmp", ".mhagen.0.0.tmp", ".mhagen.x.0.tmp",
            f".mhagen.{dead}.0.tmp.c", f"a.mhagen.{dead}.0.tmp", f".mhagen.{dead}.8.tmp", f".mhagen.{dead}.9.tmp"]
    for name in kept[:-2]:
        (out / name).write_text("")
    (out / kept[-2]).symlink_to("kernel.c")
    (out / kept[-1]).mkdir()
    with open(out / kept[1], "a") as other:  # of another machine
        fcntl.flock(other, fcntl.LOCK_EX)
        run(MHAGEN, *small)
        assert sorted(path.name for path in out.iterdir() if "mhagen." in path.name) == sorted(
            [*kept, "mhagen.c", "mhagen.h"])
    run(MHAGEN, *small)
    assert not (out / kept[1]).exists() and (out / kept[0]).exists()
