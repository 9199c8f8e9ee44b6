"""`mhagen model --whole` of ONNX files: patches that no single convolution of the pixels makes."""
import pytest

from reference_lib import drawn_isa
from test_whole_inputs import Encoder, near
from test_whole_onnx import IMAGE, Pixels, export, model_of, node_of, of, vit_file
from whole_lib import expect_refusal, torch

import onnx  # without it the line before skips this file
from onnx import numpy_helper

MEANS, DEVIATIONS = torch.tensor([[[0.4]], [[0.5]], [[0.3]]]), torch.tensor([[[0.2]], [[0.3]], [[0.25]]])


class Changed(Pixels):
    """A model whose pixels are changed within the graph."""

    def __init__(self, model, change):
        super().__init__(model)
        self.change = change

    def forward(self, pixel_values):
        return super().forward(self.change(pixel_values))


class Product(torch.nn.Module):
    """Patches as rows of their pixels, by color last, times a matrix."""

    def __init__(self, convolution):
        super().__init__()
        self.size = convolution.kernel_size
        width, colors = convolution.weight.shape[:2]
        self.product = torch.nn.Linear(self.size[0] * self.size[1] * colors, width)
        self.product.weight.data = convolution.weight.data.permute(0, 2, 3, 1).flatten(1)
        self.product.bias.data, self.weight = convolution.bias.data, self.product.weight

    def forward(self, x):
        batch, colors, height, width = x.shape
        down, across = height // self.size[0], width // self.size[1]
        x = x.view(batch, colors, down, self.size[0], across, self.size[1]).permute(0, 2, 4, 3, 5, 1)
        return self.product(x.reshape(batch, down * across, -1)).transpose(1, 2).unflatten(2, (down, across))


def made(change, name="vit", product=False, **fields):
    vit = model_of(of("ViT", num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=24,
                      **{**IMAGE, **fields}), name)
    if product:
        place = vit.embeddings.patch_embeddings
        place.projection = Product(place.projection)
    return Changed(vit, change).eval()


FORMS = {
    "normalized": lambda: made(lambda x: (x / 255 - MEANS) / DEVIATIONS),
    "normalized, one factor": lambda: made(lambda x: x * 2 - 1),
    "colors turned": lambda: made(lambda x: x.flip(1)),
    "product": lambda: made(lambda x: x, product=True),
    "product, normalized, not square": lambda: made(lambda x: (x - MEANS) / DEVIATIONS, product=True,
                                                    image_size=(16, 36), patch_size=(8, 6)),
}


@torch.no_grad()
@pytest.mark.parametrize("name", FORMS)
def test_patches(name, tmp_path):
    model = FORMS[name]()
    size = model.model.config.image_size
    image = 2 * torch.randn(1, 3, *((size, size) if isinstance(size, int) else size))
    path = export(model, {"pixel_values": image}, tmp_path / "m.onnx", name)
    whole = Encoder(path, tmp_path / "out", f"isa={drawn_isa(name)}")
    status, rows, _ = whole.run(image)
    assert status == 0 and near(rows, model(image)[0])


def smaller(graph, as_zeros):
    """Patches that leave out pixels between them: a smaller matrix, or one with zeros."""
    node = node_of(graph, "Conv")
    weights = next(tensor for tensor in graph.initializer if tensor.name == node.input[1])
    numbers = numpy_helper.to_array(weights).copy()
    numbers[:, :, 5:], numbers[:, :, :, 5:] = 0, 0
    weights.CopyFrom(numpy_helper.from_array(numbers if as_zeros else numbers[:, :, :5, :5].copy(), weights.name))
    next(a for a in node.attribute if a.name == "kernel_shape").ints[:] = [8, 8] if as_zeros else [5, 5]


def test_gaps(tmp_path):
    image, made_of = torch.randn(1, 3, 24, 24), []
    for as_zeros in False, True:
        model = onnx.load(vit_file(tmp_path / "m.onnx"))
        smaller(model.graph, as_zeros)
        onnx.save(model, tmp_path / "m.onnx")
        made_of.append(Encoder(tmp_path / "m.onnx", tmp_path / f"out{as_zeros}", "isa=scalar").run(image)[1])
    assert near(made_of[0], made_of[1])


ALIKE = {
    "clipped": lambda x: x.clamp(-1, 1),
    "normalized by the image": lambda x: x - x.mean((1, 2, 3), keepdim=True),
    "of neighbours": lambda x: x + x.roll(1, 3),
    "squares": lambda x: x * x.abs(),
}


@torch.no_grad()
@pytest.mark.parametrize("name", ALIKE)
def test_patches_that_look_alike(name, tmp_path):
    model = made(ALIKE[name])
    path = export(model, {"pixel_values": torch.randn(1, 3, 24, 24)}, tmp_path / "m.onnx", name)
    expect_refusal(path, tmp_path / "out", "is not the sum of patches", "isa=scalar")
