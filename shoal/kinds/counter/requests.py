"""Counters, to which every node adds."""

from __future__ import annotations

from typing import Annotated

from shoal.protocol.base import Cli, Deleted, Http, Named, ObjectRead, ObjectWrite, Reply, deletion, operation

__all__ = ["Add", "Added", "CounterValue", "DeleteCounter", "ReadCounter"]


@operation(
    discloses=True,
    action="append",
    batch=True,
    http=Http("POST", "/counters/{counter}", "Add to a counter", ops=("add",), example={"add": 250, "key": "call-17"}),
    cli=Cli("counter add", "shoal counter add tokens 512 --data ./state", shows="value", defaults={"amount": 1}),
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


@operation(
    multi_read=True,
    http=Http("GET", "/counters/{counter}", "A counter's value", ops=("counter",)),
    cli=Cli("counter get", "shoal counter get tokens --data ./state", shows="value"),
)
class ReadCounter(ObjectRead["CounterValue"], array_like=True, frozen=True, tag="read-counter"):
    """Read a counter. If it does not exist, it is 0."""

    counter: str


class CounterValue(Reply, array_like=True, frozen=True, tag="counter-value"):
    """A counter's value."""

    value: int


@deletion("counter", "tokens")
class DeleteCounter(ObjectWrite[Deleted], array_like=True, frozen=True, tag="delete-counter"):
    """Delete a counter: it is 0, and the keys of its adds are forgotten."""

    counter: str
