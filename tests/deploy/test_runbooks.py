"""docs/operate: every command of every page runs, in the order of the page, at three nodes that run.

Laws:
- `shoal serve …` starts a process that stays, as in a terminal of its own; `fuser -k` and `systemctl` are stand-ins that start
  and stop such processes. Every other line runs in a shell as it is written.
- Only places are mapped: the ports of the page to free ones, directories of the system to one of the test, names of machines
  to addresses of the loopback network.
- A line that needs a registry or root is named in `NOT_HERE` with the test that runs it.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

import pytest

from chaos.ports import free_ports
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.deploy.conftest import ROOT, asked, ready
from tests.support.forked import Forked

PAGES = ROOT / "docs" / "operate"
NOT_HERE = {
    "python3 -m venv": "the image is built so: tests/deploy/test_image.py",
    "/opt/shoal/bin/pip install": "tests/deploy/test_install.py",
    "systemd-sysusers": "it makes a user of the machine",
}
"""The beginnings of lines that are not run, and why."""
SYSTEMD = "systemctl stop shoal"
"""A block with it is run where systemd's service was installed."""


def blocks(page: str) -> list[list[str]]:
    """The commands of a page."""
    found = re.findall(r"^```sh\n(.*?)^```$", (PAGES / f"{page}.md").read_text(), re.DOTALL | re.MULTILINE)
    return [[re.split(r" +# ", line)[0] for line in block.splitlines()] for block in found]


def commands(page: str) -> list[str]:
    return [line for block in blocks(page) for line in block]


