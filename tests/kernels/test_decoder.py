"""Kernels of a decoder that reads its own output, a prompt in chunks and then row by row behind a cache, against
PyTorch in double on the whole sequence at once."""
import pytest

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

from reference_lib import (ALIBI, CAUSAL, CROSS, INTERLEAVED, KV_LEN, KV_START, MASK_ADD, MASK_BOOL, ROPE, SINK,
                           WINDOW_LEFT, Generated, aligned, build, drawn_isa)
from test_reference import DECODERS, Case, decoder, expect_composition, heads, queries_and_keys

ROWS, CHUNKS, STEPS = 18, [5, 5], 8  # whose last row is the last that the cache has room for
KEYS = {CAUSAL: "causal", KV_LEN: "kv_len", KV_START: "kv_start", ALIBI: "alibi", SINK: "sink"}


def config_of(options, rope=0, rope_dims=0, window_left=0, **_):
    """The keys of a decoder's kernel but for its rows."""
    config = {key: "true" for option, key in KEYS.items() if options & option}
    if options & ROPE:
        config |= {"rope": "interleaved" if rope == INTERLEAVED else "half", "rope_dims": rope_dims}
    if options & WINDOW_LEFT:
        config["window_left"] = window_left
    if options & (MASK_BOOL | MASK_ADD):
        config |= {"mask": "bool" if options & MASK_BOOL else "add", "mask_dims": "bhqk"}
    return {"h": 4, "h_kv": 2, "d_model": 12, "dk": 6, "dv": 5, "batch": 2, "cache": "append", "seq_kv": ROWS, **config}


@pytest.mark.parametrize("what", DECODERS)
def test_prompt_and_steps(what, tmp_path, tmp_path_factory):
    whole, mask = decoder(build(tmp_path_factory), ROWS, **DECODERS[what])
    config, isa = config_of(**DECODERS[what]), drawn_isa(what)
    kernels = {seq: Generated({**config, "seq": seq}, isa, tmp_path / str(seq)) for seq in {*CHUNKS, 1}}
    weights = {of + key: x for of in "wb" for key, x in getattr(whole, of).items()}
    if whole.tables is not None:
        weights |= dict(zip(("rope_cos", "rope_sin"), whole.tables))
    for kernel in kernels.values():
        kernel.pack(layout=1, **{name: x.data_ptr() for name, x in weights.items()})
    assert len({kernel.shape.cache_bytes for kernel in kernels.values()}) == 1
    room, cache = aligned(2 * kernels[1].shape.cache_bytes)
    room[:] = b"\xff" * len(room)

    past = torch.zeros(2, dtype=torch.int32)
    for n, seq in enumerate(CHUNKS + STEPS * [1]):
        rows = [slice(first, first + seq) for first in past.tolist()]
        q, want = (torch.stack([x[b, at] for b, at in enumerate(rows)]) for x in (whole.q, whole.y))
        y = torch.full(want.shape, torch.nan, dtype=torch.float32)
        part = None if mask is None else torch.stack([mask[b, :, at] for b, at in enumerate(rows)])
        kernels[seq].run(q=q.data_ptr(), y=y.data_ptr(), past=past.data_ptr(), cache=cache,
                         kv_len=whole.kv_len.data_ptr(), kv_start=whole.kv_start.data_ptr(),
                         mask=None if mask is None else part.data_ptr())
        assert (y - want).norm() <= 3e-6 * want.norm(), (n, seq)
        past += torch.tensor([seq, seq if n != 1 else 2])  # the second entry takes three rows back
    assert past.tolist() == [ROWS, ROWS - 3]


