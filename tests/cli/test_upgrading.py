"""`shoal cluster wait` and `upgrade-check`, at three nodes that run, and in the answers that nodes may give."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from shoal.cli.main import app
from shoal.cli.operating.upgrading import Seat, lacking, together, unasked, waiting_features
from shoal.node.reads.cluster import hindrances, speaks
from shoal.protocol.requests import ClusterView, Member
from tests.api.conftest import STATUS
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.deploy.conftest import asked, free_addresses, ready
from tests.support.forked import Forked

OWN = Member("n1:7400", "a", "self", 5, 0, 0, 0, 0, 0, 0, "", {"aa": 3, "bb": 2})
PEER = Member("n2:7400", "b", "linked", 5, 0, 0, 0, 0, 0, 0, "", {"aa": 3, "bb": 2})
VIEW = ClusterView("shoal", 2, 2, [OWN, PEER], "d", 0, [], 0)
replaced = msgspec.structs.replace


def beside(**peer: Any) -> ClusterView:
    return replaced(VIEW, members=[OWN, replaced(PEER, **peer)])


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["cluster", *arguments], catch_exceptions=False)


@pytest.mark.parametrize(
    ("view", "missing"),
    [
        (VIEW, []),
        (beside(vector={"aa": 9, "bb": 9}), []),
        (beside(vector={"aa": 1}), ["n2:7400 lacks 4 operations"]),
        (beside(told=False), ["n2:7400 has not told what it holds"]),
        (beside(state="unreachable", reason="refused"), ["n2:7400 is not linked (refused)"]),
        (replaced(VIEW, change="add n4:7400"), ["a change of the members is under way: add n4:7400"]),
        (replaced(VIEW, learning=["of n2"]), ["this node is ready: it is catching up"]),
    ],
)
@pytest.mark.answers("next-node-is-stopped-too-early")
def test_the_next_node_waits_for_what_the_others_lack(view: ClusterView, missing: list[str]) -> None:
    assert lacking(STATUS, view, OWN.vector) == missing


def test_it_says_in_words_that_the_next_node_may_be_stopped() -> None:
    """Pages say "until the last line says that all is well", and silence says nothing at night."""
    assert together(VIEW) == "all 2 members hold what n1:7400 held: one of them may be stopped"
    assert together(replaced(VIEW, members=[OWN])) == "n1:7400 has no other members: nothing is to be waited for"


def test_a_register_that_has_not_begun_is_waited_for() -> None:
    new = replaced(STATUS, register_founded=False)
    assert lacking(new, VIEW, {}) == [
        "the quorum register has not begun: it does once all members have been linked for some seconds"
    ]
    assert lacking(new, replaced(VIEW, members=[OWN]), {}) == []  # A node alone needs nobody's vote.


@pytest.mark.parametrize(("state", "serves"), [("refilling", True), ("read-only", True), ("ready", False)])
def test_a_node_that_does_not_serve_is_waited_for(state: Any, serves: bool) -> None:
    assert lacking(replaced(STATUS, state=state, serves=serves), VIEW, {}) != []


def test_a_register_without_a_quorum_is_waited_for() -> None:
    assert lacking(replaced(STATUS, register="n3 is away"), VIEW, {}) == ["the quorum register has no quorum: n3 is away"]


def test_versions_fit_themselves() -> None:
    assert hindrances(speaks(), speaks()) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "about"),
    [
        ({"peers": 8, "peers_oldest": 7}, {}, ""),
        ({"peers": 9, "peers_oldest": 8}, {}, "among nodes"),
        ({}, {"peers": 9, "peers_oldest": 8}, "among nodes"),
        ({"sessions": 9, "sessions_oldest": 8}, {}, "of clients"),
        ({}, {"storage": 9}, "may have format 9"),
        ({"storage": 10, "storage_oldest": 9}, {}, "format 8"),
        ({}, {"engine": 15}, "pycrdt: this version has 0.14, it has 0.15"),
    ],
)
def test_a_version_fits_or_says_why_not(ours: dict[str, int], theirs: dict[str, int], about: str) -> None:
    known = {
        "peers": 7,
        "peers_oldest": 6,
        "sessions": 3,
        "sessions_oldest": 3,
        "storage": 8,
        "storage_oldest": 5,
        "engine": 14,
    }
    found = hindrances(known | ours, known | theirs)
    assert [about in each for each in found] == [True] * bool(about)


def test_a_node_that_says_nothing_is_no_consent() -> None:
    assert "by hand" in hindrances(speaks(), {})[0]


def test_a_member_that_nobody_asked_is_named() -> None:
    assert unasked([Seat("u1", replaced(STATUS, node="a"), VIEW, "")]) == ["n2:7400 was not asked: give its URL, too"]
    seats = [Seat("u1", replaced(STATUS, node="a"), VIEW, ""), Seat("u2", replaced(STATUS, node="b"), VIEW, "")]
    assert unasked(seats) == []
    silent = [Seat("u1", replaced(STATUS, node="a"), VIEW, ""), Seat("http://n2:7400", None, None, "refused")]
    assert unasked(silent) == [], "it does not answer, which is told"


def test_features_wait_for_the_oldest_member() -> None:
    old, new = replaced(STATUS, together=6, speaks={"peers": 6}), replaced(STATUS, together=6, speaks={"peers": 7})
    assert waiting_features([Seat("u", old, None, ""), Seat("v", new, None, "")]) == [
        "features of protocol 7 wait until all members have it; 6 is used"
    ]
    assert waiting_features([Seat("u", replaced(new, together=7), None, "")]) == []


class Nodes:
    """Three nodes, each of which can be stopped."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        addresses = free_addresses(3)
        environment = {**clean_environment(), "SHOAL_JOIN": ",".join(addresses)}
        self.processes = [
            stack.enter_context(
                Forked(["-m", "shoal", "serve", "--data", str(directory / f"n{number}"), "--listen", address], environment)
            )
            for number, address in enumerate(addresses)
        ]
        for process in self.processes:
            stack.callback(process.kill)
        self.urls = [process.stdout.readline().strip() for process in self.processes if process.stdout is not None]

    @property
    def all(self) -> str:
        return ",".join(self.urls)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with ExitStack() as stack:
        started = Nodes(tmp_path_factory.mktemp("three"), stack)
        for url in started.urls:
            ready(url)
        assert run("wait", "--within", str(PATIENCE_S), "--url", started.urls[0]).exit_code == 0
        yield started


