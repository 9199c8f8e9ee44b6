#!/usr/bin/env python3
"""Writes tests/configs/transformers-VERSION.json: what the version of transformers that is installed saves of the
configs of architectures.py, a row a line, and which fields all configs of the version have."""
import json
import pathlib

import transformers

import architectures

TESTS = pathlib.Path(__file__).resolve().parent


def main():
    version = transformers.__version__
    base = getattr(transformers, "PreTrainedConfig", None) or transformers.PretrainedConfig
    rows = {row.name: architectures.config_of(transformers, row).to_diff_dict()
            for row in architectures.ROWS + architectures.MORE if row.since <= int(version.split(".")[0])}
    lines = [f"{json.dumps(name)}: {json.dumps(config)}" for name, config in rows.items()]
    path = TESTS / f"configs/transformers-{version}.json"
    path.parent.mkdir(exist_ok=True)
    text = ",\n".join(lines)
    path.write_text(f'{{"base": {json.dumps(base().to_dict())},\n"rows": {{\n{text}}}}}\n')


if __name__ == "__main__":
    main()
