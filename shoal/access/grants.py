"""The rights that a token grants, and to whom.

Laws:
- All that is not granted is forbidden.
- `write` includes `append`; `admin` includes `write`, `append` and `read`. `impersonate` is the right to name another author,
  and `reveal` that to see secret parts of what one may read; nothing else includes these two.
- A pattern matches whole names of spaces, as in a shell: `*`, `?`, `[…]`. What is about no space is granted by `*` alone.
- The space `RESERVED` holds what nodes decide by: it takes `admin` for everything.

The rights that a request needs, from its declaration.

Laws:
- A request needs one right for each part of it: a batch, a multi-read and a write under leases need those of all their parts.
- An import needs `admin` for each part of it.
- A put of a file needs `read`, too, unless it brings all of its chunks: its answer says which the thread has.
- A right is a space, a family and an action. The family is the kind of object: the name of the request's second field,
  unless one is declared. What is about no space has the space "".
- Nothing here decides: `shoal.access.grants` does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sized
from fnmatch import translate
from functools import cache
from typing import Annotated, Any, Literal, get_args

from msgspec import Meta, Struct, convert, field, structs
from msgspec import ValidationError as Invalid

from shoal.errors import Forbidden, InvalidInput
from shoal.names import NAME_BYTES_MAX, RESERVED
from shoal.protocol.requests import (
    Action,
    Assign,
    Batch,
    CompareAndSet,
    Fenced,
    Import,
    ListObjects,
    ListSpaces,
    ListWork,
    Maintenance,
    MultiRead,
    NameFile,
    ObjectKind,
    PutFile,
    Read,
    RenewLeases,
    Request,
    Watch,
    carries_all,
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
    named = bool(authors or hearsay) or kind in (Batch, Fenced, Import)
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
        case Import(writes):
            for each in writes:
                yield from parts(each.write)
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


def _of_import(request: Import) -> Iterator[Need]:
    """It says when something was written, which the node cannot know: that takes the right to administer."""
    for need in _of_parts(request):
        yield need._replace(action="admin")


def _of_terms(request: Fenced | RenewLeases) -> Iterator[Need]:
    for term in request.terms:
        yield Need(term.space, "thread" if term.item else "lease", "write")


def _of_listing(request: ListObjects) -> Iterator[Need]:
    yield Need(request.space, request.kind, "read")


def _of_work(request: ListWork) -> Iterator[Need]:
    """The leases of a space are told with its queues."""
    yield Need(request.space, "thread", "read")
    yield Need(request.space, "lease", "read")


def _of_watch(request: Watch) -> Iterator[Need]:
    """A watch of all kinds needs the right to read all of them."""
    for kind in [request.kind] if request.kind is not None else request.kinds or KINDS:
        yield Need(request.space, kind, "read")


def _of_file(request: PutFile | NameFile) -> Iterator[Need]:
    """A put that does not bring each of its chunks says which ones the thread has."""
    yield Need(request.space, "thread", "write")
    if not carries_all(request):
        yield Need(request.space, "thread", "read")


def _of_nothing(_: ListSpaces) -> Iterator[Need]:
    """Every token may list spaces: `shoal.access.guard` leaves out those that it grants nothing in."""
    return iter(())


_SIGNED = (Assign, CompareAndSet)
"""Writes that get the token's author if they name none: of a register people ask who set it."""

_SPECIAL: dict[type[Request[Any]], Callable[[Any], Iterator[Need]]] = {
    Batch: _of_parts,
    MultiRead: _of_parts,
    Fenced: _of_fenced,
    Import: _of_import,
    RenewLeases: _of_terms,
    ListObjects: _of_listing,
    ListWork: _of_work,
    Watch: _of_watch,
    ListSpaces: _of_nothing,
    PutFile: _of_file,
    NameFile: _of_file,
}


REVOKED = "revoked"
"""The map of the space `RESERVED` with the revocations: for each id of a token, when it expires, in seconds since 1970."""
RIGHTS = (*ACTIONS, "impersonate", "reveal")
_INCLUDES = {"write": ("append",), "admin": ("read", "append", "write")}
_DECISIONS_MAX = 4096  # Remembered for one token; each takes some hundred bytes.
_SHOWN = 80


class Grant(Struct, frozen=True, forbid_unknown_fields=True):
    """Actions on families of objects in the spaces that a pattern matches."""

    space: Annotated[str, Meta(min_length=1, max_length=NAME_BYTES_MAX)]
    actions: Annotated[
        list[Literal["read", "append", "write", "admin", "impersonate", "reveal"]],
        Meta(min_length=1, max_length=8),
    ]
    families: Annotated[list[str], Meta(min_length=1, max_length=16)] = field(default_factory=lambda: ["*"])


def grants_of(claim: Any, /, *, grants_max: int) -> list[Grant]:
    """The grants in a token's claim: each an object, or a text as `parsed` takes it.

    Raises:
        InvalidInput: it is none, or there are too many.
    """
    if isinstance(claim, list):
        check_count(claim, grants_max)
        claim = [parsed(each) if isinstance(each, str) else each for each in claim]
    try:
        found = convert(claim, list[Grant])
    except Invalid as reason:
        raise InvalidInput(f"the grants are not valid: {reason}.") from None
    unknown = {family for grant in found for family in grant.families} - {*FAMILIES, "*"}
    if unknown:
        raise InvalidInput(f"there is no family {min(unknown)[:_SHOWN]!r}; there are {', '.join(FAMILIES)}, and * for all.")
    check_count(found, grants_max)
    return found


