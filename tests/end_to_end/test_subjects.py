"""A data subject is tagged at one door, and found and erased at every other."""

from __future__ import annotations

from typing import Any

from shoal.client.store import Space
from tests.end_to_end.conftest import Cli, Rest


async def test_tags_of_each_door_are_erased_at_any(space: Space, rest: Rest, cli: Cli) -> None:
    await space.subjects.tag("ana", "thread", "intake")
    body = {"tags": [{"kind": "counter", "name": "n"}, {"kind": "map", "name": "rooms", "part": "ana"}]}
    assert await rest("PUT", "/subjects/ana", body) == {"changed": 2}
    assert await rest("PUT", "/subjects/ana", body) == {"changed": 0}
    event = await space.thread("shared").journal.append({"name": "Ana"})
    await cli("subject", "tag", "ana", "event", "shared", event.id)
    await space.thread("intake").save({"name": "Ana"})
    await space.counter("n").add(1)
    found = await rest("GET", "/subjects/ana")
    assert sorted(tag["kind"] for tag in found["tags"]) == ["counter", "event", "map", "thread"]
    assert found["after"] == ""
    report = await rest("DELETE", "/subjects/ana")
    assert {each["kind"]: each["outcome"] for each in report["objects"]} == {
        "thread": "erased",
        "counter": "erased",
        "map": "absent",
        "event": "erased",
    }
    assert (report["subject"], report["left"], report["waits_for"], report["after"]) == ("ana", 0, [], "")
    assert await space.counter("n").value() == 0
    assert [(each.event, each.erased) async for each in space.thread("shared").journal.read()] == [(None, True)]


async def test_objects_that_cannot_be_erased_keep_their_tag(space: Space, rest: Rest, cli: Cli) -> None:
    await cli("subject", "tag", "ana", "event", "shared", "0190")
    report = await rest("DELETE", "/subjects/ana")
    assert [(each["outcome"], bool(each["reason"])) for each in report["objects"]] == [("failed", True)]
    assert report["left"] == 1
    body = {"tags": [{"kind": "event", "name": "shared", "part": "0190"}]}
    assert await rest("POST", "/subjects/ana/untag", body) == {"changed": 1}
    assert (await space.subjects.erase("ana")).is_complete


async def test_wrong_values_are_refused(rest: Rest) -> None:
    wrong: list[Any] = [
        {},
        {"tags": []},
        *({"tags": [{"kind": kind, "name": "n"}]} for kind in ("schema", "event")),
    ]
    for body in wrong:
        refused = await rest("PUT", "/subjects/ana", body, status=400)
        assert refused["written"] == "no"
    await rest("GET", "/subjects/ana?after=%21", status=400)
