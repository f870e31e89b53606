"""Synchronise a mirror of a document with the node, and keep local edits until they are durable.

Synchronise a mirror of a document with the node: send the edits made here, and apply those of others.

Laws:
- Edits made within one tick of the event loop, or during a request, leave as one update, in order.
- An edit that cannot be written stays in the mirror; `raise_error`, which `flush` and `check_editable` call, raises the reason.
- A refusal that cannot pass ends the mirror at once: one that is not `retryable`; one that was repeated `EDITS_REFUSED_MAX`
  times although the node lacked nothing; and a failure of the engine. Its error says how many edits are not written.
- Edits that came from the node are not sent back to it.
- Yjs updates are idempotent, so after a broken connection the mirror sends again all that is not proved durable. If a node
  lacks what an edit builds on, the mirror sends all that the node lacks, including edits of others: edits seen only through
  a node that died return through the next one.
- The mirror takes nothing from a node, and writes no edit to it, before the node knows the beginning that the mirror shows:
  see `shoal.kinds.document.handle.content`.

The outbox of a mirror: local edits that are not yet known to be durable.

Laws:
- The outbox is bounded in bytes, and the bound loses nothing. The document itself holds every edit, so
  beyond the bound, or after a failure, the mirror sends the document's difference from the confirmed state
  instead of single edits. It does the same after many edits, because the difference joins consecutive typing
  and is smaller.
- It is full at half of what one request may have: all that waits leaves as one request, and the edit that
  fills it must fit in, too. What was sent and is not confirmed waits, however often it was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

import pycrdt

from shoal.client.connection import StreamTimer, delays, paused, resumed
from shoal.client.home import Home
from shoal.config import Config
from shoal.errors import (
    BookmarkLost,
    Disconnected,
    EditsRefused,
    EngineFailed,
    NotReady,
    Overloaded,
    ReadOnly,
    SessionBehind,
    ShoalError,
)
from shoal.kinds.document.handle.changes import DocumentChange, Feed
from shoal.kinds.document.handle.content import Beginnings, Content, Transacted, Undo, closed
from shoal.kinds.document.state import yjs
from shoal.kinds.document.state.document import RootKind
from shoal.kinds.document.state.live import engine, merged
from shoal.kinds.document.state.readiness import NOTHING, in_operations
from shoal.kinds.document.state.yjs import STRUCTS_MAX, pack_state, parse_state
from shoal.names import check_name
from shoal.protocol.requests import ANY, DocumentState, Durability, Edit, Follow, Push, Update
from shoal.protocol.session import Session
from shoal.raising import is_panic, why

EDITS_REFUSED_MAX = 6  # Refusals of a mirror's edits, by nodes that lack nothing for them; then EditsRefused, in some 2 s.

# The difference lists every deletion of the document, so it is only smaller after some edits.
_MERGED_MAX = 512


@dataclass(frozen=True, slots=True)
class MirrorContext:
    """The things that are constant in the life of one mirror."""

    client_id: int
    config: Config
    durability: Durability = "local"  # Of its edits.
    key_of: Callable[[], str | None] = lambda: None  # Makes an idempotency key for each request.
    author: str = ""
    undo: int = 0  # The number of edits that can be undone.


class Outbox:
    """The outbox of one mirror. `edits` counts the local edits, `written` those that are confirmed."""

    def __init__(self, content: Content, *, bytes_max: int) -> None:
        self.edits = self.written = 0
        self._content, self._bytes_max = content, bytes_max
        self._updates: list[bytes] = []
        self._bytes = 0  # Of all unwritten edits,
        self._taken = 0  # and of those that were taken last.
        self._behind = False  # Whether `_updates` lacks some unwritten edits.
        self._confirmed = 0  # Our client's clock up to which edits are written.

    @property
    def is_full(self) -> bool:
        """Whether so many bytes wait that no further edit should be made."""
        return self._bytes > self._bytes_max // 2

    def begin(self) -> None:
        """Note that the document holds what others edited before; an earlier mirror may have edited under our client id."""
        if not self.edits:
            self._confirmed = parse_state(self._content.doc.get_state()).get(self._content.doc.client_id, 0)

    def add(self, update: bytes) -> None:
        """Add a local edit."""
        self.edits += 1
        self._bytes += len(update)
        self._updates.append(update)
        if self._bytes > self._bytes_max:
            self.fall_behind()

    def take(self, *, lacked_by: bytes | None = None) -> tuple[bytes, int, int]:
        """The unwritten edits as one update; how many edits it covers in all, and our client's clock after it.

        With a state vector: all updates, of any author, that a node in that state lacks.
        """
        clocks = parse_state(self._content.doc.get_state())
        client = self._content.doc.client_id
        if lacked_by is not None:
            update = self._content.update_since(lacked_by)
        elif self._behind or len(self._updates) > _MERGED_MAX:
            update = self._content.update_since(pack_state({**clocks, client: self._confirmed}))
        else:
            update = merged(self._updates)
        self._updates, self._taken, self._behind = [], self._bytes, False
        return update, self.edits, clocks.get(client, 0)

    def confirm(self, edits: int, clock: int) -> None:
        """Note that edits up to this number and clock are durable."""
        self.written, self._confirmed = edits, clock
        self._bytes, self._taken = self._bytes - self._taken, 0

    def fall_behind(self) -> None:
        """Note that the taken edits may not have been written."""
        self._updates, self._behind = [], True


class Mirror:
    """The mirror of one document. Call `start`, and await `current`."""

    def __init__(
        self,
        session: Session,
        space: str,
        name: str,
        context: MirrorContext,
    ) -> None:
        config, client_id, author = context.config, context.client_id, context.author
        self.space, self.name = space, name
        self.content = Content(client_id=client_id, edited=self._edited)
        self.home = Home()
        self.feed = Feed(config.subscription_bytes_max, self.home)
        self.undo = Undo(lambda: self.content.doc, context.undo) if context.undo > 0 else None
        self.closed = False
        self._session, self._config, self._durability, self._key_of = session, config, context.durability, context.key_of
        self._beginnings = Beginnings(self.content)
        self._outbox = Outbox(self.content, bytes_max=config.request_bytes_max)
        self._wake = asyncio.Event()
        self._progress = asyncio.Event()
        self._current = False
        self._error: ShoalError | None = None
        self._refused = False
        self._author = author
        self._authors: dict[int, str] = {client_id: author} if author else {}
        self.generation = ANY  # The mirrored generation of the document; a deletion ends it.
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def current(self) -> None:
        """Return once the mirror holds the state that the node had when it was asked.

        Raises:
            Disconnected, Unavailable: the state could not be fetched within `config.request_timeout_s`.
        """
        self.home.check()
        self.start()
        while not self._current:
            self.raise_error()
            await self._progress.wait()

    async def flush(self) -> None:
        """Return once every edit made before this call is durable; raises as `Document.flush`."""
        self.home.check()
        self.raise_error()
        self.start()
        target = self._outbox.edits
        while self._outbox.written < target:
            self._wake.set()
            await self._progress.wait()
            self.raise_error()

    @property
    def is_written(self) -> bool:
        """Whether every edit is durable."""
        return self._outbox.written == self._outbox.edits and not self._refused

    # ── editing ───────────────────────────────────────────────────────────────

    def root(self, name: str, kind: RootKind) -> Any:
        """The root `name`; raises as `Document.map`."""
        check_name("document root", name)
        self.check_editable()
        root = self.content.root(name, kind)
        if self.undo is not None:
            self.undo.scope(name, root)
            self.settle_undo()
        return root

    def settle_undo(self) -> None:
        """Let undo follow new roots, unless a transaction is open."""
        if self.undo is not None and self.content.outside.is_set():
            self.undo.settle()

    def check_editable(self) -> None:
        """Check that an edit can be accepted.

        Raises:
            InvalidInput: the document is closed, or was opened by the process from which this one was forked.
            Overloaded: too many bytes of edits wait to be sent.
            ShoalError: an earlier edit could not be written.
        """
        self.home.check_process()
        if self.closed:
            raise closed()
        self.raise_error()
        if self._outbox.is_full:
            raise Overloaded(
                f"more than {self._config.request_bytes_max // 2} bytes of edits are waiting to be sent. "
                "They are kept but not yet written; call flush() before the next edit.",
                retry_after_s=self._config.reconnect_delay_s_max,
            )

    def _edited(self, made: Transacted) -> None:
        self.home.check_process()
        if self.closed or self._refused:
            raise self._error or closed()
        self._outbox.add(made.update)
        if self.undo is not None:
            self.undo.edited()
        if self.feed.is_read:
            self.feed.edited(self._outbox.edits, self._changes("local", self._author, made), len(made.update))
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
            await self._wake.wait()  # It returns in the next tick, after all edits of this one.
            await self.content.outside.wait()
            self._wake.clear()
            if self.undo is not None:
                self.undo.trim()
            if self._outbox.written < self._outbox.edits:
                await self._write()

    async def _write(self) -> None:
        """Make everything edited so far durable, as one request."""
        pauses = delays(self._config)
        lacking = False
        refusals = 0
        while True:
            try:
                await (self._send_lacking() if lacking else self._send_unsent())
                return
            except ShoalError as error:
                self._outbox.fall_behind()
                tried, lacking = lacking, _is_lacking(error)
                if tried and _is_refusal(error):
                    refusals += 1
                    if refusals == EDITS_REFUSED_MAX:
                        raise _refused(error, refusals) from error
                again = (lacking or error.retryable) and not isinstance(error, ReadOnly)
                if not (lacking and not tried) and not (again and await paused(pauses, error)):
                    raise
            await self.content.outside.wait()

    async def _send_unsent(self) -> None:
        mine = {self.content.doc.client_id: self._author} if self._author else {}
        await self._call(*self._outbox.take(), self.content.declared, mine)

    async def _send_lacking(self) -> None:
        """Send all updates that the node lacks, of any author, because an edit builds on some of them."""
        follow = Follow(self.space, self.name, stale=True, generation=self.generation)
        async with self._session.subscribe(follow) as pushes:
            async for push in pushes:
                if isinstance(push, DocumentState):
                    break
            else:
                raise Disconnected("the node ended the subscription. Nothing was sent. Try again.")
        await self._restore_beginning(push)
        await self.content.outside.wait()
        self._take(push)  # The node decides the kinds of roots.
        with engine("the node's state of the document was refused by the Yjs engine"):
            lacked_by = pycrdt.get_state(push.update)
        await self._call(*self._outbox.take(lacked_by=lacked_by), self.content.roots, self._authors, stale=True)

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
        for piece in in_operations(update, structs_max=STRUCTS_MAX):
            if piece == NOTHING and piece != update:
                await asyncio.sleep(0)  # To look at it takes long.
                continue
            request = Update(self.space, self.name, piece, roots, authors, self.generation, self._beginnings.shown)
            await self._session.call(request, key=self._key_of(), durability=self._durability, stale=stale)
        self._outbox.confirm(edits, clock)
        self.content.settle(roots)
        self.feed.written(edits)
        self._advance()

    async def _restore_beginning(self, state: DocumentState) -> None:
        """Give the node the beginning that is shown here, if it lacks it.

        Raises:
            SessionBehind: the node lacked it; ask for its state again.
        """
        if not self._beginnings.is_lacked_by(state):
            return
        await self.content.outside.wait()
        request = self._beginnings.restored(self.space, self.name, authors=self._authors, generation=self.generation)
        await self._session.call(request, key=self._key_of(), stale=True)
        raise SessionBehind(
            "the node lacked the document's initial content that this mirror shows; the mirror has sent it. Try again."
        )

    # ── following ─────────────────────────────────────────────────────────────

    async def _follow(self) -> None:
        try:
            async with aclosing(resumed(self._config, self._pushes)) as pushes:
                async for push in pushes:
                    await self.content.outside.wait()
                    self._take(push)
        except ShoalError as error:
            self.feed.end(error)
            raise

    async def _pushes(self, timer: StreamTimer) -> AsyncGenerator[Push, None]:
        self.feed.served = False
        await self.content.outside.wait()
        state, generation = self.content.doc.get_state(), self.generation
        wanted = Follow(self.space, self.name, state, stale=self._current, generation=generation)
        async with self._session.subscribe(wanted) as pushes:
            async for push in pushes:
                if isinstance(push, DocumentState):
                    await self._restore_beginning(push)
                self.feed.served = True
                timer.served()
                yield push
        raise Disconnected("the node ended the subscription. Nothing was sent. Try again.")

    def _take(self, push: Push) -> None:
        if not isinstance(push, DocumentState | Edit):
            return  # A push of a newer version.
        if isinstance(push, DocumentState):
            self.generation = push.generation
        self._learn(push.authors)
        self._beginnings.learn(push.beginnings)
        doc = self.content.doc
        changed = self.content.take(push.update, push.roots)
        if self.content.doc is not doc and self.undo is not None:
            self.undo.forget()
        if changed is not None:
            if self.feed.is_read:
                sender = next(iter(push.authors.values()), "") if isinstance(push, Edit) else ""
                changes = self._changes("remote", self._author_of(changed.update, sender), changed)
                self.feed.arrived(changes, len(changed.update))
            if not self.feed.is_read:
                self.content.untrace()
        if not self._current:
            self._outbox.begin()
        self._current = True
        self._advance()

    def _learn(self, authors: Mapping[int, str]) -> None:
        self._authors = {**authors, **self._authors}

    def _author_of(self, update: bytes, sender: str) -> str:
        """The author of the whole update; for deletions alone, their sender."""
        names = {self._authors.get(client, "") for client in yjs.parse(update).structs} or {sender}
        return names.pop() if len(names) == 1 else ""

    # ── errors and tasks ──────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the tasks that do not run: at first both, later those that gave up and may try again."""
        for name, work in (("send", self._send), ("follow", self._follow)):
            task = self._tasks.get(name)
            if task is None or task.done():
                self._tasks[name] = asyncio.create_task(self._run(work), name=f"document {self.name!r}: {name}")

    async def _run(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except ShoalError as error:
            self._fail(error, final=not error.retryable)
        except BaseException as error:
            if is_panic(error):
                self._fail(self.content.doc.failed(error), final=True)
                return
            if isinstance(error, Exception):
                self._fail(ShoalError(f"a document's mirror stopped ({error!r})."), final=True)
            raise

    async def stop(self) -> None:
        """Stop sending and following. In a forked child there is nothing to stop."""
        if self.home.is_inherited:
            return
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.feed.end(None)

    def _fail(self, error: ShoalError, *, final: bool) -> None:
        if not self._refused:  # The caller must see the first rejection.
            self._error, self._refused = self._last_word(error) if final else error, final
        self._advance()

    def _last_word(self, error: ShoalError) -> ShoalError:
        """A final error, with what becomes of the edits made here."""
        unwritten = self._outbox.edits - self._outbox.written
        if not unwritten:
            return error
        edits = "the last edit made here is" if unwritten == 1 else f"the last {unwritten} edits made here are"
        told = type(error)(
            f"{error.message.rstrip('.')}. In this mirror {edits} not written, and no more are taken. Copy what you need with "
            "to_py(), close it, and open the document again.",
            **error.detail,
        )
        told.written, told.__cause__ = error.written, error
        return told

    def raise_error(self) -> None:
        """Raise the stored error: a rejection each time, any other error once."""
        if not self._refused:
            try:
                self.content.doc.check_sound()
            except EngineFailed as broken:
                self._fail(broken, final=True)
        error = self._error
        if error is not None:
            if not self._refused:
                self._error = None
            raise error

    def _advance(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()


def _is_lacking(error: ShoalError) -> bool:
    """Whether the node lacks updates that an edit builds on, which the mirror may have seen through another node."""
    return isinstance(error, NotReady | SessionBehind | BookmarkLost) or "undeclared" in error.detail


def _is_refusal(error: ShoalError) -> bool:
    """Whether the node cannot take the edits, although it was just sent all that it lacks."""
    return isinstance(error, NotReady) or "undeclared" in error.detail


def _refused(error: ShoalError, refusals: int) -> EditsRefused:
    return EditsRefused(
        f"the node refused the edits {refusals} times, although it was sent all that they build on ({why(error)}). "
        "Nothing was written.",
        refusals=refusals,
    )
