"""Requests that fit the OpenAPI description, and requests that do not, sent to a node by Schemathesis: `make described`.

    python -m tests.described SECONDS     # 1,200 by default

Once to a node that asks for no token, once without a token to one that asks for one. An answer counts as wrong if its status is
500, or one that the description does not name, or if its type is another one. The exit code is 0 if none is.

Schemathesis is in an environment of its own, `.venv/schemathesis`, because its requirements are not those of the tests.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.cli.conftest import served

ROOT = Path(__file__).parents[1]
_PLACE = ROOT / ".venv" / "schemathesis"
_VERSION = "4.32.5"
_SECONDS = 1200
# 503 is described: a write whose deadline has passed, for example, or a node that does not have what it must know.
_SETTINGS = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""
_CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance"


def tried(directory: Path, seconds: int, *options: str) -> int:
    """Try a node on this directory for so long. Returns Schemathesis's exit code."""
    settings = directory / "schemathesis.toml"
    settings.write_text(_SETTINGS)
    with served(directory / "state", *options) as (_, url):
        command = [str(_PLACE / "bin" / "schemathesis"), "--config-file", str(settings), "run", f"{url}/v1/openapi.json"]
        return subprocess.run([*command, "--url", url, "--checks", _CHECKS, "--max-time", str(seconds)], check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Return the exit code."""
    seconds = int(arguments[0]) if arguments else _SECONDS
    if not (_PLACE / "bin" / "schemathesis").exists():
        subprocess.run([sys.executable, "-m", "venv", _PLACE], check=True)
        subprocess.run([_PLACE / "bin" / "pip", "install", "-q", f"schemathesis=={_VERSION}"], check=True)
    with tempfile.TemporaryDirectory(prefix="shoal-described-") as directory:
        open_, closed = Path(directory) / "open", Path(directory) / "closed"
        for each in (open_, closed):
            each.mkdir()
        subprocess.run(
            [sys.executable, "-m", "shoal", "token", "init", str(closed / "tokens")], check=True, capture_output=True
        )
        codes = [
            tried(open_, seconds // 2),
            tried(closed, seconds // 2, "--token-keys", str(closed / "tokens" / "keys.json")),
        ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
