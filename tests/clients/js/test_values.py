"""Counters, registers, maps, sets and listings from JavaScript; values keep what JSON would lose."""

from __future__ import annotations

import pytest

import shoal
from tests.clients.js.conftest import Program, Rejected, needs_node

pytestmark = needs_node

OPEN = """const space = shoal.connect(given.url).space(given.space)
const all = async (from) => { const found = []; for await (const one of from) found.push(one); return found };
"""


async def test_elements_are_removed_with_a_key(js: Program, open_url: str) -> None:
    told = await js(
        f"""{OPEN}
        const list = space.list('plan')
        const [first, second] = await list.insert(['a', 'b', 'c'], {{}}, {{ key: 'made' }})
        const removed = [await list.removeAll([first], {{ key: 'once' }}), await list.removeAll([first], {{ key: 'once' }})]
        return {{ removed, left: (await all(list.items())).map(({{ value }}) => value), second: await list.remove(second) }}""",
        {"url": open_url, "space": "values"},
    )
    assert told == {"removed": [["a"], ["a"]], "left": ["b", "c"], "second": ["b"]}


async def test_a_counter_a_register_a_map_and_a_set(js: Program, open_url: str) -> None:
    told = await js(
        f"""{OPEN}
        const [counter, register, map, set] = [space.counter('c'), space.register('r'), space.map('m'), space.set('s')]
        const told = {{ zero: await counter.value() }}
        told.counter = [await counter.add(), await counter.add(-3), await counter.add(5n), await counter.value()]
        const first = await register.set({{ a: 1 }})
        await register.set(['b'], {{ expect: first.version }})
        told.register = (await register.get()).value
        await register.set('c', {{ by: 'ada' }})
        told.history = (await register.history()).map(({{ value, by }}) => [value, by])
        await map.set('plan/1', 'x')
        await map.add('count', 2)
        await map.alter('tags', {{ add: ['a', 'b'] }})
        await map.alter('tags', {{ remove: ['a'] }})
        const values = (siblings) => siblings.map(({{ value }}) => value)
        told.entry = values((await map.get('plan/1')).siblings)
        const shown = ({{ key, siblings, count, members }}) => [key, values(siblings), count, members]
        told.map = (await all(map.entries())).map(shown)
        told.some = (await all(map.entries({{ prefix: 'plan' }}))).map(({{ key }}) => key)
        told.removed = [await map.remove('count'), await map.remove('count')]
        told.set = [await set.add('x', 'y', {{ z: 1 }}), await set.add('x'), await set.has({{ z: 1 }})]
        told.set.push(await set.remove('y'), await set.has('y'))
        told.members = (await all(set.members())).length
        told.popped = [await set.pop(), (await all(set.members())).length, await set.pop(5), await set.pop()]
        await set.add('x')
        told.deleted = [await set.delete(), await set.delete(), (await all(set.members())).length]
        return told""",
        {"url": open_url, "space": "values"},
    )
    assert told == {
        "zero": 0,
        "counter": [1, -2, 3, 3],
        "register": ["b"],
        "history": [["c", "ada"], [["b"], ""], [{"a": 1}, ""]],
        "entry": ["x"],
        "map": [["count", [], 2, []], ["plan/1", ["x"], None, []], ["tags", [], None, ["b"]]],
        "some": ["plan/1"],
        "removed": [True, False],
        "set": [3, 0, True, 1, False],
        "members": 2,
        "popped": [[{"z": 1}], 1, ["x"], []],
        "deleted": [True, False, 0],
    }


async def test_a_register_that_has_another_version_is_not_set(js: Program, open_url: str) -> None:
    given = {"url": open_url, "space": "versions"}
    await js(f"{OPEN} await space.register('r').set(1, {{ expect: '' }})", given)
    with pytest.raises(Rejected) as changed:
        await js(f"{OPEN} await space.register('r').set(2, {{ expect: '' }})", given)
    assert (changed.value.code, changed.value.status, changed.value.written) == ("register-changed", 412, "no")
    assert await js(f"{OPEN} return (await space.register('r').get()).value", given) == 1


async def test_names_are_listed_page_by_page_whatever_they_hold(js: Program, open_url: str) -> None:
    names = sorted([f"n-{number:04}" for number in range(505)] + ["a/b", "ü", "{t}/x", "a b?c#d%2F", "…"], key=str.encode)
    async with shoal.connect(open_url) as store:
        for name in names:
            await store.space("names").counter(name).add(1)
    given = {"url": open_url, "space": "names"}
    assert await js(f"{OPEN} return all(space.names('counters'))", given) == names
    assert await js(f"{OPEN} return all(space.names('counters', {{ prefix: 'a' }}))", given) == ["a b?c#d%2F", "a/b"]
    assert await js(f"{OPEN} return [await space.counter('a b?c#d%2F').value(), await space.counter('ü').value()]", given) == [
        1,
        1,
    ]
    assert "names" in await js(f"{OPEN} return all(shoal.connect(given.url).spaces())", given)


