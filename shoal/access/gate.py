"""The gate of a node: it turns the token of a request into its bearer; and the tokens themselves.

Laws:
- A signature is verified once for each token, as long as it is among the `TOKENS_KNOWN_MAX` that were used last.
- An address whose tokens were refused too often has no other one verified, and a token that was refused too often is not
  verified again, whoever presents it; tokens that are known go on.
- While the node is cut off for too long, no token counts; afterwards they do again.
- Of each author the newest token that was shown is remembered, so that its end can be told before it comes. Tokens of other
  issuers are not: they last for minutes, and clients renew them by themselves.
- A token that is revoked, or whose key is withdrawn, counts no more from then on, in sessions that it has opened too.

Tokens: JSON Web Tokens (RFC 7519) that are signed with Ed25519 (RFC 8037), and verified without asking anybody.

Laws:
- A token is verified by the algorithm that belongs to its key, never by the one that it names itself.
- Its size is checked before anything else. Its text is in no error, and what an error shows of it is bounded.
- A token that could not be revoked, because it has no id, is not accepted.
- The author of another issuer's token is `SUBJECT@ISSUER`: issuers do not know of each other's names.
- No clock is read: `now_s` is an argument, in seconds since 1970.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from hashlib import blake2b
from typing import Any
from weakref import WeakSet

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from shoal.access.bearer import TOKEN_BYTES_MAX, TOKEN_GRANTS_MAX, Bearer, Token, cut_off
from shoal.access.failures import Failures
from shoal.access.grants import grants_of
from shoal.access.guard import ReadLog
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidName, Unauthenticated
from shoal.names import check_name
from shoal.records import NamedTuple

TOKENS_KNOWN_MAX = 4096  # Tokens whose signatures need not be verified again.

_MISSING = (
    "this node asks for a token, and none was given. Nothing was written. Give one: `token=`, SHOAL_TOKEN_FILE or "
    "`shoal --token-file FILE`; over HTTP the header `Authorization: Bearer …`."
)

ENDS_SOON_S_MAX = 14 * 24 * 3600.0
"""A token ends soon if less than this is left, and less than a quarter of its time: clients replace theirs at half of it."""

_OF_TIME = ("key", "early")
"""Reasons that may be gone soon: a key of an issuer arrives, or the token's time begins."""


