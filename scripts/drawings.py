#!/usr/bin/env python3
"""Draws docs/parts.svg and docs/loops.svg from the code: `scripts/drawings.py [DIR]`. It needs build/mhagen.

parts.svg has the folders of gen. An arrow leads to what a folder requires, unless another arrow leads there anyway.
What stands in a box is the beginning of the folder's line in docs/design.md.

loops.svg has the loops of one generated kernel, in the order of the run on one thread. A function's inside is drawn
where it, or one that differs from it in an epilogue, is called first. What runs only for rare scores is left out.
"""
import collections
import html
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MHAGEN = os.environ.get("MHAGEN", ROOT / "build/mhagen")
KERNEL = "h=12 d_model=384 dk=32 seq=128 isa=avx512 name=minilm".split()
RARE = r"rising|safe|rescale|shrink|stored"  # functions behind a test that ordinary scores pass
NAMES = {"hb": "blocks of heads", "g": "groups of queries", "tile": "register tiles", "panel": "panels of weights",
         "step": "rounds of K steps", "i": "K steps", "r": "rows of a register tile", "c": "vectors of a register tile",
         "block": "blocks of a transposition"}

STYLE = """  <style>
    text { font: 14px system-ui, sans-serif; fill: #1f2328; }
    .code { font: 600 13px ui-monospace, monospace; }
    .note { font-size: 12px; fill: #59636e; }
    rect { fill: #f6f8fa; stroke: #8c959f; }
    .loop { fill: #ddf4ff; stroke: #54aeff; }
    path { fill: none; stroke: #59636e; stroke-width: 1.2; marker-end: url(#tip); }
    .tip { fill: #59636e; }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3; }
      .note { fill: #9198a1; }
      rect { fill: #161b22; stroke: #656c76; }
      .loop { fill: #0c2d4d; stroke: #388bfd; }
      path { stroke: #9198a1; }
      .tip { fill: #9198a1; }
    }
  </style>
  <defs>
    <marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">
      <polygon class="tip" points="0,0 8,4 0,8"/>
    </marker>
  </defs>
"""
WIDTH = 890


def svg(height, title, shapes):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" '
            f'height="{height}" role="img"\n     aria-label="{title}">\n{STYLE}' + "\n".join(shapes) + "\n</svg>\n")


def text(x, y, words, kind):
    return f'  <text class="{kind}" x="{x}" y="{y}">{html.escape(words)}</text>'


def box(x, y, width, height, kind=""):
    kind = f' class="{kind}"' if kind else ""
    return f'  <rect{kind} x="{x}" y="{y}" width="{width}" height="{height}" rx="4"/>'


# ---- parts ----

def requires():
    """{ folder of gen: those that its files require }; main.lua is one, too."""
    found = collections.defaultdict(set)
    for path in (ROOT / "gen").rglob("*.lua"):
        own = "main.lua" if path.name == "main.lua" else path.parent.name
        for name in re.findall(r'require[ (]+"(\w+)', re.sub(r"--(?!\[\[).*", "", path.read_text())):
            if name != own and (ROOT / "gen" / name).is_dir():
                found[own].add(name)
    return {own: found[own] for own in [*found, *set().union(*found.values()) - set(found)]}


def reduced(graph):
    """The arrows without those that others imply."""
    def beyond(part):
        return graph[part].union(*map(beyond, graph[part]))
    return {part: sorted(others - set().union(*map(beyond, others))) for part, others in graph.items()}


def levels(graph):
    """Lists of parts; each requires those of lists before its own."""
    def level(part):
        return 1 + max(map(level, graph[part]), default=0)
    rows = collections.defaultdict(list)
    for part in sorted(graph):
        rows[level(part)].append(part)
    return [rows[i] for i in sorted(rows)]


def notes():
    """{ folder: what docs/design.md says first of it }"""
    listing = (ROOT / "docs/design.md").read_text().split("\n    gen/ ")[1].split("\n    templates/")[0]
    lines = re.findall(r"^      (\w+)/ +(.*?)(?=\n      \w|\Z)", listing, re.M | re.S)
    return {name: re.split(r"[;:,(.]", " ".join(words.split()))[0].strip() for name, words in lines}


