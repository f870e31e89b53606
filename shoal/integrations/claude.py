"""The Claude Agent SDK on Shoal: transcripts of sessions in a durable, replicated store.

async with ShoalSessionStore.open("./state") as store:
    options = ClaudeAgentOptions(session_store=store)

`ShoalSessionStore`: the Claude Agent SDK's `SessionStore` on Shoal.

The SDK's session keys as Shoal's names, and back.

Laws:
- A transcript is the journal of a thread; an entry is one event, whose key is the entry's `uuid`. So an entry that is
  sent again, by whom and to whichever node, is there once.
- An append is one batch: its entries and the session's summary, all or nothing. Two processes that append to one
  session take turns by the version of the summary, so that none folds a summary that the other has changed.
- If nobody knows whether an append was applied, and the SDK repeats it, it is sent with the key of the first attempt.
  So entries without a `uuid` are not doubled either.
- A transcript is a thread `{project}/session` or, of a subagent, `{project}/session/subpath`. The braces are the tag of
  the name: a project's threads and its index of sessions share a partition, so that one batch can write both.
- A session id holds no `/` in a name, so no transcript's name is the beginning of another session's.
- The first label of the project's items is `{project}`, and labels hold no period.
"""

from __future__ import annotations

try:
    import claude_agent_sdk as _  # noqa: F401
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(
        f"shoal.integrations.claude needs the package claude-agent-sdk, and {missing.name!r} is not installed. "
        "Install it in a clone of Shoal: pip install '.[claude]'",
        name=missing.name,
    ) from None

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast
from weakref import WeakValueDictionary

from claude_agent_sdk import (
    SessionKey,
    SessionListSubkeysKey,
    SessionStoreEntry,
    SessionStoreListEntry,
    SessionSummaryEntry,
    fold_session_summary,
)

from shoal import values
from shoal.client.connection import contended
from shoal.client.store import Store
from shoal.errors import InvalidName, ItemChanged, KeyReused, OutcomeUnknown
from shoal.integrations import contents
from shoal.integrations.base import Bridge, OnStore, checked_store, pieces, remember
from shoal.integrations.contents import escaped, key_of, name_of, tag, text_of, unescaped, unsafe
from shoal.kinds.items.handle.item import put_request
from shoal.names import check_name
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM
from shoal.raising import partly
from shoal.records import NamedTuple

__all__ = [
    "ShoalSessionStore",
]


_IN_SESSION = unsafe("/")
_IN_SUBPATH = unsafe()
INDEX = "sessions"


class Transcript(NamedTuple):
    """The place of one transcript."""

    project: str
    session: str
    subpath: str | None  # None for the session's own transcript.

    @property
    def thread(self) -> str:
        """The name of its thread."""
        own = session_thread(self.project, self.session)
        return check_name("thread", own if self.subpath is None else f"{own}/{escaped(self.subpath, _IN_SUBPATH)}")

    @property
    def below(self) -> str:
        """The prefix of the threads of its subagents."""
        return session_thread(self.project, self.session) + "/"

    def subpath_of(self, thread: str) -> str:
        """The subpath of a thread whose name begins with `below`."""
        return unescaped(thread.removeprefix(self.below))


def transcript_of(key: Mapping[str, Any]) -> Transcript:
    """The place that a `SessionKey` names.

    Raises:
        InvalidName: a part of it is missing, empty, or no text, int or UUID.
    """
    parts = []
    for name in ("project_key", "session_id", "subpath"):
        part = key.get(name, "-" if name == "subpath" else None)
        text = "" if part is None else text_of(part, f"the {name} of a session key")
        if not text:
            raise InvalidName(
                f"the {name} of a session key must be a string that is not empty; got {part!r:.80}. Nothing was written. "
                "Leave subpath out for a session's own transcript."
            )
        parts.append(text)
    project, session, subpath = parts
    return Transcript(project, session, subpath if "subpath" in key else None)


def session_thread(project: str, session: str) -> str:
    """The thread of a session's own transcript."""
    return f"{tag(project)}/{escaped(session, _IN_SESSION)}"


def item_key(session: str) -> str:
    """The key of a session in the index of its project."""
    return name_of(session, _IN_SESSION)


FORM = 1
"""The version of the form in which entries and summaries are stored."""
_NAME = "claude"
SUMMARIES_MAX = 4096  # Sessions whose summary is remembered; for others an append needs one read more.
UNSETTLED_MAX = 256  # Appends that nobody knows the outcome of; of older ones, entries without uuid may be doubled.


class _Summary(NamedTuple):
    version: str
    data: dict[str, Any] | None  # None if the session has none yet.


class _Sent(NamedTuple):
    appends: list[requests.Append]
    request: requests.Batch
    key: str


