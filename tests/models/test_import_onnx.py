"""`mhagen model` of ONNX files: what ONNX Runtime and ONNX's own evaluator compute of drawn graphs, against the kernels
and packed weights that are made of them; and files that are wrong."""
import random
import re

import pytest

from reference_lib import drawn_isa
from tools import MHAGEN, SEED, run

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

from onnx import TensorProto, helper, numpy_helper

from test_import import Imported, refused
from test_import_files import field, varint
from test_onnx import Memory

BATCH, CASES = 2, 2  # sequences; graphs of each operator


class Drawing:
    """A graph around one operator, with drawn projections, and what its kernel is given."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(self.random.randrange(2**32))
        self.nodes, self.constants, self.inputs, self.args, self.keys = [], [], {}, {}, []
        self.h_kv, self.dk = self.random.randint(1, 2), 8 * self.random.randint(1, 2)
        self.seq = self.random.randint(2, 6)
        self.width, self.projected = 12, 0  # of inputs; how many projections are drawn

    def coin(self):
        return self.random.random() < 0.5

    def x(self, *shape):
        return self.numbers.standard_normal(shape, dtype="f4") / 2

    def constant(self, x):
        """Its name; the numbers as raw bytes or as a list, or made by a node."""
        name, how = f"c{len(self.constants) + len(self.nodes)}", self.random.randrange(3)
        if how == 1 and x.dtype in (np.float32, bool):
            tensor = helper.make_tensor(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape, x.ravel())
        else:
            tensor = numpy_helper.from_array(x, name)
        if how == 2:
            self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
        else:
            self.constants.append(tensor)
        return name

    def node(self, op, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, **attributes))
        return names[0] if outputs == 1 else names

    def input(self, name, x):
        self.inputs[name] = x
        return name

    def project(self, x, rows, width, columns, bias=None, letters=1):
        """A projection as writers have it: MatMul and Add, or Gemm between Reshapes, its matrix either way round."""
        w, b = self.x(width, columns), self.coin() if bias is None else bias
        self.projected += letters
        if self.coin():
            y = self.node("MatMul", x, self.constant(w))
            if b:
                both = [y, self.constant(self.x(columns))]
                y = self.node("Add", *both[::self.random.choice([1, -1])])
            return y
        turned = self.random.randrange(2)
        flat = self.node("Reshape", x, self.constant(np.array([-1, width])))
        y = self.node("Gemm", flat, self.constant(w.T.copy() if turned else w),
                      *([self.constant(self.x(columns))] if b else []), transB=turned)
        return self.node("Reshape", y, self.constant(np.array([BATCH, rows, columns])))

    def drawn_input(self, name, rows, columns, **how):
        """Q, K or V of the operator: a projection, or an input."""
        if self.coin():
            return self.project(self.input(f"x_{name}", self.x(BATCH, rows, self.width)), rows, self.width, columns,
                                **how), True
        return self.input(f"x_{name}", self.x(BATCH, rows, columns)), False

    def take(self, **inputs):
        """The arguments of the kernel by the names of the graph's inputs."""
        self.args |= {key: self.inputs[name] for key, name in inputs.items()}

    def model(self, y, opset):
        values = [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
                  for name, x in self.inputs.items()]
        graph = helper.make_graph(self.nodes, "g", values,
                                  [helper.make_tensor_value_info(y, TensorProto.FLOAT, None)], self.constants)
        return helper.make_model(graph, ir_version=10, opset_imports=[
            helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)])


def finish(draw, y, rows, columns):
    """The output projection, if there is one."""
    return draw.project(y, rows, columns, draw.random.choice([8, draw.width])) if draw.coin() else y


