"""The SDK's own conformance suite: 14 contracts, on an embedded store and on a node."""

from __future__ import annotations

import inspect
import itertools
import re
from typing import Any

from claude_agent_sdk import testing
from claude_agent_sdk.testing import run_session_store_conformance, session_store_conformance

from shoal.client.store import Store
from shoal.integrations.claude import ShoalSessionStore

CONTRACTS = 14
OPTIONAL = ("list_sessions", "list_session_summaries", "delete", "list_subkeys")


def test_the_suite_has_as_many_contracts_as_we_count(record_property: Any) -> None:
    record_property("checks", 0)
    numbers = re.findall(r"^ +# (\d+)\. ", inspect.getsource(session_store_conformance), re.MULTILINE)
    assert sorted(map(int, numbers)) == list(range(1, CONTRACTS + 1))
    assert testing.__all__ == ["run_session_store_conformance"]


async def test_every_contract_holds(opened: Store, record_property: Any) -> None:
    numbers = itertools.count()
    # What is optional is skipped by the suite if it is not there.
    assert all(getattr(ShoalSessionStore, name, None) is not None for name in OPTIONAL)
    await run_session_store_conformance(lambda: ShoalSessionStore(opened, space=f"contract-{next(numbers)}"))
    record_property("checks", CONTRACTS)
