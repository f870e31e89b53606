"""A program that is killed: it runs a flow again and again, each time from the state that was stored last."""

from __future__ import annotations

import sys
import warnings
from contextlib import redirect_stdout
from typing import Any

from crewai.flow.flow import Flow, FlowState, listen, start
from crewai.flow.persistence import FlowPersistence, persist
from pydantic import Field

from shoal.integrations.crewai import ShoalFlowPersistence

FLOW = "trial"


class Counted(FlowState):
    """What was begun, and what was counted."""

    counted: list[int] = Field(default_factory=list)
    begun: int = 0


def flow_on(persistence: FlowPersistence) -> Flow[Any]:
    """A flow that adds the next number, in two steps."""

    @persist(persistence)
    class Counting(Flow[Counted]):
        @start()
        def begin(self) -> None:
            self.state.begun = len(self.state.counted) + 1

        @listen(begin)
        def count(self) -> None:
            self.state.counted = [*self.state.counted, len(self.state.counted)]

    return Counting(persistence=persistence, suppress_flow_events=True)


def turn_on(persistence: FlowPersistence) -> None:
    with redirect_stdout(sys.stderr):  # CrewAI tells there what it loads.
        flow_on(persistence).kickoff(inputs={"id": FLOW})


def main(urls: str, turns: int) -> None:
    warnings.simplefilter("ignore")
    with ShoalFlowPersistence.connect(urls, durability="quorum", wait=30) as persistence:
        first = len((persistence.load_state(FLOW) or {}).get("counted", []))
        print("began", first, flush=True)  # noqa: T201
        for turn in range(first, turns):
            turn_on(persistence)
            print("acknowledged", turn, flush=True)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
