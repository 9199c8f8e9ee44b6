"""Graphs that look like attention and mean something else are refused, or compute the same; one for each kind that was
once imported as if it were plain attention. fuzz_lookalikes.py draws others."""
import pytest

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

import fuzz_lookalikes as fuzz
from fuzz_lookalikes import T
from test_import import refused
from tools import MHAGEN, run


def along(op, axis, one=None):
    """Numbers along an axis, or at one place of it alone."""
    def change(g, value, shape):
        x = np.ones([size if a == axis else 1 for a, size in enumerate(shape)], "f4")
        if one is None:
            x[...] = g.normal(*x.shape) + 1
        else:
            x.flat[one] = 2.5
        return g.node(op, value, g.floats(x)), op
    return change


def swapped(axis):
    def change(g, value, shape):
        order = list(range(shape[axis]))
        order[-3], order[-2] = order[-2], order[-3]
        return g.node("Gather", value, g.ints(*order), axis=axis), "Gather"
    return change


def three(g, value, shape):
    return g.node("Max", value, g.floats(-1e30), g.floats(0.3)), "Max of three"


def without_keys(to):
    """Row 2 sees no key, in each run."""
    def change(g, value, shape):
        seen = np.ones(shape[2:], bool)
        seen[2] = False
        return g.node("Where", g.constant(seen), value, g.floats(to)), f"a row of {to}"
    return change


def without_keys_beside_padding(to):
    """The same by what is added, beside a mask that is an input."""
    def change(g, value, shape):
        row = np.where(np.arange(shape[2]) == 2, to, 0)[:, None] + np.zeros(shape[2:])
        seen = np.arange(shape[3]) < [[[[shape[3] - 1]]]] * shape[0]
        value = g.node("Add", value, g.input("padding", np.where(seen, 0, -1e9).astype("f4")))
        return g.node("Add", value, g.floats(row)), f"a row of {to} and padding"
    return change


def cleared_by_ids(g, value, shape):
    """An input that is neither rows nor a mask, and that drawn numbers do not meet."""
    ids = np.where(np.arange(shape[3]) == 1, 50256, 7).astype("i8")
    ids = g.input("ids", np.broadcast_to(ids, (shape[0], shape[3])).copy())
    condition = g.node("Unsqueeze", g.node("Equal", ids, g.constant(np.int64(50256))), g.ints(1, 2))
    return g.node("Where", condition, g.floats(0.0), value), "cleared by ids"


def constant(axis, place):
    """What is at a place of an axis is a constant."""
    def change(g, value, shape):
        at = np.arange(shape[axis]).reshape([-1 if a == axis else 1 for a in range(len(shape))]) == place
        return g.node("Where", g.constant(at), g.floats(0.5), value), "a constant"
    return change


KINDS = {
    "a constant row of Q": {"q": constant(1, 1)}, "a constant row of K": {"k": constant(1, 1)},
    "a constant row of V": {"v": constant(1, 1)}, "a constant row of K as heads": {"kt": constant(2, 2)},
    "a constant column of V": {"v": constant(2, 1)},
    "weights cleared by ids": {"p": cleared_by_ids},
    "a row of -inf and padding": {"masked": without_keys_beside_padding(-np.inf)},
    "a row of -inf": {"masked": without_keys(-np.inf)}, "a row of -10000": {"scaled": without_keys(-1e4)},
    "norm of values": {"vr": fuzz.norm("rms")}, "layer norm of values": {"v": fuzz.layer_norm},
    "rows of x": {"x": swapped(1)}, "rows of K": {"kt": swapped(2)}, "a row of V": {"vt": along("Mul", 2, 2)},
    "a row of Q": {"q": along("Add", 1, 2)}, "a row of the context": {"cr": along("Mul", 1, 2)},
    "rows of the context": {"c": swapped(2)}, "scores to integers": {"s": fuzz.cast(T.INT32)},
    "weights to flags": {"p": fuzz.cast(T.BOOL)}, "a factor for each head of Q": {"qt": along("Mul", 1)},
    "a factor for each head of scores": {"scaled": along("Mul", 1)},
    "a factor for each row": {"scaled": along("Mul", 2)}, "rows cleared": {"p": fuzz.cleared},
    "Max of three": {"scaled": three},
}


