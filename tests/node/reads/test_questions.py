"""Threads in which a graph waits for an answer: how they are listed, and how little a save looks for that."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest
from msgspec import msgpack

from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.kinds.label.asks import Ask
from shoal.kinds.label.handler import CHARS_MAX, DECODED_MAX, questions
from shoal.kinds.label.state import Note
from shoal.node.catalog import is_asking
from shoal.node.verification.verify import verify
from shoal.node.writes import erasing
from shoal.protocol.requests import Annotate, ListSummaries, MoveThread, ThreadStatus, ThreadSummary
from shoal.storage import keys
from shoal.storage.interface import MemoryStorage
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener
from tests.node.reads.test_listing import MARK, aged, begun
from tests.node.reads.test_listing import listed as of_status
from tests.support.asking import ASK, OUTPUT, interrupt, question, write
from tests.support.pacing import LOOK_S


async def noted(bench: Bench, thread: str, label: str, *notes: Note) -> None:
    await bench.node.session().call(Annotate("crew", thread, label, list(notes)))


async def put(bench: Bench, thread: str, label: str) -> None:
    await bench.space.thread(thread).save({"at": label}, label=label, overwrite=True)


async def asking(bench: Bench, thread: str, label: str = "/1") -> None:
    await put(bench, thread, label)
    await noted(bench, thread, label, question("t"))


async def summaries(bench: Bench, **fields: Any) -> dict[str, ThreadSummary]:
    return {each.name: each async for each in bench.space.summaries(**fields)}


async def waits(bench: Bench) -> list[str]:
    return list(await summaries(bench, state="waits"))


def rows(storage: MemoryStorage) -> list[str]:
    """The threads that are listed as asking, whatever a page makes of that."""
    prefix = keys.status("crew", bytes([keys.ASKING]))
    return [keys.split_status(key)[2] for key, _ in storage.scan(prefix, prefix + b"\xff")]


def problems(bench: Bench) -> list[str]:
    return verify(bench.storage, config=Config()).problems


async def test_a_thread_that_asks_waits(bench: Bench) -> None:
    await asking(bench, "a")
    await put(bench, "b", "/1")
    assert await waits(bench) == rows(bench.storage) == ["a"]
    found = (await summaries(bench))["a"]
    assert (found.state, found.says, found.asks, found.status) == ("waits", "It asks: refund?", "refund?", "running")
    assert [(each.id, each.says, each.answered) for each in found.questions] == [("a" * 32, "refund?", False)]
    assert found.since_ms == found.questions[0].asked_ms == bench.simulated.now_ms
    assert list(await summaries(bench, text="REFUND")) == ["a"]
    await put(bench, "a", "/2")
    assert await waits(bench) == rows(bench.storage) == []
    assert problems(bench) == []


async def test_notes_may_come_before_their_label(bench: Bench) -> None:
    await put(bench, "a", "/1")
    await noted(bench, "a", "/2", question("t"))
    assert rows(bench.storage) == []
    await put(bench, "a", "/2")
    assert await waits(bench) == rows(bench.storage) == ["a"]
    assert problems(bench) == []


async def test_a_status_says_more_than_a_question(bench: Bench) -> None:
    await asking(bench, "a")
    thread = bench.space.thread("a")
    moves: list[tuple[ThreadStatus, str]] = [("paused", "waits"), ("done", "well"), ("failed", "stuck")]
    for status, state in moves:
        await bench.node.session().call(MoveThread("crew", "a", status, "by hand"))
        assert rows(bench.storage) == []
        found = (await summaries(bench))["a"]
        assert (found.state, found.asks, found.questions) == (state, "", [])
        assert await waits(bench) == (["a"] if state == "waits" else [])
        assert problems(bench) == []
    await thread.approve()
    assert await waits(bench) == rows(bench.storage) == ["a"]
    assert problems(bench) == []


async def test_a_step_that_is_stuck_says_more_and_is_found(bench: Bench) -> None:
    await asking(bench, "a")
    await begun(bench.space.thread("a"), "k")
    assert (await waits(bench), list(await summaries(bench, state="stuck"))) == (["a"], [])
    assert list(await summaries(bench, state="stuck", stuck_after=0)) == ["a"]
    assert list(await summaries(bench, state="waits", stuck_after=0)) == []
    assert problems(bench) == []
    await bench.space.thread("a").resolve("k", "abandon")
    assert await waits(bench) == rows(bench.storage) == ["a"]


async def test_pages_of_those_that_wait_show_each_once(open_bench: Opener) -> None:
    bench = open_bench(page_items_max=3)
    for number in range(8):
        await asking(bench, f"t{number}")
        await bench.space.thread(f"s{number}").request_approval("?")
    assert sorted(await waits(bench)) == sorted(f"{kind}{number}" for number in range(8) for kind in "st")


async def test_a_deleted_thread_asks_nothing(bench: Bench) -> None:
    await asking(bench, "a")
    await bench.space.thread("a").delete()
    assert await waits(bench) == rows(bench.storage) == []
    await put(bench, "a", "/1")
    assert await waits(bench) == []
    assert problems(bench) == []


async def test_labels_that_go_bring_an_earlier_question_back(bench: Bench) -> None:
    await asking(bench, "a")
    await put(bench, "a", "/2")
    assert await waits(bench) == []
    await bench.space.thread("a").unlabel("/2")
    assert await waits(bench) == rows(bench.storage) == ["a"]
    await bench.space.thread("a").unlabel("/1")
    assert await waits(bench) == rows(bench.storage) == []
    assert problems(bench) == []


async def test_a_rollback_is_not_what_a_graph_reads(bench: Bench) -> None:
    """A graph goes on from the greatest id, wherever the branch is."""
    thread = bench.space.thread("a")
    first = await thread.save({"n": 1}, label="/1")
    await noted(bench, "a", "/1", question("t"))
    last = await thread.save({"n": 2}, label="/2")
    await thread.rollback(first.id)
    assert await waits(bench) == []
    await noted(bench, "a", "/2", question("t"))
    assert await waits(bench) == ["a"]
    await thread.rollback(last.id)
    assert await waits(bench) == ["a"]
    assert problems(bench) == []


@pytest.mark.parametrize("seed", range(6))
async def test_threads_that_ask_are_always_listed(open_bench: Opener, seed: int) -> None:
    bench, random = open_bench(seed=seed + 1), Random(seed)
    for _ in range(150):
        thread, label = f"t{random.randrange(3)}", f"/{random.randrange(4)}"
        match random.randrange(12):
            case 0:
                await bench.space.thread(thread).delete()
            case 1:
                await bench.space.thread(thread).unlabel(label)
            case 2:
                await random.choice((bench.space.thread(thread).pause, bench.space.thread(thread).finish))()
            case 3 | 4:
                await bench.space.thread(thread).approve()
            case 5 | 6:
                await put(bench, thread, label)
            case 7 | 8 | 9:
                await noted(bench, thread, label, question(random.choice("xy")))
            case _:
                await noted(bench, thread, label, write(random.choice("xy"), OUTPUT))
        assert problems(bench) == []
    assert rows(bench.storage) == [name for name, each in (await summaries(bench)).items() if each.questions]
    again = open_bench(bench.storage.left_by_crash(None), seed=99)
    assert await waits(again) == await waits(bench)


async def test_a_thread_that_is_not_listed_as_asking_is_found_by_verify(bench: Bench) -> None:
    await asking(bench, "a")
    row = keys.status("crew", bytes([keys.ASKING]), "a")
    bench.storage.write({row: None, keys.status("crew", bytes([keys.ASKING]), "b"): b""})
    assert problems(bench) == [
        "thread 'a' of space 'crew' is not listed as one that asks",
        "thread 'b' of space 'crew' is wrongly listed as one that asks",
    ]


async def test_the_questions_of_an_old_directory_are_found_at_once_and_listed_soon(open_bench: Opener) -> None:
    bench = open_bench()
    await asyncio.gather(*(put(bench, f"t{number:03}", "/1") for number in range(150)))
    await asking(bench, "t140", "/2")
    old = open_bench(aged(bench), seed=2)
    assert rows(old.storage) == []
    assert await waits(old) == ["t140"]
    async with asyncio.timeout(30):
        while old.storage.get(MARK) is None:
            await asyncio.sleep(LOOK_S)
    assert await waits(old) == rows(old.storage) == ["t140"]
    assert await of_status(old, "running") == [f"t{number:03}" for number in range(150)]
    assert problems(old) == []


@pytest.mark.virtual_time
async def test_every_node_lists_what_a_peer_asks() -> None:
    async with Fleet() as fleet:
        for name in ("a", "b"):
            space = fleet[name].store().space("crew")
            await space.thread(name).save({"n": 1}, label="/1")
        await fleet["a"].node.session().call(Annotate("crew", "b", "/2", [question("t", "before its label?")]))
        await fleet.converged()
        await fleet["b"].store().space("crew").thread("b").save({"n": 2}, label="/2", overwrite=True)
        await fleet["b"].node.session().call(Annotate("crew", "a", "/1", [question("t")]))
        await fleet.converged()
        for name in "abc":
            space = fleet[name].store().space("crew")
            assert [each.name async for each in space.summaries(state="waits")] == ["a", "b"]
        await fleet["c"].store().space("crew").thread("a").save({"n": 3}, label="/3", overwrite=True)
        await fleet.converged()
        for name in "abc":
            space = fleet[name].store().space("crew")
            assert [each.name async for each in space.summaries(state="waits")] == ["b"]


async def test_a_save_looks_at_no_notes_of_others(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was asked before: one row that is not there, and the notes beside the label."""
    for number in range(20):
        await put(bench, "a", f"/{number:02}")
        await noted(bench, "a", f"/{number:02}", write("t", OUTPUT))
    scanned: list[bytes] = []
    scan = bench.storage.scan

    def counted(*args: Any, **options: Any) -> Any:
        for row in scan(*args, **options):
            scanned.append(row[0])
            yield row

    monkeypatch.setattr(bench.storage, "scan", counted)
    await put(bench, "a", "/20")
    await noted(bench, "a", "/20", write("t", OUTPUT))
    assert [key for key in scanned if key[:1] == keys.OBJECT and keys.split_object(key)[4][:1] in (b"P", b"N")] == []


