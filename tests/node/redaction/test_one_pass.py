"""One pass tells which patterns a text concerns; what is replaced is what all of them replace, one by one."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.errors import InvalidInput, RedactionRefused
from shoal.kinds.redaction.serving import patterns
from shoal.kinds.redaction.serving.patterns import PASSES_MAX, Engine, Rewriter
from shoal.kinds.redaction.state.rules import Pattern, Rules
from shoal.protocol.requests import Replaced
from tests.node.redaction.test_patterns import KEYS

REGEXES = ("ab", "b+c", r"\bca", "a$", "^c", "(?i)AC", r"a[^-]{0,2}c", r"\Qb.c", "[a-c]{4}", "c.*?a", "(?s)b.*c", r"\d{2}", "é")
REPLACES = ("", "[x]", "-", "a", "bc", "c", " 7")


@cache
def engine(given: tuple[Pattern, ...], credentials: bool, cards: bool) -> Engine | None:
    try:
        return Engine(Rules("crew", credentials, cards, given))
    except InvalidInput:
        return None  # A replacement that a rule matches.


def one_by_one(look: Rewriter, text: bytes, *, of_numbers: bool) -> bytes | None:
    """The slow, obvious twin: every pattern runs over the whole text, in turn, until none of them changes it."""
    chosen = [each for each in look._patterns if each.numbers or not of_numbers]
    made = text
    for _ in range(PASSES_MAX):
        before = made
        if len(made) < look._engine._least:
            break
        for each in chosen:
            made = look._each(each, made, str)
        if made == before:
            break
    else:
        if len(made) >= look._engine._least and any(
            patterns._spans(each, made, patterns._unbounded) for each in look._patterns
        ):
            raise RedactionRefused("it does not end")
    return None if made == text else made


def outcome(look: Rewriter, text: bytes, *, of_numbers: bool, twin: bool) -> tuple[bytes | str | None, list[Replaced]]:
    try:
        if twin:
            made = one_by_one(look, text, of_numbers=of_numbers)
        else:
            made = (look.replaced_number if of_numbers else look.replaced)(text, str)
    except RedactionRefused:
        return "refused", look.report
    return made, look.report


given_patterns = st.lists(
    st.builds(Pattern, st.sampled_from("pqr"), st.sampled_from(REGEXES), st.sampled_from(REPLACES), st.booleans()), max_size=5
)
pieces = st.sampled_from([*KEYS, "ab", "bc", "c", "a", "A", "-", " ", "\n", "4111 1111 1111 1111", "12", "é", "\x00", "b.c"])
written = st.lists(pieces | st.text("abc-", max_size=8), max_size=12).map("".join).map(str.encode) | st.binary(max_size=20)


@given(given_patterns.map(tuple), written, st.booleans(), st.booleans(), st.booleans())
@example((Pattern("p", "ab", "", False), Pattern("q", "bc", "[x]", False)), b"aabbc", False, False, False)
@example((Pattern("p", r"\Qb.c", "", False), Pattern("q", "ab", "[x]", False)), b"aab.cb", False, False, False)
@example((Pattern("p", "ab", "", False),), b"a" * 20 + b"b" * 20, False, False, False)
def test_one_pass_replaces_what_each_pattern_does(
    given: tuple[Pattern, ...], text: bytes, credentials: bool, cards: bool, of_numbers: bool
) -> None:
    made = engine(given, credentials, cards)
    if made is None:
        return
    look, twin = made.rewriter(lambda: 0.0), made.rewriter(lambda: 0.0)
    assert outcome(look, text, of_numbers=of_numbers, twin=False) == outcome(twin, text, of_numbers=of_numbers, twin=True)


def test_only_the_patterns_that_are_found_run() -> None:
    made = Engine(Rules("crew", credentials=True))
    (nth,) = made.concerned(KEYS[0].encode())
    assert made._all[nth].regex.search(KEYS[0].encode()) is not None


class OutOfMemory:
    """An automaton whose memory is used up: RE2's set answers "nothing" then."""

    def Match(self, _text: bytes) -> None:
        return None


def test_a_pass_without_memory_leaves_nothing_out() -> None:
    made = Engine(Rules("crew", credentials=True))
    made.__dict__["_apart"] = OutOfMemory()
    for key in KEYS:
        look, twin = made.rewriter(lambda: 0.0), made.rewriter(lambda: 0.0)
        assert outcome(look, key.encode(), of_numbers=False, twin=False)[0] is not None
        assert outcome(look, key.encode(), of_numbers=False, twin=False)[0] == one_by_one(twin, key.encode(), of_numbers=False)


def test_patterns_that_fit_no_set_run_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patterns, "SET_BYTES_MAX", 1)
    made = Engine(Rules("crew", credentials=True))
    assert made._apart is None
    assert made.rewriter(lambda: 0.0).replaced(KEYS[0].encode(), str) == b"[credentials]"
