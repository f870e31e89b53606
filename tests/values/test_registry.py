"""Classes travel under the names they were registered with, and no others exist."""

from __future__ import annotations

import dataclasses
import enum
import operator
from typing import Any, NamedTuple

import msgpack  # type: ignore[import-untyped]
import msgspec
import pydantic
import pytest

from shoal import values
from shoal.errors import InvalidValue
from shoal.values import registry


@values.register
@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    tool: str
    arguments: tuple[Any, ...] = ()
    label: str = dataclasses.field(init=False, default="none")


@values.register(name="plan")
@dataclasses.dataclass
class Plan:
    steps: list[Any]


@values.register
class Tags(pydantic.RootModel[list[str]]):
    pass


@values.register
class Packet(msgspec.Struct, frozen=True):
    body: bytes
    hops: int = 0


@values.register
class Colour(enum.IntEnum):
    RED = 1


@values.register
class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str = pydantic.Field(alias="theName")
    colours: list[Colour] = []


@values.register
class Point(NamedTuple):
    x: float
    y: float


class Celsius:
    def __init__(self, degrees: float) -> None:
        self.degrees = degrees

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Celsius) and other.degrees == self.degrees

    def __hash__(self) -> int:
        return hash(self.degrees)


values.register(Celsius, pack=lambda made: made.degrees, unpack=Celsius)


class Unknown:
    pass


@dataclasses.dataclass
class UnknownPlan:
    steps: int


@pytest.mark.parametrize(
    "value",
    [
        Step("search", ("a", 1)),
        Plan([Step("x"), {Step("y"): 1}]),
        Model(theName="n", colours=[Colour.RED], more=[1]),  # type: ignore[call-arg]
        Tags(["a", "b"]),
        Packet(b"x", 3),
        Colour.RED,
        Point(1.0, 2.0),
        Celsius(36.6),
    ],
    ids=lambda value: type(value).__name__,
)
def test_instances_of_registered_classes_survive(value: Any) -> None:
    for again in (values.decode(values.encode([value]))[0], values.from_json(values.to_json([value]))[0]):
        assert type(again) is type(value)
        assert again == value


def test_fields_that_init_does_not_take_are_kept() -> None:
    step = Step("x")
    object.__setattr__(step, "label", "mine")
    assert values.decode(values.encode(step)).label == "mine"


def test_a_path_through_a_registered_object_names_its_field() -> None:
    state = {"plan": Plan([0, 1, 2, UnknownPlan(1)])}
    with pytest.raises(InvalidValue) as caught:
        values.encode(state, where="state")
    name = f"{UnknownPlan.__module__}.UnknownPlan"
    assert f'state["plan"].steps[3] is a {name}, which is not registered' in caught.value.message
    assert f"shoal.values.register({name})." in caught.value.message


def test_the_line_shown_for_a_class_without_fields_asks_for_pack_and_unpack() -> None:
    with pytest.raises(InvalidValue, match=r"Unknown, pack=…, unpack=…\)"):
        values.encode(Unknown())


def test_a_failing_pack_function_is_located() -> None:
    class Broken:
        pass

    values.register(Broken, pack=operator.attrgetter("missing"), unpack=lambda _plain: Broken())
    with pytest.raises(InvalidValue, match=r"state\[1\] is a .*Broken whose pack function failed: AttributeError"):
        values.encode([0, Broken()], where="state")


def object_bytes(name: Any, plain: Any) -> bytes:
    return bytes(msgpack.packb(msgpack.ExtType(1, values.encode([name, plain]))))


def test_an_unregistered_name_is_refused_with_the_line_that_registers_it() -> None:
    with pytest.raises(InvalidValue, match=r"'my\.module\.Plan'.*shoal\.values\.register\(my\.module\.Plan\)"):
        values.decode(object_bytes("my.module.Plan", {}))


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
def test_nothing_is_imported_by_name() -> None:
    for name in ("os.system", "builtins.eval", ["plan"], None):
        with pytest.raises(InvalidValue, match="not registered"):
            values.decode(object_bytes(name, ["true"]))


