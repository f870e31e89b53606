"""What a thread can do from Python, over HTTP and in the shell: merges, undo, edits, audits, exports, replays, loops."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

import shoal
from shoal import Schema, values
from shoal.client.store import Space, Store
from shoal.errors import HeadMoved
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.end_to_end.conftest import Cli, Rest
from tests.support import forked


@pytest.fixture
def space(store: Store, request: pytest.FixtureRequest) -> Space:
    return store.space(request.node.name[:60].rstrip("-["))


@pytest.fixture
def rest(http: aiohttp.ClientSession, space: Space) -> Rest:
    return Rest(http, space.name)


@pytest.fixture
def cli(url: str, space: Space) -> Cli:
    return Cli(url, space.name)


async def fork(space: Space) -> tuple[str, str, str]:
    """A branch of two heads, whose lists fit together, and whose plans do not."""
    one, other = space.thread("t"), space.thread("t")
    base = await one.save({"plan": 0, "log": ["a"], "same": 1})
    await other.load()
    left = await one.save({"plan": 1, "log": ["a", "b"], "same": 1})
    right = await other.save({"plan": 2, "log": ["a", "c"], "same": 1}, on_conflict="fork")
    return base.id, left.id, right.id


async def keyed(rest: Rest, path: str, body: Any, key: str) -> tuple[int, Any]:
    async with rest.http.post(rest.path + path, json=body, headers={"Idempotency-Key": key}) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_only_overwrite_replaces_a_state_not_seen(store: Store, space: Space, rest: Rest, cli: Cli) -> None:
    """At each door: over HTTP there is no handle, and a save that names nothing builds on the newest state."""
    first = await space.thread("t").save({"n": 1})
    with pytest.raises(HeadMoved, match="overwrite=True"):
        await space.thread("t").save({"n": 2})
    refused = await rest("POST", "/threads/t/checkpoints", {"state": {"n": 2}, "parent": ""}, status=412)
    assert (refused["code"], refused["heads"], refused["written"]) == ("head-moved", [first.id], "no")
    over_http = await rest("POST", "/threads/t/checkpoints", {"state": {"n": 3}})
    assert over_http["parents"] == [first.id]
    (in_the_shell,) = await cli("save", "t", '{"n": 4}', "--overwrite")
    assert (await space.thread("t").load()).id == in_the_shell["id"]
    assert [checkpoint.id async for checkpoint in space.thread("t").history()][1:] == [over_http["id"], first.id]


async def test_the_shell_does_not_replace_a_state_unasked(url: str, space: Space) -> None:
    await space.thread("t").save({"n": 1})
    command = ["-m", "shoal", "save", "t", '{"n": 2}', "--url", url, "--space", space.name]
    ended = await asyncio.to_thread(forked.run, command, clean_environment(), timeout=PATIENCE_S)
    assert ended.returncode != 0
    assert "--overwrite" in ended.stderr
    assert (await space.thread("t").load()).state == {"n": 1}


@pytest.mark.answers("restarted-agent-replaces-an-unloaded-state")
async def test_many_clients_change_one_thread_at_once_and_nothing_is_lost(url: str, space: Space) -> None:
    async def work(number: int) -> None:
        def count(state: dict[str, Any]) -> None:
            state["count"] = state.get("count", 0) + 1

        async with shoal.connect(url) as own:
            await own.space(space.name).thread("t").append("log", number)
            await own.space(space.name).thread("t").modify(count)

    async with asyncio.timeout(PATIENCE_S):
        await asyncio.gather(*(work(number) for number in range(20)))
    found = await space.thread("t").load()
    assert (sorted(found.state["log"]), found.state["count"], found.forked) == (list(range(20)), 20, False)


async def test_a_merge_over_http(space: Space, rest: Rest) -> None:
    base, left, right = await fork(space)
    seen = await rest("GET", "/threads/t/merge")
    assert (sorted(seen["heads"]), seen["base"]) == (sorted([left, right]), base)
    assert seen["state"]["same"] == 1
    assert sorted(seen["state"]["log"]) == ["a", "b", "c"]
    assert {name: (one["base"], sorted(one["sides"]), one["removed"]) for name, one in seen["conflicts"].items()} == {
        "plan": (0, [1, 2], False)
    }
    refused = await rest("POST", "/threads/t/merge", {}, status=409)
    assert (refused["code"], refused["channels"], refused["written"]) == ("merge-conflict", ["plan"], "no")
    unseen = await rest("POST", "/threads/t/merge", {"resolve": {"plan": 3}}, status=400)
    assert unseen["field"] == "heads"
    both = await rest("POST", "/threads/t/merge", {"resolve": {"plan": 3}, "remove": ["plan"]}, status=400)
    assert both["field"] == "remove"
    assert len((await space.thread("t").heads())["main"]) == 2
    body = {"heads": seen["heads"], "resolve": {"plan": 3}, "metadata": {"why": "both"}, "author": "ana"}
    made = await keyed(rest, "/threads/t/merge", body, "merge-1")
    assert (made[0], set(made[1]["parents"]), made[1]["heads"]) == (200, {left, right}, [made[1]["id"]])
    # Whoever has not had the answer asks again; and nothing is written once more.
    assert (await keyed(rest, "/threads/t/merge", body, "merge-1"))[1]["id"] == made[1]["id"]
    assert (await rest("POST", "/threads/t/merge", {}))["id"] == made[1]["id"]
    joined = await space.thread("t").load()
    assert (joined.id, joined.state["plan"], joined.author, joined.metadata) == (made[1]["id"], 3, "ana", {"why": "both"})
    await space.thread("t").append("log", "later")
    late = await rest("POST", "/threads/t/merge", {**body, "heads": [left, right]}, status=412)
    assert late["code"] == "head-moved"


async def test_decisions_of_a_merge_need_all_heads_to_be_seen(space: Space, rest: Rest) -> None:
    _, left, right = await fork(space)
    third = space.thread("t")
    await third.load(left)
    unseen = await third.save({"plan": 3, "log": ["a", "b"], "same": 1}, on_conflict="fork")
    fourth = space.thread("t")
    await fourth.load(left)
    await fourth.save({"plan": 4, "log": ["a", "b"], "same": 1}, on_conflict="fork")
    heads = (await space.thread("t").heads())["main"]
    assert len(heads) == 3
    assert right in heads
    for missing in heads:
        body = {"heads": [id for id in heads if id != missing], "resolve": {"plan": 9}}
        refused = await rest("POST", "/threads/t/merge", body, status=412)
        assert (refused["code"], missing in refused["detail"]) == ("head-moved", True)
    assert set((await space.thread("t").heads())["main"]) == set(heads)
    assert unseen.id in heads
    await rest("POST", "/threads/t/merge", {"heads": heads, "resolve": {"plan": 9}})
    assert len((await space.thread("t").heads())["main"]) == 1


async def test_a_merge_that_removes_a_channel(space: Space, rest: Rest) -> None:
    _, left, right = await fork(space)
    await rest("POST", "/threads/t/merge", {"heads": [left, right], "remove": ["plan"]})
    assert sorted((await space.thread("t").load()).state) == ["log", "same"]


async def test_a_merge_in_the_shell(space: Space, cli: Cli) -> None:
    await fork(space)
    (made,) = await cli("merge", "t", "--resolve", 'plan={"step": 2}', "--by", "ana")
    assert (len(made["parents"]), made["author"]) == (2, "ana")
    assert (await space.thread("t").load()).state["plan"] == {"step": 2}


async def test_undo_and_redo_over_http(space: Space, rest: Rest) -> None:
    thread = space.thread("t")
    for n in range(3):
        await thread.save({"n": n})
    status, undone = await keyed(rest, "/threads/t/undo", {"author": "ana"}, "undo-1")
    assert status == 200
    assert await keyed(rest, "/threads/t/undo", {"author": "ana"}, "undo-1") == (200, undone)
    found = await space.thread("t").load()
    assert (found.id, found.state, found.author) == (undone["id"], {"n": 1}, "ana")
    await rest("POST", "/threads/t/redo", {})
    assert (await space.thread("t").load()).state == {"n": 2}
    await rest("POST", "/threads/t/undo", {"count": 2})
    assert (await space.thread("t").load()).state == {"n": 0}
    assert (await rest("POST", "/threads/t/undo", {"count": 9}, status=404))["written"] == "no"
    assert (await rest("POST", "/threads/t/undo", {"count": 0}, status=400))["field"] == "count"
    assert (await rest("POST", "/threads/t/undo", {"count": 2, "checkpoint": found.id}, status=400))["field"] == "count"
    page = await rest("GET", "/threads/t/mutations?limit=2")
    assert ([one["op"] for one in page["mutations"]], page["more"]) == (["add", "replace"], True)
    rest_of = await rest("GET", f"/threads/t/mutations?after={page['mutations'][-1]['id'].replace('/', '%2F')}")
    values_ = [(one.get("before"), one["after"]) for one in [*page["mutations"], *rest_of["mutations"]]]
    assert values_ == [(None, 0), (0, 1), (1, 2), (2, 1), (1, 2), (2, 0)]
    assert rest_of["mutations"][2]["author"] == ""
    await rest("GET", "/threads/t/mutations?after=nothing", status=404)


async def test_undo_in_the_shell(space: Space, rest: Rest, cli: Cli) -> None:
    await cli("save", "t", '{"n": 1}', "--label", "first")
    await cli("edit", "t", '[{"op": "replace", "path": "/n", "value": 2}]', "--by", "ana")
    await cli("undo", "t", "--by", "bob")
    assert [(one["before"], one["after"], one["author"]) for one in await cli("mutations", "t")] == [
        (None, 1, ""),
        (1, 2, "ana"),
        (2, 1, "bob"),
    ]
    (newest,) = await cli("log", "t", "--limit", "1")
    refused = await cli.refused("undo", "t", "--count", "2", "--checkpoint", newest["id"])
    assert "not both" in refused
    await cli("redo", "t")
    (label,) = await cli("labels", "t")
    assert label["label"] == "first"
    assert await cli("unlabel", "t", "first", "--dry-run") == [{"count": 1}]
    assert await rest("DELETE", "/threads/t/labels/first?dry_run=true") == {"count": 1}
    assert await cli("unlabel", "t", "first", "--yes") == [{"count": 1}]
    assert await cli("labels", "t") == []


async def test_derived_states_keep_their_schema_and_secrets(space: Space, rest: Rest) -> None:
    schema = Schema("login", version=3, secret={"token"})
    thread = space.thread("t", schema=schema)
    for n in range(3):
        await thread.save({"token": f"hunter{n}", "n": n})
    await rest("POST", "/threads/t/undo", {})
    await rest("POST", "/threads/t/edit", {"patch": {"n": 7}})
    shown = await rest("GET", "/threads/t/checkpoints/latest")
    assert (shown["schema"], shown["schema_version"], shown["secret"]) == ("login", 3, ["token"])
    assert (await space.thread("t", schema=schema).load()).redacted == {"token": "«secret»", "n": 7}
    assert "hunter" not in json.dumps(await rest("GET", "/threads/t/mutations"))
    assert "hunter" in json.dumps(await rest("GET", "/threads/t/mutations?reveal=true"))
    other = space.thread("t", schema=schema)
    await thread.load()
    await other.load()
    await thread.save({"token": "hunter1", "n": 8})
    await other.save({"token": "hunter1", "n": 7, "m": 1}, on_conflict="fork")
    await rest("POST", "/threads/t/merge", {})
    assert (await space.thread("t").load()).redacted == {"token": "«secret»", "n": 8, "m": 1}


async def test_an_edit_over_http(space: Space, rest: Rest) -> None:
    await space.thread("t").save({"list": [1], "n": 1})
    patch = [{"op": "add", "path": "/list/-", "value": 2}]
    first = await keyed(rest, "/threads/t/edit", {"patch": patch, "by": "ana"}, "edit-1")
    assert (await keyed(rest, "/threads/t/edit", {"patch": patch, "by": "ana"}, "edit-1"))[1]["id"] == first[1]["id"]
    found = await space.thread("t").load()
    assert (found.state, found.author) == ({"list": [1, 2], "n": 1}, "ana")
    failed = await rest("POST", "/threads/t/edit", {"patch": [{"op": "test", "path": "/n", "value": 5}]}, status=409)
    assert failed["written"] == "no"
    for wrong in (7, [7], "x"):
        assert (await rest("POST", "/threads/t/edit", {"patch": wrong}, status=400))["field"] == "patch"
    await rest("POST", "/threads/absent/edit", {"patch": {"n": 1}}, status=404)


async def test_an_audit_over_http(space: Space, rest: Rest, cli: Cli) -> None:
    thread = space.thread("t", author="ana")
    saved = await thread.save({"n": 1})
    await thread.step("charge", key="order-1", call=lambda: 7)
    await thread.journal.append({"kind": "note", "by": "bob"})
    entries = (await rest("GET", "/threads/t/audit"))["entries"]
    assert (entries[0]["kind"], entries[0]["by"]) == ("checkpoint", "ana")
    assert {one["known"] for one in entries[1:]} == {saved.id}
    printed = await cli("audit", "thread", "t")
    assert [one["data"] for one in printed] == [one["data"] for one in entries]
    assert (await rest("GET", "/threads/absent/audit", status=404))["code"] == "not-found"


async def lines(rest: Rest, path: str) -> list[Any]:
    async with rest.http.get(rest.path + path) as answer:
        assert (answer.status, answer.content_type) == (200, "application/x-ndjson"), await answer.text()
        return [json.loads(line) async for line in answer.content]


async def test_an_export_over_http_is_that_of_the_shell(space: Space, rest: Rest, cli: Cli) -> None:
    await fork(space)
    thread = space.thread("t")
    await thread.journal.append((1, b"\x00"), key="k")
    await space.thread("other").save({"big": "x" * 50_000}, label="l")
    found = await lines(rest, "/threads/t/export")
    assert found == await cli("export", "t")
    assert [one["type"] for one in found] == ["export", "space", "thread", *3 * ["checkpoint"], "branch", "event", "end"]
    assert values.from_json(found[-2]["event"]) == (1, b"\x00")
    whole = await lines(rest, "/export")
    assert whole == await cli("export", "--all")
    assert {one.get("thread") for one in whole} == {None, "t", "other"}
    absent = await rest("GET", "/threads/absent/export", status=404)
    assert absent["code"] == "not-found"


async def test_a_replay_over_http(space: Space, rest: Rest) -> None:
    journal = space.thread("t").journal
    for n in range(5):
        await journal.append({"n": n})
    whole = await rest("GET", "/threads/t/replay?limit=3")
    assert (whole["snapshot"], whole["at"], whole["more"]) == (None, "", True)
    total = sum(event["event"]["n"] for event in whole["events"])
    kept = await rest("PUT", "/threads/t/snapshots/sum", {"value": total, "cursor": whole["events"][-1]["cursor"]})
    assert kept["at"] == whole["events"][-1]["id"]
    again = await rest("GET", "/threads/t/replay?reducer=sum&limit=1")
    assert (again["snapshot"], again["at"], [e["event"]["n"] for e in again["events"]]) == (3, kept["at"], [3])
    rest_of = await rest("GET", f"/threads/t/events?after={again['cursor']}")
    assert [event["event"]["n"] for event in rest_of["events"]] == [4]
    assert (await rest("GET", "/threads/t/replay?reducer=sum&version=1"))["snapshot"] is None
    assert await journal.replay(lambda value, event: value + event.event["n"], initial=0, name="sum") == 10
    assert (await rest("GET", f"/threads/t/replay?until={kept['at']}", status=400))["field"] == "until"
    await rest("PUT", "/threads/t/snapshots/sum", {"value": 1, "cursor": "é"}, status=400)
    await journal.trim(keep=1)
    assert (await rest("GET", "/threads/t/replay?reducer=other", status=410))["code"] == "journal-trimmed"
    assert (await rest("GET", "/threads/t/replay?reducer=sum", status=410))["code"] == "journal-trimmed"


async def test_a_loop_keeps_its_place_over_http(space: Space, rest: Rest) -> None:
    assert await rest("GET", "/threads/t/places/import") == {"place": 0}
    assert await rest("PUT", "/threads/t/places/import", {"place": 3}) == {"place": 3}
    assert [row async for row in space.thread("t").iterate(range(5), key="import")] == [3, 4]
    assert await rest("PUT", "/threads/t/places/import", {"place": 1, "restart": True}) == {"place": 1}
    await rest("PUT", "/threads/t/places/import", {"place": -1}, status=400)


async def test_a_request_waits_for_a_message(space: Space, store: Store, rest: Rest) -> None:
    before = (await store.status()).connections
    waiting = asyncio.create_task(rest("GET", f"/threads/t/inbox?wait={PATIENCE_S}"))
    async with asyncio.timeout(PATIENCE_S):
        while (await store.status()).connections <= before:
            await asyncio.sleep(0.01)
    await space.thread("t").inbox.send("look", key="k")
    (entry,) = (await waiting)["entries"]
    assert entry["value"] == "look"
    assert (await rest("GET", "/threads/t/inbox?wait=-1", status=400))["field"] == "wait"
    await rest("POST", f"/threads/t/inbox/{entry['id']}/take", {"by": "ana"})
    assert await rest("POST", "/threads/t/inbox:forget", {"before": "2100-01-01T00:00:00Z"}) == {"count": 1, "more": False}
    assert (await space.thread("t").inbox.send("look", key="k")).sent
    assert (await rest("POST", "/threads/t/inbox:forget", {"before": "2100-01-01T00:00:00"}, status=400))["field"] == "before"


async def test_a_worklist_by_its_keys(space: Space, rest: Rest, cli: Cli) -> None:
    (put,) = await cli("worklist", "add", "t", "files", "a/1", "b")
    assert put["added"] == [True, True]
    assert await rest("POST", "/threads/t/worklists/files/items/a%2F1/done", {"result": 7, "by": "ana"}) == {
        "first": True,
        "by": "ana",
        "result": 7,
    }
    item = await rest("GET", "/threads/t/worklists/files/items/a%2F1")
    assert [end["result"] for end in item["finishes"]] == [7]
    (done,) = await cli("worklist", "done", "t", "files", "a/1", "--result", "8")
    assert (done["first"], done["result"]) == (False, 7)
    assert [one["key"] for one in await cli("worklist", "list", "t", "files")] == ["b"]
    assert [one["finishes"][0]["by"] for one in await cli("worklist", "list", "t", "files", "--finished")] == ["ana"]
    await rest("POST", "/threads/t/worklists/files/items/never/done", {"result": 1}, status=404)
    assert (await rest("GET", f"/threads/t/worklists/files/entries/{put['ids'][0]}"))["key"] == "a/1"
    unnamed = (await rest("POST", "/threads/t/worklists/files", {"items": [{"key": None, "value": 1}]}))["ids"][0]
    finish = await rest("POST", f"/threads/t/worklists/files/entries/{unnamed}/done", {"result": 9})
    assert (finish["first"], finish["result"]) == (True, 9)
    await rest("POST", f"/threads/t/worklists/files/entries/{'0' * 64}/done", {"result": 9}, status=404)
    assert await rest("POST", "/threads/t/worklists/files/forget", {"before": "2100-01-01T00:00:00Z"}) == {
        "count": 2,
        "more": False,
    }
    await rest("GET", "/threads/t/worklists/files/items/a%2F1", status=404)


async def test_events_and_consumers_in_the_shell(space: Space, cli: Cli) -> None:
    (first,) = await cli("append", "t", '{"n": 1}', "--key", "k")
    assert await cli("append", "t", '{"n": 1}', "--key", "k") == [{**first, "appended": False}]
    consumer = space.thread("t").journal.consumer("billing")
    async for event in consumer.read(follow=False):
        await consumer.ack(event)
    (found,) = await cli("consumers", "t")
    assert (found["name"], found["behind"]) == ("billing", 0)


async def test_several_objects_are_read_as_of_one_moment(space: Space, rest: Rest) -> None:
    thread = space.thread("{c}/planner")
    saved = await thread.save({"step": 1})
    await thread.inbox.send("look")
    await thread.worklist("files").add(["a"])
    await space.counter("{c}/tokens").add(5)
    await space.register("{c}/goal").set(b"\x00")
    await space.items.put(("{c}", "notes"), "k", [1])
    await space.set("{c}/urls").add("u")
    await space.map("{c}/board").set("k", 7)
    await space.budget("{c}/euros").grant(10)
    named = {"thread": thread.name}
    ops = [
        {"op": "load", **named},
        {"op": "heads", **named},
        {"op": "events", **named},
        {"op": "steps", **named},
        {"op": "status", **named},
        {"op": "inbox", **named},
        {"op": "worklist", "worklist": "files", **named},
        {"op": "counter", "counter": "{c}/tokens"},
        {"op": "register", "register": "{c}/goal"},
        {"op": "item", "namespace": ["{c}", "notes"], "key": "k"},
        {"op": "item", "namespace": ["{c}", "notes"], "key": "none"},
        {"op": "set", "set": "{c}/urls"},
        {"op": "map", "map": "{c}/board"},
        {"op": "budget", "budget": "{c}/euros"},
        {"op": "document", "document": "{c}/none"},
        {"op": "load", "thread": "{c}/none"},
    ]
    found = (await rest("POST", "/read", {"reads": ops}))["replies"]
    paths = ["checkpoints/latest", "branches", "events", "steps", "status", "inbox", "worklists/files"]
    for answer, path in zip(found, paths, strict=False):
        assert answer == await rest("GET", f"/threads/%7Bc%7D%2Fplanner/{path}")
    assert found[0]["id"] == saved.id
    assert found[7] == {"value": 5}
    assert found[8] == await rest("GET", "/registers/%7Bc%7D%2Fgoal")
    assert (found[9]["value"], found[10]) == ([1], None)
    assert [one["error"]["code"] for one in found[14:]] == ["not-found", "not-found"]
    assert found[11] == await rest("GET", "/sets/%7Bc%7D%2Furls")
    assert found[12] == await rest("GET", "/maps/%7Bc%7D%2Fboard")
    assert found[13] == await rest("GET", "/budgets/%7Bc%7D%2Feuros")
    apart = [{"op": "counter", "counter": name} for name in "ab"]
    assert (await rest("POST", "/read", {"reads": apart}, status=400))["code"] == "spans-partitions"
    assert (await rest("POST", "/read", {"reads": []}, status=400))["code"] == "spans-partitions"
    assert (await rest("POST", "/read", {"reads": [{"op": "swim"}]}, status=400))["code"] == "invalid-input"
