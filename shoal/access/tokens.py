"""Tokens: JSON Web Tokens (RFC 7519) that are signed with Ed25519 (RFC 8037), and verified without asking anybody. And their
bearers: the holder of a verified token, as long as the token is valid. Secrets of leases and claims are bound to the author
whose token acquired them.

Laws:
- A token is verified by the algorithm that belongs to its key, never by the one that it names itself.
- Its size is checked before anything else. Its text is in no error, and what an error shows of it is bounded.
- A token that could not be revoked, because it has no id, is not accepted.
- The author of another issuer's token is `SUBJECT@ISSUER`: issuers do not know of each other's names.
- No clock is read: `now_s` is an argument, in seconds since 1970.
- A request of a token that has expired or is revoked is refused, however long ago its session began.
- Checking a request takes a few look-ups, no signature.
- The token's text is not kept.
- Of a secret's 16 bytes the last 8 are a hash of the first 8 and the author, so that any node can tell whose it is.
- A secret is used by its author alone, with any of its tokens, or by a holder of the right to administer there.
- A claim that is sent again with the same secret is the same claim: the secret that a client chose decides the bound one.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from shoal.access.grants import Grant, Rights, grants_of, parts, shown
from shoal.errors import Forbidden, InvalidInput, InvalidName, Unauthenticated
from shoal.names import check_name
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

ALGORITHM = "EdDSA"
ISSUER = "shoal"
"""The issuer of tokens that `shoal token create` makes."""
GRANTS = "shoal"
"""The claim with the grants."""
EARLY_S = 60.0
"""A token counts so much before it begins, because clocks differ."""
RETRY_S = 1.0
"""Until a token may be shown again that is refused for a reason which passes by itself."""
_OF_TIME = ("key", "early", "closed")  # A key of an issuer arrives, the token's time begins, revoked ones expire.
_ID_MAX = 128
_SCHEME = "https://"  # Left out of an author; that of an address of this machine, which may be plain, is not.
_HOW = "Give another one: `token=`, SHOAL_TOKEN_FILE or `shoal --token-file FILE`."
_PLAIN = re.compile(r"[A-Za-z0-9_.-]*")


class Keys(NamedTuple):
    """The keys of an issuer, by their ids."""

    issuer: str
    audience: str
    algorithms: Sequence[str]
    keys: Mapping[str, Any]


def sign(token: Token, key: Ed25519PrivateKey) -> str:
    """The text of a token."""
    claims = {
        "iss": token.issuer,
        "sub": token.author,
        "aud": token.audience,
        "jti": token.id,
        "iat": int(token.begins_s),
        "nbf": int(token.begins_s),
        "exp": int(token.ends_s),
        GRANTS: msgspec.to_builtins(token.grants),
    }
    return jwt.encode(claims, key, algorithm=ALGORITHM, headers={"kid": token.key_id})


def refused(reason: str, why: str) -> Unauthenticated:
    """The error for a token that is not accepted; `reason` is for programs."""
    soon = {"retry_after_s": RETRY_S} if reason in _OF_TIME else {}
    return Unauthenticated(f"{why}. Nothing was written. {_HOW}", reason=reason, **soon)


def verified(text: str, issuers: Mapping[str, Keys], *, now_s: float, bytes_max: int, grants_max: int) -> Token:
    """The claims of a token, if one of these issuers has signed it and it is valid now.

    Raises:
        Unauthenticated: it is not valid; `detail["reason"]` is "too-large", "malformed", "issuer", "key", "signature",
            "audience", "early", "expired" or "claims".
    """
    if len(text) > bytes_max:
        raise refused("too-large", f"the token has {len(text)} bytes, and at most {bytes_max} are accepted")
    header, said = _unverified(text)
    known = issuers.get(said["iss"]) if isinstance(said.get("iss"), str) else None
    if known is None:
        raise refused("issuer", "the token is of an issuer that this node does not know")
    key_id = header.get("kid")
    key = known.keys.get(key_id) if isinstance(key_id, str) else None
    if key is None or not isinstance(key_id, str):
        raise refused("key", "the token is signed with a key that this node does not know")
    token = _token(_claims(text, known, key), known.issuer, key_id, grants_max=grants_max)._replace(audience=known.audience)
    if now_s >= token.ends_s:
        raise refused("expired", "the token has expired")
    if now_s < token.begins_s - EARLY_S:
        raise refused("early", "the token is not valid yet; check the clocks")
    return token


def unverified(text: str, *, grants_max: int) -> Token:
    """The claims of a token, without a proof that they are true, to be shown to its holder.

    Raises:
        Unauthenticated: it is none.
    """
    header, said = _unverified(text)
    return _token(said, str(said.get("iss", "")), str(header.get("kid", "")), grants_max=grants_max)


def _unverified(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if not _PLAIN.fullmatch(text):
        raise refused("malformed", "what was given is no token")
    try:
        found = jwt.decode_complete(text, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise refused("malformed", "what was given is no token") from None
    return found["header"], found["payload"]


def _claims(text: str, known: Keys, key: Any) -> dict[str, Any]:
    options: Any = {"require": ["exp", "aud", "iss"], "verify_exp": False, "verify_nbf": False, "verify_iat": False}
    try:
        found: dict[str, Any] = jwt.decode(
            text, key, algorithms=list(known.algorithms), audience=known.audience, issuer=known.issuer, options=options
        )
    except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError) as error:
        if isinstance(error, jwt.InvalidAudienceError) or error.claim == "aud":
            raise refused("audience", f"the token is for another cluster than {known.audience!r}") from None
        raise refused("claims", f"the token lacks the claim {error.claim!r}") from None
    except (jwt.PyJWTError, ValueError, TypeError):
        raise refused("signature", "the token's signature is not valid") from None
    return found


def _token(said: dict[str, Any], issuer: str, key_id: str, *, grants_max: int) -> Token:
    begins, ends = said.get("nbf", 0), said.get("exp", -1)
    id, subject = said.get("jti"), said.get("sub")
    if not _is_time(begins) or not _is_time(ends):
        raise refused("claims", "a time of the token is not valid")
    if not isinstance(id, str) or not 0 < len(id) <= _ID_MAX:
        raise refused("claims", f"the token has no id of 1 to {_ID_MAX} characters (jti), so it could not be revoked")
    try:
        author = check_name("author", author_of(issuer, check_name("author", subject)))
        grants = grants_of(said.get(GRANTS), grants_max=grants_max)
    except (InvalidInput, InvalidName) as error:
        why = "its author is no name" if isinstance(error, InvalidName) else error.message.rstrip(".")
        raise refused("claims", f"the token is not valid: {why}") from None
    return Token(id, author, issuer, str(said.get("aud", "")), key_id, float(begins), float(ends), grants)


def author_of(issuer: str, subject: str) -> str:
    """The author that the writes of a token's holder name. No issuer's address has an `@`."""
    return subject if issuer == ISSUER else f"{subject}@{issuer.removeprefix(_SCHEME)}"


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 2**53


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
