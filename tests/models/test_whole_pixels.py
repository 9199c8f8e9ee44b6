"""What `mhagen model --whole` says of how pixels are normalized, against the processors of transformers."""
import json
import re
import subprocess

import pytest

from test_whole_inputs import model_of
from tools import MHAGEN, ROOT, in_turn, installed, run
from whole_lib import numpy, torch, transformers

if not installed("PIL"):
    pytest.skip("Pillow is not installed", allow_module_level=True)

SIDE = 23  # of the images of model_of
ODD = {"image_mean": [0.1, 0.45, 0.7], "image_std": [0.9, 0.21, 0.3]}
SIZE = {"size": {"height": SIDE, "width": SIDE}}
CROP = {"size": {"shortest_edge": 31}, "crop_size": {"height": SIDE, "width": SIDE}}
# kind of model, class of its processor, its fields, and what the header says of sizes
PROCESSORS = {
    "vit": ("vit", "ViT", {**ODD, **SIZE}, f"resized to {SIDE} x {SIDE} (bilinear)"),
    "vit, of its own numbers": ("vit", "ViT", SIZE, f"resized to {SIDE} x {SIDE} (bilinear)"),
    "deit": ("deit", "DeiT", {**ODD, **CROP, "size": {"height": 30, "width": 31}},
             f"resized to 30 x 31 (bicubic), then cut to their middle, {SIDE} x {SIDE}"),
    "dinov2": ("dinov2", "Bit", {**CROP, "rescale_factor": 0.01},
               f"resized to a shortest edge of 31 (bicubic), then cut to their middle, {SIDE} x {SIDE}"),
    "clip": ("clip_vision_model", "CLIP", CROP,
             f"resized to a shortest edge of 31 (bicubic), then cut to their middle, {SIDE} x {SIDE}"),
    "siglip": ("siglip_vision_model", "Siglip", {**SIZE, **ODD, "do_rescale": False},
               f"resized to {SIDE} x {SIDE} (bicubic)"),
    "not normalized": ("siglip_vision_model", "Siglip", {**SIZE, "do_normalize": False},
                       f"resized to {SIDE} x {SIDE} (bicubic)"),
    "not resized": ("vit", "ViT", {**ODD, "do_resize": False}, "of the size that they have"),
}


def processor_of(name, folder):
    _, cls, fields, _ = PROCESSORS[name]
    processor = getattr(transformers, f"{cls}ImageProcessorPil")(**fields)
    processor.save_pretrained(folder)
    return processor


def generated(folder, out, *keys):
    """What the command says, and the header."""
    return run(MHAGEN, "model", folder, "--whole", "isa=scalar", "-o", out, *keys), (out / "model.h").read_text()


def constants(header):
    """The scale, and the lists of means and deviations."""
    scale = re.search(r"#define MODEL_SCALE (\S+)\n", header)[1]
    lists = [re.search(rf"#define MODEL_{name} {{ (.*) }}\n", header)[1] for name in ("MEAN", "STD")]
    return float(scale), *([float(x.rstrip("f")) for x in each.split(", ")] for each in lists)


@pytest.mark.parametrize("name", in_turn(list(PROCESSORS), "processors", count=3))
def test_processors(name, tmp_path):
    """The constants of the header make pixels as the processor does."""
    model_of(PROCESSORS[name][0], tmp_path / "model", num_hidden_layers=1)
    processor = processor_of(name, tmp_path / "model")
    told, header = generated(tmp_path / "model", tmp_path / "out")
    assert "  pixels: the header has scale, mean and deviation of preprocessor_config.json\n" in told
    assert f" *   {PROCESSORS[name][3]}.\n" in header
    image = numpy.random.default_rng(4).integers(0, 256, (SIDE, SIDE, 3), "u1")
    right = processor(image, do_resize=False, do_center_crop=False, return_tensors="np").pixel_values[0]
    scale, mean, std = constants(header)
    found = (image * scale - numpy.array(mean)) / numpy.array(std)
    assert abs(found.transpose(2, 0, 1) - right).max() <= 1e-6 * abs(right).max()


def edited(folder, change, name="preprocessor_config.json"):
    path = folder / name
    path.write_text(json.dumps(change(json.loads(path.read_text()))))


@pytest.fixture
def vit(tmp_path):
    model_of("vit", tmp_path / "model", num_hidden_layers=1)
    processor_of("vit", tmp_path / "model")
    return tmp_path / "model"


def without(name): return lambda all: {key: x for key, x in all.items() if key != name}


