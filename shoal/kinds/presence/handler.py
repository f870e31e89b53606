"""Presence: the entries that sessions of this node and of its peers announce, and their followers.

Laws:
- A session's entries are removed when it is closed. An entry that is announced or
  renewed here is sent to every peer at once; it may be lost.
- A slow follower gets only the newest entry of each client, so what waits for it is
  bounded by the number of entries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from shoal.cluster.messages import PRESENT_MAX
from shoal.cluster.messages import Present as PresentMessage
from shoal.config import Config
from shoal.errors import InvalidValue, Overloaded, ShoalError, ShuttingDown, TooLarge
from shoal.kinds.presence.state import GONE, Awareness, ClientState, Topic
from shoal.names import check_name
from shoal.node.handler import Answers
from shoal.protocol.bookmark import Bookmark
from shoal.protocol.requests import Announce, Announced, AnyReply, FollowPresence, Presence, Present, ReadPresence

PRESENCE_STATE_BYTES_MAX = 16 * 1024  # The presence state of one client.
PRESENCE_ENTRIES_MAX = 1024  # In one document or space, including those that left a moment ago.
PRESENCE_BYTES_MAX = 16 * 1024 * 1024  # All presence states together.

CLIENT_MAX = 2**53 - 1
_LOOKS = 10  # Checks for expired entries within `presence_timeout_s`.

Share = Callable[[PresentMessage], None]
OfSessions = Mapping[type, Callable[[object, Any], AnyReply]]
"""Answers requests whose effect ends with the session that makes them, which is their first argument."""


class PresenceFollower:
    """An asynchronous iterator over new entries, first all that exist; it ends with an error, or never."""

    def __init__(self, entries: Iterable[ClientState]) -> None:
        self._news = {entry.client: entry for entry in entries}
        self._first = True
        self._ended: ShoalError | None = None
        self._wake = asyncio.Event()

    def __aiter__(self) -> PresenceFollower:
        return self

    async def __anext__(self) -> Presence:
        while not self._news and not self._first:
            if self._ended is not None:
                raise self._ended
            self._wake.clear()
            await self._wake.wait()
        news, self._news, self._first = self._news, {}, False
        return Presence([Present(*entry) for entry in news.values()])

    def tell(self, entry: ClientState) -> None:
        """Add a new entry, which replaces an older one of its client that was not taken yet."""
        self._news[entry.client] = entry
        self._wake.set()

    def end(self, error: ShoalError) -> None:
        """Raise `error` once all new entries were taken."""
        self._ended = error
        self._wake.set()


class Presences:
    """The presence of one node, in memory only. If set, `share` sends a message to every peer, as far as there is room."""

    def __init__(self, config: Config, now: Callable[[], float]) -> None:
        self._config = config
        self._now = now
        self._table = Awareness(
            timeout_s=config.presence_timeout_s,
            entries_max=PRESENCE_ENTRIES_MAX,
            bytes_max=PRESENCE_BYTES_MAX,
        )
        self._followers: dict[Topic, dict[PresenceFollower, None]] = {}
        self._following = 0
        self._unshared: dict[tuple[Topic, int], ClientState] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False
        self.answers: Answers = {ReadPresence: self._read}
        self.of_sessions: OfSessions = {Announce: self._announce}
        self._sharing: Share | None = None

    # ── sessions ──────────────────────────────────────────────────────────────

    def _announce(self, owner: object, request: Announce) -> Announced:
        """Announce entries of a session, which owns them until it leaves; the reply has entries that superseded some of them.

        Raises:
            InvalidName: the space or the document has an illegal name.
            InvalidValue: a state is not JSON, or a client id or clock is out of range.
            TooLarge: a state is larger than `PRESENCE_STATE_BYTES_MAX`.
            Overloaded: there are too many entries, or their states are too large.
        """
        topic = _topic(request.space, request.document)
        for present in request.entries:
            self._check(topic, present)
        gone = []
        for present in request.entries:
            entry = ClientState(present.client, present.clock, present.state)
            before = self._table.find(topic, entry.client)
            stands = self._table.announce(owner, topic, entry, self._now())
            if stands is not None:
                gone.append(Present(*stands))
            elif self._table.find(topic, entry.client) != before:
                self._changed(topic, entry)
                self._share(topic, entry)
        self._look_later()
        return Announced(gone)

    def count(self, space: str) -> int:
        """How many clients are present in a space and in its documents, as far as this node knows."""
        return self._table.count(space)

    def joining(self, request: Announce) -> tuple[int, int]:
        """How many clients are present in the space beside those of a request, and how many more this one brings."""
        topic = Topic(request.space, request.document)
        named = {present.client for present in request.entries if present.state != GONE}
        others = self._table.count(request.space, but=((topic, client) for client in named))
        present = {entry.client for entry in self._table.entries(topic)}
        return others, len(named) if named - present else 0

    def leave(self, owner: object) -> None:
        """Remove the entries of a session that has ended."""
        for topic, entry in self._table.leave(owner, self._now()):
            self._changed(topic, entry)
            self._share(topic, entry)

    async def _read(self, request: ReadPresence, _bookmark: Bookmark) -> Presence:
        topic = _topic(request.space, request.document)
        return Presence([Present(*entry) for entry in self._table.entries(topic)])

    @contextmanager
    def follower(self, subscription: FollowPresence) -> Iterator[PresenceFollower]:
        """A follower of a space or a document, for as long as the context is entered.

        Raises:
            InvalidName: the space or the document has an illegal name.
            Overloaded: this node has `subscribers_max` followers.
        """
        topic = _topic(subscription.space, subscription.document)
        if self._following >= self._config.subscribers_max:
            raise Overloaded(
                f"this node has {self._following} followers, which is the maximum. Try again later.", retry_after_s=1.0
            )
        follower = PresenceFollower(self._table.entries(topic))
        members = self._followers.setdefault(topic, {})
        members[follower] = None
        self._following += 1
        try:
            yield follower
        finally:
            self._following -= 1
            members.pop(follower, None)
            if not members:
                self._followers.pop(topic, None)

    def stop(self) -> None:
        """End all followers with `ShuttingDown`, and stop the timer."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        for members in list(self._followers.values()):
            for follower in list(members):
                follower.end(ShuttingDown("the node is stopping. Follow again, here later or elsewhere."))

    # ── peers ─────────────────────────────────────────────────────────────────

    def replicate(self, share: Share) -> None:
        """From now on `share` is called with what peers must hear."""
        self._sharing = share

    def heard(self, node: bytes, message: PresentMessage) -> None:
        """Take a peer's entries. Malformed ones and those without room are dropped; a renewal brings the latter again."""
        for space, document, client, clock, state in message.entries:
            topic, entry = Topic(space, document), ClientState(client, clock, state)
            sound = len(state) <= PRESENCE_STATE_BYTES_MAX and _is_json(state)
            if sound and self._table.hear(node, topic, entry, self._now()):
                self._changed(topic, entry)
        self._look_later()

    def own(self) -> Iterator[PresentMessage]:
        """All entries that were announced here, for a peer that has just been linked."""
        return _messages(self._table.own())

    def _share(self, topic: Topic, entry: ClientState) -> None:
        if self._sharing is None:
            return
        if not self._unshared:
            asyncio.get_running_loop().call_soon(self._share_now)
        self._unshared[topic, entry.client] = entry

    def _share_now(self) -> None:
        unshared, self._unshared = self._unshared, {}
        if self._sharing is not None:
            for message in _messages((topic, entry) for (topic, _), entry in unshared.items()):
                self._sharing(message)

    # ── time ──────────────────────────────────────────────────────────────────

    def _look_later(self) -> None:
        if self._timer is None and len(self._table) and not self._stopped:
            delay_s = self._config.presence_timeout_s / _LOOKS
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._look)

    def _look(self) -> None:
        self._timer = None
        for topic, entry in self._table.expire(self._now()):
            self._changed(topic, entry)  # Not sent to peers: every node expires entries itself.
        self._look_later()

    # ── helpers ───────────────────────────────────────────────────────────────

    def _changed(self, topic: Topic, entry: ClientState) -> None:
        for follower in self._followers.get(topic, ()):
            follower.tell(entry)

    def _check(self, topic: Topic, present: Present) -> None:
        if not (0 <= present.client <= CLIENT_MAX and 0 <= present.clock <= CLIENT_MAX):
            raise InvalidValue(
                "the client id and the clock of a presence entry must have at most 53 bits. Nothing was announced."
            )
        if len(present.state) > PRESENCE_STATE_BYTES_MAX:
            raise TooLarge(
                f"a presence state has {len(present.state)} bytes; "
                f"{PRESENCE_STATE_BYTES_MAX} are allowed. Nothing was announced."
            )
        if not _is_json(present.state):
            raise InvalidValue("a presence state is not JSON. Nothing was announced.")
        if present.state != GONE and not self._table.has_room(topic, present.client, len(present.state)):
            raise Overloaded(
                "there are too many presence entries, or their states are too large. Nothing was announced. Try again later.",
                retry_after_s=1.0,
            )


def _is_json(state: bytes) -> bool:
    """Whether a state is JSON. Of all spellings of null only `GONE` is, which says that a client has left."""
    try:
        return msgspec.json.decode(state) is not None or state == GONE
    except (ValueError, RecursionError):
        return False


def _topic(space: str, document: str) -> Topic:
    return Topic(check_name("space", space), check_name("document", document) if document else "")


def _messages(entries: Iterable[tuple[Topic, ClientState]]) -> Iterator[PresentMessage]:
    listed = [(*topic, *entry) for topic, entry in entries]
    for start in range(0, len(listed), PRESENT_MAX):
        yield PresentMessage(listed[start : start + PRESENT_MAX])
