"""Ids as users see them: of checkpoints 64 hex digits, 32 bytes here; of events 68, 34 bytes here."""

from __future__ import annotations

from shoal.crdt.rows import POSITION_BYTES
from shoal.crdt.thread import dag
from shoal.errors import InvalidInput


def unhex(text: str) -> bytes:
    try:
        id = bytes.fromhex(text)
    except (ValueError, TypeError):  # An embedded store is called from Python, where it may be anything.
        id = b""
    if len(id) != dag.ID_BYTES:
        raise InvalidInput(f"a checkpoint id is 64 hex digits; got {repr(text)[:80]}. Nothing was written.")
    return id


def hexed(heads: list[dag.Head]) -> list[str]:
    """What the heads name, the winner first, each once."""
    return list(dict.fromkeys(head.id.hex() for head in heads))


def position_of(id: str) -> bytes:
    """The position of an event.

    Raises:
        InvalidInput: this is no event's id.
    """
    try:
        position = bytes.fromhex(id)
    except ValueError:
        position = b""
    if len(position) != POSITION_BYTES:
        raise InvalidInput(f"an event's id is {2 * POSITION_BYTES} hex digits; got {id[:80]!r}. Nothing was written.")
    return position
