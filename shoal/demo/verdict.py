"""Compare stores with an independent recount, and with each other.

Four accounts of the same survey must agree with the recount, module by module and to the last function: the document's entries,
the counters' sums, the agents' journals, and the state and number of their checkpoints. Each value that is missing, doubled or
different is one `Disagreement`. Of several nodes each must agree, and all must hold exactly the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from shoal.client.store import Store
from shoal.demo.crew import DOCUMENT, ROOT, SPACE, Figures, counter_name, share, thread_name
from shoal.errors import NotFound
from shoal.kinds.thread.handle.thread import Thread
from shoal.records import NamedTuple

Accounts = dict[str, Any]  # Where → the value there.


class Disagreement(NamedTuple):
    """One difference between a store and the recount, or between two nodes."""

    where: str
    expected: object
    found: object


class Found(NamedTuple):
    """The survey, as a store holds it."""

    accounts: Accounts  # That the recount knows, too.
    exact: Accounts  # That only another node knows: ids, and the order of concurrent events.
    checkpoints: int
    bytes_on_disk: int


async def read_back(store: Store, *, agents: int) -> Found:
    """Read the four accounts.

    Raises:
        ShoalError: the store could not be read.
    """
    space, exact, checkpoints = store.space(SPACE), {}, 0
    async with await space.document(DOCUMENT) as document:
        accounts = {_entry(module): figures for module, figures in document.to_json().get(ROOT, {}).items()}
    for figure in Figures._fields:
        accounts[counter_name(figure)] = await space.counter(counter_name(figure)).value()
    for name in map(thread_name, range(agents)):
        found, exact[name] = await _read_thread(name, space.thread(name))
        accounts |= found
        checkpoints += found.get(f"{name}, checkpoints", 0)
    return Found(accounts, exact, checkpoints, (await store.status()).bytes_on_disk)


async def _read_thread(name: str, thread: Thread) -> tuple[Accounts, object]:
    try:
        state = (await thread.load()).state
    except NotFound:
        return {}, None
    events = [event.event async for event in thread.journal.read()]
    heads = await thread.heads()
    accounts: Accounts = {
        f"{name}, checkpoints": len([checkpoint async for checkpoint in thread.history()]),
        f"{name}, heads": {branch: len(ids) for branch, ids in heads.items()},
        f"{name}, modules done": state["done"],
        f"{name}, figures": state["figures"],
    }
    for event in events:
        accounts.setdefault(f"{name}, events for {event['module']}", []).append(event["figures"])
    return accounts, (heads, state, events)


def expected(recounted: Mapping[str, Figures], *, agents: int) -> Accounts:
    """The accounts that the recount demands; its order is the survey's."""
    accounts: Accounts = {_entry(module): figures._asdict() for module, figures in recounted.items()}
    accounts |= {counter_name(figure): value for figure, value in _sum(recounted.values()).items()}
    for number in range(agents):
        name, own = thread_name(number), share(list(recounted), number, agents=agents)
        if own:
            # One checkpoint per module, in one line: a module that was saved twice, or two lives that forked the thread, show.
            accounts |= {f"{name}, checkpoints": len(own), f"{name}, heads": {"main": 1}, f"{name}, modules done": own}
            accounts |= {f"{name}, figures": _sum(recounted[module] for module in own)}
            accounts |= {f"{name}, events for {module}": [recounted[module]._asdict()] for module in own}
    return accounts


def judge(recounted: Mapping[str, Figures], found: Mapping[str, Found], *, agents: int) -> list[Disagreement]:
    """The differences of each store, by name, from the recount, and from the first store."""
    first, model = next(iter(found.items()))
    differences: list[Disagreement] = []
    for name, held in found.items():
        differences += _between(expected(recounted, agents=agents), held.accounts, name)
        differences += _between(model.exact, held.exact, f"{name} and {first}")
    return differences


def _between(expected: Accounts, found: Accounts, whose: str) -> Iterator[Disagreement]:
    for where in expected | found:
        if expected.get(where) != found.get(where):
            yield Disagreement(f"{whose}: {where}", expected.get(where), found.get(where))


def _entry(module: str) -> str:
    return f"{DOCUMENT}, {module}"


def _sum(figures: Iterable[Figures]) -> Mapping[str, int]:
    return Figures(*map(sum, zip(Figures(), *figures, strict=True)))._asdict()