@pytest.mark.parametrize("kind", KINDS)
def test_kind(kind, tmp_path):
    said = [fuzz.verdict(f"{kind} {number}", tmp_path, KINDS[kind]) for number in range(2)]
    assert all(what != "failed" for what, _ in said), said
    assert any(what != "skipped" for what, _ in said), said


def model_of(nodes, inputs, tensors, ir_version=8):
    values = [onnx.helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs]
    graph = onnx.helper.make_graph(nodes, "g", values, [onnx.ValueInfoProto(name="y")], [
        onnx.numpy_helper.from_array(np.asarray(x), name) for name, x in tensors.items()])
    return onnx.helper.make_model(graph, ir_version=ir_version, opset_imports=[
        onnx.helper.make_opsetid("", 23), onnx.helper.make_opsetid("com.microsoft", 1)])


def test_constants_that_may_change(tmp_path):
    """A caller may give another value for an initializer that is an input; before version 4 all were inputs."""
    g, model = fuzz.drawn("constants", {})
    name = next(tensor.name for tensor in model.graph.initializer if len(tensor.dims) == 2)
    shape = next(tensor.dims for tensor in model.graph.initializer if tensor.name == name)
    model.graph.input.append(onnx.helper.make_tensor_value_info(name, T.FLOAT, shape))
    onnx.save(model, tmp_path / "m.onnx")
    said = refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar")
    assert f"tensor {name}: is an input too" in said and "remove_initializer_from_input" in said
    model.ir_version = 3
    onnx.save(model, tmp_path / "m.onnx")
    run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, "f4"), model.graph.node[0].output[0]))
    onnx.save(model, tmp_path / "m.onnx")
    assert "is made by a node too" in refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar")


