"""Every suite is on the page of results, and results are counted as they are."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.integrations import suites

REPORT = """<testsuites><testsuite>
<testcase name="a"/><testcase name="b"><failure/></testcase>
<testcase name="c"><error/></testcase><testcase name="d"><skipped/></testcase>
<testcase name="e"><properties><property name="checks" value="14"/><property name="kills" value="50"/></properties></testcase>
</testsuite></testsuites>"""


@pytest.mark.parametrize("suite", suites.SUITES, ids=lambda suite: suite.extra)
def test_a_suite_is_on_the_page_with_all_that_it_leaves_out(suite: suites.Suite) -> None:
    page = suites.PAGE.read_text()
    assert f"| {suite.name} | " in page
    assert suite.version in page
    for reason, tests in (suite.theirs.deselected if suite.theirs is not None else {}).items():
        assert reason in page
        for test in tests:
            assert f"`{test.split('/')[-1]}`" in page


def test_a_report_is_counted() -> None:
    counted = suites.result_of(ElementTree.fromstring(REPORT), 1.0)
    assert counted == suites.Result(passed=15, failed=2, skipped=1, kills=50, seconds=1.0)


def test_an_environment_that_cannot_be_made_ends_no_other_suite(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def environment(suite: suites.Suite) -> Path:
        raise subprocess.CalledProcessError(1, "pip install")

    monkeypatch.setattr(suites, "environment", environment)
    before = suites.PAGE.read_text()
    assert suites.main([suites.SUITES[0].extra, suites.SUITES[2].extra]) == 1
    told = capsys.readouterr().out
    for suite in (suites.SUITES[0], suites.SUITES[2]):
        assert f"| {suite.name} | environment | {suite.version} | 0 of 1 |" in told
    assert suites.PAGE.read_text() == before


def test_results_replace_those_of_the_same_tests() -> None:
    first, second, *_ = [suite.name for suite in suites.SUITES]
    head = "| framework | tests | version | passed | left out, and what else |\n|---|---|---|---|---|"
    page = f"# A\n{suites.BEGIN}\n{head}\n| {second} | x | 1 | 1 of 1 | none |\n| gone | x | 1 | |\n{suites.END}\nrest\n"
    written = suites.written(page, [f"| {first} | x | 1 | 2 of 2 | none |", f"| {first} | y | 1 | 3 of 3 | none |"])
    assert [row.split(" | ")[:2] for row in written.splitlines() if row.startswith("| ")][1:] == [
        [f"| {first}", "x"],
        [f"| {first}", "y"],
        [f"| {second}", "x"],
    ]
    assert written.endswith("rest\n")
    assert suites.written(written, [f"| {second} | x | 1 | 1 of 1 | none |"]) == written
    assert "9 of 9" in suites.written(written, [f"| {second} | x | 1 | 9 of 9 | none |"])


@pytest.mark.parametrize(
    ("package", "sdk", "extra"),
    [
        ("adk", "google.adk.sessions", "adk"),
        ("pydantic", "pydantic_ai", "pydantic-ai"),
        ("harness", "pydantic_ai_harness", "pydantic-harness"),
        ("claude", "claude_agent_sdk", "claude"),
        ("crewai", "crewai.flow.persistence", "crewai"),
        ("microsoft", "agent_framework", "microsoft"),
        ("openai", "agents", "openai"),
    ],
)
def test_a_missing_sdk_says_what_to_install(package: str, sdk: str, extra: str) -> None:
    program = f"import sys; sys.modules[{sdk!r}] = None; import shoal.integrations.{package}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"pip install '.[{extra}]'" in ended.stderr
