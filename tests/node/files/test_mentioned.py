"""References to files are looked for in every field of a request that may hold bytes."""

from __future__ import annotations

from msgspec import structs

from shoal.kinds.label.state import Note
from shoal.protocol import requests
from shoal.protocol.base import declared
from shoal.values.registry import MARK, _bearing, mentioned_in

HASH = b"h" * 32


def test_no_field_that_may_hold_bytes_is_left_out() -> None:
    for kind in declared():
        for field in structs.fields(kind):
            if field.name not in _bearing(kind):
                told = repr(field.type)
                assert "bytes" not in told, f"{kind.__name__}.{field.name}"
                assert "Any" not in told, f"{kind.__name__}.{field.name}"


def test_references_are_found_in_all_parts_of_writes() -> None:
    mark = b"\xc4" + MARK + HASH
    assert mentioned_in(requests.Save("s", "t", {"a": mark})) == {HASH}
    assert mentioned_in(requests.Save("s", "t", {}, metadata=mark)) == {HASH}
    assert mentioned_in(requests.Save("s", "t", {}, appended={"a": mark})) == {HASH}
    assert mentioned_in(requests.Append("s", "t", mark)) == {HASH}
    assert mentioned_in(requests.Annotate("s", "t", "l", [Note(b"n", mark)])) == {HASH}
    assert mentioned_in(requests.Batch([requests.Append("s", "t", mark)])) == {HASH}
    assert mentioned_in(requests.Save("s", "t", {"a": b"\x01"}, label=MARK.decode("latin-1"))) == set()
