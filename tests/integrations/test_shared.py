"""What all integrations share: names of ids, JSON as values, pieces of batches, and calls from other threads."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shoal
from shoal.cluster.operation import partition_of
from shoal.config import Config
from shoal.errors import InvalidInput, InvalidValue, SchemaTooNew
from shoal.integrations import base as in_space
from shoal.integrations import contents
from shoal.integrations.base import Bridge, pieces
from shoal.integrations.contents import id_of, key_of, name_of, tag, unsafe
from shoal.names import check_name

IDS = st.text(st.characters() | st.sampled_from("%./{}\x00\ud800"), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | IDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(IDS, inner, max_size=3),
    max_leaves=8,
)


@given(IDS)
def test_a_name_is_legal_and_gives_its_id_back(id: str) -> None:
    name = name_of(id, unsafe("/"))
    assert check_name("thread", name) == name
    assert id_of(name) == id


def test_a_long_id_is_never_cut_and_a_long_key_is_its_hash() -> None:
    one, other = "x" * 2000 + "1", "x" * 2000 + "2"
    assert name_of(one, unsafe()) == one
    assert key_of(one) != key_of(other)
    assert len(key_of(one)) == 64


@given(IDS)
def test_names_with_the_tag_of_one_id_share_a_partition(id: str) -> None:
    one, other = (partition_of("crew", f"{tag(id)}/{end}") for end in "ab")
    assert one == other


@given(JSON)
def test_read_json_is_the_json_that_was_written(given: Any) -> None:
    assert contents.shown(contents.stored(given, "it")) == json.loads(json.dumps(given))


def test_json_is_stored_as_a_value_if_it_can_be_one() -> None:
    assert contents.stored({"a": [1, None]}, "it") == {"a": [1, None]}
    assert contents.stored({"a": "\ud800"}, "it") == json.dumps({"a": "\ud800"})
    with pytest.raises(InvalidValue, match="it is no JSON"):
        contents.stored(object(), "it")


def test_a_record_of_a_newer_form_is_refused() -> None:
    assert contents.of_form({"mine": 1, "a": 2}, "mine", 1) == {"mine": 1, "a": 2}
    assert contents.of_form({"theirs": 1}, "mine", 1) is None
    with pytest.raises(SchemaTooNew):
        contents.of_form({"mine": 2}, "mine", 1)


def test_a_piece_has_no_more_writes_and_bytes_than_fit() -> None:
    config = Config(batch_writes_max=3, request_bytes_max=200)
    assert list(pieces(range(7), lambda _: 1, config, beside=1)) == [[0, 1], [2, 3], [4, 5], [6]]
    assert list(pieces([60, 40, 1, 500, 2], int, config)) == [[60, 40], [1], [500], [2]]


async def test_a_call_runs_on_the_loop_of_its_bridge() -> None:
    bridge = Bridge()

    async def where() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert await bridge.awaited(where) is bridge.loop
    assert await asyncio.to_thread(bridge.blocking, where) is bridge.loop
    assert await asyncio.to_thread(lambda: asyncio.run(bridge.awaited(where))) is bridge.loop
    with pytest.raises(InvalidInput, match="wait for itself"):
        bridge.check_elsewhere()


@pytest.mark.parametrize(("durability", "times"), [("local", 0), ("quorum", 1)])
async def test_with_a_quorum_a_read_catches_up_first(
    durability: Literal["local", "quorum"], times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []

    async def catch_up(_: object, space: str, name: str) -> None:
        asked.append((space, name))

    monkeypatch.setattr(in_space, "catch_up", catch_up)
    async with shoal.open(tmp_path / "state", durability=durability) as store:
        await in_space.InSpace(store, space="crew")._caught_up("runs")
    assert asked == [("crew", "runs")] * times
