"""Settle whose rows of an object are right where the log no longer reaches back: another owner's log decides, or the majority.

Laws:
- Only hashes of rows at equal vectors count, each owner's once, over a range of keys that all of them can compare.
- If an owner's log is whole and makes the rows that it has, they are right, however many owners have others: a disk that
  altered a row may have filled a new one. If the logs of two owners make different rows, the program has a bug, and nothing is
  replaced.
- Else a strict majority of all owners must have equal rows. Without one, nothing is replaced, and every side reports the
  difference.
- Content that does not match its hash has no vote: it is replaced by any owner's that does.
- The rows come from one owner that has the right ones, must match its hash, and replace those here in one write.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

from shoal.cluster.messages import Message, ObjectRows, ObjectRowsRequest, Objects
from shoal.cluster.scrub import UNSURE, Piece, digest_of
from shoal.config import Config
from shoal.errors import ShoalError
from shoal.node.database import Database
from shoal.node.verification.integrity import is_damaged
from shoal.node.verification.rebuilding import Outcome
from shoal.node.verification.report import ObjectPlace


class Owners(NamedTuple):
    """Those that have a link and count, and the number of all, this node included."""

    linked: list[bytes]
    size: int


class _Poll(NamedTuple):
    """A range about which owners were asked; their answers, by node, None from those that hold no row of the object."""

    name: bytes
    piece: Piece
    votes: dict[bytes, bytes | None]
    proofs: dict[bytes, bytes | None]  # Those of these that their owner's log makes.
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
        config: Config,
    ) -> None:
        self._database = database
        self._owners = owners
        self._send = send
        self._wait_s = config.repair_wait_s
        self._poll: _Poll | None = None
        self._wanted: dict[int, tuple[bytes, asyncio.Future[ObjectRows]]] = {}
        self._last_id = 0
        self.handlers: dict[type[Any], Callable[[bytes, Any], None]] = {
            ObjectRowsRequest: self._answer,
            ObjectRows: self._given,
        }

    async def settle(self, place: ObjectPlace, name: bytes, start: bytes, stop: bytes) -> Outcome:
        """Settle the rows of an object in a range of keys in which they differ from a peer's."""
        piece = self._database.evidence.within(place.partition, start, stop)
        if piece is None or name in piece.unsure:
            return Outcome.CHANGING
        if piece.stop != stop:
            return Outcome.TOO_LARGE
        try:
            damaged = {key for key, value in piece.rows_of(name) if is_damaged(place, key[len(name) :], value)}
            if damaged:
                return await self._restore(place, name, piece, damaged)
            votes, proofs = await self._votes(piece, name)
            own = piece.objects().get(name)
            [(winner, count)] = Counter(proofs or [own, *votes.values()]).most_common(1)
            if len(set(proofs)) > 1 or (not proofs and 2 * count <= self._owners().size):
                return Outcome.UNDECIDED
            if winner == own:
                return Outcome.PROVED if proofs else Outcome.CONFIRMED
            rows = {} if winner is None else await self._fetched(piece, name, winner, votes)
            if rows is None:
                return Outcome.LACKING
            if any(is_damaged(place, key[len(name) :], value) for key, value in rows.items()):
                return Outcome.UNDECIDED
            replaced = await self._replace(place, name, piece, rows)
            return Outcome.MENDED if proofs and replaced is Outcome.ADOPTED else replaced
        except ShoalError:
            return Outcome.REFUSED

    # ── votes ─────────────────────────────────────────────────────────────────

    async def _votes(self, piece: Piece, name: bytes) -> tuple[dict[bytes, bytes | None], list[bytes | None]]:
        """The hashes of the owners that answer; and those of them that a log makes."""
        asked = self._owners().linked
        poll = self._poll = _Poll(name, piece, {}, {}, len(asked), asyncio.Event())
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
            [vote for node, vote in poll.proofs.items() if node in counted],
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
                poll.proofs[node] = vote
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
        piece = self._database.evidence.within(request.partition, request.start, request.stop)
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
        now = self._database.evidence.within(piece.partition, piece.start, piece.stop)
        if now is None or (now.vector, now.stop) != (piece.vector, piece.stop):
            return Outcome.CHANGING
        here = dict(now.rows_of(name))
        flawed = {
            key[len(name) :]: rows.get(key) for key in sorted(here.keys() | rows.keys()) if here.get(key) != rows.get(key)
        }
        if flawed:
            await self._database.rebuilder.write(place, flawed)
        return Outcome.ADOPTED
