"""A request becomes one operation, in one write, once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from shoal.errors import KeyExpired, KeyReused, SpansPartitions
from shoal.protocol.keys import make_key
from shoal.protocol.requests import Add, Added, Batch
from shoal.storage import keys
from tests.node.conftest import Bench


async def test_an_operation_is_one_write(bench: Bench) -> None:
    session = bench.node.session()
    await session.call(Add("crew", "n", 1))
    written: list[set[bytes]] = []
    sound = bench.storage.write

    def write(rows: Mapping[bytes, bytes | None], ranges: Sequence[tuple[bytes, bytes]] = (), /) -> int:
        written.append({key[:1] for key in rows})
        return sound(rows, ranges)

    bench.storage.write = write  # type: ignore[method-assign]
    await session.call(Add("crew", "n", 1))
    assert [tables for tables in written if keys.LOG in tables] == written
    assert len(written) == 1
    assert {keys.LOG, keys.OBJECT, keys.VECTOR} <= written[0]


async def test_a_key_stands_for_one_request(bench: Bench) -> None:
    session = bench.node.session()
    assert await session.call(Add("crew", "n", 1), key="k") == Added(1, True)
    assert await session.call(Add("crew", "n", 1), key="k") == Added(1, True)
    with pytest.raises(KeyReused, match="Nothing was written"):
        await session.call(Add("crew", "n", 2), key="k")
    assert await session.call(Add("crew", "n", 1)) == Added(2, True)


async def test_an_old_key_is_refused(bench: Bench) -> None:
    session, now_ms = bench.node.session(), bench.simulated.environment.now_ms()
    window_ms = int(bench.config.key_window_s * 1000)
    assert await session.call(Add("crew", "n", 1), key=make_key(now_ms - window_ms // 2, b"k" * 10)) == Added(1, True)
    with pytest.raises(KeyExpired, match="older than"):
        await session.call(Add("crew", "n", 1), key=make_key(now_ms - 2 * window_ms, b"k" * 10))


async def test_a_batch_stays_in_one_partition(bench: Bench) -> None:
    batch = Batch([Add("crew", f"n{number}", 1) for number in range(9)])
    with pytest.raises(SpansPartitions, match="Nothing was written"):
        await bench.node.session().call(batch)
    assert await bench.node.session().call(Add("crew", "n0", 1)) == Added(1, True)
