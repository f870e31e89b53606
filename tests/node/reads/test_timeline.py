"""Time lines and audits of threads: one order of time, pages, filters, and what is not shown."""

from __future__ import annotations

from typing import Any

import pytest

from shoal import values
from shoal.errors import InvalidInput
from shoal.protocol.requests import AcquireLease, MarkLease, ReadSpaceAudit, ReadTimeline, Timeline, TimelineEntry
from tests.node.conftest import Bench, Opener


async def page(bench: Bench, thread: str = "", **fields: Any) -> Timeline:
    request: Any = ReadTimeline("crew", thread, **fields) if thread else ReadSpaceAudit("crew", **fields)
    reply: Timeline = await bench.node.session().call(request)
    return reply


async def every(bench: Bench, thread: str = "", **fields: Any) -> list[TimelineEntry]:
    found: list[TimelineEntry] = []
    after = b""
    while True:
        one = await page(bench, thread, after=after, **fields)
        found += one.items
        if not one.more:
            return found
        after = one.cursor


def told(entries: list[TimelineEntry]) -> list[tuple[str, str, str]]:
    return [(each.kind, each.text, "" if each.kind == "step" else each.by) for each in entries]


async def lived(bench: Bench, name: str = "ticket") -> None:
    """A thread with all that a time line shows, a second apart."""
    thread = bench.space.thread(name, author="agent")

    async def paid() -> int:
        return 120

    first = await thread.save({"draft": 1, "plan": ["look"]}, metadata={"score": 3})
    bench.simulated.now_ms += 1000
    await thread.save({"draft": 2, "plan": ["look"]}, label="second")
    bench.simulated.now_ms += 1000
    await thread.step("billing", key="pay", call=paid)
    bench.simulated.now_ms += 1000
    await thread.request_approval("refund of 120?", by="agent")
    bench.simulated.now_ms += 1000
    await thread.journal.append({"kind": "seen", "by": "ana"})
    bench.simulated.now_ms += 1000
    await thread.rollback(first.id, by="ana")


async def test_all_kinds_are_in_one_order_of_time(bench: Bench) -> None:
    await lived(bench)
    assert told(await every(bench, "ticket")) == [
        ("event", "rollback", "ana"),
        ("event", "seen", "ana"),
        ("event", "status", "agent"),
        ("step", "billing", ""),
        ("checkpoint", "main", "agent"),
        ("checkpoint", "main", "agent"),
    ]


async def test_an_entry_says_what_it_changed(bench: Bench) -> None:
    await lived(bench)
    *_, step, second, first = await every(bench, "ticket")
    assert (step.id, step.state, values.decode(step.data), step.ended_ms > 0) == ("pay", "done", 120, True)
    assert (second.changed, second.label, second.parents) == (["draft"], "second", [first.id])
    assert (first.changed, values.decode(first.data)) == (["draft", "plan"], {"score": 3})


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
async def test_pages_show_each_entry_once(bench: Bench, limit: int) -> None:
    for name in ("a", "b", "c"):
        await lived(bench, name)
    whole = await every(bench)
    assert len(whole) == 18
    assert await every(bench, limit=limit) == whole
    assert [each.wall_ms for each in whole] == sorted((each.wall_ms for each in whole), reverse=True)


