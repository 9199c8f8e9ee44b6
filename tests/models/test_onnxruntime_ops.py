"""`mhagen model --onnxruntime`: graphs as ONNX Runtime runs them, against the same graphs with our nodes in them."""
import concurrent.futures
import ctypes
import mmap
import os
import re
import subprocess

import pytest

from reference_lib import drawn_isa
from test_import import refused
from tools import MHAGEN, WARNINGS, run, seed_of

pytest.importorskip("onnx", reason="onnx is not installed")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

import onnx.reference
from onnx import TensorProto, helper, numpy_helper

RELATIVE = 1e-5  # the largest difference, of the largest number


class Graph:
    """A graph that is drawn node by node."""

    def __init__(self, *seed):
        self.numbers = np.random.default_rng(seed_of("onnxruntime_ops", *seed))
        self.nodes, self.constants, self.inputs, self.values = [], [], [], []

    def x(self, *shape):
        return self.numbers.standard_normal(shape, dtype="f4")

    def constant(self, x, name=None):
        name = name or f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(x), name))
        return name

    def node(self, op, *inputs, outputs=1, **attributes):
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, name=f"n{len(self.nodes)}", **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, x, width, columns):
        weight = self.constant(self.x(width, columns) / np.float32(width ** 0.5))
        return self.node("Add", self.node("MatMul", x, weight), self.constant(self.x(columns)))

    def by_head(self, x, heads, width):
        return self.node("Transpose", self.node("Reshape", x, self.constant([0, 0, heads, width])), perm=[0, 2, 1, 3])

    def input(self, name, dims, dtype=TensorProto.FLOAT):
        self.inputs.append(helper.make_tensor_value_info(name, dtype, dims))
        return name

    def save(self, path, *outputs, **options):
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        graph = helper.make_graph(self.nodes, "g", self.inputs, outputs, self.constants, value_info=self.values)
        model = helper.make_model(graph, ir_version=10, producer_name="drawn", opset_imports=[
            helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)])
        onnx.save(model, path, **options)
        return path


def replace(path, out, *keys, compiler="cc -O1", **options):
    """What the command says of itself."""
    return run(MHAGEN, "model", path, "--onnxruntime", "-o", out, *keys, env={**os.environ, "CC": compiler}, **options)


def session(path, library=None, threads=1):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 4
    if library:
        options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def ours(out, **options):
    return session(out / "model.onnx", out / "libmodel.so", **options)


def same(expected, got):
    assert got.shape == expected.shape and got.dtype == expected.dtype
    assert not expected.size or np.abs(got - expected).max() <= RELATIVE * np.abs(expected).max()


# ---- a whole encoder ----

HEADS, DK, WIDTH, SEQ, LAYERS = 6, 16, 96, 128, 2


def encoder(path):
    """Layers of MultiHeadAttention with a mask of keys, their batch and lengths of the run."""
    graph = Graph("encoder")
    x = graph.input("x", ["batch", "rows", WIDTH])
    seen = graph.input("seen", ["batch", "rows"], TensorProto.INT32)
    for _ in range(LAYERS):
        qkv = [graph.linear(x, WIDTH, HEADS * DK) for _ in "qkv"]
        y = graph.node("MultiHeadAttention", *qkv, "", seen, domain="com.microsoft", num_heads=HEADS)
        x = graph.node("LayerNormalization", graph.node("Add", graph.linear(y, HEADS * DK, WIDTH), x),
                       graph.constant(np.ones(WIDTH, "f4")))
    return graph.save(path, x)


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """The file, the folder of ours, and what the command has said."""
    folder = tmp_path_factory.mktemp("encoder")
    path = encoder(folder / "encoder.onnx")
    text = replace(path, folder / "out", f"isa={drawn_isa('onnxruntime_ops')}", f"seq=32,{SEQ}")
    return path, folder / "out", text


