"""Terms of leases and claims: their names, tokens and holders, and the error once one has ended."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from shoal.errors import InvalidInput, InvalidValue, LeaseLost
from shoal.kinds.lease.state import table
from shoal.kinds.lease.state.table import Grant, LeaseName
from shoal.names import NAME_BYTES_MAX, check_name
from shoal.node.naming import of_hex
from shoal.protocol.requests import BeginAttempt, CompleteItem, ExtendClaim, FailItem, ObjectWrite, Swap, Term

TOKEN_BYTES = 16


UNDER_CLAIM = frozenset[type]((BeginAttempt, CompleteItem, FailItem, Swap))
"""The requests that a node accepts only under a claim: of an item, or of a register for one `compare_and_set`."""

_REGISTERS, _TIES = "\0register", "\0tie"  # No worklist has such a name.
_THE_REGISTER = "00"


def register_term(space: str, register: str, fence: int = 0, token: str = "") -> Term:
    """A claim of a register."""
    return Term(space, register, False, fence, token, _REGISTERS, _THE_REGISTER)


def tied_term(space: str, name: str, about: str) -> Term:
    """A claim of a part of an object, for writes that are tied."""
    return Term(space, name, False, 0, "", _TIES, sha256(about.encode()).hexdigest()[:24])


def term_of(write: ObjectWrite[Any] | ExtendClaim) -> Term:
    """The claim that a request in `UNDER_CLAIM`, or the renewal of one, is about."""
    if isinstance(write, Swap):
        return register_term(write.space, write.register, write.fence, write.token)
    assert isinstance(write, BeginAttempt | CompleteItem | FailItem | ExtendClaim)
    return Term(write.space, write.thread, False, write.fence, write.token, write.worklist, write.id)


def lost(name: LeaseName, fence: int, grant: Grant | None) -> LeaseLost:
    """The error for a term that has ended."""
    if grant is None or grant.fence == fence:
        why, holder = "has ended", ""
    else:
        holder = grant.claim.holder
        why = f"has ended: {repr(holder) if holder else 'another client'} holds it now (fencing number {grant.fence})"
    what = "claim of an item" if table.is_item(name) else f"lease of {described(name)}" if name.is_thread else described(name)
    return LeaseLost(
        f"your {what} (fencing number {fence}) {why}. "
        "Nothing was written. Stop, or acquire it again and load the current state.",
        fence=fence,
        holder=holder,
    )


def described(name: LeaseName) -> str:
    """A lease, for people."""
    if table.is_item(name):
        return "an item"
    return f"thread {name.name!r}" if name.is_thread else f"lease {name.name!r}"


def item_of(term: Term) -> LeaseName:
    """The lease that is this claim."""
    try:
        item = bytes.fromhex(term.item)
    except ValueError:
        raise InvalidValue(f"an item's id is hex digits; got {term.item[:80]!r}. Nothing was written.") from None
    return table.item_name(term.space, table.worklist_mark(term.lease, term.worklist), item)


def check_holder(holder: str) -> None:
    """Check the name of a holder, which may be empty."""
    if holder:
        check_name("holder", holder)
        if len(holder.encode()) > NAME_BYTES_MAX // 4:
            raise InvalidInput(f"a holder's name has at most {NAME_BYTES_MAX // 4} bytes. Nothing was written.", field="holder")


def check_token(text: str) -> bytes:
    """A token in bytes."""
    return of_hex(text, TOKEN_BYTES, "a token has")
