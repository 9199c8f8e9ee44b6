"""`mhagen model` and `mhagen pack`: models that real writers have saved, against the models themselves; and files that
are wrong."""
import copy
import ctypes
import json
import platform
import re
import shutil
import struct
import subprocess
import zipfile
import zlib

import pytest

import architectures
from architectures import HUB, ROWS, like
from families import FAMILIES
from reference_lib import Args, Kernel, aligned, drawn_isa, runtime
from tools import MHAGEN, ROOT, in_turn, installed, native, run, seed_of

if not installed("numpy", "torch", "safetensors"):
    pytest.skip("NumPy, PyTorch or safetensors is not installed", allow_module_level=True)

import numpy
import torch
from safetensors.torch import save_file

from test_import_files import gguf_file, gguf_key, gguf_tensor, gguf_text, safetensors_file
from test_models import NEAR, SEEN, Observed, floats, pointers, transformers  # noqa: F401

MORE = architectures.MORE + FAMILIES


# ---- what is written ----


class KernelRow(ctypes.Structure):
    _fields_ = [("kernel", ctypes.POINTER(Kernel)), ("file", ctypes.c_char_p)]


class KernelTablesRow(ctypes.Structure):
    _fields_ = [*KernelRow._fields_, ("tables_file", ctypes.c_char_p)]


class Layer(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("kernel", ctypes.c_int), ("index", ctypes.c_int)]


class TablesLayer(ctypes.Structure):
    _fields_ = [*Layer._fields_, ("tables", ctypes.c_int)]


class Imported:
    """The layers of a model, compiled fast."""

    def __init__(self, path, out, *keys):
        self.out = out
        self.text = run(MHAGEN, "model", path, "-o", out, *keys)
        library = out / "model.so"
        run("cc", "-O0", "-shared", "-fPIC", *[path for path in out.glob("*.c") if path.name != "mhagen.c"],
            runtime()[0], "-o", library)
        self.library = ctypes.CDLL(library)
        header = (out / "model.h").read_text()
        counts = dict(re.findall(r"#define MODEL_(\w+) (\d+)", header))
        rows = int(counts["KERNELS"]) * int(counts["MEMBERS"])
        self.row_type, layer_type = (KernelTablesRow, TablesLayer) if "tables_file" in header else (KernelRow, Layer)
        self.kernels = (self.row_type * rows).in_dll(self.library, "model_kernels")
        layers = (layer_type * int(counts["LAYERS"])).in_dll(self.library, "model_layers")
        self.layers = {layer.name.decode(): layer for layer in layers}

    def row(self, kernel):
        """That of this CPU."""
        find = self.library.model_row
        find.restype = ctypes.POINTER(self.row_type)
        return find(kernel).contents

    def packed(self, row, file, index):
        """A copy of a file of a kernel, and where the packed weights of a layer, or tables, are in it."""
        data = (self.out / file.decode()).read_bytes()
        room, at = aligned(len(data))
        ctypes.memmove(at, data, len(data))
        assert self.library.mhagen_packed_check(row.kernel, ctypes.c_void_p(at), ctypes.c_size_t(len(data))) == 0
        find = self.library.mhagen_packed_layer
        find.restype, find.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_size_t]
        return room, find(at, index)

    def run(self, name, row=None, **args):
        layer = self.layers.get(name) or next(x for other, x in self.layers.items() if other.endswith("." + name))
        row = row or self.row(layer.kernel)
        kernel = row.kernel.contents
        packed, workspace = self.packed(row, row.file, layer.index), aligned(kernel.workspace_bytes)
        if tables := getattr(row, "tables_file", None) and self.packed(row, row.tables_file, layer.tables):
            args["tables"] = tables[1]
        call = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(kernel.run)
        assert call(ctypes.byref(Args(**args, packed=packed[1], workspace=workspace[1]))) == 0