def drawn(batch, rows):
    numbers = np.random.default_rng(seed_of("drawn", batch, rows))
    seen = numbers.integers(0, 2, (batch, rows), "i4")
    seen[:, :1] = 1
    return {"x": numbers.standard_normal((batch, rows, WIDTH), dtype="f4"), "seen": seen}


def test_encoder(encoders):
    """The same outputs for all batches and lengths; the graph has our nodes, and none of those that made them."""
    path, out, _ = encoders
    alone, with_ours = session(path), ours(out)
    for batch, rows in [(1, SEQ), (1, 1), (2, SEQ), (3, 40), (9, 17), (40, 5)]:
        given = drawn(batch, rows)
        same(alone.run(None, given)[0], with_ours.run(None, given)[0])
    for batch, rows in [(0, 3), (2, 0)]:
        assert with_ours.run(None, {"x": np.zeros((batch, rows, WIDTH), "f4"),
                                    "seen": np.zeros((batch, rows), "i4")})[0].shape == (batch, rows, WIDTH)
    nodes = onnx.load(out / "model.onnx").graph.node
    assert [node.op_type for node in nodes] == ["Attention", "Add", "LayerNormalization"] * LAYERS
    assert all(name for node in nodes for name in node.input)  # for ONNX Runtime before 1.24
    assert with_ours.get_outputs()[0].shape == ["batch", "rows", WIDTH]


def test_threads(encoders):
    """The same bits by any number of threads, and by runs at the same time."""
    _, out, _ = encoders
    one, two = ours(out), ours(out, threads=2)
    given = [drawn(batch, rows) for batch, rows in [(1, SEQ), (2, 99), (12, 20)]]
    expected = [one.run(None, each)[0].tobytes() for each in given]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for used in one, two:
            got = pool.map(lambda i: (i, used.run(None, given[i])[0].tobytes()), [*range(len(given))] * 4)
            assert all(bits == expected[i] for i, bits in got)


def at_the_end(x):
    """The array in memory behind which no byte can be read."""
    page = mmap.PAGESIZE
    pages = -(-x.nbytes // page)
    memory = mmap.mmap(-1, (pages + 1) * page)
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(first + pages * page), page, 0) == 0  # PROT_NONE
    there = np.frombuffer(memory, x.dtype, x.size, pages * page - x.nbytes).reshape(x.shape)
    there[...] = x
    return there


def test_memory(encoders):
    """Nothing is read behind an input, also where the kernel reads whole tiles of rows."""
    _, out, _ = encoders
    with_ours = ours(out)
    for batch, rows in [(1, 5), (1, 33), (3, 40), (9, 1)]:
        given = drawn(batch, rows)
        expected = with_ours.run(None, given)[0]
        got = with_ours.run(None, {name: at_the_end(x) for name, x in given.items()})[0]
        assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("change, message", [
    (dict(x=(1, SEQ + 1, WIDTH), seen=(1, SEQ + 1)), f"q has {SEQ + 1} rows, and the kernel takes at most {SEQ}; "
     f"generate it with seq={SEQ + 1}"),
    (dict(x=(1, 4, WIDTH + 1), seen=(1, 4)),
     rf"q is \[1, 4, {WIDTH + 1}\], and its axes must be bsw with h = {HEADS}, d = {DK}, w = {WIDTH}"),
    (dict(x=(2, 4, WIDTH), seen=(2, 3)),
     r"mask has type 6 and the shape \[2, 3\], and must be of flags, with the axes bk"),
])
def test_wrong_shapes(encoders, change, message):
    """Shapes that the kernel has no room for are told; ONNX Runtime does not know them before a run."""
    _, out, _ = encoders
    model = onnx.load(out / "model.onnx")
    for value in [*model.graph.input, *model.graph.output]:
        value.type.tensor_type.ClearField("shape")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(out / "libmodel.so"))
    given = {name: np.ones(dims, "f4" if name == "x" else "i4") for name, dims in change.items()}
    with pytest.raises(Exception, match=r"mhagen: layer n6: " + message):
        onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, given)


