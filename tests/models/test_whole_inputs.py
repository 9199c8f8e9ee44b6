"""`mhagen model --whole` of encoders of images and of sound: from pixels or features to rows, against transformers."""
import ctypes
import json
import random
import re
import shutil
import subprocess

import pytest

from reference_lib import aligned, drawn_isa
from tools import MHAGEN, ROOT, in_turn, run, seed_of
from test_whole import Args as OfTexts
from whole_lib import Whole, edited, expect_refusal, joined, torch, written

SIZES = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 80, "image_size": 23,
         "patch_size": 5, "num_channels": 3}
WHISPER = {"hidden_size": "d_model", "num_hidden_layers": "encoder_layers", "num_channels": "num_mel_bins",
           "num_attention_heads": "encoder_attention_heads", "intermediate_size": "encoder_ffn_dim",
           "image_size": "max_source_positions"}
OF_DECODER = {"decoder_layers": 1, "decoder_attention_heads": 1, "decoder_ffn_dim": 8, "vocab_size": 60,
              "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
# what a config is besides; the class that writes it
MODELS = {
    "vit": ({}, "ViTModel"),
    "vit, of a rectangle": ({"image_size": [20, 31], "patch_size": [4, 7], "qkv_bias": False}, "ViTModel"),
    "vit, that classifies": ({"hidden_act": "gelu_new", "layer_norm_eps": 1e-6}, "ViTForImageClassification"),
    "vit, of images masked": ({}, "ViTForMaskedImageModeling"),
    "deit": ({}, "DeiTModel"),
    "deit, with a teacher": ({"hidden_act": "relu"}, "DeiTForImageClassificationWithTeacher"),
    "dinov2": ({"mlp_ratio": 2}, "Dinov2Model"),
    "dinov2, with gates": ({"use_swiglu_ffn": True, "qkv_bias": False}, "Dinov2ForImageClassification"),
    "dinov2, without a mask": ({"use_mask_token": False, "layer_norm_eps": 1e-4}, "Dinov2Model"),
    "dinov2_with_registers": ({"num_register_tokens": 3, "use_swiglu_ffn": True}, "Dinov2WithRegistersModel"),
    "dinov2_with_registers, that classifies": ({}, "Dinov2WithRegistersForImageClassification"),
    "clip_vision_model": ({}, "CLIPVisionModel"),
    "clip_vision_model, projected": ({"hidden_act": "gelu"}, "CLIPVisionModelWithProjection"),
    "siglip_vision_model": ({}, "SiglipVisionModel"),
    "siglip_vision_model, without a head": ({"vision_use_head": False, "hidden_act": "gelu"}, "SiglipVisionModel"),
    "whisper": ({}, "WhisperModel"),
    "whisper, that writes": ({"activation_function": "relu", "scale_embedding": True},
                             "WhisperForConditionalGeneration"),
    "whisper, that classifies": ({"use_weighted_layer_sum": True}, "WhisperForAudioClassification"),
}


class Args(ctypes.Structure):
    _fields_ = [("input", ctypes.c_void_p), ("packed", ctypes.c_void_p), ("workspace", ctypes.c_void_p),
                ("pool", ctypes.c_void_p), ("rows", ctypes.c_void_p), ("mean", ctypes.c_void_p),
                ("result", ctypes.c_void_p)]  # of a head, where the model has one


class Encoder(Whole):
    def run(self, pixels, pool=None, /, **changes):
        """The status, rows and the mean of those of patches or frames."""
        pixels = pixels.contiguous()
        rows, mean = (torch.full(shape, float("nan")) for shape in ((self.sizes["ROWS"], self.sizes["WIDTH"]),
                                                                   (self.sizes["WIDTH"],)))
        ctypes.memset(self.workspace_at, 0xFF, self.sizes["WORKSPACE_BYTES"])
        args = Args(**{"input": pixels.data_ptr(), "packed": self.packed_at, "workspace": self.workspace_at,
                       "pool": pool, "rows": rows.data_ptr(), "mean": mean.data_ptr(), **changes})
        status = self.library.model_run(ctypes.byref(args))
        assert self.is_guarded()
        return status, rows, mean


def drawn(name):
    """Sizes of a model: lanes and patches need not divide anything."""
    draw = random.Random(seed_of(name))
    heads, patch = draw.randint(1, 4), draw.randint(1, 7)
    return {"num_attention_heads": heads, "hidden_size": heads * draw.choice([4, 10, 16]),
            "num_hidden_layers": draw.randint(1, 4), "intermediate_size": draw.randint(1, 100), "patch_size": patch,
            "image_size": draw.randint(patch, 40), "num_channels": draw.choice([1, 3])}


def model_of(name, folder, **changed):
    """A model with drawn weights, and its folder."""
    (more, cls), kind, sizes = MODELS[name], name.split(",")[0], {**SIZES, **changed}
    if kind == "whisper":
        sizes = {**OF_DECODER, **{WHISPER[key]: value for key, value in sizes.items() if key in WHISPER}}
    model = written(kind, cls, folder, **{**sizes, **more})
    return model.encoder if cls == "WhisperForAudioClassification" else model.base_model


def image_of(model):
    config = model.config
    if config.model_type == "whisper":
        return torch.randn(1, config.num_mel_bins, 2 * config.max_source_positions)
    sizes = config.image_size if isinstance(config.image_size, (list, tuple)) else [config.image_size] * 2
    return torch.randn(1, config.num_channels, *sizes)


def rows_of(model, image):
    """The last hidden states, after the last norm."""
    of_whisper = model.config.model_type == "whisper"
    rows = (getattr(model, "encoder", model) if of_whisper else model)(image).last_hidden_state[0]
    return model.post_layernorm(rows) if model.config.model_type == "clip_vision_model" else rows


def near(found, right, part=1e-4):
    return (found - right).abs().max() <= part * right.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(list(MODELS), "whole images", count=5))
