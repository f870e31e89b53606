"""The cost of TLS and tokens on a session: the processor's time for a save with both and with neither, in alternating pairs."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import tls
from benchmarks.figures import Effort, Section
from shoal.access import grants, keys
from shoal.access.bearer import TOKEN_BYTES_MAX
from shoal.tls import authority


def run(effort: Effort) -> Section:
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        authority.found(place / "tls", now=datetime.now(UTC))
        authority.issue(place / "tls", "n1", now=datetime.now(UTC))
        options = ("--token-keys", str(place / "tokens" / keys.KEYS))
        figures = tls.compared(
            effort, place, place / "tls", plain="open", closed="TLS and tokens", options=options, token=_token(place)
        )
        return Section("Access on a session", _METHOD, figures)


_METHOD = (
    "As for TLS; the token grants to write threads in one space, and each save is checked against it. Processor time of both "
    "processes, user and system, in alternating pairs."
)


def _token(place: Path) -> Path:
    keys.found(place / "tokens")
    _, text = keys.issue(
        place / "tokens",
        "bench",
        [grants.parsed("bench:thread:read,write")],
        cluster="shoal",
        now_s=time.time(),
        lasts_s=3600.0,
        entropy=os.urandom,
        bytes_max=TOKEN_BYTES_MAX,
    )
    file = place / "bench.token"
    file.write_text(text)
    return file