@pytest.mark.parametrize("overload, said", [("plain", " scale=1"), ("capped", " softcap=1 ")])
def test_overloads(overload, said, tmp_path):
    """Functions of one name that a node tells apart by `overload`."""
    def of(name, *between):
        nodes = [onnx.helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
                 onnx.helper.make_node("MatMul", ["q", "t"], ["s"]), *between,
                 onnx.helper.make_node("Softmax", [between[0].output[0] if between else "s"], ["p"], axis=-1),
                 onnx.helper.make_node("MatMul", ["p", "v"], ["y"])]
        return onnx.helper.make_function("own", "attend", ["q", "k", "v"], ["y"], nodes,
                                         [onnx.helper.make_opsetid("", 23)], overload=name)
    node = onnx.helper.make_node("attend", ["q", "k", "v"], ["y"], domain="own", overload=overload)
    model = model_of([node], [(name, T.FLOAT, [2, 2, 4, 8]) for name in "qkv"], {}, ir_version=10)
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    model.functions.extend([of("plain"), of("capped", onnx.helper.make_node("Tanh", ["s"], ["c"]))])
    onnx.save(model, tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    assert said in text and (" softcap" in text) == (overload == "capped"), text


def test_rows_of_the_graph(tmp_path):
    """Rows that all runs have are the default, and no others are taken."""
    g, model = fuzz.drawn("rows", {})
    rows = model.graph.input[0].type.tensor_type.shape.dim[1].dim_value
    onnx.save(model, tmp_path / "m.onnx")
    assert f" seq={rows} " in run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", f"seq={rows}", "-o", tmp_path / "out")
    for word in f"seq={rows + 1}", f"seq_kv={rows + 1}":
        said = refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar", word)
        assert f": the graph has {rows} rows there in all runs; leave {word.split('=')[0]} out" in said


def test_masks_of_operators(tmp_path):
    """A mask with fewer columns than keys, and one whose hidden keys are not hidden."""
    rows, kind = [2, 4, 16], T.FLOAT
    node = onnx.helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"], q_num_heads=2, kv_num_heads=2)
    inputs = [("q", kind, rows), ("k", kind, [2, 6, 16]), ("v", kind, [2, 6, 16]), ("mask", kind, [4, 5])]
    onnx.save(model_of([node], inputs, {}), tmp_path / "m.onnx")
    assert "attn_mask: has 5 columns for 6 keys" in refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar")
    for value in -1.0, -10000.0:
        node = onnx.helper.make_node("MultiHeadAttention", ["q", "k", "v", "", "mask"], ["y"], domain="com.microsoft",
                                     num_heads=2, mask_filter_value=value)
        inputs = [("q", kind, rows), ("k", kind, rows), ("v", kind, rows), ("mask", T.INT32, [2, 4])]
        onnx.save(model_of([node], inputs, {}), tmp_path / "m.onnx")
        if value == -1.0:
            assert "mask_filter_value: -1 hides no key" in refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar")
        else:
            run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")


def of_microsoft(op, names, rows, **attributes):
    """A graph of one operator of com.microsoft, with rows of two heads of 16."""
    inputs = [(name, T.FLOAT, [2, rows[name], 32]) if name in rows else
              (name, T.INT32, [2] if name == "lengths" else []) for name in names if name]
    node = onnx.helper.make_node(op, names, ["y"], domain="com.microsoft", num_heads=2, **attributes)
    return model_of([node], inputs, {})


@pytest.mark.parametrize("attributes, said", [
    ({"local_window_size": 0}, "local_window_size = 0, where no key is seen"), ({"local_window_size": 3}, None),
    ({"smooth_softmax": 1}, None), ({"smooth_softmax": 2}, None), ({"scale": -0.5}, "scale = -0.5: must be"),
    ({"scale": 0.7, "softcap": 3.0}, None)])
def test_grouped_query(attributes, said, tmp_path):
    """What ONNX Runtime makes of attributes that are read: no key, and a sink for 1 alone."""
    model = of_microsoft("GroupQueryAttention", ["q", "k", "v", "", "", "lengths", "total"], dict.fromkeys("qkv", 4),
                         kv_num_heads=2, **attributes)
    onnx.save(model, tmp_path / "m.onnx")
    if said:
        assert said in refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar")
        return
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    assert (" sink=true" in text) == (attributes.get("smooth_softmax") == 1), text


@pytest.mark.parametrize("keys", [4, 6])
def test_unidirectional_cross_attention(keys, tmp_path):
    """With other keys than queries ONNX Runtime's operator has no meaning."""
    onnx.save(of_microsoft("MultiHeadAttention", ["q", "k", "v"], {"q": 4, "k": keys, "v": keys}, unidirectional=1),
              tmp_path / "m.onnx")
    if keys == 4:
        assert " causal=true" in run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    else:
        said = refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar")
        assert "unidirectional, with other rows of Q than of K" in said


def table(name, *shape):
    return name, np.linspace(-1, 1, int(np.prod(shape)), dtype="f4").reshape(shape)


# Operators with keys of earlier runs: inputs with their axes, attributes, keys of the kernel that the summary has.
CACHES = [
    ("com.microsoft Attention", {"x": [2, 3, 12], "w": table("w", 12, 96), "b": table("b", 96), "": None,
                                 "past": [2, 2, 2, "past", 16]}, {"num_heads": 2, "unidirectional": 1}, "causal=true"),
    ("com.microsoft Attention", {"x": [2, 3, 12], "w": table("w", 12, 96), "b": table("b", 96), "mask": [2, "total"],
                                 "past": [2, 2, 2, "past", 16]}, {"num_heads": 2}, "mask=bool mask_dims=bk"),
    ("com.microsoft MultiHeadAttention", {"q": [2, 3, 32], "k": [2, 3, 32], "v": [2, 3, 32], "": None, " ": None,
                                          "bias": [1, 2, 3, "total"], "pk": [2, 2, "past", 16],
                                          "pv": [2, 2, "past", 16]}, {"num_heads": 2, "scale": 0.3}, "mask_dims=hqk"),
    ("com.microsoft GroupQueryAttention", {"q": [2, 1, 64], "k": [2, 1, 32], "v": [2, 1, 32], "pk": [2, 2, "past", 16],
                                           "pv": [2, 2, "past", 16], "lengths": [2], "total": [],
                                           "cos": table("cos", 4, 8), "sin": table("sin", 4, 8)},
     {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1, "local_window_size": 2, "smooth_softmax": 1},
     "causal=true h_kv=2 rope=half sink=true window_left=1"),
    (" Attention", {"q": [2, 4, 3, 16], "k": [2, 2, 3, 16], "v": [2, 2, 3, 8], "mask": [3, "total"],
                    "pk": [2, 2, "past", 16], "pv": [2, 2, "past", 8]}, {"is_causal": 1, "softcap": 2.0},
     "causal=true h_kv=2 softcap=2 mask=add layout=bhsd"),
]


@pytest.mark.parametrize("number", range(len(CACHES)))
def test_caches(number, tmp_path):
    """Operators with keys of earlier runs are evaluated with some of them, by tables of few places too."""
    name, given, attributes, words = CACHES[number]
    domain, op = name.split(" ")
    inputs = [(key, T.INT32 if key in ("mask", "lengths", "total") and domain else T.FLOAT, shape)
              for key, shape in given.items() if isinstance(shape, list)]
    tensors = dict(value for value in given.values() if isinstance(value, tuple))
    node = onnx.helper.make_node(op, [key.strip() for key in given], ["y"], domain=domain, **attributes)
    onnx.save(model_of([node], inputs, tensors), tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "cache=append", "seq_kv=4", "-o", tmp_path / "out")
    assert all(f" {word}" in text for word in words.split()), text


def test_a_cache_of_one_matrix(tmp_path):
    """Q, K and V of one projection, turned behind keys of earlier runs."""
    g = fuzz.Graph("joint")
    x = g.node("MatMul", g.input("x", g.normal(2, 1, 12)), g.floats(g.normal(12, 128)))
    past = [g.input(name, g.normal(2, 2, 3, 16)) for name in ("pk", "pv")]
    lengths = [g.input("lengths", np.full(2, 3, "i4")), g.input("total", np.int32(4))]
    tables = [g.floats(g.normal(16, 8)) for _ in range(2)]
    y, *_ = g.node("GroupQueryAttention", x, "", "", *past, *lengths, *tables, outputs=3, domain="com.microsoft",
                   num_heads=4, kv_num_heads=2, do_rotary=1)
    onnx.save(g.model(y), tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "cache=append", "seq_kv=9", "-o", tmp_path / "out")
    assert " rope=half" in text and " project=qkv" in text, text


def with_a_cache(change):
    """A layer that is written out, with keys and values of earlier runs, and those of the next one: which `change`
    makes of (graph, keys, values)."""
    g = fuzz.Graph("cache")
    x = g.input("x", g.normal(2, 3, 12))
    q, k, v = (g.node("Transpose", g.node("Reshape", g.node("MatMul", x, g.floats(g.normal(12, 16))),
                                          g.ints(2, 3, 2, 8)), perm=[0, 2, 1, 3]) for _ in "qkv")
    k, v = (g.node("Concat", g.input(name, g.normal(2, 2, 4, 8)), own, axis=2) for name, own in (("pk", k), ("pv", v)))
    weights = g.node("Softmax", g.node("MatMul", q, g.node("Transpose", k, perm=[0, 1, 3, 2])), axis=-1)
    y = g.node("Transpose", g.node("MatMul", weights, v), perm=[0, 2, 1, 3])
    model = g.model(g.node("MatMul", g.node("Reshape", y, g.ints(2, 3, 16)), g.floats(g.normal(16, 8))))
    values = change(g, k, v)
    del model.graph.node[:]
    model.graph.node.extend(g.nodes)
    model.graph.initializer.extend(g.constants[len(model.graph.initializer):])
    model.graph.output.extend(onnx.helper.make_tensor_value_info(value, T.FLOAT, None) for value in values)
    return model


def last(g, k, v):
    return [g.node("Slice", value, g.ints(-5), g.ints(99), g.ints(2)) for value in (k, v)]


@pytest.mark.parametrize("change, said", [
    (lambda g, k, v: [k, v], None), (last, None), (lambda g, k, v: [g.node("Concat", k, v, axis=0)], None),
    (lambda g, k, v: [g.node("Mul", k, g.floats(2)), v], "K"), (lambda g, k, v: [k, g.node("Neg", v)], "V"),
    (lambda g, k, v: [g.node("Transpose", k, perm=[0, 2, 1, 3])], "K"),
    (lambda g, k, v: [g.node("Slice", k, g.ints(0), g.ints(5), g.ints(2))], "K"),
    (lambda g, k, v: [g.node("Concat", v, k, axis=0)], "K and V")])
def test_rows_of_a_cache(change, said, tmp_path):
    """What a graph returns of keys and values, for the next run, is what a kernel's cache has then."""
    onnx.save(with_a_cache(change), tmp_path / "m.onnx")
    words = ["model", tmp_path / "m.onnx", "isa=scalar", "cache=append", "seq_kv=9"]
    if said:
        assert f" is not rows of {said} as a cache has them" in refused(tmp_path, *words)
    else:
        run(MHAGEN, *words, "-o", tmp_path / "out")


@pytest.mark.parametrize("mode, more, said", [
    (0, {}, " scores=scaled"), (1, {"softcap": 2.0}, " scores=capped"), (2, {"is_causal": 1}, " scores=masked"),
    (3, {"is_causal": 1}, " probs=true"), (0, {"is_causal": 1}, None), (1, {"is_causal": 1, "softcap": 2.0}, None)])
def test_scores_of_an_operator(mode, more, said, tmp_path):
    """The fourth output is what a kernel writes; not where ONNX has numbers for keys that are not seen."""
    node = onnx.helper.make_node("Attention", ["q", "k", "v"], ["y", "", "", "s"], qk_matmul_output_mode=mode, **more)
    model = model_of([node], [(name, T.FLOAT, [2, 2, 4, 8]) for name in "qkv"], {})
    model.graph.output.append(onnx.ValueInfoProto(name="s"))
    onnx.save(model, tmp_path / "m.onnx")
    words = ["model", tmp_path / "m.onnx", "isa=scalar"]
    if said:
        assert said in run(MHAGEN, *words, "-o", tmp_path / "out")
    else:
        assert "with -inf for a key that is not seen: drawn numbers differ" in refused(tmp_path, *words)


def test_many_rows(tmp_path):
    """Of an operator whose scores are too many to be evaluated fewer rows are, though the graph has all in all runs."""
    g = fuzz.Graph("many")
    x = g.input("x", g.normal(2, 1500, 160))
    parts = [g.node("MatMul", x, g.floats(g.normal(160, 160))) for _ in "qkv"]
    y = g.node("MultiHeadAttention", *parts, domain="com.microsoft", num_heads=20)
    onnx.save(g.model(y), tmp_path / "m.onnx")
    text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
    assert "seq=1500" in text and " project=qkv" in text, text


def by_head(g, value):
    return g.node("Transpose", g.node("Reshape", value, g.ints(2, 4, 2, 8)), perm=[0, 2, 1, 3])


@pytest.mark.parametrize("change, said", [
    (lambda g, k, mask: (k, mask), " mask=add"),
    (lambda g, k, mask: (g.node("Relu", k), g.node("Add", mask, mask)), " mask=add"),
    (lambda g, k, mask: (k, g.node("Less", mask, g.floats(0))), " mask=bool"),
    (lambda g, k, mask: (k, g.node("Where", g.node("Less", mask, g.floats(0)), mask, mask)), " mask=add"),
    (lambda g, k, mask: (k, g.node("ReduceSum", mask, g.ints(0), keepdims=1)), "whether it is of bool")])
def test_what_the_file_does_not_say(change, said, tmp_path):
    """The axes of operands that nodes make, and whether a mask is of bool."""
    g = fuzz.Graph("untold")
    g.opset = 23
    x, mask = g.input("x", g.normal(2, 4, 12)), g.input("m", g.normal(4, 4))
    q, k, v = (g.node("MatMul", x, g.floats(g.normal(12, 16))) for _ in "qkv")
    k, mask = change(g, k, mask)
    y = g.node("Attention", q, k, v, mask, q_num_heads=2, kv_num_heads=2)
    onnx.save(g.model(g.node("Identity", y)), tmp_path / "m.onnx")
    words = ["model", tmp_path / "m.onnx", "isa=scalar"]
    if said.startswith(" "):
        assert said in run(MHAGEN, *words, "-o", tmp_path / "out")
    else:
        assert said in refused(tmp_path, *words)


def test_heads_of_keys_that_the_file_does_not_say(tmp_path):
    """Keys with heads of their own, of com.microsoft's operator, which were taken for rows."""
    g = fuzz.Graph("heads")
    x = g.input("x", g.normal(2, 4, 12))
    q, k, v = (g.node("MatMul", x, g.floats(g.normal(12, 16))) for _ in "qkv")
    k, v = g.node("Neg", by_head(g, k)), g.node("Neg", by_head(g, v))
    y = g.node("MultiHeadAttention", q, k, v, domain="com.microsoft", num_heads=2)
    onnx.save(g.model(y), tmp_path / "m.onnx")
    assert "key: 4 axes, not 3" in refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar")


def test_operators_behind_each_other(tmp_path):
    """Rows of the second are those that the first makes, as the constants of a Reshape between them say."""
    g = fuzz.Graph("chain")
    x = g.input("x", g.normal(3, 5, 8))
    for layer in range(2):
        flat = g.node("Reshape", x, g.ints(-1, 8))
        q, k, v = [g.node("Reshape", g.node("Gemm", flat, g.floats(g.normal(8, 8))), g.ints(3, 5, 8)) for _ in "qkv"]
        how = [dict(num_heads=2), dict(num_heads=2, kv_num_heads=2)][layer]
        more = ["", "", g.constant(np.full(3, 4, "i4")), g.constant(np.int32(5))] if layer else []
        x = g.node(["MultiHeadAttention", "GroupQueryAttention"][layer], q, k, v, *more, domain="com.microsoft", **how)
    onnx.save(g.model(x), tmp_path / "m.onnx")
    assert "2 layers" in run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "seq=5", "-o", tmp_path / "out")