class Machine:
    """A place where the commands of a page run, and the nodes that they start."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.nodes: dict[str, Forked] = {}  # By their port, as the page has it.
        self.variables: dict[str, str] = {}
        self._ports = dict(zip(("7400", "7410", "7420", "7430", "7440"), free_ports(5), strict=True))
        self._readers: list[threading.Thread] = []
        (directory / "deploy").symlink_to(ROOT / "deploy")

    @property
    def root(self) -> Path:
        """The root directory of the machine that `node` names."""
        return self.directory / f"root-{self.variables.get('node', '')}"

    def mapped(self, text: str) -> str:
        text = re.sub(r"\bn(\d)\.example\.com:7400", lambda match: f"127.0.0.1:{self._ports[f'74{int(match[1]) - 1}0']}", text)
        text = re.sub(r"(127\.0\.0\.1):(74\d0)\b", lambda match: f"{match[1]}:{self._ports[match[2]]}", text)
        return re.sub(r"(?<![\w.])/(etc|var/lib|usr/lib)/(shoal|systemd|sysusers\.d)", rf"{self.root}/\1/\2", text)

    def run(self, line: str) -> str:
        """One line of a page; what it printed."""
        if any(line.startswith(beginning) for beginning in NOT_HERE):
            return ""
        if assignment := re.fullmatch(r"(\w+)=(\S+)", line):
            self.variables[assignment[1]] = assignment[2]
            return ""
        words = shlex.split(line)
        given = dict(word.split("=", 1) for word in words if re.match(r"[A-Z_]+=", word))
        words = words[len(given) :]
        match words:
            case ["shoal", "serve", *arguments]:
                self.serve([self.mapped(each) for each in arguments], given)
                return ""
            case ["fuser", "-k", "-TERM", port]:
                self.stop(port.removesuffix("/tcp"))
                return ""
            case ["systemctl", *asked_for]:
                self.systemctl(asked_for)
                return ""
        return self.shell(self.mapped(line))

    def shell(self, line: str) -> str:
        variables = {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.directory),
            **self.variables,
        }
        # Nobody but root gives files to others.
        line = re.sub(r"^(install) (?:-d )?(-o root -g shoal)", lambda match: match[0].replace(f" {match[2]}", ""), line)
        done = subprocess.run(
            ["sh", "-ec", line],
            cwd=self.directory,
            env={**clean_environment(), **variables},
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    def serve(self, arguments: list[str], given: dict[str, str]) -> None:
        listen = arguments[arguments.index("--listen") + 1] if "--listen" in arguments else given["SHOAL_LISTEN"]
        [port] = [ours for ours, free in self._ports.items() if listen.endswith(f":{free}")]
        assert port not in self.nodes, f"{port} is in use"
        environment = {**clean_environment(), "SHOAL_QUORUM_TIMEOUT_S": str(PATIENCE_S), **given}
        with suppress(KeyError):
            del environment["SHOAL_LISTEN"]
        node = Forked(["-m", "shoal", "serve", *arguments], environment, directory=self.directory)
        url = node.stdout.readline().strip()
        assert url, node.stderr.read()
        self.nodes[port] = node
        for pipe in (node.stdout, node.stderr):
            reader = threading.Thread(target=_drained, args=(pipe,), daemon=True)
            reader.start()
            self._readers.append(reader)

    def stop(self, port: str) -> None:
        node = self.nodes.pop(port)
        node.send_signal(signal.SIGTERM)
        assert node.wait(2 * PATIENCE_S) == 0

    def systemctl(self, words: list[str]) -> None:
        """What systemd does with deploy/systemd/shoal.service, on the machine that `node` names."""
        root = self.root
        number = int(self.variables["node"].removeprefix("n")) - 1
        port = f"74{number}0"
        match words:
            case ["daemon-reload"]:
                assert (root / "etc" / "systemd" / "system" / "shoal.service").exists()
            case ["enable", "--now", "shoal"] | ["start", "shoal"]:
                unit = (root / "etc" / "systemd" / "system" / "shoal.service").read_text()
                [command] = re.findall(r"^ExecStart=/opt/shoal/bin/shoal serve (.*)$", unit, re.MULTILINE)
                [file] = re.findall(r"^EnvironmentFile=(.*)$", unit, re.MULTILINE)
                lines = [line for line in Path(self.mapped(file)).read_text().splitlines() if line and line[0] != "#"]
                given = dict(self.mapped(line).split("=", 1) for line in lines)
                del given["SHOAL_LISTEN_HOST"]  # All addresses; here each machine is a port.
                arguments = [self.mapped(word) for word in shlex.split(command)]
                address = f"127.0.0.1:{self._ports[port]}"
                self.serve([*arguments, "--listen", address], given)
            case ["stop", "shoal"]:
                self.stop(port)
            case _:
                raise AssertionError(f"not known here: systemctl {words}")

    def url(self, port: str) -> str:
        return self.mapped(f"http://127.0.0.1:{port}")

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
            node.wait(PATIENCE_S)
        for reader in self._readers:
            reader.join(PATIENCE_S)


def _drained(pipe: IO[str]) -> None:
    with pipe, suppress(ValueError, OSError):
        for _ in pipe:
            pass


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    here = Machine(tmp_path)
    try:
        yield here
    finally:
        here.close()


def three(machine: Machine) -> None:
    """Three nodes as docs/CLUSTER.md starts them, with something in them."""
    page = (ROOT / "docs" / "CLUSTER.md").read_text()
    for line in re.findall(r"^shoal serve .* --join 127.0.0.1:7400,.*$", page, re.MULTILINE)[:3]:
        machine.run(line)
    for port in ("7400", "7410", "7420"):
        ready(machine.url(port))
    asked(f"{machine.url('7400')}/v1/spaces/crew/counters/tokens?durability=all", {"add": 1})
    # It founds the quorum register, which happens by itself once all have been linked for ten seconds.
    machine.run("shoal register compare-and-set goal null 1 --space crew --url http://127.0.0.1:7400")


@pytest.mark.parametrize("page", ["observe", "back-up", "scale", "lost", "space", "upgrade"])
def test_the_commands_of_a_page_run_at_three_nodes(page: str, machine: Machine) -> None:
    three(machine)
    lines = [line for block in blocks(page) if SYSTEMD not in block for line in block]
    assert len(lines) >= 4
    if page == "observe":  # Just started nodes have not told each other their times yet, and the doctor says so.
        machine.run("for look in $(seq 60); do shoal doctor --url http://127.0.0.1:7400 && break; sleep 0.5; done")
    for line in lines:
        if line.startswith("shoal backup list"):
            machine.run("until shoal backup status --url http://127.0.0.1:7400 | grep -q current; do sleep 0.2; done")
        machine.run(line)
    left = [port for port in ("7400", "7410") if port in machine.nodes]
    assert [asked(f"{machine.url(port)}/v1/spaces/crew/counters/tokens")["value"] for port in left] == [1] * len(left)


def test_a_backup_is_restored_as_the_page_says(machine: Machine) -> None:
    three(machine)
    machine.run('shoal backup init "file://$PWD/backup" --url http://127.0.0.1:7400')
    machine.run("until shoal backup status --url http://127.0.0.1:7400 | grep -q current; do sleep 0.2; done")
    for line in commands("restore"):
        machine.run(line)
    assert asked(f"{machine.url('7440')}/v1/spaces/crew/counters/tokens")["value"] == 1


def test_certificates_tokens_and_keys_are_made_and_used(machine: Machine) -> None:
    for line in commands("secure"):
        machine.run(line)
    assert set(machine.nodes) == {"7430"}


def test_three_machines_are_installed_by_systemd(machine: Machine) -> None:
    lines = commands("install")
    first, last = lines.index("node=n1"), lines.index("systemctl enable --now shoal")
    for line in lines[:first]:
        machine.run(line)
    assert set(machine.nodes) == {"7430"}
    for number in (1, 2, 3):
        root = machine.directory / f"root-n{number}"  # Each machine has its own.
        for place in ("usr/lib/sysusers.d", "etc/systemd/system", "var/lib"):
            (root / place).mkdir(parents=True, exist_ok=True)
        for line in [f"node=n{number}", *lines[first + 1 : last + 1]]:
            machine.run(line)
    for line in lines[last + 1 :]:
        machine.run(line)
    [upgraded] = [block for block in blocks("upgrade") if SYSTEMD in block]
    for line in ["node=n1", *upgraded]:
        machine.run(line)
    assert (machine.directory / "root-n1" / "var" / "lib" / "shoal.before" / "FORMAT").exists()


@pytest.mark.parametrize("page", sorted(file.stem for file in PAGES.glob("*.md")))
def test_every_page_is_short_and_listed(page: str) -> None:
    assert len((PAGES / f"{page}.md").read_text().split()) < 1_200
    assert page == "README" or f"({page}.md)" in (PAGES / "README.md").read_text()


def test_each_line_that_is_not_run_is_on_a_page() -> None:
    every = [line for file in PAGES.glob("*.md") for line in commands(file.stem)]
    assert [beginning for beginning in NOT_HERE if not any(line.startswith(beginning) for line in every)] == []
