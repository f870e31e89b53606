"""Machines of a crew that are real processes, killed and drained: each agent goes on elsewhere, where it was."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner, Result

from shoal.cli.main import app
from tests.cli.conftest import PATIENCE_S, served
from tests.end_to_end.test_members import nodes
from tests.support.forked import Forked

MACHINE = """
import asyncio, sys

import shoal

async def main():
    async with shoal.connect(sys.argv[1].split(",")) as store:
        crew = shoal.Crew(store, "s")

        @crew.agent("w", count=6, ttl=2)
        async def w(ctx):
            n = ctx.state.get("n", 0)
            while True:
                n += 1
                await ctx.checkpoint({"n": n})
                print(ctx.name, n, ctx.lease.fence, flush=True)
                await asyncio.sleep(0.1)

        @crew.agent("deaf", count=0, ttl=1)
        async def deaf(ctx):
            while True:
                try:
                    print(ctx.name, 1, ctx.lease.fence, flush=True)
                    await asyncio.sleep(1000)
                except asyncio.CancelledError:
                    pass

        await crew.run(name=sys.argv[2], grace_s=float(sys.argv[3]))

asyncio.run(main())
"""


class Said(NamedTuple):
    """A save that was acknowledged to an agent."""

    agent: str
    machine: str
    n: int
    fence: int


class Machines:
    """Processes that run the crew, and all that their agents said."""

    def __init__(self, urls: list[str]) -> None:
        self.said: list[Said] = []
        self.processes: dict[str, subprocess.Popen[str]] = {}
        self._urls = urls
        self._listening: list[asyncio.Task[None]] = []

    def start(self, name: str, *, grace_s: float = 10.0) -> None:
        command = ["-c", MACHINE, ",".join(self._urls), name, str(grace_s)]
        process = self.processes[name] = Forked(command)
        self._listening.append(asyncio.create_task(self._listen(name, process)))

    async def _listen(self, name: str, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        while line := await asyncio.to_thread(process.stdout.readline):
            agent, n, fence = line.split()
            self.said.append(Said(agent, name, int(n), int(fence)))

    def agents_of(self, name: str, after: int = 0) -> set[str]:
        return {said.agent for said in self.said[after:] if said.machine == name}

    async def at_work(self, agents: set[str], after: int) -> None:
        """Return once all of these have said something behind what was said so far."""
        while not agents <= {said.agent for said in self.said[after:]}:
            await asyncio.sleep(0.02)

    async def ended(self, name: str) -> int:
        return await asyncio.to_thread(self.processes[name].wait)

    async def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        await asyncio.gather(*self._listening)
        for process in self.processes.values():
            process.wait()
            for pipe in (process.stdout, process.stderr):
                assert pipe is not None
                pipe.close()

    def check(self) -> None:
        """Of each agent each number was saved once, by holders in order, and none is missing between two that were."""
        for agent in {said.agent for said in self.said} - {"deaf-1"}:
            mine = sorted((said for said in self.said if said.agent == agent), key=lambda said: said.n)
            numbers = [said.n for said in mine]
            assert len(numbers) == len(set(numbers))
            assert [said.fence for said in mine] == sorted(said.fence for said in mine)


AGENTS = {f"w-{number}" for number in range(1, 7)}


async def test_the_agents_of_a_killed_machine_go_on_elsewhere_and_a_drained_one_ends_with_0(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):
        machines = Machines([url])
        try:
            async with asyncio.timeout(4 * PATIENCE_S):
                for name in ("one", "two", "three"):
                    machines.start(name)
                await machines.at_work(AGENTS, 0)
                machines.processes["one"].send_signal(signal.SIGKILL)
                killed = len(machines.said)
                await machines.at_work(AGENTS, killed)
                assert await machines.ended("one") == -signal.SIGKILL
                machines.processes["two"].send_signal(signal.SIGTERM)
                assert await machines.ended("two") == 0
                drained = len(machines.said)
                await machines.at_work(AGENTS, drained)
                assert machines.agents_of("three", drained) == AGENTS
        finally:
            await machines.end()
        machines.check()


@pytest.mark.answers("agents-have-one-driver")
async def test_a_machine_and_a_node_of_a_cluster_are_killed_at_once(tmp_path: Path) -> None:
    with nodes(tmp_path) as processes:
        for number in range(3):
            processes.start(number, [0, 1, 2])
        machines = Machines(processes.urls([0, 1, 2]))
        try:
            async with asyncio.timeout(4 * PATIENCE_S):
                for name in ("one", "two", "three"):
                    machines.start(name)
                await machines.at_work(AGENTS, 0)
                machines.processes["two"].send_signal(signal.SIGKILL)
                processes.kill(0)
                killed = len(machines.said)
                await machines.at_work(AGENTS, killed)
        finally:
            await machines.end()
        machines.check()


async def test_on_the_command_line_a_crew_is_shown_and_changed(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):

        async def crew(*arguments: str) -> Result:
            return await asyncio.to_thread(CliRunner().invoke, app, ["crew", *arguments, "--url", url, "--space", "s"])

        nothing = await crew("status")
        assert nothing.exit_code != 0
        assert "there is no crew in space 's'" in nothing.stderr
        machines = Machines([url])
        try:
            async with asyncio.timeout(4 * PATIENCE_S):
                machines.start("one")
                await machines.at_work(AGENTS, 0)
                status = (await crew("status")).stdout
                assert '"w-1"  running  on "one"  version 1\n' in status
                assert "6 of 512 agents" in status
                assert (await crew("scale", "w", "2")).exit_code == 0
                found = json.loads((await crew("status", "--json")).stdout)
                assert [agent["name"] for agent in found["agents"]] == ["w-1", "w-2"]
                assert [(machine["name"], machine["alive"]) for machine in found["machines"]] == [("one", True)]
                machines.start("two")
                while len(json.loads((await crew("status", "--json")).stdout)["machines"]) < 2:
                    await asyncio.sleep(0.1)
                assert (await crew("move", "w-1", "--to", "two")).exit_code == 0
                moved = len(machines.said)
                while "w-1" not in machines.agents_of("two", moved):
                    await asyncio.sleep(0.02)
                assert (await crew("drain", "two")).stdout == "drained\n"
                drained = len(machines.said)
                while "w-1" not in machines.agents_of("one", drained):
                    await asyncio.sleep(0.02)
                assert (await crew("drain", "two", "--undo")).stdout == "takes agents again\n"
                assert (await crew("move", "w-1", "--anywhere")).exit_code == 0
                assert (await crew("restart", "w-1")).stdout == "runs again\n"
                wrong = await crew("move", "w-9", "--to", "two")
                assert "the crew has no agent 'w-9'" in wrong.stderr
                assert (await crew("move", "w-1")).exit_code == 2
        finally:
            await machines.end()
        machines.check()


async def test_a_function_that_swallows_its_cancellation_ends_its_process_with_70(tmp_path: Path) -> None:
    with served(tmp_path / "state") as (_, url):
        machines = Machines([url])
        try:
            async with asyncio.timeout(4 * PATIENCE_S):
                machines.start("one", grace_s=1.5)
                await machines.at_work(AGENTS, 0)
                command = ["crew", "scale", "deaf", "1", "--url", url, "--space", "s"]
                assert (await asyncio.to_thread(CliRunner().invoke, app, command)).exit_code == 0
                await machines.at_work({"deaf-1"}, 0)
                machines.processes["one"].send_signal(signal.SIGTERM)
                assert await machines.ended("one") == 70
                assert machines.processes["one"].stderr is not None
                assert "agent deaf-1: its function was cancelled and has not ended within 1.5 s" in (
                    machines.processes["one"].stderr.read()
                )
        finally:
            await machines.end()
