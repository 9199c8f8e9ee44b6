#!/usr/bin/env python3
"""Proposes rows of gen/model/families*.lua from a table of what models of transformers were seen to compute, which a
person then reads beside the source of each model: `scripts/propose.py TABLE.tsv [TYPE ...]`.

The table has the columns type, row, fit and fit_calls, whose calls stand as "MODULE CLASS [FEATURE, ..] {MAP=NAME ..}",
with N for the number of a layer, and "; " between them. A row is proposed where fit is "fits" and the type has none.
"""
import csv
import re
import sys

CALL = re.compile(r"(?P<at>\S+) (?P<kind>\w+) \[(?P<features>[^\]]*)\](?: \{(?P<maps>[^}]*)\})?")
# What keys say of a feature; all others are printed for the reader.
KEYS = [(r"mask causal window \d+", "k.window(...)"), (r"mask causal", None), (r"softcap", "k.softcapped"),
        (r"[qk]: rope (half|interleaved)( \d+/\d+)?", r'rope("\1"\2)'), (r"[qk]: norm rms/head", "k.rms"),
        (r"scale [\d.]+", "always { scale = ... }"), (r"mask none|plain", None)]


def keys_of(features):
    """Keys for the features, and what has none."""
    keys, rest = [], []
    for feature in filter(None, (text.strip() for text in features.split(","))):
        for pattern, key in KEYS:
            found = re.fullmatch(pattern, feature)
            if found:
                part = found.lastindex and found.lastindex > 1 and ", { part = ... }"
                keys.append(key and found.expand(key).split(" ")[0].removesuffix(")") + (part or "") + ")"
                            if key and key.startswith("rope") else key)
                break
        else:
            rest.append(feature)
    return [key for key in dict.fromkeys(keys) if key], rest


def proposal(kind, calls):
    lines = []
    for call in calls.split("; "):
        found = CALL.match(call)
        if not found:
            lines.append(f"  -- not read: {call}")
            continue
        maps = dict(word.split("=") for word in (found["maps"] or "").split())
        keys, rest = keys_of(found["features"])
        causal = "CAUSAL" if "mask causal" in found["features"] else "PADDED or always {}"
        names = ", ".join(f'"{maps.get(letter, "?").rsplit(".", 1)[-1]}"' for letter in "qkvo")
        at, told = found["at"].replace(".N.", ".%d."), f"; see to: {', '.join(rest)}" if rest else ""
        lines.append(f'  stack("{at}", {{ {names} }}, joined({", ".join([causal, *keys])})),  -- {found["kind"]}{told}')
    return "\n".join([f'{{ types = {{ "{kind}" }}, stacks = {{', *lines, "} },"])


def main():
    path, kinds = sys.argv[1], set(sys.argv[2:])
    with open(path, newline="") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if row["type"] in kinds or not kinds and row["row"] == "no" and row["fit"] == "fits":
                print(proposal(row["type"], row["fit_calls"]))


if __name__ == "__main__":
    main()