def test_wrong_library(encoders):
    """A graph and a library of different models, and a layer that the library does not have."""
    _, out, _ = encoders
    for attribute, message in ("source", "the graph is of another model than the library"), (
            "layer", "is not in the library, which was made with other layers"):
        model = onnx.load(out / "model.onnx")
        for given in model.graph.node[0].attribute:
            if given.name == attribute:
                given.s = b"other"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.register_custom_ops_library(str(out / "libmodel.so"))
        with pytest.raises(Exception, match=message):
            onnxruntime.InferenceSession(model.SerializeToString(), options)


def test_old_version(encoders):
    """An ONNX Runtime without the C API of 1.18 is refused by its version."""
    texts = []
    create = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)(
        lambda code, text: texts.append((code, text.decode())) or 1)
    api = (ctypes.c_void_p * 300)(ctypes.cast(create, ctypes.c_void_p))
    get_api = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(
        lambda version: ctypes.addressof(api) if version == 1 else None)
    get_version = ctypes.CFUNCTYPE(ctypes.c_void_p)(lambda: ctypes.cast(b"1.17.3", ctypes.c_void_p).value)
    base = (ctypes.c_void_p * 2)(ctypes.cast(get_api, ctypes.c_void_p), ctypes.cast(get_version, ctypes.c_void_p))
    register = ctypes.CDLL(str(encoders[1] / "libmodel.so")).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, base) == 1
    assert texts == [(9, "mhagen: ONNX Runtime 1.17.3 is too old: 1.18 or later is needed")]


def test_files(encoders, tmp_path):
    """The command may run again, and says how the library is compiled; files of others stay."""
    path, out, text = encoders
    before = {file.name: file.read_bytes() for file in out.iterdir()}
    assert re.search(r"^cc .* -shared .* -o \S+libmodel.so .*$", text, re.M)
    replace(path, out, *re.findall(r"isa=\S+", text)[:1], f"seq=32,{SEQ}", "--quiet", compiler="true")
    assert before == {file.name: file.read_bytes() for file in out.iterdir()}
    (tmp_path / "model.onnx").write_bytes(path.read_bytes())
    result = subprocess.run([MHAGEN, "model", path, "isa=scalar", "--onnxruntime", "-o", tmp_path, "seq=8"],
                            capture_output=True, text=True)
    assert result.returncode == 2 and "model.onnx: not made by mhagen; --force replaces" in result.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_warnings(encoders, tmp_path):
    """The sources compile without warnings, as C99."""
    _, out, _ = encoders
    for name in "model_onnxruntime.c", "mhagen_onnxruntime.c":
        run("cc", "-std=c99", *WARNINGS, "-O1", "-c", f"-I{out}", out / name, "-o", tmp_path / "x.o")


# ---- other layers ----

