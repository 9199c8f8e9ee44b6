#!/usr/bin/env python3
"""Writes tests/models/configs/transformers-VERSION.json: what the version of transformers that is installed saves of
the
configs of architectures.py, a row a line, and which fields all configs of the version have. Version 5 writes
tests/models/configs/defaults.json too: the config of each type without any field, a type a line."""
import json
import pathlib
import re

import transformers

import architectures
from families import FAMILIES, PARTS

ALL = architectures.ROWS + architectures.MORE + FAMILIES
TESTS = pathlib.Path(__file__).resolve().parent


def main():
    version = transformers.__version__
    base = getattr(transformers, "PreTrainedConfig", None) or transformers.PretrainedConfig
    rows = {row.name: plain(architectures.config_of(transformers, row).to_diff_dict())
            for row in ALL if row.since <= int(version.split(".")[0])}
    lines = [f"{json.dumps(name)}: {json.dumps(config)}" for name, config in rows.items()]
    path = TESTS / f"configs/transformers-{version}.json"
    path.parent.mkdir(exist_ok=True)
    text = ",\n".join(lines)
    path.write_text(f'{{"base": {json.dumps(base().to_dict())},\n"rows": {{\n{text}}}}}\n')
    if version.startswith("5."):
        kinds = sorted({row.kind for row in ALL} | {*architectures.PARTS, *PARTS})
        lines = [f"{json.dumps(kind)}: {json.dumps(defaults(kind))}" for kind in kinds]
        (path.parent / "defaults.json").write_text("{\n%s}\n" % ",\n".join(lines))


def plain(config):
    """Version 5 has a text for a number that is infinite."""
    encoded = getattr(transformers.PretrainedConfig, "_encode_special_floats", None)
    return encoded(config) if encoded else config


def defaults(kind):
    """The fields of a type's config that may be of use: numbers, and what is null, a list or an object."""
    config = plain(transformers.AutoConfig.for_model(kind).to_dict())
    return {name: value for name, value in config.items()
            if not isinstance(value, str) and not re.search("token|label|version|pruned|_list|_dict|out_|bad_", name)}


if __name__ == "__main__":
    main()