async def test_labels_that_go_together_are_looked_after_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    labels = [f"/{number:03}" for number in range(60)]
    for label in labels:
        await put(bench, "a", label)
    await noted(bench, "a", "/000", question("t"))
    looks: list[Any] = []
    sound = is_asking

    def counted(found: Rows) -> bool:
        looks.append(found)
        return sound(found)

    monkeypatch.setattr(erasing, "is_asking", counted)
    await bench.space.thread("a").unlabel(*labels[1:])
    assert len(looks) == 1
    assert await waits(bench) == rows(bench.storage) == ["a"]
    assert problems(bench) == []


def asks(packed: bytes, kind: str = "msgpack") -> list[tuple[str, str]]:
    return [(each.id, each.says) for each in questions([Ask(kind, packed, 1)])]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("pay?", "pay?"),
        ({"question": "pay?", "amount": 120, "of": {"a": [1]}}, 'question: pay?, amount: 120, of: {"a": [1]}'),
        ([1, "two"], '[1, "two"]'),
        ({1: 2}, '{"1": 2}'),
        (None, "null"),
        ("", ""),
        ({}, "{}"),
        ("<script>\u202e", "<script>\u202e"),
    ],
)
def test_a_question_is_told_as_text(value: Any, says: str) -> None:
    assert asks(msgpack.encode(interrupt(value))) == [("a" * 32, says)]


