"""The live local mirror of a document: edit it in place, and it is synchronised.

    doc = await space.document("plan")
    doc.map("tasks")["t1"] = {"title": "survey", "done": False}
    await doc.flush()                                   # durable now

Laws:
- An edit applies here at once; `shoal.kinds.document.handle.mirror` sends it and follows the edits of others.
- No edit is lost silently: if an edit could not be written, the next
  `flush`, `close` or access to a root raises the error, and the edit stays in the mirror.
- A store that closes writes the edits of its open documents first.
- The mirror never goes back: after a fail-over it keeps the content that it
  has shown, without waiting until the new node has it too.

Maps, arrays and texts are pycrdt's types, with two differences (`shoal.crdt.document.shared`):
- Positions in a text count characters, as in a Python string, and are checked as Python checks an index. What pycrdt's
  constructors make counts so, too, once it is in a document.
- A value that a document cannot hold raises InvalidValue before anything is edited.
Note:
- Numbers are floats to the engine. `to_py` and `to_json` convert integral
  ones back to integers, exactly within ±(2⁵³ − 1). A longer integer is rounded on
  its way to other clients: store it as a string.
- dicts and lists are stored as one value each, and the last writer wins; give
  `pycrdt.Map` or `pycrdt.Array` if concurrent edits within should merge.
"""

from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

import pycrdt

from shoal import values
from shoal.client.arguments import named
from shoal.client.connection import Ended
from shoal.config import Config
from shoal.errors import (
    InvalidInput,
    InvalidValue,
    OutcomeUnknown,
)
from shoal.kinds.document.handle.changes import Compaction, DocumentChange, DocumentConflict, compact, shown_conflict
from shoal.kinds.document.handle.content import Undo
from shoal.kinds.document.handle.mirror import Mirror, MirrorContext
from shoal.kinds.document.state.document import RootKind
from shoal.kinds.document.state.editing import Editor, kind_of
from shoal.kinds.document.state.yjs import parse_state
from shoal.kinds.presence.handle import Presence
from shoal.protocol.requests import (
    Compact,
    Compacted,
    DeleteDocument,
    Durability,
    ReadAuthors,
    ReadConflicts,
    ReadDocumentAt,
    ReadMoment,
)
from shoal.protocol.session import Session


