"""`mhagen model --whole`: encoders from ids to rows, against the models of transformers that wrote their folders."""
import ctypes
import random
import subprocess

import pytest

from reference_lib import drawn_isa
from tools import MHAGEN, ROOT, in_turn, native, run, seed_of
from whole_lib import Whole, edited, expect_refusal, joined, numpy, torch, written

ROWS, SIZES = 24, {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 80,
                   "vocab_size": 50, "max_position_embeddings": 40}
NAMES = {"hidden_size": "dim", "num_hidden_layers": "n_layers", "num_attention_heads": "n_heads",
         "intermediate_size": "hidden_dim"}
NO_PADDING = {"pad_token_id": None}
# what a config is besides; the class that writes it
MODELS = {
    "bert": ({}, "BertModel"),
    "bert, of words masked": ({"hidden_act": "gelu_new", "layer_norm_eps": 1e-5}, "BertForMaskedLM"),
    "bert, of one type": ({"type_vocab_size": 1, "hidden_act": "relu"}, "BertModel"),
    "roberta": ({"type_vocab_size": 1, "layer_norm_eps": 1e-5}, "RobertaModel"),
    "xlm-roberta": ({"type_vocab_size": 1, "pad_token_id": 3}, "XLMRobertaForSequenceClassification"),
    "camembert": ({"type_vocab_size": 1, "hidden_act": "silu"}, "CamembertModel"),
    "distilbert": ({}, "DistilBertModel"),
    "mpnet": ({}, "MPNetModel"),
    "mpnet, of words masked": ({"layer_norm_eps": 1e-5, "relative_attention_num_buckets": 40, "hidden_act": "relu"},
                               "MPNetForMaskedLM"),
    "modernbert": ({"local_attention": 8, **NO_PADDING}, "ModernBertModel"),
    "modernbert, of words masked": ({"norm_bias": True, "attention_bias": True, "mlp_bias": True,
                                     "global_attn_every_n_layers": 2, **NO_PADDING}, "ModernBertForMaskedLM"),
    "clip_text_model": ({}, "CLIPTextModel"),
    "siglip_text_model": ({"projection_size": 20}, "SiglipTextModel"),
    "distilbert, that classifies": ({"activation": "relu"}, "DistilBertForSequenceClassification"),
}


class Args(ctypes.Structure):
    _fields_ = [("ids", ctypes.c_void_p), ("types", ctypes.c_void_p), ("length", ctypes.c_int),
                ("packed", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("pool", ctypes.c_void_p),
                ("rows", ctypes.c_void_p), ("mean", ctypes.c_void_p),
                # of a head, where the model has one: its result, or rows that are asked for and theirs
                ("result", ctypes.c_void_p), ("asked_count", ctypes.c_int), ("logits", ctypes.c_void_p)]


def drawn(name):
    """Sizes of a model."""
    draw = random.Random(seed_of(name))
    heads = draw.randint(1, 4)
    return {"num_attention_heads": heads, "hidden_size": heads * draw.choice([4, 10, 16]),
            "num_hidden_layers": draw.randint(1, 4), "intermediate_size": draw.randint(1, 100)}


def model_of(name, folder, **changed):
    """A model with drawn weights, and its folder."""
    kind = name.split(",")[0]
    (more, cls), sizes = MODELS[name], {**SIZES, **changed}
    sizes = {NAMES.get(key, key): value for key, value in sizes.items()} if kind == "distilbert" else sizes
    return written(kind, cls, folder, **sizes, **more).base_model


class Encoder(Whole):
    def run(self, ids, types=None, /, **changes):
        """The status, rows and their mean."""
        ids = numpy.asarray(ids, "i4")
        types = None if types is None else numpy.asarray(types, "i4")
        rows, mean = (numpy.full(shape, numpy.nan, "f4") for shape in ((len(ids), self.sizes["WIDTH"]),
                                                                      self.sizes["WIDTH"]))
        ctypes.memset(self.workspace_at, 0xFF, self.sizes["WORKSPACE_BYTES"])
        args = Args(**{"ids": ids.ctypes.data, "types": None if types is None else types.ctypes.data,
                       "length": len(ids), "packed": self.packed_at, "workspace": self.workspace_at,
                       "rows": rows.ctypes.data, "mean": mean.ctypes.data, **changes})
        status = self.library.model_run(ctypes.byref(args))
        assert self.is_guarded()
        return status, torch.from_numpy(rows), torch.from_numpy(mean)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    model_of("bert", folder / "model")
    return folder / "model"


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(MODELS), "whole models", count=4))
def test_models(name, tmp_path):
    model = model_of(name, tmp_path / "model", **drawn(name))
    whole = Encoder(tmp_path / "model", tmp_path / "out", f"isa={drawn_isa(name)}", f"seq={ROWS}", *joined(name))
    for length in 1, 7, ROWS:
        ids = torch.randint(5, 50, (1, length))
        types = torch.randint(0, 2, (1, length)) if whole.sizes["TYPES"] > 1 else None
        right = model(ids, **({} if types is None else {"token_type_ids": types})).last_hidden_state[0]
        status, rows, mean = whole.run(ids[0], None if types is None else types[0])
        assert status == 0 and (rows - right).abs().max() <= 1e-4 * right.abs().max()
        assert (mean - right.mean(0)).abs().max() <= 1e-4 * right.abs().max()