@pytest.mark.parametrize("size", [DECODED_MAX, 70_000, 1_000_000])
def test_of_a_long_text_the_beginning_is_told(size: int) -> None:
    [(id, says)] = asks(msgpack.encode(interrupt("é" + "x" * size, "b" * 32)))
    assert (id, says) == ("b" * 32, "é" + "x" * (CHARS_MAX - 2) + "…")


def test_of_another_long_value_the_size_is_told() -> None:
    packed = msgpack.encode(interrupt(list(range(20_000)), "b" * 32))
    assert asks(packed) == [("b" * 32, f"a value of {len(packed):,} bytes, which is not shown here")]


@pytest.mark.parametrize(
    "packed", [b"", b"\xc1", b"\x81", msgpack.encode(5), b"\x91\xc7\x01\x02\xc1", msgpack.encode({"a": "\x00"})]
)
def test_bytes_that_are_no_interrupt_are_told(packed: bytes) -> None:
    [(id, says)] = asks(packed)
    assert id == ""
    assert says


def test_a_sealed_question_is_said_to_be_one() -> None:
    assert asks(b"\x01", "msgpack+aes") == [("", "a value that only its graph can read")]
    assert asks(b"\x01", "pickle") == [("", "a value of the kind pickle")]


async def test_a_page_of_long_questions_stays_small(bench: Bench) -> None:
    for number in range(30):
        await put(bench, f"t{number:02}", "/1")
        for task in "abcdef":
            await noted(bench, f"t{number:02}", "/1", question(task, "ü" * 700_000))
    page = await bench.node.session().call(ListSummaries("crew", "waits"))
    assert 0 < len(page.items) < 30
    assert len(msgpack.encode([[one.says for one in each.questions] for each in page.items])) <= 64_000
    assert [len(each.questions) for each in page.items] == [4] * len(page.items)
    assert len(await waits(bench)) == 30


async def test_odd_notes_ask_nothing(bench: Bench) -> None:
    await put(bench, "a", "/1")
    await noted(
        bench, "a", "/1", Note(b"\xc1", b"__interrupt__"), Note(b"__interrupt__", b""), write("t", ("x__interrupt__", 1))
    )
    await noted(bench, "a", "odd", write("t", ASK))
    assert await waits(bench) == rows(bench.storage) == []
    assert problems(bench) == []
