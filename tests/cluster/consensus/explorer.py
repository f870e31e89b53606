"""Every interleaving of small cases of the quorum register, over the production classes.

Laws:
- A message that was sent may be delivered at any later time, any number of times, or never: messages are lost,
  delayed, reordered and repeated.
- Acceptors restart on their rows, lose their disks, and ask to vote again. Proposers give up an attempt at any
  moment and begin a new one, or crash; their client then repeats the same change through a new proposer.
- Two worlds that no later step can tell apart are one: acceptors are exchanged for one another, votes that no
  proposer waits for are dropped, and a proposer takes its votes in the one step that completes them. So the search ends.
- If the case says so, the second proposer goes on where the first one was when its value was chosen: with its lead.
- A member answers a question of a member that has forgotten once; all else may come again.

The number of a vote (`Term.votes`) is left out: it matters only for a directory that was set back within a term.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from functools import cache
from itertools import combinations, product
from random import Random
from typing import NamedTuple, get_args

import msgspec

from shoal.cluster.consensus.acceptor import Acceptor, Limits
from shoal.cluster.consensus.ballots import (
    Accept,
    AnyMotion,
    Ballot,
    Ballots,
    Change,
    Electorate,
    Phase,
    Prepare,
    Proposal,
    Value,
    Verdict,
    Vote,
)
from shoal.cluster.consensus.recovery import Recovery

MEMBERS = ("a", "b", "c")
ELECTORATE = Electorate((frozenset(MEMBERS),))
KEY = "k"
_STEPS_MAX = 60
_LIMITS = Limits(keys_max=4, value_bytes_max=64)


class Broken(AssertionError):
    """Two histories, or a read that goes back."""


class Case(NamedTuple):
    """What may happen in one search. A change of None is a read."""

    changes: tuple[Change | None, ...]  # One for each proposer.
    attempts: tuple[int, ...]  # Of each proposer, its next lives included.
    restarts: int = 0  # Of acceptors.
    wipes: int = 0  # Of the first acceptor.
    crashes: int = 0  # Of proposers.
    leads: bool = False  # Whether the first attempt of the second proposer has the lead that the first one won.


class _Uncounted(Acceptor):
    def _vote(self, key: str, promised: Ballot, accepted: Ballot, value: Value) -> None:
        self._put(key, promised, accepted, value)


class Client(NamedTuple):
    """One operation, and the proposer that carries it out."""

    proposal: Proposal
    attempts: int
    crashes: int
    floor: int  # The highest version that anybody had been told of when it began; -1: it has not begun.


Waits = list[tuple[Ballot, bool] | None]
"""For each proposer, the attempt whose votes it waits for, and whether they are those of the second phase."""


class Member(NamedTuple):
    """An acceptor, and the votes of it that a proposer may still count, by the proposer's number."""

    acceptor: Acceptor
    votes: frozenset[tuple[int, bytes]]


class Received(NamedTuple):
    """What becomes of an acceptor that takes a message, and what it answers."""

    acceptor: Acceptor
    votes: frozenset[tuple[int, bytes]]
    sent: frozenset[tuple[str, str, bytes]]  # To other members.


class World(NamedTuple):
    members: tuple[Member, ...]
    clients: tuple[Client, ...]
    asked: frozenset[tuple[int, bytes]]  # What proposers sent, to all members.
    between: frozenset[tuple[str, str, bytes]]  # What members sent to each other: source, target, message.
    told: tuple[tuple[int, bytes], ...]  # Version and change, as far as anybody was told.
    highest: int  # The highest version that anybody was told of.
    restarts: int
    wipes: int


def explore(case: Case, *, states_max: int = 1_000_000) -> int:
    """Search all worlds of a case; returns how many there are.

    Raises:
        Broken: a promise of the register is broken in one of them.
    """
    gc.disable()  # Nothing refers to itself, and all worlds would be looked at again and again.
    try:
        return _Search(case).run(states_max)
    finally:
        gc.enable()


def wander(case: Case, *, walks: int = 30_000) -> None:
    """Take random ways through the worlds of a case, always the same: a bug is found sooner than by searching all.

    Raises:
        Broken: a promise of the register is broken in one of them.
    """
    search = _Search(case)
    random = Random(1)
    for _ in range(walks):
        search.walk(random)


