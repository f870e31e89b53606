"""Threads, documents and files as resources: their URIs, pages of them, and their contents.

    shoal://SPACE/threads/NAME        the newest state of the branch `main`, as JSON
    shoal://SPACE/documents/NAME      the content, as JSON
    shoal://SPACE/files/NAME          a file of the space, as it is
    shoal://SPACE/threads/NAME/files/FILE    a file of a thread; these are not listed

Laws:
- Names are percent-encoded in URIs. Each name has one URI that is listed, and every spelling of it is understood.
- A file that is larger than `MCP_FILE_BYTES_MAX` is refused before any of it is read: an answer holds it whole.

Subscriptions to changes by any process on any node, and the watch that reports them.

Laws:
- A subscription is answered once the watch has begun: no later change is missed.
- While no node can be reached, the watch goes on trying, and continues where it was. If changes were left out, every
  subscriber is told, and reads again.
- There is one watch for all subscriptions, and none before the first.
- When the token no longer counts, the watch ends, and all subscriptions with it: a node counts the attempts that it refuses.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, suppress
from typing import Literal, get_args
from urllib.parse import quote, unquote

from mcp.server.subscriptions import InMemorySubscriptionBus, ResourcesListChanged, ResourceUpdated, ServerEvent
from mcp.types import BlobResourceContents, Resource, ResourceTemplate, TextResourceContents

from shoal import values
from shoal.client.connection import StoreConnection
from shoal.client.store import Space
from shoal.client.watching import Change, Reset
from shoal.errors import Forbidden, InvalidInput, InvalidValue, ShoalError, TooLarge, Unauthenticated
from shoal.kinds.thread.handle.thread import Thread
from shoal.logs import events
from shoal.logs.lines import log
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.position import Position
from shoal.protocol.requests import SPACE_FILES
from shoal.records import NamedTuple

MCP_SUBSCRIPTIONS_MAX = 1024  # Resources that are watched for one client.
MCP_FILE_BYTES_MAX = 8 * 1024 * 1024  # Of a file that is read as a resource.

Kind = Literal["thread", "document"]

KINDS: tuple[Kind, ...] = get_args(Kind)

_SCHEME = "shoal://"
_JSON = "application/json"
_FILE = "a file, as it was put"
_LISTS: tuple[Kind | Literal["file"], ...] = (*KINDS, "file")  # In this order.
_SAID = {"thread": "the newest state of this thread", "document": "the content of this shared document"}


class Place(NamedTuple):
    """The object that a URI names."""

    space: str
    kind: Kind
    name: str
    file: str = ""  # Of the thread with this name; "": the object itself.

    @property
    def uri(self) -> str:
        """Its URI."""
        at = f"{_SCHEME}{quote(self.space, safe='')}"
        if self.file and self.name == SPACE_FILES:
            return f"{at}/files/{quote(self.file, safe='')}"
        return f"{at}/{self.kind}s/{quote(self.name, safe='')}" + (f"/files/{quote(self.file, safe='')}" if self.file else "")


def place_of(uri: str, space: str) -> Place:
    """The object that `uri` names in the space that is served.

    Raises:
        InvalidInput: it is no URI of a thread or document, or one of another space.
        InvalidName: it holds a name that is not legal.
    """
    head, _, rest = uri.partition(_SCHEME)
    parts = rest.split("/")
    of_file = len(parts) == 5 and (parts[1], parts[3]) == ("threads", "files")
    if head or not (of_file or (len(parts) == 3 and parts[1] in ("threads", "documents", "files"))):
        raise InvalidInput(
            f"{uri[:200]!r} names no resource of this server. Nothing was read. A URI is "
            f"shoal://{quote(space, safe='')}/threads/NAME, …/threads/NAME/files/FILE, …/documents/NAME or …/files/FILE, with "
            "the names percent-encoded: a slash within a name is %2F."
        )
    named = check_name("space", unquote(parts[0]))
    if named != space:
        raise InvalidInput(
            f"this server serves the space {space!r}, not {named!r}. Nothing was read. Start another with --space {named}."
        )
    if parts[1] == "files":
        return Place(space, "thread", SPACE_FILES, check_name("file", unquote(parts[2])))
    if of_file:
        return Place(space, "thread", check_name("thread", unquote(parts[2])), check_name("file", unquote(parts[4])))
    kind: Kind = "thread" if parts[1] == "threads" else "document"
    return Place(space, kind, check_name(kind, unquote(parts[2])))


def templates(space: str) -> list[ResourceTemplate]:
    """The forms of the URIs."""
    at = f"{_SCHEME}{quote(space, safe='')}"
    return [
        ResourceTemplate(uri_template=f"{at}/{kind}s/{{name}}", name=f"{kind}s", description=_SAID[kind], mime_type=_JSON)
        for kind in KINDS
    ] + [
        ResourceTemplate(uri_template=f"{at}/files/{{file}}", name="files", description=_FILE),
        ResourceTemplate(uri_template=f"{at}/threads/{{name}}/files/{{file}}", name="files of a thread", description=_FILE),
    ]


async def page(connection: StoreConnection, space: str, cursor: str | None) -> tuple[list[Resource], str | None]:
    """A page of the resources, threads first, files last, and the cursor of the next one; None if it is the last.

    Raises:
        InvalidValue: `cursor` is none that was answered.
    """
    kind, after = _position(cursor)
    limit = connection.config.page_items_max
    if kind == "file":
        files = await connection.read(requests.ListFiles(space, SPACE_FILES, after or "", limit))
        listed = [
            Resource(
                uri=Place(space, "thread", SPACE_FILES, each.name).uri,
                name=each.name,
                description=_FILE,
                mime_type=each.media_type,
                size=each.size,
            )
            for each in files.files
        ]
        return listed, json.dumps(["file", files.files[-1].name]) if files.more and files.files else None
    reply = await connection.read(requests.ListObjects(space, kind, "", after, limit))
    found = [
        Resource(uri=Place(space, kind, name).uri, name=name, description=_SAID[kind], mime_type=_JSON) for name in reply.names
    ]
    if reply.more and reply.names:
        return found, json.dumps([kind, reply.names[-1]])
    return found, json.dumps([_LISTS[_LISTS.index(kind) + 1], None])


async def contents(connection: StoreConnection, space: Space, uri: str) -> TextResourceContents | BlobResourceContents:
    """The contents of a resource.

    Raises:
        NotFound: there is no such thread, or file. A document that was never written is empty.
        TooLarge: the file is too large for an answer.
        InvalidInput: the URI names nothing here.
    """
    place = place_of(uri, space.name)
    if place.file:
        return await _file(space.thread(place.name), place.file, uri)
    if place.kind == "thread":
        found = await space.thread(place.name).load()
        text = json.dumps({"id": found.id, "state": values.to_json(found.redacted)}, ensure_ascii=False)
    else:
        text = (await connection.read(requests.ReadDocumentJson(space.name, place.name))).json.decode()
    return TextResourceContents(uri=uri, mime_type=_JSON, text=text)


async def _file(thread: Thread, name: str, uri: str) -> TextResourceContents | BlobResourceContents:
    async with thread.open_file(name) as stream:
        if stream.size > MCP_FILE_BYTES_MAX:
            raise TooLarge(
                f"file {name!r} has {stream.size} bytes, and an answer may have {MCP_FILE_BYTES_MAX} of a file. Nothing was "
                "read. Fetch it with `shoal file get`, or over HTTP in ranges."
            )
        data, kind = await stream.read(), stream.ref.type
    if kind.startswith("text/") or kind == _JSON:
        with suppress(UnicodeDecodeError):
            return TextResourceContents(uri=uri, mime_type=kind, text=data.decode())
    return BlobResourceContents(uri=uri, mime_type=kind, blob=base64.b64encode(data).decode())


def _position(cursor: str | None) -> tuple[Kind | Literal["file"], str | None]:
    if cursor is None:
        return "thread", None
    try:
        kind, after = json.loads(cursor)
    except (ValueError, TypeError):
        kind, after = "", None
    if kind not in _LISTS or not isinstance(after, str | None):
        raise InvalidValue(f"{cursor[:80]!r} is no cursor of this list. Nothing was read. Begin without one.")
    return kind, after


_SEEN_MAX = 4096  # Names of which clients need not be told again that the list may be another.
_PAUSE_S = 1.0  # Between attempts of a watch that no node serves.


class Subscriptions:
    """A bus of the SDK (`SubscriptionBus`) whose events come from a watch of the space."""

    def __init__(self, connection: StoreConnection, space: Space, *, ended: Callable[[], None]) -> None:
        """`ended` is called when the watch ends by itself; then `failed` says why."""
        self.failed: ShoalError | None = None
        self._ended = ended
        self._connection = connection
        self._space = space
        self._bus = InMemorySubscriptionBus()
        self._wanted: Counter[str] = Counter()  # URIs as clients spell them.
        self._seen: dict[tuple[str, str], None] = {}
        self._watch: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._telling: set[asyncio.Task[None]] = set()

    async def publish(self, event: ServerEvent) -> None:
        """Publish an event (`SubscriptionBus`)."""
        await self._bus.publish(event)

    def subscribe(self, listener: Callable[[ServerEvent], None]) -> Callable[[], None]:
        """Subscribe to events (`SubscriptionBus`)."""
        unsubscribe: Callable[[], None] = self._bus.subscribe(listener)
        return unsubscribe

    @asynccontextmanager
    async def wanting(self, uris: Iterable[str]) -> AsyncIterator[None]:
        """Within this context, changes of these resources are published.

        Raises:
            InvalidInput: a URI names no resource of this space, or there are too many.
            ShoalError: no node serves the watch.
        """
        wanted = list(uris)
        await self.want(wanted)
        try:
            yield
        finally:
            self.unwant(wanted)

    async def want(self, uris: Iterable[str]) -> None:
        """From now on, changes of these resources are published. Raises as `wanting`."""
        added = list(uris)
        for uri in added:
            place_of(uri, self._space.name)
        subscriptions_max = MCP_SUBSCRIPTIONS_MAX
        if self._wanted.total() + len(added) > subscriptions_max:
            raise TooLarge(
                f"at most {subscriptions_max} resources are watched for a client. Nothing was subscribed. End other "
                "subscriptions first."
            )
        async with self._starting:
            if self._watch is None:
                self.failed = None
                self._watch = asyncio.create_task(self._watching(await self._begun()))
        self._wanted.update(added)

    def unwant(self, uris: Iterable[str]) -> None:
        """These resources are wanted once less."""
        self._wanted -= Counter(list(uris))

    def tell(self, uri: str, send: Callable[[str], Awaitable[None]]) -> Callable[[], None]:
        """Call `send` for each change of this resource, one at a time, until the returned function is called.

        Changes that come while a call is under way are one call after it.
        """
        changed = asyncio.Event()

        def noted(event: ServerEvent) -> None:
            if isinstance(event, ResourceUpdated) and event.uri == uri:
                changed.set()

        async def sending() -> None:
            while True:
                await changed.wait()
                changed.clear()
                await send(uri)

        task = asyncio.create_task(sending())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)
        unsubscribe = self._bus.subscribe(noted)

        def end() -> None:
            unsubscribe()
            task.cancel()

        return end

    async def close(self) -> None:
        """End the watch."""
        for each in self._telling:
            each.cancel()
        if self._watch is not None:
            self._watch.cancel()
            with suppress(asyncio.CancelledError):
                await self._watch

    async def _begun(self) -> str:
        """The bookmark of a watch that begins now."""
        watch = requests.Watch(self._space.name, None, "", list(KINDS), after=b"")
        async with self._connection.session.subscribe(watch) as pushes:
            async for push in pushes:
                if isinstance(push, requests.Watching):
                    return Position.unpack(push.position).text()
        raise AssertionError("a watch begins with its position")

    async def _watching(self, bookmark: str) -> None:
        while True:
            try:
                async with aclosing(self._space.watch(kinds=KINDS, after=bookmark)) as changes:
                    async for change in changes:
                        await self._told(change)
                        bookmark = change.bookmark
            except (Unauthenticated, Forbidden) as error:
                log(events.WATCH_ENDED, reason=error.message)
                self.failed, self._watch = error, None
                self._ended()
                return
            except ShoalError as error:
                log(events.WATCH_INTERRUPTED, reason=error.message)
                await asyncio.sleep(_PAUSE_S)
                if not error.retryable:
                    with suppress(ShoalError):
                        bookmark = await self._begun()
                        await self._reread()

    async def _told(self, change: Change | Reset) -> None:
        if isinstance(change, Reset):
            await self._reread()
            return
        place = change.kind, change.name
        deleted = change.what.startswith("delete")
        if deleted or place not in self._seen or place == ("thread", SPACE_FILES):
            await self._bus.publish(ResourcesListChanged())
        if deleted:
            self._seen.pop(place, None)
        else:
            self._seen[place] = None
            if len(self._seen) > _SEEN_MAX:
                del self._seen[next(iter(self._seen))]
        for uri in list(self._wanted):
            found = place_of(uri, self._space.name)
            if (found.kind, found.name) == place:
                await self._bus.publish(ResourceUpdated(uri=uri))

    async def _reread(self) -> None:
        await self._bus.publish(ResourcesListChanged())
        for uri in list(self._wanted):
            await self._bus.publish(ResourceUpdated(uri=uri))
