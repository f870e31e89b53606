"""Another agent has overwritten what a reader reads: no hostile value makes a checkpoint's or message's reader run code.

The framework pickles what is no JSON, and so is the one whose decoder can call at all: what its allow-list names.
"""

from __future__ import annotations

import base64
import pickle
import sys
from typing import Any

import pytest
from agent_framework import Message
from agent_framework.exceptions import WorkflowCheckpointException

from shoal.client.store import Store
from shoal.errors import ShoalError
from shoal.integrations.microsoft import ShoalCheckpointStorage, ShoalHistoryProvider
from tests.integrations.microsoft.test_checkpoints import checkpoint
from tests.support import hostile
from tests.support.audited import audited
from tests.support.hostile import lying, read_hostile


class Calling:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.reduced = function, arguments

    def __reduce__(self) -> Any:
        return self.reduced


async def test_hostile_messages_run_nothing(opened: Store, space: str) -> None:
    liar = lying(opened)
    await ShoalHistoryProvider(opened, space=space).save_messages("s", [Message("user", ["hi"]), Message("assistant", ["ho"])])
    await read_hostile(liar, lambda: ShoalHistoryProvider(opened, space=space).get_messages("s"))


async def test_hostile_checkpoints_run_nothing(opened: Store, space: str) -> None:
    liar = lying(opened)
    storage = ShoalCheckpointStorage(opened, space=space)
    await storage.save(checkpoint(1, state={"a": [1, {"b": "text"}]}))
    await read_hostile(liar, lambda: storage.get_latest(workflow_name="refund"))


@pytest.mark.answers("bytes-of-a-state-run-code-when-they")
@pytest.mark.parametrize(
    "call",
    [
        Calling(__import__, hostile.CANARY),
        Calling(eval, "1 + 1"),
        Calling(getattr, "", "join"),
        Calling(exec, f"import {hostile.CANARY}"),
        Calling(pickle.loads, pickle.dumps(1)),
    ],
    ids=lambda call: str(call.reduced[0].__name__),
)
async def test_a_pickle_calls_nothing_that_is_not_allowed(opened: Store, space: str, call: Calling) -> None:
    storage = ShoalCheckpointStorage(opened, space=space)
    packed = base64.b64encode(pickle.dumps(call)).decode()
    await storage.save(checkpoint(1, state={"a": 1}))
    place = opened.space(space)
    async for item in place.items.scan():
        if isinstance(item.value, dict) and "checkpoint" in item.value:
            state = {"__pickled__": packed, "__type__": "builtins:object"}
            planted = {**item.value, "checkpoint": {**item.value["checkpoint"], "state": state}}
            await place.items.put(item.namespace, item.key, planted)
    with audited(("os.", "subprocess", "exec")) as seen, pytest.raises((WorkflowCheckpointException, ShoalError)):
        await storage.load("c1")
    assert seen == []
    assert hostile.CANARY not in sys.modules
