"""Equal values have one spelling, whoever packed them."""

from __future__ import annotations

from typing import Any

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal import values
from shoal.errors import InvalidValue
from tests.support.samples import anything


@given(anything)
def test_a_value_keeps_its_meaning(value: Any) -> None:
    packed = values.encode(value)
    spelled = values.canonical(packed)
    assert values.canonical(spelled) == spelled
    assert repr(values.canonical(values.encode(values.decode(spelled)))) == repr(spelled)


@given(
    st.dictionaries(st.text(max_size=3), st.dictionaries(st.integers(), st.integers(), max_size=3), max_size=4), st.randoms()
)
def test_the_order_in_which_a_map_was_filled_does_not_count(value: dict[str, Any], random: Any) -> None:
    shuffled = list(value.items())
    random.shuffle(shuffled)
    other = {key: dict(reversed(list(inner.items()))) for key, inner in shuffled}
    for wrap in (lambda plain: plain, lambda plain: (1, plain), lambda plain: [plain, (plain,)]):
        assert values.canonical(values.encode(wrap(value))) == values.canonical(values.encode(wrap(other)))


@pytest.mark.parametrize(
    ("packed", "shortest"),
    [(b"\xcd\x00\x05", b"\x05"), (b"\xdc\x00\x01\xd1\xff\xff", b"\x91\xff"), (b"\xdb\x00\x00\x00\x01a", b"\xa1a")],
)
def test_numbers_and_lengths_have_the_shortest_form(packed: bytes, shortest: bytes) -> None:
    assert values.canonical(packed) == shortest


def test_a_set_that_another_client_packed_is_sorted() -> None:
    foreign = msgpack.packb(msgpack.ExtType(3, msgpack.packb([3, 1, 2])))
    assert values.canonical(foreign) == values.canonical(values.encode({1, 2, 3}))


def test_values_of_different_types_stay_apart() -> None:
    different = [1, 1.0, True, "1", b"1", (1,), [1]]
    assert len({values.canonical(values.encode(value)) for value in different}) == len(different)


def test_an_unknown_extension_stays_as_it_is() -> None:
    packed = bytes(msgpack.packb(msgpack.ExtType(99, b"\xc1 no msgpack")))
    assert values.canonical(packed) == packed


def test_text_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(InvalidValue, match="Nothing was written"):
        values.canonical(b"\xa1\xff")
