"""What is declared of an operation beside its request's fields and its reply.

Law: a difference between operations that is not in their fields is declared once, at the request's class. Unions for decoders,
batches, multi-reads, HTTP routes and plain commands, with their descriptions, are derived from the declarations. The base
class of a request says which table of a node serves it (`shoal.node.handler`); tests compare the tables with the declarations.
A request that declares nothing comes alone, and has no derived route and no derived command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from shoal.errors import ShoalError
from shoal.protocol.requests.base import Request

__all__ = ["Cli", "Declaration", "Http", "declaration_of", "declared", "operation"]

_Kind = TypeVar("_Kind", bound=type[Request[Any]])


class Http(NamedTuple):
    """The place of an operation in the HTTP API. What the path names are fields of the request; all others are its body's,
    or of a GET its query's.
    """

    method: str
    path: str  # Below the space.
    summary: str
    ops: tuple[str, ...] = ()  # Its names among the writes of a batch, or the reads of a multi-read.
    created: str = ""  # A field of the reply: if it is true, the status is 201.
    errors: tuple[type[ShoalError], ...] = ()  # Besides those of all writes or reads.
    example: Any = None  # A body.


class Cli(NamedTuple):
    """A plain command of an operation. It names the object, makes one request, and prints one field of the reply."""

    command: str  # The group, and the command in it: "budget grant".
    help: str
    example: str  # In the help, without the option that says which store.
    shows: str  # A field of the reply.
    arguments: tuple[str, ...] = ()  # Fields of the request that are arguments, after the object's name.
    options: tuple[str, ...] = ()  # And those that are options. All other fields have their defaults.
    defaults: Mapping[str, Any] = {}  # Of arguments that may be omitted.


class Declaration(NamedTuple):
    batch: bool = False  # Whether it may be one of the writes of a batch.
    multi_read: bool = False  # Whether it may be one of several reads at one moment.
    durable: bool = False  # Whether it is answered once it is on disk, even if durability `memory` was asked for.
    not_of_key: tuple[str, ...] = ()  # Fields that may differ when a request comes again with its idempotency key.
    http: Http | None = None
    cli: tuple[Cli, ...] = ()


_NOTHING = Declaration()
_DECLARED: dict[type[Request[Any]], Declaration] = {}


def operation(
    *,
    batch: bool = False,
    multi_read: bool = False,
    durable: bool = False,
    not_of_key: tuple[str, ...] = (),
    http: Http | None = None,
    cli: Sequence[Cli] = (),
) -> Callable[[_Kind], _Kind]:
    """Declare the operation of a request's class."""

    def declare(kind: _Kind) -> _Kind:
        _DECLARED[kind] = Declaration(batch, multi_read, durable, not_of_key, http, tuple(cli))
        return kind

    return declare


def declared() -> Mapping[type[Request[Any]], Declaration]:
    """All that was declared, in the order in which it is written in each family."""
    return _DECLARED


def declaration_of(kind: type[Request[Any]], /) -> Declaration:
    return _DECLARED.get(kind, _NOTHING)
