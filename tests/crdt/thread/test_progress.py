"""Places: replicas agree on the greatest of the greatest generation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.kinds.journal.state import readers
from shoal.kinds.journal.state.readers import LoopProgress, Reach
from tests.support.causal import Choose, Replica, check_converges
from tests.support.examples import examples
from tests.support.samples import chooser, fails_for_some_seed


def check(choose: Choose) -> None:
    def decide(_replica: Replica, _all: list[Replica]) -> list[Reach]:
        return [Reach("ab"[choose(2)], choose(3), choose(4))]

    replica = check_converges(choose, readers.apply_progress, decide)[0]
    made = [change for operation in replica.applied for change in operation.changes]
    for key in "ab":
        expected = max(
            (LoopProgress(change.generation, change.place) for change in made if change.key == key), default=LoopProgress()
        )
        assert readers.find_progress(replica.rows, key) == expected


@examples(60)
@given(st.data())
def test_replicas_agree_in_any_order_packet_and_repetition(data: st.DataObject) -> None:
    check(chooser(data))


def test_the_check_finds_that_the_last_to_arrive_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "find_progress", lambda _rows, _key: LoopProgress(-1))
    assert fails_for_some_seed(check)