def attention(draw):
    h, dk, dv = draw.h_kv, draw.dk, draw.random.choice([4, draw.dk])
    sizes = [h * dk, h * dk, h * dv]
    inputs = [draw.input("x", draw.x(BATCH, draw.seq, draw.width)), draw.constant(draw.x(draw.width, sum(sizes))),
              draw.constant(draw.x(sum(sizes)))]
    attributes = dict(num_heads=h, qkv_hidden_sizes=sizes)
    draw.projected += 3
    draw.take(q="x")
    if draw.coin():
        inputs.append(draw.input("lengths", draw.numbers.integers(1, draw.seq + 1, BATCH, "i4")))
        draw.take(kv_len="lengths")
    if draw.coin():
        attributes["unidirectional"] = 1
    if draw.coin():
        inputs += [""] * (5 - len(inputs)) + [draw.input("bias", draw.x(1, h, draw.seq, draw.seq))]
        draw.take(mask="bias")
    y = draw.node("Attention", *inputs, domain="com.microsoft", **attributes)
    return finish(draw, y, draw.seq, h * dv), 20


def multi_head(draw):
    h, dk, seq, seq_kv = draw.h_kv, draw.dk, draw.seq, draw.random.randint(2, 7)
    joint = draw.coin()  # its own bias of all
    if joint:
        x = [draw.input(f"x_{name}", draw.x(BATCH, rows, draw.width)) for name, rows in [("q", seq), ("kv", seq_kv)]]
        q, k, v = [draw.project(x[i > 0], rows, draw.width, h * dk, bias=False)
                   for i, rows in enumerate([seq, seq_kv, seq_kv])]
        inputs = [q, k, v, draw.constant(draw.x(3 * h * dk))]
        draw.take(q="x_q", k="x_kv", v="x_kv")
    else:
        inputs = [draw.drawn_input(of, rows, h * dk)[0] for of, rows in [("q", seq), ("k", seq_kv), ("v", seq_kv)]]
        inputs.append("")
        draw.take(q="x_q", k="x_k", v="x_v")
    if draw.coin():
        seen = draw.numbers.integers(0, 2, (BATCH, seq_kv), "i4")
        seen[:, 0] = 1
        inputs.append(draw.input("seen", seen))
        draw.args["mask"] = seen.astype("u1")
    draw.keys.append(f"seq_kv={seq_kv}")
    y = draw.node("MultiHeadAttention", *inputs, domain="com.microsoft", num_heads=h, scale=0.3)
    return finish(draw, y, seq, h * dk), 20