@pytest.mark.parametrize("change, said", in_turn([
    (lambda all: {**all, "image_processor_type": "MobileViTImageProcessor"},
     "image_processor_type: MobileViTImageProcessor is not known"),
    (lambda all: {**all, "image_processor_type": "ViTImageProcessorOther"}, "ViTImageProcessorOther is not known"),
    (without("image_processor_type"), "image_processor_type: is missing"),
    (without("image_mean"), "image_mean: is missing"), (without("image_std"), "image_std: is missing"),
    (lambda all: {**all, "image_mean": [0.5, 0.5]}, "image_mean: must have 3 numbers, as images have channels"),
    (lambda all: {**all, "image_std": [0.5, 0, 0.5]}, "image_std: must be numbers in the range of float32, and not 0"),
    (lambda all: {**all, "image_std": 1e-50}, "image_std: must be numbers in the range of float32, and not 0"),
    (lambda all: {**all, "image_mean": ["a", "b", "c"]}, "image_mean: must be numbers in the range of float32"),
    (lambda all: {**all, "image_mean": [0, 1e40, 0]}, "image_mean: must be numbers in the range of float32"),
    (lambda all: {**all, "do_flip_channel_order": True}, "do_flip_channel_order: is not known"),
    (lambda all: {**all, "rescale_factor": "1/255"}, "rescale_factor: 1/255 must be a number"),
    (lambda all: [all], "image_processor_type: is missing"),
], "processors that are not known", count=3))
def test_what_is_not_known(vit, change, said, tmp_path):
    """The model is written all the same, and the header has no numbers that may be wrong."""
    edited(vit, change)
    told, header = generated(vit, tmp_path / "out")
    assert re.search(rf"^  pixels: \S+/preprocessor_config.json: (\S+: )?{re.escape(said)}, so the header does not say "
                     "how pixels are normalized$", told, re.M)
    assert "MODEL_MEAN" not in header and "MODEL_SCALE" not in header


def test_damaged(vit, tmp_path):
    (vit / "preprocessor_config.json").write_text("{")
    told, header = generated(vit, tmp_path / "out")
    assert "preprocessor_config.json: " in told and "so the header does not say" in told and "MODEL_MEAN" not in header


@pytest.mark.parametrize("change", in_turn([
    lambda all: {**without("image_processor_type")(all), "feature_extractor_type": "ViTFeatureExtractor"},
    lambda all: {**all, "image_processor_type": "ViTImageProcessorFast", "do_pad": False, "device": None, "size": SIDE},
    lambda all: {**without("do_rescale")(without("rescale_factor")(all)), "do_normalize": None},
], "processors of other versions", count=2))
def test_other_versions(vit, change, tmp_path):
    """Files of other versions of transformers have other names, and less fields or more."""
    told, header = generated(vit, tmp_path / "first")
    edited(vit, change)
    other_told, other = generated(vit, tmp_path / "out")
    assert constants(header) == constants(other) and "(bilinear)" in other and "pixels: the header has" in other_told


def test_within_a_processor(vit, tmp_path):
    """A processor of texts and images has that of images within its file."""
    _, header = generated(vit, tmp_path / "first")
    own = json.loads((vit / "preprocessor_config.json").read_text())
    (vit / "preprocessor_config.json").unlink()
    (vit / "processor_config.json").write_text(json.dumps({"processor_class": "CLIPProcessor", "image_processor": own}))
    told, other = generated(vit, tmp_path / "out")
    assert constants(header) == constants(other) and "deviation of processor_config.json\n" in told
    edited(vit, without("image_processor"), "processor_config.json")
    told, other = generated(vit, tmp_path / "none")
    assert "pixels:" not in told and "MODEL_MEAN" not in other


def test_other_sizes(vit, tmp_path):
    edited(vit, lambda all: {**all, "size": {"height": 224, "width": 112}})
    told, _ = generated(vit, tmp_path / "out")
    assert "; it makes images of 224x112, and the program takes 23x23\n" in told


@torch.no_grad()
def test_bytes(vit, tmp_path):
    """examples/look takes bytes where the header says how these are normalized."""
    source = ROOT / "examples/look/look.c"
    images = numpy.random.default_rng(4).integers(0, 256, (3, SIDE, SIDE, 3), "u1")
    processor = transformers.ViTImageProcessorPil.from_pretrained(vit)
    pixels = numpy.stack(processor(list(images), do_resize=False, return_tensors="np").pixel_values)
    (tmp_path / "images.rgb").write_bytes(images.tobytes())
    (tmp_path / "images.bin").write_bytes(pixels.astype("f4").tobytes())
    generated(vit, tmp_path / "out")
    run("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-I", tmp_path / "out", source, *tmp_path.glob("out/*.c"), "-lm",
        "-lpthread", "-o", tmp_path / "look")
    found = [run(tmp_path / "look", tmp_path / "out/model.packed", tmp_path / name).split()
             for name in ("images.rgb", "images.bin")]
    assert len(found[0]) == 3 and float(found[0][1]) < 0.9999
    assert [float(x) for x in found[0]] == pytest.approx([float(x) for x in found[1]], abs=2e-6)
    (vit / "preprocessor_config.json").unlink()
    generated(vit, tmp_path / "none")
    run("cc", "-O1", "-Wall", "-Wextra", "-Werror", "-I", tmp_path / "none", source, *tmp_path.glob("none/*.c"), "-lm",
        "-lpthread", "-o", tmp_path / "look")
    result = subprocess.run([tmp_path / "look", tmp_path / "none/model.packed", tmp_path / "images.rgb"],
                            capture_output=True)
    assert result.returncode == 2 and b"model.h does not say how bytes are normalized" in result.stderr
