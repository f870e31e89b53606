"""Ids as users see them: 64 hex digits for a checkpoint, which are 32 bytes here; 68 for an event, which are 34."""

from __future__ import annotations

from shoal.crdt.rows import POSITION_BYTES
from shoal.crdt.thread import dag
from shoal.errors import InvalidInput


def unhex(text: str) -> bytes:
    """The 32 bytes of a checkpoint's id.

    Raises:
        InvalidInput: `text` is not 64 hex digits.
    """
    try:
        id = bytes.fromhex(text)
    except (ValueError, TypeError):  # An embedded store is called from Python, where `text` may have any type.
        id = b""
    if len(id) != dag.ID_BYTES:
        raise InvalidInput(f"a checkpoint id is 64 hex digits; got {repr(text)[:80]}. Nothing was written.")
    return id


def hexed(heads: list[dag.Head]) -> list[str]:
    """The ids of the heads, the winner first, each once."""
    return list(dict.fromkeys(head.id.hex() for head in heads))


def position_of(id: str) -> bytes:
    """The position of an event, from its id.

    Raises:
        InvalidInput: `id` is not an event's id.
    """
    try:
        position = bytes.fromhex(id)
    except ValueError:
        position = b""
    if len(position) != POSITION_BYTES:
        raise InvalidInput(f"an event's id is {2 * POSITION_BYTES} hex digits; got {id[:80]!r}. Nothing was written.")
    return position
