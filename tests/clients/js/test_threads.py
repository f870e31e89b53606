"""Threads and journals from JavaScript, with a Python agent at the same node."""

from __future__ import annotations

import asyncio

import pytest

import shoal
from tests.clients.js.conftest import Program, Rejected, needs_node

pytestmark = needs_node

OPEN = "const store = shoal.connect(given.url); const thread = store.space(given.space).thread('plan');"


async def test_a_thread_is_saved_changed_and_loaded(js: Program, open_url: str) -> None:
    given = {"url": open_url, "space": "saves"}
    told = await js(
        f"""{OPEN}
        const first = await thread.save({{ messages: ['hi'], step: 1 }}, {{ metadata: {{ at: 'start' }}, label: 'first' }})
        await thread.append('messages', ['how are you?', 'fine'])
        await thread.update({{ set: {{ step: 2 }}, append: {{ messages: ['bye'] }} }})
        await thread.update({{ set: {{ 'a,b': 1 }}, remove: ['step'] }})
        return {{
          newest: (await thread.load()).state,
          some: (await thread.load({{ channels: ['a,b'] }})).state,
          labelled: await thread.load({{ label: 'first' }}),
          byId: (await thread.load({{ checkpoint: first.id }})).state,
          then: (await thread.load({{ asOf: new Date() }})).state,
          heads: await thread.heads(),
          status: (await thread.status()).status,
          first
        }}""",
        given,
    )
    messages = ["hi", "how are you?", "fine", "bye"]
    assert told["newest"] == told["then"] == {"messages": messages, "a,b": 1}
    assert told["some"] == {"a,b": 1}
    assert told["byId"] == told["labelled"]["state"] == {"messages": ["hi"], "step": 1}
    assert (told["labelled"]["metadata"], told["labelled"]["id"]) == ({"at": "start"}, told["first"]["id"])
    assert told["status"] == "running"
    async with shoal.connect(open_url) as store:
        loaded = await store.space("saves").thread("plan").load()
    assert (loaded.state, told["heads"]) == ({"messages": messages, "a,b": 1}, {"main": [loaded.id]})


async def test_a_handle_saves_only_on_what_it_has_seen(js: Program, open_url: str) -> None:
    given = {"url": open_url, "space": "seen"}
    await js(f"{OPEN} kept.first = thread; await thread.save({{ step: 1 }})", given)
    with pytest.raises(Rejected) as unseen:
        await js(f"{OPEN} kept.other = thread; await thread.save({{ step: 9 }})", given)
    assert (unseen.value.code, unseen.value.status, unseen.value.written) == ("head-moved", 412, "no")
    assert not unseen.value.retryable
    assert unseen.value.key
    await js("await kept.other.load(); await kept.other.save({ step: 2 })")
    with pytest.raises(Rejected) as stale:
        await js("await kept.first.save({ step: 3 })")
    assert stale.value.code == "head-moved"
    forked = await js("return kept.first.save({ step: 3 }, { onConflict: 'fork' })")
    assert len(forked["heads"]) == 2
    with pytest.raises(Rejected) as moved:
        await js("await kept.other.save({ step: 4 }, { expectHead: given })", forked["id"])
    assert sorted(moved.value.detail["heads"]) == sorted(forked["heads"])
    assert await js("return (await kept.other.save({ a: 1 }, { branch: 'new', expectHead: shoal.NO_HEAD })).branch") == "new"
    with pytest.raises(Rejected):
        await js("await kept.first.save({ a: 2 }, { branch: 'new', expectHead: shoal.NO_HEAD })")


async def test_a_save_that_is_repeated_with_its_key_counts_once(js: Program, open_url: str) -> None:
    told = await js(
        f"""{OPEN}
        const one = await thread.update({{ append: {{ lines: ['a'] }} }}, {{ key: 'turn-1' }})
        const two = await thread.update({{ append: {{ lines: ['a'] }} }}, {{ key: 'turn-1' }})
        return [one.id === two.id, (await thread.load()).state.lines]""",
        {"url": open_url, "space": "keys"},
    )
    assert told == [True, ["a"]]
    with pytest.raises(Rejected) as reused:
        await js(
            f"{OPEN} await thread.update({{ append: {{ lines: ['b'] }} }}, {{ key: 'turn-1' }})",
            {"url": open_url, "space": "keys"},
        )
    assert (reused.value.code, reused.value.key) == ("key-reused", "turn-1")


async def test_a_history_is_read_page_by_page(js: Program, open_url: str) -> None:
    async with shoal.connect(open_url) as store:
        thread = store.space("long").thread("plan")
        for step in range(105):
            await thread.save({"step": step}, metadata={"even": step % 2 == 0})
    given = {"url": open_url, "space": "long"}
    loop = "for await (const one of thread.history(given.of)) found.push(one.state?.step ?? null)"
    steps = f"{OPEN} const found = []; {loop}; return found"
    assert await js(steps, {**given, "of": {"states": True}}) == [*reversed(range(105))]
    assert await js(steps, {**given, "of": {"states": True, "limit": 3}}) == [104, 103, 102]
    assert await js(steps, {**given, "of": {"states": True, "limit": 2, "filter": {"even": False}}}) == [103, 101]
    assert await js(steps, {**given, "of": {"limit": 2}}) == [None, None]


