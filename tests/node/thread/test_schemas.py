"""What the schemas of a space make of saves: whoever sends them, whole or as a change, alone or in a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from shoal import values
from shoal.client.store import Space
from shoal.errors import InvalidInput, InvalidSchema, NotFound, SchemaTaken, SchemaViolation, TooLarge
from shoal.kinds.schema.handler import matches
from shoal.protocol import requests
from shoal.protocol.requests import NO_HEAD, Checkpoint, Save
from shoal.schemas.rule import Flaw, Rule
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, Opener

PLAN: dict[str, Any] = {
    "type": "object",
    "required": ["tasks"],
    "properties": {"tasks": {"type": "array", "items": {"type": "object", "required": ["title"]}}, "budget": {"minimum": 0}},
}


@pytest.fixture
async def space(open_bench: Opener) -> Space:
    return open_bench(schemas_max=3, schema_versions_max=3, schema_bytes_max=2000).space


async def send(space: Space, state: dict[str, Any], thread: str = "planner-1", **fields: Any) -> requests.Saved:
    channels = {name: values.encode(value) for name, value in state.items()}
    saved = await space._connection.write(Save("crew", thread, channels, **fields), key=None, durability=None)
    assert isinstance(saved, requests.Saved)
    return saved


async def latest(space: Space, thread: str = "planner-1") -> dict[str, Any]:
    return (await space.thread(thread).load()).state


async def test_a_state_that_breaks_the_schema_is_refused_with_the_path_and_nothing_is_written(space: Space) -> None:
    await space.schemas.put("plan", 1, PLAN, threads="planner-*")
    with pytest.raises(SchemaViolation, match="Nothing was written") as refused:
        await space.thread("planner-1").save({"tasks": [{"title": "a"}, {"name": "b"}]})
    assert (refused.value.detail["path"], refused.value.detail["schema"]) == ("/tasks/1", "plan")
    assert await space.thread("planner-1").heads() == {}
    await space.thread("planner-1").save({"tasks": [{"title": "a"}]})
    await space.thread("writer-1").save({"anything": 1})


async def test_a_save_keeps_the_version_that_it_names(space: Space) -> None:
    await space.schemas.put("plan", 1, {"required": ["tasks"]})
    await space.schemas.put("plan", 2, {"required": ["goals"]})
    await send(space, {"tasks": []}, schema="plan", schema_version=1)
    await send(space, {"goals": []}, schema="plan", schema_version=2)
    with pytest.raises(SchemaViolation, match="version 2"):
        await send(space, {"tasks": []}, schema="plan", schema_version=2)
    with pytest.raises(SchemaViolation, match="no version 9"):
        await send(space, {"tasks": []}, schema="plan", schema_version=9)
    await send(space, {"whatever": 1})
    await send(space, {"whatever": 1}, schema="another", schema_version=1)


async def test_a_named_thread_keeps_the_newest_version_under_another_name_or_none(space: Space) -> None:
    await space.schemas.put("plan", 1, {"required": ["tasks"]}, threads="planner-1")
    await space.schemas.put("plan", 2, {"required": ["goals"]}, threads="planner-1")
    await send(space, {"tasks": []}, schema="plan", schema_version=1)  # An older agent, in a rollout.
    claims: list[dict[str, Any]] = [{}, {"schema": "other", "schema_version": 1}]
    for claim in claims:
        with pytest.raises(SchemaViolation, match="version 2"):
            await send(space, {"tasks": []}, **claim)
    await space.schemas.put("plan", 3, True)
    await send(space, {"whatever": 1})


async def test_a_change_is_judged_by_the_state_that_it_makes(space: Space) -> None:
    await space.schemas.put("plan", 1, PLAN, threads="planner-*")
    first = await send(space, {"tasks": [{"title": "a"}], "budget": 5})
    change: dict[str, Any] = {"parent": first.id, "delta": True}
    with pytest.raises(SchemaViolation) as refused:
        await send(space, {}, appended={"tasks": values.encode([{"name": "b"}])}, **change)
    assert refused.value.detail["path"] == "/tasks/1"
    with pytest.raises(SchemaViolation):
        await send(space, {}, removed=["tasks"], **change)
    with pytest.raises(SchemaViolation):
        await send(space, {"budget": -1}, **change)
    await send(space, {"budget": 4}, appended={"tasks": values.encode([{"title": "b"}])}, **change)
    assert await latest(space) == {"tasks": [{"title": "a"}, {"title": "b"}], "budget": 4}


async def test_a_schema_that_compares_channels_sees_those_that_did_not_change(space: Space) -> None:
    await space.schemas.put("pair", 1, {"dependentRequired": {"a": ["b"]}}, threads="planner-*")
    first = await send(space, {"a": 1, "b": 2})
    with pytest.raises(SchemaViolation):
        await send(space, {}, parent=first.id, delta=True, removed=["b"])


async def test_one_save_that_breaks_it_refuses_its_whole_batch(space: Space) -> None:
    await space.schemas.put("plan", 1, PLAN, threads="{crew}/planner")
    with pytest.raises(SchemaViolation):
        async with space.batch() as batch:
            batch.counter("{crew}/tokens").add(1)
            batch.thread("{crew}/planner").save({"tasks": 1})
    assert await space.counter("{crew}/tokens").value() == 0
    with pytest.raises(NotFound):
        await latest(space, "{crew}/planner")


async def test_classes_that_no_node_knows_are_checked_by_their_fields(space: Space) -> None:
    await space.schemas.put("plan", 1, PLAN, threads="planner-*")
    with pytest.raises(SchemaViolation):
        await send(space, {"tasks": ({1, 2},)})
    await send(space, {"tasks": ({"title": "a"},)})


async def test_the_text_of_a_version_never_changes(space: Space) -> None:
    first = await space.schemas.put("plan", 1, PLAN)
    assert await space.schemas.put("plan", 1, dict(reversed(PLAN.items()))) == first
    with pytest.raises(SchemaTaken, match="put version 2"):
        await space.schemas.put("plan", 1, {})
    assert (await space.schemas.get("plan")).json == PLAN


async def test_schemas_are_listed_and_bounded(space: Space) -> None:
    for name in ("a", "b", "c"):
        await space.schemas.put(name, 1, True)
    with pytest.raises(TooLarge, match="at most 3 schemas"):
        await space.schemas.put("d", 1, True)
    for version in (2, 3):
        await space.schemas.put("a", version, True)
    with pytest.raises(TooLarge, match="at most 3 versions"):
        await space.schemas.put("a", 4, True)
    with pytest.raises(TooLarge, match="2000 bytes"):
        await space.schemas.put("a", 4, {"title": "x" * 2000})
    assert [name async for name in space.schemas.list()] == ["a", "b", "c"]
    assert [found.version for found in await space.schemas.versions("a")] == [1, 2, 3]


@pytest.mark.parametrize("schema", [{"type": "plan"}, {"$ref": "https://example.com/x"}, {"a": object()}, {"pattern": "("}])
async def test_malformed_schemas_are_refused(space: Space, schema: dict[str, Any]) -> None:
    with pytest.raises(InvalidSchema, match="Nothing was written"):
        await space.schemas.put("plan", 1, schema)
    with pytest.raises(NotFound):
        await space.schemas.get("plan")


@pytest.mark.parametrize("version", [0, -1, 2**31])
async def test_a_version_is_a_number_from_one(space: Space, version: int) -> None:
    with pytest.raises(InvalidInput, match="version"):
        await space.schemas.put("plan", version, True)


@pytest.mark.parametrize(
    "claim",
    [
        {"schema_version": -1},
        {"schema_version": 2, "readable_from": 3},
        {"secret": ["x"] * 300},
        {"schema": "a\x00"},
        {"secret": [""]},
    ],
)
async def test_a_claim_that_cannot_be_one_is_refused(space: Space, claim: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="Nothing was written"):
        await send(space, {}, **claim)


async def test_a_schema_is_there_after_a_restart(bench: Bench) -> None:
    await bench.space.schemas.put("plan", 1, PLAN, threads="*")
    again = bench.crashed()
    with pytest.raises(SchemaViolation):
        await again.space.thread("t").save({})
    await again.node.stop()


async def test_a_checkpoint_keeps_what_its_schema_says_of_it(space: Space) -> None:
    claim: dict[str, Any] = {"schema": "plan", "schema_version": 3, "readable_from": 2, "secret": ["/token"]}
    saved = await send(space, {"token": "t"}, **claim)
    found = await space._connection.read(requests.Load("crew", "planner-1"))
    assert isinstance(found, Checkpoint)
    assert {name: getattr(found, name) for name in claim} == claim
    other = await send(space, {"token": "t"}, parent=NO_HEAD, fork=True, **{**claim, "readable_from": 3})
    assert other.id != saved.id


async def test_every_node_enforces_what_has_reached_it() -> None:
    async with Fleet() as fleet:
        here, there = fleet["a"].store().space("crew"), fleet["c"].store().space("crew")
        await there.thread("planner-1").save({"tasks": []})
        await fleet.isolate("c")
        await here.schemas.put("plan", 1, PLAN, threads="planner-*")
        with pytest.raises(SchemaViolation):
            await here.thread("planner-1").save({}, overwrite=True)
        await there.thread("planner-2").save({"tasks": 1})  # The schema has not reached this node.
        fleet.link_all("c")
        await fleet.converged()
        with pytest.raises(SchemaViolation):
            await there.thread("planner-2").save({"tasks": 2}, overwrite=True)
        assert fleet.rows("a") == fleet.rows("b") == fleet.rows("c")
        listed = await here._connection.read(requests.ReadViolations("crew", "planner-2"))
        assert isinstance(listed, requests.Violations)
        assert [(found.branch, found.schema, found.version, found.path) for found in listed.violations] == [
            ("main", "plan", 1, "/tasks")
        ]


async def test_of_two_contents_of_one_version_one_counts_on_every_node() -> None:
    async with Fleet() as fleet:
        await fleet.isolate("c")
        for name, required in (("a", "x"), ("c", "y")):
            await fleet[name].store().space("crew").schemas.put("plan", 1, {"required": [required]}, threads="*")
        fleet.link_all("c")
        await fleet.converged()
        found = [await fleet[name].store().space("crew").schemas.get("plan") for name in "abc"]
        assert found[0] == found[1] == found[2]
        assert found[0].rivals == 1
        (required,) = found[0].json["required"]  # type: ignore[index]
        for name in "abc":
            with pytest.raises(SchemaViolation):
                await fleet[name].store().space("crew").thread(name).save({"x" if required == "y" else "y": 1})
            await fleet[name].store().space("crew").thread(name).save({required: 1})


@pytest.mark.parametrize(
    ("threads", "thread", "named"),
    [("", "a", False), ("a", "a", True), ("a", "ab", False), ("a*", "ab", True), ("*", "x", True), ("a*", "ba", False)],
)
def test_threads_are_named_by_name_or_prefix(threads: str, thread: str, named: bool) -> None:
    assert matches(threads, thread) is named


async def test_only_channels_that_changed_are_checked_again(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[set[str]] = []
    sound = Rule.flaw_of_channels

    def counted(rule: Rule, channels: Mapping[str, Any]) -> Flaw | None:
        checked.append(set(channels))
        return sound(rule, channels)

    monkeypatch.setattr(Rule, "flaw_of_channels", counted)
    await space.schemas.put("plan", 1, PLAN, threads="planner-*")
    thread = space.thread("planner-1")
    tasks = [{"title": "a" * 5000}]  # What is smaller is checked again.
    await thread.save({"tasks": tasks, "budget": 1})
    await thread.save({"tasks": tasks, "budget": 2})
    assert (checked[0], checked[-1]) == ({"tasks", "budget"}, {"budget"})