@pytest.mark.parametrize("cleared", [None, 100.0, -1e30])
def test_rows_cleared_in_a_large_layer(cleared, tmp_path):
    """Of a layer for which numbers are drawn once: a condition that large scores alone meet is drawn for too."""
    g = fuzz.Graph("large")
    x = g.input("x", g.normal(1, 640, 320))
    parts = [g.node("Reshape", g.node("MatMul", x, g.floats(g.normal(320, 320, by=0.05))), g.ints(1, 640, 5, 64))
             for _ in range(3)]
    parts = [g.node("Transpose", part, perm=[0, 2, *last]) for part, last in zip(parts, ([1, 3], [3, 1], [1, 3]))]
    scores = g.node("MatMul", *parts[:2])
    weights = g.node("Softmax", scores, axis=-1)
    if cleared is not None:
        most = g.node("ReduceMax", scores, axes=[-1])
        said = g.node("Greater" if cleared > 0 else "Less", most, g.floats(cleared))
        weights = g.node("Where", said, g.floats(0), weights)
    y = g.node("Reshape", g.node("Transpose", g.node("MatMul", weights, parts[2]), perm=[0, 2, 1, 3]),
               g.ints(1, 640, 320))
    onnx.save(g.model(g.node("Identity", y)), tmp_path / "m.onnx")
    if cleared == 100.0:
        assert "is not what the config says" in refused(tmp_path, "model", tmp_path / "m.onnx", "isa=scalar")
    else:
        run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")


