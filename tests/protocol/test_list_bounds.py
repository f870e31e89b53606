"""Each list and dict of a request has a bound, and a longer one is refused before anything is made of its elements."""

from __future__ import annotations

import tracemalloc
import types
from collections.abc import Iterator
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest
from msgspec import Meta, Struct

from shoal.api.yjs.room import YJS_UPDATES_MAX
from shoal.config import MOST_REQUESTED, Config, checked
from shoal.errors import InvalidConfig, ShoalError, TooLarge
from shoal.kinds.document.serving.documents import UPDATE_AUTHORS_MAX
from shoal.kinds.document.serving.opening import ROOTS_MAX
from shoal.kinds.items.serving.indexes import ITEM_INDEXES_MAX
from shoal.kinds.items.serving.items import ITEM_LABELS_MAX, VECTORS_MAX
from shoal.kinds.thread.serving.pruning import PRUNE_IDS_MAX
from shoal.node.reads.reads import MULTI_READS_MAX
from shoal.protocol import frames, requests
from shoal.protocol.base import FILTER_TERMS_MAX, TOGETHER_MAX
from shoal.protocol.conformance import conforming
from shoal.protocol.frames import decode_request, decode_subscription
from shoal.protocol.requests.families import operations

UNIONS = (types.UnionType, Union)