def grouped_query(draw):
    h_kv, seq, dk = draw.h_kv, draw.seq, 16
    h = h_kv * draw.random.randint(1, 3)
    attributes = dict(num_heads=h, kv_num_heads=h_kv)
    if draw.coin():
        x = draw.input("x", draw.x(BATCH, seq, draw.width))
        inputs = [draw.project(x, seq, draw.width, (h + 2 * h_kv) * dk, letters=3), "", ""]
        draw.take(q="x")
    else:
        inputs = [draw.drawn_input(of, seq, heads * dk)[0] for of, heads in [("q", h), ("k", h_kv), ("v", h_kv)]]
        draw.take(q="x_q", k="x_k", v="x_v")
    inputs += [draw.input(name, draw.x(BATCH, h_kv, 0, dk)) for name in ("past_key", "past_value")]
    inputs += [draw.input("seqlens_k", np.full(BATCH, seq - 1, "i4")), draw.input("total", np.array(seq, "i4"))]
    if draw.coin():
        attributes |= dict(do_rotary=1, rotary_interleaved=draw.random.randrange(2))
        inputs += [draw.constant(draw.x(seq + 5, dk // 2)) for _ in range(2)]
    else:
        inputs += ["", ""]
    for name, value in dict(scale=0.25, softcap=1.5, local_window_size=2).items():
        if draw.coin():
            attributes[name] = value
    if draw.coin():
        inputs += ["", "", draw.constant(draw.x(h))]
    y = draw.node("GroupQueryAttention", *inputs, outputs=3, domain="com.microsoft", **attributes)[0]
    return finish(draw, y, seq, h * dk), 20


def of_opset_23(draw):
    h_kv, dk, dv, seq, seq_kv = draw.h_kv, draw.dk, 8, draw.seq, draw.random.randint(2, 7)
    h, by_head = h_kv * draw.random.randint(1, 2), draw.coin()
    attributes = {} if by_head else dict(q_num_heads=h, kv_num_heads=h_kv)
    sizes = dict(q=(h, dk), k=(h_kv, dk), v=(h_kv, dv))
    joint = draw.coin()
    if joint:  # as writers of one matrix have it
        seq_kv, columns = seq, [heads * width for heads, width in sizes.values()]
        made = draw.project(draw.input("x", draw.x(BATCH, seq, draw.width)), seq, draw.width, sum(columns),
                            letters=3)
        parts = draw.node("Split", made, draw.constant(np.array(columns)), outputs=3, axis=-1)
        draw.take(q="x")
    inputs = []
    for i, (of, (heads, width)) in enumerate(sizes.items()):
        rows = seq if of == "q" else seq_kv
        if joint:
            value, projected = parts[i], True
        elif by_head and draw.coin():
            value, projected = draw.input(f"x_{of}", draw.x(BATCH, heads, rows, width)), False
        else:
            value = draw.project(draw.input(f"x_{of}", draw.x(BATCH, rows, draw.width)), rows, draw.width,
                                 heads * width)
            projected = True
        if by_head and projected:
            value = draw.node("Reshape", value, draw.constant(np.array([BATCH, rows, heads, width])))
            value = draw.node("Transpose", value, perm=[0, 2, 1, 3])
        inputs.append(value)
    if not joint:
        draw.take(q="x_q", k="x_k", v="x_v")
        draw.keys.append(f"seq_kv={seq_kv}")
    if draw.coin():
        mask = draw.x(*draw.random.choice([(seq, seq_kv), (BATCH, 1, seq, seq_kv), (1, h, seq, seq_kv)]))
        if draw.coin():
            mask = mask > -0.5
            mask[..., 0] = True
        inputs.append(draw.constant(mask) if draw.coin() else draw.input("mask", mask))
        draw.args["mask"] = mask.astype("u1") if mask.dtype == bool else mask
    elif draw.coin():
        attributes["is_causal"] = 1
    if draw.coin():
        attributes["softcap"] = 2.0
    y = draw.node("Attention", *inputs, **attributes)
    if not by_head:
        return finish(draw, y, seq, h * dv), 23
    if draw.coin():
        y = draw.node("Transpose", y, perm=[0, 2, 1, 3])
        y = draw.node("Reshape", y, draw.constant(np.array([BATCH, seq, h * dv])))
        return draw.project(y, seq, h * dv, 8), 23
    return y, 23


OPERATORS = [attention, multi_head, grouped_query, of_opset_23]


def theirs(model, inputs, opset):
    if opset == 23:
        from onnx.reference import ReferenceEvaluator
        return ReferenceEvaluator(model).run(None, inputs)[0]
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, inputs)[0]


def computed(imported, name, expected, args):
    memory = Memory()
    y = memory.of(np.full(expected.shape, np.nan))
    imported.run(name, y=y.ctypes.data, **{
        key: memory.of(x, x.dtype).ctypes.data for key, x in args.items()})
    return y


@pytest.mark.parametrize("number", range(CASES if SEED != "all" else 12))
@pytest.mark.parametrize("operator", OPERATORS)
def test_operator(operator, number, tmp_path):
    draw = Drawing(f"{SEED} {operator.__name__} {number}")
    y, opset = operator(draw)
    model = draw.model(y, opset)
    expected = theirs(model, draw.inputs, opset)
    onnx.save(model, tmp_path / "m.onnx")
    keys = [f"isa={drawn_isa(operator.__name__)}", f"seq={draw.seq}", f"batch={BATCH}", *draw.keys]
    imported = Imported(tmp_path / "m.onnx", tmp_path / "out", *keys)
    (name,) = imported.layers
    assert "scale=0.3" in imported.text.split() if operator is multi_head else "scale=0.3" not in imported.text
    found = re.search(r" project=(\w+)", imported.text)
    assert draw.projected == (len(found[1].replace("none", "")) if found else 4), imported.text
    got = computed(imported, name, expected, draw.args)
    print(f"\n{imported.text.splitlines()[2].strip()}: {np.abs(got - expected).max():.1e}", end="")
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=2e-5, err_msg=imported.text)


def test_few_bits(tmp_path):
    """A decoder's layer with weights of 4 bits, as ONNX Runtime GenAI has them: Q, K and V in one, and the output."""
    draw = Drawing(f"{SEED} few bits")
    h, h_kv, dk, seq, width, zeros = 2 * draw.h_kv, draw.h_kv, 16, draw.seq, 48, draw.coin()

    def product(x, width, columns):
        groups, numbers = width // 16, draw.numbers
        inputs = [x, draw.constant(numbers.integers(0, 256, (columns, groups, 8), "u1")),
                  draw.constant((numbers.random(columns * groups) / 100 + 0.01).astype("f4"))]
        if zeros:
            inputs.append(draw.constant(numbers.integers(0, 256, columns * -(-groups // 2), "u1")))
        return draw.node("MatMulNBits", *inputs, domain="com.microsoft", K=width, N=columns, bits=4, block_size=16)
    made = product(draw.input("x", draw.x(BATCH, seq, width)), width, (h + 2 * h_kv) * dk)
    made = draw.node("Add", made, draw.constant(draw.x((h + 2 * h_kv) * dk)))
    past = [draw.input(name, draw.x(BATCH, h_kv, 0, dk)) for name in ("past_key", "past_value")]
    lengths = [draw.input("seqlens_k", np.full(BATCH, seq - 1, "i4")), draw.input("total", np.array(seq, "i4"))]
    y = draw.node("GroupQueryAttention", made, "", "", *past, *lengths, outputs=3, domain="com.microsoft", num_heads=h,
                  kv_num_heads=h_kv)[0]
    model = draw.model(product(y, h * dk, 8), 20)
    expected = theirs(model, draw.inputs, 20)
    onnx.save(model, tmp_path / "m.onnx")
    imported = Imported(tmp_path / "m.onnx", tmp_path / "out", f"isa={drawn_isa('few')}", f"seq={seq}",
                        f"batch={BATCH}")
    assert "project=" not in imported.text
    assert ("weight_dtype=int4 group=16 packs fewer, with the same integers" in imported.text) == (not zeros)
    (name,) = imported.layers
    got = computed(imported, name, expected, {"q": draw.inputs["x"]})
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5 * np.abs(expected).max())


# ---- constants ----


def of_weights(w, x_axes=3, **attributes):
    """A graph of two layers, one behind the other."""
    nodes = [helper.make_node("Attention", ["x", "w"], ["y"], domain="com.microsoft", num_heads=2, name="first"),
             helper.make_node("Attention", ["y", "w"], ["z"], domain="com.microsoft", num_heads=2, **attributes)]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "rows", 8][:x_axes])
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("z", TensorProto.FLOAT, None)], [w])
    return helper.make_model(graph)