def test_stored_fields_that_the_class_refuses_raise_invalid_value() -> None:
    for plain in ({"gone": 1}, {}, [1], None, {1: 2}):
        with pytest.raises(InvalidValue, match="still accept their stored forms"):
            values.decode(object_bytes("plan", plain))


def test_a_name_belongs_to_one_class() -> None:
    with pytest.raises(InvalidValue, match="'plan' is registered for"):
        values.register(UnknownPlan, "plan")
    assert values.decode(values.encode(Plan([]))) == Plan([])


def test_registering_a_class_again_changes_nothing() -> None:
    assert values.register(Plan, "plan") is Plan
    assert values.decode(values.encode(Plan([1]))) == Plan([1])


def test_a_further_name_is_read_and_the_first_is_written() -> None:
    before = values.encode(Plan([1]))
    values.register(Plan, "old.module.Plan")
    assert values.decode(object_bytes("old.module.Plan", {"steps": [1]})) == Plan([1])
    assert values.encode(Plan([1])) == before


def test_a_class_without_a_standard_conversion_needs_both_functions() -> None:
    for functions in ({}, {"pack": vars}, {"unpack": Unknown}):
        with pytest.raises(InvalidValue, match="needs both"):
            values.register(Unknown, **functions)


def test_a_subclass_is_not_covered_by_its_base() -> None:
    class Special(Plan):
        pass

    with pytest.raises(InvalidValue, match=r"Special, which is not registered"):
        values.encode(Special([]))


def _versioned(version: int, upgrade: Any = None) -> type:
    cls = dataclasses.make_dataclass("Ticket", [("subject", str), ("priority", int, 0)])
    return values.register(cls, f"ticket-{id(cls)}", version=version, upgrade=upgrade)


def _stored(cls: type, form: Any, *version: int) -> bytes:
    entry = registry.entry_of(cls)
    assert entry is not None
    packed: bytes = msgpack.packb(msgpack.ExtType(1, msgpack.packb([entry.name, form, *version])))
    return packed


def test_an_old_version_is_brought_up_step_by_step() -> None:
    Ticket = _versioned(3, {1: lambda form: {"subject": form["title"]}, 2: lambda form: {**form, "priority": 5}})
    assert values.decode(_stored(Ticket, {"title": "late"})) == Ticket("late", 5)
    assert values.decode(_stored(Ticket, {"subject": "late"}, 2)) == Ticket("late", 5)
    assert values.decode(_stored(Ticket, {"subject": "late", "priority": 1}, 3)) == Ticket("late", 1)


def test_a_version_survives_a_round_trip_as_msgpack_and_as_json() -> None:
    Ticket = _versioned(2, {1: lambda form: {**form, "priority": 9}})
    assert values.decode(values.encode(Ticket("late", 1))) == Ticket("late", 1)
    shown = values.to_json(Ticket("late", 1))
    assert shown["version"] == 2
    assert values.from_json(shown) == Ticket("late", 1)
    del shown["version"]
    assert values.from_json(shown) == Ticket("late", 9)


def test_a_newer_version_is_refused() -> None:
    Ticket = _versioned(2, {1: lambda form: form})
    with pytest.raises(InvalidValue, match=r"holds version 3 .* this process has version 2"):
        values.decode(_stored(Ticket, {}, 3))


def test_a_version_that_nothing_upgrades_is_refused() -> None:
    Ticket = _versioned(3, {2: lambda form: form})
    with pytest.raises(InvalidValue, match=r"holds version 1 .* upgrade=\{1: …\}"):
        values.decode(_stored(Ticket, {}))


@pytest.mark.parametrize(("version", "steps"), [(3, [1]), (3, [1, 3]), (4, [1, 3]), (1, [0]), (0, []), (True, [])])
def test_steps_with_a_gap_are_refused(version: int, steps: list[int]) -> None:
    with pytest.raises(InvalidValue, match="Nothing was registered"):
        _versioned(version, {step: lambda form: form for step in steps})


@pytest.mark.parametrize("name", ["lan", "Step", "test_registry.Step", ["plan"], None])
def test_a_name_that_was_not_registered_leads_nowhere(name: object) -> None:
    with pytest.raises(InvalidValue, match="not registered"):
        registry.entry_named(name)
