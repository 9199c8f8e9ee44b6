"""The files around `mhagen model` and `mhagen pack`: what reading costs, what is told of files that are others, and
what is left of runs that are killed. Files are written by hand."""
import fcntl
import json
import os
import re
import resource
import signal
import struct
import subprocess

import pytest

from test_config import assert_refused
from test_faults import wait_for
from tools import MHAGEN, cpu_time, run

MODEL = ["isa=scalar", "seq=4"]
SHAPE = "h=1 d_model=2 dk=2 seq=4 isa=scalar".split()
BERT = dict(model_type="bert", hidden_size=2, num_attention_heads=1, num_hidden_layers=1)


def varint(x):
    data = b""
    while x > 127:
        data, x = data + bytes([x & 127 | 128]), x >> 7
    return data + bytes([x])


def field(number, value):
    """A field of a message, as bytes or as a number."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def safetensors_file(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def gguf_text(text):
    return struct.pack("<Q", len(text)) + text.encode()


def gguf_file(keys=b"", tensors=b"", counts=None, magic=b"GGUF", version=3, data=b""):
    head = magic + struct.pack("<IQQ", version, *(counts or (0, 0))) + keys + tensors
    return head + bytes(-len(head) % 32) + data


def gguf_tensor(shape, kind=0, offset=0, name="x"):
    return gguf_text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def gguf_key(name, kind, value):
    return gguf_text(name) + struct.pack("<I", kind) + value


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


def message(*command, program=(MHAGEN,), **options):
    """Of a command that fails as it must."""
    result = subprocess.run([*program, *map(str, command)], capture_output=True, text=True, timeout=600, **options)
    assert_refused(result, "")
    return result.stderr


# ---- what it costs ----


def cost(*command, mib=1024):
    """The message of a command that fails in so much memory, and the seconds of CPU time."""
    start = cpu_time()
    told = message(*command, program=("sh", "-c", f'ulimit -v {mib * 1024}; exec "$@"', "sh", MHAGEN))
    return told, cpu_time() - start


SECONDS = 6  # ten times what is used


def test_many_blocks(tmp_path):
    """A small config with 16,384 kinds of layers, among as many tensors."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(dict(model_type="swin", depths=16 * [1024], num_heads=16 * [1])))
    (folder / "model.safetensors").write_bytes(matrices(*(f"a.b.c.d.e.f.{i}.query.weight" for i in range(16384))))
    told, seconds = cost("model", folder, *MODEL, "-o", tmp_path / "out")
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


