"""`mhagen model --whole`: tables of embeddings of fewer bits, against folders that have the same numbers as float32."""
import ctypes
import subprocess

import pytest

from reference_lib import aligned, drawn_isa, runtime
from test_whole import Encoder, model_of
from test_whole_decoders import TEXT, Decoder, model_of as decoder_of
from tools import MHAGEN, in_turn, installed, native, run
from whole_lib import edited, expect_refusal, load_file, numpy, torch, written

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16}
KEYS = {Encoder: ["seq=16"], Decoder: ["seq=1,16", "seq_kv=24"]}
TABLES = ("word_embeddings", "position_embedding", "token_type", "embed_tokens", "token_embedding", "tok_embed", "wte",
          "wpe")
MODELS = {name: Encoder for name in ("bert", "roberta", "distilbert", "mpnet", "modernbert", "clip_text_model")}
MODELS |= {name: Decoder for name in ("llama", "llama, tied", "gemma3_text", "gpt2")}


def is_table(name):
    return any(part in name for part in TABLES) and name.endswith("weight")


def stored(folder, to, change):
    """A copy of a folder with other tables."""
    return edited(folder, to, lambda tensors: {name: change(x) if is_table(name) else x
                                               for name, x in tensors.items()})


def same(one, other):
    """Whether two models make the same bits of a text."""
    (status, *results), (_, *others) = (whole.run(TEXT) for whole in (one, other))
    return status == 0 and all(torch.equal(x, y) for x, y in zip(results, others))


@pytest.mark.parametrize("name, kind", in_turn([(name, kind) for name in MODELS for kind in TYPES], "16 bits", count=4))
def test_types_of_the_file(name, kind, tmp_path):
    """Tables keep the 16 bits that a file has, and give the bits of the same numbers in float32."""
    cls = MODELS[name]
    (model_of if cls is Encoder else decoder_of)(name, tmp_path / "model")
    short = stored(tmp_path / "model", tmp_path / "short", lambda x: x.to(TYPES[kind]))
    wide = stored(tmp_path / "model", tmp_path / "wide", lambda x: x.to(TYPES[kind]).float())
    one, other = (cls(path, tmp_path / f"out-{path.name}", f"isa={drawn_isa(name)}", *KEYS[cls])
                  for path in (short, wide))
    assert same(one, other)
    count = sum(x.numel() for tensor, x in load_file(short / "model.safetensors").items() if is_table(tensor))
    saved = other.sizes["PACKED_BYTES"] - one.sizes["PACKED_BYTES"]
    assert abs(saved - 2 * count) <= 3 * 64 and one.check(one.sizes["PACKED_BYTES"]) == 0


# ---- single numbers ----

WORDS, WIDTH = 4096, 16
SIZES = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 16, "vocab_size": WORDS,
         "intermediate_size": 4, "pad_token_id": 0, "tie_word_embeddings": False}


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    """A folder whose rows of words are what a run has before its layers."""
    folder = tmp_path_factory.mktemp("llama") / "model"
    written("llama", "LlamaModel", folder, **SIZES)
    return folder


def rows_of(folder, words, out, *keys):
    """The rows of all words, as a run takes them."""
    run(MHAGEN, "model", stored(folder, out / "model", lambda x: words), "--whole", "isa=scalar", "seq=1", "seq_kv=8",
        *keys, "-o", out)
    (out / "rows.c").write_text("""#include "model.c"
void rows_of(const model_args *args, float *to) {
  embed(args, 0, args->length, mhagen_packed_layer(args->packed, 0), to);
}
""")
    run("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", out / "rows.c", *out.glob("mha_*.c"),
        runtime()[0], "-o", out / "rows.so")
    data = (out / "model.packed").read_bytes()
    packed, packed_at = aligned(len(data))
    ctypes.memmove(packed_at, data, len(data))
    ids, rows = numpy.arange(WORDS, dtype="i4"), numpy.empty((WORDS, WIDTH), "f4")

    class Args(ctypes.Structure):
        _fields_ = [("ids", ctypes.c_void_p), ("length", ctypes.c_int), ("past", ctypes.c_int),
                    ("packed", ctypes.c_void_p)]
    ctypes.CDLL(out / "rows.so").rows_of(ctypes.byref(Args(ids.ctypes.data, WORDS, 0, packed_at)),
                                         ctypes.c_void_p(rows.ctypes.data))
    return rows


def same_bits(one, other):
    """NaNs may have other bits."""
    return ((one.view("u4") == other.view("u4")) | numpy.isnan(one) & numpy.isnan(other)).all()