@torch.no_grad()
def test_number_types_and_lengths(tmp_path):
    """Length buckets have one set of weights; bf16 is as near as its kernels are."""
    model = model_of("bert", tmp_path / "model")
    ids = torch.randint(5, 50, (1, 13))
    right = model(ids).last_hidden_state[0]
    for number, (keys, near) in enumerate({("seq=8,16,24",): 1e-4, (f"seq={ROWS}", "dtype=bf16"): 5e-2,
                                           ("seq=16,24", "weight_dtype=int8"): 5e-2}.items()):
        whole = Encoder(tmp_path / "model", tmp_path / f"out{number}", "isa=scalar", *keys)
        status, rows, _ = whole.run(ids[0])
        assert status == 0 and (rows - right).abs().max() <= near * right.abs().max()


def test_bundle(bert, tmp_path):
    """Each CPU takes the weights of its member."""
    whole, alone = (Encoder(bert, tmp_path / name, f"isa={isa}", "seq=8") for name, isa in (
        ("bundle", "scalar+avx2"), ("scalar", "scalar")))
    ids = [4, 9, 8]
    (status, rows, _), (_, others, _) = whole.run(ids), alone.run(ids)
    assert status == 0 and (rows - others).abs().max() <= 1e-5 * rows.abs().max()
    assert whole.sizes["PACKED_BYTES"] > alone.sizes["PACKED_BYTES"]


def test_odd_sizes(tmp_path):
    """Tables that end within the words of the checksum."""
    model_of("bert", tmp_path / "model", hidden_size=15, vocab_size=61, max_position_embeddings=33)
    whole = Encoder(tmp_path / "model", tmp_path / "out", "isa=scalar", "seq=8")
    assert whole.check(whole.sizes["PACKED_BYTES"]) == 0


def test_what_is_wrong(bert, tmp_path):
    whole = Encoder(bert, tmp_path / "out", "isa=scalar", "seq=8")
    null, align, length, packed = 1, 2, 3, 8
    size = whole.sizes["PACKED_BYTES"]
    assert whole.check(size) == 0 and whole.check(size - 64) == packed
    assert whole.run([1, 2, 49])[0] == 0
    for ids, types, changes, status in [
            ([1, 50], None, {}, length), ([-1], None, {}, length), ([1] * 9, None, {}, length),
            ([1], None, {"length": 0}, length), ([1], [2], {}, length), ([1], [-1], {}, length),
            ([1], None, {"ids": None}, null), ([1], None, {"packed": None}, null),
            ([1], None, {"workspace": None}, null), ([1], None, {"packed": whole.packed_at + 4}, align)]:
        found, rows, mean = whole.run(ids, types, **changes)
        assert found == status and rows.isnan().all() and mean.isnan().all()
    ctypes.memset(whole.packed_at + size - 4, 0x55, 1)
    assert whole.check(size) == packed
    other = Encoder(bert, tmp_path / "other", "isa=scalar", "seq=9")
    status, rows, _ = whole.run([1], packed=other.packed_at)
    assert status == packed and rows.isnan().all()


