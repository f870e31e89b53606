"""Checkpoints looked at closely."""

from __future__ import annotations

from msgspec import Struct

from shoal.protocol.requests.base import ObjectRead, Reply
from shoal.protocol.requests.thread.journal import Event
from shoal.protocol.requests.thread.threads import Checkpoint

__all__ = ["Damage", "Delta", "Explain", "Explained", "Growth", "ReadDelta", "Verified", "VerifyCheckpoints"]


class VerifyCheckpoints(ObjectRead["Verified"], array_like=True, frozen=True, tag="verify-checkpoints"):
    """Compute again what is stored of a checkpoint, or of a branch's by first parents."""

    thread: str
    checkpoint: str | None = None
    branch: str = "main"
    start: str = ""  # The id to go on at; empty: the branch's winner.
    limit: int = 100


class Damage(Struct, array_like=True, frozen=True):
    checkpoint: str
    channel: str  # Empty: its record.
    what: str


class Verified(Reply, array_like=True, frozen=True, tag="verified"):
    checked: int
    damage: list[Damage]
    next: str  # Ask again with start=next; empty: that was all.


class ReadDelta(ObjectRead["Delta"], array_like=True, frozen=True, tag="read-delta"):
    """How a checkpoint's state differs from its first parent's."""

    thread: str
    checkpoint: str


class Growth(Struct, array_like=True, frozen=True):
    """What a list holds after the elements of the parent's list."""

    at: int  # How many elements the parent's list has.
    elements: bytes  # Those that follow, as a packed array.


class Delta(Reply, array_like=True, frozen=True, tag="delta"):
    checkpoint: Checkpoint  # With the channels that are new or differ, except those in `appended`.
    appended: dict[str, Growth]  # By channel: the lists that begin with the parent's.


class Explain(ObjectRead["Explained"], array_like=True, frozen=True, tag="explain"):
    """What a checkpoint's author could see."""

    thread: str
    checkpoint: str
    limit: int = 20


class Explained(Reply, array_like=True, frozen=True, tag="explained"):
    checkpoint: Checkpoint
    setting: bytes  # Packed map, its own or an ancestor's; empty: not said.
    seen: bytes  # Packed bookmark: what it and its ancestors' authors said that they had read.
    earlier: list[Checkpoint]  # First parents, the newest first.
    events: list[Event]  # Before it in the journal, the newest first.
