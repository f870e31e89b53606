"""Secrets of leases and claims, bound to the author whose token acquired them.

Laws:
- Of a secret's 16 bytes the last 8 are a hash of the first 8 and the author, so that any node can tell whose it is.
- A secret is used by its author alone, with any of its tokens, or by a holder of the right to administer there.
- A claim that is sent again with the same secret is the same claim: the secret that a client chose decides the bound one.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import Any

from msgspec.structs import replace

from shoal.access.needs import parts
from shoal.errors import Forbidden
from shoal.protocol.requests import (
    AcquireLease,
    Batch,
    ClaimItem,
    CompleteItem,
    ExtendClaim,
    FailItem,
    Fenced,
    ReleaseLease,
    RenewLease,
    RenewLeases,
    Request,
)
from shoal.records import NamedTuple

_HALF = 8
_BEGINS = frozenset({AcquireLease, ClaimItem})
_OF_ONE = {RenewLease: "lease", ReleaseLease: "lease", ExtendClaim: "thread", CompleteItem: "thread", FailItem: "thread"}
_CONCERNED = frozenset({*_BEGINS, *_OF_ONE, RenewLeases, Fenced, Batch})


class _Held(NamedTuple):
    space: str
    family: str
    secret: str


class Holding:
    """The secrets of one author. `entropy` draws random bytes."""

    def __init__(self, author: str, *, entropy: Callable[[int], bytes]) -> None:
        self._author = author.encode()
        self._entropy = entropy

    def bound(self, request: Request[Any], administers: Callable[[str, str], bool]) -> Request[Any]:
        """The request with its secrets bound, after those that it uses were checked. `administers`: of a space and a family.

        Raises:
            Forbidden: it uses the secret of another author's lease or claim. Nothing was written.
        """
        kind: Any = type(request)
        if kind not in _CONCERNED:
            return request
        asked: Any = request
        if kind in _BEGINS:
            return replace(asked, token=self._own(asked.token or self._entropy(2 * _HALF).hex()))
        if kind is ReleaseLease and not asked.fence:  # It withdraws its own claim, which was not granted.
            return replace(asked, token=self._own(asked.token))
        for held in _held(request):
            if self._own(held.secret) != held.secret.lower() and not administers(held.space, held.family):
                raise Forbidden(
                    "this lease or claim was acquired with a token of another author. Nothing was written. Use a token of that "
                    "author, or one that grants `admin` there.",
                    space=held.space,
                    family=held.family,
                    action="admin",
                )
        return request

    def _own(self, secret: str) -> str:
        """The secret, if it is bound to this author; else the one that is made of it."""
        try:
            first, last = bytes.fromhex(secret)[:_HALF], bytes.fromhex(secret)[_HALF:]
        except ValueError:
            return secret.lower()  # The node refuses it.
        mark = blake2b(first + self._author, digest_size=_HALF).digest()
        return secret.lower() if hmac.compare_digest(mark, last) or len(last) != _HALF else (first + mark).hex()


def _held(request: Request[Any]) -> Iterator[_Held]:
    """The secrets that a request uses."""
    if isinstance(request, Fenced | RenewLeases):
        for term in request.terms:
            yield _Held(term.space, "thread" if term.item else "lease", term.token)
    for part in parts(request):
        family = _OF_ONE.get(type(part))
        if family:
            one: Any = part
            yield _Held(one.space, family, one.token)
