"""The table says only what an observation says, bounded, and names what is not known."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from shoal.cli.commands import doctor
from shoal.cli.execution import Target
from shoal.cli.operating.upgrading import ASKED_MAX, followed
from shoal.cluster.membership.epochs import MEMBERS_MAX
from shoal.node.conditions import of_cluster, of_node
from shoal.node.conditions.of_node import Observation, Signals, Volume
from shoal.node.conditions.watcher import CONDITIONS, RECENT_S, SHOWN_MAX, look
from shoal.node.service import Credentials
from shoal.protocol.requests import ClusterView, ConditionsView, Member, MembersView, NodeStatus
from tests import conditions
from tests.api.conftest import STATUS
from tests.node.conftest import Bench

DOCS = Path(__file__).parents[3] / "docs"
OWN = Member("n1:7400", "ab12", "self", 3, 0, 0, 0, 0, 0, 0, "", {})
PEER = msgspec.structs.replace(OWN, name="n2:7400", node="cd34", state="linked", clock_ms=1, version="1.0")
ROOM = Signals(volume=Volume(1 << 40, 1 << 41))


def seen(status: NodeStatus = STATUS, *members: Member, **more: Any) -> Observation:
    cluster = ClusterView("shoal", 1 + len(members), 1, [OWN, *members], "", 0, [], 0)
    made = Observation(1_000, "1.0", "n1:7400", status, cluster, MembersView(0, "", "", []), signals=ROOM)
    return made._replace(**more)


def test_a_name_is_once_in_the_table() -> None:
    assert len(CONDITIONS) == len(of_cluster.CONDITIONS) + len(of_node.CONDITIONS)


def test_of_a_node_that_is_well_all_is_known_and_nothing_stands() -> None:
    found = look(seen(STATUS, PEER))
    assert (found.standing, found.unknown) == ((), {})
    assert found.looked == list(CONDITIONS)


@pytest.mark.parametrize(
    ("observation", "name", "why"),
    [
        (seen(signals=Signals()), "disk-nearly-full", "does not say"),
        (seen(STATUS, msgspec.structs.replace(PEER, told=False)), "member-behind", "n2:7400 has not told"),
        (seen(STATUS, msgspec.structs.replace(PEER, clock_ms=None)), "clocks-differ", "n2:7400 has not told"),
        (seen(STATUS, msgspec.structs.replace(PEER, version="")), "versions-mixed", "n2:7400 has not told"),
    ],
)
def test_an_unknown_is_named_and_is_not_well(observation: Observation, name: str, why: str) -> None:
    found = look(observation)
    assert why in found.unknown[name]
    assert name not in found.looked


def test_a_condition_that_is_true_of_one_member_is_known_though_another_tells_nothing() -> None:
    silent = msgspec.structs.replace(PEER, name="n3:7400", told=False)
    late = msgspec.structs.replace(PEER, lacks=5, lag_ms=20_000)
    found = look(seen(STATUS, silent, late))
    assert [each.about for each in found.standing] == ["n2:7400"]
    assert "member-behind" not in found.unknown


def test_findings_of_one_condition_are_bounded_and_the_rest_is_counted() -> None:
    away = [msgspec.structs.replace(PEER, name=f"n{n}:7400", state="unreachable") for n in range(30)]
    found = [each for each in look(seen(STATUS, *away)).standing if each.name == "member-away"]
    assert len(found) == SHOWN_MAX
    assert found[-1].says.endswith(f"(and {30 - SHOWN_MAX} more)")


def test_the_worst_is_first() -> None:
    wrong = seen(msgspec.structs.replace(STATUS, register="it has none", tls_trouble="it ends"), PEER, failed="full")
    assert [each.severity for each in look(wrong).standing] == ["page", "page", "ticket"]


WELL = seen(STATUS, PEER)
CHANGE = MembersView(1, "add n4:7400", "prepared", [], trouble="n4:7400 cannot be reached")
WAITS = msgspec.structs.replace(STATUS, retention_due=3, retention_waits_for="an owner is away")


@pytest.mark.parametrize(
    ("observation", "name"),
    [
        (WELL._replace(members=CHANGE), "change-stands"),
        (WELL._replace(cluster=msgspec.structs.replace(WELL.cluster, differing=["register goal"])), "rows-differ"),
        (WELL._replace(cluster=msgspec.structs.replace(WELL.cluster, unshown=2)), "log-unshown"),
        (WELL._replace(cluster=msgspec.structs.replace(WELL.cluster, truncated=["partition 3"])), "left-behind"),
        (WELL._replace(status=WAITS), "retention-waits"),
        (WELL._replace(status=msgspec.structs.replace(STATUS, tiering_trouble="403 no permission")), "tiering-fails"),
        (WELL._replace(ended=["retention"]), "part-ended"),
        (WELL._replace(unredacted={"crew": "the hook 'dlp' did not answer"}), "redaction-fails"),
    ],
)
def test_a_condition_is_read_from_what_the_node_says(observation: Observation, name: str) -> None:
    assert [each.name for each in look(observation).standing] == [name]


def test_a_members_directory_that_was_opened_alone_knows_nothing_of_its_cluster() -> None:
    alone = look(seen(msgspec.structs.replace(STATUS, register="it has none", tls_trouble="it ends"), apart=True))
    assert [each.name for each in alone.standing] == ["certificate"]
    assert alone.unknown.keys() == {each.name for each in of_cluster.CONDITIONS}


def test_a_removed_member_is_not_missed() -> None:
    assert not look(seen(STATUS, msgspec.structs.replace(PEER, state="unreachable", part="removed"))).standing


def test_a_node_that_is_no_member_blames_no_member() -> None:
    """It has no links and no quorum because of that: to replace members, or to rebuild their cluster, would harm it."""
    away = msgspec.structs.replace(PEER, state="unreachable", told=False, clock_ms=None, version="")
    alone = msgspec.structs.replace(STATUS, register="the quorum register was never founded", garbage_waits_for=["n2:7400"])
    observation = seen(alone, away, outside=True)
    told = msgspec.structs.replace(observation.cluster, learning=["n2:7400: not heard yet"], disagreements=["n2 has others"])
    members = MembersView(0, "", "", [], waiting=["n5:7400"])
    found = look(observation._replace(cluster=told, members=members))
    assert [each.name for each in found.standing] == ["no-member"]
    assert found.unknown == {}


def test_a_second_node_at_an_address_blames_no_member() -> None:
    """Its operator would replace members that are well, or rebuild their cluster."""
    away = msgspec.structs.replace(PEER, state="unreachable", told=False, clock_ms=None, version="")
    alone = msgspec.structs.replace(STATUS, state="refilling", register="the quorum register was never founded")
    observation = seen(alone, away, second="node ab12 advertises n1:7400, where node cd34 is linked")
    told = msgspec.structs.replace(observation.cluster, learning=["n2:7400: not heard yet"], disagreements=["two nodes"])
    found = look(observation._replace(cluster=told))
    assert [(each.name, each.about) for each in found.standing] == [("members-differ", "n1:7400")]
    assert "advertises n1:7400, where node cd34" in found.standing[0].says
    assert "SHOAL_ADVERTISE" in found.standing[0].mends
    assert found.unknown == {}


def test_a_small_disk_is_told_in_small_units() -> None:
    volume = Volume(3 << 20, 40 << 20)
    [found] = look(seen(signals=Signals(volume=volume))).standing
    assert found.says.startswith("3.0 MiB of 40.0 MiB are free")


def test_a_node_whose_clock_is_wrong_blames_no_other_clock() -> None:
    clocks = ["this node's clock is wrong", "n2:7400's clock is 600.0 s behind this node's."]
    cluster = msgspec.structs.replace(seen(STATUS, PEER).cluster, clocks=clocks)
    found = look(seen(STATUS, PEER, clock_wrong=clocks[0])._replace(cluster=cluster))
    assert [each.name for each in found.standing] == ["clock-wrong"]


@pytest.mark.parametrize(("count", "says"), [(1, "once in the last seconds"), (1200, "1,200 times in the last seconds")])
def test_a_count_of_one_is_told_in_words(count: int, says: str) -> None:
    [found] = look(seen(signals=ROOM._replace(expired=count))).standing
    assert found.says.startswith(says)


@pytest.mark.parametrize("name", ["member-away", "no-quorum"])
def test_a_member_that_is_up_and_not_trusted_is_not_to_be_replaced(name: str) -> None:
    """With the certificate of another CA it is not reached: to replace it, or to rebuild, would lose its directory."""
    mends = CONDITIONS[name].mends
    assert 0 < mends.lower().index("if it is up") < mends.index("Only if")


def test_each_command_names_what_it_is_about() -> None:
    away = msgspec.structs.replace(PEER, state="unreachable")
    [found] = look(seen(STATUS, away)).standing
    assert "shoal cluster replace n2:7400 NEW:PORT" in found.mends
    assert not any("{" in each.mends.replace("{about}", "") for each in CONDITIONS.values())


@pytest.mark.parametrize("name", CONDITIONS)
def test_its_page_and_its_place_exist(name: str) -> None:
    file, _, place = CONDITIONS[name].page.partition("#")
    headings = [line.lstrip("# ").lower() for line in (DOCS / file).read_text().splitlines() if line.startswith("#")]
    anchors = {"".join(c for c in heading.replace(" ", "-") if c.isalnum() or c in "-_") for heading in headings}
    assert not place or place in anchors


@pytest.mark.parametrize("condition", conditions.alerting())
def test_each_that_needs_somebody_has_one_alert(condition: Any) -> None:
    assert conditions.rules().count(f"- alert: {conditions.alert_of(condition)}\n") == 1


async def test_a_look_that_fails_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    watcher = bench.node.conditions
    await watcher.view()

    def fails() -> None:
        raise RuntimeError("a bug")

    with monkeypatch.context() as patched:
        patched.setattr(watcher, "observe", fails)
        await asyncio.sleep(11)
    assert "unexpected error in the look of a node at itself" in caplog.text
    bench.simulated.volume = 1, 1 << 40
    await asyncio.sleep(6)
    assert [each.name for each in watcher.standing] == ["disk-nearly-full"]


async def test_a_disk_that_hangs_hides_nothing_else(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.node.conditions.view()
    hangs = dataclasses.replace(bench.simulated.environment, volume=asyncio.get_running_loop().create_future)
    monkeypatch.setattr(bench.node.conditions, "_environment", hangs)
    bench.node.service.present(lambda: Credentials(tls_trouble="it ends"))
    await asyncio.sleep(12)
    view = await bench.node.conditions.view()
    assert [each.name for each in view.standing] == ["certificate"]
    assert "disk-nearly-full" in view.unknown


async def test_a_finding_keeps_the_moment_in_which_it_was_noticed(bench: Bench) -> None:
    bench.simulated.volume = 1, 1 << 40
    await asyncio.sleep(6)
    [first] = (await bench.node.conditions.view()).standing
    bench.simulated.now_ms += 60_000
    await asyncio.sleep(6)
    [later] = (await bench.node.conditions.view()).standing
    assert later.since_ms == first.since_ms
    assert (await bench.node.conditions.view()).begun["disk-nearly-full"] == 1


async def test_trouble_that_passes_at_a_start_is_no_line(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "shoal.conditions")
    bench.simulated.volume = 1, 1 << 40
    await bench.node.conditions.sample()
    bench.simulated.volume = 1 << 40, 1 << 40
    await asyncio.sleep(3 * RECENT_S)
    assert "condition disk-nearly-full" not in caplog.text


# ── the doctor ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("begun", "verified", "stands"), [(0, 0, False), (6, 0, False), (8, 0, True), (30, 13, False), (30, 15, True)]
)
def test_a_new_backup_has_a_week_until_somebody_restores_it(begun: int, verified: int, stands: bool) -> None:
    day_ms, now_ms = 86_400_000, 1_700_000_000_000
    begun_ms, verified_ms = (now_ms - days * day_ms if days else 0 for days in (begun, verified))
    status = msgspec.structs.replace(STATUS, backup="current", backup_begun_ms=begun_ms, backup_verified_ms=verified_ms)
    found = look(seen(status, now_ms=now_ms))
    assert ("backup-unverified" in [each.name for each in found.standing]) is stands


def view_of(name: str, observation: Observation) -> doctor.Asked:
    found = look(observation)
    return doctor.Asked(name, view=ConditionsView(name, name, list(found.standing), found.looked, found.unknown))


def test_a_thing_that_several_say_is_told_once() -> None:
    away = msgspec.structs.replace(PEER, name="n3:7400", state="unreachable", reason="by n1's dialler")
    other = msgspec.structs.replace(away, reason="by n2's dialler")
    [(each, by)] = doctor._gathered([view_of("n1:7400", seen(STATUS, away)), view_of("n2:7400", seen(STATUS, other))])
    assert (each.about, by) == ("n3:7400", ("n1:7400", "n2:7400"))


def test_silent_members_and_unknown_conditions_are_named() -> None:
    answers = [view_of("n1:7400", seen(signals=Signals())), doctor.Asked("n2:7400", why="it did not answer")]
    assert dict(doctor._unsure(answers)).keys() == {"n2:7400", "disk-nearly-full at n1:7400", "disk-fills at n1:7400"}
    assert doctor._document(answers, [], doctor._unsure(answers))["well"] is False


def test_one_reason_for_many_unknowns_is_one_line() -> None:
    found = look(seen(apart=True))
    lines = doctor._unsure_lines(
        doctor._unsure([doctor.Asked("./n3", view=ConditionsView("n3", "./n3", [], [], found.unknown))])
    )
    assert len(lines) == 1
    assert all(f"{name} at ./n3" in lines[0] for name in found.unknown)


async def test_members_that_never_answer_are_waited_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is virtual: two that are silent take as long as one."""

    class Member:
        """It answers if it has a view."""

        def __init__(self, view: ConditionsView | None) -> None:
            self._view = view

        async def conditions(self) -> ConditionsView:
            if self._view is None:
                await asyncio.Event().wait()
            assert self._view is not None
            return self._view

        async def cluster(self) -> ClusterView:
            return ClusterView("shoal", 1, 1, [OWN], "", 0, [], 0)

    @asynccontextmanager
    async def opened(target: Target) -> AsyncIterator[Member]:
        yield Member(view_of("n1:7400", seen(STATUS)).view if target.url == "http://n1:7400" else None)

    monkeypatch.setattr(doctor, "opened", opened)
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    async with asyncio.timeout(10 * doctor.ASK_S):
        first, *silent = await doctor._of_cluster("http://n1:7400,http://n2:7400,http://n3:7400")
    assert loop.time() - began_s == pytest.approx(doctor.ASK_S)
    assert first.view is not None
    assert [(each.name, each.view) for each in silent] == [("n2:7400", None), ("n3:7400", None)]
    assert all("did not answer within 1.2 s" in each.why for each in silent)


