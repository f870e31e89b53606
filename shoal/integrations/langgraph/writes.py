"""The writes of a saver on their way to the node, and the files that stand for large values in them.

A step of a graph was two operations, `put_writes` and `put`, each with its own log entry, hash chain and reply.

Laws:
- A write is begun without a task of its own if the session can (`Prompt`), and by a thread without a
  coroutine: it is put into a queue, and the loop takes all that is in there at once.
- Pending writes wait for the end of the loop's turn. LangGraph puts the next checkpoint in the turn in which
  the last task of a step ends, so that both are one request, all or none. A put never waits.
- If writes of one request are rejected, each is sent again alone: one's error is not the other's.

The saver's memory of the last checkpoints of live threads, on which the next puts build.

Laws:
- With it a put reads nothing, and sends of a list only the elements that were added to it.
- It is bounded. If a checkpoint is forgotten, the next put reads it first; if its lists are, they are sent whole.
- A list is remembered as it was packed for, or read from, exactly that checkpoint: with its id in Shoal, because LangGraph may
  put another checkpoint under the same id of its own.

Any thread may use it.

Large values of a graph's checkpoints and pending writes: files of the thread, and references in their place.

Laws:
- A value above a sixteenth of a request (`request_bytes_max`), and a list above a quarter, is a file; so is the largest of what
  is left, while all of it together is above half a request. So a state has any size, and a list that grows is stored by its new
  end for long.
- A file holds the bytes that the checkpoint would hold: an encrypting serialiser's are encrypted.
- What a reference stands for is decoded as what stands in its place: by the saver's serialiser, with its allow-list.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from threading import Lock
from typing import Any, TypeVar

from langgraph.checkpoint.base import ChannelVersions
from msgspec import structs

from shoal.client.connection import StoreConnection
from shoal.errors import OutcomeUnknown, ShoalError
from shoal.integrations.base import LOST, Bridge
from shoal.integrations.contents import Contents
from shoal.integrations.langgraph import encoding
from shoal.integrations.langgraph.encoding import Place, is_list, reference_of, referring
from shoal.protocol.requests import Annotate, AnyRequest, Batch, Note, Save
from shoal.protocol.session import Prompt
from shoal.records import NamedTuple

Answered = Callable[[Any], None]
"""Takes a reply or an error, once."""


class _Sent(NamedTuple):
    request: Save | Annotate
    answered: Answered


class Writes:
    """Sends writes; all but `blocking` runs on the store's loop."""

    def __init__(self, connection: StoreConnection, bridge: Bridge) -> None:
        session = connection.session
        self._connection = connection
        self._bridge = bridge
        self._loop = bridge.loop
        self._prompt = session if isinstance(session, Prompt) else None
        self._joined_max = connection.config.batch_writes_max
        self._posted: deque[tuple[Save | Annotate, Future[Any]]] = deque()  # At most one for each thread that waits.
        self._is_woken = False  # Whether the loop is about to take what is posted.
        self._pending: dict[str, list[_Sent]] = {}  # Thread → its pending writes of this turn.
        self._calls: set[asyncio.Task[None]] = set()

    async def put(self, request: Save) -> Any:
        """Send a put at once, together with the pending writes that its thread has sent in this turn."""
        settled = self._loop.create_future()
        answered = partial(_settle, settled)
        if request.thread in self._pending:
            self._send(request, answered)
        elif not self._begun(request, answered):
            return await self._connection.write(request, key=None, durability=None)
        return await settled

    async def annotate(self, request: Annotate) -> Any:
        """Send pending writes, at the end of this turn or with a put of their thread."""
        settled = self._loop.create_future()
        self._send(request, partial(_settle, settled))
        return await settled

    def blocking(self, request: Save | Annotate) -> Any:
        """Send a write from another thread than the loop's, and block until it is answered.

        Raises:
            InvalidInput, StoreClosed, OutcomeUnknown: as `Bridge.blocking`.
        """
        self._bridge.check_elsewhere()
        future: Future[Any] = Future()
        self._posted.append((request, future))
        if not self._is_woken:
            self._is_woken = True
            self._bridge.soon(self._send_posted)
        return self._bridge.waited(future)

    def _send_posted(self) -> None:
        self._is_woken = False  # First, because a write that is posted later may not be seen below.
        while self._posted:
            request, future = self._posted.popleft()
            if future.set_running_or_notify_cancel():  # Else its thread was interrupted.
                self._send(request, partial(_settle, future))

    def _send(self, request: Save | Annotate, answered: Answered) -> None:
        pending = self._pending.pop(request.thread, None)
        sent = [_Sent(request, answered)] if pending is None else [*pending, _Sent(request, answered)]
        if isinstance(request, Save) or len(sent) == self._joined_max:
            self._begin_all(sent)
            return
        if not self._pending:
            self._loop.call_soon(self._send_pending)
        self._pending[request.thread] = sent

    def _send_pending(self) -> None:
        pending, self._pending = self._pending, {}
        for sent in pending.values():
            self._begin_all(sent)

    def _begin_all(self, sent: list[_Sent]) -> None:
        """Begin writes of one thread, several of them as one request."""
        if len(sent) == 1:
            self._begin(*sent[0])
            return

        def answered(answer: Any) -> None:
            if not isinstance(answer, BaseException):
                for each, reply in zip(sent, answer.replies, strict=True):
                    each.answered(reply)
            elif isinstance(answer, ShoalError) and answer.written == "no":
                for each in sent:
                    self._begin(*each)
            else:
                for each in sent:
                    each.answered(answer)

        self._begin(Batch([each.request for each in sent]), answered)

    def _begin(self, request: AnyRequest, answered: Answered) -> None:
        try:
            if self._begun(request, answered):
                return
        except Exception as error:
            answered(error)
            return
        task = self._loop.create_task(self._call(request, answered))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    def _begun(self, request: AnyRequest, answered: Answered) -> bool:
        if self._connection.held:
            return False  # The connection adds the lease.
        return self._prompt is not None and self._prompt.begin(request, answered, durability=self._connection.durability)

    async def _call(self, request: Any, answered: Answered) -> None:
        try:
            answered(await self._connection.write(request, key=None, durability=None))
        except asyncio.CancelledError:
            answered(OutcomeUnknown(LOST))
            raise
        except Exception as error:
            answered(error)


