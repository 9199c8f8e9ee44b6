"""ONNX's own cases of its operator Attention, which the installed package makes: generated kernels compute those that
keys express."""
import collections

import pytest

from reference_lib import Generated, drawn_isa
from tools import schema

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

# What no key says, and how many of the 93 cases need it, at most.
NOT_EXPRESSIBLE = {"a query before the first key": 2}

TYPES = {"float16": "f16", "bfloat16": "bf16"}


def cases():
    from onnx.backend.test.case import node

    import onnx.backend.test.case.node.attention  # noqa: F401, it makes the cases
    return [case for case in node._NodeTestCases if not case.name.endswith("_expanded")]


def by_head(x, heads):
    """[batch][heads][rows][width], also of [batch][rows][heads * width]."""
    return x if x.ndim == 4 else x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def with_rows(x, rows, axis=-2, value=0):
    """More rows, or as many, with this value in them."""
    return np.pad(x, [(0, rows - size if i == x.ndim + axis else 0) for i, size in enumerate(x.shape)],
                  constant_values=value)


def formula_keys(given, outputs):
    """The keys of what is computed of queries and keys that stand in their places."""
    config = {key: given[name] for key, name in [
        ("scale", "scale"), ("softcap", "softcap"), ("window_left", "left_window_size"),
        ("window_right", "right_window_size")] if given.get(name, -1) not in (-1, 0.0)}
    if given.get("is_causal"):
        config["causal"] = "true"
    if "qk_matmul_output" in outputs:
        mode = given.get("qk_matmul_output_mode", 0)
        config |= ({"probs": "true"} if mode == 3 else
                   {"scores": ["scaled", "capped" if "softcap" in config else "scaled", "masked"][mode]})
    return config


def mask_keys(mask, seq, seq_kv):
    """The keys of a mask, and the mask as such a kernel takes it."""
    extents = dict(zip("bhqk"[-mask.ndim:], mask.shape))
    dims = "".join(axis for axis, extent in extents.items() if extent > 1 or axis == "k")
    kind = "bool" if mask.dtype == bool else "add"
    mask = with_rows(mask, seq_kv, axis=-1, value=False if kind == "bool" else -np.inf)
    if "q" in dims:
        mask = with_rows(mask, seq)
    return {"mask": kind, "mask_dims": dims}, mask.astype("u1" if kind == "bool" else "f4")


def express(case):
    """A config, the arguments of a run, its cache, and {what a run must leave: (the array, what it is made of)}; or
    None and the features that no key says."""
    node, (inputs, outputs) = case.model.graph.node[0], case.data_sets[0]
    given = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    x, y = dict(zip(filter(None, node.input), inputs)), dict(zip(filter(None, node.output), outputs))
    flat = x["Q"].ndim == 3
    h, h_kv = ((given["q_num_heads"], given["kv_num_heads"]) if flat else (x["Q"].shape[1], x["K"].shape[1]))
    q, k, v = by_head(x["Q"], h), by_head(x["K"], h_kv), by_head(x["V"], h_kv)
    batch, _, rows, dk = q.shape
    config = {"project": "none", "batch": batch, "h": h, "h_kv": h_kv, "dk": dk, "dv": v.shape[3],
              **formula_keys(given, y)}
    if not flat:
        config["layout"] = "bhsd"
    if q.dtype.name in TYPES:
        config["io_dtype"] = TYPES[q.dtype.name]
    args, cache, lacks = {}, None, set()

    seq, seq_kv, valid = rows, k.shape[2], x.get("nonpad_kv_seqlen")
    past = None if "past_key" not in x else [x["past_key"].shape[2]] * batch
    if past:
        cache = [x["past_key"], x["past_value"]]
    elif valid is not None and {"causal", "window_left", "window_right"} & {*config}:  # places count from the last key
        past = [int(count) - rows for count in valid]
        if min(past) < 0:
            lacks.add("a query before the first key")
        else:  # K and V are a cache in which the last keys are already
            cache = [k, v]
            k, v = (np.stack([entry[:, at:at + rows] for at, entry in zip(past, part)]) for part in (k, v))
    elif valid is not None:
        args["kv_len"] = valid

    if cache:
        new = k.shape[2]
        seq = max(rows, new)
        seq_kv = max(cache[0].shape[2], max(past) + seq)
        config |= {"cache": "append", "cache_layout": "bhsd"}
        args["past"] = past
        if new < seq:
            args["kv_len"] = [at + new for at in past]
        q, k, v = (with_rows(part, seq) for part in (q, k, v))
        cache = [with_rows(part, seq_kv) for part in cache]
    if "attn_mask" in x:
        keys, args["mask"] = mask_keys(x["attn_mask"], seq, seq_kv)
        config |= keys
    config |= {"seq": seq, "seq_kv": seq_kv} | ({"kv_len": "true"} if "kv_len" in args else {})
    return config, args, (q, k, v), cache, lacks


