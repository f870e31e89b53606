"""The judge of secrets: it sees each kind wherever it is written, and blames what rules of redaction were to replace."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import cast

import pytest

from shoal import values
from simulation.drawing import draw
from simulation.judging.obligations import Losses
from simulation.parts.all import FAMILIES
from simulation.parts.secrets import (
    CARD,
    FAMILY,
    KINDS,
    NAME,
    REDACTED,
    TAG,
    WAYS,
    Change,
    Guarded,
    Secrets,
    Written,
    seen_in,
    token,
)
from simulation.plan import Act, Crash, Fault, Plan, Replace, Restore, Wipe
from simulation.profiles import PROFILES
from simulation.workload.agents import Agents
from simulation.world.cluster import SimulatedCluster
from tests.simulation.test_parts import CALM, broken, carry_out, scene


@pytest.mark.parametrize("kind", KINDS)
def test_a_secret_is_seen_in_any_bytes(kind: str) -> None:
    assert set(seen_in(b"\x00" + token(kind, 17).encode() + b"\xff")) == {(kind, 17)}


@pytest.mark.parametrize("number", [0, 17, 999_999])
def test_a_card_is_seen_as_a_packed_number(number: int) -> None:
    assert set(seen_in(values.encode({"a": [int(token(CARD, number))]}))) == {(CARD, number)}


@pytest.mark.parametrize("kind", KINDS)
def test_the_rules_replace_what_is_looked_for(kind: str) -> None:
    """Set over all nodes, they hold at once: each write is judged, and what was replaced is told."""

    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[list[str], Secrets]:
        await carry_out(agents, "rule-secrets", 1)
        await carry_out(agents, "write-secret", 40)
        return await broken(cluster, agents, FAMILY), cast(Secrets, agents.parts[FAMILY])

    found, part = scene(work)
    [guarded] = part.spaces.values()
    assert guarded.changes[0].kinds == frozenset(KINDS), "this seed sets rules for some kinds alone"
    judged = [each for each in guarded.written if part.is_owed(guarded, each, kind, Losses(CALM))]
    assert found == []
    assert any(kind in each.listed for each in judged)
    assert {each.way for each in guarded.written} == set(WAYS)
    assert any(each.fails and each.refused for each in guarded.written)


def test_without_rules_every_kind_is_seen_on_the_disks() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[list[str], Secrets]:
        await carry_out(agents, "write-secret", 40)
        return await broken(cluster, agents, FAMILY), cast(Secrets, agents.parts[FAMILY])

    found, part = scene(work)
    [guarded] = part.spaces.values()
    assert found == []
    for written in guarded.written:
        assert {kind for kind in KINDS if (kind, written.number) in part.sightings.seen} == written.kinds


async def _guarded(agents: Agents) -> tuple[Secrets, Guarded]:
    await carry_out(agents, "rule-secrets", 1)
    await carry_out(agents, "write-secret", 20)
    part = cast(Secrets, agents.parts[FAMILY])
    [guarded] = part.spaces.values()
    return part, guarded


def _replaced(part: Secrets, guarded: Guarded) -> Written:
    return next(each for each in guarded.written if each.is_once and TAG in each.listed and each.way == "event")


def _seen_on_a_disk(part: Secrets, guarded: Guarded) -> None:
    part.sightings.seen[TAG, _replaced(part, guarded).number] = "a row"


def _not_listed(part: Secrets, guarded: Guarded) -> None:
    _replaced(part, guarded).listed = frozenset()


def _its_hook_had_failed(part: Secrets, guarded: Guarded) -> None:
    next(each for each in guarded.written if each.told and not each.in_name).fails = True


def _a_refused_write_is_there(part: Secrets, guarded: Guarded) -> None:
    refused = next(each for each in guarded.written if each.refused and each.is_once)
    part.sightings.seen["plain", refused.number] = "a row"


def _a_name_was_taken(part: Secrets, guarded: Guarded) -> None:
    next(each for each in guarded.written if each.in_name and each.kinds).told = True


def _refused_for_no_reason(part: Secrets, guarded: Guarded) -> None:
    part.unexplained.append("write 1 (event) was refused")


@pytest.mark.answers("secrets-are-nowhere")
@pytest.mark.parametrize(
    "spoil",
    [_seen_on_a_disk, _not_listed, _its_hook_had_failed, _a_refused_write_is_there, _a_name_was_taken, _refused_for_no_reason],
)
def test_a_broken_promise_of_redaction_is_found(spoil: Callable[[Secrets, Guarded], None]) -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> tuple[list[str], set[str]]:
        part, guarded = await _guarded(agents)
        sound = await broken(cluster, agents, FAMILY)
        spoil(part, guarded)
        return sound, set(await broken(cluster, agents, FAMILY))

    assert scene(work) == ([], {REDACTED})


# ── what is owed ──────────────────────────────────────────────────────────────

ALL = frozenset(KINDS)


def _heard(number: int, kinds: frozenset[str], begun_s: float, ended_s: float = inf) -> Change:
    change = Change(number, kinds, begun_s, ended_s)
    if ended_s < inf:
        for node in ("n1", "n2"):
            change.heard[node].append(ended_s)
    return change


FIRST = _heard(1, ALL, 1.0, 2.0)


@pytest.mark.parametrize(
    ("changes", "faults", "written", "is_owed"),
    [
        pytest.param([FIRST], [], Written(9, "event", ALL, 3.0, node="n1", ended_s=3.1), True, id="all nodes hold them"),
        pytest.param([FIRST], [], Written(9, "event", ALL, 1.5, node="n1", ended_s=3.1), False, id="begun before"),
        pytest.param([_heard(1, ALL, 1.0)], [], Written(9, "event", ALL, 3.0), False, id="nobody said that they hold"),
        pytest.param(
            [FIRST, _heard(2, frozenset({TAG}), 2.5)], [], Written(9, "event", ALL, 3.0), False, id="others may replace them"
        ),
        pytest.param([FIRST, _heard(2, ALL, 2.5)], [], Written(9, "event", ALL, 3.0), True, id="others that hold for it, too"),
        pytest.param([_heard(0, frozenset(), 0.1, 0.9), FIRST], [], Written(9, "event", ALL, 3.0), True, id="others were over"),
        pytest.param([FIRST], [Crash(at=2.5, node="n1")], Written(9, "event", ALL, 3.0), True, id="it was killed"),
        pytest.param(
            [FIRST],
            [Wipe(at=2.5, node="n1")],
            Written(9, "event", ALL, 3.0, node="n1", ended_s=3.1),
            False,
            id="its disk was lost",
        ),
        pytest.param(
            [FIRST],
            [Wipe(at=2.5, node="n1")],
            Written(9, "event", ALL, 3.0, node="n2", ended_s=3.1),
            True,
            id="another's disk was lost",
        ),
        pytest.param([FIRST], [Wipe(at=2.5, node="n1")], Written(9, "event", ALL, 3.0), False, id="who took it is not known"),
        pytest.param(
            [FIRST],
            [Restore(at=5.0, node="n1")],
            Written(9, "event", ALL, 3.0, node="n1", ended_s=3.1),
            True,
            id="set back later",
        ),
        pytest.param(
            [FIRST],
            [Replace(at=2.5, node="n2", by="n1")],
            Written(9, "event", ALL, 30.0, node="n1", ended_s=31.0),
            False,
            id="it replaces another",
        ),
    ],
)
def test_rules_are_owed_where_they_are_held(
    changes: list[Change], faults: list[Fault], written: Written, is_owed: bool
) -> None:
    part = Secrets()
    part.nodes = ["n1", "n2"]
    assert part.is_owed(Guarded(changes, [written]), written, NAME, Losses(Plan(seed=1, faults=faults))) is is_owed


def test_a_node_that_answers_with_rules_holds_them() -> None:
    async def work(cluster: SimulatedCluster, agents: Agents) -> list[str]:
        await carry_out(agents, "rule-secrets", 1)
        part = cast(Secrets, agents.parts[FAMILY])
        [change] = part.spaces["{guarded-a}"].changes
        change.heard.clear()
        await agents.act(Act(at=9.0, agent=1, kind="read-secrets"))
        return list(change.heard)

    assert scene(work) == ["n2"]


def test_other_profiles_have_no_secrets() -> None:
    secret = {kind for kind, family in FAMILIES.items() if family == FAMILY}
    for profile in PROFILES.keys() - {"redacted"}:
        assert not any(act.kind in secret for seed in range(6) for act in draw(seed, profile=profile).acts)
    assert {act.kind for seed in range(6) for act in draw(seed, profile="redacted").acts} >= secret
