"""A stream's writer, whose node fails between any two of its steps."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from shoal.config import Config
from shoal.errors import NoQuorum, OutcomeUnknown, ShoalError, StoreCorrupt
from shoal.protocol.requests import CaughtUp, Durability, Fenced, R, ReadPlace, Request
from shoal.protocol.session import Session, Wrapper
from shoal.workflows.streams import record as chain
from shoal.workflows.streams.decisions import Append, Create, ProducerHeaders
from shoal.workflows.streams.record import BEGINNING
from shoal.workflows.streams.writer import Answer, Writer
from simulation.bounds import altered
from tests.node.conftest import Bench, bench

pytestmark = pytest.mark.virtual_time

__all__ = ["bench"]

CONFIG = Config()


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(stream_idle_s=0.01):
        yield


class Failing(Wrapper):
    """A session of a node that seems to have peers. Its n-th write under a lease fails, before it is made or after."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.fails_at = 0
        self.after = False

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        is_write = isinstance(request, Fenced)
        if not is_write:
            reply = await self._session.call(request, key=key, durability=durability, stale=stale)
            return msgspec.structs.replace(reply, size=3) if isinstance(reply, CaughtUp) else reply
        self.fails_at -= 1
        if self.fails_at == 0 and not self.after:
            raise NoQuorum("too few nodes. Nothing was written.")
        made = await self._session.call(request, key=key, durability=durability, stale=stale)
        if self.fails_at == 0:
            raise OutcomeUnknown("the node is gone.")
        return made


@asynccontextmanager
async def writing(bench: Bench) -> AsyncIterator[tuple[Failing, Callable[[int], asyncio.Task[Answer]]]]:
    """A session that can fail, and a function that appends what a producer has at a sequence."""
    session = Failing(bench.node.session())
    writer = Writer(session, "crew", "s", config=CONFIG, now_ms=lambda: 1)

    def append(number: int) -> asyncio.Task[Answer]:
        command = Append("s", "text/plain", b"%d" % number, producer=ProducerHeaders("p", 0, number))
        return asyncio.create_task(writer.submit(command))

    await writer.submit(Create("s", "text/plain"))
    yield session, append
    await writer.close()


async def stored(session: Session) -> bytes:
    head = await chain.caught_up(session, "crew", "s")
    assert head.state is not None
    part = await chain.read(session, "crew", "s", head.state, BEGINNING, committed=head.committed, bytes_max=1 << 20)
    return b"".join(part.entries)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [1, 2])
async def test_an_append_whose_node_fails_is_there_once_when_it_is_repeated(bench: Bench, step: int, *, after: bool) -> None:
    async with writing(bench) as (session, append):
        await append(0)
        session.fails_at, session.after = step, after
        with pytest.raises(ShoalError) as failed:
            await append(1)
        assert failed.value.written == ("no" if (step, after) == (1, False) else "unknown")
        seen = await stored(session)
        assert seen == (b"01" if (step, after) == (2, True) else b"0")
        repeated = await append(1)
        assert repeated.outcome.status == (200 if (step, after) == (1, False) else 204)
        assert (await append(2)).outcome.status == 200
        assert await stored(session) == b"012"


async def test_a_failed_group_fails_as_a_whole_and_the_rest_goes_on(bench: Bench) -> None:
    async with writing(bench) as (session, append):
        session.fails_at = 1
        answers = await asyncio.gather(append(0), append(1), return_exceptions=True)
        assert [type(answer) for answer in answers] == [NoQuorum, NoQuorum]
        assert [answer.outcome.status for answer in await asyncio.gather(append(0), append(1))] == [200, 200]
        assert await stored(session) == b"01"


class Unreadable(Wrapper):
    """A session of a node that cannot read places."""

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        if isinstance(request, ReadPlace):
            raise StoreCorrupt("a row is damaged. Nothing was written.")
        return await self._session.call(request, key=key, durability=durability, stale=stale)


async def test_an_append_fails_if_it_cannot_be_seen_whether_the_stream_has_expired(bench: Bench) -> None:
    writer = Writer(Unreadable(bench.node.session()), "crew", "s", config=CONFIG, now_ms=lambda: 1)
    async with asyncio.timeout(20):
        await writer.submit(Create("s", "text/plain", ttl_s=60))
        with pytest.raises(StoreCorrupt):
            await writer.submit(Append("s", "text/plain", b"x"))
    await writer.close()


async def test_two_writers_take_turns(bench: Bench) -> None:
    writers = [Writer(bench.node.session(), "crew", "s", config=CONFIG, now_ms=lambda: 1) for _ in range(2)]
    await writers[0].submit(Create("s", "text/plain"))

    async def appended(writer: Writer, mark: bytes) -> None:
        for _ in range(5):
            await writer.submit(Append("s", "text/plain", mark))

    async with asyncio.timeout(60):
        with altered(stream_idle_s=60.0):
            await asyncio.gather(appended(writers[0], b"a"), appended(writers[1], b"b"))
    assert sorted(await stored(bench.node.session())) == sorted(b"aaaaabbbbb")
    for writer in writers:
        await writer.close()


async def test_nothing_is_accepted_by_a_writer_that_is_closed(bench: Bench) -> None:
    writer = Writer(bench.node.session(), "crew", "s", config=CONFIG, now_ms=lambda: 1)
    waiting = asyncio.create_task(writer.submit(Create("s", "text/plain")))
    await asyncio.sleep(0)
    await writer.close()
    assert (await waiting).outcome.status == 201
    with pytest.raises(ShoalError, match="stopping"):
        await writer.submit(Create("s", "text/plain"))
