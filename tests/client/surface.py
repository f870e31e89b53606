"""The public surface, found by introspection: every public method of every handle that a store leads to.

A handle is reached by a path of calls from the store; a method is called with one wrong
argument at a time, and legal ones (`LEGAL`, by the parameter's name) for the rest.
"""

from __future__ import annotations

import asyncio
import enum
import importlib
import inspect
import io
import pkgutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, aclosing, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple, get_args, get_type_hints

import shoal
from shoal.client.arguments import of_part
from shoal.client.store import Space, Store
from shoal.schemas import Schema
from shoal.sync import is_handles
from shoal.workflows.transfer import records
from shoal.workflows.transfer.lines import Writer
from shoal.workflows.transfer.records import FORMAT

PATIENCE_S = 30.0
WAITS_S = 0.01
"""For a method that waits for what others do."""


class Colour(enum.Enum):
    RED = "red"


def _itself() -> list[Any]:
    endless: list[Any] = []
    endless.append(endless)
    return endless


async def _coroutine() -> None: ...


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "1.5": lambda: 1.5,
    "nan": lambda: float("nan"),
    "2**70": lambda: 2**70,
    "-1": lambda: -1,
    "bytes": lambda: b"",
    "empty": lambda: "",
    "surrogate": lambda: "\ud800",
    "control": lambda: "a\x00b",
    "long": lambda: "x" * 100_000,
    "list": list,
    "[object]": lambda: [object()],
    "[None]": lambda: [None],
    "{1: 2}": lambda: {1: 2},
    "surrogate key": lambda: {"\ud800": 1},
    "object": object,
    "coroutine": _coroutine,
    "set": lambda: {1, "a"},
    "itself": _itself,
    "Enum": lambda: Colour.RED,
    "class": lambda: dict,
    "function": lambda: _itself,
    "naive time": lambda: datetime(2026, 1, 1, tzinfo=UTC).replace(tzinfo=None),
}
"""Values of every kind, each made anew."""


async def _effect() -> int:
    return 1


class Anew(NamedTuple):
    """A legal value that a call uses up."""

    make: Callable[[], Any]


def _export() -> io.BytesIO:
    writer = Writer()
    made = (records.Header(FORMAT, "0"), records.SpaceBegins("s"), records.Counter("c", 1))
    return io.BytesIO(b"".join(map(writer.line, made)) + writer.end())


