"""The demo on three nodes, as people run it: real processes, a real kill, and nothing left behind."""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.request import Request, urlopen

import pytest

import shoal
from shoal.demo.crew import SPACE, counter_name, library, list_modules, recount
from shoal.demo.nodes import node_name
from shoal.demo.screen import Found, judge, read_back
from tests.demo.processes import PATIENCE_S, assert_nothing_is_left, processes_of, run_demo, running, started_by

MODULES = 60


class Kept(NamedTuple):
    """A run that left its cluster running."""

    said: str
    urls: list[str]
    pids: list[int]
    running: list[int]  # Its processes, once the demo had ended.

    def found(self, pattern: str) -> list[str]:
        return re.findall(pattern, self.said, re.MULTILINE)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kept]:
    place = tmp_path_factory.mktemp("kept")
    done = run_demo(place, "--limit", f"{MODULES}", "--keep")
    pids = [int(pid) for line in re.findall(r"^  kill (.+)$", done.stdout, re.MULTILINE) for pid in line.split()]
    try:
        assert (done.returncode, done.stderr) == (0, "")
        urls = re.findall(r"^  node-\d  (\S+)", done.stdout, re.MULTILINE)
        yield Kept(done.stdout, urls, pids, sorted(processes_of(place)))
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGTERM)
        while processes_of(place):
            time.sleep(0.05)


def test_a_watched_demo_says_where_and_ends_with_an_interrupt(tmp_path: Path) -> None:
    with running(tmp_path, "--limit", "12", "--watch") as process:
        said = ""
        assert process.stdout is not None
        while "end it with Ctrl-C" not in said:
            said += (line := process.stdout.readline())
            assert line, said
        url = re.findall(r"http://127.0.0.1:\d+/", said)[-1]
        with urlopen(Request(url, headers={"Accept": "text/html"}), timeout=PATIENCE_S) as page:
            assert b"ui/app.js" in page.read()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert_nothing_is_left(tmp_path)


async def read_nodes(kept: Kept) -> dict[str, Found]:
    found = {}
    for number, url in enumerate(kept.urls):
        async with shoal.connect(url) as store:
            found[node_name(number)] = await read_back(store, agents=9)
    return found


def test_the_agents_of_the_killed_node_resume_at_others(kept: Kept) -> None:
    ((victim, crew),) = re.findall(r"^kill -9 (node-\d), .* of its agents \((.+)\)", kept.said, re.MULTILINE)
    resumed = re.findall(r"^failed over (agent-\d) to (node-\d).*, resumed from checkpoint \w+", kept.said, re.MULTILINE)
    assert {agent for agent, _ in resumed} == set(crew.split(", "))
    assert victim not in {node for _, node in resumed}


def test_the_killed_node_returns_and_catches_up(kept: Kept) -> None:
    (victim,) = kept.found(r"^kill -9 (node-\d)")
    assert kept.found(rf"^started again {victim}, which missed [1-9]")
    assert kept.found(rf"^caught up {victim}, ")
    assert kept.found(r"time to catch up +│ +\d+\.\d\d s")


def test_all_nodes_hold_the_same_and_agree_with_the_recount(kept: Kept) -> None:
    assert kept.found(rf"modules +│ +({MODULES}) ")
    assert len(set(kept.found(r"operations on node-\d +│ +([\d,]+) "))) == 1
    assert "agreed: document, counters, journals and threads are the same on all 3 nodes" in kept.said


def test_a_kept_cluster_runs_on_as_it_says(kept: Kept) -> None:
    assert len(kept.urls) == 3
    assert kept.running == sorted(kept.pids)


async def test_a_write_too_much_is_found_on_every_node(kept: Kept) -> None:
    recounted = recount(library(), list_modules(library(), limit=MODULES), stopped=lambda: False)
    assert judge(recounted, await read_nodes(kept), agents=9) == []
    async with shoal.connect(kept.urls[0], durability="all") as store:
        await store.space(SPACE).counter(counter_name("modules")).add(1)
    found = judge(recounted, await read_nodes(kept), agents=9)
    assert [difference.where for difference in found] == [f"{node_name(nth)}: {{totals}}/modules" for nth in range(3)]


@pytest.mark.chaos
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors) == (130, "")
    assert_nothing_is_left(tmp_path)


@pytest.mark.chaos
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs a way to wait for a process that is no child: pidfd")
def test_nodes_and_agents_of_a_killed_supervisor_end_and_clean_up(tmp_path: Path) -> None:
    with running(tmp_path) as process:
        others = [os.pidfd_open(pid) for pid in started_by(process, tmp_path, count=6)]
        try:
            process.kill()
            for other in others:
                assert select.select([other], [], [], PATIENCE_S)[0], "a node or its agents are still there"
        finally:
            for other in others:
                os.close(other)
    assert_nothing_is_left(tmp_path)
