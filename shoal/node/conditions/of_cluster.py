"""Conditions of the cluster: its members, their clocks, their versions, and what they hold.

Laws:
- A member's own trouble is that member's to tell; what is told here is what this node sees of it.
- A node that is no member, or a second one at a member's address, says that alone: it has no links and no quorum because of it,
  and commands for those would harm the members, which are well.
"""

from __future__ import annotations

from collections.abc import Callable

from shoal.node.conditions.of_node import Condition, Finding, Found, Observation, Unknown
from shoal.protocol.requests import Member

LAG_MS_MAX = 10_000  # A member that lacks an operation that is older than this is behind.
QUARANTINED_SHOWN_MAX = 3


def _others(seen: Observation) -> list[Member]:
    return [member for member in seen.cluster.members if member.state != "self" and member.part != "removed"]


def _of_members(look: Callable[[Observation], Found]) -> Callable[[Observation], Found]:
    """A condition that only a member can judge."""
    return lambda seen: iter(()) if seen.outside or seen.second else look(seen)


def _no_quorum(seen: Observation) -> Found:
    if seen.status.register:
        yield Finding(seen.status.register)


def _no_member(seen: Observation) -> Found:
    if seen.outside:
        yield Finding(seen.status.reason or "this node is no member of its cluster", seen.address)


def _catching_up(seen: Observation) -> Found:
    if seen.status.state == "refilling" and not seen.second:
        yield Finding(seen.status.reason)


def _learning(seen: Observation) -> Found:
    if seen.cluster.learning:
        yield Finding("; ".join(seen.cluster.learning))


def _member_away(seen: Observation) -> Found:
    for member in _others(seen):
        if member.state == "unreachable":
            yield Finding(f"{member.name} is not reached{f': {member.reason}' if member.reason else ''}", member.name)


def _member_behind(seen: Observation) -> Found:
    for member in _others(seen):
        if member.state == "unreachable":
            continue
        if not member.told:
            yield Unknown(f"{member.name} has not told yet what it holds")
        elif member.lag_ms > LAG_MS_MAX:
            why = f": {member.reason}" if member.reason else ""
            lacks = f"{member.lacks:,} operations, the oldest for {member.lag_ms / 1000:,.0f} s"
            yield Finding(f"{member.name} is not known to hold {lacks}{why}", member.name)


def _clock_wrong(seen: Observation) -> Found:
    if seen.clock_wrong:
        yield Finding(seen.clock_wrong)


def _clocks_differ(seen: Observation) -> Found:
    for told in () if seen.clock_wrong else seen.cluster.clocks:  # Else it would send somebody to a clock that is right.
        yield Finding(told, told.partition("'s clock")[0])
    for member in _others(seen):
        if member.state == "linked" and member.clock_ms is None:
            yield Unknown(f"{member.name} has not told its time yet")


def _clock_behind(seen: Observation) -> Found:
    if seen.cluster.clock_ahead_ms > LAG_MS_MAX:
        yield Finding(f"times in histories are up to {seen.cluster.clock_ahead_ms / 1000:,.0f} s ahead of this node's clock")


def _members_differ(seen: Observation) -> Found:
    if seen.second:
        yield Finding(f"the members refuse this node: {seen.second}", seen.address)
    for told in () if seen.second else seen.cluster.disagreements:
        yield Finding(told, told)  # Each is one of its own.


def _change_stands(seen: Observation) -> Found:
    if seen.members.change and seen.members.trouble:
        yield Finding(f"{seen.members.change} does not go on: {seen.members.trouble}")


def _change_under_way(seen: Observation) -> Found:
    if seen.members.change and not seen.members.trouble:
        yield Finding(f"{seen.members.change} is under way")


def _asks_to_join(seen: Observation) -> Found:
    for address in seen.members.waiting:
        yield Finding(f"{address} asks to be a member", address)


def _directory_lost(seen: Observation) -> Found:
    for lost in seen.members.lost:
        yield Finding(f"{lost.name} lost the directory {lost.node[:8]}, which still counts", lost.node[:8])


def _versions_mixed(seen: Observation) -> Found:
    for member in _others(seen):
        if not member.version:
            yield Unknown(f"{member.name} has not told its version since this node started")
        elif member.version != seen.version:
            yield Finding(f"{member.name} runs Shoal {member.version}, this node {seen.version}", member.name)


def _quarantine(seen: Observation) -> Found:
    for told in seen.cluster.quarantined[-QUARANTINED_SHOWN_MAX:]:
        yield Finding(told)


