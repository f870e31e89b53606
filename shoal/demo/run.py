"""One run of the demo, from an empty directory or running nodes to the verdict.

Three settings differ only in where the agents write: three nodes of its own, of which one is killed; one embedded store, which
is killed with its agents; nodes that run already, where nothing is killed and agents with checkpoints resume. At the end each
store is read by itself, and all must agree with a recount that uses no store.

The kill is SIGKILL, after two fifths of the crew's work, as soon as one of its agents says that it writes. A gate makes sure
that work is left: a fast crew waits there for the kill. A killed process starts again at once; a killed node returns after
seven tenths of all work. Nodes that ran before are left alone. When `direct` ends, for any reason, so have the crews.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from threading import Event

import msgspec
from rich.console import Console

import shoal
from shoal.client.store import Store
from shoal.demo.course import Access, Course, Message, Plan
from shoal.demo.crew import DOCUMENT, SPACE, library, list_modules, recount, share, thread_name
from shoal.demo.nodes import DemoFailed, Node, cluster, node_name
from shoal.demo.screen import Found, Screen, judge, read_back
from shoal.errors import ShoalError, Unauthenticated
from shoal.protocol.requests import ClusterView
from shoal.records import NamedTuple

CREW = (sys.executable, "-m", "shoal.demo.crew")
KILL_AT, RETURN_AT = 0.4, 0.7
MODULES_MIN = 2  # One to die on, and one for afterwards.
LOOK_INTERVAL_S, LOOK_S_MAX, CATCH_UP_S_MAX = 0.1, 2.0, 60.0
_STDERR_LINES = 20


class Script(NamedTuple):
    """The kill, and the return of a node."""

    victim: int | None = None  # The crew that loses its node or its process; None: nothing is killed.
    kill_after: int = 0  # Once that crew has done so many modules, while one of its agents writes.
    gate: int = 0  # How many modules it may begin before.
    return_after: int = 0  # Once all crews have done so many.


def write_script(course: Course, *, random: Random) -> Script:
    """Draw the victim of a run of at least MODULES_MIN modules. Then 0 <= kill_after < gate, so that the kill always comes."""
    totals = [sum(agent.total for agent in course.of_crew(crew)) for crew in range(len(course.crews))]
    victim = random.choice([crew for crew, total in enumerate(totals) if total])
    near = int(totals[victim] * KILL_AT)
    gate = max(1, min(near + 2 * len(course.crews[victim]), totals[victim] - 1))
    return Script(victim, min(near, gate - 1), gate, int(course.total * RETURN_AT))


def pages(urls: Sequence[str], victim: int | None) -> list[str]:
    """Where to watch: at the node that is killed, so that one sees its page go on, and at one that is not."""
    if not urls:
        return []
    killed = victim or 0
    watched = f"Watch them in a browser at {urls[killed]}/; as it is killed, an open page goes on with another node"
    return [watched, f"While it is down, the page is at {urls[(killed + 1) % len(urls)]}/"]


class Director:
    """One run of the survey: await `direct`, once. `nodes` are those that may be killed; `now_s` is monotonic."""

    def __init__(
        self, script: Script, *, nodes: Sequence[Node], course: Course, screen: Screen, now_s: Callable[[], float]
    ) -> None:
        self._script = script
        self._nodes = nodes
        self._course = course
        self._screen = screen
        self._now_s = now_s
        self._return_due = asyncio.Event()

    async def direct(self, plans: Sequence[Plan], *, command: Sequence[str] = CREW) -> None:
        """Run the survey to its end, including the script; `plans` are the crews' plans.

        Raises:
            DemoFailed: a crew or a node ended by itself, or a node did not come back, or did not catch up.
        """
        try:
            async with AsyncExitStack() as stores:
                # One address each, so that no other node answers.
                looks = [
                    await stores.enter_async_context(shoal.connect(node.url, **plans[0].access.arguments))
                    for node in self._course.nodes
                ]
                async with asyncio.TaskGroup() as tasks:
                    looking = tasks.create_task(self._look(looks))
                    crews = [
                        tasks.create_task(self._follow(crew, self._gated(crew, plan), command))
                        for crew, plan in enumerate(plans)
                    ]
                    returning = tasks.create_task(self._bring_back(looks))
                    await asyncio.gather(*crews)
                    self._return_due.set()
                    await returning
                    looking.cancel()
                await self._settle(looks)
        except BaseExceptionGroup as group:
            # The first error ended the other tasks.
            raise group.exceptions[0] from None

    def _gated(self, crew: int, plan: Plan) -> Plan:
        return msgspec.structs.replace(plan, gate=self._script.gate) if crew == self._script.victim else plan

    async def _follow(self, crew: int, plan: Plan, command: Sequence[str]) -> None:
        """Run one crew, from its start to its end; if its process was killed, start it again without a gate."""
        course, killed = self._course, False
        async with _process(command, plan) as (process, said):
            assert process.stdout is not None
            async for line in process.stdout:
                if not line.endswith(b"\n"):
                    break  # A kill cut it off.
                message = msgspec.json.decode(line, type=Message)
                course.note(message, now_s=self._now_s())
                self._screen.saw(message)
                if crew == self._script.victim and self._is_kill_due(crew):
                    # Kill it here: another task would run only after the writes are made.
                    (self._nodes[crew] if self._nodes else process).kill()
                    killed = not self._nodes
                    self._screen.saw_kill(course.note_kill(crew, now_s=self._now_s()))
                    await _tell(process, b"\n")
                if course.outage is not None and course.done >= self._script.return_after:
                    self._return_due.set()
        if killed:
            await self._follow(crew, msgspec.structs.replace(plan, gate=None), command)
        elif code := process.returncode:
            manner = f"signal {-code}" if code < 0 else f"exit code {code}"
            raise DemoFailed(f"the crew ended by itself ({manner}). It said last: {' / '.join(said) or 'nothing'}")

    def _is_kill_due(self, crew: int) -> bool:
        done = sum(agent.done for agent in self._course.of_crew(crew))
        is_writing = bool(self._course.in_the_air & set(self._course.crews[crew]))
        return self._course.outage is None and is_writing and done >= self._script.kill_after

    async def _bring_back(self, looks: Sequence[Store]) -> None:
        """Start the killed node again when it is due, and return once it has caught up."""
        await self._return_due.wait()
        outage = self._course.outage
        if outage is None or not self._nodes:
            return
        state, name = self._course.nodes[outage.crew], node_name(outage.crew)
        state.state, held = "starting", state.operations
        await self._nodes[outage.crew].start()
        ready_s = self._now_s()
        # Asked now: what was seen last may be older than the kill.
        self._course.note_views(await asyncio.gather(*map(_view_of, looks)))
        target = max(node.operations for node in self._course.nodes)
        outage.down_s, outage.missed = ready_s - outage.at_s, target - held
        state.state = "catching up"
        self._screen.say(f"[yellow]started again[/] {name}, which missed {outage.missed:,} operations")
        while state.operations < target:
            if self._now_s() > ready_s + CATCH_UP_S_MAX:
                raise DemoFailed(f"{name} was back but did not catch up within {CATCH_UP_S_MAX:.0f} s")
            await asyncio.sleep(LOOK_INTERVAL_S / 2)
        outage.caught_up_s = self._now_s() - ready_s
        state.state = "up"
        self._screen.say(f"[green]caught up[/] {name}, {outage.caught_up_s:.2f} s after it was back")

    async def _look(self, looks: Sequence[Store]) -> None:
        """Keep the course's views of all nodes fresh, until cancelled. Raises DemoFailed if one ended by itself."""
        while looks:
            killed = {node.number for node in self._nodes if node.is_killed}
            asked = (_view_of(store) if number not in killed else asyncio.sleep(0, None) for number, store in enumerate(looks))
            self._course.note_views(await asyncio.gather(*asked))
            await asyncio.sleep(LOOK_INTERVAL_S)

    async def _settle(self, looks: Sequence[Store]) -> None:
        """Return once all nodes report equal digests, or after a while; the verdict then shows the differences."""
        by_s = self._now_s() + CATCH_UP_S_MAX
        while looks and self._now_s() < by_s:
            self._course.note_views(await asyncio.gather(*map(_view_of, looks)))
            if "" not in (digests := {node.digest for node in self._course.nodes}) and len(digests) == 1:
                return
            await asyncio.sleep(LOOK_INTERVAL_S)