def missing(config, options):
    """The keys of a config, or their values, that are not among the options."""
    return {key if key not in options else f"{key}={value}" for key, value in config.items()
            if key not in options or value not in options[key].get("choices", [value])}


class Memory:
    """Arrays whose first number is aligned, as that of a cache must be."""

    def __init__(self):
        self.kept = []

    def of(self, array, dtype="f4"):
        array = np.ascontiguousarray(array, dtype)
        room = np.empty(array.nbytes + 63, "u1")
        at = -room.ctypes.data % 64
        room = room[at:at + array.nbytes].view(array.dtype).reshape(array.shape)
        room[...] = array
        self.kept.append(room)
        return room


def difference(got, expected, tolerance):
    got, expected = np.asarray(got, "f4"), np.asarray(expected, "f4")
    np.testing.assert_allclose(got, expected, **tolerance)
    finite = np.isfinite(expected)  # masked scores are not
    return np.abs(got[finite] - expected[finite]).max(initial=0)


def compute(kernel, config, args, inputs, cache):
    """What a run leaves, by the names that ONNX has, with the heads before the rows."""
    memory, flat = Memory(), "layout" not in config
    batch, h, h_kv, seq, seq_kv = (config[key] for key in ("batch", "h", "h_kv", "seq", "seq_kv"))

    def turned(x):  # to and from the layout of the kernel
        return x.swapaxes(1, 2) if flat else x

    kind = inputs[0].dtype if "io_dtype" in config else "f4"
    arrays = {of: memory.of(turned(x), kind) for of, x in zip("qkv", inputs)}
    arrays |= {name: memory.of(x, np.asarray(x).dtype if name == "mask" else "i4") for name, x in args.items()}
    left = {"Y": memory.of(np.full(turned(np.empty((batch, h, seq, config["dv"]))).shape, np.nan), kind)}
    arrays["y"] = left["Y"]
    if cache:
        arrays["cache"] = memory.of(np.concatenate([part.reshape(batch, -1) for part in cache], axis=1))
    for name in "scores", "probs":
        if config.get(name, "none") != "none":
            arrays[name] = left["qk_matmul_output"] = memory.of(np.full((batch, h, seq, seq_kv), np.nan))
    kernel.run(**{name: array.ctypes.data for name, array in arrays.items()})
    left["Y"] = turned(left["Y"])
    if cache:
        parts = np.split(arrays["cache"].reshape(batch, -1), [h_kv * seq_kv * config["dk"]], axis=1)
        left |= {name: part.reshape(batch, h_kv, seq_kv, -1)
                 for name, part in zip(("present_key", "present_value"), parts)}
    return left


def test_attention(tmp_path):
    options = {option["key"]: option for option in schema()}
    kernels, passed, lacking, worst, failed = {}, 0, collections.defaultdict(list), 0, []
    for case in cases():
        config, args, inputs, cache, lacks = express(case)
        lacks |= missing(config, options)
        for feature in lacks:
            lacking[feature].append(case.name)
        if lacks:
            continue
        words = tuple(config.items())
        if words not in kernels:
            kernels[words] = Generated(config, drawn_isa(config), tmp_path / str(len(kernels)))
            kernels[words].pack()
        left = compute(kernels[words], config, args, inputs, cache)
        try:
            names = filter(None, case.model.graph.node[0].output)
            for name, expected in zip(names, case.data_sets[0][1]):
                got = left[name]
                if expected.ndim == 3:  # the heads of a row side by side
                    got = got.swapaxes(1, 2).reshape(*got.shape[:1], got.shape[2], -1)
                got = got[tuple(map(slice, expected.shape))]  # rows of padding have no meaning
                rtol = 2**-6 if config.get("io_dtype") == "bf16" else case.rtol  # theirs is rounded on the way
                worst = max(worst, difference(got, expected, {"rtol": rtol, "atol": case.atol}))
            passed += 1
        except AssertionError as reason:
            failed.append(f"{case.name} ({' '.join(f'{key}={value}' for key, value in words)}): {reason}")
    inexpressible = {name for names in lacking.values() for name in names}
    print(f"\nONNX {onnx.__version__}, Attention: {passed} cases pass (max |difference| {worst:.1e}, "
          f"{len(kernels)} kernels), {len(failed)} fail, {len(inexpressible)} are not expressible, for they need")
    for feature, names in sorted(lacking.items()):
        print(f"  {feature}: {len(names)}: {', '.join(name.removeprefix('test_attention_') for name in names)}")
    assert not failed, "\n".join(failed)
    assert passed + len(inexpressible) == 93
    assert all(len(names) <= NOT_EXPRESSIBLE.get(feature, 0) for feature, names in lacking.items())
