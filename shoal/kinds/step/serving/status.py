"""A thread's status over storage."""

from __future__ import annotations

from typing import get_args

from shoal.config import Config
from shoal.crdt.rows import Rows
from shoal.errors import InvalidInput
from shoal.kinds.journal.serving.system_events import tell
from shoal.kinds.step.state import status
from shoal.names import check_name
from shoal.node.checks import check_text
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.protocol.requests import MoveThread, ReadStanding, Standing, ThreadStatus

_STATUSES: tuple[str, ...] = get_args(ThreadStatus)


class StatusHandler:
    """The handler of a thread's status. A move also appends an event to the journal."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {MoveThread: self._check}
        self.writers: Writers = {MoveThread: self._move}
        self.readers: Readers = {ReadStanding: self._read}

    def _check(self, request: MoveThread) -> None:
        check_name("thread", request.thread)
        if request.status not in _STATUSES:
            raise InvalidInput(
                f"status must be one of {', '.join(_STATUSES)}; got {request.status!r}. Nothing was written.", field="status"
            )
        check_text(self._config, request.reason, "a reason")
        check_text(self._config, request.by, "an author")

    def _move(self, context: WriteContext, request: MoveThread) -> Standing:
        change = status.Move(request.status, request.reason, request.by, context.implied_key)
        context.apply(change)
        tell(context, "status", {"status": request.status, "by": request.by, "reason": request.reason})
        return shown(context.rows)

    def _read(self, view: View, _request: ReadStanding) -> Standing:
        return shown(view.rows)


def shown(rows: Rows) -> Standing:
    """The status of a thread as clients get it; `running` if nobody has set one."""
    current = status.current(rows)
    if current is None:
        return Standing("running", "", "", 0)
    return Standing(current.status, current.reason, current.by, current.wall_ms)
