"""Small models of types of transformers, and the attention in their graphs, for scripts/propose.py.

    small_fields(kind)                  the fields of the default config that have a small value instead
    Tiny(kind, fields, class, given)    a model with drawn weights, and what it is run with
    layers_of(tiny)                     its layers of attention, and why a softmax is none
"""
import inspect
import os
import pathlib
import re
import sys
import tempfile
import typing
import warnings
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "python"))
os.environ.setdefault("MHAGEN", str(ROOT / "build/mhagen"))

import torch
import transformers
from safetensors.torch import load_file
from torch import nn

from mhagen import _graph

ROWS = 11  # of a text, and of what is written of it fewer
# Small values of fields by the ends of their names; the first that fits counts.
SMALL = [(r"(key_value|kv)_heads$", 2), (r"heads?$", 4), (r"head_dim$", 16), (r"layers?$", 2), (r"experts_per_tok$", 1),
         (r"experts$", 2), (r"vocab_size$", 50), (r"(hidden_size|d_model|n_embd|embed_dim|^dim)$", 64),
         (r"(intermediate_size|ffn_dim|d_ff|n_inner)$", 32), (r"image_size$", 12), (r"patch_size$", 4),
         (r"sliding_window$", 4), (r"max_position_embeddings$", 64), (r"token_id$", 0)]
PLAIN = (bool, int, float, str, list)


class Layer(typing.NamedTuple):
    """Attention in a model."""
    at: str  # the module, as files call it
    keys: dict  # those that were proved; `biases` has the letters of maps that have one
    maps: tuple  # of q, k, v and o; or a joint one, and o
    norms: dict  # of queries and keys: the names of their gains, with " + 1" where these lack 1
    in_out: bool  # matrices lie as y = x W has them
    numbers: int  # a sum over what is packed


# ---- a small model ----

def plain_fields(config, before=""):
    """{ path: value } of the fields of a config and of the objects in it, but for tables such as id2label."""
    found = {}
    for name, value in config.items():
        if isinstance(value, dict) and all(str(key).isidentifier() for key in value):
            found |= plain_fields(value, f"{before}{name}.")
        elif value is None or isinstance(value, PLAIN):
            found[before + name] = value
    return found


def nested(fields):
    config = {}
    for path, value in fields.items():
        *above, name = path.split(".")
        at = config
        for part in above:
            at = at.setdefault(part, {})
        at[name] = value
    return config


def small_fields(kind):
    """Those of the default config that have a small value, with it."""
    config = plain_fields(transformers.AutoConfig.for_model(kind).to_dict())
    small = {}
    for path, value in config.items():
        name = path.rpartition(".")[2]
        fit = next((size for end, size in SMALL if re.search(end, name)), None)
        if fit is not None and type(value) is int:
            small[path] = min(fit, value) if value > 0 else value
    return small | {path: False for path in config if path == "use_cache"}


class Tiny:
    """A model with these fields; its weights depend on their names and shapes alone."""

    def __init__(self, kind, fields, of="AutoModel", given=None):
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            self.config = transformers.AutoConfig.for_model(kind, **nested(fields))
            self.config._attn_implementation = "eager"
            made = getattr(transformers, of)
            self.model = getattr(made, "from_config", getattr(made, "_from_config", None))(self.config).eval()
            for name, weight in self.model.named_parameters():
                weight.copy_(drawn(name, weight))
        self.given = given or self.inputs()

    def inputs(self):
        torch.manual_seed(1)
        name, taken = self.model.main_input_name, inspect.signature(self.model.forward).parameters
        text = self.config.get_text_config()
        if name == "pixel_values":
            of = getattr(self.config, "vision_config", self.config)
            size = of.image_size if isinstance(of.image_size, (list, tuple)) else [of.image_size] * 2
            found = {name: torch.randn(1, getattr(of, "num_channels", 3), *size)}
        elif name == "input_ids":
            found = {name: torch.randint(1, text.vocab_size, (1, ROWS))}
        else:
            raise SystemExit(f"propose: --input {name}=SHAPE: how large is it?")
        if "decoder_input_ids" in taken:
            found["decoder_input_ids"] = torch.randint(1, text.vocab_size, (1, ROWS - 4))
        return found

    def results(self, **more):
        """What linear maps return in a run."""
        found = {}
        hooks = [part.register_forward_hook(lambda _, __, y, name=name: found.setdefault(name, y))
                 for name, part in self.model.named_modules() if is_map(part)]
        try:
            with torch.no_grad():
                self.model(**self.given, **more)
        finally:
            for hook in hooks:
                hook.remove()
        return found


def drawn(name, weight):
    made = torch.randn(weight.shape, generator=torch.Generator().manual_seed(zlib.crc32(name.encode())))
    return weight + 0.3 * made if weight.dim() == 1 else 1.5 * made * weight.numel() ** -0.25