def test_models(name, tmp_path):
    model = model_of(name, tmp_path / "model", **drawn(name))
    whole = Encoder(tmp_path / "model", tmp_path / "out", f"isa={drawn_isa(name)}", *joined(name))
    image = image_of(model)
    right = rows_of(model, image)
    status, rows, mean = whole.run(image)
    assert status == 0 and rows.shape == right.shape and near(rows, right)
    tokens = {"deit": 2, "siglip_vision_model": 0, "whisper": 0}.get(name.split(",")[0], 1)
    tokens += getattr(model.config, "num_register_tokens", 0)
    assert whole.sizes.get("TOKENS", 0) == tokens and near(mean, right[tokens:].mean(0))
    names = ["BINS", "FRAMES"] if image.dim() == 3 else ["CHANNELS", "IMAGE_HEIGHT", "IMAGE_WIDTH"]
    assert list(image.shape[1:]) == [whole.sizes[key] for key in names]


@pytest.mark.parametrize("kind", [name for name in MODELS if "," not in name and name != "whisper"])
def test_defaults(kind, tmp_path):
    """Fields that are missing have the values that transformers gives them."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    written(kind, MODELS[kind][1], tmp_path / "full", **sizes)
    shutil.copytree(tmp_path / "full", tmp_path / "short/full")
    short = {"model_type": kind, "architectures": [MODELS[kind][1]], **sizes}
    (tmp_path / "short/full/config.json").write_text(json.dumps(short))
    for folder in tmp_path / "full", tmp_path / "short/full":
        run(MHAGEN, "model", folder, "--whole", "isa=scalar", "-o", folder / "out")
    for path in (tmp_path / "full/out").iterdir():
        assert path.read_bytes() == (tmp_path / "short/full/out" / path.name).read_bytes()


@torch.no_grad()
@pytest.mark.parametrize("name, size", [(name, size) for name in ("dinov2", "dinov2_with_registers")
                                        for size in ("16", "43", "11x37", "98x10", "30x32")])
def test_sizes_of_images(name, size, tmp_path):
    """Positions of other images than the config's are interpolated as transformers does it."""
    model = model_of(name, tmp_path / "model", image_size=34, hidden_size=24, num_attention_heads=2,
                     num_hidden_layers=1)
    whole = Encoder(tmp_path / "model", tmp_path / "out", "isa=scalar", "--image", size)
    height, width = (int(x) for x in (size if "x" in size else f"{size}x{size}").split("x"))
    assert (whole.sizes["IMAGE_HEIGHT"], whole.sizes["IMAGE_WIDTH"]) == (height, width)
    image = torch.randn(1, 3, height, width)
    status, rows, _ = whole.run(image)
    assert status == 0 and near(rows, rows_of(model, image), 1e-5)


