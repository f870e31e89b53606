"""The invariants of one node, as functions over a history and the store that was found afterwards.

Each raises `InvariantViolated`, which names the invariant and what broke it:

    1   a dot names one payload, for ever           DotLedger, check_openings
    2   vectors are contiguous and durable          check_vectors
    3   what was acknowledged survives              check_acknowledged
    3a  what was shown survives                     check_seen
    4   the state is the fold of its operations     check_fold
    5   counters add up                             check_counters
    6   nothing is invented, nothing comes twice    check_nothing_invented
    10  damage is noticed, never served             check_damage_noticed
    13  "nothing was written" is true               check_refused

Nothing here knows how the store got into its state.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import reduce
from hashlib import sha256
from operator import or_

from shoal.cluster.operation import Tip, partition_of
from shoal.config import Config
from shoal.crdt.dot import Dot, Origin, VersionVector
from shoal.crdt.rows import successor
from shoal.errors import StoreCorrupt
from shoal.kinds.register.state import HISTORY_MAX
from shoal.node.verification.verify import verify
from shoal.storage import keys
from shoal.storage.interface import Storage
from simulation.judging.found import DAMAGED, Found
from simulation.judging.history import History, Invoked, Place, WriteKind
from simulation.workload.random_agents import SPACE
from simulation.world.disk import has_log, tips_on

OBJECTS: Mapping[WriteKind, str] = {
    "save": "thread",
    "append": "journal",
    "add": "counter",
    "assign": "register",
    "edit": "document",
}
"""What each kind of write changes."""

_LISTED_MAX = 5
_DOT_HEX = 16  # Where the dot begins in an event's id: behind the hybrid logical time.


class InvariantViolated(AssertionError):
    """`invariant` is the number in the list above."""

    def __init__(self, invariant: str, what: str, culprits: list[str]) -> None:
        listed = "; ".join(culprits[:_LISTED_MAX])
        more = f"; … {len(culprits) - _LISTED_MAX} more" if len(culprits) > _LISTED_MAX else ""
        super().__init__(f"invariant {invariant}: {what}: {listed}{more}")
        self.invariant = invariant
        self.what = what
        self.culprits = culprits


def named(place: Place) -> str:
    """An object's kind, name and space, for people."""
    return f"{OBJECTS[place.kind]} {place.name} in space {SPACE}"


def _demand(invariant: str, what: str, culprits: list[str]) -> None:
    if culprits:
        raise InvariantViolated(invariant, what, culprits)


def check_found(history: History, found: Found) -> None:
    """All that a history demands of what is found afterwards.

    Raises:
        InvariantViolated: the first that does not hold.
    """
    check_nothing_invented(history, found)
    check_acknowledged(history, found)
    check_seen(history, found)
    check_counters(history, found)
    check_refused(history, found)


def check_remembered(history: History, found: Found) -> None:
    """The history of a register has all values that were acknowledged, unless it is full, and none that nobody set: of nodes
    that all keep histories, and of registers that are never deleted.

    Raises:
        InvariantViolated: it does not hold.
    """
    lost, invented = [], []
    for name, noted in found.histories.items():
        owed = {write.number for number in history.acknowledged if (write := history.writes[number]).place == ("assign", name)}
        if len(noted) < HISTORY_MAX:
            lost += [f"{number} of {named(Place('assign', name))}" for number in sorted(owed - set(noted))]
        written = {write.number for write in history.writes.values() if write.place == ("assign", name)}
        invented += [f"{number} of {named(Place('assign', name))}" for number in sorted(set(noted) - written)]
    _demand("3", "acknowledged, and not in the history", lost)
    _demand("10", "in a history, and never set", invented)


def check_storage(history: History, storage: Storage, *, dots: DotLedger, config: Config) -> None:
    """All that must hold of the rows themselves; `dots` takes note of what it meets.

    Raises:
        InvariantViolated: the first that does not hold.
    """
    dots.check(storage)
    check_openings(history)
    check_vectors(history, storage)
    check_fold(storage, config)


# ── over what is found through the door ───────────────────────────────────────


def check_acknowledged(history: History, found: Found) -> None:
    lost = []
    for number, acknowledged in history.acknowledged.items():
        write = history.writes[number]
        if not _holds(history, found, write, acknowledged.id):
            lost.append(f"{_text(write)} {acknowledged.id[:16]}")
    _demand("3", "acknowledged, then lost", lost)


