#!/usr/bin/env python3
"""Inputs against the host: libFuzzer changes those of tests/corpus, and looks for memory errors, undefined
behaviour, internal errors, messages of more than a line, and what takes too long or too much memory.

  python3 tests/fuzz_host.py --seconds 60                          every target, each a minute
  python3 tests/fuzz_host.py --target grid --seconds 600 --seed 7  one of them

tests/host/host_fuzz.lua has the targets. What they find is kept in build/fuzz, where the next run begins. An
input that fails is left there too, and printed as the command to replay it.
"""
import argparse
import concurrent.futures
import os
import re
import resource
import subprocess
import sys

from tools import ROOT, seed_of

PROGRAM = ROOT / "build/host-fuzz"
CORPUS = ROOT / "tests/corpus"
TARGETS = [path.name for path in sorted(CORPUS.iterdir())]
LIMITS = ["-max_len=4096", "-timeout=120", "-rss_limit_mb=2048", "-malloc_limit_mb=1024",
          "-detect_leaks=0"]  # after each input, it would take most of the time: the state stays as it is


def words():
    """A dictionary for libFuzzer: the keys of a config, and the words of Lua and of the command line."""
    usage = "".join(subprocess.run([ROOT / "build/mhagen", command, "--help"], capture_output=True,
                                   text=True, check=True).stdout for command in ("gen", "sweep", "report"))
    found = set(re.findall(r"^  (\w+) +\S", usage, re.M)) | set(re.findall(r"--[\w-]+", usage))
    found |= {"return", "function", "local", "end", "where", "configs", "true", "false", "for", "string",
              "scalar", "avx2", "avx512", "neon", "self", "cross", "auto", "status", "us_median", "schedule"}
    return "".join(f'"{word}"\n' for word in sorted(found))


def fuzz(target, options, dictionary):
    """Whether nothing was found."""
    found = ROOT / "build/fuzz" / target
    found.mkdir(parents=True, exist_ok=True)
    result = subprocess.run(
        [PROGRAM, *LIMITS, f"-max_total_time={options.seconds}", f"-seed={options.seed}",
         f"-dict={dictionary}", f"-artifact_prefix={found.parent}/{target}-", "-print_final_stats=1",
         found, CORPUS / target], env={**os.environ, "MHAGEN_FUZZ": target}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
    inputs = re.search(r"number_of_executed_units: (\d+)", result.stdout)
    bad = re.search(r"Test unit written to (.*(?:crash|timeout|oom|leak)-.*)", result.stdout)
    good = result.returncode == 0 and not bad
    print(f"{target:7} {int(good)} ok, {int(not good)} failed: "
          f"{inputs[1] if inputs else '?'} inputs, seed {options.seed}", flush=True)
    if not good:
        why = re.search(r"^.*(?:host_fuzz: |ERROR: |runtime error: )(?:.*\n){40}", result.stdout, re.M)
        print(why[0] if why else result.stdout[-3000:])
    if bad:
        print(f"replay: MHAGEN_FUZZ={target} build/host-fuzz {' '.join(LIMITS)} {bad[1]}", flush=True)
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=int, default=60, help="for each target")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this one")
    parser.add_argument("--seed", type=int, default=seed_of(), help="default: a fresh one, or by MHAGEN_SEED")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    dictionary = ROOT / "build/fuzz/words"
    dictionary.parent.mkdir(exist_ok=True)
    dictionary.write_text(words())
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        good = all(list(pool.map(lambda target: fuzz(target, options, dictionary),
                                 options.target or TARGETS)))
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"fuzzing the host: {used.ru_utime + used.ru_stime:.0f} CPU seconds")
    return not good


if __name__ == "__main__":
    sys.exit(main())