async def test_a_journal_is_appended_once_per_event_key_read_and_followed(js: Program, open_url: str) -> None:
    given = {"url": open_url, "space": "journal"}
    told = await js(
        f"""{OPEN}
        kept.thread = thread
        const appended = []
        for (let n = 0; n < 105; n++) appended.push((await thread.journal.append({{ n }}, {{ eventKey: `e-${{n}}` }})).appended)
        appended.push((await thread.journal.append({{ n: 0 }}, {{ eventKey: 'e-0' }})).appended)
        const all = []
        for await (const event of thread.journal.read()) all.push(event)
        const some = []
        for await (const event of thread.journal.read({{ after: all[99].cursor, limit: 2 }})) some.push(event.event.n)
        kept.after = all.at(-1).cursor
        return {{ appended, all: all.map((event) => event.event.n), some }}""",
        given,
    )
    assert told["appended"] == [True] * 105 + [False]
    assert told["all"] == [*range(105)]
    assert told["some"] == [100, 101]
    await js(
        """kept.ending = new AbortController()
        kept.followed = []
        kept.following = (async () => {
          const options = { after: kept.after, follow: true, signal: kept.ending.signal }
          for await (const { event } of kept.thread.journal.read(options)) {
            kept.followed.push(event)
            if (kept.followed.length === 2) kept.ending.abort()
          }
        })()"""
    )
    async with shoal.connect(open_url) as store:
        for text in ("one", "two"):
            await store.space("journal").thread("plan").journal.append(text)
    assert await js("await kept.following; return kept.followed") == ["one", "two"]


async def test_a_person_pauses_and_approves_a_thread_and_sends_it_a_message(js: Program, open_url: str) -> None:
    given = {"url": open_url, "space": "people"}
    told = await js(
        f"""{OPEN}
        await thread.save({{ step: 1 }})
        const paused = await thread.pause({{ by: 'ana', reason: 'lunch' }})
        const status = await thread.status()
        const once = () => thread.send({{ go: 'on' }}, {{ messageKey: 'm-1', by: 'ana' }})
        const sent = [await once(), await once()]
        return {{ paused, status, sent: sent.map((one) => one.sent) }}""",
        given,
    )
    assert told["paused"]["status"] == told["status"]["status"] == "paused"
    assert (told["status"]["by"], told["status"]["reason"], told["sent"]) == ("ana", "lunch", [True, False])
    async with shoal.connect(open_url) as store:
        thread = store.space("people").thread("plan")
        message = await thread.inbox.next(timeout=10)
        assert message is not None
        assert message.value == {"go": "on"}
        await thread.request_approval("refund?")
    approved = await js(f"{OPEN} return thread.approve({{ by: 'bob' }})", given)
    assert (approved["status"], approved["by"]) == ("running", "bob")


async def test_a_deleted_thread_is_gone_and_can_begin_anew(js: Program, open_url: str) -> None:
    given = {"url": open_url, "space": "gone"}
    assert await js(
        f"{OPEN} kept.thread = thread; await thread.save({{ a: 1 }}); return [await thread.delete(), await thread.delete()]",
        given,
    ) == [
        True,
        False,
    ]
    with pytest.raises(Rejected) as gone:
        await js("await kept.thread.load()")
    assert (gone.value.code, gone.value.status, gone.value.written) == ("not-found", 404, "no")
    assert await js("await kept.thread.save({ a: 2 }); return (await kept.thread.load()).state") == {"a": 2}


NEWEST = """
const space = shoal.connect(given.url).space(given.space)
const told = await space.newest(given.count, given.options ?? {})
return { ...told, entries: told.entries.map(({ thread, wall_ms: ms }) => [thread, ms]) }
"""


async def test_the_newest_of_over_600_threads_are_in_one_order(js: Program, open_url: str) -> None:
    space = "many-threads"
    async with shoal.connect(open_url) as store:
        for start in range(0, 620, 40):
            names = [f"t{number * 389 % 620:03}" for number in range(start, start + 40) if number < 620]
            await asyncio.gather(*(store.space(space).thread(name).save({"n": 1}) for name in names))
        order = [[each.thread, round(each.time.timestamp() * 1000)] async for each in store.space(space).audit()]
    assert len(order) == 620
    told = await js(NEWEST, {"url": open_url, "space": space, "count": 250})
    assert (told["more"], told["threads"], told["beyond"]) == (True, 620, False)
    assert [ms for _, ms in told["entries"]] == [ms for _, ms in order[:250]]
    told = await js(NEWEST, {"url": open_url, "space": space, "count": 1000})
    assert (sorted(told["entries"]), told["more"]) == (sorted(order), False)
    told = await js(NEWEST, {"url": open_url, "space": space, "count": 10, "options": {"groups": 1}})
    assert (told["threads"], told["beyond"]) == (500, True)
