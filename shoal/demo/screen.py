"""Show a run: live tables on a terminal, otherwise plain lines; at the end its figures, and every difference found.

It reads the run's `Course` and is called at each event; it decides nothing. At the end the stores are compared with an
independent recount, and with each other. Four accounts of the same survey must agree with the recount, module by module and to
the last function: the document's entries, the counters' sums, the agents' journals, and the state and number of their
checkpoints. Each value that is missing, doubled or different is one `Disagreement`. Of several nodes each must agree, and all
must hold exactly the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from shoal.client.store import Store
from shoal.demo.course import Course, Message, Outage
from shoal.demo.crew import DOCUMENT, OPERATIONS_PER_MODULE, ROOT, SPACE, Figures, counter_name, share, thread_name
from shoal.demo.nodes import node_name
from shoal.errors import NotFound
from shoal.kinds.thread.handle.thread import Thread
from shoal.records import NamedTuple

Accounts = dict[str, Any]  # Where → the value there.


class Disagreement(NamedTuple):
    """One difference between a store and the recount, or between two nodes."""

    where: str
    expected: object
    found: object


class Found(NamedTuple):
    """The survey, as a store holds it."""

    accounts: Accounts  # That the recount knows, too.
    exact: Accounts  # That only another node knows: ids, and the order of concurrent events.
    checkpoints: int
    bytes_on_disk: int


async def read_back(store: Store, *, agents: int) -> Found:
    """Read the four accounts.

    Raises:
        ShoalError: the store could not be read.
    """
    space, exact, checkpoints = store.space(SPACE), {}, 0
    async with await space.document(DOCUMENT) as document:
        accounts = {_entry(module): figures for module, figures in document.to_json().get(ROOT, {}).items()}
    for figure in Figures._fields:
        accounts[counter_name(figure)] = await space.counter(counter_name(figure)).value()
    for name in map(thread_name, range(agents)):
        found, exact[name] = await _read_thread(name, space.thread(name))
        accounts |= found
        checkpoints += found.get(f"{name}, checkpoints", 0)
    return Found(accounts, exact, checkpoints, (await store.status()).bytes_on_disk)


async def _read_thread(name: str, thread: Thread) -> tuple[Accounts, object]:
    try:
        state = (await thread.load()).state
    except NotFound:
        return {}, None
    events = [event.event async for event in thread.journal.read()]
    heads = await thread.heads()
    accounts: Accounts = {
        f"{name}, checkpoints": len([checkpoint async for checkpoint in thread.history()]),
        f"{name}, heads": {branch: len(ids) for branch, ids in heads.items()},
        f"{name}, modules done": state["done"],
        f"{name}, figures": state["figures"],
    }
    for event in events:
        accounts.setdefault(f"{name}, events for {event['module']}", []).append(event["figures"])
    return accounts, (heads, state, events)


def expected(recounted: Mapping[str, Figures], *, agents: int) -> Accounts:
    """The accounts that the recount demands; its order is the survey's."""
    accounts: Accounts = {_entry(module): figures._asdict() for module, figures in recounted.items()}
    accounts |= {counter_name(figure): value for figure, value in _sum(recounted.values()).items()}
    for number in range(agents):
        name, own = thread_name(number), share(list(recounted), number, agents=agents)
        if own:
            # One checkpoint per module, in one line: a module that was saved twice, or two lives that forked the thread, show.
            accounts |= {f"{name}, checkpoints": len(own), f"{name}, heads": {"main": 1}, f"{name}, modules done": own}
            accounts |= {f"{name}, figures": _sum(recounted[module] for module in own)}
            accounts |= {f"{name}, events for {module}": [recounted[module]._asdict()] for module in own}
    return accounts


def judge(recounted: Mapping[str, Figures], found: Mapping[str, Found], *, agents: int) -> list[Disagreement]:
    """The differences of each store, by name, from the recount, and from the first store."""
    first, model = next(iter(found.items()))
    differences: list[Disagreement] = []
    for name, held in found.items():
        differences += _between(expected(recounted, agents=agents), held.accounts, name)
        differences += _between(model.exact, held.exact, f"{name} and {first}")
    return differences


def _between(expected: Accounts, found: Accounts, whose: str) -> Iterator[Disagreement]:
    for where in expected | found:
        if expected.get(where) != found.get(where):
            yield Disagreement(f"{whose}: {where}", expected.get(where), found.get(where))


def _entry(module: str) -> str:
    return f"{DOCUMENT}, {module}"


def _sum(figures: Iterable[Figures]) -> Mapping[str, int]:
    return Figures(*map(sum, zip(Figures(), *figures, strict=True)))._asdict()


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
