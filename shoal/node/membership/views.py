"""The members as people see them: `shoal cluster members` and `rebuild`, `GET /v1/cluster/members`."""

from __future__ import annotations

from typing import Literal

from shoal.cluster.membership.epochs import Record
from shoal.cluster.membership.notices import Report, Standing
from shoal.config import Config
from shoal.kinds.lease.state.table import waits_s
from shoal.node.membership.changes import Changes
from shoal.node.membership.rebuilding import Survey
from shoal.node.membership.roster import Roster
from shoal.protocol.requests import GivenUp, LostDirectory, MembersView, RebuildView, RemovedNode, Seat, Survivor


def view(roster: Roster, changes: Changes, linked: dict[str, bytes]) -> MembersView:
    """The members as this node knows them; `linked` are the others that have a link, by address."""
    record = roster.record
    change = record.change
    return MembersView(
        record.epoch,
        "" if change is None else change.told,
        "" if change is None else "joint" if change.is_joint else "prepared",
        [_seat(roster, changes, linked, address) for address in record.everyone],
        [RemovedNode(each.address, each.directory.hex(), each.epoch, each.handed_over) for each in reversed(record.removed)],
        list(changes.waiting),
        changes.trouble,
        [LostDirectory(address, node) for node, address in changes.lost.items()],
    )


def _seat(roster: Roster, changes: Changes, linked: dict[str, bytes], address: str) -> Seat:
    record = roster.record
    node = roster.directory if address == roster.own else linked.get(address) or record.directories.get(address, b"")
    state: Literal["self", "linked", "unreachable"] = (
        "self" if address == roster.own else "linked" if address in linked else "unreachable"
    )
    part = record.state_of(address)
    assert part != "removed", "it takes part"
    return Seat(address, node.hex(), part, state, _progress(record, changes, address, is_there=state != "unreachable"))


def _progress(record: Record, changes: Changes, address: str, *, is_there: bool) -> str:
    change = record.change
    if change is None:
        return ""
    if problem := changes.problems.get(address):
        return problem
    if not is_there:
        is_awaited = address == change.joins or (address == change.leaves and change.hands_over)
        return "cannot be reached; start it" if is_awaited else "cannot be reached"
    standing: Standing | None = changes.standings.get(address)
    if standing is None:
        return "has not told how far it is"
    if not standing.is_caught_up:
        return "is fetching what the others hold"
    return "has caught up" if standing.is_voting or not change.is_joint else "has caught up, and does not vote yet"


# ── rebuilds ──────────────────────────────────────────────────────────────────


def left(found: Survey, *, unseen_ms: int) -> RebuildView:
    """The parts that a rebuild would keep and give up, and the data that it may lose."""
    is_needed = not found.why_not
    return RebuildView(
        found.plan if is_needed else "",
        found.record.epoch,
        found.why_not or found.whole,
        [_survivor(address, report) for address, report in sorted(found.kept.items())],
        [GivenUp(address, node.hex(), _away_ms(found, address)) for node, address in _given_up(found)],
        _may_be_lost(found) if is_needed else [],
        unseen_ms,
    )


def rebuilt(record: Record) -> RebuildView:
    """The epoch that a rebuild began."""
    return RebuildView("", record.epoch, "")


def unseen_ms(found: Survey, config: Config) -> int:
    """How long clients may still hold leases that only lost members know of; 0 if no votes are lost.

    That is the longest lease, less the time for which every survivor has seen the lost members away.
    """
    if not _lost_votes(found):
        return 0
    away_ms = min((_away_ms(found, address) for address in _lost_votes(found)), default=0)
    return max(0, int(waits_s(int(config.lease_ttl_s_max * 1000), config.lease_drift_max) * 1000) - away_ms)


def _lost_votes(found: Survey) -> list[str]:
    """The members whose votes are lost, or some of them."""
    return [*found.given_up, *(address for address in found.kept if not _has_votes(found, address))]


def _has_votes(found: Survey, address: str) -> bool:
    """Whether this member's votes are all here. Its original may have given others after the copy was made: only if all
    members are copies does one of these tell."""
    remains = found.kept[address].remains
    return remains.state == "voting" or (remains.is_copy and not found.whole)


def _survivor(address: str, report: Report) -> Survivor:
    remains = report.remains
    return Survivor(
        address,
        remains.directory.hex(),
        remains.state,
        remains.voter.hex() if remains.is_copy else "",
        report.record.epoch,
        remains.term.number,
        remains.term.votes,
        len(remains.slots),
        report.is_learner,
        report.operations,
        dict(sorted(report.ahead.items())),
    )


def _given_up(found: Survey) -> list[tuple[bytes, str]]:
    unknown = [address for address in found.given_up if address not in found.gone.values()]
    return sorted([*found.gone.items(), *((b"", address) for address in unknown)], key=lambda each: each[1])


def _away_ms(found: Survey, address: str) -> int:
    """How long no survivor has had a link to this member, as far as they saw."""
    return min((report.away_ms.get(address, 0) for report in found.kept.values()), default=0)


def _may_be_lost(found: Survey) -> list[str]:
    lost = _lost_votes(found)
    if not lost:
        return []
    size, without = len(found.record.members), len(found.given_up)
    copies = [address for address in lost if address in found.kept and found.kept[address].remains.is_copy]
    gone = [address for address in lost if address not in copies]
    why = [f"the votes of {', '.join(sorted(gone))} are lost"] if gone else []
    why += [f"the originals of the copies at {', '.join(copies)} may have voted later"] if copies else []
    others = ", ".join(sorted(set(found.kept) - set(copies))) or "the copies"
    told = [f"leases, claims, compare-and-set and changes of members that were decided without {others}: {', and '.join(why)}"]
    missing = sum(report.is_learner for report in found.kept.values()) + without
    if missing > (size - 1) // 2:
        told.append(
            f"writes with `quorum` that only {', '.join(sorted(lost))} held; those with `all` are kept if a survivor is intact"
        )
    told.append(f"writes with `local` that only {', '.join(sorted(lost))} held")
    return told
