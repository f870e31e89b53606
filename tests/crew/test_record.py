"""The record of a crew in the store: changes one after another, and what a lost holder has left."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from msgspec.structs import replace

import shoal
from shoal.crew.declaration import CrewRecord, Declared, Taker, to_channels
from shoal.crew.seat import THREAD, Record
from shoal.errors import CrewConflict, NoQuorum
from shoal.kinds.thread.flows.checkpoints import encode_channels, encode_metadata
from shoal.protocol.requests import Save
from shoal.testing.machines import run
from simulation.world.fleet import Fleet

AGENT = Declared(count=1, initial=1, version=1, ttl=10.0, tries=3)


def record(nodes: Fleet, name: str) -> Record:
    store = nodes[name].store()
    return Record(store, store.space("s"), holder=name)


def fleet() -> Fleet:
    return Fleet("abc", quorum_timeout_s=1.0, quorum_register_retry_s=0.05)


def added(name: str) -> CrewRecord:
    return CrewRecord(agents={name: AGENT})


def with_agent(name: str, found: CrewRecord) -> CrewRecord:
    return replace(found, agents={**found.agents, name: AGENT})


def with_machine(taker: Taker, found: CrewRecord) -> CrewRecord:
    return replace(found, machines={"m": taker})


@pytest.mark.answers("agents-have-one-driver")
def test_no_change_is_lost() -> None:
    async def main() -> None:
        async with fleet() as nodes:
            records = [record(nodes, name) for name in "abc"]
            names = [f"a{number}" for number in range(12)]
            changes = [records[nth % 3].change(partial(with_agent, name)) for nth, name in enumerate(names)]
            await asyncio.gather(*changes)
            assert sorted((await records[0].settled()).agents) == sorted(names)

    run(main())


def test_a_change_that_changes_nothing_writes_nothing() -> None:
    async def main() -> None:
        async with fleet() as nodes:
            one = record(nodes, "a")
            await one.change(lambda _: added("x"))
            await one.change(lambda found: found)
            thread = nodes["a"].store().space("s").thread(THREAD)
            assert len([saved async for saved in thread.history()]) == 1

    run(main())


def test_the_head_with_the_greatest_fencing_number_counts_and_the_next_change_ends_the_fork() -> None:
    async def main() -> None:
        async with fleet() as nodes:
            one = record(nodes, "a")
            await one.change(lambda _: added("first"))
            store = nodes["a"].store()
            thread = store.space("s").thread(THREAD)
            first = await thread.load()
            await one.change(lambda found: with_agent("second", found))
            # What a holder with the number 1 had written before its node died arrives later than what number 2 has saved.
            stale = Save(
                "s",
                THREAD,
                encode_channels(to_channels(added("stale"))),
                encode_metadata({"fence": 1}),
                parent=first.id,
                fork=True,
            )
            await store.connection.write(stale, key=None, durability="quorum")
            await nodes.converged()
            assert len((await thread.heads())["main"]) == 2
            assert sorted((await record(nodes, "b").read()).agents) == ["first", "second"]
            await record(nodes, "c").change(lambda found: with_agent("third", found))
            await nodes.converged()
            assert len((await thread.heads())["main"]) == 1
            assert sorted((await one.read()).agents) == ["first", "second", "third"]

    run(main())


def test_without_a_quorum_a_record_is_not_settled() -> None:
    async def main() -> None:
        async with fleet() as nodes:
            one = record(nodes, "a")
            await one.change(lambda _: added("x"))
            await nodes.isolate("a")
            with pytest.raises(NoQuorum, match="Nothing was written"):
                await one.settled()
            assert (await one.read()).agents == {"x": AGENT}

    run(main())


def test_a_thread_that_is_no_record_is_refused() -> None:
    async def main() -> None:
        async with fleet() as nodes:
            await nodes["a"].store().space("s").thread(THREAD).save({"agents": "mine"})
            with pytest.raises(CrewConflict, match="has another content"):
                await record(nodes, "a").read()
            with pytest.raises(CrewConflict):
                await shoal.Crew(nodes["a"].store(), "s").scale("x", 1)

    run(main())


def test_old_records_are_pruned() -> None:
    async def main() -> None:
        async with fleet() as nodes:
            one = record(nodes, "a")
            for number in range(130):
                taker = Taker(capacity=number, versions={})
                await one.change(partial(with_machine, taker))
            thread = nodes["a"].store().space("s").thread(THREAD)
            assert len([saved async for saved in thread.history()]) == 64 + 2

    run(main())
