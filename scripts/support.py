#!/usr/bin/env python3
"""Writes docs/support.md from the tables of the tests: `scripts/support.py [FILE.md]`.

A line of the page says what tests it, and a feature without a test is refused. A kernel that is counted is one of COVER
in tests/tools.py, which are compiled for every ISA, or of tests/golden/configs. What is drawn, tests/fuzz.py draws from
the rows of `mhagen schema --json`, and compares with the reference.
"""
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests"), str(ROOT / "tests/models")]

import architectures
import families
import gguf_models
import tools

HEAD = """# What is supported

Made by `scripts/support.py` from the tables of the tests; a test compares. The script refuses a feature that no test
has, so what stands here is tested, unless it says otherwise. The last column counts kernels of {count} fixed configs,
which have to compile without a warning for every ISA. Where it says "drawn", `tests/fuzz.py` draws configs with the
key, and covers all pairs of values of two keys. It compares each kernel with a reference in double precision.
"""

# Area, feature, and the parts of configs that it needs: a key with a value, or with any but its default.
FEATURES = [
    ("attention", "cross-attention", "attention=cross"),
    ("attention", "heads that share keys and values (GQA, MQA)", "h_kv"),
    ("attention", "different widths of keys and values", "dv"),
    ("attention", "different widths of the rows of Q, K, V and Y", "k_width v_width y_width"),
    ("attention", "only some projections, or none: scaled dot-product attention", "project"),
    ("attention", "arrays with the heads as the outer axis, as PyTorch has them", "layout=bhsd"),
    ("attention", "norms of queries and keys", "qk_norm=rms qk_norm=layer qk_norm=l2"),
    ("layer", "a norm of rows, before attention, after it, or both; or of the feed-forward alone",
     "norm=pre norm=post norm=sandwich norm=ffn norm_kind=rms"),
    ("layer", "the residual connection around attention", "residual"),
    ("layer", "a feed-forward behind attention, with or without a gate",
     "ffn ffn_act=gelu_tanh ffn_act=quick_gelu ffn_act=relu ffn_act=relu2 ffn_act=silu ffn_gate"),
    ("layer", "a feed-forward beside attention (GPT-J, Phi)", "parallel"),
    ("layer", "a product alone, with an activation function: patches of images, heads, poolers",
     "attention=none out_act=gelu out_act=relu out_act=silu out_act=tanh"),
    ("scores", "a scale of your own", "scale"),
    ("scores", "a softcap (Gemma 2)", "softcap"),
    ("scores", "sinks (gpt-oss)", "sink"),
    ("masks", "causal, aligned at either end", "causal causal_align=bottom_right"),
    ("masks", "sliding windows", "window_left window_right"),
    ("masks", "boolean masks, and additive ones such as a relative bias", "mask=bool mask=add"),
    ("masks", "a mask by key, query, head and batch entry, or by some of them", "mask_dims=k mask_dims=bhqk"),
    ("masks", "padding at the end or at the beginning, known at run time", "kv_len kv_start"),
    ("masks", "the number of rows, known at run time", "q_len"),
    ("masks", "a range of keys for each row: packed sequences, prefixes", "row_keys=range"),
    ("positions", "rotary embedding in halves or interleaved, of all columns or some",
     "rope=half rope=interleaved rope_dims"),
    ("positions", "tables of cosines and sines that layers share", "rope_tables=apart"),
    ("positions", "angles that a run gives: M-RoPE, two dimensions, trees of speculation", "rope_at=run"),
    ("positions", "ALiBi", "alibi"),
    ("caches", "a decoder's cache, to which each run adds rows", "cache=append"),
    ("caches", "an encoder's cache, filled once", "cache=fixed"),
    ("caches", "a layout that other programs read", "cache_layout=bhsd"),
    ("caches", "smaller rows", "cache_dtype=bf16 cache_dtype=f16 cache_dtype=int8"),
    ("results", "the attention weights of every head", "probs"),
    ("results", "scores before softmax: scaled, capped or masked", "scores=scaled scores=capped scores=masked"),
    ("numbers", "projections in bf16, f16 and int8", "dtype=bf16 dtype=f16 dtype=int8"),
    ("numbers", "attention in bf16 and f16", "attend_dtype=bf16 attend_dtype=f16"),
    ("numbers", "a feed-forward in another type than the projections",
     "ffn_dtype=f32 ffn_dtype=bf16 ffn_dtype=f16 ffn_dtype=int8"),
    ("numbers", "smaller weights",
     "weight_dtype=bf16 weight_dtype=f16 weight_dtype=int8 weight_dtype=int4 value_weight_dtype=int8"),
    ("numbers", "inputs and Y in bf16 and f16", "io_dtype=bf16 io_dtype=f16"),
    ("shapes", "several sequences in a call", "batch"),
]