@torch.no_grad()
@pytest.mark.parametrize("bins, frames", [(1, 1), (80, 1), (3, 2), (80, 37)])
def test_sounds(bins, frames, tmp_path):
    """Frames at the ends have neighbours of zeros, also where they are the only ones."""
    model = model_of("whisper", tmp_path / "model", num_channels=bins, image_size=frames, num_hidden_layers=1)
    whole, features = Encoder(tmp_path / "model", tmp_path / "out", "isa=scalar+avx2"), image_of(model)
    status, rows, _ = whole.run(features)
    assert status == 0 and near(rows, rows_of(model, features))


@pytest.fixture(scope="module")
def deit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deit") / "model"
    return model_of("deit, with a teacher", folder), folder


@torch.no_grad()
def test_number_types_and_members(deit, tmp_path):
    """Shorter types are as near as their kernels are; each CPU takes the weights of its member."""
    model, folder = deit
    image = image_of(model)
    right = rows_of(model, image)
    for number, (keys, part) in enumerate({("isa=scalar", "dtype=bf16"): 5e-2,
                                           ("isa=scalar+avx2",): 1e-4,
                                           ("isa=scalar", "weight_dtype=int8"): 5e-2}.items()):
        status, rows, _ = Encoder(folder, tmp_path / str(number), *keys).run(image)
        assert status == 0 and near(rows, right, part)


@torch.no_grad()
def test_room_for_patches(tmp_path):
    """The rows of few large patches take most of the workspace, beside that of their kernel."""
    model = model_of("vit", tmp_path / "model", image_size=80, patch_size=40, hidden_size=8, num_attention_heads=1,
                     intermediate_size=8, num_hidden_layers=1)
    image = image_of(model)
    for keys, part in ([], 1e-4), (["dtype=int8"], 1e-1):
        status, rows, _ = Encoder(tmp_path / "model", tmp_path / f"out{part}", "isa=scalar+avx2", *keys).run(image)
        assert status == 0 and near(rows, rows_of(model, image), part)


def test_pools(deit, tmp_path):
    """The same bits on any number of threads, and whatever the run before did; results that are not asked for are not
    written."""
    model, folder = deit
    whole, image = Encoder(folder, tmp_path / "out", "isa=scalar"), image_of(model)
    create, destroy = whole.library.mhagen_pool_create, whole.library.mhagen_pool_destroy
    create.restype, destroy.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    _, rows, mean = whole.run(image)
    whole.run(image.flip(3))
    for threads in 2, 3:
        pool = create(ctypes.c_int(threads))
        status, others, _ = whole.run(image, pool)
        destroy(pool)
        assert status == 0 and torch.equal(others, rows)
    _, others, left = whole.run(image, mean=None)
    assert torch.equal(others, rows) and left.isnan().all()
    _, left, others = whole.run(image, rows=None)
    assert torch.equal(others, mean) and left.isnan().all()


def test_what_is_wrong(deit, tmp_path):
    model, folder = deit
    whole, image = Encoder(folder, tmp_path / "out", "isa=scalar"), image_of(model)
    null, align, packed = 1, 2, 8
    size = whole.sizes["PACKED_BYTES"]
    assert whole.check(size) == 0 and whole.run(image)[0] == 0
    for changes, status in [({"input": None}, null), ({"packed": None}, null), ({"workspace": None}, null),
                            ({"packed": whole.packed_at + 4}, align), ({"workspace": whole.workspace_at + 4}, align),
                            ({"packed": aligned(size)[1]}, packed)]:
        found, rows, mean = whole.run(image, **changes)
        assert found == status and rows.isnan().all() and mean.isnan().all()
    ctypes.memset(whole.packed_at + size - 4, 0x55, 1)
    assert whole.check(size) == packed


# Fields that configs of parts had when versions of transformers wrote all of them.
OF_OLD = {"max_length": 20, "min_length": 0, "num_beams": 1, "num_beam_groups": 1, "num_return_sequences": 1,
          "diversity_penalty": 0.0, "length_penalty": 1.0, "repetition_penalty": 1.0, "no_repeat_ngram_size": 0,
          "encoder_no_repeat_ngram_size": 0, "temperature": 1.0, "top_k": 50, "top_p": 1.0, "typical_p": 1.0,
          "chunk_size_feed_forward": 0, "id2label": {"0": "LABEL_0"}, "do_sample": False, "pruned_heads": {}}


