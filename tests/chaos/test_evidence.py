"""A trial that was kept is judged again with the same verdict, and reported whole."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from chaos import evidence as archive
from chaos.__main__ import app
from chaos.evidence import Evidence
from chaos.judge import judge
from chaos.report import to_html
from chaos.run import named
from shoal.crdt.dot import Dot, Origin
from shoal.storage import keys
from shoal.storage.keys import Kind
from simulation.judging.history import History


def test_saved_runs_are_judged_as_before(tmp_path: Path, history: History, evidence: Evidence) -> None:
    evidence.founds["n2"].threads["agent-0"].pop("two")
    archive.save(tmp_path, history, evidence)
    again, loaded = archive.load(tmp_path)
    assert judge(again, loaded) == judge(history, evidence)
    assert not judge(again, loaded).kept


def test_the_judge_ends_with_0_for_a_sound_trial_and_with_1_for_a_broken_one(
    tmp_path: Path, history: History, evidence: Evidence
) -> None:
    archive.save(tmp_path, history, evidence)
    sound = CliRunner().invoke(app, ["judge", str(tmp_path)])
    assert sound.exit_code == 0, sound.output
    assert "kept" in sound.output
    evidence.founds["n2"].counters["crew-0"] += 1
    archive.save(tmp_path, history, evidence)
    broken = CliRunner().invoke(app, ["judge", str(tmp_path), "--report", str(tmp_path / "report.html")])
    assert broken.exit_code == 1
    assert "broken" in broken.output
    assert "a counter does not add up" in (tmp_path / "report.html").read_text()


def test_the_report_lists_every_violation_and_needs_nothing_else(history: History, evidence: Evidence) -> None:
    evidence.damage["n1"] = [f"row <{number}> is wrong" for number in range(100)]
    html = to_html(judge(history, evidence), evidence)
    assert all(f"row &lt;{number}&gt; is wrong" in html for number in range(100))
    assert "<script" not in html
    assert "http" not in html


def test_a_row_is_named_by_its_object() -> None:
    assert named(keys.object_rows(7, Kind.COUNTER, "crew", "hits") + b"row") == "counter hits in space crew"
    assert named(keys.log(7, Dot(Origin(bytes(range(16))), 3))) == "the log of origin 00010203"
    assert named(keys.CATALOG + b"anything") == "the catalog"


def test_a_directory_without_a_trial_is_refused_by_name(tmp_path: Path) -> None:
    refused = CliRunner().invoke(app, ["judge", str(tmp_path)])
    assert refused.exit_code == 1
    assert "holds no trial" in refused.output
