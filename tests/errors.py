#!/usr/bin/env python3
"""The error of kernels whose operands are rounded, beside that of PyTorch's own layer of the same type on the same
data: ||y - ref|| / ||ref||, ref being the layer in double on the data before they are rounded.

  build/venv/bin/python tests/errors.py            the table: 10 shapes, the worst of 5 seeds each
  build/venv/bin/python tests/errors.py --seeds 1 micro small
"""
import argparse
import pathlib
import tempfile

import torch

from reference_lib import Generated

SHAPES = {"micro": (32, 4, 16), "small": (64, 4, 32), "odd": (100, 5, 37), "kwt1": (64, 1, 98),
          "berttiny": (128, 2, 128),
          "kwt3": (192, 3, 98), "deit_ti": (192, 3, 197), "minilm": (384, 12, 128), "deit_s": (384, 6, 197),
          "xformer_base": (512, 8, 128)}  # d_model, h, seq
TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
BOUNDS = {"bf16": 1.2e-2, "f16": 1.5e-3, "int8": 3e-2}


def layer_of(d, h, seed):
    """A layer with random weights and biases, and an input."""
    torch.manual_seed(seed)
    layer = torch.nn.MultiheadAttention(d, h, batch_first=True)
    with torch.no_grad():
        for weights in layer.in_proj_weight, layer.out_proj.weight:
            weights.normal_(0, d ** -0.5)
        for bias in layer.in_proj_bias, layer.out_proj.bias:
            bias.normal_(0, 0.5)
    return layer.eval(), torch.randn(1, 1000, d)


def error(y, want):
    return ((y.double() - want).norm() / want.norm()).item()


def of_torch(layer, x, dtype):
    """The layer's own result in a type."""
    with torch.no_grad():
        rounded = torch.nn.MultiheadAttention(layer.embed_dim, layer.num_heads, batch_first=True).eval()
        rounded.load_state_dict(layer.state_dict())
        x = x.to(dtype)
        return rounded.to(dtype)(x, x, x, need_weights=False)[0]


def of_kernel(kernel, layer, x):
    d = layer.embed_dim
    wq, wk, wv = (part.contiguous() for part in layer.in_proj_weight.detach().split(d))
    bq, bk, bv = (part.contiguous() for part in layer.in_proj_bias.detach().split(d))
    given = dict(wq=wq, wk=wk, wv=wv, wo=layer.out_proj.weight.detach(), bq=bq, bk=bk, bv=bv,
                 bo=layer.out_proj.bias.detach())
    kernel.pack(layout=1, **{name: tensor.data_ptr() for name, tensor in given.items()})
    y = torch.full_like(x, torch.nan)
    kernel.run(q=x.data_ptr(), y=y.data_ptr())
    return y


def errors(name, dtype, isa, seeds, folder):
    """The worst of ours, and of PyTorch's; and whether ours is never above PyTorch's. PyTorch has no layer in int8."""
    d, h, n = SHAPES[name]
    kernel = Generated(dict(d_model=d, h=h, dk=d // h, seq=n, dtype=dtype), isa, folder)
    pairs = []
    for seed in range(seeds):
        layer, rows = layer_of(d, h, seed)
        x = rows[:, :n].contiguous()
        want = of_torch(layer, x, torch.float64)
        theirs = error(of_torch(layer, x, TYPES[dtype]), want) if dtype in TYPES else float("inf")
        pairs.append((error(of_kernel(kernel, layer, x), want), theirs))
    return max(ours for ours, _ in pairs), max(theirs for _, theirs in pairs), all(a <= b for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("shapes", nargs="*", choices=[[], *SHAPES], help="default: all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--isa", default="avx2")
    options = parser.parse_args()
    print(f"| shape | {' | '.join(f'{dtype}, mhagen | {dtype}, PyTorch {torch.__version__}' for dtype in TYPES)} |")
    print("|---|" + 4 * "---|")
    for name in options.shapes or SHAPES:
        cells = []
        for dtype in TYPES:
            with tempfile.TemporaryDirectory() as folder:
                ours, theirs, below = errors(name, dtype, options.isa, options.seeds, pathlib.Path(folder))
            cells += [f"{ours:.1e}{'' if below else ' (above)'}", f"{theirs:.1e}"]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
