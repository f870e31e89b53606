"""Ids as users see them: 64 hex digits for a checkpoint, which are 32 bytes here; 68 for an event, which are 34."""

from __future__ import annotations

from shoal.crdt.rows import POSITION_BYTES
from shoal.crdt.thread import dag
from shoal.errors import InvalidInput


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


def hexed(heads: list[dag.Head]) -> list[str]:
    """The ids of the heads, the winner first, each once."""
    return list(dict.fromkeys(head.id.hex() for head in heads))


def position_of(id: str) -> bytes:
    """The position of an event, from its id.

    Raises:
        InvalidInput: `id` is not an event's id.
    """
    return of_hex(id, POSITION_BYTES, "an event's id is")
