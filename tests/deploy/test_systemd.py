"""deploy/systemd: the unit is sound, and the node tells its manager what the unit says that it is told."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.cli import settings
from shoal.cli.serving import Manager
from tests.cli.conftest import PATIENCE_S, clean_environment, served
from tests.deploy.conftest import ROOT, free_addresses
from tests.support.forked import Forked

HERE = ROOT / "deploy" / "systemd"
UNIT = HERE / "shoal.service"
EXPOSURE_MAX = 1.5
"""Of 10: what `systemd-analyze security` says of a unit without any bounds is 9.6."""


@pytest.fixture(scope="module")
def service() -> configparser.SectionProxy:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(UNIT)
    return unit["Service"]


def environment() -> dict[str, str]:
    lines = [line for line in (HERE / "shoal.env").read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", maxsplit=1) for line in lines)


def analysed(*arguments: str, unit: Path) -> str:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed: apt-get install systemd")
    done = subprocess.run(["systemd-analyze", *arguments, str(unit)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The unit, with the program where it is on this machine."""
    program = tmp_path / "shoal"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    unit = tmp_path / "shoal.service"
    unit.write_text(UNIT.read_text().replace("/opt/shoal/bin/shoal", str(program)))
    return unit


def test_systemd_understands_every_line(here: Path) -> None:
    assert analysed("verify", unit=here) == ""


def test_a_mistake_in_a_unit_is_noticed(here: Path) -> None:
    here.write_text(here.read_text().replace("WatchdogSec=60", "WatchdogSecs=60"))
    assert "WatchdogSecs" in analysed("verify", unit=here)


def test_the_service_has_few_rights(here: Path) -> None:
    told = analysed("security", "--offline=true", "--no-pager", unit=here)
    [exposure] = re.findall(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert float(exposure) <= EXPOSURE_MAX


def test_every_variable_is_a_setting_and_tls_and_tokens_are_on() -> None:
    assert settings.unknown_variables(environment()) == []
    config = settings.load(environment=environment())
    assert config.advertise in config.join.split(",")
    assert (bool(config.tls_cert), bool(config.token_keys)) == (True, True)


def test_a_stop_has_time_to_finish_and_to_close(service: configparser.SectionProxy) -> None:
    config = settings.load(environment=environment())
    assert float(service["TimeoutStopSec"]) >= 2 * config.stop_timeout_s


class Told:
    """The manager's socket, and what came there."""

    def __init__(self, path: Path, *, is_abstract: bool = False) -> None:
        self.name = f"@shoal-{path.parent.name}-{path.name}" if is_abstract else str(path)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(f"\0{self.name[1:]}" if is_abstract else self.name)
        self._socket.settimeout(PATIENCE_S)

    def next(self) -> str:
        return self._socket.recv(4096).decode()

    def until(self, state: str) -> list[str]:
        """All that comes until then, that included."""
        found: list[str] = []
        while not found or not found[-1].startswith(state):
            found.append(self.next())
        return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=[False, True], ids=["a path", "an abstract name"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Told]:
    told = Told(tmp_path / "notify", is_abstract=request.param)
    yield told
    told.close()


def test_the_manager_is_told_of_a_whole_life(manager: Told, tmp_path: Path) -> None:
    watched = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "400000"}
    with served(tmp_path / "state", config=watched) as (process, url):
        assert manager.next() == f"READY=1\nSTATUS=serves {url}"
        assert [manager.next() for _ in range(3)] == ["WATCHDOG=1"] * 3
        process.send_signal(signal.SIGTERM)
        before = manager.until("STOPPING=1")
        assert set(before[:-1]) <= {"WATCHDOG=1"}
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


