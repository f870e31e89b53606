"""Who read what: each read in a space whose reads are logged is noted before it is answered."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, ForwardRef, get_args, get_type_hints

import aiohttp
import msgspec
import pytest

import shoal
from shoal.access.bearer import Bearer
from shoal.access.grants import action_of, discloses
from shoal.access.guard import READS
from shoal.access.guard import ReadLog as Log
from shoal.errors import FileIncomplete, Forbidden, ReadOnly, RegisterChanged, Unsupported
from shoal.kinds.file import state as files
from shoal.names import RESERVED
from shoal.protocol.requests import Append, ListSummaries, NameFile, PutFile, ReadCounter, ReadLog, Request, Search
from tests.access.conftest import Mint, Serve, Served


async def noted(served: Served, mint: Mint) -> list[dict[str, Any]]:
    async with shoal.connect(served.url, token=mint.make("*:admin").text) as store:
        return [event.event async for event in store.space(RESERVED).thread(READS).journal.read()]


@pytest.mark.answers("reads-are-noted")
async def test_each_read_of_a_logged_space_is_noted_with_who_and_what(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="patients-*, hr")
    made = mint.make("*:read,write", author="planner")
    async with shoal.connect(served.url, token=made.text) as store:
        space = store.space("patients-7")
        await space.thread("intake").save({"step": 1})
        await space.thread("intake").load()
        await space.counter("n").value()
        await store.space("crew").counter("n").value()
        await store.space("hr").register("lead").get()
    entries = await noted(served, mint)
    assert {(each["by"], each["token"]) for each in entries} == {("planner", made.token.id)}
    read = [tuple(found) for each in entries for found in each["reads"]]
    assert ("load", "patients-7", "intake") in read
    assert {space for _, space, _ in read} == {"patients-7", "hr"}
    assert [name for tag, space, name in read if tag == "read-counter"] == ["n"]


@pytest.mark.answers("reads-are-noted")
async def test_a_watch_is_noted_when_it_begins(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="*")
    async with shoal.connect(served.url, token=mint.make("crew:read").text) as store:
        watching = store.space("crew").watch()
        first = asyncio.ensure_future(anext(watching))
        async with asyncio.timeout(30):
            while ["watch", "crew"] not in [found[:2] for each in await noted(served, mint) for found in each["reads"]]:
                await asyncio.sleep(0.01)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_forbidden_reads_are_not_noted(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="*")
    async with shoal.connect(served.url, token=mint.make("crew:write", author="forbidden").text) as store:
        with pytest.raises(Forbidden):
            await store.space("crew").counter("n").value()
    assert [each for each in await noted(served, mint) if each["by"] == "forbidden"] == []
    plain = await serve(token_keys=mint.keys)
    async with shoal.connect(plain.url, token=mint.make("crew:read").text) as store:
        await store.space("crew").counter("n").value()
    assert await noted(plain, mint) == []


@pytest.mark.answers("reads-are-noted")
async def test_a_read_that_cannot_be_noted_is_refused(mint: Mint, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew")
    assert served.access is not None
    reads = served.access.gate.reads
    assert isinstance(reads, Log)
    call = reads._session.call

    async def failing(request: Any, /, **named: Any) -> Any:
        if isinstance(request, Append):
            raise ReadOnly("the disk is full. Nothing was written.")
        return await call(request, **named)

    class Failing:
        def __init__(self) -> None:
            self.call = failing

    monkeypatch.setattr(reads, "_session", Failing())
    async with shoal.connect(
        served.url, token=mint.make("*:read").text, config=shoal.Config(request_timeout_s=0.5, reach_timeout_s=5.0)
    ) as store:
        with pytest.raises(shoal.errors.ShoalError) as caught:
            await store.space("crew").counter("n").value()
        assert caught.value.written == "no"


class Full:
    """A node's session that can write nothing."""

    async def call(self, *_: Any, **__: Any) -> Any:
        raise ReadOnly("the disk is full. Nothing was written.")