# What somebody looks for, and does not find.
MISSING = [
    ("attention", "latent keys and values (MLA), values that share columns with keys, an output gate, norms of values, "
                  "norms after rotary embedding, clamped Q, K and V"),
    ("scores", "scores that depend on query and distance (Transformer-XL, Shaw, DeBERTa), temperature tuning by "
               "position (Llama 4)"),
    ("masks", "a bias by distance (T5), which you can write into a mask"),
    ("caches", "paged caches, ring buffers, int4, a cache that several layers share"),
    ("results", "dropout, gradients"),
    ("numbers", "attention in f16 by its own instructions"),
    ("shapes", "dynamic widths, and more than 65536 rows or sequences"),
    ("ISAs", "SVE, RISC-V, WebAssembly, and MSVC as a compiler"),
]


def configs():
    """The fixed kernels: { key: value }."""
    golden = (ROOT / "tests/golden/configs").read_text().splitlines()
    return [dict(word.split("=") for word in config.split()) for config in [*tools.COVER, *golden]]


def is_drawn(row, value):
    """Whether tests/fuzz.py draws a key with this value, or with any where it is none."""
    draw = row.get("draw")
    values = draw and [*draw.get("of", row.get("choices", ())), *draw.get("apart", ())]
    return draw is not None and (value is None or value in values)


def tested(part, rows, fixed):
    """How a part of a config is tested, in words."""
    key, _, value = part.partition("=")
    row = rows[key]
    if value and value not in row.get("choices", ()):
        sys.exit(f"support: {part}: the key has no such value")
    default = str(row.get("default", "")).lower()
    count = sum(config[key] == value if value else config[key] != default for config in fixed if key in config)
    drawn = is_drawn(row, value or None)
    if not count and not drawn:
        sys.exit(f"support: no test has {part}")
    return ", ".join([f"{count} kernel{'s' * (count > 1)}"] * (count > 0) + ["drawn"] * drawn)


def features(rows, fixed):
    lines = ["| | feature | keys | tested by |", "|---|---|---|---|"]
    for area, words, parts in FEATURES:
        parts = parts.split()
        found = [tested(part, rows, fixed) for part in parts]
        keys = ", ".join(f"`{part}`" for part in parts)
        lines.append(f"| {area} | {words} | {keys} | {'; '.join(dict.fromkeys(found))} |")
    return lines


def isas():
    lines = ["| ISA | instructions | products of | tested on |", "|---|---|---|---|"]
    for isa, facts in tools.FACTS.items():
        types = ", ".join(sorted(facts["products"], key=("f32", "bf16", "f16", "int8").index))
        other = tools.EMULATED.get(isa)
        where = "its CPU, or another with its instructions in plain C" if other else "its CPU"
        where = {None: "every machine", "aarch64": "its CPU, or qemu"}.get(facts.get("machine"), where)
        lines.append(f"| `{isa}` | {facts['title']} | {types} | {where} |")
    return lines


def types_of(pattern):
    """The kinds of models of files of families."""
    lists = [found for path in ROOT.glob(pattern) for found in re.findall(r"\btypes = \{([^}]*)\}", path.read_text())]
    return {kind for names in lists for kind in re.findall(r'"([^"]+)"', names)}


def gguf_of_tests():
    """The architectures of GGUF files that a test writes."""
    tree = ast.parse((ROOT / "tests/models/test_import.py").read_text())
    table, = (node.value for node in tree.body
              if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "GGUF")
    return {name.lower().replace("_", "-") for name in ast.literal_eval(table).values()} | {
        case.arch for case in gguf_models.ROWS}


