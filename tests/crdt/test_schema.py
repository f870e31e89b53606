"""Versions of a replicated schema: put once, the same on every replica, and no rival is lost."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import StoreCorrupt
from shoal.kinds.schema import state as schema
from shoal.kinds.schema.state import Content, Put
from tests.support.causal import Choose, Decide, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

Change = tuple[int, bytes]  # Version and content.


def content(text: str) -> bytes:
    return schema.encode(Content(text.encode()))


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    schema.apply(rows, stamp, Put(change[0], sha256(change[1]).digest()), change[1])


def putter(choose: Choose) -> Decide:
    def decide(_replica: Replica, _all: list[Replica]) -> list[Change]:
        return [(1 + choose(3), content("abc"[choose(3)])) for _ in range(1 + choose(2))]

    return decide


def check(choose: Choose) -> None:
    """What counts under a version is what its least dot put, and all other contents are counted."""
    replica = check_converges(choose, apply, putter(choose))[0]
    puts = [(stamp.dot, stamp.nth, *change) for operation in replica.applied for stamp, change in operation.stamped()]
    for found in schema.versions(replica.rows):
        mine = [put for put in puts if put[2] == found.version]
        least = min(mine)
        assert (found.dot, schema.encode(found.content)) == (least[0], least[3])
        assert found.rivals == len({put[3] for put in mine}) - 1


@examples(80)
@given(st.data())
def test_replicas_agree_on_what_a_version_says(data: st.DataObject) -> None:
    check(chooser(data))


def _last_to_arrive(rows: Rows, stamp: Stamp, put: Put, content: bytes) -> None:
    at = stamp.dot.pack() + stamp.nth.to_bytes(2, "big")
    rows.put(schema._key(put), at + stamp.wall_ms.to_bytes(8, "big") + content)


def test_the_check_finds_a_planted_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema, "apply", _last_to_arrive)
    assert fails_for_some_seed(check)


def test_a_rival_stays_beside_what_counts() -> None:
    rows = DictRows()
    for number, text in ((2, "late"), (1, "first"), (3, "last")):
        apply(rows, Stamp(Dot(origin(1), number), number, 1000 + number, VersionVector()), (1, content(text)))
    (found,) = schema.versions(rows)
    assert (found.content.json, found.wall_ms, found.rivals) == (b"first", 1001, 2)
    assert schema.content_of(rows, Put(1, sha256(content("late")).digest())) == content("late")


def test_a_content_that_is_none_is_reported() -> None:
    with pytest.raises(StoreCorrupt):
        schema.decode(b"\xc1")