async def _view_of(store: Store) -> ClusterView | None:
    """The node's view; None if it does not answer in time, from which nothing is concluded."""
    with suppress(TimeoutError, ShoalError):
        async with asyncio.timeout(LOOK_S_MAX):
            return await store.cluster()
    return None


@asynccontextmanager
async def _process(command: Sequence[str], plan: Plan) -> AsyncIterator[tuple[Process, deque[str]]]:
    """The process of a crew, and the last lines of its standard error. It has ended when the context is left."""
    # The session is its own, so that Ctrl-C in the terminal reaches only the supervisor, which then ends the crew.
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
    said: deque[str] = deque(maxlen=_STDERR_LINES)
    listening = asyncio.create_task(_listen(process, said))
    try:
        await _tell(process, msgspec.json.encode(plan) + b"\n")
        yield process, said
        await process.wait()
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        await listening


async def _tell(process: Process, line: bytes) -> None:
    """Send it a line. If it has died, the end of its messages reports that, not this call."""
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError, RuntimeError):  # The last is uvloop's, of a closed pipe.
        process.stdin.write(line)
        await process.stdin.drain()


async def _listen(process: Process, said: deque[str]) -> None:
    assert process.stderr is not None
    async for line in process.stderr:
        said.append(line.decode(errors="replace").rstrip())


SIZE = 3


class Options(NamedTuple):
    """The options of `shoal demo`; tests replace the command of the crews' processes."""

    agents: int = 9
    limit: int | None = None  # The number of modules; None for all.
    embedded: bool = False
    urls: Sequence[str] = ()  # Nodes that run already.
    access: Access = Access()
    keep: bool = False  # Keep the directory, and let the cluster run.
    watch: bool = False  # Let the cluster run until somebody interrupts it.
    command: Sequence[str] = CREW


