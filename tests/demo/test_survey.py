"""The survey: listing, sharing and counting, and its independent recount."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.demo.survey import Figures, figures_of, library, list_modules, recount, share

SOURCE = b'''"""A module."""
import os, sys
from ast import parse

class Told:
    """Told."""
    def silent(self):
        if os:
            async def inner(): "inner"
        else:
            import re
        match 1:
            case 1:
                def cased(): pass

try:
    pass
except* OSError:
    class Silent: pass
finally:
    with open("x") as f: from sys import path
'''
COUNTED = Figures(modules=1, lines=21, functions=3, classes=2, imports=4, missing_docstrings=3)


def library_of(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(SOURCE)
    return root


def test_figures_reach_every_statement_that_can_hold_another() -> None:
    assert figures_of(SOURCE) == COUNTED


def test_recount_reaches_the_same_by_walking_every_node(tmp_path: Path) -> None:
    assert recount(library_of(tmp_path, "a.py"), ["a.py"], stopped=lambda: False) == {"a.py": COUNTED}


@pytest.mark.parametrize("source", [b"def (", b"\xff", b"\x00", b"x = '\\d'\ndef f(): lambda: 0"])
def test_both_counts_agree_on_odd_sources(source: bytes, tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_bytes(source)
    assert recount(tmp_path, ["odd.py"], stopped=lambda: False) == {"odd.py": figures_of(source)}


def test_a_module_that_does_not_parse_has_lines_only() -> None:
    assert figures_of(b"def (\n\n") == Figures(modules=1, lines=2)


@pytest.mark.parametrize(("source", "lines"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\nb", 2)])
def test_a_last_line_without_newline_counts(source: bytes, lines: int) -> None:
    assert figures_of(source).lines == lines


def test_both_counts_agree_on_a_part_of_the_real_library() -> None:
    root, modules = library(), list_modules(library(), limit=25)
    assert recount(root, modules, stopped=lambda: False) == {name: figures_of((root / name).read_bytes()) for name in modules}


def test_modules_are_sorted_and_exclude_what_was_installed(tmp_path: Path) -> None:
    root = library_of(tmp_path, "b.py", "a/z.py", "a.py", "site-packages/c.py", "a/site-packages/d.py")
    (root / "text.txt").touch()
    assert list_modules(root) == ["a.py", "a/z.py", "b.py"]


def test_a_limit_spreads_over_the_whole_library(tmp_path: Path) -> None:
    root = library_of(tmp_path, *(f"m{nth}.py" for nth in range(9)))
    assert list_modules(root, limit=3) == ["m0.py", "m3.py", "m6.py"]


def test_a_limit_above_the_number_takes_all(tmp_path: Path) -> None:
    assert list_modules(library_of(tmp_path, "a.py"), limit=5) == ["a.py"]


@given(st.lists(st.text(), unique=True, max_size=40), st.integers(1, 12))
def test_shares_are_a_partition_of_the_modules(modules: list[str], agents: int) -> None:
    shares = [share(modules, agent, agents=agents) for agent in range(agents)]
    assert sorted(name for own in shares for name in own) == sorted(modules)


def test_recount_stops_when_told(tmp_path: Path) -> None:
    answers = iter([False, True])
    assert list(recount(library_of(tmp_path, "a.py", "b.py"), ["a.py", "b.py"], stopped=lambda: next(answers))) == ["a.py"]
