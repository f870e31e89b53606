"""Random requests to a real node: whatever comes is answered, and every refusal is described."""

from __future__ import annotations

import json
import os
import random
import re
from typing import Any
from urllib.parse import quote

import aiohttp
import jsonschema_rs
import pytest
from yarl import URL

REQUESTS = int(os.environ.get("SHOAL_TEST_REQUESTS", "400"))
SEEDS = [int(os.environ["SHOAL_TEST_SEED"])] if "SHOAL_TEST_SEED" in os.environ else [1, 2]
TIMEOUT = aiohttp.ClientTimeout(total=60)
ODD = (
    "",
    "a",
    "{crew}%2Ft",
    "%C3%A9%F0%9F%98%80",
    "..",
    "\x00",
    "a" * 2000,
    "%zz",
    "%ED%A0%80",
    "%ff",
    "latest",
    "main",
    "a.b",
    "main%2Fx",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1 << 80,
    1.5,
    1e308,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
    {"": None},
    "a" * 3000,
    ["x"],
)
QUERIES = (
    "",
    "?",
    "?limit=0",
    "?limit=x",
    "?limit=5",
    "?stale=true",
    "?durability=memory",
    "?durability=no",
    "?after=%00",
    "?a=b",
)
HEADERS: tuple[dict[str, str], ...] = (
    {},
    {"Idempotency-Key": "k"},
    {"Idempotency-Key": "x" * 300},
    {"If-Match": '"a"'},
    {"If-None-Match": "*"},
    {"Shoal-Bookmark": "junk"},
    {"Content-Encoding": "gzip"},
    {"Accept": "application/msgpack"},
    {"Origin": "http://evil.example"},
    {"Expect": "tea"},
)


class Fuzz:
    def __init__(self, description: dict[str, Any], seed: int) -> None:
        self.random = random.Random(seed)
        self._paths = description["paths"]
        self._schemas = description["components"]["schemas"]

    def request(self) -> tuple[str, str, str, bytes | None, dict[str, str]]:
        """The description's path, a method, a path, a body and headers."""
        choose = self.random.choice
        template = choose(list(self._paths))
        methods = list(self._paths[template])
        method = choose(methods).upper() if self.random.random() < 0.9 else choose(["GET", "PUT", "DELETE", "HEAD", "LOCK"])
        path = re.sub(r"{(\w+)}", lambda part: self._part(part[1], template, methods[0]), template)
        headers = dict(choose(HEADERS)) if self.random.random() < 0.3 else {}
        body = self._body(self._paths[template].get(method.lower(), {}), headers)
        return template, method, path + self._query(self._paths[template].get(method.lower(), {})), body, headers

    def _query(self, operation: dict[str, Any]) -> str:
        named = [each["name"] for each in operation.get("parameters", []) if each["in"] == "query" and each["name"] != "wait"]
        chance = self.random.random()
        if chance < 0.1 or not named:
            return self.random.choice(QUERIES) if chance < 0.3 else ""
        return f"?{self.random.choice(named)}={quote(self._word())}" if chance < 0.5 else ""

    def _word(self) -> str:
        value = self.random.choice((*VALUES, "2026-01-01T00:00:00Z", "0001-01-01T00:00:00Z", "9999-12-31T00:00:00Z"))
        return value if isinstance(value, str) and value.isascii() else json.dumps(value)

    def _part(self, name: str, template: str, method: str) -> str:
        if self.random.random() < 0.2:
            return self.random.choice(ODD)
        named = self._paths[template][method]["parameters"]
        return str(next(each["example"] for each in named if each["name"] == name))

    def _body(self, operation: dict[str, Any], headers: dict[str, str]) -> bytes | None:
        content = operation.get("requestBody", {}).get("content")
        if content is None:
            return None
        kind, media = next(iter(content.items()))
        headers["Content-Type"] = kind if self.random.random() < 0.95 else "text/plain"
        body = media["example"]
        if "wait" in body:  # Nobody brings what it would wait for.
            body = {**body, "wait": 0}
        chance = self.random.random()
        if chance < 0.1:
            return self.random.choice(
                (b"", b"{", b"null", b"[]", b"\xff", b'{"a": 1}', b"[" * 5000, json.dumps(body).encode()[:-1])
            )
        return json.dumps(self._altered(body) if chance < 0.7 else body).encode()

    def _altered(self, value: Any) -> Any:
        """`value` with one part of it another one."""
        if isinstance(value, dict) and value and self.random.random() < 0.8:
            key = self.random.choice(list(value))
            changed = {**value, key: self._altered(value[key])}
            if self.random.random() < 0.2:
                del changed[key]
            return changed
        if isinstance(value, list) and value and self.random.random() < 0.8:
            return [self._altered(value[0]), *value[1:]]
        return self.random.choice(VALUES)


