"""Shrink a plan that fails to the few events that matter.

Laws:
- What comes back was run, and fails; it is never larger than what came in.
- First events go, in halves, quarters, … one by one (delta debugging: Zeller and
  Hildebrandt 2002); then agents, nodes and settings; then values become plain.
- The number of runs is bounded; with the bound met the smallest plan so far comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from simulation.execution import Patch, execute, in_order
from simulation.plan import Act, Cut, Fault, Misroute, Plan, Relist, Replace, Ship, SpoilBucket, Weather

RUNS_MAX = 400

Fails = Callable[[Plan], bool]


class _OutOfRuns(Exception):
    """The bound is met."""


def shrink(plan: Plan, fails: Fails, *, runs_max: int = RUNS_MAX) -> Plan:
    """Return the smallest plan found for which `fails` holds, as it does for `plan`; it is asked at most `runs_max` times."""
    search = _Search(plan, fails, runs_max)
    try:
        # A plainer plan may need fewer events, and one of fewer events may be made plainer.
        while search.remove_events() | search.simplify():
            pass
    except _OutOfRuns:
        pass
    return search.smallest


def breaks(invariants: frozenset[str], *, patches: tuple[Patch, ...] = ()) -> Fails:
    """Whether a plan breaks one of these invariants: shrinking must not wander off to another failure."""
    return lambda plan: bool(invariants & execute(plan, patches=patches).broken)


class _Search:
    def __init__(self, plan: Plan, fails: Fails, runs_max: int) -> None:
        self.smallest = plan
        self._fails = fails
        self._runs_left = runs_max
        self._passing: list[Plan] = []

    def remove_events(self) -> bool:
        """Delta debugging over all events; whether any went."""
        before = len(in_order(self.smallest))
        pieces = 1
        while events := in_order(self.smallest):
            size = -(-len(events) // pieces)
            if self._any(_with(self.smallest, events[:at] + events[at + size :]) for at in range(0, len(events), size)):
                pieces = max(pieces - 1, 1)
            elif size == 1:
                break
            else:
                pieces = min(pieces * 2, len(events))
        return len(in_order(self.smallest)) < before

    def simplify(self) -> bool:
        """Try fewer nodes, agents, settings and seconds, then plainer values of each event; whether any would do."""
        before = self.smallest
        for smaller in (_fewer_nodes, _fewer_agents, _fewer_settings, _shorter):
            while self._any(smaller(self.smallest)):
                pass
        for index in range(len(in_order(self.smallest))):
            for field in in_order(self.smallest)[index].__struct_fields__:
                self._any(_plainer(self.smallest, index, field))
        return self.smallest != before

    def _any(self, candidates: Iterator[Plan]) -> bool:
        return any(self._holds(candidate) for candidate in candidates)

    def _holds(self, candidate: Plan) -> bool:
        """Take the candidate if it fails."""
        if candidate == self.smallest or candidate in self._passing:
            return False
        if self._runs_left == 0:
            raise _OutOfRuns
        self._runs_left -= 1
        if not self._fails(candidate):
            self._passing.append(candidate)
            return False
        self.smallest = candidate
        return True


def _with(plan: Plan, events: list[Fault | Act]) -> Plan:
    events = sorted(events, key=lambda event: event.at)
    return replace(
        plan,
        faults=[event for event in events if not isinstance(event, Act)],
        acts=[event for event in events if isinstance(event, Act)],
    )


# ── less of everything ────────────────────────────────────────────────────────


def _fewer_nodes(plan: Plan) -> Iterator[Plan]:
    if plan.nodes > 1:
        fewer = replace(plan, nodes=plan.nodes - 1)
        yield _with(fewer, [event for event in in_order(plan) if _named(event) <= {*fewer.names, "client"}])


def _named(event: Fault | Act) -> set[str]:
    match event:
        case Cut() | Weather():
            return {*event.sources, *event.targets}
        case Misroute():
            return {event.node, event.name, event.to}
        case Relist():
            return {event.node, *event.members}
        case Replace():
            return {event.node, event.by}
        case Act() | Ship() | SpoilBucket():
            return set()
        case _:
            return {event.node}


def _fewer_agents(plan: Plan) -> Iterator[Plan]:
    least = max((act.agent + 1 for act in plan.acts), default=0)
    if least < plan.agents:
        yield replace(plan, agents=least)


def _fewer_settings(plan: Plan) -> Iterator[Plan]:
    if plan.settings:
        yield replace(plan, settings={})
        for left_out in plan.settings:
            yield replace(plan, settings={name: value for name, value in plan.settings.items() if name != left_out})


def _shorter(plan: Plan) -> Iterator[Plan]:
    last = max((event.at for event in in_order(plan)), default=0.0)
    for duration_s in (float(int(last) + 1), float(int(plan.duration_s / 2) + 1)):
        if last <= duration_s < plan.duration_s:
            yield replace(plan, duration_s=duration_s)


# ── plainer values ────────────────────────────────────────────────────────────

_PLAIN: dict[str, tuple[object, ...]] = {
    "down_s": (1.0,),
    "for_s": (1.0,),
    "keep": (0,),
    "nth": (1,),
    "both": (True,),
    "loss": (0.0, 0.5),
    "duplicate": (0.0, 0.5),
    "reorder": (0.0, 0.5),
    "delay_s": (0.0, 1.0),
    "by_ms": (-1000, 1000),
    "copied_at": (0.0,),
    "agent": (0,),
    "name": ("a",),
    "durability": ("local",),
    "repeat": (False,),
    "as_of": (None,),
}


def _plainer(plan: Plan, index: int, field: str) -> Iterator[Plan]:
    """The plan with one field of one event plainer, the plainest first; nothing if it is plain enough."""
    events = in_order(plan)
    # Another time can have moved another event to this place.
    if index >= len(events) or field not in events[index].__struct_fields__:
        return
    value = getattr(events[index], field)
    plain = _PLAIN.get(field, ())
    if value in plain:
        return
    rounded = (float(round(value)), round(value, 1)) if isinstance(value, float) else ()
    for choice in (*plain, *rounded):
        if choice == value:
            return
        yield _with(plan, [*events[:index], replace(events[index], **{field: choice}), *events[index + 1 :]])
