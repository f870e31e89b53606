"""An agent that charges and notifies customers: once as one writes it first, and once so that it survives every crash.

    python examples/crash_safe_agent.py

`crash_everywhere` kills each at every request and every effect, starts it again, and
compares with a run without a crash. The first one charges twice; the second one does not:

- It saves its position, so that it goes on where it was.
- It writes down what it is about to do, and what it has done, under keys.
- What was begun and not noted as done is open: it asks the other side, or uses a key
  that the other side knows. Nobody else can tell.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from shoal import Journal, Store
from shoal.errors import NotFound
from shoal.testing import Report, crash_everywhere

ORDERS = [("order-1", 120), ("order-2", 80)]

Call = Callable[..., Awaitable[Any]]


async def naive(store: Store, charge: Call, notify: Call, **_: Call) -> None:
    shop = store.space("shop")
    thread = shop.thread("checkout")
    for order, amount in ORDERS:
        await charge(order, amount)
        await shop.counter("revenue").add(amount)
        await notify(order, "paid")
        await thread.journal.append({"done": order})
    await thread.save({"orders": len(ORDERS)})


async def mended(store: Store, charge: Call, notify: Call, was_notified: Call) -> None:
    shop = store.space("shop")
    thread = shop.thread("checkout")
    try:
        done = (await thread.load()).state["orders"]
    except NotFound:
        done = 0  # The first start.
    for order, amount in ORDERS[done:]:
        await charge(order, amount, key=order)  # The payment service does one charge per key.
        await shop.counter("revenue").add(amount, key=order)
        await once(
            thread.journal,
            f"notify-{order}",
            effect=lambda order=order: notify(order, "paid"),
            happened=lambda order=order: was_notified(order),
        )
        await thread.journal.append({"done": order}, key=order)
        done += 1
        await thread.save({"orders": done})


async def once(journal: Journal, key: str, *, effect: Call, happened: Call) -> None:
    """An effect whose other side knows no keys: noted before and after, and asked for where a crash left it open."""
    noted = {event.key async for event in journal.read()}
    if f"{key}/done" in noted:
        return
    if f"{key}/begun" not in noted or not await happened():
        await journal.append({"begun": key}, key=f"{key}/begun")
        await effect()
    await journal.append({"done": key}, key=f"{key}/done")


def world() -> dict[str, Call]:
    """The tools, and what they change: made anew for each run, and untouched by the agent's crashes."""
    notified: list[str] = []

    async def charge(order: str, amount: int, *, key: str | None = None) -> str:
        return f"receipt for {order}"

    async def notify(order: str, text: str) -> None:
        notified.append(order)

    async def was_notified(order: str) -> bool:
        return order in notified

    return {"charge": charge, "notify": notify, "was_notified": was_notified}


def check(agent: Call) -> Report:
    return crash_everywhere(agent, tools=world, reads=["was_notified"], keys={"charge": "key"})


if __name__ == "__main__":
    for agent in (naive, mended):
        print(f"── {agent.__name__} ──\n{check(agent)}\n")  # noqa: T201
