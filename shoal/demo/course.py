"""The state of a run on three nodes, from the crews' messages and the nodes' views of the cluster.

A module is in the air from its `Writing` to its `Saved`. An agent of the killed
node is back at work with its first `Saved` from another node. A write that its
client repeated there counts; a write that the dead node had acknowledged does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from shoal.demo.lookout import View
from shoal.demo.messages import Message, Resumed, Saved, Writing
from shoal.demo.progress import AgentProgress


@dataclass(slots=True)
class NodeProgress:
    """The state of one node, as far as the supervisor knows."""

    name: str  # "host:port", as its peers call it.
    state: Literal["up", "killed", "starting", "catching up"] = "up"
    view: View | None = None  # Its own last view.
    behind: int = 0  # Operations of others that it is not known to hold.
    behind_ms: int = 0
    bytes_on_disk: int = 0

    @property
    def id(self) -> str:
        """The node's id; empty before its first view."""
        return "" if self.view is None else self.view.own.node

    @property
    def operations(self) -> int:
        """How many operations it held at its last view."""
        return 0 if self.view is None else self.view.own.operations or 0


@dataclass(slots=True)
class Outage:
    """The `kill -9` of a node: its time, the interrupted writes, and the times until all had recovered."""

    node: int
    id: str  # The node's id.
    done: int  # Modules done at that time, as far as the supervisor knew.
    in_the_air: int  # Modules that agents of this node were writing.
    at_s: float
    back_s: dict[int, float] = field(default_factory=dict)  # Agent → from the kill to its first save elsewhere.
    missed: int = 0  # Operations that it lacked when it was started again.
    down_s: float | None = None  # From the kill to its ready line.
    caught_up_s: float | None = None  # From its ready line until it held what the others had held then.

    @property
    def failed_over_s(self) -> float | None:
        """The time until the last of its agents was back at work."""
        return max(self.back_s.values(), default=None)


class Course:
    """The state of one run. `now_s` arguments are monotonic seconds. Agent n begins at node n modulo the number of nodes."""

    def __init__(self, totals: Sequence[int], *, nodes: Sequence[str]) -> None:
        self.agents = [AgentProgress(total) for total in totals]
        self.nodes = [NodeProgress(name) for name in nodes]
        self.at: dict[int, str] = {}  # Agent → the id of the node that answered it last.
        self.in_the_air: dict[int, str] = {}
        self.outage: Outage | None = None
        self.operations = 0

    @property
    def done(self) -> int:
        """Modules done by all agents."""
        return sum(agent.done for agent in self.agents)

    @property
    def total(self) -> int:
        """Modules of all agents."""
        return sum(agent.total for agent in self.agents)

    def crew(self, node: int) -> range:
        """The agents that begin at a node."""
        return range(node, len(self.agents), len(self.nodes))

    def node_of(self, id: str) -> int | None:
        """The number of the node with that id; None if no node is known to have it."""
        return next((number for number, node in enumerate(self.nodes) if node.id == id != ""), None)

    def note(self, message: Message, *, now_s: float) -> None:
        """Follow a message of a crew."""
        match message:
            case Writing(agent=number, module=module):
                self.in_the_air[number] = module
                self.agents[number].module = module
            case Saved():
                self._save(message, now_s=now_s)
            case Resumed(agent=number, position=position, checkpoint=checkpoint, node=node):
                self.at[number] = node
                self.agents[number].checkpoint = checkpoint
                self.agents[number].resumed_at.append(position)

    def note_kill(self, node: int, *, now_s: float) -> Outage:
        """Begin an outage: the node is killed now."""
        interrupted = len(self.in_the_air.keys() & set(self.crew(node)))
        self.outage = Outage(node, self.nodes[node].id, done=self.done, in_the_air=interrupted, at_s=now_s)
        self.nodes[node].state = "killed"
        return self.outage

    def note_views(self, views: Sequence[View | None]) -> None:
        """Follow the nodes' views, one per node; None for a node that did not answer."""
        for node, view in zip(self.nodes, views, strict=True):
            node.view = view or node.view
        for number, node in enumerate(self.nodes):
            others = [view for other, view in enumerate(views) if other != number and view is not None]
            seen = [member for view in others if (member := view.of(node.name)) is not None]
            # Ask the best informed peer: one that was just started does not know what the others hold.
            node.behind = min((member.lacks for member in seen if member.lacks is not None), default=0)
            node.behind_ms = min((member.lag_ms for member in seen if member.lag_ms is not None), default=0)

    def _save(self, message: Saved, *, now_s: float) -> None:
        self.in_the_air.pop(message.agent, None)
        self.at[message.agent] = message.node
        agent = self.agents[message.agent]
        agent.done, agent.checkpoint = message.position, message.checkpoint
        self.operations += message.operations
        outage = self.outage
        if outage is not None and message.agent in self.crew(outage.node) and message.node != outage.id:
            outage.back_s.setdefault(message.agent, now_s - outage.at_s)
