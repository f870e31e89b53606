"""The process of a crew: agents on one embedded store, or at one node of a cluster with a connection each.

When its input ends, the supervisor has ended, and so does the crew. It holds nothing that the store does not: after a `kill -9`
the next process continues from the agents' checkpoints.

If a node dies, the client continues with another one by itself. The agent notices the other node, and continues from its
thread's last checkpoint there. If a call raises because the client gave up, it does the same and records the module again.

An agent surveys its share of the standard library's modules, and saves a checkpoint of its thread after each. A crash may
come between any two writes of a module, and the agent then repeats that module from its last checkpoint. So each write is
idempotent: the event and the adds carry the module as their key, and the document's map has one entry per module. The
checkpoint that says "done" comes last, when the others are acknowledged, under a key of its own.

Of a module only statements are visited, because nothing else defines or imports.
"""

from __future__ import annotations

import ast
import asyncio
import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Literal

import msgspec
import uvloop

import shoal
from shoal.client.store import Space, Store
from shoal.demo.course import Message, Plan
from shoal.demo.nodes import become_removal
from shoal.errors import NotFound, Retryable, ShoalError
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


ATTEMPTS_MAX = 20
ATTEMPT_DELAY_S = 0.25


def main() -> None:
    """Return when the work is done or the supervisor has ended; an agent that cannot continue is exit code 1."""
    # Unbuffered, because a buffer would take what follows the plan, which `_hear` waits for.
    with open(0, "rb", buffering=0, closefd=False) as orders:
        line = orders.readline()
    if line:
        uvloop.run(_main(msgspec.json.decode(line, type=Plan)))


async def _main(plan: Plan) -> None:
    crew = Crew(plan)
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), _hear, crew)
    try:
        await crew.run()
    except ShoalError as error:
        _give_up([error])


def _hear(crew: Crew) -> None:
    if os.read(sys.stdin.fileno(), 1):
        crew.gate.set()
    elif crew.plan.temporary:
        become_removal(crew.plan.directory)
    else:
        os._exit(1)


def _give_up(errors: Sequence[BaseException]) -> None:
    sys.stderr.write("; ".join(f"{type(error).__name__}: {error}" for error in errors) + "\n")
    sys.stderr.flush()
    os._exit(1)  # At once: closing the documents may wait for a node for as long as a client does.


def _say(message: Message) -> None:
    # A broken pipe means that the supervisor has ended, which the end of our input says too.
    with suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
        sys.stdout.buffer.flush()


class Crew:
    """The agents of one plan: await `run()`, and set `gate` to let them begin more modules than `plan.gate`."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.gate = asyncio.Event()
        self._begun = 0
        self._modules = list_modules(library(), limit=plan.limit)

    async def run(self) -> None:
        """Open the store or connect all agents, and let them work to their end. If one cannot continue, the process ends.

        Raises:
            ShoalError: the store could not be opened.
        """
        async with AsyncExitStack() as stores:
            here = [await stores.enter_async_context(shoal.open(self.plan.directory))] if self.plan.directory else []
            members = [await self._arrive(number, here, stores) for number in self.plan.members]
            self._begun = sum(member.agent.position for member in members)
            try:
                async with asyncio.TaskGroup() as tasks:
                    for member in members:
                        tasks.create_task(self._work(member))
            except* (ShoalError, Rewound) as group:
                _give_up(group.exceptions)

    async def _arrive(self, number: int, here: Sequence[Store], stores: AsyncExitStack) -> Member:
        # An agent at a node has a connection of its own, as agents on several machines have.
        opening = shoal.connect(self.plan.urls, durability="quorum", in_order=True, wait=30, **self.plan.access.arguments)
        store = here[0] if here else await stores.enter_async_context(opening)
        space = store.space(SPACE)
        document = await stores.enter_async_context(await space.document(DOCUMENT))
        modules = share(self._modules, number, agents=self.plan.agents)
        member = Member(Agent(number, space=space, document=document, modules=modules), store)
        await member.resume(reason="start")
        return member

    async def _work(self, member: Member) -> None:
        while member.agent.remaining:
            self._begun += 1
            if self.plan.gate is not None and self._begun > self.plan.gate:
                await self.gate.wait()
            module = member.agent.remaining[0]
            # Parsing takes up to 0.2 s. On a thread it delays the loop by the interpreter's switch interval instead.
            await member.record(module, await asyncio.to_thread(figures_of, library() / module))


class Member:
    """An agent and its connection."""

    def __init__(self, agent: Agent, store: Store) -> None:
        self.agent = agent
        self._store = store
        self._node = ""  # The id of the node that answered last.

    async def record(self, module: str, figures: Figures) -> None:
        """Record one module, with retries after failures. If another node answered, resume there.

        Raises:
            ShoalError: it failed ATTEMPTS_MAX times, or with an error that is not retryable.
            Rewound: another node showed an older checkpoint than the agent had seen.
        """
        self._say("writing", module=module)
        position = self.agent.position
        for _ in range(ATTEMPTS_MAX):
            try:
                if self.agent.position == position:
                    await self.agent.record(module, figures)
                if (await self._store.status()).node != self._node:
                    await self.resume(reason="")
                self._say("saved")
                return
            except Retryable as error:
                failure = error
            await asyncio.sleep(ATTEMPT_DELAY_S)
            with suppress(Retryable):
                await self.resume(reason=type(failure).__name__)
        raise failure

    async def resume(self, *, reason: str) -> None:
        """Load the agent's last checkpoint, and say so; raises as `Agent.resume` does."""
        await self.agent.resume()
        self._node = (await self._store.status()).node
        self._say("resumed", reason=reason)

    def _say(self, what: Literal["resumed", "writing", "saved"], **more: str) -> None:
        _say(Message(what, self.agent.number, self.agent.position, self.agent.checkpoint, self._node, **more))


if __name__ == "__main__":
    main()