def packed(path, out):
    text = run(MHAGEN, "model", path, "isa=scalar", "seq=3", "-o", out)
    assert "2 layers, 1 kernel\n" in text and "first .. Attention of z" in text
    return next(out.glob("*.packed")).read_bytes()


def test_constants(tmp_path):
    """Types of numbers, as raw bytes, as lists, and in a file of their own: the packed weights are the same."""
    w = np.random.default_rng(1).integers(-8, 8, (8, 24)).astype("f4") / 4  # exact in each type
    onnx.save(of_weights(numpy_helper.from_array(w, "w")), tmp_path / "plain.onnx")
    expected = packed(tmp_path / "plain.onnx", tmp_path / "plain")
    others = {"list": helper.make_tensor("w", TensorProto.FLOAT, w.shape, w.ravel()),
              "f2": numpy_helper.from_array(w.astype("f2"), "w"),
              "f8": numpy_helper.from_array(w.astype("f8"), "w"),
              "f8_list": helper.make_tensor("w", TensorProto.DOUBLE, w.shape, w.ravel()),
              "bf2": helper.make_tensor("w", TensorProto.BFLOAT16, w.shape,
                                        (w.view("u4") >> 16).astype("u2").tobytes(), raw=True)}
    for name, tensor in others.items():
        onnx.save(of_weights(tensor), tmp_path / f"{name}.onnx")
        assert packed(tmp_path / f"{name}.onnx", tmp_path / name) == expected, name
    onnx.save(of_weights(numpy_helper.from_array(w, "w")), tmp_path / "external.onnx", save_as_external_data=True,
              location="all.bin", size_threshold=0)
    assert (tmp_path / "all.bin").stat().st_size == w.nbytes
    assert packed(tmp_path / "external.onnx", tmp_path / "external") == expected
    model = onnx.load(tmp_path / "external.onnx", load_external_data=False)
    model.graph.initializer[0].external_data[0].value = "./all.bin"
    (tmp_path / "dot.onnx").write_bytes(model.SerializeToString())
    assert packed(tmp_path / "dot.onnx", tmp_path / "dot") == expected


