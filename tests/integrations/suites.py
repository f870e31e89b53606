"""The suites of all integrations: which there are, how they are run, and the table of their results.

    python -m tests.integrations.suites            # all
    python -m tests.integrations.suites claude     # some

Laws:
- `SUITES` is the only declaration. A suite runs in an environment of its own (`.venv/integrations/NAME`), because the
  frameworks' requirements clash: with the versions of constraints.txt, but for those that the framework excludes.
- A framework's own tests come from its source distribution, and are run as they are, with a plugin that puts Shoal
  in the place of its own store. A test that cannot hold for another store is deselected by name, with the reason.
- If all passed, their rows in docs/integrations/README.md are written; a suite that was not run keeps its rows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import threading
import time
import venv
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

from tests.integrations.crewai import deselected as crewai_tests
from tests.integrations.openai.deselected import DESELECTED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "integrations" / "README.md"
ENVIRONMENTS = ROOT / ".venv" / "integrations"
BEGIN, END = "<!-- results: written by make integrations -->", "<!-- end of the results -->"
_installing = threading.Lock()  # All environments install this one tree.
PYTEST = ("pytest>=9.2", "pytest-asyncio>=1.5", "hypothesis>=6.170")


@dataclass(frozen=True)
class Theirs:
    """Tests from a framework's source distribution."""

    distribution: str
    version: str
    files: Sequence[str]
    plugin: Path
    requirements: Sequence[str] = ()
    deselected: Mapping[str, Sequence[str]] = field(default_factory=dict)  # Reason → the tests, as `file::name`.


@dataclass(frozen=True)
class Suite:
    """The tests of one integration."""

    name: str  # Of the framework.
    extra: str  # Of this package; of a suite with packages of npm, only its name.
    version: str  # Of the package that is named first among the requirements.
    requirements: Sequence[str]
    ours: str  # The folder of our own tests.
    conformance: str = ""  # Our module that runs the framework's conformance suite.
    unconstrained: Sequence[str] = ()  # Packages whose version in constraints.txt the framework excludes.
    theirs: Theirs | None = None
    packages: Sequence[str] = ()  # Of npm. They stand in `node_modules` of the environment.
    apart: Sequence[str] = ()  # Programs whose requirements clash with ours: an environment within, `apart`.


