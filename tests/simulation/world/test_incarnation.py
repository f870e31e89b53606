"""Whose a task is, and that nothing survives its life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from shoal.testing.machines import run
from simulation.world.incarnation import Fenced, Incarnation, life_of, own_tasks


def on(story: Callable[[Incarnation], Awaitable[None]]) -> None:
    async def main() -> None:
        own_tasks(asyncio.get_running_loop())
        await story(Incarnation("n1", 1))

    run(main())


def test_a_task_belongs_to_the_life_whose_task_began_it() -> None:
    async def story(life: Incarnation) -> None:
        async def parent() -> asyncio.Task[None]:
            return asyncio.create_task(asyncio.sleep(0))

        assert life_of(await life.begin(parent())) is life
        assert life_of(asyncio.create_task(asyncio.sleep(0))) is None

    on(story)


def test_so_does_one_that_a_timer_or_a_plain_call_began() -> None:
    async def story(life: Incarnation) -> None:
        begun: list[asyncio.Task[None]] = []

        def begin() -> None:
            begun.append(asyncio.get_running_loop().create_task(asyncio.sleep(0)))

        life.run(begin)
        life.run(asyncio.get_running_loop().call_later, 1.0, begin)
        await asyncio.sleep(2.0)
        assert [life_of(task) for task in begun] == [life, life]

    on(story)


def test_the_end_of_a_life_cancels_what_it_does_and_nothing_else() -> None:
    async def story(life: Incarnation) -> None:
        its_own, other = life.begin(asyncio.sleep(9)), asyncio.create_task(asyncio.sleep(9))
        life.end()
        assert await life.gone() == []
        assert its_own.cancelled()
        assert not other.done()
        assert asyncio.get_running_loop().time() == 0.0

    on(story)


def test_work_begun_in_finally_is_cancelled_too() -> None:
    async def story(life: Incarnation) -> None:
        done: list[str] = []

        async def late() -> None:
            done.append("late")

        async def stubborn() -> None:
            try:
                await asyncio.sleep(9)
            finally:
                begun = asyncio.create_task(late())
                await begun

        life.begin(stubborn())
        await asyncio.sleep(0)
        life.end()
        assert await life.gone() == []
        assert done == []

    on(story)


def test_a_task_that_does_not_end_is_named() -> None:
    async def story(life: Incarnation) -> None:
        freed = asyncio.Event()

        async def immortal() -> None:
            while not freed.is_set():
                try:
                    await freed.wait()
                except asyncio.CancelledError:
                    continue

        life.begin(immortal())
        await asyncio.sleep(0)
        life.end()
        assert "immortal" in (await life.gone())[0]
        freed.set()

    on(story)


def test_a_fence_is_no_exception_that_code_handles() -> None:
    async def story(life: Incarnation) -> None:
        async def careful() -> str:
            try:
                life.check()
            except Exception:
                return "handled"
            return "passed"

        assert await life.begin(careful()) == "passed"
        life.over = True
        with pytest.raises(Fenced):
            await asyncio.create_task(careful())

    on(story)
