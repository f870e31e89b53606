"""Who read what: each read in a space whose reads are logged is noted before it is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import shoal
from shoal.access.reading import READS, ReadLog
from shoal.errors import Forbidden, ReadOnly
from shoal.names import RESERVED
from shoal.protocol.requests import Append
from tests.access.conftest import Mint, Serve, Served


async def noted(served: Served, mint: Mint) -> list[dict[str, Any]]:
    async with shoal.connect(served.url, token=mint.make("*:admin").text) as store:
        return [event.event async for event in store.space(RESERVED).thread(READS).journal.read()]


async def test_each_read_of_a_logged_space_is_noted_with_who_and_what(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="patients-*, hr")
    made = mint.make("*:read,write", author="planner")
    async with shoal.connect(served.url, token=made.text) as store:
        space = store.space("patients-7")
        await space.thread("intake").save({"step": 1})
        await space.thread("intake").load()
        await space.counter("n").value()
        await store.space("crew").counter("n").value()
        await store.space("hr").register("lead").get()
    entries = await noted(served, mint)
    assert {(each["by"], each["token"]) for each in entries} == {("planner", made.token.id)}
    read = [tuple(found) for each in entries for found in each["reads"]]
    assert ("load", "patients-7", "intake") in read
    assert {space for _, space, _ in read} == {"patients-7", "hr"}
    assert [name for tag, space, name in read if tag == "read-counter"] == ["n"]


async def test_a_watch_is_noted_when_it_begins(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="*")
    async with shoal.connect(served.url, token=mint.make("crew:read").text) as store:
        watching = store.space("crew").watch()
        first = asyncio.ensure_future(anext(watching))
        async with asyncio.timeout(30):
            while ["watch", "crew"] not in [found[:2] for each in await noted(served, mint) for found in each["reads"]]:
                await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_what_is_forbidden_is_not_noted_and_nothing_is_noted_by_default(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="*")
    async with shoal.connect(served.url, token=mint.make("crew:write", author="forbidden").text) as store:
        with pytest.raises(Forbidden):
            await store.space("crew").counter("n").value()
    assert [each for each in await noted(served, mint) if each["by"] == "forbidden"] == []
    plain = await serve(token_keys=mint.keys)
    async with shoal.connect(plain.url, token=mint.make("crew:read").text) as store:
        await store.space("crew").counter("n").value()
    assert await noted(plain, mint) == []


async def test_what_cannot_be_noted_is_not_read(mint: Mint, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew")
    assert served.access is not None
    reads = served.access.gate.reads
    assert isinstance(reads, ReadLog)
    call = reads._session.call

    async def failing(request: Any, /, **named: Any) -> Any:
        if isinstance(request, Append):
            raise ReadOnly("the disk is full. Nothing was written.")
        return await call(request, **named)

    class Failing:
        def __init__(self) -> None:
            self.call = failing

    monkeypatch.setattr(reads, "_session", Failing())
    async with shoal.connect(
        served.url, token=mint.make("*:read").text, config=shoal.Config(request_timeout_s=0.5, reach_timeout_s=5.0)
    ) as store:
        with pytest.raises(shoal.errors.ShoalError) as caught:
            await store.space("crew").counter("n").value()
        assert caught.value.written == "no"


async def test_reads_of_several_objects_at_once_are_one_entry(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew")
    token = mint.make("*:read", author="planner").text
    async with shoal.connect(served.url, token=token) as store, store.space("crew").read() as read:
        read.counter("{t}n").value()
        read.counter("{t}m").value()
    [entry] = [each for each in await noted(served, mint) if each["by"] == "planner"]
    assert [found[1:] for found in entry["reads"]] == [["crew", "{t}n"], ["crew", "{t}m"]]


async def test_the_log_is_bounded(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew", audit_keep_s=7200.0)
    async with shoal.connect(served.url, token=mint.make("*:admin").text) as store:
        await store.space("crew").counter("n").value()
        found = (await store.space(RESERVED).thread(READS).journal.retention()).older_than
    assert found is not None
    assert found.total_seconds() == 7200
