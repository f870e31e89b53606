"""`make resolve` calls a clash what the resolver calls one, and a registry out of reach is none."""

from __future__ import annotations

import subprocess

import pytest

from tests import resolve

ANSWERS = {
    "alone": subprocess.CompletedProcess([], 0, "mcp==2.3.0\nanyio==4.14\n", ""),
    "fits": subprocess.CompletedProcess([], 0, "mcp==2.3.0\nshoal\n", ""),
    "clash": subprocess.CompletedProcess([], 1, "", "  × No solution found when resolving dependencies:\n  Because …"),
    "silence": subprocess.CompletedProcess([], 2, "", "error: Request failed after 3 retries\n  Caused by: dns error"),
    "missing": subprocess.CompletedProcess(
        [],
        1,
        "",
        "× No solution found when resolving dependencies:\n ╰─▶ Because uvloop was not found in the package\n registry and …",
    ),
    "forbidden": subprocess.CompletedProcess(
        [], 1, "", "× No solution found when …\n hint: An index URL returned a 403 Forbidden error. This could indicate …"
    ),
    "unbuilt": subprocess.CompletedProcess([], 1, "", "× Failed to build `shoal`\n ├─▶ No solution found when resolving …"),
}


@pytest.mark.parametrize(
    ("answers", "end", "code"),
    [
        (("alone", "fits"), "fits", 0),
        (("alone", "clash"), "clashes", 1),
        (("alone", "silence"), "unknown", 3),
        (("alone", "missing"), "unknown", 3),
        (("alone", "forbidden"), "unknown", 3),
        (("alone", "unbuilt"), "unknown", 3),
        (("silence",), "unknown", 3),
        (("clash",), "unknown", 3),
    ],
)
def test_only_a_clash_is_called_one(
    answers: tuple[str, ...], end: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left = list(answers)
    monkeypatch.setattr(resolve, "_compiled", lambda *_: ANSWERS[left.pop(0)])
    assert resolve.main(["mcp"]) == code
    said = capsys.readouterr().out
    assert ("clashes with Shoal" in said) == (end == "clashes")
    assert ("1 are not known" in said) == (end == "unknown")