LEGAL: dict[str, Any] = {
    "name": "n", "key": "k", "state": {"log": [1], "n": 1}, "channel": "log", "element": 1, "elements": [1],
    "value": 1, "event": {"e": 1}, "message": {"m": 1}, "amount": 1, "namespace": ["a", "b"], "rows": [1, 2],
    "call": _effect, "how": "retry", "step": "k", "to": "main", "checkpoint": "main",
    "before": datetime(2026, 1, 1, tzinfo=UTC),
    "after": None, "version": 1, "schema": {"type": "object"}, "id": "0" * 64, "items": ["a"], "item": "a",
    "names": [(["a"], "k")], "old": "n1", "new": "n2", "fn": lambda state: None,
    "keys": ["k"], "label": "a", "matches": [], "reducer": lambda state, event: state, "status": "running", "error": "oh",
    "hook": lambda _: None, "patch": {"n": 2}, "content": {"m": {"a": 1}}, "snapshot": "none", "bookmark": "",
    "embed": lambda texts: [[1.0] for _ in texts], "worklist": "w", "budget": "b", "at": None, "result": 1, "prefix": "",
    "subject": "ana", "kind": "thread", "consumer": None, "ttl": 60.0, "reason": "no", "job": None,
    "address": "127.0.0.1:9", "text": "word", "fence": 1,
    "url": "", "idle": 3600.0,
    "file": "f", "source": b"bytes", "offset": 0,
    "add": [1], "remove": [2], "index": 0, "start": 0, "stop": 1, "changes": {"n": 3}, "namespaces": [],
    "expected": None,
}  # fmt: skip
LEGAL_OF: dict[str, Any] = {
    "Backup.init.url": "file:///dev/null/backup",  # No directory can be made there.
    "Store.export_to.file": Anew(io.BytesIO),
    "Store.import_from.file": Anew(_export),
    "Space.thread.schema": None,
    "Thread.declare.schema": Schema("n", model={"type": "object"}),
    "Thread.diff.before": "main",
    "Thread.autosave.state": lambda: {"n": 1},
    "Presence.set.state": {"n": 1},
    "SharedSet.alter.add": [1],
}
WAITS = {
    "Journal.wait", "Inbox.next", "Inbox.receive", "Thread.ready", "Thread.wait_for", "Space.watch", "Presence.changes",
    "Document.changes", "Items.watch", "Consumer.read", "Worklist.pending", "Worklist.claim", "Inbox.claim",
    "Journal.read", "Thread.step", "Thread.begin",
    "Thread.compensate",
}  # fmt: skip
"""Methods that may wait for others, or for what a wrong value says, as an endless timeout."""
LEFT_OUT = {
    "Store.close": "ends the store",
    "Document.close": "ends the handle",
    "Document.abandon": "ends the handle",
    "Presence.close": "ends the handle",
    "Store.connection": "for integrations; its requests are checked by the session",
    "Batch.add": "takes requests: see `protocol.conformance`",
    "Batch.add_whole": "takes requests",
    "Reading.add": "takes requests",
    "Reading.ask": "carries out what was collected; leaving the block does",
    "Batch.commit": "carries out what was collected; leaving the block does",
    "Step.result_request": "the batch's",
    "Step.settle": "the batch's",
    "Job.settle": "the batch's",
}


HANDLES = (
    "Store", "Backup", "Space", "SpaceRetention", "SpaceRedaction", "SpaceTiering", "Schemas", "Subjects", "Presence",
    "Counter", "Register", "Budget",
    "SharedSet", "SharedList", "SharedMap", "Items", "Document",
    "Batch", "BatchThread", "BatchJournal", "BatchCounter", "BatchRegister", "BatchSet", "BatchList", "BatchMap",
    "BatchBudget",
    "BatchItems",
    "Reading", "ThreadReading", "CounterReading", "RegisterReading", "SetReading", "ListReading", "MapReading", "ItemsReading",
    "WorklistReading", "FileStream",
    "Thread", "Autosave", "Step", "Leasing", "Lease", "Job", "Journal", "Consumer", "Inbox", "Worklist",
)  # fmt: skip


class Method(NamedTuple):
    handle: str
    name: str
    parameters: tuple[str, ...]
    required: tuple[str, ...]
    variadic: str | None

    @property
    def title(self) -> str:
        return f"{self.handle}.{self.name}"


def handle_classes() -> dict[str, type]:
    """All public classes of `shoal.client` and of the kinds' handles, by name."""
    names = [module.name for module in pkgutil.walk_packages(shoal.__path__, "shoal.") if is_handles(module.name)]
    modules = [importlib.import_module(name) for name in names]
    return {
        name: cls
        for module in modules
        for name, cls in vars(module).items()
        if inspect.isclass(cls) and not name.startswith("_") and cls.__module__ == module.__name__
    }


def static(cls: type, name: str) -> Any:
    """A member of a class, as it is declared: a property and not what it gives."""
    member = inspect.getattr_static(cls, name)
    return getattr(cls, name) if isinstance(member, of_part) else member


def methods_of(cls: type) -> list[Method]:
    found = []
    for name in dir(cls):
        method = static(cls, name)
        if name.startswith("_") or not inspect.isfunction(method) or f"{cls.__name__}.{name}" in LEFT_OUT:
            continue
        parameters: list[str] = []
        required: list[str] = []
        variadic = None
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            if parameter.kind is parameter.VAR_KEYWORD:
                annotated = get_args(get_type_hints(method).get(parameter.name))
                parameters += get_type_hints(annotated[0]) if annotated else []
            elif parameter.kind is parameter.VAR_POSITIONAL:
                variadic = parameter.name
            else:
                parameters.append(parameter.name)
                if parameter.default is parameter.empty:
                    required.append(parameter.name)
        found.append(Method(cls.__name__, name, tuple(parameters), tuple(required), variadic))
    return found


