"""Show a run on three nodes: two live tables on a terminal, otherwise plain lines.

It reads the run's `Course` and is called at each event; it decides nothing.
"""

from __future__ import annotations

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from shoal.demo.agent import thread_name
from shoal.demo.course import Course, NodeProgress, Outage
from shoal.demo.messages import Message, Resumed, Saved
from shoal.demo.nodes import node_name
from shoal.demo.screen.display import MODULE, PROGRESS, agent_cells, rows_of
from shoal.demo.screen.screen import Screen

_TENTHS = 10
_COLOURS = {"up": "green", "killed": "bold red", "starting": "yellow", "catching up": "yellow"}


class Board(Screen):
    """The display of a run on three nodes."""

    def __init__(self, console: Console, course: Course) -> None:
        super().__init__(console, self._render)
        self._course = course
        self._tenth = 0

    def saw(self, message: Message) -> None:
        """A message of a crew arrived; the course has it already (`Audience.saw`); shows fail-overs, and without a terminal
        each tenth of the progress.
        """
        match message:
            case Resumed(agent=agent, position=position, checkpoint=checkpoint, node=node, reason=reason):
                met = f" after {reason}" if reason else ""
                self.say(
                    f"[green]failed over[/] {thread_name(agent)} to {self._name(node)}{met}, "
                    f"resumed from checkpoint {checkpoint[:12] or 'none'} at {position} of its modules"
                )
            case Saved():
                self._say_tenth()

    def saw_kill(self, outage: Outage) -> None:
        """A node was killed (`Audience.saw_kill`)."""
        agents = ", ".join(thread_name(number) for number in self._course.crew(outage.node))
        self.say(
            f"[bold red]kill -9[/] {node_name(outage.node)}, after {outage.done} of {self._course.total} modules; "
            f"of its agents ({agents}) {outage.in_the_air} had writes under way"
        )

    def saw_return(self, outage: Outage) -> None:
        """The killed node answers again (`Audience.saw_return`)."""
        self.say(f"[yellow]started again[/] {node_name(outage.node)}, which missed {outage.missed:,} operations")

    def saw_caught_up(self, outage: Outage) -> None:
        """The killed node holds all that the others held when it came back (`Audience.saw_caught_up`)."""
        self.say(f"[green]caught up[/] {node_name(outage.node)}, {outage.caught_up_s or 0:.2f} s after it was back")

    def _name(self, id: str) -> str:
        number = self._course.node_of(id)
        return "another node" if number is None else node_name(number)

    def _say_tenth(self) -> None:
        course = self._course
        tenth = course.done * _TENTHS // max(1, course.total)
        if not self.is_live and tenth > self._tenth:
            self._tenth = tenth
            nodes = "; ".join(
                f"{node_name(nth)} {node.state}, {node.operations:,} operations, {_behind(node)}"
                for nth, node in enumerate(course.nodes)
            )
            self.say(f"{course.done} of {course.total} modules  ({nodes})")

    def _render(self) -> Group:
        course = self._course
        done = Text.from_markup(f"[bold]{course.done}[/] of {course.total} modules")
        return Group(self._nodes(), Text(), done, self._agents())

    def _nodes(self) -> Table:
        table = rows_of("node", "address", "state", "operations", "behind")
        for number, node in enumerate(self._course.nodes):
            state = f"[{_COLOURS[node.state]}]{node.state}[/]"
            table.add_row(node_name(number), node.name, state, f"{node.operations:,}", _behind(node))
        return table

    def _agents(self) -> Table:
        table = rows_of("agent", "done", PROGRESS, "checkpoint", "at", MODULE)
        for number, agent in enumerate(self._course.agents):
            *first, module = agent_cells(number, agent)
            at = self._course.node_of(self._course.at.get(number, ""))
            table.add_row(*first, "" if at is None else node_name(at), module)
        return table


def _behind(node: NodeProgress) -> str:
    return f"{node.behind:,} behind ({node.behind_ms / 1000:.1f} s)" if node.behind else "0 behind"
