"""Comments of the sources are read once."""
import re

from tools import ROOT

MOST_WORDS = 35
LEADER = {".lua": r" *--", ".py": r" *#", ".c": r" */?\*(?!/)+", ".h": r" */?\*(?!/)+"}
SOURCES = [path for folder in "gen runtime python tests/check".split() for path in sorted((ROOT / folder).rglob("*"))
           if path.suffix in LEADER]


def paragraphs(text, leader):
    """Running text and rows of tables: a row is indented, and its other lines by 5 more at least."""
    found, column = [], None
    for line in text.split("\n") + [""]:
        match = re.match(leader + r"(?P<indent> *)(?P<text>.*)", line)
        if not match or not match["text"]:
            column = None
            continue
        at = len(match["indent"])
        if column is not None and (at == column < 2 or at > column + 4):
            found[-1] += " " + match["text"]
        else:
            found.append(match["text"])
            column = at
    return [paragraph.replace("*/", "") for paragraph in found]


def too_long(path):
    """Sentences of more than 35 words, and what a colon or a semicolon ends."""
    return [sentence for paragraph in paragraphs(path.read_text(), LEADER[path.suffix])
            for sentence in re.split(r"(?<=[.;:!?])\s", paragraph)
            if len(re.findall(r"[^\s]*\w[^\s]*", sentence)) > MOST_WORDS]


def test_sentences_of_comments_are_short():
    long = {str(path.relative_to(ROOT)): found for path in SOURCES if (found := too_long(path))}
    assert len(SOURCES) > 250 and not long


def test_long_sentences_of_comments_are_found(tmp_path):
    words = " ".join(["word"] * 18)
    texts = {"a.lua": f"-- {words}\n-- {words}", "b.c": f"/* {words}\n * {words} */", "c.h": f" * {words} {words}",
             "d.py": f"# {words}\n# {words}", "e.lua": f"--   name   {words}\n--          {words}"}
    for name, text in texts.items():
        path = tmp_path / name
        path.write_text(text)
        assert too_long(path), name
        path.write_text(text.replace(words, words + ";", 1))
        assert not too_long(path), name


def lost_names(path):
    """Files that comments name, and that are not there: from the root, gen, the file's folder, and some others."""
    comments = [match[1] for line in path.read_text().split("\n") if (match := re.search(r"(?:^| )--(.*)", line))]
    places = [ROOT, ROOT / "gen", path.parent, ROOT / "runtime", ROOT / "tests", ROOT / "examples"]
    named = re.findall(r"(?<![\w/.<])[a-z_0-9/]+\.(?:lua|py|c|h|c\.in|h\.in|md)\b(?!\.)", "\n".join(comments))
    return [name for name in named if not any((place / name).exists() for place in places)]


def test_comments_name_files_that_are_there(tmp_path):
    lost = {str(path.relative_to(ROOT)): found for path in SOURCES
            if path.suffix == ".lua" and (found := lost_names(path))}
    assert not lost
    path = tmp_path / "a.lua"
    path.write_text("-- emit/gemm.lua has tiles, emit/again.lua nothing.\nlocal M = {} -- docs/design.md\n")
    assert lost_names(path) == ["emit/again.lua"]
