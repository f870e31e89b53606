"""Writers of one stream at three real nodes, in virtual time: nodes stand still, are cut off, and go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from shoal.config import Config
from shoal.errors import ShoalError
from shoal.protocol.requests import Durability, R, Request, Trim
from shoal.protocol.session import Session, Wrapper
from shoal.testing.machines import run
from shoal.workflows.streams import record as chain
from shoal.workflows.streams.decisions import Append, Command, Create, Delete, ProducerHeaders
from shoal.workflows.streams.record import BEGINNING
from shoal.workflows.streams.writer import Answer, Writer
from simulation.bounds import altered
from simulation.world.fleet import Fleet
from tests.support.paces import USUAL

TTL_S = 3.0
CONFIG = Config(stream_ttl_s=TTL_S)


@pytest.fixture(autouse=True)
def bounds() -> Iterator[None]:
    with altered(stream_idle_s=600.0):
        yield


def in_fleet(work: Callable[[Fleet], Awaitable[None]], **settings: Any) -> None:
    async def main() -> None:
        async with Fleet("abc", quorum_timeout_s=1.0, quorum_register_retry_s=0.05, **USUAL, **settings) as nodes:
            await work(nodes)

    run(main())


@asynccontextmanager
async def writer_at(
    nodes: Fleet, name: str, wrap: Callable[[Session], Session] = lambda session: session
) -> AsyncIterator[Writer]:
    writer = Writer(wrap(nodes[name].node.session()), "crew", "s", config=CONFIG, now_ms=lambda: 1)
    yield writer
    await writer.close()


async def decided(writer: Writer, command: Command, seconds: float = 60.0) -> Answer:
    """The answer, once there is one: what was not written is sent again."""
    async with asyncio.timeout(seconds):
        while True:
            try:
                return await writer.submit(command)
            except ShoalError as error:
                if error.written != "no":
                    raise
            await asyncio.sleep(0.05)


def append(number: int) -> Append:
    return Append("s", "text/plain", b"%d" % number, producer=ProducerHeaders("p", 0, number))


async def stored(nodes: Fleet, name: str) -> bytes:
    session = nodes[name].node.session()
    head = await chain.caught_up(session, "crew", "s")
    assert head.state is not None
    part = await chain.read(session, "crew", "s", head.state, BEGINNING, committed=head.committed, bytes_max=1 << 20)
    return b"".join(part.entries)


class Late(Wrapper):
    """A session whose trims wait until `go` is set."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self.go, self.came = asyncio.Event(), asyncio.Event()

    async def call(
        self, request: Request[R], /, *, key: str | None = None, durability: Durability = "local", stale: bool = False
    ) -> R:
        if isinstance(request, Trim):
            self.came.set()
            await self.go.wait()
        return await self._session.call(request, key=key, durability=durability, stale=stale)


def test_a_holder_that_goes_on_late_frees_nothing_of_the_stream_that_was_created_again() -> None:
    async def work(nodes: Fleet) -> None:
        late = Late(nodes["a"].node.session())
        async with writer_at(nodes, "a", lambda _: late) as a, writer_at(nodes, "b") as b:
            for command in (Create("s", "text/plain"), append(0), Delete("s")):
                await a.submit(command)
            await late.came.wait()
            await nodes.isolate("a")
            await decided(b, Create("s", "text/plain"))
            for number in range(3):
                await decided(b, append(number))
            nodes.link_all("a")
            await nodes.converged()
            late.go.set()
            await decided(a, append(3))
            await nodes.converged()
            for name in "abc":
                assert await stored(nodes, name) == b"0123"

    in_fleet(work)


def test_a_holder_that_was_superseded_refuses_nothing_by_what_it_knew() -> None:
    async def work(nodes: Fleet) -> None:
        async with writer_at(nodes, "a") as a, writer_at(nodes, "b") as b:
            await a.submit(Create("s", "text/plain"))
            await a.submit(append(0))
            await nodes.isolate("a")
            await decided(b, append(1))
            for command in (append(2), Create("s", "text/html"), append(0)):  # By what it knew: 409, 409 and 204.
                with pytest.raises(ShoalError) as refused:
                    await a.submit(command)
                assert refused.value.written == "no"
            nodes.link_all("a")
            assert (await decided(a, append(2))).outcome.status == 200
            assert await stored(nodes, "c") == b"012"

    in_fleet(work)