def test_a_mask_with_a_hole(tmp_path):
    """Of more numbers than are looked at one by one: causal but for one key, which only the evaluation sees. And a
    mask that hides by -10000 is an argument, for scores may be as large."""
    for value, hole, keys in (-1e9, True, " mask=add"), (-1e9, False, " causal=true"), (-1e4, False, " mask=add"):
        g = fuzz.Graph("hole")
        x = g.input("x", g.normal(1, 300, 8))
        parts = [g.node("Transpose", g.node("Reshape", g.node("MatMul", x, g.floats(g.normal(8, 8))),
                                            g.ints(1, 300, 2, 4)), perm=[0, 2, *last])
                 for last in ([1, 3], [3, 1], [1, 3])]
        mask = np.triu(np.full((300, 300), value), 1)
        mask[211, 97] = value * hole
        weights = g.node("Softmax", g.node("Add", g.node("MatMul", *parts[:2]), g.floats(mask)), axis=-1)
        y = g.node("Reshape", g.node("Transpose", g.node("MatMul", weights, parts[2]), perm=[0, 2, 1, 3]),
                   g.ints(1, 300, 8))
        onnx.save(g.model(g.node("Identity", y)), tmp_path / "m.onnx")
        text = run(MHAGEN, "model", tmp_path / "m.onnx", "isa=scalar", "-o", tmp_path / "out")
        assert keys in text and ("causal" in keys) == ("causal" in text), text
