"""The nodes' views of their cluster, from repeated requests of `GET /v1/cluster`.

A node that does not answer within `LOOK_S_MAX` has no view this time; nothing
is concluded from that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aiohttp
import msgspec
from msgspec import Struct

LOOK_S_MAX = 2.0


class Member(Struct, frozen=True):
    """A node, as the node that answers sees it; `shoal.protocol.requests.Member` describes the fields."""

    name: str
    node: str
    state: str
    operations: int | None  # These four are None until the node that answers was told.
    lacks: int | None
    ahead: int | None
    lag_ms: int | None
    vector: dict[str, int]


class View(Struct, frozen=True):
    """One node's view of the cluster."""

    members: list[Member]  # The node itself first.
    digest: str

    @property
    def own(self) -> Member:
        """The member that is the node itself."""
        return self.members[0]

    def of(self, name: str) -> Member | None:
        """The member `name`; None if there is none."""
        return next((member for member in self.members if member.name == name), None)

    def covers(self, vector: Mapping[str, int]) -> bool:
        """Whether the node holds at least these operations of each origin, and knows of none that it lacks."""
        held = self.own.vector
        return all(held.get(origin, 0) >= count for origin, count in vector.items()) and not any(
            member.ahead for member in self.members
        )


async def look(http: aiohttp.ClientSession, url: str) -> View | None:
    """The node's view; None if it does not answer."""
    try:
        async with http.get(f"{url}/v1/cluster", timeout=aiohttp.ClientTimeout(total=LOOK_S_MAX)) as answer:
            return msgspec.json.decode(await answer.read(), type=View) if answer.status == 200 else None
    except (TimeoutError, aiohttp.ClientError, OSError):
        return None


def joined(views: Sequence[View]) -> dict[str, int]:
    """The operations that these nodes hold together: origin → count."""
    vector: dict[str, int] = {}
    for view in views:
        for origin, count in view.own.vector.items():
            vector[origin] = max(vector.get(origin, 0), count)
    return vector
