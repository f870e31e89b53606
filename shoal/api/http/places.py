"""The places of a node's connections: who may open one more.

Laws:
- No address takes all places: one has a share, and the last `connections_kept` are for addresses that have few. So what one
  machine opens, however many and however slow, keeps no peer, no probe and no operator out.
- An address of IPv6 is its /64, because that is what one host gets.
"""

from __future__ import annotations

from collections import Counter
from ipaddress import IPv6Address, IPv6Network

from shoal.config import Config

FEW = 8
"""Connections of an address that may take one of the kept places: a peer's links, or a probe."""
TOLD_MAX = 16
"""Connections above a bound that are told so: after a handshake, as without one nothing can be said."""


class Places:
    """The connections that are open, by address."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._held: Counter[str] = Counter()
        self._all = 0

    def take(self, address: str) -> str:
        """Count a connection, which must `leave` in any case. Why there is no place for it; empty if there is one."""
        self._held[address] += 1
        self._all += 1
        held, config = self._held[address], self._config
        if self._all > config.connections_max:
            return f"the node has {config.connections_max} connections, which is its maximum"
        if held > config.connections_address_max:
            return f"{address or 'its address'} has {config.connections_address_max} connections, the maximum of one address"
        kept = min(config.connections_kept, config.connections_max // 8)
        if held > FEW and self._all > config.connections_max - kept:
            return f"the node keeps its last {kept} connections for addresses with at most {FEW}"
        return ""

    def leave(self, address: str) -> None:
        """A connection has ended."""
        self._all -= 1
        self._held[address] -= 1
        if not self._held[address]:
            del self._held[address]

    def lets_shake(self, address: str, *, shaking: int, of_address: int) -> bool:
        """Whether one more may shake hands, beside those that do. A few beyond the bounds may, to be told why not."""
        config = self._config
        return (
            self._all + shaking < config.connections_max + TOLD_MAX
            and self._held[address] + of_address < config.connections_address_max + TOLD_MAX
        )


def address_of(peer: object) -> str:
    """The address that a connection counts for, from its socket's peer name; empty if it has none."""
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    if ":" not in host:
        return host
    address = IPv6Address(host.partition("%")[0])
    return str(address.ipv4_mapped or IPv6Network((int(address) >> 64 << 64, 64)))
