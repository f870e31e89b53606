"""The trial of a crew: what its judge finds, and one small trial with real processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from chaos.crews import SLACK_S, Note, Takeover, judge, run

TTL_S = 5.0


def done(n: int, *, machine: str = "m0", fence: int = 1, agent: str = "a") -> list[Note]:
    return [Note("effect", agent, n, machine, fence, 0.0), Note("saved", agent, n, machine, fence, 0.0)]


SOUND = [*done(1), *done(2), *done(3, machine="m1", fence=2)]


def problems(notes: list[Note], state: int = 3, *takeovers: Takeover) -> list[str]:
    return judge(notes, {"a": state}, takeovers, ttl_s=TTL_S).problems


def test_a_sound_trial_has_no_problems_and_shows_how_long_it_took() -> None:
    verdict = judge(SOUND, {"a": 3}, [Takeover("a", "machine", 4.0)], ttl_s=TTL_S)
    assert verdict.problems == []
    assert list(verdict.lines())[:2] == [
        "1 agents at work elsewhere: p50 4.00 s, p90 4.00 s, p99 4.00 s, most 4.00 s (ttl 5 s)",
        "3 effects",
    ]


def test_a_repeated_effect_is_found() -> None:
    assert problems([*SOUND, Note("effect", "a", 2, "m1", 2, 0.0)]) == ["effect 2 of a was repeated: by m0, m1"]


def test_a_save_that_two_machines_were_acknowledged_is_found() -> None:
    assert problems([*SOUND, Note("saved", "a", 2, "m1", 2, 0.0)]) == ["save 2 of a was acknowledged twice: to m0 and m1"]


def test_a_save_of_a_superseded_machine_is_found() -> None:
    assert problems([*SOUND, *done(4)], 4) == ["m1 saved 3 of a after m0 had taken it over"]


def test_a_lost_save_and_a_lost_effect_are_found() -> None:
    assert problems(SOUND, 2) == ["a had saved 3, and the cluster holds 2"]
    assert problems([note for note in SOUND if (note.kind, note.n) != ("effect", 2)]) == ["effect 2 of a is missing"]


def test_an_agent_that_is_at_work_too_late_or_never_is_found() -> None:
    late = Takeover("a", "machine and node", TTL_S + SLACK_S + 0.1)
    assert problems(SOUND, 3, late) == ["a was at work again only 7.10 s after a kill (machine and node)"]
    assert problems(SOUND, 3, Takeover("a", "machine", None)) == ["a did not return to work after a kill (machine)"]


@pytest.mark.answers("agents-have-one-driver")
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize(("kills", "agents"), [(1, 2), pytest.param(2, 3, marks=pytest.mark.chaos)])
async def test_machines_that_are_killed_break_nothing(tmp_path: Path, kills: int, agents: int) -> None:
    said: list[str] = []
    verdict = await run(tmp_path, kills=kills, seed=3, ttl_s=2.0, agents=agents, say=said.append, now_s=time.monotonic)
    # How long it took is measured by `python -m chaos crew`: here other tests may run beside it.
    assert [problem for problem in verdict.problems if "at work again only" not in problem] == []
    assert len(said) == kills
    assert verdict.effects > 0
