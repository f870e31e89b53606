"""A cluster under steady load keeps nothing that it no longer needs; `python -m simulation year` shows it for a year."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from shoal.crdt.thread import queue
from simulation import __main__ as command


def told(days: int) -> str:
    ended = CliRunner().invoke(command.app, ["year", "--days", str(days), "--day", "5", "--every", "7"])
    assert ended.exception is None or isinstance(ended.exception, SystemExit), ended.exception
    return ended.output


def grown(told: str) -> dict[str, float]:
    return {name: float(by) for name, by in re.findall(r"^(.+): × ([\d.]+) since", told, re.MULTILINE)}


def test_a_line_for_each_sample_and_a_line_for_each_figure() -> None:
    lines = told(8)
    assert re.findall(r"^day +(\d+)", lines, re.MULTILINE) == ["7", "8"]
    assert grown(lines).keys() >= {"operations in the log", "keys of requests", "origins", "rows of objects", "bytes on disk"}


def test_what_is_never_forgotten_is_seen_to_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = grown(told(18))
    monkeypatch.setattr(queue, "context_of", lambda *_: ())
    assert grown(told(18))["rows of objects"] > sound["rows of objects"] + 0.1