def _holds(history: History, found: Found, write: Invoked, id: str) -> bool:
    """An append that was sent again to another node has two operations: the lesser dot's is the event, on every replica.

    Of those under one key of a user's, one is the event.
    """
    match write.kind:
        case "save":
            return found.entries(write.place).get(id) == write.number
        case "append" if write.key:
            there = set(found.numbers(write.place))
            return any(other.number in there for other in history.writes.values() if _same_key(write, other))
        case "append":
            entries = found.entries(write.place)
            return entries.get(id) == write.number or any(
                number == write.number and there[_DOT_HEX:] < id[_DOT_HEX:] for there, number in entries.items()
            )
        case "assign":
            return history.is_held(write.place, write.number, found.registers.get(write.name, []))
        case "edit":
            return write.number in found.documents.get(write.name, [])
        case "add":
            return True  # The sums say: invariant 5.


def check_seen(history: History, found: Found) -> None:
    lost = []
    for place, ids in history.seen_ids.items():
        lost += [f"{place.kind} {id[:16]} of {named(place)}" for id in ids - found.entries(place).keys()]
    for place, numbers in history.seen_numbers.items():
        missing = sorted(numbers.difference(found.numbers(place)))
        if place.kind == "assign":
            missing = [number for number in missing if not history.is_held(place, number, found.numbers(place))]
        lost += [f"{place.kind} {number} of {named(place)}" for number in missing]
    for place, value in history.seen_values.items():
        there = history.adds_in(place, found.greatest(place)) if place.kind == "add" else None
        if there is not None:
            seen = {number for shown in history.seen_sums[place] for number in history.adds_in(place, shown) or ()}
            lost += [f"add {number} of {named(place)}" for number in sorted(seen - there.keys())]
        elif found.greatest(place) < value:
            lost.append(f"{named(place)} showed {value}, and holds {found.greatest(place)}")
    _demand("3a", "shown, then lost", lost)


def check_refused(history: History, found: Found) -> None:
    there = [_text(write) for write in history.refused if write.number in found.numbers(write.place)]
    _demand("13", "refused with nothing written, yet there", there)


def check_counters(history: History, found: Found) -> None:
    """A counter holds the acknowledged adds, and maybe some of those whose outcome is unknown, each once; of those with one
    key it holds one.
    """
    refused = {write.number for write in history.refused}
    adds: defaultdict[str, list[Invoked]] = defaultdict(list)
    for write in history.writes.values():
        if write.kind == "add":
            adds[write.name].append(write)
    wrong: list[str] = []
    for name in sorted(adds.keys() | found.counters.keys()):
        value = found.counters.get(name, 0)
        times = history.adds_in(place := Place("add", name), value)
        if times is None:
            wrong += _not_a_sum(history, place, value, [add for add in adds[name] if add.number not in refused])
        else:
            wrong += _miscounted(history, place, times, refused)
    _demand("5", "a counter does not add up", wrong)


def _miscounted(history: History, place: Place, times: Mapping[int, int], refused: Collection[int]) -> Iterator[str]:
    """Of a counter whose value says which adds it holds."""
    for number, count in sorted(times.items()):
        if number == 0:
            yield f"{named(place)} holds what nobody added"
        elif number in refused:
            yield f"{named(place)} holds add {number}, which was refused"
        elif count > 1:
            yield f"{named(place)} holds add {number} {count} times"
    for number in history.acknowledged:
        write = history.writes[number]
        if write.place == place and not times.get(number, 0):
            yield f"{named(place)} lacks add {number}, which was acknowledged"


def _not_a_sum(history: History, place: Place, value: int, adds: list[Invoked]) -> Iterator[str]:
    """Of a counter whose adds have no amounts of their own."""
    if not _is_sum(value, _choices(history, adds)):
        certain = sum(history.amount(write.number) for write in adds if write.number in history.acknowledged)
        unknown = [history.amount(write.number) for write in adds if write.number not in history.acknowledged]
        yield f"{named(place)} holds {value}: {certain} acknowledged, {len(unknown)} adds unknown, {sum(unknown)} in all"


def _choices(history: History, adds: list[Invoked]) -> list[set[int]]:
    """What each add may have added, or all adds of one key together."""
    keyed: dict[tuple[str, int], list[Invoked]] = {}
    for add in adds:
        keyed.setdefault((add.key, 0) if add.key else ("", add.number), []).append(add)
    return [
        {history.amount(add.number) for add in those}
        | (set() if any(add.number in history.acknowledged for add in those) else {0})
        for those in keyed.values()
    ]


def _is_sum(value: int, choices: list[set[int]]) -> bool:
    """Whether one of each can add up to `value`."""
    reachable = 1  # Bit n is set if some of them add up to n.
    for choice in choices:
        reachable = reduce(or_, (reachable << amount for amount in choice))
    return value >= 0 and bool(reachable >> value & 1)


