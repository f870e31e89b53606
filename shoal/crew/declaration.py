"""The record of a crew: which agents are desired, which machines take part, how agents ended. Each change of it is a function.

Laws:
- Nothing here awaits, reads a clock or does I/O: a change takes a record and returns the next one, or raises.
- A program changes what is declared only with a greater version. The count is changed by `scaled`, too.
- An agent that has finished or failed stays so until its version grows or it is restarted.

Which agents a machine takes, and which it gives up.

Laws:
- Nothing here awaits, reads a clock or does I/O. A wrong view costs time and never safety: only an agent's lease lets it run.
- Machines with the same view agree who takes a free agent: the one with the fewest agents among those that may run it,
  and not the one that had it last. What stays free for longer is taken by any that has room.
- An agent is given up for another machine only if one with room may run it; for its version, one at a time.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Set
from collections.abc import Set as AbstractSet
from typing import Any, Literal

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from shoal.errors import CrewConflict, InvalidInput, NotFound
from shoal.records import NamedTuple

_ERROR_CHARS_MAX = 500


class Declared(Struct, frozen=True, kw_only=True):
    """The agents of one name, as a program has declared them."""

    count: int
    initial: int  # The count in the program; `count` may have been changed since.
    version: int
    ttl: float
    tries: int
    standby: int = 0
    labels: tuple[str, ...] = ()  # A machine must have them.
    params: dict[str, Any] = field(default_factory=dict)


class Taker(Struct, frozen=True, kw_only=True):
    """A machine that takes part."""

    capacity: int
    versions: dict[str, int]  # Agent → the version that its program has.
    labels: tuple[str, ...] = ()
    drained: bool = False  # It takes no agents, and gives up those that it has.


class Outcome(Struct, frozen=True, kw_only=True):
    """How an agent ended, or why it is started again."""

    state: Literal["retrying", "finished", "failed"]
    version: int
    tries: int = 0
    error: str = ""


class CrewRecord(Struct, frozen=True, kw_only=True):
    """All that is recorded of a crew."""

    agents: dict[str, Declared] = field(default_factory=dict)
    machines: dict[str, Taker] = field(default_factory=dict)
    pins: dict[str, str] = field(default_factory=dict)  # Agent with its number → the machine where it belongs.
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # By agent with its number.

    def declared(self, name: str) -> Declared | None:
        """The declaration of the agent of this name, as in "researcher-3"; None if it is not desired."""
        agent, number = parted(name)
        declared = self.agents.get(agent)
        return declared if declared is not None and 1 <= number <= declared.count else None

    def outcome(self, name: str) -> Outcome | None:
        """The outcome of an agent's present version; None if there is none."""
        declared, outcome = self.declared(name), self.outcomes.get(name)
        return outcome if declared is not None and outcome is not None and outcome.version == declared.version else None

    def is_ending(self, name: str) -> bool:
        """Whether an end that its thread's status tells, and that is not recorded, is that of its present version.

        Else the agent runs again: it was restarted, or its version grew.
        """
        known = self.outcomes.get(name)
        return known is None or ((outcome := self.outcome(name)) is not None and outcome.tries > 0)

    def names(self) -> Iterator[str]:
        """The names of all desired agents, also of those that have ended."""
        for agent, declared in sorted(self.agents.items()):
            for number in range(1, declared.count + 1):
                yield f"{agent}-{number}"

    def wanted(self) -> list[str]:
        """The names of the agents that are to run."""
        return [name for name in self.names() if not self.has_ended(name)]

    def has_ended(self, name: str) -> bool:
        """Whether an agent has finished or failed, and is not to be started."""
        outcome = self.outcome(name)
        return outcome is not None and outcome.state != "retrying"


def parted(name: str) -> tuple[str, int]:
    """The agent and the number in a name such as "researcher-3"; the number is 0 if there is none."""
    agent, _, number = name.rpartition("-")
    is_number = number.isdecimal() and number.isascii() and len(number) < 10 and not number.startswith("0")
    return (agent, int(number)) if agent and is_number else (name, 0)


