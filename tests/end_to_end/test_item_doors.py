"""Memory items at every door: the client, REST, the command line."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from shoal.client.store import Space
from tests.cli.conftest import PATIENCE_S
from tests.end_to_end.conftest import Cli, Rest


async def test_items(space: Space, rest: Rest, cli: Cli) -> None:
    namespace = ("memory", "user/1 é")
    path = "/items/memory.user%2F1%20%C3%A9"
    version = await space.items.put(namespace, "likes", {"tea": True, "raw": b"\x00"})
    seen = await rest("GET", f"{path}/likes")
    assert (seen["namespace"], seen["key"], seen["version"]) == (list(namespace), "likes", version)
    # A value that was read as JSON goes back as it was, bytes and all.
    put = await rest("PUT", f"{path}/again", {"value": seen["value"], "ttl_s": 3600, "expect": ""})
    again = await space.items.get(namespace, "again")
    assert again is not None
    assert (again.value, again.version) == ({"tea": True, "raw": b"\x00"}, put["version"])
    assert again.expires is not None
    (printed,) = await cli("items", "put", "memory.user-2", "n", '{"n": 7}')
    found = await rest("POST", "/items:search", {"namespace": ["memory"], "filter": {"n": {"$gt": 1}}})
    assert [(item["key"], item["version"]) for item in found["items"]] == [("n", printed["version"])]
    listed = await rest("POST", "/items:namespaces", {"label": "memory", "matches": [["prefix", ["memory", "*"]]]})
    assert listed["namespaces"] == [["memory", "user-2"], list(namespace)]
    assert await cli("items", "namespaces") == [["memory", "user-2"], list(namespace)]
    pages = [await rest("POST", "/items:search", {"namespace": ["memory"], "limit": 2})]
    while pages[-1]["more"]:
        pages.append(await rest("POST", "/items:search", {"namespace": ["memory"], "limit": 2, "after": pages[-1]["cursor"]}))
    assert [item["key"] for page in pages for item in page["items"]] == ["n", "again", "likes"]
    assert (await rest("GET", "/items"))["names"] == ["memory"]
    assert await rest("DELETE", f"{path}/again?expect={put['version']}") == {"deleted": True}
    assert [item["key"] for item in await cli("items", "search", "memory")] == ["n", "likes"]
    body = {"writes": [{"op": "put-item", "namespace": ["memory"], "key": "b", "value": 1}]}
    body["writes"].append({"op": "delete-item", "namespace": ["memory", "user-2"], "key": "n"})
    assert [sorted(reply) for reply in (await rest("POST", "/batch", body))["replies"]] == [["version"], ["deleted"]]
    assert [item.key for item in await space.items.search(("memory",))] == ["b", "likes"]


async def test_items_are_indexed_at_every_door(space: Space, rest: Rest, cli: Cli) -> None:
    for n in range(20):
        await space.items.put(("notes", f"user-{n % 3}"), f"{n:02}", {"n": n})
    assert await rest("POST", "/items:index", {"label": "notes", "fields": ["n"]}) == {"changed": ["n"]}
    assert await cli("items", "index", "notes", "n", "kind") == [{"changed": ["kind"]}]
    async with asyncio.timeout(PATIENCE_S):
        while not all(index["built"] for index in (await rest("GET", "/items:indexes?label=notes"))["indexes"]):
            pass
    assert await cli("items", "indexes", "notes") == [{"field": "kind", "built": True}, {"field": "n", "built": True}]
    body = {"namespace": ["notes"], "filter": {"n": {"$gte": 18}}, "explain": True}
    found = await rest("POST", "/items:search", body)
    assert ([item["key"] for item in found["items"]], found["plan"]["how"]) == (["18", "19"], "lookup")
    expected = {"how": "lookup", "field": "n", "index_rows": 2, "item_rows": 2}
    assert found["plan"] == expected
    assert await cli("items", "search", "notes", "--filter", '{"n": {"$gte": 18}}', "--explain") == [expected]
    assert await rest("POST", "/items:unindex", {"label": "notes", "fields": ["n"]}) == {"changed": ["n"]}
    assert await cli("items", "unindex", "notes", "kind") == [{"changed": ["kind"]}]
    assert await space.items.indexes(("notes",)) == {}


async def test_items_are_found_by_vectors_at_every_door(space: Space, rest: Rest, cli: Cli) -> None:
    await space.items.put(("near",), "client", {"kind": "a"}, vectors=[[1, 0]])
    await rest("PUT", "/items/near.deeper/rest", {"value": {"kind": "b"}, "vectors": [[1, 1], [0, 0]]})
    await cli("items", "put", "near", "cli", '{"kind": "b"}', "--vector", "[0, 2]")
    expected = [("cli", 1.0), ("rest", 0.7071), ("client", 0.0)]
    found = await space.items.search(("near",), vector=[0, 1])
    assert [(item.key, round(item.score or 0, 4)) for item in found] == expected
    shown = await rest("POST", "/items:rank", {"namespace": ["near"], "vector": [0, 1]})
    assert [(found["item"]["key"], round(found["score"], 4)) for found in shown["items"]] == expected
    printed = await cli("items", "search", "near", "--vector", "[0, 1]")
    assert [(item["key"], round(item["score"], 4)) for item in printed] == expected
    for match in (["suffix", ["deeper"]], ["prefix", ["near", "*"]]):
        body = {"namespace": ["near"], "matches": [match]}
        assert [item["key"] for item in (await rest("POST", "/items:search", body))["items"]] == ["rest"]
        ranked = await rest("POST", "/items:rank", {**body, "vector": [1, 1]})
        assert [found["item"]["key"] for found in ranked["items"]] == ["rest"]
    assert [item["key"] for item in await cli("items", "search", "near", "--suffix", "*.deeper")] == ["rest"]
    body = {"namespace": ["near"], "vector": [0, 1], "filter": {"kind": "b"}, "limit": 1, "offset": 1}
    assert [found["item"]["key"] for found in (await rest("POST", "/items:rank", body))["items"]] == ["rest"]


BAD_ITEMS: list[tuple[str, str, object, int]] = [
    ("GET", "/items/memory/absent", None, 404),
    ("PUT", "/items/memory/k", {"value": 1, "expect": "0" * 32}, 412),
    ("DELETE", "/items/memory/k?expect=x", None, 412),
    ("PUT", "/items/memory/k", {"value": 1, "ttl_s": 0}, 400),
    ("PUT", "/items/memory/k", {"value": 1, "ttl": 5}, 400),
    ("PUT", "/items/memory..x/k", {"value": 1}, 400),
    ("PUT", "/items/memory/k?durability=most", {"value": 1}, 400),
    ("POST", "/items:search", {"namespace": []}, 400),
    ("POST", "/items:search", {"namespace": ["a.b"]}, 400),
    ("POST", "/items:search", {"namespace": ["a"], "filter": {"a": {"$in": 1}}}, 400),
    ("POST", "/items:search", {"namespace": ["a"], "after": "not base 64!"}, 400),
    ("POST", "/items:namespaces", {"label": ""}, 400),
    ("POST", "/items:index", {"label": "memory", "fields": []}, 400),
    ("POST", "/items:rank", {"namespace": ["a"], "vector": []}, 400),
    ("POST", "/items:rank", {"namespace": ["a"], "vector": [1], "after": "AAAA"}, 400),
    ("POST", "/items:rank", {"namespace": ["a"], "vector": [1], "limit": 100000}, 400),
    ("PUT", "/items/memory/k", {"value": 1, "vectors": [["x"]]}, 400),
    ("POST", "/items:index", {"label": "a.b", "fields": ["n"]}, 400),
    ("POST", "/items:unindex", {"label": "memory"}, 400),
]


@pytest.mark.parametrize(("method", "path", "body", "status"), BAD_ITEMS, ids=lambda part: str(part)[:40])
async def test_a_bad_request_for_items_is_a_problem(
    http: aiohttp.ClientSession, method: str, path: str, body: object, status: int
) -> None:
    async with http.request(method, f"/v1/spaces/bad{path}", json=body) as answer:
        problem = await answer.json(content_type="application/problem+json")
        assert (answer.status, problem["status"], problem["written"]) == (status, status, "no")