def described(description: dict[str, Any], template: str, method: str) -> set[str]:
    """The codes that an operation can be refused with."""
    operation = description["paths"][template].get("get" if method == "HEAD" else method.lower())
    if operation is None:
        return {
            "method-not-allowed",
            "upgrade-required",
            "malformed-request",
            "invalid-name",
            "cross-origin",
            "expectation-failed",
        }
    found = {"malformed-request", "cross-origin", "expectation-failed"} if template == "/v1/openapi.json" else set()
    for answer in operation["responses"].values():
        if "$ref" in answer:
            response = description["components"]["responses"][answer["$ref"].rpartition("/")[2]]
            found |= set(response["x-codes"])
    return found


def undescribed(
    description: dict[str, Any], template: str, method: str, status: int, content_type: str, answered: bytes
) -> str | None:
    """How a JSON answer contradicts the description; None if it does not."""
    found = description["paths"][template].get(method.lower(), {}).get("responses", {}).get(str(status), {})
    schema = found.get("content", {}).get(content_type, {}).get("schema")
    if schema is None or content_type != "application/json":
        return None
    try:
        jsonschema_rs.validate({"components": description["components"], **schema}, json.loads(answered))
    except jsonschema_rs.ValidationError as error:
        return str(error)[:500]
    return None


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_requests_are_answered_and_refused_as_described(http: aiohttp.ClientSession, url: str, seed: int) -> None:
    description = await (await http.get("/v1/openapi.json")).json()
    fuzz = Fuzz(description, seed)
    for number in range(REQUESTS):
        template, method, path, body, headers = fuzz.request()
        asked = f"seed {seed}, request {number}: {method} {path!r} {headers} {body!r}"
        if "{space}/watch" in template or template.endswith("/session") or "/yjs/" in template or "/hocuspocus/" in template:
            method = "HEAD"
        try:
            target = URL(url + path.replace("\x00", "%00").replace("..", "%2E%2E"), encoded=True)
        except ValueError:
            continue
        async with http.request(method, target, data=body, headers=headers, timeout=TIMEOUT) as answer:
            answered = await answer.read()
        assert template in ("/docs", "/ui/{file}") or "sandbox" in answer.headers["Content-Security-Policy"], asked
        assert answer.headers["X-Content-Type-Options"] == "nosniff", asked
        if answer.status < 400:
            if method != "HEAD":
                assert not undescribed(description, template, method, answer.status, answer.content_type, answered), asked
            operation = description["paths"][template].get("get" if method == "HEAD" else method.lower(), {})
            answers = operation.get("responses", {str(answer.status): None})
            # The answers of streams are described together.
            assert {str(answer.status), f"{answer.status // 100}XX"} & answers.keys(), (asked, answer.status)
            continue
        assert answer.content_type == "application/problem+json", (asked, answer.status)
        if method == "HEAD":
            assert answer.status != 500, asked
            continue
        problem = json.loads(answered)
        assert problem["code"] not in ("error", "storage"), (asked, problem)
        assert problem["status"] == answer.status, asked
        if problem["detail"].startswith("there is no route"):
            continue  # A slash in a part, or an empty part, is another path.
        assert problem["code"] in described(description, template, method), (asked, problem)


async def test_answers_to_repeated_requests_are_described(http: aiohttp.ClientSession, url: str) -> None:
    described_at = await (await http.get("/v1/openapi.json")).json()
    for path, body in (
        ("events", {"event": {"n": 1}, "key": "once"}),
        ("inbox", {"items": [{"key": "once", "value": {"n": 1}}]}),
        ("steps/once", {"name": "mail"}),
    ):
        for status in (201, 200):
            answer = await http.post(f"{url}/v1/spaces/crew/threads/repeated/{path}", json=body)
            assert answer.status == status, await answer.text()
            template = "/v1/spaces/{space}/threads/{thread}/" + path.replace("/once", "/{step}")
            found = described_at["paths"][template]["post"]["responses"][str(status)]
            assert answer.content_type in found["content"]


async def test_fields_that_are_left_out_are_not_described_as_required(http: aiohttp.ClientSession) -> None:
    description = await (await http.get("/v1/openapi.json")).json()
    async with http.get("/readyz") as answer:
        body = await answer.read()
        assert json.loads(body).keys() < description["components"]["schemas"]["Ready"]["properties"].keys()
        assert not undescribed(description, "/readyz", "GET", answer.status, answer.content_type, body)


async def test_a_mutation_says_what_it_did_where_a_value_is_null(http: aiohttp.ClientSession, url: str) -> None:
    description = await (await http.get("/v1/openapi.json")).json()
    thread, template = f"{url}/v1/spaces/crew/threads/changing", "/v1/spaces/{space}/threads/{thread}"
    for state in ({}, {"added": 1}, {"added": 2}, {}):
        assert (await http.post(f"{thread}/checkpoints", json={"state": state})).status == 201
    async with http.get(f"{thread}/mutations") as answer:
        body = await answer.read()
        made = [(one["op"], one["before"], one["after"]) for one in json.loads(body)["mutations"]]
        assert sorted(made) == [("add", None, 1), ("remove", 2, None), ("replace", 1, 2)]
        assert not undescribed(description, f"{template}/mutations", "GET", answer.status, answer.content_type, body)
