"""A node in miniature behind the real HTTP surface, on a real socket."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager
from itertools import count
from typing import Any

import aiohttp
import msgspec
import pytest
from yarl import URL

from shoal import values
from shoal.api.http.listener import Listener
from shoal.api.server import create_app
from shoal.config import Config
from shoal.crdt.dot import VersionVector
from shoal.errors import InvalidInput, NotFound, ShoalError
from shoal.names import check_name
from shoal.node.conditions.watcher import CONDITIONS
from shoal.protocol import requests
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import (
    AnyReply,
    AnyRequest,
    Durability,
    Push,
    Request,
    Subscription,
    Write,
)
from shoal.protocol.session import Told
from shoal.transport.dialling import DialledSocket
from shoal.transport.link import Link
from simulation.bounds import altered, parted

STATUS = requests.NodeStatus("0.1.0", "ab12", "cd34", "ready", "", 1, 2, 3, 4, 5, 6)


class FakeSession:
    """Answers from memory, records what it was asked, and can be told to wait or fail."""

    def __init__(self) -> None:
        self.bookmark = Bookmark()  # Of whoever opened last.
        self.connections = 1
        self.stale: list[bool] = []
        self.shows: list[tuple[int, VersionVector]] = []  # What every answer shows, by partition.
        self.asked: list[tuple[AnyRequest, str | None, Durability]] = []
        self.checkpoints: dict[tuple[str, str], list[requests.Checkpoint]] = {}
        self.counters: dict[tuple[str, str], int] = {}
        self.events: dict[tuple[str, str], list[requests.Event]] = {}
        self.registers: dict[tuple[str, str], bytes] = {}
        self.applied: dict[str, AnyReply] = {}
        self.status = STATUS
        self.failure: Exception | None = None  # Raised by the next request.
        self.gate: asyncio.Event | None = None  # A counter's read waits here.
        self.watchers: list[asyncio.Queue[Push | ShoalError]] = []
        self.pushes: AsyncIterator[Push] | None = None  # What the next subscription delivers, if not `watchers`.
        self.peer_told = True  # Whether the other node has told what it holds.
        self._ids = count(1)

    def open(self, bookmark: Bookmark) -> FakeSession:
        self.bookmark = bookmark
        return self

    async def call(
        self, request: Request[Any], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> Any:
        self.stale.append(stale)
        self.asked.append((request, key, durability))
        for partition, vector in self.shows:
            self.bookmark.note(partition, vector)
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        if not isinstance(request, Write):
            return await self._read(request)
        if key is not None and key in self.applied:
            return self.applied[key]
        reply = self._write(request)
        if key is not None:
            self.applied[key] = reply
        return reply

    def _write(self, request: AnyRequest) -> AnyReply:
        match request:
            case requests.Save(space, thread, channels, metadata, branch):
                check_name("thread", thread)
                for packed in channels.values():
                    values.check(packed)
                id = hashlib.sha256(str(next(self._ids)).encode()).hexdigest()
                kept = self.checkpoints.setdefault((space, thread), [])
                parents = [kept[-1].id] if kept else []
                kept.append(requests.Checkpoint(id, parents, branch, [id], 5, request.schema, 0, metadata, channels, {}))
                return requests.Saved(id, parents, branch, [id], 5)
            case requests.Append(space, thread, event, key):
                kept_events = self.events.setdefault((space, thread), [])
                if key is not None and any(e.key == key for e in kept_events):
                    return requests.Appended("00", False)
                cursor = (len(kept_events) + 1).to_bytes(2, "big")
                kept_events.append(requests.Event(f"{len(kept_events):068x}", key, 5, event, False, cursor))
                return requests.Appended(kept_events[-1].id, True)
            case requests.Add(space, counter, amount):
                check_name("counter", counter)
                self.counters[space, counter] = self.counters.get((space, counter), 0) + amount
                return requests.Added(self.counters[space, counter], True)
            case requests.Assign(space, register, value):
                self.registers[space, register] = value
                return requests.Assigned(1, b"\xff\xfecontext")
            case requests.Patch(_, _, patch):
                return requests.DocumentJson(msgspec.json.encode({"patched": msgspec.json.decode(patch)}))
            case requests.Batch(writes):
                return requests.BatchReply([self._write(write) for write in writes])
            case requests.Compact(_, _, older_than_ms):
                return requests.Compacted(7, older_than_ms, more=True)
            case _:
                raise AssertionError(request)

    async def _read(self, request: AnyRequest) -> AnyReply:
        match request:
            case requests.Load(space, thread, id):
                kept = self.checkpoints.get((space, thread), [])
                found = [c for c in kept if id is None or c.id == id]
                if not found:
                    raise NotFound(f"no checkpoint {id} of {thread!r}.")
                return found[-1]
            case requests.History(space, thread):
                kept = self.checkpoints.get((space, thread), [])[::-1][: request.limit]
                return requests.Checkpoints([msgspec.structs.replace(each, channels={}) for each in kept], False)
            case requests.Heads(space, thread):
                return requests.Branches({"main": [c.id for c in self.checkpoints.get((space, thread), [])[-1:]] or ["none"]})
            case requests.ReadJournal(space, thread, after):
                start = int.from_bytes(after, "big")
                kept_events = self.events.get((space, thread), [])
                return requests.Events(kept_events[start : start + request.limit], len(kept_events).to_bytes(2, "big"), False)
            case requests.ReadCounter(space, counter):
                if self.gate is not None:
                    await self.gate.wait()
                return requests.CounterValue(self.counters.get((space, counter), 0))
            case requests.ReadRegister(space, register):
                value = self.registers.get((space, register))
                return requests.Siblings([] if value is None else [requests.Sibling(value, 5)], b"\xff\xfecontext")
            case requests.ReadDocumentJson(_, document):
                return requests.DocumentJson(msgspec.json.encode({"name": document}))
            case requests.ListSpaces():
                return requests.Names(["crew"], False)
            case requests.ListObjects():
                return requests.Names([f"{request.kind}-1"], True)
            case requests.ListThreads():
                return requests.ThreadNames(["thread-1"], "thread-1")
            case requests.Status():
                return self.status
            case requests.ReadConditions():
                return requests.ConditionsView(
                    self.status.node, "n1:7400", self.status.conditions, list(CONDITIONS), begun={"no-quorum": 0}
                )
            case requests.Cluster():
                member = requests.Member("n1:7400", self.status.node, "self", 3, 0, 0, 0, 0, 0, 0, "", {"aa": 3})
                other = requests.Member("n2:7400", "cd34", "linked", 1, 2, 0, 500, 7, 1, 9, "", {"aa": 1}, told=self.peer_told)
                return requests.ClusterView("shoal", 2, 2, [member, other], "d1", 4, ["x"], 1500, ["n2:7400 has other members"])
            case _:
                raise InvalidInput(f"the fake does not answer {request}.")

    @asynccontextmanager
    async def subscribe(self, subscription: Subscription, /) -> AsyncIterator[AsyncIterator[Push]]:
        check_name("space", subscription.space)
        if self.pushes is not None:
            yield self.pushes
            return
        queue: asyncio.Queue[Push | ShoalError] = asyncio.Queue()
        self.watchers.append(queue)
        try:
            yield _drained(queue)
        finally:
            self.watchers.remove(queue)

    def publish(self, push: Push | ShoalError) -> None:
        for queue in self.watchers:
            queue.put_nowait(push)

    async def close(self) -> None:
        pass


class PromptSession(FakeSession):
    """Begins writes without a call; what it has begun waits in `begun` until the test answers it, or `answer_all` does."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[AnyRequest, Told]] = []
        self._unanswered: list[Told] = []

    def begin(
        self,
        request: AnyRequest,
        told: Told,
        /,
        *,
        key: str | None = None,
        durability: Durability = "local",
        stale: bool = False,
    ) -> bool:
        if not isinstance(request, Write) or durability != "local":
            return False
        self.asked.append((request, key, durability))
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

        def answered(answer: AnyReply | ShoalError) -> None:
            self._unanswered.remove(answered)
            told(answer)

        self.begun.append((request, answered))
        self._unanswered.append(answered)
        return True

    def answer_all(self) -> None:
        """Answer what the test has not."""
        for answered in self._unanswered[:]:
            answered(NotFound("The test is over."))


