"""Weights that other programs have quantized, as `mhagen model` reads them: GPTQ, AWQ, compressed-tensors and FP8.
Files are written here by numpy, and give the bytes of a model with the numbers that the integers mean. The layouts
were compared with those of auto-round 0.16.1 and compressed-tensors 0.20.0."""
import json

import pytest

from test_import_files import message, safetensors_file
from tools import MHAGEN, installed, run

if not installed("numpy"):
    pytest.skip("numpy is not installed", allow_module_level=True)

import numpy

HIDDEN, HEADS, SHARED, WIDTH = 64, 4, 2, 16
CONFIG = dict(model_type="llama", hidden_size=HIDDEN, num_attention_heads=HEADS, num_key_value_heads=SHARED,
              head_dim=WIDTH, num_hidden_layers=1, rope_theta=10000.0)
LINEARS = {"q_proj": HEADS * WIDTH, "k_proj": SHARED * WIDTH, "v_proj": SHARED * WIDTH, "o_proj": HIDDEN}
AT = "model.layers.0.self_attn."
TYPES = {"<f4": "F32", "<f2": "F16", "<i4": "I32", "|i1": "I8", "<i8": "I64"}


def safetensors_of(tensors):
    """A file of {name: array, (type, array), or (type, array, another shape)}."""
    header, data = {}, b""
    for name, given in tensors.items():
        kind, array, *shape = given if isinstance(given, tuple) else (TYPES[given.dtype.str], given)
        header[name] = dict(dtype=kind, shape=shape[0] if shape else array.shape,
                            data_offsets=[len(data), len(data) + array.nbytes])
        data += array.tobytes()
    return safetensors_file(header, data)


def save(folder, tensors, quantization=None, **config):
    """A folder of a model."""
    folder.mkdir()
    more = {"quantization_config": quantization} if quantization else {}
    (folder / "config.json").write_text(json.dumps({**CONFIG, **config, **more}))
    (folder / "model.safetensors").write_bytes(safetensors_of(tensors))
    return folder


def packed(folder, *keys):
    run(MHAGEN, "model", folder, "isa=scalar", "seq=3", *keys, "--quiet", "-o", folder / "out")
    return {path.name: path.read_bytes() for path in (folder / "out").glob("*.packed")}


