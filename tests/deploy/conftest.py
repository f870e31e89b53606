"""The deployment files as a container engine reads them, and three nodes run as they say."""

from __future__ import annotations

import json
import re
import shlex
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, chdir, contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from chaos.ports import free_ports
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.support.forked import Forked

ROOT = Path(__file__).parent.parent.parent


class Instruction(NamedTuple):
    stage: int  # From 1; what comes before the first FROM is in none.
    name: str
    arguments: str

    def words(self) -> list[str]:
        """The exec form's array, or the shell form's words."""
        return json.loads(self.arguments) if self.arguments.startswith("[") else shlex.split(self.arguments)


class Image:
    """What the last stage of the Dockerfile makes."""

    def __init__(self, text: str) -> None:
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        instructions = [line.split() for line in "\n".join(lines).replace("\\\n", " ").splitlines() if line]
        stages = accumulate(name == "FROM" for name, *_ in instructions)
        self._instructions = [
            Instruction(stage, name, " ".join(rest)) for stage, (name, *rest) in zip(stages, instructions, strict=True)
        ]

    def all(self, name: str) -> list[Instruction]:
        """Of all stages."""
        return [instruction for instruction in self._instructions if instruction.name == name]

    def last(self, name: str) -> Instruction:
        """The one that counts."""
        found = self.all(name)[-1]
        assert found.stage == self._instructions[-1].stage
        return found

    @property
    def environment(self) -> dict[str, str]:
        return dict(word.split("=", maxsplit=1) for word in self.last("ENV").words())

    @property
    def settings(self) -> dict[str, str]:
        return {name: value for name, value in self.environment.items() if name.startswith("SHOAL_")}

    @property
    def health_command(self) -> list[str]:
        command: list[str] = json.loads(self.last("HEALTHCHECK").arguments.split(" CMD ")[1])
        return command


@pytest.fixture(scope="session")
def image() -> Image:
    return Image((ROOT / "Dockerfile").read_text())


def composed(text: str, variables: Mapping[str, str]) -> Any:
    """The compose file with `${NAME:-default}` filled in, after parsing: what is filled in stays text."""

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1]) or match[2]

    def filled(tree: Any) -> Any:
        if isinstance(tree, dict):
            return {name: filled(branch) for name, branch in tree.items()}
        if isinstance(tree, list):
            return [filled(branch) for branch in tree]
        return re.sub(r"\$\{(\w+):-([^}]*)\}", value, tree) if isinstance(tree, str) else tree

    return filled(yaml.safe_load(text))


COMPOSE = (ROOT / "docker-compose.yml").read_text()
SERVICES: dict[str, Any] = composed(COMPOSE, {})["services"]
NODES: dict[str, Any] = {name: service for name, service in SERVICES.items() if "SHOAL_JOIN" in service.get("environment", {})}


class Started(NamedTuple):
    """One `shoal serve` of several."""

    arguments: Sequence[str]  # After `shoal`.
    environment: Mapping[str, str]


def free_addresses(count: int) -> list[str]:
    """Of this machine; nobody listens there now."""
    return [f"127.0.0.1:{port}" for port in free_ports(count)]


@contextmanager
def running(commands: Sequence[Started], directory: Path) -> Iterator[list[str]]:
    """The URLs of the nodes, once all of them answer; they are killed at the end."""
    with ExitStack() as processes:
        nodes = []
        for command in commands:
            environment = {**clean_environment(), "SHOAL_QUORUM_TIMEOUT_S": str(PATIENCE_S), **command.environment}
            with chdir(directory):
                node = Forked(["-m", "shoal", *command.arguments], environment)
            processes.enter_context(node)
            processes.callback(node.kill)
            nodes.append(node)
        yield [node.stdout.readline().strip() for node in nodes if node.stdout is not None]


_TRUSTING = ssl.create_default_context()  # Who is trusted is tested elsewhere: `tests/tls`.
_TRUSTING.check_hostname = False
_TRUSTING.verify_mode = ssl.CERT_NONE


def asked(url: str, body: object = None, *, token: str = "") -> Any:
    """What a node answers to a GET, or to a POST of `body`. A refusal is raised with what it says."""
    data = None if body is None else json.dumps(body).encode()
    shown = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(url, data, headers={"Content-Type": "application/json", **shown})
    try:
        with urllib.request.urlopen(request, timeout=2 * PATIENCE_S, context=_TRUSTING) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        refused.add_note(refused.read().decode(errors="replace"))
        raise


def ready(url: str) -> None:
    """Wait until a node serves: a new cluster does once all of its nodes have met."""
    ends_at = time.monotonic() + 2 * PATIENCE_S
    while True:
        try:
            asked(f"{url}/readyz")
        except urllib.error.HTTPError:
            if time.monotonic() > ends_at:
                raise
            time.sleep(0.1)
        else:
            return


def shared_by_all(urls: Sequence[str], *, token: str = "") -> list[int]:
    """Each node adds to one counter, and is acknowledged once all hold it; what each then reads."""
    counter = "/v1/spaces/crew/counters/n"
    for url in urls:
        ready(url)
    for number, url in enumerate(urls):
        asked(f"{url}{counter}?durability=all", {"add": 10**number}, token=token)
    return [asked(f"{url}{counter}", token=token)["value"] for url in urls]
