"""The scrub compares this node's rows with those of its peers, reports differences, and replaces wrong rows here.

Laws:
- Of two peers the one with the lesser node id asks, so that each pair is compared once in a pass.
- A difference stays in `told` until the rows are equal again. A node replaces only its own rows, and only by what its own
  log produces; or, if operations have left that log, by what it produces together with what a peer shows of its own, or else by
  what a majority of the owners has (`majority`).
- One object is rebuilt at a time.
- An object of which no majority of the owners has equal rows is looked at once in `REPAIR_WAIT_S`, however often peers
  report it: else three owners of three opinions would ask each other without an end.
- Equal rows show the same: that the documents which are open here show what their rows build is proved beside (`Proving`).

Prove that open documents show what their stored updates build: one after the other, in steps, at the scrub's pace.

Laws:
- A document is built from its rows alone, without its snapshot, and compared with the live one where both hold the same
  updates. If it moved meanwhile, it is looked at again in the next round.
- One that shows something else is reported, and dropped with its snapshot: its next use builds it from its rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from math import inf

from msgspec import Raw

from shoal.cluster.messages import Message, Objects, Range, Rows, Supply, Want
from shoal.cluster.scrub import Differences, Piece, Walk
from shoal.config import Config
from shoal.crdt.applier import Blobs, is_gone
from shoal.crdt.dot import Dot
from shoal.errors import ShoalError
from shoal.kinds.document.serving.opening import ROOTS_MAX
from shoal.kinds.document.state import compaction, document
from shoal.kinds.document.state.live import Building, LiveDocument
from shoal.kinds.document.state.readiness import parts
from shoal.logs import events
from shoal.logs.lines import log
from shoal.node import transaction
from shoal.node.database import Database
from shoal.node.handler import Target
from shoal.node.turns import Steps, document_pace, in_turns
from shoal.node.verification.evidence import REPAIR_WAIT_S, bounds
from shoal.node.verification.majority import Majority, Owners
from shoal.node.verification.rebuilding import Outcome, Supplied
from shoal.node.verification.report import ObjectPlace, text_of
from shoal.storage import keys


class Proving:
    """Looks at the documents that are open on one node. `differs` is told of each that showed something else."""

    def __init__(self, database: Database, config: Config, *, differs: Callable[[ObjectPlace], None]) -> None:
        self._database = database
        self._config = config
        self._differs = differs
        self._left: list[bytes] = []  # Of this round: the keys of their snapshots.
        self._next_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._stopped = False

    async def stop(self) -> None:
        """Cancel what is under way. No more begins."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def tick(self, now: float) -> None:
        """Look at the next document, if one is due. `now`: monotonic seconds."""
        if self._task is not None or self._stopped or now < self._next_at:
            return
        if not self._left:
            self._left = list(self._database.documents.held)
            self._next_at = now + self._config.scrub_interval_s
        while self._left:
            key = self._left.pop()
            live = self._database.documents.held.get(key)
            if live is not None:
                self._next_at = max(self._next_at if not self._left else 0.0, now + live.size / self._config.scrub_bytes_per_s)
                self._task = asyncio.get_running_loop().create_task(self._prove(key))
                return

    async def _prove(self, key: bytes) -> None:
        try:
            with suppress(ShoalError):  # A part of it is on its way, or cannot be read: its use says so.
                place = ObjectPlace(*keys.split_object(key)[:4])
                if await in_turns(self.differing(key)):
                    log(events.DOCUMENT_REBUILT, object=text_of(place))
                    self._differs(place)
                    await self._database.exchange.rebuilder.write(place, {})
        finally:
            self._task = None

    def differing(self, key: bytes) -> Steps[bool]:
        """Whether the live document shows something else than its rows build, although both hold the same updates.

        Raises:
            StoreCorrupt: it cannot be built.
        """
        target = Target(*keys.split_object(key)[1:4])
        pace = document_pace()
        begun = self._database.document(target).rows
        if compaction.has_gap(begun):
            return False
        building = Building()
        for each in compaction.standing(begun):
            for part in parts(each.merged, pace, whole_max=pace.bytes):
                building.add([part])
                yield
        for page in document.pages(lambda: self._database.document(target).rows, pace):
            building.add([update for _, update in page])
            yield
        rows, live = self._database.document(target).rows, self._database.documents.held.get(key)
        if live is None or rows.key(b"") != begun.key(b"") or compaction.has_gap(rows):
            return False
        built = LiveDocument(
            bytes_max=self._config.document_bytes_max,
            roots_max=ROOTS_MAX,
            built=building,
            updates=[document.withdrawn(rows)],
            roots=live.roots,
        )
        if built.extent() != live.extent():
            return False
        fed = live.fed
        expected = yield from built.comparing(pace.updates)
        if live.fed != fed or live is not self._database.documents.held.get(key):
            return False  # It may have taken declarations of roots alone, which leave its extent as it was.
        shown = yield from live.comparing(pace.updates)
        return shown != expected and live is self._database.documents.held.get(key)


