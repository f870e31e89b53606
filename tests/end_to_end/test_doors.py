"""What is written at one door is read at the others: client, REST, command line."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing

import shoal
from shoal.client.store import Space, Store
from shoal.client.watching import Change
from tests.cli.conftest import PATIENCE_S
from tests.end_to_end.conftest import Cli, Rest


async def subscribers(store: Store, at_least: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while (await store.status()).connections < at_least:
            await asyncio.sleep(0.01)


async def test_threads(space: Space, rest: Rest, cli: Cli) -> None:
    thread = space.thread("{crew-7}/agent é")
    path = "/threads/%7Bcrew-7%7D%2Fagent%20%C3%A9/checkpoints"
    first = await thread.save({"messages": ["hello"], "raw": b"\x00\xff"}, metadata={"by": "client"})
    seen = await rest("GET", f"{path}/latest")
    assert (seen["id"], seen["state"]["messages"], seen["metadata"]) == (first.id, ["hello"], {"by": "client"})
    # A state that was read as JSON goes back as it was, bytes and all.
    second = await rest("POST", path, {"state": {**seen["state"], "step": 2}, "expect_head": first.id})
    loaded = await thread.load()
    assert (loaded.id, loaded.parents) == (second["id"], (first.id,))
    assert loaded.state == {"messages": ["hello"], "raw": b"\x00\xff", "step": 2}
    (shown,) = await cli("show", thread.name)
    assert (shown["id"], shown["state"]) == (second["id"], {**seen["state"], "step": 2})


async def test_branches(space: Space, rest: Rest) -> None:
    thread = space.thread("t")
    first, second = await thread.save({"n": 0}), await thread.save({"n": 1})
    made = await rest("POST", "/threads/t/branches", {"branch": "what-if", "to": first.id})
    assert made == {"branch": "what-if", "to": first.id, "before": [], "heads": [first.id]}
    moved = await rest("PUT", "/threads/t/branches/main", {"to": first.id, "reason": "r", "by": "b"})
    assert (moved["before"], moved["heads"]) == ([second.id], [first.id])
    assert (await rest("GET", "/threads/t/branches"))["branches"] == {"main": [first.id], "what-if": [first.id]}
    side = await rest("POST", "/threads/t/checkpoints", {"state": {}, "parent": second.id, "on_conflict": "fork"})
    assert set(side["heads"]) == {first.id, side["id"]}
    gone = await rest("DELETE", "/threads/t/branches/what-if")
    assert gone == {"branch": "what-if", "before": [first.id]}
    assert await rest("DELETE", "/threads/t/branches/what-if") == {"branch": "what-if", "before": []}
    assert list((await rest("GET", "/threads/t/branches"))["branches"]) == ["main"]
    assert [event.event["kind"] async for event in thread.journal.read()] == ["rollback", "delete-branch"]


async def test_histories(space: Space, rest: Rest, cli: Cli) -> None:
    thread = space.thread("t", author="planner")
    first = await thread.save({"n": 0}, metadata={"source": "input"})
    second = await thread.save({"n": 1, "list": [1]}, metadata={"source": "loop"})
    for query, expected in (
        ("filter=%7B%22source%22%3A%22loop%22%7D", [second.id]),
        ("filter=%7B%22source%22%3A%7B%22%24ne%22%3A%22loop%22%7D%7D", [first.id]),
        ("author=nobody", []),
        ("limit=1", [second.id]),
    ):
        page = await rest("GET", f"/threads/t/checkpoints?{query}")
        assert [found["id"] for found in page["checkpoints"]] == expected
    then = first.time.isoformat().replace("+00:00", "Z")
    assert (await rest("GET", f"/threads/t/checkpoints/latest?as_of={then}"))["id"] in (first.id, second.id)
    changed = await rest("GET", f"/threads/t/diff?from={first.id}&to=main")
    assert changed["channels"] == {
        "n": [{"op": "replace", "path": "", "before": 0, "after": 1}],
        "list": [{"op": "add", "path": "", "before": None, "after": [1]}],
    }
    assert [found["id"] for found in await cli("log", "t", "--filter", "source=loop")] == [second.id]
    assert (await cli("diff", "t", first.id))[0]["channels"] == changed["channels"]


async def test_branches_in_the_shell(space: Space, cli: Cli) -> None:
    thread = space.thread("t")
    first, second = await thread.save({"n": 0}), await thread.save({"n": 1})
    assert await cli("branch", "t", "side", "--at", first.id) == [{"branch": "side", "heads": [first.id]}]
    assert await cli("rollback", "t", first.id, "--by", "me") == [{"branch": "main", "heads": [first.id]}]
    assert await cli("branch", "t") == [{"branch": "main", "heads": [first.id]}, {"branch": "side", "heads": [first.id]}]
    assert await cli("branch", "t", "side", "--delete", "--yes") == [{"branch": "side", "heads": [first.id]}]
    assert await cli("branch", "t") == [{"branch": "main", "heads": [first.id]}]
    [why] = await cli("why", "t", second.id)
    assert (why["id"], [older["id"] for older in why["earlier"]], why["events"]) == (second.id, [first.id], [])
    [shown] = await cli("show", "t", "--as-of", second.time.isoformat())
    assert shown["id"] in (first.id, second.id)


async def test_documents(space: Space, rest: Rest, cli: Cli) -> None:
    async with await space.document("plan") as mirror:
        mirror.map("tasks")["t1"] = {"done": False}
        await mirror.flush()
        changes = mirror.changes()
        patched = await rest(
            "PATCH", "/documents/plan", [{"op": "add", "path": "/tasks/t2", "value": 2}, {"op": "remove", "path": "/tasks/t1"}]
        )
        assert patched == {"tasks": {"t2": 2}}
        async with asyncio.timeout(PATIENCE_S):
            while mirror.to_py() != patched:
                await anext(changes)
        mirror.text("notes").insert(0, "größe")
    assert await rest("GET", "/documents/plan") == {"tasks": {"t2": 2}, "notes": "größe"}
    assert await cli("doc", "get", "plan") == [{"tasks": {"t2": 2}, "notes": "größe"}]
    assert await rest("PUT", "/documents/plan?author=ada", {"tasks": {"t2": [3]}, "notes": "groß"}) == {
        "tasks": {"t2": [3]},
        "notes": "groß",
    }
    assert await rest("GET", "/documents/plan/conflicts") == {"conflicts": [], "more": False}
    assert [await rest("DELETE", "/documents/plan") for _ in range(2)] == [{"existed": True}, {"existed": False}]


async def test_lost_values_are_told_at_every_door(space: Space, rest: Rest, cli: Cli) -> None:
    async with await space.document("d", author="ada") as one, await space.document("d", author="bob") as other:
        one.map("m")["k"], other.map("m")["k"] = {"one": b"1"}, {"one": b"1"}
        await asyncio.gather(one.flush(), other.flush())
        [lost] = await one.conflicts()
    told = (await rest("GET", "/documents/d/conflicts"))["conflicts"]
    tagged = {"one": {"$type": "bytes", "value": "MQ=="}}
    assert told == [
        {
            "path": ["m", "k"],
            "lost": tagged,
            "lost_by": lost.lost_by,
            "stands": tagged,
            "stands_by": lost.stands_by,
            "wall_ms": round(lost.time.timestamp() * 1000),
        }
    ]
    assert (await cli("doc", "conflicts", "d"))[0]["lost_by"] == lost.lost_by


async def test_counters_and_their_keys(space: Space, rest: Rest, cli: Cli) -> None:
    await space.counter("tokens").add(512, key="call-42")
    assert await rest("POST", "/counters/tokens", {"add": 512, "key": "call-42"}) == {"value": 512, "added": False}
    assert await rest("POST", "/counters/tokens", {"add": -12}) == {"value": 500, "added": True}
    assert await space.counter("tokens").value() == 500
    assert await cli("counter", "get", "tokens") == [{"value": 500}]


async def test_registers_and_their_siblings(space: Space, rest: Rest, cli: Cli) -> None:
    register = space.register("goal")
    await register.set(["reach", "Mars"])
    seen = await rest("GET", "/registers/goal")
    await register.get()
    await register.set("by the client")
    await rest("PUT", "/registers/goal", {"value": "over REST", "context": seen["context"]})
    assert set(await register.siblings()) == {"by the client", "over REST"}
    await register.set("settled")
    assert (await cli("register", "get", "goal"))[0]["value"] == "settled"
    assert (await rest("GET", "/registers/goal"))["value"] == "settled"


async def test_journals_and_their_keys(space: Space, rest: Rest, cli: Cli) -> None:
    journal = space.thread("t").journal
    first = await journal.append({"order": 17}, key="order-17")
    async with aclosing(journal.read(follow=True)) as events:
        assert (await anext(events)).id == first.id
        assert await rest("POST", "/threads/t/events", {"event": {"order": 17}, "key": "order-17"}) == {
            "id": first.id,
            "appended": False,
        }
        await rest("POST", "/threads/t/events", {"event": "over REST"})
        async with asyncio.timeout(PATIENCE_S):
            assert (await anext(events)).event == "over REST"
    assert [event["event"] for event in (await rest("GET", "/threads/t/events"))["events"]] == [{"order": 17}, "over REST"]
    assert [event["event"] for event in await cli("log", "t", "--journal")] == [{"order": 17}, "over REST"]


async def test_consumers_of_a_journal(space: Space, rest: Rest) -> None:
    journal = space.thread("t").journal
    for number in range(3):
        await journal.append(number)
    page = await rest("GET", "/threads/t/events?limit=1")
    acked = await rest("POST", "/threads/t/consumers/billing/ack", {"cursor": page["events"][0]["cursor"]})
    assert (acked["name"], acked["generation"]) == ("billing", 0)
    assert [event.event async for event in journal.consumer("billing").read(follow=False)] == [1, 2]
    (listed,) = (await rest("GET", "/threads/t/consumers"))["consumers"]
    assert (listed["name"], listed["behind"], listed["counted"]) == ("billing", 2, True)
    left = await rest("GET", f"/threads/t/events?after={listed['cursor']}")
    op = {"op": "ack", "thread": "t", "consumer": "billing", "cursor": left["events"][-1]["cursor"]}
    await rest("POST", "/batch", {"writes": [op, {"op": "save", "thread": "t", "state": {"done": 3}}]})
    assert (await rest("GET", "/threads/t/consumers/billing"))["behind"] == 0


async def test_an_inbox(space: Space, rest: Rest) -> None:
    thread = space.thread("t")
    message = {"key": "k", "value": {"n": 1}}
    sent = await rest("POST", "/threads/t/inbox", {"items": [message], "by": "rest"})
    (id,) = sent["ids"]
    assert await rest("POST", "/threads/t/inbox", {"items": [message]}) == {"ids": [id], "added": [False]}
    found = await thread.inbox.next()
    assert found is not None
    assert (found.id, found.value, found.by) == (id, {"n": 1}, "rest")
    page = await rest("GET", "/threads/t/inbox")
    assert [(entry["key"], entry["value"]) for entry in page["entries"]] == [("k", {"n": 1})]
    assert (page["pending"], page["finished"]) == (1, 0)
    taken = {"first": True, "by": "ann", "result": None}
    assert await rest("POST", f"/threads/t/inbox/{id}/take", {"by": "ann"}) == taken
    refused = await rest("POST", f"/threads/t/inbox/{id}/take", {}, status=409)
    assert (refused["code"], refused["by"]) == ("taken", ["ann"])
    shown = await rest("GET", f"/threads/t/inbox/{id}")
    assert [finish["by"] for finish in shown["finishes"]] == ["ann"]
    await rest("GET", f"/threads/t/inbox/{'0' * 64}", status=404)
    again = await thread.inbox.send("next")
    take = {"op": "take", "thread": "t", "id": again.id}
    await rest("POST", "/batch", {"writes": [take, {"op": "save", "thread": "t", "state": {"taken": 1}}]})
    assert (await rest("GET", "/threads/t/inbox?finished=true"))["finished"] == 2


async def test_a_worklist(space: Space, rest: Rest) -> None:
    work = space.thread("t").worklist("files")
    items = [{"key": "a", "value": 1}, {"key": "b", "value": None}]
    assert (await rest("POST", "/threads/t/worklists/files", {"items": items}))["added"] == [True, True]
    assert await work.add({"a": 1, "c": None}) == 1
    found = await work.find("a")
    assert found is not None
    (entry,) = (await rest("GET", "/threads/t/worklists/files?limit=1"))["entries"]
    done = {"result": "ok", "by": "ann"}
    assert await rest("POST", f"/threads/t/worklists/files/items/{entry['key']}/done", done) == {
        "first": True,
        "by": "ann",
        "result": "ok",
    }
    assert [item.key async for item in work.pending()] == ["b", "c"]
    shown = {"name": "files", "pending": 2, "finished": 1, "dead": 0}
    assert (await rest("GET", "/threads/t/worklists"))["worklists"] == [shown]


async def test_a_request_waits_for_an_event(space: Space, store: Store, rest: Rest) -> None:
    journal = space.thread("t").journal
    await journal.append("first")
    page = await rest("GET", "/threads/t/events?wait=60")
    assert [event["event"] for event in page["events"]] == ["first"]
    before = (await store.status()).connections
    waiting = asyncio.ensure_future(rest("GET", f"/threads/t/events?after={page['cursor']}&wait=60"))
    await subscribers(store, before + 1)
    await journal.append("second")
    async with asyncio.timeout(PATIENCE_S):
        assert [event["event"] for event in (await waiting)["events"]] == ["second"]
    over = await rest("GET", f"/threads/t/events?after={(await rest('GET', '/threads/t/events'))['cursor']}&wait=0.01")
    assert over["events"] == []


async def test_batches(space: Space, rest: Rest) -> None:
    async with space.batch() as batch:
        batch.thread("{t}/a").save({"n": 1})
        batch.counter("{t}/n").add(5)
    await rest(
        "POST",
        "/batch",
        {"writes": [{"op": "add", "counter": "{t}/n", "add": 5}, {"op": "save", "thread": "{t}/a", "state": {}}]},
    )
    assert (await rest("GET", "/counters/%7Bt%7D%2Fn"))["value"] == await space.counter("{t}/n").value() == 10
    assert len([checkpoint async for checkpoint in space.thread("{t}/a").history()]) == 2


async def test_every_door_can_watch(store: Store, space: Space, rest: Rest, cli: Cli) -> None:
    async def over_client() -> tuple[str, str, str]:
        async with aclosing(space.watch(kinds=["thread"])) as changes:
            async for change in changes:
                assert isinstance(change, Change)
                return change.name, change.what, change.id
        raise AssertionError("the watch ended")

    async def over_rest() -> tuple[str, str, str]:
        async with rest.http.get(rest.path + "/watch", params={"kind": "thread"}) as stream:
            async for line in stream.content:
                if line.startswith(b"data: ") and line != b"data: {}\n":
                    change = json.loads(line.removeprefix(b"data: "))
                    return change["name"], change["what"], change["id"]
        raise AssertionError("the stream ended")

    async def over_cli() -> tuple[str, str, str]:
        (change,) = await cli("watch", "--limit", "1")
        return change["name"], change["what"], change["id"]

    before = (await store.status()).connections
    watching = asyncio.gather(over_client(), over_rest(), over_cli())
    await subscribers(store, before + 3)
    saved = await rest("POST", "/threads/t/checkpoints", {"state": {"n": 1}})
    assert set(await asyncio.wait_for(watching, PATIENCE_S)) == {("t", "save", saved["id"])}


async def test_all_doors_at_once_lose_nothing_and_apply_nothing_twice(url: str, space: Space, rest: Rest, cli: Cli) -> None:
    async def over_client(agent: int) -> None:
        async with shoal.connect(url) as own:
            crew = own.space(space.name)
            thread = crew.thread("shared")
            for n in range(20):
                await asyncio.gather(
                    crew.counter("n").add(1, key=f"{agent}-{n}"),
                    crew.thread("j").journal.append([agent, n], key=f"{agent}-{n}"),
                    thread.save({"agent": agent, "n": n}, on_conflict="fork"),
                )

    async def over_rest() -> None:
        for n in range(20):
            # The keys of agent 0: whoever comes first counts.
            await rest("POST", "/counters/n", {"add": 1, "key": f"0-{n}"})
            await rest("POST", "/threads/j/events", {"event": [0, n], "key": f"0-{n}"})
            await rest("POST", "/threads/shared/checkpoints", {"state": {"agent": "rest", "n": n}})

    async def over_cli() -> None:
        while (await cli("counter", "get", "n")) != [{"value": 60}]:
            pass

    await space.counter("n").add(0)
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(over_client(agent) for agent in range(3)), over_rest(), over_cli())
    events = [tuple(event.event) async for event in space.thread("j").journal.read()]
    assert sorted(events) == [(agent, n) for agent in range(3) for n in range(20)]
    assert len(await all_checkpoints(space, "shared")) == 80


async def all_checkpoints(space: Space, name: str) -> set[str]:
    """Of every fork: back from each head, by first parents."""
    found: set[str] = set()
    for head in (await space.thread(name).heads())["main"]:
        found.add(head)
        async for checkpoint in space.thread(name).history(before=head):
            if checkpoint.id in found:
                break
            found.add(checkpoint.id)
    return found


async def test_a_label_is_given_and_found_at_every_door(space: Space, rest: Rest, cli: Cli) -> None:
    body = {"state": {"step": 1}, "label": "before-deploy", "branch": "labelled"}
    saved = await rest("POST", "/threads/labelled/checkpoints", body)
    found = await rest("GET", "/threads/labelled/checkpoints/latest?label=before-deploy")
    assert (found["id"], found["label"], found["state"]) == (saved["id"], "before-deploy", {"step": 1})
    (shown,) = await cli("show", "labelled", "--label", "before-deploy")
    assert (shown["id"], shown["label"]) == (saved["id"], "before-deploy")
    thread = space.thread("labelled")
    assert [label async for label in thread.labels()] == [("before-deploy", saved["id"])]
    assert (await thread.load(label="before-deploy")).label == "before-deploy"