@named
class Document:
    """A mirror of a document. Open it with a space's `document`, or with `Document.open`."""

    def __init__(self, session: Session, space: str, name: str, context: MirrorContext) -> None:
        self.space, self.name = space, name
        self._session, self._config = session, context.config
        self._durability, self._key_of = context.durability, context.key_of
        self._mirror = Mirror(session, space, name, context)
        self._presence: Presence | None = None
        self._leave: Callable[[Ended], None] = lambda ended: None  # Its client id, for a later mirror.
        self._forget: Callable[[], object] = lambda: None  # Called when it is closed: its store need not close it any more.

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

        `client_id` (53 bits) is new, or see `shoal.client.connection`: two mirrors
        that share one diverge for good. `key_of` makes an idempotency key per request.

        Raises:
            Disconnected, Unavailable: its state could not be fetched within `config.request_timeout_s`.
        """
        context = MirrorContext(client_id, config, durability, key_of, author, undo)
        document = cls(session, space, name, context)
        try:
            await document._mirror.current()
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
        root: pycrdt.Map[Any] = self._mirror.root(name, "map")
        return root

    def list(self, name: str) -> pycrdt.Array[Any]:
        """The same as `array`."""
        return self.array(name)

    def array(self, name: str) -> pycrdt.Array[Any]:
        """The root array `name`; raises as `map` does."""
        root: pycrdt.Array[Any] = self._mirror.root(name, "array")
        return root

    def text(self, name: str) -> pycrdt.Text:
        """The root text `name`; raises as `map` does. Positions count characters."""
        root: pycrdt.Text = self._mirror.root(name, "text")
        return root

    def xml(self, name: str) -> pycrdt.XmlFragment:
        """The XML root `name`, as used by the bindings of ProseMirror, Tiptap and BlockNote; raises as `map` does.

        Its `children` are `pycrdt.XmlElement` and `pycrdt.XmlText`. Positions in a text count characters.
        """
        root: pycrdt.XmlFragment = self._mirror.root(name, "xml")
        return root

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Make the edits of the block one update; others see all of it or none.

        Do not await within it: nothing is sent or received until it ends. An
        exception does not undo the edits before it.

        Raises:
            Overloaded, ShoalError: as `map` does.
        """
        self._mirror.check_editable()
        try:
            with self._mirror.content.transaction():
                yield
        finally:
            self._mirror.settle_undo()

    def replace(self, content: Mapping[str, Any]) -> None:
        """Edit in place, with small changes and as one update, until the content equals `content`
        (in the form of `to_py`).

        Equal parts are not edited, so concurrent edits of them survive. A root that is not named is emptied.

        Raises:
            InvalidValue, TooLarge: a document cannot hold it, or it is too large. Nothing was edited.
            RootConflict, InvalidName, Overloaded, ShoalError: as `map` does. Nothing was edited.
        """
        editor = Editor()
        editor.check_content(self._mirror.content.doc, self._mirror.content.roots, content)
        with self.transaction():
            for name, value in content.items():
                self._mirror.root(name, kind_of(name, value, self.roots.get(name)))
            editor.replace(self._mirror.content.doc, self._mirror.content.roots, content)

    def undo(self) -> bool:
        """Undo the last transaction of this mirror that is not undone yet; edits by others stay. False if there is none.

        Raises:
            InvalidInput: the mirror was opened without `undo=`, the number of steps that it is to keep.
            Overloaded, ShoalError: as `map` does.
        """
        return self._steps().undo()

    def redo(self) -> bool:
        """Redo the last undo, unless something was edited here since; False if there is none. Raises as `undo`."""
        return self._steps().redo()

    def _steps(self) -> Undo:
        self._mirror.check_editable()
        if self._mirror.undo is None:
            raise InvalidInput(
                "this document was opened without undo. Nothing was written. Open it with `undo=100` to use undo."
            )
        return self._mirror.undo

    def to_py(self) -> dict[str, Any]:
        """The content by root, as dicts, lists, str and plain values."""
        return self._mirror.content.to_py()

    def to_json(self) -> Any:
        """The same as JSON, with bytes and the like tagged as `shoal.values.to_json` does."""
        return values.to_json(self.to_py())

    @property
    def roots(self) -> dict[str, RootKind]:
        """The kinds of the roots by name, including those declared here."""
        return self._mirror.content.roots

    @property
    def presence(self) -> Presence:
        """The clients present in this document, editors included, and the state that each has announced with `set`."""
        if self._presence is None:
            self._presence = Presence(self._session, self.space, self.name, client_id=self.client_id, config=self._config)
        return self._presence

    @property
    def client_id(self) -> int:
        """The Yjs client id of this mirror, which no other open mirror has."""
        return self._mirror.content.doc.client_id

    @property
    def _ended(self) -> Ended:
        """Where the edits under this client id end now."""
        mirror = self._mirror
        clock = parse_state(mirror.content.doc.get_state()).get(self.client_id, 0)
        return Ended(self.client_id, clock, mirror.generation, self._session.connections)

    # ── life ──────────────────────────────────────────────────────────────────

    async def flush(self) -> None:
        """Return when every edit made before this call is durable.

        Raises:
            ShoalError: one could not be written. It stays in the mirror. After `Disconnected`, `OutcomeUnknown`,
                `Overloaded` and `ReadOnly` the next flush tries again; any other error is final.
        """
        await self._mirror.flush()

    def changes(self, *, timeout: float | None = None) -> AsyncIterator[DocumentChange]:
        """Yield changes from now on, one per place: those by others, and those made here when they are durable.

        It ends when the document closes, and with a `timeout` when nothing has changed for so many seconds. After a
        disconnect it continues by itself, with another node if there is one.

        Raises:
            SlowConsumer: raised by the iterator after more than `config.subscription_bytes_max` waited for it.
            ShoalError: raised by the iterator after the node could not be followed any more.
        """
        reader = self._mirror.feed.reader(timeout)
        if self._mirror.closed:
            self._mirror.feed.end(None)
        else:
            self._mirror.content.trace()
        return reader

    async def snapshot(self) -> str:
        """Name the current state of the document, edits of this mirror included, as text to pass to
        `at`, here or elsewhere.

        Raises:
            ShoalError: an edit could not be written, as `flush`.
        """
        await self.flush()
        moment = await self._session.call(ReadMoment(self.space, self.name))
        return urlsafe_b64encode(moment.generation.to_bytes(4, "big") + moment.vector).decode()

    async def at(self, snapshot: str) -> dict[str, Any]:
        """The content as it was at a snapshot, as `to_py` shows it.

        Raises:
            InvalidValue: it is not a snapshot.
            GenerationEnded: the document was deleted since.
            SessionBehind: the node does not hold all updates of the snapshot; try again.
            HistoryCompacted: the updates of the snapshot were compacted together with later ones.
            TooLarge: the snapshot covers more than `DOCUMENT_HISTORY_UPDATES_MAX` updates.
        """
        try:
            packed = urlsafe_b64decode(snapshot)
        except ValueError:
            packed = b""
        if len(packed) < 4:
            raise InvalidValue("this is not a snapshot of a document. Use the value that `snapshot` returned.")
        generation = int.from_bytes(packed[:4], "big")
        shown = await self._session.call(ReadDocumentAt(self.space, self.name, generation, packed[4:]))
        content: dict[str, Any] = values.from_json(json.loads(shown.json))
        return content

    async def conflicts(self) -> Sequence[DocumentConflict]:
        """Values of map keys that were overwritten by concurrent writes, the latest first, with
        both authors.

        The node answers, so `flush` first to include the edits made here. It lists conflicts that are
        still in the document's history, at most `DOCUMENT_CONFLICTS_MAX`.
        """
        found = await self._session.call(ReadConflicts(self.space, self.name))
        return [shown_conflict(each) for each in found.overwritten]

    async def authors(self) -> dict[int, str]:
        """The authors of the document's passages, also those who have left, by the ids of their Yjs clients.

        The node answers, so `flush` first to include the edits made here. It names those that gave a name: handles with an
        author, editors that say who they are in their presence, and holders of tokens.
        """
        found = await self._session.call(ReadAuthors(self.space, self.name))
        return {each.client: each.author for each in found.authors}

    async def compact(self, *, older_than: timedelta | float | None = None) -> Compaction:
        """Merge the document's updates into one, without deleted content. The content stays the same.

        Past states are then gone: `at` raises `HistoryCompacted` for them, and `conflicts` starts again from
        empty. `older_than` leaves younger updates alone. A node compacts by itself what is older than its
        `document_history_s`. Disk is freed when all nodes have received the compaction.

        Raises:
            ShoalError: an edit could not be written, as `flush`.
            CatchingUp: a part of the document has not reached the node yet; try again.
            TooLarge: as one update it would exceed the node's `request_bytes_max`.
        """
        await self.flush()

        def write(request: Compact) -> Awaitable[Compacted]:
            return self._session.call(request, key=self._key_of(), durability=self._durability)

        return await compact(write, self.space, self.name, older_than)

    async def delete(self) -> bool:
        """Delete the document on every node, and close this mirror. False if there was none.

        Edits that others make without knowing of the deletion are deleted too, even if they arrive later: their mirrors
        raise `GenerationEnded`, and a returning Yjs client is rejected. Opening the document again creates a new one.

        Raises:
            ShoalError: it could not be deleted. Edits that are not flushed are dropped if it was.
        """
        request = DeleteDocument(self.space, self.name)
        reply = await self._session.call(request, key=self._key_of(), durability=self._durability)
        await self.abandon()
        return reply.existed

    async def abandon(self) -> None:
        """Close without a flush: edits that are not durable yet may be lost."""
        self._mirror.closed = True
        await self._stop()

    async def close_with_store(self) -> None:
        """Close because the store closes. Edits that are not written yet are written, for at most `failover_timeout_s`.

        Raises:
            ShoalError: edits could not be written. The document is closed all the same.
        """
        if self._mirror.is_written:
            await self.abandon()
            return
        try:
            async with asyncio.timeout(self._config.failover_timeout_s):
                await self.close()
        except TimeoutError:
            raise OutcomeUnknown(
                f"document {self.name!r} was closed with its store before its last edits were acknowledged; they may be lost. "
                "Flush or close a document before its store, and make the edits again."
            ) from None

    async def close(self) -> None:
        """Flush, and stop. Later edits raise.

        Raises:
            ShoalError: edits could not be written. The document is closed all the same.
        """
        if self._mirror.closed:
            return
        try:
            await self.flush()
        finally:
            is_first, self._mirror.closed = not self._mirror.closed, True
            await self._stop()
        # Others may remember what was announced under the id.
        if is_first and self._mirror.is_written and self._presence is None:
            self._leave(self._ended)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self.close()
            return
        # Cancelled, so that closing does not wait long for a node that may be gone.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._config.failover_timeout_s):
                await self.close()

    async def _stop(self) -> None:
        self._forget()
        if self._presence is not None:
            await self._presence.close()
        await self._mirror.stop()
