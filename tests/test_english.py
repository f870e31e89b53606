"""Docstrings and names of tests are understood at first sight: they name their subject."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
RIDDLES = re.compile(r"(Who|Whoever|Whose|What|Whatever|See)\b")


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, of what it defines, and beside its constants, with their lines."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            for statement in body:
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield statement.lineno, text.strip()


def riddles(file: Path) -> list[str]:
    found = docstrings(ast.parse(file.read_text()))
    return [f"{file.relative_to(ROOT)}:{line}: {text[:60]}" for line, text in found if RIDDLES.match(text)]


def test_no_docstring_begins_with_a_question_word_or_see() -> None:
    assert [riddle for file in sorted((ROOT / "shoal").rglob("*.py")) for riddle in riddles(file)] == []


def test_a_riddle_is_noticed() -> None:
    tree = ast.parse('"""What it is."""\nX = 1\n"""See there."""\ndef f():\n    """Who asks."""')
    assert [line for line, text in docstrings(tree) if RIDDLES.match(text)] == [1, 3, 5]


def test_no_test_begins_with_a_question_word() -> None:
    texts = [path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    assert [name for text in texts for name in re.findall(r"def test_((?:who|what)\w*)", text)] == []
