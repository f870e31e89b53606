"""The plans and messages of a run's processes, and the state of the run that follows from them. Nothing here does I/O.

A module is in the air from "writing" to "saved"; a kill in between leaves it partly written. An agent that the kill interrupted
is back at work when it is first "saved" after it "resumed".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from shoal.protocol.requests import ClusterView


class Access(Struct, frozen=True):
    """How clients are let in to nodes: the files with a token, and with the CA of the nodes; None: as the environment says."""

    token_file: str | None = None
    tls_ca: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """The same as arguments of `shoal.connect`."""
        return {"token": None if self.token_file is None else Path(self.token_file), "tls_ca": self.tls_ca}


class Plan(Struct, frozen=True):
    """The work of one crew, agents that share a process: one line of JSON, the first of the crew's input."""

    directory: str  # Of the embedded store; empty: the agents work at nodes.
    urls: list[str]  # Of all nodes, the crew's own first.
    temporary: bool  # Whether the crew removes its directory if the supervisor disappears.
    limit: int | None  # Of the modules of all agents; None: all.
    agents: int  # The number of agents in all crews.
    members: list[int]  # The agents of this crew.
    # How many modules the crew may begin before a second line comes, so that a kill comes before its end; None: all.
    gate: int | None = None
    access: Access = Access()  # How the agents are let in to nodes.


class Message(Struct, frozen=True):
    """The news of an agent: one line of JSON on the crew's output.

    "writing": it has counted a module, and begins to write. "saved": all writes are acknowledged, the checkpoint last.
    "resumed": it loaded its last checkpoint, at its start, at another node, or after an error.
    """

    what: Literal["resumed", "writing", "saved"]
    agent: int
    position: int  # How many of its modules are done.
    checkpoint: str  # Empty: there is none.
    node: str  # The id of the node that answered last.
    module: str = ""  # That it writes.
    reason: str = ""  # Of resuming: "start", the type of the error, or empty if the client changed to another node by itself.


@dataclass(slots=True)
class AgentProgress:
    """The state of one agent, as far as the supervisor knows."""

    total: int
    done: int = 0
    module: str = ""
    checkpoint: str = ""
    node: str = ""
    resumed_at: list[int] = field(default_factory=list)


@dataclass(slots=True)
class NodeProgress:
    """The state of one node, as far as the supervisor knows."""

    url: str
    state: Literal["up", "no answer", "killed", "starting", "catching up"] = "up"
    id: str = ""  # Empty until the node answered.
    operations: int = 0  # How many it held when it answered last.
    behind: int = 0  # Operations of others that it is not known to hold.
    digest: str = ""  # Over all that it holds; empty: it did not answer.


@dataclass(slots=True)
class Outage:
    """The `kill -9`: the interrupted writes, and the times until all had recovered."""

    crew: int  # The agents that lost their process, or the node with the same number.
    done: int  # Modules done at that time, as far as the supervisor knew.
    in_the_air: int  # Modules that these agents were writing.
    at_s: float
    resumed: set[int] = field(default_factory=set)  # Agents that have loaded their checkpoints since.
    back_s: dict[int, float] = field(default_factory=dict)  # Agent → from the kill to its first save afterwards.
    missed: int = 0  # Operations that the node lacked when it was started again.
    down_s: float | None = None  # From the kill to its ready line.
    caught_up_s: float | None = None  # From its ready line until it held as many operations as the others had held then.


class Course:
    """The state of one run. `now_s` arguments are monotonic seconds. Without `nodes`, one crew has an embedded store.

    Agent n is in crew n modulo the number of nodes, and begins at the node with its crew's number.
    """

    def __init__(self, totals: Sequence[int], *, nodes: Sequence[str] = ()) -> None:
        self.agents = [AgentProgress(total) for total in totals]
        self.nodes = [NodeProgress(url) for url in nodes]
        self.crews = [range(crew, len(totals), len(nodes) or 1) for crew in range(len(nodes) or 1)]
        self.in_the_air: set[int] = set()  # Agents that are writing.
        self.outage: Outage | None = None
        self.saved = 0  # Modules in this run.
        self.total = sum(totals)

    @property
    def done(self) -> int:
        """Modules done by all agents, in earlier runs too."""
        return sum(agent.done for agent in self.agents)

    def of_crew(self, crew: int) -> list[AgentProgress]:
        """The agents of a crew."""
        return [self.agents[agent] for agent in self.crews[crew]]

    def node_of(self, id: str) -> int | None:
        """The number of the node with that id; None if no node is known to have it."""
        return next((number for number, node in enumerate(self.nodes) if node.id == id != ""), None)

    def note(self, message: Message, *, now_s: float) -> None:
        """Follow a message of a crew."""
        number, agent, outage = message.agent, self.agents[message.agent], self.outage
        # Every message tells the position, since the message about a checkpoint may be lost in a kill.
        agent.done, agent.checkpoint, agent.node = message.position, message.checkpoint, message.node
        match message.what:
            case "writing":
                self.in_the_air.add(number)
                agent.module = message.module
            case "resumed":
                self.in_the_air.discard(number)
                agent.resumed_at += [message.position] if message.checkpoint else []
                if outage is not None and number in self.crews[outage.crew]:
                    outage.resumed.add(number)
            case "saved":
                self.in_the_air.discard(number)
                self.saved += 1
                # Messages of a killed crew may be read after the kill; they are no return to work.
                if outage is not None and number in outage.resumed:
                    outage.back_s.setdefault(number, now_s - outage.at_s)

    def note_kill(self, crew: int, *, now_s: float) -> Outage:
        """Begin the outage: the crew's node, or its own process, is killed now."""
        self.outage = Outage(crew, self.done, len(self.in_the_air & set(self.crews[crew])), now_s)
        if self.nodes:
            self.nodes[crew].state = "killed"
        return self.outage

    def note_views(self, views: Sequence[ClusterView | None]) -> None:
        """Follow the nodes' views, one per node; None for a node that did not answer."""
        for node, view in zip(self.nodes, views, strict=True):
            node.digest = "" if view is None else view.digest
            if view is not None:
                node.id, node.operations = view.members[0].node, view.members[0].operations
            if node.state in ("up", "no answer"):
                node.state = "no answer" if view is None else "up"
        others = [member for view in views if view is not None for member in view.members[1:] if member.told]
        for node in self.nodes:
            # Ask the best informed peer: one that was just started does not know what the others hold.
            node.behind = min((member.lacks for member in others if member.node == node.id), default=0)
