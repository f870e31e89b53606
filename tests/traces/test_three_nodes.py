"""The spans of writes that several nodes hold, in virtual time: ids and times follow from the run alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import pytest

from shoal.client.store import Store
from shoal.errors import OutcomeUnknown, ShoalError
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Add, AnyReply
from shoal.traces.sessions import PromptlyTraced, traced
from simulation.world.fleet import Fleet, Member
from tests.traces.recording import Recorded, attributes, recording

pytestmark = pytest.mark.virtual_time

QUORUM = [
    "  shoal.queue",
    "  shoal.decide",
    "  shoal.commit",
    "  shoal.replicate",
    "    shoal.peer b:1",
    "    shoal.peer c:1",
]
CONTESTED = [*QUORUM[:2], "    shoal.ask_quorum", *QUORUM[2:], "  shoal.ask_quorum"]


@pytest.fixture
def recorded() -> Iterator[Recorded]:
    with recording(now_ns=lambda: int(asyncio.get_running_loop().time() * 1e9)) as spans:
        yield spans


def store_of(member: Member, bookmark: Bookmark | None = None) -> Store:
    """A client of this node, whose requests are traced there."""
    store = member.store(bookmark)
    connection = replace(store.connection, session=traced(store.connection.session, "node"))
    return Store(connection, close=store.close)


async def all_ended(recorded: Recorded, peers: int) -> None:
    """The second peer may acknowledge after the answer."""
    while len(recorded.named("shoal.peer")) < peers:
        await asyncio.sleep(0.001)


async def test_a_save_under_quorum_shows_each_peer(recorded: Recorded) -> None:
    async with Fleet() as fleet:
        await store_of(fleet["a"]).space("crew").thread("t").save({"a": 1}, durability="quorum")
        await all_ended(recorded, 2)
    assert recorded.tree() == ["shoal save (server)", *QUORUM]


async def test_a_claim_of_a_step_shows_the_questions_to_a_quorum(recorded: Recorded) -> None:
    async with Fleet() as fleet:
        thread = store_of(fleet["a"]).space("crew").thread("t")
        assert await thread.step("pay", call=lambda: 7) == 7
        await all_ended(recorded, 2)
    assert recorded.tree() == [
        "execute_tool pay",
        "  shoal begin-step",
        *(f"  {line}" for line in CONTESTED),
        "  shoal end-step",
        *(f"  {line}" for line in QUORUM[:3]),
    ]


async def test_a_write_that_a_node_begins_without_a_task_shows_the_same(recorded: Recorded) -> None:
    answers: list[AnyReply | ShoalError] = []
    async with Fleet() as fleet:
        session = traced(fleet["a"].node.session(), "node")
        assert isinstance(session, PromptlyTraced)
        assert session.begin(Add("crew", "tokens", 5), answers.append, durability="quorum")
        await all_ended(recorded, 2)
        while not answers:
            await asyncio.sleep(0.001)
    assert recorded.tree() == ["shoal add (server)", *QUORUM]


async def test_a_peer_that_is_late_is_an_error_of_its_own(recorded: Recorded) -> None:
    async with Fleet() as fleet:
        fleet.wires["c", "a"].open.clear()
        await store_of(fleet["a"]).space("crew").counter("n").add(1, durability="quorum")
        await all_ended(recorded, 2)
    by_peer = {str(attributes(span)["shoal.peer"]): span for span in recorded.named("shoal.peer")}
    assert "error.type" not in attributes(by_peer["b:1"])
    assert attributes(by_peer["c:1"])["error.type"] == "unacknowledged"
    assert "error.type" not in attributes(recorded.one("shoal add"))


async def test_a_write_without_enough_copies_ends_as_an_error(recorded: Recorded) -> None:
    async with Fleet() as fleet:
        for peer in "bc":
            fleet.wires["a", peer].open.clear()
        with pytest.raises(OutcomeUnknown):
            await store_of(fleet["a"]).space("crew").counter("n").add(1, durability="quorum")
        await all_ended(recorded, 2)
    assert {"error.type": "outcome-unknown", "shoal.written": "unknown"}.items() <= attributes(
        recorded.one("shoal add")
    ).items()
    assert attributes(recorded.one("shoal.replicate"))["error.type"] == "outcome-unknown"


async def test_a_write_sent_again_shows_no_second_commit(recorded: Recorded) -> None:
    async with Fleet() as fleet:
        counter = store_of(fleet["a"]).space("crew").counter("n")
        await counter.add(1, key="k", durability="all")
        await all_ended(recorded, 2)
        recorded.clear()
        await counter.add(1, key="k", durability="all")
        await all_ended(recorded, 2)
    assert [line.strip() for line in recorded.tree()[:3]] == ["shoal add (server)", "shoal.queue", "shoal.decide"]
    assert recorded.named("shoal.commit") == []
    assert len(recorded.named("shoal.peer")) == 2


async def test_a_read_that_waits_for_what_its_client_has_seen_shows_it(recorded: Recorded) -> None:
    async with Fleet() as fleet:
        first = store_of(fleet["a"])
        for peer in "bc":
            fleet.wires["a", peer].open.clear()
        await first.space("crew").counter("n").add(1)
        recorded.clear()
        bookmark = first.connection.session.bookmark
        reading = asyncio.create_task(store_of(fleet["b"], bookmark).space("crew").counter("n").value())
        await asyncio.sleep(0.01)
        fleet.wires["a", "b"].open.set()
        assert await reading == 1
    assert recorded.tree() == ["shoal read-counter (server)", "  shoal.queue", "  shoal.follow"]


async def test_two_runs_make_the_same_spans() -> None:
    found: list[list[str]] = []
    for _ in range(2):
        with recording(now_ns=lambda: int(asyncio.get_running_loop().time() * 1e9)) as recorded:
            async with Fleet() as fleet:
                thread = store_of(fleet["a"]).space("crew").thread("t")
                await asyncio.gather(*(thread.step(name, call=partial(int, 7)) for name in ("look", "pay")))
                await all_ended(recorded, 4)
            began = min(span.start_time or 0 for span in recorded.spans)
            found.append([f"{span.name} {(span.start_time or 0) - began}" for span in recorded.spans])
    assert found[0] == found[1]
