"""Names are checked once, at the edge; what passes is safe in keys, headers and logs."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.errors import InvalidName
from shoal.names import KEY_BYTES_MAX, NAME_BYTES_MAX, check_key, check_name


@pytest.mark.parametrize("name", ["a", "{crew-7}/planner", "a/b", "...", "名前", "with space", "%2e", "x" * NAME_BYTES_MAX])
def test_a_legal_name_is_returned_as_it_is(name: str) -> None:
    assert check_name("thread", name) == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "must not be empty"),
        (".", "HTTP clients rewrite it"),
        ("..", "HTTP clients rewrite it"),
        ("a\nb", "control characters"),
        ("a\x00", "control characters"),
        ("\x7f", "control characters"),
        ("\x85", "control characters"),
        ("\ud800", "lone surrogate"),
        ("x" * (NAME_BYTES_MAX + 1), "at most 1024 bytes; this one has 1025"),
        ("é" * 513, "at most 1024 bytes; this one has 1026"),
        (b"bytes", "must be a string, not bytes"),
        (None, "must be a string, not NoneType"),
    ],
    ids=lambda part: repr(part)[:20],
)
def test_an_illegal_name_is_refused_and_the_error_says_why(name: object, reason: str) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name("thread", name)
    assert reason in caught.value.message
    assert caught.value.message.startswith("a thread name")
    assert caught.value.message.endswith("Nothing was written.")


def test_a_key_has_at_most_255_bytes() -> None:
    assert check_key("idempotency key", "k" * KEY_BYTES_MAX)
    with pytest.raises(InvalidName, match="at most 255 bytes; this one has 256"):
        check_key("idempotency key", "k" * (KEY_BYTES_MAX + 1))


@given(st.text())
def test_a_name_is_legal_exactly_when_its_rules_say_so(name: str) -> None:
    categories = {unicodedata.category(character) for character in name}
    legal = (
        name not in ("", ".", "..")
        and not categories & {"Cc", "Cs"}
        and len(name.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX
    )
    try:
        assert check_name("space", name) == name
    except InvalidName:
        assert not legal
    else:
        assert legal


@pytest.mark.answers("injection-through-an-id")
@pytest.mark.parametrize("code", [*range(0x20), 0x7F, *range(0x80, 0xA0)])
def test_every_control_character_is_refused(code: int) -> None:
    assert unicodedata.category(chr(code)) == "Cc"
    with pytest.raises(InvalidName, match="control characters"):
        check_name("space", f"a{chr(code)}b")
