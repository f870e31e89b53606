"""A cluster loses its majority, or all but copies, and goes on: every promise is kept, and planted bugs are found."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pytest

from shoal.cluster.consensus import recovery as pure
from shoal.kinds.lease.state.table import Table
from shoal.node.consensus import condition as foundations
from shoal.node.consensus.quorum_register import QuorumRegister
from shoal.node.membership import rebuilding
from shoal.node.membership.roster import Roster
from simulation.rebuilds import hunt, run_plan

SEEDS = range(300)
Plant = Callable[[pytest.MonkeyPatch], None]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Nodes warn of every fault that they meet."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.answers("lost-majorities-are-rebuilt", note="real nodes under drawn faults")
@pytest.mark.parametrize("seed", [0, 1, 4, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(5, 105))])
def test_every_promise_is_kept_across_a_rebuild(seed: int) -> None:
    assert run_plan(seed) == []


# ── planted bugs ──────────────────────────────────────────────────────────────


def numbers_are_not_raised(patch: pytest.MonkeyPatch) -> None:
    for module in (pure, foundations):
        patch.setattr(module, "COUNTS_AHEAD", 0)


def an_old_member_votes_on(patch: pytest.MonkeyPatch) -> None:
    """And takes links of others, which is what else keeps two of them apart."""
    patch.setattr(QuorumRegister, "abdicate", lambda self: None)
    patch.setattr(Roster, "is_removed", False)


def copies_recover_while_an_original_lives(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rebuilding, "why_not_whole", lambda remains, members: "")


def leases_of_lost_members_are_granted_at_once(patch: pytest.MonkeyPatch) -> None:
    sound = Table.rebuild

    def rebuild(self: Table, *, by: int, beat: bytes, unseen_ms: int) -> None:
        sound(self, by=by, beat=beat, unseen_ms=0)

    patch.setattr(Table, "rebuild", rebuild)


BUGS: tuple[tuple[Plant, tuple[str, ...], tuple[int, ...]], ...] = (
    (numbers_are_not_raised, ("8", "23"), (3,)),
    (an_old_member_votes_on, ("8", "23"), (3,)),
    (copies_recover_while_an_original_lives, ("8", "23"), (85,)),
    (leases_of_lost_members_are_granted_at_once, ("23",), (33,)),
)
"""With the invariants that each breaks, and the seeds of plans that have found it. Others are tried after them."""


@pytest.mark.answers("lost-majorities-are-rebuilt", note="four planted bugs")
@pytest.mark.parametrize(("plant", "invariants", "seeds"), BUGS, ids=[plant.__name__ for plant, _, _ in BUGS])
def test_a_planted_bug_is_found_by_a_drawn_plan(
    monkeypatch: pytest.MonkeyPatch, plant: Plant, invariants: tuple[str, ...], seeds: tuple[int, ...]
) -> None:
    plant(monkeypatch)
    assert hunt((*seeds, *SEEDS), invariants) is not None
