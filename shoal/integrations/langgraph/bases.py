"""The saver's memory of the last checkpoints of live threads, on which the next puts build.

Laws:
- With it a put reads nothing, and sends of a list only the elements that were added to it.
- It is bounded. If a checkpoint is forgotten, the next put reads it first; if its lists are, they are sent whole.
- A list is remembered as it was packed for, or read from, exactly that checkpoint: with its id in Shoal, because LangGraph may
  put another checkpoint under the same id of its own.

Any thread may use it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from threading import Lock

from langgraph.checkpoint.base import ChannelVersions

from shoal.integrations.langgraph.encoding import is_list
from shoal.integrations.langgraph.naming import Place
from shoal.records import NamedTuple

BASES_MAX = 4096  # Live threads whose last checkpoint is remembered; for others a put needs one read more.
LIST_BYTES_MIN = 1024  # Of a list that is worth remembering.

Packed = Mapping[str, bytes]
"""Channel → its value, packed."""
NOTHING_PACKED: Packed = {}


class Base(NamedTuple):
    """The data of a previous checkpoint that a put needs."""

    id: str  # The checkpoint's id in Shoal.
    versions: ChannelVersions
    stored: frozenset[str]  # The channels that have a value.


class _Lists(NamedTuple):
    of: str  # The checkpoint's id in Shoal.
    packed: Packed


class Bases:
    """The last checkpoints, and up to `lists_bytes_max` of their lists; beyond either bound the oldest are forgotten."""

    def __init__(self, lists_bytes_max: int) -> None:
        self._lists_bytes_max = lists_bytes_max
        self._lists_bytes = 0
        self._lock = Lock()
        self._known: OrderedDict[tuple[Place, str], Base] = OrderedDict()
        self._lists: OrderedDict[tuple[Place, str], _Lists] = OrderedDict()

    def get(self, place: Place, id: str) -> Base | None:
        """The base for a put on checkpoint `id`; None if it is not known here."""
        return self._known.get((place, id))

    def lists(self, place: Place, id: str, base: Base) -> Packed:
        """The long lists of checkpoint `id`, whose data is `base`, as far as they are known here."""
        found = self._lists.get((place, id))
        return found.packed if found is not None and found.of == base.id else NOTHING_PACKED

    def put(self, place: Place, id: str, base: Base, *, replacing: str | None = None, packed: Packed = NOTHING_PACKED) -> None:
        """Remember a checkpoint and its lists; the checkpoint that it is `replacing` is not live any more."""
        key = place, id
        with self._lock:
            if replacing is not None:
                self._drop((place, replacing))
            self._known[key] = base
            self._known.move_to_end(key)
            if len(self._known) > BASES_MAX:
                self._drop(next(iter(self._known)))
            if self._lists_bytes_max and packed:
                lists = {name: value for name, value in packed.items() if len(value) >= LIST_BYTES_MIN and is_list(value)}
                self._keep(key, base, lists)

    def forget(self, place: Place, id: str) -> None:
        """Forget one checkpoint."""
        with self._lock:
            self._drop((place, id))

    def forget_thread(self, thread_id: str) -> None:
        """Forget all checkpoints of a thread."""
        with self._lock:
            for known in [known for known in self._known if known[0].thread_id == thread_id]:
                self._drop(known)

    def _keep(self, key: tuple[Place, str], base: Base, lists: Packed) -> None:
        self._drop_lists(key)
        if lists:
            self._lists[key] = _Lists(base.id, lists)
            self._lists_bytes += _size(lists)
        while self._lists_bytes > self._lists_bytes_max:
            self._drop_lists(next(iter(self._lists)))

    def _drop(self, key: tuple[Place, str]) -> None:
        self._known.pop(key, None)
        if self._lists:
            self._drop_lists(key)

    def _drop_lists(self, key: tuple[Place, str]) -> None:
        if (dropped := self._lists.pop(key, None)) is not None:
            self._lists_bytes -= _size(dropped.packed)


def _size(packed: Packed) -> int:
    return sum(map(len, packed.values()))
