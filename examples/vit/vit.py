"""A vision transformer on generated kernels; see run.sh.

1. Reads the digits that it has not seen when it was trained (train.py), and compares the logits of each and the
   attention weights of all layers with references that run the same weights without mhagen (reference.py).
2. Draws where the class token of the last layer looks, head by head, on some of the images.

Exit status 1 when a figure misses its limit.
"""
import math
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

import digits
import kernels
import options
import picture
import reference

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HEADS, LAYERS, WIDTH = 4, 4, 48
TOKENS = (digits.SIDE // digits.PATCH) ** 2 + 1  # the first one is of the class
SHAPE = dict(h=HEADS, d_model=WIDTH, dk=WIDTH // HEADS, seq=TOKENS, probs="true")

MAX_DIFF = 1e-5  # of logits, and of attention weights
MIN_RIGHT = 0.94

erf = np.vectorize(math.erf, otypes=[float])


class Model:
    """All but attention: of float32 or float64, as the tensors are."""

    heads = HEADS

    def __init__(self):
        self.tensors = load_file(HERE / "weights.safetensors")

    def forward(self, images, get, attend):
        """Logits of images [n][8][8]; get: the tensors, attend(layer, x): its attention of x[n][token][width]."""
        def linear(name, x):
            return x @ get[f"{name}.weight"].T + get[f"{name}.bias"]

        def norm(name, x):
            x = x - x.mean(-1, keepdims=True)
            x = x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(1e-12))
            return x * get[f"{name}.weight"] + get[f"{name}.bias"]

        n, side = len(images), digits.SIDE // digits.PATCH
        patches = images.reshape(n, side, digits.PATCH, side, digits.PATCH).swapaxes(2, 3).reshape(n, side * side, -1)
        embed = "vit.embeddings.patch_embeddings.projection"
        x = patches @ get[f"{embed}.weight"].reshape(WIDTH, -1).T + get[f"{embed}.bias"]
        x = np.concatenate([np.broadcast_to(get["vit.embeddings.cls_token"], (n, 1, WIDTH)), x], 1)
        x = x + get["vit.embeddings.position_embeddings"]
        for i in range(LAYERS):
            layer = f"vit.encoder.layer.{i}"
            x = x + attend(layer, norm(f"{layer}.layernorm_before", x))
            y = linear(f"{layer}.intermediate.dense", norm(f"{layer}.layernorm_after", x))
            y = y * ((1 + erf(y / math.sqrt(2))) / 2).astype(y.dtype)  # GELU
            x = x + linear(f"{layer}.output.dense", y)
        return linear("classifier", norm("vit.layernorm", x)[:, 0])


def read(model, kernel, images):
    """Logits, and the attention weights [n][layer][head][query][key], by a generated kernel."""
    probs = np.zeros((len(images), LAYERS, HEADS, TOKENS, TOKENS), np.float32)

    def attend(layer, x):
        parts = {"q": "attention.query", "k": "attention.key", "v": "attention.value", "o": "output.dense"}
        packed = kernel.pack(**{kind + x: model.tensors[f"{layer}.attention.{name}.{of}"]
                                for x, name in parts.items() for kind, of in (("w", "weight"), ("b", "bias"))})
        number = int(layer.rsplit(".", 1)[1])
        return np.stack([kernel.run(packed, image, probs=probs[i, number]) for i, image in enumerate(x)])

    return model.forward(images, model.tensors, attend), probs


def main():
    args = options.parse()
    mhagen, folder = ROOT / "build/mhagen", ROOT / "build/vit"
    kernel = kernels.build(mhagen, folder, name="vit", isa=args.isa or kernels.best_isa(mhagen), **SHAPE)
    model = Model()
    images, labels = digits.load()
    images, labels = images[-digits.UNSEEN:], labels[-digits.UNSEEN:]
    print(f"a vision transformer of {LAYERS} layers, attention by generated kernels ({kernel.isa})")
    logits, probs = read(model, kernel, images)
    right = int((logits.argmax(-1) == labels).sum())
    print(f"{right} of {len(labels)} digits are read right; attention of one image in one layer, one thread: "
          f"{np.median(kernel.us):.1f} us (median)")
    good = right >= MIN_RIGHT * len(labels)
    for one in [reference.NumpyReference(model)] + ([reference.TorchReference(model)] if args.torch else []):
        theirs, weights = one(images)
        diff, of_weights = abs(theirs - logits).max(), abs(weights - probs).max()
        same = int((theirs.argmax(-1) == logits.argmax(-1)).sum())
        print(f"{same} of {len(labels)} answers are those of {one.name}; max |diff| {diff:.1e} of logits, "
              f"{of_weights:.1e} of attention weights")
        good = good and same == len(labels) and max(diff, of_weights) <= MAX_DIFF
    for path in picture.draw(images, labels, logits, probs[:, -1, :, 0, 1:], args.out):
        print(f"wrote {path}")
    print("ok" if good else f"FAILED: all answers must be the same, within {MAX_DIFF:g}, and {MIN_RIGHT:.0%} right")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
