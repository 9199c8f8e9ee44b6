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


def quantized_linear(size):
    """Weights in int8 with a scale for each column; x is known to be no larger than size."""
    def of(x, w, b):
        columns = in_levels(ops.constant(w), np.abs(w).max(0, keepdims=True), 255)
        return ops.add(ops.matmul(in_levels(x, size, 255), columns, False, False), ops.constant(b))
    return of


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


def largest_context(p):
    q, k, v = ((p.x @ w + b).reshape(p.n, p.h, p.dk).swapaxes(0, 1) for w, b in
               ((p.wq, p.bq), (p.wk, p.bk), (p.wv, p.bv)))
    s = q @ k.swapaxes(1, 2) * p.dk ** -0.5
    s = np.exp(s - s.max(-1, keepdims=True))
    return np.abs(s / s.sum(-1, keepdims=True) @ v).max()


def setup(attention, precision="f32", quantized=False):
    def of(p):
        if quantized and p.causal:
            raise NotImplementedError("the largest number is that without a mask")
        first = quantized_linear(np.abs(p.x).max()) if quantized else linear
        last = quantized_linear(largest_context(p)) if quantized else linear
        x = ops.parameter([1, p.n, p.d_model], np.float32)
        qkv = [heads(p, first(x, w, b)) for w, b in ((p.wq, p.bq), (p.wk, p.bk), (p.wv, p.bv))]
        o = ops.transpose(attention(p, *qkv), ops.constant(np.array([0, 2, 1, 3])))
        o = ops.reshape(o, ops.constant(np.array([1, p.n, p.h * p.dk])), False)
        model = openvino.Model([last(o, p.wo, p.bo)], [x], "attention")
        compiled = openvino.Core().compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision})
        request = compiled.create_infer_request()
        y = np.zeros((1, p.n, p.d_model), np.float32)
        request.set_input_tensor(openvino.Tensor(p.x[None], shared_memory=True))
        request.set_output_tensor(openvino.Tensor(y, shared_memory=True))
        return request.infer, lambda: y[0]
    return of


FORMS = {"ScaledDotProductAttention": setup(fused), "elementary operators": setup(elementary)}
BF16 = {"ScaledDotProductAttention": setup(fused, "bf16"), "elementary operators": setup(elementary, "bf16")}
INT8 = {f"{name}, attention in {precision}": setup(attention, precision, True) for precision in ("bf16", "f32")
        for name, attention in (("ScaledDotProductAttention", fused), ("elementary operators", elementary))}
