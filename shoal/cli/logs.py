"""Logging of a process that serves, on standard error, in the form that `log_format` names.

Law: a process never waits for whoever reads its standard error. Lines that nobody reads are left out, and counted.
"""

from __future__ import annotations

import logging
import os
import select
import sys
from collections.abc import Iterable
from typing import TextIO

from shoal.config import Config
from shoal.logs import events
from shoal.logs.forms import JsonForm, TextForm
from shoal.logs.lines import log


class UnreadHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream; of one without a file descriptor, as `logging` does."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._unread = 0  # Lines that were left out, and not told yet.
        self._is_torn = False  # Only a part of the last line was written.

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line of a record, if that does not block. A disk that is full, or a stream that is closed, is no error."""
        try:
            into = self.stream.fileno()
        except (OSError, ValueError, AttributeError):  # In a program that has put another stream there.
            super().emit(record)
            return
        try:
            if self._unread and _is_ready(into):
                unread, self._unread = self._unread, 0
                log(events.LINES_UNREAD, count=unread)
            self._write(into, f"{self.format(record)}{self.terminator}".encode(errors="backslashreplace"))
        except OSError:
            self._unread += 1

    def _write(self, into: int, line: bytes) -> None:
        line = b"\n" + line if self._is_torn else line
        for start in range(0, len(line), select.PIPE_BUF):  # So much is written without waiting where anything is.
            if not _is_ready(into):
                raise BlockingIOError
            os.write(into, line[start : start + select.PIPE_BUF])
            self._is_torn = True
        self._is_torn = False


def _is_ready(into: int) -> bool:
    """Whether a write does not block; one that fails at once does not."""
    asked = select.poll()
    asked.register(into, select.POLLOUT)
    return bool(asked.poll(0))


def configure(config: Config) -> None:
    """Write the lines of `log_level` and above to standard error, also those of libraries."""
    is_text = config.log_format == "text" or (config.log_format == "auto" and sys.stderr.isatty())
    handler = UnreadHandler(sys.stderr)
    handler.setFormatter(TextForm() if is_text else JsonForm())
    logging.basicConfig(level=logging.getLevelNamesMapping()[config.log_level.upper()], handlers=[handler], force=True)


def warn(warnings: Iterable[str]) -> None:
    """Log what is odd about how this process was started, but does not keep it from starting."""
    for each in warnings:
        log(events.ENVIRONMENT, reason=each)
