#!/usr/bin/env python3
"""Changes one node of a recorded kernel, drawn by a seed, and shows that the checker sees it. Unlike
tests/mutate.py this needs no text of the generator's source.

  python3 tests/mutate_tape.py --count 200
  python3 tests/mutate_tape.py --count 20 --packing     changes of the list of packing
  python3 tests/mutate_tape.py --replay 'h=2 d_model=8 dk=4 seq=17' --isa avx2 --index 17
"""
import argparse
import collections
import pathlib
import random
import re
import sys
import tempfile
import time

import fuzz
from mutate import CONFIGS
from tools import ISAS
from tools import ROOT


KINDS = {"left out": ": no ", "operands": "exchanged operands", "arguments": "exchanged arguments",
         "address": "one float further", "loop": "one round less", "literal": "of the literal",
         "packing": "packing of "}


def outcome(config, isa, index, directory):
    """(what was changed, whether the checker failed): index 0 changes nothing."""
    program = directory / "mutant"
    program.write_text(f"#!/bin/sh\nexec {ROOT}/build/mhagen-mutant {index} \"$@\"\n")
    program.chmod(0o755)
    run = fuzz.Run(program, directory, 1, precompile=False)
    chains, missing = fuzz.toolchains(isa, ["gcc"])
    if not chains:
        sys.exit(f"mutate_tape: {missing}")
    item = fuzz.Item(fuzz.parse_config(config), isa, chains[0], 1)
    _, said = fuzz.execute([program, "gen", *config.split(), f"isa={isa}", "-o", directory / "text"])
    run.check([item])
    return (re.search(r"^mutant .*", said, re.M) or [said])[0], item.failed, item.detail


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--packing", action="store_true")
    parser.add_argument("--replay", metavar="CONFIG")
    parser.add_argument("--isa", default="avx2")
    parser.add_argument("--index", type=int, default=0)
    options = parser.parse_args()
    rng, caught, kinds = random.Random(options.seed), 0, collections.Counter()
    draws = [(options.replay, options.isa, options.index)] if options.replay else [
        (rng.choice(CONFIGS), rng.choice(ISAS), rng.randint(1, 10**6) * (-1 if options.packing else 1))
        for _ in range(options.count)]
    print(f"seed {options.seed}", flush=True)
    for config, isa, index in draws:
        with tempfile.TemporaryDirectory(prefix="mhagen-mutate-") as directory:
            text, failed, detail = outcome(config, isa, index, pathlib.Path(directory))
        caught += failed
        kind = next((kind for kind, words in KINDS.items() if words in text), "other")
        kinds[kind, failed] += 1
        print(f"{'caught' if failed else 'MISSED'} {text}  --replay '{config}' --isa {isa} --index {index}"
              + (f"\n  {detail}" if options.replay else ""), flush=True)
    for kind in [*KINDS, "other"]:
        if kinds[kind, True] + kinds[kind, False]:
            print(f"  {kind:20} {kinds[kind, True]} caught, {kinds[kind, False]} missed")
    print(f"{len(draws)} changes, {caught} caught, {len(draws) - caught} missed")
    return caught < len(draws)


if __name__ == "__main__":
    sys.exit(main())
