"""`shoal crew`: the agents of a crew, and the machines that run it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from shoal.cli.arguments import PANEL, Run, Work, in_store
from shoal.cli.output import Listing, plain, to_text
from shoal.client.store import Store
from shoal.crew.crew import AgentStatus, Crew, MachineStatus

crew = typer.Typer(no_args_is_help=True, help="A crew: its agents and machines, how many there are, and where they run.")

Agent = Annotated[
    str, typer.Argument(metavar="AGENT", help="The agent with its number, as in researcher-3.", show_default=False)
]
MachineName = Annotated[str, typer.Argument(metavar="MACHINE", help="The machine's name.", show_default=False)]


def register(app: typer.Typer) -> None:
    """Add these commands to `app`."""
    app.add_typer(crew, name="crew", rich_help_panel=PANEL)


@crew.command()
@in_store
def status(run: Run) -> Work:
    """Show the agents of a crew and the machines that run it.

    Example: shoal crew status --url http://127.0.0.1:7400 --space survey
    """

    async def work(store: Store) -> None:
        found = await Crew(store, run.space).status()
        if run.json:
            run.show(msgspec.to_builtins(found), "")
            return
        with Listing(
            "agent", "state", "machine", "version", "fence", "for", "error", json=False, none="the crew has no agents."
        ) as rows:
            for agent in found.agents:
                rows.add({}, _agent_text(agent), *_agent_cells(agent))
        none = "no machine runs it."
        with Listing("machine", "state", "agents", "capacity", "labels", "versions", json=False, none=none) as rows:
            for machine in found.machines:
                rows.add({}, _machine_text(machine), *_machine_cells(machine))

    return work


@crew.command()
@in_store
def scale(
    run: Run,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="The agent, without a number.", show_default=False)],
    count: Annotated[int, typer.Argument(metavar="COUNT", help="How many there are to be.", show_default=False)],
) -> Work:
    """Change how many agents of a name there are. It outlives the programs.

    Example: shoal crew scale researcher 8 --url http://127.0.0.1:7400 --space survey
    """

    async def work(store: Store) -> None:
        await Crew(store, run.space).scale(agent, count)
        run.show({"agent": agent, "count": count}, f"{to_text(agent)}: {count}")

    return work


@crew.command()
@in_store
def drain(
    run: Run,
    machine: MachineName,
    undo: Annotated[bool, typer.Option("--undo", help="Let it take agents again.")] = False,
) -> Work:
    """Let a machine give up its agents, each at its next save, and take none until its process ends.

    To end the process as well, send it SIGTERM instead.

    Example: shoal crew drain host-2 --url http://127.0.0.1:7400 --space survey
    """

    async def work(store: Store) -> None:
        await Crew(store, run.space).drain_machine(machine, undo=undo)
        run.show({"machine": machine, "drained": not undo}, "takes agents again" if undo else "drained")

    return work


@crew.command()
@in_store
def move(
    run: Run,
    agent: Agent,
    to: Annotated[str, typer.Option("--to", metavar="MACHINE", help="Where it goes on, and stays while that runs.")] = "",
    anywhere: Annotated[bool, typer.Option("--anywhere", help="It may run anywhere again.")] = False,
) -> Work:
    """Let an agent go on at another machine, after its next save.

    Example: shoal crew move researcher-3 --to host-2 --url http://127.0.0.1:7400 --space survey
    """
    if bool(to) == anywhere:
        raise typer.BadParameter("give either --to MACHINE or --anywhere.")

    async def work(store: Store) -> None:
        await Crew(store, run.space).move(agent, to=to or None)
        run.show({"agent": agent, "to": to or None}, f"goes to {to_text(to)}" if to else "may run anywhere")

    return work


@crew.command()
@in_store
def restart(run: Run, agent: Agent) -> Work:
    """Let an agent that has finished or failed run again, from its last checkpoint.

    Example: shoal crew restart researcher-3 --url http://127.0.0.1:7400 --space survey
    """

    async def work(store: Store) -> None:
        await Crew(store, run.space).restart(agent)
        run.show({"agent": agent}, "runs again")

    return work


def _agent_text(agent: AgentStatus) -> str:
    where = f"  on {to_text(agent.machine)}" if agent.machine else ""
    pinned = f"  belongs on {to_text(agent.pinned)}" if agent.pinned else ""
    error = f"  tries {agent.tries}: {to_text(agent.error)}" if agent.error else ""
    reason = f"  for {plain(agent.reason)}" if agent.reason else ""
    return f"{to_text(agent.name)}  {agent.state}{where}{pinned}  version {agent.version}{reason}{error}"


def _agent_cells(agent: AgentStatus) -> tuple[str, ...]:
    fence = str(agent.fence) if agent.fence else ""
    return agent.name, agent.state, agent.machine, str(agent.version), fence, agent.reason, agent.error


def _machine_text(machine: MachineStatus) -> str:
    labels = f"  labels: {', '.join(map(to_text, machine.labels))}" if machine.labels else ""
    return f"machine {to_text(machine.name)}  {_state(machine)}  {machine.agents} of {machine.capacity} agents{labels}"


def _machine_cells(machine: MachineStatus) -> tuple[Any, ...]:
    versions = ", ".join(f"{agent} {version}" for agent, version in sorted(machine.versions.items()))
    return machine.name, _state(machine), str(machine.agents), str(machine.capacity), ", ".join(machine.labels), versions


def _state(machine: MachineStatus) -> str:
    return "dead" if not machine.alive else "drained" if machine.drained else "alive"
