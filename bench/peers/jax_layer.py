"""JAX: its attention function, and the composition of products and softmax, compiled by XLA."""
import jax
import jax.numpy as jnp
import numpy as np

jax.config.update("jax_default_matmul_precision", "highest")


def version():
    return jax.__version__


def norm(x, gains, biases):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gains + biases


def explicit(p, q, k, v):
    s = jnp.einsum("nhc,mhc->hnm", q * p.dk ** -0.5, k)
    if p.causal:
        s += np.triu(np.full((p.n, p.n), -np.inf, np.float32), 1)
    return jnp.einsum("hnm,mhc->nhc", jax.nn.softmax(s), v)


def fused(p, q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=p.causal)


def layer(p, attention):
    """The function of x, with weights as constants, as in a product."""
    wqkv, bqkv = np.concatenate([p.wq, p.wk, p.wv], 1), np.concatenate([p.bq, p.bk, p.bv])

    def whole(x):
        u = norm(x, p.norm1, p.norm1_bias) if p.norm == "pre" else x
        q, k, v = (part.reshape(p.n, p.h, p.dk) for part in jnp.split(u @ wqkv + bqkv, 3, -1))
        y = attention(p, q, k, v).reshape(p.n, -1) @ p.wo + p.bo
        if not p.ffn:
            return y
        x = norm(x + y, p.norm1, p.norm1_bias) if p.norm == "post" else x + y
        u = norm(x, p.norm2, p.norm2_bias) if p.norm == "pre" else x
        x += jax.nn.gelu(u @ p.w1 + p.b1, approximate=p.act == "gelu_tanh") @ p.w2 + p.b2
        return norm(x, p.norm2, p.norm2_bias) if p.norm == "post" else x
    return whole


def setup(attention):
    def of(p):
        x, compiled, result = jnp.asarray(p.x), jax.jit(layer(p, attention)), [None]

        def run():
            result[0] = compiled(x).block_until_ready()

        return run, lambda: np.asarray(result[0])
    return of


FORMS = {"dot_product_attention": setup(fused), "einsum and softmax": setup(explicit)}
