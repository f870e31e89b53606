"""Tokens that were refused, counted by the address that presented them.

Laws:
- If `token_failures_max` tokens of an address were refused within `token_failures_s`, no further one is verified until then.
- The table holds at most `token_addresses_max` addresses; those that failed first are forgotten first.
- The addresses of one IPv6 network of 64 bits count as one, because whoever has one of them has all.
"""

from __future__ import annotations

from collections import OrderedDict
from ipaddress import IPv6Address, ip_address
from typing import NamedTuple

from shoal.config import Config
from shoal.errors import Overloaded

_NETWORK_BITS = 64


class _Counted(NamedTuple):
    began_s: float
    failed: int


class Failures:
    """The failures of one node."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._counted: OrderedDict[str, _Counted] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counted)

    def check(self, address: str, *, now_s: float) -> None:
        """Check that an address may have a token verified.

        Raises:
            Overloaded: too many of its tokens were refused.
        """
        counted = self._counted.get(network_of(address))
        if counted is None or counted.failed < self._config.token_failures_max:
            return
        left_s = counted.began_s + self._config.token_failures_s - now_s
        if left_s > 0:
            raise Overloaded(
                f"{counted.failed} tokens of this address were refused. Nothing was written. Try again later, with one that is "
                "valid.",
                retry_after_s=left_s,
            )

    def add(self, address: str, *, now_s: float) -> None:
        """Note that a token was refused."""
        network = network_of(address)
        counted = self._counted.get(network)
        if counted is None or now_s >= counted.began_s + self._config.token_failures_s:
            self._counted.pop(network, None)
            counted = _Counted(now_s, 0)
            while len(self._counted) >= self._config.token_addresses_max:
                self._counted.popitem(last=False)
        self._counted[network] = counted._replace(failed=counted.failed + 1)


def network_of(address: str) -> str:
    """What counts as one with an address: itself, or its IPv6 network."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address[:_NETWORK_BITS]
    if not isinstance(found, IPv6Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(int(found) >> (128 - _NETWORK_BITS))
