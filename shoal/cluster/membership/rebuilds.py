"""The messages of a rebuild, byte for byte, and what it is decided by. `shoal.cluster.messages` decodes them.

    Inquiry → Report (what a member has left)    Inquiry that halts → Report    Founding → Founded

Laws:
- They are taken in every epoch: survivors may have missed the last ones.
- A member that was halted votes no more, and takes the founding of the inquiry that halted it last, and no other; nor one
  that leaves out what it holds itself, or a member that it reaches.
- Fields are only ever added at the end, with a default.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from hashlib import sha256

import msgspec
from msgspec import Struct

from shoal.cluster.consensus import rebuilding
from shoal.cluster.consensus.ballots import ID_BYTES, Electorate
from shoal.cluster.consensus.motions import Answer, Known
from shoal.cluster.consensus.motions import check as check_motion
from shoal.cluster.consensus.rebuilding import Foundation, Remains
from shoal.cluster.membership import epochs
from shoal.cluster.membership.epochs import Record
from shoal.errors import InvalidValue

MET_MAX = 64  # Directories that a node refused because another one has their place.
_EPOCHS = 1 << 62


class Inquiry(Struct, array_like=True, frozen=True, tag=52):
    """Asks what the receiver holds; answered by a `Report`. If it names an epoch, the receiver votes no more before that."""

    id: bytes
    epoch: int = 0


class Report(Struct, array_like=True, frozen=True, tag=53):
    """The holdings of the sender's directory."""

    id: bytes  # Of the inquiry.
    epoch: int  # For which the sender is halted; 0: it is not.
    record: Record  # The newest that it knows, of epoch 0 if it knows none.
    remains: Remains
    is_learner: bool
    operations: int  # How many it holds durably.
    ahead: dict[str, int]  # By address: operations that a member was known to hold, and the sender does not.
    away_ms: dict[str, int]  # By address: how long there has been no link to a member, as far as the sender saw.
    met: list[bytes] = []  # Directories that it refused because another one has their place.


class Founding(Struct, array_like=True, frozen=True, tag=54):
    """The record and the register from which all survivors go on; answered by `Founded`."""

    id: bytes
    record: Record
    foundation: Foundation


class Founded(Struct, array_like=True, frozen=True, tag=55):
    """The sender has the founding on disk, or says why it does not take it."""

    id: bytes
    refusal: str = ""


RebuildNotice = Inquiry | Report | Founding | Founded


def check(notice: RebuildNotice) -> None:
    """Check what the types leave open.

    Raises:
        InvalidValue: a count, an address or an id is impossible.
    """
    is_sound = len(notice.id) == ID_BYTES
    match notice:
        case Inquiry(_, epoch):
            is_sound &= 0 <= epoch < _EPOCHS
        case Report():
            is_sound &= 0 <= notice.epoch < _EPOCHS and notice.operations >= 0 and len(notice.met) <= MET_MAX
            is_sound &= max(len(notice.ahead), len(notice.away_ms)) <= 2 * epochs.MEMBERS_MAX
            epochs.check(notice.record, founded=True)
            rebuilding.check(notice.remains)
            remains = notice.remains
            check_motion(
                Answer(remains.term, remains.state, False, remains.directory, remains.term, remains.terms, remains.slots)
            )
        case Founding(_, record, foundation):
            epochs.check(record)
            check_motion(Known(foundation.terms))
            is_sound &= set(foundation.terms) == set(record.members) and notice.id == foundation.id
            for some in list(foundation.terms.values())[:1]:  # There is none in a message that is not sound.
                check_motion(Answer(some, "voting", True, b"", some, {}, foundation.slots))
    if not is_sound:
        raise InvalidValue("a peer's message about a rebuild has an impossible field. Nothing was written.")


def newest(reports: Mapping[str, Report], *, own: str) -> Record:
    """The newest record that a survivor knows, or has voted for: a copy has given up the one that its original knew.

    `own` is the address of the node that asks. What others say counts if it can follow from what that one knows.
    """
    known = _newest_of(reports[own])
    told = [record for record in map(_newest_of, reports.values()) if record == known or epochs.follows(known, record)]
    return max(told, key=lambda record: record.epoch)


def _newest_of(report: Report) -> Record:
    voted = [value.content for key, _, _, value in report.remains.slots if key == epochs.KEY and value.version]
    records = [report.record]
    for content in voted:
        with suppress(InvalidValue):
            records.append(epochs.decode(content))
    return max(records, key=lambda record: record.epoch)


def why_refused(founding: Founding, own: str, remains: Remains, reached: Collection[str]) -> str:
    """Why a survivor at this address does not take a founding, for people; empty if it does. `reached` are the members of
    its epoch that it has a link to."""
    record, versions = founding.record, {key: value.version for key, _, _, value in founding.foundation.slots}
    if record.directories.get(own) != remains.directory or own not in record.members:
        return f"{own} is no member in it"
    if left_out := sorted(set(reached) - set(record.members)):
        return f"it leaves {', '.join(left_out)} out, which can be reached"
    behind = [key for key, _, _, value in remains.slots if value.version and versions.get(key, 0) <= value.version]
    return f"it lacks what {own} has of {behind[0]!r}" if behind else ""


def survivors(record: Record, reports: Mapping[str, Report]) -> dict[str, Report]:
    """The reports of members, by address: those that a rebuild keeps."""
    members = set(record.electorate.members)
    return {address: report for address, report in sorted(reports.items()) if address in members}


def has_quorum(record: Record, reports: Mapping[str, Report]) -> bool:
    """Whether those that vote are enough, so that there is nothing to rebuild."""
    voting = [address for address, report in reports.items() if report.remains.state == "voting"]
    return Electorate(record.electorate.groups).decides(voting)


def plan_of(record: Record, reports: Mapping[str, Report]) -> str:
    """Names what is kept and what is given up: what an operator was shown is what is done."""
    kept = [(address, report.remains.directory.hex()) for address, report in sorted(reports.items())]
    return sha256(msgspec.json.encode((record.epoch, record.electorate.members, kept))).hexdigest()[:16]
