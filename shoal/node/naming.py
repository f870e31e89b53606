"""Ids as users see them: 64 hex digits for a checkpoint, which are 32 bytes here; 68 for an event, which are 34.

Law: wherever a request names a checkpoint of a thread, a label of the thread does too (`checkpoint_named`).
"""

from __future__ import annotations

from shoal.crdt.rows import POSITION_BYTES, Rows
from shoal.errors import InvalidInput, NotFound
from shoal.kinds.label.state import labels
from shoal.kinds.thread.state import dag
from shoal.names import check_name


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
    return list(dict.fromkeys(head.id.hex() for head in heads))


def position_of(id: str) -> bytes:
    """The position of an event, from its id.

    Raises:
        InvalidInput: `id` is not an event's id.
    """
    return of_hex(id, POSITION_BYTES, "an event's id is")
