"""SmolLM2-135M-Instruct writes text with its attention on generated kernels; see run.sh.

1. Answers a question greedily, token by token. The prompt goes through a kernel of 32 rows, each further token through
   one of a single row; both share a cache of keys and values, one for each layer.
2. Compares each token, and the logits that chose it, with a reference that runs the same weights without mhagen and
   without a cache (reference.py).
3. Draws the attention weights that a kernel with probs=true returns for the beginning of the answer.

Exit status 1 when a token differs, or a figure misses its limit. With a smaller type (--dtype) another token may be the
likeliest where two are nearly as likely as each other: the logits alone have a limit then.
"""
import sys
import time
from pathlib import Path

import numpy as np

import kernels
import options
import picture
import reference
import whole
from model import Gguf, rms_norm, silu

ROOT = Path(__file__).parents[2]
MHAGEN = ROOT / "build/mhagen"
LAYERS, ROOM, CHUNK, DRAWN = options.LAYERS, options.ROOM, 32, 40
SHAPE = dict(h=9, h_kv=3, d_model=576, dk=64, seq_kv=ROOM, cache="append", causal="true", rope="interleaved",
             rope_theta=100000)
PROMPT = ("<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
          "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n")

MAX_LOGIT_DIFF = {"f32": 2e-3, "bf16": 0.6, "f16": 0.15}  # by the type of operands and cache


class Decoder:
    """The model: attention on generated kernels, everything around it in float32 NumPy."""

    def __init__(self, gguf, chunk, step=None):
        self.gguf, self.chunk, self.step = gguf, chunk, step
        self.packed = {kernel: [kernel.pack(**{f"w{x}": gguf[f"blk.{i}.attn_{name}"] for x, name in
                                               zip("qkvo", ("q", "k", "v", "output"))}) for i in range(LAYERS)]
                       for kernel in (chunk, step) if kernel}
        self.caches = [kernels.aligned(chunk.cache_bytes) for _ in range(LAYERS)]
        self.past = 0

    def rows(self, ids, probs=None):
        """The logits behind the last of some tokens, at most as many as the kernel of chunks has rows."""
        kernel = self.step if self.step and len(ids) == 1 else self.chunk
        gguf, x = self.gguf, self.gguf["token_embd"][ids]
        asked = {} if kernel is self.step else {"q_len": len(ids)}
        for i in range(LAYERS):
            layer = f"blk.{i}."
            x = x + kernel.run(self.packed[kernel][i], rms_norm(x, gguf[layer + "attn_norm"]), past=self.past,
                               cache=self.caches[i], probs=None if probs is None else probs[i], **asked)
            inner = rms_norm(x, gguf[layer + "ffn_norm"])
            x = x + (silu(inner @ gguf[layer + "ffn_gate"].T) * (inner @ gguf[layer + "ffn_up"].T)
                     ) @ gguf[layer + "ffn_down"].T
        self.past += len(ids)
        return rms_norm(x[-1], gguf["output_norm"]) @ gguf["token_embd"].T

    def read(self, ids):
        for at in range(0, len(ids), CHUNK):
            logits = self.rows(ids[at:at + CHUNK])
        return logits


def write(decoder, gguf, prompt, count):
    """The tokens behind a prompt, each the likeliest, and the logits that chose them. Prints them as they come."""
    ids, chosen = [], []
    logits = decoder.read(prompt)
    while len(ids) < count:
        chosen.append(logits)
        ids.append(int(logits.argmax()))
        if ids[-1] == gguf.end:
            break
        print(gguf.text(ids)[len(gguf.text(ids[:-1])):], end="", flush=True)
        if len(ids) < count:
            logits = decoder.rows(ids[-1:])
    print()
    return ids, np.array(chosen)


def compare(expected, prompt, ids, chosen, dtype):
    """Whether the reference writes the same tokens; of smaller types, whether its logits are near enough, as another
    token is when the reference has it as likely but for that."""
    theirs, kind = expected(prompt, ids)
    equal = theirs.argmax(-1) == ids
    same = int(equal.sum())
    diff = abs(theirs - chosen).max()
    first, second = np.sort(chosen, -1)[:, [-1, -2]].T
    print(f"{same} of {len(ids)} tokens are those of {kind}; logits: max |diff| {diff:.1e}, the likeliest is at least "
          f"{(first - second).min():.1e} above the next")
    if same < len(ids):
        row = theirs[equal.argmin()]
        print(f"the first other one is number {equal.argmin() + 1}, which the reference has "
              f"{row.max() - row[ids[equal.argmin()]]:.1e} below its own")
    return (same == len(ids) or dtype != "f32") and diff <= MAX_LOGIT_DIFF[dtype]


