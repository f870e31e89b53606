"""What the supervisor and its worker tell each other: JSON, one message a line, over the worker's pipes.

The supervisor sends one `Plan` and then keeps the pipe open: its end is the
news that the supervisor is gone. The worker answers with the rest.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Plan(Struct, frozen=True, tag="plan"):
    """What one life of the worker is to do."""

    data: str  # The store's directory.
    temporary: bool  # Remove it if the supervisor disappears: nobody else will.
    root: str  # The library's directory.
    modules: list[str]  # All of them, of all agents, in order.
    agents: int
    # How many modules may be finished in this life. A life that is to be
    # killed gets fewer than are left, so that it cannot end before the kill.
    modules_max: int


class Ready(Struct, frozen=True, tag="ready"):
    """The store is open, and each agent has loaded its last checkpoint."""

    positions: list[int]  # Per agent: how many of its modules it found done.


class Writing(Struct, frozen=True, tag="writing"):
    """An agent has counted a module, and its writes are under way from now on."""

    agent: int
    module: str


class Saved(Struct, frozen=True, tag="saved"):
    """All of a module's writes are acknowledged, the checkpoint last."""

    agent: int
    module: str
    position: int
    checkpoint: str
    operations: int


class Finished(Struct, frozen=True, tag="finished"):
    """Every agent is done, and the store is closed."""


class Failed(Struct, frozen=True, tag="failed"):
    """The worker cannot go on; `reason` is one line."""

    reason: str


Message = Ready | Writing | Saved | Finished | Failed

_encoder = msgspec.json.Encoder()
_plans = msgspec.json.Decoder(Plan)
_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def to_line(message: Plan | Message) -> bytes:
    """The message with its newline: JSON escapes every other newline in it."""
    return _encoder.encode(message) + b"\n"


def read_plan(line: bytes) -> Plan:
    """Raises msgspec.DecodeError if `line` is no plan."""
    return _plans.decode(line)


def read_message(line: bytes) -> Message:
    """Raises msgspec.DecodeError if `line` is no message."""
    return _messages.decode(line)