def words(numbers, bits):
    """Numbers of the last axis in words of 32 bits, the first one in the lowest bits."""
    numbers = numbers.astype("u4").reshape(*numbers.shape[:-1], -1, 32 // bits)
    return (numbers << (bits * numpy.arange(32 // bits, dtype="u4"))).sum(-1, dtype="u4").astype("<u4").view("<i4")


def meant(quants, zeros, scales, size):
    """[out][in] of integers, with zeros and scales of [out][groups]."""
    zeros, scales = (numpy.repeat(x.astype("f8"), size, axis=1)[:, :quants.shape[1]] for x in (zeros, scales))
    return ((quants - zeros) * scales).astype("<f4")


def draw(rng, out, bits, size, middle=False):
    """Integers, and zeros and scales of groups, some of them below zero."""
    groups = -(-HIDDEN // size)
    scales = rng.uniform(0.01, 0.1, (out, groups)) * rng.choice([1, 1, -1], (out, groups))
    zeros = numpy.full((out, groups), 1 << bits - 1) if middle else rng.integers(1, 1 << bits, (out, groups))
    return rng.integers(0, 1 << bits, (out, HIDDEN)), zeros, scales.astype("<f2")


def gptq(rng, name, out, bits=4, size=32, version="gptq", order=True, middle=False):
    quants, zeros, scales = draw(rng, out, bits, size, middle)
    tensors = {"qweight": words(quants, bits).T.copy(), "scales": scales.T.copy(),
               "qzeros": words(zeros.T - (version == "gptq"), bits)}
    if order:
        tensors["g_idx"] = (numpy.arange(HIDDEN) // size).astype("<i4")
    return {f"{name}.{key}": x for key, x in tensors.items()}, meant(quants, zeros, scales, size)


def awq(rng, name, out, size=32, middle=False):
    """In each eight columns numbers 0, 2, 4, 6 come first."""
    quants, zeros, scales = draw(rng, out, 4, size, middle)

    def ordered(x):
        return words(x.reshape(x.shape[0], -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(x.shape), 4)
    return {f"{name}.qweight": ordered(quants.T), f"{name}.qzeros": ordered(zeros.T),
            f"{name}.scales": scales.T.copy()}, meant(quants, zeros, scales, size)


def compressed(rng, name, out, bits=4, size=32, kind="f2"):
    quants, zeros, scales = draw(rng, out, bits, size, middle=True)
    return {f"{name}.weight_packed": words(quants, bits), f"{name}.weight_scale": scales.astype(kind),
            f"{name}.weight_shape": numpy.array([out, HIDDEN], "<i8")}, meant(quants, zeros, scales, size)


def e4m3(codes):
    """The numbers of bytes: a sign, 4 bits of an exponent, 3 bits of a mantissa."""
    sign, exponent, rest = codes >> 7, codes >> 3 & 15, codes & 7
    size = numpy.where(exponent > 0, (1 + rest / 8) * 2.0 ** (exponent.astype(int) - 7), rest / 8 * 2.0 ** -6)
    return numpy.where(codes & 127 == 127, numpy.nan, numpy.where(sign == 1, -size, size))


def scaled(rng, name, out, scales, behind="weight_scale", kind="F8_E4M3", size=16):
    """Bytes, with scales of a shape: for all, for each row, or for each block."""
    codes = rng.permutation(numpy.arange(out * HIDDEN) % 256).astype("u1").reshape(out, HIDDEN)
    codes[codes & 127 == 127] = 3
    shape = {"all": (1,), "rows": (out, 1), "vector": (out,), "blocks": (-(-out // size), -(-HIDDEN // size)),
             "groups": (out, -(-HIDDEN // size))}[scales]
    by = rng.uniform(0.01, 0.1, shape).astype("<f4")
    numbers = e4m3(codes) if kind == "F8_E4M3" else codes.view("i1").astype("f8")
    each = by.reshape(-1, 1) if scales == "vector" else by
    if scales in ("blocks", "groups"):
        each = by.repeat(size if scales == "blocks" else 1, axis=0)[:out].repeat(size, axis=1)[:, :HIDDEN]
    return {f"{name}.weight": (kind, codes), f"{name}.{behind}": by,
            f"{name}.input_scale": numpy.ones(1, "<f4")}, (numbers * each.astype("f8")).astype("<f4")


def group(strategy="group", bits=4, kind="int", **more):
    """One of config_groups."""
    return dict(targets=["Linear"], input_activations=dict(num_bits=8, dynamic=True, strategy="token"),
                output_activations=None, weights=dict(
                    num_bits=bits, type=kind, symmetric=True, strategy=strategy, dynamic=False, observer="minmax",
                    observer_kwargs={}, actorder=None, block_structure=None, group_size=None, **more))


def tensors_of(format, *groups, **more):
    """A quantization_config of compressed-tensors, with what it says beside."""
    return dict(quant_method="compressed-tensors", format=format, kv_cache_scheme=None, transform_config={},
                quantization_status="compressed", global_compression_ratio=1.5, ignore=["lm_head"], version="0.12.2",
                sparsity_config=dict(format="dense", targets=[]),
                config_groups={f"group_{i}": given for i, given in enumerate(groups)}, **more)


def sized(size, **more):
    made = group(**more)
    made["weights"]["group_size"] = size
    return made


def blocked(*size):
    made = group("block", 8, "float")
    made["weights"]["block_structure"] = list(size)
    return made


PACKED, FLOATS = "pack-quantized", "float-quantized"
CASES = {
    "gptq": (gptq, {}, dict(quant_method="gptq", bits=4, group_size=32, desc_act=True, sym=False)),
    "gptq, one group": (gptq, dict(size=64, order=False), dict(quant_method="gptq", bits=4, group_size=-1)),
    "gptq, 8 bits": (gptq, dict(bits=8), dict(quant_method="gptq", bits=8, group_size=32, checkpoint_format="gptq")),
    "gptq, groups of 24": (gptq, dict(size=24), dict(quant_method="gptq", bits=4, group_size=24)),
    "gptq, symmetric": (gptq, dict(middle=True), dict(
        quant_method="gptq", bits=4, group_size=32, sym=True, pack_dtype="int32", meta=dict(quantizer=["x"]),
        damp_percent=0.1, true_sequential=True, dynamic=None, format="gptq", checkpoint_format="gptq")),
    "gptq, symmetric, 8 bits": (gptq, dict(bits=8, middle=True), dict(
        quant_method="gptq", bits=8, group_size=32, sym=True)),
    "gptq_v2": (gptq, dict(version="gptq_v2"),
                dict(quant_method="gptq", bits=4, group_size=32, checkpoint_format="gptq_v2", lm_head=False)),
    "gptq_v2, symmetric": (gptq, dict(version="gptq_v2", middle=True), dict(
        quant_method="gptq", bits=4, group_size=32, checkpoint_format="gptq_v2", sym=True)),
    "awq": (awq, {}, dict(quant_method="awq", bits=4, group_size=32, version="gemm", zero_point=True,
                          modules_to_not_convert=None, backend="autoawq")),
    "awq, groups of 16": (awq, dict(size=16), dict(quant_method="awq", bits=4, group_size=16, version="GEMM")),
    "awq, groups of 24": (awq, dict(size=24), dict(quant_method="awq", bits=4, group_size=24, version="GEMM")),
    "awq, symmetric": (awq, dict(middle=True), dict(quant_method="awq", bits=4, group_size=32, zero_point=False)),
    "compressed": (compressed, {}, tensors_of(PACKED, sized(32))),
    "compressed, groups of 24": (compressed, dict(size=24), {
        **tensors_of(PACKED, sized(24)), "quantization_status": "frozen"}),  # as older versions write it
    "compressed, rows": (compressed, dict(size=64, kind="<f4"), tensors_of(PACKED, group("channel"))),
    "compressed, 8 bits": (compressed, dict(bits=8), tensors_of(PACKED, sized(32, bits=8))),
    "compressed, two groups": (compressed, {}, tensors_of(
        "mixed-precision", dict(group("channel", 8, "float"), format=FLOATS), dict(sized(32), format=PACKED),
        dict(sized(16), format="nvfp4-pack-quantized"), sized(16, bits=8))),
    "fp8, all": (scaled, dict(scales="all"), tensors_of(FLOATS, group("tensor", 8, "float"))),
    "fp8, rows": (scaled, dict(scales="rows"), dict(quant_method="fbgemm_fp8", activation_scale_ub=1200.0)),
    "fp8, vector": (scaled, dict(scales="vector"), tensors_of(FLOATS, group("channel", 8, "float"))),
    "fp8, blocks": (scaled, dict(scales="blocks", behind="weight_scale_inv"),
                    dict(quant_method="fp8", weight_block_size=[16, 16], scale_fmt="float", fmt="e4m3",
                         activation_scheme="dynamic")),
    "fp8, blocks of 24": (scaled, dict(scales="blocks", behind="weight_scale_inv", size=24),
                          dict(quant_method="fp8", weight_block_size=[24, 24])),
    "fp8, compressed blocks": (scaled, dict(scales="blocks"), tensors_of(FLOATS, blocked(16, 16))),
    "int8": (scaled, dict(scales="rows", kind="I8"), tensors_of("int-quantized", group("channel", 8))),
    "int8, groups": (scaled, dict(scales="groups", kind="I8", size=24), tensors_of(
        "naive-quantized", sized(24, bits=8))),
}


def made(case, seed=7):
    """{name: tensor} as the case has it, and with the numbers that are meant."""
    write, options, quantization = CASES[case]
    rng, tensors, plain = numpy.random.default_rng(seed), {}, {}
    for linear, out in LINEARS.items():
        own, plain[f"{AT}{linear}.weight"] = write(rng, AT + linear, out, **options)
        tensors |= own
    return tensors, plain, quantization


def write_corpus(corpus):
    """What libFuzzer begins with: a file of each kind, of a width that it reads, and configs."""
    for name, case in ("gptq", "gptq"), ("awq", "awq"), ("packed", "compressed"), ("fp8", "fp8, rows"):
        tensors, _, quantization = made(case)
        (corpus / f"safetensors/{name}").write_bytes(safetensors_of(
            {key: x for key, x in tensors.items() if "k_proj" in key}))
        (corpus / f"model/llama__{name}").write_text(json.dumps({**CONFIG, "quantization_config": quantization}))


@pytest.mark.parametrize("case", CASES)
def test_case(case, tmp_path):
    tensors, plain, quantization = made(case)
    expected = packed(save(tmp_path / "plain", plain))
    assert packed(save(tmp_path / "quantized", tensors, quantization)) == expected
    assert len(expected) == 1


def test_parts_of_a_matrix(tmp_path):
    """Queries, keys and values are rows of one linear map, which Phi-3 has."""
    rows = (HEADS + 2 * SHARED) * WIDTH
    config = dict(model_type="phi3", original_max_position_embeddings=64, max_position_embeddings=64)
    for write, quantization in (gptq, CASES["gptq"][2]), (awq, CASES["awq"][2]), (compressed, CASES["compressed"][2]):
        rng, tensors, plain = numpy.random.default_rng(9), {}, {}
        for linear, out in ("qkv_proj", rows), ("o_proj", HIDDEN):
            own, plain[f"{AT}{linear}.weight"] = write(rng, AT + linear, out)
            tensors |= own
        name = write.__name__
        assert packed(save(tmp_path / name, tensors, quantization, **config)) == packed(
            save(tmp_path / f"plain {name}", plain, **config))


def test_what_is_left_alone(tmp_path):
    """Some linear maps may have plain weights; and a config is not asked for what no attention has."""
    tensors, plain, quantization = made("gptq")
    for name in [name for name in tensors if "o_proj" in name]:
        del tensors[name]
    tensors[f"{AT}o_proj.weight"] = plain[f"{AT}o_proj.weight"]
    expected = packed(save(tmp_path / "plain", plain))
    assert packed(save(tmp_path / "mixed", tensors, quantization)) == expected
    mlp, _ = gptq(numpy.random.default_rng(1), "model.layers.0.mlp.up_proj", 32)
    assert packed(save(tmp_path / "mlp", {**plain, **mlp}, dict(quant_method="quip", vectors=8))) == expected


def test_rotations(tmp_path):
    """Plain weights mean something else too where rows are rotated at run time, or where BitNet rounds them."""
    _, plain, _ = made("compressed")
    for i, more in enumerate([dict(transform_config=dict(config_groups=dict(r=dict(type="hadamard")))),
                              dict(quant_method="bitnet", linear_class="autobitlinear")]):
        folder = save(tmp_path / str(i), plain, {"quant_method": "compressed-tensors", **more})
        assert f"quantization_config.{list(more)[-1]}" in message(
            "model", folder, "isa=scalar", "seq=3", "-o", tmp_path / "out")


@pytest.mark.parametrize("case, told", [
    ("compressed", "integers of 4 bits, 6,144 bytes a layer: weight_dtype=int4 group=32 packs fewer, with the same "
     "integers"),
    ("gptq", "gptq of 4 bits, 6,144 bytes a layer: weight_dtype=int4 packs fewer, with roundings of its own"),
    ("compressed, 8 bits", "integers of 8 bits, 12,288 bytes a layer: weight_dtype=int8 group=32 packs fewer, with "
     "roundings of its own"),
    ("gptq, 8 bits", "gptq of 8 bits, 12,288 bytes a layer: weight_dtype=int8 group=32 packs fewer, with roundings of "
     "its own"),
    ("int8, groups", "I8, 12,288 bytes a layer: weight_dtype=int8 group=24 packs fewer, with roundings of its own"),
    ("int8", "I8, 12,288 bytes a layer: weight_dtype=int8 packs fewer, with roundings of its own")])
def test_proposal(case, told, tmp_path):
    """int4 keeps integers around zero; groups are of the same size."""
    tensors, _, quantization = made(case)
    folder = save(tmp_path / "model", tensors, quantization)
    assert f"the file has them as {told}\n" in run(MHAGEN, "model", folder, "isa=scalar", "seq=3", "-o", tmp_path / "o")


Q = AT + "q_proj"


def changed(**more):
    made = sized(32)
    made["weights"] |= more
    return made


def without(tensors, name):
    return {key: x for key, x in tensors.items() if key != name}


REFUSED = [  # what is changed, in the tensors or in the config, and what is told
    ("gptq", lambda t: t, dict(bits=3), "quantization_config.bits: 3 is not read"),
    ("gptq", lambda t: t, dict(quant_method="hqq"),
     "quantization_config.quant_method: hqq is not read, and tensor model.layers.0.self_attn.k_proj.qweight is of it; "
     "read are awq, gptq"),
    ("gptq", lambda t: t, dict(checkpoint_format="marlin"), "checkpoint_format: marlin is not read"),
    ("gptq", lambda t: t, dict(group_size=64), "group_size: 64, and tensor model.layers."),
    ("gptq", lambda t: t, dict(group_size=-1), "group_size: 64, and tensor model.layers."),
    ("gptq", lambda t: t, dict(group_size=0), "group_size: 0 must be -1 or a number from 1 on"),
    ("gptq", lambda t: t, dict(sym=True), "its word 0 has zeros that are not 7, and quantization_config.sym is"),
    ("gptq_v2, symmetric", lambda t: t, dict(checkpoint_format="gptq"), "zeros that are not 7, and"),
    ("gptq, symmetric", lambda t: t, dict(checkpoint_format="gptq_v2"), "gptq, and checkpoint_format is another"),
    ("gptq, symmetric", lambda t: t, dict(checkpoint_format="gptq_v2", format=None), "zeros that are not 8, and"),
    ("gptq", lambda t: without(t, f"{Q}.g_idx"), {}, "desc_act: true, and no tensor g_idx is there"),
    ("gptq", lambda t: t, dict(dynamic={"-:.*q_proj": {}}), "quantization_config.dynamic: may change attention"),
    ("gptq", lambda t: t, dict(pack_method="reorder"), "quantization_config.pack_method = reorder: may change"),
    ("gptq", lambda t: t, dict(pack_dtype="int16"), "pack_dtype: int16 is not supported"),
    ("gptq", lambda t: t, dict(data_type="fp"), "data_type = fp: may change"),
    ("gptq", lambda t: t, None, "k_proj.qweight: config.json has no quantization_config"),
    ("awq", lambda t: t, dict(zero_point=False), "zeros that are not 8, and quantization_config.zero_point is false"),
    ("awq", lambda t: t, dict(backend="llm-awq"), "backend: llm-awq is not read"),
    ("gptq", lambda t: without(t, f"{Q}.qzeros"), {}, f"tensor {Q}.qweight: its qzeros are missing"),
    ("gptq", lambda t: without(t, f"{Q}.scales"), {},
     "q_proj.weight is missing; quantization_config says gptq, of which this is not read"),
    ("gptq", lambda t: {**t, f"{Q}.weight": numpy.zeros((64, 64), "<f4")}, {}, f"{Q}.weight: is there beside {Q}.qw"),
    ("gptq", lambda t: {**t, f"{Q}.g_idx": t[f"{Q}.g_idx"][::-1].copy()}, {},
     f"tensor {Q}.g_idx: column 0 has the scale of group 1: the order of desc_act or actorder is not read"),
    ("gptq", lambda t: {**t, f"{Q}.qzeros": t[f"{Q}.qzeros"] | 15}, {},
     f"tensor {Q}.qzeros: a zero of 15, which programs read as 0 or as 16"),
    ("gptq", lambda t: {**t, f"{Q}.qweight": t[f"{Q}.qweight"][:4]}, {},
     f"tensor {Q}.qweight: is I32 of [4, 64], and by the config it must be I32 of [8, 64]"),
    ("gptq", lambda t: {**t, f"{Q}.qweight": t[f"{Q}.qweight"].view("<f4")}, {}, "qweight: is F32 of [8, 64]"),
    ("gptq", lambda t: {**t, f"{Q}.scales": t[f"{Q}.scales"].astype("<i4")}, {}, "scales of type I32 are not read"),
    ("awq", lambda t: t, dict(version="gemv"), "quantization_config.version: gemv is not read"),
    ("awq", lambda t: {**t, f"{Q}.scales": t[f"{Q}.scales"][:, :8]}, {}, "must be F16 of [2, 64]"),
    ("compressed", lambda t: {**t, f"{Q}.weight_zero_point": numpy.zeros((8, 2), "<i4")}, {},
     f"tensor {Q}.weight_zero_point: zeros that are not the middle are not read"),
    ("compressed", lambda t: {**t, f"{Q}.weight_packed": t[f"{Q}.weight_packed"][:, :6]}, {},
     "of [64, 6] with scales of [64, 2], and quantization_config.config_groups has none such for 64 x 64 numbers"),
    ("compressed", lambda t: t, dict(config_groups=None), "config_groups: is missing"),
    ("compressed", lambda t: t, dict(config_groups=dict(a=sized(48), b=sized(32))),
     "config_groups.b: tensor model.layers.0.self_attn.k_proj.weight_packed may be of this group and of another"),
    ("compressed", lambda t: t, dict(config_groups=dict(a=sized(32, bits=8))), "config_groups has none such for"),
    ("compressed", lambda t: t, dict(config_groups=dict(a=sized(16))), "config_groups has none such for"),
    ("compressed", lambda t: t, dict(config_groups=dict(a=sized(32, kind="float"))), "config_groups has none such for"),
    ("compressed", lambda t: t, dict(config_groups=dict(a=changed(symmetric=False))), "symmetric: false is not"),
    ("compressed", lambda t: t, dict(config_groups=dict(a=changed(dynamic=True))), "weights.dynamic: true is not"),
    ("compressed", lambda t: t, dict(config_groups=dict(a=changed(actorder="group"))),
     "weights.actorder: group, and no tensor weight_g_idx is there"),
    ("compressed", lambda t: t, dict(config_groups=dict(a=changed(strategy="token"))), "strategy: token is not read"),
    ("compressed", lambda t: t, dict(config_groups=dict(a=changed(zero_fmt=1))), "weights.zero_fmt = 1: may change"),
    ("compressed", lambda t: t, dict(format="marlin-24"), "config_groups has none such for"),
    ("compressed", lambda t: t, dict(sparsity_config=dict(format="sparse-24-bitmask")), "format: sparse-24-bitmask is"),
    ("compressed", lambda t: t, dict(transform_config=dict(config_groups=dict(u=dict(type="hadamard")))),
     "quantization_config.transform_config: may change attention"),
    ("compressed", lambda t: t, dict(kv_cache_scheme=dict(num_bits=8)), "quantization_config.kv_cache_scheme: may"),
    ("fp8, blocks", lambda t: t, dict(weight_block_size=[128, 128]),
     "weight_scale_inv: is F32 of [2, 4], and by the config it must be F32 of [1, 1]"),
    ("fp8, blocks", lambda t: t, dict(fmt="e5m2"), "fmt: e5m2 is not supported"),
    ("fp8, blocks", lambda t: t, dict(weight_block_size=[16]), "weight_block_size: must be two numbers"),
    ("fp8, blocks", lambda t: {**t, f"{Q}.weight_scale_inv": ("F8_E8M0", numpy.ones((4, 4), "u1"))}, {},
     "scales of type F8_E8M0 are not read"),
    ("fp8, blocks", lambda t: {**t, f"{Q}.weight": ("F8_E5M2", t[f"{Q}.weight"][1])}, {},
     "numbers of type F8_E5M2 are not read; quantization_config says fp8"),
    ("fp8, blocks", lambda t: {**t, f"{Q}.weight_scale_inv": t[f"{Q}.weight_scale_inv"][:, :3]}, {},
     "is F32 of [4, 3], and by the config it must be F32 of [4, 4]"),
] + [(case, lambda t: t, dict(quant_method=method), f"quant_method: {method} is not read")
     for case, method in zip(["fp8, all", "int8", "compressed", "gptq"] * 3, [
         "modelopt", "bitnet", "mxfp4", "quark", "torchao", "quanto", "bitsandbytes", "higgs"])]


@pytest.mark.parametrize("case, change, config, told", REFUSED, ids=range(len(REFUSED)))
def test_refused(case, change, config, told, tmp_path):
    tensors, _, quantization = made(case)
    folder = save(tmp_path / "model", change(tensors), None if config is None else {**quantization, **config})
    assert told in message("model", folder, "isa=scalar", "seq=3", "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_files_that_lie(tmp_path):
    """Shapes that need more bytes than there are."""
    for case, name in ("gptq", "qweight"), ("gptq", "qzeros"), ("gptq", "g_idx"), ("gptq", "scales"), (
            "compressed", "weight_packed"), ("fp8, rows", "weight"):
        tensors, _, quantization = made(case)
        kind, array = tensors[f"{Q}.{name}"] if case[0] == "f" else (None, tensors[f"{Q}.{name}"])
        tensors[f"{Q}.{name}"] = kind or TYPES[array.dtype.str], array[:-1], array.shape
        folder = save(tmp_path / f"{case} {name}", tensors, quantization)
        told = message("model", folder, "isa=scalar", "seq=3", "-o", tmp_path / "out")
        assert f"tensor {Q}.{name}: " in told and (" takes " in told or " does not take " in told)


def test_fp8_is_pytorchs():
    if not installed("torch"):
        pytest.skip("PyTorch is not installed")
    import torch
    codes = numpy.arange(256, dtype="u1")
    numbers = torch.from_numpy(codes).view(torch.float8_e4m3fn).double().numpy()
    assert numpy.array_equal(e4m3(codes), numbers, equal_nan=True)
