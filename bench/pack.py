"""What `mhagen model` takes to read and pack a folder: MB of the float32 weights a second of wall time, one core.

    bench/pack.py [OPTION...] [MHAGEN...]      several programs, such as an older one, run in turn

The folder has layers of a Llama-like model (d_model 2048, h 32, h_kv 8, dk 64), 42 MB each, of random numbers. A row is
a type, and the best of some rounds of all that the command does: planning and writing kernels too.
"""
import argparse
import array
import json
import pathlib
import random
import struct
import subprocess
import tempfile
import time

from suite import MHAGEN, widest

D, H, H_KV, DK = 2048, 32, 8, 64
TYPES = ("", "dtype=bf16", "dtype=f16", "dtype=int8", "weight_dtype=int8", "weight_dtype=int4")
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": D, "num_attention_heads": H,
          "num_key_value_heads": H_KV, "head_dim": DK, "max_position_embeddings": 4096, "rope_theta": 10000.0,
          "attention_bias": False}
SHAPES = {"q_proj": (H * DK, D), "k_proj": (H_KV * DK, D), "v_proj": (H_KV * DK, D), "o_proj": (D, H * DK)}


def write_model(folder, layers):
    """config.json and model.safetensors; the bytes of the weights."""
    (folder / "config.json").write_text(json.dumps({**CONFIG, "num_hidden_layers": layers}))
    draw, tensors, end = random.Random(1), {}, 0
    for layer in range(layers):
        for name, shape in SHAPES.items():
            start, end = end, end + 4 * shape[0] * shape[1]
            tensors[f"model.layers.{layer}.self_attn.{name}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    head = json.dumps(tensors).encode()
    numbers = array.array("f", (draw.gauss(0, 0.02) for _ in range(1 << 18))).tobytes()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        for _ in range(end // len(numbers)):
            file.write(numbers)
    return end


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("programs", nargs="*", metavar="MHAGEN", default=[MHAGEN], help="default: that of build/")
    parser.add_argument("--isa", help="default: the widest of this CPU for each type")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        size = write_model(folder, args.layers)
        print(f"{args.layers} layers, {size / 1e6:.0f} MB of float32: MB/s", flush=True)
        for keys in TYPES:
            isa, seconds = args.isa or widest(keys.split()), [[] for _ in args.programs]
            for _ in range(args.rounds):
                for program, times in zip(args.programs, seconds):
                    start = time.monotonic()
                    subprocess.run([program, "model", "--quiet", "-o", folder / "out", folder, f"isa={isa}", "seq=64",
                                    *keys.split()], check=True)
                    times.append(time.monotonic() - start)
            print(f"{keys or 'dtype=f32':<20}{isa:<12}" + "".join(f"{size / 1e6 / min(t):8.0f}" for t in seconds),
                  flush=True)


if __name__ == "__main__":
    main()
