#!/usr/bin/env python3
"""Proposes a row of gen/model/families*.lua for a type of transformers: `scripts/propose.py TYPE [FIELD=VALUE ...]`.

A model of the type is made with small sizes and drawn weights, and exported as mhagen.torch does it. `mhagen model`
finds the attention in its graph, and proves the keys of each layer. Then one field of the config after another gets
another value: which key follows it says what the field means. Last comes what changed nothing, and what changed
something that no formula here explains. A person reads all of it: a field may matter beside another one only.

FIELD=VALUE sets a field to a number or another literal, such as text_config.hidden_size=32. --class has the name of a
class of transformers instead of AutoModel; --input NAME=1,3,12,12 draws an input of a model that asks for others.
"""
import argparse
import ast
import inspect
import re
import sys
import tempfile

import small_models  # finds mhagen and its program
import torch
from small_models import ROOT, Tiny, layers_of, plain_fields, small_fields

from mhagen import _build

SIZES = dict(layers="num_hidden_layers", h="num_attention_heads", h_kv="num_key_value_heads", d_model="hidden_size",
             dk="head_dim")  # the fields that rows have without a word
NUMBERS = "numbers of the weights or of rope"
BESIDE = re.compile(r"dropout|token_id|initializer|^(architectures|dtype|transformers_version|model_type|use_cache|"
                    r"id2label|label2id|torchscript|output_\w*|return_dict|vocab_size|is_encoder_decoder|problem_type|"
                    r"chunk_size_feed_forward|tie_word_embeddings|_\w*)$")  # of what is not in a layer, or of training


# ---- what the fields mean ----

