"""The messages between the supervisor and its workers: JSON, one per line, over the workers' pipes.

The supervisor first sends a plan (a `Plan` to the embedded form's worker, a
`CrewPlan` to a node's agents), and keeps the pipe open: if it ends, the supervisor
has ended. The workers send the other messages.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct


class Plan(Struct, frozen=True, tag="plan"):
    """The work of one life of the worker."""

    data: str  # The store's directory.
    temporary: bool  # Whether the worker removes it if the supervisor disappears.
    root: str  # The library's directory.
    modules: list[str]  # The modules of all agents, in order.
    agents: int
    # How many modules may be finished in this life. A life that is to be
    # killed gets fewer than are left, so that it cannot end before the kill.
    modules_max: int


class CrewPlan(Struct, frozen=True, tag="crew"):
    """The work of the agents at one node."""

    urls: str  # The URLs of all nodes, the agents' own first.
    root: str
    modules: list[str]
    agents: int  # The number of agents in all crews.
    members: list[int]  # The agents of this crew.
    # Per gate and member: how many modules it has done when it waits until the
    # supervisor opens the gate. So the node's death and return always come
    # before the end of the work.
    gates: list[list[int]]


class OpenGate(Struct, frozen=True, tag="open"):
    """To a crew: the next gate is open."""


class Ready(Struct, frozen=True, tag="ready"):
    """The store is open, and each agent has loaded its last checkpoint."""

    positions: list[int]  # Per agent: how many of its modules are done.


class Writing(Struct, frozen=True, tag="writing"):
    """An agent has counted a module, and begins to write."""

    agent: int
    module: str


class Saved(Struct, frozen=True, tag="saved"):
    """All of a module's writes are acknowledged, the checkpoint last."""

    agent: int
    module: str
    position: int
    checkpoint: str
    operations: int
    node: str = ""  # The id of the node that answered.


class Resumed(Struct, frozen=True, tag="resumed"):
    """An agent's connection led to another node, or failed, and the agent loaded its last checkpoint again."""

    agent: int
    position: int
    checkpoint: str
    node: str
    reason: str  # The type of the error; empty if the client changed to another node by itself.


class Finished(Struct, frozen=True, tag="finished"):
    """Every agent is done, and the store is closed."""


class Failed(Struct, frozen=True, tag="failed"):
    """The worker cannot continue; `reason` is one line."""

    reason: str


Message = Ready | Writing | Saved | Resumed | Finished | Failed

_encoder = msgspec.json.Encoder()
_plans = msgspec.json.Decoder(Plan)
_orders: msgspec.json.Decoder[CrewPlan | OpenGate] = msgspec.json.Decoder(CrewPlan | OpenGate)
_messages: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def to_line(message: Plan | CrewPlan | OpenGate | Message) -> bytes:
    """The message as one line; JSON escapes newlines within it."""
    return _encoder.encode(message) + b"\n"


def read_plan(line: bytes) -> Plan:
    """Read a `Plan`; raises msgspec.DecodeError if `line` is not one."""
    return _plans.decode(line)


def read_order(line: bytes) -> CrewPlan | OpenGate:
    """Read a message to a crew; raises msgspec.DecodeError if `line` is not one."""
    return _orders.decode(line)


def read_message(line: bytes) -> Message:
    """Read a worker's message; raises msgspec.DecodeError if `line` is not one."""
    return _messages.decode(line)
