"""The cost of TLS and tokens on a session: the processor's time for a save with both and with neither, in alternating pairs."""

from __future__ import annotations

import os
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import tls
from benchmarks.figures import Effort, Figure, Section, Target
from shoal.access import grants, keys
from shoal.config import Config
from shoal.tls import authority


def run(effort: Effort) -> Section:
    pairs = []
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        authority.found(place / "tls", now=datetime.now(UTC))
        authority.issue(place / "tls", "n1", now=datetime.now(UTC))
        token = _token(place)
        options = ("--token-keys", str(place / "tokens" / keys.KEYS))
        for number in range(max(tls.PAIRS_MIN, effort.repeats)):
            found = {}
            for closed in (False, True) if number % 2 else (True, False):
                data = place / f"{number}-{closed}"
                if closed:
                    found[closed] = tls.measured(data, place / "tls", options=options, token=token)
                else:
                    found[closed] = tls.measured(data, None)
            pairs.append((found[True], found[False]))
    kept = tuple(sum(plain) / sum(closed) for closed, plain in pairs)
    figures = [
        Figure("a save's processor time at the node, open", "µs", tuple(plain.node for _, plain in pairs)),
        Figure("the same with TLS and tokens", "µs", tuple(closed.node for closed, _ in pairs)),
        Figure("a save's processor time at the client, open", "µs", tuple(plain.client for _, plain in pairs)),
        Figure("the same with TLS and tokens", "µs", tuple(closed.client for closed, _ in pairs)),
        Figure("saves per processor second with TLS and tokens ÷ without", "", kept, Target("≥", 0.9)),
    ]
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
        bytes_max=Config().token_bytes_max,
    )
    file = place / "bench.token"
    file.write_text(text)
    return file
