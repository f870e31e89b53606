"""Items from JavaScript."""

from __future__ import annotations

import pytest

import shoal
from chaos.ports import free_ports
from tests.clients.js.conftest import Program, Rejected, needs_node
from tests.support.killable import Killable

pytestmark = needs_node

OPEN = """const { items } = shoal.connect(given.url).space(given.space ?? 'items')
const all = async (from) => { const found = []; for await (const one of from) found.push(one); return found };
"""


async def test_items_are_put_compared_found_and_deleted(js: Program, open_url: str) -> None:
    told = await js(
        f"""{OPEN}
        const told = {{}}
        const first = await items.put(['memory', 'ana'], 'a/b', {{ kind: 'fact', n: 2n ** 60n }}, {{ ttlS: 3600, expect: '' }})
        await items.put(['memory', 'bob'], 'n', {{ kind: 'fact' }})
        await items.put(['memory', 'bob'], 'm', {{ kind: 'guess' }})
        const got = await items.get(['memory', 'ana'], 'a/b')
        told.got = [got.namespace, got.key, got.value.kind, got.version === first.version, got.expires_ms > got.created_ms]
        await items.put(['memory', 'ana'], 'a/b', {{ kind: 'fact', n: 1 }}, {{ expect: got.version }})
        told.facts = (await all(items.search(['memory'], {{ filter: {{ kind: 'fact' }} }}))).map(({{ key }}) => key)
        told.two = (await all(items.search(['memory'], {{ limit: 2 }}))).length
        told.none = (await all(items.search(['memory'], {{ limit: 0 }}))).length
        told.deleted = [await items.delete(['memory', 'bob'], 'm'), await items.delete(['memory', 'bob'], 'm')]
        return told""",
        {"url": open_url},
    )
    assert told == {
        "got": [["memory", "ana"], "a/b", "fact", True, True],
        "facts": ["a/b", "n"],
        "two": 2,
        "none": 0,
        "deleted": [True, False],
    }
    async with shoal.connect(open_url) as store:
        found = await store.space("items").items.get(("memory", "ana"), "a/b")
        assert found is not None
        assert found.value == {"kind": "fact", "n": 1}


async def test_a_search_goes_on_over_pages(js: Program, open_url: str) -> None:
    async with shoal.connect(open_url) as store:
        for number in range(230):
            await store.space("paged").items.put(("many",), f"{number:03}", number)
    code = f"{OPEN} return (await all(items.search(['many'], {{ limit: given.limit }}))).map(({{ value }}) => value)"
    assert await js(code, {"url": open_url, "space": "paged"}) == list(range(230))
    assert await js(code, {"url": open_url, "space": "paged", "limit": 150}) == list(range(150))


async def test_the_nearest_items_come_first(js: Program, open_url: str) -> None:
    pytest.importorskip("numpy", reason="vectors need NumPy")
    told = await js(
        f"""{OPEN}
        for (let n = 0; n < 12; n++) await items.put(['near'], `n${{n}}`, n, {{ vectors: [[1, n]] }})
        const near = async (limit) => (await all(items.search(["near"], {{ vector: [1, 0], limit }}))).map((one) => one.value)
        return [await near(), await near(3)]""",
        {"url": open_url, "space": "vectors"},
    )
    assert told == [list(range(10)), [0, 1, 2]]


@pytest.mark.parametrize("namespace", ["'memory'", "[]", "['a.b']", "['a', '']", "[1]"])
async def test_a_namespace_that_could_mean_another_is_refused_before_anything_is_sent(js: Program, namespace: str) -> None:
    for call in (f"items.put({namespace}, 'k', 1)", f"items.get({namespace}, 'k')", f"all(items.search({namespace}))"):
        with pytest.raises(Rejected) as refused:
            await js(f"{OPEN} await {call}", {"url": "http://127.0.0.1:1"})
        assert (refused.value.code, refused.value.written) == ("invalid-input", "no")
        assert "array of labels" in refused.value.message


async def test_an_item_that_is_missing_or_has_another_version_is_told(js: Program, open_url: str) -> None:
    given = {"url": open_url, "space": "versions"}
    with pytest.raises(Rejected) as missing:
        await js(f"{OPEN} await items.get(['a'], 'k')", given)
    assert (missing.value.code, missing.value.status) == ("not-found", 404)
    await js(f"{OPEN} await items.put(['a'], 'k', 1)", given)
    with pytest.raises(Rejected) as changed:
        await js(f"{OPEN} await items.put(['a'], 'k', 2, {{ expect: '' }})", given)
    assert (changed.value.code, changed.value.status, changed.value.written) == ("item-changed", 412, "no")


async def test_a_put_goes_to_the_next_node_under_the_same_key_if_one_is_gone(js: Program, killable: Killable) -> None:
    given = {"url": f"http://127.0.0.1:{free_ports(1)[0]},{killable.url}"}
    code = "await items.put(['a'], 'k', given.value, { key: 'once' }); return (await items.get(['a'], 'k')).value"
    assert await js(OPEN + code, {**given, "value": 1}) == 1
    await js(f"{OPEN} await items.put(['a'], 'k', 2)", given)
    # Sent again under its key, it is not applied again.
    assert await js(OPEN + code, {**given, "value": 1}) == 2