async def test_a_busy_node_is_waited_for_if_nobody_else_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    class Busy:
        """It answers late."""

        async def conditions(self) -> ConditionsView:
            await asyncio.sleep(3 * doctor.ASK_S)
            found = view_of("n1:7400", seen(STATUS)).view
            assert found is not None
            return found

        async def cluster(self) -> ClusterView:
            return ClusterView("shoal", 1, 1, [OWN], "", 0, [], 0)

    @asynccontextmanager
    async def opened(_target: Target) -> AsyncIterator[Busy]:
        yield Busy()

    monkeypatch.setattr(doctor, "opened", opened)
    [answer] = await doctor._of_cluster("http://n1:7400")
    assert answer.view is not None


def test_commands_have_the_place_that_was_asked() -> None:
    [each] = look(seen(msgspec.structs.replace(STATUS, quotas_reached=["crew: bytes"]))).standing
    assert "--url http://n1:7400" in doctor._placed(each, "--url http://n1:7400").mends
    assert "--data ./state" in doctor._placed(each, "--data ./state").mends
    [each] = look(seen(STATUS, msgspec.structs.replace(PEER, version="0.9"))).standing
    assert "--url https://n2:7400" in doctor._placed(each, "--url https://n1:7400").mends


def test_commands_go_to_a_member_that_answers() -> None:
    """Neither to a node that hangs, nor to one that is no member, though they were named first."""
    silent = doctor.Asked("n1:7400", "http://n1:7400", why="it did not answer", is_silent=True)
    outside = view_of("n4:7400", seen(outside=True))._replace(url="http://n4:7400")
    answers = [
        silent,
        outside,
        *(view_of(name, seen(STATUS))._replace(url=f"http://{name}") for name in ("n2:7400", "n3:7400")),
    ]
    target = Target(None, "http://n1:7400,http://n4:7400")
    assert doctor._where(target, ("n4:7400",), answers) == "--url http://n2:7400"
    assert doctor._where(target, ("n4:7400", "n3:7400"), answers) == "--url http://n3:7400"
    assert doctor._where(target, ("n4:7400",), [silent, outside]) == "--url URL"


