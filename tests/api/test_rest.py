"""REST, over real sockets."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
import pytest

from shoal import values
from shoal.api import threads
from shoal.errors import HeadMoved, KeyReused, Overloaded, ShoalError, ShuttingDown, SpansPartitions
from shoal.logs.lines import captured
from shoal.protocol import requests
from tests.api.conftest import Rest

pack = msgspec.msgpack.encode
Served = Any  # Of conftest.py.
Serve = Callable[..., Awaitable[Any]]

SPACE = "/v1/spaces/crew"
THREAD = SPACE + "/threads/t"
SAVE = {"state": {"messages": ["hi", 1.5, None]}}


# ── threads ───────────────────────────────────────────────────────────────────


async def test_a_saved_state_is_loaded_by_id_and_as_latest(rest: Rest) -> None:
    status, saved = await rest("POST", f"{THREAD}/checkpoints", {**SAVE, "metadata": {"step": 1}})
    assert (status, saved["branch"], saved["heads"], saved["parents"]) == (201, "main", [saved["id"]], [])
    for id in (saved["id"], "latest"):
        status, loaded = await rest("GET", f"{THREAD}/checkpoints/{id}")
        assert status == 200
        assert loaded["state"] == SAVE["state"]
        assert loaded["metadata"] == {"step": 1}
        assert loaded["id"] == saved["id"]


async def test_a_save_passes_on_its_expectations_key_and_durability(rest: Rest) -> None:
    body = {**SAVE, "branch": "b", "expect_head": "", "parent": "p", "schema": "plan"}
    await rest("POST", f"{THREAD}/checkpoints?durability=quorum", body, headers={"Idempotency-Key": "k-1"})
    [(request, key, durability)] = rest.served.session.asked
    assert (key, durability) == ("k-1", "quorum")
    assert (request.branch, request.expect_head, request.parent, request.schema) == ("b", requests.NO_HEAD, "p", "plan")


@pytest.mark.parametrize("body", [SAVE, {**SAVE, "expect_head": None}])
async def test_without_an_expected_head_none_is_expected(rest: Rest, body: dict[str, Any]) -> None:
    await rest("POST", f"{THREAD}/checkpoints", body)
    assert rest.served.session.asked[0][0].expect_head is None


async def test_the_same_key_again_is_applied_once(rest: Rest) -> None:
    replies = [await rest("POST", f"{SPACE}/counters/c", {"add": 5}, headers={"Idempotency-Key": "same"}) for _ in range(2)]
    assert replies == [(200, {"value": 5, "added": True})] * 2


async def test_a_history_comes_without_states(rest: Rest) -> None:
    for _ in range(3):
        await rest("POST", f"{THREAD}/checkpoints", SAVE)
    status, page = await rest("GET", f"{THREAD}/checkpoints?limit=2&branch=main")
    assert (status, len(page["checkpoints"]), page["more"]) == (200, 2, False)
    assert all(checkpoint["state"] == {} for checkpoint in page["checkpoints"])


async def test_a_mistyped_word_is_told_the_words(rest: Rest) -> None:
    status, problem = await rest("POST", f"{SPACE}/counters/c?durability=quorom", {"add": 1})
    assert status == 400
    assert (
        "durability must be one of 'memory', 'local', 'quorum', 'all'; got 'quorom'. Did you mean 'quorum'?"
        in problem["detail"]
    )
    status, problem = await rest("POST", f"{THREAD}/checkpoints", SAVE | {"on_conflict": "frok"})
    assert status == 400
    assert "on_conflict must be one of 'refuse', 'fork'; got 'frok'. Did you mean 'fork'?" in problem["detail"]


async def test_branches_are_listed_with_their_heads(rest: Rest) -> None:
    _, saved = await rest("POST", f"{THREAD}/checkpoints", SAVE)
    assert await rest("GET", f"{THREAD}/branches") == (200, {"branches": {"main": [saved["id"]]}, "more": False})


async def test_events_are_read_from_the_cursor_on(rest: Rest) -> None:
    assert (await rest("POST", f"{THREAD}/events", {"event": {"n": 1}, "key": "order-17"}))[0] == 201
    again = await rest("POST", f"{THREAD}/events", {"event": {"n": 1}, "key": "order-17"})
    assert (again[0], again[1]["appended"]) == (200, False)
    _, page = await rest("GET", f"{THREAD}/events?limit=10")
    assert [(event["event"], event["key"]) for event in page["events"]] == [({"n": 1}, "order-17")]
    await rest("POST", f"{THREAD}/events", {"event": 2})
    for cursor in (page["cursor"], page["events"][0]["cursor"]):
        _, page = await rest("GET", f"{THREAD}/events?after={cursor}")
        assert [event["event"] for event in page["events"]] == [2]


# ── other objects ─────────────────────────────────────────────────────────────


async def test_a_counter_is_read_and_added_to(rest: Rest) -> None:
    assert await rest("GET", f"{SPACE}/counters/c") == (200, {"value": 0})
    assert await rest("POST", f"{SPACE}/counters/c", {"add": -3, "key": "k"}) == (200, {"value": -3, "added": True})
    assert rest.served.session.asked[1][0] == requests.Add("crew", "c", -3, "k")


async def test_a_register_is_set_and_read_with_its_context(rest: Rest) -> None:
    assert (await rest("GET", f"{SPACE}/registers/r"))[1]["siblings"] == []
    _, assigned = await rest("PUT", f"{SPACE}/registers/r", {"value": {"goal": [1]}})
    status, register = await rest("GET", f"{SPACE}/registers/r")
    assert (status, register["value"], register["siblings"][0]["value"]) == (200, {"goal": [1]}, {"goal": [1]})
    assert assigned["context"] == register["context"]
    await rest("PUT", f"{SPACE}/registers/r", {"value": None, "context": register["context"]})
    assert rest.served.session.asked[-1][0] == requests.Assign("crew", "r", b"\xc0", b"\xff\xfecontext")


@pytest.mark.parametrize("content_type", ["application/json-patch+json", "application/json"])
async def test_a_document_is_read_and_patched(rest: Rest, content_type: str) -> None:
    assert await rest("GET", f"{SPACE}/documents/d") == (200, {"name": "d"})
    patch = [{"op": "add", "path": "/tasks/t1", "value": {"done": False}}]
    reply = await rest("PATCH", f"{SPACE}/documents/d", data=json.dumps(patch), headers={"Content-Type": content_type})
    assert reply == (200, {"patched": patch})


async def test_a_document_is_compacted_but_what_is_young(rest: Rest) -> None:
    compacted = await rest("POST", f"{SPACE}/documents/d/compact", {"older_than_s": 1.5})
    assert compacted == (200, {"updates": 7, "bytes": 1500, "more": True})
    assert await rest("POST", f"{SPACE}/documents/d/compact", {}) == (200, {"updates": 7, "bytes": 0, "more": True})
    problem = await rest.problem("POST", f"{SPACE}/documents/d/compact", json={"older_than_s": -1})
    assert problem["status"] == 400


async def test_a_batch_is_one_request_with_one_reply_per_write(rest: Rest) -> None:
    writes = [
        {"op": "save", "thread": "{x}/t", "state": {"a": 1}},
        {"op": "append", "thread": "{x}/t", "event": "e"},
        {"op": "add", "counter": "{x}/c", "add": 2},
        {"op": "assign", "register": "{x}/r", "value": 3},
        {"op": "set", "register": "{x}/r", "value": 4},
    ]
    status, reply = await rest("POST", f"{SPACE}/batch", {"writes": writes})
    assert status == 200
    assert [sorted(part)[0] for part in reply["replies"]] == ["branch", "appended", "added", "context", "context"]
    [(request, _, _)] = rest.served.session.asked
    assert [type(write).__name__ for write in request.writes] == ["Save", "Append", "Add", "Assign", "Assign"]
    assert {write.space for write in request.writes} == {"crew"}


@pytest.mark.parametrize("kind", ["document", "counter", "register"])
async def test_objects_are_listed_by_kind_and_page(rest: Rest, kind: str) -> None:
    path = f"{SPACE}/{kind}s?prefix=a%2F&after=a%2Fb&limit=7"
    assert await rest("GET", path) == (200, {"names": [f"{kind}-1"], "more": True})
    assert rest.served.session.asked[0][0] == requests.ListObjects("crew", kind, "a/", "a/b", 7)  # type: ignore[arg-type]


async def test_threads_are_listed_by_status_and_metadata(rest: Rest) -> None:
    path = f"{SPACE}/threads?status=paused&filter=%7B%22team%22%3A%22a%22%7D&after=a&limit=7"
    assert await rest("GET", path) == (200, {"names": ["thread-1"], "after": "thread-1", "more": True})
    asked = requests.ListThreads("crew", "paused", "", {"team": values.encode("a")}, "a", 7)
    assert rest.served.session.asked[0][0] == asked


async def test_spaces_are_listed(rest: Rest) -> None:
    assert await rest("GET", "/v1/spaces?limit=3") == (200, {"names": ["crew"], "more": False})


# ── formats ───────────────────────────────────────────────────────────────────


async def test_msgpack_goes_in_and_out_by_its_content_type(rest: Rest) -> None:
    state = {"when": values.encode(b"raw \x00 bytes")}
    body = pack({"state": {"when": msgspec.Raw(state["when"])}})
    headers = {"Content-Type": "application/msgpack", "Accept": "application/msgpack"}
    async with rest.request("POST", f"{THREAD}/checkpoints", data=body, headers=headers) as response:
        assert (response.status, response.content_type) == (201, "application/msgpack")
        saved = msgspec.msgpack.decode(await response.read())
    assert rest.served.session.asked[0][0].channels == state
    path = f"{THREAD}/checkpoints/{saved['id']}"
    async with rest.request("GET", path, headers=headers) as response:
        assert msgspec.msgpack.decode(await response.read())["state"] == {"when": b"raw \x00 bytes"}


@pytest.mark.parametrize("accepted", ["application/json", "application/msgpack"])
async def test_accept_decides_the_format_of_the_answer(rest: Rest, accepted: str) -> None:
    bodies = {"application/json": b'{"add":1}', "application/msgpack": pack({"add": 1})}
    for given, body in bodies.items():
        headers = {"Content-Type": given, "Accept": accepted}
        async with rest.request("POST", f"{SPACE}/counters/c", data=body, headers=headers) as response:
            assert (response.status, response.content_type) == (200, accepted)


async def test_a_value_that_json_lacks_comes_back_the_same(rest: Rest) -> None:
    value = values.to_json({"raw": b"\x00\xff", "pair": (1, 2)})
    await rest("PUT", f"{SPACE}/registers/r", {"value": value})
    assert values.decode(rest.served.session.registers["crew", "r"]) == {"raw": b"\x00\xff", "pair": (1, 2)}
    assert (await rest("GET", f"{SPACE}/registers/r"))[1]["value"] == value


# ── names ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["{crew-7}/planner", "a/b", "100%", "%2F", "naïve ☃", "a+b c", "?#&=", "...", "latest"])
async def test_a_percent_encoded_name_arrives_as_it_is(rest: Rest, name: str) -> None:
    status, _ = await rest("POST", f"{SPACE}/counters/{quote(name, safe='')}", {"add": 1})
    assert status == 200
    assert rest.served.session.asked[0][0].counter == name


@pytest.mark.parametrize(
    "raw", ["a%00b", "a%0Ab", "%C2%85", "%2e", "%2E%2E", "%FF", "%C3%28", "%ED%A0%80", "n" * 1025, quote("é", safe="") * 513]
)
async def test_an_illegal_name_is_refused_before_anything_is_asked(rest: Rest, raw: str) -> None:
    problem = await rest.problem("POST", f"{SPACE}/counters/{raw}", json={"add": 1})
    assert (problem["status"], problem["code"], problem["written"]) == (400, "invalid-name", "no")
    assert len(rest.served.session.asked) == 1  # The bystander's.


async def test_an_empty_part_is_no_route(rest: Rest) -> None:
    assert (await rest.problem("GET", "/v1/spaces//counters/c"))["status"] == 404
    assert (await rest.problem("GET", f"{SPACE}/counters/"))["status"] == 404


async def test_a_bad_name_in_a_body_is_refused_by_the_session(rest: Rest) -> None:
    problem = await rest.problem("POST", f"{SPACE}/batch", json={"writes": [{"op": "add", "counter": "a\n", "add": 1}]})
    assert problem["code"] == "invalid-name"


# ── bad input ─────────────────────────────────────────────────────────────────

BAD_BODIES = [
    pytest.param("", "invalid-value", None, id="empty"),
    pytest.param("{", "invalid-value", None, id="cut off"),
    pytest.param('{"add": 1} x', "invalid-value", None, id="trailing"),
    pytest.param(b'{"add": 1, "key": "\xff"}', "invalid-value", None, id="invalid UTF-8"),
    pytest.param('{"add": NaN}', "invalid-value", None, id="NaN"),
    pytest.param("[" * 50_000, "invalid-input", None, id="array"),
    pytest.param('{"add": "1"}', "invalid-input", "add", id="wrong type"),
    pytest.param('{"add": 1.5}', "invalid-input", "add", id="fraction"),
    pytest.param('{"add": 1, "ad": 2}', "invalid-input", "ad", id="unknown field"),
    pytest.param("{}", "invalid-input", "add", id="missing field"),
    pytest.param('{"add": 1, "key": 3}', "invalid-input", "key", id="wrong type of an optional field"),
]


@pytest.mark.parametrize(("body", "code", "field"), BAD_BODIES)
async def test_a_bad_body_is_refused_and_names_the_field(rest: Rest, body: str | bytes, code: str, field: str | None) -> None:
    headers = {"Content-Type": "application/json"}
    problem = await rest.problem("POST", f"{SPACE}/counters/c", data=body, headers=headers)
    assert (problem["status"], problem["code"], problem["written"]) == (400, code, "no")
    assert problem.get("field") == field


@pytest.mark.parametrize(
    "value", [b"[" * 500 + b"]" * 500, b'"\xff"', b"1e999", b'"\\ud800"', b'{"$type": "nonsense"}'], ids=repr
)
async def test_a_bad_value_within_a_good_body_is_refused(rest: Rest, value: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    problem = await rest.problem("PUT", f"{SPACE}/registers/r", data=b'{"value": %s}' % value, headers=headers)
    assert (problem["status"], problem["code"]) == (400, "invalid-value")
    assert rest.served.session.registers == {}


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"\x81\xa3add", b"\x91" * 50_000, b"\xdf\xff\xff\xff\xff"], ids=lambda b: repr(b[:9])
)
async def test_invalid_msgpack_is_refused(rest: Rest, body: bytes) -> None:
    headers = {"Content-Type": "application/msgpack"}
    problem = await rest.problem("POST", f"{SPACE}/counters/c", data=body, headers=headers)
    assert (problem["status"], problem["written"]) == (400, "no")


async def test_a_body_over_the_bound_is_too_large(rest: Rest) -> None:
    body = io.BytesIO(json.dumps({"state": {"a": "x" * (1 << 20)}}).encode())
    problem = await rest.problem("POST", f"{THREAD}/checkpoints", data=body, headers={"Content-Type": "application/json"})
    assert (problem["status"], problem["code"], problem["written"]) == (413, "too-large", "no")


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "application/octet-stream"])
async def test_a_body_of_another_media_type_is_refused(rest: Rest, content_type: str) -> None:
    problem = await rest.problem("POST", f"{SPACE}/counters/c", data=b'{"add": 1}', headers={"Content-Type": content_type})
    assert (problem["status"], problem["code"]) == (415, "unsupported-media-type")


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/spaces?limit=many", "limit"),
        ("/v1/spaces?limit=0", "limit"),
        ("/v1/spaces?colour=red", "colour"),
        (f"{THREAD}/events?after=!!", "after"),
        (f"{THREAD}/events?after=%C3%A9", "after"),
        (f"{SPACE}/watch?kind=planet", "kind"),
    ],
)
async def test_a_bad_query_is_refused_and_names_the_parameter(rest: Rest, path: str, field: str) -> None:
    problem = await rest.problem("GET", path)
    assert (problem["status"], problem["code"], problem["field"]) == (400, "invalid-input", field)


async def test_an_unknown_durability_is_refused(rest: Rest) -> None:
    problem = await rest.problem("POST", f"{SPACE}/counters/c?durability=forever", json={"add": 1})
    assert (problem["code"], problem["field"]) == ("invalid-input", "durability")


async def test_an_illegal_idempotency_key_is_refused(rest: Rest) -> None:
    problem = await rest.problem("POST", f"{SPACE}/counters/c", json={"add": 1}, headers={"Idempotency-Key": "k" * 256})
    assert problem["code"] == "invalid-name"


@pytest.mark.parametrize("path", ["/nowhere", "/v2", "/v1/nothing", f"{SPACE}/planets", f"{THREAD}/checkpoints/a/b"])
async def test_an_unknown_route_is_a_problem_too(rest: Rest, path: str) -> None:
    problem = await rest.problem("GET", path)
    assert (problem["status"], problem["code"]) == (404, "not-found")


async def test_a_wrong_method_says_which_are_allowed(rest: Rest) -> None:
    problem = await rest.problem("PATCH", f"{SPACE}/counters/c")
    assert (problem["status"], problem["code"], problem["allowed"]) == (
        405,
        "method-not-allowed",
        ["DELETE", "GET", "HEAD", "OPTIONS", "POST"],
    )


async def test_a_patch_that_is_no_array_is_refused(rest: Rest) -> None:
    problem = await rest.problem("PATCH", f"{SPACE}/documents/d", json={"op": "add"})
    assert problem["code"] == "invalid-input"
    problem = await rest.problem("PATCH", f"{SPACE}/documents/d", data=b"[", headers={"Content-Type": "application/json"})
    assert problem["code"] == "invalid-value"


async def test_a_page_of_another_origin_may_not_ask(rest: Rest) -> None:
    problem = await rest.problem("POST", f"{SPACE}/counters/c", json={"add": 1}, headers={"Origin": "http://evil.example"})
    assert (problem["status"], problem["code"]) == (403, "cross-origin")
    own = {"Origin": rest.served.url}
    assert (await rest("POST", f"{SPACE}/counters/c", {"add": 1}, headers=own))[0] == 200
    with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
        await rest.http.ws_connect(rest.served.url + "/v1/session", headers={"Origin": "null"})


async def test_the_session_route_without_an_upgrade_is_a_problem(rest: Rest) -> None:
    assert (await rest.problem("GET", "/v1/session"))["status"] == 426


# ── errors of the session ─────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "error",
    [
        HeadMoved("moved", heads=["a", "b"]),
        KeyReused("again"),
        SpansPartitions("two"),
        Overloaded("full", retry_after_s=2.5),
        ShuttingDown("bye"),
    ],
    ids=lambda error: error.code,
)
async def test_an_error_is_its_problem_document(rest: Rest, error: ShoalError) -> None:
    rest.served.session.failure = error
    async with rest.request("POST", f"{THREAD}/checkpoints", json=SAVE) as response:
        problem = await response.json(content_type="application/problem+json")
    assert response.status == error.status
    assert (problem["code"], problem["detail"], problem["written"]) == (error.code, error.message, error.written)
    assert all(problem[name] == value for name, value in error.detail.items())
    expected = {"overloaded": "3", "shutting-down": "1"}
    assert response.headers.get("Retry-After") == expected.get(error.code)


async def test_a_bug_is_a_500_without_internals(rest: Rest) -> None:
    rest.served.session.failure = KeyError("secret")
    problem = await rest.problem("GET", f"{SPACE}/counters/c")
    assert (problem["status"], problem["code"], problem["written"]) == (500, "error", "unknown")
    assert "secret" not in str(problem)


async def test_a_bug_ends_no_connection(rest: Rest) -> None:
    """Requests of others may wait on it, as behind a proxy; and the log says which request met the bug."""
    rest.served.session.failure = KeyError("secret")
    with captured() as logs:
        async with rest.request("GET", f"{SPACE}/counters/c") as response:
            assert (response.status, response.headers.get("Connection")) == (500, None)
    assert [line.fields for line in logs] == [{"where": "GET /v1/spaces/crew/counters/c"}]


async def test_a_missing_object_is_not_found(rest: Rest) -> None:
    assert (await rest.problem("GET", f"{THREAD}/checkpoints/latest"))["code"] == "not-found"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/batch", {"writes": [{"op": "add", "counter": "c", "add": 1}] * 4097}, "writes"),
        ("/read", {"reads": [{"op": "heads", "thread": "t"}] * 1025}, "reads"),
        ("/sets/s", {"add": [1] * 4097}, "add"),
        ("/items:search", {"namespace": ["a"] * 65}, "namespace"),
        ("/threads/t/checkpoints", {**SAVE, "merged": ["0" * 64] * 1025}, "merged"),
    ],
)
async def test_a_list_that_is_too_long_reaches_no_handler(rest: Rest, path: str, body: dict[str, Any], field: str) -> None:
    status, problem = await rest("POST", SPACE + path, body)
    assert (status, problem["code"], problem["field"]) == (413, "too-large", field)
    assert not rest.served.session.asked


async def test_an_intent_beside_a_rival_is_withdrawn_before_the_answer(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    async def call(request: Any, /, **_: Any) -> requests.Step:
        asked.append(request)
        begun = isinstance(request, requests.BeginStep)
        step = requests.Step("pay", "0" * 68, "pay", "open", 1, 0, "", b"", b"", "", "", "", 0, [])
        return msgspec.structs.replace(step, begun=begun, rivals=["another"] if begun else [], attempt="mine" if begun else "")

    monkeypatch.setattr(rest.served.session, "call", call)
    status, shown = await rest("POST", f"{THREAD}/steps/pay", {"name": "pay", "attempt": "mine"})
    assert (status, shown["begun"]) == (200, False)
    assert [type(request) for request in asked] == [requests.BeginStep, requests.EndStep]
    assert (asked[1].attempt, asked[1].outcome) == ("mine", "withdrawn")


async def test_an_export_that_fails_half_way_is_cut_off(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    async def failing(*_: object) -> AsyncIterator[bytes]:
        for kind in (b"export", b"space", b"branch"):
            yield kind + b"\n"
        raise RuntimeError("a bug")

    monkeypatch.setattr(threads, "export", failing)
    with pytest.raises(aiohttp.ClientPayloadError):
        await rest("GET", f"{THREAD}/export")
