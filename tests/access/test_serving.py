"""A node that asks for tokens, and the clients that reach it: in the order of a token's life."""

from __future__ import annotations

import asyncio
import os
import time
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import aiohttp
import msgspec
import pytest
from rich.console import Console

import shoal
from shoal.access.access import Access, reaches_quorum
from shoal.access.gate import Gate, Keys
from shoal.access.keys import load
from shoal.cli.serving import credentials_of
from shoal.config import Config
from shoal.demo.course import Access as LetIn
from shoal.demo.run import Options, run_demo
from shoal.errors import Forbidden, InvalidConfig, Overloaded, ReadOnly, ShoalError, Unauthenticated
from shoal.integrations.langgraph import ShoalStore
from shoal.protocol import requests
from shoal.protocol.session import Credential, Wrapper
from shoal.transport.keyring import ClusterKey
from simulation.bounds import altered
from tests.access.conftest import Made, Mint, Serve

PATIENT = Config(request_timeout_s=30.0, reach_timeout_s=30.0)


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


async def told(url: str, token: Any) -> ShoalError:
    with pytest.raises(ShoalError) as caught:
        async with shoal.connect(url, token=token, config=PATIENT) as store:
            await store.space("crew").counter("n").add(1)
    assert caught.value.written == "no"
    return caught.value


# ── giving a token ────────────────────────────────────────────────────────────


