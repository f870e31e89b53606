"""The protocol's public conformance suite, run by vitest on a node of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.cli.conftest import served
from tests.integrations.streams.node import ran

TESTS = 332
OPTIONAL = 6  # Webhook subscriptions, which a server has to ask for.
PROGRAM = """
import { runConformanceTests } from "@durable-streams/server-conformance-tests"
runConformanceTests({ baseUrl: process.env.STREAMS_URL })
"""
SETTINGS = {"SHOAL_ALLOWED_ORIGINS": "*", "SHOAL_STREAM_POLL_S": "2"}  # A test of long-polls has five seconds.


async def test_every_test_of_the_suite_passes(tmp_path: Path, record_property: Any) -> None:
    place = Path(sys.prefix) / "shoal-streams.test.mjs"  # Beside the packages: vitest runs no test elsewhere.
    place.write_text(PROGRAM)
    report = tmp_path / "report.json"
    with served(tmp_path / "state", config=SETTINGS) as (_, url):
        vitest = Path(sys.prefix) / "node_modules" / "vitest" / "vitest.mjs"
        arguments = ["run", place.name, "--reporter=json", f"--outputFile={report}"]
        _, said = await ran(str(vitest), *arguments, url=f"{url}/v1/streams/suite")
    found = json.loads(report.read_text())
    failed = [
        case["fullName"] for file in found["testResults"] for case in file["assertionResults"] if case["status"] == "failed"
    ]
    assert failed == [], said
    assert (found["numPassedTests"], found["numPendingTests"]) == (TESTS, OPTIONAL)
    record_property("checks", TESTS)
