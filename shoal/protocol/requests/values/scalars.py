"""Counters and registers."""

from __future__ import annotations

from typing import Annotated

from msgspec import Struct

from shoal.errors import RegisterChanged, TooManySiblings
from shoal.protocol.fields import Cursor, Named, Value
from shoal.protocol.requests.base import ObjectRead, ObjectWrite, Reply
from shoal.protocol.requests.declared import Cli, Http, operation

__all__ = ["Add", "Added", "Assign", "Assigned", "CounterValue", "ReadCounter", "ReadRegister", "Sibling", "Siblings"]


@operation(
    batch=True,
    http=Http("POST", "/counters/{counter}", "Add to a counter", ops=("add",), example={"add": 250, "key": "call-17"}),
    cli=[
        Cli(
            "counter add",
            "Add to a counter, and print its value.",
            "shoal counter add tokens 512 --data ./state",
            shows="value",
            arguments=("amount",),
            options=("key",),
            defaults={"amount": 1},
        )
    ],
)
class Add(ObjectWrite["Added"], array_like=True, frozen=True, tag="add"):
    """Add to a counter. Of all adds with one `key`, one counts."""

    counter: str
    amount: Annotated[int, Named("add")]
    key: str | None = None


class Added(Reply, array_like=True, frozen=True, tag="added"):
    """The counter's value, and whether the amount was added."""

    value: int
    added: bool


@operation(multi_read=True, http=Http("GET", "/counters/{counter}", "A counter's value", ops=("counter",)))
class ReadCounter(ObjectRead["CounterValue"], array_like=True, frozen=True, tag="read-counter"):
    """Read a counter. If it does not exist, it is 0."""

    counter: str


class CounterValue(Reply, array_like=True, frozen=True, tag="counter-value"):
    """A counter's value."""

    value: int


@operation(
    batch=True,
    http=Http(
        "PUT",
        "/registers/{register}",
        "Set a register",
        ops=("set", "assign"),
        errors=(RegisterChanged, TooManySiblings),
        example={"value": {"goal": "survey the library"}},
    ),
    cli=[
        Cli(
            "register set",
            "Set a register, and print its version.",
            """shoal register set goal '{"reach": "Mars"}' --data ./state""",
            shows="version",
            arguments=("value",),
            options=("expect",),
        )
    ],
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


class Assigned(Reply, array_like=True, frozen=True, tag="assigned"):
    """The register after a write."""

    siblings: int
    context: Cursor
    version: str = ""


@operation(multi_read=True)
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
