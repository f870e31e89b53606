"""Find the modules of the standard library and count their definitions, without a store.

Only statements are visited, because nothing else defines or imports.
"""

from __future__ import annotations

import ast
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from shoal.records import NamedTuple

_PARSING = threading.Lock()


class Figures(NamedTuple):
    """The counts of one module, or of several together. A module that cannot be parsed only has lines."""

    modules: int = 0
    lines: int = 0
    functions: int = 0
    classes: int = 0
    imports: int = 0
    missing_docstrings: int = 0  # Of modules, classes and functions.

    def plus(self, other: Figures) -> Figures:
        """The sum of both."""
        return Figures(*map(sum, zip(self, other, strict=True)))


def library() -> Path:
    """The directory of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def list_modules(root: Path, *, limit: int | None = None) -> list[str]:
    """Paths below `root`, with `/`, in order; with `limit`, that many of them, spread evenly."""
    found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py") if "site-packages" not in path.parts)
    if limit is None or limit >= len(found):
        return found
    return [found[nth * len(found) // limit] for nth in range(limit)]


def share(modules: Sequence[str], agent: int, *, agents: int) -> list[str]:
    """The modules of one agent: every `agents`-th, so that each gets its part of every package."""
    return list(modules[agent::agents])


def figures_of(file: Path) -> Figures:
    """The counts of one module, from its file alone."""
    source = file.read_bytes()
    tree = _parse(source)
    if tree is None:
        return Figures(modules=1, lines=_lines(source))
    documentable: list[ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef] = [tree]
    functions = classes = imports = 0
    for node in _statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            functions += 1
            documentable.append(node)
        elif isinstance(node, ast.ClassDef):
            classes += 1
            documentable.append(node)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            imports += 1
    missing = sum(ast.get_docstring(node, clean=False) is None for node in documentable)
    return Figures(1, _lines(source), functions, classes, imports, missing)


def recount(root: Path, modules: Sequence[str], *, stopped: Callable[[], bool]) -> dict[str, Figures]:
    """Each module's figures. If `stopped` becomes true, the rest is left out."""
    return {module: figures_of(root / module) for module in modules if not stopped()}


def _parse(source: bytes) -> ast.Module | None:
    """The syntax tree; None if the interpreter rejects the source. The library has such files, to test its parser."""
    # One at a time: CPython 3.11 counts the depth of all parsers of a process together, and filters of warnings are global.
    with _PARSING, warnings.catch_warnings():
        # Warnings about the surveyed code are not ours to show.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _lines(source: bytes) -> int:
    return source.count(b"\n") + (not source.endswith(b"\n") and bool(source))


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Every statement, at any depth. Expressions are not entered: nothing in them defines or imports."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.stmt):
            yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, None)
            if isinstance(inner, list):  # The `body` of a lambda or conditional is an expression.
                waiting.extend(inner)
