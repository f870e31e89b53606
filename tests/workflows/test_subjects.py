"""All that is tagged with a data subject is found, and erased on every node."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.client.store import Space
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidName, Overloaded
from shoal.node.session import ServiceSession
from shoal.node.verification.verify import verify
from shoal.protocol.requests import AlterSet, DeleteDocument, ObjectKind
from shoal.workflows import subjects
from shoal.workflows.subjects import KINDS, SubjectTag, set_of
from simulation.world.fleet import Fleet
from tests.node.conftest import Bench, bench
from tests.workflows.test_spaces import fill

pytestmark = pytest.mark.virtual_time

__all__ = ["bench"]

OBJECTS = [
    ("thread", "planner"),
    ("document", "plan"),
    ("counter", "tokens"),
    ("register", "goal"),
    ("set", "urls"),
    ("list", "plan"),
    ("budget", "dollars"),
    ("map", "settings"),
    ("items", "memory.user-1"),
]
STAYS = {("schema", "plan"), ("items", "memory")}  # Rules, and a first label below which there may be others.


async def tagged(space: Space, subject: str = "ana") -> None:
    """One object of each kind, tagged."""
    for kind, name in OBJECTS:
        assert await space.subjects.tag(subject, kind, name)  # type: ignore[arg-type]
    await fill(space)


async def objects(space: Space) -> set[tuple[str, str]]:
    """Kind and name of all objects but the sets of tags."""
    from shoal.workflows.spaces import names

    return {
        (kind, name)
        for kind in get_args(ObjectKind)
        async for name in names(space._connection, space.name, kind)
        if not name.startswith("shoal.subjects/")
    }


def test_every_kind_of_object_but_rules_can_be_tagged() -> None:
    assert set(get_args(ObjectKind)) - {"schema"} == set(KINDS) - {"event"}


@pytest.mark.answers("erasure-of-a-persons-data-misses-an-object")
async def test_erasing_a_subject_erases_its_tagged_objects_alone(bench: Bench) -> None:
    await tagged(bench.space)
    await fill(bench.store.space("another"))
    await bench.space.counter("other").add(1)
    assert {(tag.kind, tag.name) for tag in await bench.space.subjects.find("ana")} == set(OBJECTS)
    report = await bench.space.subjects.erase("ana")
    assert {(each.kind, each.name) for each in report.objects if each.outcome == "erased"} == set(OBJECTS)
    assert (len(report.objects), report.left, report.is_complete, report.waits_for) == (9, 0, True, [])
    assert await bench.space.subjects.find("ana") == []
    assert await objects(bench.space) == {("counter", "other"), *STAYS}
    assert await bench.space.items.get(("memory", "user-1"), "k") is None
    assert len(await objects(bench.store.space("another"))) == 10
    assert verify(bench.storage, config=Config()).problems == []


async def test_parts_of_shared_objects_are_erased_alone(bench: Bench) -> None:
    space = bench.space
    await space.items.put(("memory", "user-1"), "likes", 1)
    await space.items.put(("memory", "user-1"), "kept", 1)
    await space.map("rooms").set("ana", 7)
    await space.map("rooms").set("bo", 8)
    await space.set("present").add("ana", "bo", 5)
    await space.subjects.tag("ana", "items", "memory.user-1", "likes")
    await space.subjects.tag("ana", "map", "rooms", "ana")
    await space.subjects.tag("ana", "set", "present", '"ana"')
    report = await space.subjects.erase("ana")
    assert [each.outcome for each in report.objects] == ["erased"] * 3
    assert await space.items.get(("memory", "user-1"), "likes") is None
    assert await space.items.get(("memory", "user-1"), "kept") is not None
    assert (await space.map("rooms").get("ana"), await space.map("rooms").get("bo")) == (None, 8)
    assert set(await space.set("present").members()) == {"bo", 5}


async def test_absent_objects_and_records_of_streams_are_reported(bench: Bench) -> None:
    event = await bench.space.thread("stream/notes").journal.append({"about": "ana"})
    await bench.space.subjects.tag("ana", "thread", "never-written")
    await bench.space.subjects.tag("ana", "event", "stream/notes", event.id)
    report = await bench.space.subjects.erase("ana")
    assert {each.kind: each.outcome for each in report.objects} == {"thread": "absent", "event": "kept"}
    assert "delete the stream" in next(each.reason for each in report.objects if each.kind == "event")
    assert (report.left, report.is_complete) == (1, False)
    assert [tag.kind for tag in await bench.space.subjects.find("ana")] == ["event"]
    assert await bench.space.subjects.untag("ana", "event", "stream/notes", event.id)
    assert (await bench.space.subjects.erase("ana")).is_complete


async def test_a_tagged_event_is_erased_and_those_beside_it_stay(bench: Bench) -> None:
    journal = bench.space.thread("shared").journal
    events = [await journal.append({"about": name}) for name in ("ana", "bo", "ana")]
    for event in (events[0], events[2]):
        await bench.space.subjects.tag("ana", "event", "shared", event.id)
    await journal.erase(events[2].id)
    report = await bench.space.subjects.erase("ana")
    assert sorted(each.outcome for each in report.objects) == ["absent", "erased"]
    assert report.is_complete
    assert [event.event async for event in journal.read()] == [None, {"about": "bo"}, None]
    assert verify(bench.storage, config=Config()).problems == []


@pytest.mark.answers("event-is-called-erased-too-early")
async def test_a_tagged_event_that_is_not_known_here_keeps_its_tag(bench: Bench) -> None:
    event = await bench.space.thread("shared").journal.append({"about": "ana"})
    unknown = event.id[:16] + "ab" * 16 + event.id[48:]
    await bench.space.subjects.tag("ana", "event", "shared", unknown)
    report = await bench.space.subjects.erase("ana")
    assert [each.outcome for each in report.objects] == ["failed"]
    assert "Nothing was written" in report.objects[0].reason
    assert not report.is_complete


async def test_subjects_whose_names_begin_alike_or_share_a_set_are_apart(bench: Bench) -> None:
    alike = ["an", "ana", "anna", "ana ", "ana/1", "Ana", *(f"n{n}" for n in range(600))]
    shared = [name for name in alike if set_of(name) == set_of("ana")]
    assert len(shared) > 2
    for name in [*shared, "an", "anna"]:
        await bench.space.subjects.tag(name, "counter", f"of-{name}")
    for name in [*shared, "an", "anna"]:
        assert [tag.name for tag in await bench.space.subjects.find(name)] == [f"of-{name}"]
    await bench.space.subjects.erase("ana")
    assert all([await bench.space.subjects.find(name) for name in shared if name != "ana"])


async def test_more_tags_than_a_page_are_found_erased_and_bounded(bench: Bench) -> None:
    found = [SubjectTag("counter", f"c{n:04}") for n in range(1203)]
    connection = bench.store.connection
    assert await subjects.write_tag(connection, "crew", "ana", found) == 1203
    assert await bench.space.subjects.find("ana") == found
    report, after = await subjects.erase(connection, "crew", "ana", objects_max=10)
    assert (len(report.objects), bool(after), report.is_complete) == (500, True, False)
    assert len(await bench.space.subjects.find("ana")) == 703
    assert len((await bench.space.subjects.erase("ana")).objects) == 703


async def test_tagging_twice_changes_nothing_and_needs_no_object(bench: Bench) -> None:
    assert await bench.space.subjects.tag("ana", "thread", "t")
    assert not await bench.space.subjects.tag("ana", "thread", "t")
    assert not await bench.space.subjects.untag("ana", "thread", "u")


@pytest.mark.parametrize(
    ("tag", "error"),
    [
        (("ana", "schema", "plan"), InvalidInput),
        (("ana", "thread", "t", "part"), InvalidInput),
        (("ana", "event", "t"), InvalidInput),
        (("ana", "set", "s", "no json"), InvalidInput),
        (("ana", "items", "a..b"), InvalidName),
        (("ana", "thread", ""), InvalidName),
        (("", "thread", "t"), InvalidName),
    ],
)
async def test_objects_that_cannot_be_tagged_are_refused(bench: Bench, tag: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="Nothing was written"):
        await bench.space.subjects.tag(*tag)
    assert await objects(bench.space) == set()


@pytest.mark.answers("erasure-of-a-persons-data-misses-an-object")
async def test_an_erasure_that_fails_half_way_is_repeated(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await tagged(bench.space)
    call = ServiceSession.call

    async def fails(session: ServiceSession, request: Any, **options: Any) -> Any:
        if isinstance(request, DeleteDocument):
            raise Overloaded("The disk is busy. Nothing was written.", retry_after_s=1.0)
        return await call(session, request, **options)

    monkeypatch.setattr(ServiceSession, "call", fails)
    report = await bench.space.subjects.erase("ana")
    assert [(each.kind, each.reason) for each in report.objects if each.outcome == "failed"] == [
        ("document", "The disk is busy. Nothing was written.")
    ]
    assert (report.left, report.is_complete) == (1, False)

    async def loses_tags(session: ServiceSession, request: Any, **options: Any) -> Any:
        if isinstance(request, AlterSet) and request.remove:
            raise Overloaded("The disk is busy. Nothing was written.", retry_after_s=1.0)
        return await call(session, request, **options)

    monkeypatch.setattr(ServiceSession, "call", loses_tags)
    with pytest.raises(Overloaded):
        await bench.space.subjects.erase("ana")
    monkeypatch.undo()
    again = await bench.space.subjects.erase("ana")
    assert [(each.kind, each.outcome) for each in again.objects] == [("document", "absent")]
    assert again.is_complete


@pytest.mark.answers("erasure-of-a-persons-data-misses-an-object")
async def test_an_erasure_reaches_a_node_that_was_away_and_leaves_what_it_tagged_meanwhile_to_be_found() -> None:
    async with Fleet("abc", seed=3) as fleet:
        await tagged(fleet["a"].store().space("crew"))
        await fleet.converged()
        await fleet.isolate("c")
        away = fleet["c"].store().space("crew")
        await away.thread("planner").update({"late": "of ana"})
        await away.subjects.tag("ana", "register", "new")
        await away.register("new").set("of ana")
        report = await fleet["b"].store().space("crew").subjects.erase("ana")
        assert report.is_complete
        fleet.link_all("c")
        await fleet.converged()
        for name in "abc":
            space = fleet[name].store().space("crew")
            assert await objects(space) == {("register", "new"), *STAYS}
            assert [tag.name for tag in await space.subjects.find("ana")] == ["new"]
        assert (await fleet["c"].store().space("crew").subjects.erase("ana")).is_complete
        await fleet.converged()
        assert await objects(fleet["a"].store().space("crew")) == STAYS


async def test_a_copy_from_before_an_erasure_holds_nothing_of_it_once_it_has_caught_up() -> None:
    async with Fleet("abc", seed=4) as fleet:
        await tagged(fleet["a"].store().space("crew"))
        await fleet.converged()
        copy = fleet["c"].storage.left_by_crash(None)
        assert (await fleet["a"].store().space("crew").subjects.erase("ana")).is_complete
        await fleet.converged()
        await fleet.crash("c")
        fleet.start("c", copy)
        await fleet.converged()
        restored = fleet["c"].store().space("crew")
        assert await objects(restored) == STAYS
        assert await restored.subjects.find("ana") == []


@pytest.mark.real_time("files")
async def test_tags_of_an_encrypted_directory_are_found_and_their_subjects_are_not_in_its_files(tmp_path: Path) -> None:
    subject = "ana-c3f19b77@example.com"
    key = tmp_path / "master.key"
    assert CliRunner().invoke(app, ["encryption", "key", str(key)]).exit_code == 0
    for _ in range(2):
        async with shoal.open(tmp_path / "state", encryption=f"file:{key}") as store:
            await store.space("crew").subjects.tag(subject, "thread", "t")
            assert len(await store.space("crew").subjects.find(subject)) == 1
    held = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert subject.encode() not in held
