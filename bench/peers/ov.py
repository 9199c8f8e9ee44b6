"""OpenVINO: its attention operator, and the graph of elementary operators. What it computes with is asked for in each
case: left alone it takes bfloat16 for float32, where that is faster."""
import numpy as np
import openvino
from openvino import opset13 as ops


def version():
    return openvino.__version__.split("-")[0]


def linear(x, w, b):
    return ops.add(ops.matmul(x, ops.constant(w), False, False), ops.constant(b))


def in_levels(x, size, levels):
    """Rounded to integers, a scale for each number in size."""
    size = np.maximum(np.float32(size), np.float32(1e-30))
    return ops.fake_quantize(x, *(ops.constant(edge) for edge in (-size, size, -size, size)), levels)


def quantized(x, w, b, size):
    """Weights in int8 with a scale for each column; x is known to be no larger than size."""
    columns = in_levels(ops.constant(w), np.abs(w).max(0, keepdims=True), 255)
    return ops.add(ops.matmul(in_levels(x, size, 255), columns, False, False), ops.constant(b))


def norm(x, gains, biases):
    x = ops.mvn(x, np.array([-1]), True, 1e-5, "INSIDE_SQRT")
    return ops.add(ops.multiply(x, ops.constant(gains)), ops.constant(biases))


def heads(p, x):
    shape = ops.constant(np.array([1, p.n, p.h, p.dk]))
    return ops.transpose(ops.reshape(x, shape, False), ops.constant(np.array([0, 2, 1, 3])))


def fused(p, q, k, v):
    return ops.scaled_dot_product_attention(q, k, v, causal=p.causal)


def elementary(p, q, k, v):
    s = ops.multiply(ops.matmul(q, k, False, True), ops.constant(np.float32(p.dk ** -0.5)))
    if p.causal:
        s = ops.add(s, ops.constant(np.triu(np.full((p.n, p.n), -np.inf, np.float32), 1)))
    return ops.matmul(ops.softmax(s, -1), v, False, False)


def graph(p, attention, linear):
    """The nodes of the input and of the result; linear(x, w, b) makes each product with weights."""
    given = x = ops.parameter([1, p.n, p.d_model], np.float32)
    if p.norm == "pre":
        x = norm(x, p.norm1, p.norm1_bias)
    qkv = [heads(p, linear(x, w, b)) for w, b in ((p.wq, p.bq), (p.wk, p.bk), (p.wv, p.bv))]
    o = ops.transpose(attention(p, *qkv), ops.constant(np.array([0, 2, 1, 3])))
    y = linear(ops.reshape(o, ops.constant(np.array([1, p.n, p.h * p.dk])), False), p.wo, p.bo)
    if not p.ffn:
        return given, y
    y = ops.add(given, y)
    y = norm(y, p.norm1, p.norm1_bias) if p.norm == "post" else y
    u = norm(y, p.norm2, p.norm2_bias) if p.norm == "pre" else y
    f = ops.gelu(linear(u, p.w1, p.b1), "TANH" if p.act == "gelu_tanh" else "ERF")
    y = ops.add(y, linear(f, p.w2, p.b2))
    return given, norm(y, p.norm2, p.norm2_bias) if p.norm == "post" else y


def compile_model(results, given, precision):
    return openvino.Core().compile_model(openvino.Model(results, [given], "layer"), "CPU", {
        "INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision})


def largest_inputs(p, attention):
    """Of each product with weights, in the order in which they are made."""
    seen = []
    given, y = graph(p, attention, lambda x, w, b: (seen.append(x), linear(x, w, b))[1])
    values = compile_model([*seen, y], given, "f32")([p.x[None]])
    return [np.abs(values[i]).max() for i in range(len(seen))]


def setup(attention, precision="f32", in_bytes=False):
    def of(p):
        sizes = iter(largest_inputs(p, attention) if in_bytes else ())
        given, y = graph(p, attention, lambda x, w, b: quantized(x, w, b, next(sizes)) if in_bytes else linear(x, w, b))
        request = compile_model([y], given, precision).create_infer_request()
        result = np.zeros((1, p.n, p.d_model), np.float32)
        request.set_input_tensor(openvino.Tensor(p.x[None], shared_memory=True))
        request.set_output_tensor(openvino.Tensor(result, shared_memory=True))
        return request.infer, lambda: result[0]
    return of


FORMS = {"ScaledDotProductAttention": setup(fused), "elementary operators": setup(elementary)}
BF16 = {"ScaledDotProductAttention": setup(fused, "bf16"), "elementary operators": setup(elementary, "bf16")}
INT8 = {f"{name}, attention in {precision}": setup(attention, precision, True) for precision in ("bf16", "f32")
        for name, attention in (("ScaledDotProductAttention", fused), ("elementary operators", elementary))}
