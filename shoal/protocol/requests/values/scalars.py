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
    """Add to a counter. `key`: of all adds with one key, one counts."""

    counter: str
    amount: Annotated[int, Named("add")]
    key: str | None = None


class Added(Reply, array_like=True, frozen=True, tag="added"):
    value: int
    added: bool


@operation(multi_read=True, http=Http("GET", "/counters/{counter}", "A counter's value", ops=("counter",)))
class ReadCounter(ObjectRead["CounterValue"], array_like=True, frozen=True, tag="read-counter"):
    """Read a counter. If it does not exist, it is 0."""

    counter: str


class CounterValue(Reply, array_like=True, frozen=True, tag="counter-value"):
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

    `context` is that of the read this is based on: values it has not seen stay as
    siblings. None supersedes all that the serving node shows. `expect`: the version
    it must have on the node that serves this.
    """

    register: str
    value: Value
    context: Cursor | None = None
    expect: str | None = None  # "": it must have no value.


class Assigned(Reply, array_like=True, frozen=True, tag="assigned"):
    siblings: int
    context: Cursor
    version: str = ""


@operation(multi_read=True)
class ReadRegister(ObjectRead["Siblings"], array_like=True, frozen=True, tag="read-register"):
    """Read a register. If it was never set, it has no siblings."""

    register: str


class Sibling(Struct, array_like=True, frozen=True):
    value: Value
    wall_ms: int


class Siblings(Reply, array_like=True, frozen=True, tag="siblings"):
    siblings: list[Sibling]  # Greatest HLC first: the first is the `latest`.
    context: Cursor
    version: str = ""  # Another one for other values; empty where there is none.
