"""`shoal cluster rotate-key`, at three nodes that run, and that take writes through a quorum meanwhile."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.cli.operating import cluster_key
from shoal.errors import Disconnected, OutcomeUnknown, Unavailable, Unreachable
from shoal.protocol.requests import ClusterView, Member, NodeStatus
from shoal.transport.keyring import Keyring, name_of, parsed
from tests.api.conftest import STATUS
from tests.cli.conftest import PATIENCE_S
from tests.deploy.conftest import Started, asked, free_addresses, ready, running

OLD = "0123456789abcdef0123456789abcdef"


def rotate(*arguments: str | Path) -> Any:
    return CliRunner().invoke(app, ["cluster", "rotate-key", *map(str, arguments)], catch_exceptions=False)


class Three(NamedTuple):
    urls: list[str]
    files: list[Path]  # The file of each.

    @property
    def all(self) -> str:
        return ",".join(self.urls)


@pytest.fixture
def started(tmp_path: Path) -> Iterator[Three]:
    """Three nodes, each with a copy of the file of its own."""
    addresses, files = free_addresses(3), [tmp_path / f"key-{number}" for number in range(3)]
    commands = []
    for number, (address, file) in enumerate(zip(addresses, files, strict=True)):
        write(file, f"{OLD}\n")
        environment = {
            "SHOAL_JOIN": ",".join(addresses),
            "SHOAL_CLUSTER_KEY_FILE": str(file),
            "SHOAL_TLS_LOOK_S": "0.2",
            "SHOAL_RECONNECT_DELAY_S_MAX": "0.3",
        }
        commands.append(Started(["serve", "--data", str(tmp_path / f"n{number}"), "--listen", address], environment))
    with running(commands, tmp_path) as urls:
        for url in urls:
            ready(url)
        yield Three(urls, files)


def write(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o600)


def linked(urls: list[str]) -> None:
    """Wait until every node is linked to all others."""
    for url in urls:
        for _ in range(int(PATIENCE_S / 0.1)):
            if all(member["state"] != "unreachable" for member in asked(f"{url}/v1/cluster")["members"]):
                break
            threading.Event().wait(0.1)
        else:
            raise AssertionError(f"{url} is not linked")


def test_a_key_is_changed_while_writes_go_on(started: Three, tmp_path: Path) -> None:
    operators = tmp_path / "cluster.key"
    write(operators, f"{OLD}\n")
    stopped, done = threading.Event(), list[int]()

    async def write_on() -> None:
        async with shoal.connect(started.all, durability="quorum") as store:
            counter = store.space("crew").counter("n")
            while not stopped.is_set():
                # A busy machine may take longer than a request has time for: it is sent again, as the error says.
                with suppress(OutcomeUnknown, Unavailable, Disconnected):
                    await counter.add(1, key=f"add-{len(done)}")
                    done.append(1)
                await asyncio.sleep(0.01)

    writer = threading.Thread(target=lambda: asyncio.run(write_on()))
    writer.start()
    try:
        texts = [operators.read_text()]
        began = rotate(operators, "--new", "--within", "0", "--url", started.all)
        for copied in range(3):
            # Each round: the file is one step further than the nodes; they are given it one by one.
            assert (began.exit_code, "have not loaded" in began.stderr) == (1, True), began.output
            texts.append(operators.read_text())
            for file in started.files:
                stuck = rotate(operators, "--within", "0", "--url", started.all)
                assert stuck.exit_code == 1
                assert operators.read_text() == texts[-1], "a step was taken although a node lacks the one before"
                shutil.copy(operators, beside := file.with_suffix(".new"))
                beside.replace(file)
            for url in started.urls:
                _awaits(url, parsed(texts[-1]).names)
            linked(started.urls)
            _goes_on(done)
            if copied < 2:
                began = rotate(operators, "--within", "0", "--url", started.all)
        ended = rotate(operators, "--within", "30", "--url", started.all)
        assert (ended.exit_code, "no change is under way" in ended.stderr) == (0, True)
    finally:
        stopped.set()
        writer.join(PATIENCE_S)
    rings = [parsed(text) for text in texts]
    new = rings[-1].key
    assert rings == [Keyring(OLD), Keyring(OLD, new=new), Keyring(new, old=OLD), Keyring(new)]
    totals = [asked(f"{url}/v1/spaces/crew/counters/n")["value"] for url in started.urls]
    assert sorted(totals)[1] >= len(done), "two of three hold what was acknowledged"
    assert max(totals) in (len(done), len(done) + 1), "each once; the outcome of the last one may be unknown"
    assert new not in ended.output + began.output
    assert operators.stat().st_mode & 0o777 == 0o600


def _goes_on(done: list[int]) -> None:
    """Return once writes were acknowledged after this call began."""
    before = len(done)
    for _ in range(int(PATIENCE_S / 0.1)):
        if len(done) > before + 3:
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"{len(done) - before} writes in {PATIENCE_S} s")


def _awaits(url: str, names: list[str]) -> None:
    for _ in range(int(PATIENCE_S / 0.1)):
        if (told := asked(f"{url}/v1/cluster")["node"]["cluster_keys"]) == names:
            return
        threading.Event().wait(0.1)
    raise AssertionError(f"{url} has {told}, not {names}")


def test_one_command_changes_a_file_that_all_read(tmp_path: Path) -> None:
    file = tmp_path / "cluster.key"
    write(file, f"{OLD}\n")
    addresses = free_addresses(2)
    environment = {"SHOAL_JOIN": ",".join(addresses), "SHOAL_CLUSTER_KEY_FILE": str(file), "SHOAL_TLS_LOOK_S": "0.1"}
    commands = [
        Started(["serve", "--data", str(tmp_path / address[-5:]), "--listen", address], environment) for address in addresses
    ]
    with running(commands, tmp_path) as urls:
        for url in urls:
            ready(url)
        shown = rotate("--json", "--url", ",".join(urls))
        assert [json.loads(each)["names"] for each in shown.stdout.splitlines()] == [[name_of(OLD)]] * 2
        repeated = rotate(file, "--url", ",".join(urls))
        assert (repeated.exit_code, "Begin one with --new" in repeated.stderr) == (0, True)
        assert parsed(file.read_text()) == Keyring(OLD)
        one = rotate(file, "--new", "--url", urls[0])
        assert (one.exit_code, "name its URL, too" in one.stderr) == (1, True)
        assert parsed(file.read_text()) == Keyring(OLD)
        done = rotate(file, "--new", "--url", ",".join(urls))
        assert (done.exit_code, done.stderr) == (0, "")
        ring = parsed(file.read_text())
        assert ring.key != OLD
        assert ring.also == ()
        assert done.stdout.splitlines()[-1] == f"done: all members have {name_of(ring.key)} alone."
        linked(urls)
        told = asked(f"{urls[0]}/v1/cluster")["node"]
        assert (told["cluster_keys"], told["cluster_key_trouble"]) == ([name_of(ring.key)], "")


# ── what members say ──────────────────────────────────────────────────────────


class Cluster:
    """Members that answer as a test says, and a file of theirs."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.file = tmp_path / "cluster.key"
        self.set(Keyring(OLD))
        self.answers: dict[str, Any] = {f"n{number}": Keyring(OLD).names for number in (1, 2, 3)}
        self.changes: dict[str, Any] = {}
        monkeypatch.setattr(cluster_key, "_ask", self._ask)

    def set(self, ring: Keyring) -> None:
        write(self.file, ring.text)

    @property
    def ring(self) -> Keyring:
        return parsed(self.file.read_text())

    def have(self, ring: Keyring, *names: str) -> None:
        self.answers |= dict.fromkeys(names or self.answers, ring.names)

    async def _ask(self, url: str) -> tuple[NodeStatus, ClusterView]:
        names = self.answers[url]
        if isinstance(names, Exception):
            raise names
        fields = {"node": url, "cluster_keys": names, "cluster_key_file": True, **self.changes.get(url, {})}
        status = msgspec.structs.replace(STATUS, **fields)
        own = Member(f"{url}:7400", url, "self", 3, 0, 0, 0, 0, 0, 0, "", {})
        others = [msgspec.structs.replace(own, name=f"{each}:7400", node=each) for each in self.answers if each != url]
        return status, ClusterView("shoal", 3, 2, [own, *others], "d1", 0, [], 0)

    def rotate(self, *arguments: str | Path, urls: str = "n1,n2,n3") -> Any:
        return rotate(self.file, *arguments, "--within", "0", "--url", urls)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


