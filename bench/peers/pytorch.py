"""PyTorch: what a user composes of its functions, its own layer, and the composition compiled."""
import os

import torch
import torch.nn.functional as F
from torch.utils.mkldnn import to_mkldnn

torch.set_num_threads(int(os.environ.get("PEER_THREADS", "1")))
torch.inference_mode().__enter__()


def version():
    return torch.__version__


def parameters(p):
    """[out][in], the projections side by side."""
    weights = torch.cat([torch.from_numpy(w.T) for w in (p.wq, p.wk, p.wv)]).contiguous()
    biases = torch.cat([torch.from_numpy(b) for b in (p.bq, p.bk, p.bv)])
    return weights, biases, torch.from_numpy(p.wo.T.copy()), torch.from_numpy(p.bo)


def linear(weights, biases):
    layer = torch.nn.Linear(*weights.T.shape).requires_grad_(False)
    layer.weight.copy_(weights)
    layer.bias.copy_(biases)
    return layer


def norm(gains, biases):
    own = torch.nn.LayerNorm(len(gains)).requires_grad_(False)
    own.weight.copy_(torch.from_numpy(gains))
    own.bias.copy_(torch.from_numpy(biases))
    return own


class Attention(torch.nn.Module):
    def __init__(self, p):
        super().__init__()
        self.shape, self.causal = (1, p.n, 3, p.h, p.dk), p.causal
        wqkv, bqkv, wo, bo = parameters(p)
        self.project, self.out = linear(wqkv, bqkv), linear(wo, bo)
        self.eval()

    def heads(self, x):
        return self.project(x).view(self.shape).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x):
        q, k, v = self.heads(x)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(o.transpose(1, 2).flatten(2))


class Explicit(Attention):
    """With matmul and softmax in place of scaled_dot_product_attention."""
    def __init__(self, p):
        super().__init__(p)
        self.scale = p.dk ** -0.5
        if p.causal:
            self.mask = torch.full((p.n, p.n), -torch.inf).triu(1)

    def forward(self, x):
        q, k, v = self.heads(x)
        s = (q * self.scale) @ k.transpose(-1, -2)
        if self.causal:
            s = s + self.mask
        return self.out((F.softmax(s, -1) @ v).transpose(1, 2).flatten(2))


class Layer(torch.nn.Module):
    """The whole layer around it."""
    def __init__(self, attention, p):
        super().__init__()
        self.attention, self.pre, self.act = attention, p.norm == "pre", p.act
        self.up, self.down = (linear(torch.from_numpy(w.T.copy()), torch.from_numpy(b))
                              for w, b in ((p.w1, p.b1), (p.w2, p.b2)))
        self.norm1, self.norm2 = norm(p.norm1, p.norm1_bias), norm(p.norm2, p.norm2_bias)
        self.eval()

    def feed_forward(self, x):
        return self.down(F.gelu(self.up(x), approximate="tanh" if self.act == "gelu_tanh" else "none"))

    def forward(self, x):
        if self.pre:
            x = x + self.attention(self.norm1(x))
            return x + self.feed_forward(self.norm2(x))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.feed_forward(x))


def model(p, attention=Attention):
    return Layer(attention(p), p) if p.ffn else attention(p)


def runner(model, p, dtype=torch.float32):
    x = torch.from_numpy(p.x)[None].to(dtype)
    result = [None]

    def run():
        result[0] = model(x)

    return run, lambda: result[0][0].float().numpy()


def encoder_layer(p, dtype):
    """PyTorch's own, which runs as one operator where nothing is causal."""
    if p.act != "gelu":
        raise NotImplementedError("the layer is that of gelu")
    own = torch.nn.TransformerEncoderLayer(p.d_model, p.h, p.ffn, 0, "gelu", batch_first=True,
                                           norm_first=p.norm == "pre").eval().requires_grad_(False)
    mha = own.self_attn
    for to, value in zip((mha.in_proj_weight, mha.in_proj_bias, mha.out_proj.weight, mha.out_proj.bias), parameters(p)):
        to.copy_(value)
    rest = Layer(None, p)
    for name, of in ("linear1", rest.up), ("linear2", rest.down), ("norm1", rest.norm1), ("norm2", rest.norm2):
        getattr(own, name).load_state_dict(of.state_dict())
    mask = torch.nn.Transformer.generate_square_subsequent_mask(p.n).to(dtype) if p.causal else None
    own = own.to(dtype)
    return runner(lambda x: own(x, src_mask=mask, is_causal=p.causal), p, dtype)


def layer(p, dtype=torch.float32):
    if p.d_model != p.h * p.dk:
        raise NotImplementedError("the layer wants d_model = h * dk")
    if p.ffn:
        return encoder_layer(p, dtype)
    mha = torch.nn.MultiheadAttention(p.d_model, p.h, batch_first=True).eval().requires_grad_(False)
    own = mha.in_proj_weight, mha.in_proj_bias, mha.out_proj.weight, mha.out_proj.bias
    for to, value in zip(own, parameters(p)):
        to.copy_(value)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(p.n) if p.causal else None
    mha, mask = mha.to(dtype), mask if mask is None else mask.to(dtype)
    return runner(lambda x: mha(x, x, x, need_weights=False, attn_mask=mask, is_causal=p.causal)[0], p, dtype)


def compiled(p, dtype=torch.float32):
    import torch._inductor.config
    torch._inductor.config.freezing = True  # packs the weights
    return runner(torch.compile(model(p).to(dtype), dynamic=False), p, dtype)


def explicit(p, dtype=torch.float32):
    attention = Explicit(p)
    if p.causal:
        attention.mask = attention.mask.to(dtype)
    return runner(model(p, lambda _: attention).to(dtype), p, dtype)


def quantized(p):
    """Weights in int8; rows of x become integers in each call."""
    return runner(torch.ao.quantization.quantize_dynamic(model(p), {torch.nn.Linear}, torch.qint8), p)


FORMS = {
    "linear and scaled_dot_product_attention": lambda p: runner(model(p), p),
    "linear, matmul and softmax": explicit,
    "the first, its layers by oneDNN": lambda p: runner(to_mkldnn(model(p)), p),
    "nn.MultiheadAttention or TransformerEncoderLayer": layer,
    "torch.compile of the first": compiled,
}
BF16 = {  # x and y are bfloat16 too: no conversion takes time
    "linear and scaled_dot_product_attention":
        lambda p: runner(model(p).to(torch.bfloat16), p, torch.bfloat16),
    "linear, matmul and softmax": lambda p: explicit(p, torch.bfloat16),
    "nn.MultiheadAttention or TransformerEncoderLayer": lambda p: layer(p, torch.bfloat16),
    "torch.compile of the first": lambda p: compiled(p, torch.bfloat16),
}
INT8 = {"quantize_dynamic of linear, scaled_dot_product_attention": quantized}
