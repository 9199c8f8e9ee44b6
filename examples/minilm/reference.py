"""all-MiniLM-L6-v2 without mhagen: what the example compares its results with.

Both classes map the token ids of one sentence, without padding, to its embedding and to the attention
weights [layer][head][query][key]. They share no code with minilm.py, and none with each other.
"""
import json
import math

import numpy as np


class OnnxReference:
    """The package's weights in a graph of standard ONNX operators, run by ONNX Runtime."""

    def __init__(self, folder, attention=True, threads=0):
        """attention: whether the weights of attention are results, too; threads: 0 are all CPUs."""
        import onnxruntime
        from onnx import TensorProto, helper, numpy_helper
        from safetensors.numpy import load_file

        config = json.loads((folder / "config.json").read_text())
        heads, width = config["num_attention_heads"], config["hidden_size"]
        nodes, constants, probs = [], load_file(folder / "model.safetensors"), []

        def op(kind, *inputs, **attributes):
            out = f"{kind}_{len(nodes)}"
            nodes.append(helper.make_node(kind, inputs, [out], **attributes))
            return out

        def constant(value, dtype=np.int64):
            name = f"constant_{len(constants)}"
            constants[name] = np.array(value, dtype)
            return name

        def linear(name, x):
            return op("Gemm", x, f"{name}.weight", f"{name}.bias", transB=1)

        def norm(name, x):
            return op("LayerNormalization", x, f"{name}.weight", f"{name}.bias", epsilon=config["layer_norm_eps"])

        def split(x):  # [n][width] -> [head][n][width / heads]
            return op("Transpose", op("Reshape", x, constant([0, heads, width // heads])), perm=[1, 0, 2])

        words = op("Gather", "embeddings.word_embeddings.weight", "ids")
        places = op("Slice", "embeddings.position_embeddings.weight", constant([0]), op("Shape", "ids"))
        kind = op("Gather", "embeddings.token_type_embeddings.weight", constant(0))
        x = norm("embeddings.LayerNorm", op("Add", op("Add", words, places), kind))
        for i in range(config["num_hidden_layers"]):
            layer = f"encoder.layer.{i}"
            q, k, v = (split(linear(f"{layer}.attention.self.{part}", x)) for part in ("query", "key", "value"))
            scores = op("MatMul", q, op("Transpose", k, perm=[0, 2, 1]))
            probs.append(op("Softmax", op("Div", scores, constant(math.sqrt(width // heads), np.float32)), axis=-1))
            context = op("Reshape", op("Transpose", op("MatMul", probs[-1], v), perm=[1, 0, 2]), constant([0, width]))
            x = norm(f"{layer}.attention.output.LayerNorm",
                     op("Add", x, linear(f"{layer}.attention.output.dense", context)))
            inner = op("Gelu", linear(f"{layer}.intermediate.dense", x))
            x = norm(f"{layer}.output.LayerNorm", op("Add", x, linear(f"{layer}.output.dense", inner)))
        embedding = op("LpNormalization", op("ReduceMean", x, constant([0]), keepdims=0), axis=0, p=2)

        used = {name for node in nodes for name in node.input}
        graph = helper.make_graph(
            nodes, "all-MiniLM-L6-v2",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
            [helper.make_tensor_value_info(embedding, TensorProto.FLOAT, [width])] +
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [heads, "n", "n"]) for name in probs if attention],
            [numpy_helper.from_array(value, name) for name, value in constants.items() if name in used])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self.session = onnxruntime.InferenceSession(model.SerializeToString(), options,
                                                    providers=["CPUExecutionProvider"])
        self.name = f"ONNX Runtime {onnxruntime.__version__}"

    def embedding(self, ids):
        return self.session.run(None, {"ids": np.array(ids)})[0]

    def __call__(self, ids):
        embedding, *probs = self.session.run(None, {"ids": np.array(ids)})
        return embedding, np.stack(probs)


class TorchReference:
    """The package's model as its authors run it, by transformers on PyTorch. Not in requirements.txt."""

    def __init__(self, folder):
        import torch
        import transformers

        self.torch = torch
        self.model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
        self.name = f"PyTorch {torch.__version__}, transformers {transformers.__version__}"

    def __call__(self, ids):
        with self.torch.inference_mode():
            out = self.model(input_ids=self.torch.tensor([ids]), output_attentions=True)
            embedding = self.torch.nn.functional.normalize(out.last_hidden_state[0].mean(0), dim=0)
        return embedding.numpy(), np.stack([layer[0].numpy() for layer in out.attentions])