def parts():
    graph, words = requires(), {"main.lua": "the command line", **notes()}
    rows, arrows, high, gap = levels(graph)[::-1], reduced(graph), 42, 26
    at, boxes, paths = {}, [], []
    for i, row in enumerate(rows):
        wide = (WIDTH - 40 - 30 * (len(row) - 1)) // max(3, len(row))
        start = (WIDTH - len(row) * wide - 30 * (len(row) - 1)) // 2
        for j, part in enumerate(row):
            x, y = start + j * (wide + 30), 14 + i * (high + gap)
            at[part] = x + wide // 2, y
            name = part if part == "main.lua" else f"{part}/"
            boxes += [box(x, y, wide, high), text(x + 10, y + 18, name, "code"),
                      text(x + 10, y + 35, words[part], "note")]
    for part, others in arrows.items():
        for other in others:
            (x, y), (x2, y2) = at[part], at[other]
            paths.append(f'  <path d="M{x},{y + high} C{x},{y + high + gap} {x2},{y2 - gap} {x2},{y2 - 2}"/>')
    return svg(14 + len(rows) * (high + gap), "Folders of the generator and what they require", sorted(paths) + boxes)


# ---- loops ----

def functions(source):
    """{ name: (comment, lines of the body) }"""
    source = re.sub(r" __attribute__\(\(\w+\)\)", "", source)
    pattern = r"^(?:/\* ([^/]*?) \*/\n)?static [^;{}=]*?\b(\w+)\([^;{}]*\) \{\n(.*?)^\}"
    return {name: (" ".join((comment or "").replace(" *", "").split()), body.split("\n"))
            for comment, name, body in re.findall(pattern, source, re.M | re.S)}


def family(name):
    """What functions share that differ in an epilogue, or in the length of a sum."""
    return re.sub(r"_(?:k\d+|add|final|first)(?=_|$)", "", name)


def tree(name, known, seen):
    """What a function does, as nested lists: (kind, words, note, inner), a loop or a call."""
    comment, body = known[name]
    top = []
    open_ = [(-1, top)]
    for line in body:
        indent = len(line) - len(line.lstrip())
        while line.strip() and open_[-1][0] >= indent:
            open_.pop()
        loop = re.match(r" *(?:UNROLL\(\d+\) )?for \(ptrdiff_t (\w+) = 0; \1 < ([^;]+); \+\+\1\) (\{?)(.*)", line)
        inside = open_[-1][1]
        if loop:
            inner = []
            inside.append(("loop", f"{loop[1]} < {loop[2]}", NAMES.get(loop[1], ""), inner))
            line, inside = loop[4], inner
            if loop[3]:
                open_.append((indent, inner))
        call = re.match(r" *(?:const \w+ \w+ = )?(\w+)\(", line)
        if call and call[1] in known and not re.search(RARE, call[1]):
            first = family(call[1]) not in seen
            seen.add(family(call[1]))
            inside.append(("call", call[1], known[call[1]][0], tree(call[1], known, seen) if first else []))
        if re.search(r"_fmadd_", line) and not any(kind == "fma" for kind, *_ in inside):
            inside.append(("fma", "multiply-add", "", []))
    return [part for part in top if does(part)]


def does(part):
    """Whether a part is a call or has one in it; loops of other statements are not drawn."""
    kind, _, _, inner = part
    inner[:] = [other for other in inner if does(other)]
    return kind != "loop" or bool(inner)


def drawn(part, x, y, shapes):
    """Adds the boxes of a part; returns where it ends."""
    kind, words, note, inner = part
    wide, top = WIDTH - 14 - x - x // 4, y
    at = len(shapes)
    words = f"for {words}" if kind == "loop" else words
    shapes += [text(x + 8, y + 16, words, "code")]
    if note:
        shapes.append(text(x + 20 + 8 * len(words), y + 16, note, "note"))
    y += 24
    for other in inner:
        y = drawn(other, x + 12, y, shapes) + 4
    y += 2 if inner else 0
    shapes.insert(at, box(x, top, wide, y - top, "loop" if kind == "loop" else ""))
    return y


def loops():
    with tempfile.TemporaryDirectory() as out:
        subprocess.run([MHAGEN, "gen", *KERNEL, "--quiet", "-o", out], check=True)
        known = functions((Path(out) / "minilm.c").read_text())
    shapes, y = [], 10
    for part in tree("run_entry", known, set()):
        y = drawn(part, 10, y, shapes) + 6
    return svg(y + 4, "The loops of a kernel for 12 heads of 32 and 128 rows, on AVX-512", shapes)


def main(folder):
    for name, draw in ("parts", parts), ("loops", loops):
        (folder / f"{name}.svg").write_text(draw())


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs")
