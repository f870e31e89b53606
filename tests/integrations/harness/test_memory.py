"""The laws of a memory store: each holds for the harness's own stores, and for ours."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pydantic_ai_harness.memory import (
    InMemoryStore,
    MemoryConflictError,
    MemoryMutation,
    MemoryOperation,
    MemoryOperationConflictError,
    MetadataMemoryStore,
    SqliteMemoryStore,
)

from shoal.client.store import Store
from shoal.errors import InvalidName, SchemaTooNew, ShoalError, TooLarge
from shoal.integrations.harness import ShoalMemoryStore


@pytest.fixture(params=["memory", "sqlite", "embedded", "served"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    if request.param == "memory":
        yield InMemoryStore()
    elif request.param == "sqlite":
        yield SqliteMemoryStore(database=tmp_path / "memory.db")
    elif request.param == "embedded":
        async with ShoalMemoryStore.open(tmp_path / "s") as each:
            yield each
    else:
        async with ShoalMemoryStore.connect(request.getfixturevalue("url"), space=str(request.node.name)[:200]) as each:
            yield each


async def text(store: MetadataMemoryStore, path: str) -> str | None:
    found = await store.read(path, max_chars=100)
    return None if found is None else found.content


async def test_a_file_comes_back(store: MetadataMemoryStore) -> None:
    assert await store.read("a/b.md", max_chars=5) is None
    written = await store.write_with_metadata("a/b.md", "0123456789", expected_version=None, metadata={"by": "ann"})
    assert written == MemoryMutation(version=written.version, replayed=False, existed=False)
    found = await store.read("a/b.md", max_chars=5)
    assert found is not None
    assert (found.content, found.truncated, found.version) == ("01234", True, written.version)
    assert dict(found.metadata or {}) == {"by": "ann"}
    again = await store.write("a/b.md", "é", expected_version=written.version)
    assert again.existed
    found = await store.read("a/b.md", max_chars=5)
    assert found is not None
    assert (found.content, found.truncated, found.metadata) == ("é", False, None)


async def test_another_version_is_refused(store: MetadataMemoryStore) -> None:
    first = await store.write("f", "a", expected_version=None)
    second = await store.write("f", "b", expected_version=first.version)
    for expected in (None, first.version, "nonsense"):
        with pytest.raises(MemoryConflictError):
            await store.write("f", "c", expected_version=expected)
        with pytest.raises(MemoryConflictError):
            await store.delete("f", expected_version=expected)
    assert await text(store, "f") == "b"
    with pytest.raises(MemoryConflictError):
        await store.write("other", "c", expected_version=second.version)
    assert await text(store, "other") is None


async def test_a_deleted_file_is_gone_and_its_version_too(store: MetadataMemoryStore) -> None:
    written = await store.write("f", "a", expected_version=None)
    deleted = await store.delete("f", expected_version=written.version)
    assert (deleted.version, deleted.existed) == (None, True)
    assert await text(store, "f") is None
    assert (await store.delete("f", expected_version=None)).existed is False
    again = await store.write("f", "a", expected_version=None)
    assert again.version != written.version


async def test_an_operation_that_is_repeated_changes_nothing(store: MetadataMemoryStore) -> None:
    operation = MemoryOperation(id="o", fingerprint="x")
    assert await store.get_operation(operation) is None
    first = await store.write("f", "a", expected_version=None, operation=operation)
    await store.write("f", "b", expected_version=first.version)
    again = await store.write("f", "a", expected_version=None, operation=operation)
    assert (again.version, again.replayed, again.existed) == (first.version, True, False)
    assert await store.get_operation(operation) == again
    assert await text(store, "f") == "b"
    gone = MemoryOperation(id="d", fingerprint="x")
    found = await store.read("f", max_chars=1)
    assert found is not None
    await store.delete("f", expected_version=found.version, operation=gone)
    assert (await store.delete("f", expected_version=found.version, operation=gone)).replayed


async def test_an_operation_of_another_fingerprint_is_refused(store: MetadataMemoryStore) -> None:
    await store.write("f", "a", expected_version=None, operation=MemoryOperation(id="o", fingerprint="x"))
    other = MemoryOperation(id="o", fingerprint="y")
    with pytest.raises(MemoryOperationConflictError):
        await store.get_operation(other)
    with pytest.raises(MemoryOperationConflictError):
        await store.write("g", "a", expected_version=None, operation=other)
    assert await text(store, "g") is None


async def test_paths_are_listed_sorted(store: MetadataMemoryStore) -> None:
    paths = ["a.md", "a/b", "a/b.md", "a/c/d", "ab", "b-1/x", "b/x"]
    for path in reversed(paths):
        await store.write(path, path, expected_version=None)
    assert await store.list_paths(limit=100) == sorted(paths)
    assert await store.list_paths("a/", limit=100) == ["a/b", "a/b.md", "a/c/d"]
    assert await store.list_paths("a", limit=3) == ["a.md", "a/b", "a/b.md"]
    assert await store.list_paths("a/b", limit=9) == ["a/b", "a/b.md"]
    assert await store.list_paths("c/", limit=9) == []


@pytest.mark.parametrize("bad", ["", "/a", "a//b", "../a", "a/./b", "a/../b"])
async def test_a_path_that_is_none_is_refused(bad: str, store: MetadataMemoryStore) -> None:
    for call in (
        store.read(bad, max_chars=1),
        store.write(bad, "a", expected_version=None),
        store.delete(bad, expected_version=None),
    ):
        with pytest.raises(ValueError, match="path"):
            await call


async def test_bounds_and_metadata_that_are_none_are_refused(store: MetadataMemoryStore) -> None:
    with pytest.raises(ValueError, match="max_chars"):
        await store.read("f", max_chars=0)
    with pytest.raises(ValueError, match="limit"):
        await store.list_paths(limit=0)
    bad: Any = {"a": 1}
    with pytest.raises(TypeError):
        await store.write_with_metadata("f", "a", expected_version=None, metadata=bad)
    assert await text(store, "f") is None


async def test_of_two_that_write_one_file_one_is_refused(store: MetadataMemoryStore) -> None:
    results = await asyncio.gather(
        *(store.write("f", f"{nth}", expected_version=None) for nth in range(2)), return_exceptions=True
    )
    assert sorted(type(each).__name__ for each in results) == ["MemoryConflictError", "MemoryMutation"]


# ── ours alone ────────────────────────────────────────────────────────────────


@pytest.mark.answers("workers-on-several-nodes-overspend-a-budget")
async def test_a_repeated_operation_that_meets_itself_counts_once(opened: Store, space: str) -> None:
    stores = [ShoalMemoryStore(opened, space=space) for _ in range(3)]
    operation = MemoryOperation(id="o", fingerprint="x")
    results = await asyncio.gather(*(each.write("f", "a", expected_version=None, operation=operation) for each in stores))
    assert len({each.version for each in results}) == 1
    assert sorted(each.replayed for each in results) == [False, True, True]


async def test_values_that_cannot_be_stored_are_refused(opened: Store, space: str) -> None:
    ours = ShoalMemoryStore(opened, space=space)
    with pytest.raises(TooLarge):
        await ours.write("f", "x" * 2**26, expected_version=None)
    bad: Any = b"bytes"
    with pytest.raises(ShoalError):
        await ours.write("f", bad, expected_version=None)
    with pytest.raises(InvalidName):
        await ours.write("f" * 2048, "a", expected_version=None)
    assert await ours.list_paths(limit=1) == []
    await ours.write("f", "\ud800", expected_version=None)
    assert await text(ours, "f") == "\ud800"


async def test_data_of_a_newer_version_is_refused(opened: Store, space: str) -> None:
    ours = ShoalMemoryStore(opened, space=space)
    await opened.space(space).items.put(("{memory}", "files"), "f", {"harness": 99})
    with pytest.raises(SchemaTooNew):
        await ours.read("f", max_chars=1)
    with pytest.raises(SchemaTooNew):
        await ours.write("f", "a", expected_version=None)