def to_channels(record: CrewRecord) -> dict[str, Any]:
    """The record as a thread's state."""
    return dict(msgspec.to_builtins(record))


def from_channels(state: Mapping[str, Any], *, space: str) -> CrewRecord:
    """The record in a thread's state.

    Raises:
        CrewConflict: it is no record of a crew, or one of a newer version.
    """
    try:
        return msgspec.convert(dict(state), CrewRecord)
    except msgspec.ValidationError as error:
        raise CrewConflict(
            f"the thread that holds the crew of space {space!r} has another content ({error}). Nothing was written. "
            "Use another space, or upgrade this program."
        ) from None


def declared(record: CrewRecord, program: Mapping[str, Declared], *, agents_max: int) -> CrewRecord:
    """The record with the declarations of a program, where their version is new.

    Raises:
        CrewConflict: another program has declared an agent differently under the same version.
        InvalidInput: there would be too many agents.
    """
    agents, outcomes = dict(record.agents), record.outcomes
    for name, mine in program.items():
        known = agents.get(name)
        if known is None or known.version < mine.version:
            is_scaled = known is not None and known.initial == mine.initial
            agents[name] = replace(mine, count=known.count) if known is not None and is_scaled else mine
            outcomes = {each: outcome for each, outcome in outcomes.items() if parted(each)[0] != name}
        elif known.version == mine.version and (differences := _differences(known, mine)):
            raise CrewConflict(
                f"agent {name!r} is declared already with version {mine.version}, and differs: {'; '.join(differences)}. "
                "Nothing was written. Give it a greater version, which then takes over, or make the programs agree; "
                "`shoal crew scale` changes the count alone."
            )
    _check_total(agents, agents_max)
    return replace(record, agents=agents, outcomes=outcomes)


def _differences(known: Declared, mine: Declared) -> list[str]:
    told = {"initial": "count"}
    fields = [name for name in Declared.__struct_fields__ if name != "count"]
    pairs = ((told.get(name, name), getattr(known, name), getattr(mine, name)) for name in fields)
    return [
        f"{name} is {known_value!r:.200}, here it is {value!r:.200}"
        for name, known_value, value in pairs
        if known_value != value
    ]


def _check_total(agents: Mapping[str, Declared], agents_max: int) -> None:
    total = sum(each.count for each in agents.values())
    if total > agents_max:
        raise InvalidInput(
            f"the crew would have {total} agents, and may have {agents_max} (crew_agents_max). Nothing was written.",
            field="count",
        )


def scaled(record: CrewRecord, agent: str, count: int, *, agents_max: int) -> CrewRecord:
    """There are to be so many agents of this name.

    Raises:
        NotFound: no program has declared it.
        InvalidInput: there would be too many agents.
    """
    known = record.agents.get(agent)
    if known is None:
        there = ", ".join(sorted(record.agents)) or "none"
        raise NotFound(f"no agent {agent!r} is declared; those declared: {there}. Nothing was written.")
    agents = {**record.agents, agent: replace(known, count=count)}
    _check_total(agents, agents_max)
    kept = {name: outcome for name, outcome in record.outcomes.items() if parted(name)[0] != agent or parted(name)[1] <= count}
    return replace(record, agents=agents, outcomes=kept)


def joined(record: CrewRecord, machine: str, taker: Taker, *, alive: Set[str], machines_max: int) -> CrewRecord:
    """A machine takes part, or does so again. Machines that are not alive leave the record.

    Raises:
        InvalidInput: too many machines take part.
    """
    gone = record.machines.keys() - alive - {machine}
    for each in sorted(gone):
        record = left(record, each)
    known = record.machines.get(machine)
    if known is None and len(record.machines) >= machines_max:
        raise InvalidInput(f"{machines_max} machines run this crew already. Nothing was written.")
    return replace(record, machines={**record.machines, machine: taker})


