"""The rules of redaction in packed values: what is found, what is replaced, what is refused."""

from __future__ import annotations

import decimal
import itertools
import time
import uuid
from collections import OrderedDict, defaultdict, deque
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.errors import InvalidInput, InvalidValue, RedactionFailed, RedactionRefused
from shoal.kinds.redaction.serving import patterns
from shoal.kinds.redaction.serving.patterns import Engine, Rewriter, check, redacted
from shoal.kinds.redaction.state import packed as texts
from shoal.kinds.redaction.state.rules import PATTERN_BYTES_MAX, Pattern, Rules
from shoal.protocol.requests import Replaced

SECRET = "sk-ant-" + "Zq7" * 12
CARD = "4111 1111 1111 1111"


@cache
def engine(*given: Pattern, credentials: bool = True, cards: bool = True) -> Engine:
    return Engine(Rules("crew", credentials, cards, given))


def rewriter(*given: Pattern, credentials: bool = True, cards: bool = True) -> Rewriter:
    return engine(*given, credentials=credentials, cards=cards).rewriter(lambda: 0.0)


assert engine(cards=False).hits(SECRET.encode())  # Compiled now: an example has its own deadline.


def after(value: Any, *given: Pattern, **which: bool) -> Any:
    return values.decode(redacted(values.encode(value), rewriter(*given, **which), ""))


KEYS = [
    "AKIAIOSFODNN7EXAMPLE",
    "aws_secret_access_key = wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY12",
    "ghp_" + "a1" * 18,
    "github_pat_" + "a1_" * 10,
    "glpat-" + "x" * 20,
    SECRET,
    "sk-proj-" + "aB3_" * 10,
    "AIza" + "Sy" * 17 + "A",
    "xoxb-1234567890-abcdef",
    "https://hooks.slack.com/services/T00000000/B00000000/XXXXXXXX",
    "sk_live_" + "4e" * 10,
    "npm_" + "a1" * 18,
    "pypi-" + "AgEIcHlwaS5vcmc" * 4,
    "hf_" + "aB" * 17,
    "SG." + "a" * 22 + "." + "b" * 43,
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
    "-----BEGIN PRIVATE KEY-----\nMIIEow it was cut off",
    "Authorization: Bearer abcdefgh12345678",
    "postgresql://ada:pa55w0rd@db.example.org",
]


@pytest.mark.parametrize("key", KEYS, ids=lambda key: key[:16])
def test_a_credential_of_each_kind_is_replaced(key: str) -> None:
    shown = after({"text": f"use ({key}) now"}, cards=False)["text"]
    assert "[credentials]" in shown
    assert key[-12:] not in shown.replace("db.example.org", "")
    assert shown.startswith("use (")


@pytest.mark.parametrize(
    "plain", ["risk-management is a task-oriented thing", "https://example.org:8080/a", "sk-short", "AKIA"]
)
def test_other_text_than_credentials_stays(plain: str) -> None:
    assert after(plain) == plain


@pytest.mark.parametrize(
    "card", ["4111111111111111", CARD, "4111-1111-1111-1111", "378282246310005", "5555555555554444", "2223003122003222"]
)
def test_a_card_is_replaced_as_text_and_as_number(card: str) -> None:
    assert after(f"paid with {card}, thanks") == "paid with [card], thanks"
    if card.isdigit():
        assert after([int(card), float(card)]) == ["[card]", "[card]"]


@pytest.mark.parametrize("number", ["4111111111111112", "1796040000000", "1796040000000000000", "411111111111111100000000"])
def test_other_numbers_are_no_cards(number: str) -> None:
    assert after([number, int(number) % 2**64]) == [number, int(number) % 2**64]


def test_a_card_beside_other_digits_is_found() -> None:
    assert after(f"1234 {CARD} 12") == "1234 [card] 12"


WRAPPED = [
    lambda text: text,
    lambda text: [1, {"a": [text]}],
    lambda text: {text: 1},
    lambda text: (text, 2),
    lambda text: {text, "b", "c"},
    lambda text: frozenset({text}),
    lambda text: deque([text], 3),
    lambda text: OrderedDict([("a", text)]),
    lambda text: defaultdict(list, a=[text]),
    lambda text: text.encode(),
    lambda text: [msgspec.json.encode({"inner": text})],
    lambda text: msgspec.msgpack.encode({"deep": [text]}),
    lambda text: [[[[(text, {"x": (text,)})]]]],
    lambda text: "x" * 70_000 + " " + text,
]


