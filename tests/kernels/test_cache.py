"""Kernels that share a cache: of other seq, schedules and masks, on the same rows."""
import array
import ctypes
import math
import random
import re
import struct
import subprocess

import pytest

from reference_lib import (CACHE_APPEND, CACHE_FIXED, CAUSAL, CROSS, Args, Generated, Kernel, Weights, build, drawn_isa,
                           shape_of)
from tools import ISAS, MHAGEN, check, explain, generate, in_turn, native, run

H, H_KV, D, DK, DV, SEQ_KV, BATCH = 4, 2, 20, 6, 9, 41, 2
SHAPE = f"h={H} h_kv={H_KV} d_model={D} dk={DK} dv={DV} batch={BATCH}"
ALIGN, ERR_LENGTH = 64, 3


def address(numbers):
    return numbers.buffer_info()[0]


def floats(rng, count, scale=1.0):
    return array.array("f", [scale * rng.gauss(0, 1) for _ in range(count)])


def aligned(count):
    """Memory whose bytes are NaN, and where it is aligned."""
    room = ctypes.create_string_buffer(b"\xff" * (count + ALIGN), count + ALIGN)
    return room, -(-ctypes.addressof(room) // ALIGN) * ALIGN


class Program:
    """A kernel in a shared library, with packed weights and a workspace."""

    def __init__(self, directory, name, isa, config, weights):
        run(MHAGEN, "gen", *SHAPE.split(), *config.split(), f"isa={isa}", f"name={name}", "-o", directory)
        path = directory / f"{name}.so"
        subprocess.run(["gcc", "-O0", "-shared", "-fPIC", directory / f"{name}.c", directory / "mhagen.c", "-o", path,
                        "-pthread"], check=True)
        self.library = ctypes.CDLL(path)
        self.kernel = Kernel.in_dll(self.library, f"{name}_kernel")
        self.name = name
        self.rooms = [aligned(size) for size in (self.kernel.packed_bytes, self.kernel.workspace_bytes)]
        self.packed, self.workspace = (at for _, at in self.rooms)
        assert self.call("pack", ctypes.byref(weights), ctypes.c_void_p(self.packed)) == 0

    def supported(self):
        return self.call("supported")

    def call(self, function, *arguments):
        return getattr(self.library, f"{self.name}_{function}")(*arguments)

    def run(self, **pointers):
        seq = self.kernel.seq
        y = array.array("f", [float("nan")] * (BATCH * seq * D))
        args = Args(packed=self.packed, workspace=self.workspace, y=address(y), **pointers)
        assert self.call("run", ctypes.byref(args)) == 0
        return [[y[(b * seq + r) * D:(b * seq + r + 1) * D] for r in range(seq)] for b in range(BATCH)]


@pytest.fixture(scope="module")
def weights():
    rng = random.Random(3)
    sizes = {"q": (D, H * DK), "k": (D, H_KV * DK), "v": (D, H_KV * DV), "o": (H * DV, D)}
    kept = {f"w{x}": floats(rng, rows * columns, rows ** -0.5) for x, (rows, columns) in sizes.items()}
    kept |= {f"b{x}": floats(rng, columns, 0.5) for x, (_, columns) in sizes.items()}
    return kept, Weights(**{key: address(numbers) for key, numbers in kept.items()})


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return build(tmp_path_factory)


def wanted(reference, weights, options, seq, **pointers):
    """y of the reference, [batch][seq][D]."""
    kernel = shape_of(options, h=H, h_kv=H_KV, d_model=D, dk=DK, dv=DV, seq=seq, seq_kv=SEQ_KV, batch=BATCH)
    y = array.array("d", [0.0] * (BATCH * seq * D))
    args = Args(**pointers)
    assert reference.mhagen_reference(ctypes.byref(kernel), ctypes.byref(weights[1]), ctypes.byref(args),
                                      ctypes.c_void_p(address(y)), None) == 0
    return [[y[(b * seq + r) * D:(b * seq + r + 1) * D] for r in range(seq)] for b in range(BATCH)]


ERRORS = {"f32": 3e-6, "bf16": 2e-2, "f16": 2e-3, "int8": 5e-2}  # of a row


def expect(got, want, dtype="f32"):
    for b, rows in enumerate(got):
        for r, row in enumerate(rows):
            size = sum(x * x for x in want[b][r]) ** 0.5
            assert sum((x - y) ** 2 for x, y in zip(row, want[b][r])) ** 0.5 <= ERRORS[dtype] * size, (b, r)


ISAS_HERE = [isa for isa in ISAS if native(isa)]


def programs(tmp_path, isa, weights, configs):
    made = [Program(tmp_path, f"kernel{i}", isa, config, weights[1]) for i, config in enumerate(configs)]
    if not made[0].supported():
        pytest.skip(f"this CPU has no {isa}")
    assert len({program.kernel.cache_bytes for program in made}) == 1
    return made


@pytest.mark.parametrize("dtype, isa", [
    (dtype, isa) for dtype in ("bf16", "int8") for isa in in_turn(ISAS_HERE, "rows that are fetched", dtype)])
@pytest.mark.parametrize("heads", ["h=4 h_kv=1", "h=6 h_kv=2", "h=2"])
def test_long_cache(heads, dtype, isa):
    """Rows are fetched while others are multiplied by as many of the heads as they are together: 4, 1 of 3, 1."""
    config = [*heads.split(), *f"d_model=20 dk=64 seq=1 seq_kv=300 cache=append cache_dtype={dtype} isa={isa}".split()]
    assert ("fetched 8 KB ahead" in explain(*config)) == (isa != "scalar")
    assert "ok: " in check(*config, "causal=true", "mask=add", "mask_dims=hk")


@pytest.mark.parametrize("config", [
    "h=4 h_kv=1 dk=64 seq_kv=64 project=none", "h=5 h_kv=1 dk=64 dv=128 seq_kv=133 seq=2 mask=bool probs=true",
    "h=12 h_kv=2 dk=128 seq_kv=150 window_left=90 softcap=20 sink=true kv_len=true",
    "h=8 h_kv=2 dk=64 seq_kv=300 key_block=32 mask=add mask_dims=hk unroll=k",
    "h=8 h_kv=1 dk=64 seq_kv=100 alibi=true batch=2 q_len=true"])
def test_integers_of_shared_heads(config):
    """Rows in int8 that four or more heads share are multiplied as integers, where they are whole vectors of words."""
    config = {"seq": "1", "d_model": "20", **dict(word.split("=") for word in config.split())}
    if config.get("project"):
        del config["d_model"]
    words = [f"{key}={value}" for key, value in config.items()]
    for isa in in_turn([isa for isa in ISAS_HERE if isa.startswith("avx")], *words):
        kernel = [*words, "cache=append", "cache_dtype=int8", f"isa={isa}"]
        assert "multiplied as integers" in explain(*kernel)
        assert "ok: " in check(*kernel)
    for floats in ("dk=60", "attend_dtype=bf16", "cache_dtype=f16", f"h_kv={config['h']}"):
        replaced = [word for word in kernel if word.split("=")[0] != floats.split("=")[0]]
        assert "multiplied as integers" not in explain(*replaced, floats)


@pytest.mark.parametrize("config, lanes", [
    ("project=none dk=20", False), ("project=none dk=20 layout=bhsd attend_dtype=bf16 cache_dtype=bf16", False),
    ("d_model=20 dk=6 weight_dtype=bf16", False), ("d_model=20 dk=6 weight_dtype=bf16 rope=half", True)])
def test_queries_of_steps(config, lanes, tmp_path):
    """Queries that are scaled or rounded stay rows; a norm or rope takes them in lanes."""
    shape = f"{config} h=4 h_kv=2 seq=2 seq_kv=75 cache=append attention={'cross' if 'none' in config else 'self'}"
    text = generate(tmp_path, shape, "avx512").read_text()
    assert ("queries_lanes" in text) == lanes and "queries_rows" in text
    if "avx512" in ISAS_HERE:
        assert "ok: " in check(*shape.split(), "isa=avx512", "q_len=true", "batch=2")


@pytest.mark.parametrize("isa", in_turn(ISAS_HERE, "steps in int8"))
@pytest.mark.parametrize("seq", [1, 2])
def test_steps_in_int8(seq, isa):
    """Rows of the context become integers, which tasks of attention have made head by head."""
    floats = f"h=4 h_kv=2 d_model=20 dk=6 dv=5 seq={seq} seq_kv=75 cache=append batch=2 isa={isa}".split()
    integers = [*floats, "dtype=int8", "attend_dtype=f32"]
    of_floats, of_integers = ("lanes are keys" in explain(*config) for config in (floats, integers))
    assert of_integers == of_floats
    assert "ok: " in check(*integers, "q_len=true", "causal=true")


@pytest.mark.parametrize("dtype, isa", [
    (dtype, isa) for dtype in ERRORS for isa in in_turn(ISAS_HERE, "kernels that share a cache", dtype)])
def test_prefill_and_decode(isa, dtype, tmp_path, weights, reference):
    """Chunks of 9 rows by one kernel, then rows one by one by another, then 5 at once; a batch whose entries have other
    rows before."""
    kernels = programs(tmp_path, isa, weights, [
        f"seq={seq} seq_kv={SEQ_KV} cache=append causal=true cache_dtype={dtype} {more}"
        for seq, more in ((9, "key_rows=4 fold=off"), (1, ""), (5, "kv_rows=1 key_rows=1 unroll=tile"))])
    rows = floats(random.Random(7), BATCH * SEQ_KV * D)
    cache, at = aligned(BATCH * kernels[0].kernel.cache_bytes)
    past = array.array("i", [0, 0])
    steps = [0, 0, *[1] * 5, 2, *[1] * 3, 2]
    for n, which in enumerate(steps):
        program = kernels[which]
        seq = program.kernel.seq
        x = array.array("f")
        for b in range(BATCH):
            x += rows[(b * SEQ_KV + past[b]) * D:(b * SEQ_KV + past[b] + seq) * D]
        pointers = dict(q=address(x), past=address(past))
        y = program.run(cache=at, **pointers)
        expect(y, wanted(reference, weights, CAUSAL | CACHE_APPEND, seq, k=address(rows), v=address(rows), **pointers),
               dtype)
        for b in range(BATCH):
            past[b] += seq if n > 0 else seq - 4 * b  # the second entry drops rows
    assert max(past) > SEQ_KV - 10 and past[0] != past[1]


def rows_of_cache(source):
    """Where the rows of keys and of values lie in a batch entry: function of a row to slices of bytes."""
    places = re.findall(r"float \*const (?:keys|values) = \(float \*\)args->cache \+ \d+ \* b(?: \+ (\d+))?; "
                        r"/\* \[(\d+)\]\[(\d+)\]\[(\d+)\] \*/", source.read_text())
    assert len(set(places)) == 2

    def rows(first, end):
        for offset, heads, height, columns in ({tuple(int(x or 0) for x in place) for place in places}):
            for head in range(heads):
                start = offset + head * (-(-height * columns // 16) * 16)
                yield slice(4 * (start + first * columns), 4 * (start + end * columns))
    return rows


@pytest.mark.parametrize("isa", ISAS_HERE)
@pytest.mark.parametrize("more", ["key_rows=5", ""])
def test_rows_of_others(isa, more, tmp_path, weights):
    """A run leaves the rows before past as they are, and writes all of its own; what stands behind them has no
    influence on y or on these; and past outside 0..seq_kv - seq writes nothing."""
    [program] = programs(tmp_path, isa, weights, [f"seq=4 seq_kv={SEQ_KV} cache=append causal=true {more}"])
    rows, size = rows_of_cache(tmp_path / "kernel0.c"), program.kernel.cache_bytes
    x, before = floats(random.Random(7), BATCH * 4 * D), floats(random.Random(8), BATCH * size // 4).tobytes()

    def run(past, fill):
        """y and the entries of the cache behind a run that finds `fill` from past + seq on."""
        room, at = aligned(BATCH * size)
        for b in range(BATCH):
            entry = bytearray(before[b * size:(b + 1) * size])
            for part in rows(past[b] + 4, SEQ_KV):
                entry[part] = fill * ((part.stop - part.start) // 4)
            ctypes.memmove(at + b * size, bytes(entry), size)
        given = array.array("i", past)
        y = program.run(cache=at, q=address(x), past=address(given))
        return y, [ctypes.string_at(at + b * size, size) for b in range(BATCH)]

    for past in [0, SEQ_KV - 4], [13, 20]:
        runs = [run(past, struct.pack("f", value)) for value in (0.0, math.nan, math.inf, -1e30)]
        assert all(y == runs[0][0] for y, _ in runs)
        for b in range(BATCH):
            for part in rows(0, past[b]):
                assert all(entries[b][part] == before[b * size:][part] for _, entries in runs)
            for part in rows(past[b], past[b] + 4):
                assert all(entries[b][part] == runs[0][1][b][part] for _, entries in runs)
                assert runs[0][1][b][part] != before[b * size:][part]

    room, at = aligned(BATCH * size)
    y = array.array("f", [0.5] * (BATCH * 4 * D))
    for past in [-1, 0], [0, SEQ_KV - 3], [0, -2**31], [2**31 - 1, 0]:
        given = array.array("i", past)
        args = Args(packed=program.packed, workspace=program.workspace, y=address(y), q=address(x),
                    past=address(given), cache=at)
        assert program.call("run", ctypes.byref(args)) == ERR_LENGTH
        assert bytes(room) == b"\xff" * len(room) and set(y) == {0.5}


@pytest.mark.parametrize("isa", in_turn(ISAS_HERE, "a cache that is filled once"))
def test_filled_once(isa, tmp_path, weights, reference):
    """One kernel fills the cache, all of them read it."""
    kernels = programs(tmp_path, isa, weights, [
        f"seq={seq} seq_kv={SEQ_KV} attention=cross cache=fixed {more}"
        for seq, more in ((1, ""), (9, "key_rows=3"), (1, "unroll=tile key_rows=7 kv_len=true"))])
    rng = random.Random(7)
    k, v = floats(rng, BATCH * SEQ_KV * D), floats(rng, BATCH * SEQ_KV * D)
    cache, at = aligned(BATCH * kernels[0].kernel.cache_bytes)
    filling = Args(k=address(k), v=address(v), packed=kernels[0].packed, cache=at)
    assert kernels[0].call("fill", ctypes.byref(filling)) == 0
    all_keys = array.array("i", [SEQ_KV] * BATCH)
    for program in kernels:
        q = floats(rng, BATCH * program.kernel.seq * D)
        y = program.run(cache=at, q=address(q), kv_len=address(all_keys))
        expect(y, wanted(reference, weights, CROSS | CACHE_FIXED, program.kernel.seq, q=address(q), k=address(k),
                         v=address(v)))


def test_integers_of_a_cache(tmp_path):
    """What others find: 127 steps of the largest magnitude, ties to even, a scale of zero or NaN."""
    rows = [[254.0, 3.0, -1.0, -254.0], [0.0] * 4, [1.0, math.nan, 2.0, 3.0], [0.5, -127.0, 1.5, 126.5]]
    kernel = Generated(dict(h=1, dk=4, seq=4, project="none", cache="append", cache_dtype="int8", cache_layout="bhsd"),
                       drawn_isa("integers of a cache"), tmp_path)
    assert kernel.shape.cache_bytes == 2 * 4 * 4 + 2 * 4 * 4
    x, y = (array.array("f", sum(rows, [])) for _ in range(2))
    past, cache = array.array("i", [0]), array.array("f", [0.0] * 16)
    kernel.run(q=address(x), k=address(x), v=address(x), y=address(y), past=address(past), cache=address(cache))
    got = cache.tobytes()
    for kind in range(2):
        integers, scales = struct.unpack("16b", got[16 * kind:16 * kind + 16]), struct.unpack("8f", got[32:])[4 * kind:]
        assert integers[:8] == (127, 2, 0, -127, 0, 0, 0, 0) and integers[12:] == (0, -127, 2, 126)
        assert scales[:2] == (2.0, 0.0) and math.isnan(scales[2]) and scales[3] == 1.0


def test_hidden_rows_of_integers(tmp_path):
    """What a key that a mask hides has in the cache changes no bit, NaN neither."""
    keys, dk, hidden_keys = 80, 64, (5, 70)
    isas = [isa for isa in ISAS_HERE if isa.startswith("avx")] or pytest.skip("no product of integers here")
    kernel = Generated(dict(h=4, h_kv=1, dk=dk, seq=1, seq_kv=keys, project="none", cache="append", cache_dtype="int8",
                            mask="add"), in_turn(isas, "hidden rows of integers")[0], tmp_path)
    rng = random.Random(3)
    q, x, past = floats(rng, 4 * dk), floats(rng, dk), array.array("i", [74])
    mask = array.array("f", [-math.inf if key in hidden_keys else 0.0 for key in range(keys)])
    rows, found = bytes(rng.randrange(256) for _ in range(2 * keys * dk)), set()
    for hidden in (0.5, 3e38, math.nan):
        scales = array.array("f", [hidden if key % keys in hidden_keys else 0.01 for key in range(2 * keys)]).tobytes()
        assert kernel.shape.cache_bytes == len(rows) + len(scales)
        cache, at = aligned(kernel.shape.cache_bytes)
        ctypes.memmove(at, rows + scales, kernel.shape.cache_bytes)
        y = array.array("f", [0.0] * (4 * dk))
        kernel.run(q=address(q), k=address(x), v=address(x), y=address(y), past=address(past), cache=at,
                   mask=address(mask))
        assert all(map(math.isfinite, y))
        found.add(y.tobytes())
    assert len(found) == 1
