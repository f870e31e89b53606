"""No byte string makes decoding import, compile, open or run anything: proved under the interpreter's audit hooks."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack  # type: ignore[import-untyped]
import numpy
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.errors import InvalidValue, ShoalError
from shoal.values import registry
from tests.support.audited import audited
from tests.support.examples import examples

calls: list[str] = []


@values.register(name="inert-step", version=2, upgrade={1: lambda fields: {**fields, "retries": 0}})
@dataclasses.dataclass
class Step:
    tool: str
    retries: int = 0

    def __post_init__(self) -> None:
        calls.append("Step")


class Unregistered:
    def __init__(self, *_: object) -> None:
        calls.append("Unregistered")


@values.register(name="inert-colour")
class Colour(Enum):
    RED = "red"


@values.register(name="inert-note")
class Note(pydantic.BaseModel):
    text: str


CORPUS = [
    values.encode(value)
    for value in (
        {"a": [1, -1, 2**70, 1.5, None, True, "text", b"bytes"]},
        (1, (2, {3}), frozenset({4})),
        [datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=ZoneInfo("Europe/Paris")), date(2026, 1, 2)],
        [timedelta(1), Decimal("1.50"), UUID(int=7), complex(1, 2)],
        [numpy.arange(6.0).reshape(2, 3), numpy.float32(1.5)],
        [Step("search"), Colour.RED, Note(text="hello")],
    )
]


def _object(name: object, form: object = None, *more: object) -> bytes:
    inner = msgpack.packb([name, form, *more])
    packed: bytes = msgpack.packb(msgpack.ExtType(1, inner))
    return packed


HOSTILE = [
    *(_object(name, ["id"]) for name in ("os.system", "builtins.eval", "subprocess.Popen", "posix.system", "__import__", "")),
    _object(f"{__name__}.Unregistered", {}),
    _object("inert-step", {"tool": "x"}, "2"),
    _object("inert-step", {"tool": "x"}, 99),
    _object("inert-step", {"tool": "x"}, 0),
    _object(["inert-step"], {}),
    _object({"a": 1}, {}),
    pickle.dumps(print),
    b"cos\nsystem\n(S'id'\ntR.",  # Another.
    *(bytes(msgpack.packb(msgpack.ExtType(code, b"\xc0"))) for code in range(128)),
    *(bytes(msgpack.packb(msgpack.ExtType(13, msgpack.packb([text, [1], b"x"])))) for text in ("O", "|O8", "os", ",,", "V8")),
    *(
        bytes(msgpack.packb(msgpack.ExtType(7, msgpack.packb(f"2026-01-01T00:00:00+00:00[{zone}]"))))
        for zone in ("/etc/passwd", "../x")
    ),
    b"\xdd\xff\xff\xff\xff",
    b"\xc9\x00\x00\x00\x02\x01\xc0\xc0",
]


def _decoded(packed: bytes) -> list[str]:
    """What decoding did that it must not; whatever it raises must be Shoal's own."""
    with audited() as seen:
        with suppress(ShoalError):
            values.decode(packed)
        with suppress(ShoalError):
            values.check(packed)
    return seen


@pytest.fixture(autouse=True, scope="module")
def _warm() -> None:
    # Zones are files of the system's, read by zoneinfo once and by their checked names; and numpy imports parts of itself late.
    for packed in CORPUS:
        values.decode(packed)


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
@pytest.mark.parametrize("packed", [*CORPUS, *HOSTILE])
def test_no_known_trick_makes_decoding_act(packed: bytes) -> None:
    assert [event for event in _decoded(packed) if not _is_zone(event)] == []


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
@examples(400)
@given(st.binary(max_size=200))
def test_no_bytes_make_decoding_act(packed: bytes) -> None:
    assert [event for event in _decoded(packed) if not _is_zone(event)] == []


@examples(600)
@given(st.sampled_from(CORPUS), st.data())
def test_no_mutation_of_a_value_makes_decoding_act(packed: bytes, data: st.DataObject) -> None:
    changed = bytearray(packed)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed) - 1))
        match data.draw(st.sampled_from(["set", "drop", "insert"])):
            case "set":
                changed[place] = data.draw(st.integers(0, 255))
            case "drop" if len(changed) > 1:
                del changed[place]
            case _:
                changed.insert(place, data.draw(st.integers(0, 255)))
    assert [event for event in _decoded(bytes(changed)) if not _is_zone(event)] == []


def _is_zone(event: str) -> bool:
    """A time zone's name leads zoneinfo to the system's own table of zones, and to no file outside it."""
    return event.startswith("open ") and "zoneinfo" in event and ".." not in event


def test_the_hook_would_see_an_import_and_a_call() -> None:
    with audited() as seen:
        eval("1 + 1")
        with open(__file__, "rb"):
            pass
    assert any(event.startswith("compile") for event in seen)
    assert any(event.startswith("open") for event in seen)


def test_only_registered_callables_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def watched(name: str, unpack: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def run(form: Any) -> Any:
            ran.append(name)
            return unpack(form)

        return run

    for name, entry in list(registry._by_name.items()):
        monkeypatch.setitem(registry._by_name, name, entry._replace(unpack=watched(name, entry.unpack)))
    calls.clear()
    for packed in [*CORPUS, *HOSTILE]:
        _decoded(packed)
    assert set(ran) == {"inert-step", "inert-colour", "inert-note"}
    assert set(calls) == {"Step"}


def test_an_unknown_class_names_the_line_that_registers_it() -> None:
    with pytest.raises(InvalidValue, match=r"shoal\.values\.register\(crew\.models\.Plan\)"):
        values.decode(_object("crew.models.Plan", {}))
    with pytest.raises(InvalidValue, match=r"state\.a\[0\] is a .*Unregistered.*shoal\.values\.register\(.*Unregistered"):
        values.encode([Unregistered()], where="state.a")


def test_a_cycle_is_refused_with_its_path() -> None:
    loop: dict[str, Any] = {"plan": [1, {}]}
    loop["plan"][1]["back"] = loop["plan"]
    with pytest.raises(InvalidValue, match=r'state\["plan"\]\[1\]\["back"\].*cycle'):
        values.encode(loop, where="state")


def test_values_nested_too_deep_are_refused() -> None:
    deep: list[Any] = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(InvalidValue, match="nested more than 1024 deep"):
        values.encode(deep)