def test_empty_messages(tmp_path):
    """ONNX has 2 bytes for an attribute without anything, and 3 for a list of a byte in it."""
    for attribute, most in (b"", 100), (field(8, b"\1"), 150):
        nodes = field(1, field(5, attribute) * 4096) * (1500000 // (2 + len(attribute)) // 4096)
        (tmp_path / "x.onnx").write_bytes(field(7, nodes))
        told, seconds = cost("model", tmp_path / "x.onnx", *MODEL, "-o", tmp_path / "out", mib=most)
        assert "no node is Attention" in told and seconds < SECONDS, (told, seconds)


@pytest.mark.parametrize("reader", ["config", "index", "safetensors"])
def test_memory_is_limited(reader, tmp_path):
    """Three bytes of JSON are a table of Lua, of thirty times as many. Here 90 MB of such are refused."""
    folder, large = bert(tmp_path / "model"), b'{"a":[' + 30000000 * b"[]," + b"[]]}"
    if reader == "safetensors":
        (folder / "model.safetensors").write_bytes(safetensors_file(large))
    else:
        (folder / "model.safetensors").unlink()
        (folder / ("config.json" if reader == "config" else "model.safetensors.index.json")).write_bytes(large)
    told, seconds = cost("model", folder, *MODEL, "-o", tmp_path / "out")
    assert told == f"mhagen: {folder}: to read it takes more than 896 MiB of memory\n" and seconds < SECONDS


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


INDEX = "model.safetensors.index.json"
CT2 = struct.pack("<IH", 6, 16) + b"TransformerSpec\0"
OTHERS = [  # files of a folder without model.safetensors, and what is told
    ({}, "config.json: No such file or directory"),
    ({"config.json": {}}, "config.json: model_type: is missing"),
    ({"config.json": BERT}, "model.safetensors: No such file or directory"),
    ({"config.json": BERT, "pytorch_model.bin": b""}, "model/pytorch_model.bin: is no torch.save's file"),
    ({"config.json": BERT, "pytorch_model.bin.index.json": {}}, "pytorch_model.bin.index.json: weight_map is missing"),
    ({"config.json": {**BERT, "model_type": "bret"}, "pytorch_model.bin": b""}, "config.json: model type bret is not"),
    ({"config.json": {}, "model.bin": CT2}, "no model.safetensors; model.bin is of CTranslate2, and is not read"),
    ({"model.bin": CT2}, "model.bin is of CTranslate2, and is not read; take the folder that it was converted from"),
    ({"config.json": BERT, "model.bin": b"PK"}, "model.bin is not read; take the folder that it was converted from"),
    ({"adapter_model.safetensors": b""}, "adapter_model.safetensors is an adapter; merge it by "),
    ({"params.json": {}, "consolidated.safetensors": b""}, "consolidated.safetensors is of Mistral's or Meta's own"),
    ({"params.json": {}, "consolidated.00.pth": b""}, "Meta's own folder, and is not read; take the model's folder of"),
    ({"config.json": BERT, "model.onnx": b""}, "model: no model.safetensors; model.onnx is not looked for"),
    ({"config.json": BERT, "onnx/model.onnx": b""}, "; onnx/model.onnx is not looked for in a folder; give"),
    ({"config.json": BERT, INDEX: {"weight_map": {"a": {}}}}, f"{INDEX}: tensor a: a table is no file of this folder"),
    ({"config.json": BERT, INDEX: {"weight_map": {"a": "./"}}}, "tensor a: ./ is no file of this folder"),
    ({"config.json": BERT, INDEX: {"weight_map": {"a": "./../b"}}}, "tensor a: ./../b is no file of this folder"),
    ({"config.json": BERT, INDEX: {"weight_map": {"a": "./none"}}}, "model/none: No such file or directory"),
]


@pytest.mark.parametrize("files, told", OTHERS, ids=range(len(OTHERS)))
def test_other_folders(files, told, tmp_path):
    for name, data in files.items():
        path = tmp_path / "model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else json.dumps(data).encode())
    (tmp_path / "model").mkdir(exist_ok=True)
    assert told in message("model", "model", *MODEL, "-o", "out", cwd=tmp_path)


@pytest.mark.parametrize("path, told", [
    ("bert-base-uncased", "give the folder of `hf download bert-base-uncased --local-dir DIR`\n"),
    ("org/Model-L6.v2", "`hf download org/Model-L6.v2 --local-dir DIR`\n"),
    ("https://host/a.gguf", "https://host/a.gguf: is an address; download the model"),
    ("a/b/c", "a/b/c: No such file or directory\n"), ("none.gguf", "none.gguf: No such file or directory\n"),
    ("$(a)", "$(a): No such file or directory\n")])
def test_names_of_a_hub(path, told, tmp_path):
    assert told in message("model", path, *MODEL, "-o", "out", cwd=tmp_path)


@pytest.mark.parametrize("type_, told", [("adapter", "is an adapter; llama-export-lora -m MODEL.gguf --"),
                                         ("mmproj", "is the tower and projector"),
                                         ("imatrix", "is a quantizer's matrix of importance"),
                                         ("model", "has no tensors, as a file of a vocabulary alone")])
def test_gguf_files_that_are_no_model(type_, told, tmp_path):
    values = {"type": type_, "architecture": "llama"}
    keys = [gguf_key(f"general.{name}", 8, gguf_text(value)) for name, value in values.items()]
    (tmp_path / "a.gguf").write_bytes(gguf_file(b"".join(keys), counts=(0, 2)))
    assert f"a.gguf: {told}" in message("model", tmp_path / "a.gguf", *MODEL, "-o", tmp_path / "out")


def test_quantized_weights(tmp_path):
    """Those of other programs are refused by the name of their method, and what it leaves alone is read."""
    folder = bert(tmp_path / "model", quantization_config=dict(quant_method="gptq", group_size=128))
    run(MHAGEN, "model", folder, *MODEL, "-o", tmp_path / "out")
    plain = (folder / "model.safetensors").read_bytes()
    told = ("; quantization_config says gptq, of which this is not read: take the model that was quantized, or write "
            "it by ")
    for old, new, error in [(b"self.query.weight", b"self.query.qweigh", "weight is missing"),
                            (b"self.value.weight", b"self.value.qweigh", "weight is missing"),
                            (b'{"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}',
                             b'{"dtype": "F8_E4M3", "shape": [2, 8], "data_offsets": [0, 16]}',
                             "numbers of type F8_E4M3 are not read")]:
        text = plain[8:8 + struct.unpack("<Q", plain[:8])[0]].replace(old, new)
        assert new in text
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + plain[-64:])
        assert error + told in message("model", folder, *MODEL, "-o", tmp_path / "refused")


