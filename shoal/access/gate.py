"""The gate of a node: it turns the token of a request into its bearer, and counts the tokens that were refused, by the address
that presented them, and by themselves.

Laws:
- A signature is verified once for each token, as long as it is among the `TOKENS_KNOWN_MAX` that were used last.
- An address whose tokens were refused too often has no other one verified, and a token that was refused too often is not
  verified again, whoever presents it; tokens that are known go on.
- While the node is cut off for too long, no token counts; afterwards they do again.
- Of each author the newest token that was shown is remembered, so that its end can be told before it comes. Tokens of other
  issuers are not: they last for minutes, and clients renew them by themselves.
- A token that is revoked, or whose key is withdrawn, counts no more from then on, in sessions that it has opened too.
- If `token_failures_max` tokens of an address were refused within `TOKEN_FAILURES_S`, no further one is verified until then.
- A token that was refused so often is not verified again until then, whichever addresses present it.
- A table of refused tokens holds at most `TOKEN_ADDRESSES_MAX` addresses; those that failed first are forgotten first.
- The addresses of one IPv6 network of 64 bits count as one, because whoever has one of them has all.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Mapping
from hashlib import blake2b
from ipaddress import IPv6Address, ip_address
from weakref import WeakSet

from shoal.access import tokens
from shoal.access.bearer import TOKEN_BYTES_MAX, TOKEN_GRANTS_MAX, Bearer, Token, cut_off
from shoal.access.guard import ReadLog
from shoal.access.tokens import Keys
from shoal.config import Config
from shoal.errors import Overloaded, Unauthenticated
from shoal.records import NamedTuple

TOKEN_FAILURES_S = 60.0  # The time in which `token_failures_max` counts.
TOKEN_ADDRESSES_MAX = 4096  # Addresses whose failures are counted; the oldest are forgotten first.

_NETWORK_BITS = 64


class _Counted(NamedTuple):
    began_s: float
    failed: int


class Failures:
    """The failures of one node. `token` is a digest of one; without it, only addresses count."""

    def __init__(self, config: Config) -> None:
        self._addresses = _Table(config, "tokens of this address were refused")
        self._tokens = _Table(config, "times this token was refused")

    def __len__(self) -> int:
        return len(self._addresses)

    def check(self, address: str, *, now_s: float, token: bytes = b"") -> None:
        """Check that an address may have a token verified.

        Raises:
            Overloaded: too many of its tokens were refused, or this one too often.
        """
        self._addresses.check(network_of(address), now_s)
        if token:
            self._tokens.check(token.hex(), now_s)

    def add(self, address: str, *, now_s: float, token: bytes = b"") -> None:
        """Note that a token was refused."""
        self._addresses.add(network_of(address), now_s)
        if token:
            self._tokens.add(token.hex(), now_s)


class _Table:
    """Failures by what they are counted by; `told` says for people what has failed."""

    def __init__(self, config: Config, told: str) -> None:
        self._config = config
        self._told = told
        self._counted: OrderedDict[str, _Counted] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counted)

    def check(self, whose: str, now_s: float) -> None:
        counted = self._counted.get(whose)
        if counted is None or counted.failed < self._config.token_failures_max:
            return
        left_s = counted.began_s + TOKEN_FAILURES_S - now_s
        if left_s > 0:
            raise Overloaded(
                f"{counted.failed} {self._told}. Nothing was written. Try again later, with one that is valid.",
                retry_after_s=left_s,
            )

    def add(self, whose: str, now_s: float) -> None:
        counted = self._counted.get(whose)
        if counted is None or now_s >= counted.began_s + TOKEN_FAILURES_S:
            self._counted.pop(whose, None)
            counted = _Counted(now_s, 0)
            while len(self._counted) >= TOKEN_ADDRESSES_MAX:
                self._counted.popitem(last=False)
        self._counted[whose] = counted._replace(failed=counted.failed + 1)


def network_of(address: str) -> str:
    """The network that counts as one with an address: itself, or its IPv6 network."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_NETWORK_BITS]
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(int(found) >> (128 - _NETWORK_BITS))


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
