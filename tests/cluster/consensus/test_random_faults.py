"""Members of a toy cluster found the register, lose their disks, are set back and restarted, over a network that loses,
delays and repeats messages: what clients are told is linearizable."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

import pytest

from shoal.cluster.consensus.acceptor import Acceptor, Limits
from shoal.cluster.consensus.ballots import (
    ID_BYTES,
    NO_TERM,
    Accept,
    AnyMotion,
    Ballots,
    Change,
    Electorate,
    Known,
    Lead,
    Phase,
    Prepare,
    Proposal,
    Terms,
    Value,
    Verdict,
    Vote,
)
from shoal.cluster.consensus.recovery import Recovery, Restored
from simulation.judging.linearity import Operation, broken

KEY = "k"
STEPS = 4000
LIMITS = Limits(keys_max=4, value_bytes_max=64)


class Message(NamedTuple):
    source: str
    directory: bytes  # The one that sent it.
    target: str
    motion: AnyMotion


class Member:
    """A member's machine: what is on its disk, and what runs on it. All of a member's rows are durable at once."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.name = name
        self._cluster = cluster
        self.replace({})

    def replace(self, rows: Mapping[bytes, bytes], *, directory: bytes | None = None) -> None:
        """Start on this disk; None: on an empty one."""
        random = self._cluster.random
        self.directory = directory or random.randbytes(ID_BYTES)
        self.rows = dict(rows)
        self.acceptor = Acceptor(
            self.name,
            self.directory,
            self.rows,
            electorate=self._cluster.electorate,
            nonce=lambda: random.randbytes(ID_BYTES),
            limits=LIMITS,
        )
        self.ballots = Ballots(random.randbytes(ID_BYTES))
        self.proposals: list[tuple[Proposal, Operation]] = []
        self.lead: Lead | None = None
        self.save()

    def save(self) -> None:
        for key, value in self.acceptor.rows.items():
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = value
        self.acceptor.written()


