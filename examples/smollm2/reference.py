"""The model without mhagen: what the example compares its results with.

Both classes map a prompt and the tokens that were written to the logits [token][word] behind each prefix, from one pass
over all of it, and say what they are. If each token is the likeliest of its row, a greedy search writes the same text.
"""
import numpy as np

import options
from model import EPSILON, rms_norm, silu

HEADS, SHARED, WIDTH, THETA = 9, 3, 64, 1e5


class NumpyReference:
    """The formulas of Llama in float64."""

    def __init__(self, gguf):
        self.gguf = gguf

    def __call__(self, prompt, ids):
        def get(name):
            return self.gguf[name].astype(np.float64)

        tokens = [*prompt, *ids[:-1]]
        n = len(tokens)
        angles = np.arange(n)[:, None] * THETA ** (-np.arange(WIDTH // 2) * 2 / WIDTH)
        turn = np.exp(1j * angles)[:, None]  # a pair of columns as a complex number

        def turned(x):
            return (x.reshape(n, -1, WIDTH // 2, 2).view(np.complex128)[..., 0] * turn).view(np.float64)

        x = get("token_embd")[tokens]
        for i in range(options.LAYERS):
            layer = f"blk.{i}."
            inner = rms_norm(x, get(layer + "attn_norm"))
            q, k = (turned(inner @ get(f"{layer}attn_{name}").T) for name in "qk")
            v = (inner @ get(layer + "attn_v").T).reshape(n, SHARED, WIDTH)
            k, v = (np.repeat(part, HEADS // SHARED, 1) for part in (k, v))
            scores = np.einsum("rhi,chi->hrc", q, k) / np.sqrt(WIDTH)
            scores[:, np.triu(np.ones((n, n), bool), 1)] = -np.inf
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            weights /= weights.sum(-1, keepdims=True)
            x = x + np.einsum("hrc,chi->rhi", weights, v).reshape(n, -1) @ get(layer + "attn_output").T
            inner = rms_norm(x, get(layer + "ffn_norm"))
            x = x + (silu(inner @ get(layer + "ffn_gate").T) * (inner @ get(layer + "ffn_up").T)
                     ) @ get(layer + "ffn_down").T
        last = rms_norm(x[len(prompt) - 1:], get("output_norm"))
        return last @ get("token_embd").T, "the formulas in float64"


class TorchReference:
    """Llama as transformers has it, on PyTorch, in float64. Neither is in requirements.txt."""

    def __init__(self, gguf):
        import torch
        import transformers

        def halves(rows):  # of Q and K: rope turns columns i and i + WIDTH / 2 here
            return rows.reshape(-1, WIDTH // 2, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)

        config = transformers.LlamaConfig(
            vocab_size=len(gguf["token_embd"]), hidden_size=HEADS * WIDTH, num_hidden_layers=options.LAYERS,
            intermediate_size=len(gguf["blk.0.ffn_up"]), num_attention_heads=HEADS, num_key_value_heads=SHARED,
            rope_theta=THETA, rms_norm_eps=EPSILON, tie_word_embeddings=True)
        names = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
                 "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.q_proj": "attn_q",
                 "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output"}
        arrays = {"model.embed_tokens": gguf["token_embd"], "lm_head": gguf["token_embd"],
                  "model.norm": gguf["output_norm"]}
        for i in range(options.LAYERS):
            for name, own in names.items():
                array = gguf[f"blk.{i}.{own}"]
                arrays[f"model.layers.{i}.{name}"] = halves(array) if own in ("attn_q", "attn_k") else array
        self.torch, self.model = torch, transformers.LlamaForCausalLM(config).double().eval()
        self.model.load_state_dict({f"{name}.weight": torch.tensor(array) for name, array in arrays.items()})
        self.name = f"transformers {transformers.__version__} on PyTorch {torch.__version__}, in float64"

    def __call__(self, prompt, ids):
        with self.torch.inference_mode():
            logits = self.model(self.torch.tensor([[*prompt, *ids[:-1]]])).logits[0, len(prompt) - 1:]
        return logits.numpy(), self.name