SUITES = (
    Suite(
        "LangGraph",
        "langgraph",
        "langgraph-checkpoint-conformance 0.0.2",
        ("langgraph>=1.2,<2", "langgraph-checkpoint-conformance==0.0.2", "numpy>=2", "pydantic>=2.12"),
        "tests/integrations/langgraph",
        conformance="tests/integrations/langgraph/test_conformance.py",
    ),
    Suite(
        "LangGraph's server, `langgraph dev`",
        "langgraph-server",
        "langgraph-api 0.16.7",
        ("langgraph-api==0.16.7", "langgraph-cli[inmem]==0.4.40"),
        "tests/integrations/langgraph_server",
        unconstrained=("jsonschema_rs", "protobuf"),
    ),
    Suite(
        "Claude Agent SDK",
        "claude",
        "claude-agent-sdk 0.2.187",
        ("claude-agent-sdk==0.2.187",),
        "tests/integrations/claude",
        conformance="tests/integrations/claude/test_conformance.py",
    ),
    Suite(
        "OpenAI Agents SDK",
        "openai",
        "openai-agents 0.24.0",
        ("openai-agents==0.24.0",),
        "tests/integrations/openai",
        unconstrained=("websockets", "mcp"),
        theirs=Theirs(
            "openai-agents",
            "0.24.0",
            (
                "tests/memory/test_session.py",
                "tests/memory/test_session_limit.py",
                "tests/memory/test_session_context_wrapper.py",
                "tests/memory/test_session_persistence_sanitize.py",
                "tests/memory/test_openai_responses_compaction_session.py",
                "tests/memory/test_compaction_suffix.py",
                "tests/memory/test_compaction_model_visibility.py",
                "tests/extensions/memory/test_advanced_sqlite_session.py",
                "tests/deferred_session_writes",
                "tests/test_hitl_session_scenario.py",
                "tests/test_run_impl_resume_paths.py",
                "tests/test_soft_cancel.py",
            ),
            Path("tests/integrations/openai/sqlite_stand_in.py"),
            ("sqlalchemy>=2", "aiosqlite>=0.21", "inline-snapshot>=0.20.7", "pytest-mock>=3.14"),
            DESELECTED,
        ),
    ),
    Suite(
        "Google ADK",
        "adk",
        "google-adk 2.13.0",
        ("google-adk==2.13.0",),
        "tests/integrations/adk",
        unconstrained=(
            "opentelemetry-api",
            "opentelemetry-sdk",
            "opentelemetry-semantic-conventions",
            "tenacity",
            "websockets",
        ),
    ),
    Suite(
        "Microsoft Agent Framework",
        "microsoft",
        "agent-framework-core 1.23.0",
        ("agent-framework-core==1.23.0",),
        "tests/integrations/microsoft",
    ),
    Suite(
        "Pydantic AI",
        "pydantic-ai",
        "pydantic-ai-slim 2.68.0",
        ("pydantic-ai-slim==2.68.0",),
        "tests/integrations/pydantic",
    ),
    Suite(
        "Pydantic AI Harness",
        "pydantic-harness",
        "pydantic-ai-harness 0.62.0",
        ("pydantic-ai-harness==0.62.0",),
        "tests/integrations/harness",
        unconstrained=("pydantic-ai-slim", "pydantic-graph"),  # It asks for one version, and constraints.txt has the newest.
    ),
    Suite(
        "CrewAI",
        "crewai",
        "crewai 1.15.30",
        ("crewai==1.15.30",),
        "tests/integrations/crewai",
        unconstrained=("aiosqlite", "json-repair", "mcp", "pydantic", "pydantic_core", "regex", "rich"),
        theirs=Theirs(
            "crewai",
            "1.15.30",
            ("tests/test_flow_persistence.py", "tests/test_flow_persistence_factory.py"),
            Path("tests/integrations/crewai/sqlite_stand_in.py"),
            deselected=crewai_tests.DESELECTED,
        ),
    ),
    Suite(
        "AutoGen",
        "autogen",
        "autogen-agentchat 0.7.5",
        ("autogen-agentchat==0.7.5", "autogen-ext==0.7.5"),
        "tests/integrations/autogen",
        unconstrained=("protobuf",),
    ),
    Suite("MCP", "mcp", "mcp 2.3.0", ("mcp==2.3.0",), "tests/integrations/mcp"),
    Suite(
        "Durable Streams",
        "streams",
        "@durable-streams/server-conformance-tests 0.3.6",
        (),
        "tests/integrations/streams",
        conformance="tests/integrations/streams/test_conformance.py",
        packages=("@durable-streams/server-conformance-tests@0.3.6", "@durable-streams/client@0.2.6", "vitest@4.1.12"),
    ),
    Suite(
        "Hocuspocus's providers",
        "hocuspocus",
        "@hocuspocus/provider 2.15.3, 3.4.4 and 4.8.0",
        (),
        "tests/integrations/hocuspocus",
        packages=(
            *(f"provider-{version[0]}@npm:@hocuspocus/provider@{version}" for version in ("2.15.3", "3.4.4", "4.8.0")),
            *("yjs@13.6.33", "ws@8.23.0"),
        ),
    ),
    Suite(
        "Clients generated from the OpenAPI description",
        "openapi",
        "openapi-python-client 0.29.1, openapi-typescript 7.13.0",
        (),
        "tests/integrations/openapi",
        apart=("openapi-python-client==0.29.1", "mypy>=1.18"),
        packages=("openapi-typescript@7.13.0", "openapi-fetch@0.17.0", "typescript@5.9.3", "@types/node@22.19.1"),
    ),
    Suite(
        "Three of them, in examples/support_desk",
        "langgraph,openai,mcp",  # As its page says: a user installs them side by side.
        "langgraph 1.2.22, openai-agents 0.24.0, mcp 2.3.0",
        ("langgraph==1.2.22", "openai-agents==0.24.0", "mcp==2.3.0"),
        "tests/examples/support_desk",
        unconstrained=("websockets",),
    ),
)


