"""Values that a document lost: of concurrent sets of one map key one wins, and the others would be lost silently.

Laws:
- A set builds on the one that its author saw, which is its left origin. If nobody built on a set, and it is
  not the winner, then it was overwritten by somebody who had not seen it.
- Which values were overwritten is a function of the updates and of their order; on every replica that is
  the order of their positions.
- A client that deletes the winning value has seen it: that is no conflict.
- A run of sets that were replaced in one go costs as much as a single set, whatever its length: an update of a few
  bytes can claim billions.

The order of the sets of one key is the engine's (YATA: Nicolaescu et al. 2016): the last one wins.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from shoal.kinds.document.state.content import to_py
from shoal.kinds.document.state.structs import Id, Item, Shared, walk
from shoal.records import NamedTuple

ELEMENT = "*"
"""In a path: an element of an array. Its index is not known."""

Container = str | Id
"""A root, by its name, or a shared type, by its item."""

_DEPTH_MAX = 64  # `NESTING_MAX` of a document. Deeper values are not shown.


class Overwritten(NamedTuple):
    """A value that was lost."""

    path: tuple[str, ...]
    lost: Any
    lost_client: int
    stands: Any  # The value of the key now; None if it was deleted.
    stands_client: int  # The client that overwrote it.
    at: bytes  # The position of the later of the two updates.
    id: Id  # Of the lost value.


class _KeyRun:
    """A run of sets of one key in one go, each on the one before: only the last of them can win. Mostly a single set."""

    __slots__ = ("at", "deleted", "first", "id", "origin", "right", "value")

    def __init__(self, item: Item, at: bytes) -> None:
        self.first = item.clock
        self.id: Id = (item.client, item.clock + item.length - 1)  # Of the last.
        self.origin, self.right, self.at = item.origin, item.right, at
        self.value: Any = item.held[-1] if item.held else None  # The engine shows the last of several.
        self.deleted = item.held is None

    def holds(self, id: Id) -> bool:
        return self.id[0] == id[0] and self.first <= id[1] <= self.id[1]

    def split(self, at: int) -> _KeyRun:
        """Cut off and return the sets before a clock."""
        client = self.id[0]
        before = _KeyRun(Item(client, self.first, at - self.first, self.origin, self.right), self.at)
        self.first, self.origin = at, before.id
        return before


class _Key:
    """The sets of one key, in the engine's order."""

    __slots__ = ("entries", "leaves", "told")

    def __init__(self) -> None:
        self.entries: list[_KeyRun] = []
        self.leaves: set[Id] = set()  # The sets on which no other set builds.
        self.told: set[Id] = set()  # The sets that were known to be lost after the last update.

    def index(self, id: Id | None) -> int | None:
        """Where the set with this id is. The search starts at the end, where most are."""
        if id is None:
            return None
        return next((index for index in range(len(self.entries) - 1, -1, -1) if self.entries[index].holds(id)), None)

    def insert(self, entry: _KeyRun) -> None:
        if entry.origin is not None:
            self._cut((entry.origin[0], entry.origin[1] + 1))
        if entry.right is not None:
            self._cut(entry.right)
        origin, right = self.index(entry.origin), self.index(entry.right)
        left = -1 if origin is None else origin
        stop = len(self.entries) if right is None else right
        before: set[Id] = set()
        conflicting: set[Id] = set()
        for index in range(left + 1, stop):
            other = self.entries[index]
            before.add(other.id)
            conflicting.add(other.id)
            if other.origin == entry.origin:
                if other.id[0] < entry.id[0]:
                    left = index
                    conflicting.clear()
                elif other.right == entry.right:
                    break
            elif other.origin in before:
                if other.origin not in conflicting:
                    left = index
                    conflicting.clear()
            else:
                break
        self.entries.insert(left + 1, entry)
        self.leaves.add(entry.id)
        if entry.origin in self.leaves:
            self.leaves.discard(entry.origin)
            if origin is not None and not isinstance(self.entries[origin].value, Shared):
                self.entries[origin].value = None  # It is not shown any more.

    def _cut(self, id: Id) -> None:
        """Split a run so that none spans this id."""
        at = self.index(id)
        if at is not None and self.entries[at].first < id[1]:
            self.entries.insert(at, self.entries[at].split(id[1]))

    def lost(self) -> set[Id]:
        return self.leaves - {self.entries[-1].id}

    def stands_over(self, lost: Id) -> _KeyRun:
        """The first set to the right that was not lost itself."""
        at = self.index(lost)
        assert at is not None
        gone = self.lost()
        return next(entry for entry in self.entries[at + 1 :] if entry.id not in gone)

    def entry(self, id: Id) -> _KeyRun:
        at = self.index(id)
        assert at is not None
        return self.entries[at]


