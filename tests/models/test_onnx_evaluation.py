"""What the proof of an import evaluates (gen/onnx/evaluate.lua), against ONNX Runtime: each operator that it knows."""
import subprocess

import pytest

from tools import ROOT, need_sums_of_bytes, run

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

from onnx import TensorProto as T, helper, numpy_helper

EVALUATE = ROOT / "build/mhagen-evaluate"
OLD = tuple(int(part) for part in onnxruntime.__version__.split(".")[:2]) < (1, 32)
RNG = np.random.default_rng(7)


def f(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def i(*numbers):
    return np.array(numbers, np.int64)


def u8(*shape):
    return RNG.integers(0, 256, shape).astype(np.uint8)


def s8(*shape):
    return RNG.integers(-128, 128, shape).astype(np.int8)


def flags(*shape):
    return RNG.integers(0, 2, shape).astype(bool)


X, POSITIVE, INTEGERS = f(2, 3, 4), np.abs(f(2, 3, 4)) + 0.1, RNG.integers(-9, 10, (2, 3, 4))
SQUARE = f(1, 2, 5, 5)
NOT_FINITE = np.array([np.nan, np.inf, -np.inf, 1], np.float32)

CAUSAL = {"unidirectional": 1}
SEEN = np.array([[1, 0, 2, 1, -1, 1, 1], [1, 1, 1, 0, 1, 1, 1]], np.int32)  # flags are what is above 0


def i4(*numbers):
    return np.array(numbers, np.int32)


def of_one_matrix(mask=None, past=None, bias=None, sizes=(16, 16, 8), **attributes):
    """com.microsoft's Attention: two heads, 3 rows, 2 sequences."""
    inputs = [f(2, 3, 12), f(12, sum(sizes)), f(sum(sizes)), mask, past, bias]
    return ("com.microsoft Attention", 20, inputs, {"num_heads": 2, "qkv_hidden_sizes": sizes} | attributes)


def multi_head(mask=None, bias=None, past=0, rows=3, vector=None, dv=8, **attributes):
    cache = [f(2, 2, past, 8) if past else None for _ in range(2)]
    inputs = [f(2, 3, 16), f(2, rows, 16), f(2, rows, 2 * dv), vector, mask, bias, *cache]
    return ("com.microsoft MultiHeadAttention", 20, inputs, {"num_heads": 2} | attributes)


def grouped_query(last, rows=1, past=0, tables=0, bias=None, sink=None, total=None, joint=False, **attributes):
    """Four heads, two of keys; last: the place of the last row of each sequence."""
    batch, tables = len(last), [f(12, tables) if tables else None for _ in range(2)]
    q, k, v = f(batch, rows, 64), f(batch, rows, 32), f(batch, rows, 32)
    inputs = [np.concatenate([q, k, v], 2), None, None] if joint else [q, k, v]
    inputs += [f(batch, 2, past, 16), f(batch, 2, past, 16), i4(*last), np.int32(total or max(last) + 1)]
    inputs += [*tables, None, bias, sink]
    return ("com.microsoft GroupQueryAttention", 20, inputs, {"num_heads": 4, "kv_num_heads": 2} | attributes)


def of_onnx(mask=None, past=0, lengths=None, flat=False, version=24, rows=3, **attributes):
    """Attention of ai.onnx: four heads, two of keys."""
    inputs = [f(2, 4, rows, 8), f(2, 2, 5, 8), f(2, 2, 5, 6), mask]
    if flat:
        inputs = [f(2, rows, 32), f(2, 5, 16), f(2, 5, 12), mask]
        attributes |= {"q_num_heads": 4, "kv_num_heads": 2}
    inputs += [f(2, 2, past, 8), f(2, 2, past, 6)] if past else [None, None]
    return ("Attention", version, [*inputs, lengths], attributes)


COS, SIN, PLACES = f(9, 4), f(9, 4), np.array([[3, 1, 2], [0, 5, 4]])
ATTENTION = [
    of_one_matrix(), of_one_matrix(**CAUSAL), of_one_matrix(scale=-0.5, bias=f(1, 2, 3, 3)), of_one_matrix(scale=0.0),
    of_one_matrix(i4(2, 3)), of_one_matrix(i4(2, 3, 0, 1)), of_one_matrix(SEEN[:, :3], **CAUSAL),
    of_one_matrix(np.stack([SEEN[:, :3]] * 3, 1), bias=f(2, 1, 3, 3), mask_filter_value=-1.5, **CAUSAL),
    of_one_matrix(past=f(2, 2, 2, 4, 8), sizes=(16, 16, 16)), (*of_one_matrix(sizes=(16, 16, 16)), 2),
    (*multi_head(vector=f(48)), 3), (*of_onnx(), 3),
    of_one_matrix(SEEN, past=f(2, 2, 2, 4, 8), sizes=(16, 16, 16), **CAUSAL),
    multi_head(), multi_head(rows=5, dv=4, scale=0.3), multi_head(vector=f(48)), multi_head(scale=0.0, **CAUSAL),
    multi_head(i4(2, 3)), multi_head(i4(2, 3, 1, 0, 5, 6, 7, 8)), multi_head(SEEN[:, :3], f(1, 2, 3, 3), **CAUSAL),
    multi_head(np.stack([SEEN[:, :5]] * 3, 1), f(2, 1, 3, 5), rows=5, mask_filter_value=-2.0),
    multi_head(past=4, **CAUSAL), multi_head(SEEN, past=4), multi_head(i4(5, 6), f(1, 1, 3, 7), past=4),
    grouped_query([2, 2], 3), grouped_query([6], 3, past=4, scale=0.3), grouped_query([4, 6], past=6, softcap=1.5),
    grouped_query([6], 3, past=4, bias=f(1, 4, 3, 7), softcap=1.5, local_window_size=2),
    grouped_query([5, 3], past=7, bias=f(2, 1, 1, 6), local_window_size=3),
    grouped_query([6], 3, past=9, sink=f(4)), grouped_query([4, 4], 5, smooth_softmax=1),
    grouped_query([4, 4], 5, smooth_softmax=2), grouped_query([4, 4], 5, sink=f(4), smooth_softmax=1, scale=-0.3),
    grouped_query([5, 3], past=6, tables=8, do_rotary=1), grouped_query([6], 3, past=4, tables=8, do_rotary=1,
                                                                        rotary_interleaved=1),
    grouped_query([4, 4], 5, tables=8, do_rotary=1, joint=True), grouped_query([3], 2, past=5, joint=True, total=5),
    of_onnx(), of_onnx(version=23, flat=True, scale=0.3), of_onnx(f(3, 5), softcap=1.5),
    of_onnx(flags(3, 5) | [True] * 5), of_onnx(np.arange(5) < np.array([[2], [5], [3]])),
    of_onnx(f(1, 4, 3, 8), past=3, flat=True),
    of_onnx(f(2, 1, 3, 5)), of_onnx(f(4, 3, 5)), of_onnx(past=3, is_causal=1), of_onnx(is_causal=1, rows=5),
    of_onnx(lengths=i(2, 5)),
    *[("RotaryEmbedding", 23, [x, COS, SIN, PLACES], {"interleaved": turned, "num_heads": 2})
      for x in (f(2, 3, 16), f(2, 2, 3, 8)) for turned in (0, 1)],
    ("RotaryEmbedding", 23, [f(2, 2, 3, 8), f(2, 3, 4), f(2, 3, 4)], {}),
    ("RotaryEmbedding", 23, [f(2, 2, 3, 8), COS[:, :2], SIN[:, :2], PLACES], {"rotary_embedding_dim": 4}),
    *[("com.microsoft RotaryEmbedding", 20, [x, at, COS, SIN], {"interleaved": turned}) for x in
      (f(2, 3, 16), f(2, 2, 3, 8)) for at in (PLACES, i(2)) for turned in (0, 1)],
    ("com.microsoft RotaryEmbedding", 20, [f(2, 3, 16), PLACES, COS[:, :2], SIN[:, :2]],
     {"rotary_embedding_dim": 4, "num_heads": 2}),
]

# The operator, behind its domain; the version of ONNX's own; inputs, or None; attributes; perhaps how many outputs.
CASES = [
    *ATTENTION,
    *[(op, 17, [X], {}) for op in """Abs Atan Ceil Cos Erf Exp Floor Identity Neg Reciprocal Relu Round Shape Sigmoid
       Sign Sin Size Softplus Tan Tanh Cosh Sinh""".split()],
    *[(op, 17, [POSITIVE], {}) for op in ["Log", "Sqrt"]],
    *[(op, 17, [np.tanh(X)], {}) for op in ["Acos", "Asin"]],
    *[(op, 17, [X, f(3, 1)], {}) for op in ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "Mean"]],
    *[(op, 17, [X, f(4), f(2, 1, 1)], {}) for op in ["Max", "Min", "Sum", "Mean"]],
    *[(op, 17, [INTEGERS, i(2, 3, -4, 1)], {}) for op in """Add Sub Mul Div Equal Less Greater LessOrEqual
       GreaterOrEqual Mod""".split()],
    *[(op, 17, [flags(3, 4), flags(4)], {}) for op in ["And", "Or", "Xor"]],
    ("Not", 17, [flags(5)], {}), ("IsNaN", 17, [NOT_FINITE], {}), ("IsInf", 17, [NOT_FINITE], {}),
    ("Mod", 17, [X, f(4)], {"fmod": 1}), ("Pow", 17, [POSITIVE, f(4)], {}), ("Pow", 17, [X, i(2)], {}),
    ("Where", 17, [flags(3, 1), X, f(4)], {}), ("Equal", 17, [X, X[:1]], {}), ("Max", 17, [X, np.float32("nan")], {}),
    ("Clip", 17, [X, np.float32(-0.5), np.float32(0.5)], {}), ("Clip", 17, [X, None, np.float32(0.1)], {}),
    ("Clip", 9, [X], {"min": -0.2, "max": 0.3}),
    *[("Cast", 17, [x], {"to": to}) for x in (X * 3, INTEGERS, flags(3))
      for to in (T.FLOAT, T.INT64, T.BOOL, T.DOUBLE)],
    ("CastLike", 17, [X * 3, i(1)], {}), ("CastLike", 17, [INTEGERS, f(1)], {}),
    # other arrangements
    ("Dropout", 17, [X], {}), ("Reshape", 17, [X, i(0, -1, 2)], {}), ("Flatten", 17, [X], {"axis": 2}),
    ("Squeeze", 17, [f(1, 3, 1), i(0)], {}), ("Squeeze", 11, [f(1, 3, 1)], {"axes": [2]}),
    ("Unsqueeze", 17, [X, i(0, -1)], {}), ("Transpose", 17, [X], {"perm": [2, 0, 1]}), ("Transpose", 17, [X], {}),
    ("Expand", 17, [f(3, 1), i(2, 1, 4)], {}), ("Tile", 17, [X, i(1, 2, 3)], {}),
    ("Slice", 17, [X, i(1, 0), i(3, 2), i(1, -1), i(1, 1)], {}), ("Slice", 17, [X, i(-1), i(-9), i(2), i(-2)], {}),
    ("Slice", 17, [X, i(0), i(2**62), i(1)], {}), ("Slice", 9, [X], {"starts": [1], "ends": [-1], "axes": [2]}),
    ("Split", 17, [X, i(1, 3)], {"axis": -1}), ("Split", 11, [X], {"axis": 2, "split": [3, 1]}),
    ("Split", 13, [f(4, 3)], {}), ("Concat", 17, [X, f(2, 1, 4)], {"axis": 1}),
    ("Gather", 17, [X, np.array([[0, -1], [1, 1]])], {"axis": 1}), ("Gather", 17, [X, np.int64(1)], {"axis": -1}),
    ("GatherElements", 17, [X, np.array([[[0, -1, 1, 1]]])], {"axis": 2}),
    ("ScatterElements", 18, [X, np.array([[[2, 0, -2, 1]]]), f(1, 1, 4)], {"axis": 1}),
    ("GatherND", 17, [X, np.array([[0, 2], [1, -1]])], {}),
    ("ScatterND", 17, [X, np.array([[0, 2], [1, 0]]), f(2, 4)], {}),
    ("Pad", 17, [X, i(0, 1, 0, 2, 0, 1), np.float32(0.5)], {}), ("Shape", 17, [X], {"start": 1, "end": -1}),
    ("Range", 17, [np.int64(2), np.int64(9), np.int64(3)], {}),
    ("Range", 17, [np.float32(3), np.float32(0), np.float32(-0.7)], {}),
    ("ConstantOfShape", 17, [i(2, 3)], {"value": numpy_helper.from_array(i(5))}),
    ("ConstantOfShape", 17, [i(2, 3)], {}),
    ("Constant", 17, [], {"value_ints": [3, -4]}), ("Constant", 17, [], {"value_float": 0.25}),
    *[("Trilu", 17, [SQUARE, k], {"upper": upper}) for k in (None, np.int64(1), np.int64(-2)) for upper in (0, 1)],
    ("EyeLike", 17, [f(3, 4)], {"k": 1}), ("CumSum", 17, [X, np.int64(1)], {}),
    ("CumSum", 17, [X, np.int64(-1)], {"exclusive": 1}),
    # sums
    *[(op, 17, [POSITIVE], {"axes": [1, -1], "keepdims": keep}) for op in
      ["ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"]
      for keep in (0, 1)],
    ("ReduceSum", 17, [X, i(0, 2)], {"keepdims": 0}), ("ReduceSum", 17, [X], {}),
    ("ReduceSum", 17, [X, i()], {"noop_with_empty_axes": 1}), ("ReduceMean", 18, [X, i(1)], {}),
    *[(op, version, [X], {"axis": axis}) for op in ["Softmax", "LogSoftmax"] for version in (11, 17)
      for axis in (1, 2)],
    ("Softmax", 11, [X], {}), ("Softmax", 17, [X], {}),
    # norms
    ("LayerNormalization", 17, [X, f(4), f(4)], {"epsilon": 0.1}),
    ("LayerNormalization", 17, [X, f(3, 4)], {"axis": 1}),
    ("RMSNormalization", 23, [X, f(4)], {"epsilon": 0.1}),
    ("SimplifiedLayerNormalization", 17, [X, f(4)], {"epsilon": 0.1, "axis": -1}),
    ("LpNormalization", 17, [X], {"axis": 1}),
    ("BatchNormalization", 17, [X, f(3), f(3), f(3), POSITIVE[0, :, 0]], {"epsilon": 0.1}),
    # products
    ("MatMul", 17, [f(2, 1, 3, 4), f(5, 4, 2)], {}), ("MatMul", 17, [f(4), f(4, 2)], {}), ("MatMul", 17, [X, f(4)], {}),
    ("MatMul", 17, [np.where(np.arange(36).reshape(9, 4) % 3 == 0, f(9, 4), 0).astype("f4"), f(4, 6)], {}),
    ("com.microsoft FusedMatMul", 17, [X, f(2, 3, 4)], {"transB": 1, "alpha": 0.5}),
    ("com.microsoft FusedMatMul", 17, [X, f(2, 3, 2)], {"transA": 1}),
    ("Gemm", 17, [f(4, 3), f(5, 4), f(5)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
    ("Gemm", 17, [f(3, 4), f(4, 5)], {}),
    *[("Einsum", 17, shapes, {"equation": equation}) for equation, shapes in [
        ("bhqd,bhkd->bhqk", [f(2, 3, 4, 5), f(2, 3, 6, 5)]), ("bqhd,bkhd->bhqk", [f(2, 4, 3, 5), f(2, 6, 3, 5)]),
        ("bhqk,bhkd->bqhd", [f(2, 3, 4, 6), f(2, 3, 6, 5)]), ("bij, jk -> bik", [f(2, 3, 4), f(4, 5)]),
        ("i,j->ij", [f(3), f(4)]), ("bhqd,bhkd->bhqk", [f(2, 3, 4, 5), f(2, 1, 6, 5)])]],
    # images
    ("Conv", 17, [f(2, 4, 3), f(5, 4, 1), f(5)], {}), ("Conv", 17, [f(2, 4, 3, 2), f(5, 4, 1, 1)], {}),
    ("Conv", 17, [f(2, 3, 9, 7), f(4, 3, 3, 2), f(4)], {"strides": [3, 2]}),
    ("Conv", 17, [f(2, 3, 9), f(4, 3, 2)], {"dilations": [3], "auto_pad": "VALID"}),
    *[("Resize", 17, [f(2, 3, *size), None, None, i(2, 3, *other)],
       {"mode": mode, "coordinate_transformation_mode": how, "cubic_coeff_a": a})
      for mode in ("cubic", "linear") for size, other, a in [((4, 5), (7, 3), -0.75), ((5, 1), (2, 6), -0.5)]
      for how in ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")],
    *[("Resize", 17, [f(1, 2, 4, 4), None, np.array([1, 1, *by], "f4")], {"mode": "cubic"})
      for by in [(1.6, 2.5), (0.6, 1)]],
    # activations, and norms of sums
    ("Gelu", 20, [X], {}), ("Gelu", 20, [X], {"approximate": "tanh"}), ("com.microsoft Gelu", 17, [X], {}),
    ("com.microsoft BiasGelu", 17, [X, f(4)], {}), ("com.microsoft FastGelu", 17, [X, f(4)], {}),
    ("com.microsoft FastGelu", 17, [X], {}), ("com.microsoft QuickGelu", 17, [X], {"alpha": 0.7}),
    ("com.microsoft QuickGelu", 17, [X], {}),
    ("com.microsoft SkipLayerNormalization", 17, [X, f(2, 3, 4), f(4), f(4), f(4)], {"epsilon": 0.1}),
    ("com.microsoft SkipLayerNormalization", 17, [X, f(2, 3, 4), f(4)], {"epsilon": 0.1}),
    ("com.microsoft SkipSimplifiedLayerNormalization", 17, [X, f(2, 3, 4), f(4), f(4)], {"epsilon": 0.1}),
    # integers
    ("MatMulInteger", 17, [u8(3, 4), s8(4, 5), np.uint8(7)], {}), ("MatMulInteger", 17, [u8(3, 4), u8(4, 5)], {}),
    ("DequantizeLinear", 17, [s8(3, 4), np.abs(f(4)), s8(4)], {"axis": 1}),
    ("DequantizeLinear", 17, [u8(3, 4), np.float32(0.1)], {}),
    ("DequantizeLinear", 21, [u8(6, 4), np.abs(f(2, 4)), u8(2, 4)], {"axis": 0, "block_size": 3}),
    *[("com.microsoft MatMulNBits", 17, [f(3, 20), u8(5, blocks, size * bits // 8), f(5 * blocks), zeros],
       {"K": 20, "N": 5, "bits": bits, "block_size": size}) for bits, size, blocks, zeros in [
           (4, 16, 2, None), (4, 16, 2, u8(5)), (8, 16, 2, None)]],
]
# Roundings that the evaluation leaves out: compared up to a step.
ROUNDED = [("QuantizeLinear", 17, [X, np.float32(0.05), np.uint8(128)], {}),
           ("DynamicQuantizeLinear", 17, [X], {})]


OUTPUTS = {"Split": 2, "DynamicQuantizeLinear": 3, "GroupQueryAttention": 3}
PAST = {" Attention": (4, 3), "com.microsoft Attention": (4, 2), "com.microsoft MultiHeadAttention": (6, 3)}
OF_ONE = {"GroupQueryAttention"}  # others have more rows than are said


def model_of(op, version, inputs, attributes, count=None):
    domain, op = op.split(" ") if " " in op else ("", op)
    own = helper.find_min_ir_version_for([helper.make_opsetid("", version)])
    count = count or OUTPUTS.get(op, 1)
    cache = PAST.get(f"{domain} {op}")
    if cache and inputs[cache[0]] is not None:
        count = cache[1]  # with keys and values of the next run, which it must have then
    node = helper.make_node(op, ["" if x is None else f"i{k}" for k, x in enumerate(inputs)],
                            [f"o{k}" for k in range(count)], domain=domain, **attributes)
    while node.input and not node.input[-1]:
        node.input.pop()
    tensors = [numpy_helper.from_array(np.asarray(x), f"i{k}") for k, x in enumerate(inputs) if x is not None]
    graph = helper.make_graph([node], "g", [], [
        onnx.ValueInfoProto(name=f"o{k}") for k in range(1 if op in OF_ONE else count)], tensors)
    return helper.make_model(graph, ir_version=max(own, 4), opset_imports=[
        helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)])


def expected(model):
    """What ONNX Runtime computes; what onnx does where an older one computes Attention of ai.onnx otherwise."""
    node = model.graph.node[0]
    if (node.op_type, node.domain) == ("Attention", "") and OLD:
        from onnx.reference import ReferenceEvaluator
        return dict(zip(node.output, ReferenceEvaluator(model).run(None, {})))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return {output.name: value for output, value in zip(model.graph.output, session.run(None, {}))}


def evaluated(path):
    values = {}
    for line in run(EVALUATE, path).splitlines():
        name, shape, numbers = line.split("|")
        values[name] = np.array([float(x) for x in numbers.split()]).reshape([int(x) for x in shape.split()])
    return values


@pytest.mark.parametrize("number", range(len(CASES)), ids=[f"{i}-{case[0].strip()}" for i, case in enumerate(CASES)])
def test_operator(tmp_path, number):
    if CASES[number][0].strip() == "MatMulInteger":
        need_sums_of_bytes()
    model = model_of(*CASES[number])
    onnx.save(model, tmp_path / "m.onnx")
    want, got = expected(model), evaluated(tmp_path / "m.onnx")
    for name, value in want.items():
        np.testing.assert_allclose(got[name], np.asarray(value, float), rtol=2e-5, atol=2e-5)
        assert got[name].shape == value.shape


def test_rounding_is_left_out(tmp_path):
    model = model_of(*ROUNDED[0])
    onnx.save(model, tmp_path / "m.onnx")
    got = evaluated(tmp_path / "m.onnx")["o0"]
    inside = (got > 0) & (got < 255)
    assert inside.any() and np.abs(got - expected(model)["o0"].astype(float))[inside].max() < 0.51
    onnx.save(model_of(*ROUNDED[1]), tmp_path / "m.onnx")
    got = evaluated(tmp_path / "m.onnx")
    assert (got["o0"] == X).all() and got["o1"] == 1 and got["o2"] == 0


@pytest.mark.parametrize("sizes", [(3, 9), (9, -5), (5, 0)])
def test_split_that_its_axis_has_not(tmp_path, sizes):
    """X has 4 columns; what is larger would be memory that no file needs."""
    onnx.save(model_of("Split", 17, [X, i(*sizes)], {"axis": -1}), tmp_path / "m.onnx")
    result = subprocess.run([EVALUATE, tmp_path / "m.onnx"], capture_output=True, text=True)
    assert result.returncode and "in parts that its axis of 4 has not" in result.stderr


def test_every_operator_has_a_case():
    known = set(run(EVALUATE, "--rows").split("\n")) - {""}
    assert len(known) > 80
    assert known == {case[0].strip() for case in CASES + ROUNDED}
