"""docs/operate/traces.md: its program prints as the page shows, its command reaches a collector; and docs/TRACES.md."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from shoal.traces.spans import ATTRIBUTES, SPANS
from tests import spans
from tests.cli.conftest import PATIENCE_S, clean_environment
from tests.traces.collector import collecting

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "operate" / "traces.md").read_text()


def block(language: str, beginning: str = "") -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    return next(str(each) for each in found if each.startswith(beginning))


def names(printed: str) -> list[str]:
    return [re.sub(r": [\d.]+ ms$", "", line) for line in printed.splitlines()]


def test_the_program_prints_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "turn.py").write_text(block("python"))
    command = [sys.executable, "turn.py"]
    done = subprocess.run(command, env=clean_environment(), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert names(done.stdout) == names(block("", "  shoal.queue"))


def test_the_command_reaches_a_collector(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the exporter is not installed")
    line = block("sh", "OTEL_").strip()
    with collecting() as collected:
        line = line.replace("http://127.0.0.1:4318", collected.url) + " --listen 127.0.0.1:0"
        assert collected.url in line
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with subprocess.Popen(
            ["sh", "-c", f"exec env {line}"],
            env={**clean_environment(), "PATH": path},
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            with urllib.request.urlopen(f"{url}/v1/spaces/crew/counters/tokens") as response:
                assert response.status == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0
    # What is not sent yet is sent at the end.
    ends_at = time.monotonic() + PATIENCE_S
    while len(collected.spans) < 3 and time.monotonic() < ends_at:
        time.sleep(0.05)
    assert {span.name for span in collected.spans} >= {"GET /v1/spaces/{space}/counters/{counter}", "shoal read-counter"}
    assert {resource["service.name"] for resource in collected.resources} == {"shoal"}


def test_each_attribute_of_a_span_is_described() -> None:
    named = {attribute for row in SPANS for attribute in row.attributes}
    assert named == {row.name for row in ATTRIBUTES}
    assert len({row.name for row in SPANS}) == len(SPANS)
    assert all(f"| `{row.name}` |" in spans.page() for row in (*SPANS, *ATTRIBUTES))
