"""The demo in a terminal: whole runs, and what its screens show at any width, with colour and without."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.demo.processes import DEMO, assert_nothing_is_left
from tests.terminal import SIZES, Shown, shoal_in_terminal

SCREENS = ("nodes", "embedded")


@cache
def drawn(screen: str, *, columns: int = 80, **environment: str) -> Shown:
    shown = shoal_in_terminal(screen, module="tests.demo.drawn", columns=columns, environment=environment)
    assert shown.code == 0, shown.text
    return shown


def last_picture(shown: Shown) -> list[str]:
    """What is left on the screen when all is done."""
    lines = shown.lines
    (first,) = [nth for nth, line in enumerate(lines) if "of 2160 modules" in line][-1:]
    return lines[first:]


@pytest.mark.parametrize(
    ("arguments", "columns"),
    [
        # Its processes are those of `test_cluster.py`, and what it draws is drawn below.
        pytest.param((), 80, marks=pytest.mark.chaos, id="cluster"),
        pytest.param(("--embedded",), 200, id="embedded"),
    ],
)
def test_a_whole_demo_runs_in_a_terminal(tmp_path: Path, arguments: tuple[str, ...], columns: int) -> None:
    words = (*DEMO[3:], "--limit", "12", *arguments)
    shown = shoal_in_terminal(*words, columns=columns, environment={"TMPDIR": str(tmp_path)})
    assert shown.code == 0, shown.text
    assert "12 of 12 modules" in shown.text
    assert "agreed: document, counters, journals and threads" in shown.text
    assert shown.is_coloured
    assert_nothing_is_left(tmp_path)


@pytest.mark.parametrize("columns", SIZES)
@pytest.mark.parametrize("screen", SCREENS)
def test_agents_and_counts_stay_readable_at_every_width(screen: str, columns: int) -> None:
    picture = last_picture(drawn(screen, columns=columns))
    agents = [line for line in picture if line.startswith("agent-")]
    assert [line.split()[:2] for line in agents] == [[f"agent-{nth + 1}", f"{200 + nth}/240"] for nth in range(9)]
    assert all("0123456789ab" in line for line in agents)
    assert max(map(len, picture)) <= columns


@pytest.mark.parametrize("screen", SCREENS)
def test_a_wide_terminal_shows_a_modules_whole_path(screen: str) -> None:
    path = "test/test_import/data/package/with/a/[long]/path/submodule.py"
    assert path in "\n".join(last_picture(drawn(screen, columns=200)))
    assert "…" in "\n".join(last_picture(drawn(screen, columns=80)))


@pytest.mark.parametrize("screen", SCREENS)
def test_no_colour_means_none(screen: str) -> None:
    assert drawn(screen).is_coloured
    assert not drawn(screen, NO_COLOR="1").is_coloured


@pytest.mark.parametrize("screen", SCREENS)
def test_a_dumb_terminal_gets_the_lines_of_a_pipe(screen: str) -> None:
    shown = drawn(screen, TERM="dumb")
    assert "\x1b" not in shown.raw
    assert "agents at work" in shown.lines
    assert any(line.split("  ")[0].endswith("of 2160 modules") for line in shown.lines)
