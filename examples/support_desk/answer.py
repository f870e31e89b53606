"""An agent of the OpenAI Agents SDK that answers tickets with tools, and pays each refund once.

    python -m examples.support_desk.answer http://127.0.0.1:7400 ./desk

A run of the agent is one turn of its session: it is stored whole, or run again. A run that is repeated calls its tools
again, so paying is a step of the ticket's ledger: a step that is done is not called again. If the agent was killed while it
paid, nobody knows whether it has; then the shop is asked, and the answer is written down.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from agents import Agent, Runner, function_tool, set_tracing_disabled
from agents.testing import ScriptedModel, assistant_message, function_call

import shoal
from examples.support_desk.desk import ORDERS, SPACE, WAIT_S, Shop, arguments, say, work
from shoal.integrations.openai import ShoalSession


def clerk(ticket: shoal.Thread, known: dict[str, Any], shop: Shop) -> Agent[Any]:
    # An exception of a tool ends the run: a model that is told of it would answer something all the same.
    @function_tool(failure_error_function=None)
    def look_up(order: int) -> str:
        """Where an order is."""
        return ORDERS[order]["where"]

    @function_tool(failure_error_function=None)
    async def refund(order: int) -> str:
        """Pay an order's price back."""
        if known["decision"] != "refund":  # Whatever a model says.
            return "not allowed"

        async def pay() -> str:
            say(f"pays for order {order}")
            return await shop.pay(order)

        return str(await ticket.step("refund", key=f"refund-{order}", arguments=order, call=pay))

    return Agent(name="clerk", model=model(known), tools=[look_up, refund])


def model(known: dict[str, Any]) -> ScriptedModel:
    """Stands for a model, such as `model="gpt-5"`: looks the order up, and pays if that was decided."""
    order = known["order"]
    calls = [[function_call("look_up", {"order": order}, call_id=f"look-up-{order}")]]
    if known["decision"] == "refund":
        calls.append([function_call("refund", {"order": order}, call_id=f"refund-{order}")])
        said = f"Dear {known['customer']}, you get your {ORDERS[order]['price']} € back."
    elif known["kind"] == "refund":
        said = f"Dear {known['customer']}, we are sorry, but we cannot take it back."
    else:
        said = f"Dear {known['customer']}, your order is {ORDERS[order]['where']}."
    return ScriptedModel([*calls, [assistant_message(said)]])


async def answer(store: shoal.Store, name: str, shop: Shop) -> None:
    ticket = store.space(SPACE).thread(name, author="answer")
    await settle(ticket, shop)
    known = (await ticket.load()).state
    session = ShoalSession(store, name.replace("ticket", "answer"), space=SPACE)
    async with session.turn("first") as turn:
        if not turn.done:
            await Runner.run(clerk(ticket, known, shop), known["text"], session=turn)
    said: Any = (await session.get_items())[-1]
    await ticket.update({"answer": said["content"][0]["text"]}, key="answered")
    await ticket.finish(by="answer")
    say(f"{name}: {said['content'][0]['text']}")


async def settle(ticket: shoal.Thread, shop: Shop) -> None:
    """Find out what became of a payment that an earlier run of this program had begun."""
    for step in await ticket.unresolved():
        paid = [payment for payment in shop.paid() if payment["order"] == step.arguments]
        if paid:
            await ticket.resolve(step, "result", value=f"paid {paid[0]['amount']} €", by="answer", reason="the shop has paid")
        else:
            await ticket.resolve(step, "retry", by="answer", reason="the shop has not paid")
        say(f"was killed while it paid for order {step.arguments}: the shop has {'' if paid else 'not '}paid")


async def main() -> None:
    set_tracing_disabled(True)
    url, shop = arguments(sys.argv)
    async with shoal.connect(url, wait=WAIT_S) as store:
        await work(store.space(SPACE), "answers", lambda name: answer(store, name, shop))


if __name__ == "__main__":
    asyncio.run(main())
