"""Erasures of events: which values are shown is a function of the set of operations, and what was erased does not come back."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.crdt.dot import Dot, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.kinds.journal.state import events, journal, trimming
from shoal.kinds.journal.state.events import ERASED, EVENT, Event
from shoal.kinds.journal.state.journal import Append, Erase
from shoal.kinds.journal.state.trimming import Retain, Trim
from tests.crdt.thread import test_trimming
from tests.crdt.thread.test_trimming import appends, everything, trimmed
from tests.support.causal import Choose, Decide, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

Change = tuple[Append, bytes] | Trim | Retain | Erase


def apply(rows: Rows, stamp: Stamp, change: Change) -> None:
    if isinstance(change, Erase):
        journal.apply_erase(rows, stamp, change)
    else:
        test_trimming.apply(rows, stamp, change)


def deciding(choose: Choose) -> Decide:
    def decide(replica: Replica, _everyone: list[Replica]) -> list[Change]:
        positions = [row[1:] for row, _ in replica.rows.scan(EVENT)] + [each.position for each in events.losers(replica.rows)]
        if positions and choose(3) == 0:
            change = journal.erasure(replica.rows, positions[choose(len(positions))])
            return [] if change is None else [change]
        if choose(5) == 0:
            cut = trimming.cut(replica.rows, replica.vector, everything, events_max=1 + choose(3))
            return [Trim(cut.ends)] if cut.ends else []
        if choose(8) == 0:
            return [Retain(events=1 + choose(3))]
        payload = bytes([choose(3)])
        return [(Append(sha256(payload).digest(), (None, "a", "b")[choose(3)]), payload)]

    return decide


def named(replica: Replica) -> set[bytes]:
    erasures = [change for operation in replica.applied for change in operation.changes if isinstance(change, Erase)]
    return {name for each in erasures for name in (each.position, each.mark)}


def left(replica: Replica) -> list[Event]:
    """The twin of what is shown: the journal of the appends that stay, with what is named without its value."""
    names = named(replica)
    gone: set[Dot] = trimmed(replica)
    rows = DictRows()
    for at, append, payload in sorted(appends(replica), key=lambda made: made[0].pack_position()):
        if at.dot not in gone:
            is_named = not journal.names_of(at, append).isdisjoint(names)
            journal.apply(rows, at, append, ERASED if is_named else payload)
    return [events.unpack(row[1:], stored) for row, stored in rows.scan(EVENT)]


def check(choose: Choose) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    rows, names = replica.rows, named(replica)
    kept = left(replica)
    assert [events.unpack(row[1:], stored) for row, stored in rows.scan(EVENT)] == kept
    for at, append, payload in appends(replica):
        assert journal.payload_of(rows, at, append) == payload
        if not journal.names_of(at, append).isdisjoint(names):
            assert journal.erasure(rows, at.pack_position()) is None
    if (totals := events.totals(rows)) is not None:
        assert totals == (len(kept), sum(len(stored) for _, stored in rows.scan(EVENT)))


@pytest.mark.answers("erased-value-comes-back")
@examples(150)
@given(st.data())
def test_replicas_show_the_same_values_in_any_order(data: st.DataObject) -> None:
    check(chooser(data))


def never(rows: Rows, key: str, digest: bytes) -> bool:
    return False


def nothing(rows: Rows, position: bytes, payload: bytes) -> None:
    pass


def uncounted(rows: Rows, event: Event) -> None:
    rows.delete(EVENT + event.position)
    events.put(rows, event._replace(payload=ERASED))


def even_an_erased_one(rows: Rows, position: bytes, payload: bytes) -> None:
    rows.put(trimming.aside(position), payload)


@pytest.mark.parametrize(
    ("module", "name", "bug"),
    [
        (events, "is_erased", never),
        (trimming, "keep_aside", nothing),
        (trimming, "keep_aside", even_an_erased_one),
        (events, "blank", uncounted),
    ],
)
def test_the_check_finds_a_planted_bug(
    monkeypatch: pytest.MonkeyPatch, module: object, name: str, bug: Callable[..., object]
) -> None:
    monkeypatch.setattr(module, name, bug)
    fails_for_some_seed(check)


# ── single cases ──────────────────────────────────────────────────────────────


def stamp(number: int, sequence: int, *, hlc: int = 0) -> Stamp:
    return Stamp(Dot(origin(number), sequence), hlc or sequence << 16, 7, VersionVector())


def appended(rows: Rows, at: Stamp, payload: bytes, key: str | None = None) -> Stamp:
    journal.apply(rows, at, Append(sha256(payload).digest(), key), payload)
    return at


def erase(rows: Rows, at: Stamp) -> None:
    change = journal.erasure(rows, at.pack_position())
    assert change is not None
    journal.apply_erase(rows, stamp(9, 1), change)


def shown(rows: Rows) -> list[tuple[bytes, bytes]]:
    return [(event.position, event.payload) for row, stored in rows.scan(EVENT) for event in [events.unpack(row[1:], stored)]]


def test_the_place_key_and_time_of_an_erased_event_stay() -> None:
    rows = DictRows()
    at = appended(rows, stamp(1, 1), b"secret", "k")
    erase(rows, at)
    assert events.find(rows, at.pack_position()) == Event(at.pack_position(), "k", 7, ERASED)


def test_the_same_append_that_arrives_later_takes_the_place_and_brings_no_value() -> None:
    rows = DictRows()
    first = appended(rows, stamp(2, 1), b"secret", "k")
    erase(rows, first)
    lesser = appended(rows, stamp(1, 1), b"secret", "k")
    assert shown(rows) == [(lesser.pack_position(), ERASED)]
    assert journal.payload_of(rows, lesser, Append(sha256(b"secret").digest(), "k")) == b"secret"  # For peers that lack it.


def test_another_value_of_the_key_is_not_erased() -> None:
    rows = DictRows()
    first = appended(rows, stamp(2, 1), b"secret", "k")
    erase(rows, first)
    lesser = appended(rows, stamp(1, 1), b"other", "k")
    assert shown(rows) == [(lesser.pack_position(), b"other")]


def test_a_value_that_lost_its_key_is_erased_by_its_own_id() -> None:
    rows = DictRows()
    appended(rows, stamp(1, 1), b"other", "k")
    lost = appended(rows, stamp(2, 1), b"secret", "k")
    erase(rows, lost)
    assert [each.payload for each in events.losers(rows)] == [ERASED]
    assert journal.erasure(rows, lost.pack_position()) is None


def test_events_swept_before_arrival_are_erased_events() -> None:
    rows = DictRows()
    at = stamp(1, 1)
    journal.apply(rows, at, Append(sha256(b"secret").digest()), ERASED)
    journal.apply_erase(rows, stamp(9, 1), Erase(at.pack_position()))
    assert shown(rows) == [(at.pack_position(), ERASED)]
    assert journal.payload_of(rows, at, Append(sha256(b"secret").digest())) is None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (Erase(b"short"), "malformed"),
        (Erase(b"\x01" * 34, "k"), "malformed"),
        (Erase(b"\x01" * 34, None, b"\x01" * 32), "malformed"),
        (Erase(b"\x01" * 34), "had not applied"),
    ],
)
def test_an_erasure_that_no_node_would_make_is_refused(change: Erase, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        journal.check_erase(change, VersionVector())
