"""A cluster under steady load keeps nothing that it no longer needs; `python -m simulation year` shows it for a year."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from shoal.cluster.peer_state import Mark
from shoal.kinds.worklist import state as queue
from shoal.node.collection.truncating import Truncator
from shoal.testing.machines import run
from simulation import __main__ as command
from simulation import year
from simulation.year import GROWTH_MAX


def told(days: int) -> str:
    """By nodes that look less often whether something is due: a day has five seconds here."""
    settings = year._settings
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(year, "_settings", lambda day_s: settings(day_s) | {"tick_s": 0.2})
        ended = CliRunner().invoke(command.app, ["year", "--days", str(days), "--day", "5", "--every", "7"])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.output


def grown(told: str) -> dict[str, float]:
    return {name: float(by) for name, by in re.findall(r"^(.+): × ([\d.]+) since", told, re.MULTILINE)}


@pytest.fixture(scope="module")
def sound() -> str:
    """What nine days tell."""
    return told(9)


def test_a_sample_is_taken_after_the_first_week_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a week of one day; what longer times tell, `make thorough` shows."""
    monkeypatch.setattr(year, "WEEK", 1)
    told: list[year.Sample] = []
    settings = year._settings
    monkeypatch.setattr(year, "_settings", lambda day_s: settings(day_s) | {"tick_s": 0.2})
    samples = run(year.year(2, day_s=3.0, seed=1, every=7, told=told.append))
    assert [sample.day for sample in samples] == [1, 2]
    assert told == samples
    assert samples[1].writes > samples[0].writes > 10
    assert all(samples[0].counts[name] for name in ("keys of requests", "origins", "rows of objects"))
    assert year.growth(samples)["operations in the log"] < GROWTH_MAX


@pytest.mark.thorough
def test_a_line_for_each_sample_and_a_line_for_each_figure(sound: str) -> None:
    assert re.findall(r"^day +(\d+)", sound, re.MULTILINE) == ["7", "9"]
    assert grown(sound).keys() >= {"operations in the log", "keys of requests", "origins", "rows of objects", "bytes on disk"}


@pytest.mark.answers("growth-is-not-seen")
@pytest.mark.thorough
def test_a_log_that_is_never_truncated_is_seen_to_grow(monkeypatch: pytest.MonkeyPatch, sound: str) -> None:
    async def look(self: Truncator, number: int) -> bool:
        return False

    monkeypatch.setattr(Truncator, "_look", look)
    assert grown(told(9))["operations in the log"] > GROWTH_MAX > grown(sound)["operations in the log"]


@pytest.mark.answers("growth-is-not-seen")
@pytest.mark.thorough  # Half a minute: in fewer days this little is not seen.
def test_unbounded_memory_is_seen_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = grown(told(27))
    monkeypatch.setattr(queue, "context_of", lambda *_: ())
    assert grown(told(27))["rows of objects"] > sound["rows of objects"] + 0.1


@pytest.mark.answers("set-back-directories-do-not-count")
@pytest.mark.thorough
def test_a_node_that_is_told_in_error_that_it_was_set_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """With marks that keep origins which were retired: it has forgotten these, and lacks them as far as it knows."""
    monkeypatch.setattr(Mark, "retire", lambda self, partition, origins: None)
    monkeypatch.setattr(year, "_PAUSE_S", 5.0)
    with pytest.raises(AssertionError, match="that its directory was set back, and it was not"):
        run(year.year(20, day_s=20.0, seed=1, every=7, told=lambda sample: None))