async def run_demo(options: Options, *, console: Console, random: Random, now_s: Callable[[], float]) -> bool:
    """Survey, kill, resume, recount; True if every store agreed.

    Raises:
        DemoFailed: a node or the agents could not do their work.
        Unauthenticated: a node lets nobody in with this token. Nothing was written.
        ShoalError: a store could not be read back.
    """
    # List first: if the supervisor is killed, nobody removes a directory that exists before its processes do.
    modules = list_modules(library(), limit=options.limit)
    if options.urls:
        await _check_let_in(options)
        return await _survey(options, modules, None, [], console=console, random=random, now_s=now_s)
    size, name = 0 if options.embedded else SIZE, f"demo-{random.getrandbits(32):08x}"
    data = Path(tempfile.mkdtemp(prefix="shoal-demo-"))
    try:
        async with cluster(data, size=size, name=name, temporary=not options.keep) as nodes:
            agreed = await _survey(options, modules, data, nodes, console=console, random=random, now_s=now_s)
            if options.watch:
                urls = ", ".join(f"{node.url}/" for node in nodes)
                console.print(f"Look at it at {urls}, and end it with Ctrl-C.", highlight=False, soft_wrap=True)
                await asyncio.Event().wait()
            for node in nodes if options.keep else []:
                node.release()
    finally:
        if not options.keep:
            shutil.rmtree(data, ignore_errors=True)
    if options.keep:
        _show_way(console, data, nodes)
    return agreed


async def _check_let_in(options: Options) -> None:
    """Ask each node once: nine agents that it refuses would wait for each other's refusals to be forgotten."""
    for url in options.urls:
        async with shoal.connect(url, **options.access.arguments) as store:
            try:
                await store.status()
            except Unauthenticated:
                raise
            except ShoalError:
                pass  # The agents wait for a node that is away, and say what they may not do.


async def _survey(
    options: Options,
    modules: Sequence[str],
    data: Path | None,
    nodes: Sequence[Node],
    *,
    console: Console,
    random: Random,
    now_s: Callable[[], float],
) -> bool:
    urls, root, started_s, stopped = options.urls or [node.url for node in nodes], library(), now_s(), Event()
    course = Course([len(share(modules, agent, agents=options.agents)) for agent in range(options.agents)], nodes=urls)
    script = Script() if options.urls else write_script(course, random=random)
    recounting = asyncio.create_task(asyncio.to_thread(recount, root, modules, stopped=stopped.is_set))
    try:
        with Screen(console, course) as screen:
            stores = f"{len(urls)} nodes" if urls else "one embedded store"
            where = "" if data is None else f" in {data}"
            screen.say(f"{options.agents} agents survey {len(modules)} modules of {root} on {stores}{where}")
            for line in pages([node.url for node in nodes], script.victim):
                screen.say(line)
            directory = str(data) if options.embedded else ""
            plans = [
                Plan(
                    directory,
                    [*urls[crew:], *urls[:crew]],
                    bool(directory) and not options.keep,
                    options.limit,
                    options.agents,
                    [*members],
                    access=options.access,
                )
                for crew, members in enumerate(course.crews)
            ]
            director = Director(script, nodes=nodes, course=course, screen=screen, now_s=now_s)
            await director.direct(plans, command=options.command)
        seconds, recounted = now_s() - started_s, await recounting
    finally:
        stopped.set()  # A thread cannot be cancelled; it checks this after each module.
    found = await _read_back(options, data, urls)
    differences = judge(recounted, found, agents=options.agents)
    screen.show_summary(found, seconds=seconds)
    screen.show_verdict(differences)
    return not differences


async def _read_back(options: Options, data: Path | None, urls: Sequence[str]) -> Mapping[str, Found]:
    # One address only, so that no other node answers.
    openings = {node_name(number): shoal.connect(url, wait=30, **options.access.arguments) for number, url in enumerate(urls)}
    found = {}
    for name, opening in (openings or {"the store": shoal.open(str(data))}).items():
        async with opening as store:
            found[name] = await read_back(store, agents=options.agents)
    return found


def _show_way(console: Console, data: Path, nodes: Sequence[Node]) -> None:
    where = f"--url {nodes[0].url}" if nodes else f"--data {data}"
    lines = [
        "The cluster is left running:" if nodes else f"The store is kept in {data}.",
        *(f"  {node_name(node.number)}  {node.url}  {node.data}" for node in nodes),
        "Look at it with:",
        *(f"  shoal {it} {where} --space {SPACE}" for it in ("threads", f"log {thread_name(0)}", f"doc get {DOCUMENT}")),
        "Remove it with:" if not nodes else "Stop it and remove it with:",
        *([f"  kill {' '.join(str(node.process.pid) for node in nodes if node.process)}"] if nodes else []),
        f"  rm -r {data}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)