class Conflicts:
    """The overwritten values of one document. It takes the document's updates in causal order."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}  # Client → the clock after its last item here.
        self._keys: dict[tuple[Container, str], _Key] = {}
        self._of = _KeyOfSet()
        self._places: dict[int, tuple[list[int], list[Container | None]]] = defaultdict(lambda: ([], []))
        self._held: dict[Container, list[tuple[Id, Id | None, Any]]] = {}  # The lists of shared types within others.
        self._inside: dict[Container, list[str]] = defaultdict(list)  # The keys of a container.

    def add(self, update: bytes, at: bytes = b"") -> list[Overwritten]:
        """Take the update at a position, and return the newly overwritten values: older ones, and any that it brings.

        Raises:
            InvalidValue: it is no update.
        """
        walked = walk(update)
        touched: dict[tuple[Container, str], None] = {}
        for item in self._ready(walked.items):
            self._put(item, at, touched)
        for client, clock, length in walked.deletes:
            self._delete(client, clock, length)
        return [lost for key in touched for lost in self._new(key)]

    def overwritten(self) -> Iterator[Overwritten]:
        """All overwritten values, in no particular order."""
        for key, sets in self._keys.items():
            for id in sorted(sets.lost()):
                if not sets.entry(id).deleted:
                    yield self._told(key, sets, id)

    def _new(self, key: tuple[Container, str]) -> Iterator[Overwritten]:
        sets = self._keys[key]
        lost = sets.lost()
        for id in sorted(lost - sets.told):
            if not sets.entry(id).deleted:
                yield self._told(key, sets, id)
        sets.told = lost

    def _ready(self, items: Iterable[Item]) -> Iterator[Item]:
        """The new items, each after those that it is beside or within."""
        waiting: dict[int, list[Item]] = defaultdict(list)
        for item in items:
            waiting[item.client].append(item)
        left = {client: iter(some) for client, some in waiting.items()}
        heads = {client: next(some) for client, some in left.items()}
        moved = True
        while moved and heads:
            moved = False
            for client in list(heads):
                while (head := heads.get(client)) is not None and all(self._knows(need) for need in _needs(head)):
                    known = self._known.get(client, 0)
                    if head.clock + head.length > known:
                        yield _after(head, known)
                        self._known[client] = head.clock + head.length
                    moved = True
                    following = next(left[client], None)
                    if following is None:
                        del heads[client]
                    else:
                        heads[client] = following

    def _knows(self, id: Id) -> bool:
        return id[1] < self._known.get(id[0], 0)

    def _put(self, item: Item, at: bytes, touched: dict[tuple[Container, str], None]) -> None:
        beside = item.origin or item.right
        if item.key is not None and item.parent is not None:
            key = (item.parent, item.key)
        elif beside is not None and (around := self._of.get(beside)) is not None:
            key = around
        else:
            self._put_in_list(item, self._place(beside) if item.parent is None and beside else item.parent)
            return
        self._run(item, key[0])
        if key not in self._keys:
            self._keys[key] = _Key()
            self._inside[key[0]].append(key[1])
        self._of.put(item, key)
        self._keys[key].insert(_KeyRun(item, at))
        touched[key] = None

    def _put_in_list(self, item: Item, container: Container | None) -> None:
        self._run(item, container)
        if not isinstance(container, tuple) or not item.held:
            return
        # A list is needed only if it is within a shared type, which may be lost.
        held = self._held.setdefault(container, [])
        after = item.origin
        for offset, value in enumerate(item.held):
            id = (item.client, item.clock + offset)
            index = next((index for index in range(len(held) - 1, -1, -1) if held[index][0] == after), -1)
            held.insert(index + 1, (id, after, value))
            after = id

    def _delete(self, client: int, clock: int, length: int) -> None:
        """Mark values as deleted by a client that saw them. A value within an overwritten one is not marked, but told."""
        for key in self._of.within(client, clock, clock + length):
            last = self._keys[key].entries[-1]
            if last.id[0] == client and clock <= last.id[1] < clock + length and not self._is_lost(key[0]):
                last.deleted = True
        for container in self._places_within(client, clock, clock + length):
            if container in self._held and not self._is_lost(container):
                held = self._held[container]
                held[:] = [each for each in held if not (each[0][0] == client and clock <= each[0][1] < clock + length)]

    def _is_lost(self, container: Container | None) -> bool:
        for _ in range(_DEPTH_MAX):
            if not isinstance(container, tuple):
                return False
            key = self._of.get(container)
            if key is not None and self._keys[key].entries[-1].id != container:
                return True
            container = key[0] if key is not None else self._place(container)
        return True

    def _run(self, item: Item, container: Container | None) -> None:
        starts, containers = self._places[item.client]
        if not containers or containers[-1] != container:
            starts.append(item.clock)
            containers.append(container)

    def _place(self, id: Id) -> Container | None:
        starts, containers = self._places.get(id[0], ([], []))
        at = bisect_right(starts, id[1])
        return containers[at - 1] if at else None

    def _places_within(self, client: int, start: int, stop: int) -> dict[Container, None]:
        starts, containers = self._places.get(client, ([], []))
        some = containers[max(0, bisect_right(starts, start) - 1) : bisect_left(starts, stop)]
        return dict.fromkeys(container for container in some if container is not None)

    # ── telling ───────────────────────────────────────────────────────────────

    def _told(self, key: tuple[Container, str], sets: _Key, id: Id) -> Overwritten:
        lost, stands = sets.entry(id), sets.stands_over(id)
        return Overwritten(
            self._path(key),
            self._shown(lost),
            lost.id[0],
            None if sets.entries[-1].deleted else self._shown(sets.entries[-1]),
            stands.id[0],
            max(lost.at, stands.at),
            id,
        )

    def _path(self, key: tuple[Container, str]) -> tuple[str, ...]:
        path = [key[1]]
        container: Container | None = key[0]
        for _ in range(_DEPTH_MAX):
            if not isinstance(container, tuple):
                break
            around = self._of.get(container)
            path.append(ELEMENT if around is None else around[1])
            container = self._place(container) if around is None else around[0]
        return (container if isinstance(container, str) else ELEMENT, *reversed(path))

    def _shown(self, entry: _KeyRun) -> Any:
        return self._value(entry.id, entry.value, 0)

    def _value(self, id: Id, value: Any, depth: int) -> Any:
        if not isinstance(value, Shared):
            return to_py(value)
        if depth > _DEPTH_MAX:
            return None
        if value.type == "map":
            return self._entries(id, depth)
        items = [self._value(each[0], each[2], depth + 1) for each in self._held.get(id, ())]
        if value.type == "element":
            return {"tag": value.tag, "attributes": self._entries(id, depth), "children": items}
        if value.type in ("text", "xmltext"):
            return "".join(item for item in items if isinstance(item, str))
        return items

    def _entries(self, id: Id, depth: int) -> dict[str, Any]:
        """The entries of a map, or the attributes of an element."""
        found: dict[str, Any] = {}
        for key in sorted(self._inside.get(id, ())):
            last = self._keys[id, key].entries[-1]
            if not last.deleted:
                found[key] = self._value(last.id, last.value, depth + 1)
        return found


def _after(item: Item, known: int) -> Item:
    """The part of an item from the clock `known` on."""
    cut = known - item.clock
    if cut <= 0:
        return item
    held = item.held[cut:] if item.held else item.held
    return item._replace(clock=known, length=item.length - cut, origin=(item.client, known - 1), held=held)


class _KeyOfSet:
    """The key of each set, by client and clock. A client's sets come in the order of their clocks."""

    def __init__(self) -> None:
        self._runs: dict[int, tuple[list[int], list[int], list[tuple[Container, str]]]] = defaultdict(lambda: ([], [], []))

    def put(self, item: Item, key: tuple[Container, str]) -> None:
        starts, stops, keys = self._runs[item.client]
        starts.append(item.clock)
        stops.append(item.clock + item.length)
        keys.append(key)

    def get(self, id: Id) -> tuple[Container, str] | None:
        starts, stops, keys = self._runs.get(id[0], ([], [], []))
        at = bisect_right(starts, id[1]) - 1
        return keys[at] if at >= 0 and id[1] < stops[at] else None

    def within(self, client: int, start: int, stop: int) -> dict[tuple[Container, str], None]:
        """The keys of the sets in a range of clocks."""
        starts, stops, keys = self._runs.get(client, ([], [], []))
        return dict.fromkeys(keys[bisect_right(stops, start) : bisect_left(starts, stop)])


def _needs(item: Item) -> Iterator[Id]:
    for need in (item.origin, item.right, item.parent):
        if isinstance(need, tuple) and need[0] != item.client:
            yield need
