"""Registers: causality decides, and nothing that was concurrent is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import Rows, Stamp
from shoal.errors import InvalidValue, StoreCorrupt
from shoal.kinds.register import state as register
from shoal.kinds.register.state import Assign, AssignBy, AssignedValue, Swap
from tests.support.causal import Apply, Choose, Decide, Operation, Replica, check_converges, origin
from tests.support.examples import examples
from tests.support.rows import DictRows
from tests.support.samples import chooser, fails_for_some_seed

A, B = origin(1), origin(2)


def deciding(choose: Choose) -> Decide:
    """Assigns by clients that read here, read elsewhere, read nothing, or made their context up."""

    def context(replica: Replica, everyone: list[Replica]) -> register.Entries | None:
        match choose(5):
            case 0:
                return None
            case 1:
                return ()
            case 2:
                return register.context_entries(register.context_of(replica.rows))
            case 3:
                return register.context_entries(register.context_of(everyone[choose(len(everyone))].rows))
            case _:
                return ((origin(1 + choose(3)), choose(9)),)

    def decide(replica: Replica, everyone: list[Replica]) -> list[Assign]:
        return [Assign(bytes([choose(3)]), context(replica, everyone)) for _ in range(1 + choose(2))]

    return decide


def alive(operations: list[Operation]) -> set[tuple[Dot, int, bytes]]:
    """The twin: of all assigns at once, those that no other one covers."""
    stamped = [(at, change) for operation in operations for at, change in operation.stamped()]

    def replaces(later: tuple[Stamp, Assign], earlier: Stamp) -> bool:
        at, change = later
        if at.dot == earlier.dot:
            return at.nth > earlier.nth
        seen = dict(at.context if change.context is None else change.context)
        return at.context.covers(earlier.dot) and seen.get(earlier.dot.origin, 0) >= earlier.dot.sequence

    return {(at.dot, at.hlc, change.value) for at, change in stamped if not any(replaces(other, at) for other in stamped)}


def check(choose: Choose, apply: Apply = register.apply) -> None:
    replica = check_converges(choose, apply, deciding(choose))[0]
    siblings = register.siblings(replica.rows)
    assert {(sibling.dot, sibling.hlc, sibling.value) for sibling in siblings} == alive(replica.applied)
    assert siblings == sorted(siblings, key=lambda sibling: (sibling.hlc, sibling.dot), reverse=True)


@pytest.mark.answers("applying-commutes")
@examples(80)
@given(st.data())
def test_replicas_keep_the_same_siblings_as_a_twin_that_sees_all_assigns(data: st.DataObject) -> None:
    check(chooser(data))


def covered_siblings_stay(rows: Rows, stamp: Stamp, assign: Assign) -> None:
    register.store(rows, [*register.entries(rows), AssignedValue(stamp.pack_position(), 0, None, assign.value)])


def context_is_not_clipped(rows: Rows, stamp: Stamp, assign: Assign) -> None:
    seen = stamp.context if assign.context is None else register.context_from(assign.context)
    register.apply(rows, replace(stamp, context=stamp.context.join(seen)), assign)


def latest_wins(rows: Rows, stamp: Stamp, assign: Assign) -> None:
    covered_siblings_stay(rows, stamp, assign)
    register.store(rows, register.entries(rows)[-1:])


def last_to_arrive_wins(rows: Rows, stamp: Stamp, assign: Assign) -> None:
    rows.delete(register.SIBLINGS)
    covered_siblings_stay(rows, stamp, assign)


@pytest.mark.answers("data-type-whose-result-depends-on-the-order")
@pytest.mark.parametrize("bug", [covered_siblings_stay, context_is_not_clipped, latest_wins, last_to_arrive_wins])
def test_the_check_finds_a_planted_bug(bug: Apply) -> None:
    assert fails_for_some_seed(lambda choose: check(choose, bug))


@pytest.mark.answers("hot-keys-in-a-yjs-map-grow-without-limit")
@examples(60)
@given(st.data())
def test_an_assign_with_the_context_of_a_read_replaces_exactly_what_was_read(data: st.DataObject) -> None:
    choose = chooser(data)
    replicas = check_converges(choose, register.apply, deciding(choose), deliveries=0)
    writer, other = replicas[0], replicas[1]
    read = register.context_entries(register.context_of(writer.rows))
    concurrent = other.issue([Assign(b"concurrent", ())], wall_ms=1)
    writer.receive([concurrent])
    writer.issue([Assign(b"mine", read)], wall_ms=1)
    assert {sibling.value for sibling in register.siblings(writer.rows)} == {b"mine", b"concurrent"}


def deciding_with_swaps(choose: Choose) -> Decide:
    """Assigns, and swaps of what their replica shows. Each swap has a number of its own; a few are made late."""
    plain = deciding(choose)
    numbers = list(range(1, 1000))

    def decide(replica: Replica, everyone: list[Replica]) -> list[Assign] | list[Swap]:
        if choose(2):
            return [each for each in plain(replica, everyone) if isinstance(each, Assign)]
        number = numbers.pop(choose(2))
        seen = register.context_entries(register.context_of(replica.rows))
        return [Swap(None if choose(4) == 0 else bytes([choose(3)]), seen, number, f"swap/{number}")]

    return decide


def apply_either(rows: Rows, stamp: Stamp, change: Assign | Swap) -> None:
    if isinstance(change, Swap):
        register.apply_swap(rows, stamp, change)
    else:
        register.apply(rows, stamp, change)


def check_swaps(choose: Choose, apply: Apply = apply_either) -> None:
    replica = check_converges(choose, apply, deciding_with_swaps(choose))[0]
    swaps = {
        operation.stamp.dot: change for operation in replica.applied for change in operation.changes if isinstance(change, Swap)
    }
    newest = max((swap.fence for swap in swaps.values()), default=0)
    void = {dot for dot, swap in swaps.items() if swap.fence < newest or swap.value is None}
    expected = {each for each in alive(replica.applied) if each[0] not in void}
    siblings = register.siblings(replica.rows)
    assert {(sibling.dot, sibling.hlc, sibling.value) for sibling in siblings} == expected
    assert all(sibling.dot not in swaps for sibling in siblings[1:]), "a swap is the latest"


@pytest.mark.answers("compare-and-set-is-linearizable")
@examples(80)
@given(st.data())
def test_of_two_swaps_that_with_the_greater_number_counts_on_every_replica(data: st.DataObject) -> None:
    check_swaps(chooser(data))


def a_swap_is_an_assign(rows: Rows, stamp: Stamp, change: Assign | Swap) -> None:
    register.apply(rows, stamp, Assign(change.value or b"", change.context))


def the_last_swap_to_arrive_wins(rows: Rows, stamp: Stamp, change: Assign | Swap) -> None:
    if isinstance(change, Swap):
        rows.delete(register.FENCE)
    apply_either(rows, stamp, change)


@pytest.mark.parametrize("bug", [a_swap_is_an_assign, the_last_swap_to_arrive_wins])
def test_the_check_of_swaps_finds_a_planted_bug(bug: Apply) -> None:
    assert fails_for_some_seed(lambda choose: check_swaps(choose, bug))


def test_a_swap_that_nobody_saw_does_not_come_back_over_a_set_that_saw_a_later_one() -> None:
    rows = DictRows()
    register.apply_swap(rows, stamp(Dot(B, 1), hlc=2), Swap(b"new", (), 2, "swap/2"))
    register.apply(rows, stamp(Dot(B, 2), hlc=3, context=VersionVector({B: 1})), Assign(b"set"))
    register.apply_swap(rows, stamp(Dot(A, 1), hlc=9), Swap(b"old", (), 1, "swap/1"))
    assert [sibling.value for sibling in register.siblings(rows)] == [b"set"]


def test_a_set_that_did_not_see_a_swap_stays_beside_it_after_it() -> None:
    rows = DictRows()
    register.apply_swap(rows, stamp(Dot(B, 1), hlc=2), Swap(b"swapped", (), 2, "swap/2"))
    register.apply(rows, stamp(Dot(A, 1), hlc=9), Assign(b"set", ()))
    assert [sibling.value for sibling in register.siblings(rows)] == [b"swapped", b"set"]


def stamp(dot: Dot, *, hlc: int = 1, context: VersionVector = VersionVector(), nth: int = 0) -> Stamp:
    return Stamp(dot, hlc, 1000 + hlc, context, nth)


def test_a_register_never_set_has_no_siblings_and_an_empty_context() -> None:
    assert register.siblings(DictRows()) == []
    assert register.context_of(DictRows()) == VersionVector()


def test_a_sibling_tells_its_value_and_times() -> None:
    rows = DictRows()
    register.apply(rows, stamp(Dot(A, 1), hlc=7), Assign(b"v"))
    (sibling,) = register.siblings(rows)
    assert sibling[:4] == (b"v", Dot(A, 1), 7, 1007)


def test_a_version_tells_values_apart_and_not_the_times_that_a_request_was_sent() -> None:
    def version_after(*assigns: tuple[Dot, Assign]) -> str:
        rows = DictRows()
        for dot, assign in assigns:
            register.apply(rows, stamp(dot, hlc=dot.sequence), assign)
        return register.version_of(register.siblings(rows))

    once, again = (Dot(B, 1), Assign(b"v", (), "k")), (Dot(A, 2), Assign(b"v", (), "k"))
    assert version_after() == register.NO_VALUE
    assert version_after(once) == version_after(again) == version_after(once, again)
    assert (
        len({version_after(once), version_after((Dot(A, 1), Assign(b"v", ()))), version_after((Dot(B, 1), Assign(b"v", ())))})
        == 3
    )


@pytest.mark.answers("one-node-with-a-fast-clock-wins-every-conflict")
def test_causality_wins_over_a_clock_that_runs_ahead() -> None:
    rows = DictRows()
    register.apply(rows, stamp(Dot(A, 1), hlc=10**9), Assign(b"fast clock"))
    register.apply(rows, stamp(Dot(B, 1), hlc=1, context=VersionVector({A: 1})), Assign(b"later"))
    assert [sibling.value for sibling in register.siblings(rows)] == [b"later"]


def test_an_empty_context_replaces_nothing() -> None:
    rows = DictRows()
    register.apply(rows, stamp(Dot(A, 1)), Assign(b"one"))
    register.apply(rows, stamp(Dot(A, 2), hlc=2, context=VersionVector({A: 1})), Assign(b"two", ()))
    assert [sibling.value for sibling in register.siblings(rows)] == [b"two", b"one"]


def test_of_two_assigns_in_one_operation_the_second_stays() -> None:
    rows = DictRows()
    register.apply(rows, stamp(Dot(A, 1)), Assign(b"one", ()))
    register.apply(rows, stamp(Dot(A, 1), nth=1), Assign(b"two", ()))
    assert [sibling.value for sibling in register.siblings(rows)] == [b"two"]


def test_a_context_survives_the_way_through_bytes() -> None:
    context = VersionVector({A: 3, B: 1})
    assert register.unpack_context(register.pack_context(context)) == context
    assert register.unpack_context(register.pack_context(VersionVector())) == VersionVector()


@pytest.mark.parametrize("packed", [b"", b"\x02", b"\x01x", b"\x01" + bytes(24), b"\x01" + Dot(Origin(B), 1).pack() * 2])
def test_bytes_that_are_no_context_are_refused(packed: bytes) -> None:
    with pytest.raises(InvalidValue, match="context"):
        register.unpack_context(packed)


def noting(choose: Choose) -> Decide:
    """Assigns of which some are noted, and swaps, some of them noted."""
    plain = deciding_with_swaps(choose)

    def decide(replica: Replica, everyone: list[Replica]) -> list[Assign | AssignBy | Swap]:
        return [_noted(each, choose) for each in plain(replica, everyone)]

    return decide


def _noted(change: Assign | Swap, choose: Choose) -> Assign | AssignBy | Swap:
    by = ("", "ada", "bo")[choose(3)]
    if choose(4) == 0:
        return change
    if isinstance(change, Swap):
        return replace(change, by=by)
    key = change.key if choose(3) else f"repeated-{choose(3)}"
    return AssignBy(change.value * (1, 1, 40, 80, 5000)[choose(5)], change.context or (), key, by)


def apply_any(rows: Rows, stamp: Stamp, change: Assign | AssignBy | Swap) -> None:
    if isinstance(change, AssignBy):
        register.apply_by(rows, stamp, change)
    else:
        apply_either(rows, stamp, change)


def latest_noted(operations: list[Operation]) -> list[tuple[bytes, str, int, bytes]]:
    """The twin: of all noted assigns at once, the last in the order of positions; of each request, its last one."""
    latest: dict[bytes, tuple[bytes, str, int, bytes]] = {}
    for operation in operations:
        for at, change in operation.stamped():
            if isinstance(change, Assign) or change.by is None or change.value is None:
                continue
            name = at.pack_position() if change.key is None else change.key.encode()
            shown = change.value if len(change.value) <= 4096 else b""
            noted = (at.pack_position(), change.by, len(change.value), shown)
            latest[name] = max(noted, latest.get(name, noted))
    return sorted(latest.values(), reverse=True)[: register.HISTORY_MAX]


def check_history(choose: Choose, apply: Apply = apply_any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(register, "HISTORY_MAX", 1 + choose(6))
        replica = check_converges(choose, apply, noting(choose))[0]
        kept = register.history(replica.rows)
        assert [(noted.position, noted.by, noted.size, noted.value) for noted in kept] == latest_noted(replica.applied)
        held = {key[1:]: value for key, value in replica.rows.scan(register.PAST)}
        assert held == {noted.position: noted.value for noted in kept if 64 < noted.size <= 4096}


@pytest.mark.answers("applying-commutes")
@examples(80)
@given(st.data())
def test_replicas_keep_the_same_history_as_a_twin(data: st.DataObject) -> None:
    check_history(chooser(data))


def test_a_set_writes_its_own_value_and_not_those_of_the_history() -> None:
    rows = WrittenRows()
    for at in range(1, 40):
        rows.written.clear()
        register.apply_by(rows, stamp(Dot(A, at), hlc=at), AssignBy(b"x" * 4096, (), None, ""))
    assert sorted(rows.written) == sorted([b"H", b"S", b"V" + stamp(Dot(A, 39), hlc=39).pack_position()])
    assert len(rows.get(register.HISTORY) or b"") < 1000


def test_a_value_of_the_history_without_its_row_is_told() -> None:
    rows = DictRows()
    register.apply_by(rows, stamp(Dot(A, 1)), AssignBy(b"x" * 65, (), None, ""))
    assert [noted.value for noted in register.history(rows)] == [b"x" * 65]
    rows.delete(register.PAST + stamp(Dot(A, 1)).pack_position())
    with pytest.raises(StoreCorrupt, match="history is missing or damaged"):
        register.history(rows)


class WrittenRows(DictRows):
    """Rows that know which of them were put."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[bytes] = []

    def put(self, key: bytes, value: bytes, /) -> None:
        self.written.append(key)
        super().put(key, value)


