"""A schema that was put at one door is enforced at every door."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal import Schema
from shoal.client.store import Space
from shoal.errors import InvalidSchema, SchemaTaken, SchemaViolation
from tests.end_to_end.conftest import Cli, Rest

PLAN = {"type": "object", "required": ["tasks"], "properties": {"tasks": {"type": "array", "items": {"type": "string"}}}}


async def test_a_schema_put_over_rest_is_enforced_for_all(space: Space, rest: Rest, cli: Cli) -> None:
    body = {"version": 1, "schema": PLAN, "threads": "planner-*"}
    put = await rest("PUT", "/schemas/plan", body)
    assert (put["version"], put["schema"], put["threads"], put["rivals"]) == (1, PLAN, "planner-*", 0)
    assert await rest("PUT", "/schemas/plan", body) == put
    refused = await rest("POST", "/threads/planner-1/checkpoints", {"state": {"tasks": ["a", 1]}}, status=422)
    assert (refused["code"], refused["path"], refused["schema"], refused["written"]) == (
        "schema-violation",
        "/tasks/1",
        "plan",
        "no",
    )
    with pytest.raises(SchemaViolation):
        await space.thread("planner-1").save({})
    batch = {"writes": [{"op": "save", "thread": "planner-1", "state": {}}]}
    assert (await rest("POST", "/batch", batch, status=422))["path"] == ""
    await rest("POST", "/threads/planner-1/checkpoints", {"state": {"tasks": ["a"]}})
    change = await rest("POST", "/threads/planner-1/checkpoints", {"append": {"tasks": [2]}}, status=422)
    assert change["path"] == "/tasks/1"
    assert (await space.thread("planner-1").load()).state == {"tasks": ["a"]}
    assert await cli("schema", "list") == ["plan"]
    (shown,) = await cli("schema", "show", "plan")
    assert shown["schema"] == PLAN


async def test_existing_and_malformed_members_are_refused(space: Space, rest: Rest) -> None:
    await space.schemas.put("plan", 1, PLAN)
    taken = await rest("PUT", "/schemas/plan", {"version": 1, "schema": {}}, status=409)
    assert taken["code"] == "schema-taken"
    with pytest.raises(SchemaTaken):
        await space.schemas.put("plan", 1, {})
    none = await rest("PUT", "/schemas/plan", {"version": 2, "schema": {"$ref": "https://example.com/x"}}, status=400)
    assert none["code"] == "invalid-schema"
    with pytest.raises(InvalidSchema):
        await space.schemas.put("plan", 2, {"pattern": "("})
    assert (await rest("GET", "/schemas/absent", status=404))["code"] == "not-found"
    assert [found["version"] for found in (await rest("GET", "/schemas/plan"))["versions"]] == [1]
    assert (await rest("GET", "/schemas"))["names"] == ["plan"]


async def test_existing_objects_are_listed(space: Space, rest: Rest, tmp_path: Path) -> None:
    saved = await space.thread("planner-1").save({"goals": 1})
    assert await rest("GET", "/threads/planner-1/violations") == {"violations": []}
    await space.schemas.put("plan", 1, PLAN, threads="*")
    (found,) = (await rest("GET", "/threads/planner-1/violations"))["violations"]
    assert (found["checkpoint"], found["branch"], found["schema"], found["path"]) == (saved.id, "main", "plan", "")


async def test_marks_of_a_schema_are_told_over_rest(space: Space, rest: Rest) -> None:
    thread = space.thread("t", schema=Schema("login", version=2, readable_from=1, secret={"/token"}, ephemeral={"scratch"}))
    await thread.save({"token": "hunter2", "scratch": 1})
    found = await rest("GET", "/threads/t/checkpoints/latest")
    assert (found["schema"], found["schema_version"], found["readable_from"], found["secret"]) == ("login", 2, 1, ["/token"])
    assert found["state"] == {"token": "hunter2"}
    body = {"state": {"token": "t"}, "schema": "login", "schema_version": 2, "readable_from": 1, "secret": ["/token"]}
    await rest("POST", "/threads/u/checkpoints", body)
    assert (await space.thread("u").load()).redacted == {"token": "«secret»"}


@pytest.mark.answers("flow-that-exists-twice-drifts")
async def test_a_diff_over_rest_shows_that_a_secret_changed_and_not_how(space: Space, rest: Rest) -> None:
    thread = space.thread("t", schema=Schema("login", secret={"/token"}))
    first = await thread.save({"token": "hunter2"})
    await thread.save({"token": "hunter3"})
    found = await rest("GET", f"/threads/t/diff?from={first.id}")
    assert found["channels"] == {"token": [{"op": "replace", "path": "", "before": "«secret»", "after": "«secret»"}]}
    found = await rest("GET", f"/threads/t/diff?from={first.id}&reveal=true")
    assert found["channels"] == {"token": [{"op": "replace", "path": "", "before": "hunter2", "after": "hunter3"}]}


async def test_a_preview_of_a_merge_over_rest_shows_no_secrets_unless_asked_to(space: Space, rest: Rest) -> None:
    thread = space.thread("t", schema=Schema("login", secret={"/token", "/login/password"}))
    login = {"user": "ana", "password": "hunter1"}
    first = await thread.save({"token": "hunter2", "login": login})
    await thread.branch("other", at=first.id)
    await thread.save({"token": "hunter3", "login": login}, parent=first.id)
    other = await thread.save({"token": "hunter4", "login": login}, branch="other", parent=first.id)
    preview = f"/threads/t/merge?heads={other.id}"
    found = await rest("GET", preview)
    assert found["state"] == {"login": {"user": "ana", "password": "«secret»"}}
    assert found["conflicts"] == {
        "token": {"base": "«secret»", "sides": ["«secret»", "«secret»"], "added": False, "removed": False}
    }
    found = await rest("GET", f"{preview}&reveal=true")
    assert found["state"] == {"login": login}
    assert found["conflicts"] == {
        "token": {"base": "hunter2", "sides": ["hunter3", "hunter4"], "added": False, "removed": False}
    }


async def test_a_preview_hides_what_was_secret_in_the_ancestor_alone(space: Space, rest: Rest) -> None:
    first = await space.thread("t", schema=Schema("login", secret={"/token"})).save({"token": "hunter2"})
    thread = space.thread("t", schema=Schema("login", version=2))
    await thread.branch("other", at=first.id)
    await thread.save({"token": "open"}, parent=first.id)
    other = await thread.save({"token": "also open"}, branch="other", parent=first.id)
    found = await rest("GET", f"/threads/t/merge?heads={other.id}")
    assert found["secret"] == []
    assert found["conflicts"]["token"]["base"] == "«secret»"