class ShoalSessionStore(OnStore):
    """Keeps the transcripts of sessions and of their subagents in one space. Failures raise `ShoalError`s, which the SDK
    repeats, and then reports as `MirrorErrorMessage`.
    """

    SPACE = "claude"

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """A session store on a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalSessionStore.open`.
        """
        self._connection = checked_store(store, "ShoalSessionStore").connection
        self._space = store.space(space or self.SPACE)
        self._bridge = Bridge()
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._summaries: OrderedDict[tuple[str, str], _Summary] = OrderedDict()
        self._unsettled: OrderedDict[str, _Sent] = OrderedDict()

    # ── transcripts ───────────────────────────────────────────────────────────

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Append entries to a transcript, in the order of the calls.

        An append of more entries than one batch can hold is several batches, in order.

        Raises:
            InvalidName: a part of the key is missing, or the names made of it are longer than 1,024 bytes.
            InvalidValue: an entry is no JSON; nothing was written.
            TooLarge: an entry is larger than a request may be.
            OutcomeUnknown: the append may be applied, in part or whole. Repeat it: no entry with a `uuid` is doubled.
        """
        await self._bridge.awaited(lambda: self._append_all(key, list(entries)))

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """The entries of a transcript in order; None if it has none.

        Raises:
            JournalTrimmed: old entries were trimmed by a retention of the thread's journal.
            SchemaTooNew: an entry was stored by a newer version of Shoal.
        """
        return await self._bridge.awaited(lambda: self._load(transcript_of(key).thread))

    async def delete(self, key: SessionKey) -> None:
        """Delete a transcript, and of a session's own transcript those of its subagents too, on every node.

        An append that knows nothing of the deletion is deleted too. A later one begins the session anew.

        Raises:
            OutcomeUnknown: some of its transcripts are deleted; delete again to delete the rest.
        """
        await self._bridge.awaited(lambda: self._delete(transcript_of(key)))

    # ── listings ──────────────────────────────────────────────────────────────

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project, with the time of their last append in milliseconds since the epoch."""
        listed = await self._bridge.awaited(lambda: self._listed(project_key))
        return [{"session_id": found["session_id"], "mtime": found["mtime"]} for found in listed]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The summaries of a project's sessions, as the SDK folds them."""
        return await self._bridge.awaited(lambda: self._listed(project_key))

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a session's other transcripts, in the order of their bytes."""
        return await self._bridge.awaited(lambda: self._below(transcript_of({**key})))

    # ── on the store's loop ───────────────────────────────────────────────────

    async def _append_all(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        transcript = transcript_of(key)
        thread = transcript.thread
        given = list(self._given(thread, entries))
        turn = self._turns.setdefault(thread, asyncio.Lock())
        async with turn:
            written = 0
            for piece in pieces(given, lambda each: len(each[0].event), self._connection.config, beside=1):
                with partly(written, f"the first {written} of {len(given)} entries are appended", "Append them all again."):
                    await self._append(transcript, key, piece)
                written += len(piece)

    async def _load(self, thread: str) -> list[SessionStoreEntry] | None:
        loaded: list[SessionStoreEntry] = []
        async for event in self._space.thread(thread).journal.read():
            record = contents.of_form(event.event, _NAME, FORM)
            if record is not None:  # Else an event of the node itself, such as a pause.
                loaded.append(contents.shown(record["entry"]))
        return loaded or None

    async def _delete(self, transcript: Transcript) -> None:
        thread = transcript.thread
        async with self._turns.setdefault(thread, asyncio.Lock()):
            deleted = 0
            if transcript.subpath is None:
                async for below in self._space.threads(transcript.below):
                    with partly(deleted, f"{deleted} transcripts of the session are deleted", "Delete it again."):
                        await self._space.thread(below).delete()
                    deleted += 1
            with partly(deleted, f"{deleted} transcripts of the session are deleted", "Delete it again."):
                await self._space.thread(thread).delete()
            if transcript.subpath is None:
                # Last: until then the session is listed, so that a deletion that ended half-way is seen.
                with partly(True, "the session's transcripts are deleted", "Delete it again."):
                    await self._space.items.delete(_index(transcript.project), item_key(transcript.session))
                self._summaries.pop(transcript[:2], None)
            self._unsettled.pop(thread, None)

    async def _below(self, transcript: Transcript) -> list[str]:
        return [transcript.subpath_of(thread) async for thread in self._space.threads(transcript.below)]

    async def _listed(self, project_key: str) -> list[SessionSummaryEntry]:
        project = text_of(project_key, "a project key")
        if not project:
            raise InvalidName("a project key must not be empty.")
        listed = []
        async for item in self._space.items.scan(_index(project)):
            record = contents.of_form(item.value, _NAME, FORM)
            if record is not None:
                mtime = int(item.updated.timestamp() * 1000)
                data = contents.shown(record["data"])
                listed.append(SessionSummaryEntry(session_id=record["session"], mtime=mtime, data=data))
        return listed

    # ── one append ────────────────────────────────────────────────────────────

    def _given(self, thread: str, entries: Sequence[SessionStoreEntry]) -> Iterator[tuple[requests.Append, SessionStoreEntry]]:
        """Each entry with the request that appends it; of several with one uuid the first."""
        known: set[str] = set()
        for nth, entry in enumerate(entries):
            event = values.encode({_NAME: FORM, "entry": contents.stored(entry, f"entries[{nth}]")}, where=f"entries[{nth}]")
            key = _event_key(entry)
            if key is None or key not in known:
                yield requests.Append(self._space.name, thread, event, key), entry
            if key is not None:
                known.add(key)

    async def _append(
        self, transcript: Transcript, key: SessionKey, piece: list[tuple[requests.Append, SessionStoreEntry]]
    ) -> None:
        appends = [append for append, _ in piece]
        sent = self._unsettled.pop(transcript.thread, None)
        pauses = contended(self._connection)
        while True:
            try:
                if sent is None or sent.appends != appends:
                    sent = _Sent(appends, await self._request(transcript, key, piece), "")
                await self._send(transcript, sent)
                return
            except ItemChanged:
                self._summaries.pop(transcript[:2], None)
                if (pause := next(pauses, None)) is None:
                    raise
                await asyncio.sleep(pause)
            except KeyReused:
                # An entry changed under its uuid. The SDK lets a store ignore it; the others must be kept.
                known = await self._known(transcript.thread)
                left = [(append, entry) for append, entry in piece if append.key is None or append.key not in known]
                if len(left) == len(piece):
                    raise
                if not left:
                    return
                piece, appends = left, [append for append, _ in left]
            sent = None

    async def _request(
        self, transcript: Transcript, key: SessionKey, piece: list[tuple[requests.Append, SessionStoreEntry]]
    ) -> requests.Batch:
        """The batch that appends a piece and folds it into the session's summary."""
        writes: list[requests.BatchWrite] = [append for append, _ in piece]
        if transcript.subpath is None:
            summary = await self._summary(transcript)
            before = (
                None if summary.data is None else SessionSummaryEntry(session_id=key["session_id"], mtime=0, data=summary.data)
            )
            data = fold_session_summary(before, key, [entry for _, entry in piece])["data"]
            record = {_NAME: FORM, "session": transcript.session, "data": contents.stored(data, "the summary")}
            writes.append(
                put_request(
                    self._space.name, _index(transcript.project), item_key(transcript.session), record, expect=summary.version
                )
            )
        return requests.Batch(writes)

    async def _send(self, transcript: Transcript, sent: _Sent) -> None:
        try:
            reply = await self._connection.write(sent.request, key=sent.key or None, durability=None)
        except OutcomeUnknown as error:
            if isinstance(again := error.detail.get("key"), str):
                remember(self._unsettled, transcript.thread, sent._replace(key=again), UNSETTLED_MAX)
            raise
        if transcript.subpath is None:
            put, answer = cast("requests.PutItem", sent.request.writes[-1]), cast("requests.ItemPut", reply.replies[-1])
            data = contents.shown(values.decode(put.value)["data"])
            remember(self._summaries, transcript[:2], _Summary(answer.version, data), SUMMARIES_MAX)

    async def _summary(self, transcript: Transcript) -> _Summary:
        """The session's summary, as it is remembered or as the node has it."""
        known = self._summaries.get(transcript[:2])
        if known is not None:
            return known
        item = await self._space.items.get(_index(transcript.project), item_key(transcript.session))
        if item is None:
            return _Summary(NO_ITEM, None)
        record = contents.of_form(item.value, _NAME, FORM)
        if record is None:
            return _Summary(item.version, None)
        data = await self._folded(transcript) if item.siblings else contents.shown(record["data"])
        return _Summary(item.version, data)

    async def _folded(self, transcript: Transcript) -> dict[str, Any]:
        """The summary of the whole transcript, for one that two nodes have appended to that could not reach each other."""
        key = SessionKey(project_key=transcript.project, session_id=transcript.session)
        return dict(fold_session_summary(None, key, await self._load(transcript.thread) or [])["data"])

    async def _known(self, thread: str) -> set[str | None]:
        return {event.key async for event in self._space.thread(thread).journal.read()}


def _index(project: str) -> tuple[str, str]:
    return tag(project), INDEX


def _event_key(entry: Any) -> str | None:
    """The key of an entry's event; None for an entry without a uuid."""
    uuid = entry.get("uuid") if isinstance(entry, dict) else None
    return key_of(uuid) if isinstance(uuid, str) and uuid else None
