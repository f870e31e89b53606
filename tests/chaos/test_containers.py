"""What the engine is told to do for each strike at the composition. `python -m chaos run --backend compose` does it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from typer.testing import CliRunner

from chaos import containers
from chaos.__main__ import NOT_RUN, app
from chaos.containers import PORTS, Bridge, Composition, ContainerNode
from chaos.engine import Engine, Skipped
from chaos.network import Route
from chaos.processes import DISK_BYTES

ROOT = Path(__file__).parents[2]


class Told:
    """An engine that notes what it is told, and answers what is asked for with what `answers` has for its last word."""

    def __init__(self, **answers: str) -> None:
        self.commands: list[str] = []
        self._answers = answers

    async def run(self, *command: str, **_: Any) -> str:
        self.commands.append(" ".join(command))
        return self._answers.get(command[-1].replace("-", "_"), "")

    async def pid(self, container: str) -> int:
        return 100 + int(container.removeprefix("chaos-n").removesuffix("-1"))


def composition(told: Told) -> Composition:
    return Composition(cast(Engine, told), Path("/laid"))


def test_the_ports_are_those_that_the_composition_publishes() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert {name: services[name]["ports"] for name in PORTS} == {
        name: [f"127.0.0.1:{port}:7400"] for name, port in PORTS.items()
    }


async def test_a_deaf_node_drops_all_packets_of_the_other_in_its_own_network() -> None:
    told = Told(chaos_n2_1="172.18.0.3\n")
    network = Bridge(PORTS, composition(told))
    await network.deafen(Route("n2", "n1"))
    within = "nsenter --target=101 --net -- iptables --wait"
    assert told.commands[1:] == [f"{within} --append INPUT --source 172.18.0.3 --jump DROP"]
    await network.heal()
    assert told.commands[2:] == [f"{within} --flush INPUT"]
    await network.heal()
    assert len(told.commands) == 3


async def test_a_cut_link_leaves_the_one_that_its_target_dialled() -> None:
    told = Told(chaos_n2_1="172.18.0.3\n")
    network = Bridge(PORTS, composition(told))
    await network.cut([Route("n2", "n1")], "refused")
    assert told.commands[1].endswith("--source 172.18.0.3 --protocol tcp --dport 7400 --jump REJECT --reject-with tcp-reset")
    await network.cut([Route("n2", "n1")], "silent")
    assert told.commands[3].endswith("--protocol tcp --dport 7400 --jump DROP")


async def test_an_isolated_node_comes_back_under_its_name() -> None:
    told = Told()
    network = Bridge(PORTS, composition(told))
    await network.isolate("n1", "silent")
    await network.heal()
    assert told.commands == [
        "docker network disconnect chaos_default chaos-n1-1",
        "docker network connect --alias n1 chaos_default chaos-n1-1",
    ]


async def test_a_wiped_node_loses_its_volume_and_gets_another() -> None:
    told = Told(chaos_n3="/volumes/chaos_n3/_data\n")
    await ContainerNode("n3", composition(told)).wipe()
    done = [command for command in told.commands if "inspect" not in command]
    assert done[:4] == [
        "docker rm chaos-n3-1",
        "umount /volumes/chaos_n3/_data /mnt/n3",
        "docker volume rm chaos_n3",
        "docker compose --progress plain up --no-start --no-deps n3",
    ]
    assert done[4].endswith(f"mount /mnt/n3 /volumes/chaos_n3/_data {DISK_BYTES}")


@pytest.mark.parametrize(("state", "fell"), [("true 0", False), ("true 1", True), ("false 0", True)])
async def test_a_container_that_ended_by_itself_has_fallen(monkeypatch: pytest.MonkeyPatch, state: str, fell: bool) -> None:
    monkeypatch.setattr(containers, "_LOOK_S", 0.0)
    node = ContainerNode("n1", composition(Told(chaos_n1_1=state)))
    assert not await node.fell()
    await node.launch()
    assert node.is_up
    assert await node.fell() is fell


async def test_a_killed_container_is_not_killed_again() -> None:
    told = Told()
    node = ContainerNode("n1", composition(told))
    await node.launch()
    await node.kill()
    await node.kill()
    assert not node.is_up
    assert told.commands == ["docker start chaos-n1-1", "docker kill chaos-n1-1"]
    assert not await node.fell()


def test_a_machine_without_an_engine_is_a_reason_and_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> object:
        raise Skipped("no /dev/net/tun")

    monkeypatch.setattr("chaos.containers.engines.running", refused)
    report = tmp_path / "report.html"
    ran = CliRunner().invoke(app, ["run", "--backend", "compose", "--faults", "kill,oneway", "--report", str(report)])
    assert ran.exit_code == NOT_RUN, ran.output
    assert "not run: no /dev/net/tun" in ran.output.splitlines()
    assert "not run: no /dev/net/tun" in report.read_text()
    assert "broken" not in ran.output


def test_a_fault_that_no_disk_allows_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.processes.no_disks", lambda _: "no disk can be mounted here")
    ran = CliRunner().invoke(app, ["run", "--faults", "full"])
    assert ran.exit_code == NOT_RUN, ran.output
    told = "not run: no fault that was asked for can be made here: full: no disk can be mounted here"
    assert told in ran.output.splitlines()
    assert "kept:" not in ran.output
