"""What `mhagen model` packs: shared weights once, and what the summary says of bytes."""
import re
import subprocess

import pytest

from tools import MHAGEN, run

onnx = pytest.importorskip("onnx", reason="onnx is not installed")
np = pytest.importorskip("numpy", reason="NumPy is not installed")

from onnx import TensorProto, helper, numpy_helper

D, H, LAYERS = 16, 2, 12
HEAD = 128  # bytes of a file of packed weights


def chain(path, weights, number_type=np.float32):
    """A file of one Attention behind the other, each with the weights of its name."""
    numbers = np.random.default_rng(7)
    constants, nodes = {}, []
    for i, name in enumerate(weights):
        if f"w{name}" not in constants:
            constants[f"w{name}"] = numbers.standard_normal((D, 3 * D)).astype(number_type)
            constants[f"b{name}"] = numbers.standard_normal(3 * D).astype(number_type)
        nodes.append(helper.make_node("Attention", [f"x{i}", f"w{name}", f"b{name}"], [f"x{i + 1}"], name=f"layer{i}",
                                      domain="com.microsoft", num_heads=H))
    kind = TensorProto.FLOAT if number_type == np.float32 else TensorProto.FLOAT16
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x0", kind, (1, 4, D))],
                              [helper.make_tensor_value_info(f"x{len(nodes)}", kind, None)],
                              [numpy_helper.from_array(x, name) for name, x in constants.items()])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]), path)
    return path


def model(out, path, *keys):
    """What it says; the places of layers; and the packed weights of each place."""
    told = run(MHAGEN, "model", path, "isa=scalar", "seq=4", *keys, "-o", out)
    places = re.findall(r'\{ "[\w.]+", (\d+), (\d+) \}', (out / "model.c").read_text())
    (packed,) = out.glob("*.packed")
    data, each = packed.read_bytes(), int(re.search(r"([\d,]+) bytes packed a layer", told)[1].replace(",", ""))
    assert (len(data) - HEAD) % each == 0
    return told, places, [data[at:at + each] for at in range(HEAD, len(data), each)]


def test_shared_weights_are_packed_once(tmp_path):
    """Layers of the same tensors; each layer finds those of its own."""
    names = ["a"] * (LAYERS - 1) + ["b"]
    told, places, layers = model(tmp_path / "shared", chain(tmp_path / "shared.onnx", names))
    assert places == [("0", "0")] * (LAYERS - 1) + [("0", "1")] and len(layers) == 2
    assert f"  {LAYERS}  layer0 .. layer{LAYERS - 1}, with the weights of 2\n" in told
    assert f"packed {2 * len(layers[0]):,} bytes in " in told
    own, places, all_layers = model(tmp_path / "own", chain(tmp_path / "own.onnx", range(2)))
    assert places == [("0", "0"), ("0", "1")] and "with the weights of" not in own
    assert layers == all_layers  # drawn in the same order


def test_shared_weights_with_rope(tmp_path):
    """Layers with the same angles share these too."""
    for keys in [], ["rope=half"]:
        _, places, _ = model(tmp_path / f"out{len(keys)}", chain(tmp_path / "model.onnx", "aab"), *keys)
        assert places == [("0", "0"), ("0", "0"), ("0", "1")]


def test_bytes_by_part(tmp_path):
    told, _, layers = model(tmp_path / "out", chain(tmp_path / "model.onnx", "a"), "rope=half")
    parts = re.search(r"bytes packed a layer: ([\d,]+) weights, ([\d,]+) tables of rope, 64 fingerprint\n", told)
    assert sum(int(part.replace(",", "")) for part in parts.groups()) + 64 == len(layers[0])
    assert "tables" not in model(tmp_path / "none", tmp_path / "model.onnx")[0]


