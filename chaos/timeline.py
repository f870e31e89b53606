"""When an agent was acknowledged what, and by which node: what recovery is measured from."""

from __future__ import annotations

from bisect import bisect_right


class Timeline:
    """One agent's. Times only grow."""

    def __init__(self) -> None:
        self._acknowledged_s: list[float] = []
        self._since_s: list[float] = []
        self._nodes: list[str] = []

    @property
    def node(self) -> str:
        """Where the agent was seen last; empty if nowhere."""
        return self._nodes[-1] if self._nodes else ""

    def acknowledged(self, at_s: float) -> None:
        self._acknowledged_s.append(at_s)

    def on(self, node: str, at_s: float) -> None:
        self._since_s.append(at_s)
        self._nodes.append(node)

    def node_at(self, at_s: float) -> str:
        nth = bisect_right(self._since_s, at_s)
        return self._nodes[nth - 1] if nth else ""

    def idle_s(self, from_s: float) -> float | None:
        """How long after `from_s` the next write was acknowledged; None: never."""
        nth = bisect_right(self._acknowledged_s, from_s)
        return self._acknowledged_s[nth] - from_s if nth < len(self._acknowledged_s) else None
