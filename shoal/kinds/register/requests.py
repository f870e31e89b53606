"""Registers: one value each, with siblings if it was set concurrently."""

from __future__ import annotations

from msgspec import Struct

from shoal.errors import NoQuorum, RegisterChanged, TooManySiblings
from shoal.protocol.base import (
    Cli,
    Cursor,
    Deleted,
    Http,
    Natural,
    ObjectRead,
    ObjectWrite,
    Reply,
    Time,
    Value,
    deletion,
    operation,
)

__all__ = [
    "Assign",
    "Assigned",
    "CompareAndSet",
    "DeleteRegister",
    "NotedValue",
    "ReadRegister",
    "ReadRegisterHistory",
    "RegisterHistory",
    "Sibling",
    "Siblings",
    "Swap",
    "Swapped",
    "WasSet",
]


@operation(
    batch=True,
    weighs=lambda request: len(request.value),
    http=Http(
        "PUT",
        "/registers/{register}",
        "Set a register",
        ops=("set", "assign"),
        errors=(RegisterChanged, TooManySiblings),
        example={"value": {"goal": "survey the library"}},
    ),
    cli=Cli("register set", """shoal register set goal '{"reach": "Mars"}' --data ./state""", shows="version"),
)
class Assign(ObjectWrite["Assigned"], array_like=True, frozen=True, tag="assign"):
    """Set a register.

    `context` is the one of the read that this write is based on: values that the read has not
    seen stay as siblings. None replaces all values that the serving node shows. `expect` is the
    version that the register must have on the serving node.
    """

    register: str
    value: Value
    context: Cursor | None = None
    expect: str | None = None  # "" if it must have no value.
    by: str = ""  # The author, for the history.


class Assigned(Reply, array_like=True, frozen=True, tag="assigned"):
    """The register after a write."""

    siblings: int
    context: Cursor
    version: str = ""


@operation(
    discloses=True,  # A refusal shows the present value.
    http=Http(
        "POST",
        "/registers/{register}/compare-and-set",
        "Set a register if it has this value",
        errors=(RegisterChanged, NoQuorum),
        example={"expected": "worker-1", "value": "worker-2"},
    ),
    cli=Cli(
        "register compare-and-set",
        """shoal register compare-and-set leader null '"worker-1"' --data ./state""",
        shows="version",
    ),
)
class CompareAndSet(ObjectWrite["WasSet"], array_like=True, frozen=True, tag="compare-and-set"):
    """Set a register if its latest value is the expected one; a register that was never set has the value nil.

    All these requests for one register are carried out in one order, on all nodes. Durability is at least `quorum`.

    Raises RegisterChanged if it has another value.
    """

    register: str
    expected: Value
    value: Value
    by: str = ""  # The author, for the history.


class WasSet(Reply, array_like=True, frozen=True, tag="was-set"):
    """The register after a write that replaced all its values."""

    context: Cursor
    version: str


@operation(discloses=True, not_of_key=("fence", "token", "opens"))
class Swap(ObjectWrite["Swapped"], array_like=True, frozen=True, tag="swap-register"):
    """Carry out a `CompareAndSet` under a lease: nodes do this.

    If `settles`, a value is written in any case: the one that is there, under this number. With `made` the value is the
    expected one if the swap of that number set it.
    """

    register: str
    expected: Value
    value: Value
    fence: Natural
    token: str
    settles: bool = False
    made: int = 0
    by: str = ""
    opens: bool = False  # The first one under its term: one of the same number that is known is of another register's history.


class Swapped(Reply, array_like=True, frozen=True, tag="swapped"):
    """Whether the value was the expected one, the number under which that was decided, and the register after it."""

    swapped: bool
    fence: int
    value: Value
    context: Cursor
    version: str


@operation(
    multi_read=True,
    http=Http("GET", "/registers/{register}", "A register and its siblings", ops=("register",)),
    cli=Cli("register get", "shoal register get goal --data ./state", shows="value"),
)
class ReadRegister(ObjectRead["Siblings"], array_like=True, frozen=True, tag="read-register"):
    """Read a register. If it was never set, it has no siblings."""

    register: str


class Sibling(Struct, array_like=True, frozen=True):
    """One of the values that were assigned concurrently."""

    value: Value
    wall_ms: int


class Siblings(Reply, array_like=True, frozen=True, tag="siblings"):
    """The values of a register."""

    siblings: list[Sibling]  # Greatest HLC first: the first is the `latest`.
    context: Cursor
    version: str = ""  # It changes with the values; empty if there is none.

    @property
    def value(self) -> Value:
        """The value of the first sibling; nil if it was never assigned."""
        return self.siblings[0].value if self.siblings else b"\xc0"


@operation(
    http=Http("GET", "/registers/{register}/history", "The values that a register was set to last"),
    cli=Cli(
        "register history",
        "shoal register history goal --data ./state",
        rows="values",
        columns=("time", "by", "value", "size"),
    ),
)
class ReadRegisterHistory(ObjectRead["RegisterHistory"], array_like=True, frozen=True, tag="read-register-history"):
    """Read the values that a register was set to last, at most 16, also those that were replaced."""

    register: str


class NotedValue(Struct, array_like=True, frozen=True):
    """A value in the history of a register. One above 4096 bytes is not kept: it is nil, and `is_kept` is false."""

    value: Value
    is_kept: bool  # Whether `value` is there; a large one is not kept.
    size: int  # The bytes of the value.
    by: str  # The author; empty if none was named.
    time: Time  # When it was set.
    id: str  # The place of its operation in the causal order, in hex.


class RegisterHistory(Reply, array_like=True, frozen=True, tag="register-history"):
    """The last values of a register."""

    values: list[NotedValue]  # The latest first.


@deletion("register", "goal")
class DeleteRegister(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-register"):
    """Delete a register: it has no value."""

    register: str