def test_written_out(tmp_path):
    """Products and a Softmax between heads that are inputs: an added mask, a flag that hides, two masks; lengths for
    which rows, masks and outputs are copied."""
    graph, heads, dk, seq, seq_kv = Graph("written"), 3, 8, 12, 9
    q, k, v = [graph.input(name, ["batch", heads, rows, dk])
               for name, rows in [("q", "rows"), ("k", "keys"), ("v", "keys")]]
    bias = graph.input("bias", ["batch", 1, "rows", "keys"])
    hidden = graph.input("hidden", ["rows", "keys"], TensorProto.BOOL)
    scores = graph.node("MatMul", q, graph.node("Transpose", k, perm=[0, 1, 3, 2]))
    added = graph.node("Add", graph.node("Mul", scores, graph.constant(np.float32(0.3))), bias)
    first = graph.node("MatMul", graph.node("Softmax", added, axis=-1), v)
    scores = graph.node("MatMul", first, graph.node("Transpose", k, perm=[0, 1, 3, 2]))
    where = graph.node("Where", hidden, graph.constant(np.float32(-1e9)), scores)
    second = graph.node("MatMul", graph.node("Softmax", where, axis=-1), v)
    flat = graph.node("Reshape", graph.node("Transpose", second, perm=[0, 2, 1, 3]), graph.constant([0, 0, heads * dk]))
    scores = graph.node("MatMul", first, graph.node("Transpose", k, perm=[0, 1, 3, 2]))
    place = graph.input("place", [1, heads, "rows", "keys"])
    both = graph.node("Add", graph.node("Add", scores, place), bias)
    third = graph.node("MatMul", graph.node("Softmax", both, axis=-1), v)
    path = graph.save(tmp_path / "g.onnx", first, graph.linear(flat, heads * dk, 10), third)
    text = replace(path, tmp_path / "out", f"isa={drawn_isa('written')}", f"seq={seq}", f"seq_kv={seq_kv}")
    assert "  stays" not in text
    kinds = [node.op_type for node in onnx.load(tmp_path / "out/model.onnx").graph.node]
    assert kinds.count("Attention") == 3 and not {"Softmax", "Where"} & set(kinds)
    alone, with_ours = session(path), ours(tmp_path / "out")
    for batch, rows, keys in [(1, seq, seq_kv), (2, seq, 5), (3, 7, seq_kv), (10, 1, 2), (2, 3, 0)]:
        given = {"q": graph.x(batch, heads, rows, dk), "k": graph.x(batch, heads, keys, dk),
                 "v": graph.x(batch, heads, keys, dk), "bias": graph.x(batch, 1, rows, keys),
                 "place": graph.x(1, heads, rows, keys),
                 "hidden": graph.x(rows, keys) > 1}
        given["hidden"][:, :1] = False
        for expected, got in zip(alone.run(None, given), with_ours.run(None, given), strict=True):
            same(expected, got)


def test_one_mask_for_all_rows(tmp_path):
    """Attention of ai.onnx with a mask of padding, as PyTorch's exporter writes it: ONNX Runtime 1.32 refuses to run
    the graph itself, for its mask has one row for all queries."""
    graph, heads, dk, seq = Graph("padding"), 2, 8, 5
    q, k, v = [graph.by_head(graph.linear(x, 16, 16), heads, dk) for x in [graph.input("x", ["batch", seq, 16])] * 3]
    mask = graph.input("mask", ["batch", 1, 1, seq])
    y = graph.node("Reshape", graph.node("Transpose", graph.node("Attention", q, k, v, mask), perm=[0, 2, 1, 3]),
                   graph.constant([0, 0, 16]))
    path = graph.save(tmp_path / "g.onnx", graph.linear(y, 16, 16))
    assert "  stays" not in replace(path, tmp_path / "out", "isa=scalar")
    given = {"x": graph.x(2, seq, 16), "mask": np.zeros((2, 1, 1, seq), "f4")}
    given["mask"][1, ..., 3:] = -np.inf
    expected, = onnx.reference.ReferenceEvaluator(onnx.load(path)).run(None, given)
    same(expected, ours(tmp_path / "out").run(None, given)[0])


def test_branches(tmp_path):
    """An If within a layer goes with it, but for one of which some runs take the other branch."""
    for axis, goes in [(2, True), (0, False)]:
        graph, heads, dk = Graph("branches", axis), 2, 8
        q, k, v = [graph.by_head(graph.linear(x, 16, 16), heads, dk) for x in [graph.input("x", ["batch", 6, 16])] * 3]
        size = graph.node("Gather", graph.node("Shape", "x"), graph.constant(axis))
        made = [helper.make_graph([helper.make_node(op, [q], ["it"])], op, [], [
            helper.make_tensor_value_info("it", TensorProto.FLOAT, None)]) for op in ("Neg", "Identity")]
        q = graph.node("If", graph.node("Equal", size, graph.constant(1)), then_branch=made[0], else_branch=made[1])
        scores = graph.node("MatMul", q, graph.node("Transpose", k, perm=[0, 1, 3, 2]))
        y = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v)
        flat = graph.node("Reshape", graph.node("Transpose", y, perm=[0, 2, 1, 3]), graph.constant([0, 0, 16]))
        path = graph.save(tmp_path / "g.onnx", graph.linear(flat, 16, 16))
        if not goes:
            assert "takes another branch for other lengths" in refused(
                tmp_path, "model", path, "--onnxruntime", "isa=scalar")
            continue
        replace(path, tmp_path / "out", "isa=scalar")
        kinds = [node.op_type for node in onnx.load(tmp_path / "out/model.onnx").graph.node]
        assert "Attention" in kinds and not {"If", "Softmax"} & set(kinds), kinds
        for batch in 1, 3:
            given = {"x": graph.x(batch, 6, 16)}
            same(session(path).run(None, given)[0], ours(tmp_path / "out").run(None, given)[0])