# ---- files that are wrong ----


def graph(data):
    return field(7, data)


def tensor(*more, dims=(8, 24), kind=1, name="w"):
    return field(5, b"".join(field(1, size) for size in dims) + field(2, kind) + field(8, name) + b"".join(more))


def external(**entries):
    return field(14, 1) + b"".join(field(13, field(1, key) + field(2, value)) for key, value in entries.items())


RAW, NODE = field(9, bytes(768)), field(1, field(1, "x") + field(1, "w") + field(2, "y") + field(4, "Attention") +
                                        field(7, "com.microsoft") + field(5, field(1, "num_heads") + field(3, 2) +
                                                                          field(20, 2)))


def node(op, *inputs, domain="com.microsoft", output="y", **attributes):
    """A node whose attributes are integers."""
    return field(1, b"".join(field(1, name) for name in inputs) + field(2, output) + field(4, op) + field(7, domain) +
                 b"".join(field(5, field(1, key) + field(3, value) + field(20, 2))
                          for key, value in attributes.items()))


def shaped(name, *dims):
    """An input of the graph with these axes."""
    axes = b"".join(field(1, field(1, size)) for size in dims)
    return field(11, field(1, name) + field(2, field(1, field(1, 1) + field(2, axes))))


WRONG = [
    (b"", "is no ONNX file: it has no graph"),
    (b"\x08", "byte 1: ModelProto.ir_version: the file ends at byte 1"),
    (b"\xff" * 9, "ModelProto: the file ends at byte 9"),
    (b"\xff" * 10, "a number of more than 64 bits"),
    (b"\x00\x00", "ModelProto.0: no field has this number"),
    (b"\x17", "wire type 7 is not known"),
    (b"\x38\x01", "ModelProto.graph: is of wire type 0, not 2"),
    (b"\x3a\x05", "ModelProto.graph: the file ends at byte 2"),
    (b"\x3a" + varint((1 << 64) - 1), "ModelProto.graph: a length of 2^63 or more"),
    (b"\x3a" + varint(1 << 62), "ModelProto.graph: the file ends"),
    (graph(b"") * 2, "ModelProto.graph: is there twice"),
    (graph(b"\x0a\x05"), "GraphProto.node: the file ends at byte 4"),
    (graph(b"\x0a\x05") + bytes(9), "GraphProto.node: what it is in ends at byte 4"),
    (graph(field(5, field(8, b"\xff"))), "TensorProto.name: ? is no UTF-8"),
    (graph(field(5, field(8, b"\xff" + 7 * b"\x80"))), "is no UTF-8"),
    (graph(field(5, field(8, b"\xed\xa0\x80"))), "is no UTF-8"),
    (graph(field(5, field(8, bytes(65537)))), "a text of 65537 bytes"),
    (graph(field(5, field(1, 1) * 17 + field(8, "w"))), "tensor w: 17 axes"),
    (graph(field(5, field(1, b"\1" * 5000))), "more than 4096 numbers"),
    (graph(tensor(RAW) + tensor(RAW)), "tensor w: is there twice"),
    (graph(tensor(dims=[(1 << 64) - 1])), "a size that is no count"),
    (graph(tensor(dims=[1 << 40, 1 << 40])), "more than 2^47 numbers"),
    (graph(tensor(field(9, bytes(700)))), "F32 of [8, 24] takes 768 bytes, and 700 are there"),
    (graph(tensor()), "takes 768 bytes, and 0 are there"),
    (graph(tensor(field(4, bytes(768)), RAW)), "has both raw_data and float_data"),
    (graph(tensor(field(3, b""), RAW)), "segment: parts of tensors are not read"),
    (graph(tensor(external())), "external_data: location is missing"),
    (graph(tensor(external(location="./../x"))), "is no file of this folder"),
    (graph(tensor(external(location="../x"))), "is no file of this folder"),
    (graph(tensor(external(location="/etc/passwd"))), "is no file of this folder"),
    (graph(tensor(external(location="none.bin"))), "none.bin: No such file"),
    (graph(tensor(external(location="1000", offset="-1"))), "offset = -1 is no number"),
    (graph(tensor(external(location="1000", offset="9" * 40))), "is no number"),
    (graph(tensor(external(location="1000", offset="1001"))), "begins behind the end"),
    (graph(tensor(external(location="1000", offset="500"))), "takes 768 bytes, and 500 are there"),
    (graph(tensor(external(location="1000", offset="500", length="768"))), "end behind byte 1000"),
    (graph(tensor(external(location="1000", length="768")) +
           tensor(external(location="1000", offset="64", length="768"), name="v")), "shares bytes with tensor"),
    (graph(NODE + NODE + tensor(RAW)), "value y is made by two nodes"),
    (graph(tensor(RAW)), "no node is Attention, MultiHeadAttention or GroupQueryAttention"),
    (graph(NODE + tensor(field(5, b""), kind=10)), "numbers of type F16 in int32_data are not read"),
    (graph(NODE + tensor(field(9, b""), kind=6)), "numbers of type I32 are not read"),
    (graph(NODE), "node Attention of y: weights: is no constant with 2 axes"),
    (graph(NODE + tensor(RAW, dims=[24, 8])), "has 8 columns, not 2 + 2 + 2"),
    (graph(node("Attention", "x", "w") + tensor(RAW)), "node Attention of y: num_heads: is missing"),
    (graph(node("Attention", "x", "w", num_heads=0) + tensor(RAW)), "num_heads: 0 must be a number from 1 on"),
    (graph(node("Attention", "x", "w", num_heads=3) + tensor(RAW)), "8 columns for 3 heads"),
    (graph(node("Attention", "x", "w", num_heads=2, do_rotary=1) + tensor(RAW)), "do_rotary: 1 is not supported"),
    (graph(node("Attention", "x", "w", "", "m", num_heads=2) + tensor(RAW)), "give kv_len or mask"),
    (graph(node("Attention", "x", "w", "", "", "", "m", num_heads=2) + tensor(RAW)), "give mask=none, or mask"),
    (graph(node("MultiHeadAttention", "x", num_heads=2)), "Q, K and V of five axes are not supported"),
    (graph(node("MultiHeadAttention", "q", "k", "v", "w", num_heads=2) + tensor(field(9, bytes(96)), dims=[24])),
     "bias: Q is not projected before it"),
    (graph(node("GroupQueryAttention", "q", num_heads=2, kv_num_heads=1)), "no projection is found before it"),
    (graph(node("Attention", "q", "k", "v", domain="")), "Q: the file does not say its heads"),
    (graph(node("Attention", "q", "k", "v", domain="", q_num_heads=2, kv_num_heads=2)), "d_model, dk: are required"),
    (graph(node("MultiHeadAttention", *"qkv", *[""] * 6, "c", num_heads=2)), "cache_indirection: is not supported"),
    (graph(node("MultiHeadAttention", *"qkv", *[""] * 7, "z", num_heads=2)), "input 11, z: is not known"),
    (graph(node("Attention", "x", "w", num_heads=2, heads=2) + tensor(RAW)), "attribute heads: is not known"),
    (graph(node("Attention", "x", "w", "", "m", num_heads=2) + tensor(RAW) + shaped("x", 2, 3, 8) + shaped("m", 4)),
     "mask_index: has 4 numbers for 2 sequences"),
    (graph(node("QAttention", "x", "w")), "node QAttention of y: QAttention is not read; write the file without"),
    (graph(node("QLinearSoftmax", "x", "w")), "QLinearSoftmax is of integers; quantize the file with QuantFormat.QDQ"),
    (graph(node("Identity", "a", domain="", output="w") + node("Identity", "w", domain="", output="a") + NODE),
     "weights: is no constant"),
]