class Exchanged:
    """A cache of two batch entries as PyTorch has it, which begins at any float, for keys and values of a case."""

    def __init__(self, case):
        self.want = queries_and_keys(case)[1], heads(case, case.v, "v", case.h_kv)
        sizes = [x[0].numel() for x in self.want]
        self.room = torch.full((1 + 2 * sum(sizes),), torch.nan, dtype=torch.float32)
        entries = self.room[1:].view(2, -1).split(sizes, dim=1)
        self.parts = [entry.view(x.shape) for entry, x in zip(entries, self.want)]
        self.at = self.room[1:].data_ptr()

    def put(self, b, rows):
        for part, x in zip(self.parts, self.want):
            part[b, :, rows] = x[b, :, rows].float()

    def expect(self, b, rows):
        for part, x in zip(self.parts, self.want):
            assert (part[b, :, rows] - x[b, :, rows]).norm() <= 1e-6 * x[b, :, rows].norm()
            assert (part[b, :, :rows.start] == x[b, :, :rows.start].float()).all()
            assert part[b, :, rows.stop:].isnan().all()


@pytest.mark.parametrize("what, seq", zip(DECODERS, [1, 4, 4, 1]))
def test_cache_of_pytorch(what, seq, tmp_path, tmp_path_factory):
    """A run reads the rows that PyTorch has put into a cache, and PyTorch those that it adds; it leaves all others."""
    whole, mask = decoder(build(tmp_path_factory), ROWS, **DECODERS[what])
    cache, past = Exchanged(whole), torch.tensor([ROWS - seq, 5], dtype=torch.int32)
    kernel = Generated({**config_of(**DECODERS[what]), "cache_layout": "bhsd", "seq": seq}, drawn_isa(what), tmp_path)
    assert kernel.shape.cache_bytes == 4 * (cache.room.numel() - 1) // 2
    weights = {of + key: x for of in "wb" for key, x in getattr(whole, of).items()}
    if whole.tables is not None:
        weights |= dict(zip(("rope_cos", "rope_sin"), whole.tables))
    kernel.pack(layout=1, **{name: x.data_ptr() for name, x in weights.items()})
    rows = [slice(first, first + seq) for first in past.tolist()]
    for b, at in enumerate(rows):
        cache.put(b, slice(0, at.start))
    q, want = (torch.stack([x[b, at] for b, at in enumerate(rows)]) for x in (whole.q, whole.y))
    y = torch.full(want.shape, torch.nan, dtype=torch.float32)
    part = None if mask is None else torch.stack([mask[b, :, at] for b, at in enumerate(rows)])
    kernel.run(q=q.data_ptr(), y=y.data_ptr(), past=past.data_ptr(), cache=cache.at, kv_len=whole.kv_len.data_ptr(),
               kv_start=whole.kv_start.data_ptr(), mask=None if mask is None else part.data_ptr())
    assert (y - want).norm() <= 3e-6 * want.norm()
    for b, at in enumerate(rows):
        cache.expect(b, at)


def test_filled_cache_of_pytorch(tmp_path, tmp_path_factory):
    """The same of a cache that is filled once, by the kernel or by PyTorch."""
    case = Case(build(tmp_path_factory), h=4, h_kv=2, d_model=12, dk=6, dv=5, seq=3, seq_kv=11,
                options=CROSS | KV_LEN, kv_len=[11, 7])
    expect_composition(case)
    kernel = Generated(dict(h=4, h_kv=2, d_model=12, dk=6, dv=5, seq=3, seq_kv=11, batch=2, attention="cross",
                            kv_len="true", cache="fixed", cache_layout="bhsd"), drawn_isa("fixed"), tmp_path)
    weights = {of + key: x for of in "wb" for key, x in getattr(case, of).items()}
    kernel.pack(layout=1, **{name: x.data_ptr() for name, x in weights.items()})
    for made in "kernel", "PyTorch":
        cache = Exchanged(case)
        if made == "kernel":
            kernel.fill(k=case.k.data_ptr(), v=case.v.data_ptr(), cache=cache.at)
            for b in range(2):
                cache.expect(b, slice(0, 11))
        else:
            cache.put(slice(0, 2), slice(0, 11))
        y = torch.full(case.y.shape, torch.nan, dtype=torch.float32)
        kernel.run(q=case.q.data_ptr(), y=y.data_ptr(), cache=cache.at, kv_len=case.kv_len.data_ptr())
        assert (y - case.y).norm() <= 3e-6 * case.y.norm(), made
