"""Real editing traces give the content that they ended with: one author's through a mirror, two authors' on two nodes.

Where the traces are not there, a made one stands in for them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pycrdt
import pytest

import shoal
from benchmarks import edits
from benchmarks.edits import Trace, Transaction
from shoal.kinds.document.state.live import merged
from shoal.protocol.requests import DocumentJson, Follow, Push, ReadDocumentJson, Update
from shoal.protocol.session import Session
from simulation.world.fleet import Fleet

pytestmark = pytest.mark.virtual_time

PATIENCE_S = 60
TICK = 200  # Edits between two turns of the event loop.


class Run(NamedTuple):
    """Transactions of one author as one update."""

    end: int  # How many it had made by then.
    update: bytes


MADE = edits.parse(
    {
        "numAgents": 2,
        "endContent": "hé two wörlds!",
        "txns": [
            {"agent": 0, "parents": [], "patches": [[0, 0, "hé wörld"]]},
            {"agent": 0, "parents": [0], "patches": [[8, 0, "!"]]},
            {"agent": 1, "parents": [0], "patches": [[2, 0, " two"]]},
            {"agent": 1, "parents": [1, 2], "patches": [[12, 0, "s"]]},
        ],
    }
)


def concurrent() -> Iterator[Any]:
    yield MADE
    source = edits.directory()
    if source is not None:
        yield pytest.param(edits.read(source, edits.CONCURRENT), marks=pytest.mark.thorough)


def sequential() -> Iterator[Trace]:
    yield edits.parse({"endContent": "a😀c", "txns": [{"patches": [[0, 0, "abc"]]}, {"patches": [[1, 1, "é"], [1, 1, "😀"]]}]})
    source = edits.directory()
    if source is not None:
        yield from (edits.read(source, name) for name in edits.SEQUENTIAL if name != "automerge-paper")


@pytest.mark.real_time("files")
async def test_one_authors_traces_end_as_they_ended(tmp_path: Path) -> None:
    """The longest one is `benchmarks/documents.py`'s."""
    async with shoal.open(tmp_path / "state") as store:
        for index, trace in enumerate(sequential()):
            async with await store.space("s").document(f"d{index}") as document:
                text = document.text("t")
                text.insert(0, trace.start)
                for number, transaction in enumerate(trace.transactions):
                    edits.type_characters(text, transaction)
                    if number % TICK == 0:
                        await asyncio.sleep(0)
            async with await store.space("s").document(f"d{index}") as again:
                assert again.to_py() == {"t": trace.end}


class Author:
    """A Yjs client of one node, which is shown no more of the other author's than the trace says it had seen."""

    def __init__(self, session: Session, client_id: int, pushes: AsyncIterator[Push]) -> None:
        self.doc: pycrdt.Doc[Any] = pycrdt.Doc(client_id=client_id)
        self.text = self.doc.get("t", type=pycrdt.Text)
        self.shown = bytearray()
        self.runs: list[Run] = []  # What it sent.
        self.made = self.taken = 0  # Transactions of its own, and runs of the other's.
        self._session, self._pushes = session, pushes
        self._unsent: list[bytes] = []
        self.doc.observe(self._edited)
        self._typing = False

    def _edited(self, event: pycrdt.TransactionEvent) -> None:
        if self._typing:
            self._unsent.append(event.update)

    def type(self, transaction: Transaction) -> None:
        self._typing = True
        with self.doc.transaction():
            edits.type_in(self.text, self.shown, transaction)
        self._typing = False
        self.made += 1

    async def send(self) -> None:
        """Send what was typed since the last time, to its node."""
        if self._unsent:
            self.runs.append(Run(self.made, merged(self._unsent)))
            self._unsent = []
            await self._session.call(Update("s", "d", self.runs[-1].update, {"t": "text"}))

    async def see(self, other: Author, count: int) -> None:
        """Wait until so many transactions of the other's are here, at its own node, and take those and no more."""
        while self.taken < len(other.runs) and other.runs[self.taken].end <= count:
            run = other.runs[self.taken]
            async with asyncio.timeout(PATIENCE_S):
                while getattr(await anext(self._pushes), "update", b"") != run.update:
                    pass
            self.doc.apply_update(run.update)
            self.shown[:] = str(self.text).encode()
            self.taken += 1


def knowledge(trace: Trace) -> list[list[int]]:
    """Per transaction, how many of each agent's its author had seen, itself included."""
    known: list[list[int]] = []
    for transaction in trace.transactions:
        seen = [max((known[parent][agent] for parent in transaction.parents), default=0) for agent in (0, 1)]
        seen[transaction.agent] += 1
        known.append(seen)
    return known


async def replay(trace: Trace, one: Author, other: Author) -> None:
    known, both = knowledge(trace), (one, other)
    # What the other saw ends a run; its own transactions see each of its own.
    looked_at = [
        {seen[agent] for at, seen in zip(trace.transactions, known, strict=True) if at.agent != agent} for agent in (0, 1)
    ]
    for transaction, seen in zip(trace.transactions, known, strict=True):
        agent = transaction.agent
        await both[agent].see(both[1 - agent], seen[1 - agent])
        both[agent].type(transaction)
        if both[agent].made in looked_at[agent]:
            await both[agent].send()
    for author in both:
        await author.send()


@pytest.mark.parametrize("trace", [*concurrent()], ids=lambda trace: f"{len(trace.transactions)} transactions")
async def test_two_authors_on_two_nodes_end_as_they_ended_on_every_node(trace: Trace) -> None:
    async with Fleet() as fleet:
        one, other = (fleet[name].node.session() for name in "ab")
        async with one.subscribe(Follow("s", "d")) as ones, other.subscribe(Follow("s", "d")) as others:
            # The first has the lesser client id, as where the traces were recorded.
            await replay(trace, Author(one, 1, ones), Author(other, 2, others))
        await fleet.converged(PATIENCE_S)
        for name in "abc":
            shown = await fleet[name].node.session().call(ReadDocumentJson("s", "d"))
            assert isinstance(shown, DocumentJson)
            assert json.loads(shown.json) == {"t": trace.end}
