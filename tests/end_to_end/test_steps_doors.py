"""Steps and statuses at every door: an agent over HTTP, a human at the command line, another agent in Python."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

import pytest

from shoal.client.store import Space
from shoal.errors import StepUnresolved
from tests.end_to_end.conftest import Cli, Rest

STEP = "/threads/t/steps/call-42"


async def test_an_agent_over_http_causes_an_effect_once(space: Space, rest: Rest, cli: Cli) -> None:
    begun = await rest("POST", STEP, {"name": "billing", "arguments": {"order": 1}, "holder": "a script"})
    assert (begun["begun"], begun["state"], begun["arguments"]) == (True, "open", {"order": 1})
    assert (await rest("POST", STEP, {"name": "billing"}))["begun"] is False
    await rest("PUT", f"{STEP}/progress", {"progress": {"pages": 3}})
    with pytest.raises(StepUnresolved, match="begun by a script"):
        await space.thread("t").step("billing", key="call-42", call=lambda: None)
    done = await rest("PUT", STEP, {"outcome": "result", "value": {"due": 7}, "attempt": begun["attempt"]})
    assert (done["state"], done["result"], done["attempts"][0]["progress"]) == ("done", {"due": 7}, {"pages": 3})
    assert (await rest("POST", STEP, {"name": "billing"}))["result"] == {"due": 7}
    assert await space.thread("t").step("billing", key="call-42", call=lambda: {"due": 0}) == {"due": 7}
    (listed,) = await cli("steps", "t")
    assert (listed["key"], listed["state"], listed["result"]) == ("call-42", "done", {"due": 7})
    assert (await rest("GET", STEP))["name"] == "billing"


async def test_an_error_is_kept_and_the_step_may_be_begun_again(space: Space, rest: Rest) -> None:
    await rest("POST", STEP, {"name": "search"})
    failed = await rest("PUT", STEP, {"outcome": "error", "value": {"message": "too slow"}})
    assert (failed["state"], failed["failures"], failed["attempts"][0]["error"]) == ("failed", 1, {"message": "too slow"})
    assert (await rest("POST", STEP, {"name": "search", "attempts": 1}))["begun"] is False
    assert (await rest("POST", STEP, {"name": "search"}))["begun"] is True
    assert [record.error async for record in space.thread("t").steps()] == [{"message": "too slow"}]


async def test_a_human_finds_what_is_open_and_settles_it(rest: Rest, cli: Cli) -> None:
    for key in ("one", "two"):
        await rest("POST", f"/threads/t/steps/{key}", {"name": "pay", "holder": "a script"})
    assert [step["key"] for step in (await rest("GET", "/threads/t/steps?open=1&limit=1"))["steps"]] == ["one"]
    assert [step["attempts"][0]["holder"] for step in await cli("steps", "t", "--open")] == ["a script"] * 2
    (resolved,) = await cli("step", "resolve", "t", "one", "result", "--result", '{"paid": true}', "--by", "ana")
    assert (resolved["state"], resolved["result"], resolved["result_by"]) == ("done", {"paid": True}, "ana")
    abandoned = await rest("POST", "/threads/t/steps/two/resolve", {"how": "abandon", "by": "ana"})
    assert abandoned["state"] == "abandoned"
    assert await cli("steps", "t", "--open") == []


async def test_a_thread_is_paused_at_one_door_and_approved_at_another(space: Space, rest: Rest, cli: Cli) -> None:
    paused = await rest("PUT", "/threads/t/status", {"status": "paused", "reason": "too dear", "by": "ana"})
    assert (paused["status"], paused["by"]) == ("paused", "ana")
    async with rest.http.post(f"{rest.path}{STEP}", json={"name": "pay"}) as refused:
        assert refused.status == 423
        assert (await refused.json(content_type=None))["code"] == "thread-held"
    assert (await cli("approve", "t", "--by", "ana"))[0]["status"] == "running"
    assert (await space.thread("t").status()).by == "ana"
    assert (await cli("pause", "t", "--reason", "again"))[0]["reason"] == "again"
    assert (await rest("PUT", "/threads/t/status", {"status": "running"}))["status"] == "running"
    assert (await rest("PUT", "/threads/t/status", {"status": "done"}))["status"] == "done"
    assert (await rest("GET", "/threads/t/status"))["status"] == "done"


async def test_an_agent_resumes_from_the_same_state_everywhere(space: Space, rest: Rest, cli: Cli) -> None:
    thread = space.thread("t")
    await thread.step("bill", call=lambda: 7)
    saved = await thread.save({"due": 7}, metadata={"at": "draft"})
    await rest("POST", "/threads/t/steps/send", {"name": "send"})
    await thread.journal.append("after")
    found = await rest("GET", "/threads/t/resume")
    assert (found["checkpoint"]["id"], found["checkpoint"]["state"]) == (saved.id, {"due": 7})
    assert [step["key"] for step in found["open"]] == ["send"]
    assert "after" in [event["event"] for event in found["events"]]
    reason = {"skipped": ["bill"], "unresolved": ["send"], "quorum": True, "staleness": ""}
    assert found["reason"].items() >= reason.items()
    (printed,) = await cli("resume", "t")
    assert (printed["checkpoint"], printed["state"], printed["at"]) == (saved.id, {"due": 7}, "draft")
    assert printed["reason"].items() >= reason.items()
    assert (await rest("GET", "/threads/never/resume"))["checkpoint"] is None


async def test_a_history_comes_with_states_if_these_are_asked_for(rest: Rest) -> None:
    for step in range(3):
        await rest("POST", "/threads/t/checkpoints", {"state": {"step": step}})
    page = await rest("GET", "/threads/t/checkpoints?limit=2&states=1")
    assert ([checkpoint["state"] for checkpoint in page["checkpoints"]], page["more"]) == ([{"step": 2}, {"step": 1}], True)
    older = await rest("GET", f"/threads/t/checkpoints?limit=2&states=true&before={page['next']}")
    assert [checkpoint["state"] for checkpoint in older["checkpoints"]] == [{"step": 0}]
    assert all(checkpoint["state"] == {} for checkpoint in (await rest("GET", "/threads/t/checkpoints"))["checkpoints"])


async def test_another_setting_is_told_or_refused_over_http(space: Space, rest: Rest) -> None:
    setting: dict[str, Any] = {"configuration": {"model": "small", "limits": {"b": 1, "a": 2}}, "dependencies": {"sdk": "1.0"}}
    await rest("POST", "/threads/t/checkpoints", {"state": {"n": 1}, **setting})
    same = urlencode({"configuration": '{"limits": {"a": 2, "b": 1}, "model": "small"}', "dependencies": '{"sdk": "1.0"}'})
    assert (await rest("GET", f"/threads/t/resume?{same}&on_drift=refuse"))["reason"]["differences"] == []
    other = urlencode({"dependencies": '{"sdk": "1.1"}'})
    assert (await rest("GET", f"/threads/t/resume?{other}"))["reason"]["differences"] == ["sdk 1.1 instead of 1.0"]
    refused = await rest("GET", f"/threads/t/resume?{other}&on_drift=refuse", status=409)
    assert (refused["code"], refused["differences"]) == ("drift-refused", ["sdk 1.1 instead of 1.0"])
    wrong = await rest("GET", "/threads/t/resume?configuration=small", status=400)
    assert (wrong["code"], wrong["field"]) == ("invalid-input", "configuration")
    agent = space.thread("t", configuration=setting["configuration"], dependencies={"sdk": "1.0"})
    assert (await agent.resume(on_drift="refuse")).reason.differences == (), "Python and HTTP mean the same by a setting"


async def test_the_audit_is_one_time_line(space: Space, cli: Cli) -> None:
    thread = space.thread("t")
    saved = await thread.save({"n": 1}, metadata={"at": "begin"})
    await thread.step("bill", call=lambda: 7, arguments={"order": 1})
    await thread.pause("enough", by="ana")
    listed = await cli("audit", "thread", "t")
    by_text = {entry["text"]: entry for entry in listed}
    assert sorted(by_text) == ["bill begun", "bill done", "saved on main", "status"]
    assert [entry["time"] for entry in listed] == sorted(entry["time"] for entry in listed)
    assert (by_text["bill begun"]["data"], by_text["bill done"]["data"]) == ({"order": 1}, 7)
    assert by_text["bill begun"]["known"] == saved.id
    assert (by_text["status"]["by"], by_text["status"]["data"]["reason"]) == ("ana", "enough")


async def test_threads_are_found_by_status_and_metadata(space: Space, rest: Rest, cli: Cli) -> None:
    for name in ("a", "b", "c"):
        await space.thread(name).save({"n": 1}, metadata={"team": "red" if name == "c" else "blue"})
        if name != "b":
            await space.thread(name).pause()
    assert (await rest("GET", "/threads?status=paused"))["names"] == ["a", "c"]
    assert (await rest("GET", "/threads?filter=%7B%22team%22:%22red%22%7D"))["names"] == ["c"]
    assert (await rest("GET", "/threads?filter=%7B%22team%22:%7B%22$gt%22:%22f%22%7D%7D"))["names"] == ["c"]
    first = await rest("GET", "/threads?status=paused&limit=1")
    assert (first["names"], first["more"]) == (["a"], True)
    assert (await rest("GET", f"/threads?status=paused&after={first['after']}"))["names"] == ["c"]
    assert await cli("threads", "--status", "paused") == ["a", "c"]
    assert (await rest("GET", "/threads"))["names"] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("PUT", STEP, {"outcome": "result", "value": 1}, 404),
        ("PUT", STEP, {"outcome": "perhaps", "value": 1}, 400),
        ("PUT", STEP, {}, 400),
        ("POST", STEP, {}, 400),
        ("POST", f"{STEP}/resolve", {"how": "perhaps"}, 400),
        ("PUT", "/threads/t/status", {"status": "asleep"}, 400),
        ("GET", "/threads/t/steps?after=zz", None, 400),
        ("GET", "/threads?status=asleep", None, 400),
        ("GET", "/threads?filter=5", None, 400),
        ("GET", "/threads?filter=%7B%22n%22:%7B%22$near%22:5%7D%7D", None, 400),
    ],
)
async def test_senseless_requests_are_refused(rest: Rest, method: str, path: str, body: object, status: int) -> None:
    async with rest.http.request(method, rest.path + path, json=body) as answer:
        assert answer.status == status
        assert answer.content_type == "application/problem+json"
