"""`mhagen model` and `mhagen pack` of files of torch.save: nothing of them is run, and what is wrong is one line."""
import collections
import json
import os
import pickle
import random
import shlex
import struct
import sys
import warnings
import zipfile

import pytest

from tools import MHAGEN, SEED, installed, run

if not installed("numpy", "torch", "safetensors"):
    pytest.skip("NumPy, PyTorch or safetensors is not installed", allow_module_level=True)

import torch
from safetensors.torch import save_file

from test_import import refused

KEYS = ["isa=scalar", "seq=4"]
CONFIG = dict(model_type="bert", hidden_size=8, num_attention_heads=2, num_hidden_layers=2)
NAMES = [f"encoder.layer.{i}.attention.{name}" for i in range(2)
         for name in ["self.query", "self.key", "self.value", "output.dense"]]


def tensors(kind=torch.float32):
    torch.manual_seed(3)
    return {f"{name}.{part}": torch.randn(*shape).to(kind) for name in NAMES
            for part, shape in [("weight", (8, 8)), ("bias", (8,))]}


def folder(path, **files):
    """A model; files: of (path) that write them."""
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    for name, write in files.items():
        write(path / name.replace("__", "."))
    return path


def packed(path):
    run(MHAGEN, "model", path, *KEYS, "-o", path / "out")
    return next((path / "out").glob("*.packed")).read_bytes()


def pickled(x, **options):
    return dict(pytorch_model__bin=lambda path: torch.save(x, path, **options))


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_same_as_safetensors(kind, tmp_path):
    """Also by another protocol, and with what else a state dict may have."""
    x = tensors(kind)
    expected = packed(folder(tmp_path / "plain", model__safetensors=lambda path: save_file(x, path)))
    all_in_one = torch.cat([value.flatten() for value in x.values()])
    parts = all_in_one.split([value.numel() for value in x.values()])
    views = {name: part.view(x[name].shape) for name, part in zip(x, parts)}  # of one storage
    module = torch.nn.Linear(2, 2).state_dict()  # an OrderedDict with attributes
    module.update(x, ids=torch.arange(4), none=torch.zeros(0, 4), turned=torch.ones(2, 3).T, lr=0.5, big=1 << 40,
                  text="a", rest=[1, (2, None), {"a": True}], wanted=torch.nn.Parameter(torch.ones(3)))
    for i, (given, options) in enumerate([(x, {}), (views, {}), (module, {}), (module, dict(pickle_protocol=4))]):
        assert packed(folder(tmp_path / str(i), **pickled(given, **options))) == expected


def by_columns(x):
    return {name: value.T.contiguous().T if value.dim() == 2 else value for name, value in x.items()}


def test_transposed(tmp_path):
    """Matrices that lie column by column: of a model, fused ones of [in][out], and in `pack`."""
    fused = {f"h.0.attn.{name}.{part}": torch.randn(shape) for name, width in [("c_attn", 24), ("c_proj", 8)]
             for part, shape in [("weight", (8, width)), ("bias", (width,))]}
    gpt2 = dict(model_type="gpt2", n_embd=8, n_head=2, n_layer=1, n_positions=8)
    for i, (x, config) in enumerate([(tensors(), CONFIG), (fused, gpt2)]):
        made = []
        for values in x, by_columns(x):
            path = folder(tmp_path / f"{i}{len(made)}", **pickled(values))
            (path / "config.json").write_text(json.dumps(config))
            made.append(packed(path))
        assert made[0] == made[1]
    made = []
    matrices = {letter: torch.randn(4, 8) for letter in "qkv"}
    for values in matrices, by_columns(matrices):
        torch.save(values, tmp_path / "a.bin")
        for layout, shape in ("out_in", "h=1 d_model=8 dk=4"), ("in_out", "h=2 d_model=4 dk=4"):
            files = [f"w{letter}={tmp_path}/a.bin:{letter}" for letter in "qkv"]
            run(MHAGEN, "pack", *shape.split(), *KEYS, "project=qkv", *files, "--layout", layout, "-o", tmp_path / "x")
            made.append((tmp_path / "x").read_bytes())
    assert made[:2] == made[2:]


