"""Watching over a fail-over, over HTTP and in the shell: each durable change once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import shoal
from chaos.ports import free_ports
from shoal.client.store import Space, Store
from shoal.client.watching import Change
from shoal.config import Config
from tests.cli.conftest import PATIENCE_S, served
from tests.end_to_end.conftest import Cli, Rest


async def seen(changes: AsyncIterator[Change | shoal.Reset], names: list[str], count: int) -> None:
    while len(names) < count:
        change = await anext(changes)
        assert isinstance(change, Change)
        names.append(change.name)


@pytest.mark.answers("watcher-misses-changes-made-while-it-was-away")
async def test_a_node_is_killed_under_a_watcher_and_each_change_is_seen_once(tmp_path: Path) -> None:
    addresses = [f"127.0.0.1:{port}" for port in free_ports(3)]
    join = ",".join(addresses)
    async with AsyncExitStack() as stack:
        nodes = [
            stack.enter_context(served(tmp_path / str(n), "--listen", address, "--join", join))
            for n, address in enumerate(addresses)
        ]
        urls = [url for _, url in nodes]
        watching = (await stack.enter_async_context(shoal.connect(",".join(urls), in_order=True))).space("crew")
        first = (await stack.enter_async_context(shoal.connect(urls[0], durability="quorum"))).space("crew")
        others = [(await stack.enter_async_context(shoal.connect(url))).space("crew") for url in urls[1:]]
        async with asyncio.timeout(PATIENCE_S), aclosing(watching.watch(kinds=["counter"])) as changes:
            names: list[str] = []
            begun = asyncio.ensure_future(seen(changes, names, 20))
            # A watch tells what comes from then on: until it has begun, nothing is promised.
            warm = 0
            while not names:
                await first.counter(f"warm-{warm}").add(1)
                warm += 1
            for n in range(20):
                await first.counter(f"first-{n}").add(1)
            await begun
            killed = asyncio.ensure_future(asyncio.to_thread(nodes[0][0].kill))
            for n in range(100):
                await others[n % 2].counter(f"other-{n}").add(1)
            await killed
            wanted = {f"first-{n}" for n in range(20)} | {f"other-{n}" for n in range(100)}
            while not wanted <= set(names):
                await seen(changes, names, len(names) + 1)
            for n in range(5):
                await others[0].counter(f"last-{n}").add(1)
            await seen(changes, names, len(names) + 5)
        assert len(names) == len(set(names))
        assert set(names[-5:]) == {f"last-{n}" for n in range(5)}


async def test_a_watcher_that_is_slow_to_take_goes_on_from_the_log(tmp_path: Path) -> None:
    small = Config(subscription_bytes_max=2000)
    with served(tmp_path / "state") as (_, url):
        async with shoal.connect(url, config=small) as slow, shoal.connect(url) as store:
            space = store.space("crew")
            async with asyncio.timeout(PATIENCE_S), aclosing(slow.space("crew").watch(kinds=["counter"])) as changes:
                first = asyncio.ensure_future(anext(changes))
                warm = 0
                while not first.done():
                    await space.counter(f"warm-{warm}").add(1)
                    warm += 1
                change = await first
                assert isinstance(change, Change)
                names = [change.name]
                for n in range(300):  # Many times what has a place here.
                    await space.counter(f"n-{n}").add(1)
                while len([name for name in names if name.startswith("n-")]) < 300:
                    await seen(changes, names, len(names) + 1)
            assert len(names) == len(set(names))


# ── over HTTP ─────────────────────────────────────────────────────────────────


@pytest.fixture
def space(store: Store, request: pytest.FixtureRequest) -> Space:
    return store.space(request.node.originalname)


@pytest.fixture
def rest(http: aiohttp.ClientSession, space: Space) -> Rest:
    return Rest(http, space.name)


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, str, Any]]:
    """Name, id and data of each event."""
    fields: dict[str, str] = {}
    async for line in response.content:
        text = line.decode().rstrip("\n")
        if text:
            name, _, value = text.partition(": ")
            fields[name] = value
        elif "event" in fields:
            yield fields["event"], fields.get("id", ""), json.loads(fields["data"])
            fields = {}


async def taken(rest: Rest, count: int, *, after: str = "", query: str = "", begun: asyncio.Event | None = None) -> list[Any]:
    """So many events of a stream, and then it is left."""
    headers = {"Last-Event-ID": after} if after else {}
    found: list[Any] = []
    async with asyncio.timeout(PATIENCE_S), rest.http.get(f"{rest.path}/watch{query}", headers=headers) as response:
        assert response.status == 200, await response.text()
        async for event in events(response):
            found.append(event)
            if event[0] == "began" and begun is not None:
                begun.set()
            if len(found) == count:
                break
    return found


async def test_a_stream_goes_on_where_a_browser_left_it(space: Space, rest: Rest) -> None:
    begun = asyncio.Event()
    taking = asyncio.create_task(taken(rest, 3, query="?kinds=counter,register", begun=begun))
    await begun.wait()
    for n in range(5):
        await space.counter(f"n{n}").add(1)
        await space.thread(f"t{n}").save({})
    began, *first = await taking
    assert (began[0], [data["name"] for _, _, data in first]) == ("began", ["n0", "n1"])
    await space.register("r").set(1)
    rest_of = await taken(rest, 4, after=first[-1][1], query="?kinds=counter,register")
    assert sorted((kind, data["name"]) for kind, _, data in rest_of) == [
        *(("change", f"n{n}") for n in (2, 3, 4)),
        ("change", "r"),
    ]
    again = await taken(rest, 1, query=f"?kinds=register&after={first[-1][1]}")
    assert [data["name"] for _, _, data in again] == ["r"]
    whole = await taken(rest, 6, after=began[1], query="?kinds=counter,register")
    assert {data["name"] for _, _, data in whole} == {*(f"n{n}" for n in range(5)), "r"}


@pytest.mark.parametrize(("query", "field"), [("?kinds=planet", None), ("?after=garbage", None), ("?kind=planet", "kind")])
async def test_a_bad_watch_is_a_problem(rest: Rest, query: str, field: str | None) -> None:
    problem = await rest("GET", f"/watch{query}", status=400)
    assert problem["code"] in ("invalid-input", "invalid-value")
    assert problem.get("field") == field


async def test_the_shell_goes_on_after_a_bookmark(space: Space, cli: Cli) -> None:
    async with aclosing(space.watch()) as changes:
        first = asyncio.ensure_future(anext(changes))
        while not first.done():
            await space.counter("a").add(1)
            await asyncio.sleep(0)
        bookmark = (await first).bookmark
    await space.counter("b").add(1)
    await space.thread("t").save({})
    (only,) = await cli("watch", "--kind", "thread", "--after", bookmark, "-n", "1")
    assert (only["name"], only["what"]) == ("t", "save")


@pytest.fixture
def cli(url: str, space: Space) -> Cli:
    return Cli(url, space.name)