async def _drained(queue: asyncio.Queue[Push | ShoalError]) -> AsyncIterator[Push]:
    while True:
        push = await queue.get()
        if isinstance(push, ShoalError):
            raise push
        yield push


class Served:
    """A fake session behind a real listener, and ways to reach it."""

    def __init__(self, session: FakeSession, listener: Listener, config: Config) -> None:
        self.session = session
        self.listener = listener
        self.config = config
        self.url = listener.url
        self.links: list[Link] = []

    async def link(self, *, config: Config | None = None) -> Link:
        link = await Link.dial(self.url, config=config or self.config)
        self.links.append(link)
        return link


Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """A factory: what answers, if it is not a new `FakeSession`; settings of the configuration are its keyword arguments."""
    started: list[Served] = []
    stack = ExitStack()

    async def start(session: FakeSession | None = None, /, **settings: object) -> Served:
        mine, bounds = parted(settings)
        stack.enter_context(altered(**bounds))
        config = msgspec.structs.replace(
            Config(listen_port=0, request_timeout_s=20.0, stop_timeout_s=2.0, request_bytes_max=1 << 20), **mine
        )
        session = session or FakeSession()
        listener = Listener(
            create_app(session.open, config=config, node="ab12", version="0.1.0", now_s=time.time), config=config
        )
        await listener.start()
        started.append(Served(session, listener, config))
        return started[-1]

    yield start
    for served in started:
        for link in served.links:
            await link.close()
        await served.listener.stop()
    stack.close()


