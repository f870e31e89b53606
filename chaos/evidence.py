"""What a trial leaves to be judged: two files that say all, so that it can be judged again without its nodes.

history.jsonl     one event a line, in the order in which clients learnt of them
evidence.json     the options, the strikes, and what was found on each node afterwards
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from chaos.composed import FAULTS
from chaos.faults import Backend, Strike
from chaos.ledger import Deed, Holding
from chaos.samples import Samples
from shoal.protocol.requests import Durability
from simulation.judging.found import Found
from simulation.judging.history import History, read_line, to_line

_HISTORY, _EVIDENCE = "history.jsonl", "evidence.json"


class Options(msgspec.Struct, kw_only=True, frozen=True):
    """A trial; of `minutes` and `strikes`, the strikes end it if they are given."""

    backend: Backend = "process"
    nodes: int = 3
    minutes: float = 1.0
    strikes: int | None = None
    faults: list[str]
    seed: int
    agents: int = 24
    rate: float = 500.0
    durability: Durability = "local"
    workers: int = 6

    @property
    def loses_disks(self) -> bool:
        """What only one node had may then be gone, though it was shown."""
        return any(FAULTS[name].loses_disks for name in self.faults)

    @property
    def told(self) -> frozenset[str]:
        """What clients may be told because of these faults."""
        return frozenset[str]().union(*(FAULTS[name].told for name in self.faults))


class Recovery(msgspec.Struct):
    """A strike, and what came of it. None: not within the bound."""

    strike: Strike
    back_s: list[float | None]  # From its beginning until each agent of its node was acknowledged a write again.
    healed_s: float | None  # From its end until all nodes held what any of them had then, writes going on.
    equal_s: float | None  # From then, with all agents paused, until the nodes' digests were equal.
    paused_s: tuple[float, float] = (0.0, 0.0)  # From when and until when agents were paused for that; the cluster's clock.


class Evidence(msgspec.Struct, kw_only=True):
    options: Options
    recoveries: list[Recovery] = []
    equal_s: float | None = None  # At the end, until the nodes' digests were equal; None: they were not.
    seconds: float = 0.0  # That agents were at work.
    learners: int = 0  # Nodes that lost their disks, and were admitted as members again.
    samples: Samples = msgspec.field(default_factory=Samples)  # While agents were at work.
    deeds: list[Deed] = []
    damage: dict[str, list[str]] = {}  # By node: what `shoal verify` and the checkers of rows say. Before anything was read.
    unequal: list[str] = []  # Rows that differ between the nodes' directories, likewise.
    founds: dict[str, Found] = {}  # By node, read while no other ran.
    holdings: dict[str, Holding] = {}  # The same.
    skipped: dict[str, str] = {}  # Faults that were asked for, and why they could not be made here.
    not_run: str = ""  # Why the trial could not be run on this machine at all; nothing was tried then.
    trouble: list[str] = []  # What ended the trial before its time.


def save(directory: Path, history: History, evidence: Evidence) -> None:
    with (directory / _HISTORY).open("wb") as lines:
        lines.writelines(to_line(event) for event in history.events)
    (directory / _EVIDENCE).write_bytes(msgspec.json.encode(evidence))


def load(directory: Path) -> tuple[History, Evidence]:
    """
    Raises:
        OSError: the files are not there.
        msgspec.DecodeError: they hold something else.
    """
    with (directory / _HISTORY).open("rb") as lines:
        history = History(read_line(line) for line in lines)
    return history, msgspec.json.decode((directory / _EVIDENCE).read_bytes(), type=Evidence)
