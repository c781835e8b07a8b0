"""Private words stay out of identifiers and prose; tests/vocabulary.yaml has them as data."""

import io
import re
import tokenize
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
SUFFIXES = (".py", ".md", ".yaml", ".toml", "")
WORDS = yaml.safe_load((ROOT / "tests" / "vocabulary.yaml").read_text())


def private(text: str, where: str) -> list[str]:
    text = re.sub("|".join(WORDS["standard_uses"]), " ", text)
    if where == "identifiers":
        text = re.sub(r"_|(?<=[a-z])(?=[A-Z])", " ", text)
    return re.findall(rf"\b(?:{'|'.join(WORDS[where].split())})\b", text, re.IGNORECASE)


def private_words(path: Path) -> list[str]:
    text = path.read_text()
    if path.suffix == ".md":
        return private(re.sub(r"(?s)<!--.*?-->|```.*?```|`[^`]*`|\]\([^)]*\)", " ", text), "prose")
    if path.suffix != ".py":
        return private("\n".join(re.findall("#.*", text)), "prose")
    tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    names, prose = (
        " ".join(token.string for token in tokens if token.type in types)
        for types in ((tokenize.NAME, tokenize.OP), (tokenize.STRING, tokenize.COMMENT))
    )
    return private(names, "identifiers") + private(prose, "prose")


@pytest.mark.parametrize("pattern", WORDS["files"])
def test_private_words_do_not_occur(pattern):
    paths = [file for file in ROOT.glob(pattern) if file.suffix in SUFFIXES and file.is_file()]
    assert paths and not {file: words for file in paths if (words := private_words(file))}


@pytest.mark.parametrize("name", ["planted.py", "planted.md", "planted.yaml"])
def test_private_words_are_detected(name, tmp_path):
    (tmp_path / name).write_text("# What the room is.\ntoldOf = 1\n")
    assert private_words(tmp_path / name) == ["told"] * name.endswith("py") + ["room"]
