"""Secret fields are shown to nobody without the right to reveal: each request and route, from the declarations."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

import shoal
from shoal.access.guard import HIDING, shown
from shoal.api.glossary import PARTS
from shoal.api.routes import ROUTES
from shoal.errors import Forbidden, InvalidInput, ShoalError
from shoal.protocol import requests
from shoal.protocol.requests import Checkpoint, MultiReply, Reply, reply_of
from tests.access.conftest import Made, Mint, Serve, Served
from tests.access.requests_of_each_kind import kinds, made

LOGIN = shoal.Schema("login", secret={"token", "/plan/key", "/messages/*/key"})
SMALL = "hunter2"  # So small that its hash is its content.
LARGE = "hunter3" * 50
ADMIN = "*:admin,impersonate"


def state(nth: int) -> dict[str, Any]:
    return {
        "token": SMALL if nth else LARGE,
        "plan": {"key": f"{SMALL}-{nth}", "step": nth},
        "messages": [{"key": f"{LARGE}{each}", "text": "hello"} for each in range(nth + 1)],
        "n": nth,
    }


def leaks(text: str | bytes) -> bool:
    """Whether an answer holds a part of a secret, as it is, in hex or in base64."""
    raw = text.encode() if isinstance(text, str) else text
    forms = [b"hunter", b"hunter".hex().encode(), *(base64.b64encode(b"\0" * at + b"hunter")[2:-4] for at in range(3))]
    return any(form in raw for form in forms)


async def fill(url: str, whole: Made, *threads: str) -> None:
    """Save states with secrets in threads of the space `crew`."""
    async with shoal.connect(url, token=whole.text) as store:
        for name in threads:
            thread = store.space("crew").thread(name, schema=LOGIN)
            for nth in range(3):
                await thread.save(state(nth), label="approved" if nth == 2 else f"{nth}")
            await store.space("crew").thread(name).append("messages", {"key": LARGE, "text": "last"})


@pytest.fixture
async def served(serve: Serve, mint: Mint) -> Served:
    found = await serve(token_keys=mint.keys, journal_wait_s_max=0.01, lease_poll_s=0.01)
    await fill(found.url, mint.make("*:admin,impersonate,reveal"), "n", PARTS["thread"])
    return found


def reads(head: str) -> list[requests.Request[Any]]:
    """Requests whose answers hold states or hashes of them, with all that they may show."""
    alone: list[Any] = [
        requests.Load("crew", "n"),
        requests.Load("crew", "n", head),
        requests.Load("crew", "n", channels=["token"]),
        requests.Load("crew", "n", channels=[]),
        requests.Load("crew", "n", label="approved"),
        requests.History("crew", "n", channels=True),
        requests.History("crew", "n"),
        requests.ReadLabels("crew", "n", channels=True),
        requests.ReadLabels("crew", "n", channels=["plan"]),
        requests.ReadDelta("crew", "n", head),
        requests.Explain("crew", "n", head),
    ]
    return [*alone, requests.MultiRead([each for each in alone if isinstance(each, requests.Load)])]


@pytest.mark.answers("request-or-a-route-shows-secret-fields")
async def test_no_request_shows_a_secret_without_the_right(served: Served, mint: Mint, links: Any) -> None:
    wrong = []
    link = await links(mint.make(ADMIN))
    head = (await link.call(requests.Load("crew", "n"))).id
    parent = (await link.call(requests.Load("crew", "n"))).parents[0]
    generated = [made(kind, "crew") for kind in kinds() if issubclass(kind, requests.Read)]
    for request in [*reads(head), *reads(parent), *generated]:
        if isinstance(request, requests.Watch | requests.Follow | requests.FollowPresence):
            continue  # Their pushes hold no states; see below.
        try:
            reply = await link.call(request)
        except ShoalError as error:
            reply = error.message
        if leaks(msgspec.msgpack.encode(reply)):
            wrong.append(request)
    assert wrong == []


async def test_with_the_right_they_are_as_they_were_saved(served: Served, mint: Mint, links: Any) -> None:
    hidden, link = await links(mint.make("crew:read")), await links(mint.make("crew:thread:read,reveal"))
    head = (await link.call(requests.Load("crew", "n"))).id
    whole = await served.node.session().call(requests.Load("crew", "n", head))
    assert await link.call(requests.Load("crew", "n", head)) == whole
    for request in reads(head):
        assert leaks(msgspec.msgpack.encode(await link.call(request)))
    found = await hidden.call(requests.Load("crew", "n", head))
    assert [name for name in whole.hashes if found.hashes[name] != whole.hashes[name]] == ["token", "plan", "messages"]
    assert found.channels["n"] == whole.channels["n"]
    assert (found.secret, found.parents, found.metadata) == (whole.secret, whole.parents, whole.metadata)


@pytest.mark.parametrize("grant", ["other:thread:read,reveal", "crew:document:read,reveal", "crew:thread:admin"])
async def test_the_right_counts_in_its_spaces_and_for_its_families(mint: Mint, links: Any, grant: str) -> None:
    link = await links(mint.make("*:read", grant))
    assert not leaks(msgspec.msgpack.encode(await link.call(requests.Load("crew", "n"))))


async def test_a_log_shows_all_and_takes_the_right(served: Served, mint: Mint, links: Any) -> None:
    link = await links(mint.make(ADMIN))
    [head, *_] = (await link.call(requests.SignHeads())).heads
    with pytest.raises(Forbidden) as caught:
        await link.call(requests.ReadLog(head.partition, head.origin))
    assert (caught.value.detail["action"], caught.value.detail["family"]) == ("reveal", "cluster")
    await (await links(mint.make(ADMIN, "*:cluster:reveal"))).call(requests.ReadLog(head.partition, head.origin))


async def test_no_push_shows_a_secret(mint: Mint, served: Served, links: Any) -> None:
    link = await links(mint.make(ADMIN))
    async with link.subscribe(requests.Watch("crew", after=b"")) as pushes:
        await fill(served.url, mint.make("*:read,write,impersonate"), "another")
        for _ in range(4):
            assert not leaks(msgspec.msgpack.encode(await anext(pushes)))


@pytest.mark.answers("request-or-a-route-shows-secret-fields")
async def test_no_route_shows_a_secret_without_the_right(served: Served, mint: Mint, http: aiohttp.ClientSession) -> None:
    """Each route that reads, with and without `reveal=true`."""
    wrong, seen = [], []
    tokens = {"without": mint.make(ADMIN), "with": mint.make(ADMIN, "*:reveal")}
    paths = [("/diff", "?from=main~"), ("/checkpoints", "?states=true"), ("", "")]
    newest = await served.node.session().call(requests.Load("crew", PARTS["thread"]))
    head = newest.parents[0]
    for route in ROUTES:
        if route.method != "GET" or route.content_type == "text/event-stream" or "{thread}" not in route.path:
            continue
        query = next((query for end, query in paths if route.path.endswith(end)), "").replace("main~", head)
        parts = {f"{{{name}}}": value for name, value in (PARTS | {"checkpoint": newest.id}).items()}
        path = route.path
        for part, value in parts.items():
            path = path.replace(part, value)
        for reveal in ("", "reveal=true"):
            url = served.url + path + query + ("&" if query else "?") * bool(reveal) + reveal
            for held, token in tokens.items():
                async with http.get(url, headers=token.header) as answer:
                    found = leaks(await answer.read())
                    if found and held == "without":
                        wrong.append(f"{url}: {answer.status}")
                    if found and held == "with":
                        seen.append(route.path.rpartition("{thread}")[2])
    assert wrong == []
    # Those that show states do show them to whoever may see them, so that the table above proves something.
    assert {"/checkpoints/{checkpoint}", "/diff", "/mutations", "/checkpoints"} <= set(seen)


async def test_exports_and_reads_of_several_objects_hide_too(served: Served, mint: Mint, http: aiohttp.ClientSession) -> None:
    body = {"reads": [{"op": "load", "thread": "n"}, {"op": "load", "thread": "n", "label": "0"}]}
    for path, data, reveals in (
        ("/export", None, False),
        ("/export?reveal=true", None, True),
        ("/threads/n/export", None, False),
        ("/threads/n/export?reveal=true", None, True),
        ("/read", body, True),
    ):
        method = "GET" if data is None else "POST"
        for grant, shows in ((ADMIN, False), (f"{ADMIN},reveal", reveals)):
            url, header = f"{served.url}/v1/spaces/crew{path}", mint.make(grant).header
            async with http.request(method, url, json=data, headers=header) as answer:
                assert (answer.status, leaks(await answer.read())) == (200, shows), (path, grant)


@pytest.mark.answers("request-or-a-route-shows-secret-fields")
def test_every_reply_that_may_hold_a_state_is_hidden() -> None:
    def holds(kind: Any, seen: frozenset[Any] = frozenset()) -> bool:
        """Whether a type is a checkpoint, or may hold one."""
        if kind is Checkpoint:
            return True
        inner = list(getattr(kind, "__args__", ()))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in seen:
            inner += [field.type for field in msgspec.structs.fields(kind)]
        return any(holds(each, seen | {kind}) for each in inner)

    replies = {reply_of(kind): kind for kind in kinds() if getattr(reply_of(kind), "__struct_fields__", None) is not None}
    found = {reply for reply in replies if reply is not MultiReply and holds(reply)}
    assert found == set(HIDING)
    assert all(issubclass(kind, requests.Read) for reply, kind in replies.items() if reply in found)


def test_states_without_secret_fields_are_passed_on() -> None:
    found = Checkpoint("0" * 64, [], "main", [], 1, "", 0, b"\x80", {"n": b"\x01"}, {"n": "01"})
    request = requests.Load("crew", "n")
    assert shown(request, found, lambda *_: False) is not None
    assert shown(request, found, lambda *_: False) == found
    other: Reply = requests.Branches({})
    assert shown(requests.Heads("crew", "n"), other, lambda *_: False) is other


# ── writers without the right ─────────────────────────────────────────────────


@pytest.fixture
async def writer(served: Served, mint: Mint) -> AsyncIterator[Any]:
    async with shoal.connect(served.url, token=mint.make("crew:read,write").text) as store:
        yield store.space("crew").thread("n")


async def stored(served: Served) -> dict[str, Any]:
    found = await served.node.session().call(requests.Load("crew", "n"))
    return {name: shoal.values.decode(packed) for name, packed in found.channels.items()}


async def test_a_writer_without_the_right_changes_the_rest_and_keeps_the_secrets(writer: Any, served: Served) -> None:
    before = await stored(served)
    await writer.update({"n": 9}, append={"messages": [{"text": "more"}]})
    after = await stored(served)
    assert after == {**before, "n": 9, "messages": [*before["messages"], {"text": "more"}]}


async def save_what_was_loaded(writer: Any) -> None:
    await writer.save((await writer.load()).state)


async def modify(writer: Any) -> None:
    await writer.modify(lambda state: {**state, "n": 9})


async def undo(writer: Any) -> None:
    await writer.undo(2)


async def edit(writer: Any) -> None:
    await writer.edit([{"op": "replace", "path": "/plan/step", "value": 7}], by="planner")


@pytest.mark.parametrize("way", [save_what_was_loaded, modify, undo, edit], ids=lambda way: way.__name__)
async def test_a_hidden_value_never_overwrites_a_secret(writer: Any, served: Served, way: Any) -> None:
    before = await stored(served)
    with pytest.raises(InvalidInput, match="grants `reveal`") as caught:
        await way(writer)
    assert caught.value.written == "no"
    assert await stored(served) == before


async def test_a_difference_shows_what_is_not_secret(writer: Any) -> None:
    [newest, *_, oldest] = [found.id async for found in writer.history()]
    found = (await writer.diff(oldest, newest, reveal=True)).channels
    assert not leaks(json.dumps(msgspec.to_builtins(found)))
    assert [change.path for change in found["plan"]] == ["/step"]
    assert len([each async for each in writer.mutations(reveal=True)]) > 3


async def test_an_agent_with_the_right_resumes_with_its_secrets(served: Served, mint: Mint) -> None:
    async with shoal.connect(served.url, token=mint.make("crew:read,write,reveal").text) as store:
        found = await store.space("crew").thread("n", schema=LOGIN).resume()
        assert found.state["plan"]["key"] == f"{SMALL}-2"
        await store.space("crew").thread("n").save({**found.state, "n": 10}, overwrite=True)


async def test_hidden_values_still_name_their_pointers(served: Served, mint: Mint, links: Any) -> None:
    link = await links(mint.make("crew:read"))
    found = await link.call(requests.Load("crew", "n"))
    assert "token" in repr(found.secret)
    assert not leaks(repr(found.channels))
