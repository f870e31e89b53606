"""The members as people see them: `shoal cluster members`, `GET /v1/cluster/members`."""

from __future__ import annotations

from typing import Literal

from shoal.cluster.membership.epochs import Record
from shoal.cluster.membership.notices import Standing
from shoal.node.membership.changes import Changes
from shoal.node.membership.roster import Roster
from shoal.protocol.requests import LostDirectory, MembersView, RemovedNode, Seat


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
