"""docs/ARCHITECTURE.md fits on two pages and names modules that exist; each module says in one paragraph what it does."""

from __future__ import annotations

import re
from pathlib import Path

from tests.reference import first_paragraph

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "shoal").rglob("*.py"))


def test_it_fits_on_two_pages() -> None:
    assert len(TEXT) <= 10_000


def test_every_module_that_it_names_exists() -> None:
    layers = "|".join(sorted(path.name for path in (ROOT / "shoal").iterdir() if path.is_dir() and path.name != "__pycache__"))
    dotted = re.findall(rf"`((?:{layers})(?:\.[a-z_]+)+)`", TEXT)
    slashed = re.findall(rf"`((?:{layers})(?:/[a-z_]+)+)(?:\.py|/)`", TEXT)
    named = [name.replace(".", "/") for name in dotted] + slashed
    assert len(named) > 20
    assert [name for name in named if not exists(name)] == []


def exists(name: str) -> bool:
    """Whether it is a module, a package, or a name in a module."""
    path = ROOT / "shoal" / name
    return path.is_dir() or path.with_suffix(".py").exists() or path.parent.with_suffix(".py").exists()


def test_a_modules_first_paragraph_says_what_it_does() -> None:
    assert len(MODULES) > 400
    assert [module for module in MODULES if not 10 <= len(first_paragraph(ROOT / module)) <= 240] == []
