"""Tokens that were refused, counted by the address that presented them, and by themselves.

Laws:
- If `token_failures_max` tokens of an address were refused within `TOKEN_FAILURES_S`, no further one is verified until then.
- A token that was refused so often is not verified again until then, whichever addresses present it.
- A table holds at most `TOKEN_ADDRESSES_MAX` of them; those that failed first are forgotten first.
- The addresses of one IPv6 network of 64 bits count as one, because whoever has one of them has all.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address

from shoal.config import Config
from shoal.errors import Overloaded
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
