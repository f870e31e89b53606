"""An agent whose model is a script: it looks twice at once, pays, and answers. What is outside is given to it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from shoal.integrations.pydantic import ShoalDurability, durable
from shoal.kinds.step.flows import StepRecord
from shoal.kinds.thread.handle.thread import Thread

Call = Callable[..., Awaitable[Any]]
PROMPT = "refund order 17"


def agent_of(ask: Call, look: Call, pay: Call, **options: Any) -> Agent[None, str]:
    """The agent. `ask(n)` says that the model was asked, `look(id)` and `pay(id)` do something outside."""

    async def script(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked = max(nth for nth, each in enumerate(messages) if any(part.part_kind == "user-prompt" for part in each.parts))
        turn = len([each for each in messages[asked:] if isinstance(each, ModelResponse)])
        await ask(turn)
        return answer(turn)

    agent = Agent(FunctionModel(script), name="clerk", capabilities=[ShoalDurability(**options)])

    @agent.tool(name="look")
    async def _(ctx: RunContext[None], order: int) -> dict[str, int]:
        await look(ctx.tool_call_id)
        return {"order": order}

    @agent.tool(name="pay")
    async def _(ctx: RunContext[None], amount: int) -> str:
        if amount < 0:
            raise ModelRetry("not so little")
        await pay(ctx.tool_call_id)
        return "paid"

    return agent


def answer(turn: int) -> ModelResponse:
    """What the model says in a turn."""
    if turn == 0:
        return ModelResponse(parts=[ToolCallPart("look", {"order": nth}, tool_call_id=f"look-{nth}") for nth in range(2)])
    if turn == 1:
        return ModelResponse(parts=[ToolCallPart("pay", {"amount": -1}, tool_call_id="wrong")])
    if turn == 2:
        return ModelResponse(parts=[ToolCallPart("pay", {"amount": 120}, tool_call_id="pay")])
    return ModelResponse(parts=[TextPart("it is paid")])


async def settle(thread: Thread, happened: Call) -> None:
    """What a person does before the run is repeated: find out about each step of unknown outcome."""
    await thread.resume()  # The node may not know yet what another one has acknowledged.
    for step in await thread.unresolved():
        name, value = outcome(step)
        if await happened(name):
            await thread.resolve(step, "result", value=value, by="ana", reason="it has happened")
        else:
            await thread.resolve(step, "retry", by="ana", reason="it has not happened")


def outcome(step: StepRecord) -> tuple[str, Any]:
    """What a step does outside, and what it returns."""
    what = step.key.split("/")[2]
    if what.startswith("model.request"):
        turn = int(what.removeprefix("model.request").lstrip(".") or 0)
        response = answer(turn)
        parts = [
            {"part_kind": "tool-call", "tool_name": p.tool_name, "args": p.args, "tool_call_id": p.tool_call_id}
            if isinstance(p, ToolCallPart)
            else {"part_kind": "text", "content": "it is paid"}
            for p in response.parts
        ]
        return f"ask {turn}", {"kind": "response", "parts": parts}
    if what.startswith("look-"):
        return what, {"order": int(what.removeprefix("look-"))}
    return what, "paid"


async def run_once(thread: Thread, agent: Agent[None, str], happened: Call, key: str = "order-17") -> str:
    """The whole program: settle what is open, then run."""
    await settle(thread, happened)
    with durable(thread, key=key):
        output: str = (await agent.run(PROMPT)).output
    return output