def test_wrong_files(tmp_path):
    """Each says what is wrong, and of which file or node."""
    (tmp_path / "1000").write_bytes(bytes(1000))
    path = tmp_path / "x.onnx"
    for data, message in WRONG:
        path.write_bytes(data)
        said = refused(tmp_path, "model", path, "isa=scalar", "seq=3")
        assert message in said, (message, said)
    for words, message in [(["project=qkvo"], "project: no projection of Y is found"),
                           (["dk=2"], "constant w gives [8, 8], and by the config it must be [8, 4]")]:
        path.write_bytes(graph(NODE + tensor(RAW)))
        assert message in refused(tmp_path, "model", path, "isa=scalar", "seq=3", *words)


PAST = {  # operator: (domain, its inputs with p and r as keys and values of earlier runs, attributes)
    "Attention": ("com.microsoft", "x w - - p".split(), dict(num_heads=2, unidirectional=1)),
    "MultiHeadAttention": ("com.microsoft", "q k v - - - p r".split(), dict(num_heads=2, unidirectional=1)),
    "GroupQueryAttention": ("com.microsoft", "q k v p r".split(), dict(num_heads=2, kv_num_heads=2)),
    "of ONNX": ("", "q k v - p r".split(), dict(q_num_heads=2, kv_num_heads=2, is_causal=1)),
}


