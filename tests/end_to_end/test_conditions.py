"""Conditional requests to a real node: ETags, 304, and writes that are refused where the state has moved on."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

import aiohttp
import pytest

RACERS = 12
JSON, MSGPACK = "application/json", "application/msgpack"


class Answer(NamedTuple):
    status: int
    etag: str
    body: Any
    headers: Any


class Door:
    def __init__(self, http: aiohttp.ClientSession, space: str) -> None:
        self._http = http
        self._path = f"/v1/spaces/{space}"

    async def __call__(self, method: str, path: str, body: object = None, /, **headers: str) -> Answer:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self._http.request(method, self._path + path, json=body, headers=named) as answer:
            kind = answer.content_type
            found = await answer.json(content_type=None) if "json" in kind and method != "HEAD" else await answer.read()
            return Answer(answer.status, answer.headers.get("ETag", ""), found, answer.headers)


@pytest.fixture
def door(http: aiohttp.ClientSession, request: pytest.FixtureRequest) -> Door:
    return Door(http, "".join(character for character in request.node.name if character.isalnum()))


class Kind(NamedTuple):
    """An object that is written with a condition, and what is written."""

    path: str
    method: str
    one: Any
    other: Any
    code: str


KINDS = {
    "a document": Kind("/documents/d", "PUT", {"root": {"a": 1}}, {"root": {"a": 2}}, "document-changed"),
    "an item": Kind("/items/a.b/k", "PUT", {"value": 1}, {"value": 2}, "item-changed"),
    "a register": Kind("/registers/r", "PUT", {"value": 1}, {"value": 2}, "register-changed"),
    "an entry": Kind("/maps/m/k", "PUT", {"value": 1}, {"value": 2}, "register-changed"),
}
by_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=[name.replace(" ", "-") for name in KINDS])


@by_kind
async def test_unchanged_answers_are_not_sent_again(door: Door, kind: Kind) -> None:
    await door(kind.method, kind.path, kind.one)
    first = await door("GET", kind.path)
    for method in ("GET", "HEAD"):
        again = await door(method, kind.path, If_None_Match=f'"else", {first.etag}')
        assert (again.status, again.etag, again.body) == (304, first.etag, b"")
        assert "Shoal-Bookmark" in again.headers
    await door(kind.method, kind.path, kind.other)
    changed = await door("GET", kind.path, If_None_Match=first.etag)
    assert changed.status == 200
    assert changed.etag != first.etag


@by_kind
async def test_another_format_has_another_etag_of_the_same_version(door: Door, kind: Kind) -> None:
    await door(kind.method, kind.path, kind.one)
    tags = [(await door("GET", kind.path, Accept=accept)).etag for accept in (JSON, MSGPACK)]
    assert tags[0] != tags[1]
    assert tags[0].split(".")[0] == tags[1].split(".")[0]
    assert (await door(kind.method, kind.path, kind.other, If_Match=tags[1])).status == 200


@by_kind
async def test_of_many_writes_that_expect_one_version_one_counts(door: Door, kind: Kind) -> None:
    await door(kind.method, kind.path, kind.one)
    seen = (await door("GET", kind.path)).etag
    answers = await asyncio.gather(*(door(kind.method, kind.path, kind.other, If_Match=seen) for _ in range(RACERS)))
    assert sorted(answer.status for answer in answers) == [200] + [412] * (RACERS - 1)
    for answer in answers:
        if answer.status == 412:
            assert (answer.body["code"], answer.body["written"]) == (kind.code, "no")
            assert answer.headers["Content-Type"] == "application/problem+json"
    # The answer to the write that counted names the version that it made.
    [counted] = [answer for answer in answers if answer.status == 200]
    assert (await door(kind.method, kind.path, kind.one, If_Match=counted.etag)).status == 200


@by_kind
async def test_of_many_writes_that_expect_nothing_to_be_there_one_counts(door: Door, kind: Kind) -> None:
    answers = await asyncio.gather(*(door(kind.method, kind.path, kind.one, If_None_Match="*") for _ in range(RACERS)))
    assert sorted(answer.status for answer in answers) == [200] + [412] * (RACERS - 1)


async def test_a_refused_edit_of_a_document_changes_nothing(door: Door) -> None:
    patch = [{"op": "add", "path": "/root/b", "value": 2}]
    await door("PUT", "/documents/d", {"root": {"a": 1}})
    old = (await door("GET", "/documents/d")).etag
    assert (await door("PATCH", "/documents/d", patch, If_Match=old)).status == 200
    for method, body in (("PATCH", patch), ("PUT", {"root": {}}), ("DELETE", None)):
        refused = await door(method, "/documents/d", body, If_Match=old)
        assert (refused.status, refused.body["code"]) == (412, "document-changed")
    now = await door("GET", "/documents/d")
    assert now.body == {"root": {"a": 1, "b": 2}}
    assert refused.body["version"] == now.etag.strip('"').split(".")[0]
    assert (await door("DELETE", "/documents/d", If_Match=now.etag)).body == {"existed": True}


async def test_the_version_of_a_document_is_its_content(door: Door) -> None:
    contents = {"root": {"a": 1, "b": 2}}, {"root": {"a": 3}}, {"root": {"b": 2, "a": 1}}
    tags = [(await door("PUT", "/documents/d", content)).etag for content in contents]
    assert tags[0] == tags[2] != tags[1]
    assert (await door("PUT", "/documents/other", {"root": {"a": 1, "b": 2}})).etag == tags[0]


async def test_a_save_expects_the_head_that_was_read(door: Door) -> None:
    save = "/threads/t/checkpoints"
    first = await door("POST", save, {"state": {"n": 1}}, If_None_Match="*")
    assert (first.status, first.etag) == (201, f'"{first.body["id"]}"')
    assert (await door("POST", save, {"state": {"n": 1}}, If_None_Match="*")).status == 412
    head = await door("GET", f"{save}/latest")
    answers = await asyncio.gather(*(door("POST", save, {"state": {"n": 2}}, If_Match=head.etag) for _ in range(RACERS)))
    assert sorted(answer.status for answer in answers) == [201] + [412] * (RACERS - 1)
    assert {answer.body["code"] for answer in answers if answer.status == 412} == {"head-moved"}
    assert len((await door("GET", save)).body["checkpoints"]) == 2


@pytest.mark.parametrize("path", ["/threads/t/branches", "/threads/t/labels", "/threads", "/counters"])
async def test_every_listing_has_an_etag(door: Door, path: str) -> None:
    await door("POST", "/threads/t/checkpoints", {"state": {"n": 1}})
    first = await door("GET", path)
    assert (await door("GET", path, If_None_Match=first.etag)).status == 304


async def test_a_condition_that_cannot_be_compared_is_refused(door: Door) -> None:
    listing = (await door("GET", "/counters")).etag
    for method, path, body, headers in (
        ("POST", "/counters/c", {"add": 1}, {"If_Match": '"a"'}),
        ("POST", "/counters/c", {"add": 1}, {"If_None_Match": "*"}),
        ("PUT", "/registers/r", {"value": 1}, {"If_Match": "*"}),
        ("PUT", "/registers/r", {"value": 1}, {"If_Match": 'W/"a"'}),
        ("PUT", "/registers/r", {"value": 1}, {"If_Match": '"a", "b"'}),
        ("PUT", "/registers/r", {"value": 1}, {"If_Match": "a"}),
        ("PUT", "/registers/r", {"value": 1}, {"If_Match": listing}),
        ("PUT", "/registers/r", {"value": 1}, {"If_None_Match": '"a"'}),
        ("PUT", "/registers/r", {"value": 1}, {"If_Match": '"a"', "If_None_Match": "*"}),
        ("PUT", "/registers/r", {"value": 1, "expect": "b"}, {"If_Match": '"a"'}),
    ):
        refused = await door(method, path, body, **headers)
        assert refused.status in (400, 422), (headers, refused)
        assert "othing was written" in refused.body["detail"]
    assert (await door("GET", "/registers/r")).body["version"] == ""
    assert (await door("GET", "/counters/c")).body == {"value": 0}
