"""Linearizable compare-and-set for a few small keys of the cluster, with the votes of a majority of its members.

Laws:
- A vote is sent once the disk holds it, and so is everything else that binds this directory. If the disk fails,
  the node votes no more; it still reads and changes keys while the others are a majority.
- One operation for a key is under way at a time on each node; the others wait for their turns, within their time.
- An error says whether the change was made: `NoQuorum` and `RegisterChanged` mean that it was not and will not be;
  `OutcomeUnknown` that it may be, now or later. The same change sent again, with its id, is made once.
- The register is founded when it is first used and all members are up; a cluster that does not use it sends nothing.
- A store that is alone, and whose directory was copied or moved, goes on with higher numbers: the original may have used some.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Protocol

from shoal.cluster.consensus.acceptor import Acceptor, Limits
from shoal.cluster.consensus.ballots import (
    ANYTHING,
    ID_BYTES,
    NO_BALLOT,
    Accept,
    Answer,
    AnyMotion,
    Ballot,
    Ballots,
    Change,
    Electorate,
    Known,
    Lead,
    Phase,
    Prepare,
    Proposal,
    Rules,
    Value,
    Verdict,
    Vote,
)
from shoal.cluster.consensus.recovery import Foundation, Remains
from shoal.cluster.messages import Message
from shoal.errors import (
    InvalidValue,
    NoQuorum,
    OutcomeUnknown,
    Overloaded,
    RegisterChanged,
    ShoalError,
    ShuttingDown,
    StorageFull,
    StoreCorrupt,
    TooLarge,
)
from shoal.logs import events
from shoal.logs.lines import log
from shoal.names import check_key
from shoal.node.consensus.condition import COMMAND, Condition, foundation_of, why_missing
from shoal.node.context import NodeContext
from shoal.records import NamedTuple
from shoal.storage import keys
from shoal.storage.interface import Storage

QUORUM_REGISTER_HELLO_S = 5.0  # Between two reports of a voter to its peers, once the register is used.
QUORUM_REGISTER_KEYS_MAX = 64  # Keys of the quorum register, which every member holds in memory.
QUORUM_REGISTER_REQUESTS_MAX = 64  # Its operations in progress on one node; beyond this: Overloaded.

_ROWS, _ROWS_END = keys.meta("register/"), keys.meta("register0")  # "0" follows "/".
_PLACE = keys.meta("register-place")  # The identity of the directory in which a store that is alone voted last.
_AHEAD = 8  # Ballots that are skipped.
_PAUSE_S_MIN, _PAUSE_S_MAX = 0.002, 1.0  # Between two attempts of one operation.


class Versioned(NamedTuple):
    """The content of a key, and how often it was changed: 0 for a key that never was."""

    version: int
    content: bytes


class Links(NamedTuple):
    """How the other members are reached. `linked` returns the nodes that have a link, by address."""

    electorate: Electorate | None  # None: this node alone.
    linked: Callable[[], Mapping[str, bytes]]
    send: Callable[[bytes, Message], None]
    rules: Rules = ANYTHING


ALONE = Links(None, dict, lambda node, motion: None)


class _Attempt(NamedTuple):
    proposal: Proposal
    stirred: asyncio.Event


class Follower(Protocol):
    """A part that acts on what happens to the register."""

    def proposed(self, key: str, content: bytes, /) -> None:
        """A content was proposed for a key; it may never be chosen."""

    def rebuilt(self) -> None:
        """This node votes in a register that was founded anew."""


class QuorumRegister:
    """The register as one node sees it. `tick`, `linked`, `heard` and `forget` are called by the node's replicator."""

    def __init__(self, context: NodeContext, links: Links = ALONE) -> None:
        self._commit = context.commit
        self._environment = context.environment
        self._config = context.config
        self.links = links
        self._incarnation = context.incarnation
        self._member = context.config.advertise
        self._ballots = Ballots(b"")  # Of this run of the node, once it proposes something.
        self._attempts: dict[Ballot, _Attempt] = {}  # Bounded by `QUORUM_REGISTER_REQUESTS_MAX`.
        self._turns: dict[str, asyncio.Lock] = {}
        self._leads: dict[str, Lead] = {}  # By key. Each operation takes the one that the last one won.
        self._proposers: dict[str, str] = {}  # By key, the member that changed or read it last, as far as this node was told.
        self._requests = 0
        self._wanted = False  # Whether somebody uses the register, so that this node should vote.
        self._number = 0  # The last write of votes.
        self._next_question = 0.0
        self._next_hello = 0.0
        self._closed = False
        self._condition = Condition(self._member)
        self._follower: Follower | None = None
        rows = _read(context.storage)
        self._acceptor = Acceptor(
            self._member,
            context.incarnation.node,
            rows,
            electorate=links.electorate or Electorate((frozenset({self._member}),)),
            nonce=lambda: context.environment.entropy(ID_BYTES),
            limits=Limits(QUORUM_REGISTER_KEYS_MAX, context.config.quorum_register_value_bytes_max),
            rules=links.rules,
        )
        if context.incarnation.told_by:
            self._acceptor.doubt()
        self._unreadable = rows is None  # The rows are deleted with the next write.
        # One that has voted is in a register that is used.
        self._wanted = self._acceptor.state == "forgotten"
        self._identity, place = context.storage.identity, context.storage.get(_PLACE)
        self._is_placed = place == context.storage.identity
        self._is_moved = links is ALONE and self._wanted and (place or context.incarnation.copied) and not self._is_placed

    def tell(self, follower: Follower) -> None:
        """From now on `follower` is told."""
        self._follower = follower

    @property
    def is_voting(self) -> bool:
        """Whether this directory votes: it has forgotten no vote, as far as anybody told it."""
        return self._acceptor.term is not None

    def left_alone(self, key: str) -> bytes:
        """The content that a key had when this directory was alone, before it got other members in this opening; else empty."""
        return self._acceptor.left_alone.get(key, b"")

    @property
    def condition(self) -> str:
        """For people: why the register has no quorum, since when, and what to do; empty if it has one."""
        self._look()
        if self.links is ALONE and self._commit.failed is None:
            return ""  # A directory that is alone votes as soon as somebody uses the register, also in another place.
        return self._condition.told(self._acceptor.electorate)

    @property
    def is_founded(self) -> bool:
        """Whether anybody has ever voted, as far as this node knows: before that no majority decides anything."""
        self._look()
        return self._condition.is_founded

    @property
    def can_decide(self) -> bool:
        """Whether the register has a quorum, or will have one by itself, as this node sees it."""
        self._look()
        return self._condition.can_decide(self._acceptor.electorate)

    # ── operations ────────────────────────────────────────────────────────────

    async def read(self, key: str) -> Versioned:
        """The content of a key, as the last change left it that was made before this call.

        Raises:
            NoQuorum: a majority of the members did not answer in time.
            InvalidName, Overloaded, ShuttingDown: nothing was asked.
        """
        value = await self._decide(key, None, repeated=False)
        return Versioned(value.version, value.content)

    async def change(self, key: str, expected: int, content: bytes, *, id: bytes | None = None) -> Versioned:
        """Set the content of a key if its version is `expected`. Give the `id` of 16 bytes to be able to repeat the change.

        Raises:
            RegisterChanged: the key has another version, which the error names; nothing was written.
            NoQuorum: a majority of the members did not answer in time; nothing was written.
            OutcomeUnknown: the change may be made, now or later. Repeat it with its id, or read the key. If `detail` has a
                `version`, it will not be made later; whether it was made before that version is not known any more.
            TooLarge: the content is too long, or there are too many keys; nothing was written.
            InvalidName, InvalidValue, Overloaded, ShuttingDown: nothing was written.
        """
        made, found = await self.exchange(key, expected, content, id=id)
        if not made:
            raise RegisterChanged(
                f"{key!r} has version {found.version}, not {expected}. Nothing was written. Read it, and decide again.",
                version=found.version,
            )
        return found

    async def exchange(self, key: str, expected: int, content: bytes, *, id: bytes | None = None) -> tuple[bool, Versioned]:
        """As `change`, but returns whether it was made: if so, the version that it made, else what the key holds instead.

        Raises:
            NoQuorum, OutcomeUnknown, TooLarge, InvalidName, InvalidValue, Overloaded, ShuttingDown: as `change`.
        """
        if len(content) > self._config.quorum_register_value_bytes_max:
            raise TooLarge(
                f"{len(content):,} bytes are too many for a key of the quorum register, which takes "
                f"{self._config.quorum_register_value_bytes_max:,} (quorum_register_value_bytes_max). Nothing was written."
            )
        if id is not None and len(id) != ID_BYTES:
            raise InvalidValue(f"the id of a change has {ID_BYTES} bytes, not {len(id)}. Nothing was written.")
        change = Change(id or self._environment.entropy(ID_BYTES), expected, content)
        value = await self._decide(key, change, repeated=id is not None)
        version = value.version_of(change.id)
        return (True, Versioned(version, content)) if version is not None else (False, Versioned(value.version, value.content))

    async def _decide(self, key: str, change: Change | None, *, repeated: bool) -> Value:
        check_key("key", key)
        if self._closed:
            raise ShuttingDown("The store is closing. Nothing was written. Send the request again once it is open.")
        if self._requests >= QUORUM_REGISTER_REQUESTS_MAX:
            raise Overloaded(
                f"{self._requests} operations of the quorum register are under way. Nothing was written. Try again later.",
                retry_after_s=self._config.quorum_register_retry_s,
            )
        if not self._ballots.proposer:
            self._ballots = Ballots(self._environment.entropy(ID_BYTES))
        electorate, rules = self._acceptor.electorate, self.links.rules
        proposal = Proposal(key, change, electorate=electorate, ballots=self._ballots, rules=rules)
        self._requests += 1
        try:
            async with asyncio.timeout(self._config.quorum_timeout_s):
                async with self._turns.setdefault(key, asyncio.Lock()):
                    await self._attempt(proposal)
        except TimeoutError:
            raise self._undecided(proposal, repeated=repeated) from None
        finally:
            self._requests -= 1
            if not self._requests:
                self._turns.clear()
        is_decided = change is None or change.judge(proposal.value) is not Verdict.UNKNOWN
        if not is_decided and (proposal.may_be_made or repeated):
            raise OutcomeUnknown(
                f"it is not known whether this change of {key!r} was made: others have changed it since, to version "
                f"{proposal.value.version}, and only the makers of the last {len(proposal.value.recent)} versions are kept. It "
                "will not be made later. Read it, and decide again.",
                version=proposal.value.version,
            )
        return proposal.value

    async def _attempt(self, proposal: Proposal) -> None:
        """Try until a value is chosen."""
        pause_s, retry_s = _PAUSE_S_MIN, self._config.quorum_register_retry_s
        self._want()
        lead = self._lead(proposal.key)
        while True:
            proposal.reform(self._acceptor.electorate)
            # A proposer that has the lead uses up ballots while this one asks for promises.
            self._ballots.saw(self._acceptor.promised(proposal.key), ahead=_AHEAD)
            proposal.begin(self._acceptor.told, lead)
            lead, began_s = None, self._environment.uptime()
            attempt = self._attempts[proposal.ballot] = _Attempt(proposal, asyncio.Event())
            try:
                self._send(proposal.messages())
                while proposal.is_under_way:
                    try:
                        async with asyncio.timeout(retry_s):
                            await attempt.stirred.wait()
                    except TimeoutError:
                        self._check_room(proposal)
                        self._send(proposal.messages())
                    attempt.stirred.clear()
            finally:
                del self._attempts[attempt.proposal.ballot]
            if proposal.phase is Phase.CHOSEN:
                if (won := proposal.lead) is not None:
                    self._leads[proposal.key] = won
                return
            # As long as an attempt takes, so that the other proposer can finish; longer after each.
            pause_s = max(pause_s, min(self._environment.uptime() - began_s, retry_s))
            await asyncio.sleep(pause_s * (0.5 + self._environment.entropy(1)[0] / 256))
            pause_s = min(2 * pause_s, _PAUSE_S_MAX)

    def _lead(self, key: str) -> Lead | None:
        """The lead that the last operation on a key won, if it is likely to be of use.

        While a majority cannot be reached a change begins with a `Prepare`, so that it is known that it was not made.
        """
        lead = self._leads.pop(key, None)
        if lead is None or self._commit.failed is not None or self._acceptor.promised(key) != lead.ballot:
            return None
        reachable = {self._member, *self.links.linked()}
        return lead if self._acceptor.electorate.decides(reachable) else None

    def _check_room(self, proposal: Proposal) -> None:
        full = [member for member, refusal in proposal.refusals.items() if refusal == "full"]
        able = set(self._acceptor.electorate.members).difference(full)
        if not proposal.may_be_made and not self._acceptor.electorate.decides(able):
            raise TooLarge(
                f"{', '.join(full)} take no more keys or no such value: the quorum register has room for "
                f"{QUORUM_REGISTER_KEYS_MAX} keys. Nothing was written. Use a key "
                "that exists."
            )

    def _undecided(self, proposal: Proposal, *, repeated: bool) -> NoQuorum | OutcomeUnknown:
        members = self._acceptor.electorate.members
        linked = self.links.linked()
        needed = len(members) // 2 + 1
        missing = {member: proposal.refusals.get(member, "") for member in members if member not in proposal.counted}
        is_there = {self._member, *linked} - ({self._member} if self._commit.failed is not None else set())
        why = why_missing(missing, is_there, own=self._member)
        if proposal.ballot == NO_BALLOT:
            why = f"other operations on {proposal.key!r} came first"
        told = (
            f"the quorum register needs the votes of {needed} of {len(members)} members, and did not get them within "
            f"{self._config.quorum_timeout_s:g} s: {why}"
        )
        if proposal.may_be_made or repeated:
            return OutcomeUnknown(f"{told}. The change may be made, now or later. Repeat it with its id, or read the key.")
        condition = self.condition
        advice = f"{condition[0].upper()}{condition[1:]}" if condition else f"If they stay away for good: `{COMMAND}`"
        return NoQuorum(
            f"{told}. Nothing was written. Try again when more of them vote. {advice}.",
            reachable=1 + len(linked),
            needed=needed,
        )

    # ── what the replicator tells ─────────────────────────────────────────────

    def reform(self, electorate: Electorate) -> None:
        """The members have changed: operations that are under way begin again, with the votes of these."""
        self._leads.clear()
        self._acceptor.reform(electorate)
        self._reply(())
        for attempt in self._attempts.values():
            attempt.proposal.reform(electorate)
            attempt.stirred.set()

    @property
    def keys(self) -> list[str]:
        """The keys that this member has voted on."""
        return list(self._acceptor.versions)

    def proposer_of(self, key: str) -> bytes | None:
        """The node that used a key last, if it is another one and is linked. It has the shortest way to change it again."""
        return self.links.linked().get(self._proposers.get(key, ""))

    def value_here(self, key: str) -> Value:
        """The value of a key that this member has voted for last. It may never be chosen; a read tells."""
        return self._acceptor.value_of(key)

    # ── rebuilds ──────────────────────────────────────────────────────────────

    @property
    def remains(self) -> Remains:
        """The part of the register that this directory holds."""
        return self._acceptor.remains

    async def halt(self) -> Remains:
        """Vote no more until `rebuilt`, `resume` or a restart. Returns, once that is durable, what this directory holds.

        Raises:
            ReadOnly, StorageFull: storage failed.
        """
        self._leads.clear()
        self._acceptor.halt()
        if self._acceptor.is_due:
            self._number = self._commit.write(self._rows())
            self._acceptor.written()
        await self._commit.wait_durable(self._number or self._commit.written)
        return self._acceptor.remains

    def resume(self) -> None:
        """The rebuild was given up: ask to vote again."""
        self._acceptor.resume()

    def abdicate(self) -> None:
        """Vote no more: a later epoch is decided without this directory."""
        self._acceptor.halt()
        self._reply(())

    def rows_of(self, foundation: Foundation) -> dict[bytes, bytes | None]:
        """The rows to make durable before `rebuilt`."""
        return {_ROWS + key: value for key, value in self._acceptor.rows_of(foundation).items()}

    def rebuilt(self, foundation: Foundation) -> None:
        """Vote with what a rebuild found; `rows_of` are durable."""
        self._leads.clear()
        self._acceptor.found(foundation)
        self._reply(())
        self._condition.rebuilt()
        if self._follower is not None:
            self._follower.rebuilt()

    def _found_alone(self) -> None:
        with suppress(ShoalError):  # If the disk fails nothing is voted on.
            remains, id = {self._member: self._acceptor.remains}, self._environment.entropy(ID_BYTES)
            found = foundation_of(remains, id=id, shards=self._config.lease_shards)
            rows = self.rows_of(found) | {_PLACE: self._identity}
            self._number = self._commit.write(rows, [(_ROWS, _ROWS_END)] if self._unreadable else [])
            self._acceptor.found(found)
            self._acceptor.written()
            self._unreadable, self._is_moved = False, False

    # ── members ───────────────────────────────────────────────────────────────

    def found(self) -> None:
        """Let this node ask to vote before the register is needed: it is founded only while all members are up."""
        self._wanted = True

    def heard(self, node: bytes, motion: AnyMotion) -> None:
        """Take a message of a peer in this epoch; one of a node that is not linked as a member is ignored."""
        source = next((address for address, linked in self.links.linked().items() if linked == node), None)
        if source is not None:
            self._take(source, motion)

    def linked(self, node: bytes) -> None:
        """A link begins: a node that does not vote learns that it could."""
        if self._acceptor.term is not None:
            self.links.send(node, Known(self._acceptor.told))

    def forget(self) -> dict[bytes, bytes | None]:
        """Stop to vote until enough others have told what they know: this directory was set back. Returns rows to write."""
        self._leads.clear()
        self._acceptor.forget()
        rows = self._rows()
        self._acceptor.written()
        return rows

    def tick(self, now: float) -> None:
        """Ask again to vote, or tell again that this node does, whatever is due."""
        self._look()
        if self._acceptor.term is None:
            if self._wanted and now >= self._next_question:
                self._next_question = now + self._config.quorum_register_retry_s
                self._reply(self._acceptor.questions())
        elif now >= self._next_hello:
            self._next_hello = now + QUORUM_REGISTER_HELLO_S
            for node in self.links.linked().values():
                self.links.send(node, Known(self._acceptor.told))

    def close(self) -> None:
        """Reject new operations."""
        self._closed = True

    def _look(self) -> None:
        self._condition.look(
            self._acceptor.electorate,
            self.links.linked(),
            self._acceptor.state,
            now_ms=self._environment.now_ms(),
            has_failed=self._commit.failed is not None,
        )

    # ── messages ──────────────────────────────────────────────────────────────

    def _want(self) -> None:
        """Somebody uses the register: this node should vote."""
        if self._acceptor.term is None:
            self._wanted = True
            if self._is_moved:
                self._found_alone()
            self._reply(self._acceptor.questions())

    def _take(self, source: str, motion: AnyMotion) -> None:
        if source != self._member:
            self._condition.heard(source, motion)
        answers = self._acceptor.receive(source, motion)
        if isinstance(motion, Prepare | Accept | Known):
            self._wanted = True
        if isinstance(motion, Accept):
            self._proposed(source, motion)
        if isinstance(motion, Answer) and self._acceptor.term is not None:
            log(events.VOTES_BEGUN, term=self._acceptor.term.number)
        self._reply(answers)
        attempt = self._attempts.get(motion.ballot) if isinstance(motion, Vote) else None
        if attempt is not None and isinstance(motion, Vote):
            before = attempt.proposal.phase
            self._send(attempt.proposal.receive(source, motion))
            if attempt.proposal.phase is not before:
                attempt.stirred.set()

    def _proposed(self, source: str, motion: Accept) -> None:
        if self._acceptor.promised(motion.key) == max(motion.ballot, motion.promise):
            self._proposers[motion.key] = source
        if self._follower is not None:
            self._follower.proposed(motion.key, motion.value.content)

    def _reply(self, answers: Iterable[tuple[str, AnyMotion]]) -> None:
        """Send what binds this directory once it is durable. If the disk fails it is not sent; the asking node asks again."""
        with suppress(ShoalError):
            if not self._number:
                self._number = self._commit.written  # What the directory is called must be durable, too.
            if self._acceptor.is_due:
                ranges = [(_ROWS, _ROWS_END)] if self._unreadable else []
                self._number = self._commit.write(self._rows(), ranges)
                self._acceptor.written()
                self._unreadable = False
            sends = list(answers)

            def send(error: StorageFull | None) -> None:
                if error is None:
                    self._send(sends)

            self._commit.when_durable(self._number, send)

    def _rows(self) -> dict[bytes, bytes | None]:
        place: dict[bytes, bytes | None] = {}
        if self.links is ALONE and not self._is_placed:
            place = {_PLACE: self._identity, **self._incarnation.vouching()}
        self._is_placed = True
        return {_ROWS + key: value for key, value in self._acceptor.rows.items()} | place

    def _send(self, sends: Iterable[tuple[str, AnyMotion]]) -> None:
        linked = self.links.linked()
        for member, motion in sends:
            if member == self._member:
                self._take(member, motion)
            elif member in linked:
                self.links.send(linked[member], motion)


def _read(storage: Storage) -> dict[bytes, bytes] | None:
    """The rows of this directory's votes; None if some cannot be read, so that it has forgotten."""
    try:
        return {key[len(_ROWS) :]: value for key, value in storage.scan(_ROWS, _ROWS_END)}
    except StoreCorrupt as error:
        log(events.VOTES_NOT_YET, reason=error.message)
        return None
