"""Presence: the state that each client announces, as a table with timeouts (Yjs' awareness).

Laws:
- An entry belongs to the connection of this node, or the other node, that announced it first, until
  that one leaves or the entry ages out; others cannot change it.
- Of one client the newer clock counts; at an equal clock its leaving does.
- An entry that is not renewed for `timeout_s` ends. An ended entry is remembered
  for as long again, so that an echo of it brings nobody back.
- Nothing here is durable. There is one promise: an entry that is not renewed
  disappears, on every node.

- The states of a space grow only while they are at most `SHARE` times what is free, as leases do.

Times are seconds on the caller's clock. States are opaque; `GONE` is one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator

from shoal.records import NamedTuple

GONE = b"null"
"""The state of a client that left: JSON, as every state is."""

SHARE = 7  # One space alone gets 7/8 of the room, two 7/15 each.


class Topic(NamedTuple):
    """Where a client is present."""

    space: str
    document: str  # Empty: in the space itself.


class ClientState(NamedTuple):
    """An entry: a Yjs client's state, with the clock that orders its changes."""

    client: int
    clock: int
    state: bytes


class _Held(NamedTuple):
    clock: int
    state: bytes
    owner: Hashable | None  # None once it is gone.
    until: float


class Elsewhere(NamedTuple):
    """The owner of an entry that another node announced."""

    node: bytes


class Awareness:
    """`entries_max` bounds the entries of a topic, `bytes_max` the states of all."""

    def __init__(self, *, timeout_s: float, entries_max: int, bytes_max: int) -> None:
        self._timeout_s = timeout_s
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._topics: dict[Topic, dict[int, _Held]] = {}
        self._bytes = 0
        self._bytes_of: Counter[str] = Counter()  # By space.

    def __len__(self) -> int:
        """The number of entries, including ended ones that are remembered."""
        return sum(map(len, self._topics.values()))

    def announce(self, owner: Hashable, topic: Topic, entry: ClientState, now: float) -> ClientState | None:
        """Take an owner's announcement, if it may make it.

        Returns the remembered entry if the client is held to be gone: to come back it must announce a newer clock. Else None.
        """
        held = self._topics.get(topic, {}).get(entry.client)
        if held is None or held.owner is None:
            if entry.state != GONE and (held is None or entry.clock > held.clock):
                self._hold(owner, topic, entry, now)
            elif held is not None and entry.state != GONE:
                return ClientState(entry.client, held.clock, GONE)
        elif (held.owner == owner and _supersedes(entry, held)) or (
            # A client that moved here from another node is ahead of the entry from there.
            isinstance(held.owner, Elsewhere) and not isinstance(owner, Elsewhere) and entry.clock > held.clock
        ):
            self._hold(owner, topic, entry, now)
        return None

    def hear(self, node: bytes, topic: Topic, entry: ClientState, now: float) -> bool:
        """Take another node's announcement of a client of its own; True if it changed anything."""
        held = self._topics.get(topic, {}).get(entry.client)
        owner = Elsewhere(node)
        if held is None:
            return entry.state != GONE and self._hold(owner, topic, entry, now)
        if held.owner is not None and not isinstance(held.owner, Elsewhere):
            return False
        if held.owner == owner and (entry.clock, entry.state) == (held.clock, held.state):
            self._put(topic, entry.client, held._replace(until=now + self._timeout_s))
            return False
        return _supersedes(entry, held) and self._hold(owner, topic, entry, now)

    def leave(self, owner: Hashable, now: float) -> list[tuple[Topic, ClientState]]:
        """End all entries of an owner, and return them."""
        return self._end([(topic, client) for topic, client, held in self._all() if held.owner == owner], now)

    def expire(self, now: float) -> list[tuple[Topic, ClientState]]:
        """End the entries that were not renewed, and return them. Forget those that ended long enough ago."""
        late = [(topic, client, held) for topic, client, held in self._all() if held.until <= now]
        for topic, client, held in late:
            if held.owner is None:
                self._drop(topic, client)
        return self._end([(topic, client) for topic, client, held in late if held.owner is not None], now)

    def entries(self, topic: Topic) -> list[ClientState]:
        """The entries of those who are present."""
        held = self._topics.get(topic, {})
        return [ClientState(client, one.clock, one.state) for client, one in held.items() if one.owner is not None]

    def own(self) -> Iterator[tuple[Topic, ClientState]]:
        """The entries that were announced at this node."""
        for topic, client, held in self._all():
            if held.owner is not None and not isinstance(held.owner, Elsewhere):
                yield topic, ClientState(client, held.clock, held.state)

    def find(self, topic: Topic, client: int) -> ClientState | None:
        """A client's entry, ended or not; None if it is not known."""
        held = self._topics.get(topic, {}).get(client)
        return None if held is None else ClientState(client, held.clock, held.state)

    def has_room(self, topic: Topic, client: int, size: int) -> bool:
        """Whether there is room for a state of `size` bytes."""
        there = self._topics.get(topic, {})
        known = there.get(client)
        more = size - (0 if known is None else len(known.state))
        if known is None and len(there) >= self._entries_max:
            return False
        return more <= 0 or self._bytes_of[topic.space] + more <= SHARE * (self._bytes_max - self._bytes - more)

    def count(self, space: str, *, but: Iterable[tuple[Topic, int]] = ()) -> int:
        """How many clients are present in a space and its documents, but for these."""
        named = set(but)
        return sum(
            held.owner is not None and (topic, client) not in named
            for topic, client, held in self._all()
            if topic.space == space
        )

    def _all(self) -> list[tuple[Topic, int, _Held]]:
        return [(topic, client, held) for topic, there in self._topics.items() for client, held in there.items()]

    def _hold(self, owner: Hashable, topic: Topic, entry: ClientState, now: float) -> bool:
        if not self.has_room(topic, entry.client, len(entry.state)):
            return False
        owned = None if entry.state == GONE else owner
        self._put(topic, entry.client, _Held(entry.clock, entry.state, owned, now + self._timeout_s))
        return True

    def _end(self, places: list[tuple[Topic, int]], now: float) -> list[tuple[Topic, ClientState]]:
        ended = []
        for topic, client in places:
            held = self._topics[topic][client]
            self._put(topic, client, _Held(held.clock, GONE, None, now + self._timeout_s))
            ended.append((topic, ClientState(client, held.clock, GONE)))
        return ended

    def _put(self, topic: Topic, client: int, held: _Held) -> None:
        there = self._topics.setdefault(topic, {})
        before = there.get(client)
        self._count(topic, len(held.state) - (0 if before is None else len(before.state)))
        there[client] = held

    def _drop(self, topic: Topic, client: int) -> None:
        there = self._topics[topic]
        self._count(topic, -len(there.pop(client).state))
        if not there:
            del self._topics[topic]

    def _count(self, topic: Topic, more: int) -> None:
        self._bytes += more
        self._bytes_of[topic.space] += more
        if not self._bytes_of[topic.space]:
            del self._bytes_of[topic.space]


def _supersedes(entry: ClientState, held: _Held) -> bool:
    return entry.clock > held.clock or (entry.clock == held.clock and entry.state == GONE != held.state)