def _settle(settled: asyncio.Future[Any] | Future[Any], answer: Any) -> None:
    if settled.done():
        return  # Its caller was cancelled.
    if isinstance(answer, BaseException):
        settled.set_exception(answer)
    else:
        settled.set_result(answer)


BASES_MAX = 4096  # Live threads whose last checkpoint is remembered; for others a put needs one read more.
LIST_BYTES_MIN = 1024  # Of a list that is worth remembering.

Packed = Mapping[str, bytes]
"""Channel → its value, packed."""
NOTHING_PACKED: Packed = {}


class Base(NamedTuple):
    """The data of a previous checkpoint that a put needs."""

    id: str  # The checkpoint's id in Shoal.
    versions: ChannelVersions
    stored: frozenset[str]  # The channels that have a value.


class _Lists(NamedTuple):
    of: str  # The checkpoint's id in Shoal.
    packed: Packed


class Bases:
    """The last checkpoints, and up to `lists_bytes_max` of their lists; beyond either bound the oldest are forgotten."""

    def __init__(self, lists_bytes_max: int) -> None:
        self._lists_bytes_max = lists_bytes_max
        self._lists_bytes = 0
        self._lock = Lock()
        self._known: OrderedDict[tuple[Place, str], Base] = OrderedDict()
        self._lists: OrderedDict[tuple[Place, str], _Lists] = OrderedDict()

    def get(self, place: Place, id: str) -> Base | None:
        """The base for a put on checkpoint `id`; None if it is not known here."""
        return self._known.get((place, id))

    def lists(self, place: Place, id: str, base: Base) -> Packed:
        """The long lists of checkpoint `id`, whose data is `base`, as far as they are known here."""
        found = self._lists.get((place, id))
        return found.packed if found is not None and found.of == base.id else NOTHING_PACKED

    def put(self, place: Place, id: str, base: Base, *, replacing: str | None = None, packed: Packed = NOTHING_PACKED) -> None:
        """Remember a checkpoint and its lists; the checkpoint that it is `replacing` is not live any more."""
        key = place, id
        with self._lock:
            if replacing is not None:
                self._drop((place, replacing))
            self._known[key] = base
            self._known.move_to_end(key)
            if len(self._known) > BASES_MAX:
                self._drop(next(iter(self._known)))
            if self._lists_bytes_max and packed:
                lists = {name: value for name, value in packed.items() if len(value) >= LIST_BYTES_MIN and is_list(value)}
                self._keep(key, base, lists)

    def forget(self, place: Place, id: str) -> None:
        """Forget one checkpoint."""
        with self._lock:
            self._drop((place, id))

    def forget_thread(self, thread_id: str) -> None:
        """Forget all checkpoints of a thread."""
        with self._lock:
            for known in [known for known in self._known if known[0].thread_id == thread_id]:
                self._drop(known)

    def _keep(self, key: tuple[Place, str], base: Base, lists: Packed) -> None:
        self._drop_lists(key)
        if lists:
            self._lists[key] = _Lists(base.id, lists)
            self._lists_bytes += _size(lists)
        while self._lists_bytes > self._lists_bytes_max:
            self._drop_lists(next(iter(self._lists)))

    def _drop(self, key: tuple[Place, str]) -> None:
        self._known.pop(key, None)
        if self._lists:
            self._drop_lists(key)

    def _drop_lists(self, key: tuple[Place, str]) -> None:
        if (dropped := self._lists.pop(key, None)) is not None:
            self._lists_bytes -= _size(dropped.packed)