FORMULAS = [("{}", lambda x, h: x), ("{} - 1", lambda x, h: x - 1), ("{} // 2", lambda x, h: x // 2),
            ("{} ^ -0.5", lambda x, h: x ** -0.5), ("1 / {}", lambda x, h: 1 / x),
            ("math.floor(sizes.dk * {})", lambda x, h: int(x * int(h["dk"])))]


def others(value):
    """Values that a field may have instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value, value // 2] if value else [1]
    if isinstance(value, float):
        return [value / 2] if value else [0.5]
    if value is None:
        return [3, True, 2.5]
    kinds = ["full_attention", "sliding_attention"]
    return [[kinds[kinds[0] == each] if each in kinds else each for each in value], value[::-1]]


def moved(before, after):
    """{ (layer, key): (before, after) }; `layers` counts those of a stack, by their pattern."""
    stacks = [{of: len(names) for of, names in stacks_of(layers).items()} for layers in (before, after)]
    found = {(of, "layers"): (stacks[0].get(of), stacks[1].get(of)) for of in {**stacks[0], **stacks[1]}
             if stacks[0].get(of) != stacks[1].get(of)}
    for at in before.keys() & after.keys():
        old, new = before[at].keys, after[at].keys
        found |= {(at, key): (old.get(key), new.get(key)) for key in {**old, **new} if old.get(key) != new.get(key)}
    return found or {(at, NUMBERS): (None, None) for at in before if before[at].numbers != after[at].numbers}


def effects_of(kind, fields, of="AutoModel", given=None, only=()):
    """{ path: (before, after, moved) }; the fields that change no attention; { path: why } of those without an
    answer."""
    tiny = Tiny(kind, fields, of, given)
    layers, base, found, nothing, failed = layers_of(tiny)[0], tiny.results(), {}, [], {}
    for path, value in plain_fields(tiny.config.to_dict()).items():
        if BESIDE.search(path.rpartition(".")[2]) or only and path not in only:
            continue
        errors, ran = [], False
        for other in [] if isinstance(value, str) else others(value):
            try:
                changed = Tiny(kind, {**fields, path: other}, of, given)
                results = changed.results()
                alike = results.keys() == base.keys() and all(torch.equal(y, results[name]) for name, y in base.items())
                change, ran = {} if alike else moved(layers, layers_of(changed)[0]), True
            except Exception as error:  # models raise anything
                errors.append(f"{other!r}: {type(error).__name__}: {str(error).splitlines()[:1]}")
                continue
            if change:
                found[path] = value, other, change
                break
        if path not in found and ran:
            nothing.append(path)
        elif path not in found:
            failed[path] = errors[0] if errors else f"not tried, {value!r}"
    return found, nothing, failed


# ---- the row ----

def stacks_of(layers):
    """{ pattern: names of layers }"""
    found = {}
    for at in layers:
        found.setdefault(re.sub(r"\d+", "N", at), []).append(at)
    return found


def common(names):
    """Their pattern, with %d for a number that is not the same in all."""
    return "".join(parts[0] if len({*parts}) == 1 and len(names) > 1 or not parts[0].isdigit() else "%d"
                   for parts in zip(*(re.split(r"(\d+)", name) for name in names)))


def shape_names():
    """{ maps: name } of gen/model/family_shapes.lua."""
    text = (ROOT / "gen/model/family_shapes.lua").read_text()
    return {tuple(re.findall(r'"([^"]+)"', maps)): name
            for name, maps in re.findall(r'^M\.([A-Z_]+) = \{ ("[^={}]*") \}', text, re.M)}


def explained(found, key, names, keys):
    """What moves a key of some layers: { field: formula }, with no formula where none holds before and after."""
    def holds(formula, value, wanted):
        try:
            return abs(float(wanted) / formula(value, keys) - 1) < 1e-5
        except (TypeError, ValueError, ZeroDivisionError):
            return False
    moves = {}
    for path, (before, after, change) in found.items():
        pairs = [pair for (at, of), pair in change.items() if of == key and at in names]
        if pairs:
            moves[path] = next((text for text, of in FORMULAS if holds(of, after, pairs[0][1]) and (
                None in (before, pairs[0][0]) or holds(of, before, pairs[0][0]))), None)
    return moves


def keys_text(keys, moves, padded):
    """The keys of a stack in Lua, with those that a formula of a field gives with another value of it only."""
    parts = ["CROSS"] * ("attention" in keys) + ["CAUSAL"] * ("causal" in keys)
    parts += ["PADDED"] * (padded and "causal" not in keys) + [f'rope "{keys[key]}"' for key in keys if key == "rope"]
    rest = []
    for key in sorted({*moves} - {*SIZES, NUMBERS, "biases", "causal", "attention", "rope"}):
        field, formula = next(((path, text) for path, text in moves[key].items() if text), (None, None))
        if formula:
            rest.append(f"{key} = " + formula.format(f'c:number "{field}"'))
        elif key in keys:
            value = keys[key] if re.fullmatch(r"[-\d.e]+|true", keys[key]) else f'"{keys[key]}"'
            rest.append(f"{key} = {value}")
    if rest:
        own = f"{{ {', '.join(rest)} }}"
        parts.append(f"function(c, i, sizes) return {own} end" if "c:" in own else f"always {own}")
    return parts[0] if len(parts) == 1 else f"joined({', '.join(parts)})" if parts else "always {}"


def stack_text(layers, names, found, padded):
    """A stack in Lua, with what moves its keys behind it."""
    first = layers[names[0]]
    keys = {key: value for at in names for key, value in layers[at].keys.items()}
    of = re.sub(r"\d+", "N", first.at)
    every = dict.fromkeys([*keys, "layers", NUMBERS, *(key for _, _, change in found.values() for at, key in change
                                                       if at in names)])
    moves = {key: explained(found, key, [of, *names], keys) for key in every}
    more = [f'{key} = "{path}"' for key, usual in SIZES.items() for path, text in moves.get(key, {}).items()
            if text == "{}" and path != usual and (key != "h_kv" or keys["h_kv"] != keys["h"])]
    more += ["in_out = true"] * first.in_out
    if first.norms:
        more.append("more = { %s }" % ", ".join(f'{key} = "{name}"' for key, name in sorted(first.norms.items())))
    maps = shape_names().get(first.maps) or "{ %s }" % ", ".join(f'"{name}"' for name in first.maps)
    lines = [f'stack("{common(names)}", {maps}, {keys_text(keys, moves, padded)}' +
             (f", {{ {', '.join(more)} }})" if more else ")")]
    for key, fields in moves.items():
        values = [layers[at].keys.get(key, "none") for at in names]
        value = values[0] if len({*values}) == 1 else f"by layer {', '.join(values)}"
        by = [f"{path} moves it" + ("" if text else f", {found[path][0]!r} -> {found[path][1]!r}")
              for path, text in fields.items()]
        lines += ["  -- " + "; ".join([key if key in ("layers", NUMBERS) else f"{key} = {value}", *by])] * (
            bool(by) or key == "biases" or len({*values}) > 1)
    return "\n    ".join(lines)


def of_rows(tiny):
    """What the rows that exist read of the model, in a line."""
    with tempfile.TemporaryDirectory() as folder:
        tiny.model.save_pretrained(folder)
        try:
            text = _build.ask("model", folder, "isa=scalar", f"seq={small_models.ROWS}", "-o", f"{folder}/out")
        except ValueError as error:
            return str(error).splitlines()[0].replace(f"{folder}/", "")
    return "rows exist of " + ", ".join(re.findall(r"^  \d+ +(\S.*)$", text, re.M))


def sees_padding(tiny):
    """Whether results of the first row change with a mask of the last keys."""
    if "attention_mask" not in inspect.signature(tiny.model.forward).parameters or "input_ids" not in tiny.given:
        return False
    before, mask = tiny.results(), torch.ones(tiny.given["input_ids"].shape, dtype=torch.long)
    mask[:, -3:] = 0
    after = tiny.results(attention_mask=mask)
    return any(not torch.equal(y[:, :1], after[name][:, :1]) for name, y in before.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("type")
    parser.add_argument("fields", nargs="*", metavar="FIELD=VALUE")
    parser.add_argument("--class", dest="of", default="AutoModel")
    parser.add_argument("--input", action="append", default=[], metavar="NAME=SHAPE")
    args = parser.parse_args()
    fields = small_fields(args.type)
    fields |= {name: ast.literal_eval(value) for name, value in (each.split("=", 1) for each in args.fields)}
    given = {name: torch.zeros(shape, dtype=torch.long) if "ids" in name else torch.randn(shape)
             for name, shape in ((name, [*map(int, shape.split(","))])
                                 for name, shape in (each.split("=", 1) for each in args.input))}
    try:
        tiny = Tiny(args.type, fields, args.of, given)
        layers, left = layers_of(tiny)
    except Exception as error:  # models raise anything
        sys.exit(f"propose: {type(error).__name__}: {error}")
    found, nothing, failed = effects_of(args.type, fields, args.of, given)
    padded = sees_padding(tiny)
    stacks = [stack_text(layers, names, found, padded) for names in stacks_of(layers).values()]
    print(f'  {{ types = {{ "{args.type}" }}, stacks = {{\n    ' + ",\n    ".join(stacks) + "\n  } },")
    print(of_rows(tiny))
    print("nothing in attention:", " ".join(nothing))
    for name, why in {**failed, **{f"softmax {name}": why for name, why in left.items()}}.items():
        print(f"not explained: {name}: {why}")


if __name__ == "__main__":
    main()
