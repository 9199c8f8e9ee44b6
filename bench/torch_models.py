"""Times whole models of PyTorch and transformers, with random weights, one way after the other in turn:

    python3 bench/torch_models.py [--rounds 10] [--threads 1] [--ways eager,mhagen] [MODEL...]

    python3 bench/torch_models.py --generate 600,2000

The second prints the least time of a token that a decoder's generate() writes behind so many others.

eager (scaled dot-product attention of PyTorch), torch.compile, ONNX Runtime, and mhagen.torch.replace, of attention and
of whole layers. A row has the least time of each way in ms, on one thread of the CPU, which other work on the machine
hardly changes, and the last columns have that of eager over those of mhagen. It needs torch, transformers and, for its
column, onnx and onnxruntime; what cannot be made is a dash, with the reason below.
"""
import argparse
import contextlib
import copy
import io
import pathlib
import sys
import time
import warnings

import torch

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
import mhagen.torch

warnings.simplefilter("ignore")


def bert(layers, width, heads, rows):
    from transformers import BertConfig, BertModel
    config = BertConfig(hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
                        intermediate_size=4 * width)
    ids = torch.randint(0, 30000, (1, rows))
    return BertModel(config, add_pooling_layer=False), {"input_ids": ids}


def vit():
    from transformers import ViTConfig, ViTModel
    config = ViTConfig(hidden_size=384, num_attention_heads=6, intermediate_size=1536)
    return ViTModel(config, add_pooling_layer=False), {"pixel_values": torch.randn(1, 3, 224, 224)}


def whisper():
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder
    config = WhisperConfig(d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536)
    return WhisperEncoder(config), {"input_features": torch.randn(1, 80, 3000)}


def encoder():
    layer = torch.nn.TransformerEncoderLayer(384, 12, 1536, activation="gelu", batch_first=True)
    return torch.nn.TransformerEncoder(layer, 6), {"src": torch.randn(1, 128, 384)}


def llama():
    """SmolLM2-135M's shape."""
    from transformers import LlamaConfig, LlamaForCausalLM
    config = LlamaConfig(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30,
                         num_attention_heads=9, num_key_value_heads=3, head_dim=64, tie_word_embeddings=True,
                         pad_token_id=0, eos_token_id=None)
    return LlamaForCausalLM(config)


class Marks:
    """A streamer of generate(), which has the time of each token."""

    def __init__(self, clock):
        self.clock, self.times = clock, []

    def put(self, _):
        self.times.append(self.clock())

    def end(self):
        pass

    def least(self):
        """But for the prompt, and the first steps, which may make kernels."""
        return min(after - before for before, after in zip(self.times[4:], self.times[5:]))


def generate(past, rounds, clock):
    """ms of a token: eager, and mhagen with a cache that grows in place."""
    model = llama().eval()
    ids, least = torch.randint(1, 49152, (1, past)), {}
    calls = {"eager": (model, lambda: None)}
    swapped = mhagen.torch.replace(copy.deepcopy(model))
    calls["mhagen"] = swapped, lambda: mhagen.torch.growing_cache(swapped)
    for _ in range(rounds):
        written = {}
        for name, (of, cache) in calls.items():
            marks = Marks(clock)
            written[name] = of.generate(ids, streamer=marks, max_new_tokens=12, do_sample=False,
                                        **{mhagen.torch.cache_name(): cache()})
            least[name] = min(least.get(name, float("inf")), marks.least())
        assert written["eager"].equal(written["mhagen"])
    return {name: seconds * 1e3 for name, seconds in least.items()}


class Step(torch.nn.Module):
    """A step of a decoder: one token behind others in a static cache, which has room for 12 more."""

    def __init__(self, past):
        super().__init__()
        from transformers import StaticCache
        self.past, self.model = past, llama()
        self.cache = StaticCache(self.model.config, max_cache_len=past + 12)
        self.given = {mhagen.torch.cache_name(): self.cache}

    def prepare(self):
        self.model(input_ids=torch.randint(0, 49152, (1, self.past)), use_cache=True, **self.given)

    def forward(self, input_ids):
        position = torch.tensor([[self.past]])
        for layer in self.cache.layers:
            if hasattr(layer, "cumulative_length"):
                layer.cumulative_length.fill_(self.past)
        return self.model(input_ids=input_ids, position_ids=position, use_cache=True, **self.given)[0]