class _Search:
    def __init__(self, case: Case) -> None:
        self._case = case
        self._acceptors: dict[object, Acceptor] = {}  # Equal ones are the same object.
        self._proposals: dict[object, Proposal] = {}
        self._received: dict[tuple[Acceptor, str, bytes], Received] = {}
        self._counted: dict[tuple[Proposal, tuple[tuple[str, bytes], ...]], tuple[Proposal, list[bytes]]] = {}
        self._decoded: dict[bytes, AnyMotion] = {}

    def run(self, states_max: int) -> int:
        first = self._first()
        seen = {self._key(first)}
        waiting = [first]
        while waiting:
            for after in self._steps(waiting.pop()):
                key = self._key(after)
                if key not in seen:
                    assert len(seen) < states_max, "the case is too large"
                    seen.add(key)
                    waiting.append(after)
        return len(seen)

    def walk(self, random: Random) -> None:
        """Take one step after another until none is left, or they only repeat themselves."""
        world = self._first()
        for _ in range(_STEPS_MAX):
            steps = list(self._steps(world))
            if not steps:
                return
            world = random.choice(steps)

    def _key(self, world: World) -> object:
        if self._case.wipes:
            return world
        # Without wipes all terms stay as they were, and one acceptor is as good as another.
        members = sorted((id(member.acceptor.same), tuple(sorted(member.votes))) for member in world.members)  # type: ignore[attr-defined]
        return tuple(members), world.clients, world.asked, world.told, world.highest, world.restarts

    def _first(self) -> World:
        members = []
        for member in MEMBERS:
            acceptor = self._made(member, member.encode(), {})
            acceptor.hear({other: Recovery(other, other.encode(), empty=True, nonce=_nonce).first() for other in MEMBERS})
            assert acceptor.term is not None
            members.append(Member(self._one(acceptor, {}), frozenset()))
        clients = tuple(self._client(number, change, 0) for number, change in enumerate(self._case.changes))
        return World(tuple(members), clients, frozenset(), frozenset(), (), 0, 0, 0)

    def _made(self, member: str, directory: bytes, rows: dict[bytes, bytes]) -> Acceptor:
        return _Uncounted(member, directory, rows, electorate=ELECTORATE, nonce=_nonce, limits=_LIMITS)

    def _client(self, number: int, change: Change | None, crashes: int) -> Client:
        ballots = Ballots(b"%d%d" % (number, crashes))
        proposal = Proposal(KEY, change, electorate=ELECTORATE, ballots=ballots)
        return Client(self._same(proposal), 0, crashes, -1)

    # ── steps ─────────────────────────────────────────────────────────────────

    def _steps(self, world: World) -> Iterator[World]:
        """In the same order in every run, whatever the order of a set is."""
        if all(client.proposal.phase is Phase.CHOSEN for client in world.clients):
            return  # Nobody can be told anything else.
        if world.wipes < self._case.wipes:
            yield self._wiped(world)
        for number, client in enumerate(world.clients):
            yield from self._begun(world, number, client)
        waits = _waits(world)
        for index, member in enumerate(world.members):
            if world.restarts < self._case.restarts:
                again = self._restarted(member.acceptor)
                if again is not member.acceptor:
                    yield _with_member(world, index, member._replace(acceptor=again))._replace(restarts=world.restarts + 1)
            answered = {target for source, target, _ in world.between if source == member.acceptor.member}
            for source, target, packed in sorted(world.between):
                if target == member.acceptor.member and (source not in answered or member.acceptor.term is None):
                    yield from self._to_member(world, index, source, packed, waits)
            for number, packed in sorted(world.asked):
                yield from self._to_member(world, index, str(number), packed, waits)
        for number, client in enumerate(world.clients):
            yield from self._completed(world, number, client)

    def _to_member(self, world: World, index: int, source: str, packed: bytes, waits: Waits) -> Iterator[World]:
        before = world.members[index]
        place = before.acceptor, source, packed
        if place not in self._received:
            self._received[place] = self._receive(*place)
        acceptor, votes, sent = self._received[place]
        if any(_phase(vote) != waits[number] for number, vote in votes):
            votes = frozenset()  # It answers one message with one vote at most.
        if acceptor is not before.acceptor or not votes <= before.votes or not sent <= world.between:
            is_over = before.acceptor.term is None and acceptor.term is not None
            between = frozenset() if is_over else world.between | sent
            after = _with_member(world, index, Member(acceptor, before.votes | votes))
            yield after if between == after.between else after._replace(between=between)

    def _receive(self, before: Acceptor, source: str, packed: bytes) -> Received:
        acceptor = _copied(before)
        answers = acceptor.receive(source, self._decode(packed))
        if acceptor.term is None and source in MEMBERS:
            answers += acceptor.questions()
        kept = [(target, answer) for target, answer in answers if not (isinstance(answer, Vote) and answer.refusal)]
        told = [(target, msgspec.msgpack.encode(answer)) for target, answer in kept]
        votes = frozenset((int(target), answer) for target, answer in told if target not in MEMBERS)
        sent = frozenset((acceptor.member, target, answer) for target, answer in told if target in MEMBERS)
        return Received(self._one(acceptor, before.disk), votes, sent)  # type: ignore[attr-defined]

    def _begun(self, world: World, number: int, client: Client) -> Iterator[World]:
        """Begin an attempt, at whatever point the last one is; or crash, and let the client repeat the change."""
        if client.proposal.phase is Phase.CHOSEN:
            return
        if client.attempts < self._case.attempts[number]:
            lead = None
            if self._case.leads and number == 1 and not client.attempts:
                lead = world.clients[0].proposal.lead
                if lead is None:
                    return
            proposal = _copied_proposal(client.proposal)
            proposal.begin({}, lead)
            asked = {(number, msgspec.msgpack.encode(motion)) for _, motion in proposal.messages()}
            floor = world.highest if client.floor < 0 else client.floor
            began = Client(self._same(proposal), client.attempts + 1, client.crashes, floor)
            yield _less_idle(_with_client(world, number, began)._replace(asked=world.asked | asked))
        if client.crashes < self._case.crashes and client.attempts:
            again = self._client(number, client.proposal.change, client.crashes + 1)
            yield _less_idle(_with_client(world, number, again._replace(floor=client.floor, attempts=client.attempts)))

    def _completed(self, world: World, number: int, client: Client) -> Iterator[World]:
        """Take enough votes, or as many as make the proposer ask again."""
        voted = [
            [(member.acceptor.member, packed) for of, packed in sorted(member.votes) if of == number]
            for member in world.members
            if member.votes
        ]
        choices = [votes for votes in voted if votes]
        for size in (1, 2, 3):
            for some in combinations(choices, size):
                for votes in product(*some):
                    place = client.proposal, votes
                    if place not in self._counted:
                        self._counted[place] = self._count(*place)
                    proposal, asked = self._counted[place]
                    if proposal is client.proposal and not asked:
                        continue
                    sent = frozenset((number, packed) for packed in asked)
                    after = _with_client(world, number, client._replace(proposal=proposal))
                    after = _less_idle(after._replace(asked=world.asked | sent))
                    yield _concluded(after, client, proposal) if proposal.phase is Phase.CHOSEN else after

    def _count(self, before: Proposal, votes: tuple[tuple[str, bytes], ...]) -> tuple[Proposal, list[bytes]]:
        proposal = _copied_proposal(before)
        asked: list[bytes] = []
        for member, packed in votes:
            vote = self._decode(packed)
            assert isinstance(vote, Vote)
            asked += [msgspec.msgpack.encode(motion) for _, motion in proposal.receive(member, vote)]
        if proposal.phase is before.phase:
            return before, asked  # It has asked again, with the terms that it heard of.
        return self._same(proposal), asked

    def _wiped(self, world: World) -> World:
        member = world.members[0]
        new = self._made(member.acceptor.member, b"new", {})
        new.recovery.heard()
        asking = {(new.member, target, msgspec.msgpack.encode(motion)) for target, motion in new.questions()}
        wiped = _with_member(world, 0, Member(self._one(new, {}), member.votes))
        return wiped._replace(wipes=world.wipes + 1, between=world.between | asking)

    # ── equal things are one ──────────────────────────────────────────────────

    def _decode(self, packed: bytes) -> AnyMotion:
        if packed not in self._decoded:
            self._decoded[packed] = _DECODERS[packed[1]].decode(packed)
        return self._decoded[packed]

    def _one(self, acceptor: Acceptor, disk: dict[bytes, bytes]) -> Acceptor:
        """The acceptor, once its rows are on disk."""
        rows = {key: value for key, value in {**disk, **acceptor.rows}.items() if value is not None}
        acceptor.written()
        waits: object = None
        if acceptor.term is None:
            answers = sorted((source, msgspec.msgpack.encode(answer)) for source, answer in acceptor.recovery._answers.items())
            waits = tuple(answers), acceptor.recovery._wanted
        key = acceptor._directory, acceptor.term, tuple(sorted(acceptor.terms.items())), tuple(acceptor._slots.items()), waits
        place = acceptor.member, key, tuple(sorted(rows.items()))
        found = self._acceptors.setdefault(place, acceptor)
        if found is acceptor:
            acceptor.disk = rows  # type: ignore[attr-defined]
            slots = "same", tuple(acceptor._slots.items())
            acceptor.same = self._acceptors.setdefault(slots, acceptor)  # type: ignore[attr-defined]
        return found

    def _same(self, proposal: Proposal) -> Proposal:
        terms = tuple(sorted(proposal._terms.items()))
        ballots = proposal._ballots.proposer, proposal._ballots._counter
        lead = proposal.lead is not None, proposal._promise
        key = proposal.change, proposal.ballot, proposal.phase, proposal.value, terms, ballots, lead
        assert not proposal._votes or proposal.phase in (Phase.CHOSEN, Phase.BEATEN)
        return self._proposals.setdefault(key, proposal)

    def _restarted(self, before: Acceptor) -> Acceptor:
        rows: dict[bytes, bytes] = before.disk  # type: ignore[attr-defined]
        again = self._made(before.member, before._directory, rows)
        return self._one(again, rows)


