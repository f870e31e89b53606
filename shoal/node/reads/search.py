"""Search: threads in whose names, labels, tags, metadata or states a text is found, without an index.

Laws:
- A page looks at `SEARCH_THREADS_MAX` threads and `SEARCH_BYTES_MAX` bytes at most, a part of them in each step; the answer
  says at how many, and where the next page begins.
- Secret fields are not looked into, whoever asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from shoal import values
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput, InvalidValue, StoreCorrupt
from shoal.kinds.label import state as labels
from shoal.kinds.thread.serving.shapes import completed, value_of
from shoal.kinds.thread.state import dag
from shoal.names import check_name
from shoal.node.database import Database
from shoal.node.handler import Answers, Target
from shoal.node.naming import check_text
from shoal.node.reads.cluster import Listings
from shoal.node.turns import Steps, Stride, in_turns
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Hit, HitPlace, Hits, Search
from shoal.records import NamedTuple
from shoal.schemas import secret_fields
from shoal.storage.keys import Kind

SEARCH_THREADS_MAX = 1000  # Threads that are looked at for one page.
SEARCH_BYTES_MAX = 8 * 1024 * 1024  # Of states and metadata that are looked at for one page; the first thread may exceed it.
CHANNEL_BYTES_MAX = 256 * 1024  # A larger channel is left out: one step must not take long.
TEXT_CHARS_MAX = 200  # Of the text that is looked for.

_BRANCHES_MAX, _LABELS_MAX, _HITS_MAX = 32, 1000, 16  # Of one thread; hits in the state of one checkpoint.
_AROUND = 60  # Characters on each side of the text in an excerpt.


class Searches:
    """Answers `Search`."""

    def __init__(self, database: Database, listings: Listings) -> None:
        self._database = database
        self._listings = listings
        self.answers: Answers = {Search: self._search}

    async def _search(self, request: Search, bookmark: Bookmark) -> Hits:
        check_name("space", request.space)
        check_text(request.text, "a text to look for")
        if not request.text or len(request.text) > TEXT_CHARS_MAX:
            raise InvalidInput(f"a text to look for has 1 to {TEXT_CHARS_MAX} characters. Nothing was written.", field="text")
        await self._listings.reach_all(bookmark)
        seen: list[str] = []
        found = await in_turns(self._found(request, seen))
        await self._listings.show(request.space, seen, bookmark)
        return found

    def _found(self, request: Search, seen: list[str]) -> Steps[Hits]:
        """A page of hits. `seen` gets the names of the threads that were looked at."""
        names = self._database.catalog.names(
            request.space, Kind.THREAD, prefix=request.prefix, after=request.after or None, limit=SEARCH_THREADS_MAX + 1
        )
        items: list[Hit] = []
        looking, stride = _Looking(request.text, request.place), Stride.usual()
        for name in names[:SEARCH_THREADS_MAX]:
            if seen and (looking.bytes > SEARCH_BYTES_MAX or len(items) >= self._listings.limit(request.limit)):
                return Hits(items, seen[-1], len(seen), looking.skipped)
            seen.append(name)
            rows = self._database.document(Target(Kind.THREAD, request.space, name)).rows
            try:
                items += looking.through(name, rows)
            except StoreCorrupt:
                looking.skipped += 1  # What is damaged is told by reads of it, and by `shoal verify`.
            for found in looking.heads(rows):
                for channel in looking.channels(found):
                    # Between two steps the thread may be pruned or deleted: then the rest of it is not there.
                    rows = self._database.document(Target(Kind.THREAD, request.space, name)).rows
                    size = found.record.channels[channel].size
                    items += looking.within(name, rows, found, channel)
                    if stride.is_over(size):
                        yield
            if stride.is_over(64):
                yield
        return Hits(items, seen[-1] if len(names) > SEARCH_THREADS_MAX else "", len(seen), looking.skipped)


class _Text(NamedTuple):
    """A text within a value, and the parts of the pointer to it."""

    parts: tuple[object, ...]
    text: str


class _Looking:
    """Looks for one text, and counts what it looks at."""

    def __init__(self, text: str, place: str) -> None:
        self._text = text.casefold()
        self._place = place
        self.bytes = self.skipped = 0

    def through(self, thread: str, rows: Rows) -> Iterator[Hit]:
        """The hits in all but states."""
        if self._wants("name") and (at := self._at(thread)) is not None:
            yield Hit(thread, "name", "", _excerpt(thread, at, len(self._text)))
        if self._wants("label"):
            for label, id in islice(labels.listed(rows, ""), _LABELS_MAX):
                if (at := self._at(label)) is not None:
                    yield Hit(thread, "label", "", _excerpt(label, at, len(self._text)), id.hex())
        if self._wants("tag") or self._wants("metadata"):
            for found in _heads(rows):
                yield from self._in_metadata(thread, found)

    def heads(self, rows: Rows) -> Sequence[dag.Checkpoint]:
        """The checkpoints whose states are looked into."""
        return list(_heads(rows)) if self._wants("state") else []

    def channels(self, found: dag.Checkpoint) -> Iterator[str]:
        """The channels of a checkpoint that are looked into."""
        for name, recipe in found.record.channels.items():
            if recipe.size > CHANNEL_BYTES_MAX:
                self.skipped += 1
            else:
                yield name

    def within(self, thread: str, rows: Rows, found: dag.Checkpoint, channel: str) -> Iterator[Hit]:
        """The hits in one channel of a checkpoint, but for its secret parts."""
        self.bytes += found.record.channels[channel].size
        secret = found.record.secret
        try:
            packed = value_of(completed(rows, found, None, [channel])[channel])
            shown = secret_fields.hidden_channel(secret, channel, packed)
            value = values.decode_channel(shown, found.record.schema)
        except (StoreCorrupt, InvalidValue):
            self.skipped += 1
            return
        yield from self._hits(thread, "state", found, channel, value)

    def _in_metadata(self, thread: str, found: dag.Checkpoint) -> Iterator[Hit]:
        metadata = found.record.metadata
        if len(metadata) > CHANNEL_BYTES_MAX:
            self.skipped += 1
            return
        self.bytes += len(metadata)
        try:
            told = values.decode(metadata)
        except InvalidValue:
            return
        for name, value in told.items() if isinstance(told, dict) else ():
            place: HitPlace = "tag" if name == "tags" else "metadata"
            if self._wants(place):
                yield from self._hits(thread, place, found, name, value)

    def _hits(self, thread: str, place: HitPlace, found: dag.Checkpoint, name: str, value: Any) -> Iterator[Hit]:
        hits = ((each, self._at(each.text)) for each in _texts((name,), value))
        for each, at in islice(((each, at) for each, at in hits if at is not None), _HITS_MAX):
            path = secret_fields.pointer(each.parts)
            excerpt = _excerpt(each.text, at, len(self._text))
            yield Hit(thread, place, path, excerpt, found.id.hex(), found.record.branch)

    def _wants(self, place: HitPlace) -> bool:
        return self._place in ("", place)

    def _at(self, text: str) -> int | None:
        at = text.casefold().find(self._text)
        return None if at < 0 else at


def _heads(rows: Rows) -> Iterator[dag.Checkpoint]:
    """The newest checkpoint of each branch, each once."""
    seen: set[bytes] = set()
    for row, _ in rows.scan(dag.BRANCH, limit=_BRANCHES_MAX):
        id = dag.heads(rows, row[len(dag.BRANCH) :].decode())[0].id
        if id not in seen and (found := dag.shown(rows, id)) is not None:
            seen.add(id)
            yield found


def _texts(parts: tuple[object, ...], value: Any) -> Iterator[_Text]:
    """The texts within a value, keys of maps too, in order."""
    stack: list[tuple[tuple[object, ...], Any]] = [(parts, value)]
    while stack:
        at, each = stack.pop()
        if isinstance(each, str):
            if each != secret_fields.HIDDEN:
                yield _Text(at, each)
        elif isinstance(each, int | float) and not isinstance(each, bool):
            yield _Text(at, str(each))
        elif isinstance(each, dict):
            stack += [((*at, key), item) for key, item in reversed(each.items())]
            for key in each:
                if isinstance(key, str):
                    yield _Text((*at, key), key)
        elif isinstance(each, list | tuple):
            stack += [((*at, nth), item) for nth, item in reversed(list(enumerate(each)))]


def _excerpt(text: str, at: int, length: int) -> str:
    """The text with what is around it. Folding letters may move a place by a few characters."""
    start, end = max(0, at - _AROUND), at + length + _AROUND
    return f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"
