"""Heads of `mhagen model --whole`: logits and projected vectors, against the classes of transformers that have them."""
import ctypes

import pytest

from reference_lib import drawn_isa
from tools import in_turn
from whole_lib import Whole, edited, expect_refusal, joined, numpy, torch, written

ROWS, LABELS, END = 24, 5, 49
TEXT = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 80,
        "vocab_size": 50, "max_position_embeddings": 40}
DISTILBERT = {"dim": 48, "n_layers": 2, "n_heads": 3, "hidden_dim": 80, "vocab_size": 50,
              "max_position_embeddings": 40}
IMAGE = {"hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 60,
         "image_size": 24, "patch_size": 6, "num_labels": LABELS}
MODERN = {**TEXT, "local_attention": 8, "pad_token_id": None}
CLIP = {**TEXT, "projection_dim": 20, "eos_token_id": END}
# kind, class, fields; the names of the results, which are beside each other
MODELS = {
    **{f"{kind} {end}": (kind, name + end, {**fields, "num_labels": 2 if " " in names else LABELS}, names)
       for kind, name, fields in [("bert", "Bert", TEXT), ("roberta", "Roberta", TEXT),
                                  ("xlm-roberta", "XLMRoberta", TEXT), ("camembert", "Camembert", TEXT),
                                  ("mpnet", "MPNet", TEXT), ("distilbert", "DistilBert", DISTILBERT),
                                  ("modernbert", "ModernBert", MODERN)]
       for end, names in [("ForSequenceClassification", "logits"), ("ForTokenClassification", "logits"),
                          ("ForQuestionAnswering", "start_logits end_logits")]},
    "modernbert, of the mean": ("modernbert", "ModernBertForSequenceClassification", {
        **MODERN, "classifier_pooling": "mean", "classifier_bias": True, "norm_bias": True,
        "classifier_activation": "silu"}, "logits"),
    "clip_text_model": ("clip_text_model", "CLIPTextModelWithProjection", CLIP, "text_embeds"),
    "clip_text_model of 2022": ("clip_text_model", "CLIPTextModelWithProjection", {**CLIP, "eos_token_id": 2},
                                "text_embeds"),
    "siglip_text_model": ("siglip_text_model", "SiglipTextModel", {**TEXT, "projection_size": 20}, "pooler_output"),
    "clip_vision_model": ("clip_vision_model", "CLIPVisionModelWithProjection", {**IMAGE, "projection_dim": 20},
                          "image_embeds"),
    "siglip_vision_model": ("siglip_vision_model", "SiglipVisionModel", IMAGE, "pooler_output"),
    "vit": ("vit", "ViTForImageClassification", IMAGE, "logits"),
    "deit": ("deit", "DeiTForImageClassification", IMAGE, "logits"),
    "deit, taught": ("deit", "DeiTForImageClassificationWithTeacher", IMAGE, "logits"),
    "dinov2": ("dinov2", "Dinov2ForImageClassification", IMAGE, "logits"),
    "dinov2_with_registers": ("dinov2_with_registers", "Dinov2WithRegistersForImageClassification", IMAGE, "logits"),
}
BEFORE = [("packed", ctypes.c_void_p), ("workspace", ctypes.c_void_p), ("pool", ctypes.c_void_p),
          ("rows", ctypes.c_void_p), ("mean", ctypes.c_void_p), ("result", ctypes.c_void_p)]


class TextArgs(ctypes.Structure):
    _fields_ = [("ids", ctypes.c_void_p), ("types", ctypes.c_void_p), ("length", ctypes.c_int), *BEFORE]


class ImageArgs(ctypes.Structure):
    _fields_ = [("pixels", ctypes.c_void_p), *BEFORE]


class Headed(Whole):
    def run(self, x, rows=True):
        """The status, what the head makes, and the rows, of ids or of pixels."""
        text = not x.is_floating_point()
        x = numpy.ascontiguousarray(x[0].numpy(), "i4" if text else "f4")
        count = len(x) if text else self.sizes["ROWS"]
        size = self.sizes.get("LABELS") or self.sizes["EMBEDDING"]
        result = numpy.full((count + 1, size), numpy.nan, "f4")
        states = numpy.full((count, self.sizes["WIDTH"]), numpy.nan, "f4")
        ctypes.memset(self.workspace_at, 0xFF, self.sizes["WORKSPACE_BYTES"])
        given = {"ids": x.ctypes.data, "length": len(x)} if text else {"pixels": x.ctypes.data}
        args = (TextArgs if text else ImageArgs)(**given, packed=self.packed_at, workspace=self.workspace_at,
                                                 rows=states.ctypes.data if rows else None, result=result.ctypes.data)
        status = self.library.model_run(ctypes.byref(args))
        assert self.is_guarded()
        return status, torch.from_numpy(result), torch.from_numpy(states)


def model_of(name, folder):
    kind, cls, fields, _ = MODELS[name]
    return written(kind, cls, folder, **fields)