async def test_values_without_a_json_form_arrive_or_are_refused(js: Program, open_url: str) -> None:
    given = {"url": open_url, "space": "json"}
    await js(
        f"""{OPEN} const numbers = {{ big: 2n ** 70n, nan: NaN, inf: -Infinity }}
        await space.register('r').set({{ ...numbers, none: null, left: undefined, at: new Date(0), deep: [1.5, '…'] }})""",
        given,
    )
    async with shoal.connect(open_url) as store:
        value = await store.space("json").register("r").get()
    assert value.pop("nan") != value.pop("big", None) == 2**70
    assert value == {"inf": float("-inf"), "none": None, "at": "1970-01-01T00:00:00.000Z", "deep": [1.5, "…"]}
    for wrong in (
        "[undefined]",
        "new Map()",
        "{ a: new Set() }",
        "new Uint8Array(2)",
        "() => 1",
        "Symbol('x')",
        "(() => { const a = {}; a.a = a; return a })()",
    ):
        with pytest.raises(Rejected) as refused:
            await js(f"{OPEN} await space.register('r').set({wrong})", given)
        assert (refused.value.code, refused.value.written) == ("invalid-value", "no"), wrong


async def test_a_budget_is_granted_spent_and_read(js: Program, open_url: str) -> None:
    told = await js(
        f"""{OPEN}
        const budget = space.budget('tokens')
        await budget.grant(100)
        await budget.spend(30)
        const {{ granted, spent, remaining, holders }} = await budget.get()
        return {{ granted, spent, remaining, holders: holders.length, names: await all(space.names('budgets')) }}""",
        {"url": open_url, "space": "budgets"},
    )
    assert told == {"granted": 100, "spent": 30, "remaining": 70, "holders": 1, "names": ["tokens"]}


async def test_a_worklist_and_an_inbox_are_read_and_changed(js: Program, open_url: str) -> None:
    async with shoal.connect(open_url) as store:
        thread = store.space("queues").thread("t")
        await thread.worklist("jobs").add({"a": 1, "b": 2}, attempts_max=1)
        job = await thread.worklist("jobs").claim()
        assert job is not None
        await job.fail("no answer")
    told = await js(
        f"""{OPEN}
        const thread = space.thread('t')
        const jobs = thread.worklist('jobs')
        const dead = await jobs.page({{ part: 'dead' }})
        const told = {{ before: await thread.worklists(), dead: dead.entries.map(({{ key, tried }}) => [key, tried.reason]) }}
        await jobs.revive(dead.entries[0].id, {{ by: 'ana' }})
        const {{ ids }} = await jobs.add([{{ key: 'c', value: 3 }}], {{ by: 'ana' }})
        await jobs.done(ids[0], 'fine', {{ by: 'ana' }})
        told.after = await thread.worklists()
        await thread.send('hello', {{ by: 'ana' }})
        const inbox = await thread.inbox.page()
        told.inbox = inbox.entries.map(({{ value, by }}) => [value, by])
        await thread.inbox.take(inbox.entries[0].id, {{ by: 'ana' }})
        told.left = (await thread.inbox.page()).pending
        return told""",
        {"url": open_url, "space": "queues"},
    )
    assert told == {
        "before": [{"name": "jobs", "pending": 1, "finished": 0, "dead": 1}],
        "dead": [["a", "no answer"]],
        "after": [{"name": "jobs", "pending": 2, "finished": 1, "dead": 0}],
        "inbox": [["hello", "ana"]],
        "left": 0,
    }


async def test_documents_namespaces_leases_and_the_cluster_are_read(js: Program, open_url: str) -> None:
    async with shoal.connect(open_url) as store:
        space = store.space("readings")
        async with await space.document("plan", author="bob") as plan:
            plan.text("notes").insert(0, "hello")
        await space.items.put(("memory", "ana"), "n1", {"text": "likes tea"})
        async with space.lease("nightly", holder="worker-1"):
            told = await js(
                f"""{OPEN}
                const told = {{ content: await space.content('plan') }}
                const step = {{ op: 'add', path: '/limits', value: {{ retries: 3 }} }}
                told.patched = await space.patch('plan', [step], {{ author: 'ana' }})
                told.conflicts = (await space.conflicts('plan')).conflicts
                told.namespaces = await all(space.items.namespaces('memory'))
                told.leases = (await space.leases()).map(({{ lease, holder }}) => [lease, holder])
                told.present = await space.presence()
                told.quota = (await space.quota()).used.documents
                const store = shoal.connect(given.url)
                told.size = (await store.cluster()).size
                told.members = (await store.members()).members.length
                while ((await store.usage()).counted_ms === 0);
                told.usage = (await store.usage({{ limit: 1 }})).spaces.length
                told.largest = (await space.usage({{ sinceMs: 0, limit: 3 }})).largest.length > 0
                return told""",
                {"url": open_url, "space": "readings"},
            )
    assert told == {
        "content": {"notes": "hello"},
        "patched": {"notes": "hello", "limits": {"retries": 3}},
        "conflicts": [],
        "namespaces": [["memory", "ana"]],
        "leases": [["nightly", "worker-1"]],
        "present": [],
        "quota": told["quota"],
        "size": 1,
        "members": 1,
        "usage": 1,
        "largest": True,
    }
