"""Files of packed weights, written and read by the runtime, and by what docs/format.md says alone."""
import re
import struct

import pytest

from tools import ISAS, ROOT, WARNINGS, compiler_for, generate, in_turn, run, runner_for

CONFIG = "h=2 d_model=24 dk=8 seq=7"
HEAD = struct.Struct("=8sIIQQQQ80s")


def checksum(data):
    """As docs/format.md has it."""
    total = 0
    for word, in struct.iter_unpack("=Q", data):
        total = (total ^ word) * 0x9E3779B97F4A7C15 % 2**64
        total ^= total >> 32
    return total


def test_files(tmp_path):
    """Python reads what the runtime has written, and writes what the runtime then reads."""
    one = generate(tmp_path, CONFIG, "scalar", "one")
    two = generate(tmp_path, CONFIG + " scale=2", "scalar", "two")
    program = tmp_path / "test"
    run(*compiler_for("scalar", "gcc"), "-std=c11", "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all", *WARNINGS, "-I", tmp_path, ROOT / "tests/kernels/packed_test.c", one, two,
        tmp_path / "mhagen.c", "-o", program)
    run(program, tmp_path / "one.packed")
    data = (tmp_path / "one.packed").read_bytes()
    magic, version, head_bytes, fingerprint, packed_bytes, layers, check, name = HEAD.unpack_from(data)
    defined = dict(re.findall(r"#define ONE_(\w+) (\d+)", (tmp_path / "one.h").read_text()))
    assert (magic, version, head_bytes, layers) == (b"mhagen\n\0", 2, HEAD.size, 2)
    assert packed_bytes == int(defined["PACKED_BYTES"]) and packed_bytes % 64 == 0
    assert f"0x{fingerprint:016X}" in one.read_text()
    assert len(data) == head_bytes + layers * packed_bytes
    for layer in range(layers):
        first = head_bytes + layer * packed_bytes
        assert data[first:first + 64] == struct.pack("=Q", fingerprint) + bytes(56)
    assert check == checksum(data[head_bytes:])
    assert name.rstrip(b"\0") == b"one"

    head = HEAD.pack(magic, version, HEAD.size, fingerprint, packed_bytes, 2, checksum(data[HEAD.size:]), b"another")
    (tmp_path / "ours.packed").write_bytes(head + data[HEAD.size:])
    run(program, tmp_path / "one.packed", tmp_path / "ours.packed")


@pytest.mark.parametrize("isa", in_turn(["scalar", "avx2", "avx512"], "shared tables"))
@pytest.mark.parametrize("rope", ["half", "interleaved rope_dims=4"])
def test_shared_tables(isa, rope, tmp_path):
    """Kernels of other lengths and masks share tables of rope. Other tables, and files of others, are refused."""
    base = f"h=2 d_model=24 dk=8 seq_kv=40 cache=append rope={rope}"
    configs = {"one": f"{base} rope_tables=apart seq=7", "step": f"{base} rope_tables=apart seq=1 window_left=30",
               "other": f"{base} rope_tables=apart seq=7 rope_theta=500", "own": f"{base} seq=7"}
    sources = [generate(tmp_path, config, isa, name) for name, config in configs.items()]
    run(*compiler_for(isa, "gcc"), "-std=c11", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
        *WARNINGS,
        "-I", tmp_path, ROOT / "tests/kernels/tables_test.c", *sources, tmp_path / "mhagen.c", "-o", tmp_path / "test")
    run(*runner_for(isa), tmp_path / "test")


def fingerprint_of(tmp_path, config, isa):
    source = generate(tmp_path, config, isa)
    return re.search(r"\.fingerprint = (\w+),", source.read_text())[1]


@pytest.mark.parametrize("more", ["causal=true", "kv_len=true batch=2 probs=true"])
def test_fingerprint_is_of_what_is_packed(more, tmp_path):
    """It is the same with what leaves the list of fills as it is, and differs with all else."""
    texts = {}
    for config in CONFIG + " fold=off", f"{CONFIG} fold=off {more}", CONFIG + " scale=2", CONFIG + " alibi=true":
        found = fingerprint_of(tmp_path, config, "avx2")
        text = (tmp_path / "kernel.c").read_text()
        packing = re.search(r"(?s)static const mhagen_pack_term.*?static const mhagen_need weight_needs", text)[0]
        texts.setdefault(found, set()).add(re.sub(r"/\*.*?\*/", "", packing))
    assert len(texts) == 3 and all(len(of) == 1 for of in texts.values())


@pytest.mark.parametrize("isa", in_turn(ISAS, "kernels with the same packed weights"))
def test_kernels_that_share(isa, tmp_path):
    """Lengths, masks and results are not in packed weights where the keys are given that docs/format.md names."""
    base = "h=3 d_model=37 dk=13 dv=11 attention=cross fold=off q_lanes=columns head_block=1 kv_vectors=1 out_vectors=1"
    shared = ["seq=1", "seq=5 seq_kv=300", "seq=3 causal=true kv_len=true batch=2", "seq=40 probs=true kv_rows=2",
              "seq=7 seq_kv=9 kv_start=true mask=add softcap=3", "seq=19 window_left=9 q_len=true scores=masked",
              "seq=5 seq_kv=64 cache=append", "seq=5 cache=fixed query_vectors=1"]
    apart = ["seq=5 sink=true", "seq=5 alibi=true", "seq=5 scale=2", "seq=5 rope=half rope_dims=4",
             "seq=6 rope=half rope_dims=4", "seq=5 qk_norm=rms", "seq=5 project=qkv"]
    one = {fingerprint_of(tmp_path, f"{base} {more}", isa) for more in shared}
    without = base.replace(" out_vectors=1", "")
    others = [fingerprint_of(tmp_path, f"{without if 'project' in more else base} {more}", isa) for more in apart]
    assert len(one) == 1 and len({*one, *others}) == 1 + len(others)
