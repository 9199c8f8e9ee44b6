"""ncnn: its layer MultiHeadAttention, which has all four matrices, as a model of one layer in ncnn's own files."""
import pathlib
import tempfile

import ncnn
import numpy as np

FLOATS, BYTES = np.uint32(0), np.uint32(0x000D4B38)  # the word before the numbers of a matrix


def version():
    return ncnn.__version__


def scale_of(w):
    return np.float32(127) / np.maximum(np.abs(w).max(-1), np.float32(1e-30))


def matrices(p, int8):
    """-> the bytes of weights and biases, and the scales behind them"""
    scales = []
    for w, b in (p.wq, p.bq), (p.wk, p.bk), (p.wv, p.bv), (p.wo, p.bo):
        rows = np.ascontiguousarray(w.T)  # [out][in]
        if int8:
            # A scale for each row, but one for all of the last matrix: so the layer wants it.
            scales.append(scale_of(rows.ravel() if w is p.wo else rows))
            rows = np.rint(rows * np.expand_dims(scales[-1], -1)).astype(np.int8)
        padding = bytes(-rows.nbytes % 4)
        yield from ((BYTES if int8 else FLOATS).tobytes(), rows.tobytes(), padding, b.tobytes())
    yield from (scale.tobytes() for scale in scales)


def network(p, int8, bf16):
    inputs = "x mask" if p.causal else "x"
    layers = [f"Input {name} 0 1 {name}" for name in inputs.split()]
    values = {0: p.h * p.dk, 1: p.h, 2: p.wq.size, 3: p.d_model, 4: p.d_model, 5: int(p.causal),
              6: p.dk ** -0.5, 18: 2 if int8 else 0}
    layers.append(f"MultiHeadAttention attention {len(layers)} 1 {inputs} y "
                  + " ".join(f"{key}={value}" for key, value in values.items()))
    net = ncnn.Net()
    net.opt.num_threads = 1
    net.opt.use_fp16_storage = net.opt.use_fp16_packed = net.opt.use_fp16_arithmetic = False
    net.opt.use_bf16_storage = net.opt.use_bf16_packed = bf16
    with tempfile.TemporaryDirectory() as folder:
        param, model = pathlib.Path(folder, "param"), pathlib.Path(folder, "bin")
        param.write_text("\n".join(["7767517", f"{len(layers)} {len(layers)}", *layers, ""]))
        model.write_bytes(b"".join(matrices(p, int8)))
        if net.load_param(str(param)) or net.load_model(str(model)):
            raise ValueError("ncnn refuses the model")
    return net


def setup(int8=False, bf16=False):
    def of(p):
        net = network(p, int8, bf16)
        arrays = {"x": p.x}
        if p.causal:
            arrays["mask"] = np.triu(np.full((p.n, p.n), -np.inf, np.float32), 1)
        given = {name: ncnn.Mat(array) for name, array in arrays.items()}
        result = [None]

        def run():
            extractor = net.create_extractor()
            for name, mat in given.items():
                extractor.input(name, mat)
            status, result[0] = extractor.extract("y")
            if status:
                raise ValueError(f"ncnn's extract gives {status}")

        run.keep = arrays  # a Mat has but their addresses
        return run, lambda: np.array(result[0])
    return of


FORMS = {"MultiHeadAttention": setup()}
BF16 = {"MultiHeadAttention, bf16 storage": setup(bf16=True)}
INT8 = {"MultiHeadAttention, int8": setup(int8=True)}