class Gate:
    """The tokens that a node accepts. `issuers` are the keys that it trusts, by issuer."""

    def __init__(
        self,
        issuers: Mapping[str, Keys],
        *,
        config: Config,
        now_s: Callable[[], float],
        entropy: Callable[[int], bytes],
    ) -> None:
        self._issuers = dict(issuers)
        self._now_s = now_s
        self._entropy = entropy
        self._failures = Failures(config)
        self._known: OrderedDict[bytes, Bearer] = OrderedDict()  # By the token's digest.
        self._newest: OrderedDict[str, Token] = OrderedDict()  # By author; as many as `_known`.
        self.refusals: Counter[str] = Counter()
        """Tokens that were not accepted, by reason."""
        self._live: WeakSet[Bearer] = WeakSet()
        self._revoked: frozenset[str] = frozenset()
        self._closed = False
        self.is_cut_off = False
        """Whether this node may have missed revocations for so long that it accepts no token for now."""
        self.reads: ReadLog | None = None
        """The log of the reads of bearers; None if reads are not logged."""
        self.unknown = asyncio.Event()
        """Set when a token names a key of an issuer that is not known: the issuer may have a new one."""

    def bearer(self, token: str | None, *, address: str) -> Bearer:
        """The bearer of a token that `address` presents.

        Raises:
            Unauthenticated: there is none, or it is not accepted.
            Overloaded: too many tokens of this address were refused, or this one too often.
        """
        try:
            return self._bearer(token, address=address)
        except Unauthenticated as refusal:
            self.refusals[str(refusal.detail.get("reason"))] += 1
            raise

    def _bearer(self, token: str | None, *, address: str) -> Bearer:
        if token is None:
            raise Unauthenticated(_MISSING, reason="missing")
        if self._closed:
            raise refused("closed", "this node accepts no token, because more are revoked than it can hold")
        if self.is_cut_off:
            raise cut_off()
        now_s = self._now_s()
        # One that is too long is not hashed, and is refused below.
        is_bounded = len(token) <= TOKEN_BYTES_MAX
        digest = blake2b(token.encode(errors="replace"), digest_size=32).digest() if is_bounded else b""
        known = self._known.get(digest)
        if known is not None:
            self._known.move_to_end(digest)
            known.check_valid()
            return known
        self._failures.check(address, now_s=now_s, token=digest)
        try:
            bearer = self._verified(token, now_s=now_s)
        except Unauthenticated as refusal:
            if refusal.detail.get("reason") == "key":
                self.unknown.set()
            is_final = refusal.detail.get("reason") not in _OF_TIME
            self._failures.add(address, now_s=now_s, token=digest if is_final else b"")
            raise
        self._known[digest] = bearer
        while len(self._known) > TOKENS_KNOWN_MAX:
            self._known.popitem(last=False)
        return bearer

    def _verified(self, text: str, *, now_s: float) -> Bearer:
        token = verified(text, self._issuers, now_s=now_s, bytes_max=TOKEN_BYTES_MAX, grants_max=TOKEN_GRANTS_MAX)
        if token.id in self._revoked:
            raise refused("revoked", "the token is revoked")
        bearer = Bearer(token, now_s=self._now_s, entropy=self._entropy, is_cut_off=lambda: self.is_cut_off)
        self._live.add(bearer)
        self._note(token)
        return bearer

    def _note(self, token: Token) -> None:
        before = self._newest.get(token.author)
        if token.issuer != ISSUER or (before is not None and before.ends_s >= token.ends_s):
            return
        self._newest[token.author] = token
        while len(self._newest) > TOKENS_KNOWN_MAX:
            self._newest.popitem(last=False)

    def ends(self) -> list[Token]:
        """Of each author the newest token that was shown here and counts still, the first to end first."""
        now_s = self._now_s()
        held = [token for token in self._newest.values() if token.ends_s > now_s and token.id not in self._revoked]
        return sorted(held, key=lambda token: token.ends_s)

    def ending(self) -> list[Token]:
        """Those of them that end soon, see `ENDS_SOON_S_MAX`."""
        now_s = self._now_s()
        return [
            token for token in self.ends() if token.ends_s - now_s < min(ENDS_SOON_S_MAX, (token.ends_s - token.begins_s) / 4)
        ]

    def trust(self, keys: Keys) -> None:
        """Trust these keys of an issuer, and no others of it from now on."""
        self._issuers[keys.issuer] = keys
        for bearer in list(self._live):
            if bearer.token.issuer == keys.issuer and bearer.token.key_id not in keys.keys:
                self._end(bearer, "withdrawn")

    def revoke(self, ids: Collection[str]) -> None:
        """Let exactly these tokens be revoked, by their ids."""
        self._revoked, self._closed = frozenset(ids), False
        for bearer in list(self._live):
            if bearer.token.id in self._revoked:
                self._end(bearer, "revoked")

    def close(self) -> None:
        """Accept no token any more."""
        self._closed = True
        for bearer in list(self._live):
            self._end(bearer, "revoked")

    def _end(self, bearer: Bearer, reason: str) -> None:
        bearer.end(reason)
        for digest in [digest for digest, known in self._known.items() if known is bearer]:
            del self._known[digest]


ALGORITHM = "EdDSA"
ISSUER = "shoal"
"""The issuer of tokens that `shoal token create` makes."""
GRANTS = "shoal"
"""The claim with the grants."""
EARLY_S = 60.0
"""A token counts so much before it begins, because clocks differ."""
RETRY_S = 1.0
"""Until a token may be shown again that is refused for a reason which passes by itself."""
_RETRIED = ("key", "early", "closed")  # A key of an issuer arrives, the token's time begins, revoked ones expire.
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
    soon = {"retry_after_s": RETRY_S} if reason in _RETRIED else {}
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
