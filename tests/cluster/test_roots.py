"""A snapshot is believed if enough of the other owners have the same rows."""

from __future__ import annotations

from shoal.cluster.comparing import Word, is_believed

OWNERS = (b"b", b"c", b"d", b"e")  # The other owners of five.


def believed(
    words: dict[bytes, Word], *, learners: bytes = b"", learns: bool = False, reached: tuple[bytes, ...] = OWNERS
) -> bool:
    """Whether what b sends is believed, by one of five owners."""
    found = [bytes([each]) for each in learners]
    return is_believed(b"b", words, owners=reached, learners=found, needed=3, everyone=len(OWNERS), learns=learns)


def test_more_than_half_of_the_others_are_needed() -> None:
    assert not believed({b"c": Word.SAME})
    assert believed({b"c": Word.SAME, b"d": Word.SAME})
    assert not believed({b"c": Word.SAME, b"x": Word.SAME})  # No owner.


def test_a_learner_counts_in_no_majority() -> None:
    assert not believed({b"c": Word.SAME, b"d": Word.SAME}, learners=b"d")


def test_the_only_other_owner_is_believed() -> None:
    assert is_believed(b"b", {}, owners=[b"b"], learners=[], needed=1, everyone=1, learns=False)


def test_a_learner_believes_what_no_owner_contradicts() -> None:
    words = {b"c": Word.ELSEWHERE, b"d": Word.ELSEWHERE, b"e": Word.ELSEWHERE}
    assert believed(words, learners=b"cde", learns=True)
    assert not believed(words, learners=b"cde", learns=False)
    assert not believed(words, learners=b"cd", learns=True)  # e stands for what it holds.
    assert not believed(words, learners=b"cde", learns=True, reached=OWNERS[:3])


def test_one_contradiction_leaves_only_a_majority() -> None:
    words = {b"c": Word.OTHER, b"d": Word.ELSEWHERE, b"e": Word.ELSEWHERE}
    assert not believed(words, learners=b"cde", learns=True)
    assert believed({b"c": Word.OTHER, b"d": Word.SAME, b"e": Word.SAME}, learns=True)