async def test_a_node_that_waits_leads_to_all_members_and_each_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fourth one knows the first, the first knows the third, and the third never answers."""
    known = {"n4:7400": "n1:7400", "n1:7400": "n3:7400"}
    asked: list[str] = []

    class Node:
        """It knows one other node."""

        def __init__(self, name: str) -> None:
            self._name = name

        async def conditions(self) -> ConditionsView:
            asked.append(self._name)
            if self._name == "n3:7400":
                await asyncio.Event().wait()
            found = view_of(self._name, seen(STATUS)).view
            assert found is not None
            return found

        async def cluster(self) -> ClusterView:
            other = known.get(self._name, self._name)
            return ClusterView("shoal", 1, 1, [msgspec.structs.replace(OWN, name=other, node=other)], "", 0, [], 0)

    @asynccontextmanager
    async def opened(target: Target) -> AsyncIterator[Node]:
        yield Node(str(target.url).removeprefix("http://"))

    monkeypatch.setattr(doctor, "opened", opened)
    async with asyncio.timeout(10 * doctor.ASK_S):
        answers = await doctor._of_cluster("http://n4:7400")
    assert [each.name for each in answers] == asked == ["n4:7400", "n1:7400", "n3:7400"]
    assert [name for name, _ in doctor._unsure(answers)] == ["n3:7400"]


async def test_a_node_that_names_thousands_has_few_of_them_asked() -> None:
    class Liar(NamedTuple):
        name: str
        node: str = ""
        members: Sequence[tuple[str, str]] = ()

    asked: list[str] = []

    async def ask(url: str) -> Liar:
        asked.append(url)
        return Liar(url, members=named)

    named = [(f"n{number}:7400", str(number)) for number in range(5000)]
    answers = await followed([Liar("n-1:7400", "-1", named)], ask, "http")
    assert len(asked) == ASKED_MAX
    assert len(answers) == ASKED_MAX + 1
    assert ASKED_MAX >= MEMBERS_MAX
