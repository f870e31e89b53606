"""What a run owes its clients: the history, less what nobody promised to keep.

Laws:
- `memory` promises nothing once its node was struck down; `local` promises what was
  acknowledged to survive on a disk that is kept; `quorum` that any minority of
  disks may be lost; `all` that all but one may.
- What a node has shown was durable there, and is owed as `local` is.
- What is not owed may be there all the same: a write is then of unknown outcome.
- A disk is lost when a plan says that it may be, whether it came to that or not.
"""

from __future__ import annotations

from math import inf

from shoal.protocol.requests import Durability
from simulation.judging.history import Acknowledged, Event, History, Shown
from simulation.plan import (
    Bucket,
    ClockDrift,
    ClockJump,
    Clone,
    CorruptBlock,
    Crash,
    CrashAt,
    Disown,
    FullDisk,
    Leave,
    Plan,
    Relist,
    Replace,
    Restore,
    Stop,
    Wipe,
)

_REPLACED_S = 20.0
"""After this time, and what the fault itself takes, the node is on its other disk."""

_SET_BACK_S = 3.0
"""A disk is set back at the fault's time; an answer from before it takes no longer to arrive."""


NEAR_MS = 10_000
"""A clock that jumps so far makes delays of seconds longer than anybody waits."""

FAR_MS = 12 * 3600 * 1000
"""A clock that jumps so far may be past the window of keys, which is a day."""


_ENDS = Clone | CorruptBlock | Crash | CrashAt | Disown | FullDisk | Leave | Relist | Replace | Restore | Stop | Wipe


class Losses:
    """What the faults of a plan can take with them.

    `of_windows`: clocks may pass what a node remembers. `of_members`: nodes are left off the list of members for a while.
    `of_removals`: operators remove members, so a client whose other nodes are down may be told by one that it is none.
    `of_delays`: a delay of seconds may have been counted from a clock that was wrong, and last for long.
    `of_buckets`: the bucket of cold threads may not answer. `of_clocks`: a node's clock is not the true time. `of_lives`: a
    node may end, and begin again.
    """

    def __init__(self, plan: Plan) -> None:
        self.of_windows = "key_window_s" in plan.settings or any(
            isinstance(fault, ClockJump) and fault.by_ms > FAR_MS for fault in plan.faults
        )
        self.of_delays = any(isinstance(fault, ClockJump) and fault.by_ms > NEAR_MS for fault in plan.faults)
        self.of_members = any(isinstance(fault, Relist) for fault in plan.faults)
        self.of_removals = any(isinstance(fault, Leave | Replace) for fault in plan.faults)
        self.of_buckets = any(isinstance(fault, Bucket) for fault in plan.faults)
        self.of_clocks = any(isinstance(fault, ClockJump | ClockDrift) for fault in plan.faults)
        self.of_lives = any(isinstance(fault, _ENDS) for fault in plan.faults)
        self._nodes = plan.nodes
        self._struck: set[str] = set()  # Nodes that lost at least what was not synced.
        self._until: dict[str, float] = {}  # By node: what its disk held by then may be lost.
        self._windows: list[tuple[str, float, float]] = []  # A node, and from when until when its disk is lost.
        for fault in plan.faults:
            match fault:
                case Wipe() | Restore() | CorruptBlock():
                    takes_s = _SET_BACK_S if isinstance(fault, Restore) else fault.down_s + _REPLACED_S
                    self._struck.add(fault.node)
                    self._until[fault.node] = max(self._until.get(fault.node, 0.0), fault.at + takes_s)
                    self._windows.append((fault.node, fault.at, fault.at + takes_s))
                case (
                    Leave(how="forget") | Replace(how="forget")
                ):  # Its operator takes the disk away once it is forgotten, however long that takes.
                    self._struck.add(fault.node)
                    self._until[fault.node] = inf
                case Crash() | CrashAt() | FullDisk() | Leave() | Replace():
                    self._struck.add(fault.node)
            if isinstance(fault, Replace):
                self._struck.add(fault.by)
            if isinstance(fault, Leave | Replace):  # It comes back with an empty disk, whenever its operator gets to it.
                self._windows += [(node, fault.at, inf) for node in {fault.node, getattr(fault, "by", fault.node)}]

    @property
    def of_disks(self) -> bool:
        """Whether any disk may be lost, or set back."""
        return bool(self._until)

    def spare(self, durability: Durability, node: str, at_s: float) -> bool:
        """Whether what a node acknowledged so, and then, must be there for ever."""
        lost = len(self._until)
        match durability:
            case "memory":
                return node not in self._struck
            case "local":
                return self.keep(node, at_s)
            case "quorum":
                return lost <= (self._nodes - 1) // 2
            case "all":
                return lost < self._nodes

    def held(self, node: str, since_s: float, until_s: float) -> bool:
        """Whether a node has, all the time until then, what it held durably at the beginning."""
        return not any(name == node and begins <= until_s and ends >= since_s for name, begins, ends in self._windows)

    def keep(self, node: str, at_s: float) -> bool:
        """Whether what a node held durably then is there for ever."""
        return self._until.get(node, -1.0) < at_s


def owed(history: History, losses: Losses) -> History:
    """The history without the answers, and the reads, that promise nothing after these losses."""
    return History(event for event in history.events if _is_owed(history, event, losses))


def _is_owed(history: History, event: Event, losses: Losses) -> bool:
    match event:
        case Acknowledged():
            return losses.spare(history.writes[event.number].durability, event.node, event.at_s)
        case Shown():
            return losses.keep(event.node, event.at_s)
        case _:
            return True
