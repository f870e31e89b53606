"""Counters and registers."""

from __future__ import annotations

from msgspec import Struct

from shoal.protocol.requests.base import Read, Reply, Write

__all__ = ["Add", "Added", "Assign", "Assigned", "CounterValue", "ReadCounter", "ReadRegister", "Sibling", "Siblings"]


class Add(Write, array_like=True, frozen=True, tag="add"):
    """Add to a counter; answered by `Added`. `key`: of all adds with one key, one counts."""

    space: str
    counter: str
    amount: int
    key: str | None = None


class Added(Reply, array_like=True, frozen=True, tag="added"):
    value: int
    added: bool


class ReadCounter(Read, array_like=True, frozen=True, tag="read-counter"):
    """Answered by `CounterValue`; a counter that does not exist is 0."""

    space: str
    counter: str


class CounterValue(Reply, array_like=True, frozen=True, tag="counter-value"):
    value: int


class Assign(Write, array_like=True, frozen=True, tag="assign"):
    """Set a register; answered by `Assigned`.

    `context` is that of the read this is based on: values it has not seen stay as
    siblings. None supersedes all that the serving node shows. `expect`: the version
    it must have on the node that serves this.
    """

    space: str
    register: str
    value: bytes
    context: bytes | None = None
    expect: str | None = None  # "": it must have no value.


class Assigned(Reply, array_like=True, frozen=True, tag="assigned"):
    siblings: int
    context: bytes
    version: str = ""


class ReadRegister(Read, array_like=True, frozen=True, tag="read-register"):
    """Answered by `Siblings`; a register never set has none."""

    space: str
    register: str


class Sibling(Struct, array_like=True, frozen=True):
    value: bytes
    wall_ms: int


class Siblings(Reply, array_like=True, frozen=True, tag="siblings"):
    siblings: list[Sibling]  # Greatest HLC first: the first is the `latest`.
    context: bytes
    version: str = ""  # Another one for other values; empty where there is none.


ObjectRead = ReadCounter | ReadRegister
ReadReply = CounterValue | Siblings
