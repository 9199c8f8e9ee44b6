"""A hundred sentences ranked as one types: ids by the model's tokenizer, vectors by C (examples/embed/rank.c).

In a terminal each key ranks anew what is typed so far, until Enter. Without one the first line of search.txt is ranked.
Then come the times of the program and of ONNX Runtime, each on one thread and in turn. Exit status 1 when the two rank
other sentences first.
"""
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import kernels
import reference

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
BUCKETS, LONGEST = "16,48", 48  # ids
ROUNDS, BAR = 3, 40
FAST = "amx", "avx512_bf16"  # they multiply bf16


class Program:
    """The C program, which has read the texts."""

    def __init__(self, mhagen, model, texts, isa, dtype):
        self.name, folder = f"C, {isa}, {dtype}", ROOT / f"build/minilm-{dtype}"
        subprocess.run([mhagen, "model", model, "--whole", f"isa={isa}", f"dtype={dtype}", f"seq={BUCKETS}",
                        "-o", folder, "--quiet", "--force"], check=True)
        sources = [path for path in folder.glob("*.c") if not path.name.startswith(".")]
        subprocess.run(["cc", "-O2", "-I", folder, ROOT / "examples/embed/rank.c", *sources, "-lm", "-lpthread",
                        "-o", folder / "rank"], check=True)
        self.command, self.texts = [folder / "rank", folder / "model.packed", str(len(texts))], texts
        self.start()

    def start(self):
        began = time.perf_counter()
        self.child = subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for ids in self.texts[:-1]:
            self.ask(ids)
        self.ms = float(self.answer(self.texts[-1])) / 1e3  # of all texts
        self.ms_from_start = 1e3 * (time.perf_counter() - began)

    def ask(self, ids):
        self.child.stdin.write(" ".join(map(str, ids)) + "\n")

    def answer(self, ids):
        self.ask(ids)
        self.child.stdin.flush()
        return self.child.stdout.readline()

    def rank(self, ids):
        """Microseconds, and the nearest sentences with their cosines."""
        us, *pairs = self.answer(ids).split()
        return float(us), [(int(number), float(cosine)) for number, cosine in zip(pairs[::2], pairs[1::2])]

    def end(self):
        self.child.stdin.close()
        self.child.wait()


def lines_of(query, found, us, sentences):
    """What a screen shows of a query."""
    return [f"> {query}", *(f"  {cosine:6.3f}  {sentences[n]}" for n, cosine in found),
            f"  {us / 1e3:.2f} ms from ids to the nearest of {len(sentences)} sentences"]


def keys(prompt):
    """The keys that are typed behind the prompt, without waiting for the end of the line."""
    import termios
    import tty
    settings = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        print(prompt, end="", flush=True)
        while True:
            yield sys.stdin.read(1)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)


def type_queries(program, encode, sentences):
    """Ranks what is typed at each key."""
    query, shown = "", 0
    for key in keys("type a question; each key ranks the sentences anew, and Enter goes on\n\n> "):
        if key in "\n\r\x04\x1b" or not key:
            print()
            return
        query = query[:-1] if key in "\x7f\b" else query + key if key.isprintable() else query
        us, found = program.rank(encode(query))
        lines = lines_of(query, found, us, sentences)
        print(f"\r\x1b[{shown}A\x1b[J" if shown else "\r\x1b[J", "\n".join(lines), sep="", end="", flush=True)
        shown = len(lines) - 1


def bars(rows):
    """A bar for each time: what, milliseconds."""
    most = max(ms for _, ms in rows)
    return [f"  {what:<20} {'█' * max(1, round(BAR * ms / most)):<{BAR}} {ms:8.2f} ms" for what, ms in rows]


class OnnxRuntime:
    """The same by ONNX Runtime, in this process."""

    def __init__(self, model, texts):
        self.model, self.texts = model, texts
        self.start()
        self.name = self.session.name

    def start(self):
        began = time.perf_counter()
        self.session = reference.OnnxReference(self.model, attention=False, threads=1)
        made = time.perf_counter()
        self.vectors = np.array([self.session.embedding(ids) for ids in self.texts])
        self.ms, self.ms_from_start = (1e3 * (time.perf_counter() - since) for since in (made, began))

    def rank(self, ids):
        """The numbers of the texts by their cosines."""
        return np.argsort(-(self.vectors @ self.session.embedding(ids)), kind="stable").tolist()

    def end(self):
        pass


def compare(everyone):
    """Prints the times of the texts, in turn, of each the least."""
    alone, whole = ([[] for _ in everyone] for _ in range(2))
    for _ in range(ROUNDS):
        for i, one in enumerate(everyone):
            one.end()
            one.start()
            alone[i].append(one.ms)
            whole[i].append(one.ms_from_start)
    for times, what in (alone, "one thread"), (whole, "with the start of the program, or of the session"):
        print(f"\n{len(everyone[0].texts)} sentences, {what}; the least of {ROUNDS} in turn:")
        print("\n".join(bars([(one.name, min(of)) for one, of in zip(everyone, times)])))


def main(mhagen, model, tokenizer, isa):
    sentences = (HERE / "hundred.txt").read_text("utf-8").splitlines()
    query = (HERE / "search.txt").read_text("utf-8").splitlines()[0]

    tokenizer.enable_truncation(LONGEST)

    def encode(text):
        return tokenizer.encode(text).ids
    texts = [encode(sentence) for sentence in sentences]
    print(f"all-MiniLM-L6-v2 as one C program ({isa}, float32): ids by Python, vectors by C")
    program = Program(mhagen, model, texts, isa, "f32")
    if sys.stdin.isatty() and sys.stdout.isatty():
        type_queries(program, encode, sentences)
    us, found = program.rank(encode(query))
    print("\n".join(lines_of(query, found, us, sentences)))
    short = kernels.best_isa(mhagen, "bf16")
    programs = [program] + ([Program(mhagen, model, texts, short, "bf16")] if short in FAST else [])
    expected = OnnxRuntime(model, texts)
    compare([*programs, expected])
    nearest = expected.rank(encode(query))[:len(found)]
    for one in programs:
        one.end()
    good = nearest == [number for number, _ in found]
    print("ok: both rank the same sentences first" if good else f"FAILED: {expected.name} ranks {nearest} first")
    return 0 if good else 1
