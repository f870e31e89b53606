"""Ids become text once, and only what is certainly an id does."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from shoal.errors import InvalidName
from shoal.integrations.contents import escaped, key_of, name_of, tag, text_of, unsafe

PLAIN = unsafe()


class Name(str, Enum):  # noqa: UP042 - frameworks have such.
    DESK = "desk"


class Number(IntEnum):
    SEVEN = 7


@pytest.mark.parametrize(
    ("id", "text"),
    [
        ("a", "a"),
        ("", ""),
        (17, "17"),
        (-1, "-1"),
        (UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Name.DESK, "desk"),
        (Number.SEVEN, "7"),
        (np.int64(7), "7"),
        (np.str_("a"), "a"),
    ],
)
def test_an_id_becomes_text(id: Any, text: str) -> None:
    found = text_of(id)
    assert (found, type(found)) == (text, str)
    assert name_of(id, PLAIN) == name_of(text, PLAIN)
    assert escaped(id, PLAIN) == escaped(text, PLAIN)
    assert tag(id) == tag(text)
    assert key_of(id) == key_of(text)


@pytest.mark.parametrize("id", [None, True, np.bool_(True), 1.0, b"a", ("a",), object()])
def test_doubtful_ids_are_refused(id: Any) -> None:
    with pytest.raises(InvalidName, match=r"the id of a thread must be text, an int or a UUID.*Nothing was written"):
        text_of(id, "the id of a thread")
    for encode in (tag, key_of):
        with pytest.raises(InvalidName):
            encode(id)