def test_members_of_one_version_may_be_upgraded(nodes: Nodes) -> None:
    asked(f"{nodes.urls[0]}/v1/spaces/crew/counters/n", {"add": 1})
    done = run("wait", "--within", str(PATIENCE_S), "--url", nodes.urls[0])
    assert (done.exit_code, "all 3 members hold" in done.output) == (0, True), done.output
    done = run("upgrade-check", "--url", nodes.all)
    assert (done.exit_code, "may join" in done.output) == (0, True), done.output
    told = json.loads(run("upgrade-check", "--json", "--url", nodes.all).output)
    assert (told["may_join"], [each["speaks"] for each in told["members"]]) == (True, [speaks()] * 3)


def test_the_url_of_one_member_leads_to_all(nodes: Nodes) -> None:
    done = run("upgrade-check", "--url", nodes.urls[0])
    assert (done.exit_code, "may join" in done.output) == (0, True), done.output
    assert all(url.removeprefix("http://") in done.output for url in nodes.urls)


def test_no_url_is_no_check() -> None:
    assert run("upgrade-check", "--url", " , ").exit_code == 2


def test_a_member_that_is_away_is_waited_for_in_vain(nodes: Nodes) -> None:
    nodes.processes[2].send_signal(signal.SIGTERM)
    nodes.processes[2].wait(PATIENCE_S)
    done = run("wait", "--within", "0.5", "--url", nodes.urls[0])
    assert (done.exit_code, "is not linked" in done.output) == (1, True), done.output
    for urls in (nodes.all, nodes.urls[0]):
        done = run("upgrade-check", "--url", urls)
        assert (done.exit_code, done.stdout.count("does not answer")) == (1, 1), done.output
        assert "was not asked" not in done.output
