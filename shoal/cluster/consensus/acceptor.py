"""A member's votes in the quorum register: an acceptor of CASPaxos for each key, in one directory.

    receive · questions · forget · halt · found   →   answers, and rows to write

Rystsov: "CASPaxos: Replicated State Machines without logs" (2018).

Laws:
- The caller writes the rows and makes them durable before it sends what was returned with them. Of each member, it
  gives the messages of one directory: the one that it reaches at the member's address.
- A promise is never broken: no ballot below it is accepted, after any restart.
- A directory that may have forgotten votes does not vote (`shoal.cluster.consensus.recovery`). A later term of its
  own in any message, or more votes in its term than it has, proves that it has forgotten.
- Messages are taken from members in the same epoch only, and terms of members only.
- A value that no member can have proposed (`Rules.fits`), or to which this one objects (`Rules.objects`), is neither
  accepted nor learnt from others: what it has learnt counts as its vote, and one liar's answer may be all that tells it.
- A directory that was halted for a rebuild neither votes nor asks to vote, until it is founded anew, resumed or reformed.
- A ballot or a version that is not believed (`believed`) gets no vote, and a term counts as far as it is.
- The terms of others that a message names are kept with the next vote; those of a member that asks for a new term at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from shoal.cluster.consensus.ballots import (
    ANYTHING,
    NO_BALLOT,
    NO_TERM,
    NOTHING,
    Accept,
    Answer,
    AnyMotion,
    Ask,
    Ballot,
    Electorate,
    Known,
    Prepare,
    Refusal,
    Rules,
    Slot,
    State,
    Term,
    Terms,
    Value,
    Vote,
    believed,
)
from shoal.cluster.consensus.recovery import Foundation, Recovery, Remains
from shoal.records import NamedTuple

_OWN = b"own"
_TERM = b"term/"
_SLOT = b"slot/"

Sends = list[tuple[str, AnyMotion]]


class _Own(NamedTuple):
    """The voter of this directory: it is another's after a copy, and another member's after a new address."""

    directory: bytes
    member: str
    term: Term  # Number 0: it has forgotten.
    alone: bool  # Without other members, so that nobody else knows of it.


class Limits(NamedTuple):
    """The bounds of `Config` that matter here."""

    keys_max: int
    value_bytes_max: int


class Acceptor:
    """The votes of `member`. `rows` are those that it returned before; None: they cannot be read."""

    def __init__(
        self,
        member: str,
        directory: bytes,
        rows: Mapping[bytes, bytes] | None,
        *,
        electorate: Electorate,
        nonce: Callable[[], bytes],
        limits: Limits,
        rules: Rules = ANYTHING,
    ) -> None:
        self.member = member
        self.electorate = electorate
        self._known = frozenset(electorate.members) | {member}
        self.terms: dict[str, Term] = {}
        """The latest term of each member that is known here, its own as others know it."""
        self._directory = directory
        self._limits = limits
        self._rules = rules
        self._nonce = nonce
        self._slots: dict[str, tuple[Ballot, Ballot, Value]] = {}
        self._reach = 0  # The highest ballot or version that was voted for; each that is not believed moves it a step.
        self._changed: dict[bytes, bytes | None] = {}
        self.is_due = False
        """Whether there are rows that must be durable before anything else is sent."""
        self.is_halted = False
        """Whether it neither votes nor asks to, because a rebuild is under way."""
        own = self._voted = _unpack(rows or {}, self._slots, self.terms)
        self._reach_slots()
        is_alone = electorate.members == [member]
        has_voted = rows is None or (own is not None and not (own.alone and not is_alone))
        is_own = own is not None and has_voted and own.directory == directory and own.member == member
        self.term = own.term if own is not None and is_own and own.term.number else None
        """The term in which this directory votes; None while it does not."""
        if self.term is not None:
            self.terms[member] = self.term
        self.left_alone: Mapping[str, bytes] = {}
        """By key, the contents that this directory had chosen while it was alone: no values of this cluster."""
        if own is not None and own.alone and not is_alone and own.directory == directory:
            self.left_alone = {key: value.content for key, (_, _, value) in self._slots.items()}
        self.recovery = Recovery(member, directory, empty=not has_voted, nonce=nonce)
        if self.recovery.empty:
            self._voted = None
            self._drop()

    def doubt(self) -> None:
        """This directory was set back: peers know that it once held more than it does."""
        self.recovery.suspect = True

    def reform(self, electorate: Electorate) -> None:
        """The members have changed, so a halt is over.

        The terms of nodes that are no members any more are dropped: no vote of theirs counts.
        """
        self.electorate, self.is_halted = electorate, False
        self._known = frozenset(electorate.members) | {self.member}
        for member in self.terms.keys() - self._known:
            del self.terms[member]
            self._changed[_TERM + member.encode()] = None
        if self.term is not None:
            self._write_own(self.term)  # It is not alone any more, if it was.

    # ── messages ──────────────────────────────────────────────────────────────

    def receive(self, source: str, motion: AnyMotion) -> Sends:
        """Take a message of a member, itself included; returns the answers."""
        if isinstance(motion, Prepare | Accept | Vote | Ask | Answer):
            self.hear(motion.terms)
        match motion:
            case Prepare(key, ballot):
                return [(source, self._prepare(key, ballot))]
            case Accept(key, ballot, value, _, promise):
                return [(source, self._accept(key, ballot, value, promise))]
            case Vote(term=term):
                self.hear({source: term})
            case Ask(term):
                return [(source, self._answer(source, term))]
            case Answer() if self.term is None and not self.is_halted:
                self.hear({source: motion.term})
                self.recovery.answered(source, motion, self.terms)
                return self._try()
            case Known(terms, founding):
                if self.term is None:
                    self.recovery.heard()
                    self.recovery.suspect &= not founding
                self.hear(terms)
        return []

    def hear(self, terms: Terms) -> None:
        """Take the terms that a message names."""
        for member, told in terms.items():
            known = self.terms.get(member, NO_TERM)
            term = told._replace(number=believed(told.number, known.number), votes=believed(told.votes, known.votes))
            if term <= known or member not in self._known:
                continue
            self.terms[member] = term
            self._changed[_TERM + member.encode()] = msgspec.msgpack.encode(term)
        own = self.terms.get(self.member, NO_TERM)
        if self.term is not None and own > self.term:
            self.forget()
        elif self.term is None and not self.is_halted and self.recovery.is_given(own):
            self._begin(own)

    def questions(self) -> Sends:
        """Of a directory that does not vote: what to send now, and again until it does."""
        if self.term is not None or self.is_halted:
            return []
        return self._try() or self.recovery.questions(self.electorate, self.terms)

    @property
    def told(self) -> dict[str, Term]:
        """The terms to tell before the last votes are durable: without the number of its own, which a crash may take back."""
        return self.terms | {self.member: self.term._replace(votes=0)} if self.term is not None else dict(self.terms)

    def forget(self) -> None:
        """Stop to vote: this directory is known to have forgotten something."""
        if self.term is None and self.recovery.empty:
            self.recovery.suspect = True
            return
        self.term = None
        self.recovery = Recovery(self.member, self._directory, empty=False, nonce=self._nonce)
        self._write_own(NO_TERM)

    # ── rebuilds ──────────────────────────────────────────────────────────────

    @property
    def remains(self) -> Remains:
        """The part of the register that this directory holds."""
        voted = self._voted or _Own(b"", "", NO_TERM, False)
        slots: list[Slot] = [(key, *slot) for key, slot in sorted(self._slots.items())]
        return Remains(self._directory, self.state, voted.directory, voted.member, voted.term, dict(self.terms), slots)

    def halt(self) -> None:
        """Vote no more, and do not ask to: what `remains` tells from now on does not change."""
        if self.term is not None:
            self.forget()
        self.is_halted = True

    def resume(self) -> None:
        """Ask to vote again: the rebuild was given up."""
        self.is_halted = False

    def found(self, foundation: Foundation) -> None:
        """Vote from now on, with what a rebuild found. The caller has made `rows_of` durable."""
        self.is_halted = False
        self.recovery = Recovery(self.member, self._directory, empty=False, nonce=self._nonce)
        self._changed = {}  # What was due of before is deleted by these rows.
        self._slots = {key: (promised, accepted, value) for key, promised, accepted, value in foundation.slots}
        self._reach_slots()
        self.terms = dict(foundation.terms)
        self._begin(self.terms[self.member])

    def rows_of(self, foundation: Foundation) -> dict[bytes, bytes | None]:
        """The rows with which this directory begins anew."""
        rows: dict[bytes, bytes | None] = {_SLOT + key.encode(): None for key in self._slots}
        rows |= {_TERM + member.encode(): None for member in self.terms}
        rows |= {_SLOT + key.encode(): msgspec.msgpack.encode(tuple(slot)) for key, *slot in foundation.slots}
        rows |= {_TERM + member.encode(): msgspec.msgpack.encode(term) for member, term in foundation.terms.items()}
        rows[_OWN] = msgspec.msgpack.encode(self._own(foundation.terms[self.member], alone=len(foundation.terms) == 1))
        return rows

    # ── votes ─────────────────────────────────────────────────────────────────

    def _prepare(self, key: str, ballot: Ballot) -> Vote:
        promised, accepted, value = self._slots.get(key, (NO_BALLOT, NO_BALLOT, NOTHING))
        refusal = self._refusal(key, ballot, promised)
        is_far = not refusal and self._is_far(ballot.counter)
        if is_far:
            refusal = "not-voting"
        if not refusal and ballot > promised:
            promised = ballot
            self._vote(key, promised, accepted, value)
        reply = self._reply(key, ballot, False, refusal, promised, accepted, value)
        return msgspec.structs.replace(reply, unfit=True) if is_far else reply

    def _accept(self, key: str, ballot: Ballot, value: Value, promise: Ballot) -> Vote:
        promised, accepted, before = self._slots.get(key, (NO_BALLOT, NO_BALLOT, NOTHING))
        # If this vote was given before, what is promised since then is no more than this vote promised.
        is_repeated = accepted == ballot and promised == promise
        refusal = self._refusal(key, ballot, ballot if is_repeated else promised)
        if len(value.content) > self._limits.value_bytes_max:
            refusal = "full"
        # It sticks to what it has voted for: that may be chosen.
        is_unfit = not refusal and (
            self._is_far(max(ballot.counter, promise.counter, value.version))
            or (value != before and not self._rules.allow(key, value))
        )
        if is_unfit:
            refusal = "not-voting"
        if not refusal and ballot > accepted:
            promised = max(ballot, promise)
            self._vote(key, promised, ballot, value)
        reply = self._reply(key, ballot, True, refusal, promised, NO_BALLOT, NOTHING)
        return msgspec.structs.replace(reply, unfit=True) if is_unfit else reply

    def _refusal(self, key: str, ballot: Ballot, promised: Ballot) -> Refusal:
        if self.term is None:
            return "not-voting"
        if key not in self._slots and len(self._slots) >= self._limits.keys_max:
            return "full"
        return "beaten" if ballot < promised else ""

    def _vote(self, key: str, promised: Ballot, accepted: Ballot, value: Value) -> None:
        assert self.term is not None, "only a voter votes"
        self._put(key, promised, accepted, value)
        self._begin(self.term._replace(votes=self.term.votes + 1))

    def _is_far(self, count: int) -> bool:
        """Whether a ballot or a version is beyond what is believed. What another says for long is believed in the end."""
        is_far = count > believed(count, self._reach)
        if is_far:
            self._reach = believed(count, self._reach)
        return is_far

    def _reach_slots(self) -> None:
        self._reach = max((max(slot[0].counter, slot[2].version) for slot in self._slots.values()), default=0)

    def _reply(
        self, key: str, ballot: Ballot, accepting: bool, refusal: Refusal, promised: Ballot, accepted: Ballot, value: Value
    ) -> Vote:
        return Vote(key, ballot, accepting, refusal, promised, accepted, value, self.term or NO_TERM, dict(self.terms))

    # ── terms ─────────────────────────────────────────────────────────────────

    @property
    def state(self) -> State:
        """The state of this directory in the register."""
        return "voting" if self.term is not None else "empty" if self.recovery.empty else "forgotten"

    def _answer(self, source: str, asked: Term) -> Answer:
        """Grant the term that a member asks for, if it is later than all that it had; before that its votes may be counted."""
        if self.term is None:
            return self._told(asked, grants=False)
        grants = asked.number > 1 and asked >= self.terms.get(source, NO_TERM) and source in self._known
        if grants:
            self.hear({source: asked})
            self.is_due = True
            grants = self.terms[source] == asked  # It may be too late a term to be believed yet.
        return self._told(asked, grants=grants)

    def _told(self, asked: Term, *, grants: bool) -> Answer:
        slots: list[Slot] = [(key, *slot) for key, slot in sorted(self._slots.items())] if grants else []
        return Answer(asked, self.state, grants, self._directory, self.term or NO_TERM, dict(self.terms), slots)

    def _try(self) -> Sends:
        """Begin a term if enough is known; the founder may give the others their first."""
        restored = self.recovery.restored(self.electorate, self.terms)
        if restored is None:
            given = self.recovery.founding(self.electorate)
            self.hear(given)
            return [(member, Known(given, founding=True)) for member in given if member != self.member]
        for key, promised, accepted, value in restored.slots:
            before = self._slots.get(key, (NO_BALLOT, NO_BALLOT, NOTHING))
            newest = before[1:]
            if accepted > before[1] and self._rules.allow(key, value):
                newest = accepted, value
            self._put(key, max(before[0], promised), *newest)
        self.terms.update(restored.terms)
        self._changed |= {_TERM + member.encode(): msgspec.msgpack.encode(term) for member, term in restored.terms.items()}
        self._begin(restored.term)
        return []

    def _begin(self, term: Term) -> None:
        """Vote in this term from now on."""
        self.term = term
        self.terms[self.member] = term
        self._write_own(term)

    # ── rows ──────────────────────────────────────────────────────────────────

    @property
    def rows(self) -> dict[bytes, bytes | None]:
        """The rows that changed; they are due until `written`."""
        return self._changed

    def written(self) -> None:
        """All rows were written."""
        self._changed, self.is_due = {}, False

    @property
    def versions(self) -> dict[str, int]:
        """By key, the version that this member accepted last; the cluster may have a later one."""
        return {key: value.version for key, (_, _, value) in sorted(self._slots.items())}

    def value_of(self, key: str) -> Value:
        """The value of a key that this member accepted last; the cluster may have a later one."""
        return self._slots[key][2] if key in self._slots else NOTHING

    def promised(self, key: str) -> Ballot:
        """The highest ballot that this member has promised for a key."""
        return self._slots[key][0] if key in self._slots else NO_BALLOT

    def _put(self, key: str, promised: Ballot, accepted: Ballot, value: Value) -> None:
        self._slots[key] = promised, accepted, value
        self._reach = max(self._reach, promised.counter, value.version)
        self._changed[_SLOT + key.encode()] = msgspec.msgpack.encode(self._slots[key])

    def _write_own(self, term: Term) -> None:
        self._voted = self._own(term, alone=self.electorate.members == [self.member])
        self._changed[_OWN] = msgspec.msgpack.encode(self._voted)
        self.is_due = True

    def _own(self, term: Term, *, alone: bool) -> _Own:
        return _Own(self._directory, self.member, term, alone)

    def _drop(self) -> None:
        """Drop promises of another directory, or of this one while it was alone: they are no votes of this cluster."""
        self._changed |= {_SLOT + key.encode(): None for key in self._slots}
        self._changed |= {_TERM + member.encode(): None for member in self.terms}
        self._slots.clear()
        self.terms.clear()


def _unpack(rows: Mapping[bytes, bytes], slots: dict[str, tuple[Ballot, Ballot, Value]], terms: dict[str, Term]) -> _Own | None:
    own = None
    for key, packed in rows.items():
        if key == _OWN:
            own = msgspec.msgpack.decode(packed, type=_Own)
        elif key.startswith(_TERM):
            terms[key[len(_TERM) :].decode()] = msgspec.msgpack.decode(packed, type=Term)
        elif key.startswith(_SLOT):
            slots[key[len(_SLOT) :].decode()] = msgspec.msgpack.decode(packed, type=tuple[Ballot, Ballot, Value])
    return own