def latest_to_arrive_stay(rows: Rows, stamp: Stamp, change: Assign | AssignBy | Swap) -> None:
    before = register._noted(rows)
    apply_any(rows, stamp, change)
    new = [noted for noted in register._noted(rows) if noted not in before]
    if new:
        rows.put(register.HISTORY, register._encoder.encode([*before, *new][-register.HISTORY_MAX :]))


def a_repeated_request_takes_two_places(rows: Rows, stamp: Stamp, change: Assign | AssignBy | Swap) -> None:
    before = register._noted(rows)
    apply_any(rows, stamp, change)
    every = {noted.position: noted for noted in (*before, *register._noted(rows))}
    rows.put(register.HISTORY, register._encoder.encode([every[at] for at in sorted(every)][-register.HISTORY_MAX :]))


def swaps_that_come_late_are_not_noted(rows: Rows, stamp: Stamp, change: Assign | AssignBy | Swap) -> None:
    is_late = isinstance(change, Swap) and register.fence(rows).number > change.fence
    apply_any(rows, stamp, replace(change, by=None) if is_late and isinstance(change, Swap) else change)


@pytest.mark.answers("data-type-whose-result-depends-on-the-order")
@pytest.mark.parametrize(
    "bug", [latest_to_arrive_stay, a_repeated_request_takes_two_places, swaps_that_come_late_are_not_noted]
)
def test_the_check_finds_a_planted_bug_of_histories(bug: Apply) -> None:
    assert fails_for_some_seed(lambda choose: check_history(choose, bug))
