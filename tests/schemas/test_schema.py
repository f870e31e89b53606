"""What a declared schema checks, migrates and refuses, by itself."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from shoal import Schema
from shoal.errors import (
    InvalidInput,
    InvalidName,
    InvalidSchema,
    MigrationFailed,
    SchemaMismatch,
    SchemaTooNew,
    SchemaViolation,
)
from shoal.schemas.schema import carried, plain


class Task(msgspec.Struct):
    title: str
    done: bool = False
    due: datetime | None = None


class Plan(msgspec.Struct):
    tasks: list[Task]
    budget: Annotated[int, msgspec.Meta(ge=0)] = 0
    notes: dict[str, str] = {}


class TaskModel(pydantic.BaseModel):
    title: str
    done: bool = False


class PlanModel(pydantic.BaseModel):
    tasks: list[TaskModel]
    budget: Annotated[int, pydantic.Field(ge=0)] = 0


JSON: dict[str, Any] = {
    "type": "object",
    "required": ["tasks"],
    "properties": {
        "tasks": {
            "type": "array",
            "items": {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]},
        },
        "budget": {"type": "integer", "minimum": 0},
    },
}


@pytest.mark.parametrize("model", [Plan, PlanModel, JSON])
@pytest.mark.parametrize(
    ("state", "path"),
    [
        ({"tasks": [{"title": "a"}, {"title": 1}]}, "/tasks/1/title"),
        ({"tasks": [], "budget": -1}, "/budget"),
        ({"tasks": "none"}, "/tasks"),
    ],
)
def test_a_flaw_names_the_path_of_the_field(model: Any, state: dict[str, Any], path: str) -> None:
    schema = Schema("plan", version=2, model=model)
    with pytest.raises(SchemaViolation, match="Nothing was written") as refused:
        schema.check(state)
    assert refused.value.detail == {"path": path, "schema": "plan", "version": 2}


@pytest.mark.parametrize("model", [Plan, PlanModel, JSON])
def test_a_state_that_is_as_declared_passes_with_fields_that_the_model_does_not_know(model: Any) -> None:
    Schema("plan", model=model).check({"tasks": [{"title": "a", "owner": "x"}], "more": 1})


def test_values_that_are_no_json_pass_as_their_own_types() -> None:
    Schema("plan", model=Plan).check({"tasks": [{"title": "a", "due": datetime(2026, 1, 1, tzinfo=UTC)}]})


def test_a_key_of_a_dict_is_a_star_where_the_model_does_not_tell_it() -> None:
    flaw = Schema("plan", model=Plan).flaw({"tasks": [], "notes": {"a": 1}})
    assert flaw is not None
    assert flaw.path == "/notes/*"


def no_debt(state: dict[str, Any]) -> str | None:
    return f"budget is {state['budget']}" if state["budget"] < 0 else None


def is_small(state: dict[str, Any]) -> bool:
    return bool(state["budget"] < 100)


def test_invariants_say_what_is_broken_by_text_false_or_an_exception() -> None:
    schema = Schema("plan", invariants=[no_debt, is_small])
    assert schema.flaw({"budget": 5}) is None
    for state, why in (({"budget": -1}, "no_debt.*budget is -1"), ({"budget": 500}, "is_small"), ({}, "no_debt.*budget")):
        with pytest.raises(SchemaViolation, match=why):
            schema.check(state)


def test_of_a_secret_field_nothing_is_told() -> None:
    class Login(pydantic.BaseModel):
        token: str

        @pydantic.field_validator("token")
        @classmethod
        def _check(cls, token: str) -> str:
            raise ValueError(f"{token} is no token")

    open_, hidden = Schema("login", model=Login), Schema("login", model=Login, secret={"/token"})
    told, kept = open_.flaw({"token": "hunter2"}), hidden.flaw({"token": "hunter2"})
    assert told is not None
    assert kept is not None
    assert "hunter2" in told.why
    assert "hunter2" not in kept.why
    assert kept.path == "/token"


# ── migrations ────────────────────────────────────────────────────────────────


def rename(state: dict[str, Any]) -> dict[str, Any]:
    return {"tasks": state["todo"]}


def to_objects(state: dict[str, Any]) -> dict[str, Any]:
    return {"tasks": [{"title": title} for title in state["tasks"]]}


def plan(**options: Any) -> Schema:
    return Schema("plan", version=3, model=Plan, **{"migrations": {1: rename, 2: to_objects}, **options})


def test_an_old_state_is_brought_up_step_by_step() -> None:
    assert plan().migrated("plan", 1, {"todo": ["a"]}) == {"tasks": [{"title": "a"}]}
    assert plan().migrated("plan", 2, {"tasks": ["a"]}) == {"tasks": [{"title": "a"}]}


def test_a_state_from_before_the_schema_has_version_0() -> None:
    schema = plan(migrations={0: lambda state: {"todo": state["list"]}, 1: rename, 2: to_objects})
    assert schema.migrated("", 0, {"list": ["a"]}) == {"tasks": [{"title": "a"}]}
    assert not schema.is_current("", 0)
    assert plan().is_current("", 0)


@pytest.mark.parametrize(
    ("migrations", "why"),
    [
        ([(1, rename), (2, to_objects), (1, rename)], "two migrations for version 1"),
        ({1: rename}, "one for each version"),
        ({0: rename, 2: to_objects}, "one for each version"),
        ({2: to_objects, 3: rename}, "one for each version"),
        ({1: "rename", 2: to_objects}, "not a function"),
    ],
)
def test_migrations_that_leave_a_gap_or_are_two_for_one_version_are_refused(migrations: Any, why: str) -> None:
    with pytest.raises(InvalidSchema, match=why):
        plan(migrations=migrations)


def _fails(_state: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("gone")


@pytest.mark.parametrize(
    ("migrations", "version", "why"),
    [
        ({2: to_objects}, 1, "no migration .* from version 1 to 2"),
        ({1: _fails, 2: to_objects}, 1, "from version 1 to 2 failed: KeyError"),
        ({1: rename, 2: lambda state: None}, 2, "from version 2 to 3 failed: it returned NoneType"),
        ({1: rename, 2: lambda state: {1: 2}}, 2, "not a dict of channels"),
        ({1: rename, 2: lambda state: {"tasks": 7}}, 2, "breaks the schema at /tasks"),
    ],
)
def test_a_migration_that_is_missing_or_fails_is_reported_with_its_version(migrations: Any, version: int, why: str) -> None:
    with pytest.raises(MigrationFailed, match=why) as failed:
        plan(migrations=migrations).migrated("plan", version, {"todo": ["a"], "tasks": ["a"]})
    assert failed.value.detail["version"] == version


# ── versions ──────────────────────────────────────────────────────────────────


def test_a_newer_state_is_read_where_it_says_so() -> None:
    schema = Schema("plan", version=2)
    schema.can_read("plan", 3, 2)
    schema.can_read("plan", 9, 1)
    schema.can_read("plan", 1, 1)
    schema.can_read("", 0, 0)
    for version, readable_from in ((3, 3), (3, 0), (9, 4)):
        with pytest.raises(SchemaTooNew, match="Nothing is lost") as refused:
            schema.can_read("plan", version, readable_from)
        assert refused.value.detail["readable_from"] == (readable_from or version)


def test_a_state_of_another_schema_is_not_read_as_this_one() -> None:
    with pytest.raises(SchemaMismatch, match="'other'"):
        Schema("plan").can_read("other", 1, 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Schema("plan", version=0),
        lambda: Schema("plan", version=True),
        lambda: Schema("plan", version=2, readable_from=3),
        lambda: Schema("plan", readable_from=0),
        lambda: Schema("plan", model=int),
        lambda: Schema("plan", model={"type": "nonsense"}),
        lambda: Schema("plan", model={"$ref": "https://example.com/x"}),
        lambda: Schema("plan", model={"enum": [object()]}),
        lambda: Schema("plan", ephemeral="scratch"),
        lambda: Schema("plan", secret=[f"f{n}" for n in range(300)]),
    ],
)
def test_a_declaration_that_is_none_is_refused(make: Callable[[], Schema]) -> None:
    with pytest.raises(InvalidSchema):
        make()


def test_names_and_pointers_are_checked() -> None:
    with pytest.raises(InvalidName):
        Schema("")
    with pytest.raises(InvalidInput):
        Schema("plan", secret=[""])


# ── what a reader does not know ───────────────────────────────────────────────

NEWER = {
    "tasks": [{"title": "a", "done": False, "owner": "x"}, {"title": "b", "done": False, "owner": "y"}],
    "budget": 1,
    "deadline": "friday",
}


@pytest.mark.parametrize("model", [Plan, PlanModel])
def test_unknown_fields_survive_at_every_level(model: Any) -> None:
    schema = Schema("plan", model=model)
    made = schema.parse(NEWER)
    made.budget = 2
    made.tasks[1].done = True
    state, from_model = schema.plain(made)
    assert from_model
    kept = schema.carried(NEWER, state)
    assert kept["deadline"] == "friday"
    assert [task["owner"] for task in kept["tasks"]] == ["x", "y"]
    assert (kept["budget"], kept["tasks"][1]["done"]) == (2, True)


def test_items_keep_their_own_fields_when_others_come_and_go() -> None:
    schema = Schema("plan", model=PlanModel)
    made = schema.parse(NEWER)
    made.tasks = [TaskModel(title="new"), made.tasks[1], made.tasks[0]]
    kept = schema.carried(NEWER, schema.plain(made)[0])
    assert [task.get("owner") for task in kept["tasks"]] == [None, "y", "x"]


def test_items_are_known_by_their_id() -> None:
    old = [{"id": 1, "v": 0, "extra": "one"}, {"id": 2, "v": 0, "extra": "two"}]
    known = [{"id": 1, "v": 0}, {"id": 2, "v": 0}]
    assert carried(old, known, [{"id": 2, "v": 9}]) == [{"id": 2, "v": 9, "extra": "two"}]


def test_removed_fields_stay_out() -> None:
    assert carried({"a": 1, "b": 2, "new": 3}, {"a": 1, "b": 2}, {"a": 1}) == {"a": 1, "new": 3}


def test_an_instance_becomes_dicts_with_its_values_as_they_are() -> None:
    due = datetime(2026, 1, 1, tzinfo=UTC)
    assert plain(Plan([Task("a", due=due)])) == {"tasks": [{"title": "a", "done": False, "due": due}], "budget": 0, "notes": {}}
