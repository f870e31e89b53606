"""What crosses the parts of a thread: each scenario takes several of them, as an agent and its operators would."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from shoal import values
from shoal.client.store import Store
from shoal.config import Config
from shoal.errors import HeadMoved, NotFound, Pruned, SpansPartitions, StepUnresolved, Taken
from shoal.kinds.thread.handle.thread import Thread
from shoal.node.verification.verify import verify
from shoal.schemas import Schema
from simulation.world.fleet import Fleet
from tests.end_to_end.conftest import Cli, Rest
from tests.node.writes.test_erasing import rows, swept

pytestmark = pytest.mark.virtual_time

LOG = [f"message {n} " * 40 for n in range(60)]


@pytest.fixture
async def fleet() -> AsyncIterator[Fleet]:
    async with Fleet() as fleet:
        yield fleet


async def left_open(thread: Thread, key: str) -> None:
    """A step whose process died within its call."""
    beginning = thread.begin("charge", key=key)
    await beginning.__aenter__()
    await beginning.__aexit__(KeyboardInterrupt, KeyboardInterrupt(), None)


def check_sound(fleet: Fleet) -> None:
    for member in fleet.members.values():
        report = verify(member.storage.left_by_crash(None), config=Config())
        assert report.sound, report.problems
    first, *others = fleet.members
    assert all(fleet.rows(name) == fleet.rows(first) for name in others)


@pytest.mark.answers("retention-breaks-what-it-keeps")
async def test_a_prune_while_a_step_is_open_leaves_what_resuming_needs(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("t")
    for n in range(8):
        await thread.save({"n": n, "log": LOG[: n * 5]}, metadata={"at": f"step {n}"})
    await left_open(thread, "order-7")
    assert (await thread.prune(keep_last=1)).count == 7
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))
    again = fleet["b"].store().space("crew").thread("t")
    found = await again.resume()
    assert (found.state, found.at, [step.key for step in found.open]) == ({"n": 7, "log": LOG[:35]}, "step 7", ["order-7"])
    with pytest.raises(StepUnresolved):
        await again.step("charge", key="order-7", call=lambda: None)
    await again.resolve("order-7", "result", value={"paid": True}, by="ana")
    assert await again.step("charge", key="order-7", call=lambda: {"paid": False}) == {"paid": True}
    await again.append("log", "paid")
    await fleet.converged()
    check_sound(fleet)


@pytest.mark.answers("replica-that-was-away-brings-tombstoned-data-back")
async def test_a_late_replica_brings_back_nothing_of_a_deleted_thread(fleet: Fleet) -> None:
    here, late = (fleet[name].store().space("crew").thread("t") for name in "ab")
    await here.save({"log": LOG[:3]})
    await here.inbox.send("look at this", key="m")
    await fleet.converged()
    message = await late.inbox.next(timeout=30)
    assert message is not None
    await fleet.isolate("b")
    await late.inbox.send("and at this", key="m2")
    await late.save({"log": LOG[:9]}, overwrite=True, take=[message])
    await late.journal.append("done")
    assert await here.delete()
    fleet.link_all("b")
    await fleet.converged()
    for name in "abc":
        thread = fleet[name].store().space("crew").thread("t")
        assert await thread.heads() == {}
        assert [waiting async for waiting in thread.inbox.pending()] == []
        assert [event async for event in thread.journal.read()] == []
        assert [found async for found in thread.inbox.taken()] == []
    await swept(*(member.storage for member in fleet.members.values()))
    assert [rows(fleet[name].storage, "t") for name in "abc"] == [[], [], []]
    # What begins anew knows nothing of the keys of before.
    assert (await here.inbox.send("anew", key="m")).sent
    await fleet.converged()
    check_sound(fleet)


@pytest.mark.answers("two-writers-extend-one-thread")
async def test_a_rollback_then_an_append_on_each_side_then_a_merge(fleet: Fleet) -> None:
    here, there = (fleet[name].store().space("crew").thread("t") for name in "ab")
    start = await here.save({"log": ["one"], "plan": 1})
    await here.append("log", "wrong")
    await fleet.converged()
    await there.load()
    await here.rollback(start.id, reason="wrong", by="ana")
    await fleet.converged()
    with pytest.raises(HeadMoved):
        await there.append("log", "on what is no more")
    assert (await there.load()).id == start.id
    await fleet.isolate("b")
    await here.append("log", "here")
    await there.update({"plan": 2}, append={"log": ["there"]})
    fleet.link_all("b")
    await fleet.converged()
    assert len((await here.heads())["main"]) == 2
    joined = await here.merge()
    await fleet.converged()
    assert (joined.state["plan"], joined.state["log"][0], sorted(joined.state["log"][1:])) == (2, "one", ["here", "there"])
    assert (await there.load()).id == joined.id
    assert [found.parents for found in [await there.load()]] == [joined.parents]
    assert len(joined.parents) == 2
    kinds = [event.event["kind"] async for event in there.journal.read()]
    assert kinds == ["rollback"]
    check_sound(fleet)


@pytest.mark.answers("retention-breaks-what-it-keeps")
async def test_a_label_keeps_its_checkpoint_and_moves_on_with_a_prune(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("t")
    first = await thread.save({"n": 0, "log": LOG}, label="good")
    for n in range(1, 6):
        await thread.save({"n": n, "log": LOG[n:]})
    await thread.prune(keep_last=1)
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))
    assert (await fleet["c"].store().space("crew").thread("t").load(label="good")).state == {"n": 0, "log": LOG}
    await thread.save({"n": 6}, label="good")
    await thread.save({"n": 7})
    await thread.prune(keep_last=1)
    await fleet.converged()
    await swept(*(member.storage for member in fleet.members.values()))
    with pytest.raises(Pruned):
        await thread.load(first.id)
    assert (await thread.load(label="good")).state == {"n": 6}
    check_sound(fleet)


@pytest.mark.answers("writes-stored-before-or-after-their-checkpoint")
async def test_a_batch_of_every_kind_is_there_whole_or_not_at_all(fleet: Fleet) -> None:
    space = fleet["a"].store().space("crew")
    thread = space.thread("{t}/planner")
    await thread.inbox.send({"do": 1}, key="m")
    message = await thread.inbox.next(timeout=30)
    assert message is not None

    async def tick(n: int) -> None:
        async with thread.begin("look up", key=f"look-{n}") as step, space.batch() as batch:
            here = batch.thread("{t}/planner")
            here.finish(step, {"due": n})
            here.append("log", f"due {n}")
            here.journal.append({"due": n}, key=f"event-{n}")
            here.take(message, by="planner")
            batch.items.put(("{t}", "facts"), f"due-{n}", {"n": n})
            batch.counter("{t}/tokens").add(5)

    await tick(1)
    await fleet.converged()
    before = fleet.rows("b")
    with pytest.raises(Taken):
        await tick(2)
    # The step's result alone is there: its effect has happened.
    other = fleet["b"].store().space("crew")
    await fleet.converged()
    assert (await other.thread("{t}/planner").load()).state == {"log": ["due 1"]}
    assert [event.event async for event in other.thread("{t}/planner").journal.read()] == [{"due": 1}]
    assert (await other.items.get(("{t}", "facts"), "due-1")) is not None
    assert (await other.items.get(("{t}", "facts"), "due-2")) is None
    assert await other.counter("{t}/tokens").value() == 5
    assert [(step.key, step.state) async for step in other.thread("{t}/planner").steps()] == [
        ("look-1", "done"),
        ("look-2", "done"),
    ]
    assert fleet.rows("b") != before
    check_sound(fleet)


async def test_a_colocated_space_takes_all_of_a_crew_in_one_batch_and_another_space_none(fleet: Fleet) -> None:
    store = fleet["a"].store()
    crew = store.space("night", colocated=True)
    async with crew.batch() as batch:
        batch.thread("a").save({"x": 1})
        batch.thread("b").send("begin", key="m")
        batch.register("goal").set("ship")
        batch.items.put(("facts",), "k", 1)
    with pytest.raises(SpansPartitions):
        async with store.space("night").batch() as batch:
            batch.thread("a").save({"x": 1})
            batch.thread("b").send("begin")
    await fleet.converged()
    there = fleet["c"].store().space("{night}")
    assert [name async for name in there.threads()] == ["a", "b"]
    assert [message.value async for message in there.thread("b").inbox.pending()] == ["begin"]
    assert [name async for name in fleet["c"].store().space("night").threads()] == []


async def test_resuming_after_a_rollback_goes_on_from_where_it_was_put(fleet: Fleet) -> None:
    thread = fleet["a"].store().space("crew").thread("t")
    good = await thread.save({"n": 1}, metadata={"at": "draft"})
    await thread.step("mail", key="mail-1", call=lambda: "sent")
    await thread.save({"n": 2}, metadata={"at": "sent"})
    await thread.rollback(good.id, by="ana")
    await fleet.converged()
    found = await fleet["b"].store().space("crew").thread("t").resume()
    # The state goes back; what was done stays done.
    assert (found.state, found.at, found.reason.skipped) == ({"n": 1}, "draft", ("mail-1",))
    again = fleet["c"].store().space("crew").thread("t")
    assert await again.step("mail", key="mail-1", call=lambda: "sent twice") == "sent"


class Plan(msgspec.Struct):
    steps: list[str]
    owner: str = ""


@pytest.mark.real_time("over HTTP")
async def test_a_schema_holds_for_changes_over_http(store: Store, http: aiohttp.ClientSession) -> None:
    rest, space = Rest(http, "in-full"), store.space("in-full")
    await rest(
        "PUT",
        "/schemas/plan",
        {"version": 1, "schema": {"properties": {"steps": {"items": {"type": "string"}, "maxItems": 3}}}, "threads": "plan-*"},
    )
    thread = space.thread("plan-1", schema=Schema("mine", model=Plan))
    await thread.save({"steps": ["a"], "owner": "ana"})
    path = "/threads/plan-1/checkpoints"
    await rest("POST", path, {"append": {"steps": ["b"]}, "schema": "mine", "schema_version": 1})
    refused = await rest("POST", path, {"append": {"steps": [3]}, "schema": "mine", "schema_version": 1}, status=422)
    assert (refused["code"], refused["path"], refused["written"]) == ("schema-violation", "/steps/2", "no")
    await rest("POST", path, {"append": {"steps": ["c", "d"]}}, status=422)
    batch = {"writes": [{"op": "save", "thread": "plan-1", "append": {"steps": ["c", "d"]}}]}
    await rest("POST", "/batch", batch, status=422)
    assert (await thread.load()).state == {"steps": ["a", "b"], "owner": "ana"}


@pytest.mark.real_time("over HTTP")
async def test_a_batch_over_http_ends_a_step_and_an_item_with_the_state_they_led_to(http: aiohttp.ClientSession) -> None:
    rest = Rest(http, "in-full-batch")
    begun = await rest("POST", "/threads/t/steps/look", {"name": "look up"})
    await rest("POST", "/threads/t/worklists/w", {"items": [{"key": "one", "value": 1}]})
    step = {"op": "end-step", "thread": "t", "step": "look", "attempt": begun["attempt"]}
    step |= {"outcome": "result", "value": {"due": 7}}
    done = {"op": "done", "thread": "t", "worklist": "w", "item": "one", "result": 7}
    save = {"op": "save", "thread": "t", "state": {"due": 7}}
    await rest("POST", "/batch", {"writes": [step, done, {**save, "expect_head": "0" * 64}]}, status=412)
    assert (await rest("GET", "/threads/t/steps/look"))["state"] == "open"
    replies = (await rest("POST", "/batch", {"writes": [step, done, save]}))["replies"]
    assert (replies[0]["state"], replies[0]["result"], replies[1]["first"]) == ("done", {"due": 7}, True)
    assert (await rest("GET", "/threads/t/checkpoints/latest"))["id"] == replies[2]["id"]
    assert (await rest("GET", "/threads/t/worklists/w"))["pending"] == 0
    await rest("POST", "/batch", {"writes": [{"op": "end-step", "thread": "t", "step": "look"}]}, status=400)


@pytest.mark.real_time("over HTTP")
async def test_an_export_makes_the_same_thread_again(url: str, store: Store) -> None:
    space = store.space("in-full-export")
    thread = space.thread("t")
    first = await thread.save({"when": values.decode(values.encode((1, 2))), "log": ["é"]}, metadata={"by": "ana"})
    await thread.append("log", b"\x00\xff")
    await thread.branch("what-if", at=first.id)
    await thread.journal.append({"paid": 1.5}, key="k")
    await thread.step("mail", key="mail-1", call=lambda: {"sent": (1, 2)})
    lines = await Cli(url, "in-full-export")("export", "t")
    assert lines[0]["type"] == "export"
    copy = space.thread("copy")
    made: dict[str, str] = {}
    waiting = [line for line in lines if line["type"] == "checkpoint"]
    while waiting:
        line = next(line for line in waiting if all(parent in made for parent in line["parents"]))
        waiting.remove(line)
        state: dict[str, Any] = {name: values.from_json(value) for name, value in line["state"].items()}
        parent = made[line["parents"][0]] if line["parents"] else ""
        made[line["id"]] = (await copy.save(state, metadata=line["metadata"], parent=parent)).id
    for line in lines:
        if line["type"] == "branch" and line["name"] != "main":
            await copy.branch(line["name"], at=made[line["heads"][0]])
        elif line["type"] == "event":
            await copy.journal.append(values.from_json(line["event"]), key=line["key"])
    assert (await copy.load()).state == (await thread.load()).state == {"when": (1, 2), "log": ["é", b"\x00\xff"]}
    assert (await copy.load(branch="what-if")).metadata == {"by": "ana"}
    assert [event.event async for event in copy.journal.read()] == [{"paid": 1.5}]
    (step,) = [line for line in lines if line["type"] == "step"]
    assert (step["key"], step["state"], values.from_json(step["result"])) == ("mail-1", "done", {"sent": (1, 2)})
    with pytest.raises(NotFound):
        await copy.load(first.id)


@pytest.mark.real_time("over HTTP")
async def test_over_http_one_learns_why_and_what_is_labelled_and_whether_it_is_sound(http: aiohttp.ClientSession) -> None:
    rest = Rest(http, "in-full-why")
    path = "/threads/t/checkpoints"
    first = await rest("POST", path, {"state": {"n": 1}, "label": "good one", "author": "ana"})
    await rest("POST", "/threads/t/events", {"event": {"saw": 7}})
    second = await rest("POST", path, {"update": {"n": 2}, "label": "better"})
    why = await rest("GET", f"{path}/{second['id']}/why")
    assert (why["checkpoint"]["id"], [earlier["author"] for earlier in why["earlier"]]) == (second["id"], ["ana"])
    assert ([event["event"] for event in why["events"]], why["setting"]) == ([{"saw": 7}], None)
    await rest("GET", f"{path}/{'0' * 64}/why", status=404)
    listed = await rest("GET", "/threads/t/labels?limit=1")
    assert [(each["label"], each["checkpoint"]["id"]) for each in listed["labels"]] == [("better", second["id"])]
    assert listed["more"]
    (good,) = (await rest("GET", "/threads/t/labels?prefix=good"))["labels"]
    assert (good["label"], good["checkpoint"]["id"]) == ("good one", first["id"])
    assert await rest("DELETE", "/threads/t/labels/good%20one") == {"count": 1}
    assert await rest("DELETE", "/threads/t/labels/good%20one") == {"count": 0}
    page = await rest("GET", "/threads/t/verify?limit=1")
    assert (page["checked"], page["damage"], page["next"]) == (1, [], first["id"])
    assert await rest("GET", f"/threads/t/verify?start={page['next']}") == {"checked": 1, "damage": [], "next": ""}
    await rest("GET", "/threads/t/verify?branch=nowhere", status=404)
