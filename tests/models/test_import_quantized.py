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


def meant(quants, zeros, scales):
    """[out][in] of integers, with zeros and scales of [out][groups]."""
    spread = quants.shape[1] // scales.shape[1]
    zeros, scales = (numpy.repeat(x.astype("f8"), spread, axis=1) for x in (zeros, scales))
    return ((quants - zeros) * scales).astype("<f4")


def draw(rng, out, bits, groups, width=HIDDEN):
    """Integers, and zeros and scales of groups."""
    return (rng.integers(0, 1 << bits, (out, width)), rng.integers(1, 1 << bits, (out, groups)),
            rng.uniform(0.01, 0.1, (out, groups)).astype("<f2"))


def gptq(rng, name, out, bits=4, groups=2, version="gptq", order=True):
    quants, zeros, scales = draw(rng, out, bits, groups)
    tensors = {"qweight": words(quants, bits).T.copy(), "scales": scales.T.copy(),
               "qzeros": words(zeros.T - (version == "gptq"), bits)}
    if order:
        tensors["g_idx"] = (numpy.arange(HIDDEN) // (HIDDEN // groups)).astype("<i4")
    return {f"{name}.{key}": x for key, x in tensors.items()}, meant(quants, zeros, scales)


def awq(rng, name, out, groups=2):
    """In each eight columns numbers 0, 2, 4, 6 come first."""
    quants, zeros, scales = draw(rng, out, 4, groups)

    def ordered(x):
        return words(x.reshape(x.shape[0], -1, 8)[:, :, [0, 2, 4, 6, 1, 3, 5, 7]].reshape(x.shape), 4)
    return {f"{name}.qweight": ordered(quants.T), f"{name}.qzeros": ordered(zeros.T),
            f"{name}.scales": scales.T.copy()}, meant(quants, zeros, scales)


def compressed(rng, name, out, bits=4, groups=2, kind="f2"):
    quants, _, scales = draw(rng, out, bits, groups)
    return {f"{name}.weight_packed": words(quants, bits), f"{name}.weight_scale": scales.astype(kind),
            f"{name}.weight_shape": numpy.array([out, HIDDEN], "<i8")}, meant(
                quants, numpy.full(scales.shape, 1 << (bits - 1)), scales)


def e4m3(codes):
    """The numbers of bytes: a sign, 4 bits of an exponent, 3 bits of a mantissa."""
    sign, exponent, rest = codes >> 7, codes >> 3 & 15, codes & 7
    size = numpy.where(exponent > 0, (1 + rest / 8) * 2.0 ** (exponent.astype(int) - 7), rest / 8 * 2.0 ** -6)
    return numpy.where(codes & 127 == 127, numpy.nan, numpy.where(sign == 1, -size, size))


def scaled(rng, name, out, scales, behind="weight_scale", kind="F8_E4M3"):
    """Bytes, with scales of a shape: for all, for each row, or for each block."""
    codes = rng.permutation(numpy.arange(out * HIDDEN) % 256).astype("u1").reshape(out, HIDDEN)
    codes[codes & 127 == 127] = 3
    shape = {"all": (1,), "rows": (out, 1), "vector": (out,), "blocks": (-(-out // 16), HIDDEN // 16)}[scales]
    by = rng.uniform(0.01, 0.1, shape).astype("<f4")
    numbers = e4m3(codes) if kind == "F8_E4M3" else codes.view("i1").astype("f8")
    each = by.reshape(-1, 1) if scales == "vector" else by
    if scales == "blocks":
        each = by.repeat(16, axis=0)[:out].repeat(16, axis=1)
    return {f"{name}.weight": (kind, codes), f"{name}.{behind}": by,
            f"{name}.input_scale": numpy.ones(1, "<f4")}, (numbers * each.astype("f8")).astype("<f4")


CASES = {
    "gptq": (gptq, {}, dict(quant_method="gptq", bits=4, group_size=32, desc_act=True, sym=False)),
    "gptq, one group": (gptq, dict(groups=1, order=False), dict(quant_method="gptq", bits=4, group_size=-1)),
    "gptq, 8 bits": (gptq, dict(bits=8), dict(quant_method="gptq", bits=8, group_size=32, checkpoint_format="gptq")),
    "gptq_v2": (gptq, dict(version="gptq_v2"),
                dict(quant_method="gptq", bits=4, group_size=32, checkpoint_format="gptq_v2", lm_head=False)),
    "awq": (awq, {}, dict(quant_method="awq", bits=4, group_size=32, version="gemm", zero_point=True,
                          modules_to_not_convert=None)),
    "awq, groups of 16": (awq, dict(groups=4), dict(quant_method="awq", bits=4, group_size=16, version="GEMM")),
    "compressed": (compressed, {}, dict(quant_method="compressed-tensors", format="pack-quantized",
                                        kv_cache_scheme=None)),
    "compressed, rows": (compressed, dict(groups=1, kind="<f4"), dict(quant_method="compressed-tensors")),
    "compressed, 8 bits": (compressed, dict(bits=8), dict(quant_method="compressed-tensors")),
    "fp8, all": (scaled, dict(scales="all"), dict(quant_method="compressed-tensors", format="float-quantized")),
    "fp8, rows": (scaled, dict(scales="rows"), dict(quant_method="fbgemm_fp8")),
    "fp8, vector": (scaled, dict(scales="vector"), dict(quant_method="compressed-tensors")),
    "fp8, blocks": (scaled, dict(scales="blocks", behind="weight_scale_inv"),
                    dict(quant_method="fp8", weight_block_size=[16, 16], scale_fmt="float", fmt="e4m3")),
    "int8": (scaled, dict(scales="rows", kind="I8"), dict(quant_method="compressed-tensors", format="int-quantized")),
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
    assert packed(save(tmp_path / "mlp", {**plain, **mlp}, dict(quant_method="quip"))) == expected


@pytest.mark.parametrize("case, told", [
    ("compressed", "integers of 4 bits, 6,144 bytes a layer: weight_dtype=int4 group=32 packs fewer, with the same "
     "integers"),
    ("gptq", "gptq of 4 bits, 6,144 bytes a layer: weight_dtype=int4 packs fewer, with roundings of its own"),
    ("int8", "I8, 12,288 bytes a layer: weight_dtype=int8 packs fewer, with roundings of its own")])
def test_proposal(case, told, tmp_path):
    """int4 keeps integers around zero, in groups of the same size."""
    tensors, _, quantization = made(case)
    folder = save(tmp_path / "model", tensors, quantization)
    assert f"the file has them as {told}\n" in run(MHAGEN, "model", folder, "isa=scalar", "seq=3", "-o", tmp_path / "o")


Q = AT + "q_proj"


def without(tensors, name):
    return {key: x for key, x in tensors.items() if key != name}


REFUSED = [  # what is changed, in the tensors or in the config, and what is told
    ("gptq", lambda t: t, dict(bits=3), "quantization_config.bits: 3 is not read"),
    ("gptq", lambda t: t, dict(quant_method="hqq"), "quantization_config.quant_method: hqq is not read; gptq and awq"),
    ("gptq", lambda t: t, dict(checkpoint_format="marlin"), "checkpoint_format: marlin is not read"),
    ("gptq", lambda t: t, dict(group_size=64), "group_size: 64, and tensor model.layers."),
    ("gptq", lambda t: t, dict(group_size=-1), "group_size: -1, and tensor model.layers."),
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
     "in which a row of 64 numbers has neither 4 nor 8 bits for each"),
    ("compressed", lambda t: t, dict(kv_cache_scheme=dict(num_bits=8)), "quantization_config.kv_cache_scheme: may"),
    ("fp8, blocks", lambda t: t, dict(weight_block_size=[128, 128]), "weight_block_size: 128, and tensor"),
    ("fp8, blocks", lambda t: {**t, f"{Q}.weight_scale_inv": ("F8_E8M0", numpy.ones((4, 4), "u1"))}, {},
     "scales of type F8_E8M0 are not read"),
    ("fp8, blocks", lambda t: {**t, f"{Q}.weight": ("F8_E5M2", t[f"{Q}.weight"][1])}, {},
     "numbers of type F8_E5M2 are not read; quantization_config says fp8"),
    ("fp8, blocks", lambda t: {**t, f"{Q}.weight_scale_inv": t[f"{Q}.weight_scale_inv"][:, :3]}, {},
     "has no whole groups of 64 numbers"),
]


@pytest.mark.parametrize("case, change, config, told", REFUSED, ids=range(len(REFUSED)))
def test_refused(case, change, config, told, tmp_path):
    tensors, _, quantization = made(case)
    folder = save(tmp_path / "model", change(tensors), {**quantization, **config})
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