class Bench:
    """Makes handles, each of a space of its own, and calls their methods."""

    def __init__(self, store: Store, operations: Callable[[], int] | None = None) -> None:
        self._store = store
        self._operations = operations
        self._spaces = 0
        self.calls = 0
        self.wrong: list[str] = []

    def space(self) -> Space:
        self._spaces += 1
        return self._store.space(f"s{self._spaces}", colocated=True)

    async def handle(self, name: str, stack: AsyncExitStack) -> Any:
        space = self.space()
        if name == "Store":
            return self._store
        if name == "Backup":
            return self._store.backup
        if name == "Space":
            return space
        if name == "SpaceRetention":
            return space.retention
        if name == "SpaceRedaction":
            return space.redaction
        if name == "SpaceTiering":
            return space.tiering
        if name.startswith("Batch"):
            batch = await stack.enter_async_context(space.batch())
            return batch if name == "Batch" else _part(batch, name.removeprefix("Batch"))
        if name.endswith("Reading"):
            reading = await stack.enter_async_context(space.read())
            if name == "WorklistReading":
                return reading.thread("n").worklist("w")
            return reading if name == "Reading" else _part(reading, name.removesuffix("Reading"))
        if name == "Document":
            return await stack.enter_async_context(await space.document("n", undo=5))
        if name in ("Schemas", "Subjects", "Items", "Presence"):
            return getattr(space, name.lower())
        if name in ("Counter", "Register", "Budget"):
            return getattr(space, name.lower())("n")
        if name in ("SharedSet", "SharedList", "SharedMap"):
            return getattr(space, name.removeprefix("Shared").lower())("n")
        thread = space.thread("n")
        await thread.save({"log": [1], "n": 1}, label="first")
        match name:
            case "Thread":
                return thread
            case "Journal" | "Inbox":
                return getattr(thread, name.lower())
            case "Worklist":
                return thread.worklist("w")
            case "FileStream":
                await thread.put_file("f", b"bytes")
                return await stack.enter_async_context(thread.open_file("f"))
            case "Consumer":
                await thread.journal.append(1)
                return thread.journal.consumer("c")
            case "Autosave":
                return await stack.enter_async_context(thread.autosave(lambda: {"n": 2}))
            case "Step":
                return await stack.enter_async_context(thread.begin("n", durability="local"))
            case "Job":
                await thread.worklist("w").add([f"job-{self.calls}"])
                job = await thread.worklist("w").claim(ttl=30)
                assert job is not None
                return job
            case "Leasing":
                return thread.lease(ttl=30)
            case "Lease":
                lease = await thread.lease(ttl=30).acquire()
                stack.push_async_callback(lease.release)
                return lease
        raise AssertionError(f"say here how one comes by a {name}")

    async def misuse(self, method: Method) -> None:
        """Call it with each wrong value for each parameter."""
        for parameter in (*method.parameters, *([f"*{method.variadic}"] if method.variadic else [])):
            async with AsyncExitStack() as stack:
                handle = await self.handle(method.handle, stack)
                for kind, make in WRONG.items():
                    await self._call(handle, method, parameter, kind, make())
                await self._left(method, stack)

    async def _left(self, method: Method, stack: AsyncExitStack) -> None:
        try:
            await stack.aclose()
        except Exception as error:
            self._judge(f"{method.title}: leaving the block", error)

    async def _call(self, handle: Any, method: Method, parameter: str, kind: str, value: Any) -> None:
        self.calls += 1
        what = f"{method.title}({parameter}={kind})"
        given = {name: _legal(method, name) for name in method.required if name != parameter}
        positional: tuple[Any, ...] = ()
        if parameter.startswith("*"):
            positional = (*given.values(), value)
            given = {}
        else:
            given[parameter] = value
        before = self._operations() if self._operations is not None else 0
        try:
            async with asyncio.timeout(WAITS_S if method.title in WAITS else PATIENCE_S):
                await _carried_out(lambda: getattr(handle, method.name)(*positional, **given))
        except TimeoutError:
            if method.title not in WAITS:
                self.wrong.append(f"{what}: hangs")
        except Exception as error:
            self._judge(what, error)
            if getattr(error, "written", "no") == "no" and self._operations is not None and self._operations() != before:
                self.wrong.append(f"{what}: wrote, and says that it did not: {error!r}")
        finally:
            if inspect.iscoroutine(value):
                value.close()

    def _judge(self, what: str, error: Exception) -> None:
        allowed = isinstance(error, shoal.errors.ShoalError) and not isinstance(
            error,
            shoal.errors.StorageError | shoal.errors.Disconnected | shoal.errors.OutcomeUnknown | shoal.errors.ReadOnly,
        )
        if not allowed:
            at = error.__traceback__
            while at is not None and at.tb_next is not None:
                at = at.tb_next
            place = f"{at.tb_frame.f_code.co_filename.rpartition('shoal/')[2]}:{at.tb_lineno}" if at is not None else ""
            self.wrong.append(f"{what}: {type(error).__name__}: {str(error)[:150]} at {place}")


