"""The live local mirror of a document: edit it in place, and it stays in step.

    doc = await space.document("plan")
    doc.map("tasks")["t1"] = {"title": "survey", "done": False}
    await doc.flush()                                   # durable now

Laws:
- An edit applies here at once. What was edited within one tick of the event
  loop, or while a request was under way, leaves as one update, in order.
- No edit is lost silently: what could not be written is raised by the next
  `flush`, `close` or access to a root, and stays in the mirror.
- What came from the node is not sent back to it.
- Sending again is harmless (Yjs updates are idempotent), so that after a broken
  connection the mirror sends all that it cannot prove durable. A node that lacks
  what an edit builds on is sent all that it lacks, edits of others included: what
  was seen through a node that died comes back through the next.
- The mirror never goes back: one that follows on, on whatever node, keeps what it
  has shown, and need not wait until that node has it too.

Maps, arrays and texts are pycrdt's own types. What to know of them:
- Positions in a text count UTF-8 bytes, not characters: the position before
  "b" in "éb" is 2 (`len("é".encode())`). A position within a character
  destroys the text around it.
- Numbers are floats to the engine. `to_py` and `to_json` make integers of the
  integral ones again, exact within ±(2⁵³ − 1). A longer integer is rounded on
  its way to others: store it as a string. Past 64 bits, and for keys that are
  no strings or text with lone surrogates, the engine panics, with an error
  that is no `Exception`.
- dicts and lists are stored as one value each, and the last writer wins; give
  `pycrdt.Map` or `pycrdt.Array` where concurrent edits within should merge.
"""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, Literal, Self

import pycrdt

from shoal import values
from shoal.client.changes import Conflict, DocumentChange, Feed, shown_conflict
from shoal.client.content import Content, Transacted, closed
from shoal.client.presence import Presence
from shoal.client.retrying import delays, is_transient, paused
from shoal.client.undoing import Undo
from shoal.client.unsent import Unsent
from shoal.config import Config
from shoal.crdt import yjs
from shoal.crdt.document import RootKind
from shoal.crdt.editing import Editor, kind_of
from shoal.errors import (
    BookmarkLost,
    Disconnected,
    InvalidInput,
    InvalidValue,
    NotReady,
    Overloaded,
    ReadOnly,
    SessionBehind,
    ShoalError,
)
from shoal.names import check_name
from shoal.protocol.requests import (
    ANY,
    Conflicts,
    Deleted,
    DeleteDocument,
    DocumentJson,
    DocumentState,
    Durability,
    Edit,
    Follow,
    Moment,
    Push,
    ReadConflicts,
    ReadDocumentAt,
    ReadMoment,
    Update,
)
from shoal.protocol.session import Session


