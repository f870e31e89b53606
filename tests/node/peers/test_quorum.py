"""Questions to a quorum that are shared: a run for all that asked before it began."""

from __future__ import annotations

import asyncio

import pytest

from shoal.node.peers.quorum import Sharing, _Deadlines, _Waiter
from shoal.testing.machines import run


class Work:
    def __init__(self) -> None:
        self.begun = 0
        self.ended = 0
        self.free = asyncio.Event()

    async def __call__(self) -> None:
        self.begun += 1
        await self.free.wait()
        self.ended += 1


def test_those_that_ask_at_once_share_a_run_and_those_that_ask_meanwhile_the_next() -> None:
    async def main() -> None:
        work = Work()
        sharing = Sharing(work)
        first = [asyncio.create_task(sharing.run()) for _ in range(3)]
        await asyncio.sleep(0.001)
        assert work.begun == 1
        second = [asyncio.create_task(sharing.run()) for _ in range(3)]
        await asyncio.sleep(0.001)
        assert work.begun == 1
        work.free.set()
        await asyncio.gather(*first, *second)
        assert (work.begun, work.ended) == (2, 2)
        assert sharing.is_idle

    run(main())


def test_a_run_that_does_not_end_does_not_hold_up_the_next_for_long() -> None:
    async def main() -> None:
        work = Work()
        sharing = Sharing(work)
        first = asyncio.create_task(sharing.run())
        await asyncio.sleep(0.001)
        second = asyncio.create_task(sharing.run())
        await asyncio.sleep(1.0)
        assert work.begun == 2
        work.free.set()
        await asyncio.gather(first, second)

    run(main())


def test_all_that_share_a_run_get_its_error() -> None:
    async def main() -> None:
        async def fail() -> None:
            raise ValueError("no")

        sharing = Sharing(fail)
        outcomes = await asyncio.gather(*(sharing.run() for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [ValueError] * 3
        with pytest.raises(ValueError, match="no"):
            await sharing.run()

    run(main())


def test_a_run_that_nobody_waits_for_is_cancelled_and_one_that_somebody_does_is_not() -> None:
    async def main() -> None:
        work = Work()
        sharing = Sharing(work)
        first, second = asyncio.create_task(sharing.run()), asyncio.create_task(sharing.run())
        await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.sleep(0.001)
        assert not sharing.is_idle
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        await asyncio.sleep(0.001)
        assert sharing.is_idle
        work.free.set()
        await sharing.run()
        assert (work.begun, work.ended) == (2, 1)

    run(main())


def test_a_wait_ends_in_its_time() -> None:
    async def main() -> None:
        ended: list[bool] = []
        _Waiter([], lambda: False, _Deadlines(2.0), ended.append)
        await asyncio.sleep(3.0)
        assert ended == [False]

    run(main())


def test_those_that_wait_equally_long_end_in_their_order_each_once() -> None:
    async def main() -> None:
        ended: list[tuple[str, float]] = []
        deadlines, loop = _Deadlines(2.0), asyncio.get_running_loop()
        began = loop.time()

        def wait(name: str) -> _Waiter:
            return _Waiter([], lambda: False, deadlines, lambda _: ended.append((name, loop.time() - began)))

        wait("first")
        left = wait("left")
        await asyncio.sleep(1.0)
        wait("later")
        left.leave()
        await asyncio.sleep(9.0)
        wait("last")
        await asyncio.sleep(3.0)
        assert ended == [("first", 2.0), ("later", 3.0), ("last", 12.0)]

    run(main())


def test_one_that_the_end_of_another_wakes_ends_once() -> None:
    async def main() -> None:
        ended: list[str] = []
        deadlines = _Deadlines(2.0)

        def first(_: bool) -> None:
            ended.append("first")
            second.wake()

        _Waiter([], lambda: False, deadlines, first)
        second = _Waiter([], lambda: False, deadlines, lambda _: ended.append("second"))
        await asyncio.sleep(3.0)
        assert ended == ["first", "second"]

    run(main())