def test_scale_by_length(tmp_path):
    """A kernel has one scale for all lengths of a run."""
    graph = Graph("by length")
    for name in "qkv":
        graph.input(name, ["batch", 2, "rows", 8])
    rows = graph.node("Cast", graph.node("Gather", graph.node("Shape", "q"), graph.constant(2)), to=TensorProto.FLOAT)
    scores = graph.node("MatMul", "q", graph.node("Transpose", "k", perm=[0, 1, 3, 2]))
    weights = graph.node("Softmax", graph.node("Div", scores, graph.node("Log", rows)), axis=-1)
    path = graph.save(tmp_path / "g.onnx", graph.node("MatMul", weights, "v"))
    said = refused(tmp_path, "model", path, "--onnxruntime", "isa=scalar", "seq=16")
    assert "scale is another one in runs of other lengths" in said


def quantized(graph, value):
    scale, zero = graph.constant(np.float32(0.05)), graph.constant(np.int8(0))
    return graph.node("DequantizeLinear", graph.node("QuantizeLinear", value, scale, zero), scale, zero)


def cast(kind):
    return lambda graph, value: graph.node("Cast", graph.node("Cast", value, to=kind), to=TensorProto.FLOAT)


@pytest.mark.parametrize("rounded, note, why", [
    (quantized, "3 values to integers", "rounds its activations; dtype=int8 or dtype=f32 says"),
    (cast(TensorProto.BFLOAT16), "3 values to bf16", "rounds to bfloat16; dtype=bf16 or dtype=f32 says"),
    (cast(TensorProto.FLOAT16), "3 values to f16", None), (cast(TensorProto.DOUBLE), None, None)],
    ids=["int8", "bf16", "f16", "f64"])
def test_rounded(rounded, note, why, tmp_path):
    """Where the graph rounds activations the summary says so. If it rounds much, a kernel stands for a layer only if a
    type of numbers is given."""
    graph = Graph("rounded")
    x = graph.input("x", ["batch", 5, 32])
    q, k, v = [graph.by_head(rounded(graph, graph.linear(x, 32, 32)), 2, 16) for _ in "qkv"]
    scores = graph.node("MatMul", q, graph.node("Transpose", k, perm=[0, 1, 3, 2]))
    y = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v)
    flat = graph.node("Reshape", graph.node("Transpose", y, perm=[0, 2, 1, 3]), graph.constant([0, 0, 32]))
    path = graph.save(tmp_path / "g.onnx", graph.linear(flat, 32, 32))
    text = run(MHAGEN, "model", path, "isa=scalar", "-o", tmp_path / "c")
    assert (f"      the graph rounds {note} here, and a kernel does not\n" if note else "h=2") in text
    assert ("rounds" in text) == (note is not None)
    if why:
        assert why in refused(tmp_path, "model", path, "--onnxruntime", "isa=scalar")
    words = ["dtype=int8"] if why else []
    assert "  stays" not in replace(path, tmp_path / "out", "isa=scalar", *words, compiler="true")