async def test_a_token_is_given_as_text_file_function_or_by_the_environment(
    mint: Mint, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = (await serve(token_keys=mint.keys)).url
    made = mint.make("crew:counter:append")
    file = tmp_path / "planner.token"
    file.write_text(made.text + "\n")

    async def later() -> str:
        return made.text

    given: list[Credential] = [made.text, file, lambda: made.text, later]
    for number, token in enumerate(given, 1):
        async with shoal.connect(url, token=token, config=PATIENT) as store:
            assert await store.space("crew").counter("n").add(1) == number
    for name, value in (("SHOAL_TOKEN", made.text), ("SHOAL_TOKEN_FILE", str(file))):
        monkeypatch.setenv(name, value)
        async with shoal.connect(url, config=PATIENT) as store:
            await store.space("crew").counter("n").add(1)
        monkeypatch.delenv(name)

    def blocking() -> Any:
        with shoal.sync.connect(url, token=file, config=PATIENT) as store:
            return store.space("crew").counter("n").add(1)

    assert await asyncio.to_thread(blocking) == 7


async def test_a_framework_is_let_in_with_a_token(mint: Mint, serve: Serve) -> None:
    url = (await serve(token_keys=mint.keys)).url
    async with ShoalStore.connect(url, token=mint.make("langgraph:items:read,write").text) as store:
        await store.aput(("memory",), "k", {"tea": True})
        found = await store.aget(("memory",), "k")
        assert found is not None
        assert found.value == {"tea": True}


@pytest.mark.parametrize("token", [7, b"x", "two words", "line\nbreak", "", "é", Path("/nowhere"), lambda: "", lambda: 7])
async def test_a_malformed_token_is_refused_before_sending(token: Any) -> None:
    with pytest.raises(InvalidConfig) as caught:
        async with shoal.connect("http://127.0.0.1:9", token=token) as store:
            await store.status()
    assert "Nothing was sent" in caught.value.message
    assert "two words" not in caught.value.message


async def test_without_a_token_and_with_one_that_is_not_accepted_the_reason_is_told(mint: Mint, serve: Serve) -> None:
    url = (await serve(token_keys=mint.keys)).url
    error = await told(url, None)
    assert isinstance(error, Unauthenticated)
    assert "SHOAL_TOKEN_FILE" in error.message
    assert "has expired" in (await told(url, mint.make("*:admin", lasts_s=5, ago_s=10).text)).message
    assert "for another cluster" in (await told(url, mint.make("*:admin", cluster="other").text)).message
    assert "is no token" in (await told(url, "nonsense")).message
    assert isinstance(await told(url, mint.make("other:admin").text), Forbidden)


async def test_with_several_nodes_the_reason_is_told_too(mint: Mint, serve: Serve) -> None:
    urls = [(await serve(token_keys=mint.keys)).url for _ in range(2)]
    assert isinstance(await told(",".join(urls), None), Unauthenticated)


@pytest.mark.answers("false-tokens-do-not-count")
async def test_a_token_is_in_no_error_traceback_or_repr(
    mint: Mint, serve: Serve, capfd: pytest.CaptureFixture[str], http: aiohttp.ClientSession
) -> None:
    served = await serve(token_keys=mint.keys)
    good, bad = mint.make("other:read,admin"), mint.make("*:admin", cluster="elsewhere")
    texts = []
    for made in (good, bad):
        error = await told(served.url, made.text)
        texts.append("".join(traceback.format_exception(error)) + repr(error) + repr(error.detail))
        async with shoal.connect(served.url, token=made.text) as store:
            session = store.connection.session
            while isinstance(session, Wrapper):
                session = session._session
            texts.append(repr(store) + repr(store.connection) + repr(vars(session)))
        for path in ("/metrics", "/v1/cluster", "/v1/spaces/crew/counters/n", "/v1/session", "/nothing"):
            async with http.get(served.url + path, headers=made.header) as answer:
                texts.append(await answer.text() + str(answer.headers))
    texts += capfd.readouterr()
    for made in (good, bad):
        assert [text for text in texts if made.text in text or made.text.rpartition(".")[2] in text] == []


# ── the end of a token ────────────────────────────────────────────────────────


async def test_a_session_ends_with_its_token(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    made = mint.make("crew:admin", lasts_s=4)
    async with shoal.connect(served.url, token=made.text, config=PATIENT) as store:
        await store.space("crew").counter("n").add(1)
        async with asyncio.timeout(30):
            with pytest.raises(Unauthenticated, match="has expired"):
                while True:
                    await store.space("crew").counter("n").value()
                    await asyncio.sleep(0.05)


@pytest.mark.answers("revoked-tokens-end")
async def test_an_idle_session_and_its_watches_end_with_the_token(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession
) -> None:
    served = await serve(token_keys=mint.keys)
    made = mint.make("crew:read", lasts_s=4)
    socket = await http.ws_connect(served.url + "/v1/session", headers=made.header)
    from shoal.protocol.frames import PROTOCOL, Hello, encode_hello

    await socket.send_bytes(encode_hello(Hello(PROTOCOL, "test")))
    async with asyncio.timeout(30):
        while (message := await socket.receive()).type is aiohttp.WSMsgType.BINARY:
            pass
    assert (socket.close_code, message.extra) == (1008, "the token has expired")


@pytest.mark.answers("revoked-tokens-end")
async def test_a_renewed_file_carries_a_session_over_without_losing_anything(mint: Mint, serve: Serve, tmp_path: Path) -> None:
    served = await serve(token_keys=mint.keys)
    file = tmp_path / "planner.token"

    def renew() -> None:
        beside = tmp_path / "new"
        beside.write_text(mint.make("crew:read,write", lasts_s=3).text)
        os.replace(beside, file)

    async def keep_renewed() -> None:
        while True:
            renew()
            await asyncio.sleep(0.5)

    renew()
    renewing = asyncio.create_task(keep_renewed())  # To the end: also while the last events are on their way.
    seen: list[str] = []
    begun = time.monotonic()
    async with shoal.connect(served.url, token=file, config=PATIENT) as store:
        journal = store.space("crew").thread("t").journal

        async def follow() -> None:
            async for event in journal.read(follow=True):
                seen.append(event.event)  # noqa: PERF401  (each is looked at as it comes)

        following = asyncio.create_task(follow())
        written: list[str] = []
        while time.monotonic() - begun < 6.5:  # Longer than two tokens.
            written.append(f"e{len(written)}")
            await journal.append(written[-1])
            await asyncio.sleep(0.02)
        await until(lambda: len(seen) == len(written))
        following.cancel()
    renewing.cancel()
    assert seen == written


async def test_a_watch_outlives_its_token_if_there_is_a_newer_one(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    made = [mint.make("crew:read,write"), mint.make("crew:read,write")]
    given = iter(made)
    async with (
        shoal.connect(served.url, token=mint.make("crew:write").text, config=PATIENT) as writer,
        shoal.connect(served.url, token=lambda: next(given).text, config=PATIENT) as reader,
    ):
        events = reader.space("crew").thread("t").journal.read(follow=True)
        journal = writer.space("crew").thread("t").journal
        await journal.append("before")
        async with asyncio.timeout(30):
            assert (await anext(events)).event == "before"
            assert served.access is not None
            # The next push finds the token ended before its session is closed, as it does if the clients' loop was busy.
            (bearer,) = (bearer for bearer in served.access.gate._live if bearer.token.id == made[0].token.id)
            bearer._over = "revoked"
            await journal.append("after")
            assert (await anext(events)).event == "after"
        await events.aclose()
    assert next(given, None) is None


@pytest.mark.answers("revoked-tokens-end")
async def test_a_revoked_token_counts_no_more_there_and_after_a_restart(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, token_look_s=1000.0)  # So that the change alone tells it.
    made, ops = mint.make("crew:write,read"), mint.make("*:admin")
    async with shoal.connect(served.url, token=made.text, config=PATIENT) as store:
        await store.space("crew").counter("n").add(1)
        async with shoal.connect(served.url, token=ops.text) as admin:
            await admin.space(".shoal").map("revoked").set(made.token.id, int(made.token.ends_s))
        async with asyncio.timeout(30):
            with pytest.raises(Unauthenticated, match="is revoked"):
                while True:
                    await store.space("crew").counter("n").value()
                    await asyncio.sleep(0.01)
    assert served.access is not None
    await served.access.stop()
    await served.node.stop()
    again = await serve(served.directory, token_keys=mint.keys)
    assert "is revoked" in (await told(again.url, made.text)).message
    async with shoal.connect(again.url, token=ops.text) as admin:
        await admin.space(".shoal").map("revoked").remove(made.token.id)
        assert again.access is not None
        gate = again.access.gate
        await until(lambda: not gate._revoked)
        async with shoal.connect(again.url, token=made.text) as store:
            assert await store.space("crew").counter("n").value() == 1


async def test_revocations_of_tokens_that_expired_long_ago_are_forgotten(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    now = int(time.time())
    async with shoal.connect(served.url, token=mint.make("*:admin").text) as store:
        revoked = store.space(".shoal").map("revoked")
        for id, ends in (("long-ago", now - 90_000), ("lately", now - 10), ("never", 0), ("nonsense", "x")):
            await revoked.set(id, ends)
        async with asyncio.timeout(30):
            while await revoked.entry("long-ago") is not None:
                await asyncio.sleep(0.01)
    assert served.access is not None
    assert served.access.gate._revoked == {"lately", "never", "nonsense"}


@pytest.mark.answers("revoked-tokens-end")
async def test_more_revocations_than_can_be_held_let_nobody_in(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, revocations_max=2)
    ops = mint.make("*:admin")
    async with shoal.connect(served.url, token=ops.text, config=PATIENT) as store:
        with pytest.raises(Unauthenticated):
            for number in range(200):
                await store.space(".shoal").map("revoked").set(f"id-{number}", 0)
    assert isinstance(await told(served.url, ops.text), Unauthenticated)


async def test_new_keys_are_taken_over_and_withdrawn_ones_end_their_sessions(mint: Mint, serve: Serve) -> None:
    from shoal.access import keys

    served = await serve(token_keys=mint.keys, token_look_s=0.02)
    former = mint.make("crew:read,write")
    async with shoal.connect(served.url, token=former.text, config=PATIENT) as store:
        await store.space("crew").counter("n").add(1)
        keys.rotate(mint.directory, now_s=time.time(), withdraw=True)
        async with asyncio.timeout(30):
            with pytest.raises(Unauthenticated):
                while True:
                    await store.space("crew").counter("n").value()
                    await asyncio.sleep(0.02)
    async with shoal.connect(served.url, token=mint.make("crew:read").text) as store:
        assert await store.space("crew").counter("n").value() == 1


async def test_broken_keys_change_nothing(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    Path(mint.keys).write_text("broken")
    assert served.access is not None
    with pytest.raises(InvalidConfig):
        served.access.reload()
    served.access.reload()  # It is told once.
    # The keys from before count.
    text = mint_again(mint)
    async with shoal.connect(served.url, token=text.text) as store:
        assert await store.space("crew").counter("n").value() == 0


def mint_again(mint: Mint) -> Made:
    return mint.make("crew:read")


# ── failures ──────────────────────────────────────────────────────────────────


@pytest.mark.answers("peers-route-is-closed")
async def test_refused_tokens_are_bounded_for_each_address_and_known_tokens_go_on(
    mint: Mint, serve: Serve, http: aiohttp.ClientSession
) -> None:
    served = await serve(token_keys=mint.keys, token_failures_max=3)
    known, fresh = mint.make("crew:read"), mint.make("crew:read")
    path = served.url + "/v1/spaces/crew/counters/n"

    async def status(headers: dict[str, str]) -> int:
        async with http.get(path, headers=headers) as answer:
            if answer.status == Overloaded.status:
                assert int(answer.headers["Retry-After"]) > 0
            return answer.status

    assert await status(known.header) == 200
    assert [await status({"Authorization": f"Bearer wrong-{number}"}) for number in range(5)] == [401] * 3 + [429] * 2
    assert await status(fresh.header) == 429  # Nobody may try one after another.
    assert await status(known.header) == 200
    assert await status({}) == 401  # Costs nothing, and says what to do.


def gate_of(keys: Keys) -> Gate:
    return Gate({"shoal": keys}, config=Config(token_failures_max=3), now_s=time.time, entropy=os.urandom)


async def test_a_refused_token_is_bounded_whoever_presents_it(mint: Mint) -> None:
    gate = gate_of(load(mint.keys, cluster="shoal"))
    forged = mint.make("crew:read").text[:-4] + "AAAA"
    for number in range(3):
        with pytest.raises(Unauthenticated):
            gate.bearer(forged, address=f"10.0.0.{number}")
    with pytest.raises(Overloaded, match="3 times this token was refused"):
        gate.bearer(forged, address="10.0.0.9")
    assert gate.bearer(mint.make("crew:read").text, address="10.0.0.1")


async def test_a_token_whose_key_may_still_come_is_not_bounded(mint: Mint) -> None:
    gate = gate_of(Keys("shoal", "shoal", ("EdDSA",), {}))
    token = mint.make("crew:read").text
    for number in range(9):
        with pytest.raises(Unauthenticated):
            gate.bearer(token, address=f"10.0.0.{number}")


# ── browsers ──────────────────────────────────────────────────────────────────


async def test_a_node_that_asks_for_no_token_says_so(serve: Serve, http: aiohttp.ClientSession) -> None:
    url = (await serve()).url
    async with http.get(f"{url}/v1/access") as answer:
        assert (await answer.json())["open"] is True
    async with http.post(f"{url}/v1/access/cookie", headers={"Authorization": "Bearer x"}) as answer:
        assert (answer.status, (await answer.json(content_type=None))["code"]) == (422, "unsupported")


async def test_a_header_of_another_scheme_is_told(mint: Mint, serve: Serve, http: aiohttp.ClientSession) -> None:
    url = (await serve(token_keys=mint.keys)).url
    for header in ("Basic dXNlcjpwYXNz", "Bearer", "Bearer ", "x" * 5000):
        async with http.get(f"{url}/v1/access", headers={"Authorization": header}) as answer:
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_answers_are_for_the_caller_alone(mint: Mint, serve: Serve, http: aiohttp.ClientSession) -> None:
    url = (await serve(token_keys=mint.keys)).url
    made = mint.make("*:admin")
    for path, control in (
        ("/v1/spaces/crew/counters/n", "private, no-cache"),
        ("/v1/access", "no-store"),
        ("/metrics", "no-store"),
        ("/v1/nothing", None),
    ):
        async with http.get(url + path, headers=made.header) as answer:
            assert answer.headers.get("Cache-Control") == (control or "no-store")
            assert "Authorization, Cookie" in answer.headers["Vary"]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
    async with http.get(f"{url}/docs", headers={"Accept": "text/html"}) as answer:
        assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


# ── Yjs clients ───────────────────────────────────────────────────────────────


class Silent:
    """The node's session, whose watches tell nothing."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def call(self, request: Any, /, **manner: Any) -> Any:
        return await self._session.call(request, **manner)

    @asynccontextmanager
    async def subscribe(self, _: Any, /) -> AsyncIterator[AsyncIterator[Any]]:
        async def nothing() -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

        yield nothing()


@pytest.mark.answers("revoked-tokens-end")
async def test_a_revocation_that_came_without_a_change_is_found_in_time(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    config = msgspec.structs.replace(Config(), token_keys=mint.keys)
    access = Access(config, now_s=time.time, entropy=os.urandom)
    await access.start(Silent(served.node.session()))  # type: ignore[arg-type]
    made = mint.make("crew:read")
    bearer = access.gate.bearer(made.text, address="127.0.0.1")
    await served.node.session().call(
        requests.PutEntry(".shoal", "revoked", made.token.id, msgspec.msgpack.encode(int(made.token.ends_s)))
    )
    async with asyncio.timeout(30):
        with pytest.raises(Unauthenticated, match="is revoked"):
            while True:
                bearer.check_valid()
                await asyncio.sleep(0.01)
    await access.stop()


@pytest.mark.answers("revoked-tokens-end")
async def test_a_stream_of_changes_ends_with_the_token(mint: Mint, serve: Serve, http: aiohttp.ClientSession) -> None:
    served = await serve(token_keys=mint.keys, heartbeat_s=0.05)
    made = mint.make("crew:read")
    async with http.get(f"{served.url}/v1/spaces/crew/watch", headers=made.header) as answer:
        assert answer.status == 200
        assert served.access is not None
        served.access.gate.revoke([made.token.id])
        async with asyncio.timeout(30):
            said = await answer.text()
    assert '"code":"unauthenticated"' in said


class CutOff:
    """The node's session, which says that it is one of three nodes and reaches so many, itself counted."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.reached = 3
        self.fails = False

    async def call(self, request: Any, /, **manner: Any) -> Any:
        found = await self._session.call(request, **manner)
        if not isinstance(request, requests.Cluster):
            return found
        if self.fails:
            raise ReadOnly("The node is stopping.")
        states = ["self", *["linked"] * (self.reached - 1), *["unreachable"] * (3 - self.reached)]
        members = [msgspec.structs.replace(found.members[0], state=state) for state in states]
        return msgspec.structs.replace(found, members=members, size=3, quorum=2)

    def subscribe(self, subscription: Any, /) -> Any:
        return self._session.subscribe(subscription)


@pytest.mark.answers("cut-off-node-accepts-revoked-tokens")
async def test_a_node_that_is_cut_off_for_too_long_accepts_no_token_until_it_is_linked(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    config = msgspec.structs.replace(Config(), token_keys=mint.keys, revocations_age_s_max=0.05)
    access = Access(config, now_s=time.time, entropy=os.urandom)
    session = CutOff(served.node.session())
    await access.start(session)  # type: ignore[arg-type]
    made = mint.make("crew:read")
    bearer = access.gate.bearer(made.text, address="127.0.0.1")
    for reached, fails in ((1, False), (3, True)):
        session.reached, session.fails = reached, fails
        await until(lambda: access.gate.is_cut_off)
        with pytest.raises(Unauthenticated, match="cut off") as caught:
            bearer.check(requests.ReadCounter("crew", "n"))
        assert (caught.value.detail["reason"], caught.value.written) == ("cut-off", "no")
        with pytest.raises(Unauthenticated, match="cut off"):
            access.gate.bearer(made.text, address="127.0.0.1")
        with pytest.raises(Unauthenticated, match="cut off"):
            access.gate.bearer(mint.make("crew:read").text, address="127.0.0.1")
        session.reached, session.fails = 2, False
        await until(lambda: not access.gate.is_cut_off)
        bearer.check(requests.ReadCounter("crew", "n"))
    await access.stop()


async def test_a_node_that_is_alone_is_never_cut_off(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, revocations_age_s_max=0.02)
    view = await served.node.session().call(requests.Cluster())
    assert reaches_quorum(view)
    member = view.members[0]
    joining = [member, *[msgspec.structs.replace(member, state="linked", part="joining")] * 2]
    assert not reaches_quorum(msgspec.structs.replace(view, members=joining, quorum=2))


async def test_the_end_of_an_authors_newest_token_is_told_before_it_comes(mint: Mint) -> None:
    now_s = time.time()
    gate = Gate({"shoal": load(mint.keys, cluster="shoal")}, config=Config(), now_s=lambda: now_s, entropy=os.urandom)
    assert gate.ends() == gate.ending() == []
    for author, lasts_s in (("planner", 3600.0), ("indexer", 365 * 86_400.0)):
        gate.bearer(mint.make("crew:read", author=author, lasts_s=lasts_s).text, address="10.0.0.1")
    assert ([token.author for token in gate.ends()], gate.ending()) == (["planner", "indexer"], [])
    now_s += 2710.0
    assert [token.author for token in gate.ending()] == ["planner"]
    newer = mint.make("crew:read", author="planner", lasts_s=7200.0)
    gate.bearer(newer.text, address="10.0.0.1")
    assert gate.ending() == []
    gate.revoke([newer.token.id])
    assert [token.author for token in gate.ends()] == ["indexer"]
    now_s += 352 * 86_400.0
    assert [token.author for token in gate.ending()] == ["indexer"]
    now_s += 30 * 86_400.0
    assert gate.ends() == gate.ending() == []


async def test_tokens_that_were_refused_are_counted_by_reason(mint: Mint) -> None:
    gate = gate_of(load(mint.keys, cluster="shoal"))
    ended = mint.make("crew:read", lasts_s=10.0, ago_s=60.0)
    for text in (ended.text, ended.text, None, "no token"):
        with pytest.raises(Unauthenticated):
            gate.bearer(text, address="10.0.0.1")
    assert gate.refusals == {"expired": 2, "missing": 1, "malformed": 1}


async def test_a_status_tells_whose_token_ends_soon(mint: Mint) -> None:
    access = Access(Config(token_keys=mint.keys), now_s=time.time, entropy=os.urandom)
    made = mint.make("crew:read", author="planner", lasts_s=100.0, ago_s=80.0)
    access.gate.bearer(made.text, address="10.0.0.1")
    told = credentials_of(None, access, ClusterKey(Config()))
    assert told.tokens_end_ms == round(made.token.ends_s * 1000)
    assert [each.partition(" until ")[0] for each in told.tokens_ending] == ["planner"]


async def test_revocations_are_known_once_access_has_started(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    await served.node.session().call(requests.PutEntry(".shoal", "revoked", "an-id", msgspec.msgpack.encode(0)))
    config = msgspec.structs.replace(Config(), token_keys=mint.keys)
    access = Access(config, now_s=time.time, entropy=os.urandom)
    await access.start(Silent(served.node.session()))  # type: ignore[arg-type]
    assert access.gate._revoked == {"an-id"}
    await access.stop()


async def test_revocations_are_read_again_and_again(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    reads: list[Any] = []

    class Counting(Silent):
        async def call(self, request: Any, /, **manner: Any) -> Any:
            reads.append(request)
            return await super().call(request, **manner)

    config = msgspec.structs.replace(Config(), token_keys=mint.keys)
    access = Access(config, now_s=time.time, entropy=os.urandom)
    with altered(token_look_s=0.02):
        await access.start(Counting(served.node.session()))  # type: ignore[arg-type]
        await until(lambda: len(reads) > 4)  # One at the start, and one by the watch that tells of nothing.
        await access.stop()


async def test_a_demo_whose_token_is_refused_begins_nothing(mint: Mint, serve: Serve, tmp_path: Path) -> None:
    served = await serve(token_keys=mint.keys)
    file = tmp_path / "token"
    file.write_text(mint.make("*:admin", lasts_s=5, ago_s=10).text)
    file.chmod(0o600)
    options = Options(limit=3, urls=[served.url], access=LetIn(str(file)), command=["false"])
    with pytest.raises(Unauthenticated, match="has expired"):
        await run_demo(options, console=Console(quiet=True), random=Random(1), now_s=lambda: 0.0)
