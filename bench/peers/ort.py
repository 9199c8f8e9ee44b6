"""ONNX Runtime: its own attention operators, ONNX's, and the graph of elementary operators. Inputs and
outputs are bound, so that nothing is copied."""
import os
import tempfile

import numpy as np
import onnxruntime
try:
    import onnx
    from onnx import TensorProto, helper, numpy_helper
except ImportError:
    onnx = None  # a model that was kept can be run all the same

KEEP = [None]  # a file that keeps the model that is made next


def version():
    return onnxruntime.__version__


def in_bytes(model):
    """Weights in int8, a scale for each column; rows of x become bytes in each run."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/in")
        quantize_dynamic(f"{folder}/in", f"{folder}/out", per_channel=True, weight_type=QuantType.QInt8)
        return onnx.load(f"{folder}/out")


def opened(model, p):
    """The serialized model on a problem; -> (run, y)"""
    threads = int(os.environ.get("PEER_THREADS", "1"))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(threads > 1)))
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    x, y = (onnxruntime.OrtValue.ortvalue_from_numpy(a)
            for a in (p.x[None], np.zeros((1, p.n, p.d_model), np.float32)))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_ortvalue_output(session.get_outputs()[0].name, y)
    return lambda _=p: session.run_with_iobinding(binding), lambda: y.numpy()[0]  # x is the memory of p.x


class Graph:
    def __init__(self, p):
        self.p, self.nodes, self.constants = p, [], []
        self.x = self.norm("x", p.norm1, p.norm1_bias) if p.norm == "pre" else "x"  # the input of attention

    def constant(self, value):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def op(self, kind, *inputs, outputs=1, domain="", **attributes):
        names = [f"{kind}{len(self.nodes)}_{i}" for i in range(outputs)]
        inputs = [i if isinstance(i, str) else self.constant(i) for i in inputs]
        self.nodes.append(helper.make_node(kind, inputs, names, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def linear(self, x, w, b):
        return self.op("Add", self.op("MatMul", x, w), b)

    def norm(self, x, gains, biases):
        return self.op("LayerNormalization", x, gains, biases, axis=-1, epsilon=1e-5)

    def layer(self, y):
        """What follows on attention's output."""
        p = self.p
        x = self.op("Add", "x", y)
        x = self.norm(x, p.norm1, p.norm1_bias) if p.norm == "post" else x
        u = self.norm(x, p.norm2, p.norm2_bias) if p.norm == "pre" else x
        f = self.op("Gelu", self.linear(u, p.w1, p.b1), approximate="tanh" if p.act == "gelu_tanh" else "none")
        x = self.op("Add", x, self.linear(f, p.w2, p.b2))
        return self.norm(x, p.norm2, p.norm2_bias) if p.norm == "post" else x

    def projections(self):
        """[1][n][h * dk] three times."""
        p = self.p
        return [self.linear(self.x, w, b) for w, b in ((p.wq, p.bq), (p.wk, p.bk), (p.wv, p.bv))]

    def heads(self, x, order=(0, 2, 1, 3)):
        p = self.p
        shape = np.array([1, p.n, p.h, p.dk], np.int64)
        return self.op("Transpose", self.op("Reshape", x, shape), perm=order)

    def session(self, o):
        """Ends the graph with the output projection of o, and what a layer has behind that; -> (run, y)"""
        p = self.p
        last = self.linear(o, p.wo, p.bo)
        last = self.layer(last) if p.ffn else last
        shape = [1, p.n, p.d_model]
        graph = helper.make_graph(
            self.nodes, "attention", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info(last, TensorProto.FLOAT, shape)], self.constants)
        opsets = [helper.make_opsetid("", 23), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        if hasattr(self.p, "in_bytes"):
            model = in_bytes(model)
        if KEEP[0]:
            onnx.save(model, KEEP[0])
        return opened(model.SerializeToString(), p)


def attention(p):
    g = Graph(p)
    e = p.h * p.dk
    return g.session(g.op("Attention", g.x, np.concatenate([p.wq, p.wk, p.wv], 1),
                          np.concatenate([p.bq, p.bk, p.bv]), domain="com.microsoft", num_heads=p.h,
                          unidirectional=int(p.causal), qkv_hidden_sizes=[e, e, e]))


def multi_head(p):
    g = Graph(p)
    return g.session(g.op("MultiHeadAttention", *g.projections(), domain="com.microsoft", num_heads=p.h,
                          unidirectional=int(p.causal)))


def standard(p):
    g = Graph(p)
    return g.session(g.op("Attention", *g.projections(), q_num_heads=p.h, kv_num_heads=p.h,
                          is_causal=int(p.causal)))


def elementary(p):
    g = Graph(p)
    q, k, v = g.projections()
    s = g.op("MatMul", g.heads(q), g.heads(k, (0, 2, 3, 1)))
    s = g.op("Mul", s, np.float32(p.dk ** -0.5))
    if p.causal:
        s = g.op("Add", s, np.triu(np.full((p.n, p.n), -np.inf, np.float32), 1))
    o = g.op("MatMul", g.op("Softmax", s, axis=-1), g.heads(v))
    o = g.op("Transpose", o, perm=(0, 2, 1, 3))
    return g.session(g.op("Reshape", o, np.array([1, p.n, p.h * p.dk], np.int64)))


FORMS = {
    "com.microsoft.Attention": attention,
    "com.microsoft.MultiHeadAttention": multi_head,
    "Attention of ONNX": standard,
    "elementary operators": elementary,
}


def quantized(form):
    def of(p):
        p.in_bytes = True
        return form(p)
    return of


INT8 = {f"quantize_dynamic, {name}": quantized(form) for name, form in FORMS.items()}