def test_rounded_later(tmp_path):
    """The summary speaks of all layers of a kernel, though the first has nothing to be said of."""
    graph = Graph("later")
    x = graph.input("x", ["batch", 5, 32])
    for change in (lambda _, value: value), quantized:
        q, k, v = [graph.by_head(change(graph, graph.linear(x, 32, 32)), 2, 16) for _ in "qkv"]
        scores = graph.node("MatMul", q, graph.node("Transpose", k, perm=[0, 1, 3, 2]))
        y = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v)
        flat = graph.node("Reshape", graph.node("Transpose", y, perm=[0, 2, 1, 3]), graph.constant([0, 0, 32]))
        x = graph.linear(flat, 32, 32)
    text = run(MHAGEN, "model", graph.save(tmp_path / "g.onnx", x), "isa=scalar", "-o", tmp_path / "out")
    assert "2 layers, 1 kernel" in text and text.count("the graph rounds 3 values to integers here") == 1, text


def test_double(tmp_path):
    """A node of ours has no rows of float64, and ONNX Runtime would refuse the graph."""
    nodes = [helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
             helper.make_node("MatMul", ["q", "t"], ["s"]),
             helper.make_node("Softmax", ["s"], ["p"], axis=-1), helper.make_node("MatMul", ["p", "v"], ["y"])]
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [2, 2, 4, 8]) for name in "qkvy"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", values[:3], values[3:]), opset_imports=[
        helper.make_opsetid("", 17)], ir_version=8), tmp_path / "g.onnx")
    assert "its rows are float64; a node takes float32, f16 and bf16" in refused(
        tmp_path, "model", tmp_path / "g.onnx", "--onnxruntime", "isa=scalar")
    run(MHAGEN, "model", tmp_path / "g.onnx", "isa=scalar", "-o", tmp_path / "out")


def test_half(tmp_path):
    """Rows of half precision, with weights of that type."""
    graph = Graph("half")
    cast = graph.node("Cast", graph.input("x", ["batch", 10, 32]), to=TensorProto.FLOAT16)
    qkv = [graph.node("MatMul", cast, graph.constant(graph.x(32, 32).astype("f2") / np.float16(6))) for _ in "qkv"]
    y = graph.node("MultiHeadAttention", *qkv, domain="com.microsoft", num_heads=2)
    path = graph.save(tmp_path / "g.onnx", graph.node("Cast", y, to=TensorProto.FLOAT))
    replace(path, tmp_path / "out", f"isa={drawn_isa('half')}", "seq=10", "dtype=f32")
    assert "AttentionF16" in [node.op_type for node in onnx.load(tmp_path / "out/model.onnx").graph.node]
    given = {"x": graph.x(2, 10, 32)}
    expected, got = session(path).run(None, given)[0], ours(tmp_path / "out").run(None, given)[0]
    assert np.linalg.norm(got - expected) <= 2e-3 * np.linalg.norm(expected)


def test_tables_of_rope(tmp_path):
    """Two layers with the same tables, which the library has once, beside one without rope."""
    graph, heads, dk, seq = Graph("tables"), 2, 8, 6
    angles = np.arange(seq)[:, None] * np.tile(50.0 ** -(np.arange(4) / 4), 2)
    cosine, sine = [graph.constant(table(angles).astype("f4")) for table in (np.cos, np.sin)]
    ends = [graph.constant([end]) for end in (0, dk // 2, dk)]

    def turned(x):
        first, second = [graph.node("Slice", x, *ends[i:i + 2], graph.constant([-1])) for i in range(2)]
        beside = graph.node("Concat", graph.node("Neg", second), first, axis=-1)
        return graph.node("Add", graph.node("Mul", x, cosine), graph.node("Mul", beside, sine))

    x = graph.input("x", ["batch", seq, heads * dk])
    for turn in turned, turned, lambda x: x:
        q, k, v = [graph.by_head(graph.linear(x, heads * dk, heads * dk), heads, dk) for _ in "qkv"]
        scores = graph.node("MatMul", turn(q), graph.node("Transpose", turn(k), perm=[0, 1, 3, 2]))
        y = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), v)
        x = graph.node("Relu", graph.node("Reshape", graph.node("Transpose", y, perm=[0, 2, 1, 3]),
                                          graph.constant([0, 0, heads * dk])))
    path = graph.save(tmp_path / "g.onnx", x)
    text = replace(path, tmp_path / "out", f"isa={drawn_isa('tables')}", "rope_tables=apart")
    assert len(re.findall(r"bytes of tables of rope, packed once\n", text)) == 1 and "  stays" not in text
    given = {"x": graph.x(3, seq, heads * dk)}
    same(session(path).run(None, given)[0], ours(tmp_path / "out").run(None, given)[0])


