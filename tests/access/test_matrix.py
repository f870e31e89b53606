"""Every request of the socket and every route, with each kind of credential: generated from the declarations, with no gap."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from shoal.access.grants import ACTIONS
from shoal.api.glossary import BODIES, PARTS
from shoal.api.route import Route
from shoal.api.routes import OPENAPI_PATH, ROUTES, SESSION_PATH
from shoal.api.yjs.door import YJS_PATH
from shoal.config import Config
from shoal.errors import Forbidden, ShoalError, Unauthenticated
from shoal.protocol import requests
from shoal.protocol.base import declaration_of
from shoal.protocol.requests import Request
from shoal.transport.link import Link
from tests.access.conftest import Made, Mint, Serve, Served
from tests.access.requests_of_each_kind import kinds, made, names, need_of

PATIENT = Config(request_timeout_s=30.0)
SOCKETS = [Route("GET", path, None, "", reads=True) for path in (SESSION_PATH, YJS_PATH)]  # type: ignore[arg-type]
REFUSED = ("no token", "expired", "revoked", "another cluster's", "another key's")
FORBIDDEN = ("another space", "another action", "another family")


class Credentials:
    """A node, and for each kind of credential a token."""

    def __init__(self, served: Served, mint: Mint, stranger: Mint) -> None:
        self.served = served
        self._mint = mint
        self._stranger = stranger
        self._made: dict[tuple[str, ...], Made | None] = {}

    def refused(self, credential: str) -> Made | None:
        """A token that is not accepted; None for none."""
        return self._kept((credential,), lambda: self._refused(credential))

    def _refused(self, credential: str) -> Made | None:
        match credential:
            case "no token":
                return None
            case "expired":
                return self._mint.make("*:admin", lasts_s=10, ago_s=20)
            case "another cluster's":
                return self._mint.make("*:admin", cluster="other")
            case "another key's":
                return self._stranger.make("*:admin")
            case _:
                revoked = self._mint.make("*:admin")
                assert self.served.access is not None
                self.served.access.gate.revoke([revoked.token.id])
                return revoked

    def forbidden(self, credential: str, family: str, action: str) -> Made:
        """A token that is accepted, and lacks the right."""
        others = "read" if action != "read" else "write"
        about_cluster = family == "cluster"
        grant = {
            "another space": f"{'crew-2' if not about_cluster else 'crew'}:admin,impersonate",
            "another action": f"*:{others}" if action != "write" else "*:read,append",
            "another family": f"*:{'schema' if family != 'schema' else 'lease'}:admin,impersonate",
        }[credential]
        if action == "admin" and credential == "another action":
            grant = "*:read,append,write,impersonate"
        found = self._kept((grant,), lambda: self._mint.make(grant))
        assert found is not None
        return found

    def right(self, family: str, action: str, *, reveals: bool = False) -> Made:
        grant = f"*:{family}:{action},impersonate" + ",reveal" * reveals
        found = self._kept((grant,), lambda: self._mint.make(grant))
        assert found is not None
        return found

    def whole(self) -> Made:
        found = self._kept(("whole",), lambda: self._mint.make("*:admin,impersonate"))
        assert found is not None
        return found

    def _kept(self, key: tuple[str, ...], make: Any) -> Made | None:
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


@pytest.fixture
async def credentials(serve: Serve, mint: Mint, tmp_path: Path) -> Credentials:
    # Few wait for each other here: none of the requests that wait may take long. Failures are not what is tested.
    served = await serve(token_keys=mint.keys, journal_wait_s_max=0.01, lease_poll_s=0.01, token_failures_max=1_000_000)
    return Credentials(served, mint, Mint(tmp_path / "stranger"))


@pytest.fixture
async def links(credentials: Credentials) -> AsyncIterator[Any]:
    async with AsyncExitStack() as stack:
        open_: dict[str, Link] = {}

        async def link(token: Made | None) -> Link:
            text = token.text if token is not None else ""
            if text not in open_:
                open_[text] = await Link.dial(credentials.served.url, config=PATIENT, token=text or None)
                stack.push_async_callback(open_[text].close)
            return open_[text]

        yield link


# ── the socket ────────────────────────────────────────────────────────────────


async def answered(link: Link, request: Request[Any]) -> ShoalError | None:
    """The error of a request; None if there is none."""
    try:
        if isinstance(request, requests.Watch | requests.Follow | requests.FollowPresence):
            async with link.subscribe(request):
                return None
        await link.call(request)
    except ShoalError as error:
        return error
    return None


@pytest.mark.answers("requests-need-their-right", note="generated from the declarations")
@pytest.mark.parametrize("credential", REFUSED)
async def test_no_session_is_opened_without_a_token_that_counts(credentials: Credentials, links: Any, credential: str) -> None:
    with pytest.raises(Unauthenticated) as caught:
        await links(credentials.refused(credential))
    assert caught.value.written == "no"


@pytest.mark.answers("requests-need-their-right", note="generated from the declarations")
async def test_every_request_is_forbidden_without_its_right_and_reaches_the_node_with_it(
    credentials: Credentials, links: Any
) -> None:
    wrong: list[str] = []
    for kind in kinds():
        family, action = need_of(kind)
        tag = kind.__struct_config__.tag
        if kind is requests.ListSpaces:
            continue  # Every token may ask; see below.
        for credential in FORBIDDEN:
            if credential == "another family" and family == "*":
                continue
            error = await answered(await links(credentials.forbidden(credential, family, action)), made(kind, "crew"))
            if not isinstance(error, Forbidden) or error.written != "no" or not error.detail.get("action"):
                wrong.append(f"{tag} with {credential}: {error!r}")
        reveals = declaration_of(kind).reveals
        if reveals:
            error = await answered(await links(credentials.right(family, action)), made(kind, "crew"))
            if not isinstance(error, Forbidden) or error.detail.get("action") != "reveal":
                wrong.append(f"{tag} without the right to reveal: {error!r}")
        error = await answered(await links(credentials.right(family, action, reveals=reveals)), made(kind, "crew"))
        if isinstance(error, Forbidden | Unauthenticated) or (error is not None and type(error) is ShoalError):
            wrong.append(f"{tag} with the right: {error!r}")
    assert wrong == []


def test_every_kind_of_request_is_in_the_table() -> None:
    assert len(set(names(kinds()))) == len(kinds()) > 100
    assert {action for _, action in map(need_of, kinds())} == set(ACTIONS)


async def test_a_list_of_spaces_shows_those_in_which_something_is_granted(credentials: Credentials, links: Any) -> None:
    whole = await links(credentials.whole())
    for space in ("a", "crew-1", "crew-2", "z"):
        await whole.call(requests.Add(space, "n", 1))
    await whole.call(requests.PutEntry(".shoal", "revoked", "none", msgspec.msgpack.encode(1)))
    some = await links(credentials._mint.make("crew-?:counter:append"))
    assert (await some.call(requests.ListSpaces())).names == ["crew-1", "crew-2"]
    page = await some.call(requests.ListSpaces(limit=1))
    assert (page.names, page.more) == (["crew-1"], True)
    assert (await some.call(requests.ListSpaces(after="crew-2", limit=1))).names == []
    assert ".shoal" in (await whole.call(requests.ListSpaces())).names


# ── HTTP ──────────────────────────────────────────────────────────────────────


QUERIES = {"/v1/watch": "?spaces=crew", "items:indexes": "?label=memory", "/diff": "?from=main"}
"""Of routes that need one."""


def path_of(route: Route, space: str = "crew") -> str:
    parts = {**PARTS, "space": space}
    query = next((query for end, query in QUERIES.items() if route.path.endswith(end)), "")
    return re.sub(r"{(\w+)}", lambda match: parts[match[1]], route.path) + query


async def status_of(http: aiohttp.ClientSession, url: str, route: Route, token: Made | None, space: str = "crew") -> Any:
    """The status and the code of the answer."""
    headers = {} if token is None else token.header
    options: dict[str, Any] = {"headers": headers}
    if route.body is not None:
        options["data"] = msgspec.json.encode(BODIES[route.body])
        headers["Content-Type"] = route.body_type
    if route in SOCKETS:
        headers |= {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
        headers["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    async with http.request(route.method, url + path_of(route, space), **options) as answer:
        if answer.content_type == "application/problem+json":
            problem = await answer.json(content_type=None)
            assert problem["written"] == "no" or answer.status not in (401, 403)
            return answer.status, problem["code"]
        return answer.status, ""


EVERY = [*ROUTES, *SOCKETS]


@pytest.mark.answers("requests-need-their-right", note="generated from the declarations")
@pytest.mark.parametrize("credential", REFUSED)
async def test_every_route_that_is_not_open_asks_for_a_token(
    credentials: Credentials, http: aiohttp.ClientSession, credential: str
) -> None:
    token = credentials.refused(credential)
    wrong = []
    for route in EVERY:
        status, code = await status_of(http, credentials.served.url, route, token)
        if (status == 401) == route.is_open or (status == 401) != (code == "unauthenticated") or status >= 500:
            wrong.append(f"{route.method} {route.path}: {status} {code}")
    assert wrong == []


def test_the_open_routes_are_these() -> None:
    assert [f"{route.method} {route.path}" for route in ROUTES if route.is_open] == [
        "GET /",
        "GET /ui/{file}",
        "GET /docs",
        "GET /docs/rapidoc.js",
        "GET /healthz",
        "GET /readyz",
        "DELETE /v1/access/cookie",
    ]
    assert OPENAPI_PATH not in {route.path for route in ROUTES}  # It describes what everybody may know.


ANYBODY = {"/v1/access", "/v1/access/cookie", "/v1/spaces", "/v1/export", SESSION_PATH}
"""Routes that every token may use: they are about the token itself, show only what it grants, or check each request."""


@pytest.mark.answers("requests-need-their-right", note="generated from the declarations")
async def test_every_route_of_stored_data_or_of_the_cluster_is_forbidden_without_a_grant(
    credentials: Credentials, http: aiohttp.ClientSession
) -> None:
    elsewhere = credentials._mint.make("crew-2:admin,impersonate")
    wrong = []
    for route in EVERY:
        if route.is_open or route.path in ANYBODY:
            continue
        status, code = await status_of(http, credentials.served.url, route, elsewhere)
        if (status, code) != (403, "forbidden"):
            wrong.append(f"{route.method} {route.path}: {status} {code}")
    assert wrong == []


@pytest.mark.answers("requests-need-their-right", note="generated from the declarations")
async def test_every_route_that_changes_something_is_forbidden_with_a_token_that_only_reads(
    credentials: Credentials, http: aiohttp.ClientSession
) -> None:
    whole, reader = credentials.whole(), credentials._mint.make("*:read")
    saved = {"writes": [{"op": "save", "thread": "planner", "state": {"plan": 1}}]}
    async with http.post(f"{credentials.served.url}/v1/spaces/crew/batch", json=saved, headers=whole.header) as answer:
        assert answer.status == 200
    # Without a rule there is nothing that `retention/run` could carry out, and so nothing that it would be refused.
    rule = {"threads_older_than_s": 86_400}
    async with http.put(f"{credentials.served.url}/v1/spaces/crew/retention", json=rule, headers=whole.header) as answer:
        assert answer.status == 200
    wrong = []
    for route in ROUTES:
        if not route.path.startswith("/v1/spaces") or not route.writes:
            continue
        status, code = await status_of(http, credentials.served.url, route, reader)
        # Some read first, and find nothing to change.
        if route.path.endswith("/merge") and status == 200:
            continue  # A branch with one head: there is nothing to merge.
        if route.path.endswith("/redaction/test"):
            continue  # It says what rules would replace, and writes nothing.
        if status < 300 or status >= 500 or code not in ("forbidden", "not-found"):
            wrong.append(f"{route.method} {route.path}: {status} {code}")
    assert wrong == []


async def test_no_route_is_forbidden_with_a_token_that_may_do_everything(
    credentials: Credentials, http: aiohttp.ClientSession
) -> None:
    whole = credentials.whole()
    wrong = []
    for route in ROUTES:
        if route.content_type == "text/event-stream" or route.path == "/v1/cluster/members":
            continue
        status, code = await status_of(http, credentials.served.url, route, whole)
        if status in (401, 403) or (status >= 500 and code not in ("no-quorum",)):
            wrong.append(f"{route.method} {route.path}: {status} {code}")
    assert wrong == []
