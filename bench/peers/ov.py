"""OpenVINO: its attention operator, and the graph of elementary operators."""
import numpy as np
import openvino
from openvino import opset13 as ops


def version():
    return openvino.__version__.split("-")[0]


def linear(x, w, b):
    return ops.add(ops.matmul(x, ops.constant(w), False, False), ops.constant(b))


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


def setup(attention):
    def of(p):
        x = ops.parameter([1, p.n, p.d_model], np.float32)
        qkv = [heads(p, linear(x, w, b)) for w, b in ((p.wq, p.bq), (p.wk, p.bk), (p.wv, p.bv))]
        o = ops.transpose(attention(p, *qkv), ops.constant(np.array([0, 2, 1, 3])))
        o = ops.reshape(o, ops.constant(np.array([1, p.n, p.h * p.dk])), False)
        model = openvino.Model([linear(o, p.wo, p.bo)], [x], "attention")
        compiled = openvino.Core().compile_model(model, "CPU", {
            "INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"})
        request = compiled.create_infer_request()
        y = np.zeros((1, p.n, p.d_model), np.float32)
        request.set_input_tensor(openvino.Tensor(p.x[None], shared_memory=True))
        request.set_output_tensor(openvino.Tensor(y, shared_memory=True))
        return request.infer, lambda: y[0]
    return of


FORMS = {"ScaledDotProductAttention": setup(fused), "elementary operators": setup(elementary)}
