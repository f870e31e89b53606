"""The gate of a node: it turns the token of a request into its bearer.

Laws:
- A signature is verified once for each token, as long as it is among the `TOKENS_KNOWN_MAX` that were used last.
- An address whose tokens were refused too often has no other one verified, and a token that was refused too often is not
  verified again, whoever presents it; tokens that are known go on.
- While the node is cut off for too long, no token counts; afterwards they do again.
- Of each author the newest token that was shown is remembered, so that its end can be told before it comes. Tokens of other
  issuers are not: they last for minutes, and clients renew them by themselves.
- A token that is revoked, or whose key is withdrawn, counts no more from then on, in sessions that it has opened too.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from weakref import WeakSet

from shoal.access import tokens
from shoal.access.bearer import TOKEN_BYTES_MAX, TOKEN_GRANTS_MAX, Bearer, Token, cut_off
from shoal.access.failures import Failures
from shoal.access.guard import ReadLog
from shoal.access.tokens import Keys
from shoal.config import Config
from shoal.errors import Unauthenticated

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
            raise tokens.refused("closed", "this node accepts no token, because more are revoked than it can hold")
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
        token = tokens.verified(text, self._issuers, now_s=now_s, bytes_max=TOKEN_BYTES_MAX, grants_max=TOKEN_GRANTS_MAX)
        if token.id in self._revoked:
            raise tokens.refused("revoked", "the token is revoked")
        bearer = Bearer(token, now_s=self._now_s, entropy=self._entropy, is_cut_off=lambda: self.is_cut_off)
        self._live.add(bearer)
        self._note(token)
        return bearer

    def _note(self, token: Token) -> None:
        before = self._newest.get(token.author)
        if token.issuer != tokens.ISSUER or (before is not None and before.ends_s >= token.ends_s):
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