@dataclass(frozen=True)
class Result:
    """What one run of pytest counted. A test may stand for several checks of a framework's own suite."""

    passed: int
    failed: int
    skipped: int
    kills: int
    seconds: float


def main(names: Sequence[str]) -> int:
    """Run the suites of these extras, or all, as many at a time as there are processors; the exit status."""
    chosen = [suite for suite in SUITES if not names or suite.extra in names]
    rows, failed = [], 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for suite, found in zip(chosen, pool.map(run, chosen), strict=True):
            for what, result in found:
                failed += result.failed
                rows.append(row(suite, what, result))
                print(f"{rows[-1]} {result.seconds:.0f} s", flush=True)  # noqa: T201
    if not failed:
        PAGE.write_text(written(PAGE.read_text(), rows))
    return 1 if failed else 0


def run(suite: Suite) -> list[tuple[str, Result]]:
    """Run a suite: what was run, and its result. An environment that cannot be made has failed; the other suites go on."""
    try:
        with _installing:
            python = environment(suite)
    except subprocess.CalledProcessError as error:
        print(f"the environment of {suite.name} could not be made: {error}", flush=True)  # noqa: T201
        return [("environment", Result(passed=0, failed=1, skipped=0, kills=0, seconds=0.0))]
    found = []
    if suite.conformance:
        found.append(("conformance", tested(python, suite, [suite.conformance])))
    if suite.theirs is not None:
        found.append(("its own tests", tested_theirs(python, suite, suite.theirs)))
    ours = [suite.ours, *([f"--ignore={suite.conformance}"] if suite.conformance else [])]
    return [*found, ("tests of the integration", tested(python, suite, ours))]


def environment(suite: Suite) -> Path:
    """The Python of the suite's environment, which is made if it is not there."""
    place = ENVIRONMENTS / suite.extra
    python = place / "bin" / "python"
    if not python.exists():
        venv.create(place, with_pip=True)
    constraints = place / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints.write_text("\n".join(line for line in lines if line.split("==")[0] not in suite.unconstrained))
    theirs = suite.theirs.requirements if suite.theirs is not None else ()
    install: tuple[str | Path, ...] = (
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-c",
        constraints,
    )
    # Some tests serve nodes with tokens, some have rules of redaction.
    extras = ("security", "schemas", "redaction", *(() if suite.packages else (suite.extra,)))
    shoal = f".[{','.join(extras)}]"
    _run([*install, "-e", shoal, *PYTEST, *suite.requirements, *theirs])
    if suite.apart:
        venv.create(place / "apart", with_pip=True)
        pip: tuple[str | Path, ...] = (place / "apart" / "bin" / "python", "-m", "pip", "install", "--quiet")
        _run([*pip, "--disable-pip-version-check", *suite.apart])
    if suite.packages:
        _run(["npm", "install", "--silent", "--no-audit", "--no-fund", "--no-save", "--prefix", place, *suite.packages])
    return python


def tested(python: Path, suite: Suite, arguments: Sequence[str]) -> Result:
    """Run our own tests in the suite's environment."""
    return _pytest(python, ENVIRONMENTS / suite.extra / "results.xml", arguments, ROOT, {})