NEW = "fedcba9876543210fedcba9876543210"


def test_the_old_key_is_kept_while_a_member_proves_it(cluster: Cluster) -> None:
    cluster.set(Keyring(NEW, old=OLD))
    cluster.have(Keyring(NEW, old=OLD))
    cluster.have(Keyring(OLD, new=NEW), "n3")
    refused = cluster.rotate()
    assert (refused.exit_code, "n3:7400 have not loaded" in refused.stderr) == (1, True)
    assert cluster.ring == Keyring(NEW, old=OLD)
    cluster.have(Keyring(NEW, old=OLD))
    assert cluster.rotate().exit_code == 1  # It went on, and waits for the members to load that.
    assert cluster.ring == Keyring(NEW)


def test_the_keys_of_a_silent_member_are_unknown(cluster: Cluster) -> None:
    cluster.answers |= {"n2": Unreachable("n2 cannot be reached. Nothing was written."), "n3": []}
    shown = CliRunner().invoke(app, ["cluster", "rotate-key", "--url", "n1,n2,n3"])
    assert [row.split()[1] for row in shown.stdout.splitlines()[1:4]] == [name_of(OLD), "unknown", "none"]
    printed = CliRunner().invoke(app, ["cluster", "rotate-key", "--json", "--url", "n1,n2,n3"])
    assert [json.loads(row)["names"] for row in printed.stdout.splitlines()] == [[name_of(OLD)], None, []]


