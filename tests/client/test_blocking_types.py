"""What a checker sees of the blocking face: mypy checks this module, and here it runs."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, assert_type

import pytest

import shoal
from shoal import public, sync
from tests import blocking


@pytest.fixture
def space(tmp_path: Path) -> Iterator[sync.Space]:
    with sync.open(tmp_path) as store:
        yield assert_type(store, sync.Store).space("crew")


def test_results_of_awaited_work_are_returned_here(space: sync.Space) -> None:
    thread = assert_type(space.thread("t"), sync.Thread)
    saved = assert_type(thread.save({"turn": 1}), shoal.Checkpoint)
    assert saved.state == {"turn": 1}
    assert assert_type(space.counter("c").add(2), int) == 2
    assert assert_type(thread.step("s", call=lambda: 7), int) == 7


def test_an_asynchronous_iterator_is_an_iterator_here(space: sync.Space) -> None:
    journal = assert_type(space.thread("t").journal, sync.Journal)
    journal.append({"n": 1})
    assert [assert_type(event, shoal.Event).event for event in journal.read()] == [{"n": 1}]
    assert [assert_type(name, str) for name in space.threads()] == ["t"]


def test_a_block_there_is_a_block_here(space: sync.Space) -> None:
    with space.batch() as batch:
        pending = assert_type(batch.counter("c"), sync.BatchCounter).add(3)
    assert pending.reply.value == 3
    with space.document("d") as document:
        assert_type(document, sync.Document).map("m")["k"] = 1


def test_the_names_of_the_handles_can_be_evaluated() -> None:
    def work(thread: sync.Thread, budget: sync.Budget) -> None: ...

    assert set(inspect.get_annotations(work, eval_str=True)) == {"thread", "budget", "return"}
    with pytest.raises(AttributeError, match="no attribute 'Checkpoint'"):
        sync.Checkpoint  # noqa: B018  # type: ignore[attr-defined]


def test_every_proxied_class_has_complete_types() -> None:
    source = blocking.STUB.read_text()
    without_a_proxy = {"Embedding", "Loop"}  # Users make the one, and are never given the other.
    for name in set(public.__all__) - without_a_proxy:
        handle: Any = getattr(public, name)
        if inspect.isclass(handle) and sync.is_handles(handle.__module__) and not sync.is_value(handle):
            found = source.split(f"\nclass {name}", 1)
            assert len(found) == 2, name
            body = found[1].split("\nclass ", 1)[0]
            missing = [
                each for each in dir(handle) if not each.startswith("_") and each not in dir(tuple) and f" {each}" not in body
            ]
            assert not missing, (name, missing)