@torch.no_grad()
@pytest.mark.parametrize("kind, cls", [("clip", "CLIPModel"), ("siglip", "SiglipModel")])
def test_parts(kind, cls, tmp_path):
    """Of a model of texts and images, --only names the part."""
    vision = {**SIZES, "num_hidden_layers": 1}
    text = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48,
            "vocab_size": 60, "max_position_embeddings": 9, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = written(kind, cls, tmp_path / "own", text_config=text, vision_config=vision)
    both = json.loads((tmp_path / "own/config.json").read_text())
    folder = edited(tmp_path / "own", tmp_path / "model", vision_config={**both["vision_config"], **OF_OLD})
    whole, image = Encoder(folder, tmp_path / "vision", "isa=scalar", "--only", "vision"), image_of(model.vision_model)
    status, rows, _ = whole.run(image)
    assert status == 0 and near(rows, rows_of(model.vision_model, image))
    assert re.search("  left out: .*logit_scale.*, text_model", whole.text)
    whole = Encoder(folder, tmp_path / "text", "isa=scalar", "seq=5", "--only", "text")
    assert whole.sizes["VOCABULARY"] == 60 and re.search("  left out: .*vision_model", whole.text)
    rows, ids = torch.empty(3, 32), torch.tensor([[9, 3, 4]], dtype=torch.int32)
    args = OfTexts(ids.data_ptr(), None, 3, whole.packed_at, whole.workspace_at, None, rows.data_ptr(), None)
    assert whole.library.model_run(ctypes.byref(args)) == 0
    assert near(rows, model.text_model(ids).last_hidden_state[0])
    for more in [], ["--only", "model"], ["--only", "image"]:
        result = subprocess.run([MHAGEN, "model", folder, "--whole", "isa=scalar", "-o", tmp_path / "out", *more],
                                text=True, capture_output=True)
        assert result.returncode == 2 and result.stderr.count("\n") == 1 and \
            f"a part of type {kind}: --only text_model, or --only vision_model" in result.stderr


@torch.no_grad()
@pytest.mark.parametrize("name", in_turn(["vit", "siglip_vision_model"], "examples/look"))
def test_example(name, tmp_path):
    """examples/look compiles as its head says, and ranks as the model does."""
    model = model_of(name, tmp_path / "model")
    run(MHAGEN, "model", tmp_path / "model", "--whole", "isa=scalar", "-o", tmp_path / "out")
    run("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-I", tmp_path / "out", ROOT / "examples/look/look.c",
        *tmp_path.glob("out/*.c"), "-lm", "-lpthread", "-o", tmp_path / "look")
    words = [tmp_path / "look", tmp_path / "out/model.packed", tmp_path / "pixels.bin"]
    images = [image_of(model) for _ in range(3)]
    rows = [rows_of(model, image) for image in images]
    vectors = [x[0] if name == "vit" else x.mean(0) for x in rows]
    data = b"".join(image.numpy().tobytes() for image in images)
    words[2].write_bytes(data)
    found = run(*words).split()
    right = [float(torch.cosine_similarity(vectors[0], vector, dim=0)) for vector in vectors]
    assert [float(x) for x in found] == pytest.approx(right, abs=1e-5)
    words[2].write_bytes(data[:-4])
    result = subprocess.run(words, capture_output=True)
    assert result.returncode == 1 and b"the last image has 1586 of 1587 numbers" in result.stderr
    for wrong, said in (words[:1], b"usage: "), ([*words[:2], tmp_path / "none"], b"/none: No such file"):
        result = subprocess.run(wrong, capture_output=True)
        assert result.returncode == 2 and said in result.stderr


def test_what_is_left_out(tmp_path):
    """Names of modules, or of the only tensor of one that is not used."""
    model_of("vit, of images masked", tmp_path / "vit")
    assert "  left out: decoder, embeddings.mask_token\n" in run(
        MHAGEN, "model", tmp_path / "vit", "--whole", "isa=scalar", "-o", tmp_path / "out")
    model_of("siglip_vision_model", tmp_path / "siglip")
    text = run(MHAGEN, "model", tmp_path / "siglip", "--whole", "isa=scalar", "-o", tmp_path / "out")
    assert "left out" not in text and "no layer" not in text  # its attention over the rows is a head


def test_types_of_a_pooling_head(tmp_path):
    """Its feed-forward has the type of those of the layers."""
    model_of("siglip_vision_model", tmp_path / "model")
    run(MHAGEN, "model", tmp_path / "model", "--whole", "isa=scalar", "ffn_dtype=bf16", "-o", tmp_path / "out")
    kernels = [text for path in tmp_path.glob("out/mha_*.c") if ".ffn = " in (text := path.read_text())]
    assert len(kernels) == 2 and all('.ffn_dtype = "bf16"' in text for text in kernels)