class Cluster:
    def __init__(self, seed: int, size: int) -> None:
        self.random = Random(seed)
        names = "abcde"[:size]
        self.electorate = Electorate((frozenset(names),))
        self.members = {name: Member(self, name) for name in names}
        self.losers = self.random.sample(names, (size - 1) // 2)  # The disks of a minority may be lost.
        self.away = ""  # A member that hears nothing, and is not heard.
        self.messages: list[Message] = []
        self.operations: list[Operation] = []
        self.seen = 0
        self.leads = 0  # Won so far.
        self.now = 0.0

    def run(self, *, faults: bool) -> None:
        self.away = ""
        for _ in range(STEPS):
            self.now += 1
            if len(self.messages) > 300:
                self.messages = self.random.sample(self.messages, 100)
            if self.messages and self.random.random() < 0.9:
                self.deliver(*self.taken(faults))
            elif faults and self.random.random() < 0.2:
                self.strike()
            else:
                self.act(self.random.choice(list(self.members.values())))

    def taken(self, faults: bool) -> tuple[Message]:
        nth = self.random.randrange(len(self.messages)) if faults else 0
        message = self.messages[nth]
        if not faults or self.random.random() < 0.9:
            del self.messages[nth]
        return (message,)

    def send(self, member: Member, sends: list[tuple[str, AnyMotion]]) -> None:
        member.save()
        self.messages += [Message(member.name, member.directory, target, motion) for target, motion in sends]

    def deliver(self, message: Message) -> None:
        member = self.members[message.target]
        if self.away in (message.source, message.target) and message.source != message.target:
            return
        if self.members[message.source].directory != message.directory:
            return  # Another directory is reached there.
        self.send(member, member.acceptor.receive(message.source, message.motion))
        for proposal, operation in list(member.proposals) if isinstance(message.motion, Vote) else ():
            assert isinstance(message.motion, Vote)
            self.send(member, proposal.receive(message.source, message.motion))
            if proposal.phase is Phase.CHOSEN:
                member.proposals.remove((proposal, operation))
                member.lead = proposal.lead
                self.leads += member.lead is not None
                self.conclude(proposal, operation)

    def conclude(self, proposal: Proposal, operation: Operation) -> None:
        value: Value = proposal.value
        operation.ended_s, operation.version = self.now, value.version
        self.seen = value.version
        if proposal.change is None:
            operation.outcome, operation.content = "shown", int(value.content or b"0")
            return
        verdict = proposal.change.judge(value)
        if verdict is Verdict.UNKNOWN:
            operation.ended_s, operation.version = float("inf"), -1
            return
        operation.outcome = "made" if verdict is Verdict.MADE else "refused"
        operation.version = value.version_of(proposal.change.id) or value.version

    def act(self, member: Member) -> None:
        way = self.random.random()
        if way < 0.4:
            self.send(member, member.acceptor.questions())
        elif way < 0.5 and member.acceptor.term is not None:
            self.send(member, [(name, Known(member.acceptor.told)) for name in self.members if name != member.name])
        elif way < 0.7 or not member.proposals:
            self.begin(member)
        else:
            proposal, _ = self.random.choice(member.proposals)
            # The time to send again may also come in the moment in which an attempt is beaten.
            if self.random.random() < (0.8 if proposal.phase is Phase.BEATEN else 0.2):
                proposal.begin(member.acceptor.told)
            self.send(member, proposal.messages())

    def begin(self, member: Member) -> None:
        number, change = 0, None
        if self.random.random() < 0.6:
            number = len(self.operations) + 1
            change = Change(number.to_bytes(ID_BYTES, "big"), max(0, self.seen - (self.random.random() < 0.1)), b"%d" % number)
        operation = Operation(number, change.expected if change else -1, self.now)
        self.operations.append(operation)
        proposal = Proposal(KEY, change, electorate=self.electorate, ballots=member.ballots)
        lead, member.lead = member.lead, None
        proposal.begin(member.acceptor.told, lead)
        member.proposals = [*member.proposals[-2:], (proposal, operation)]
        self.send(member, proposal.messages())

    def strike(self) -> None:
        way = self.random.random()
        if way < 0.5:
            self.away = self.random.choice([*self.members, ""])
        elif way < 0.75 or not self.losers:
            member = self.random.choice(list(self.members.values()))
            member.replace(member.rows, directory=member.directory)
        else:
            member = self.members[self.random.choice(self.losers)]
            member.replace({} if self.random.random() < 0.7 else member.rows)  # An empty disk, or a copy.

    def voting(self) -> int:
        return sum(member.acceptor.term is not None for member in self.members.values())


@pytest.mark.answers("register-is-linearizable", note="two to five members, and lost disks")
@pytest.mark.parametrize("seed", [*range(10), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(10, 40))])
def test_answers_to_clients_are_linearizable(seed: int) -> None:
    cluster = Cluster(seed, (2, 3, 3, 4, 5)[seed % 5])
    cluster.run(faults=False)  # It is founded.
    assert cluster.voting() == len(cluster.members)
    cluster.run(faults=True)
    cluster.run(faults=False)
    assert cluster.voting() == len(cluster.members)
    assert list(broken(cluster.operations)) == []
    assert any(operation.outcome == "made" for operation in cluster.operations[-50:])
    assert cluster.leads


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(6, 20))])
def test_a_cluster_that_is_founded_among_faults_is_linearizable(seed: int) -> None:
    cluster = Cluster(seed, (3, 4, 5)[seed % 3])
    cluster.run(faults=True)
    cluster.run(faults=False)
    assert list(broken(cluster.operations)) == []


def test_members_that_vote_although_they_have_forgotten_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def restored(self: Recovery, electorate: Electorate, terms: Terms) -> Restored:
        return Restored(self._later(terms.get(self._member, NO_TERM)), terms, [])

    monkeypatch.setattr(Recovery, "restored", restored)

    def finds(seed: int) -> bool:
        cluster = Cluster(seed, 3)
        cluster.run(faults=True)
        return any(True for _ in broken(cluster.operations))

    assert any(finds(seed) for seed in range(40))


def test_an_attempt_that_is_over_and_sends_what_it_has_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no value before a majority has promised its ballot: a chosen one is replaced by none."""

    def messages(self: Proposal) -> list[tuple[str, AnyMotion]]:
        motion: AnyMotion = Accept(KEY, self.ballot, self.value, self._terms, self._promise)
        if self.phase is Phase.PREPARING:
            motion = Prepare(KEY, self.ballot, self._terms)
        return [(member, motion) for member in self._electorate.members if member not in self.counted]

    monkeypatch.setattr(Proposal, "messages", messages)

    def finds(seed: int) -> bool:
        cluster = Cluster(seed, 3)
        cluster.run(faults=False)
        cluster.run(faults=True)
        return any(True for _ in broken(cluster.operations))

    assert any(finds(seed) for seed in range(40))
