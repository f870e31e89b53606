"""The state of a run on one store, from its worker's messages alone.

A module is in the air from its `Writing` to its `Saved`; a kill in between
leaves it partly written. A new life begins at the positions of its `Ready`, since a
checkpoint may have been acknowledged although its message was lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shoal.demo.messages import Message, Ready, Saved, Writing


@dataclass(slots=True)
class AgentProgress:
    """How far one agent is, as far as the supervisor knows."""

    total: int
    done: int = 0
    module: str = ""
    checkpoint: str = ""
    resumed_at: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Kill:
    """One `kill -9`: its time, and the interrupted writes."""

    done: int  # Modules done at that time, as far as the supervisor knew.
    in_the_air: int
    at_s: float
    resumed_s: float | None = None  # From the kill to the first checkpoint of the next life.


class Progress:
    """The state of one run. `now_s` arguments are monotonic seconds."""

    def __init__(self, totals: Sequence[int]) -> None:
        self.agents = [AgentProgress(total) for total in totals]
        self.in_the_air: dict[int, str] = {}
        self.kills: list[Kill] = []
        self.operations = 0
        self.alive = False

    @property
    def done(self) -> int:
        """Modules done by all agents."""
        return sum(agent.done for agent in self.agents)

    @property
    def total(self) -> int:
        """Modules of all agents."""
        return sum(agent.total for agent in self.agents)

    def note(self, message: Message, *, now_s: float) -> None:
        """Follow a message of the worker."""
        match message:
            case Ready(positions=positions):
                self._begin(positions)
            case Writing(agent=number, module=module):
                self.in_the_air[number] = module
                self.agents[number].module = module
            case Saved():
                self._save(message, now_s=now_s)

    def note_kill(self, *, now_s: float) -> None:
        """Record that the worker was killed now."""
        self.kills.append(Kill(done=self.done, in_the_air=len(self.in_the_air), at_s=now_s))
        self.alive = False

    def _begin(self, positions: Sequence[int]) -> None:
        self.alive = True
        self.in_the_air.clear()
        for agent, position in zip(self.agents, positions, strict=True):
            agent.done = position
            if self.kills:
                agent.resumed_at.append(position)

    def _save(self, message: Saved, *, now_s: float) -> None:
        self.in_the_air.pop(message.agent, None)
        agent = self.agents[message.agent]
        agent.done, agent.checkpoint = message.position, message.checkpoint
        self.operations += message.operations
        # Messages of the killed life may be read after the kill; they are not a resumption.
        if self.alive and self.kills and self.kills[-1].resumed_s is None:
            self.kills[-1].resumed_s = now_s - self.kills[-1].at_s
