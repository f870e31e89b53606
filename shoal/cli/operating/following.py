"""The members of a cluster from the URLs of some: each is asked, also those that only another one knows.

Laws:
- Each member is asked once: one that answered is known by its id, and one that did not by its address.
- The last of them is reached in `HOPS_MAX` rounds: from a node that waits to be added to a member, and from that to all.
- Beside those that were given, at most as many are asked as a cluster may have members, whatever a node names.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

HOPS_MAX = 3
ASKED_MAX = 64  # As many members as a cluster may have.


class Seen(Protocol):
    """A node that was asked, whether or not it answered."""

    @property
    def name(self) -> str:
        """Its own address; of one that did not answer: where it was asked."""

    @property
    def node(self) -> str:
        """The id of its directory; empty: it did not answer."""

    @property
    def members(self) -> Sequence[tuple[str, str]]:
        """The members that it knows: their addresses and ids."""


A = TypeVar("A", bound=Seen)


def asked_at(url: str) -> str:
    """HOST:PORT of a URL, to name a node that did not answer."""
    return urlsplit(url).netloc or url


def named(urls: str) -> list[str]:
    """The URLs of an option."""
    return [url.strip().rstrip("/") for url in urls.split(",") if url.strip()]


async def followed(answers: Sequence[A], ask: Callable[[str], Awaitable[A]], scheme: str) -> list[A]:
    """These answers, and those of the members that they name and that were not asked. `ask` takes a URL, and raises nothing."""
    found, most = list(answers), len(answers) + ASKED_MAX
    for _ in range(HOPS_MAX):
        ids = {each.node for each in found}
        names = {each.name for each in found}
        others = {name for each in found for name, node in each.members if node not in ids and name not in names}
        found += await asyncio.gather(*(ask(f"{scheme}://{name}") for name in sorted(others)[: most - len(found)]))
    return found