@pytest.mark.parametrize("kind", TYPES)
def test_all_numbers_of_16_bits(llama, kind, tmp_path):
    words = torch.from_numpy(numpy.arange(1 << 16, dtype="u2").view("i2")).view(TYPES[kind]).reshape(WORDS, WIDTH)
    assert same_bits(rows_of(llama, words, tmp_path), words.float().numpy())


def hard_numbers(least, most):
    """Floats of any bits, from one exponent to another, with ties of both types of 16 bits and signs."""
    draw = numpy.random.default_rng(5)
    bits = draw.integers(least + 127 << 23, most + 127 << 23, (WORDS, WIDTH), dtype="u4")
    bits[::3] &= 0xFFFF8000
    bits[1::3] &= 0xFFFFF000
    bits |= draw.integers(0, 2, bits.shape, dtype="u4") << 31
    bits[7, :4] = 0, 1 << 31, 1, (1 << 31) + 0x400000
    return bits.view("f4")


@pytest.mark.parametrize("kind", TYPES)
def test_rounding_to_16_bits(llama, kind, tmp_path):
    """--embeddings rounds as PyTorch does."""
    words = torch.from_numpy(hard_numbers(*{"bf16": (-127, 127), "f16": (-26, 15)}[kind]))
    words[9, :2] = torch.tensor([float("inf"), -float("inf")])
    rows = rows_of(llama, words, tmp_path, "--embeddings", kind)
    assert same_bits(rows, words.to(TYPES[kind]).float().numpy())


def test_rounding_to_8_bits(llama, tmp_path):
    """A number is off by at most the 254th part of the largest one of its row, and zeros stay."""
    words = hard_numbers(-9, 3)
    words[3], words[4], words[5] = 0, numpy.finfo("f4").max, 1e-42
    words[6] *= 1e-37
    rows = rows_of(llama, torch.from_numpy(words.copy()), tmp_path, "--embeddings", "int8")
    most = numpy.abs(words).max(1, keepdims=True).astype("f8")
    assert (numpy.abs(rows.astype("f8") - words) <= most / 254 + 2.0**-149).all() and not rows[3].any()
    scales, steps = scaled_rows(words)
    assert same_bits(rows, scales[:, None] * steps.astype("f4"))


def scaled_rows(words):
    """The scales of rows, with 16 binary digits, and numbers times these."""
    part, exponent = numpy.frexp(numpy.abs(words).max(1) / numpy.float64(127))
    scales = numpy.ldexp(numpy.floor(numpy.ldexp(part, 16)), exponent - 16).astype("f4")
    of = numpy.where(scales > 0, scales, numpy.float32(numpy.inf)).astype("f8")[:, None]
    return scales, numpy.clip(numpy.rint(words / of), -127, 127).astype("i1")


# ---- files ----


def packed_of(model, out, *keys):
    """What is said of the words, and the file."""
    text = run(MHAGEN, "model", model, "--whole", "isa=scalar", "seq=1", "seq_kv=8", *keys, "-o", out)
    return next(line for line in text.splitlines() if "words" in line), (out / "model.packed").read_bytes()


def raw(words):
    return words.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.fixture(scope="module")