def _legal(method: Method, name: str) -> Any:
    value = LEGAL_OF.get(f"{method.title}.{name}", LEGAL[name])
    return value.make() if isinstance(value, Anew) else value


def _part(owner: Any, kind: str) -> Any:
    if kind == "Items":
        return owner.items
    if kind == "Journal":
        return owner.thread("n").journal
    return getattr(owner, kind.lower())("n")


async def _carried_out(call: Callable[[], Any]) -> None:
    outcome = call()
    if inspect.isawaitable(outcome):
        outcome = await outcome
    if isinstance(outcome, AsyncIterator):
        if inspect.isasyncgen(outcome):
            async with aclosing(outcome):
                await _first(outcome)
        else:
            await _first(outcome)
    elif hasattr(outcome, "__aenter__"):
        async with outcome:
            pass
    elif hasattr(outcome, "__enter__"):
        with outcome:
            pass
    elif isinstance(outcome, Iterator):
        next(outcome, None)


async def _first(items: AsyncIterator[Any]) -> None:
    async for _ in items:
        break


async def read_all(store: Store) -> int:
    """Read whatever there is; returns how many objects."""
    count = 0
    async for name in store.spaces():
        space = store.space(name)
        readers: list[tuple[AsyncIterator[str], Callable[[str], Awaitable[Any]]]] = [
            (space.threads(), lambda name: _read_thread(space, name)),  # noqa: B023 — called within this turn.
            (space.counters(), lambda name: space.counter(name).value()),  # noqa: B023
            (space.registers(), lambda name: space.register(name).siblings()),  # noqa: B023
            (space.sets(), lambda name: space.set(name).len()),  # noqa: B023
            (space.maps(), lambda name: space.map(name).len()),  # noqa: B023
            (space.budgets(), lambda name: space.budget(name).remaining()),  # noqa: B023
        ]
        for names, read in readers:
            async for found in names:
                await read(found)
                count += 1
    return count


async def _read_thread(space: Space, name: str) -> None:
    thread = space.thread(name)
    with suppress(shoal.errors.NotFound):
        assert isinstance((await thread.load()).state, dict)
    async for _ in thread.history(states=True):
        pass
    async for _ in thread.journal.read():
        pass
    async for _ in thread.steps():
        pass
    async for _ in thread.inbox.pending():
        pass
    async for _ in thread.worklist("w").finished():
        pass
