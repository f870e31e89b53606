"""Ids as users see them: 64 hex digits for a checkpoint, which are 32 bytes here; 68 for an event, which are 34.

Law: wherever a request names a checkpoint of a thread, a label of the thread does too (`checkpoint_named`).

The data type's own key for a mutation whose request names none.

Idempotency belongs to the data type: if one request went to two nodes and made
two operations, the one with the least dot counts.

A key is derived from the request's key, the place of the write in the request, and, if the write makes several mutations,
the mutation's place among these. It does not depend on what the other writes of the request changed, which may differ from
node to node.

Checks that several handlers share.
"""

from __future__ import annotations

from shoal import values
from shoal.config import Config
from shoal.crdt.deletion import EXPIRING_MARK, KEPT_MARK, is_made
from shoal.crdt.dot import COUNTER_BITS, wall_ms_of
from shoal.crdt.rows import POSITION_BYTES, Rows
from shoal.errors import InvalidInput, NotFound, TooLarge
from shoal.kinds.label import state as labels
from shoal.kinds.schema import state as schema
from shoal.kinds.thread.state import dag
from shoal.names import check_name
from shoal.protocol.bookmark import SEEN_BYTES_MAX, Bookmark
from shoal.protocol.requests import Save
from shoal.schemas.secret_fields import parts_of


def of_hex(text: str, size: int, what: str) -> bytes:
    """Bytes of this size, from their hex digits. `what` they are is a clause such as "an event's id is".

    Raises:
        InvalidInput: `text` is something else.
    """
    try:
        found = bytes.fromhex(text)
    except (ValueError, TypeError):  # An embedded store is called from Python, where `text` may have any type.
        found = b""
    if len(found) != size:
        raise InvalidInput(f"{what} {2 * size} hex digits; got {repr(text)[:80]}. Nothing was written.")
    return found


def unhex(text: str) -> bytes:
    """The 32 bytes of a checkpoint's id.

    Raises:
        InvalidInput: `text` is not 64 hex digits.
    """
    return of_hex(text, dag.ID_BYTES, "a checkpoint id is")


def checkpoint_named(rows: Rows, thread: str, text: str) -> bytes:
    """The id of the checkpoint that a request names by its id or by a label. Whether an id exists is not looked up.

    Raises:
        NotFound: it is no id, and the thread has no such label.
        InvalidName: it is neither an id nor a legal label.
    """
    try:
        return unhex(text)
    except InvalidInput:
        named = labels.entries(rows, check_name("label", text))
    if not named:
        raise NotFound(
            f"thread {thread!r} has no checkpoint {text[:80]!r}: it is not an id, which has 64 hex digits, and there is no "
            "such label in the thread. Nothing was written. List them with history() and labels()."
        )
    return named[0].id


def hexed(heads: list[dag.Head]) -> list[str]:
    """The ids of the heads, the winner first, each once."""
    return list(dict.fromkeys([head.id.hex() for head in heads]))


def position_of(id: str) -> bytes:
    """The position of an event, from its id.

    Raises:
        InvalidInput: `id` is not an event's id.
    """
    return of_hex(id, POSITION_BYTES, "an event's id is")


def implied_key(request_key: str | None, place: str) -> str | None:
    """The key for the mutation at this place of a request with this key; None if the request has none."""
    if request_key is None:
        return None
    if is_made(request_key):
        return f"{EXPIRING_MARK}{request_key}{EXPIRING_MARK}{place}"  # The time comes first: a sweep finds the old ones.
    return f"{KEPT_MARK}{place}{KEPT_MARK}{request_key}"


def expires(key: str) -> bool:
    """Whether a key was derived from one that a client made."""
    return key.startswith(EXPIRING_MARK)


def expired_hlc(hlc: int, now_ms: int, window_s: int) -> int:
    """The time (HLC) up to which no request can be repeated any more, for an operation at `hlc` of a node whose clock shows
    `now_ms`: the clocks of operations may be ahead. An eighth of the window is for clocks that differ.

    Until then a directory that was set back, and does not know what it has forgotten, may take a request once more. After that
    it refuses the key by its own clock.
    """
    return max(0, min(now_ms, wall_ms_of(hlc)) - window_s * 1000 * 9 // 8) << COUNTER_BITS


def is_of(key: str | None, request_key: str | None) -> bool:
    """Whether `key` was derived from this request's key."""
    if key is None or request_key is None:
        return False
    return key.startswith(f"{EXPIRING_MARK}{request_key}{EXPIRING_MARK}") or (
        key.startswith(KEPT_MARK) and key.endswith(f"{KEPT_MARK}{request_key}")
    )


NOTE_BYTES_MAX = 4 * 1024  # The provenance of a write: author and reason.
SETTING_BYTES_MAX = 4 * 1024  # The configuration with which the author of a checkpoint ran.
PAGE_BYTES_MAX = 8 * 1024 * 1024  # A page of a listing, history or journal ends with the first item that exceeds it.


def check_size(config: Config, size: int, what: str) -> None:
    """Check the size in bytes of a part of a request, which the error names as `what`.

    Raises:
        TooLarge: it has more than `request_bytes_max` bytes.
    """
    if size > config.request_bytes_max:
        raise TooLarge(
            f"{what} may have at most {config.request_bytes_max} bytes (request_bytes_max); this one has {size}. Nothing was "
            "written. Store it as a file, with put_file and a reference to that (docs/FILES.md), or split it: "
            'docs/CONFIGURATION.md, "How large a value may be".'
        )


def check_text(text: str, what: str) -> None:
    """Check a short text, which the error names as `what`.

    Raises:
        TooLarge: its UTF-8 has more than `NOTE_BYTES_MAX` bytes.
    """
    if text:
        _check_bytes(len(text.encode(errors="replace")), NOTE_BYTES_MAX, what)


def check_annotations(request: Save) -> None:
    """Check what a save says about its author: name, setting and bookmark.

    Raises:
        TooLarge: one of them exceeds its bound.
        InvalidValue: the setting or the bookmark is malformed.
    """
    check_text(request.author, "an author")
    if request.setting:
        _check_bytes(len(request.setting), SETTING_BYTES_MAX, "a setting")
        values.check(request.setting)
    if request.seen:
        _check_bytes(len(request.seen), SEEN_BYTES_MAX, "the bookmark of an author")
        Bookmark.unpack(request.seen)


def _check_bytes(size: int, bytes_max: int, what: str) -> None:
    if size > bytes_max:
        raise TooLarge(f"{what} may have at most {bytes_max} bytes; this one has {size}. Nothing was written.")


def check_schema(request: Save) -> None:
    """Check what a save says about its schema: name, versions and secret fields.

    Raises:
        InvalidName: the schema or a secret field has an illegal name.
        InvalidInput: a version is out of range.
    """
    if request.schema:
        check_name("schema", request.schema)
    if not 0 <= request.schema_version <= schema.VERSION_MAX or not 0 <= request.readable_from <= request.schema_version:
        raise InvalidInput(
            f"a schema's version is at most {schema.VERSION_MAX}, and a state is readable from that version or an earlier one; "
            f"got {request.schema_version} and {request.readable_from}. Nothing was written."
        )
    for field in request.secret:
        parts_of(check_name("secret field", field))
