"""The report begins with one picture that names what was struck and shows what users felt on the same axis."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from chaos.evidence import Evidence, Recovery
from chaos.faults import Strike
from chaos.judge import judge
from chaos.picture import WIDTH, draw
from chaos.report import to_html
from simulation.judging.history import History


def drawn(evidence: Evidence) -> ElementTree.Element:
    return ElementTree.fromstring(draw(evidence))


def texts(evidence: Evidence) -> list[str]:
    return [element.text or "" for element in drawn(evidence).iter("text")]


@pytest.fixture
def felt(evidence: Evidence) -> Evidence:
    for tenth in range(100):
        evidence.samples.answered("write", asked_s=tenth / 10, now_s=tenth / 10 + 0.02)
    evidence.samples.failed("no-quorum", now_s=1.2)
    evidence.samples.behind("n1", 1.5, now_s=2.0)
    return evidence


def test_the_report_begins_with_the_picture(history: History, felt: Evidence) -> None:
    html = to_html(judge(history, felt), felt)
    assert html.index("<svg") < html.index("<table")
    assert "Struck in 10 s: kill of n1." in html
    assert "Errors that they were told: 1 no-quorum." in html


def test_the_picture_names_strikes_nodes_errors_and_peaks(felt: Evidence) -> None:
    assert {"kill", "n1", "n2", "n3", "no-quorum", "n1 1.5 s"} <= set(texts(felt))


def test_a_strike_lies_in_the_row_of_its_node(felt: Evidence) -> None:
    [strike] = [group for group in drawn(felt).iter("g") if (group.findtext("title") or "").startswith("strike 1: kill on n1")]
    bar = strike.findall("rect")[-1]
    [row] = [element for element in drawn(felt).iter("text") if element.text == "n1" and element.get("class") == "title"]
    assert 0 <= float(row.get("y", 0)) - float(bar.get("y", 0)) <= 20


def test_a_fault_and_a_node_of_any_name_are_drawn_and_escaped(felt: Evidence) -> None:
    strike = Strike("clock<+120s>", "n4, n5", 3.0, 5.0, 6.0)
    felt.recoveries.append(Recovery(strike, [], None, None))
    assert {"clock<+120s>", "n4", "n5"} <= set(texts(felt))


def test_nothing_is_drawn_beyond_the_picture(felt: Evidence) -> None:
    felt.recoveries.append(Recovery(Strike("kill", "n1", -5.0, 50.0, 60.0), [], 9.0, 1.0, (60.0, 70.0)))
    for rect in drawn(felt).iter("rect"):
        assert 0 <= float(rect.get("x", 0)) <= float(rect.get("x", 0)) + float(rect.get("width", 0)) <= WIDTH


def test_a_trial_without_samples_is_drawn(evidence: Evidence) -> None:
    assert "none" in texts(evidence)


def test_only_the_last_column_of_a_table_breaks_words(history: History, evidence: Evidence) -> None:
    style = to_html(judge(history, evidence), evidence).split("<style>")[1].split("</style>")[0]
    breaking = [line for line in style.splitlines() if "anywhere" in line]
    assert [line.split("{")[0].strip() for line in breaking] == ["td:last-child"]


def test_the_picture_has_colours_for_a_dark_page(evidence: Evidence) -> None:
    assert "prefers-color-scheme: dark" in draw(evidence)