@pytest.mark.parametrize("wrap", WRAPPED, ids=itertools.count())
def test_a_secret_is_found_wherever_it_is(wrap: Any) -> None:
    packed = redacted(values.encode(wrap(SECRET)), made := rewriter(), "")
    assert SECRET.encode() not in packed
    assert type(values.decode(packed)) is type(wrap(SECRET))
    assert values.decode(packed) == wrap("[credentials]") or isinstance(wrap(SECRET), bytes)
    assert sum(each.count for each in made.report) >= 1


def test_a_set_stays_a_set_of_sorted_elements() -> None:
    packed = redacted(values.encode({SECRET, "zebra", "ant", "[credentials]"}), rewriter(), "")
    assert packed == values.encode({"[credentials]", "zebra", "ant"})


@pytest.mark.parametrize(
    "value",
    [decimal.Decimal("4111111111111111"), uuid.UUID("12345678-1234-5678-1234-567812345678"), datetime(2026, 1, 2, tzinfo=UTC)],
)
def test_a_number_date_or_id_becomes_text(value: Any) -> None:
    pattern = Pattern("digits", r"\d{16}|12345678-1234|2026-01-02", "[x]")
    shown = after([value], pattern, cards=False)[0]
    assert isinstance(shown, str)
    assert "[x]" in shown


def test_only_rules_for_numbers_look_at_numbers() -> None:
    plain, numbers = Pattern("t", r"\d{9}", "[t]"), Pattern("n", r"\d{9}", "[n]", numbers=True)
    assert after([123456789, "123456789"], plain) == [123456789, "[t]"]
    assert after([123456789, -123456789, 12.5], numbers) == ["[n]", "-[n]", 12.5]


def test_two_keys_that_would_become_one_refuse() -> None:
    with pytest.raises(RedactionRefused, match="would become one"):
        after({SECRET: 1, SECRET + "b": 2})
    with pytest.raises(RedactionRefused, match="would become one"):
        after(OrderedDict([(SECRET, 1), (SECRET + "b", 2)]))


@pytest.mark.parametrize(
    "value",
    [b"\xff\xfe\x00" + SECRET.encode(), SECRET.encode("utf-16"), numpy.array([SECRET]), numpy.array([SECRET.encode()])],
    ids=["bytes", "utf-16", "array of text", "array of bytes"],
)
def test_bytes_that_cannot_be_changed_refuse(value: Any) -> None:
    with pytest.raises(RedactionRefused, match="Nothing was written"):
        after({"a": value})


def test_the_place_of_what_was_replaced_is_told() -> None:
    made = rewriter()
    redacted(values.encode({"messages": [{"a/b": f"{SECRET} {SECRET}"}], SECRET: 1}), made, "/channels/x")
    assert made.report == [
        Replaced("/channels/x/messages/0/a~1b", "credentials", 2),
        Replaced("/channels/x/*", "credentials", 1),
    ]
    assert SECRET not in str(made.report)


def test_a_report_is_bounded() -> None:
    made = rewriter()
    redacted(values.encode([SECRET] * 1000), made, "")
    assert len(made.report) <= patterns.REPORT_MAX + 1
    assert sum(each.count for each in made.report) == 1000


def test_a_replacement_may_not_be_found_itself() -> None:
    with pytest.raises(InvalidInput, match="is itself found"):
        rewriter(Pattern("a", r"\[.*\]", "[a]"))
    with pytest.raises(InvalidInput, match="is itself found"):
        rewriter(Pattern("a", "x", "bb"), Pattern("b", "b", "c"))


def test_a_match_that_replacing_makes_is_replaced() -> None:
    assert after("a-b-c", Pattern("dash", "-", ""), Pattern("abc", "abc", "[x]")) == "[x]"
    assert after("aabb aabb", Pattern("ab", "ab", "")) == " "