@pytest.mark.answers("loop-that-hangs-is-taken-for-alive")
def test_a_process_that_hangs_beats_no_more(manager: Told, tmp_path: Path) -> None:
    with served(tmp_path / "state", config={"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "200000"}) as (process, _):
        manager.until("WATCHDOG=1")
        process.send_signal(signal.SIGSTOP)
        manager._socket.settimeout(1.0)
        with pytest.raises(TimeoutError):
            while True:
                assert manager.next() == "WATCHDOG=1"  # What it sent before it hung.
        process.send_signal(signal.SIGCONT)


def test_the_watchdog_of_another_process_is_not_beaten(manager: Told, tmp_path: Path) -> None:
    watched = {"NOTIFY_SOCKET": manager.name, "WATCHDOG_USEC": "100000", "WATCHDOG_PID": "1"}
    with served(tmp_path / "state", config=watched) as (process, _):
        manager.until("READY=1")
        process.send_signal(signal.SIGTERM)
        assert manager.next().startswith("STOPPING=1")


def test_the_variables_are_taken_out_of_the_environment() -> None:
    told = {"NOTIFY_SOCKET": "/run/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1", "HOME": "/"}
    Manager(told)
    assert told == {"HOME": "/"}


@pytest.mark.parametrize("name", ["/nowhere/at/all", "relative", ""])
def test_a_manager_that_is_not_there_stops_nothing(name: str, tmp_path: Path) -> None:
    with served(tmp_path / "state", config={"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "x"}) as (process, url):
        assert url.startswith("http://")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0


def test_the_units_command_runs_with_its_files(service: configparser.SectionProxy, manager: Told, tmp_path: Path) -> None:
    """With the files of /etc/shoal and the directory mapped to this machine's; `ExecReload` loads a renewed certificate."""
    command = shlex.split(service["ExecStart"])
    assert command[0] == "/opt/shoal/bin/shoal"
    assert service["EnvironmentFile"] == "/etc/shoal/shoal.env"
    host, port = free_addresses(1)[0].split(":")

    def shoal(*arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "shoal", *arguments], check=True, capture_output=True, timeout=PATIENCE_S)

    shoal("tls", "init", str(tmp_path / "all"), "--node", "n1,n1.example.com")
    shoal("token", "init", str(tmp_path / "tokens"))
    etc = tmp_path / "etc"
    shutil.copytree(tmp_path / "all" / "n1", etc / "tls")
    shutil.copy(tmp_path / "tokens" / "keys.json", etc / "keys.json")
    (etc / "cluster.key").write_text("0123456789abcdef0123456789abcdef\n")
    (etc / "cluster.key").chmod(0o600)
    told = {name: value.replace("/etc/shoal", str(etc)) for name, value in environment().items()}
    told |= {"SHOAL_LISTEN_HOST": host, "SHOAL_LISTEN_PORT": port, "NOTIFY_SOCKET": manager.name}
    arguments = [word.replace("/var/lib/shoal", str(tmp_path / "state")) for word in command[1:]]
    with Forked(["-m", "shoal", *arguments], {**clean_environment(), **told}) as process:
        try:
            assert manager.next() == f"READY=1\nSTATUS=serves https://{host}:{port}"
            shoal("tls", "node", str(tmp_path / "all"), "n1", "--renew")
            for file in (tmp_path / "all" / "n1").iterdir():
                shutil.copy(file, etc / "tls" / file.name)
            assert shlex.split(service["ExecReload"])[1:] == ["-HUP", "$MAINPID"]
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            watchdog = threading.Timer(PATIENCE_S, process.kill)  # So that a line that never comes ends the test.
            watchdog.start()
            assert any('"event": "tls-loaded"' in line or '"event":"tls-loaded"' in line for line in process.stderr)
            watchdog.cancel()
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=PATIENCE_S)
            assert process.returncode == 0
        finally:
            process.kill()


def test_a_node_makes_no_call_that_the_unit_forbids(service: configparser.SectionProxy, tmp_path: Path) -> None:
    if shutil.which("strace") is None or shutil.which("systemd-analyze") is None:
        pytest.skip("strace or systemd is not installed: apt-get install strace systemd")
    filters = re.findall(r"^SystemCallFilter=(.+)$", UNIT.read_text(), re.MULTILINE)
    assert filters[0] == "@system-service"
    allowed = calls("@system-service")
    for name in filters[1].lstrip("~").split():
        allowed -= calls(name)
    seen, arguments = tmp_path / "calls", ["-m", "shoal", "serve", "--data", str(tmp_path / "state")]
    command = ["strace", "-f", "-qq", "-c", "-U", "name", "-o", str(seen), sys.executable, *arguments]
    with subprocess.Popen(
        [*command, "--listen", "127.0.0.1:0"],
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            done = subprocess.run(
                [sys.executable, "-m", "shoal", "counter", "add", "n", "1", "--space", "crew", "--url", url],
                env=clean_environment(),
                check=False,
                timeout=2 * PATIENCE_S,
            )
            assert done.returncode == 0
            [node] = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            os.kill(int(node), signal.SIGTERM)
            process.communicate(timeout=2 * PATIENCE_S)
        finally:
            process.kill()
    made = set(re.findall(r"^(\w+)$", seen.read_text(), re.MULTILINE)) - {"syscall", "total"}
    assert {"openat", "fdatasync"} & made
    assert made - allowed == set()


def calls(group: str) -> set[str]:
    """The system calls of one of systemd's groups, and of those within it."""
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager", group], capture_output=True, text=True, check=True
    )
    found = set[str]()
    for name in re.findall(r"^    (@?[\w-]+)", told.stdout, re.MULTILINE):
        found |= calls(name) if name.startswith("@") else {name}
    return found
