"""What is declared of an operation beside its request's fields and its reply.

Law: whatever differs from operation to operation is declared here, once, at the request's class; dispatch, batches,
multi-reads and codecs are derived from it. A request that declares nothing comes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from shoal.protocol.requests.base import Request

__all__ = ["Declaration", "declaration_of", "operation"]

_Kind = TypeVar("_Kind", bound=type[Request[Any]])


class Declaration(NamedTuple):
    batch: bool = False  # Whether it may be one of the writes of a batch.
    multi_read: bool = False  # Whether it may be one of several reads at one moment.


_NOTHING = Declaration()
_DECLARED: dict[type[Request[Any]], Declaration] = {}


def operation(*, batch: bool = False, multi_read: bool = False) -> Callable[[_Kind], _Kind]:
    """Declare the operation of a request's class."""

    def declare(kind: _Kind) -> _Kind:
        _DECLARED[kind] = Declaration(batch, multi_read)
        return kind

    return declare


def declaration_of(kind: type[Request[Any]], /) -> Declaration:
    return _DECLARED.get(kind, _NOTHING)
