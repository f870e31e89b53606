"""`python -m chaos.skewed …` is `shoal …` with a wall clock that somebody else sets, while it runs.

The file that `CLOCK` names has eight bytes: by how many nanoseconds the clock is ahead. Clocks that measure how long
something takes go on as they do: a clock that is set on a machine leaves them alone, too.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from unittest.mock import patch

from shoal.cli.main import main

CLOCK = "CHAOS_CLOCK"


def run() -> None:
    """Read the file's bytes from memory: a node asks for the time often."""
    with open(os.environ[CLOCK], "rb") as file:
        ahead = mmap.mmap(file.fileno(), 8, prot=mmap.PROT_READ)
    real_ns = time.time_ns

    def time_ns() -> int:
        [ahead_ns] = struct.unpack_from("=q", ahead)
        return real_ns() + int(ahead_ns)

    with patch.multiple(time, time_ns=time_ns, time=lambda: time_ns() / 1e9):
        main()


if __name__ == "__main__":
    run()
