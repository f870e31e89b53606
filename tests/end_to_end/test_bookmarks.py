"""A bookmark goes through every door: what one agent has seen, the next is shown, or told that it cannot be."""

from __future__ import annotations

from typing import Any

import aiohttp
import pytest

import shoal
from shoal.client.store import Store
from shoal.crdt.dot import Origin, VersionVector
from shoal.errors import BookmarkLost, InvalidValue
from shoal.protocol.bookmark import PARTITIONS_MAX, Bookmark

COUNTER = "/v1/spaces/bookmarks/counters/c"


async def read(http: aiohttp.ClientSession, bookmark: str, query: str = "") -> tuple[int, str, Any]:
    async with http.get(COUNTER + query, headers={"Shoal-Bookmark": bookmark}) as response:
        return response.status, response.headers.get("Shoal-Bookmark", ""), await response.json(content_type=None)


def of_another_cluster() -> str:
    """It names what no node here has ever held."""
    bookmark = Bookmark()
    for partition in range(PARTITIONS_MAX):
        bookmark.note(partition, VersionVector({Origin(b"elsewhere" + bytes(7)): 1}))
    return bookmark.text()


async def test_a_stores_writes_are_in_the_bookmark_for_rest(store: Store, http: aiohttp.ClientSession) -> None:
    assert Bookmark.parse(store.bookmark) == Bookmark()
    value = await store.space("bookmarks").counter("c").add(1)
    status, told, found = await read(http, store.bookmark)
    assert (status, found["value"]) == (200, value)
    assert Bookmark.parse(told) == Bookmark.parse(store.bookmark) != Bookmark()


async def test_bookmarks_of_rest_can_be_handed_to_stores(store: Store, http: aiohttp.ClientSession) -> None:
    async with http.post(COUNTER, json={"add": 1}) as response:
        told = response.headers["Shoal-Bookmark"]
    store.observe(told)
    assert Bookmark.parse(store.bookmark) == Bookmark.parse(told) != Bookmark()
    assert await store.space("bookmarks").counter("c").value() >= 1


async def test_a_bookmark_that_no_node_can_meet_is_said_and_not_guessed(url: str) -> None:
    async with shoal.connect(url) as stranger:
        counter = stranger.space("bookmarks").counter("c")
        stranger.observe(of_another_cluster())
        for refused in (counter.value, counter.add):
            with pytest.raises(BookmarkLost):
                await refused()
        before = Bookmark.parse(stranger.bookmark)
        seen = await counter.value(stale=True)
        # It let go of this partition alone, at the node and here.
        after = Bookmark.parse(stranger.bookmark)
        assert sum(vector != after.vector(number) for number, vector in before) == 1
        assert await counter.value() == seen
        with pytest.raises(BookmarkLost):
            await stranger.space("bookmarks").counter("d").value()


async def test_rest_says_so_too(http: aiohttp.ClientSession) -> None:
    bookmark = Bookmark()
    for number, vector in list(Bookmark.parse(of_another_cluster()))[:100]:
        bookmark.note(number, vector)
    lost = bookmark.text()
    statuses: dict[int, str] = {}
    for name in (f"c{number}" for number in range(64)):
        async with http.get(f"/v1/spaces/bookmarks/counters/{name}", headers={"Shoal-Bookmark": lost}) as response:
            statuses.setdefault(response.status, name)
    assert set(statuses) == {200, 409}  # Those in other partitions are not concerned.
    async with http.get(
        f"/v1/spaces/bookmarks/counters/{statuses[409]}?stale=true", headers={"Shoal-Bookmark": lost}
    ) as response:
        assert response.status == 200
        assert Bookmark.parse(response.headers["Shoal-Bookmark"]) != bookmark


async def test_a_malformed_bookmark_is_refused_at_every_door(store: Store, http: aiohttp.ClientSession) -> None:
    with pytest.raises(InvalidValue):
        store.observe("garbage")
    status, _, problem = await read(http, "garbage")
    assert (status, problem["code"], problem["written"]) == (400, "invalid-value", "no")