def test_linked_weights(bert, tmp_path):
    """With --embed the file is an array of the program."""
    run(MHAGEN, "model", bert, "--whole", "--embed", "--name", "mini", "isa=scalar", "seq=8", "-o", tmp_path / "out")
    (tmp_path / "main.c").write_text('#include "mini.h"\n#include "mini_packed.h"\n'
                                     "int main(void) { return mini_check(mini_packed, sizeof mini_packed); }\n")
    run("cc", "-I", tmp_path / "out", tmp_path / "main.c", *tmp_path.glob("out/*.[cS]"), "-lpthread", "-o",
        tmp_path / "main")
    run(tmp_path / "main")


def test_rows_alone(bert, tmp_path):
    """Rows that are not asked for are not written; nothing of a run is left for the next one."""
    whole = Encoder(bert, tmp_path / "out", "isa=scalar", "seq=8")
    first = whole.run([3, 4, 5])
    whole.run([9] * 8)
    again = whole.run([3, 4, 5], mean=None)
    assert torch.equal(first[1], again[1]) and again[2].isnan().all()
    assert torch.equal(whole.run([3, 4, 5], rows=None)[2], first[2])


@torch.no_grad()
def test_example(tmp_path):
    """examples/embed compiles as its head says, and ranks as the model does."""
    model = model_of("bert", tmp_path / "model")
    run(MHAGEN, "model", tmp_path / "model", "--whole", "isa=scalar", f"seq={ROWS}", "-o", tmp_path / "out")
    run("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-I", tmp_path / "out", ROOT / "examples/embed/embed.c",
        *tmp_path.glob("out/*.c"), "-lm", "-lpthread", "-o", tmp_path / "embed")
    texts = [[7, 9, 11], [9, 11, 7, 30], [44]]
    means = [model(torch.tensor([ids])).last_hidden_state[0].mean(0) for ids in texts]
    right = [float(torch.cosine_similarity(means[0], mean, dim=0)) for mean in means]
    lines = "".join(" ".join(map(str, ids)) + "\n" for ids in texts)
    found = run(tmp_path / "embed", tmp_path / "out/model.packed", input=lines).split()
    assert [float(x) for x in found] == pytest.approx(right, abs=1e-5)
    for line in "7 x\n", "7 50\n", "7 4294967303\n", "7 " * (ROWS + 1) + "\n", "\n", "7" + " " * 70000 + "8\n":
        result = subprocess.run([tmp_path / "embed", tmp_path / "out/model.packed"], input=line, text=True,
                                capture_output=True)
        assert result.returncode == 1 and "is not 1 to 24 ids of the model" in result.stderr
    result = subprocess.run([tmp_path / "embed", tmp_path / "out/model.h"], capture_output=True, text=True)
    assert result.returncode == 2 and result.stderr.startswith("usage: ")