class Document:
    """Use `Document.open`, or a space's `document`."""

    def __init__(
        self,
        session: Session,
        space: str,
        name: str,
        *,
        client_id: int,
        config: Config,
        durability: Durability = "local",
        key_of: Callable[[], str | None] = lambda: None,
        author: str = "",
        undo: int = 0,
    ) -> None:
        self.space, self.name = space, name
        self._session, self._config, self._durability, self._key_of = session, config, durability, key_of
        self._content = Content(client_id=client_id, edited=self._edited)
        self._unsent = Unsent(self._content.doc, bytes_max=config.request_bytes_max)
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()
        self._current = False
        self._error: ShoalError | None = None
        self._refused = False
        self._closed = False
        self._author = author
        self._authors: dict[int, str] = {client_id: author} if author else {}
        self._undo = Undo(undo) if undo > 0 else None
        self._feed = Feed(config.subscription_bytes_max)
        self._generation = ANY  # Of the document that this mirrors: a deletion ends it.
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._presence: Presence | None = None

    @classmethod
    async def open(
        cls,
        session: Session,
        space: str,
        name: str,
        *,
        client_id: int,
        config: Config,
        durability: Durability = "local",
        key_of: Callable[[], str | None] = lambda: None,
        author: str = "",
        undo: int = 0,
    ) -> Document:
        """Mirror a document; one that does not exist is empty.

        `client_id` (53 bits) must never have been used before: two mirrors that
        share one diverge for good. `key_of` makes an idempotency key per request.

        Raises:
            Disconnected, Unavailable: its state could not be had within `config.request_timeout_s`.
        """
        document = cls(
            session,
            space,
            name,
            client_id=client_id,
            config=config,
            durability=durability,
            key_of=key_of,
            author=author,
            undo=undo,
        )
        document._start()
        try:
            while not document._current:
                document._raise_error()
                await document._progress.wait()
        except BaseException:
            await document._stop()
            raise
        return document

    # ── content ───────────────────────────────────────────────────────────────

    def map(self, name: str) -> pycrdt.Map[Any]:
        """The root map `name`, declared as such if it is new.

        Raises:
            RootConflict: it is an array or a text.
            InvalidName: the name is not legal.
            Overloaded: too much is waiting to be sent; `flush` first.
            ShoalError: an earlier edit could not be written.
        """
        root: pycrdt.Map[Any] = self._root(name, "map")
        return root

    def list(self, name: str) -> pycrdt.Array[Any]:
        """The same as `array`."""
        return self.array(name)

    def array(self, name: str) -> pycrdt.Array[Any]:
        """The root array `name`; raises as `map` does."""
        root: pycrdt.Array[Any] = self._root(name, "array")
        return root

    def text(self, name: str) -> pycrdt.Text:
        """The root text `name`; raises as `map` does. Positions count UTF-8 bytes."""
        root: pycrdt.Text = self._root(name, "text")
        return root

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Edits within are one update, which others see whole or not at all.

        Do not await within: nothing is sent or received until it ends. An
        exception takes nothing back of what was edited before it.

        Raises:
            Overloaded, ShoalError: as `map` does.
        """
        self._check_editable()
        try:
            with self._content.transaction():
                yield
        finally:
            self._settle_undo()

    def replace(self, content: Mapping[str, Any]) -> None:
        """Edit in place until the content is `content`, as `to_py` shows it, by a small change and as one update.

        What is equal is left alone, so that concurrent edits of it survive; a root that is not named is emptied.

        Raises:
            InvalidValue, TooLarge: it is nothing that a document can hold, or too much. Nothing was edited.
            RootConflict, InvalidName, Overloaded, ShoalError: as `map` does. Likewise.
        """
        editor = Editor()
        editor.check_content(self._content.roots, content)
        with self.transaction():
            for name, value in content.items():
                self._root(name, kind_of(value))
            editor.replace(self._content.doc, self._content.roots, content)

    def undo(self) -> bool:
        """Take back the last transaction of this mirror that is not taken back yet; others' edits stay. False: there is none.

        Raises:
            InvalidInput: the mirror was opened without `undo=`, the number of steps that it is to keep.
            Overloaded, ShoalError: as `map` does.
        """
        return self._steps().undo()

    def redo(self) -> bool:
        """Do again what was taken back last, if nothing was edited here since. Raises as `undo`."""
        return self._steps().redo()

    def _steps(self) -> Undo:
        self._check_editable()
        if self._undo is None:
            raise InvalidInput("this document was opened without undo. Nothing was written. Open it with `undo=100`.")
        return self._undo

    def to_py(self) -> dict[str, Any]:
        """The content by root, as dicts, lists, str and plain values."""
        return self._content.to_py()

    def to_json(self) -> Any:
        """The same as JSON, with bytes and the like tagged as `shoal.values.to_json` does."""
        return values.to_json(self.to_py())

    @property
    def roots(self) -> dict[str, RootKind]:
        """The kinds of the roots, those declared here included."""
        return self._content.roots

    @property
    def presence(self) -> Presence:
        """Who is here, in this document, editors included; what one says of oneself with `set`."""
        if self._presence is None:
            self._presence = Presence(self._session, self.space, self.name, client_id=self.client_id, config=self._config)
        return self._presence

    @property
    def client_id(self) -> int:
        return self._content.doc.client_id

    # ── life ──────────────────────────────────────────────────────────────────

    async def flush(self) -> None:
        """Return once every edit made before this call is durable.

        Raises:
            ShoalError: one could not be written. It stays in the mirror. After `Disconnected`, `OutcomeUnknown`,
                `Overloaded` and `ReadOnly` the next flush tries again; any other refusal is final.
        """
        self._raise_error()
        self._start()
        target = self._unsent.edits
        while self._unsent.written < target:
            self._wake.set()
            await self._progress.wait()
            self._raise_error()

    def changes(self) -> AsyncIterator[DocumentChange]:
        """What changes from now on, place by place: by others, and here once it is durable. Ends when the document closes.

        Raises:
            SlowConsumer: from the iterator, once more than `config.subscription_bytes_max` waited for it.
            ShoalError: from the iterator, once the node could not be followed any more.
        """
        reader = self._feed.reader()
        if self._closed:
            self._feed.end(None)
        else:
            self._content.trace()
        return reader

    async def snapshot(self) -> str:
        """Name the document as it is, edits of this mirror included, as text to hand to `at`, here or elsewhere.

        Raises:
            ShoalError: an edit could not be written, as `flush`.
        """
        await self.flush()
        moment = await self._session.call(ReadMoment(self.space, self.name))
        assert isinstance(moment, Moment)
        return urlsafe_b64encode(moment.generation.to_bytes(4, "big") + moment.vector).decode()

    async def at(self, snapshot: str) -> dict[str, Any]:
        """The content as it was at a snapshot, as `to_py` shows it.

        Raises:
            InvalidValue: it is no snapshot.
            GenerationEnded: the document was deleted since.
            SessionBehind: the node does not hold all that was there then; try again.
            TooLarge: more than `config.document_history_updates_max` updates lie before it.
        """
        try:
            packed = urlsafe_b64decode(snapshot)
        except ValueError:
            packed = b""
        if len(packed) < 4:
            raise InvalidValue("this is no snapshot of a document. Take it from `snapshot`.")
        generation = int.from_bytes(packed[:4], "big")
        shown = await self._session.call(ReadDocumentAt(self.space, self.name, generation, packed[4:]))
        assert isinstance(shown, DocumentJson)
        content: dict[str, Any] = values.from_json(json.loads(shown.json))
        return content

    async def conflicts(self) -> Sequence[Conflict]:
        """Values of maps' keys that were lost to concurrent ones, the latest first: what was overwritten, and by whom.

        As the node knows it; `flush` first to have it know what was edited here. It knows of what is
        in the document's history still, and at most of `config.document_conflicts_max`.
        """
        found = await self._session.call(ReadConflicts(self.space, self.name))
        assert isinstance(found, Conflicts)
        return [shown_conflict(each) for each in found.overwritten]

    async def delete(self) -> bool:
        """Delete the document on every node, and close this mirror. False: there was none.

        What others edit without knowing of this dies with it, also if it comes later: their mirrors raise
        `GenerationEnded`, and so does a Yjs client that comes back. Who opens it again begins it anew.

        Raises:
            ShoalError: it could not be deleted. Edits that are not flushed are dropped if it was.
        """
        request = DeleteDocument(self.space, self.name)
        reply = await self._session.call(request, key=self._key_of(), durability=self._durability)
        assert isinstance(reply, Deleted)
        await self.abandon()
        return reply.existed

    async def abandon(self) -> None:
        """Close without a flush: edits that are not durable yet may be lost."""
        self._closed = True
        await self._stop()

    async def close(self) -> None:
        """Flush, and stop. Later edits raise.

        Raises:
            ShoalError: edits could not be written. The document is closed all the same.
        """
        if self._closed:
            return
        try:
            await self.flush()
        finally:
            self._closed = True
            await self._stop()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
            return
        # Cancelled: who is leaving does not wait long for a node that may be gone.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.failover_timeout_s):
                await self.close()

    # ── editing ───────────────────────────────────────────────────────────────

    def _root(self, name: str, kind: RootKind) -> Any:
        check_name("document root", name)
        self._check_editable()
        root = self._content.root(name, kind)
        if self._undo is not None:
            self._undo.scope(name, root)
            self._settle_undo()
        return root

    def _settle_undo(self) -> None:
        if self._undo is not None and self._content.outside.is_set():
            self._undo.settle()

    def _check_editable(self) -> None:
        if self._closed:
            raise closed()
        self._raise_error()
        if self._unsent.is_full:
            raise Overloaded(
                f"more than {self._config.request_bytes_max} bytes of edits wait to be sent. "
                "They are kept, and not yet written; call flush() before the next edit.",
                retry_after_s=self._config.reconnect_delay_s_max,
            )

    def _edited(self, made: Transacted) -> None:
        if self._closed or self._refused:
            raise self._error or closed()
        self._unsent.add(made.update)
        if self._undo is not None:
            self._undo.edited()
        if self._feed.is_read:
            self._feed.edited(self._unsent.edits, self._changes("local", self._author, made), len(made.update))
        self._wake.set()

    def _changes(self, origin: Literal["local", "remote"], author: str, made: Transacted) -> Sequence[DocumentChange]:
        told = [DocumentChange(origin, author, *difference) for difference in made.differences]
        by = self._authors.get
        for path, lost, loser, stands, winner, *_ in made.overwritten:
            told.append(DocumentChange(origin, by(winner, ""), "conflict", path, lost, stands, by(loser, "")))
        return told

    # ── sending ───────────────────────────────────────────────────────────────

    async def _send(self) -> None:
        while True:
            await self._wake.wait()  # It returns in the next tick, when this one's edits are all there.
            await self._content.outside.wait()
            self._wake.clear()
            if self._undo is not None:
                self._undo.trim()
            if self._unsent.written < self._unsent.edits:
                await self._write()

    async def _write(self) -> None:
        """Make everything edited so far durable, as one request."""
        pauses = delays(self._config)
        lacking = False
        while True:
            try:
                await (self._send_lacking() if lacking else self._send_unsent())
                return
            except ShoalError as error:
                self._unsent.fall_behind()
                tried, lacking = lacking, _is_lacking(error)
                again = (lacking or is_transient(error)) and not isinstance(error, ReadOnly)
                if not (lacking and not tried) and not (again and await paused(pauses, error)):
                    raise
            await self._content.outside.wait()

    async def _send_unsent(self) -> None:
        mine = {self.client_id: self._author} if self._author else {}
        await self._call(*self._unsent.take(), self._content.declared, mine)

    async def _send_lacking(self) -> None:
        """Send all that the node lacks, whoever edited it: an edit builds on some of that."""
        follow = Follow(self.space, self.name, stale=True, generation=self._generation)
        async with self._session.subscribe(follow) as pushes:
            async for push in pushes:
                if isinstance(push, DocumentState):
                    break
            else:
                raise Disconnected("the node ended the subscription. Nothing was sent. Try again.")
        await self._content.outside.wait()
        lacked_by = pycrdt.get_state(push.update)
        await self._call(*self._unsent.take(lacked_by=lacked_by), self._content.roots, self._authors, stale=True)

    async def _call(
        self,
        update: bytes,
        edits: int,
        clock: int,
        roots: dict[str, RootKind],
        authors: dict[int, str],
        /,
        *,
        stale: bool = False,
    ) -> None:
        request = Update(self.space, self.name, update, roots, authors, self._generation)
        await self._session.call(request, key=self._key_of(), durability=self._durability, stale=stale)
        self._unsent.confirm(edits, clock)
        self._content.settle(roots)
        self._feed.written(edits)
        self._advance()

    # ── following ─────────────────────────────────────────────────────────────

    async def _follow(self) -> None:
        pauses = delays(self._config)
        while True:
            try:
                state, generation = self._content.doc.get_state(), self._generation
                wanted = Follow(self.space, self.name, state, stale=self._current, generation=generation)
                async with self._session.subscribe(wanted) as pushes:
                    async for push in pushes:
                        await self._content.outside.wait()
                        self._take(push)
                        pauses = delays(self._config)
                raise Disconnected("the node ended the subscription. Nothing was sent. Try again.")
            except ShoalError as error:
                if not (is_transient(error) and await paused(pauses, error)):
                    self._feed.end(error)
                    raise
                await self._content.outside.wait()

    def _take(self, push: Push) -> None:
        if not isinstance(push, DocumentState | Edit):
            return  # Of a newer version.
        if isinstance(push, DocumentState):
            self._generation = push.generation
        self._learn(push.authors)
        changed = self._content.take(push.update, push.roots)
        if changed is not None:
            if self._feed.is_read:
                sender = next(iter(push.authors.values()), "") if isinstance(push, Edit) else ""
                changes = self._changes("remote", self._author_of(changed.update, sender), changed)
                self._feed.arrived(changes, len(changed.update))
            if not self._feed.is_read:
                self._content.untrace()
        self._current = True
        self._advance()

    def _learn(self, authors: Mapping[int, str]) -> None:
        self._authors = {**authors, **self._authors}

    def _author_of(self, update: bytes, sender: str) -> str:
        """Who made all of it; of deletions alone, who sent them."""
        names = {self._authors.get(client, "") for client in yjs.parse(update).structs} or {sender}
        return names.pop() if len(names) == 1 else ""

    # ── errors and tasks ──────────────────────────────────────────────────────

    def _start(self) -> None:
        """Start what does not run: at first both tasks, later what gave up and may try again."""
        for name, work in (("send", self._send), ("follow", self._follow)):
            task = self._tasks.get(name)
            if task is None or task.done():
                self._tasks[name] = asyncio.create_task(self._run(work), name=f"document {self.name!r}: {name}")

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ShoalError as error:
            self._fail(error, final=not is_transient(error))
        except Exception as error:
            self._fail(ShoalError(f"a document's mirror stopped ({error!r}). Edits since are not written."), final=True)
            raise

    async def _stop(self) -> None:
        if self._presence is not None:
            await self._presence.close()
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._feed.end(None)

    def _fail(self, error: ShoalError, *, final: bool) -> None:
        if not self._refused:  # The first refusal is what the caller must hear of.
            self._error, self._refused = error, final
        self._advance()

    def _raise_error(self) -> None:
        """Raise what is kept: a refusal each time, else once."""
        error = self._error
        if error is not None:
            if not self._refused:
                self._error = None
            raise error

    def _advance(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()


def _is_lacking(error: ShoalError) -> bool:
    """Whether the node lacks what an edit builds on, which the mirror may have seen through another node."""
    return isinstance(error, NotReady | SessionBehind | BookmarkLost) or "undeclared" in error.detail
