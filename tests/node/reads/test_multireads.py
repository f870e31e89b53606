"""Reads of several objects: as of one vector, each with its own end, and bounded."""

from __future__ import annotations

import asyncio

import pytest

from shoal import values
from shoal.errors import InvalidName, SpansPartitions, TooLarge
from shoal.protocol import requests
from shoal.protocol.requests import MultiRead, MultiReply, Refused
from tests.node.conftest import Bench, Opener

pack = values.encode


def reads(n: int) -> list[requests.ReadCounter]:
    return [requests.ReadCounter("s", f"{{t}}/{at}") for at in range(n)]


async def call(bench: Bench, request: requests.AnyRequest) -> requests.AnyReply:
    return await bench.node.session().call(request)


async def answers(bench: Bench, request: MultiRead) -> list[object]:
    reply = await call(bench, request)
    assert isinstance(reply, MultiReply)
    return list(reply.replies)


async def test_a_batch_is_seen_whole_or_not_at_all(bench: Bench) -> None:
    both = MultiRead([requests.ReadCounter("s", "{t}/a"), requests.ReadRegister("s", "{t}/b")])

    async def write() -> None:
        for n in range(1, 60):
            await call(bench, requests.Batch([requests.Add("s", "{t}/a", 1), requests.Assign("s", "{t}/b", pack(n))]))

    writing = asyncio.create_task(write())
    seen: list[tuple[int, int]] = []
    while not writing.done():
        counter, register = await answers(bench, both)
        assert isinstance(counter, requests.CounterValue)
        assert isinstance(register, requests.Siblings)
        latest = register.siblings[0].value if register.siblings else pack(0)
        seen.append((counter.value, values.decode(latest)))
        await asyncio.sleep(0)
    await writing
    assert [one for one, other in seen if one != other] == []
    assert len(set(seen)) > 1


async def test_one_that_fails_leaves_the_others_their_answers(bench: Bench) -> None:
    await call(bench, requests.Add("s", "{t}/a", 5))
    refused, counter, heads = await answers(
        bench,
        MultiRead([requests.Load("s", "{t}/x"), requests.ReadCounter("s", "{t}/a"), requests.Heads("s", "{t}/x")]),
    )
    assert isinstance(refused, Refused)
    assert (refused.code, counter, heads) == ("not-found", requests.CounterValue(5), requests.Branches({}))


async def test_objects_of_two_partitions_are_refused(bench: Bench) -> None:
    with pytest.raises(SpansPartitions, match=r"'\{crew-7\}/planner'"):
        await call(bench, MultiRead([requests.ReadCounter("s", "a"), requests.ReadCounter("s", "b")]))
    with pytest.raises(SpansPartitions):
        await call(bench, MultiRead([]))


async def test_a_name_that_is_not_legal_is_refused_as_a_whole(bench: Bench) -> None:
    with pytest.raises(InvalidName):
        await call(bench, MultiRead([requests.ReadCounter("s", "{t}"), requests.ReadCounter("s", "\n{t}")]))


async def test_they_are_bounded_in_number_and_in_bytes(open_bench: Opener) -> None:
    bench = open_bench(multi_reads_max=3, request_bytes_max=5000)
    assert len(await answers(bench, MultiRead([*reads(3)]))) == 3
    with pytest.raises(TooLarge, match="at most 3"):
        await call(bench, MultiRead([*reads(4)]))
    for name in ("{t}/a", "{t}/b"):
        await call(bench, requests.Save("s", name, {"c": pack("x" * 3000)}))
    one = requests.Load("s", "{t}/a")
    assert len(await answers(bench, MultiRead([one]))) == 1
    with pytest.raises(TooLarge, match="5000"):
        await call(bench, MultiRead([one, requests.Load("s", "{t}/b")]))