def _size(packed: Packed) -> int:
    return sum(map(len, packed.values()))


K = TypeVar("K")
_WORTH_BYTES = 4096  # Of a value that becomes a file because others are large, too.


class Large:
    """The large values of the threads of one space. `contents` are their files."""

    def __init__(self, connection: StoreConnection, space: str) -> None:
        self.contents = Contents(connection, space)
        most = connection.config.request_bytes_max
        self._value_max, self._list_max, self._together_max = most // 16, most // 4, most // 2

    def are_in(self, request: Save | Annotate) -> bool:
        """Whether a write has values that are to be files."""
        is_put = isinstance(request, Save)
        values = dict(enumerate(request.channels.values() if isinstance(request, Save) else _notes(request)))
        return sum(map(len, values.values())) > self._value_max and bool(self._chosen(values, lists=is_put))

    async def put(self, request: Save, *, least: bool = False) -> Save:
        """A put whose large values are files, as far as the space takes files. `least`: it holds a quarter of what it may."""
        chosen = self._chosen(request.channels, lists=True, share=4 if least else 1)
        if not chosen or not await self.contents.are_taken():
            return request
        channels = dict(request.channels)
        for name in chosen:
            channels[name] = referring(await self.contents.put(request.thread, channels[name], name=name))
        return structs.replace(request, channels=channels)

    async def annotated(self, request: Annotate) -> Annotate:
        """Pending writes whose large values are files, as far as the space takes files."""
        chosen = self._chosen(dict(enumerate(_notes(request))), lists=False)
        if not chosen or not await self.contents.are_taken():
            return request
        notes = list(request.notes)
        for nth in chosen:
            note = notes[nth]
            write = encoding.unpack_write(note.value)
            ref = await self.contents.put(request.thread, encoding.typed(write.kind, write.value), name=write.channel)
            notes[nth] = Note(note.name, encoding.written(write.task_path, write.channel, ref), note.first)
        return structs.replace(request, notes=notes)

    async def whole(self, thread: str, packed: bytes) -> bytes:
        """A channel's packed value, if need be from its file.

        Raises:
            NotFound: the checkpoint was deleted meanwhile, and its files were swept.
            InvalidValue: the reference is none.
        """
        ref = reference_of(packed)
        return packed if ref is None else await self.contents.get(thread, ref)

    def _chosen(self, values: Mapping[K, bytes], *, lists: bool, share: int = 1) -> list[K]:
        left, chosen = sum(map(len, values.values())), list[K]()
        for key, value in sorted(values.items(), key=lambda each: len(each[1]), reverse=True):
            if len(value) <= _WORTH_BYTES:
                break
            bound = self._list_max if lists and is_list(value) else self._value_max
            if len(value) > bound or left > self._together_max // share:
                chosen.append(key)
                left -= len(value)
        return chosen


def _notes(request: Annotate) -> list[bytes]:
    return [note.value for note in request.notes]