async def test_entries_of_one_millisecond_are_shown_once(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        thread = bench.space.thread(name)
        for number in range(5):
            await thread.save({"n": number}, key=f"k{number}")
            await thread.journal.append(number)
    whole = await every(bench, limit=1)
    assert len({(each.thread, each.kind, each.id) for each in whole}) == len(whole) == 30


async def test_audit_takes_threads_in_groups(open_bench: Opener) -> None:
    bench = open_bench(audit_threads_max=2, timeline_step=1)
    for name in ("a", "b", "c", "d", "e"):
        await bench.space.thread(name).save({"n": 1})
        bench.simulated.now_ms += 1000
    first = await page(bench)
    assert ([each.thread for each in first.items], first.threads, first.beyond) == (["b", "a"], 2, True)
    assert [each.thread for each in await every(bench)] == ["b", "a", "d", "c", "e"]
    assert [each.thread for each in await every(bench, limit=1)] == ["b", "a", "d", "c", "e"]


@pytest.mark.parametrize(("threads", "limit"), [(130, 3), (650, 100)])
async def test_python_tells_many_threads_in_one_order(open_bench: Opener, threads: int, limit: int) -> None:
    """Of the threads none is beside the next one in time."""
    bench = open_bench(timeline_bytes_max=limit * 300)
    for number in range(threads):
        name = f"t{number * 389 % threads:03}"
        await bench.space.thread(name, author=f"agent-{number % 3}").save({"n": number})
        bench.simulated.now_ms += 10
        if number % 5 == 0:
            await bench.space.thread(f"t{number * 7 % threads:03}").journal.append({"n": number})
            bench.simulated.now_ms += 10
    found = [each async for each in bench.space.audit()]
    times = [each.time for each in found]
    assert times == sorted(times, reverse=True)
    assert len({(each.thread, each.kind, each.id) for each in found}) == len(found) == threads * 6 // 5
    by = [each async for each in bench.space.audit(by="agent-1")]
    assert by == [each for each in found if each.by == "agent-1"]


async def test_threads_that_come_push_none_out_of_a_group(open_bench: Opener) -> None:
    bench = open_bench(audit_threads_max=2)
    for name in ("b", "d", "f"):
        for number in range(3):
            await bench.space.thread(name).save({"n": number}, branch=f"b{number}")
            bench.simulated.now_ms += 10
    first = await page(bench, limit=1)
    await bench.space.thread("a").save({"n": 1})
    found = [*first.items]
    while (one := await page(bench, after=first.cursor, limit=1)).items and one.items[0].thread != "f":
        found, first = found + one.items, one
    assert [each.thread for each in found] == ["d"] * 3 + ["b"] * 3


async def test_groups_beyond_the_bound_follow(open_bench: Opener) -> None:
    bench = open_bench(audit_threads_max=2, groups_max=2)
    for name in "abcdef":
        await bench.space.thread(name).save({"n": 1})
        bench.simulated.now_ms += 10
    assert [each.thread async for each in bench.space.audit()] == ["d", "c", "b", "a", "f", "e"]


async def test_a_group_that_is_deleted_meanwhile_leads_on(open_bench: Opener) -> None:
    bench = open_bench(audit_threads_max=1)
    for name in ("a", "a", "b"):
        await bench.space.thread(name).save({"n": 1}, overwrite=True)
    first = await page(bench, limit=1)
    await bench.space.thread("a").delete()
    next = await page(bench, after=first.cursor)
    assert next.items == []
    assert [each.thread for each in (await page(bench, after=next.cursor)).items] == ["b"]


async def test_a_page_looks_at_a_bounded_number_of_entries(open_bench: Opener) -> None:
    bench = open_bench(entries_looked_max=3)
    for number in range(7):
        thread = bench.space.thread("a", author="ana" if number == 0 else "agent")
        await thread.load() if number else None
        await thread.save({"n": number})
        bench.simulated.now_ms += 1000
    one = await page(bench, "a", by="ana")
    assert (one.items, one.more) == ([], True)
    assert one.reached_ms == (await every(bench, "a"))[2].wall_ms
    assert [each.by for each in await every(bench, "a", by="ana")] == ["ana"]


async def test_moves_of_a_branch_count_as_looked_at(open_bench: Opener) -> None:
    bench = open_bench(entries_looked_max=5, timeline_step=1)
    thread = bench.space.thread("a")
    made = []
    for number in range(2):
        made.append(await thread.save({"n": number}))
        bench.simulated.now_ms += 1000
    for number in range(12):
        bench.simulated.now_ms += 1000
        await thread.rollback(made[number % 2].id, by="ana")
    one = await page(bench, "a", kind="checkpoint")
    assert (one.items, one.more) == ([], True)
    assert [each.id for each in await every(bench, "a", kind="checkpoint")] == [made[1].id, made[0].id]


async def test_a_page_of_large_entries_stays_small(open_bench: Opener) -> None:
    bench = open_bench(timeline_bytes_max=10_000)
    for number in range(20):
        await bench.space.thread("a").journal.append("x" * 1900 + str(number))
    one = await page(bench, "a")
    assert 1 < len(one.items) < 10
    assert len(await every(bench, "a")) == 20


async def test_a_large_value_is_left_out_and_said(bench: Bench) -> None:
    await bench.space.thread("a").journal.append("x" * 100_000)
    [entry] = await every(bench, "a")
    assert (entry.data, entry.whole) == (values.encode(None), False)


@pytest.mark.parametrize(
    ("fields", "count"),
    [
        ({"kind": "step"}, 1),
        ({"kind": "checkpoint"}, 2),
        ({"by": "ana"}, 2),
        ({"text": "REFUND"}, 1),
        ({"text": "second"}, 1),
        ({"text": "nothing has it"}, 0),
    ],
)
async def test_entries_are_filtered(bench: Bench, fields: dict[str, Any], count: int) -> None:
    await lived(bench)
    assert len(await every(bench, "ticket", **fields)) == count
    assert len(await every(bench, **fields)) == count


async def test_nothing_older_than_asked_is_shown(bench: Bench) -> None:
    await lived(bench)
    newest = (await every(bench, "ticket"))[1]
    assert len(await every(bench, "ticket", since_ms=newest.wall_ms)) == 2


async def test_an_erased_event_shows_its_place_alone(bench: Bench) -> None:
    thread = bench.space.thread("a")
    event = await thread.journal.append({"kind": "said", "by": "ana", "text": "hush"})
    await thread.journal.erase(event.id)
    [entry] = await every(bench, "a")
    assert (entry.erased, entry.text, entry.by, entry.data) == (True, "event", "", values.encode(None))


async def test_a_pruned_checkpoint_is_not_shown(bench: Bench) -> None:
    thread = bench.space.thread("a")
    for number in range(4):
        await thread.save({"n": number})
        bench.simulated.now_ms += 1000
    await thread.prune(keep_last=1)
    assert [each.kind for each in await every(bench, "a")] == ["checkpoint"]


async def test_a_time_line_names_the_holder_of_its_lease(bench: Bench) -> None:
    await bench.space.thread("a").save({"n": 1})
    await bench.node.session().call(AcquireLease("crew", "a", 5000, "worker-2", thread=True))
    one = await page(bench, "a")
    assert (one.holder, one.fence > 0) == ("worker-2", True)


async def test_a_time_line_tells_who_drove_the_thread(bench: Bench) -> None:
    thread = bench.space.thread("a")
    await thread.save({"n": 1})
    began_ms = bench.simulated.now_ms
    first = await thread.lease(ttl=30, holder="worker-1").acquire()
    bench.simulated.now_ms += 5000
    await first.release()
    second = await thread.lease(ttl=30, holder="worker-2").acquire()
    one = await page(bench, "a", limit=1)
    assert [(term.fence, term.holder, bool(term.until_ms)) for term in one.terms] == [
        (second.fence, "worker-2", False),
        (first.fence, "worker-1", True),
    ]
    assert began_ms <= one.terms[1].from_ms < began_ms + 5000 <= one.terms[1].until_ms
    await thread.save({"n": 2}, durability="local")
    assert (await page(bench, "a", after=(await page(bench, "a", limit=1)).cursor)).terms == []
    assert (await page(bench, "")).terms == []
    await second.release()


async def test_a_term_that_was_given_back_late_is_told_so(bench: Bench) -> None:
    """The next holder's mark may come before the one that says so."""
    await bench.space.thread("a").save({"n": 1})
    session = bench.node.session()
    for fence, holder in ((1, "worker-1"), (2, "worker-2")):
        await session.call(MarkLease("crew", "a", fence, holder))
    bench.simulated.now_ms += 1000
    for _ in range(2):
        assert not (await session.call(MarkLease("crew", "a", 1, "", over=True))).counts
    one = await page(bench, "a")
    assert [(term.holder, term.until_ms > term.from_ms) for term in one.terms] == [("worker-2", False), ("worker-1", True)]
    assert (one.holder, one.fence) == ("worker-2", 2)


@pytest.mark.parametrize("cursor", [b"x", b"\x92", values.encode(["a", [1, 9, b"", ""]])])
async def test_a_cursor_of_another_kind_is_refused(bench: Bench, cursor: bytes) -> None:
    with pytest.raises(InvalidInput):
        await page(bench, "a", after=cursor)


async def test_python_shows_decoded_values(bench: Bench) -> None:
    await lived(bench)
    newest = [each async for each in bench.space.thread("ticket").timeline()]
    assert newest == [each async for each in bench.space.audit()]
    assert [each.data async for each in bench.space.audit(kind="step")] == [120]
    with pytest.raises(InvalidInput):
        bench.space.audit(kind="sad")  # type: ignore[arg-type]