MODELS = {
    "BERT-base, 128 tokens": lambda: bert(12, 768, 12, 128), "BERT-base, 512 tokens": lambda: bert(12, 768, 12, 512),
    "MiniLM-L6, 128 tokens": lambda: bert(6, 384, 12, 128), "ViT-S/16": vit, "Whisper-tiny, encoder": whisper,
    "nn.TransformerEncoder of MiniLM's shape": encoder,
    **{f"SmolLM2-135M, a step at {past} tokens": lambda past=past: (Step(past), {"input_ids": torch.tensor([[7]])})
       for past in (500, 2000)}}


def first(output):
    return output if isinstance(output, torch.Tensor) else output[0]


class ByPosition(torch.nn.Module):
    def __init__(self, model, names):
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *tensors):
        return first(self.model(**dict(zip(self.names, tensors))))


def onnxruntime_of(model, example, threads):
    import onnxruntime
    file = io.BytesIO()
    torch.backends.mha.set_fastpath_enabled(False)  # which the exporter does not know
    with contextlib.redirect_stdout(io.StringIO()):
        torch.onnx.export(ByPosition(model, list(example)), tuple(example.values()), file, input_names=list(example),
                          dynamo=False)
    torch.backends.mha.set_fastpath_enabled(True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    arrays = {name: tensor.numpy() for name, tensor in example.items()}
    return lambda: torch.from_numpy(session.run(None, arrays)[0])


def ways(model, example, threads, wanted):
    """{name: a call that gives the result}, and what failed."""
    made, failed = {"eager": lambda: first(model(**example))}, {}
    swapped = mhagen.torch.replace(copy.deepcopy(model), example)
    whole = mhagen.torch.replace(copy.deepcopy(model), example, layers=True) if "layers" in wanted else None
    compiled = torch.compile(copy.deepcopy(model))
    attempts = {"compile": lambda: lambda: first(compiled(**example)),
                "ONNX Runtime": lambda: onnxruntime_of(copy.deepcopy(model), example, threads),
                "mhagen": lambda: lambda: first(swapped(**example)), "layers": lambda: lambda: first(whole(**example)),
                "mhagen compiled": lambda: (lambda again: lambda: first(again(**example)))(torch.compile(swapped))}
    for name, make in attempts.items():
        if name not in wanted:
            continue
        try:
            call = make()
            right, found = made["eager"](), call()
            error = (found - right).norm() / right.norm()
            assert error < 1e-3, f"the result differs by {error:.1e}"
            made[name] = call
        except Exception as reason:
            failed[name] = f"{type(reason).__name__}: {str(reason).splitlines()[0][:150]}"
    return made, failed


def timed(calls, rounds, clock):
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            for _ in range(2):  # the first one has cold caches
                start = clock()
                call()
                least[name] = min(least[name], clock() - start)
    return least


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"the beginning of one of {', '.join(MODELS)}")
    parser.add_argument("--generate", metavar="ROWS", help="times tokens behind so many others instead")
    parser.add_argument("--ways", default="eager,compile,ONNX Runtime,mhagen,mhagen compiled,layers")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    clock = time.process_time if options.threads == 1 else time.perf_counter
    if options.generate:
        print("| tokens before | eager | mhagen |\n|---|---|---|")
        for past in map(int, options.generate.split(",")):
            found = generate(past, options.rounds, clock)
            print(f"| {past} | {found['eager']:.1f} | {found['mhagen']:.1f} |", flush=True)
        return
    columns = options.ways.split(",")
    print(f"| model, {options.threads} thread{'s' * (options.threads > 1)} |", *(f"{name} |" for name in columns),
          "eager / mhagen | eager / layers |")
    print("|---" * (len(columns) + 3) + "|")
    for name, make in MODELS.items():
        if options.models and not any(name.startswith(word) for word in options.models):
            continue
        torch.manual_seed(0)
        model, example = make()
        model.eval()
        with torch.no_grad():
            getattr(model, "prepare", lambda: None)()
            calls, failed = ways(model, example, options.threads, columns)
            least = timed(calls, options.rounds, clock)
        cells = [f"{least[way] * 1e3:.2f}" if way in least else "-" for way in columns]
        cells += [f"{least['eager'] / least[way]:.2f}" if way in least else "-" for way in ("mhagen", "layers")]
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
        for way, reason in failed.items():
            print(f"  {name}: {way}: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
