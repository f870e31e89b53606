"""docs/ARCHITECTURE.md names every module, in its package, and none that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "ARCHITECTURE.md").read_text()
ELSEWHERE = {"shoal/demo"}
"""Packages whose modules other pages describe."""


def packages() -> dict[str, set[str]]:
    """Package → its modules."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "shoal").rglob("*.py"):
        package = path.parent.relative_to(ROOT).as_posix()
        if not path.stem.startswith("__") and not any(f"{package}/".startswith(f"{other}/") for other in ELSEWHERE):
            found.setdefault(package, set()).add(path.stem)
    return found


def told() -> dict[str, list[str]]:
    """Package → the modules that the page names, in order."""
    section = re.search(r"^## The modules\n(.*?)^## ", TEXT, re.DOTALL | re.MULTILINE)
    assert section is not None
    entries = re.findall(r"^- \*\*(\S+)\*\*(.*?)(?=^- |\Z)", section[1], re.DOTALL | re.MULTILINE)
    return {package: re.findall(r"`([a-z_]+)`", text) for package, text in entries}


def test_every_package_is_there() -> None:
    assert set(told()) == set(packages())


@pytest.mark.parametrize("package", sorted(packages()))
def test_every_module_is_named_once_and_no_other(package: str) -> None:
    assert sorted(told().get(package, [])) == sorted(packages()[package])
