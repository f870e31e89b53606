"""docs/GLOSSARY.md: one line per term, what a line refers to is there, and names in the code keep to it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from shoal.config import GROUPS, Config

ROOT = Path(__file__).parent.parent
TEXT, PLACES = (ROOT / "docs" / "GLOSSARY.md").read_text().split("## One word, one idea")
LINES = [line for line in TEXT.splitlines() if line.startswith("| ") and line != "| term | meaning |"]
TERMS = [term for line in LINES for term in line.split(" | ")[0].removeprefix("| ").split(", ")]
RULED = {
    word: re.findall(r"`([\w/]+)`", places) for word, places in re.findall(r"^\| (\w+) \| (.*`.*) \|$", PLACES, re.MULTILINE)
}


def test_every_term_has_one_line() -> None:
    assert len(TERMS) > 90
    assert [term for term in sorted(set(TERMS)) if TERMS.count(term) > 1] == []
    assert [line for line in LINES if line.count(" | ") != 1] == []


def test_every_term_that_a_line_refers_to_is_there() -> None:
    italic = {term for line in LINES for term in re.findall(r"(?<!\*)\*([a-z ]+)\*(?!\*)", line)}
    assert italic
    assert {term for term in italic if term not in TERMS and term.removesuffix("s") not in TERMS} == set()


@cache
def names() -> list[tuple[str, str, set[str]]]:
    """Where a name stands, the name, and its words in the singular: of all modules, classes, settings and groups."""
    return list(_names())


def _names() -> Iterator[tuple[str, str, set[str]]]:
    for path in sorted((ROOT / "shoal").rglob("*.py")):
        place = str(path.relative_to(ROOT / "shoal").with_suffix(""))
        yield place, path.stem, words(path.stem)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield place, node.name, words(node.name)
    for name in (*Config.__struct_fields__, *GROUPS):
        yield "config", name, words(name)


def words(name: str) -> set[str]:
    parts = re.findall(r"[A-Z]?[a-z]+", name)
    return {part.lower().removesuffix("s").removesuffix("ship") for part in parts}


@pytest.mark.parametrize("word", sorted(RULED))
def test_a_word_names_one_idea(word: str) -> None:
    found = {(place, name) for place, name, parts in names() if word in parts}
    assert {(place, name) for place, name in found if not any(place.startswith(each) for each in RULED[word])} == set()
    assert [each for each in RULED[word] if not any(place.startswith(each) for place, _ in found)] == []
    assert word in TERMS
