"""Ports of the loopback interface for nodes that are started later, and started again.

Laws:
- While a process lives, no other one is given its ports by this module: it holds the UDP port of each number.
- They lie below those that systems give to connections and to servers that ask for any port, which would else take one
  before its node listens, or between two starts of it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from functools import cache
from itertools import islice

_HOST = "127.0.0.1"
_FIRST, _END = 20_000, 32_000
_SPREAD = 89  # Processes that start one after the other begin so many ports apart.


def free_ports(count: int) -> list[int]:
    """So many ports that nothing listens on, and that are this process's until it ends."""
    found = list(islice(_claimed(), count))
    assert len(found) == count, "all ports were given away"
    return found


@cache
def _claimed() -> Iterator[int]:
    return _claim(os.getpid() * _SPREAD)


def _claim(start: int) -> Iterator[int]:
    held: list[int] = []  # Descriptors; the system closes them at the end.
    for number in range(_END - _FIRST):
        port = _FIRST + (start + number) % (_END - _FIRST)
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind((_HOST, port))
        except OSError:
            claim.close()
            continue
        held.append(claim.detach())
        if _is_free(port):
            yield port


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        try:
            trial.bind((_HOST, port))
        except OSError:
            return False
    return True