def check_count(found: Sized, grants_max: int) -> None:
    """Check the number of grants.

    Raises:
        InvalidInput: there are too many.
    """
    if len(found) > grants_max:
        raise InvalidInput(f"a token has at most {grants_max} grants; this one has {len(found)}. Nothing was written.")


def parsed(text: str) -> Grant:
    """The grant in "SPACE:ACTIONS" or "SPACE:FAMILIES:ACTIONS", as in `crew-*:thread,items:read,append`.

    Raises:
        InvalidInput: it is none.
    """
    where, _, last = text.rpartition(":")
    space, _, middle = where.rpartition(":")
    actions, families = _listed(last), _listed(middle)
    if not (space and set(families) <= {*FAMILIES, "*"}):
        space, families = where, ["*"]
    if not space or not set(actions) <= set(RIGHTS):
        raise InvalidInput(
            f"{text[:_SHOWN]!r} is no grant. Write SPACE:ACTIONS or SPACE:FAMILIES:ACTIONS, as in 'crew-*:thread:read,append'. "
            f"Actions are {', '.join(RIGHTS)}; families are {', '.join(FAMILIES)}."
        )
    return grants_of([{"space": space, "families": families, "actions": actions}], grants_max=1)[0]


def shown(grant: Grant) -> str:
    """A grant as `parsed` takes it."""
    return f"{grant.space}:{','.join(grant.families)}:{','.join(grant.actions)}"


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",")]


class Rights:
    """The rights of the holder of a token. `author` is the name that its writes may carry."""

    def __init__(self, author: str, grants: Iterable[Grant]) -> None:
        self.author = author
        self._grants = [
            (re.compile(translate(grant.space)), frozenset(grant.families), _actions(grant.actions)) for grant in grants
        ]
        self._decisions: dict[tuple[str, str, str], bool] = {}

    def allow(self, space: str, family: str, action: str) -> bool:
        """Whether an action is granted."""
        if len(space) > NAME_BYTES_MAX:
            return False  # There is no such space, and names of any length are not to be remembered.
        asked = (space, family, action)
        decision = self._decisions.get(asked)
        if decision is None:
            if len(self._decisions) >= _DECISIONS_MAX:
                self._decisions.clear()
            decision = self._decisions[asked] = self._decide(space, family, "admin" if space == RESERVED else action)
        return decision

    def see(self, space: str) -> bool:
        """Whether anything is granted in a space."""
        if space == RESERVED:
            return self.allow(space, "map", "admin")
        return any(pattern.match(space) for pattern, _, _ in self._grants)

    def _decide(self, space: str, family: str, action: str) -> bool:
        return any(
            action in actions and ("*" in families or family in families) and pattern.match(space)
            for pattern, families, actions in self._grants
        )

    def check(self, request: Request[Any]) -> Request[Any]:
        """Check a request; what it says of other authors than its own is left out, and a register's set has its own.

        Raises:
            Forbidden: a right is missing. Nothing was written.
        """
        rule = _rule(request)
        # Of nearly all requests a look-up is enough.
        if not (rule.family and self._decisions.get((request.space, rule.family, rule.action))):  # type: ignore[attr-defined]
            for need in rule.needs(request):
                if not self.allow(*need):
                    raise _missing(need)
        return self._bound(request) if rule.names_authors else request

    def _bound(self, request: Any) -> Any:
        """The request, if the author that it names is this one, or if it may name others."""
        if type(request) is Batch:
            return structs.replace(request, writes=[self._bound(write) for write in request.writes])
        if type(request) is Import:
            return structs.replace(
                request, writes=[structs.replace(each, write=self._bound(each.write)) for each in request.writes]
            )
        if type(request) is Fenced:
            return structs.replace(request, write=self._bound(request.write))
        rule = _rule(request)
        for name in rule.authors:
            self._check_author(request, getattr(request, name))
        if type(request) in _SIGNED and not request.by:
            return structs.replace(request, by=self.author)
        for name in rule.hearsay:
            said = getattr(request, name)
            left: Any = said if said in ("", self.author) else ""
            if isinstance(said, dict):
                self._check_author(request, next(iter(said.values()), ""))  # The sender comes first.
                left = {client: author for client, author in said.items() if author in ("", self.author)}
            if left != said and not self._impersonates(request):
                request = structs.replace(request, **{name: left})
        return request

    def _check_author(self, request: Request[Any], author: str) -> None:
        if author in ("", self.author) or self._impersonates(request):
            return
        need = next(needs(request))
        raise Forbidden(
            f"this token's writes are by {self.author!r}, not by {author[:_SHOWN]!r}. Nothing was written. Leave the author "
            "out, or use a token that grants `impersonate` here.",
            space=need.space[:_SHOWN],
            family=need.family,
            action="impersonate",
        )

    def _impersonates(self, request: Request[Any]) -> bool:
        return all(self.allow(need.space, need.family, "impersonate") for need in needs(request))


def _rule(request: Any) -> Rule:
    kind: Any = type(request)
    return rule_of(kind)


def _actions(named: Iterable[str]) -> frozenset[str]:
    return frozenset(each for name in named for each in (name, *_INCLUDES.get(name, ())))


def _missing(need: Need) -> Forbidden:
    action = "admin" if need.space == RESERVED else need.action
    what = f"{need.family} in the space {need.space[:_SHOWN]!r}" if need.space else "the cluster (its state or its members)"
    return Forbidden(
        f"this token does not grant `{action}` of {what}. Nothing was written. Use another token, or have one made that "
        "grants it (`shoal token create`).",
        space=need.space[:_SHOWN],
        family=need.family,
        action=action,
    )