def real_keys(seen, batch, seq_kv):
    """Which keys are no padding, as attention is told; or else as the model is."""
    mask = seen.calls[0].get("attention_mask")
    if mask is not None and mask.dim() == 4 and mask.shape[-1] == seq_kv:
        return (mask if mask.dtype == torch.bool else mask > -1)[:, 0].any(dim=1).expand(batch, -1)
    real = next((given for name, given in seen.given.items() if "attention_mask" in name and given is not None),
                torch.ones(batch, seq_kv, dtype=torch.bool))
    return real[:, ::max(1, real.shape[1] // seq_kv)].bool()  # convolutions make one row of several


def compare(seen, row, imported, **more):
    x, y = floats(dict(zip("qkv", seen.inputs()))), torch.cat(seen.y, dim=1)
    (batch, rows, _), seq_kv = y.shape, x["k"].shape[1]
    real = real_keys(seen, batch, seq_kv)
    counts = {key: count.sum(1, dtype=torch.int32)
              for key, count in [("kv_len", real), ("kv_start", ~real)] if key in row.keys}
    args = x | floats(seen.values(seen.row.args, batch=batch, seq=rows, seq_kv=seq_kv, past=0)) | counts | more
    got = torch.full(y.shape, torch.nan, dtype=torch.float32)
    imported.run(row.at, y=got.data_ptr(), **pointers(args))
    used = ... if "cross" in row.keys or not counts else real
    error, size = (got - y)[used].abs().max().item(), y[used].abs().max().item()
    print(f"\n{row.name:30} max |difference| {error:.1e}, max |y| {size:.1f}", end="")
    assert error <= NEAR * size


def keys_for(seen, row):
    """What stands on the command line: the sizes that are ours, and what only the test has."""
    (batch, rows, _), seq_kv = torch.cat(seen.y, dim=1).shape, seen.inputs()[1].shape[1]
    keys = [f"isa={drawn_isa(row.name)}", f"seq={rows}", f"batch={batch}"]
    keys += [f"seq_kv={seq_kv}"] if "cross" in row.keys else []
    return [*keys, *["kv_start=true"] * ("kv_start" in row.keys), "--only", row.at]


def save(seen, folder, dtype, **options):
    model = copy.deepcopy(seen.model).to(dtype)
    for module in model.modules():
        module._forward_hooks.clear()
        module._forward_pre_hooks.clear()
    model.save_pretrained(folder, **options)


# ---- folders ----

OTHERS = {path.stem.split("-")[1]: json.loads(path.read_text())
          for path in (ROOT / "tests/models/configs").glob("transformers-*.json")}


DRAWN = in_turn(ROWS + architectures.MORE, "families", count=18) + in_turn(FAMILIES, "further families", count=12)


@pytest.mark.parametrize("row", DRAWN, ids=lambda row: row.name)
def test_family(transformers, row, tmp_path):  # noqa: F811
    """Each run draws some of them. Of configs as other versions save them, the same files are made."""
    if row.since > int(transformers.__version__.split(".")[0]):
        pytest.skip("an older version of transformers computes it otherwise")
    seen = Observed(transformers, row)
    save(seen, tmp_path / "model", torch.float32)
    keys = keys_for(seen, row)
    compare(seen, row, Imported(tmp_path / "model", tmp_path / "out", *keys))
    for version, configs in OTHERS.items():
        if row.since > int(version.split(".")[0]):
            continue
        config = {**configs["base"], **configs["rows"][row.name], **HUB.get(row.kind, {})}
        (tmp_path / "model/config.json").write_text(json.dumps(config))
        run(MHAGEN, "model", tmp_path / "model", "-o", tmp_path / version, *keys)
        for path in (tmp_path / version).iterdir():
            assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes(), (version, path.name)


def named(name, **config):
    """A row with further fields, of its text part if it has one."""
    row = next(row for row in ROWS + MORE if row.name == name)
    within = "text_config" in row.config
    own = {**(row.config["text_config"] if within else row.config), **config}
    return row._replace(config={**row.config, "text_config": own} if within else own)


WHOLE = dict(layer_types=["full_attention"])
NOT_READ = [named(name, **WHOLE) for name in [
    "Mixtral", "Ministral 3", "Phi-3", "StarCoder 2", "Qwen 3, experts, windows", "Mistral 3 of texts and images"]]
NOT_READ += [named("Gemma 3, windows", attn_logit_softcapping=1.0)]


@pytest.mark.parametrize("row", in_turn(NOT_READ, "fields", count=3), ids=lambda row: row.name)
def test_fields_that_models_do_not_read(transformers, row, tmp_path):  # noqa: F811
    """A window is there whatever layer_types says; and Gemma 3 has no softcap, whatever its config has."""
    if row.since > int(transformers.__version__.split(".")[0]):
        pytest.skip("an older version of transformers computes it otherwise")
    seen = Observed(transformers, row)
    save(seen, tmp_path / "model", torch.float32)
    (field,) = {"layer_types", "attn_logit_softcapping"} & {*row.config, *row.config.get("text_config", {})}
    saved = json.loads((tmp_path / "model/config.json").read_text())
    assert saved.get("text_config", saved)[field]
    compare(seen, row, Imported(tmp_path / "model", tmp_path / "out", *keys_for(seen, row)))


SOME_COLUMNS = [
    named("Phi-3, LongRoPE", partial_rotary_factor=0.75, max_position_embeddings=16, rope_scaling=dict(
        type="longrope", short_factor=[1 + 0.1 * i for i in range(6)], long_factor=6 * [4.0])),
    named("GPT-NeoX", rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16))]


@pytest.mark.parametrize("row", SOME_COLUMNS, ids=lambda row: row.name)
def test_factor_of_some_columns(transformers, row, tmp_path):  # noqa: F811
    """Where rope turns a part of a head, a factor of cosines and sines is in the tables, also where these are apart."""
    seen = Observed(transformers, row)
    assert seen.model.rotary_emb.attention_scaling != 1
    save(seen, tmp_path / "model", torch.float32)
    for tables in "packed", "apart":
        keys = [*keys_for(seen, row), f"rope_tables={tables}"]
        compare(seen, row, Imported(tmp_path / "model", tmp_path / tables, *keys))


def run_at(seen, places):
    """Runs a decoder once more, with its rows at these places. Returns the cosines and sines of their angles."""
    for kept in (seen.calls, seen.y, *seen.x.values()):
        kept.clear()
    rows = places.shape[-1]
    whole = torch.ones(places.shape[-2:], dtype=torch.bool)  # else places say which rows are of one text
    given = {"attention_mask": whole, **{name: x[:, :rows] for name, x in seen.given.items()}}
    with torch.no_grad():
        seen.model(**given, position_ids=places, use_cache=False)
    tables = [table[..., :table.shape[-1] // 2] for table in seen.calls[0]["position_embeddings"]]
    return floats(dict(zip(["rope_cos", "rope_sin"], [table.expand(places.shape[-2], -1, -1) for table in tables])))


@pytest.mark.parametrize("row", [*SOME_COLUMNS, *map(named, ["Qwen 2 VL", "Qwen 3 VL", "Llama, YaRN"])],
                         ids=lambda row: row.name)
def test_angles_of_a_run(transformers, row, tmp_path):  # noqa: F811
    """Rows at any places, in texts with images at places of three kinds: a run gets the angles of the model, which have
    its scaling and its factor."""
    seen = Observed(transformers, row)
    places = torch.randint(0, 40, (3, 2, SEEN) if "VL" in row.name else (2, SEEN))
    angles = run_at(seen, places)
    save(seen, tmp_path / "model", torch.float32)
    imported = Imported(tmp_path / "model", tmp_path / "out", *keys_for(seen, row), "rope_at=run")
    assert "rope_at=run" in imported.text and "tables of rope" not in imported.text
    compare(seen, row, imported, **angles)


def test_perceivers_latents(transformers, tmp_path):  # noqa: F811
    """Each layer of the block is one, and what is no layer is named."""
    row = named("Perceiver, inputs", num_self_attends_per_block=2, num_self_attention_heads=2)
    row = row._replace(at="encoder.self_attends.1.attention", keys="")
    row.config.update(qk_channels=48, v_channels=32)
    seen = Observed(transformers, row)
    save(seen, tmp_path / "model", torch.float32)
    imported = Imported(tmp_path / "model", tmp_path / "out", "isa=scalar", "seq=5", "batch=2", "--only", row.at)
    compare(seen, row, imported)
    assert "h=2 d_model=32 dk=24 dv=16 seq=5" in imported.text


def test_what_is_left_out(transformers, tmp_path):  # noqa: F811
    """SigLIP's head is no layer, and a model of images alone has no text whose fields could matter."""
    row = named("SigLIP")
    vision = {**row.config["vision_config"], "num_attention_heads": 2, **dict(image_size=12, patch_size=4)}
    config = transformers.AutoConfig.for_model("siglip", vision_config=vision, text_config=dict(num_attention_heads=4))
    model = transformers.SiglipForImageClassification(config)
    model.save_pretrained(tmp_path / "model")
    text = run(MHAGEN, "model", tmp_path / "model", "isa=scalar", "seq=9", "-o", tmp_path / "out")
    (line,) = [line for line in text.splitlines() if "no layer" in line]
    assert line == "  no layer: vision_model.head.attention: is attention that is not read"


def test_saved_configs():
    """Those of each version are there, of all rows."""
    assert sorted(OTHERS) == ["4.57.3", "5.24.0"]
    for version, configs in OTHERS.items():
        assert list(configs["rows"]) == [row.name for row in ROWS + MORE if row.since <= int(version.split(".")[0])], (
            "tests/models/write_configs.py writes them")


def test_shards_of_bfloat16(transformers, tmp_path):  # noqa: F811
    """All layers of a model in several files, by kernels of both kinds of layers."""
    row = like("Gemma 3, whole")
    seen = Observed(transformers, row, torch.bfloat16)
    save(seen, tmp_path / "model", torch.bfloat16, max_shard_size="20KB")
    assert len(list((tmp_path / "model").glob("*.safetensors"))) > 3
    imported = Imported(tmp_path / "model", tmp_path / "out", *keys_for(seen, row)[:-2])
    assert len(imported.kernels) == 2 and list(imported.layers) == [f"layers.{i}.self_attn" for i in range(6)]
    assert "6 layers, 2 kernels" in imported.text
    compare(seen, row, imported)


# ---- GGUF ----

GGUF = {"Llama": "LLAMA", "Qwen 2": "QWEN2", "Gemma": "GEMMA", "StarCoder 2": "STARCODER2", "Qwen 3": "QWEN3",
        "Phi-3": "PHI3", "BERT": "BERT", "GPT-2": "GPT2", "Gemma 2, windows": "GEMMA2", "Gemma 2, whole": "GEMMA2",
        "Gemma 3, windows": "GEMMA3", "Gemma 3, whole, linear": "GEMMA3", "gpt-oss": "GPT_OSS",
        "Qwen 3, experts": "QWEN3MOE", "OLMo 2": "OLMO2", "Cohere": "COMMAND_R", "Cohere, Command R+": "COMMAND_R",
        "Falcon 7B": "FALCON", "Falcon 40B": "FALCON", "BLOOM": "BLOOM", "MPT, 12 heads": "MPT", "Granite": "GRANITE",
        "Llama, linear": "LLAMA", "Llama, YaRN": "LLAMA", "Nomic BERT": "NOMIC_BERT", "SmolLM3": "SMOLLM3",
        "Qwen 2, experts, windows": "QWEN2MOE", "Qwen 2, sections": "QWEN2VL"}
SAME = {"Qwen 2, sections": "Qwen 2"}  # models that are the same in texts
PERMUTED = {"LLAMA", "GRANITE", "SMOLLM3"}
WITHOUT_ROPE = {"BERT", "GPT2", "BLOOM", "MPT"}
LARGE = {"COMMAND_R": 64}  # the blocks of models with more tensors; here a part of them is enough
CHANGED = {  # what these files do not say, or say otherwise
    "Gemma 2, windows": dict(query_pre_attn_scalar=16), "Gemma 2, whole": dict(query_pre_attn_scalar=16),
    "Gemma 3, windows": dict(query_pre_attn_scalar=16, rope_local_base_freq=10000.0),
    "Gemma 3, whole, linear": dict(query_pre_attn_scalar=16),
    "gpt-oss": dict(rope_scaling=dict(rope_type="yarn", factor=32.0, original_max_position_embeddings=64)),
    "StarCoder 2": dict(sliding_window=None), "Phi-3": dict(sliding_window=None),
    "Qwen 2, experts, windows": dict(sliding_window=None, use_sliding_window=False),
    "SmolLM3": dict(no_rope_layers=[1, 1]),
}


def permuted(x, heads):
    """Rows of Q and K as these files have them for Llama: rope turns neighbours."""
    return x.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def apart(x, h, h_kv):
    """Rows of Q, then those of K, then those of V, of which a model has some of each for a head of keys."""
    x = x.unflatten(0, (h_kv, h // h_kv + 2, -1))
    return torch.cat([part.flatten(0, 2) for part in x.split([h // h_kv, 1, 1], dim=1)])


def joint(tensors):
    """Nomic BERT's three maps as these files have them, one."""
    for name, x in list(tensors.items()):
        if name.endswith("q_proj.weight"):
            others = [tensors[name.replace("q_proj", other)] for other in ("k_proj", "v_proj")]
            tensors[name.replace("layers.", "encoder.layers.").replace("self_attn.q_proj", "attn.Wqkv")] = torch.cat(
                [x, *others])
    return tensors


def gguf_fields(kind, row, config, keys):
    """What a model says of its attention, by the names of these files."""
    fields = {"attention.head_count_kv": int(keys["h_kv"]), "attention.key_length": int(keys["dk"]),
              "attention.value_length": int(keys["dk"])}
    if kind in WITHOUT_ROPE:
        return {"MPT": {"attention.max_alibi_bias": 8.0}, "BERT": {"attention.causal": False}}.get(kind, {})
    fields |= {"rope.freq_base": float(architectures.fields_of(row, config)["rope_theta"]),
               "rope.dimension_count": int(keys["dk"])}
    scaling = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    scaling = scaling.get("full_attention", scaling)
    if scaling.get("rope_type") in ("linear", "yarn"):
        fields |= {"rope.scaling.type": scaling["rope_type"], "rope.scaling.factor": scaling["factor"]}
        if "original_max_position_embeddings" in scaling:
            fields["rope.scaling.original_context_length"] = scaling["original_max_position_embeddings"]
    for field, name in [("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
                        ("attention.scale", "attention_multiplier"), ("attention.sliding_window", "sliding_window"),
                        ("attn_logit_softcapping", "attn_logit_softcapping")]:
        value = getattr(config, name, None)
        if value is not None and (field != "attention.sliding_window" or not kind.startswith("QWEN")):
            fields[field] = value
    return fields | {"COMMAND_R": {"attention.layer_norm_epsilon": getattr(config, "layer_norm_eps", 0)},
                     "NOMIC_BERT": {"attention.causal": False},
                     "QWEN2VL": {"rope.dimension_sections": [2, 1, 1, 0]}}.get(kind, {})


def write_gguf(seen, kind, path, **tensors):
    """As the tools of these files write a model, with their own names of tensors."""
    import gguf
    arch, config = getattr(gguf.MODEL_ARCH, kind), seen.config
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    keys = architectures.keys(seen.row, config)
    h, h_kv = int(keys["h"]), int(keys["h_kv"])
    writer.add_block_count(LARGE.get(kind, config.num_hidden_layers) if "qk_norm" in keys else config.num_hidden_layers)
    writer.add_embedding_length(int(keys["d_model"]))
    writer.add_context_length(64)
    writer.add_head_count(h)
    writer.add_tokenizer_model("none")
    writer.add_token_list([f"token {i}" for i in range(6000)])
    for name, value in gguf_fields(kind, seen.row, config, keys).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
               list: writer.add_array}[type(value)]
        add(f"{gguf.MODEL_ARCH_NAMES[arch]}.{name}", value)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    for name, x in (joint if kind == "NOMIC_BERT" else dict)(seen.model.state_dict()).items():
        found = [names.get_name(before + name, (".weight", ".bias")) for before in ("", "model.", "transformer.")]
        to = next(filter(None, found), None)
        if not to or not to.startswith("blk"):
            continue
        if kind in PERMUTED and ("q_proj" in name or "k_proj" in name):
            x = permuted(x, h if "q_proj" in name else h_kv)
        if kind in ("FALCON", "BLOOM") and "query_key_value" in name:
            x = apart(x, h, h_kv)
        if kind == "GPT2" and "c_" in name and x.dim() == 2:
            x = x.T
        if kind == "GEMMA3" and name.endswith("norm.weight"):
            x = x + 1
        writer.add_tensor(to + ("" if to.endswith(("weight", "bias")) else ".weight"), x.float().contiguous().numpy())
    for name, x in tensors.items():
        writer.add_tensor(name.replace("__", "."), x)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", sorted({*in_turn(GGUF, "gguf", count=3), "Llama"}))
def test_gguf(transformers, name, tmp_path):  # noqa: F811
    if not installed("gguf"):
        pytest.skip("gguf is not installed")
    row = next(row for row in ROWS + MORE if row.name == SAME.get(name, name))
    row = row._replace(config={"num_hidden_layers": 2, **row.config, **CHANGED.get(name, {})})
    if row.config.get("sliding_window", 0) is None:
        row = row._replace(keys=row.keys.replace(architectures.WINDOW, ""))
    seen = Observed(transformers, row)
    write_gguf(seen, GGUF[name], tmp_path / "model.gguf")
    block = "blk." + re.search(r"\.(\d+)\.", row.at)[1]
    keys = keys_for(seen, row)[:-1] + [block]
    imported = Imported(tmp_path / "model.gguf", tmp_path / "out", *keys)
    compare(seen, row._replace(at=block), imported)


def test_gguf_frequencies(transformers, tmp_path):  # noqa: F811
    """Llama 3.1's scaling of rope is a tensor there."""
    if not installed("gguf"):
        pytest.skip("gguf is not installed")
    row = like("Llama 3.1")
    seen = Observed(transformers, row)
    rotary = seen.model.rotary_emb
    factors = rotary.original_inv_freq.new_tensor(
        [row.config["rope_theta"] ** (-i / 8) for i in range(8)]).double() / rotary.inv_freq.double()
    write_gguf(seen, "LLAMA", tmp_path / "model.gguf", rope_freqs__weight=factors.float().numpy())
    imported = Imported(tmp_path / "model.gguf", tmp_path / "out", *keys_for(seen, row)[:-1], "blk.0")
    compare(seen, row._replace(at="blk.0"), imported)


# ---- single matrices ----

CONFIG = "h=2 d_model=64 dk=32 dv=16 seq=5 isa=scalar rope=half qk_norm=rms sink=true".split()
SHAPES = dict(wq=(64, 64), wk=(64, 64), wv=(32, 64), wo=(64, 32), bq=(64,), bo=(64,), sink=(2,), q_norm=(32,))


def matrices():
    draw = numpy.random.default_rng(7)
    return {name: draw.normal(size=shape).astype("f4") for name, shape in SHAPES.items()}


def packed(out, files, *options, config=CONFIG):
    run(MHAGEN, "pack", *config, *[f"{name}={file}" for name, file in files.items()], *options, "-o", out)
    return out.read_bytes()


def save_npy(folder, given):
    folder.mkdir()
    for name, x in given.items():
        numpy.save(folder / f"{name}.npy", x)
    return {name: folder / f"{name}.npy" for name in given}


ERR_PACKED = 8


def status_of(kernel, data):
    room, at = aligned(len(data))
    ctypes.memmove(at, data, len(data))
    return kernel.library.kernel_packed_check(ctypes.c_void_p(at), ctypes.c_size_t(len(data)))


def test_pack_is_that_of_the_kernel(tmp_path):
    """The bytes are those that the kernel's own function writes, in both layouts."""
    from reference_lib import Generated
    given = matrices()
    kernel = Generated(dict(word.split("=") for word in CONFIG if "isa" not in word), "scalar", tmp_path / "kernel")
    kernel.pack(layout=1, **{name: x.ctypes.data for name, x in given.items()})
    expected = ctypes.string_at(kernel.packed[1], kernel.shape.packed_bytes)
    data = packed(tmp_path / "a.packed", save_npy(tmp_path / "a", given))
    assert data[128:] == expected and status_of(kernel, data) == 0
    turned = {name: numpy.ascontiguousarray(x.T) if name[0] == "w" else x for name, x in given.items()}
    assert packed(tmp_path / "b.packed", save_npy(tmp_path / "b", turned), "--layout", "in_out") == data
    assert status_of(kernel, data[:300] + bytes([data[300] ^ 1]) + data[301:]) == ERR_PACKED


@pytest.mark.parametrize("dtype", ["bf16", "int8"])
@pytest.mark.parametrize("isa", ["avx512_bf16", "neon_i8mm"])
def test_pack_of_words(isa, dtype, tmp_path):
    """The same of words, which lie two by two for products of blocks; any machine packs."""
    from reference_lib import Generated
    config, given = dict(h=2, d_model=70, dk=12, seq=5, dtype=dtype), numpy.random.default_rng(8).normal(size=(70, 24))
    kernel = Generated(config, isa, tmp_path / "kernel", "-DMHAGEN_ALLOW_STUBS")
    weights = {name: given.astype("f4").T.copy() for name in ("wq", "wk", "wv")} | {"wo": given.astype("f4")}
    kernel.pack(layout=1, **{name: x.ctypes.data for name, x in weights.items()})
    words = [f"isa={isa}", *(f"{key}={value}" for key, value in config.items())]
    data = packed(tmp_path / "a.packed", save_npy(tmp_path / "a", weights), config=words)
    assert data[128:] == ctypes.string_at(kernel.packed[1], kernel.shape.packed_bytes)


@pytest.mark.parametrize("kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_pack_types_of_safetensors(kind, tmp_path):
    given = {name: torch.from_numpy(x).to(kind) for name, x in matrices().items()}
    save_file(given, tmp_path / "all.safetensors")
    files = {name: f"{tmp_path}/all.safetensors:{name}" for name in given}
    plain = save_npy(tmp_path / "plain", {name: x.float().numpy() for name, x in given.items()})
    expected = packed(tmp_path / "plain.packed", plain)
    assert packed(tmp_path / "typed.packed", files) == expected
    if kind != torch.bfloat16:
        assert packed(tmp_path / "npy.packed", save_npy(tmp_path / "npy", {
            name: x.numpy() for name, x in given.items()})) == expected


def test_pack_npz(tmp_path, monkeypatch):
    """Arrays of an archive, among others of types that are not read; also with the wide records of great archives."""
    given = matrices()
    expected = packed(tmp_path / "npy.packed", save_npy(tmp_path / "npy", given))
    for wide in False, True:
        if wide:
            monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
            monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 3)
        numpy.savez(tmp_path / "all.npz", names=numpy.array(["a", "b"]), **given)
        assert (b"PK\6\6" in (tmp_path / "all.npz").read_bytes()) == wide
        assert packed(tmp_path / "npz.packed", {name: f"{tmp_path}/all.npz:{name}" for name in given}) == expected
    data = bytearray((tmp_path / "all.npz").read_bytes())
    data[data.index(given["wv"].tobytes()) + 7] ^= 1
    (tmp_path / "all.npz").write_bytes(data)
    for name, damaged in ("wq", False), ("wv", True):
        told = refused(tmp_path, "pack", *CONFIG, f"{name}={tmp_path}/all.npz:{name}")
        assert ("/all.npz: tensor wv: is damaged: its CRC-32 is " in told) == damaged
    numpy.savez_compressed(tmp_path / "all.npz", **given)
    assert "is compressed; write it by numpy.savez" in refused(tmp_path, "pack", *CONFIG, f"wq={tmp_path}/all.npz:wq")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "F16", "BF16"])
def test_pack_types_of_gguf(kind, tmp_path):
    if not installed("gguf"):
        pytest.skip("gguf is not installed")
    import gguf
    given = {name: x for name, x in matrices().items() if x.ndim == 2}
    quantized = getattr(gguf.GGMLQuantizationType, kind)
    writer = gguf.GGUFWriter(tmp_path / "all.gguf", "any")
    plain = {}
    for name, x in given.items():
        data = gguf.quantize(x, quantized)
        writer.add_tensor(name, data, raw_dtype=quantized)
        plain[name] = gguf.dequantize(data, quantized)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = packed(tmp_path / "plain.packed", save_npy(tmp_path / "plain", plain))
    assert packed(tmp_path / "typed.packed", {name: f"{tmp_path}/all.gguf:{name}" for name in given}) == expected


BLOCKS = {"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}


@pytest.mark.parametrize("kind", BLOCKS)
def test_pack_blocks_of_gguf(kind, tmp_path):
    """Types that the library of these files reads and does not write: of drawn blocks, in which scales are f16 at the
    bytes above, it makes the same numbers. Matrices are taken by rows and by columns."""
    if not installed("gguf"):
        pytest.skip("gguf is not installed")
    import gguf
    quantized = getattr(gguf.GGMLQuantizationType, kind)
    elements, size = gguf.GGML_QUANT_SIZES[quantized]
    draw, plain = numpy.random.default_rng(seed_of(kind)), {}
    writer = gguf.GGUFWriter(tmp_path / "all.gguf", "any")
    for name in ["wq", "wk", "wv", "wo"]:
        blocks = draw.integers(0, 256, (256 * 256 // elements, size), dtype="u1")
        for at in BLOCKS[kind]:
            blocks[:, at:at + 2] = draw.normal(size=(len(blocks), 1)).astype("<f2").view("u1")
        data = blocks.reshape(256, -1)
        writer.add_tensor(name, data, raw_dtype=quantized)
        plain[name] = gguf.dequantize(data, quantized)
    for write in writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close:
        write()
    config, npy = "h=8 d_model=256 dk=32 seq=2 isa=scalar".split(), save_npy(tmp_path / "npy", plain)
    for layout in "out_in", "in_out":
        expected = packed(tmp_path / "npy.packed", npy, "--layout", layout, config=config)
        typed = {name: f"{tmp_path}/all.gguf:{name}" for name in plain}
        assert packed(tmp_path / "typed.packed", typed, "--layout", layout, config=config) == expected


# ---- files that are wrong ----


def refused(tmp_path, *command):
    """The message of a command that fails as it must: in one line, and nothing is written."""
    out = tmp_path / "refused"
    result = subprocess.run([MHAGEN, *command, "-o", out], capture_output=True, text=True, timeout=600)
    assert result.returncode == 2 and re.fullmatch(r"mhagen: [^\n]{1,900}\n", result.stderr), result
    assert not out.exists() and not list(tmp_path.glob(".mhagen*"))
    return result.stderr


def entry(shape, begin, end, dtype="F32"):
    return dict(dtype=dtype, shape=shape, data_offsets=[begin, end])


WRONG_SAFETENSORS = [
    (b"", "length of the header: the file ends at byte 0"),
    (safetensors_file({}, length=1 << 20), "header: the file ends at byte 10"),
    (safetensors_file({}, length=1 << 63), "is 2^63 or more"),
    (safetensors_file({}, length=1 << 40), "the format allows 100000000"),
    (safetensors_file(b"[]"), "is no object"),
    (safetensors_file(b'{"x": '), "x.safetensors: header: "),
    (safetensors_file(b"[" * 4000), "nested"),
    (safetensors_file({"x": 1}), "tensor x: is no object"),
    (safetensors_file({"x": dict(dtype=1, shape=[], data_offsets=[0, 0])}), "dtype is no text"),
    (safetensors_file({"x": dict(dtype="F32", shape=4, data_offsets=[0, 0])}), "shape is no list"),
    (safetensors_file({"x": dict(dtype="F32", shape=[1], data_offsets=[0])}), "data_offsets are not"),
    (safetensors_file({"x": entry([1], 4, 0)}), "data_offsets are not"),
    (safetensors_file({"x": entry([-1], 0, 4)}), "a size that is no count"),
    (safetensors_file({"x": entry([1.5], 0, 4)}), "a size that is no count"),
    (safetensors_file({"x": entry([1 << 30, 1 << 30], 0, 4)}), "more than 2^47 numbers"),
    (safetensors_file({"x": entry([2], 0, 4)}, bytes(4)), "F32 of [2] does not take 4 bytes"),
    (safetensors_file({"x": entry([2], 0, 8)}, bytes(4)), "end behind byte"),
    (safetensors_file({"x": entry([1], 1 << 40, (1 << 40) + 4)}, bytes(4)), "begins behind the end"),
    (safetensors_file({"x": entry([1], 0, 4), "y": entry([1], 0, 4)}, bytes(8)), "shares bytes with tensor"),
    (safetensors_file({"x": entry([1], 4, 8)}, bytes(8)), "take 4 bytes of the 8"),
    (safetensors_file({"x": entry([64], 0, 64, "I8")}, bytes(64)), "numbers of type I8 are not read"),
    (safetensors_file({"x": entry([64, 32], 0, 8192)}, bytes(8192)), "its shape is [64, 32], and wq must be [64, 64]"),
    (safetensors_file({"y": entry([1], 0, 4)}, bytes(4)), "tensor x is missing"),
    (safetensors_file({"x\x1b[1m\n": entry([1], 4, 0)}), "data_offsets are not"),
]


WRONG_GGUF = [
    (b"GG", "magic: the file ends at byte 2"),
    (gguf_file(magic=b"GGML"), "is no GGUF file"),
    (gguf_file(version=1), "version 1; 2 and 3 are read"),
    (gguf_file(counts=(1 << 60, 0)), "number of axes: the file ends"),
    (gguf_file(counts=(0, 1 << 63)), "is 2^63 or more"),
    (gguf_file(gguf_key("a", 13, b""), counts=(0, 1)), "kind 13 is not known"),
    (gguf_file(gguf_key("a", 9, struct.pack("<IQ", 5, 1 << 61)), counts=(0, 1)), "the file ends before"),
    (gguf_file(gguf_key("a", 9, struct.pack("<IQ", 8, 1 << 61)), counts=(0, 1)), "the file ends at byte"),
    (gguf_file(gguf_key("a", 9, struct.pack("<IQ", 9, 1)), counts=(0, 1)), "a list of kind 9"),
    (gguf_file(2 * gguf_key("a", 0, b"1"), counts=(0, 2)), "key a is there twice"),
    (gguf_file(gguf_key("general.alignment", 4, struct.pack("<I", 48)), counts=(0, 1)), "a power of two"),
    (gguf_file(gguf_key("general.alignment", 4, struct.pack("<I", 0)), counts=(0, 1)), "a power of two"),
    (gguf_file(tensors=gguf_text("x") + struct.pack("<I", 5), counts=(1, 0)), "tensor x: 5 axes"),
    (gguf_file(tensors=gguf_tensor([4]) + gguf_tensor([4]), counts=(2, 0), data=bytes(32)), "is there twice"),
    (gguf_file(tensors=gguf_tensor([4], offset=8), counts=(1, 0), data=bytes(32)), "offset 8 is not aligned"),
    (gguf_file(tensors=gguf_tensor([4], offset=1 << 40), counts=(1, 0), data=bytes(32)), "begins behind the end"),
    (gguf_file(tensors=gguf_tensor([4] + [1 << 40, 1 << 40]), counts=(1, 0)), "more than 2^47 numbers"),
    (gguf_file(tensors=gguf_tensor([64]), counts=(1, 0), data=bytes(32)), "end behind byte"),
    (gguf_file(tensors=gguf_tensor([40], 2), counts=(1, 0), data=bytes(64)), "rows of 40 numbers in blocks of 32"),
    (gguf_file(tensors=gguf_tensor([16]) + gguf_tensor([4], 0, 32, "y"), counts=(2, 0), data=bytes(64)),
     "shares bytes"),
    (gguf_file(tensors=gguf_tensor([256], 16), counts=(1, 0), data=bytes(256)), "numbers of type IQ2_XXS are not read"),
    (gguf_file(tensors=gguf_tensor([320], 12), counts=(1, 0), data=bytes(256)), "rows of 320 numbers in blocks of 256"),
    (gguf_file(tensors=gguf_tensor([256], 14), counts=(1, 0), data=bytes(209)), "its 210 bytes from byte 64 on end"),
    (gguf_file(tensors=gguf_tensor([64], 40), counts=(1, 0), data=bytes(64)), "numbers of type NVFP4 are not read"),
    (gguf_file(tensors=gguf_tensor([256], 99), counts=(1, 0), data=bytes(256)), "numbers of type type 99 are not read"),
]


def npy_file(header, version=1, data=b""):
    return b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", len(header)) + header + data


def npy_header(descr="<f4", order="False", shape="(1, 2)"):
    return f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()


FULL32 = (1 << 32) - 1  # a number that is elsewhere, for it does not fit
WRONG_NPY = [
    (b"\x93NUM", "magic: the file ends"),
    (b"\x92NUMPY\1\0", "is no .npy file"),
    (npy_file(npy_header(), version=9), "version 9 is not known"),
    (npy_file(npy_header())[:20], "header: the file ends"),
    (npy_file(b"{'descr': [], 'fortran_order': False, 'shape': ()}"), "the header is not"),
    (npy_file(npy_header(descr=">f4")), "numbers of type >f4"),
    (npy_file(npy_header(order="True")), "lies by columns"),
    (npy_file(npy_header(shape="(99999999999999999999,)")), "its shape is too large"),
    (npy_file(npy_header(shape="(99999999999, 99999999999)")), "more than 2^47 numbers"),
    (npy_file(npy_header(), data=bytes(4)), "takes 8 bytes, and 4 are there"),
    (npy_file(npy_header(), data=bytes(8)), "its shape is [1, 2], and wq must be [64, 64]"),
]


def zip_file(*entries, list_from=None, comment=b"", count=None, **changed):
    """An archive of { name, data }; what is changed has the names of zipfile's fields."""
    data, entries_list = b"", b""
    for name, content in entries:
        fields = {"flag": 0, "method": 0, "csize": len(content), "usize": len(content), "offset": len(data),
                  "crc": zlib.crc32(content), **changed}
        extra = fields.get("extra", b"")
        entries_list += b"PK\1\2" + struct.pack("<HHHHHHIIIHHHHHII", 20, 20, fields["flag"], fields["method"], 0, 0,
                                                fields["crc"], fields["csize"], fields["usize"], len(name),
                                                len(extra), 0, 0, 0, 0, fields["offset"]) + name + extra
        local = fields.get("local", name)
        data += b"PK\3\4" + struct.pack("<HHHIIIIHH", 20, 0, 0, 0, 0, len(content), len(content), len(local), 0)
        data += local + content
    at = len(data) if list_from is None else list_from
    end = struct.pack("<HHHHIIH", 0, 0, len(entries), len(entries) if count is None else count, len(entries_list), at,
                      len(comment))
    return data + entries_list + b"PK\5\6" + end + comment


MATRIX = npy_file(npy_header(shape="(64, 64)"), data=bytes(4 * 64 * 64))
X = (b"x.npy", MATRIX)
WRONG_NPZ = [
    (b"PK", "the end of a zip archive is missing"),
    (zip_file(X)[:-1], "the end of a zip archive is missing"),
    (zip_file(X, list_from=0), "entry of the list: does not begin as one"),
    (zip_file(X, list_from=1 << 30), "place of the list of entries: what it is in ends"),
    (zip_file(X, list_from=FULL32), "is no wide .npz file"),
    (zip_file(X, count=2), "entry of the list: what it is in ends"),
    (zip_file(X, X), "tensor x: is there twice"),
    (zip_file(X, flag=1), "tensor x: is encrypted"),
    (zip_file(X, method=8), "tensor x: is compressed; write it by numpy.savez"),
    (zip_file(X, csize=7), "takes 7 bytes in the archive, and is of "),
    (zip_file(X, csize=FULL32 - 1, usize=FULL32 - 1), "head of entry x.npy: what it is in ends"),
    (zip_file(X, csize=FULL32, usize=FULL32, extra=struct.pack("<HHQ", 1, 8, 5)), "extra field: what it is in ends"),
    (zip_file(X, csize=FULL32, usize=FULL32, extra=struct.pack("<HHQQ", 1, 16, 1 << 63, 1 << 63)), "is 2^63 or more"),
    (zip_file(X, extra=b"\1\0\7\0"), "extra field: what it is in ends"),
    (zip_file(X, offset=5), "head of entry x.npy: does not begin as one"),
    (zip_file(X, offset=1 << 30), "head of entry x.npy: what it is in ends"),
    (zip_file(X, local=b"y.npy"), "has another name there"),
    (zip_file(X, crc=1), f"tensor x: is damaged: its CRC-32 is {zlib.crc32(MATRIX):08x}, and must be 00000001"),
    (zip_file((b"x.npy", MATRIX[:-4])), "takes 16384 bytes, and 16380 are there"),
    (zip_file((b"x.npy", b"no")), "magic: what it is in ends"),
    (zip_file((b"y.npy", MATRIX)), "tensor x is missing"),
]

CASES = [(format, data, message) for format, cases in [
    ("safetensors", WRONG_SAFETENSORS), ("gguf", WRONG_GGUF), ("npy", WRONG_NPY),
    ("npz", WRONG_NPZ)] for data, message in cases]


@pytest.mark.parametrize("format", ["safetensors", "gguf", "npy", "npz"])
def test_wrong_files(format, tmp_path):
    """Each says what is wrong, and of which file."""
    path = tmp_path / f"x.{format}"
    for data, message in [case[1:] for case in CASES if case[0] == format]:
        path.write_bytes(data)
        said = refused(tmp_path, "pack", *CONFIG, f"wq={path}" + ("" if format == "npy" else ":x"))
        assert message in said and f"x.{format}: " in said, (message, said)


def test_wrong_words(tmp_path):
    path = tmp_path / "x.npy"
    numpy.save(path, numpy.zeros((64, 64), "f4"))
    for words, message in [
            ([], "wq, wk, wv, wo are missing: wq=FILE.npy"),
            (["wkk=x.npy"], "config: wkk = x.npy: unknown key, did you mean wk?"),
            ([f"wq={path}", f"wq={path}"], "wq: is given twice"),
            (["wq=x.txt"], "x.txt: must be FILE.npy, or FILE:TENSOR of a .npz, .safetensors, .gguf or .bin"),
            (["wq=missing.npy"], "missing.npy: No such file or directory"),
            ([f"rope_cos={path}"], "its shape is [64, 64], and rope_cos must be [5, 16]"),
            ([f"alibi={path}"], "alibi: the kernel has no such matrix"),
            ([f"wv={path}"], "wv must be [32, 64]")]:
        assert message in refused(tmp_path, "pack", *CONFIG, *words)
    numpy.save(path, numpy.zeros((32, 64), "f4"))
    narrow = [word.replace("d_model=64", "d_model=32") for word in CONFIG]
    assert "see --layout in_out" in refused(tmp_path, "pack", *narrow, f"wq={path}")


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A small model, its config, its tensors."""
    draw = numpy.random.default_rng(3)
    names = [f"encoder.layer.{i}.attention.{name}" for i in range(2)
             for name in ["self.query", "self.key", "self.value", "output.dense"]]
    tensors = {f"{name}.weight": torch.from_numpy(draw.normal(size=(8, 8)).astype("f4")) for name in names}
    return dict(model_type="bert", hidden_size=8, num_attention_heads=2, num_hidden_layers=2), tensors


def write_model(folder, config, tensors, **files):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


WRONG_CONFIGS = [
    ("", "config.json: "), ("[]", "model_type: is missing"), ("[" * 99, "config.json: "),
    (dict(model_type=None), "config.json: model_type: is missing"),
    (dict(model_type=7), "config.json: model_type: 7 must be a text"),
    (dict(model_type="bret"), "config.json: model type bret is not known; "),
    (dict(model_type="deepseek_v3"), "model type deepseek_v3 is not supported: it has keys and values that are"),
    (dict(model_type="convnext"), "model type convnext is not supported: it has no attention"),
    (dict(hidden_size=None), "hidden_size: is missing"), (dict(hidden_size="8"), "hidden_size: 8 must be a number"),
    (dict(num_attention_heads=0), "num_attention_heads: 0 must be a number from 1 on"),
    (dict(num_attention_heads=1.5), "num_attention_heads: 1.5 must be"),
    (dict(num_attention_heads=[2]), "num_attention_heads: it must be"),
    (dict(num_attention_heads=4000), "layer encoder.layer.0.attention: config: h = 4000"),
    (dict(num_hidden_layers=1 << 30), "num_hidden_layers: 1073741824 layers"),
    (dict(num_hidden_layers=3), "model: tensor encoder.layer.2.attention.self.key.weight is missing"),
    (dict(hidden_size=16), "its shape is [8, 8], and by the config it must be [16, 16]"),
]


def test_wrong_models(bert, tmp_path):
    config, tensors = bert
    for change, message in WRONG_CONFIGS:
        path = write_model(tmp_path / "model", change if isinstance(change, str) else {**config, **change}, tensors)
        assert message in refused(tmp_path, "model", path, "isa=scalar", "seq=4"), message
    path = write_model(tmp_path / "model", config, tensors)
    for words, message in [(["seq=4"], "layer encoder.layer.0.attention: config: isa: is required"),
                           (["isa=scalar", "seq=4", "seq=5"], "seq = 5: is given twice"),
                           (["isa=scalar", "seq=4", "norm=post"], "norm = post: asks for norm1, which layer encoder.l"),
                           (["isa=scalar", "seq=4", "ffn=8"], "ffn = 8: asks for w1, which layer encoder.layer.0.att"),
                           (["isa=scalar", "seq=4", "sink=true"], "sink = true: asks for sink, which layer encoder"),
                           (["isa=scalar", "causal"], "config: causal: is no key=value; causal has the values"),
                           (["isa=scalar", "some.lua"], "some.lua: is no key=value"),
                           (["isa=scalar", "seq"], "config: seq: is no key=value; seq has the values 1..65536"),
                           (["isa=scalar", "seq=4", "name=x"], "--name is for the table"),
                           (["isa=scalar", "seq=4", "--only", "x"], "--only: no layer's name has x"),
                           (["isa=scalar", "seq=4", "--name", "1"], "option '--name': '1' is not a C identifier")]:
        assert message in refused(tmp_path, "model", path, *words), words
    for path, message in [(tmp_path, "config.json: No such file"), (tmp_path / "none", "No such file"),
                          (path / "config.json", "is neither a folder")]:
        assert message in refused(tmp_path, "model", path, "isa=scalar", "seq=4")


def test_more_rows_than_places(bert, tmp_path):
    """It is said, not refused: attention has no places, but the model's embeddings have."""
    config, tensors = bert
    path = write_model(tmp_path / "model", {**config, "max_position_embeddings": 6}, tensors)
    told = "max_position_embeddings is 6, and a run has up to %s rows or keys: the model may have no places for them\n"
    for words, most in [(["seq=6"], None), (["seq=7"], 7), (["seq=4,9", "q_len=true", "kv_len=true"], 9)]:
        said = run(MHAGEN, "model", path, "isa=scalar", *words, "-o", tmp_path / "out")
        assert (told % most in said) if most else "has up to" not in said


def llama_gguf(path, *more, keys=b"", key_count=0, skip=()):
    """A layer with two heads of two pairs, written by hand; more: (name, shape, type, bytes) of other tensors."""
    draw, given, tensors, data = numpy.random.default_rng(4), [], b"", b""
    for name in "q", "k", "v", "output":
        given.append((f"blk.0.attn_{name}.weight", [8, 8], 0, draw.normal(size=(8, 8)).astype("<f4").tobytes()))
    kept = [one for one in [*given, *more] if one[0] not in skip]
    for name, shape, kind, numbers in kept:
        tensors += gguf_tensor(shape, kind, len(data), name)
        data += numbers + bytes(-len(numbers) % 32)
    text = gguf_key("general.architecture", 8, gguf_text("llama"))
    for key, value in ("block_count", 1), ("embedding_length", 8), ("attention.head_count", 2):
        text += gguf_key(f"llama.{key}", 4, struct.pack("<I", value))
    path.write_bytes(gguf_file(text + keys, tensors, (len(kept), 4 + key_count), data=data))
    return path


def test_gguf_of_parts(tmp_path):
    """A model in two files is that of one, whichever is named."""
    whole = llama_gguf(tmp_path / "whole.gguf")
    run(MHAGEN, "model", whole, "isa=scalar", "seq=4", "-o", tmp_path / "out")
    expected = next((tmp_path / "out").glob("*.packed")).read_bytes()
    kept = [["q", "v"], ["k", "output"]]
    for i in 0, 1:
        keys = [gguf_key(f"split.{key}", 2, struct.pack("<H", value)) for key, value in [("no", i), ("count", 2)]]
        path = llama_gguf(tmp_path / f"a-0000{i + 1}-of-00002.gguf", keys=b"".join(keys), key_count=2,
                          skip=[f"blk.0.attn_{name}.weight" for name in kept[1 - i]])
    run(MHAGEN, "model", path, "isa=scalar", "seq=4", "-o", tmp_path / "parts")
    assert next((tmp_path / "parts").glob("*.packed")).read_bytes() == expected
    llama_gguf(path, keys=b"".join(keys), key_count=2)
    assert f"tensor blk.0.attn_q.weight: is in {tmp_path}/a-00001-of-00002.gguf too" in refused(
        tmp_path, "model", path, "isa=scalar", "seq=4")


F32, F16, I8, Q8_0 = 0, 1, 24, 8


def factors_of(*numbers, shape=None, kind=F32):
    data = numpy.array(numbers, {F32: "<f4", F16: "<f2", I8: "i1", Q8_0: "u1"}[kind])
    return "rope_freqs.weight", shape or [len(numbers)], kind, data.tobytes()


WRONG_FACTORS = [
    (factors_of(1), "tensor rope_freqs.weight: its shape is [1], and by the config it must be [2]"),
    (factors_of(1, 1, 1), "its shape is [3], and by the config it must be [2]"),
    (factors_of(1, 1, kind=I8), "numbers of type I8 are not read"),
    *[(factors_of(4, value, kind=kind), f"divides the angle of pair 1 by {told}")
      for value, kind, told in [(0, F32, "0.0: must be from 0.001 to 1e+30"), (-1, F16, "-1.0: "),
                                (numpy.nan, F32, "nan: "), (numpy.inf, F32, "inf: "),
                                (1e-30, F32, "1.0000000"), (1e-4, F16, "0.000100")]],
]


def test_wrong_factors_of_angles(bert, tmp_path):
    """What a file divides the angles of rope by: its shape, its type and each number."""
    def angles(*more, rope="half"):
        path = llama_gguf(tmp_path / "x.gguf", *more)
        run(MHAGEN, "model", path, "isa=scalar", "seq=4", f"rope={rope}", "-o", tmp_path / "out", "--force")
        return in_file(next((tmp_path / "out").glob("*.packed")))
    for factors, message in WRONG_FACTORS:
        path = llama_gguf(tmp_path / "x.gguf", factors)
        said = refused(tmp_path, "model", path, "isa=scalar", "seq=4")
        assert f"{path}: tensor rope_freqs.weight: " in said and message in said, said
    plain = angles()
    assert angles(factors_of(1, 1)) == plain != angles(factors_of(1, 2))
    assert angles(factors_of(1, 2, shape=[2, 1])) == angles(factors_of(1, 2, kind=F16)) != plain
    shutil.rmtree(tmp_path / "out")
    assert angles(WRONG_FACTORS[0][0], rope="none")  # then nobody asks


WRONG_SCALINGS = [
    (dict(rope_type="linear", factor=1e-30), "linear: divides the angle of pair 0 by "),
    (dict(rope_type="linear", factor=1e300), "linear: divides the angle of pair 0 by "),
    (dict(rope_type="llama3", factor=1e-9, low_freq_factor=1.0, high_freq_factor=4.0), "llama3: divides the angle"),
    (dict(rope_type="yarn", factor=1e-9), "yarn: divides the angle of pair "),
    (dict(rope_type="longrope", short_factor=[1, 0], long_factor=[1, 1]), "longrope: divides the angle of pair 1 by 0"),
    (dict(rope_type="longrope", short_factor=[1, -2], long_factor=[1, 1]), "of pair 1 by -2.0: must be from 0.001 to"),
    (dict(rope_type="longrope", short_factor=[1, "2"], long_factor=[1, 1]), "short_factor: has what is no number"),
    (dict(rope_type="longrope", short_factor=[1], long_factor=[1, 1]), "short_factor: has 1 numbers, not 2"),
]


@pytest.mark.parametrize("scaling, message", WRONG_SCALINGS, ids=range(len(WRONG_SCALINGS)))
def test_wrong_scalings(scaling, message, tmp_path):
    config = dict(model_type="llama", hidden_size=8, num_attention_heads=2, num_hidden_layers=1, rope_scaling=scaling,
                  max_position_embeddings=64)
    path = write_model(tmp_path / "model", config, {
        f"layers.0.self_attn.{name}_proj.weight": torch.ones(8, 8) for name in "qkvo"})
    said = refused(tmp_path, "model", path, "isa=scalar", "seq=4")
    assert f"{path}/config.json: " in said and message in said


def test_wrong_shards(bert, tmp_path):
    config, tensors = bert
    folder = write_model(tmp_path / "model", config, tensors)
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    index = folder / "model.safetensors.index.json"
    for weight_map, message in [(None, "weight_map is missing"), ({"x": 1}, "is no file of this folder"),
                                ({"x": "../a.safetensors"}, "is no file of this folder"),
                                ({"x": "/etc/passwd"}, "is no file of this folder"),
                                ({"x": "none.safetensors"}, "none.safetensors: No such file"),
                                ({"x": "a.safetensors", "y": "b.safetensors"}, "is in ")]:
        save_file(tensors, folder / "b.safetensors")
        index.write_text(json.dumps(dict(weight_map=weight_map)))
        assert message in refused(tmp_path, "model", folder, "isa=scalar", "seq=4"), message


RUN_LINKED = r"""
#include <stdint.h>
#include <stdio.h>
#include "model.h"

#ifndef NUMBERS
#define NUMBERS (4 * 8)
#endif
static const float x[NUMBERS] = {1, -2, 3};
static float y[NUMBERS];
static _Alignas(64) unsigned char workspace[1 << 16];

int main(void) {
  for (int i = 0; i < MODEL_KERNELS * MODEL_MEMBERS; i++) {
    const model_kernel_row *row = &model_kernels[i];
    if ((uintptr_t)row->packed % MHAGEN_ALIGN != 0) return 2;
    if (mhagen_packed_check(row->kernel, row->packed, row->bytes) != MHAGEN_OK) return 3;
#ifdef BUNDLE /* takes the packed weights of the member that runs, and no other */
    const int taken = mhagen_packed_check(&BUNDLE, row->packed, row->bytes) == MHAGEN_OK;
    if (taken != (row == model_row(i / MODEL_MEMBERS)) || taken != (row->kernel == mhagen_kernel_of(&BUNDLE))) return 5;
#endif
  }
  fprintf(stderr, "%s\n", model_row(0)->kernel->isa);
  for (int i = 0; i < MODEL_LAYERS; i++) {
    const model_kernel_row *row = model_row(model_layers[i].kernel);
    const mhagen_args args = {.q = x, .y = y, .workspace = workspace,
                              .packed = mhagen_packed_layer(row->packed, model_layers[i].index)
#ifdef TABLES
                              , .tables = mhagen_packed_layer(row->tables, model_layers[i].tables)
#endif
    };
    if (row->kernel->workspace_bytes > sizeof workspace || row->kernel->run(&args) != MHAGEN_OK) return 4;
    fwrite(y, sizeof y, 1, stdout);
  }
  return 0;
}
"""


def test_embed(bert, tmp_path):
    """Packed weights that are linked: each layer computes what it does with those of the file. Assemblers of other
    systems take the same text."""
    path, out = write_model(tmp_path / "model", *bert), tmp_path / "out"
    keys = ["isa=scalar", "seq=4", "kv_len=false"]
    imported = Imported(path, tmp_path / "plain", *keys)
    text = run(MHAGEN, "model", path, "-o", out, *keys, "--embed")
    assert f" -I {out} " in text and "_packed.S" in text
    x, expected = numpy.zeros((4, 8), "f4"), b""
    x.flat[:3] = 1, -2, 3
    for name in imported.layers:
        y = numpy.empty((4, 8), "f4")
        imported.run(name, q=x.ctypes.data, y=y.ctypes.data)
        expected += y.tobytes()
    (tmp_path / "main.c").write_text(RUN_LINKED)
    sources = [*out.glob("*.c"), *out.glob("*.S")]
    for compiler in "gcc", "clang":
        if shutil.which(compiler):
            run(compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-Wl,--fatal-warnings", "-I", out, tmp_path / "main.c",
                *sources, "-lm", "-o", tmp_path / "main")
            assert subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout == expected, compiler
    for compiler in "aarch64-linux-gnu-gcc", "x86_64-w64-mingw32-gcc":
        if shutil.which(compiler):
            run(compiler, "-c", "-I", out, *out.glob("*.S"), "-o", tmp_path / "packed.o")
    if platform.machine() == "x86_64":  # what files of 512 MiB have, which may be more than 2 GiB together
        (source,) = out.glob("*.S")
        assert "\n#elif 0 && defined __x86_64__" in source.read_text()
        source.write_text(source.read_text().replace("\n#elif 0 ", "\n#elif 1 "))
        run("gcc", "-I", out, tmp_path / "main.c", *sources, "-lm", "-o", tmp_path / "main")
        assert ".lrodata" in run("readelf", "-SW", tmp_path / "main")
        assert subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout == expected


def layers_of(imported, row=None, rows=4, **args):
    """What all layers make of a few numbers."""
    x, all_y = numpy.zeros((8, 8), "f4"), []
    x.flat[:3] = 1, -2, 3
    for name in imported.layers:
        y = numpy.full((8, 8), numpy.nan, "f4")
        imported.run(name, row, q=x.ctypes.data, y=y.ctypes.data, **args)
        all_y.append(y[:rows])
    return numpy.array(all_y)


def in_file(path):
    """What decides which kernel takes a file: all but its name."""
    data = path.read_bytes()
    return data[:48] + data[128:]


SEVERAL = ["scalar", "avx2", "avx512"] if native("avx2") else ["scalar", "neon"]


def test_bundle(bert, tmp_path):
    """Packed weights of each ISA are those of its kernel alone. The one that is taken, on this CPU and others, is that
    of the member that runs, in files and where they are linked; each computes what its kernel alone does."""
    path, isas = write_model(tmp_path / "model", *bert), "+".join(SEVERAL)
    imported = Imported(path, tmp_path / "all", f"isa={isas}", "seq=4", "kv_len=false")
    rows = {row.kernel.contents.isa.decode(): row for row in imported.kernels}
    assert list(rows) == SEVERAL[::-1] and len(list((tmp_path / "all").glob("*.packed"))) == len(SEVERAL)
    bits = {}
    for isa, row in rows.items():
        alone = Imported(path, tmp_path / isa, f"isa={isa}", "seq=4", "kv_len=false")
        (file,) = (tmp_path / isa).glob("*.packed")
        assert in_file(tmp_path / "all" / row.file.decode()) == in_file(file)
        if ctypes.CFUNCTYPE(ctypes.c_int)(row.kernel.contents.supported)():
            bits[isa] = layers_of(alone).tobytes()
            assert layers_of(imported, row).tobytes() == bits[isa]
    assert len({in_file(file) for file in (tmp_path / "all").glob("*.packed")}) == len(SEVERAL)
    assert layers_of(imported).tobytes() == list(bits.values())[0]

    text = run(MHAGEN, "model", path, f"isa={isas}", "seq=4", "kv_len=false", "-o", tmp_path / "embed", "--embed")
    compile_line = text.splitlines()[-1].split()
    assert len([word for word in compile_line if word.endswith("_packed.S")]) == len(SEVERAL)
    run(*compile_line, cwd=tmp_path)  # what the summary says compiles
    bundle = re.search(rf"(\w+_{'_'.join(SEVERAL)})\.h", (tmp_path / "embed/model.h").read_text())[1]
    (tmp_path / "main.c").write_text(RUN_LINKED)
    run("gcc", "-O1", "-static", "-Wall", "-Wextra", "-Werror", f"-DBUNDLE={bundle}_kernel", "-I", tmp_path / "embed",
        tmp_path / "main.c", *tmp_path.glob("*.o"), "-lm", "-o", tmp_path / "main")
    for emulator, isa in [([], list(bits)[0])] + [
            (["qemu-x86_64", "-cpu", cpu], isa) for cpu, isa in [("Haswell", "avx2"), ("IvyBridge", "scalar")]
            if native("avx2") and shutil.which("qemu-x86_64")]:
        result = subprocess.run([*emulator, tmp_path / "main"], capture_output=True)
        assert (result.returncode, result.stderr.split()[-1].decode()) == (0, isa), (emulator, result)
        assert result.stdout == bits[isa]


@pytest.mark.parametrize("isa", ["scalar", "+".join(SEVERAL)])
def test_ladder(bert, isa, tmp_path):
    """Kernels of all lengths read one file for each ISA, and compute what one for a single length does."""
    path, out = write_model(tmp_path / "model", *bert), tmp_path / "out"
    imported = Imported(path, out, f"isa={isa}", "seq=2,5,8", "q_len=true")
    alone = Imported(path, tmp_path / "alone", "isa=scalar", "seq=8", "q_len=true")
    assert len(list(out.glob("*.packed"))) == len(imported.kernels) == isa.count("+") + 1
    assert len(list(out.glob("*_s[258].c"))) == 3 * len(imported.kernels)
    for length in 1, 2, 4, 5, 7, 8:
        count = ctypes.byref(ctypes.c_int(length))
        lengths = {key: ctypes.cast(count, ctypes.c_void_p).value for key in ("q_len", "kv_len")}
        ours, one = [layers_of(model, rows=length, **lengths) for model in (imported, alone)]
        assert numpy.abs(ours - one).max() < 1e-5 and not numpy.isnan(ours).any()
    data = [in_file(file) for file in sorted(out.glob("*.packed"))]
    assert len(set(data)) == len(data)


def test_prompt_and_steps(tmp_path):
    """A decoder takes its prompt and then row by row by kernels that share packed weights and a cache, also with rope,
    and gets what one run of all rows gives."""
    draw, d, rows = numpy.random.default_rng(5), 16, 11
    names = {f"model.layers.{i}.self_attn.{letter}_proj": (d, d) if letter in "qo" else (d // 2, d)
             for i in range(2) for letter in "qkvo"}
    path = write_model(tmp_path / "model", dict(
        model_type="llama", hidden_size=d, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=2,
        rope_theta=100.0), {f"{name}.weight": torch.from_numpy(draw.normal(size=shape).astype("f4") / 2)
                            for name, shape in names.items()})
    isa = drawn_isa("steps")
    whole = Imported(path, tmp_path / "whole", f"isa={isa}", f"seq={rows}")
    steps = Imported(path, tmp_path / "steps", f"isa={isa}", "seq=1,8", "seq_kv=16", "q_len=true", "cache=append")
    assert len(list((tmp_path / "steps").glob("*.packed"))) == 1
    x = draw.normal(size=(rows, d)).astype("f4")
    for name in whole.layers:
        expected, got = numpy.empty_like(x), numpy.full_like(x, numpy.nan)
        whole.run(name, q=x.ctypes.data, y=expected.ctypes.data)
        cache = aligned(steps.row(0).kernel.contents.cache_bytes)
        for past, count in [(0, 8), (8, 1), (9, 1), (10, 1)]:
            ints = {key: ctypes.c_int(value) for key, value in [("past", past), ("q_len", count)]}
            steps.run(name, q=x[past:].ctypes.data, y=got[past:].ctypes.data, cache=cache[1],
                      **{key: ctypes.addressof(value) for key, value in ints.items()})
        assert numpy.abs(got - expected).max() < 1e-5


def decoder(folder, kind="llama", layers=4, **config):
    """A decoder of random weights, small enough that tables of rope are larger."""
    draw, d = numpy.random.default_rng(5), 16
    names = {f"model.layers.{i}.self_attn.{letter}_proj": (d, d) if letter in "qo" else (d // 2, d)
             for i in range(layers) for letter in "qkvo"}
    return write_model(folder, dict(
        model_type=kind, hidden_size=d, num_attention_heads=2, num_key_value_heads=1, num_hidden_layers=layers,
        rope_theta=100.0, **config), {f"{name}.weight": torch.from_numpy(draw.normal(size=shape).astype("f4") / 2)
                                      for name, shape in names.items()})


WINDOWS = dict(kind="qwen2", use_sliding_window=True, sliding_window=4, max_window_layers=2)
SOME = dict(kind="smollm3", no_rope_layers=[1, 0, 1, 1])


@pytest.mark.parametrize("config, keys, kernels, count", [
    ({}, ["isa=scalar"], 1, 1), ({}, ["isa=scalar+avx2" if native("avx2") else "isa=scalar"], 1, 2),
    (WINDOWS, ["isa=scalar"], 2, 1),  # kernels of other masks have the same tables
    (SOME, ["isa=scalar"], 2, 1), (SOME, ["isa=scalar", "rope_tables=apart"], 2, 1)])
def test_tables_are_packed_once(config, keys, kernels, count, tmp_path):
    """Tables of rope that are half of what a layer packs, or more, are in a file of their own; results stay."""
    path, rows = decoder(tmp_path / "model", **config), 200
    own = Imported(path, tmp_path / "own", f"seq={rows}", keys[0], "rope_tables=packed")
    apart = Imported(path, tmp_path / "apart", f"seq={rows}", *keys)
    files = sorted((tmp_path / "apart").glob("*.tables"))
    assert len(files) == (count if native("avx2") else 1) and not list((tmp_path / "own").glob("*.tables"))
    x = numpy.random.default_rng(3).normal(size=(rows, 16)).astype("f4")
    for name in own.layers:
        expected, got = numpy.empty_like(x), numpy.full_like(x, numpy.nan)
        own.run(name, q=x.ctypes.data, y=expected.ctypes.data)
        apart.run(name, q=x.ctypes.data, y=got.ctypes.data)
        assert expected.tobytes() == got.tobytes()
    assert len(apart.kernels) == kernels * count and {layer.tables for layer in apart.layers.values()} == {0}
    told = re.findall(r"([\d,]+) bytes of tables of rope.*, packed once", apart.text)
    told = [int(size.replace(",", "")) for size in told]
    assert sorted(told) == sorted(path.stat().st_size - 128 for path in files)
    packed = sum(path.stat().st_size - 128 for path in [*files, *(tmp_path / "apart").glob("*.packed")])
    assert f"packed {packed:,} bytes in " in apart.text


def test_embedded_tables(tmp_path):
    """Linked, they give what those of the file do."""
    path, out, x = decoder(tmp_path / "model"), tmp_path / "out", numpy.zeros((200, 16), "f4")
    keys, expected = ["isa=scalar", "seq=200"], b""
    imported = Imported(path, tmp_path / "plain", *keys)
    run(MHAGEN, "model", path, "-o", out, *keys, "--embed")
    x.flat[:3] = 1, -2, 3
    for name in imported.layers:
        y = numpy.empty_like(x)
        imported.run(name, q=x.ctypes.data, y=y.ctypes.data)
        expected += y.tobytes()
    (tmp_path / "main.c").write_text(RUN_LINKED)
    run("gcc", "-O0", "-Wall", "-Wextra", "-Werror", "-DTABLES", f"-DNUMBERS={x.size}", "-I", out, tmp_path / "main.c",
        *out.glob("*.c"), *out.glob("*.S"), "-lm", "-o", tmp_path / "main")
    assert subprocess.run([tmp_path / "main"], capture_output=True, check=True).stdout == expected


def test_angles_are_for_layers_with_rope(tmp_path):
    path = decoder(tmp_path / "some", **SOME)
    told = run(MHAGEN, "model", path, "isa=scalar", "seq=5", "rope_at=run", "-o", tmp_path / "out")
    kernels = re.findall("^.* h=.*seq=5.*$", told, re.M)
    assert sorted("rope=half rope_at=run" in line for line in kernels) == [False, True] and "theta" not in told
    assert "rope_at = run: has no effect without rope" in refused(
        tmp_path, "model", path, "isa=scalar", "seq=5", "rope=none", "rope_at=run")
    assert "rope_theta = 500.0: must be 10000.0 with rope_at = run" in refused(
        tmp_path, "model", path, "isa=scalar", "seq=5", "rope_theta=500", "rope_at=run")


def test_tables_that_stay_packed(tmp_path):
    """Those of one layer, and small ones: the files are what they were before there were others."""
    for name, layers, rows in ("one", 1, 200), ("small", 3, 5):
        out = tmp_path / f"{name}.out"
        path = decoder(tmp_path / name, layers=layers)
        run(MHAGEN, "model", path, "isa=scalar", f"seq={rows}", "-o", out)
        assert not list(out.glob("*.tables")) and "tables" not in (out / "model.h").read_text()
    assert "rope_tables = apart: has no effect without rope" in refused(
        tmp_path, "model", path, "isa=scalar", "seq=5", "rope=none", "rope_tables=apart")


def test_pack_several(tmp_path):
    """A file for each ISA of a bundle, the one that its kernel alone has; lengths share one."""
    files, shape = save_npy(tmp_path / "npy", matrices()), "h=2 d_model=64 dk=32 dv=16 qk_norm=rms sink=true".split()

    def pack(name, *keys):
        told = run(MHAGEN, "pack", *shape, *keys, *[f"{key}={file}" for key, file in files.items()], "--embed", "-o",
                   tmp_path / name / "a.packed")
        return told, {path.name: in_file(path) for path in (tmp_path / name).glob("*.packed")}

    told, both = pack("both", "isa=scalar+avx2", "seq=5", "name=k")
    assert told == "".join(f"{tmp_path}/both/a_{isa}.packed: {size:,} bytes of packed weights for k_{isa}\n"
                           for isa, size in [(isa, len(both[f"a_{isa}.packed"]) - 48) for isa in ("avx2", "scalar")])
    assert sorted(path.name for path in (tmp_path / "both").iterdir()) == [
        "a_avx2.packed", "a_scalar.packed", *[f"k_{isa}_packed.{c}" for isa in ("avx2", "scalar") for c in "Sh"]]
    alone = {f"a_{isa}.packed": pack(isa, f"isa={isa}", "seq=5")[1]["a.packed"] for isa in ("scalar", "avx2")}
    assert both == alone and both["a_avx2.packed"] != both["a_scalar.packed"]
    lengths = pack("ladder", "isa=scalar", "seq=3,5", "q_len=true", "kv_len=true")[1]
    assert len(lengths) == 1 and lengths == {"a.packed": in_file(next((tmp_path / "ladder").glob("*.packed")))}
    (tmp_path / "both/a_avx2.packed").write_text("mine")
    words = [*shape, "isa=scalar+avx2", "seq=5", *[f"{key}={file}" for key, file in files.items()]]
    result = subprocess.run([MHAGEN, "pack", *words, "-o", tmp_path / "both/a.packed"], capture_output=True, text=True)
    assert "both/a_avx2.packed: not made by mhagen; --force replaces" in result.stderr


def test_pack_embed(tmp_path):
    """The name of the symbol is the kernel's, and any name of the file is found."""
    given = matrices()
    name = 'a "b\\c.packed'
    data = packed(tmp_path / name, save_npy(tmp_path / "npy", given), "--embed")
    (source,), (header,) = tmp_path.glob("*_packed.S"), tmp_path.glob("*_packed.h")
    run("cc", "-shared", "-I", tmp_path, source, "-o", tmp_path / "linked.so")
    symbol = re.search(rf"extern const unsigned char (\w+)\[{len(data)}\];", header.read_text())[1]
    assert symbol == source.stem
    assert bytes((ctypes.c_ubyte * len(data)).in_dll(ctypes.CDLL(tmp_path / "linked.so"), symbol)) == data


def test_nothing_of_others_is_replaced(bert, tmp_path):
    """A file that somebody else has made stops all before the work; without it a second run replaces the first."""
    path = write_model(tmp_path / "model", *bert)
    out = tmp_path / "out"
    out.mkdir()
    (out / "model.h").write_text("mine")
    result = subprocess.run([MHAGEN, "model", path, "isa=scalar", "seq=4", "-o", out], capture_output=True, text=True)
    assert "model.h: not made by mhagen; --force replaces" in result.stderr
    assert [path.name for path in out.iterdir()] == ["model.h"]
    (out / "model.h").unlink()
    for _ in range(2):
        text = run(MHAGEN, "model", path, "isa=scalar", "seq=4", "-o", out)
        assert "bert, 2 layers, 1 kernel\n" in text
    assert len(list(out.iterdir())) == 7
