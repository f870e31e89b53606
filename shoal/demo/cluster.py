"""The demo on three nodes, from empty directories to the verdict: one node is killed, its agents continue, it catches up.

At the end each node is read separately, and all must agree with an independent
recount. With `keep` the cluster continues to run; otherwise its processes
have ended when `run_cluster` returns or raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from rich.console import Console

import shoal
from shoal.demo.agent import DOCUMENT, SPACE, thread_name
from shoal.demo.course import Course
from shoal.demo.director import direct, write_script
from shoal.demo.messages import CrewPlan
from shoal.demo.nodes import Node, cluster, node_name
from shoal.demo.screen.board import Board
from shoal.demo.screen.report import ClusterSummary, print_cluster_summary, print_verdict
from shoal.demo.stage import Options, directory, recounting
from shoal.demo.survey import Figures, library, list_modules, share
from shoal.demo.verdict import Found, judge_nodes, read_back

SIZE = 3
_NAME_BITS = 32


async def run_cluster(options: Options, *, console: Console, random: Random, now_s: Callable[[], float]) -> bool:
    """Survey, kill, fail over, catch up, recount; True if every node agreed.

    Raises:
        InvalidInput: `options.data` is not an empty directory. Nothing was written.
        NodeFailed: a node could not do its work.
        WorkerFailed: the agents at a node could not do their work.
        ShoalError: a node could not be read back.
    """
    # List first: if the supervisor is killed, nobody removes a directory that exists before its nodes do.
    modules = list_modules(library(), limit=options.limit)
    name = f"demo-{random.getrandbits(_NAME_BITS):08x}"
    with directory(options) as data:
        data.mkdir(parents=True, exist_ok=True)
        async with cluster(data, size=SIZE, name=name, temporary=not options.is_kept) as nodes:
            agreed = await _Run(nodes, modules, options, console, random, now_s).survey(data)
            if options.keep:
                for node in nodes:
                    node.release()
                _show_way(console, data, nodes)
        if options.data is not None and not options.keep:
            console.print(f"The nodes' stores are kept below {data}.", highlight=False, soft_wrap=True)
    return agreed


def _show_way(console: Console, data: Path, nodes: Sequence[Node]) -> None:
    first = nodes[0].url
    lines = [
        "The cluster is left running:",
        *(f"  {node_name(node.number)}  {node.url}  {node.data}" for node in nodes),
        "Look at it with:",
        f"  shoal status --url {first}",
        *(
            f"  shoal {command} --url {first} --space {SPACE}"
            for command in ("threads", f"log {thread_name(0)}", f"doc get {DOCUMENT}")
        ),
        "Stop it and remove it with:",
        f"  kill {' '.join(str(node.pid) for node in nodes)}",
        f"  rm -r {data}",
    ]
    for line in lines:
        console.print(line, highlight=False, soft_wrap=True)


class _Run:
    def __init__(
        self,
        nodes: Sequence[Node],
        modules: Sequence[str],
        options: Options,
        console: Console,
        random: Random,
        now_s: Callable[[], float],
    ) -> None:
        self._nodes = nodes
        self._modules = modules
        self._options = options
        self._console = console
        self._random = random
        self._now_s = now_s
        totals = [len(share(modules, agent, agents=options.agents)) for agent in range(options.agents)]
        self._course = Course(totals, nodes=[node.url.removeprefix("http://") for node in nodes])

    async def survey(self, data: Path) -> bool:
        root, started_s = library(), self._now_s()
        async with recounting(root, self._modules) as recount:
            with Board(self._console, self._course) as board:
                board.say(
                    f"{self._options.agents} agents survey {len(self._modules)} modules of {root} "
                    f"on three nodes, whose stores are in {data}"
                )
                await self._direct(board)
            seconds = self._now_s() - started_s
            recounted = await recount
        return self._report(recounted, await self._read_nodes(), seconds=seconds)

    async def _direct(self, board: Board) -> None:
        script = write_script(self._course, random=self._random)
        plans = [self._plan(node, script.gates) for node in range(len(self._nodes))]
        await direct(
            self._nodes,
            plans,
            script,
            course=self._course,
            audience=board,
            now_s=self._now_s,
            command=self._options.crew,
        )

    def _plan(self, node: int, gates: Sequence[Sequence[int]]) -> CrewPlan:
        urls = [each.url for each in self._nodes]
        members = list(self._course.crew(node))
        return CrewPlan(
            urls=",".join([*urls[node:], *urls[:node]]),
            root=str(library()),
            modules=list(self._modules),
            agents=self._options.agents,
            members=members,
            gates=[[gate[member] for member in members] for gate in gates],
        )

    async def _read_nodes(self) -> dict[str, Found]:
        found = {}
        for node, progress in zip(self._nodes, self._course.nodes, strict=True):
            # One address only, so that no other node answers.
            async with shoal.connect(node.url, wait=30) as store:
                found[node_name(node.number)] = await read_back(store, agents=self._options.agents)
                progress.bytes_on_disk = (await store.status()).bytes_on_disk
        return found

    def _report(self, recounted: Mapping[str, Figures], found: Mapping[str, Found], *, seconds: float) -> bool:
        assert self._course.outage is not None
        first = next(iter(found.values()))
        summary = ClusterSummary(
            figures=Figures(**{name: first.counters[name] for name in Figures._fields}),
            agents=self._options.agents,
            checkpoints=sum(thread.checkpoints for thread in first.threads),
            operations=self._course.operations,
            nodes=self._course.nodes,
            outage=self._course.outage,
            seconds=seconds,
        )
        differences = judge_nodes(recounted, found)
        print_cluster_summary(self._console, summary)
        print_verdict(
            self._console,
            differences,
            agreed="document, counters, journals and threads are the same on all three nodes, and equal the recount.",
        )
        return not differences
