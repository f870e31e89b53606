"""What is left of retired origins is forgotten, and all that would be misread without it goes too."""

from __future__ import annotations

from shoal.cluster.partition import partition_of
from shoal.crdt.dot import Origin
from shoal.storage import marks
from tests.node.collection.test_retiring import append, opened, reopened, retired, same
from tests.node.conftest import Opener

_PEER, _OTHER = b"p" * 16, b"q" * 16
_NEVER_HELD = Origin(b"n" * 16)


async def test_no_mark_in_storage_names_an_origin_that_is_forgotten(open_bench: Opener) -> None:
    """A node that retires and forgets between two records of its marks would be told of the origin as of one it never had."""
    bench = await opened(open_bench, 20, append)
    number = partition_of("crew", "t")
    known = retired(bench.storage)
    assert len(known) > 10
    bench = await reopened(bench.storage, open_bench, 99, retired_origins_max=4)
    for peer in (_PEER, _OTHER):
        named = {marks.entry(peer, number, origin): bytes(8) for origin in (*known, _NEVER_HELD)}
        bench.storage.write({marks.address(peer): b"p:1", **named})
    await append(bench, 99)
    await bench.node.stop()
    storage = same(bench.storage)
    left = set(retired(storage))
    assert 0 < len(left) < len(known)
    for peer in (_PEER, _OTHER):
        marked = {Origin(key[-16:]) for key, _ in storage.scan(*marks.entries(peer))}
        assert _NEVER_HELD in marked
        assert marked & set(known) == left & set(known)