ROWS_DIFFER_MAX = 1024  # Objects, counted per peer, that are known to have different rows there.


_FIRST_ID = 1 << 40  # Of the scrub's requests for operations: far above the ids of the replication.
_WANTED_MAX = 256  # Operations in one of them.


class Scrubber:
    """The scrub of one node. `linked` returns the nodes that have a link; `named` gives the address of a node, for people."""

    def __init__(
        self,
        database: Database,
        *,
        own: bytes,
        send: Callable[[bytes, Message], None],
        linked: Callable[[], Iterable[bytes]],
        named: Callable[[bytes], str],
        owners: Callable[[], Owners],
        config: Config,
    ) -> None:
        self.majority = Majority(database, owners=owners, send=send, ask=self._ask, named=named, config=config)
        self._database = database
        self._own = own
        self._send = send
        self._linked = linked
        self._named = named
        self._config = config
        self._walk = Walk(interval_s=config.scrub_interval_s, bytes_per_s=config.scrub_bytes_per_s)
        self._differences = Differences(ROWS_DIFFER_MAX)
        self._outcomes: dict[bytes, Outcome] = {}  # By object that differs.
        self._against: dict[bytes, set[bytes]] = {}  # By object whose rows most owners have: the peers that have others.
        self._undecided: dict[bytes, float] = {}  # By object of which no majority has equal rows: when it was last looked at.
        self._due: dict[bytes, None] = {}  # Objects that must be rebuilt.
        self._ranges: dict[bytes, tuple[bytes, bytes]] = {}  # Of these: the keys among which they differ, if they do.
        self._reported: dict[bytes, float] = {}  # And when a peer reported them.
        self._dangling: set[bytes] = set()  # Threads with a save that builds on erased data; at most `ROWS_DIFFER_MAX`.
        self._again_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._proving = Proving(database, config, differs=self._showed_otherwise)
        self._wanted: dict[int, tuple[bytes, asyncio.Future[Supply]]] = {}
        self._last_id = _FIRST_ID
        self._stopped = False
        self.replaced = 0  # Objects, in this incarnation.
        self.noticed: set[bytes] = set()  # Objects that differed, in this incarnation; at most `ROWS_DIFFER_MAX`.
        self.incomplete: set[bytes] = set()  # Threads with a save that needed data swept here; at most as many.

    async def stop(self) -> None:
        """Cancel the rebuilding. No more begins."""
        self._stopped = True
        await self._proving.stop()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def forget(self, peer: bytes) -> None:
        """Drop the differences from a node that another directory has replaced."""
        self._differences.leave(peer)

    def forget_partition(self, number: int) -> None:
        """Forget what was found of a partition, because its rows were replaced."""
        prefix = bounds(number)[0]
        for name in {*self._outcomes, *self._dangling, *self._due, *(found.object for found in self._differences.all())}:
            if name.startswith(prefix):
                self._differences.forget(name)
                self._drop(name)
                self._dangling.discard(name)
                self._due.pop(name, None)

    @property
    def unshown(self) -> int:
        """How often a peer said that its log decides about rows, and did not show it, in this incarnation."""
        return self.majority.unshown

    @property
    def fetches(self) -> bool:
        """Whether a save lacks data that it builds on, for which peers are asked repeatedly."""
        return bool(self._dangling)

    def passed_ms(self, now: float) -> int | None:
        """How long ago all rows here had been sent to the peers that this node compares with; None: they never were."""
        return None if self._walk.passed is None else round((now - self._walk.passed) * 1000)

    @property
    def told(self) -> list[str]:
        """The objects that differ, and threads with a save that cannot be read, for people."""
        differing = self._differences.all()
        dead = sorted(self._dangling - {found.object for found in differing})
        return [self._text(found.object, found.peer) for found in differing] + [
            f"{text_of(place_of(name))}: {outcome.value}" for name in dead if (outcome := self._outcomes.get(name)) is not None
        ]

    def _text(self, name: bytes, peer: bytes) -> str:
        outcome = self._outcomes.get(name)
        what = "they are being compared with its log" if outcome is None else f"here {outcome.value}"
        return f"the rows of {text_of(place_of(name))} differ from those of {self._named(peer)} at equal vectors: {what}"

    # ── comparing ─────────────────────────────────────────────────────────────

    def tick(self, now: float, *, pieces: int = 1) -> None:
        """Send at most so many pieces of this node's rows to peers, as far as they are due. `now`: monotonic seconds."""
        self._proving.tick(now)
        linked = list(self._linked())
        self._differences.expire(now, self._walk.pass_s, linked)
        self._tidy()
        self._look_again(now)
        asked = [peer for peer in linked if peer > self._own]
        for _ in range(pieces):
            place = self._walk.due(now, self._database.partitions.holding) if asked else None
            if place is None:
                return
            self._send_piece(*place, asked, now)

    def _send_piece(self, number: int, start: bytes, asked: list[bytes], now: float) -> None:
        piece = self._as_sure(self._database.exchange.evidence.next(number, start))
        if piece is None:
            self._walk.done(0, None, now)
            return
        self._walk.done(piece.size, None if piece.stop == bounds(number)[1] else piece.stop, now)
        message = self._told(piece, answer=True) if self._differences.within(piece) else piece.told()
        for peer in asked:
            self._send(peer, message)

    def heard(self, peer: bytes, message: Rows | Objects, now: float) -> None:
        """Compare a peer's piece with the rows here, and answer if they differ or the peer asks."""
        piece = self._as_sure(self._database.exchange.evidence.within(message.partition, message.start, message.stop))
        if piece is None or piece.vector != message.vector:
            return
        if isinstance(message, Rows):
            if piece.stop == message.stop and piece.digest() == message.digest:
                self._differences.equal(peer, piece)
            else:
                self._send(peer, self._told(piece, answer=True))
            return
        if piece.stop != message.stop:
            return
        if not message.answer:
            self.majority.heard(peer, message)
        differing = self._differences.compare(peer, piece, dict(message.objects), now)
        if message.answer:
            self._send(peer, self._told(piece, answer=False))
        for name in differing:
            self._note(name, peer, (message.start, message.stop), now, proved=name in message.proved)

    def _showed_otherwise(self, place: ObjectPlace) -> None:
        self.replaced += 1
        if len(self.noticed) < ROWS_DIFFER_MAX:
            self.noticed.add(keys.object_rows(*place))

    def _told(self, piece: Piece, *, answer: bool) -> Objects:
        """The report to a peer on the objects of a piece. The node that asks also says what its log proves, because its
        peer may not ask."""
        return piece.told_of_objects(answer=answer, proved=self._proved(piece.partition))

    def _proved(self, number: int) -> list[bytes]:
        """The objects of a partition that differ, and are here what the log makes."""
        prefix = bounds(number)[0]
        sound = [name for name, outcome in self._outcomes.items() if outcome is Outcome.SOUND and name.startswith(prefix)]
        return sound if sound and self._database.exchange.rebuilder.reaches_back(number) else []

    def _as_sure(self, piece: Piece | None) -> Piece | None:
        """The piece, with the threads marked as unsure that lack data of a save: peers may have it by now."""
        if piece is None or not self._dangling:
            return piece
        return piece._replace(unsure=piece.unsure.union(self.dangling_in(piece.partition)))

    def dangling_in(self, number: int) -> set[bytes]:
        """The threads of a partition that lack data of a save."""
        prefix = bounds(number)[0]
        return {name for name in self._dangling if name.startswith(prefix)}

    def _note(self, name: bytes, peer: bytes, within: tuple[bytes, bytes], now: float, *, proved: bool) -> None:
        if name not in self._outcomes and name not in self._due:
            if len(self.noticed) < ROWS_DIFFER_MAX:
                self.noticed.add(name)
            log(events.ROWS_DIFFER, reason=self._text(name, peer))
        if name in self._due or self._stopped or len(self._due) >= ROWS_DIFFER_MAX:
            return
        shows = proved and self.majority.may_show(name, peer)
        is_early = now < self._undecided.get(name, -inf) + REPAIR_WAIT_S
        if self._is_settled(name, peer, shows=shows) or (is_early and not shows):
            return
        self._ranges[name], self._reported[name] = within, now
        self._examine_soon(name)

    def _is_settled(self, name: bytes, peer: bytes, *, shows: bool) -> bool:
        """Whether another look would show the same: the other node, or the program, is wrong."""
        outcome = self._outcomes.get(name)
        if outcome is Outcome.CONFIRMED:  # Unless a log decides by now, or a peer has left the majority.
            return peer in self._against[name] and not shows
        return outcome in (Outcome.SOUND, Outcome.PROVED)

    def _examine_soon(self, name: bytes) -> None:
        if self._stopped or name in self._due:
            return
        self._due[name] = None
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._examine())

    def dangles(self, target: Target) -> None:
        """Rebuild a thread that received a save on a checkpoint pruned here, to fetch what the save needs."""
        if len(self._dangling) < ROWS_DIFFER_MAX:
            name = keys.object_rows(target.partition, *target)
            self._dangling.add(name)
            self._examine_soon(name)

    def _look_again(self, now: float) -> None:
        """Try again at times to fetch what saves lack: a peer that was away may have it."""
        if self._dangling and now >= self._again_at:
            self._again_at = now + self._config.quarantine_s
            for name in sorted(self._dangling):
                self._examine_soon(name)

    def _tidy(self) -> None:
        """Forget the outcomes of objects that are equal again."""
        if self._outcomes:
            differing = {found.object for found in self._differences.all()}
            for name in [name for name in self._outcomes if name not in differing and name not in self._dangling]:
                self._drop(name)

    def _drop(self, name: bytes) -> None:
        """Forget what was found of an object."""
        self._outcomes.pop(name, None)
        self._against.pop(name, None)
        self._undecided.pop(name, None)
        self.majority.forget(name)

    # ── repairing ─────────────────────────────────────────────────────────────

    async def _examine(self) -> None:
        try:
            while self._due and not self._stopped:
                name = next(iter(self._due))
                try:
                    await self._examine_one(name)
                finally:
                    self._due.pop(name, None)
                    self._ranges.pop(name, None)
                    self._reported.pop(name, None)
        finally:
            self._task = None

    async def _examine_one(self, name: bytes) -> None:
        place = place_of(name)
        with suppress(ShoalError):  # It is refused then.
            await self._database.chunks.bring_back_all(name)
        against = {found.peer for found in self._differences.all() if found.object == name}
        if name in self._ranges and not self._database.exchange.rebuilder.reaches_back(place.partition):
            outcome = await self.majority.settle(place, name, *self._ranges[name])
        else:
            outcome = await self._database.exchange.rebuilder.rebuild(place, self._fetch)
        is_news = self._outcomes.get(name) is not outcome  # It is rebuilt repeatedly; the same outcome is logged once.
        self._outcomes[name], self._against[name] = outcome, against
        if outcome is Outcome.UNDECIDED:
            self._undecided[name] = self._reported[name]
        if name in self._dangling:
            self._settle(name, place, outcome, is_news=is_news)
        elif outcome in (Outcome.REPLACED, Outcome.ADOPTED, Outcome.MENDED, Outcome.RESTORED):
            self._replaced(name, place, outcome)
        elif is_news:
            log(events.ROWS_NOT_REPAIRED, object=text_of(place), outcome=outcome.value)

    def _settle(self, name: bytes, place: ObjectPlace, outcome: Outcome, *, is_news: bool) -> None:
        """Record the outcome for a thread with a save that builds on erased data."""
        if outcome in (Outcome.REPLACED, Outcome.DEAD) and len(self.incomplete) < ROWS_DIFFER_MAX:
            self.incomplete.add(name)
        if outcome in (Outcome.SOUND, Outcome.REPLACED):
            self._dangling.discard(name)
            if outcome is Outcome.REPLACED:
                log(events.THREAD_SUPPLIED, object=text_of(place))
        elif outcome is Outcome.DEAD and is_news:
            log(events.THREAD_DANGLES, object=text_of(place), outcome=outcome.value)

    def _replaced(self, name: bytes, place: ObjectPlace, outcome: Outcome) -> None:
        self.replaced += 1
        log(events.ROWS_REPLACED, object=text_of(place), outcome=outcome.value)
        peers = [found.peer for found in self._differences.all() if found.object == name]
        self._differences.forget(name)
        piece = self._whole(name)
        for peer in peers if piece is not None else ():
            assert piece is not None
            self._send(peer, piece.told_of_objects(answer=True))

    def _whole(self, name: bytes) -> Piece | None:
        """The object's rows, if they fit one piece."""
        stop = name[:-1] + bytes([name[-1] + 1]) if name[-1] < 255 else bounds(place_of(name).partition)[1]
        piece = self._database.exchange.evidence.within(place_of(name).partition, name, stop)
        return piece if piece is not None and piece.stop == stop else None

    # ── operations of peers ───────────────────────────────────────────────────

    def expects(self, supply: Supply) -> bool:
        """Whether this answers a request of the scrub."""
        return supply.id > _FIRST_ID

    def supplied(self, peer: bytes, supply: Supply) -> None:
        """Take a peer's answer; one to an unknown or late request is ignored."""
        asked, answer = self._wanted.get(supply.id, (b"", None))
        if answer is not None and asked == peer and not answer.done():
            answer.set_result(supply)

    async def _fetch(self, partition: int, dots: list[Dot]) -> Supplied:
        """Fetch the blobs of these operations from peers; an operation whose blobs every peer has erased is in it as erased."""
        found: dict[Dot, list[Blobs]] = {}
        erased: dict[Dot, list[Blobs]] = {}  # On that peer; the next one may still have them.
        for peer in list(self._linked()):
            left = [dot for dot in dots if dot not in found]
            while left:
                brought = self._brought(partition, set(left), await self._ask(peer, _ranges(partition, left[:_WANTED_MAX])))
                if not brought:
                    break
                for dot, sent in brought.items():
                    (erased if any(map(is_gone, sent)) else found)[dot] = sent
                left = [dot for dot in left if dot not in brought]
        return erased | found

    async def _ask(self, peer: bytes, ranges: list[Range]) -> Supply | None:
        self._last_id += 1
        id = self._last_id
        answer: asyncio.Future[Supply] = asyncio.get_running_loop().create_future()
        self._wanted[id] = peer, answer
        self._send(peer, Want(id, ranges))
        try:
            async with asyncio.timeout(REPAIR_WAIT_S):
                return await answer
        except TimeoutError:
            return None
        finally:
            del self._wanted[id]

    def _brought(self, partition: int, wanted: set[Dot], supply: Supply | None) -> Supplied:
        """The blobs of a supply's operations that equal those in the log here."""
        brought: dict[Dot, list[Blobs]] = {}
        for shipment in [] if supply is None else supply.operations:
            if isinstance(shipment, Raw) or shipment.partition != partition or shipment.dot not in wanted:
                continue
            if self._database.exchange.incoming.logged(shipment):
                with suppress(ShoalError):
                    brought[shipment.dot] = transaction.unpack_sent(shipment.attached)
        return brought


def _ranges(partition: int, dots: list[Dot]) -> list[Range]:
    return [(partition, dot.origin, dot.sequence, dot.sequence) for dot in dots]


def place_of(name: bytes) -> ObjectPlace:
    """The object whose rows' keys begin with `name`, as `keys.object_rows` made it."""
    return ObjectPlace(*keys.split_object(name)[:4])