def unbounded(hint: Any, most: int | None = None) -> Iterator[Any]:
    """The containers within a type that have no bound; parts of other requests are theirs."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [mark.max_length for mark in parts[1:] if isinstance(mark, Meta)]
        yield from unbounded(parts[0], *bounds)
    elif origin in (list, dict):
        if most is None:
            yield hint
        for part in parts:
            yield from unbounded(part)
    elif origin is tuple or origin in UNIONS:
        for part in parts:
            yield from unbounded(part)
    elif isinstance(hint, type) and issubclass(hint, Struct):
        yield from (found for field in msgspec.structs.fields(hint) for found in unbounded(field.type))


@pytest.mark.parametrize("kind", operations(), ids=lambda kind: kind.__name__)
def test_each_list_of_a_request_is_bounded(kind: type[Struct]) -> None:
    found = {field.name: list(unbounded(field.type)) for field in msgspec.structs.fields(kind)}
    assert not {name: kinds for name, kinds in found.items() if kinds}, "see shoal.protocol.base"


def test_a_list_without_a_bound_is_found() -> None:
    class Nested(Struct):
        paths: Annotated[list[tuple[list[str], str]], Meta(max_length=3)]
        keys: dict[str, int] | None = None

    assert list(unbounded(Nested)) == [list[str], dict[str, int]]


LONG: list[tuple[requests.Request[Any], str, int]] = [
    (requests.GetItems("s", "n", [([], "k")] * 4097), "paths", 4096),
    (requests.GetItems("s", "n", [(["l"] * 65, "k")]), "paths", 64),
    (requests.PutItem("s", "n", ["l"] * 65, "k", b"\x01"), "rest", 64),
    (requests.SearchItems("s", "n", ["l"] * 65), "rest", 64),
    (requests.Save("s", "t", {}, merged=["0" * 64] * 1025), "merged", 1024),
    (requests.Load("s", "t", channels=["c"] * 16_385), "channels", 16_384),
    (requests.ReadMap("s", "m", keys=["k"] * 100_001), "keys", 100_000),
    (requests.ListThreads("s", filter={str(nth): b"\x01" for nth in range(257)}), "filter", 256),
    (requests.CommonAncestor("s", "t", ["0" * 64] * 257), "checkpoints", 256),
    (requests.RenewLeases([requests.Term("s", "l", True, 1, "0" * 32)] * 4097), "terms", 4096),
    (requests.Batch([requests.Add("s", "c", 1)] * 4097), "writes", 4096),
]
LONG_IDS = [f"{type(request).__name__}.{name}" for request, name, _ in LONG]


@pytest.mark.parametrize(("request_", "name", "most"), LONG, ids=LONG_IDS)
def test_a_longer_list_is_refused_while_decoding(request_: requests.Request[Any], name: str, most: int) -> None:
    with pytest.raises(TooLarge, match=f"at most {most} there. Nothing was written") as caught:
        decode_request(msgspec.msgpack.encode(request_))
    assert caught.value.detail["field"] == name


@pytest.mark.parametrize(("request_", "name", "most"), LONG, ids=LONG_IDS)
def test_a_longer_list_is_not_sent(request_: requests.Request[Any], name: str, most: int) -> None:
    with pytest.raises(TooLarge, match=f"at most {most} there") as caught:
        conforming(request_)
    assert str(caught.value.detail["field"]).startswith(name)


def test_elements_beyond_the_bound_are_not_looked_at() -> None:
    wrong: Any = [object()] * 4097
    with pytest.raises(TooLarge):
        conforming(requests.AlterSet("s", "n", wrong))
    header = msgspec.msgpack.encode(["get-items", "s", "n"])[:-1].replace(b"\x93", b"\x94", 1) + b"n"
    with pytest.raises(TooLarge):  # The header of an array of 2³² - 1 elements, of which none follows.
        decode_request(header + b"\xdd\xff\xff\xff\xff")


def test_a_list_of_as_many_is_taken() -> None:
    for request in (requests.GetItems("s", "n", [(["l"] * 64, "k")] * 4096), requests.Load("s", "t", channels=["c"] * 16_384)):
        assert decode_request(msgspec.msgpack.encode(conforming(request))) == request


def test_a_subscription_of_too_many_kinds_is_refused() -> None:
    with pytest.raises(TooLarge):
        decode_subscription(msgspec.msgpack.encode(requests.Watch("s", kinds=["thread"] * 65)))


def test_no_setting_allows_more_than_requests() -> None:
    bounds: dict[str, tuple[type[Struct], str]] = {
        "batch_writes_max": (requests.Batch, "writes"),
        "channels_max": (requests.Save, "channels"),
        "page_items_max": (requests.AlterSet, "add"),
    }
    declared = {setting: _most(kind, name) for setting, (kind, name) in bounds.items()}
    assert declared == MOST_REQUESTED
    for setting, most in declared.items():
        checked(msgspec.structs.replace(Config(), **{setting: most}))
        with pytest.raises(InvalidConfig, match=f"{setting} must be at most {most}"):
            checked(msgspec.structs.replace(Config(), **{setting: most + 1}))


def test_no_constant_allows_more_than_requests() -> None:
    bounds: list[tuple[int, type[Struct], str]] = [
        (FILTER_TERMS_MAX, requests.History, "filter"),
        (ITEM_INDEXES_MAX, requests.IndexItems, "fields"),
        (ITEM_LABELS_MAX, requests.PutItem, "rest"),
        (MULTI_READS_MAX, requests.MultiRead, "reads"),
        (PRUNE_IDS_MAX, requests.Discard, "checkpoints"),
        (ROOTS_MAX, requests.Update, "roots"),
        (UPDATE_AUTHORS_MAX, requests.Update, "authors"),
        (VECTORS_MAX, requests.PutItem, "vectors"),
        (YJS_UPDATES_MAX, requests.Updates, "updates"),
    ]
    for most, kind, name in bounds:
        assert most <= _most(kind, name), name


def _most(kind: type[Struct], name: str) -> int:
    [hint] = (field.type for field in msgspec.structs.fields(kind) if field.name == name)
    [most] = (mark.max_length for mark in get_args(hint)[1:] if isinstance(mark, Meta))
    assert most is not None
    return most


TOGETHER: list[tuple[requests.Request[Any], str]] = [
    (requests.Batch([requests.AlterSet("s", f"{{t}}{nth}", [b"\x01"] * 1000) for nth in range(17)]), "writes"),
    (requests.Batch([requests.AlterSet("s", "t", [b"\x01"] * 4000, [b"\x02"] * 4000) for _ in range(3)]), "writes"),
    (requests.Batch([requests.Save("s", "t", {f"c{nth}": b"\x01" for nth in range(9000)})] * 2), "writes"),
    (requests.MultiRead([requests.ReadMap("s", "m", keys=["k"] * 1000) for _ in range(17)]), "reads"),
]


@pytest.mark.parametrize(("request_", "name"), TOGETHER)
def test_lists_of_parts_are_bounded_together(
    request_: requests.Request[Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TooLarge, match=f"lists and maps of its {name} have more than {TOGETHER_MAX}"):
        conforming(request_)
    monkeypatch.setattr(frames, "_requests", lambda: pytest.fail("it was decoded"))
    with pytest.raises(TooLarge, match=f"lists and maps of its {name} have more than {TOGETHER_MAX}") as caught:
        decode_request(msgspec.msgpack.encode(request_))
    assert caught.value.detail["field"] == name


def test_parts_of_as_many_are_taken() -> None:
    for request in (
        requests.Batch([requests.AlterSet("s", f"{{t}}{nth}", [b"\x01"] * 1000) for nth in range(16)]),
        requests.Batch([requests.Save("s", "t", {f"c{nth}": b"\x01" for nth in range(TOGETHER_MAX)})]),
        requests.Batch([requests.Assign("s", "r", b"\x01" * 100_000)] * 2),
        requests.MultiRead([requests.ReadMap("s", "m", keys=["k"] * 16_000)]),
    ):
        assert decode_request(msgspec.msgpack.encode(conforming(request))) == request


@pytest.mark.parametrize(
    "tail", [b"", b"\xdd\xff\xff\xff\xff", b"\x01" * 20_000, b"\x91\xdd\xff\xff\xff\xff" + b"\x01" * 20_000]
)
def test_a_count_of_no_request_is_refused(tail: bytes) -> None:
    with pytest.raises(ShoalError):
        decode_request(b"\x92\xa5batch" + tail)
    with pytest.raises(ShoalError):
        decode_request(b"\x92" + b"\xdb\x00\x00\x50\x00" + b"b" * 0x5000 + tail)


MANY_LISTS = b"\xdd" + (300_000).to_bytes(4) + b"\x90" * 300_000


@pytest.mark.parametrize(
    "raw",
    [
        MANY_LISTS,
        b"\x92" + MANY_LISTS + b"\x01",  # The tag itself.
        b"\xdd" + (300_002).to_bytes(4) + b"\xa4ping" + b"\x90" * 300_001,
        b"\x92\xa5batch\x91" + MANY_LISTS,
    ],
    ids=["request", "tag", "fields", "part"],
)
def test_fields_of_no_request_become_no_objects(raw: bytes) -> None:
    tracemalloc.start()
    with pytest.raises(ShoalError):
        decode_request(raw)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100_000


def test_a_list_that_is_too_long_is_refused_before_it_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = msgspec.msgpack.encode(requests.GetItems("s", "n", [([], "k")] * 10_000))
    monkeypatch.setattr(frames, "_requests", lambda: pytest.fail("it was decoded"))
    with pytest.raises(TooLarge, match="paths has too many elements"):
        decode_request(packed)