@pytest.mark.parametrize("name, fields, keys, said", [
    ("vit", {}, "seq=17", "seq = 17: is the model's own: an image makes 17 rows"),
    ("vit", {}, "seq=8,17", "seq = 8,17: is the model's own: an image makes 17 rows"),
    ("vit", {}, "batch=2", "batch = 2: is the model's own with --whole, or is not made with it"),
    ("vit", {}, "seq_kv=17", "seq_kv = 17: is the model's own with --whole"),
    ("vit", {"image_size": 33}, "", "embeddings.position_embeddings: its shape is [1, 17, 48], and by the config it"),
    ("vit", {"patch_size": 4, "image_size": 16}, "", "its shape is [48, 3, 5, 5], and by the config it must be [48, 3"),
    ("vit", {"num_channels": 1}, "", "its shape is [48, 3, 5, 5], and by the config it must be [48, 1, 5, 5]"),
    ("vit", {"patch_size": 24}, "", "patch_size: must be at most image_size"),
    ("vit", {"image_size": [23, 23, 3]}, "", "image_size: must have 2 numbers, or be one"),
    ("vit", {"image_size": 1 << 20}, "", "image_size: 1048576 is more than 16384"),
    ("vit", {"hidden_act": "elu"}, "", "hidden_act: elu is no activation function of a kernel"),
    ("vit", {"use_mean_pooling": True}, "", "use_mean_pooling = true: may change the model, and is not read"),
    ("whisper", {}, "seq=23", "seq = 23: is the model's own: a sound makes 23 rows"),
    ("whisper", {"max_source_positions": 24}, "", "encoder.embed_positions.weight: its shape is [23, 48], and by the"),
    ("whisper", {"num_mel_bins": 80}, "", "encoder.conv1.weight: its shape is [48, 3, 3], and by the config it"),
    ("whisper", {"encoder_norm": "rms"}, "", "encoder_norm = rms: may change the model"),
    ("dinov2", {"image_size": [23, 24]}, "", "image_size: must be that of squares, whose positions the file has"),
    ("dinov2", {}, "--image 23x", "--image 23x: must be a number from 1 to 16384, or two such as 224x280"),
    ("dinov2", {}, "--image 0", "--image 0: must be a number from 1 to 16384"),
    ("dinov2", {}, "--image 40x4", "patch_size: must be at most image_size"),
    ("dinov2", {"patch_size": [5, 4]}, "--image 40", "patch_size: must be that of squares, whose positions the file"),
    ("dinov2", {"image_size": 33}, "--image 40", "position_embeddings: its shape is [1, 17, 48], and by the config"),
    ("vit", {}, "--image 40", "--image: type vit takes what its config.json says"),
    ("clip_vision_model", {"image_size": [23, 23]}, "", "image_size: it must be a number from 1 on"),
    ("dinov2", {"model_type": "vit_msn"}, "", "--whole does not know type vit_msn; it knows bert, camembert"),
])
def test_refusals(name, fields, keys, said, tmp_path):
    model_of(name, tmp_path / "own")
    folder = edited(tmp_path / "own", tmp_path / "model", **fields)
    expect_refusal(folder, tmp_path / "out", said, "isa=scalar", *keys.split())


@pytest.mark.parametrize("name, change, said", [
    ("vit", lambda all: {**all, "embeddings.norm.weight": torch.ones(3)}, "tensor embeddings.norm.weight: may change"),
    ("deit", lambda all: {key: x for key, x in all.items() if "distillation" not in key},
     "tensor embeddings.distillation_token is missing"),
    ("clip_vision_model", lambda all: {**all, "embeddings.patch_embedding.bias": torch.ones(48)},
     "tensor embeddings.patch_embedding.bias: may change"),
])
def test_refused_tensors(name, change, said, tmp_path):
    model_of(name, tmp_path / "own")
    folder = edited(tmp_path / "own", tmp_path / "model", change)
    result = subprocess.run([MHAGEN, "model", folder, "--whole", "isa=scalar", "-o", tmp_path / "out"], text=True,
                            capture_output=True)
    assert result.returncode == 2 and said in result.stderr and not (tmp_path / "out").exists()