@pytest.mark.parametrize("step", [Keyring(OLD), Keyring(OLD, new=NEW), Keyring(NEW, old=OLD)])
def test_no_step_is_taken_while_a_member_is_down(cluster: Cluster, step: Keyring) -> None:
    cluster.set(step)
    cluster.have(step)
    cluster.answers["n2"] = Unreachable("n2 cannot be reached. Nothing was written.")
    refused = cluster.rotate("--new")
    assert (refused.exit_code, "n2:7400: it gave no answer" in refused.stderr) == (1, True)
    assert "n2 cannot be reached" in refused.stderr
    assert cluster.ring == step


def test_a_member_of_an_older_version_stops_the_change(cluster: Cluster) -> None:
    cluster.answers["n2"] = None
    refused = cluster.rotate("--new")
    assert (refused.exit_code, "n2:7400: it runs version" in refused.stderr) == (1, True)
    assert cluster.ring == Keyring(OLD)


def test_a_member_with_its_key_in_its_settings_stops_the_change(cluster: Cluster) -> None:
    cluster.changes["n2"] = {"cluster_key_file": False}
    refused = cluster.rotate("--new")
    assert (refused.exit_code, "SHOAL_CLUSTER_KEY_FILE" in refused.stderr) == (1, True)
    assert cluster.ring == Keyring(OLD)


def test_a_member_whose_file_is_broken_stops_the_change(cluster: Cluster) -> None:
    cluster.changes["n2"] = {"cluster_key_trouble": "every user may read it"}
    refused = cluster.rotate("--new")
    assert (refused.exit_code, "n2:7400: every user may read it" in refused.stderr) == (1, True)
    assert cluster.ring == Keyring(OLD)


def test_a_file_of_another_cluster_is_not_changed(cluster: Cluster) -> None:
    cluster.set(Keyring(NEW))
    refused = cluster.rotate("--new")
    assert (refused.exit_code, "other keys" in refused.stderr) == (1, True)
    assert cluster.ring == Keyring(NEW)


def test_an_interrupted_change_goes_on_with_the_same_key(cluster: Cluster) -> None:
    assert cluster.rotate("--new").exit_code == 1
    begun = cluster.ring
    assert begun.key == OLD
    assert begun.new
    assert cluster.rotate("--new").exit_code == 1
    assert cluster.ring == begun
    cluster.have(begun)
    cluster.rotate("--new")
    assert cluster.ring == Keyring(begun.new, old=OLD)


def test_a_link_leads_to_the_file_that_nodes_read(cluster: Cluster, tmp_path: Path) -> None:
    link = tmp_path / "link.key"
    link.symlink_to(cluster.file)
    assert rotate(link, "--new", "--within", "0", "--url", "n1,n2,n3").exit_code == 1  # It waits for the members.
    assert link.is_symlink()
    assert cluster.ring.new


def test_a_repeated_command_begins_no_second_change(cluster: Cluster) -> None:
    cluster.set(Keyring(NEW, old=OLD))
    cluster.have(Keyring(NEW, old=OLD))
    assert cluster.rotate("--new").exit_code == 1
    cluster.have(Keyring(NEW))
    assert cluster.rotate().exit_code == 0
    assert cluster.ring == Keyring(NEW)


@pytest.mark.parametrize(
    ("text", "why"), [("weak\n", "too weak"), (f"{OLD}\nnew {OLD}\n", "the same key twice"), ("", "no key")]
)
def test_a_wrong_file_is_refused_and_kept(cluster: Cluster, text: str, why: str) -> None:
    write(cluster.file, text)
    refused = cluster.rotate("--new")
    assert (refused.exit_code, why in refused.stderr) == (1, True)
    assert cluster.file.read_text() == text
    assert OLD not in refused.output


def test_nothing_is_asked_without_urls_or_begun_without_a_file(tmp_path: Path) -> None:
    assert rotate("--data", tmp_path).exit_code == 2
    with ExitStack() as stack:
        stack.enter_context(pytest.MonkeyPatch.context()).delenv("SHOAL_URL", raising=False)
        assert rotate("--new", "--url", "http://127.0.0.1:9").exit_code == 2