def test_files_of_a_folder(tmp_path):
    """Not the folder, but one of its files."""
    folder = bert(tmp_path / "model")
    for name in "config.json", "model.safetensors":
        assert f"nor a .gguf or .onnx file; of a model's folder give the path: {folder}\n" in message(
            "model", folder / name, *MODEL, "-o", tmp_path / "out")


def split(**keys):
    """A GGUF file with these keys."""
    return gguf_file(b"".join(gguf_key(f"split.{key}", 2, struct.pack("<H", value)) for key, value in keys.items()),
                     counts=(0, len(keys)))


def test_parts_of_gguf(tmp_path):
    """One of several files has a part of the tensors: `pack` says so, `model` reads all of them."""
    path, other = tmp_path / "a-00002-of-00003.gguf", tmp_path / "b.gguf"
    told = f"is part 2 of 3; llama-gguf-split joins them: llama-gguf-split --merge {tmp_path}/%s OUT.gguf\n"
    for file, first in (path, "a-00001-of-00003.gguf"), (other, "b.gguf"):
        file.write_bytes(split(no=1, count=3))
        assert message("pack", *SHAPE, f"wq={file}:x", "-o", tmp_path / "out") == (
            f"mhagen: {file}: tensor x is missing; the file {told % first}")
    assert message("model", other, *MODEL, "-o", tmp_path / "out") == f"mhagen: {other}: {told % 'b.gguf'}"
    assert "a-00001-of-00003.gguf: No such file" in message("model", path, *MODEL, "-o", tmp_path / "out")
    (tmp_path / "a-00001-of-00003.gguf").write_bytes(split(no=1, count=3))
    assert "a-00001-of-00003.gguf: is not part 1 of 3" in message("model", path, *MODEL, "-o", tmp_path / "out")
    path.write_bytes(split(no=0, count=1))
    assert "general.architecture: is missing" in message("model", path, *MODEL, "-o", tmp_path / "out")


# Names of files that are commands too; with the last one a command is too long for a message.
NAMES = ["a b", "$(touch ran)", "`touch ran`", "'; touch ran; '", '"; touch ran; "', "-x", "'; touch ran #" * 17]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_names_of_files_in_commands(name, tmp_path):
    """What a message says to run is run, by a shell and without the programs: each gets the name, and nothing else is
    run."""
    (tmp_path / "bin").mkdir()
    for program in "python3", "llama-gguf-split", "gguf-convert-endian":
        (tmp_path / "bin" / program).write_text('#!/bin/sh\nprintf "%s\\0" "$@"\n')
        (tmp_path / "bin" / program).chmod(0o755)
    folder = bert(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps(dict(weight_map=dict(x=name + ".bin"))))
    files = {folder / f"{name}.bin": b"\x80\2\x8a\n\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19",
             tmp_path / f"{name}.gguf": split(no=1, count=3), tmp_path / f"{name}2.gguf": b"GGUF\0\0\0\2"}
    for path, data in files.items():
        path.write_bytes(data)
        told = message("model", folder if path.parent == folder else path, *MODEL, "-o", tmp_path / "out")
        command = re.search(": ((?:python3 -c|llama-gguf-split|gguf-convert-endian) .*)", told)
        if name == NAMES[-1]:
            assert not command
            continue
        command = command[1]
        got = run("sh", "-c", command, cwd=tmp_path, env=dict(os.environ, PATH=f"{tmp_path}/bin:{os.environ['PATH']}"))
        assert str(path) in got.split("\0") and got.count("\0") == (2 if "endian" in command else 3)
    assert not (tmp_path / "ran").exists()


def test_gguf_of_big_endian_machines(tmp_path):
    path = tmp_path / "a.gguf"
    for version in 2, 3:
        path.write_bytes(b"GGUF" + struct.pack(">IQQ", version, 0, 0))
        told = message("model", path, *MODEL, "-o", tmp_path / "out")
        assert "is big-endian; gguf-convert-endian of Python's gguf changes that in place" in told
    assert told.endswith(f": gguf-convert-endian {path} little\n")


def test_json_as_a_config(tmp_path):
    (tmp_path / "cfg.json").write_text('\n{"h": 2}')
    assert message("gen", "cfg.json", "-o", "out", cwd=tmp_path) == (
        "mhagen: config: cfg.json: is JSON; such a file is one Lua table, return { h = 12, ... }\n")


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
    process.send_signal(signal.SIGSTOP)  # it does not end before it is killed
    (left,) = out.glob(".mhagen.*.tmp")
    small = "model", bert(tmp_path / "small"), *MODEL, "-o", out
    run(MHAGEN, *small)
    assert left.exists() and process.poll() is None  # it has not ended
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