def _same_key(write: Invoked, other: Invoked) -> bool:
    return (write.place, write.key) == (other.place, other.key)


def check_nothing_invented(history: History, found: Found) -> None:
    wrong = []
    for place in found.places():
        numbers = found.numbers(place)
        wrong += [f"{named(place)} holds what nobody wrote" for number in numbers if number == DAMAGED]
        wrong += [
            f"{named(place)} holds {number}, which was not written there"
            for number in numbers
            if number != DAMAGED and (number not in history.writes or history.writes[number].place != place)
        ]
        twice = [number for number, times in Counter(numbers).items() if times > 1 and number != DAMAGED]
        wrong += [f"{named(place)} holds {number} more than once" for number in twice]
    _demand("6", "invented, or applied twice", wrong)


# ── over the rows ─────────────────────────────────────────────────────────────


def check_vectors(history: History, storage: Storage) -> None:
    """Every vector is what the log holds, without a hole, and covers what any reader was told."""
    sequences: dict[tuple[int, Origin], list[int]] = {}
    for key, _ in _rows(storage, keys.LOG):
        partition, dot = keys.split_log(key)
        sequences.setdefault((partition, dot.origin), []).append(dot.sequence)
    bases = {
        (int.from_bytes(key[1:3], "big"), Origin(key[3:])): Tip.unpack(tip).sequence for key, tip in _rows(storage, keys.BASE)
    }
    bases.update((place, tip.sequence) for place, tip in tips_on(storage).items() if not has_log(storage, place))
    recorded = {place: tip.sequence for place, tip in tips_on(storage).items()}
    wrong = [
        f"partition {place[0]}, origin {place[1].hex()[:8]}: the vector says {recorded.get(place, 0)}, "
        f"the log holds {len(sequences.get(place, []))} up to {max(sequences.get(place, []), default=0)}"
        f", its base is {bases.get(place, 0)}"
        for place in sorted(recorded.keys() | sequences.keys())
        if sequences.get(place, []) != list(range(bases.get(place, 0) + 1, recorded.get(place, 0) + 1))
    ]
    for name, seen in history.seen_vectors.items():
        here = partition_of(SPACE, name)
        held = VersionVector({origin: n for (partition, origin), n in recorded.items() if partition == here})
        if not held.dominates(seen):
            wrong.append(f"a reader of {name} was told {seen}, the store holds {held}")
    _demand("2", "a vector has a hole, or is not durable", wrong)


def check_fold(storage: Storage, config: Config) -> None:
    _demand("4", "the state is not the fold of its operations", verify(storage, config=config).problems)


def check_openings(history: History) -> None:
    counts = Counter(history.origins)
    _demand("1", "two openings wrote under one origin", [origin for origin, times in counts.items() if times > 1])


class DotLedger:
    """Which payload each dot was ever seen with, across crashes, copies and restores."""

    def __init__(self) -> None:
        self._payloads: dict[tuple[int, Dot], bytes] = {}

    def check(self, storage: Storage) -> None:
        """Compare a store's log, live or reopened, with all that was seen before, and remember it.

        Raises:
            InvariantViolated: a dot came back with another payload.
        """
        reused = []
        for key, body in _rows(storage, keys.LOG):
            place, digest = keys.split_log(key), sha256(body).digest()
            if self._payloads.setdefault(place, digest) != digest:
                reused.append(f"partition {place[0]}, origin {place[1].origin.hex()[:8]}, sequence {place[1].sequence}")
        _demand("1", "a dot names two payloads", reused)


def check_damage_noticed(expected: Mapping[bytes, bytes], open_storage: Callable[[], Storage], *, config: Config) -> None:
    """A damaged store is refused, or reported by `verify`, or else holds `expected` to the last byte.

    Raises:
        InvariantViolated: it serves something else without a word.
    """
    try:
        storage = open_storage()
    except StoreCorrupt:
        return
    try:
        found = dict(storage.scan(b"", None))
        differing = [key.hex()[:40] for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
        if differing and verify(storage, config=config).sound:
            raise InvariantViolated("10", "damaged rows are served", differing)
    except StoreCorrupt:
        return
    finally:
        storage.close()


def _rows(storage: Storage, table: bytes) -> list[tuple[bytes, bytes]]:
    return list(storage.scan(table, successor(table)))


def _text(write: Invoked) -> str:
    return f"{write.kind} {write.number} of {named(write.place)}"
