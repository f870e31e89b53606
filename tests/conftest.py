"""What every test relies on, however the suite was started."""

from __future__ import annotations

import signal

from hypothesis import settings

# No example has a deadline: how long one takes says more of the machine than of the program. Each run draws the same
# examples, so that it fails where a change is wrong, and not by chance; `pytest --hypothesis-profile=explore` draws new ones.
settings.register_profile("explore", deadline=None)
settings.register_profile("shoal", deadline=None, derandomize=True)
settings.load_profile("shoal")


def pytest_configure() -> None:
    """Let SIGINT interrupt, also in the processes that tests start.

    A shell without job control starts `make test &` with SIGINT ignored, and Python leaves it so.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
