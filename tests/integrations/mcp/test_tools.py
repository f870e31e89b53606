"""Each tool over standard input and output, on a directory and on a node."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.integrations.mcp.conftest import answer, client, refusal

WRITING = {
    "save_thread",
    "edit_thread",
    "append_journal",
    "edit_document",
    "put_item",
    "delete_item",
    "write_value",
}


async def test_a_thread_is_saved_edited_and_loaded(target: list[str]) -> None:
    async with client(*target, "--by", "ana") as made:
        saved = await answer(
            made, "save_thread", thread="t", state={"step": 1, "log": []}, expect_head="", idempotency_key="k1"
        )
        again = await answer(
            made, "save_thread", thread="t", state={"step": 1, "log": []}, expect_head="", idempotency_key="k1"
        )
        assert again == saved, "a repeated save is answered as the first"
        assert (await refusal(made, "save_thread", thread="t", state={}, expect_head="")).startswith("HeadMoved: ")
        for _ in range(2):
            edit = {"set": {"step": 2}, "append": {"log": ["done"]}, "metadata": {"at": "two"}}
            await answer(made, "edit_thread", thread="t", idempotency_key="k2", **edit)
        loaded = await answer(made, "load_thread", thread="t")
        assert loaded["state"] == {"step": 2, "log": ["done"]}
        assert (await answer(made, "load_thread", thread="t", channels=["step"]))["state"] == {"step": 2}
        assert (await answer(made, "load_thread", thread="t", checkpoint=saved["id"]))["state"] == {"step": 1, "log": []}
        found = (await answer(made, "thread_history", thread="t"))["checkpoints"]
        assert [(each["id"], each["metadata"], each["author"]) for each in found] == [
            (loaded["id"], {"at": "two"}, "ana"),
            (saved["id"], {}, "ana"),
        ]
        stale = await refusal(made, "edit_thread", thread="t", set={"step": 3}, expect_head=saved["id"])
        assert stale.startswith("HeadMoved: ")
        assert "Nothing was written" in stale


async def test_a_journal_keeps_events_in_order_and_each_key_once(target: list[str]) -> None:
    async with client(*target) as made:
        for n in (0, 1, 1, 2):
            appended = await answer(made, "append_journal", thread="t", event={"n": n}, idempotency_key=f"event-{n}")
            assert set(appended) == {"id", "appended"}
        await answer(made, "append_journal", thread="t", event="same")
        await answer(made, "append_journal", thread="t", event="same")
        first = await answer(made, "read_journal", thread="t", limit=2)
        assert [each["event"] for each in first["events"]] == [{"n": 0}, {"n": 1}]
        rest = await answer(made, "read_journal", thread="t", after=first["cursor"])
        assert [each["event"] for each in rest["events"]] == [{"n": 2}, "same", "same"]
        assert await answer(made, "read_journal", thread="t", after=rest["cursor"]) == {"events": [], "cursor": rest["cursor"]}


async def test_a_document_is_edited_in_place(target: list[str]) -> None:
    async with client(*target) as made:
        begun = await answer(made, "edit_document", document="plan", content={"text": "hello", "tasks": {"t1": 1}})
        patch = [{"op": "add", "path": "/tasks/t2", "value": 2}]
        changed = await answer(made, "edit_document", document="plan", patch=patch, expect_version=begun["version"])
        assert changed["content"] == {"text": "hello", "tasks": {"t1": 1, "t2": 2}}
        assert await answer(made, "read_document", document="plan", root="text") == {
            "content": "hello",
            "version": changed["version"],
        }
        stale = await refusal(made, "edit_document", document="plan", patch=patch, expect_version=begun["version"])
        assert stale.startswith("DocumentChanged: ")
        assert "either `content` or `patch`" in await refusal(made, "edit_document", document="plan")
        assert "no root 'none'" in await refusal(made, "read_document", document="plan", root="none")


async def test_items_are_put_found_and_deleted(target: list[str]) -> None:
    async with client(*target) as made:
        place = {"namespace": ["memory", "ana"], "key": "likes"}
        put = await answer(made, "put_item", **place, value={"age": 30, "food": "soup"}, ttl_s=3600, expect_version="")
        found = (await answer(made, "get_item", **place))["item"]
        assert (found["value"], found["version"]) == ({"age": 30, "food": "soup"}, put["version"])
        assert (await refusal(made, "put_item", **place, value=1, expect_version="")).startswith("ItemChanged: ")
        searched = await answer(made, "search_items", namespace=["memory"], filter={"age": {"$gte": 30}})
        assert searched == {"items": [found]}
        assert await answer(made, "search_items", filter={"age": 31}) == {"items": []}
        assert await answer(made, "delete_item", **place) == {"deleted": True}
        assert await answer(made, "get_item", **place) == {"item": None}


async def test_shared_values_change_by_what_is_added(target: list[str]) -> None:
    async with client(*target) as made:
        for _ in range(2):
            assert (await answer(made, "write_value", kind="counter", name="n", add=3, idempotency_key="a"))["value"] == 3
        await answer(made, "write_value", kind="register", name="goal", set=None)
        assert (await answer(made, "read_value", kind="register", name="goal"))["value"] is None
        version = (await answer(made, "write_value", kind="register", name="goal", set={"ship": "it"}))["version"]
        assert (await answer(made, "read_value", kind="register", name="goal"))["version"] == version
        await answer(made, "write_value", kind="set", name="urls", include=["a", "b", "c"])
        assert (await answer(made, "write_value", kind="set", name="urls", exclude=["b"]))["removed"] == 1
        assert await answer(made, "read_value", kind="set", name="urls") == {"members": ["a", "c"], "size": 2}
        for change in ({"set": 1}, {"add": 2}, {"include": ["x"]}):
            await answer(made, "write_value", kind="map", name="m", key="k", **change)
        (entry,) = (await answer(made, "read_value", kind="map", name="m"))["entries"].items()
        assert entry[0] == "k"
        assert {**entry[1], "version": ""} == {"value": 1, "version": "", "count": 2, "members": ["x"]}
        assert (await answer(made, "write_value", kind="map", name="m", key="k", remove=True))["removed"] is True
        assert (await answer(made, "list_names", kind="counter"))["names"] == ["n"]
        for wrong in (
            {"kind": "set", "add": 1},
            {"kind": "counter"},
            {"kind": "counter", "add": 1, "set": 2},
            {"kind": "map", "set": 1},
        ):
            assert "Nothing was written" in await refusal(made, "write_value", name="n", **wrong)


async def test_a_list_is_changed_by_the_ids_of_its_elements(target: list[str]) -> None:
    async with client(*target) as made:
        plan = {"kind": "list", "name": "plan"}
        first, last = (await answer(made, "write_value", **plan, include=["read", "ship"]))["elements"]
        await answer(made, "write_value", **plan, include=["write"], before=last)
        assert await answer(made, "write_value", **plan, move=first, index=-1) == {"moved": True}
        assert (await answer(made, "read_value", **plan))["elements"][2] == {"id": first, "value": "read"}
        assert await answer(made, "write_value", **plan, exclude=[last]) == {"removed": 1, "size": 2}
        assert (await answer(made, "read_value", **plan, index=1))["elements"] == [{"id": first, "value": "read"}]
        assert (await answer(made, "list_names", kind="list"))["names"] == ["plan"]
        for wrong in ({"include": [1], "exclude": [first]}, {"include": [1], "index": 0, "after": first}, {"set": 1}):
            assert "Nothing was written" in await refusal(made, "write_value", **plan, **wrong)
        assert "Nothing was written" in await refusal(made, "write_value", kind="set", name="s", include=[1], index=0)


async def test_names_are_listed_page_by_page(target: list[str]) -> None:
    async with client(*target) as made:
        for name in ("a/1", "a/2", "b"):
            await answer(made, "edit_thread", thread=name, set={"x": 1})
        first = await answer(made, "list_names", kind="thread", limit=2)
        assert first == {"names": ["a/1", "a/2"], "more": True}
        assert await answer(made, "list_names", kind="thread", after="a/2") == {"names": ["b"], "more": False}
        assert (await answer(made, "list_names", kind="thread", prefix="a/"))["names"] == ["a/1", "a/2"]


async def test_tools_say_what_they_do_and_readers_get_none_that_writes(tmp_path: Path) -> None:
    data = ["--data", str(tmp_path / "state")]
    async with client(*data) as made:
        tools = (await made.list_tools()).tools
        marks = {tool.name: tool.annotations for tool in tools}
        assert {name for name, mark in marks.items() if mark is not None and not mark.read_only_hint} == WRITING
        for tool in tools:
            assert tool.description
            assert tool.input_schema["type"] == "object"
            assert ("idempotency_key" in tool.input_schema["properties"]) == (tool.name in WRITING)
        await answer(made, "edit_thread", thread="t", set={"x": 1})
    async with client(*data, "--read-only") as made:
        assert not WRITING & {tool.name for tool in (await made.list_tools()).tools}
        assert (await answer(made, "load_thread", thread="t"))["state"] == {"x": 1}


async def test_two_servers_edit_one_thread_and_lose_nothing(url: str) -> None:
    async with client("--url", url) as one, client("--url", url) as other:
        await asyncio.gather(
            *(
                answer(made, "edit_thread", thread="t", append={"log": [f"{name}{n}"]})
                for name, made in (("a", one), ("b", other))
                for n in range(15)
            )
        )
        log = (await answer(one, "load_thread", thread="t"))["state"]["log"]
        assert sorted(log) == sorted(f"{name}{n}" for name in "ab" for n in range(15))
