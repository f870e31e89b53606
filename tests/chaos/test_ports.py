"""No two processes are given one port, and no connection takes a port before its node listens there."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from chaos import ports

COUNT = 50


def claimed(start: int) -> subprocess.Popen[str]:
    """Another process, that claims ports from there on, tells them, and lives until its input ends."""
    code = (
        f"import sys; from itertools import islice; from chaos import ports; "
        f"claimed = ports._claim({start}); print(*islice(claimed, {COUNT}), flush=True); sys.stdin.read()"
    )
    return subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_processes_that_begin_at_one_port_are_given_others_until_one_ends() -> None:
    found: list[set[int]] = []
    with claimed(0) as one, claimed(0) as other:
        for process in (one, other):
            assert process.stdout is not None
            found.append(set(map(int, process.stdout.readline().split())))
    with claimed(0) as later:
        assert later.stdout is not None
        found.append(set(map(int, later.stdout.readline().split())))
    assert [len(each) for each in found] == [COUNT] * 3
    assert not found[0] & found[1]
    assert found[2] & (found[0] | found[1])


def test_one_process_is_given_each_port_once_below_those_of_connections() -> None:
    given = ports.free_ports(20) + ports.free_ports(20)
    assert len(set(given)) == 40
    assert all(1024 < port < 32_768 for port in given)


def test_a_port_where_somebody_listens_is_not_given() -> None:
    [port] = ports.free_ports(1)
    with socket.create_server(("127.0.0.1", port)):
        assert not ports._is_free(port)
    assert ports._is_free(port)


def test_ports_that_are_all_given_away_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "_claimed", lambda: iter([1, 2]))
    with pytest.raises(AssertionError, match="all ports"):
        ports.free_ports(3)
