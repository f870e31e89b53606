"""Crash-test your own agents with `crash_everywhere`: see docs/TESTING_AGENTS.md."""

from shoal.testing.crash_everywhere import crash_everywhere
from shoal.testing.lives import CrashUnsafe, Point, Problem, Report, Trial

__all__ = ["CrashUnsafe", "Point", "Problem", "Report", "Trial", "crash_everywhere"]
