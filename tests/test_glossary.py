"""docs/GLOSSARY.md: one line per term, and what a line refers to is there."""

from __future__ import annotations

import re
from pathlib import Path

TEXT = (Path(__file__).parent.parent / "docs" / "GLOSSARY.md").read_text()
LINES = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| term |")]
TERMS = [term for line in LINES for term in line.split(" | ")[0].removeprefix("| ").split(", ")]


def test_every_term_has_one_line() -> None:
    assert len(TERMS) > 90
    assert [term for term in sorted(set(TERMS)) if TERMS.count(term) > 1] == []
    assert [line for line in LINES if line.count(" | ") != 1] == []


def test_every_term_that_a_line_refers_to_is_there() -> None:
    italic = {term for line in LINES for term in re.findall(r"(?<!\*)\*([a-z ]+)\*(?!\*)", line)}
    assert italic
    assert {term for term in italic if term not in TERMS and term.removesuffix("s") not in TERMS} == set()
