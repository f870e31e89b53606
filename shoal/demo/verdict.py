"""Compare the store's content with an independent recount.

Four accounts of the same survey must agree with the recount, module by module
and to the last function: the document's entries, the counters' sums, the
agents' journals, and the state and number of their checkpoints. Each value that is
missing, doubled or different is one `Disagreement`. Of several nodes each must
agree, and all must hold exactly the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from shoal.client.store import Store
from shoal.demo.agent import DOCUMENT, ROOT, SPACE, counter_name, thread_name
from shoal.demo.survey import Figures, share
from shoal.errors import NotFound
from shoal.kinds.thread.handle.thread import Thread
from shoal.records import NamedTuple


class Disagreement(NamedTuple):
    """One difference between the store and the recount, or between two nodes."""

    where: str
    expected: object
    found: object


class ThreadFound(NamedTuple):
    """One agent's thread, as the store shows it."""

    state: Mapping[str, Any]  # The state of the last checkpoint; empty if there is none.
    checkpoints: int
    heads: Mapping[str, Sequence[str]]
    events: Sequence[Mapping[str, Any]]


class Found(NamedTuple):
    """The four accounts, as the store shows them."""

    entries: Mapping[str, Any]  # The document's map: module → figures.
    counters: Mapping[str, int]
    threads: Sequence[ThreadFound]


async def read_back(store: Store, *, agents: int) -> Found:
    """Read the four accounts.

    Raises:
        ShoalError: the store could not be read.
    """
    space = store.space(SPACE)
    async with await space.document(DOCUMENT) as document:
        entries = document.to_json().get(ROOT, {})
    counters = {figure: await space.counter(counter_name(figure)).value() for figure in Figures._fields}
    threads = [await _read_thread(space.thread(thread_name(agent))) for agent in range(agents)]
    return Found(entries, counters, threads)


async def _read_thread(thread: Thread) -> ThreadFound:
    try:
        state = (await thread.load()).state
    except NotFound:
        return ThreadFound({}, 0, {}, [])
    checkpoints = [checkpoint.id async for checkpoint in thread.history()]
    events = [event.event async for event in thread.journal.read()]
    return ThreadFound(state, len(checkpoints), await thread.heads(), events)


def judge(recounted: Mapping[str, Figures], found: Found) -> list[Disagreement]:
    """The differences of `found` from the recount, whose order is the survey's; empty if they agree."""
    agents = len(found.threads)
    differences = [
        *_in_document(recounted, found.entries),
        *_in_counters(_sum(recounted.values()), found.counters),
    ]
    for number, thread in enumerate(found.threads):
        own = {module: recounted[module] for module in share(list(recounted), number, agents=agents)}
        differences += _in_journal(thread_name(number), own, thread.events)
        differences += _in_thread(thread_name(number), own, thread)
    return differences


def judge_nodes(recounted: Mapping[str, Figures], found: Mapping[str, Found]) -> list[Disagreement]:
    """The differences of several nodes, by name, from the recount and from each other."""
    differences = [
        difference._replace(where=f"{name}: {difference.where}")
        for name, held in found.items()
        for difference in judge(recounted, held)
    ]
    (first, model), *others = found.items()
    for name, held in others:
        differences += [
            difference._replace(where=f"{name} and {first}: {difference.where}") for difference in _between(model, held)
        ]
    return differences


def _between(model: Found, other: Found) -> Iterator[Disagreement]:
    """The differences between two nodes; the recount does not know ids or the order of concurrent events."""
    for module in sorted(model.entries.keys() | other.entries.keys()):
        if other.entries.get(module) != model.entries.get(module):
            yield Disagreement(f"document {DOCUMENT}, {module}", model.entries.get(module), other.entries.get(module))
    for figure, value in model.counters.items():
        if other.counters.get(figure) != value:
            yield Disagreement(f"counter {counter_name(figure)}", value, other.counters.get(figure))
    for number, (ours, theirs) in enumerate(zip(model.threads, other.threads, strict=True)):
        for field in ThreadFound._fields:
            if getattr(theirs, field) != getattr(ours, field):
                yield Disagreement(f"thread {thread_name(number)}, {field}", getattr(ours, field), getattr(theirs, field))


def _sum(figures: Any) -> Figures:
    total = Figures()
    for one in figures:
        total = total.plus(one)
    return total


def _in_document(recounted: Mapping[str, Figures], entries: Mapping[str, Any]) -> Iterator[Disagreement]:
    for module in sorted(recounted.keys() | entries.keys()):
        expected = recounted[module]._asdict() if module in recounted else None
        if entries.get(module) != expected:
            yield Disagreement(f"document {DOCUMENT}, {module}", expected, entries.get(module))


def _in_counters(totals: Figures, counters: Mapping[str, int]) -> Iterator[Disagreement]:
    for figure, expected in totals._asdict().items():
        if counters.get(figure) != expected:
            yield Disagreement(f"counter {counter_name(figure)}", expected, counters.get(figure))


def _in_journal(name: str, own: Mapping[str, Figures], events: Sequence[Mapping[str, Any]]) -> Iterator[Disagreement]:
    times = Counter(event["module"] for event in events)
    for module in sorted(own.keys() | times.keys()):
        expected = int(module in own)
        if times[module] != expected:
            yield Disagreement(f"journal of {name}, events for {module}", expected, times[module])
    for event in events:
        counted = own.get(event["module"])
        if counted is not None and event["figures"] != counted._asdict():
            yield Disagreement(f"journal of {name}, {event['module']}", counted._asdict(), event["figures"])


def _in_thread(name: str, own: Mapping[str, Figures], thread: ThreadFound) -> Iterator[Disagreement]:
    # There must be one checkpoint per module, in one line. If a replay saved a module
    # twice, or two lives forked the thread, it shows here.
    claims: list[tuple[str, object, object]] = [
        ("checkpoints", len(own), thread.checkpoints),
        ("heads of main", int(bool(own)), len(thread.heads.get("main", ()))),
    ]
    if own:
        claims += [
            ("modules done", list(own), thread.state.get("done")),
            ("figures", _sum(own.values())._asdict(), thread.state.get("figures")),
        ]
    for what, expected, actual in claims:
        if actual != expected:
            yield Disagreement(f"thread {name}, {what}", expected, actual)
