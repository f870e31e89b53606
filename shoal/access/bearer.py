"""The holder of a verified token, for as long as the token is valid; and the claims of a token, once it is verified.

Laws:
- A request of a token that has expired or is revoked is refused, however long ago its session began.
- Checking a request takes a few look-ups, no signature.
- The token's text is not kept.

Secrets of leases and claims, bound to the author whose token acquired them.

Laws:
- Of a secret's 16 bytes the last 8 are a hash of the first 8 and the author, so that any node can tell whose it is.
- A secret is used by its author alone, with any of its tokens, or by a holder of the right to administer there.
- A claim that is sent again with the same secret is the same claim: the secret that a client chose decides the bound one.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

from msgspec.structs import replace

from shoal.access.grants import Grant, Rights, parts, shown
from shoal.errors import Forbidden, Unauthenticated
from shoal.protocol.requests import (
    AcquireLease,
    Batch,
    ClaimItem,
    CompleteItem,
    ExtendClaim,
    FailItem,
    Fenced,
    Import,
    ReleaseLease,
    RenewLease,
    RenewLeases,
    Request,
)
from shoal.records import NamedTuple

TOKEN_BYTES_MAX = 3584  # One token; browsers keep no cookie of more than 4096 bytes.
TOKEN_GRANTS_MAX = 64  # Grants of one token.


class Token(NamedTuple):
    """A token's content. Times are in seconds since 1970."""

    id: str  # By which it is revoked.
    author: str  # The name that the writes of its holder carry.
    issuer: str
    audience: str  # The name of the cluster that it is for.
    key_id: str  # Of the key that signed it.
    begins_s: float
    ends_s: float
    grants: list[Grant]

    def told(self) -> dict[str, Any]:
        """The content, for people and programs."""
        return {
            "id": self.id,
            "author": self.author,
            "issuer": self.issuer,
            "cluster": self.audience,
            "key": self.key_id,
            "begins": int(self.begins_s),
            "ends": int(self.ends_s),
            "grants": [shown(grant) for grant in self.grants],
        }


_HALF = 8
_BEGINS = frozenset({AcquireLease, ClaimItem})
_OF_ONE = {RenewLease: "lease", ReleaseLease: "lease", ExtendClaim: "thread", CompleteItem: "thread", FailItem: "thread"}
_CONCERNED = frozenset({*_BEGINS, *_OF_ONE, RenewLeases, Fenced, Batch, Import})


class _Held(NamedTuple):
    space: str
    family: str
    secret: str


class AuthorSecrets:
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


_DELAY_S_MAX = 24 * 3600.0  # Event loops take no timers of years.
_USE_A_NEW_TOKEN = "Nothing was written. Use a new token."


class Bearer:
    """One verified token. `now_s` is the node's clock, in seconds since 1970; `entropy` draws random bytes.

    `is_cut_off` says whether the node may have missed revocations for too long to accept any token.
    """

    def __init__(
        self,
        token: Token,
        *,
        now_s: Callable[[], float],
        entropy: Callable[[int], bytes],
        is_cut_off: Callable[[], bool] = lambda: False,
    ) -> None:
        self.token = token
        self._holding = AuthorSecrets(token.author, entropy=entropy)
        self._is_cut_off = is_cut_off
        self._ends_s = token.ends_s
        self._now_s = now_s
        self._rights = Rights(token.author, token.grants)
        self._over = ""  # Why it counts no more, although it has not expired.
        self._watching: dict[object, Callable[[str], None]] = {}

    def check(self, request: Request[Any]) -> Request[Any]:
        """Check a request, and return it with what it may say.

        Raises:
            Unauthenticated: the token has expired, or is revoked. Nothing was written.
            Forbidden: it does not grant a right that the request needs, or the request uses the lease of another author.
                Nothing was written.
        """
        self.check_valid()
        return self._holding.bound(self._rights.check(request), self._administers)

    def _administers(self, space: str, family: str) -> bool:
        return self._rights.allow(space, family, "admin")

    def allows(self, request: Request[Any]) -> bool:
        """Whether it may make a request."""
        try:
            self.check(request)
        except (Unauthenticated, Forbidden):
            return False
        return True

    def check_valid(self) -> None:
        """Check that the token counts still.

        Raises:
            Unauthenticated: it has expired, or is revoked; or the node is cut off for too long to know.
        """
        if self._is_cut_off():
            raise cut_off()
        if self._over or self._now_s() >= self._ends_s:
            reason = self._over or "expired"
            raise Unauthenticated(f"the token {_TOLD[reason]}. {_USE_A_NEW_TOKEN}", reason=reason)

    @property
    def lasts_s(self) -> float:
        """How long it counts from now on, unless it is revoked."""
        return max(0.0, self._ends_s - self._now_s())

    def see(self, space: str) -> bool:
        """Whether anything is granted in a space."""
        return self._rights.see(space)

    def reveals(self, space: str, family: str) -> bool:
        """Whether secret parts of what it may read are shown to it."""
        return self._rights.allow(space, family, "reveal")

    def reads(self, space: str, family: str) -> bool:
        """Whether it may read objects of a family."""
        return self._rights.allow(space, family, "read")

    def end(self, reason: str) -> None:
        """Let the token count no more: it is "revoked", or its key is "withdrawn"."""
        self._over = reason
        for tell in list(self._watching.values()):
            tell(f"the token {_TOLD[reason]}")

    @contextmanager
    def watched(self, tell: Callable[[str], None]) -> Iterator[None]:
        """A context in which `tell` is called, with the reason, once the token counts no more."""
        loop, mark = asyncio.get_running_loop(), object()
        timer: asyncio.TimerHandle | None = None

        def look() -> None:
            nonlocal timer
            left_s = self._ends_s - self._now_s()
            if left_s <= 0:
                tell(f"the token {_TOLD['expired']}")
            else:
                timer = loop.call_later(min(left_s, _DELAY_S_MAX), look)

        self._watching[mark] = tell
        look()
        try:
            yield
        finally:
            del self._watching[mark]
            if timer is not None:
                timer.cancel()


def cut_off() -> Unauthenticated:
    """The error of a node that is cut off for too long."""
    return Unauthenticated(
        "this node has been cut off from the others for longer than `revocations_age_s_max`, and cannot know which tokens are "
        "revoked. Nothing was written. Ask another node, or try again once it is linked.",
        reason="cut-off",
        retry_after_s=1.0,
    )


_TOLD = {"expired": "has expired", "revoked": "is revoked", "withdrawn": "is signed with a key that was withdrawn"}