_DECODERS: dict[object, msgspec.msgpack.Decoder[AnyMotion]] = {
    kind.__struct_config__.tag: msgspec.msgpack.Decoder(kind) for kind in get_args(AnyMotion)
}


def _nonce() -> bytes:
    return b"again"


def _with_member(world: World, index: int, member: Member) -> World:
    return world._replace(members=(*world.members[:index], member, *world.members[index + 1 :]))


def _with_client(world: World, number: int, client: Client) -> World:
    return world._replace(clients=(*world.clients[:number], client, *world.clients[number + 1 :]))


def _waits(world: World) -> Waits:
    return [
        (client.proposal.ballot, client.proposal.phase is Phase.ACCEPTING)
        if client.proposal.phase in (Phase.PREPARING, Phase.ACCEPTING)
        else None
        for client in world.clients
    ]


def _less_idle(world: World) -> World:
    """Without the votes that no proposer waits for any more, and the requests for them.

    A late `Prepare` only lets its receiver reject what may as well be lost; a late `Accept` is kept.
    """
    waits = _waits(world)
    for index, member in enumerate(world.members):
        if late := [vote for vote in member.votes if _phase(vote[1]) != waits[vote[0]]]:
            world = _with_member(world, index, Member(member.acceptor, member.votes.difference(late)))
    idle = [each for each in world.asked if _phase(each[1]) not in (None, waits[each[0]])]
    return world._replace(asked=world.asked.difference(idle)) if idle else world


