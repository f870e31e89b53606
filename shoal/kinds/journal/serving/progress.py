"""The progress of loops over storage."""

from __future__ import annotations

from shoal.config import Config
from shoal.errors import InvalidInput, TooLarge
from shoal.kinds.journal.state import progress
from shoal.names import check_key, check_name
from shoal.node.handler import Checks, Readers, View, WriteContext, Writers
from shoal.protocol.requests import Place, ReachPlace, ReadPlace


class ProgressHandler:
    """The handler of `ReachPlace` and `ReadPlace`."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self.checks: Checks = {ReachPlace: self._check}
        self.writers: Writers = {ReachPlace: self._reach}
        self.readers: Readers = {ReadPlace: self._read}

    def _check(self, request: ReachPlace) -> None:
        check_name("thread", request.thread)
        check_key("loop key", request.key)
        if not 0 <= request.place <= progress.NUMBER_MAX:
            raise InvalidInput(f"a place must be a number from 0; got {request.place}. Nothing was written.")

    def _reach(self, context: WriteContext, request: ReachPlace) -> Place:
        """Record how far a loop has come; a lower place changes nothing unless the loop restarts.

        Raises:
            TooLarge: `loops_max` loops of this thread have stored progress.
        """
        before = progress.find(context.rows, request.key)
        if not request.restart and request.place <= before.place:
            return Place(before.place)
        if before == progress.LoopProgress() and progress.count(context.rows, self._config.loops_max) == self._config.loops_max:
            raise TooLarge(
                f"{self._config.loops_max} loops of thread {request.thread!r} have stored progress, which is the maximum. "
                "Nothing was written. Use the same key for a loop in every run."
            )
        change = progress.Reach(request.key, before.generation + request.restart, request.place)
        context.apply(change)
        return Place(request.place)

    def _read(self, view: View, request: ReadPlace) -> Place:
        check_key("loop key", request.key)
        return Place(progress.find(view.rows, request.key).place)
