"""When an agent was acknowledged what, and by which node: what recovery is measured from."""

from __future__ import annotations

from bisect import bisect_right


class Timeline:
    """One agent's. It is noted in the order of time."""

    def __init__(self) -> None:
        self._acknowledged_s: list[float] = []
        self._sent_s: list[float] = []  # Of the same writes.
        self._since_s: list[float] = []
        self._nodes: list[str] = []

    @property
    def node(self) -> str:
        """Where the agent was seen last; empty if nowhere."""
        return self._nodes[-1] if self._nodes else ""

    def acknowledged(self, at_s: float, *, sent_s: float) -> None:
        self._acknowledged_s.append(at_s)
        self._sent_s.append(sent_s)

    def on(self, node: str, at_s: float) -> None:
        self._since_s.append(at_s)
        self._nodes.append(node)

    def node_at(self, at_s: float) -> str:
        nth = bisect_right(self._since_s, at_s)
        return self._nodes[nth - 1] if nth else ""

    def idle_s(self, from_s: float) -> float | None:
        """How long after `from_s` a write that was sent after it was acknowledged; None: never.

        Those sent before do not count: their answers may have been on the way when their node was struck.
        """
        for nth in range(bisect_right(self._acknowledged_s, from_s), len(self._acknowledged_s)):
            if self._sent_s[nth] >= from_s:
                return self._acknowledged_s[nth] - from_s
        return None