def look(decoder, gguf, ids, layer, out):
    """Draws the heads of a layer for the first tokens of an answer."""
    ids = ids[:DRAWN]
    probs = np.zeros((LAYERS, SHAPE["h"], decoder.chunk.data.seq, ROOM), np.float32)
    decoder.rows(ids, probs)
    n = len(ids)
    ahead = abs(np.triu(probs[:, :, :n, :n], 1)).max()
    sums = abs(probs[:, :, :n].sum(-1) - 1).max()
    print(f"attention weights of {n} tokens, {LAYERS} layers of {SHAPE['h']} heads: sums within {sums:.1e} of 1, "
          f"on later tokens {ahead:g}")
    for path in picture.draw(probs[layer][:, :n, :n], [gguf.text([i]) for i in ids], layer, out):
        print(f"wrote {path}")
    return ahead == 0 and sums <= 4e-6


def run_attention(args, isa, gguf, expected, prompt):
    """Attention on kernels, all else in NumPy. Whether the tokens are those of the references."""
    folder = ROOT / "build/smollm2"
    shape = SHAPE | {"isa": isa, "dtype": args.dtype}
    chunk = kernels.build(MHAGEN, folder, name="smollm2_chunk", seq=CHUNK, q_len="true", **shape)
    step = kernels.build(MHAGEN, folder, name="smollm2_step", seq=1, **shape)
    drawn = kernels.build(MHAGEN, folder, name="smollm2_probs", seq=DRAWN, q_len="true", probs="true", **shape)
    print(f"SmolLM2-135M-Instruct, attention by generated kernels ({chunk.isa}, {args.dtype})\n\n> {args.question}\n")
    start = time.perf_counter()
    ids, chosen = write(Decoder(gguf, chunk, step), gguf, prompt, args.tokens)
    seconds = time.perf_counter() - start
    print(f"\n{len(prompt)} + {len(ids)} tokens in {seconds:.1f} s; attention of one layer, one thread: "
          f"{np.median(chunk.us):.0f} us for {CHUNK} tokens, {np.median(step.us):.0f} us for one")
    good = all([compare(one, prompt, ids, chosen, args.dtype) for one in expected])
    return look(Decoder(gguf, drawn), gguf, ids, args.layer, args.out) and good


def run_whole(args, isa, gguf, expected, prompt):
    """All of the model in C. Whether the tokens are those of the references."""
    print(f"SmolLM2-135M-Instruct as one C program ({isa}, weights in {args.weights})\n\n> {args.question}\n")
    program = whole.build(MHAGEN, gguf, ROOT / "build/smollm2-whole", isa, args.weights, ROOM)
    ids, said = whole.write(program, gguf, prompt, args.tokens)
    print(f"\n{said}; one thread, {program[1].stat().st_size >> 20} MiB of weights")
    return all([whole.compare(one, prompt, ids, args.weights) for one in expected])


def main():
    args = options.parse()
    gguf = Gguf()
    expected = [] if args.unchecked else [reference.NumpyReference(gguf)]
    expected += [reference.TorchReference(gguf)] if args.torch else []
    prompt = gguf.ids(PROMPT.format(args.question))
    if len(prompt) + args.tokens > ROOM:
        sys.exit(f"smollm2: {len(prompt)} tokens of the prompt and {args.tokens} more are above {ROOM}, the cache's "
                 "room")
    isa = args.isa or kernels.best_isa(MHAGEN, args.dtype)
    if args.whole:
        good, rule = run_whole(args, isa, gguf, expected, prompt), "all tokens must be the same with weights in float32"
    else:
        good = run_attention(args, isa, gguf, expected, prompt)
        rule = f"all tokens must be the same with float32, and logits within {MAX_LOGIT_DIFF[args.dtype]:g}"
    print("ok" if good else "FAILED: " + rule)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
