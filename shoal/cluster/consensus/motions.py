"""The messages of the quorum register, byte for byte. `shoal.cluster.messages` decodes them with all others.

Laws:
- A `Vote` or an `Answer` leaves a node only once the disk holds what it says.
- Every message carries the terms that its sender knows: a receiver that finds a later term of its own has forgotten
  votes, and stops voting.
- Fields are only ever added at the end, with a default.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from shoal.cluster.consensus.ballots import ID_BYTES, NO_BALLOT, RECENT_MAX, Ballot, Term, Value
from shoal.errors import InvalidValue
from shoal.names import KEY_BYTES_MAX

TERMS_MAX = 128  # Members in one message: those of two lists.
SLOTS_MAX = 4096  # Keys in one Answer.
_COUNT_MAX = 1 << 62

Refusal = Literal["", "beaten", "not-voting", "full"]
"""Why a member does not vote for a ballot: it has promised a higher one, may have forgotten votes, or holds too many keys."""

State = Literal["voting", "empty", "forgotten"]
"""The state of a member: a voter, a new directory that never voted, or one that may have forgotten votes."""

Slot = tuple[str, Ballot, Ballot, Value]
"""A key, the ballot promised for it, the ballot accepted, and the value accepted with it."""


class Motion(Struct, array_like=True, frozen=True):
    """The fields that all messages of the quorum register have in common."""


class Prepare(Motion, array_like=True, frozen=True, tag=17):
    """Asks for the promise to accept no lower ballot; answered by a `Vote`."""

    key: str
    ballot: Ballot
    terms: dict[str, Term]


class Accept(Motion, array_like=True, frozen=True, tag=18):
    """Asks to accept a value; answered by a `Vote`, which also promises the ballot `promise` if that is higher."""

    key: str
    ballot: Ballot
    value: Value
    terms: dict[str, Term]
    promise: Ballot = NO_BALLOT  # The sender's next one.


class Vote(Motion, array_like=True, frozen=True, tag=19):
    """The answer to a `Prepare`, or with `accepting` to an `Accept`, of this ballot."""

    key: str
    ballot: Ballot
    accepting: bool
    refusal: Refusal  # Empty: the vote is given.
    promised: Ballot
    accepted: Ballot  # Of the last value that the sender accepted; only in a promise.
    value: Value
    term: Term  # The sender's own.
    terms: dict[str, Term]
    unfit: bool = False  # With the refusal "not-voting": the sender votes, and not for this value.


class Ask(Motion, array_like=True, frozen=True, tag=20):
    """A member that does not vote asks what it must know; answered by an `Answer`.

    With a term above 0 it wants to vote in that term: a voter that answers counts no earlier vote of it any more.
    """

    term: Term
    terms: dict[str, Term]


class Answer(Motion, array_like=True, frozen=True, tag=21):
    """The answer to an `Ask` of this term. Only a voter's answer to a term that it `grants` has slots."""

    asked: Term
    state: State
    grants: bool
    directory: bytes
    term: Term  # The sender's own.
    terms: dict[str, Term]
    slots: list[Slot] = []


class Known(Motion, array_like=True, frozen=True, tag=22):
    """The terms that a voter knows, or that the founder gives; a member that does not vote learns from it that it could."""

    terms: dict[str, Term]
    founding: bool = False


AnyMotion = Prepare | Accept | Vote | Ask | Answer | Known


def check(motion: Motion) -> None:
    """Check what the types leave open.

    Raises:
        InvalidValue: a count, an id or a key is impossible.
    """
    match motion:
        case Prepare(key, ballot, terms):
            is_sound = _is_key(key) and _is_ballot(ballot) and _are_terms(terms)
        case Accept(key, ballot, value, terms, promise):
            is_sound = _is_key(key) and _is_ballot(ballot) and _is_value(value) and _are_terms(terms) and _is_ballot(promise)
        case Vote(key, ballot, _, _, promised, accepted, value, term, terms, _):
            is_sound = _is_key(key) and all(map(_is_ballot, (ballot, promised, accepted))) and _is_value(value)
            is_sound = is_sound and _is_term(term) and _are_terms(terms)
        case Ask(term, terms):
            is_sound = _is_term(term) and _are_terms(terms)
        case Answer(asked, _, _, directory, term, terms, slots):
            is_sound = _is_term(asked) and _is_term(term) and _are_terms(terms) and len(directory) <= ID_BYTES
            is_sound = is_sound and len(slots) <= SLOTS_MAX and all(_is_slot(*slot) for slot in slots)
        case Known(terms, _):
            is_sound = _are_terms(terms)
        case _:
            is_sound = False
    if not is_sound:
        raise InvalidValue("a peer's message about the quorum register has an impossible field. Nothing was written.")


def _is_key(key: str) -> bool:
    return 0 < len(key.encode()) <= KEY_BYTES_MAX


def _is_ballot(ballot: Ballot) -> bool:
    return 0 <= ballot.counter < _COUNT_MAX and len(ballot.proposer) <= ID_BYTES


def _is_value(value: Value) -> bool:
    return 0 <= value.version < _COUNT_MAX and len(value.recent) <= min(RECENT_MAX, value.version)


def _is_term(term: Term) -> bool:
    return 0 <= term.number < _COUNT_MAX and len(term.nonce) <= ID_BYTES and 0 <= term.votes < _COUNT_MAX


def _are_terms(terms: dict[str, Term]) -> bool:
    return len(terms) <= TERMS_MAX and all(map(_is_term, terms.values()))


def _is_slot(key: str, promised: Ballot, accepted: Ballot, value: Value) -> bool:
    return _is_key(key) and _is_ballot(promised) and _is_ballot(accepted) and _is_value(value)