def _rows_differ(seen: Observation) -> Found:
    for told in seen.cluster.differing:
        yield Finding(told)


def _log_unshown(seen: Observation) -> Found:
    if seen.cluster.unshown:
        yield Finding(f"{seen.cluster.unshown:,} times a peer said that its log decides about rows, and did not show that log")


def _left_behind(seen: Observation) -> Found:
    for told in seen.cluster.truncated:
        yield Finding(told)


def _sweep_waits(seen: Observation) -> Found:
    away = {member.name for member in _others(seen) if member.state == "unreachable"}
    for owner in seen.status.garbage_waits_for:
        if owner in away:
            yield Finding(f"what was deleted or pruned stays on the disk until {owner} knows of it", owner)


CONDITIONS = (
    Condition(
        "no-quorum",
        "page",
        "1m",
        "The majority is gone",
        "Leases, claims, compare-and-set, changes of members and writes with `quorum` fail. Reads and other writes go on.",
        "shoal serve --data DIR   # on each member that is named, if it is down; if it is up, `member-away` says why it is not "
        "reached. Only if most are lost for good: shoal cluster rebuild --url URL",
        "OPERATIONS.md#the-majority-is-lost",
        "the quorum register counts too few votes",
        _of_members(_no_quorum),
    ),
    Condition(
        "no-member",
        "ticket",
        "15m",
        "The node is no member",
        "It serves nothing. Clients use other nodes.",
        "shoal cluster add {about} --url URL   # of a member; if it was drained or forgotten: stop it, or empty its directory",
        "CLUSTER.md#what-happens-when",
        "its list of members does not have it",
        _no_member,
    ),
    Condition(
        "catching-up",
        "ticket",
        "15m",
        "The node catches up",
        "It serves nothing until it holds what its cluster holds. Clients use other nodes.",
        "shoal status --url URL   # names the nodes that it waits for: start those",
        "CLUSTER.md#what-happens-when",
        "`/readyz` says `refilling`",
        _catching_up,
    ),
    Condition(
        "learning",
        "ticket",
        "30m",
        "The node counts in no quorum",
        "One copy fewer counts, until it holds all that it may have forgotten. Touch no other node meanwhile.",
        "shoal status --url URL   # names the members that it has not heard: start those",
        "CLUSTER.md#what-happens-when",
        "it may have forgotten what others relied on it to hold",
        _of_members(_learning),
    ),
    Condition(
        "member-away",
        "ticket",
        "5m",
        "A member is not reached",
        "There is one copy fewer. Of three nodes, the loss of another one stops what needs a majority.",
        "shoal serve --data DIR   # on its machine; end a process that hangs first. If it is up, and refused or not trusted, "
        "mend what is said of that. Only if its disk is lost: shoal cluster replace {about} NEW:PORT --url URL",
        "OPERATIONS.md#a-node-is-lost",
        "this node has no link to it",
        _of_members(_member_away),
    ),
    Condition(
        "member-behind",
        "ticket",
        "5m",
        "A member is behind",
        "There is one copy fewer of the newest writes, and clients of that node read what is old.",
        "shoal doctor --url URL   # at that node: its disk, its processor or the network is too slow for what is written",
        "CLUSTER.md#looking-at-it",
        f"it lacks an operation that is older than {LAG_MS_MAX // 1000} s",
        _of_members(_member_behind),
    ),
    Condition(
        "clock-wrong",
        "page",
        "1m",
        "This node's clock is wrong",
        "It rejects writes. Clients write at other nodes.",
        "chronyc makestep   # on this node's machine; it notices at once",
        "OPERATIONS.md#a-clock-is-wrong",
        "a majority of the members' clocks differ from it by more than `clock_skew_max_ms`",
        _clock_wrong,
    ),
    Condition(
        "clocks-differ",
        "ticket",
        "5m",
        "The clocks of members differ",
        "The node whose clock is wrong rejects writes; if no majority tells which one is wrong, times in histories are.",
        "chronyc makestep   # on the machine of the node that is named",
        "OPERATIONS.md#a-clock-is-wrong",
        "a member's clock differs from this node's by more than `clock_skew_max_ms`",
        _of_members(_clocks_differ),
    ),
    Condition(
        "clock-behind",
        "note",
        "0s",
        "Times are ahead of the clock",
        "New entries of histories carry times that are ahead of the clock, until it has caught up. Nothing is delayed.",
        "chronyc tracking   # on this node's machine: was its clock set back?",
        "OPERATIONS.md#a-clock-is-wrong",
        f"an operation's time is more than {LAG_MS_MAX // 1000} s ahead of the clock",
        _clock_behind,
    ),
    Condition(
        "members-differ",
        "ticket",
        "15m",
        "Nodes contradict each other about the members",
        "Nodes with different lists count different majorities; of two with one address, the second serves nothing.",
        "shoal cluster members --url URL   # at each node; then give all the same SHOAL_JOIN and each its own SHOAL_ADVERTISE, "
        "and start them again; stop a node that should not be there",
        "CLUSTER.md#what-happens-when",
        "a node that links has another list, or another node's address",
        lambda seen: iter(()) if seen.outside else _members_differ(seen),
    ),
    Condition(
        "change-stands",
        "ticket",
        "15m",
        "A change of the members does not go on",
        "The members stay as they are; no other change can begin.",
        "shoal cluster cancel --url URL   # or mend what it waits for, and it goes on by itself",
        "CLUSTER.md#changing-it",
        "the last attempt of its next step failed",
        _change_stands,
    ),
    Condition(
        "change-under-way",
        "note",
        "0s",
        "The members are being changed",
        "Nothing: reads and writes go on.",
        "shoal cluster members --url URL   # shows how far it is",
        "CLUSTER.md#changing-it",
        "the list of members has a next one",
        _change_under_way,
    ),
    Condition(
        "asks-to-join",
        "note",
        "0s",
        "A node asks to be added",
        "Nothing, until it is added.",
        "shoal cluster add {about} --url URL   # or, if a member should have this address, correct its SHOAL_ADVERTISE",
        "CLUSTER.md#changing-it",
        "a node that is no member asked for a link",
        _of_members(_asks_to_join),
    ),
    Condition(
        "directory-lost",
        "ticket",
        "1h",
        "A lost directory still counts",
        "What was deleted stays on the disks, as long as a directory that is gone might return.",
        "shoal cluster forget {about} --url URL   # if that directory is gone for good",
        "DISKS_AND_NODES_LOST.md#one-disk-is-lost",
        "another directory is at the member's address",
        _directory_lost,
    ),
    Condition(
        "versions-mixed",
        "ticket",
        "1d",
        "Nodes run different versions",
        "What is new in the newer version waits until all nodes have it.",
        "shoal status --url http://{about}   # upgrade the older ones, one after another",
        "OPERATIONS.md#upgrade-one-node-at-a-time",
        "members told different versions when they were linked",
        _of_members(_versions_mixed),
    ),
    Condition(
        "quarantine",
        "page",
        "5m",
        "Operations cannot be applied",
        "This node lacks what they wrote, and what was built on that.",
        "shoal verify DIR   # of the node that issued them, while it is stopped; mended, they are applied by themselves",
        "CLUSTER.md#what-happens-when",
        "an operation breaks its hash chain, or its place is taken",
        _quarantine,
    ),
    Condition(
        "rows-differ",
        "ticket",
        "1h",
        "Rows differ from a peer's",
        "An object is not the same at two nodes that hold the same operations. Mostly they repair that by themselves.",
        "shoal verify DIR   # of each of the two nodes, one after another, while it is stopped",
        "CLUSTER.md#what-happens-when",
        "peers compared their rows at equal vectors (scrub)",
        _rows_differ,
    ),
    Condition(
        "log-unshown",
        "ticket",
        "0s",
        "A peer does not show its log",
        "Rows that differ stay so, because the peer whose log decides does not show it: its disk is damaged, or it lies.",
        "shoal verify DIR   # of the other nodes, while each is stopped; then start this node again",
        "CLUSTER.md#what-happens-when",
        "since this node started, a peer did not prove what it said of its log",
        _log_unshown,
    ),
    Condition(
        "left-behind",
        "ticket",
        "15m",
        "A partition needs a snapshot",
        "This node lacks writes that have left its peers' logs, until it has taken a peer's snapshot.",
        "shoal status --url URL   # says what it waits for; start members that are away",
        "CLUSTER.md#what-happens-when",
        "an operation that it lacks is in no peer's log any more",
        _left_behind,
    ),
    Condition(
        "sweep-waits",
        "ticket",
        "1d",
        "Deleted data stays on the disk",
        "The disk grows: what was deleted or pruned cannot be swept while a member is away.",
        "shoal serve --data DIR   # on its machine; only if it never returns: shoal cluster forget {about} --url URL",
        "DISKS_AND_NODES_LOST.md#one-node-is-dead-for-good",
        "deletions wait for a member that is not reached",
        _of_members(_sweep_waits),
    ),
)
"""In the order in which they are told of."""
