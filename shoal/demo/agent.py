"""One agent: it surveys its share of the standard library's modules, and saves a checkpoint of its thread after each.

A crash of the agent or of its node may come between any two writes of a module, and the agent then repeats that module from its
last checkpoint. So each write is idempotent: the event and the adds carry the module as their key, and the document's map has
one entry per module. The checkpoint that says "done" comes last, when the others are acknowledged, under a key of its own.

Of a module only statements are visited, because nothing else defines or imports.
"""

from __future__ import annotations

import ast
import asyncio
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from shoal.client.store import Space
from shoal.errors import NotFound
from shoal.kinds.document.handle.document import Document
from shoal.records import NamedTuple

SPACE = "survey"
DOCUMENT = "library"
ROOT = "modules"
OPERATIONS_PER_MODULE = 4  # The event, the document's update, the batch of adds, the checkpoint.


class Rewound(Exception):
    """A store showed an agent an older checkpoint than it had acknowledged, which must never happen."""


def thread_name(agent: int) -> str:
    """The name of an agent's thread. Agents are numbered from 0 in code and from 1 for people."""
    return f"agent-{agent + 1}"


def counter_name(figure: str) -> str:
    """The counter of one figure; the tag puts all of them into one partition, so that they can be added to in one batch."""
    return f"{{totals}}/{figure}"


class Agent:
    """One agent: call `resume()`, then `record(module, figures)` for each of `remaining`, in order."""

    def __init__(self, number: int, *, space: Space, document: Document, modules: Sequence[str]) -> None:
        self.number = number
        self.checkpoint = ""  # The id of the last one that it saved or loaded.
        self._space = space
        self._document = document
        self._modules = modules
        self._thread = space.thread(thread_name(number))
        self._done: list[str] = []
        self._figures = Figures()

    @property
    def remaining(self) -> Sequence[str]:
        """The modules that are not recorded yet, in order."""
        return self._modules[len(self._done) :]

    @property
    def position(self) -> int:
        """How many modules are recorded."""
        return len(self._done)

    async def resume(self) -> None:
        """Continue from the thread's last checkpoint; without one, from the beginning.

        Raises:
            Rewound: that checkpoint is older than the last one that was acknowledged to this agent.
            ShoalError: the store could not be read.
        """
        try:
            found = await self._thread.load()
            done, figures, checkpoint = list(found.state["done"]), Figures(**found.state["figures"]), found.id
        except NotFound:
            done, figures, checkpoint = [], Figures(), ""
        if len(done) < len(self._done):
            raise Rewound(
                f"{thread_name(self.number)} had {len(self._done)} modules acknowledged, "
                f"and was then shown a checkpoint of {len(done)}"
            )
        self._done, self._figures, self.checkpoint = done, figures, checkpoint

    async def record(self, module: str, figures: Figures) -> None:
        """Write one module's figures everywhere, and save a checkpoint, which is then in `checkpoint`.

        Raises:
            ShoalError: some of the writes may have been made. After `resume`, recording the module again is safe.
        """
        writes = (self._write_event(module, figures), self._write_entry(module, figures), self._add(module, figures))
        # Wait for all of them, so that none is still under way when they are repeated.
        for outcome in await asyncio.gather(*writes, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome
        done, total = [*self._done, module], self._figures.plus(figures)
        state = {"done": done, "position": len(done), "last": module, "figures": total._asdict()}
        saved = await self._thread.save(state, metadata={"module": module}, key=f"{thread_name(self.number)}/{module}")
        self._done, self._figures, self.checkpoint = done, total, saved.id

    async def _write_event(self, module: str, figures: Figures) -> None:
        await self._thread.journal.append({"module": module, "figures": figures._asdict()}, key=module)

    async def _write_entry(self, module: str, figures: Figures) -> None:
        self._document.map(ROOT)[module] = figures._asdict()
        await self._document.flush()

    async def _add(self, module: str, figures: Figures) -> None:
        async with self._space.batch() as batch:
            for name, amount in figures._asdict().items():
                batch.counter(counter_name(name)).add(amount, key=module)


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
