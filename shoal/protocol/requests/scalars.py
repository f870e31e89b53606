"""Counters and registers."""

from __future__ import annotations

from msgspec import Struct

from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import operation

__all__ = ["Add", "Added", "Assign", "Assigned", "CounterValue", "ReadCounter", "ReadRegister", "Sibling", "Siblings"]


@operation(batch=True)
class Add(ObjectWrite["Added"], array_like=True, frozen=True, tag="add"):
    """Add to a counter. `key`: of all adds with one key, one counts."""

    counter: str
    amount: int
    key: str | None = None


class Added(Reply, array_like=True, frozen=True, tag="added"):
    value: int
    added: bool


@operation(multi_read=True)
class ReadCounter(ObjectRead["CounterValue"], array_like=True, frozen=True, tag="read-counter"):
    """A counter that does not exist is 0."""

    counter: str


class CounterValue(Reply, array_like=True, frozen=True, tag="counter-value"):
    value: int


@operation(batch=True)
class Assign(ObjectWrite["Assigned"], array_like=True, frozen=True, tag="assign"):
    """Set a register.

    `context` is that of the read this is based on: values it has not seen stay as
    siblings. None supersedes all that the serving node shows. `expect`: the version
    it must have on the node that serves this.
    """

    register: str
    value: bytes
    context: bytes | None = None
    expect: str | None = None  # "": it must have no value.


class Assigned(Reply, array_like=True, frozen=True, tag="assigned"):
    siblings: int
    context: bytes
    version: str = ""


@operation(multi_read=True)
class ReadRegister(ObjectRead["Siblings"], array_like=True, frozen=True, tag="read-register"):
    """A register never set has none."""

    register: str


class Sibling(Struct, array_like=True, frozen=True):
    value: bytes
    wall_ms: int


class Siblings(Reply, array_like=True, frozen=True, tag="siblings"):
    siblings: list[Sibling]  # Greatest HLC first: the first is the `latest`.
    context: bytes
    version: str = ""  # Another one for other values; empty where there is none.