def tied(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tied") / "model"
    return decoder_of("llama, tied", folder, hidden_size=64, head_dim=16), folder


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0"])
def test_gguf(tied, kind, tmp_path):
    """What is quantized becomes float32, unless the user says otherwise."""
    if not installed("gguf"):
        pytest.skip("gguf is not installed")
    words = tied[0].model.embed_tokens.weight.detach()
    from gguf_written import as_gguf
    as_gguf(tied[0], tmp_path / "model.gguf", kind, vocab_size=50)
    said, packed = packed_of(tmp_path / "model.gguf", tmp_path / "out")
    if kind.lower() in TYPES:
        assert f"50 rows in {kind.lower()}, 6,400 bytes" in said and raw(words.to(TYPES[kind.lower()])) in packed
    else:
        assert "50 rows in f32, 12,800 bytes; --embeddings rounds them to fewer" in said
        assert (raw(words) in packed) == (kind == "F32")
    said, _ = packed_of(tmp_path / "model.gguf", tmp_path / "out", "--embeddings", "int8")
    assert "50 rows in int8, 3,400 bytes" in said


def test_pickle(tied, tmp_path):
    tensors = {name: x.half() for name, x in load_file(tied[1] / "model.safetensors").items()}
    folder = edited(tied[1], tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    said, packed = packed_of(folder, tmp_path / "out")
    assert "rows in f16" in said and raw(tensors["model.embed_tokens.weight"]) in packed


def test_onnx(tmp_path):
    pytest.importorskip("onnx", reason="onnx is not installed")
    import onnx
    from test_whole_onnx import bert_file
    from test_whole_tables import of_halves, of_integers
    bert_file(tmp_path / "m.onnx")
    for change, kind in (of_halves, "f16"), (of_integers, "f32"):
        model = onnx.load(tmp_path / "m.onnx")
        change(model.graph)
        onnx.save(model, tmp_path / "changed.onnx")
        text = run(MHAGEN, "model", tmp_path / "changed.onnx", "--whole", "isa=scalar", "seq=8", "-o", tmp_path / "out")
        assert f"rows in {kind}, " in text


def test_tables_in_parts(tmp_path):
    """A table of more numbers than are packed at once, whose rows are no units of the file."""
    rows, width = 300_000, 15
    model_of("bert", tmp_path / "small", hidden_size=width)
    words = torch.randn(rows, width)
    folder = edited(tmp_path / "small", tmp_path / "model", lambda tensors: {
        name: words if "word_embeddings" in name else x for name, x in tensors.items()}, vocab_size=rows)
    for kind in *TYPES, "int8":
        whole = Encoder(folder, tmp_path / kind, "isa=scalar", "seq=8", "--embeddings", kind)
        assert whole.check(whole.sizes["PACKED_BYTES"]) == 0
        packed = (tmp_path / kind / "model.packed").read_bytes()
        if kind in TYPES:
            assert raw(words.to(TYPES[kind])) in packed
        else:
            scales, steps = scaled_rows(words.numpy())
            assert numpy.hstack([scales[:, None].view("i1"), steps, 0 * steps[:, :1]]).tobytes() in packed


# ---- endings ----


def test_endings(tmp_path):
    """One source, several CPUs and lengths, and weights that are linked give the same bits."""
    model_of("bert", tmp_path / "model")
    folder = stored(tmp_path / "model", tmp_path / "short", lambda x: x.bfloat16())
    isa = "isa=scalar+avx2" if native("avx2") else "isa=scalar"
    for number, more in enumerate(([], ["--embeddings", "int8"])):
        keys = isa, "seq=4,16", *more
        apart = Encoder(folder, tmp_path / f"apart{number}", *keys)
        assert same(apart, Encoder(folder, tmp_path / f"one{number}", *keys, "--single"))
        assert linked_rows(folder, tmp_path / f"linked{number}", *keys) == apart.run(TEXT)[1].numpy().tobytes()


def linked_rows(folder, out, *keys):
    """The bytes of a text's rows, by a program that has the weights."""
    run(MHAGEN, "model", folder, "--whole", "--embed", *keys, "-o", out)
    (out / "main.c").write_text(f"""#include "model.h"
#include "model_packed.h"
#include <stdio.h>
static _Alignas(MHAGEN_ALIGN) unsigned char workspace[MODEL_WORKSPACE_BYTES];
static float rows[{len(TEXT)} * MODEL_WIDTH];
int main(void) {{
  const int32_t ids[] = {{{", ".join(map(str, TEXT))}}};
  const model_args args = {{.ids = ids, .length = {len(TEXT)}, .packed = model_packed, .workspace = workspace,
                           .rows = rows}};
  return model_run(&args) != MHAGEN_OK || fwrite(rows, sizeof rows, 1, stdout) != 1;
}}
""")
    run("cc", "-O1", "-I", out, *out.glob("*.[cS]"), "-lpthread", "-o", out / "main")
    return subprocess.run([out / "main"], capture_output=True, check=True).stdout


# ---- what is refused ----


def test_refusals(llama, tmp_path):
    words = torch.zeros(WORDS, WIDTH)
    words[5, 3] = 65520
    large = stored(llama, tmp_path / "large", lambda x: words)
    keys = "isa=scalar", "seq=1", "seq_kv=8"
    lost = "tensor embed_tokens.weight: has numbers that are too large for f16, or NaN; --embeddings takes other"
    expect_refusal(large, tmp_path / "out", lost, *keys, "--embeddings", "f16")
    none = stored(llama, tmp_path / "none", lambda x: words / 0)
    expect_refusal(none, tmp_path / "out", "too large for int8, or NaN", *keys, "--embeddings", "int8")
    expect_refusal(llama, tmp_path / "out", "must be one of 'f32', 'bf16', 'f16', 'int8'", *keys, "--embeddings", "f64")
    written("vit", "ViTModel", tmp_path / "vit", hidden_size=16, num_hidden_layers=1, num_attention_heads=1,
            intermediate_size=8, image_size=8, patch_size=4)
    expect_refusal(tmp_path / "vit", tmp_path / "out", "--embeddings: ", "isa=scalar", "--embeddings", "bf16")
    result = subprocess.run([MHAGEN, "model", llama, "--embeddings", "bf16", *keys, "-o", tmp_path / "out"], text=True,
                            capture_output=True)
    assert result.returncode == 2 and result.stderr == "mhagen: --embeddings is made with --whole\n"
