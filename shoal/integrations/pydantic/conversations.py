"""`ShoalConversationStore`: pydantic_ai's `ConversationStore` on Shoal. Its records and entries are values of items.

Laws:
- A save is one batch: the record and its new entries, all or nothing. It expects the version of the record that it has
  read, so that of two writers on one node one gets `ConversationConflict`. Of two writers on nodes that could not reach
  each other both may save; then the messages of the one that does not count are among the record's `branches`.
- An entry is stored once, and forks share it. All conversations that were forked from one are its *family*. An entry
  names its family and its *line*, which is the conversation that wrote it, so that a history is read line by line.
- A deletion erases the entries that no other record of the family reaches. A fork and a deletion both change the family's
  own item, and so does a save of more than one batch: whichever comes second begins anew.
- A value that is read equals the one that was written, as far as pydantic_ai's own types serialise it.
- A record that two nodes have written that could not reach each other is shown with the messages of both: the record that
  does not count is a branch of the one that does.
- A form that is newer than this version, of ours or of pydantic_ai's, is refused and not guessed at.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.conversation_store import ConversationConflict, ConversationEntry, ConversationRecord, ConversationStore
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_core import PydanticSerializationError

from shoal.client.connection import contended
from shoal.client.store import Store
from shoal.errors import InvalidValue, ItemChanged, SchemaTooNew
from shoal.integrations import contents
from shoal.integrations.base import InSpace
from shoal.integrations.contents import name_of, text_of, unsafe
from shoal.kinds.items.handle.item import Item, delete_request, put_request
from shoal.protocol import requests
from shoal.protocol.requests import NO_ITEM
from shoal.raising import partly
from shoal.records import NamedTuple

FORM = 1
"""The version of the form in which conversations are stored."""
_NAME = "pydantic"
_THEIRS = 1  # pydantic_ai's `format_version`.
_RECORD: TypeAdapter[ConversationRecord] = TypeAdapter(ConversationRecord)


class Kept(NamedTuple):
    """A record as it is stored."""

    record: ConversationRecord
    version: str  # Of the item.
    line: str
    family: str
    hidden: bool  # Whether it is deleted, and its entries are not erased yet.


class Entry(NamedTuple):
    """An entry as it is stored."""

    shown: ConversationEntry
    line: str
    family: str
    depth: int  # The number of entries before it.


def packed_record(record: ConversationRecord, *, line: str, family: str, hidden: bool = False) -> dict[str, Any]:
    """The value to store of a record.

    Raises:
        InvalidValue: a part of it is no JSON.
    """
    try:
        plain = _RECORD.dump_python(record, mode="json")
    except PydanticSerializationError as error:
        raise _no_json(f"the record of conversation {record.conversation_id!r:.100}", error) from None
    scope = {} if record.scope is None else {"scope": record.scope}
    return {
        _NAME: FORM,
        "record": contents.stored(plain, "the record"),
        "line": line,
        "family": family,
        **scope,
        **({"hidden": True} if hidden else {}),
    }


def shown_record(item: Item) -> Kept:
    """The record of an item.

    Raises:
        SchemaTooNew: a newer version of Shoal or of pydantic_ai wrote it.
    """
    value = _of_form(item.value, "a record")
    record = _record(value)
    for sibling in item.siblings:
        other = _record(_of_form(sibling, "a record"))
        tips = [*other.branches, *([] if other.head_id is None else [other.head_id])]
        known = {record.head_id, *record.branches}
        record = replace(record, branches=[*(tip for tip in tips if tip not in known), *record.branches])
    return Kept(record, item.version, value["line"], value["family"], bool(value.get("hidden")))


def packed_entry(entry: ConversationEntry, *, line: str, family: str, depth: int, nth: int) -> dict[str, Any]:
    """The value to store of an entry, the `nth` that is saved at once.

    Raises:
        InvalidValue: its message is no JSON.
    """
    try:
        [message] = ModelMessagesTypeAdapter.dump_python([entry.message], mode="json")
    except PydanticSerializationError as error:
        raise _no_json(f"new_entries[{nth}]", error) from None
    return {
        _NAME: FORM,
        "id": entry.id,
        "parent": entry.parent_id,
        "kind": entry.kind,
        "message": contents.stored(message, f"new_entries[{nth}]"),
        "line": line,
        "family": family,
        "depth": depth,
    }


def shown_entry(item: Item) -> Entry:
    """The entry of an item.

    Raises:
        SchemaTooNew: a newer version of Shoal or of pydantic_ai wrote it.
    """
    value = _of_form(item.value, "an entry")
    if value["kind"] != "message":
        raise _too_new(f"entry {value['id']!r} is a {value['kind']!r}")
    try:
        [message] = ModelMessagesTypeAdapter.validate_python([contents.shown(value["message"])])
    except ValidationError as error:
        raise _too_new(f"the message of entry {value['id']!r} is not of a kind that it knows ({_first(error)})") from None
    shown = ConversationEntry(id=value["id"], parent_id=value["parent"], message=message)
    return Entry(shown, value["line"], value["family"], value["depth"])


def _record(value: Mapping[str, Any]) -> ConversationRecord:
    plain = contents.shown(value["record"])
    if plain.get("format_version") != _THEIRS:
        raise _too_new(f"conversation {plain.get('conversation_id')!r} has format_version {plain.get('format_version')!r}")
    try:
        return _RECORD.validate_python(plain)
    except ValidationError as error:
        raise _too_new(
            f"conversation {plain.get('conversation_id')!r} is not of a form that it knows ({_first(error)})"
        ) from None


def _of_form(value: Any, what: str) -> Mapping[str, Any]:
    known = contents.of_form(value, _NAME, FORM)
    if known is None:
        raise InvalidValue(
            f"{what} of the conversations was not written by this integration: {value!r:.100}. Nothing was written. "
            "Delete the item, or use another space."
        )
    return known


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"


def _no_json(what: str, error: PydanticSerializationError) -> InvalidValue:
    return InvalidValue(f"{what} is no JSON: {error}. Nothing was written. Give values that pydantic can serialise.")


def _too_new(what: str) -> SchemaTooNew:
    return SchemaTooNew(
        f"{what}, which the pydantic_ai that is installed here cannot read. Nothing was written. Update pydantic-ai-slim here.",
        readable_from="",
    )


T = TypeVar("T")
LABEL = "{conversations}"
RECORDS, ENTRIES, FAMILIES = (LABEL, "records"), (LABEL, "entries"), (LABEL, "families")
FAMILY_TTL_S = 3600.0
"""How long it is remembered that a family was deleted: longer than a fork takes that began before."""
_INDEXED = ("line", "family", "scope", "hidden")
_UNSAFE = unsafe()


class _Anchor(NamedTuple):
    """Where new entries begin."""

    family: str
    line: str
    depth: int  # Of the entry before them; -1 if there is none.
    version: str | None  # Of the family's item, if the write must change it.


class ShoalConversationStore(InSpace, ConversationStore):
    """Keeps conversations in one space. Deleting one erases the messages that no fork of it shares."""

    SPACE = "pydantic"

    def __init__(self, store: Store, *, space: str | None = None) -> None:
        """On a store that is open on the running loop, and that the caller closes.

        Raises:
            InvalidInput: `store` is not an open store. With a path, use `ShoalConversationStore.open`.
        """
        super().__init__(store, space=space)
        self._is_indexed = False

    # ── the interface ─────────────────────────────────────────────────────────

    async def read_record(self, conversation_id: str) -> ConversationRecord | None:
        """The record of a conversation; None if there is none. With durability `quorum`, what any node has acknowledged counts.

        Raises:
            SchemaTooNew: a newer version of Shoal or of pydantic_ai wrote it.
            InvalidName: the id is longer than a name.
        """
        return await self._bridge.awaited(lambda: self._record(conversation_id))

    async def read_records(self, *, scope: str | None = None, limit: int | None = None) -> Sequence[ConversationRecord]:
        """The records, the last saved first. All of the scope are read, whatever the `limit`."""
        return await self._bridge.awaited(lambda: self._records(scope, limit))

    async def write_record(
        self,
        record: ConversationRecord,
        *,
        new_entries: Sequence[ConversationEntry] = (),
        expected_revision: str | None,
    ) -> None:
        """Save a record and its new entries, all or nothing.

        Raises:
            ConversationConflict: the conversation has another revision, or an entry that it follows is deleted.
            InvalidValue: a message is no JSON; nothing was written.
            InvalidName: an id is longer than a name; nothing was written.
            TooLarge: a message is larger than a request may be; nothing was written.
            SchemaTooNew: a newer version wrote the conversation; nothing was written.
            OutcomeUnknown: it may be saved. Load the conversation, and see.
        """
        entries = list(new_entries)
        await self._bridge.awaited(
            lambda: self._retried(lambda: self._write(record, entries, expected_revision), record.conversation_id)
        )

    async def delete_record(self, conversation_id: str, *, expected_revision: str) -> None:
        """Delete a conversation, and erase the messages that no fork of it shares.

        Raises:
            ConversationConflict: it has another revision, or is deleted.
            OutcomeUnknown: it is deleted, and some of its messages are not erased yet. The next deletion erases them.
        """
        conversation = text_of(conversation_id, "the id of a conversation")
        await self._bridge.awaited(lambda: self._delete(conversation, expected_revision))

    async def read_entry(self, entry_id: str) -> ConversationEntry:
        """One entry.

        Raises:
            LookupError: there is none of this id.
        """
        return (await self._bridge.awaited(lambda: self._entry(entry_id))).shown

    async def read_history(self, head_id: str | None, *, limit: int | None = None) -> list[ConversationEntry]:
        """The entries up to one, the first one first; with a `limit` the last ones. One query for each fork on the way.

        Raises:
            LookupError: an entry does not exist.
        """
        return await self._bridge.awaited(lambda: self._history(head_id, limit))

    # ── reading ───────────────────────────────────────────────────────────────

    async def _kept(self, conversation_id: str) -> Kept | None:
        item = await self._space.items.get(RECORDS, _key(conversation_id))
        return None if item is None else shown_record(item)

    async def _record(self, conversation_id: str) -> ConversationRecord | None:
        await self._caught_up(LABEL)
        kept = await self._kept(conversation_id)
        return None if kept is None or kept.hidden else kept.record

    async def _records(self, scope: str | None, limit: int | None) -> list[ConversationRecord]:
        found = [kept.record async for kept in self._all_records({} if scope is None else {"scope": scope}) if not kept.hidden]
        found.sort(key=lambda record: record.updated_at, reverse=True)
        return found[:limit]

    async def _all_records(self, filter: dict[str, Any]) -> AsyncIterator[Kept]:
        async for item in self._space.items.scan(RECORDS, filter=filter):
            yield shown_record(item)

    async def _entry(self, entry_id: str) -> Entry:
        item = await self._space.items.get(ENTRIES, _key(entry_id))
        if item is None:
            raise LookupError(f"there is no entry {entry_id!r:.100}: its conversation was deleted, or it was never stored.")
        return shown_entry(item)

    async def _history(self, head_id: str | None, limit: int | None) -> list[ConversationEntry]:
        chain: list[ConversationEntry] = []
        known: dict[str, Entry] = {}
        while head_id is not None and (limit is None or len(chain) < limit):
            if head_id not in known:
                known = await self._line_up_to(await self._entry(head_id), None if limit is None else limit - len(chain))
            chain.append(known[head_id].shown)
            head_id = chain[-1].parent_id
        chain.reverse()
        return chain

    async def _line_up_to(self, head: Entry, most: int | None) -> dict[str, Entry]:
        """The entries of a line that are not later than one: those that are on its way, and perhaps others."""
        found = {head.shown.id: head}
        if head.shown.parent_id is not None and most != 1:
            depth = {"$lt": head.depth} | ({} if most is None else {"$gt": head.depth - most})
            async for item in self._space.items.scan(ENTRIES, filter={"line": head.line, "depth": depth}):
                entry = shown_entry(item)
                found[entry.shown.id] = entry
        return found

    # ── saving ────────────────────────────────────────────────────────────────

    async def _write(self, record: ConversationRecord, entries: list[ConversationEntry], expected: str | None) -> None:
        conversation, new = record.conversation_id, {entry.id for entry in entries}
        before = await self._kept(conversation)
        if before is not None and before.hidden:
            await self._erased(conversation, before.record.revision)
            before = None
        if (None if before is None else before.record.revision) != expected:
            raise ConversationConflict(conversation)
        follows = entries[0].parent_id if entries else record.head_id
        if entries and record.head_id not in new and not await self._exists(record.head_id):
            raise ConversationConflict(conversation)
        anchor = await self._anchor(record, before, follows)
        writes: list[requests.BatchWrite] = [
            put_request(self._space.name, ENTRIES, _key(entry.id), packed, expect=NO_ITEM)
            for entry, packed in packed_entries(entries, anchor)
        ]
        pieces = list(self._pieces(writes))
        version = anchor.version
        if len(pieces) > 1 and version is None:
            version = await self._family_version(anchor.family)
        for piece in pieces[:-1]:  # Nothing refers to them until the record does.
            await self._connection.write(requests.Batch(piece), key=None, durability=None)
        last = pieces[-1]
        if version is not None:
            last.append(self._family_changed(anchor.family, version))
        line = before.line if before is not None else record.revision
        packed = packed_record(record, line=line, family=anchor.family)
        last.append(
            put_request(
                self._space.name, RECORDS, _key(conversation), packed, expect=NO_ITEM if before is None else before.version
            )
        )
        with partly(len(pieces) > 1, "some entries are stored, which nothing shows", "Save it again."):
            await self._connection.write(requests.Batch(last), key=None, durability=None)

    async def _anchor(self, record: ConversationRecord, before: Kept | None, follows: str | None) -> _Anchor:
        """Where the new entries of a record begin.

        Raises:
            ConversationConflict: the entry that they follow is deleted.
        """
        await self._index()
        line = before.line if before is not None else record.revision
        if follows is None:
            return _Anchor(before.family if before is not None else record.revision, line, -1, None)
        try:
            entry = await self._entry(follows)
            if before is not None:
                return _Anchor(before.family, line, entry.depth, None)
            version = await self._family_version(entry.family)
            await self._entry(follows)  # It was there when the family had this version.
        except LookupError:
            raise ConversationConflict(record.conversation_id) from None
        return _Anchor(entry.family, line, entry.depth, version)

    async def _exists(self, entry_id: str | None) -> bool:
        return entry_id is None or await self._space.items.get(ENTRIES, _key(entry_id)) is not None

    async def _index(self) -> None:
        if not self._is_indexed:
            await self._space.items.index((LABEL,), *_INDEXED)
            self._is_indexed = True

    def _pieces(self, writes: list[requests.BatchWrite]) -> Iterator[list[requests.BatchWrite]]:
        """The writes in batches, with place for the record and the family; at least one batch."""
        config = self._connection.config
        piece: list[requests.BatchWrite] = []
        size = 0
        for write in writes:
            assert isinstance(write, requests.PutItem)
            if piece and (len(piece) > config.batch_writes_max - 3 or size + len(write.value) > config.request_bytes_max // 2):
                yield piece
                piece, size = [], 0
            piece.append(write)
            size += len(write.value)
        yield piece

    # ── families ──────────────────────────────────────────────────────────────

    async def _family_version(self, family: str) -> str:
        item = await self._space.items.get(FAMILIES, _key(family))
        return NO_ITEM if item is None else item.version

    def _family_changed(self, family: str, version: str, ttl: float | None = None) -> requests.PutItem:
        return put_request(self._space.name, FAMILIES, _key(family), None, expect=version, ttl=ttl)

    # ── deleting ──────────────────────────────────────────────────────────────

    async def _delete(self, conversation_id: str, revision: str) -> None:
        kept = await self._kept(conversation_id)
        if kept is None or kept.hidden or kept.record.revision != revision:
            raise ConversationConflict(conversation_id)
        await self._retried(lambda: self._erase(conversation_id, revision), conversation_id)
        left = [each async for each in self._all_records({"hidden": True})]
        with partly(
            True, "the conversation is deleted", "The messages of deleted conversations are erased by the next deletion."
        ):
            for record in [each.record for each in left if each.hidden]:
                await self._retried(partial(self._erased, record.conversation_id, record.revision), conversation_id)

    async def _erased(self, conversation_id: str, revision: str) -> None:
        """Erase what is left of a deleted conversation, some of it at a time."""
        while await self._erase(conversation_id, revision):
            pass

    async def _erase(self, conversation_id: str, revision: str) -> bool:
        """Delete a record with its entries or, if those are too many for one batch, hide it and erase some of them.

        Returns whether some are left.

        Raises:
            ConversationConflict: it was saved or deleted meanwhile.
        """
        kept = await self._kept(conversation_id)
        if kept is None or kept.record.revision != revision:
            raise ConversationConflict(conversation_id)
        version = await self._family_version(kept.family)
        entries = {entry.shown.id: entry.shown.parent_id async for entry in self._entries_of({"family": kept.family})}
        others = [
            each.record
            async for each in self._all_records({"family": kept.family})
            if not each.hidden and each.record.conversation_id != conversation_id
        ]
        needless = entries.keys() - await self._reached(entries, others)
        some = sorted(needless)[: self._connection.config.batch_writes_max - 2]
        space = self._space.name
        writes: list[requests.BatchWrite] = [delete_request(space, ENTRIES, _key(each)) for each in some]
        is_left = len(some) < len(needless)
        key = _key(conversation_id)
        if is_left:
            packed = packed_record(kept.record, line=kept.line, family=kept.family, hidden=True)
            writes.append(put_request(space, RECORDS, key, packed, expect=kept.version))
        else:
            writes.append(delete_request(space, RECORDS, key, expect=kept.version))
        writes.append(self._family_changed(kept.family, version, ttl=None if others or is_left else FAMILY_TTL_S))
        await self._connection.write(requests.Batch(writes), key=None, durability=None)
        return is_left

    async def _entries_of(self, filter: dict[str, Any]) -> AsyncIterator[Entry]:
        async for item in self._space.items.scan(ENTRIES, filter=filter):
            yield shown_entry(item)

    async def _reached(self, parents: dict[str, str | None], records: Sequence[ConversationRecord]) -> set[str]:
        """The entries in the histories and branches of records. What was stored after `parents` was read is read now."""
        reached: set[str] = set()
        for record in records:
            for tip in [record.head_id, *record.branches]:
                at = tip
                while at is not None and at not in reached:
                    reached.add(at)
                    if at in parents:
                        at = parents[at]
                    else:
                        item = await self._space.items.get(ENTRIES, _key(at))
                        at = None if item is None else shown_entry(item).shown.parent_id
        return reached

    async def _retried(self, call: Callable[[], Awaitable[T]], conversation_id: str) -> T:
        """Call it again as long as somebody else changed the record or its family meanwhile.

        Raises:
            ConversationConflict: somebody did, `SAVE_ATTEMPTS_MAX` times.
        """
        pauses = contended(self._connection)
        while True:
            try:
                return await call()
            except ItemChanged as error:
                if (pause := next(pauses, None)) is None:
                    raise ConversationConflict(conversation_id) from error
                await asyncio.sleep(pause)


def packed_entries(entries: Sequence[ConversationEntry], anchor: _Anchor) -> Iterator[tuple[ConversationEntry, Any]]:
    """Each entry, and the value to store of it."""
    for nth, entry in enumerate(entries):
        yield entry, packed_entry(entry, line=anchor.line, family=anchor.family, depth=anchor.depth + 1 + nth, nth=nth)


def _key(id: str) -> str:
    return name_of(id, _UNSAFE)
