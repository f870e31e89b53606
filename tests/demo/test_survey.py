"""The survey: listing, sharing and counting."""

from __future__ import annotations

import ast
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.demo.crew import Figures, figures_of, library, list_modules, recount, share

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


def written(source: bytes, tmp_path: Path) -> Path:
    (tmp_path / "module.py").write_bytes(source)
    return tmp_path / "module.py"


def walked(file: Path) -> list[int]:
    """Functions, classes and imports, counted in the slow and obvious way: by walking every node."""
    kinds = [type(node) for node in ast.walk(ast.parse(file.read_bytes()))]
    return [
        kinds.count(ast.FunctionDef) + kinds.count(ast.AsyncFunctionDef),
        kinds.count(ast.ClassDef),
        kinds.count(ast.Import) + kinds.count(ast.ImportFrom),
    ]


def test_figures_reach_every_statement_that_can_hold_another(tmp_path: Path) -> None:
    assert figures_of(written(SOURCE, tmp_path)) == COUNTED


@pytest.mark.parametrize("source", [b"def (\n\n", b"\xff\n\n", b"\x00\n\n"])
def test_a_module_that_does_not_parse_has_lines_only(source: bytes, tmp_path: Path) -> None:
    assert figures_of(written(source, tmp_path)) == Figures(modules=1, lines=2)


@pytest.mark.parametrize(("source", "lines"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"a\nb", 2)])
def test_a_last_line_without_newline_counts(source: bytes, lines: int, tmp_path: Path) -> None:
    assert figures_of(written(source, tmp_path)).lines == lines


def test_a_walk_of_every_node_counts_the_same() -> None:
    files = [library() / name for name in list_modules(library(), limit=25)]
    parsed = [file for file in files if figures_of(file).imports]
    assert len(parsed) > 10
    assert [list(figures_of(file)[2:5]) for file in parsed] == [walked(file) for file in parsed]


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


def test_two_threads_parse_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, overlaps = threading.Semaphore(1), []

    def parsed(source: bytes) -> ast.Module:
        is_alone = under_way.acquire(blocking=False)
        overlaps.append(not is_alone)
        time.sleep(0.01)  # Gives another thread the interpreter.
        tree = real(source)
        if is_alone:
            under_way.release()
        return tree

    real, file = ast.parse, written(SOURCE, tmp_path)
    with monkeypatch.context() as patch, ThreadPoolExecutor(4) as threads:
        patch.setattr(ast, "parse", parsed)
        counted = list(threads.map(figures_of, [file] * 8))
    assert counted == [COUNTED] * 8
    assert overlaps == [False] * 8