def test_smaller_weights_are_proposed(tmp_path):
    path = chain(tmp_path / "half.onnx", "a", np.float16)
    told, _, _ = model(tmp_path / "f32", path)
    assert re.search(r"\n +the file has them as F16, 1,536 bytes a layer: weight_dtype=f16 packs fewer, ", told)
    for keys in ["weight_dtype=f16"], ["weight_dtype=int8"]:
        assert "the file has" not in model(tmp_path / keys[0], path, *keys)[0]
    assert "the file has" not in model(tmp_path / "full", chain(tmp_path / "full.onnx", "a"))[0]


def rotary(path, names, rows=4):
    """A file of grouped attention of one head, layer behind layer, each with the tables of its name."""
    numbers, constants, nodes, inputs = np.random.default_rng(7), {}, [], ["past_key", "past_value", "seqlens", "total"]
    for i, name in enumerate(names):
        constants[f"w{i}"] = numbers.standard_normal((D, 3 * D)).astype("f4")
        for table in "cos", "sin":
            constants.setdefault(table + name, numbers.standard_normal((rows, D // 2)).astype("f4"))
        nodes += [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"made{i}"]),
                  helper.make_node("GroupQueryAttention", [f"made{i}", "", "", *inputs, f"cos{name}", f"sin{name}"],
                                   [f"y{i}", "", ""], name=f"layer{i}", domain="com.microsoft", num_heads=1,
                                   kv_num_heads=1, do_rotary=1),
                  helper.make_node("Relu", [f"y{i}"], [f"x{i + 1}"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x0", TensorProto.FLOAT, (1, rows, D)),
                     *[helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 1, 0, D)) for name in inputs[:2]],
                     helper.make_tensor_value_info(inputs[2], TensorProto.INT32, (1,)),
                     helper.make_tensor_value_info(inputs[3], TensorProto.INT32, ())],
        [helper.make_tensor_value_info(f"x{len(names)}", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(x, name) for name, x in constants.items()])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]), path)
    return path


def test_tables_of_a_file_are_shared(tmp_path):
    """Layers with the same constants have one place in the file of tables, others another; their packed weights have
    none. `pack` makes the same files of a layer's matrices."""
    path, out = rotary(tmp_path / "model.onnx", "aab"), tmp_path / "out"
    told = run(MHAGEN, "model", path, "isa=scalar", "seq=4", "rope_tables=apart", "-o", out)
    assert re.findall(r'\{ "[\w.]+", (\d+), (\d+), (\d+) \}', (out / "model.c").read_text()) == [
        ("0", "0", "0"), ("0", "1", "0"), ("0", "2", "1")]
    (tables,), (packed,) = out.glob("*.tables"), out.glob("*.packed")
    size = int(re.search(r"([\d,]+) bytes of tables of rope, packed 2 times\n", told)[1].replace(",", ""))
    assert tables.stat().st_size == HEAD + 2 * size
    graph = onnx.load(path).graph
    for one in graph.initializer:
        np.save(tmp_path / f"{one.name}.npy", numpy_helper.to_array(one))
    for i, letter in enumerate("qkv"):
        np.save(tmp_path / f"w{letter}.npy", numpy_helper.to_array(graph.initializer[0])[:, i * D:(i + 1) * D].copy())
    config = re.search(r"h=1 .*", told)[0].split()
    files = [f"w{letter}={tmp_path}/w{letter}.npy" for letter in "qkv"]
    files += [f"rope_{table}={tmp_path}/{table}a.npy" for table in ("cos", "sin")]
    said = run(MHAGEN, "pack", *config, *files, "--layout", "in_out", "-o", tmp_path / "one.bin")
    assert re.search(rf"one\.tables: {size:,} bytes of tables of rope for \w+\n", said)
    assert (tmp_path / "one.tables").read_bytes()[HEAD:] == tables.read_bytes()[HEAD:HEAD + size]
    each = (packed.stat().st_size - HEAD) // 3
    assert (tmp_path / "one.bin").read_bytes()[HEAD:] == packed.read_bytes()[HEAD:HEAD + each]
    result = subprocess.run([MHAGEN, "pack", *config, *files, "-o", tmp_path / "x.tables"], capture_output=True,
                            text=True)
    assert result.stderr == "mhagen: -o: x.tables: is the name of the tables; name the packed weights otherwise\n"