def is_map(part):
    return isinstance(part, nn.Linear) or type(part).__name__ == "Conv1D"


# ---- the layers in its graph ----

def ran_with(tiny, part, change, watched):
    """What the map `watched` takes while the result of a part is changed."""
    taken = []
    hooks = [part.register_forward_hook(lambda _, __, y: change(y)),
             watched.register_forward_pre_hook(lambda _, args: taken.append(args[0].clone()))]
    try:
        with torch.no_grad():
            tiny.model(**tiny.given)
    finally:
        for hook in hooks:
            hook.remove()
    return taken[0]


def role_of(tiny, part, out):
    """Whether a part makes queries, keys or values: twice the values are twice the context, and a query changes its own
    row alone."""
    before = ran_with(tiny, part, lambda y: y, out)
    if torch.allclose(ran_with(tiny, part, lambda y: 2 * y, out), 2 * before, rtol=1e-4, atol=1e-5):
        return "v"

    def first(y):
        changed = y.clone()
        changed[:, 0] += 1
        return changed
    after = ran_with(tiny, part, first, out)
    return "q" if torch.allclose(after[:, 1:], before[:, 1:], rtol=1e-4, atol=1e-5) else "k"


def file_names(tiny, folder):
    """{ id of a parameter: its name in files }, which another layout of modules may have in its own way."""
    tiny.model.save_pretrained(folder)
    by_bytes = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            by_bytes[tensor.numpy().tobytes()] = name
    return {id(weight): by_bytes.get(weight.detach().contiguous().numpy().tobytes(), name)
            for name, weight in tiny.model.named_parameters()}


def parts_of(tiny, nodes):
    """The modules with weights of whose nodes a layer is made, in their order."""
    names = dict.fromkeys(_graph.module_of(tiny.model, node) for node in nodes)
    parts = [tiny.model.get_submodule(name) for name in names if name]
    return [part for part in parts if "weight" in part._parameters]


def layer_of(tiny, value, names, packed):
    keys = dict(word.split("=", 1) for word in value["config"].split())
    for word in ("isa", "seq", "seq_kv", "batch"):
        keys.pop(word, None)
    parts = parts_of(tiny, value["nodes"])
    maps, norms = [part for part in parts if is_map(part)], [part for part in parts if not is_map(part)]
    letters = "qkvo" if len(maps) == 4 else "jo" if len(maps) == 2 else ""
    if not letters:
        return None
    if len(maps) == 4:
        roles = {role_of(tiny, part, maps[-1]): part for part in maps[:3]}
        if len(roles) != 3:
            return None
        maps = [*(roles[of] for of in "qkv"), maps[3]]
    full = [names[id(part.weight)].removesuffix(".weight") for part in maps]
    at = os.path.commonprefix([name.split(".") for name in full])
    cut = len(".".join(at)) + 1
    gains = {f"{role_of(tiny, part, maps[-1])}_norm": names[id(part.weight)][cut:] +
             less_1(part) for part in norms if part.weight.dim() == 1}
    keys["biases"] = "".join(of for of, part in zip(letters, maps) if part.bias is not None) or "none"
    keys.setdefault("h_kv", keys["h"])
    return Layer(".".join(at), keys, tuple(name[cut:] for name in full), gains, not isinstance(maps[0], nn.Linear),
                 packed)


def less_1(norm):
    """Whether a norm multiplies by 1 + its weight."""
    x, weight = torch.ones(1, *norm.weight.shape), norm.weight.detach().clone()
    with torch.no_grad():
        norm.weight.zero_()
        nothing = not norm(x).any()
        norm.weight.copy_(weight)
    return "" if nothing else " + 1"


def layers_of(tiny):
    """The layers of a model by their names, and { the name of a softmax that is none: why }."""
    with tempfile.TemporaryDirectory() as folder:
        path, out = pathlib.Path(folder, "model.onnx"), pathlib.Path(folder, "out")
        names = file_names(tiny, pathlib.Path(folder, "saved"))
        _graph.write(tiny.model, _graph.call_of(tiny.given), path, tiny.model.forward)
        values = _graph.values_of(path, out, ["isa=scalar", "rope_tables=packed"])
        found, left = {}, {}
        for value in values:
            if "no_layer" in value:
                left[value["no_layer"]] = value["why"]
                continue
            packed = zlib.crc32((out / f"{value['kernel']}.packed").read_bytes())
            layer = layer_of(tiny, value, names, packed)
            if layer:
                found[layer.at] = layer
            else:
                left[value["layer"]] = "its maps are no four, and no joint one with that of o: " + value["config"]
        return found, left
