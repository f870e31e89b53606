"""The rights that a request needs, from its declaration.

Laws:
- A request needs one right for each part of it: a batch, a multi-read and a write under leases need those of all their parts.
- A right is a space, a family and an action. The family is the kind of object: the name of the request's second field,
  unless one is declared. What is about no space has the space "".
- Nothing here decides: `shoal.access.grants` does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Literal, get_args

from shoal.protocol.requests import (
    Action,
    Batch,
    Fenced,
    ListObjects,
    ListSpaces,
    Maintenance,
    MultiRead,
    ObjectKind,
    Read,
    RenewLeases,
    Request,
    Watch,
    declaration_of,
)
from shoal.records import NamedTuple

KINDS: tuple[str, ...] = get_args(ObjectKind)
"""The families of stored objects."""
FAMILIES = (*KINDS, "lease", "presence", "quota", "cluster")
ACTIONS: tuple[Action, ...] = get_args(Action)
_AUTHOR = ("author", "by", "authors")  # Fields that name the author of a request.


class Need(NamedTuple):
    """A right that a request needs."""

    space: str
    family: str
    action: Action | Literal["reveal"]


class Rule(NamedTuple):
    """The rule that follows from the class of a request."""

    needs: Callable[[Any], Iterator[Need]]
    family: str  # If a request needs one right, in the space that it names, its family; else empty.
    action: Action
    authors: tuple[str, ...]  # Fields that name the request's author.
    hearsay: tuple[str, ...]  # Fields that name authors of what others wrote.
    names_authors: bool  # Whether it, or a part of it, may have such fields.


@cache  # As many as there are requests.
def rule_of(kind: Any) -> Rule:
    """The rule of a request's class."""
    declared = declaration_of(kind)
    action = action_of(kind)
    fields = kind.__struct_fields__
    hearsay = declared.hearsay
    authors = () if action == "read" else tuple(name for name in _AUTHOR if name in fields and name not in hearsay)
    named = bool(authors or hearsay) or kind in (Batch, Fenced)
    family = family_of(kind)
    of_one = family if kind not in _SPECIAL and family != "cluster" else ""
    return Rule(
        _SPECIAL.get(kind) or _needs_one(family, action, reveals=declared.reveals), of_one, action, authors, hearsay, named
    )


def action_of(kind: type[Request[Any]]) -> Action:
    """The action of a request: what it does to stored data."""
    declared = declaration_of(kind).action
    if declared is not None:
        return declared
    return "admin" if issubclass(kind, Maintenance) else "read" if issubclass(kind, Read) else "write"


def discloses(kind: type[Request[Any]]) -> bool:
    """Whether the answer to a request says what is stored, also if the request itself is called a write or a maintenance."""
    declared = declaration_of(kind).discloses
    return action_of(kind) == "read" if declared is None else declared


def family_of(kind: type[Request[Any]]) -> str:
    """The kind of object that a request is about; empty if it depends on its fields."""
    declared = declaration_of(kind).family
    if declared or kind in _SPECIAL:
        return declared
    return kind.__struct_fields__[1]


def needs(request: Request[Any]) -> Iterator[Need]:
    """The rights that a request needs."""
    return rule_of(type(request)).needs(request)


def parts(request: Request[Any]) -> Iterator[Request[Any]]:
    """The single requests that it is made of: itself, unless it holds others."""
    match request:
        case Batch(writes):
            for write in writes:
                yield from parts(write)
        case MultiRead(reads):
            for read in reads:
                yield from parts(read)
        case Fenced(_, write):
            yield from parts(write)
        case _:
            yield request


def _needs_one(family: str, action: Action, *, reveals: bool) -> Callable[[Any], Iterator[Need]]:
    if family == "cluster":
        needed = (Need("", family, action), Need("", family, "reveal")) if reveals else (Need("", family, action),)
        return lambda _: iter(needed)
    return lambda request: iter((Need(request.space, family, action),))


def _of_parts(request: Any) -> Iterator[Need]:
    for part in parts(request):
        yield from needs(part)


def _of_fenced(request: Fenced) -> Iterator[Need]:
    yield from _of_terms(request)
    yield from _of_parts(request)


def _of_terms(request: Fenced | RenewLeases) -> Iterator[Need]:
    for term in request.terms:
        yield Need(term.space, "thread" if term.item else "lease", "write")


def _of_listing(request: ListObjects) -> Iterator[Need]:
    yield Need(request.space, request.kind, "read")


def _of_watch(request: Watch) -> Iterator[Need]:
    """A watch of all kinds needs the right to read all of them."""
    for kind in [request.kind] if request.kind is not None else request.kinds or KINDS:
        yield Need(request.space, kind, "read")


def _of_nothing(_: ListSpaces) -> Iterator[Need]:
    """Every token may list spaces: `shoal.access.guard` leaves out those that it grants nothing in."""
    return iter(())


_SPECIAL: dict[type[Request[Any]], Callable[[Any], Iterator[Need]]] = {
    Batch: _of_parts,
    MultiRead: _of_parts,
    Fenced: _of_fenced,
    RenewLeases: _of_terms,
    ListObjects: _of_listing,
    Watch: _of_watch,
    ListSpaces: _of_nothing,
}
