#!/usr/bin/env python3
"""Whether two versions of the generator write the same C: for steps that only move code.

  python3 tests/same_text.py --save old.json                what the generator writes now, as digests
  python3 tests/same_text.py --compare old.json             where it writes something else
  python3 tests/same_text.py --compare old.json --diff OLD  the same, and the first difference from program OLD

The configs are those of the golden texts, of the suite, of COVER, and --count random ones. A config
that is refused counts with its message.
"""
import argparse
import concurrent.futures
import hashlib
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import fuzz
from tools import COVER, ISAS, MHAGEN, ROOT, SUITE, schema


def configs(count, seed):
    rng = random.Random(seed)
    golden = [line.split(" isa=")[0] for line in (ROOT / "tests/golden/configs").read_text().splitlines()]
    unnamed = [" ".join(word for word in line.split() if not word.startswith("name=")) for line in golden]
    drawn = [fuzz.text(fuzz.random_config(rng, schema())) for _ in range(count)]
    return list(dict.fromkeys([*unnamed, *COVER, *(config for _, config in SUITE), *drawn]))


def write(program, config, isa, out):
    """{name: text} of the files, or the message of the refusal."""
    command = [str(program), "gen", *config.split(), f"isa={isa}", "name=kernel", "-o", str(out)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if result.returncode:
        return {"refused": result.stderr}
    return {name: (out / name).read_text() for name in ("kernel.h", "kernel.c")}


def without_comments(text):
    return "\n".join(line for line in re.sub(r"/\*.*?\*/", "", text, flags=re.S).splitlines() if line.strip())


def digest(program, config, isa):
    """Of the texts, and of their code alone."""
    with tempfile.TemporaryDirectory() as out:
        texts = write(program, config, isa, pathlib.Path(out))
    code = {name: without_comments(text) for name, text in texts.items()}
    return [hashlib.sha256(json.dumps(files).encode()).hexdigest() for files in (texts, code)]


def show_difference(old, config, isa):
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        for program, out in (old, one), (MHAGEN, two):
            for name, text in write(program, config, isa, pathlib.Path(out)).items():
                (pathlib.Path(out) / name).write_text(text)
        lines = subprocess.run(["diff", "-ru", one, two], capture_output=True, text=True).stdout.splitlines()
        print("\n".join(lines[:40]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--save", metavar="FILE", help="write the digests")
    what.add_argument("--compare", metavar="FILE", help="compare with digests")
    parser.add_argument("--count", type=int, default=400, help="random configs (default: 400)")
    parser.add_argument("--seed", type=int, default=1, help="that draws them (default: 1)")
    parser.add_argument("--isa", default=",".join(ISAS), help="default: all")
    parser.add_argument("--code", action="store_true", help="comments may differ")
    parser.add_argument("--diff", metavar="OLD", help="the program that wrote the digests")
    args = parser.parse_args()
    jobs = [(config, isa) for config in configs(args.count, args.seed) for isa in args.isa.split(",")]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        made = pool.map(lambda job: digest(MHAGEN, *job), jobs)
        digests = {f"{config} isa={isa}": value for (config, isa), value in zip(jobs, made)}
    if args.save:
        pathlib.Path(args.save).write_text(json.dumps(digests, indent=0))
        return 0
    saved = json.loads(pathlib.Path(args.compare).read_text())
    known = [job for job in digests if job in saved]
    others = [job for job in known if digests[job][args.code] != saved[job][args.code]]
    for job in others[:10]:
        print(job)
    print(f"{len(known)} texts compared, {len(others)} differ")
    if others and args.diff:
        config, isa = others[0].rsplit(" isa=", 1)
        show_difference(args.diff, config, isa)
    return len(others) > 0 or not known


if __name__ == "__main__":
    sys.exit(main())