@cache
def _phase(packed: bytes) -> tuple[Ballot, bool] | None:
    """The attempt that a vote or a `Prepare` belongs to, and whether it is the second phase of it; None: an `Accept`."""
    motion = _DECODERS[packed[1]].decode(packed)
    assert isinstance(motion, Prepare | Accept | Vote)
    return None if isinstance(motion, Accept) else (motion.ballot, isinstance(motion, Vote) and motion.accepting)


def _concluded(world: World, client: Client, proposal: Proposal) -> World:
    """Hold what a client is told against what others were told.

    Raises:
        Broken: a version has two values, or one is older than a version that was told before the operation began.
    """
    value = proposal.value
    contents = {each.proposal.change.id: each.proposal.change.content for each in world.clients if each.proposal.change}
    told = dict(world.told)
    for version, change in enumerate(value.recent, value.version - len(value.recent) + 1):
        if told.setdefault(version, change) != change:
            raise Broken(f"version {version} was made by {told[version]!r} and by {change!r}")
    if value.recent and value.content != contents[value.recent[-1]]:
        raise Broken(f"version {value.version} has the content of another change")
    if len(set(told.values())) < len(told):
        raise Broken(f"a change was made twice: {told}")
    if value.version < client.floor:
        raise Broken(f"version {value.version} is told after version {client.floor}")
    if proposal.change is not None and proposal.change.judge(value) is Verdict.UNKNOWN:
        raise Broken("one of a few changes is not recognised")
    return world._replace(told=tuple(sorted(told.items())), highest=max(world.highest, value.version))


def _copied(acceptor: Acceptor) -> Acceptor:
    again = copy.copy(acceptor)
    again.terms, again._slots, again._changed = dict(acceptor.terms), dict(acceptor._slots), {}
    if acceptor.term is None:
        again.recovery = copy.copy(acceptor.recovery)
        again.recovery._answers = dict(acceptor.recovery._answers)
        again.recovery._empty, again.recovery.states = dict(acceptor.recovery._empty), {}
    return again


def _copied_proposal(proposal: Proposal) -> Proposal:
    again = copy.copy(proposal)
    again._votes, again._terms, again.refusals = dict(proposal._votes), dict(proposal._terms), {}
    again._ballots = copy.copy(proposal._ballots)
    return again