@torch.no_grad()
def test_ranking(tmp_path):
    """examples/embed/rank.c compiles as its head says, and finds the nearest texts of each query."""
    model = model_of("bert", tmp_path / "model")
    run(MHAGEN, "model", tmp_path / "model", "--whole", "isa=scalar", f"seq={ROWS}", "-o", tmp_path / "out")
    run("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-I", tmp_path / "out", ROOT / "examples/embed/rank.c",
        *tmp_path.glob("out/*.c"), "-lm", "-lpthread", "-o", tmp_path / "rank")
    texts = [torch.randint(5, 50, (draw,)).tolist() for draw in (3, 9, 1, 5, 24, 2, 7, 4, 6)]
    unit = [torch.nn.functional.normalize(model(torch.tensor([ids])).last_hidden_state[0].mean(0), dim=0)
            for ids in texts]
    lines = "".join(" ".join(map(str, ids)) + "\n" for ids in texts)
    for count in 7, 2:
        found = run(tmp_path / "rank", tmp_path / "out/model.packed", count, input=lines).splitlines()
        assert len(found) == 1 + len(texts) - count and float(found[0]) > 0
        for line, query in zip(found[1:], unit[count:]):
            us, *pairs = line.split()
            cosines = [float(query @ text) for text in unit[:count]]
            best = sorted(range(count), key=lambda n: -cosines[n])[:5]
            assert float(us) > 0 and [int(number) for number in pairs[::2]] == best
            assert [float(x) for x in pairs[1::2]] == pytest.approx([cosines[n] for n in best], abs=1e-4)
    for words, text, status, said in [(["0"], lines, 2, "usage: rank"), (["1"], "50\n", 1, "rank: "),
                                      ([], "", 2, "usage: rank")]:
        result = subprocess.run([tmp_path / "rank", tmp_path / "out/model.packed", *words], input=text, text=True,
                                capture_output=True)
        assert result.returncode == status and said in result.stderr


def test_one_source(bert, tmp_path):
    """With --single all is in model.c and model.h, for several CPUs and lengths too, and gives the same bits."""
    keys = "isa=x86" if native("avx2") else "isa=scalar", "seq=4,16"
    whole, single = (Encoder(bert, tmp_path / out, *keys, *more)
                     for out, more in (("apart", []), ("one", ["--single"])))
    assert {path.name for path in (tmp_path / "one").iterdir()} == {"model.c", "model.h", "model.packed", "model.so"}
    for ids in [7, 9], [11] * 13:
        assert torch.equal(whole.run(ids)[1], single.run(ids)[1])
    run(MHAGEN, "model", bert, "--whole", "--single", "-o", tmp_path / "one", *keys)  # over its own files
    result = subprocess.run([MHAGEN, "model", bert, "--single", "isa=scalar", "seq=4", "-o", tmp_path / "out"],
                            text=True, capture_output=True)
    assert result.returncode == 2 and result.stderr == "mhagen: --single is made with --whole, or by mhagen gen\n"


def test_padding_in_a_text(tmp_path):
    """RoBERTa counts places without padding, so a run refuses its id."""
    model_of("roberta", tmp_path / "model")
    whole = Encoder(tmp_path / "model", tmp_path / "out", "isa=scalar", "seq=8")
    assert whole.sizes["PADDING"] == 1 and whole.run([5, 0, 2])[0] == 0 and whole.run([5, 1, 2])[0] == 3


