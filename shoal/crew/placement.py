"""Which agents a machine takes, and which it gives up.

Laws:
- Nothing here awaits, reads a clock or does I/O. A wrong view costs time and never safety: only an agent's lease lets it run.
- Machines with the same view agree who takes a free agent: the one with the fewest agents among those that may run it,
  and not the one that had it last. What stays free for longer is taken by any that has room.
- An agent is given up for another machine only if one with room may run it; for its version, one at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from shoal.crew.declaration import CrewRecord, Taker, parted, unfit
from shoal.records import NamedTuple

BALANCE = 2
"""An agent moves from one machine to another that has so many agents fewer."""


class View(NamedTuple):
    """The knowledge of one machine."""

    me: str
    record: CrewRecord
    alive: AbstractSet[str]  # The machines that hold their own leases.
    holders: Mapping[str, str]  # Agent → the machine that holds its lease; "" if it is free. Unknown ones are missing.
    last: Mapping[str, str]  # Free agent → the machine that had it last.
    mine: AbstractSet[str] = frozenset()  # The agents that this machine drives, or is about to.
    leaving: AbstractSet[str] = frozenset()  # Of these, the ones that it is giving up.
    overdue: AbstractSet[str] = frozenset()  # Agents that have been free for longer than others should need.
    calm: bool = False  # Whether nothing has changed for a while.


class Decision(NamedTuple):
    """The decision of a machine for now."""

    take: list[str]
    give: dict[str, str]  # Agent → why.


class _Room:
    """The machines that may take agents, and how many each has."""

    def __init__(self, view: View) -> None:
        record = view.record
        self.takers = {name: taker for name, taker in sorted(record.machines.items()) if name in view.alive or name == view.me}
        self.loads = dict.fromkeys(self.takers, 0)
        for agent, holder in view.holders.items():
            if holder in self.loads and holder != view.me and record.declared(agent) is not None:
                self.loads[holder] += 1
        if view.me in self.loads:
            self.loads[view.me] = len(view.mine)
        self._record = record

    def fits(self, machine: str, name: str) -> bool:
        """Whether a machine may run an agent, and has room for it."""
        declared = self._record.declared(name)
        taker: Taker | None = self.takers.get(machine)
        if declared is None or taker is None or self.loads[machine] >= taker.capacity:
            return False
        return not unfit(taker, parted(name)[0], declared)

    def fitting(self, name: str) -> list[str]:
        """The machines that may run an agent now; only the one where it belongs, if that may."""
        pinned = self._record.pins.get(name)
        if pinned is not None and self.fits(pinned, name):
            return [pinned]
        return [machine for machine in self.takers if self.fits(machine, name)]


def decide(view: View) -> Decision:
    """The agents that a machine takes and gives up, by its view."""
    room = _Room(view)
    taker = room.takers.get(view.me)
    if taker is None:
        return Decision([], {})
    take = _taken(view, room)
    give = _given(view, room, taker)
    if not give and not take and view.calm and not view.leaving and "" not in _wanted_holders(view):
        give = _balanced(view, room)
    return Decision(take, give)


def standbys(view: View) -> list[str]:
    """The agents that the machine would take if the machine that drives them died, of those that want a standby."""
    waiting = {name for name in view.record.wanted() if (declared := view.record.declared(name)) and declared.standby}
    drivers = {view.holders.get(name, "") for name in waiting} - {"", view.me}
    found: list[str] = []
    for driver in sorted(drivers):
        orphans = [name for name, holder in view.holders.items() if holder == driver]
        after = view._replace(
            alive=view.alive - {driver},
            holders={**view.holders, **dict.fromkeys(orphans, "")},
            last={**view.last, **dict.fromkeys(orphans, driver)},
            overdue=frozenset(),
        )
        found += [name for name in _taken(after, _Room(after)) if name in waiting and name in orphans]
    return found


def _wanted_holders(view: View) -> Iterable[str]:
    return [view.holders.get(name, "") for name in view.record.wanted() if name not in view.mine]


def _taken(view: View, room: _Room) -> list[str]:
    take: list[str] = []
    for name in view.record.wanted():
        if view.holders.get(name) != "" or name in view.mine:
            continue
        fitting = room.fitting(name)
        others = [machine for machine in fitting if machine != view.last.get(name)] or fitting
        if not others:
            continue
        chosen = min(others, key=lambda machine: (room.loads[machine], _rank(name, machine)))
        if view.me in fitting and name in view.overdue:
            chosen = view.me
        room.loads[chosen] += 1
        if chosen == view.me:
            take.append(name)
    return take


def _given(view: View, room: _Room, taker: Taker) -> dict[str, str]:
    give: dict[str, str] = {}
    wanted = set(view.record.wanted())
    is_changing = bool(view.leaving)
    for name in sorted(view.mine - view.leaving):
        declared = view.record.declared(name)
        if declared is None or name not in wanted:
            give[name] = "it is not wanted any more"
            continue
        others = [machine for machine in room.fitting(name) if machine != view.me]
        why = unfit(taker, parted(name)[0], declared)
        pinned = view.record.pins.get(name)
        if taker.drained:
            give[name] = "the machine is drained"
        elif pinned != view.me and pinned in others:
            give[name] = f"it moves to {pinned!r}"
            room.loads[pinned] += 1
        elif why and others and not is_changing:
            give[name] = why
            is_changing = True
    return give


def _balanced(view: View, room: _Room) -> dict[str, str]:
    """Half of what this machine has above the average, and at least one, if another has `BALANCE` fewer."""
    average = -(-sum(room.loads.values()) // len(room.loads))
    give: dict[str, str] = {}
    for _ in range(max(1, (room.loads[view.me] - average) // 2)):
        candidates = []
        for name in view.mine - give.keys():
            mine = room.loads[view.me]
            others = [each for each in room.fitting(name) if each != view.me and room.loads[each] + BALANCE <= mine]
            if others and view.record.pins.get(name) != view.me:
                least = min(others, key=lambda machine: (room.loads[machine], _rank(name, machine)))
                candidates.append((room.loads[least], _rank(name, least), name, least))
        if not candidates:
            break
        _, _, name, least = min(candidates)
        give[name] = f"{least!r} has fewer agents"
        room.loads[least] += 1
        room.loads[view.me] -= 1
    return give


def _rank(name: str, machine: str) -> int:
    """The same on all machines, and different for each agent."""
    return zlib.crc32(f"{name}\0{machine}".encode())