@pytest.fixture
async def served(serve: Serve) -> Served:
    return await serve()


@pytest.fixture
def prompt_session(serve: Serve) -> Iterator[PromptSession]:
    """It ends before the nodes of `serve` do, which would wait for its answers."""
    session = PromptSession()
    yield session
    session.answer_all()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    """A client. Its WebSockets are cut at the end: left to the garbage collector, some would fail whatever test runs then."""
    dialled: list[DialledSocket] = []

    class Socket(DialledSocket):
        def __init__(self, *details: Any, **named: Any) -> None:
            super().__init__(*details, **named)
            dialled.append(self)

    async with aiohttp.ClientSession(ws_response_class=Socket) as client:
        yield client
        for socket in dialled:
            socket.cut()


class Rest:
    """Sends raw paths, and reads JSON."""

    def __init__(self, http: aiohttp.ClientSession, served: Any) -> None:  # Whatever its session is.
        self.http = http
        self.served = served

    def request(self, method: str, path: str, **options: Any) -> Any:
        return self.http.request(method, URL(self.served.url + path, encoded=True), **options)

    async def __call__(self, method: str, path: str, json: Any = None, **options: Any) -> tuple[int, Any]:
        if json is not None:
            options["json"] = json
        async with self.request(method, path, **options) as response:
            body = await response.read()
            return response.status, msgspec.json.decode(body)

    async def problem(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """The problem document; that it is one, and disturbed nobody, is asserted here."""
        async with self.request(method, path, **options) as response:
            assert response.content_type == "application/problem+json"
            problem: dict[str, Any] = msgspec.json.decode(await response.read())
        assert problem["status"] == response.status
        assert problem["type"] == f"urn:shoal:error:{problem['code']}"
        assert {"title", "detail", "written"} <= set(problem)
        status, _ = await self("POST", "/v1/spaces/other/counters/c", {"add": 1})
        assert status == 200
        return problem


@pytest.fixture
async def rest(http: aiohttp.ClientSession, served: Served) -> Rest:
    return Rest(http, served)
