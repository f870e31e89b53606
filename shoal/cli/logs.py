"""Logging of a process that serves, on standard error, in the form that `log_format` names."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable

from shoal.config import Config
from shoal.logs import events
from shoal.logs.forms import JsonForm, TextForm
from shoal.logs.lines import log


def configure(config: Config) -> None:
    """Write the lines of `log_level` and above to standard error, also those of libraries."""
    is_text = config.log_format == "text" or (config.log_format == "auto" and sys.stderr.isatty())
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextForm() if is_text else JsonForm())
    logging.basicConfig(level=logging.getLevelNamesMapping()[config.log_level.upper()], handlers=[handler], force=True)


def warn(warnings: Iterable[str]) -> None:
    """Log what is odd about how this process was started, but does not keep it from starting."""
    for each in warnings:
        log(events.ENVIRONMENT, reason=each)
