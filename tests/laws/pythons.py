"""Which Python runs the test of a guard: this one, or that of an integration's environment, where its SDK is.

Laws:
- A test of an integration whose SDK is not installed here runs in the environment of its suite (`tests.integrations.suites`),
  which `make integrations` makes. Without that it cannot be tried, and is told as that: it is no guard that failed.
"""

from __future__ import annotations

import sys
from pathlib import Path, PurePosixPath

from tests.integrations.conftest import collect_ignore
from tests.integrations.suites import ENVIRONMENTS, SUITES

_FOLDERS = {suite.ours: suite.extra for suite in SUITES if PurePosixPath(suite.ours).name in collect_ignore}
"""The environments of the suites that cannot run here, by the folders of their tests."""


def python_of(test: str) -> Path | None:
    """The Python that runs a test; None if it is in an environment that nobody has made."""
    folders = (folder.as_posix() for folder in PurePosixPath(test.partition("::")[0]).parents)
    environment = next((_FOLDERS[folder] for folder in folders if folder in _FOLDERS), None)
    if environment is None:
        return Path(sys.executable)
    python = ENVIRONMENTS / environment / "bin" / "python"
    return python if python.exists() else None