def onnx_operators():
    """Those that gen/onnx reads as whole layers; tests/models/test_import_onnx.py draws each."""
    return re.findall(r'^operators\["(\S*) (\w+)"\]', (ROOT / "gen/onnx/operators.lua").read_text(), re.M)


def models():
    rows = architectures.ROWS + architectures.MORE + families.FAMILIES
    kinds = {row.kind for row in rows} | {*architectures.PARTS, *families.PARTS}
    known, gguf = types_of("gen/model/families*.lua"), types_of("gen/model/gguf_families.lua")
    untested = (known - kinds) | (gguf - gguf_of_tests())
    if untested:
        sys.exit(f"support: no test has these models: {', '.join(sorted(untested))}")

    def listed(names):
        return f"`{', '.join(sorted(names))}`"
    operators = listed(f"{name} of {domain or 'ai.onnx'}" for domain, name in onnx_operators())
    return ["| file | models | tested by |", "|---|---|---|",
            f"| a folder of transformers | {listed(known)} | the module in transformers, with drawn weights |",
            f"| GGUF | {listed(gguf)} | the same, or llama.cpp's formula, with a file that the package gguf writes |",
            f"| ONNX | {operators}; attention that is written out in MatMul and Softmax | drawn graphs in ONNX "
            "Runtime; besides, each import evaluates the graph beside the formula |"]


def unsupported():
    """What attention of other kinds of models has that a kernel has not, of gen/model/unsupported.lua."""
    text = (ROOT / "gen/model/unsupported.lua").read_text()
    lists = dict(re.findall(r"^M\.(\w+) = \{\n(.*?)^\}", text, re.M | re.S))
    known = {"transformers": types_of("gen/model/families*.lua"), "gguf": types_of("gen/model/gguf_families.lua")}
    table = ["| it has | types of transformers | architectures of GGUF |", "|---|---|---|"]
    found = {}
    for name, text in lists.items():
        for why, words in re.findall(r'\{ "([^"]*)",\s*((?:"[^"]*"(?: \.\.\s*)?)+)', text):
            kinds = "".join(re.findall(r'"([^"]*)"', words)).split()
            if both := known[name] & set(kinds):
                sys.exit(f"support: rows and gen/model/unsupported.lua both have {', '.join(sorted(both))}")
            found.setdefault(why, {})[name] = f"`{', '.join(kinds)}`"
    return table + [f"| {why} | {row.get('transformers', '')} | {row.get('gguf', '')} |" for why, row in found.items()]


def toolchains():
    text = (ROOT / "tests/toolchains/test_toolchains.py").read_text()
    rows = re.findall(r'^    "([^"|]+) \| ([^"]+)": Row\(', text, re.M)
    targets = {}
    for compiler, target in rows:
        targets.setdefault(target, []).append(compiler)
    return ["| target | compilers |", "|---|---|", *(f"| {target} | {'; '.join(list_)} |"
                                                     for target, list_ in targets.items())]


def page():
    rows, fixed = {row["key"]: row for row in tools.schema()}, configs()
    missing = ["| | missing |", "|---|---|", *(f"| {area} | {words} |" for area, words in MISSING)]
    parts = [("Features", features(rows, fixed), "[config.md](config.md) has all keys, with their ranges."),
             ("Missing", missing, "[when.md](when.md) names other tools."),
             ("Instruction sets", isas(), "Any of bf16, f16 and int8 works on any ISA: where it has no products of "
              "a type, its numbers\nare widened first. [number-types.md](number-types.md#speed) has the times."),
             ("Models", models(), "[models.md](models.md) has the keys of each, [import.md](import.md) what is read "
              "of a file."),
             ("Models whose attention no kernel computes", unsupported(),
              "They are refused by what they have. A module of PyTorch or an ONNX graph needs "
              "no row:\n[python.md](python.md), [import.md](import.md#onnx)."),
             ("Compilers and targets", toolchains(), "[toolchains.md](toolchains.md) has the ISAs and packages of "
              "each row.")]
    return HEAD.format(count=len(fixed)) + "".join(
        f"\n## {title}\n\n" + "\n".join(table) + f"\n\n{more}\n" for title, table, more in parts)


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/support.md").write_text(page())
