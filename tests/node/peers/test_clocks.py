"""A node whose clock is wrong says so and issues nothing; everything else goes on."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable

import pytest

from shoal.crdt.dot import wall_ms_of
from shoal.errors import ClockWrong
from shoal.protocol.requests import Add
from shoal.storage import keys
from simulation.world.fleet import Fleet, Member

WAIT_S = 30.0
HOUR_MS = 3_600_000


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with compared() as fleet:
        await told(fleet)
        yield fleet


def compared(names: str = "abc") -> Fleet:
    return Fleet(names, clock_skew_max_ms=10_000, clock_interval_s=0.05, quorum_timeout_s=WAIT_S, session_wait_s=WAIT_S)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.002)


async def told(fleet: Fleet) -> None:
    """Wait until each node knows the clock of each other."""
    await until(
        lambda: all(
            member.clock_ms is not None
            for node in fleet.members.values()
            for member in node.replicator.quorum.view().members[1:]
        )
    )


async def add(member: Member) -> int:
    return await member.store().space("crew").counter("n").add(1)


@pytest.mark.answers("wrong-clocks-issue-nothing")
@pytest.mark.parametrize("by_ms", [HOUR_MS, -HOUR_MS])
async def test_the_next_write_after_a_jump_is_refused_and_says_what_to_do(fleet: Fleet, by_ms: int) -> None:
    fleet["a"].simulated.now_ms += by_ms
    with pytest.raises(ClockWrong, match=r"clock is wrong.*b:1, c:1.*Set it.*Nothing was written") as refused:
        await add(fleet["a"])
    assert refused.value.retryable
    status = await fleet["a"].store().status()
    assert status.state == "read-only"
    assert re.search(r"3,(599|600)\.\d s (ahead of|behind)", status.reason)  # Less or more by what the answers took.


async def test_once_the_clock_is_set_right_the_next_write_is_taken(fleet: Fleet) -> None:
    fleet["a"].simulated.now_ms += HOUR_MS
    with pytest.raises(ClockWrong):
        await add(fleet["a"])
    fleet["a"].simulated.now_ms -= HOUR_MS
    assert await add(fleet["a"]) == 1


@pytest.mark.answers("wrong-clocks-issue-nothing")
async def test_a_wrong_clock_disturbs_nothing_else(fleet: Fleet) -> None:
    """The node reads, takes its peers' operations, and counts as a copy; they write as before, and say whose clock is off."""
    fleet["a"].simulated.now_ms += HOUR_MS
    assert await fleet["b"].store().space("crew").counter("n").add(1, durability="all") == 1
    await fleet.converged(WAIT_S)
    assert await fleet["a"].store().space("crew").counter("n").value() == 1
    await until(lambda: bool(fleet["b"].replicator.quorum.view().clocks))
    [said] = fleet["b"].replicator.quorum.view().clocks
    assert "a:1's clock is 3,6" in said
    assert "ahead of this node's. Set its clock." in said
    assert (await fleet["b"].store().status()).state == "ready"


async def test_no_time_of_a_wrong_clock_reaches_the_others(fleet: Fleet) -> None:
    fleet["a"].simulated.now_ms += HOUR_MS
    with pytest.raises(ClockWrong):
        await add(fleet["a"])
    await add(fleet["b"])
    await fleet.converged(WAIT_S)
    for member in fleet.members.values():
        assert wall_ms_of(member.node._context.clock.last) < fleet["b"].simulated.now_ms + HOUR_MS / 2


async def test_words_heard_count_while_no_peer_is_reached(fleet: Fleet) -> None:
    await fleet.isolate("a")
    assert await add(fleet["a"]) == 1
    fleet["a"].simulated.now_ms += HOUR_MS
    with pytest.raises(ClockWrong):
        await add(fleet["a"])


async def test_of_two_nodes_both_go_on_and_both_say_that_they_differ() -> None:
    async with compared("ab") as fleet:
        await told(fleet)
        fleet["a"].simulated.now_ms += HOUR_MS
        await until(lambda: all(member.replicator.quorum.view().clocks for member in fleet.members.values()))
        for member in fleet.members.values():
            await add(member)
            [said] = member.replicator.quorum.view().clocks
            assert "no majority tells which one is wrong" in said


async def test_a_node_that_nobody_told_the_time_writes() -> None:
    async with Fleet("a", join="b:1,c:1", clock_skew_max_ms=10_000) as fleet:
        fleet["a"].simulated.now_ms += HOUR_MS
        assert await add(fleet["a"]) == 1


async def test_the_log_tells_each_difference_once(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    fleet["a"].simulated.now_ms += HOUR_MS
    await until(lambda: len(caplog.records) >= 3)
    said = [record.getMessage() for record in caplog.records if "clocks differ" in record.getMessage()]
    assert sum("this node's clock is wrong" in each for each in said) == 1
    fleet["a"].simulated.now_ms -= HOUR_MS
    await until(lambda: all(not member.replicator.quorum.view().clocks for member in fleet.members.values()))


async def test_while_its_clock_is_wrong_a_node_forgets_nothing_for_its_age(fleet: Fleet) -> None:
    """Neither operations of its log nor answers to keys, which a retry may need."""
    session = fleet["b"].node.session()
    for _ in range(2):
        assert await session.call(Add("crew", "n", 1), key="my-key", durability="all")
    await fleet.converged(WAIT_S)
    node = fleet["a"].node
    kept = dict(fleet["a"].storage.scan(keys.KEY, keys.KEY + b"\xff"))
    fleet["a"].simulated.now_ms += 30 * 24 * HOUR_MS
    truncator = node._database.truncator
    await truncator.look(truncator.due())
    assert dict(fleet["a"].storage.scan(keys.KEY, keys.KEY + b"\xff")) == kept != {}
    assert truncator.truncated == 0
    for name in "bc":  # That much time has passed.
        fleet[name].simulated.now_ms += 30 * 24 * HOUR_MS
    await until(lambda: not fleet["a"].replicator.quorum.view().clocks)
    async with asyncio.timeout(WAIT_S):
        while truncator.truncated == 0:
            await truncator.look(truncator.due())
            await asyncio.sleep(0.01)