def test_torch(tmp_path):
    """A module as PyTorch exports it, with batch and rows of the run."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    class Encoder(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.joint, self.out, self.norm = torch.nn.Linear(24, 72), torch.nn.Linear(24, 24), torch.nn.LayerNorm(24)

        def forward(self, x, mask):
            q, k, v = self.joint(x).unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4)
            y = torch.nn.functional.scaled_dot_product_attention(q, k, v, mask[:, None, None])
            return self.norm(x + self.out(y.transpose(1, 2).flatten(2)))

    path, axes = tmp_path / "g.onnx", {0: "batch", 1: "rows"}
    module = Encoder().eval()
    torch.onnx.export(module, (torch.zeros(2, 5, 24), torch.zeros(2, 5)), path, dynamo=False, opset_version=17,
                      input_names=["x", "mask"], dynamic_axes={"x": axes, "mask": axes})
    replace(path, tmp_path / "out", f"isa={drawn_isa('torch')}", "seq=4,16")
    assert "Softmax" not in [node.op_type for node in onnx.load(tmp_path / "out/model.onnx").graph.node]
    with_ours = ours(tmp_path / "out")
    for batch, rows in [(1, 16), (2, 3), (4, 9)]:
        x, mask = torch.randn(batch, rows, 24), torch.randn(batch, rows)
        with torch.no_grad():
            same(module(x, mask).numpy(), with_ours.run(None, {"x": x.numpy(), "mask": mask.numpy()})[0])


# ---- what is written ----

def small(graph, x):
    """A layer without compiling it."""
    qkv = [graph.linear(x, 8, 8) for _ in "qkv"]
    return qkv, graph.node("MultiHeadAttention", *qkv, domain="com.microsoft", num_heads=2)


def test_untouched(tmp_path):
    """All else is as it was, byte for byte: other nodes and their order, data in other files, what nobody knows. What
    the body of an If reads, or another node, stays."""
    graph = Graph("untouched")
    x = graph.input("x", [1, 4, 8])
    qkv, y = small(graph, x)
    body = helper.make_graph([helper.make_node("Identity", [qkv[1]], ["inside"])], "body", [], [
        helper.make_tensor_value_info("inside", TensorProto.FLOAT, None)])
    told = graph.node("If", graph.constant(np.array(True)), then_branch=body, else_branch=body)
    dead = graph.node("Relu", x)  # which nobody reads: it was so before
    path = graph.save(tmp_path / "g.onnx", graph.linear(y, 8, 8), told, graph.node("Neg", qkv[2]),
                      save_as_external_data=True, location="g.data", size_threshold=100)
    with open(path, "ab") as file:
        file.write(b"\xa2\x06\x03abc")  # field 100
    assert " seq=4 " in replace(path, tmp_path / "out", "isa=scalar", "seq=9", compiler="true")  # the file's rows
    old, new = [onnx.load(file, load_external_data=False) for file in (path, tmp_path / "out/model.onnx")]
    gone = [node for node in old.graph.node if node not in new.graph.node]
    kept = [node for node in old.graph.node if node in new.graph.node]
    assert [node.op_type for node in gone] == ["MatMul", "Add", "MultiHeadAttention", "MatMul", "Add"]
    assert kept == [node for node in new.graph.node if node.domain != "mhagen"] and len(kept) == len(new.graph.node) - 1
    assert any(node.output[0] == dead for node in kept)
    assert [node.op_type for node in new.graph.node if node.domain == "mhagen"] == ["Attention"]
    used = {name for node in gone for name in node.input} - {name for node in kept for name in node.input}
    assert list(new.graph.initializer) == [x for x in old.graph.initializer if x.name not in used]
    assert (tmp_path / "out/g.data").read_bytes() == (tmp_path / "g.data").read_bytes()
    assert b"\xa2\x06\x03abc" in (tmp_path / "out/model.onnx").read_bytes()
    del new.metadata_props[:], new.opset_import[-1], old.graph.node[:], new.graph.node[:]
    del old.graph.initializer[:], new.graph.initializer[:]
    assert old.SerializeToString(deterministic=True) == new.SerializeToString(deterministic=True)


WRONG = [
    (["batch=2"], "batch = 2: no node of ONNX Runtime has it; leave it out"),
    (["rope=half", "rope_at=run"], "rope_at = run: is not for ONNX files, whose graphs have angles; leave it out"),
    (["probs=true"], "probs = true: no node of ONNX Runtime has it"),
    (["mask=add"], "mask = add: layer n6 has no mask in the graph"),
]


@pytest.mark.parametrize("keys, message", WRONG)
def test_refused_keys(keys, message, tmp_path):
    graph = Graph("refused")
    path = graph.save(tmp_path / "g.onnx", small(graph, graph.input("x", [1, 4, 8]))[1])
    assert message in refused(tmp_path, "model", path, "--onnxruntime", "isa=scalar", *keys)


def test_refused_size(tmp_path):
    """Packed weights that no library holds are refused before they are packed."""
    graph, width = Graph("large"), 4096
    x = graph.input("x", [1, 8, width])
    layers, size = 9, 4 * width ** 2
    for i in range(layers):
        qkv = [graph.node("MatMul", x, f"w{i}") for _ in "qkv"]
        x = graph.node("MatMul", graph.node("MultiHeadAttention", *qkv, domain="com.microsoft", num_heads=32), f"w{i}")
        large = onnx.TensorProto(name=f"w{i}", data_type=TensorProto.FLOAT, dims=[width, width],
                                 data_location=TensorProto.EXTERNAL)
        large.external_data.add(key="location", value="g.data")
        large.external_data.add(key="offset", value=str(i * size))
        large.external_data.add(key="length", value=str(size))
        graph.constants.append(large)
    path = graph.save(tmp_path / "g.onnx", x)
    with open(tmp_path / "g.data", "wb") as file:
        file.truncate(layers * size)
    assert re.search(r"2,4\d\d,\d+,\d+ bytes of packed weights are more than a library can have", refused(
        tmp_path, "model", path, "--onnxruntime", "isa=scalar", "seq=8"))


def test_refused_files(tmp_path):
    """A layer whose weights of attention are an output too, a graph of ours, a compiler that fails."""
    graph = Graph("refused")
    x = graph.input("x", ["batch", 3, 4, 8])
    weights = graph.node("Softmax", graph.node("MatMul", x, graph.node("Transpose", x, perm=[0, 1, 3, 2])), axis=-1)
    path = graph.save(tmp_path / "g.onnx", weights, graph.node("MatMul", weights, x))
    assert "no layer can be replaced; layer n2: another node reads what it is made of" in refused(
        tmp_path, "model", path, "--onnxruntime", "isa=scalar", "seq=4")
    graph = Graph("again")
    first = small(graph, graph.input("x", [1, 4, 8]))[1]
    path = graph.save(tmp_path / "g.onnx", small(graph, first)[1])
    replace(path, tmp_path / "out", "isa=scalar", "seq=4", "--only", "n6", compiler="true")
    assert "node n6 is of mhagen already" in refused(
        tmp_path, "model", tmp_path / "out/model.onnx", "--onnxruntime", "isa=scalar", "seq=4")
    result = subprocess.run([MHAGEN, "model", path, "--onnxruntime", "isa=scalar", "seq=4", "-o", tmp_path / "failed"],
                            capture_output=True, text=True, env={**os.environ, "CC": "false"})
    assert result.returncode == 2 and re.fullmatch(
        r"mhagen: \S+/libmodel.so: false ended with status 1: ; its sources are written\n", result.stderr)
