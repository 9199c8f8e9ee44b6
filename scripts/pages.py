#!/usr/bin/env python3
"""Writes the pages and pictures that are made of the code, or their parts; `ninja accept` calls it. Tests compare."""
import re
import subprocess
from pathlib import Path

import api
import drawings
import support

DOCS = Path(__file__).resolve().parent.parent / "docs"


def replaced(page, pattern, tables):
    """The text of a page with other tables in the place of those that match, one after the other."""
    text, rest = (DOCS / page).read_text(), iter(tables)
    text = re.sub(pattern, lambda _: next(rest), text, flags=re.M)
    if next(rest, None) is not None:
        raise SystemExit(f"pages: {page} has not all tables")
    return text


def main():
    drawings.main(DOCS)
    done = subprocess.run([drawings.MHAGEN, "schema", "--markdown"], text=True, check=True, stdout=subprocess.PIPE)
    keys = [f"{table.strip()}\n" for table in done.stdout.split("\n\n")]
    pages = {"api.md": api.page(), "support.md": support.page(),
             "config.md": replaced("config.md", r"^\| key \| values \| default .*\n(?:\|.*\n)+", keys),
             "models.md": replaced("models.md", r"^\| model \| `model_type` .*\n(?:\|.*\n)+",
                                   [support.architectures.table()])}
    for name, text in pages.items():
        (DOCS / name).write_text(text)


if __name__ == "__main__":
    main()