def left(record: CrewRecord, machine: str) -> CrewRecord:
    """A machine does not take part any more. Agents belong to it no more."""
    machines = {name: taker for name, taker in record.machines.items() if name != machine}
    return replace(record, machines=machines, pins={name: at for name, at in record.pins.items() if at != machine})


def drained(record: CrewRecord, machine: str, *, is_drained: bool) -> CrewRecord:
    """A machine takes no agents any more, and gives up those that it has; or it takes some again.

    Raises:
        NotFound: no machine of this name takes part.
    """
    taker = _taker(record, machine)
    return replace(record, machines={**record.machines, machine: replace(taker, drained=is_drained)})


def _taker(record: CrewRecord, machine: str) -> Taker:
    taker = record.machines.get(machine)
    if taker is None:
        there = ", ".join(sorted(record.machines)) or "none"
        raise NotFound(f"no machine {machine!r} runs this crew; those that do: {there}. Nothing was written.")
    return taker


def moved(record: CrewRecord, name: str, machine: str | None) -> CrewRecord:
    """An agent belongs on this machine for as long as the machine takes part; None: anywhere.

    Raises:
        NotFound: there is no such agent, or no such machine.
        InvalidInput: the machine cannot run it.
    """
    agent = declared_agent(record, name)
    pins = {each: at for each, at in record.pins.items() if each != name}
    if machine is None:
        return replace(record, pins=pins)
    why = unfit(_taker(record, machine), parted(name)[0], agent)
    if why:
        raise InvalidInput(f"machine {machine!r} cannot run agent {name!r}: {why}. Nothing was written.")
    return replace(record, pins={**pins, name: machine})


def declared_agent(record: CrewRecord, name: str) -> Declared:
    """The declaration of this agent.

    Raises:
        NotFound: it is not desired.
    """
    found = record.declared(name)
    if found is None:
        there = ", ".join(f"{agent}-1 to {agent}-{each.count}" for agent, each in sorted(record.agents.items())) or "none"
        raise NotFound(f"the crew has no agent {name!r}; it has: {there}. Nothing was written.")
    return found


def unfit(taker: Taker, agent: str, declared: Declared) -> str:
    """Why a machine cannot run an agent, or "" if it can."""
    if taker.drained:
        return "it is drained"
    version = taker.versions.get(agent)
    if version is None:
        return "its program does not have this agent"
    if version != declared.version:
        return f"its program has version {version}, and version {declared.version} is declared"
    lacking = [label for label in declared.labels if label not in taker.labels]
    return f"it lacks the label {lacking[0]!r}" if lacking else ""


def raised(record: CrewRecord, name: str, error: str, *, version: int, anew: bool) -> CrewRecord:
    """An agent's function raised: it is started again, or has failed. With `anew` earlier tries do not count."""
    agent, known = record.declared(name), record.outcome(name)
    if agent is None or agent.version != version or record.has_ended(name):
        return record
    tries = 1 if known is None or anew else known.tries + 1
    state: Literal["failed", "retrying"] = "failed" if tries >= agent.tries else "retrying"
    outcome = Outcome(state=state, version=version, tries=tries, error=error[:_ERROR_CHARS_MAX])
    return replace(record, outcomes={**record.outcomes, name: outcome})


def finished(record: CrewRecord, name: str, *, version: int, error: str = "") -> CrewRecord:
    """An agent's function returned: it is not started again. With an `error` it has said that it has failed."""
    agent = record.declared(name)
    if agent is None or agent.version != version:
        return record
    outcome = Outcome(state="failed" if error else "finished", version=version, error=error[:_ERROR_CHARS_MAX])
    return replace(record, outcomes={**record.outcomes, name: outcome})


def restarted(record: CrewRecord, name: str) -> CrewRecord:
    """An agent that has finished or failed is to run again, and its tries are counted anew.

    Raises:
        NotFound: there is no such agent.
    """
    agent = declared_agent(record, name)
    # Without tries: an agent of which nothing stands here, and whose thread is done, died just before it was recorded.
    return replace(record, outcomes={**record.outcomes, name: Outcome(state="retrying", version=agent.version)})


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