def test_shards(tmp_path):
    x = tensors()
    expected = packed(folder(tmp_path / "plain", model__safetensors=lambda path: save_file(x, path)))
    path = folder(tmp_path / "model")
    for i in 0, 1:
        torch.save({name: value for name, value in x.items() if f"layer.{i}." in name}, path / f"part-{i}.bin")
    index = dict(weight_map={name: f"part-{int('layer.1.' in name)}.bin" for name in x})
    (path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert packed(path) == expected


def test_pack(tmp_path):
    """Single matrices."""
    x, shape = tensors(), "h=2 d_model=8 dk=4 seq=4 isa=scalar".split()
    save_file(x, tmp_path / "a.safetensors")
    made = []
    for ending in "safetensors", "bin", "pt", "pth":
        if ending != "safetensors":
            torch.save(x, tmp_path / f"a.{ending}")
        files = [f"{to}={tmp_path}/a.{ending}:{name}.weight" for to, name in zip(["wq", "wk", "wv", "wo"], NAMES)]
        run(MHAGEN, "pack", *shape, *files, "-o", tmp_path / "x.packed")
        made.append((tmp_path / "x.packed").read_bytes())
    assert made == 4 * made[:1]


# ---- what is refused ----


class Runs:
    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def storage(kind=b"ctorch\nFloatStorage\n", key=b"a", count=b"K\4", name=b"storage"):
    """The opcodes of a reference to a storage."""
    texts = [b"X" + struct.pack("<I", len(text)) + text for text in (name, key, b"cpu")]
    return b"(" + texts[0] + kind + texts[1] + texts[2] + count + b"tQ"


def view(of=None, first=b"K\0", shape=b"K\2K\2\x86", strides=b"K\2K\1\x86"):
    """Those of a dictionary with a tensor."""
    rebuilt = b"ctorch._utils\n_rebuild_tensor_v2\n("
    return (b"\x80\2}X\1\0\0\0x" + rebuilt + (of or storage()) + first + shape + strides +
            b"\x89ccollections\nOrderedDict\n)RtRs.")


WRONG = [  # the bytes of data.pkl, and what is told
    (b"", "opcode: what it is in ends"), (b"\x80\2}", "opcode: what it is in ends"),
    (b"\x80\1}.", "protocol 1 is not known"), (b"\x80\2K\1.", "is no dictionary of tensors"),
    (b"\x80\2.", "the stack is empty"), (b"\x80\2u.", "there is no mark"), (b"\x80\2(u.", "the stack is empty"),
    (b"\x80\2}(K\1u.", "a key has no value"), (b"\x80\2}(}K\1u.", "a key is no text"),
    (b"\x80\2}(G\x7f\xf8\0\0\0\0\0\0K\1u.", "a key is no text"),
    (b"\x80\2}(K\1K\1K\1K\1u.", "key 1 is there twice"), (b"\x80\2(}K\1K\1s.", "tensor x is missing"),
    (b"\x80\2}(K\1\x86.", "the stack is empty"), (b"\x80\2}K\1a.", "a list is missing"),
    (b"\x80\2h\7.", "the memo has no 7"), (b"\x80\2\x8a\x09123456789.", "a number of 9 bytes"),
    (b"\x80\2X\xff\xff\xff\x7fa.", "text: what it is in ends"), (b"\x80\2i.", "opcode 0x69 is not of a state dict"),
    (b"\x80\4\x95\xff\0\0\0\0\0\0\0.", "frame: what it is in ends"),
    (b"\x80\2c" + 300 * b"a", "GLOBAL: a name is too long"),
    (b"\x80\2cos\nsystem\nX\1\0\0\0a\x85R.", "os.system is not of a state dict, and is not run"),
    (b"\x80\2K\1)R.", "REDUCE: is of no function"), (b"\x80\2ccollections\nOrderedDict\nK\1R.", "a tuple is missing"),
    (b"\x80\2ccollections\nOrderedDict\n]\x85R.", "OrderedDict has arguments"),
    (b"\x80\2K\1Q.", "a tuple is missing"), (b"\x80\2K\1\x85Q.", "is no storage that is known"),
    (b"\x80\2K\1}b.", "a dictionary is missing"),
    (b"\x80\4K\1K\1\x93.", "STACK_GLOBAL: a name is no text"),
    (view(storage(name=b"module")), "is no storage that is known"),
    (view(storage(kind=b"K\1")), "is no storage that is known"), (view(storage(key=b"b")), "storage b is missing"),
    (view(storage(key=b"../a")), "storage ../a is missing"),
    (view(storage(count=b"K\5")), "storage a: 5 numbers of FloatStorage do not take 16 bytes"),
    (view(storage(count=b"J\xff\xff\xff\xff")), "storage a: -1 numbers"),
    (view(storage(kind=b"ctorch\nHalfStorage\n")), "storage a: 4 numbers of HalfStorage do not take 16 bytes"),
    (view(storage(kind=b"ctorch\nComplexFloatStorage\n")), "torch.ComplexFloatStorage is not of a state dict"),
    (view(b"K\1"), "a tensor has no storage"), (view(first=b"N"), "a tensor's first number is no count"),
    (view(first=b"K\1"), "4 numbers from number 1 on of a storage of 4"),
    (view(first=b"J\xff\xff\xff\xff"), "a tensor's first number is no count"),
    (view(shape=b"K\2"), "a shape is no tuple"), (view(shape=b"NK\1\x86"), "a shape has what is no count"),
    (view(shape=b"K\2K\2K\1\x87"), "2 strides of 3 axes"), (view(shape=b"K\2K\3\x86", strides=b"K\3K\1\x86"),
                                                           "6 numbers from number 0 on of a storage of 4"),
    (view(shape=2 * b"\x8a\5\0\0\0\0\1" + b"\x86"), "more than 2^47 numbers"),
    (view(first=b"K\1", strides=b"K\1K\2\x86"), "4 numbers from number 1 on of a storage of 4"),
    (view(strides=b"K\1K\2\x86"), "numbers of type F32 with strides [1, 2] (save x.contiguous()) are not read"),
    (view(strides=b"K\2K\2\x86"), "numbers of type F32 with strides [2, 2] (save x.contiguous()) are not read"),
    (view(), "its shape is [2, 2], and wq must be [8, 8]"),
]


def archive(path, data, **more):
    with zipfile.ZipFile(path, "w") as file:
        for name, content in {"data.pkl": data, "data/a": struct.pack("<4f", 1, 2, 3, 4), **more}.items():
            file.writestr(f"x/{name}", content)
    return path


def told(tmp_path, path):
    return refused(tmp_path, "pack", "h=2", "d_model=8", "dk=4", *KEYS, f"wq={path}:x")


@pytest.mark.parametrize("data, message", WRONG, ids=[message for _, message in WRONG])
def test_wrong(data, message, tmp_path):
    said = told(tmp_path, archive(tmp_path / "x.bin", data))
    assert message in said and "x.bin: " in said, said


def test_nothing_is_run(tmp_path):
    """By the writers' own opcodes: what torch.load would run is refused by its name."""
    marker = tmp_path / "ran"
    for call in (Runs(os.mkdir, str(marker)), Runs(eval, f"open({str(marker)!r}, 'w')"),
                 collections.Counter("a"), torch.dtype):
        torch.save({"x": call}, tmp_path / "x.bin")
        assert " is not of a state dict, and is not run; save model.state_dict() alone" in told(
            tmp_path, tmp_path / "x.bin")
        assert not marker.exists()


def test_other_archives(tmp_path):
    path = tmp_path / "x.bin"
    torch.save(tensors(), path, _use_new_zipfile_serialization=False)
    said = told(tmp_path, path)
    assert "is of PyTorch before 1.6; torch.save writes it anew" in said
    run(sys.executable, *shlex.split(said.split(": python3 ")[1]))
    assert "tensor x is missing" in told(tmp_path, path)
    archive(path, view(), byteorder="big")
    assert "tensor x/byteorder: is not little" in told(tmp_path, path)
    path.write_bytes(pickle.dumps({"x": 1}))
    assert "is no torch.save's file" in told(tmp_path, path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x/data/a", b"")
    assert "entry data.pkl is missing" in told(tmp_path, path)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", 99 * b"a")
    assert "tensor x/data.pkl: is compressed; write it by torch.save" in told(tmp_path, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Linear(2, 2)).save(path)
    assert "is not of a state dict" in told(tmp_path, path)


def test_damaged(tmp_path):
    """Bytes of the opcodes that are cut off or changed: one line, or the other numbers of a file that is one."""
    draw, path = random.Random(f"pickle {SEED}"), tmp_path / "x.bin"
    data = view()
    for _ in range(25):
        changed = bytearray(data)
        if draw.random() < 0.3:
            changed = changed[:draw.randrange(len(data))]
        else:
            for _ in range(draw.randint(1, 3)):
                changed[draw.randrange(len(data))] = draw.randrange(256)
        told(tmp_path, archive(path, bytes(changed)))
