"""What the supervisor and its workers tell each other: JSON, one message a line, over the workers' pipes.

The supervisor sends a plan first (a `Plan` to the embedded form's worker, a
`CrewPlan` to a node's agents), and keeps the pipe open: its end is the news that
the supervisor is gone. The workers answer with the rest.
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


class CrewPlan(Struct, frozen=True, tag="crew"):
    """What the agents at one node are to do."""

    urls: str  # Of all nodes, their own first.
    root: str
    modules: list[str]
    agents: int  # In all crews.
    members: list[int]  # Those of this crew.
    # Per gate, and per member: with so many modules done it waits, until the
    # supervisor opened the gate. So neither the node's death nor its return
    # can come after the work, however fast that is.
    gates: list[list[int]]


class OpenGate(Struct, frozen=True, tag="open"):
    """To a crew: the next gate is open."""


class Ready(Struct, frozen=True, tag="ready"):
    """The store is there, and each agent has loaded its last checkpoint."""

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
    node: str = ""  # The id of the node that the agent is connected to by now.


class Resumed(Struct, frozen=True, tag="resumed"):
    """An agent found another node behind its connection, or none, and loaded its last checkpoint again."""

    agent: int
    position: int
    checkpoint: str
    node: str
    reason: str  # The error that it met; empty if the client had taken it to another node by itself.


class Finished(Struct, frozen=True, tag="finished"):
    """Every agent is done, and the store is closed."""


class Failed(Struct, frozen=True, tag="failed"):
    """The worker cannot go on; `reason` is one line."""

    reason: str


Message = Ready | Writing | Saved | Resumed | Finished | Failed

_encoder = msgspec.json.Encoder()
_plans = msgspec.json.Decoder(Plan)
_orders: msgspec.json.Decoder[CrewPlan | OpenGate] = msgspec.json.Decoder(CrewPlan | OpenGate)
_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def to_line(message: Plan | CrewPlan | OpenGate | Message) -> bytes:
    """The message with its newline: JSON escapes every other newline in it."""
    return _encoder.encode(message) + b"\n"


def read_plan(line: bytes) -> Plan:
    """Raises msgspec.DecodeError if `line` is no plan."""
    return _plans.decode(line)


def read_order(line: bytes) -> CrewPlan | OpenGate:
    """Raises msgspec.DecodeError if `line` is nothing that a crew is told."""
    return _orders.decode(line)


def read_message(line: bytes) -> Message:
    """Raises msgspec.DecodeError if `line` is no message."""
    return _messages.decode(line)