def draw(name, length):
    """An input of a model; texts have an end, and CLIP's padding behind it."""
    fields = MODELS[name][2]
    if "image_size" in fields:
        return torch.randn(1, 3, fields["image_size"], fields["image_size"])
    ids = torch.randint(5, END, (1, length))
    ids[0, 2 * length // 3] = END
    return ids


def right_of(model, names, x):
    """What the class makes, as rows."""
    made = model(x)
    parts = [made[name][0] for name in names.split()]
    if len(parts) > 1:
        return torch.stack(parts, 1)
    return parts[0] if parts[0].dim() == 2 else parts[0][None]


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(MODELS), "heads", count=5))
def test_heads(name, tmp_path):
    model, names = model_of(name, tmp_path / "model"), MODELS[name][3]
    text = "image_size" not in MODELS[name][2]
    keys = [f"isa={drawn_isa(name)}", *([f"seq={ROWS}"] if text else []), *joined(name)]
    whole = Headed(tmp_path / "model", tmp_path / "out", *keys)
    for length in (1, 7, ROWS) if text else (0,):
        x = draw(name, length)
        right = right_of(model, names, x)
        status, found, rows = whole.run(x)
        assert status == 0 and (found[:len(right)] - right).abs().max() <= 1e-4 * right.abs().max()
        assert found[len(right):].isnan().all()
        assert torch.equal(whole.run(x, rows=False)[1][:len(right)], found[:len(right)])
        states = model.base_model(x).last_hidden_state[0]
        if not name.startswith("clip_vision"):  # whose last norm is of one row there
            assert (rows - states).abs().max() <= 1e-4 * states.abs().max()


@torch.no_grad()
def test_lengths_and_number_types(tmp_path):
    """A head of all rows has length buckets; a smaller type of weights is that of the head, too."""
    name = "bert ForTokenClassification"
    model = model_of(name, tmp_path / "model")
    x = draw(name, 13)
    right = right_of(model, "logits", x)
    for number, (keys, near) in enumerate({("seq=8,16,24",): 1e-4, ("seq=24", "dtype=bf16"): 5e-2,
                                           ("seq=24", "weight_dtype=int8"): 5e-2}.items()):
        status, found, _ = Headed(tmp_path / "model", tmp_path / f"out{number}", "isa=scalar", *keys).run(x)
        assert status == 0 and (found[:13] - right).abs().max() <= near * right.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("kind, part", [("clip", "text"), ("clip", "vision"), ("siglip", "vision")])
def test_parts(kind, part, tmp_path):
    """A folder of both towers of CLIP has the heads of both outside of them."""
    sizes = {"projection_dim": 20} if kind == "clip" else {}
    model = written(kind, {"clip": "CLIPModel", "siglip": "SiglipModel"}[kind], tmp_path / "model",
                    text_config={**CLIP, "projection_size": 40}, vision_config={**IMAGE, **sizes}, **sizes)
    keys = ["--only", part, "isa=scalar", *(["seq=24"] if part == "text" else [])]
    whole = Headed(tmp_path / "model", tmp_path / "out", *keys)
    name = f"{kind}_{part}_model"
    x = draw(name, 9)
    made = (model.get_text_features if part == "text" else model.get_image_features)(x)
    right = made if torch.is_tensor(made) else made.pooler_output
    status, found, _ = whole.run(x)
    assert status == 0 and (found[:1] - right).abs().max() <= 1e-4 * right.abs().max()
    assert "LABELS" not in whole.sizes
    assert all(head not in whole.text.split("left out")[-1] for head in (f"{part}_projection", f"{part}_model.head"))


def test_without_a_head(tmp_path):
    """Folders without the head of their class, or of a class without one, have no logits."""
    model_of("bert ForSequenceClassification", tmp_path / "own")
    bare = edited(tmp_path / "own", tmp_path / "bare",
                  lambda all: {name: x for name, x in all.items() if "classifier" not in name and "pooler" not in name})
    other = edited(tmp_path / "own", tmp_path / "other", architectures=["BertForNextSentencePrediction"])
    none = edited(tmp_path / "own", tmp_path / "none", architectures=None)
    many = edited(tmp_path / "own", tmp_path / "many",  # more classes than a kernel has columns
                  lambda all: {**all, "classifier.weight": torch.ones(20000, 48), "classifier.bias": torch.ones(20000)})
    for number, (folder, *said) in enumerate([[bare], [other], [none], [many], [tmp_path / "own", "--no-head"]]):
        whole = Whole(folder, tmp_path / f"out{number}", "isa=scalar", "seq=8", *said)
        assert "LABELS" not in whole.sizes and "logits" not in (tmp_path / f"out{number}/model.h").read_text()


def test_no_head_of_a_decoder(tmp_path):
    written("llama", "LlamaForCausalLM", tmp_path / "model", vocab_size=60, hidden_size=16, num_attention_heads=2,
            intermediate_size=20, num_hidden_layers=1, max_position_embeddings=32)
    expect_refusal(tmp_path / "model", tmp_path / "out", "--no-head: the logits of a decoder, llama, are its head",
                   "isa=scalar", "seq=8", "seq_kv=8", "--no-head")


@pytest.mark.parametrize("name, fields, change, said", [
    ("bert ForSequenceClassification", {}, lambda all: {**all, "bert.pooler.dense.weight": torch.ones(50, 48)},
     "tensor bert.pooler.dense.weight: its shape is [50, 48], and by the config it must be [48, 48]"),
    ("bert ForSequenceClassification", {}, lambda all: {n: x for n, x in all.items() if n != "classifier.bias"},
     "classifier.bias is missing"),
    ("modernbert ForSequenceClassification", {"classifier_pooling": "max"}, None,
     "classifier_pooling: must be cls or mean"),
    ("modernbert ForSequenceClassification", {"classifier_activation": "elu"}, None,
     "classifier_activation: elu is no activation function of a kernel"),
])
def test_refusals(name, fields, change, said, tmp_path):
    model_of(name, tmp_path / "own")
    folder = edited(tmp_path / "own", tmp_path / "model", change or (lambda all: all), **fields)
    expect_refusal(folder, tmp_path / "out", said, "isa=scalar", "seq=8")
