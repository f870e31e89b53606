"""The WebSockets of providers that have no document open, so that nobody has shown a token on them.

Laws:
- There are at most `most`. Beyond that the oldest one of the address that has most gives way, so that a flood from one
  address does not displace the clients of others.
- The addresses of one IPv6 network of 64 bits count as one.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from shoal.access.failures import network_of

T = TypeVar("T")


class Waiting(Generic[T]):
    """Sockets of any hashable type `T`, by the network that each came from."""

    def __init__(self, *, most: int) -> None:
        self._most = most
        self._count = 0
        self._there: dict[str, dict[T, None]] = {}  # The oldest first.

    def __len__(self) -> int:
        return self._count

    def add(self, socket: T, address: str) -> T | None:
        """Add a socket; returns the one that has to give way, if any, which is forgotten."""
        self._there.setdefault(network_of(address), {})[socket] = None
        self._count += 1
        if self._count <= self._most:
            return None
        network = max(self._there, key=lambda network: len(self._there[network]))
        oldest = next(iter(self._there[network]))
        self._forget(network, oldest)
        return oldest

    def discard(self, socket: T, address: str) -> None:
        """Forget a socket, if it is there."""
        network = network_of(address)
        if socket in self._there.get(network, ()):
            self._forget(network, socket)

    def _forget(self, network: str, socket: T) -> None:
        sockets = self._there[network]
        del sockets[socket]
        self._count -= 1
        if not sockets:
            del self._there[network]
