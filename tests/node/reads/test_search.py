"""Search without an index: where a text is found, what is left out, and what a page costs."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest

from shoal import values
from shoal.errors import InvalidInput
from shoal.protocol.requests import Hit, Hits, Save, Search
from tests.node.conftest import Bench, Opener


async def page(bench: Bench, text: str, **fields: Any) -> Hits:
    return await bench.node.session().call(Search("crew", text, **fields))


async def found(bench: Bench, text: str, **fields: Any) -> list[tuple[str, str, str]]:
    hits: list[Hit] = []
    after = ""
    while True:
        one = await page(bench, text, after=after, **fields)
        hits += one.items
        if not one.more:
            return [(each.thread, each.place, each.path) for each in hits]
        after = one.cursor


async def filled(bench: Bench) -> None:
    thread = bench.space.thread("ticket-7")
    await thread.save(
        {"messages": [{"role": "user", "content": "Please REFUND me"}], "n": 41},
        metadata={"tags": ["urgent"], "customer": "Straße 9"},
        label="asked-twice",
    )
    await bench.space.thread("other").save({"plan": {"refund later": True}})


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("refund", [("other", "state", "/plan/refund later"), ("ticket-7", "state", "/messages/0/content")]),
        ("TICKET", [("ticket-7", "name", "")]),
        ("twice", [("ticket-7", "label", "")]),
        ("urgent", [("ticket-7", "tag", "/tags/0")]),
        ("strasse", [("ticket-7", "metadata", "/customer")]),
        ("41", [("ticket-7", "state", "/n")]),
        ("nowhere", []),
    ],
)
async def test_a_text_is_found_in_each_place(bench: Bench, text: str, places: list[tuple[str, str, str]]) -> None:
    await filled(bench)
    assert await found(bench, text) == places


async def test_a_search_looks_into_values_of_langgraph(bench: Bench) -> None:
    said = msgpack.packb(["langchain_core.messages.human", "HumanMessage", {"content": "the Needle"}])
    packed = msgpack.packb([msgpack.ExtType(5, said)])
    await bench.node.session().call(Save("crew", "graph", {"messages": packed}, schema="langgraph"))
    one = await page(bench, "needle")
    assert [(each.thread, each.place, each.path) for each in one.items] == [("graph", "state", "/messages/0/value/content")]
    assert one.skipped == 0


async def test_search_in_one_place_leaves_out_others(bench: Bench) -> None:
    await filled(bench)
    assert await found(bench, "t", place="tag") == [("ticket-7", "tag", "/tags/0")]
    assert await found(bench, "refund", place="name") == []


async def test_an_excerpt_shows_what_is_around(bench: Bench) -> None:
    await bench.space.thread("a").save({"t": "x" * 500 + "needle" + "y" * 500})
    [hit] = (await page(bench, "needle")).items
    assert hit.excerpt == f"…{'x' * 60}needle{'y' * 60}…"
    assert hit.checkpoint == (await bench.space.thread("a").load()).id


async def test_secret_fields_are_never_found(bench: Bench) -> None:
    state = {"key": {"token": "hush", "name": "hush-name"}, "whole": "hush"}
    channels = {name: values.encode(value) for name, value in state.items()}
    await bench.node.session().call(Save("crew", "a", channels, secret=["/key/token", "whole"]))
    assert await found(bench, "hush") == [("a", "state", "/key/name")]
    assert await found(bench, "secret") == []


async def test_old_and_deleted_states_are_not_found(bench: Bench) -> None:
    thread = bench.space.thread("a")
    await thread.save({"t": "needle"})
    await thread.save({"t": "gone"})
    assert await found(bench, "needle") == []
    await bench.space.thread("b").save({"t": "needle"})
    await bench.space.thread("b").delete()
    assert await found(bench, "needle") == []


async def test_a_page_looks_at_a_bounded_number_of_threads(open_bench: Opener) -> None:
    bench = open_bench(search_threads_max=3)
    for number in range(8):
        await bench.space.thread(f"t{number}").save({"t": "needle" if number == 7 else ""})
    one = await page(bench, "needle")
    assert (one.items, one.looked, one.more) == ([], 3, True)
    assert await found(bench, "needle") == [("t7", "state", "/t")]


async def test_a_page_looks_at_bounded_bytes(open_bench: Opener) -> None:
    bench = open_bench(search_bytes_max=1000)
    for number in range(5):
        await bench.space.thread(f"t{number}").save({"t": "x" * 900 + "needle"})
    assert (await page(bench, "needle")).looked == 2
    assert len(await found(bench, "needle")) == 5


async def test_a_large_channel_is_left_out_and_counted(open_bench: Opener) -> None:
    bench = open_bench(channel_bytes_max=1000)
    await bench.space.thread("a").save({"large": "x" * 2000 + "needle", "small": "needle"})
    one = await page(bench, "needle")
    assert ([hit.path for hit in one.items], one.skipped) == (["/small"], 1)


@pytest.mark.parametrize("text", ["", "x" * 300])
async def test_an_empty_or_long_text_is_refused(bench: Bench, text: str) -> None:
    with pytest.raises(InvalidInput):
        await page(bench, text)


async def test_python_iterates_over_all_pages(open_bench: Opener) -> None:
    bench = open_bench(search_threads_max=2)
    await filled(bench)
    await bench.space.thread("zebra").save({"t": "refund"})
    assert [hit.thread async for hit in bench.space.search("refund")] == ["other", "ticket-7", "zebra"]
    with pytest.raises(InvalidInput):
        await anext(bench.space.search("refund", place="sad"))  # type: ignore[arg-type]
