"""Settle whose rows of an object are right where the log no longer reaches back: another owner's log decides, or the majority.

Laws:
- Only hashes of rows at equal vectors count, each owner's once, over a range of keys that all of them can compare.
- A whole log decides, however many owners have other rows: a disk that altered a row may have filled a new one. An owner that
  says so is not believed: it is asked for the log, which must end in the chain hashes here, and which is folded here
  (`shown`). Its word alone replaces nothing; it is logged, and counted in `unshown`.
- Else a strict majority of all owners must have equal rows. Without one, nothing is replaced, and every side reports the
  difference.
- Content that does not match its hash has no vote: it is replaced by any owner's that does.
- The rows come from one owner that has the right ones, must match its hash, and replace those here in one write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from shoal.cluster.messages import Message, ObjectRows, ObjectRowsRequest, Objects
from shoal.cluster.scrub import UNSURE, Piece, digest_of
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node.database import Database
from shoal.node.verification.evidence import REPAIR_WAIT_S, Ask, shown_by
from shoal.node.verification.rebuilding import Outcome
from shoal.node.verification.report import ObjectPlace, is_damaged, text_of
from shoal.records import NamedTuple

_TRIES_MAX = 3  # Of an owner, to show its log of an object: a link may be cut meanwhile.


class Owners(NamedTuple):
    """Those that have a link and count, and the number of all, this node included."""

    linked: list[bytes]
    size: int


class _Poll(NamedTuple):
    """A range about which owners were asked; their answers, by node, None from those that hold no row of the object."""

    name: bytes
    piece: Piece
    votes: dict[bytes, bytes | None]
    claims: set[bytes]  # The owners among these that say that their log makes their rows.
    asked: int
    done: asyncio.Event


class Majority:
    """Asks the other owners, and answers them. One range is settled at a time."""

    def __init__(
        self,
        database: Database,
        *,
        owners: Callable[[], Owners],
        send: Callable[[bytes, Message], None],
        ask: Ask,
        named: Callable[[bytes], str],
        config: Config,
    ) -> None:
        self._database = database
        self._owners = owners
        self._send = send
        self._ask = ask
        self._named = named
        self._config = config
        self._failed: Counter[tuple[bytes, bytes]] = Counter()  # By object that differs, and owner: claims that were not shown.
        self.unshown = 0  # Claims to have a log that decides, which were not shown, in this incarnation.
        self._wait_s = REPAIR_WAIT_S
        self._poll: _Poll | None = None
        self._wanted: dict[int, tuple[bytes, asyncio.Future[ObjectRows]]] = {}
        self._last_id = 0
        self.handlers: dict[type[Any], Callable[[bytes, Any], None]] = {
            ObjectRowsRequest: self._answer,
            ObjectRows: self._given,
        }

    async def settle(self, place: ObjectPlace, name: bytes, start: bytes, stop: bytes) -> Outcome:
        """Settle the rows of an object in a range of keys in which they differ from a peer's."""
        piece = self._database.exchange.evidence.within(place.partition, start, stop)
        if piece is None or name in piece.unsure:
            return Outcome.CHANGING
        if piece.stop != stop:
            return Outcome.TOO_LARGE
        try:
            damaged = {key for key, value in piece.rows_of(name) if is_damaged(place, key[len(name) :], value)}
            if damaged:
                return await self._restore(place, name, piece, damaged)
            votes, claims = await self._votes(piece, name)
            shown = await self._shown(place, name, claims)
            if shown is not None:
                return shown
            own = piece.objects().get(name)
            [(winner, count)] = Counter([own, *votes.values()]).most_common(1)
            if 2 * count <= self._owners().size:
                return Outcome.UNDECIDED
            if winner == own:
                return Outcome.CONFIRMED
            rows = {} if winner is None else await self._fetched(piece, name, winner, votes)
            if rows is None:
                return Outcome.LACKING
            if any(is_damaged(place, key[len(name) :], value) for key, value in rows.items()):
                return Outcome.UNDECIDED
            return await self._replace(place, name, piece, rows)
        except ShoalError:
            return Outcome.REFUSED

    def may_show(self, name: bytes, node: bytes) -> bool:
        """Whether an owner is still asked for the log that it says makes its rows of an object."""
        return self._failed[name, node] < _TRIES_MAX

    def forget(self, name: bytes) -> None:
        """The object does not differ any more: its owners may show their logs again."""
        for failed in [failed for failed in self._failed if failed[0] == name]:
            del self._failed[failed]

    # ── logs ──────────────────────────────────────────────────────────────────

    async def _shown(self, place: ObjectPlace, name: bytes, claims: Iterable[bytes]) -> Outcome | None:
        """Rebuild the object from the log of the first of these owners that shows it; None if none does."""
        for node in claims:
            if not self.may_show(name, node):
                continue
            outcome = await self._shown_by(place, node)
            if outcome is Outcome.SOUND:
                return Outcome.PROVED
            if outcome is Outcome.REPLACED:
                return Outcome.MENDED
            self._failed[name, node] += 1
            self.unshown += 1
            log(events.LOG_UNSHOWN, peer=self._named(node), object=text_of(place))
        return None

    async def _shown_by(self, place: ObjectPlace, node: bytes) -> Outcome | None:
        based = self._database.exchange.rebuilder.left(place.partition)
        shown = None if based is None else await shown_by(node, place, based, ask=self._ask, config=self._config)
        return None if shown is None else await self._database.exchange.rebuilder.rebuild_with(place, shown)

    # ── votes ─────────────────────────────────────────────────────────────────

    async def _votes(self, piece: Piece, name: bytes) -> tuple[dict[bytes, bytes | None], list[bytes]]:
        """The hashes of the owners that answer; and those owners that say that their log makes their rows."""
        asked = self._owners().linked
        poll = self._poll = _Poll(name, piece, {}, set(), len(asked), asyncio.Event())
        for node in asked:
            self._send(node, piece.told_of_objects(answer=True))
        try:
            async with asyncio.timeout(self._wait_s):
                await poll.done.wait()
        except TimeoutError:
            pass  # Those that answered may be a majority.
        finally:
            self._poll = None
        counted = set(self._owners().linked)
        return (
            {node: vote for node, vote in poll.votes.items() if node in counted},
            sorted(poll.claims & counted),
        )

    def heard(self, node: bytes, message: Objects) -> None:
        """Take an owner's hashes, if they are about the range that is being settled."""
        poll = self._poll
        if poll is None or (message.partition, message.start, message.stop) != (
            poll.piece.partition,
            poll.piece.start,
            poll.piece.stop,
        ):
            return
        vote = dict(message.objects).get(poll.name)
        if message.vector == poll.piece.vector and vote != UNSURE:
            poll.votes[node] = vote
            if poll.name in message.proved:
                poll.claims.add(node)
        if len(poll.votes) >= poll.asked:
            poll.done.set()

    # ── rows ──────────────────────────────────────────────────────────────────

    async def _fetched(
        self, piece: Piece, name: bytes, digest: bytes, votes: dict[bytes, bytes | None]
    ) -> dict[bytes, bytes] | None:
        """The rows with this hash, from the first owner that gives them."""
        for node in [node for node, vote in votes.items() if vote == digest]:
            found = await self._asked(node, piece, name)
            if (
                found is not None
                and digest_of(name, found.rows) == digest
                and all(key.startswith(name) for key, _ in found.rows)
            ):
                return dict(found.rows)
        return None

    async def _asked(self, node: bytes, piece: Piece, name: bytes) -> ObjectRows | None:
        self._last_id += 1
        id = self._last_id
        answer: asyncio.Future[ObjectRows] = asyncio.get_running_loop().create_future()
        self._wanted[id] = node, answer
        self._send(node, ObjectRowsRequest(id, piece.partition, piece.vector, piece.start, piece.stop, name))
        try:
            async with asyncio.timeout(self._wait_s):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._wanted[id]

    def _answer(self, node: bytes, request: ObjectRowsRequest) -> None:
        """Send a peer the rows that it wants of an object, or none if they cannot be compared now."""
        piece = self._database.exchange.evidence.within(request.partition, request.start, request.stop)
        usable = piece is not None and (piece.vector, piece.stop) == (request.vector, request.stop)
        rows = piece.rows_of(request.object) if piece is not None and usable else []
        self._send(node, ObjectRows(request.id, rows))

    def _given(self, node: bytes, found: ObjectRows) -> None:
        """Take a peer's rows; those for an unknown or late request are ignored."""
        asked, answer = self._wanted.get(found.id, (b"", None))
        if answer is not None and asked == node and not answer.done():
            answer.set_result(found)

    async def _restore(self, place: ObjectPlace, name: bytes, piece: Piece, damaged: set[bytes]) -> Outcome:
        """Replace damaged content by that of other owners, whichever have it whole."""
        found: dict[bytes, bytes] = {}
        for node in self._owners().linked:
            answer = await self._asked(node, piece, name)
            rows = () if answer is None else answer.rows
            found |= {key: value for key, value in rows if key in damaged and not is_damaged(place, key[len(name) :], value)}
            if found.keys() == damaged:
                break
        if not found:
            return Outcome.LACKING
        replaced = await self._replace(place, name, piece, dict(piece.rows_of(name)) | found)
        return Outcome.RESTORED if replaced is Outcome.ADOPTED else replaced

    async def _replace(self, place: ObjectPlace, name: bytes, piece: Piece, rows: dict[bytes, bytes]) -> Outcome:
        now = self._database.exchange.evidence.within(piece.partition, piece.start, piece.stop)
        if now is None or (now.vector, now.stop) != (piece.vector, piece.stop):
            return Outcome.CHANGING
        here = dict(now.rows_of(name))
        flawed = {
            key[len(name) :]: rows.get(key) for key in sorted(here.keys() | rows.keys()) if here.get(key) != rows.get(key)
        }
        if flawed:
            await self._database.exchange.rebuilder.write(place, flawed)
        return Outcome.ADOPTED
