"""The foundation of a rebuilt register: what survivors hold, with every number that its contents count moved ahead.

`shoal.cluster.consensus.rebuilding` never looks into contents; the tables of leases count fencing numbers.
"""

from __future__ import annotations

from collections.abc import Mapping

from shoal.cluster.consensus.ballots import Value
from shoal.cluster.consensus.rebuilding import COUNTS_AHEAD, Foundation, Remains, founded
from shoal.kinds.lease.state import table

_BEAT_BYTES = 8
_NOTHING: Mapping[str, Value] = {}


def foundation_of(
    remains: Mapping[str, Remains], *, id: bytes, shards: int, own: Mapping[str, Value] = _NOTHING, unseen_ms: int = 0
) -> Foundation:
    """The foundation with which these survivors, by address, go on; `own` are values that the rebuild itself makes.

    Leases that none of the survivors knows of may last for another `unseen_ms`.
    """

    def raised(key: str, content: bytes) -> bytes:
        if not key.startswith(table.KEY):
            return content
        return table.rebuilt(content, by=COUNTS_AHEAD, beat=id[:_BEAT_BYTES], unseen_ms=unseen_ms)

    # Also those shards of which no survivor knows anything: a lost member may have granted a lease of them.
    return founded(remains, id=id, own=own, raised=raised, keys=[f"{table.KEY}{nth}" for nth in range(shards)])
