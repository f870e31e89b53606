"""Tools as they are declared: a function, the Struct of its arguments, and what it does to what is stored.

Laws:
- A tool is declared once. Its name, its description, the JSON schema of its arguments and its annotations follow from that.
- Arguments are checked before anything is sent: a wrong one is an `InvalidInput`, and nothing was written.
- Every tool that writes takes an `idempotency_key`, unless its effect is the same however often it is called.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec
from mcp.types import Tool as Description
from mcp.types import ToolAnnotations
from msgspec import Meta, Struct

from shoal.client.connection import StoreConnection
from shoal.client.store import Space
from shoal.errors import InvalidInput
from shoal.records import NamedTuple

LIMIT_MAX = 1000
"""The most that one call lists; the node's pages have the same bound."""

Limit = Annotated[int, Meta(ge=1, le=LIMIT_MAX, description="The most to return.")]

A = TypeVar("A", bound="Arguments")
Answer = Mapping[str, Any]


class Arguments(Struct, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a tool that reads."""


class Writing(Arguments, forbid_unknown_fields=True, kw_only=True):
    """The arguments of a tool that writes."""

    idempotency_key: Annotated[
        str, Meta(description="Calls with the same key and arguments count once, also after a crash. Make one for each intent.")
    ] = ""


class Call(NamedTuple):
    """Where one call works, for whom, and under which key."""

    connection: StoreConnection
    space: Space
    author: str
    key: str | None  # None in a call that only reads.


@dataclass(frozen=True, slots=True)
class Tool:
    """A declared tool."""

    name: str
    said: str
    arguments: type[Arguments]
    run: Callable[[Call, Any], Awaitable[Answer]]
    writes: bool
    destructive: bool
    idempotent: bool

    def description(self) -> Description:
        """The tool as a client sees it."""
        return Description(
            name=self.name,
            description=self.said,
            input_schema=schema_of(self.arguments),
            annotations=ToolAnnotations(
                title=self.name.replace("_", " ").capitalize(),
                read_only_hint=not self.writes,
                destructive_hint=self.destructive,
                idempotent_hint=self.idempotent,
                open_world_hint=False,
            ),
        )

    def checked(self, given: Mapping[str, Any]) -> Arguments:
        """The arguments of a call.

        Raises:
            InvalidInput: they are not what the tool declares.
        """
        try:
            return msgspec.convert(dict(given), self.arguments)
        except msgspec.ValidationError as wrong:
            raise InvalidInput(
                f"the arguments of {self.name} are wrong: {wrong}. Nothing was written. Its input schema says what it takes."
            ) from None


def reads(run: Callable[[Call, A], Awaitable[Answer]]) -> Tool:
    """The tool of a function that only reads."""
    return _declared(run, writes=False, destructive=False, idempotent=True)


def writes(*, destructive: bool = False, idempotent: bool = False) -> Callable[[Callable[[Call, A], Awaitable[Answer]]], Tool]:
    """The tool of a function that writes. `destructive`: it can remove or replace what is there. `idempotent`: a repeated
    call changes nothing more, even without a key.
    """
    return lambda run: _declared(run, writes=True, destructive=destructive, idempotent=idempotent)


def _declared(run: Callable[[Call, A], Awaitable[Answer]], *, writes: bool, destructive: bool, idempotent: bool) -> Tool:
    said = inspect.getdoc(run)
    assert said is not None
    _, given = inspect.signature(run, eval_str=True).parameters.values()
    name: str = run.__name__
    return Tool(name, " ".join(said.split()), given.annotation, run, writes, destructive, idempotent)


def schema_of(arguments: type[Arguments]) -> dict[str, Any]:
    """The JSON schema of a Struct, with an object at its root, as MCP asks for."""
    (_,), parts = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = dict(parts.pop(arguments.__name__))
    return {**schema, "$defs": parts} if parts else schema
