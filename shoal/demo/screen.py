"""Show a run: live tables on a terminal, otherwise plain lines; at the end its figures, and every difference found.

It reads the run's `Course` and is called at each event; it decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.demo.course import Course, Message, Outage
from shoal.demo.crew import OPERATIONS_PER_MODULE, Figures, counter_name, thread_name
from shoal.demo.nodes import node_name
from shoal.demo.verdict import Disagreement, Found

DIFFERENCES_SHOWN = 20
_WIDTH_SHOWN = 200
_REFRESH_PER_SECOND = 8
_BAR_WIDTH = 20
_TENTHS = 10
_COLOURS = {"up": "green", "killed": "bold red"}  # Other states are yellow.


class Screen:
    """The display of a run; between `with` and its end it is live."""

    def __init__(self, console: Console, course: Course) -> None:
        self._console = console
        self._course = course
        self._live: Live | None = None
        self._tenth = 0

    def __enter__(self) -> Self:
        # A dumb terminal cannot move its cursor, so it gets plain lines.
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=_REFRESH_PER_SECOND)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def say(self, line: str) -> None:
        """Print one line of Rich markup, above the live display if there is one."""
        self._console.print(line, highlight=False, soft_wrap=True)

    def saw(self, message: Message) -> None:
        """Show a resumption and, without a live display, each tenth of the progress; the course has the message already."""
        agent = thread_name(message.agent)
        at = f"from checkpoint {message.checkpoint[:12] or 'none'} at {message.position} of its modules"
        if message.what == "resumed" and message.reason != "start":
            number = self._course.node_of(message.node)
            where = "another node" if number is None else node_name(number)
            met = f" after {message.reason}" if message.reason else ""
            self.say(f"[green]failed over[/] {agent} to {where}{met}, resumed {at}")
        elif message.what == "resumed" and message.checkpoint:
            self.say(f"[green]resumed[/] {agent} {at}")
        elif message.what == "saved" and self._live is None:
            self._say_tenth()

    def saw_kill(self, outage: Outage) -> None:
        """Show a kill, and the agents that it met."""
        crew = ", ".join(thread_name(number) for number in self._course.crews[outage.crew])
        victim = node_name(outage.crew) if self._course.nodes else "the process of the store and its agents"
        self.say(
            f"[bold red]kill -9[/] {victim}, after {outage.done} of {self._course.total} modules; "
            f"of its agents ({crew}) {outage.in_the_air} had writes under way"
        )

    def _say_tenth(self) -> None:
        course = self._course
        tenth = course.done * _TENTHS // max(1, course.total)
        if tenth > self._tenth:
            self._tenth = tenth
            nodes = "; ".join(
                f"{node_name(number)} {node.state}, {node.operations:,} operations, {node.behind:,} behind"
                for number, node in enumerate(course.nodes)
            )
            self.say(f"{course.done} of {course.total} modules" + (f"  ({nodes})" if nodes else ""))

    def _render(self) -> Group:
        done = Text.from_markup(f"[bold]{self._course.done}[/] of {self._course.total} modules")
        return Group(*((self._nodes(), Text()) if self._course.nodes else ()), done, self._agents())

    def _nodes(self) -> Table:
        table = _table("node", "address", "state", "operations", "behind")
        for number, node in enumerate(self._course.nodes):
            state = f"[{_COLOURS.get(node.state, 'yellow')}]{node.state}[/]"
            address = node.url.partition("//")[2]
            table.add_row(node_name(number), address, state, f"{node.operations:,}", f"{node.behind:,} behind")
        return table

    def _agents(self) -> Table:
        # In a narrow terminal only the bar and the module shrink, so that all else stays readable.
        table = _table("agent", "done", "checkpoint", *(["at"] if self._course.nodes else []))
        table.add_column("", max_width=_BAR_WIDTH)
        table.add_column("module")
        for number, agent in enumerate(self._course.agents):
            resumed = "".join(f" [green]↻{position}[/]" for position in agent.resumed_at)
            at = self._course.node_of(agent.node)
            cells: list[RenderableType] = [thread_name(number), f"{agent.done}/{agent.total}{resumed}", agent.checkpoint[:12]]
            cells += ["" if at is None else node_name(at)] if self._course.nodes else []
            bar = ProgressBar(total=max(1, agent.total), completed=agent.done)
            table.add_row(*cells, bar, Text(agent.module, no_wrap=True, overflow="ellipsis"))
        return table

    def show_summary(self, found: Mapping[str, Found], *, seconds: float) -> None:
        """Print the run's figures; `seconds` is from the start of the agents to the end of the last one."""
        course, first = self._course, next(iter(found.values()))
        table = Table(show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(justify="right")
        for name in Figures._fields:
            table.add_row(name.replace("_", " "), f"{first.accounts[counter_name(name)]:,}")
        table.add_row("agents", f"{len(course.agents)}")
        table.add_row("checkpoints", f"{first.checkpoints:,}")
        table.add_row("operations acknowledged to the agents", f"{course.saved * OPERATIONS_PER_MODULE:,}")
        for number, node in enumerate(course.nodes):
            table.add_row(f"operations on {node_name(number)}", f"{node.operations:,}")
        table.add_row("bytes on disk", f"{sum(held.bytes_on_disk for held in found.values()):,}")
        if (outage := course.outage) is not None:
            table.add_row("kill -9", f"{outage.in_the_air} modules half written")
            table.add_row("its agents back at work", f"{_seconds(max(outage.back_s.values(), default=None))} after the kill")
            if course.nodes:
                name = node_name(outage.crew)
                table.add_row(f"{name} was away", f"{_seconds(outage.down_s)}, and missed {outage.missed:,} operations")
                table.add_row("time to catch up", _seconds(outage.caught_up_s))
        table.add_row("survey took", f"{seconds:.1f} s")
        self._console.print(table)

    def show_verdict(self, differences: Sequence[Disagreement]) -> None:
        """Say that all agreed, or print the number of differences and the first of them."""
        if not differences:
            same = f" are the same on all {len(self._course.nodes)} nodes, and" if self._course.nodes else ""
            self.say(f"[bold green]agreed[/]: document, counters, journals and threads{same} equal the recount.")
            return
        self.say(f"[bold red]{len(differences)} differences[/] from the recount:")
        for where, expected, found in differences[:DIFFERENCES_SHOWN]:
            self.say(f"  {escape(where)}\n    - expected  {escape(_short(expected))}\n    + in store   {escape(_short(found))}")
        if len(differences) > DIFFERENCES_SHOWN:
            self.say(f"  … and {len(differences) - DIFFERENCES_SHOWN} more")


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    return table


def _seconds(seconds: float | None) -> str:
    return "never" if seconds is None else f"{seconds:.2f} s"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _WIDTH_SHOWN else f"{text[:_WIDTH_SHOWN]}… ({len(text)} characters)"
