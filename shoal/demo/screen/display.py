"""Show a run: a live table on a terminal, otherwise plain lines.

It reads the run's `Progress` and is called at each event; it decides nothing.
"""

from __future__ import annotations

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.demo.agent import thread_name
from shoal.demo.messages import Message, Ready, Saved
from shoal.demo.progress import AgentProgress, Kill, Progress
from shoal.demo.screen.screen import Screen

PROGRESS, MODULE = "progress", "module"  # The headings of the columns that may shrink.
_BAR_WIDTH = 20
_TENTHS = 10


class Display(Screen):
    """The display of a run on one store."""

    def __init__(self, console: Console, progress: Progress) -> None:
        super().__init__(console, self._render)
        self._progress = progress
        self._tenth = 0

    def saw(self, message: Message) -> None:
        """A message of a crew arrived; the course has it already (`Audience.saw`); shows each resumption, and without a
        terminal each tenth of the progress.
        """
        match message:
            case Ready(positions=positions) if self._progress.kills:
                at = ", ".join(str(position) for position in positions)
                self.say(f"[green]resumed[/] from the agents' checkpoints, at {at} of their modules")
            case Saved():
                self._say_tenth()

    def saw_kill(self, kill: Kill) -> None:
        """A node was killed (`Audience.saw_kill`)."""
        self.say(
            f"[bold red]kill -9[/] number {len(self._progress.kills)}, after {kill.done} of {self._progress.total} modules; "
            f"{kill.in_the_air} had writes under way"
        )

    def _say_tenth(self) -> None:
        tenth = self._progress.done * _TENTHS // max(1, self._progress.total)
        if not self.is_live and tenth > self._tenth:
            self._tenth = tenth
            self.say(f"{self._progress.done} of {self._progress.total} modules")

    def _render(self) -> Group:
        table = rows_of("agent", "done", PROGRESS, "checkpoint", MODULE)
        for number, agent in enumerate(self._progress.agents):
            table.add_row(*agent_cells(number, agent))
        done, total = self._progress.done, self._progress.total
        kills = "".join(f"  [red]✗[/] kill -9 at {kill.done}{_back(kill)}" for kill in self._progress.kills)
        return Group(Text.from_markup(f"[bold]{done}[/] of {total} modules{kills}"), table)


def rows_of(*headings: str) -> Table:
    """A table without lines. In a narrow terminal only the bar and the module shrink, so that all else stays readable."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for heading in headings:
        table.add_column(
            "" if heading == PROGRESS else heading,
            no_wrap=heading not in (PROGRESS, MODULE),
            max_width=_BAR_WIDTH if heading == PROGRESS else None,
        )
    return table


def agent_cells(number: int, agent: AgentProgress) -> tuple[str | Text | ProgressBar, ...]:
    """Name, count, bar, checkpoint and module of one agent."""
    resumed = "".join(f" [green]↻{position}[/]" for position in agent.resumed_at)
    return (
        thread_name(number),
        f"{agent.done}/{agent.total}{resumed}",
        ProgressBar(total=max(1, agent.total), completed=agent.done),
        agent.checkpoint[:12],
        Text(agent.module, no_wrap=True, overflow="ellipsis"),
    )


def _back(kill: Kill) -> str:
    return "" if kill.resumed_s is None else f", back after {kill.resumed_s:.2f} s"