@pytest.mark.parametrize("operator", PAST)
def test_past_without_a_cache(operator, tmp_path):
    """Keys of earlier runs are in a cache, unless the file or the command line says that there are none."""
    domain, inputs, attributes = PAST[operator]
    made = node(operator.replace("of ONNX", "Attention"), *[name.replace("-", "") for name in inputs], domain=domain,
                **attributes) + tensor(RAW)
    made += b"".join(shaped(name, 1, 1, 8) for name in "qkv" if name in inputs)
    path, base = tmp_path / "x.onnx", ["isa=scalar", "seq=1"]
    for rows in None, 4, 0:
        path.write_bytes(graph(made + (shaped("p", 2, 1, 2, rows, 4) if rows is not None else b"")))
        if rows == 0:
            assert "1 layer, 1 kernel" in run(MHAGEN, "model", path, *base, "-o", tmp_path / "none", "--force")
            continue
        said = refused(tmp_path, "model", path, *base, "seq_kv=32")
        assert re.search(": past(_key)?: is of earlier runs: give cache=append and seq_kv, .*; or cache=none", said)
    for keys, name in ["cache=append seq_kv=32".split(), "append"], [["cache=none"], "none"]:
        path.write_bytes(graph(made))
        text = run(MHAGEN, "model", path, *base, *keys, "-o", tmp_path / f"out_{name}")
        assert (" cache=append" in text) == (name == "append")


def test_given_masks_win(tmp_path):
    """A mask that the file does not describe is said on the command line."""
    (tmp_path / "x.onnx").write_bytes(graph(node("Attention", "x", "w", "", "m", num_heads=2) + tensor(RAW)))
    text = run(MHAGEN, "model", tmp_path / "x.onnx", "isa=scalar", "seq=3", "kv_len=true", "-o", tmp_path / "out")
    assert " kv_len=true" in text