def test_rules_that_never_end_refuse() -> None:
    with pytest.raises(RedactionRefused, match="each time"):
        after("a" * 20 + "b" * 20, Pattern("ab", "ab", ""))


HOSTILE = [r"(a+)+$", r"(a|a)*b", r"(.*a){20}x", r"(?:[^z]{1,100}q)+", r"((((a*)*)*)*)b"]


@pytest.mark.parametrize("regex", HOSTILE)
def test_a_hostile_pattern_takes_linear_time(regex: str) -> None:
    """With a backtracking engine some of these never end: the test would not either."""
    engine = Engine(Rules("crew", patterns=(Pattern("p", f"(?:{regex})!", "[p]"),)))
    text = ("a" * 200_000).encode()
    assert engine.rewriter(time.monotonic).replaced(text, lambda: "") is None


@pytest.mark.parametrize(
    "regex", ["(", r"(a)\1", r"(?=a)b", r"(?:x{0,1000}){0,1000}", r"\p{L}{1,900}y", "a*", "", "a" * (PATTERN_BYTES_MAX + 1)]
)
def test_a_pattern_that_cannot_be_kept_is_refused(regex: str) -> None:
    with pytest.raises(InvalidInput, match="pattern 'p'"):
        rewriter(Pattern("p", regex, "[p]"))


@pytest.mark.parametrize(
    "told",
    [
        Rules("crew", patterns=(Pattern("p", "x", ""),) * 33),
        Rules("crew", hooks=("h",) * 5),
        Rules("crew", hooks=("h" * 65,)),
        Rules("crew", hooks=("a\nb",)),
        Rules("crew", patterns=(Pattern("", "x", ""),)),
        Rules("crew", patterns=(Pattern("p", "x", "y" * 257),)),
    ],
)
def test_rules_beyond_their_bounds_are_refused(told: Rules) -> None:
    with pytest.raises(InvalidInput, match=r"Nothing was written|must"):
        check(told)


def test_matches_of_one_write_are_bounded() -> None:
    with pytest.raises(RedactionRefused, match="at most"):
        after("x" * (patterns.MATCHES_MAX + 1), Pattern("x", "x", ""))


def test_time_of_one_write_is_bounded() -> None:
    clock = itertools.count(0, 4)
    made = Engine(Rules("crew", credentials=True)).rewriter(lambda: float(next(clock)))
    with pytest.raises(RedactionFailed, match="more than 10 s"):
        redacted(values.encode([SECRET] * 10), made, "")


@pytest.mark.parametrize("depth", [130, 900])
def test_a_deep_value_refuses_only_with_a_match(depth: int) -> None:
    deep: Any = "fine"
    secret: Any = SECRET
    for _ in range(depth):
        deep, secret = [deep], [secret]
    assert after(deep) == deep
    with pytest.raises(RedactionRefused, match="nests"):
        after(secret)


@pytest.mark.parametrize("packed", [b"", b"\xa5ab", b"\x92\x01", b"\xc1", b"\x01\x01", b"\xdb\xff\xff\xff\xff", b"\xc7\x05"])
def test_bytes_that_are_no_value_are_refused(packed: bytes) -> None:
    with pytest.raises(InvalidValue):
        redacted(packed, rewriter(), "")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner) | st.frozensets(st.text()),
    max_leaves=20,
)


@given(PLAIN)
def test_a_value_without_matches_stays_byte_for_byte(value: Any) -> None:
    packed = values.encode(value)
    assert redacted(packed, rewriter(cards=False), "") == packed
    whole = texts.rewritten(packed, rewriter(cards=False), "")
    assert whole == packed


@given(PLAIN, st.data())
def test_a_secret_beside_anything_is_replaced(value: Any, data: st.DataObject) -> None:
    packed = values.encode([value, {"k": SECRET}, value])
    assert values.decode(redacted(packed, rewriter(cards=False), "")) == [value, {"k": "[credentials]"}, value]


@given(st.binary(max_size=64))
def test_any_bytes_are_looked_at_or_refused(packed: bytes) -> None:
    pattern = Pattern("q", "q", "[x]")
    try:
        made = redacted(packed, rewriter(pattern), "")
    except (InvalidValue, RedactionRefused):
        return
    assert redacted(made, rewriter(pattern), "") == made