@torch.no_grad()
def test_files_of_old(bert, tmp_path):
    """Gains and biases by the names that they had, and fields of the pooler."""
    def renamed(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    older = edited(bert, tmp_path / "model", lambda all: {renamed(name): x for name, x in all.items()},
                   pooler_fc_size=768, pooler_type="first_token_transform", language="zh", name="BERT")
    (first, rows, _), (second, others, _) = (Encoder(folder, tmp_path / name, "isa=scalar", "seq=8").run([3, 4]) for
                                             name, folder in (("new", bert), ("old", older)))
    assert first == second == 0 and torch.equal(rows, others)


@torch.no_grad()
def test_distances(tmp_path):
    """MPNet's biases of distances: some have one of their own, longer ones share them. Each is in the file, for all
    rows and keys; a shorter text reads its corner."""
    model = model_of("mpnet", tmp_path / "model", max_position_embeddings=202, num_hidden_layers=1)
    model.encoder.relative_attention_bias.weight.data.mul_(4)
    model.save_pretrained(tmp_path / "model")
    whole = Encoder(tmp_path / "model", tmp_path / "out", "isa=scalar", "seq=200")
    assert whole.sizes["PACKED_BYTES"] > 3 * 200 * 200 * 4
    for length in 131, 200:
        ids = torch.randint(5, 50, (1, length))
        right = model(ids).last_hidden_state[0]
        status, rows, _ = whole.run(ids[0])
        assert status == 0 and (rows - right).abs().max() <= 1e-4 * right.abs().max()
    assert whole.run([5, 1, 2])[0] == 3  # the padding that positions begin behind


@torch.no_grad()
def test_modernbert_of_2024(tmp_path):
    """Fields of the config that answerdotai published; the first layer has no norm of attention."""
    model = model_of("modernbert", tmp_path / "own")
    folder = edited(
        tmp_path / "own", tmp_path / "model", rope_parameters=None, layer_types=None, global_rope_theta=160000.0,
        local_rope_theta=10000.0, global_attn_every_n_layers=3, layer_norm_eps=1e-5, position_embedding_type="absolute",
        repad_logits_with_grad=False, reference_compile=True, gradient_checkpointing=False, hidden_activation="gelu")
    whole = Encoder(folder, tmp_path / "out", "isa=scalar", f"seq={ROWS}")
    ids = torch.randint(5, 50, (1, ROWS))
    right = model(ids).last_hidden_state[0]
    status, rows, _ = whole.run(ids[0])
    assert status == 0 and (rows - right).abs().max() <= 1e-4 * right.abs().max()
    name = "layers.0.attn_norm.weight"
    expect_refusal(edited(folder, tmp_path / "normed", lambda all: {**all, name: torch.ones(48)}), tmp_path / "none",
                   f"tensor {name}: may change", "isa=scalar", "seq=8")


def test_names(bert, tmp_path):
    """A table of layers may take a whole model's place, and the other way round; two files have two names."""
    words = [MHAGEN, "model", bert, "isa=scalar", "seq=8", "-o", tmp_path / "out"]
    for whole in [], ["--whole"], []:
        run(*words, *whole)
    result = subprocess.run([*words, "--whole", "--name", "mhagen"], capture_output=True, text=True)
    assert result.returncode == 2 and "mhagen.h: two files would have this name; --name takes" in result.stderr


@pytest.mark.parametrize("fields, keys, said", [
    ({"hidden_act": "gelu_10"}, "", "hidden_act: gelu_10 is no activation function of a kernel: gelu, gelu_tanh,"),
    ({"embedding_size": 24}, "", "embedding_size = 24: may change the model, and is not read; --ignore NAME"),
    ({"position_embedding_type": "relative_key"}, "", "position_embedding_type = relative_key"),
    ({"model_type": "mpnet"}, "", "tensor encoder.layer.0.attention.attn.q.weight is missing"),
    ({"model_type": "electra"}, "", "--whole does not know type electra; it knows bert, camembert, clip_"),
    ({"vocab_size": 51}, "", "embeddings.word_embeddings.weight: its shape is [50, 48], and by the config it must be"),
    ({}, "seq=41", "seq = 41: must be at most 40, the places of"),
    ({}, "batch=2", "batch = 2: is the model's own with --whole, or is not made with it"),
    ({}, "ffn=8", "ffn = 8: is the model's own with --whole"),
    ({}, "--only x", "--only is not made with --whole"),
])
def test_refusals(bert, tmp_path, fields, keys, said):
    folder = edited(bert, tmp_path / "model", **fields)
    words = ["isa=scalar", *([] if "seq" in keys else ["seq=8"]), *keys.split()]
    expect_refusal(folder, tmp_path / "out", said, *words)


@pytest.mark.parametrize("change, said", [
    (lambda all: {**all, "encoder.layer.1.adapter.weight": torch.ones(3)},
     "tensor encoder.layer.1.adapter.weight: may change the model"),
    (lambda all: {name: x for name, x in all.items() if "layer.1.output.LayerNorm.bias" not in name},
     "tensor encoder.layer.1.output.LayerNorm.bias is missing"),
    (lambda all: {name: x for name, x in all.items() if "token_type" not in name},
     "tensor embeddings.token_type_embeddings.weight is missing"),
])
def test_refused_tensors(bert, tmp_path, change, said):
    folder = edited(bert, tmp_path / "model", change)
    result = subprocess.run([MHAGEN, "model", folder, "--whole", "isa=scalar", "seq=8", "-o", tmp_path / "out"],
                            text=True, capture_output=True)
    assert result.returncode == 2 and said in result.stderr and not (tmp_path / "out").exists()
