"""A trial in a terminal: what a person sees while it runs, and the verdict."""

from __future__ import annotations

from tests.terminal import shoal_in_terminal

TRIAL = ("run", "--nodes", "1", "--minutes", "0.01", "--rate", "50", "--agents", "6", "--seed", "1")


def test_a_trial_is_told_and_judged_in_a_terminal() -> None:
    shown = shoal_in_terminal(*TRIAL, module="chaos", columns=80, environment={"NO_COLOR": "1"})
    assert shown.code == 0, shown.text
    assert "seed 1" in shown.lines
    assert "kept: nothing acknowledged was lost" in shown.text
    assert max(len(line) for line in shown.lines if line.startswith(("│", "┃", "┏", "└"))) <= 80
    assert not shown.is_coloured