def tested_theirs(python: Path, suite: Suite, theirs: Theirs) -> Result:
    """Run a framework's own tests, from its source distribution."""
    place = ENVIRONMENTS / suite.extra
    source = place / f"{theirs.distribution.replace('-', '_')}-{theirs.version}"
    if not source.exists():
        wanted = f"{theirs.distribution}=={theirs.version}"
        _run([python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "-d", place, wanted])
        with tarfile.open(place / f"{source.name}.tar.gz") as archive:
            archive.extractall(place, filter="data")
    left_out = [f"--deselect={test}" for tests in theirs.deselected.values() for test in tests]
    plugin = ROOT / theirs.plugin
    # Their own configuration, or none: ours is in a folder above, and would be found.
    arguments = ["-c", "pyproject.toml", *theirs.files, *left_out, "-p", plugin.stem]
    return _pytest(python, place / "results.xml", arguments, source, {"PYTHONPATH": str(plugin.parent)})


def row(suite: Suite, what: str, result: Result) -> str:
    """The row of the table."""
    total = result.passed + result.failed
    left_out = 0
    if what == "its own tests" and suite.theirs is not None:
        left_out = sum(map(len, suite.theirs.deselected.values()))
    notes = [
        *([f"{left_out} deselected, see below"] if left_out else []),
        *([f"{result.skipped} skipped"] if result.skipped else []),
        *([f"{result.kills} kills"] if result.kills else []),
    ]
    return f"| {suite.name} | {what} | {suite.version} | {result.passed} of {total} | {', '.join(notes) or 'none'} |"


def written(page: str, rows: Sequence[str]) -> str:
    """The page with these rows in the place of theirs, and the reasons of all that is left out."""
    before = re.search(f"{BEGIN}(.*){END}", page, flags=re.DOTALL)
    kept = re.findall(r"^\|.*\|$", before[1], flags=re.MULTILINE)[2:] if before else []
    named = {_named(row): row for row in [*kept, *rows]}
    order = {suite.name: place for place, suite in enumerate(SUITES)}
    rows = sorted((row for key, row in named.items() if key[0] in order), key=lambda row: order[_named(row)[0]])
    lines = ["| framework | tests | version | passed | left out, and what else |", "|---|---|---|---|---|", *rows]
    for suite in SUITES:
        for reason, tests in (suite.theirs.deselected if suite.theirs is not None else {}).items():
            lines += ["", f"**{suite.name}, left out:** {reason}", "", ", ".join(f"`{test.split('/')[-1]}`" for test in tests)]
    table = "\n".join([BEGIN, "", *lines, "", END])
    return re.sub(f"{BEGIN}.*{END}", lambda _: table, page, flags=re.DOTALL)


def _named(row: str) -> tuple[str, str]:
    """The framework and the tests of a row."""
    _, framework, tests, *_ = (cell.strip() for cell in row.split("|"))
    return framework, tests


def _pytest(python: Path, report: Path, arguments: Sequence[str], place: Path, more: Mapping[str, str]) -> Result:
    began = time.monotonic()
    report.unlink(missing_ok=True)
    command: list[str | Path] = [
        python,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-m",
        "not chaos",
        "-o",
        "junit_family=xunit1",
        f"--junitxml={report}",
        *arguments,
    ]
    ran = subprocess.run(
        command, cwd=place, env={**os.environ, **more}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    print(ran.stdout, flush=True)  # noqa: T201
    if not report.exists():
        raise SystemExit(f"pytest has written no report: {command}")
    return result_of(ElementTree.parse(report).getroot(), time.monotonic() - began)


def result_of(report: ElementTree.Element, seconds: float) -> Result:
    """Count what a report of pytest holds."""
    passed = failed = skipped = kills = 0
    for case in report.iter("testcase"):
        named = {each.get("name"): int(each.get("value", "0")) for each in case.iter("property")}
        checks = named.get("checks", 1)
        kills += named.get("kills", 0)
        if case.find("failure") is not None or case.find("error") is not None:
            failed += checks
        elif case.find("skipped") is not None:
            skipped += 1
        else:
            passed += checks
    return Result(passed, failed, skipped, kills, seconds)


def _run(command: Sequence[str | Path]) -> None:
    subprocess.run(command, cwd=ROOT, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
