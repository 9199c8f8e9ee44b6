"""The model without mhagen: what the example compares its logits and attention weights with.

Both classes map images to logits [n][10] and to the attention weights [n][layer][head][query][key].
"""
import math

import numpy as np


class NumpyReference:
    """The formulas in float64."""

    name = "the formulas in float64"

    def __init__(self, model):
        self.model = model

    def __call__(self, images):
        model, weights = self.model, []
        get = {name: tensor.astype(np.float64) for name, tensor in model.tensors.items()}

        def linear(name, x):
            return x @ get[f"{name}.weight"].T + get[f"{name}.bias"]

        def attend(layer, x):
            q, k, v = (linear(f"{layer}.attention.attention.{name}", x).reshape(*x.shape[:2], model.heads, -1)
                       for name in ("query", "key", "value"))
            scores = np.einsum("brhi,bchi->bhrc", q, k) / math.sqrt(q.shape[-1])
            p = np.exp(scores - scores.max(-1, keepdims=True))
            p /= p.sum(-1, keepdims=True)
            weights.append(p)
            return linear(f"{layer}.attention.output.dense", np.einsum("bhrc,bchi->brhi", p, v).reshape(x.shape))

        logits = model.forward(images.astype(np.float64), get, attend)
        return logits, np.stack(weights, 1)


class TorchReference:
    """ViT as transformers has it, on PyTorch, in float64. Neither is in requirements.txt."""

    def __init__(self, model):
        import torch
        import transformers

        import train

        self.torch = torch
        self.model = transformers.ViTForImageClassification.from_pretrained(
            None, config=transformers.ViTConfig(**train.CONFIG, attn_implementation="eager"), dtype=torch.float64,
            state_dict={name: torch.tensor(tensor) for name, tensor in model.tensors.items()}).eval()
        self.name = f"transformers {transformers.__version__} on PyTorch {torch.__version__}, in float64"

    def __call__(self, images):
        with self.torch.inference_mode():
            out = self.model(self.torch.tensor(images, dtype=self.torch.float64)[:, None], output_attentions=True)
        return out.logits.numpy(), np.stack([layer.numpy() for layer in out.attentions], 1)
