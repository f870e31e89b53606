"""Records and entries of conversations as the values of items, and back.

Laws:
- A value that is read equals the one that was written, as far as pydantic_ai's own types serialise it.
- A record that two nodes have written that could not reach each other is shown with the messages of both: the record that
  does not count is a branch of the one that does.
- A form that is newer than this version, of ours or of pydantic_ai's, is refused and not guessed at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.conversation_store import ConversationEntry, ConversationRecord
from pydantic_ai.messages import ModelMessagesTypeAdapter
from pydantic_core import PydanticSerializationError

from shoal.errors import InvalidValue, SchemaTooNew
from shoal.integrations import escaping
from shoal.kinds.items.handle.item import Item
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
        "record": escaping.stored(plain, "the record"),
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
        "message": escaping.stored(message, f"new_entries[{nth}]"),
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
        [message] = ModelMessagesTypeAdapter.validate_python([escaping.shown(value["message"])])
    except ValidationError as error:
        raise _too_new(f"the message of entry {value['id']!r} is not of a kind that it knows ({_first(error)})") from None
    shown = ConversationEntry(id=value["id"], parent_id=value["parent"], message=message)
    return Entry(shown, value["line"], value["family"], value["depth"])


def _record(value: Mapping[str, Any]) -> ConversationRecord:
    plain = escaping.shown(value["record"])
    if plain.get("format_version") != _THEIRS:
        raise _too_new(f"conversation {plain.get('conversation_id')!r} has format_version {plain.get('format_version')!r}")
    try:
        return _RECORD.validate_python(plain)
    except ValidationError as error:
        raise _too_new(
            f"conversation {plain.get('conversation_id')!r} is not of a form that it knows ({_first(error)})"
        ) from None


def _of_form(value: Any, what: str) -> Mapping[str, Any]:
    known = escaping.of_form(value, _NAME, FORM)
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
