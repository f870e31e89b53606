from __future__ import annotations

import pytest

from shoal.errors import DeletedMeanwhile, Disconnected, OutcomeUnknown, StoreCorrupt
from shoal.raising import partly


@pytest.mark.answers("unknown-outcomes-are-told", note="what fails after something was written says so")
def test_an_error_after_a_write_does_not_say_that_nothing_was_written() -> None:
    with pytest.raises(OutcomeUnknown) as raised, partly(2, "2 items are put", "Put them again."):
        raise Disconnected("the link broke. Nothing was written. Try again.", attempts=3)
    assert str(raised.value) == "2 items are put, and the next part failed: the link broke. Try again. Put them again."
    assert raised.value.written == "unknown"
    assert raised.value.detail == {"attempts": 3}


@pytest.mark.parametrize(
    "claim", ["Nothing was written.", "Nothing of it was written;", "Nothing was sent now.", "Nothing was added."]
)
def test_no_wording_of_the_claim_is_left(claim: str) -> None:
    with pytest.raises(OutcomeUnknown) as raised, partly(1, "1 item is put", "Put it again."):
        raise Disconnected(f"the link broke. {claim}")
    assert "othing" not in str(raised.value)


def test_before_anything_is_written_an_error_stays_as_it_is() -> None:
    with pytest.raises(StoreCorrupt, match="Nothing was written"), partly(0, "0 items are put", "Put them again."):
        raise StoreCorrupt("a block is damaged. Nothing was written.")


def test_an_error_that_claims_nothing_false_stays_as_it_is() -> None:
    with pytest.raises(DeletedMeanwhile), partly(1, "1 item is put", "Put it again."):
        raise DeletedMeanwhile("the write is recorded but has no effect.")
