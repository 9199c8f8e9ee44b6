#!/usr/bin/env python3
"""Writes docs/api.md from runtime/mhagen.h and templates/kernel.h.in: `scripts/api.py [FILE.md]`.

A block of the header is a comment and the declarations behind it, up to an empty line. What only generated code calls
is left out.
"""
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEAD = """# The C interface

Made of [runtime/mhagen.h](../runtime/mhagen.h) and of the header of a kernel by `scripts/api.py`; a test compares.
[generated-c.md](generated-c.md) explains, this page lists.
"""


def blocks(text):
    """(comment, declarations) of each block that declares something."""
    for block in re.findall(r"^/\*.*?(?=\n\n|\Z)|^typedef.*?(?=\n\n|\Z)", text, re.M | re.S):
        found = re.match(r"(/\*.*?\*/\n)?(.*)", block, re.S)
        comment, code = found[1] or "", found[2].replace("MHAGEN_API ", "").replace("MHAGEN_API\n", "").strip()
        comment = " ".join(re.sub(r"^(?:/\*| \*/| \*)", "", line).strip() for line in comment.splitlines())
        comment = comment.removesuffix("*/").strip()
        if re.match(r"typedef|[\w ]+\*?\w+\(|const|extern", code):
            yield comment, code


def name_of(code):
    found = re.search(r"^typedef (?:enum|struct) (\w+)|\b(\w+)(?:\(|;)", code)
    return found[1] or found[2]


def section(title, text):
    out = [f"## {title}\n"]
    for comment, code in blocks(text):
        out.append(f"### `{name_of(code)}`\n")
        if comment:
            text = re.sub(r"([*<])(?=\w)", r"\\\1", comment)
            out.append(textwrap.fill(text, 118, break_on_hyphens=False) + "\n")
        out.append(f"```c\n{code}\n```\n")
    return out


def page():
    header = (ROOT / "runtime/mhagen.h").read_text().split('extern "C" {\n#endif\n')[1]
    header = re.sub(r"/\* For generated code: a list of fills.*?(?=/\* Instruction sets)", "", header, flags=re.S)
    kernel = (ROOT / "templates/kernel.h.in").read_text().split('extern "C" {\n#endif\n')[1]
    kernel = kernel.replace("${known_answer}", (ROOT / "templates/known_answer.h.in").read_text())
    kernel = kernel.replace("${pack_tables}", (ROOT / "templates/pack_tables.h.in").read_text())
    kernel = re.sub(r"\$\{\w*name\}", "N", re.sub(r"\$\{fill_declaration\}", "", kernel).replace("${NAME}", "N"))
    words = {"inputs": "inputs", "stack": "a stated number of", "isa": "its instruction set",
             "packed_bytes": "N_PACKED_BYTES", "tables_bytes": "N_TABLES_BYTES", "bytes": ""}
    kernel = re.sub(r"\$\{(\w+)\}", lambda found: words[found[1]], kernel.split("/* Packs", 1)[1])
    return "\n".join([HEAD, *section("Of a kernel, N being its name", "/* Packs" + kernel),
                      *section("Of the runtime", header)])


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/api.md").write_text(page())
