"""`shoal doctor` asks every member of a cluster, or opens a directory, and says what is wrong and what mends it."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner

from shoal.cli.commands.doctor import ASK_S
from shoal.cli.main import app
from shoal.node.conditions.watcher import CONDITIONS
from tests.cli.conftest import PATIENCE_S, served
from tests.deploy.conftest import Started, free_addresses, ready, running


def doctor(*arguments: str | Path) -> tuple[int, str]:
    ran = CliRunner().invoke(app, ["doctor", *map(str, arguments)], catch_exceptions=False)
    return ran.exit_code, ran.stdout


class Three(NamedTuple):
    urls: list[str]
    directory: Path


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Three]:
    directory = tmp_path_factory.mktemp("three")
    addresses = free_addresses(3)
    join = {"SHOAL_JOIN": ",".join(addresses), "SHOAL_CLOCK_INTERVAL_S": "0.2"}
    commands = [
        Started(["serve", "--data", str(directory / f"n{n}"), "--listen", address], join) for n, address in enumerate(addresses)
    ]
    with running(commands, directory) as urls:
        for url in urls:
            ready(url)
        yield Three(urls, directory)


def until(is_true: Any) -> None:
    ends_at = time.monotonic() + PATIENCE_S
    while not is_true():
        assert time.monotonic() < ends_at
        time.sleep(0.2)


def test_of_a_cluster_that_is_well_all_members_are_asked_and_nothing_is_wrong(three: Three) -> None:
    until(lambda: doctor("--url", three.urls[0])[0] == 0)
    code, said = doctor("--url", three.urls[0], "-o", "json")
    told = json.loads(said)
    assert (code, told["well"], told["conditions"], told["unknown"]) == (0, True, [], [])
    assert {f"http://{name}" for name in told["asked"]} == set(three.urls)
    assert set(told["looked"]) == set(CONDITIONS)
    assert "nothing is wrong: " in doctor("--url", three.urls[0])[1]


def test_members_are_asked_at_once_and_none_is_waited_for_long(three: Three) -> None:
    """Two of the addresses take connections, and never answer."""
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        silent = [f"127.0.0.1:{each.getsockname()[1]}" for each in (one, other)]
        began = time.monotonic()
        code, said = doctor("--url", ",".join([three.urls[0], *(f"http://{each}" for each in silent)]))
        assert time.monotonic() - began < 2 * ASK_S + PATIENCE_S / 3
    assert code == 3
    assert "nothing is wrong" not in said
    assert "not known: " in said
    for each in silent:
        assert each in said


def test_where_nobody_answers_it_fails_and_says_why() -> None:
    [address] = free_addresses(1)
    ran = CliRunner().invoke(app, ["doctor", "--url", f"http://{address}"])
    assert ran.exit_code == 3
    assert f"nobody could be asked: {address}: " in ran.stderr
    assert "nothing is wrong" not in ran.output


def test_a_stopped_directory_is_looked_at_and_one_in_use_is_not(tmp_path: Path) -> None:
    data = tmp_path / "state"
    with served(data) as (process, _):
        ran = CliRunner().invoke(app, ["doctor", "--data", str(data)])
        assert ran.exit_code == 3
        assert " serve), since" in ran.stderr
        assert "Use that node: give --url" in ran.stderr
        assert "nothing is wrong" not in ran.output
        process.send_signal(signal.SIGTERM)
        process.wait()
    code, said = doctor("--data", data)
    assert (code, said.startswith("nothing is wrong: ")) == (0, True)


def test_a_member_that_is_away_is_found_with_the_command_that_mends_it(tmp_path: Path) -> None:
    address, missing = free_addresses(2)
    commands = [Started(["serve", "--data", str(tmp_path / "n1"), "--listen", address, "--join", f"{address},{missing}"], {})]
    with running(commands, tmp_path) as [url]:
        code, said = doctor("--url", url)
        assert code == 1
        assert f"ticket: {missing} is not reached" in said
        assert f"shoal cluster replace {missing} NEW:PORT --url {url}" in said
        assert f"not known: {missing}: " in said
        told = json.loads(doctor("--url", url, "-o", "json")[1])
        [away] = [each for each in told["conditions"] if each["name"] == "member-away"]
        assert (away["about"], away["by"], away["page"]) == (missing, [address], "OPERATIONS.md#a-node-is-lost")