async def test_a_note_that_could_not_be_written_is_an_error(mint: Mint) -> None:
    bearer = Bearer(mint.make("crew:read").token, now_s=lambda: 0.0, entropy=os.urandom)
    with pytest.raises(ReadOnly):
        await Log(Full(), config=shoal.Config(audit_reads="crew")).note(bearer, ReadCounter("crew", "n"))  # type: ignore[arg-type]


async def test_reads_of_several_objects_at_once_are_one_entry(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew")
    token = mint.make("*:read", author="planner").text
    async with shoal.connect(served.url, token=token) as store, store.space("crew").read() as read:
        read.counter("{t}n").value()
        read.counter("{t}m").value()
    [entry] = [each for each in await noted(served, mint) if each["by"] == "planner"]
    assert [found[1:] for found in entry["reads"]] == [["crew", "{t}n"], ["crew", "{t}m"]]


async def test_the_log_is_bounded(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew", audit_keep_s=7200.0)
    async with shoal.connect(served.url, token=mint.make("*:admin").text) as store:
        await store.space("crew").counter("n").value()
        found = (await store.space(RESERVED).thread(READS).journal.retention()).older_than
    assert found is not None
    assert found.total_seconds() == 7200


async def test_reads_of_content_are_noted_under_any_name(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew")
    async with shoal.connect(served.url, token=mint.make("*:admin,reveal").text) as store:
        thread = store.space("crew").thread("t")
        await thread.save({"secret": "s"})
        await thread.worklist("w").add({"do": "it"})
        assert await thread.worklist("w").claim() is not None
        await thread.step("pay", call=lambda: 5)
        await store.space("crew").counter("n").add(1)
        await store.space("crew").register("r").set(1)
        await store.connection.read(ReadLog(0, b"\0" * 16))
    read = {(tag, space) for each in await noted(served, mint) for tag, space, _ in each["reads"]}
    assert {("claim-item", "crew"), ("begin-step", "crew"), ("end-step", "crew"), ("add", "crew"), ("read-log", "*")} <= read


async def test_a_refusal_that_shows_a_value_is_noted(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew")
    async with shoal.connect(served.url, token=mint.make("crew:write").text) as store:
        register = store.space("crew").register("r")
        await register.set("her diagnosis")
        with pytest.raises(RegisterChanged, match="her diagnosis"):
            await register.compare_and_set("a guess", 1)
    assert ["compare-and-set", "crew", "r"] in [found for each in await noted(served, mint) for found in each["reads"]]


async def test_a_text_that_is_looked_for_is_not_noted(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew")
    async with shoal.connect(served.url, token=mint.make("crew:read").text) as store:
        await store.connection.read(Search("crew", "Ana's diagnosis"))
        await store.connection.read(ListSummaries("crew", text="her salary"))
        await store.connection.read(ListSummaries("crew", "stuck"))
    read = [tuple(found) for each in await noted(served, mint) for found in each["reads"]]
    assert set(read) == {("search", "crew", ""), ("list-summaries", "crew", "")}


async def test_a_put_tells_a_writer_nothing_of_what_is_there(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    data, other = b"the diagnosis", b"another tale."
    digests = [sha256(each).digest() for each in (data, other)]
    hashes = [digest.hex() for digest in digests]
    manifests = [files.pack_manifest([files.Chunk(digest, len(data))]) for digest in digests]
    writer = mint.make("crew:write").text
    async with shoal.connect(served.url, token=mint.make("crew:read,write").text) as store:
        await store.space("crew").thread("t").put_file("secret", data)
    async with shoal.connect(served.url, token=writer) as store:
        await store.space("crew").thread("t").put_file("own", b"text")

        async def answer(request: Request[Any]) -> type[Exception] | None:
            try:
                await store.connection.session.call(request)
            except shoal.errors.ShoalError as error:
                return type(error)
            return None

        for kind in (PutFile, NameFile):
            asked = [kind("crew", "t", "n", *each, "a/b", b"") for each in ((sha256(b"").hexdigest(), 0),)]
            assert await answer(asked[0]) in (None, Unsupported)
            for chunks, error in (([], Forbidden), ([b"x" * len(data)], FileIncomplete)):
                told = [
                    await answer(kind("crew", "t", "n", hash, len(data), "a/b", manifest, chunks))
                    for hash, manifest in zip(hashes, manifests, strict=True)
                ]
                assert told == [error, error], kind


async def test_a_document_that_is_open_in_a_browser_is_noted(mint: Mint, serve: Serve, http: aiohttp.ClientSession) -> None:
    served = await serve(token_keys=mint.keys, audit_reads="crew")
    made = mint.make("crew:read,write")
    async with http.ws_connect(f"{served.url}/v1/yjs/crew/plan", headers=made.header) as socket:
        await socket.send_bytes(bytes([0, 0, 1, 0]))  # What do you hold that I lack? I lack everything.
        await socket.receive(timeout=30)
    assert ["read-document", "crew", "plan"] in [found for each in await noted(served, mint) for found in each["reads"]]


# Replies of requests that are no reads, and that hold nothing which others stored: with the reason.
_HOLDS_NOTHING = {
    "Discarded": "keys that the caller named",
    "Statement": "hashes of logs, and a signature",
    "Announced": "entries that the caller itself announced",
    "ItemsDiscarded": "a cursor",
    "EventsTrimmed": "a position",
    "ConsumerState": "a cursor that the caller itself sends",
    "FileStored": "the name, hash, size and type that the caller itself sends, and the time of this write",
    "Assigned": "a causal context",
    "WasSet": "a causal context",
    "BatchReply": "those of its parts, which are looked at one by one",
    "ImportReply": "those of its parts, which are looked at one by one",
    "FencedReply": "that of its part, which is looked at by itself",
}
_CONTENT = {"value", "remaining", "rights", "size"}  # Fields of content that are no bytes.


def _fields(kind: Any, seen: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        if kind in seen:
            return
        hints = get_type_hints(kind)
        for name in kind.__struct_fields__:
            yield name, hints[name]
            yield from _fields(hints[name], (*seen, kind))
    for inside in get_args(kind):
        yield from _fields(inside, seen)
        if inside is bytes:
            yield "", bytes


def _replies() -> Iterator[tuple[type[Any], type[Any]]]:
    waiting: list[Any] = [Request]
    while waiting:
        kind = waiting.pop()
        waiting += kind.__subclasses__()
        if not kind.__module__.startswith("shoal.") or kind.__subclasses__():
            continue
        for base in kind.__orig_bases__:
            for reply in get_args(base):
                yield (
                    kind,
                    getattr(sys.modules[kind.__module__], reply.__forward_arg__) if isinstance(reply, ForwardRef) else reply,
                )


def test_each_answer_with_content_is_declared_to_disclose_it() -> None:
    looked = 0
    for kind, reply in _replies():
        if action_of(kind) == "read" or reply.__name__ in _HOLDS_NOTHING:
            continue
        holds = [name for name, made in _fields(reply) if made is bytes or name in _CONTENT]
        assert not holds or discloses(kind), f"{kind.__name__} answers {holds} of what is stored: declare discloses=True"
        looked += bool(holds)
    assert looked > 15


async def test_an_entry_names_the_token_of_its_write(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    made = mint.make("crew:read,write", author="planner")
    async with shoal.connect(served.url, token=made.text) as store:
        thread = store.space("crew").thread("a")
        await thread.save({"n": 1})
        await thread.journal.append("seen")
        async with thread.lease(holder="w"):
            await thread.save({"n": 2})
        found = [each async for each in store.space("crew").audit()]
        assert {each.kind for each in found} == {"checkpoint", "event"}
        assert {each.token for each in found} == {made.token.id}
        assert [each.token async for each in thread.timeline(text=made.token.id)] == [made.token.id] * len(found)


async def test_work_takes_the_right_to_read_leases(mint: Mint, serve: Serve) -> None:
    served = await serve(token_keys=mint.keys)
    async with shoal.connect(served.url, token=mint.make("crew:thread:read").text) as store:
        with pytest.raises(Forbidden):
            await anext(store.space("crew").work(), None)
    async with shoal.connect(served.url, token=mint.make("crew:thread,lease:read").text) as store:
        assert await anext(store.space("crew").work(), None) is None
