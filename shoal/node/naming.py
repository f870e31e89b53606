"""Checkpoint ids: 64 hex digits to users, 32 bytes here."""

from __future__ import annotations

from shoal.crdt import lineage
from shoal.errors import InvalidInput


def unhex(text: str) -> bytes:
    try:
        id = bytes.fromhex(text)
    except (ValueError, TypeError):  # An embedded store is called from Python, where it may be anything.
        id = b""
    if len(id) != lineage.ID_BYTES:
        raise InvalidInput(f"a checkpoint id is 64 hex digits; got {repr(text)[:80]}. Nothing was written.")
    return id


def hexed(heads: list[lineage.Head]) -> list[str]:
    """What the heads name, the winner first, each once."""
    return list(dict.fromkeys(head.id.hex() for head in heads))
