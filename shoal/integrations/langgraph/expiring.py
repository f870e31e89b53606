"""The `ttl` of `langgraph.json`: items of the store that expire, and threads that go.

Laws:
- The server hands its configuration over in variables of the environment, and so does everything here read it.
- A rule of retention that a person has set stays: what `langgraph.json` says of threads is set only where no rule is.
- Whatever hinders a rule is logged, and ends no start: runs do not need it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from langgraph.store.base import TTLConfig

from shoal.client.store import Space
from shoal.errors import InvalidConfig, ShoalError
from shoal.logs import events
from shoal.logs.lines import log
from shoal.outcomes import why
from shoal.protocol.requests import RetentionRules

_STORE, _CHECKPOINTER, _THREADS = "LANGGRAPH_STORE", "LANGGRAPH_CHECKPOINTER", "LANGGRAPH_THREAD_TTL"


def of_items(environment: Mapping[str, str]) -> TTLConfig | None:
    """The `ttl` of the section `store`; None if it has none.

    Raises:
        InvalidConfig: it is no JSON object. Nothing was opened.
    """
    found: Any = _object(environment, _STORE).get("ttl")
    return found or None


def of_threads(environment: Mapping[str, str]) -> timedelta | None:
    """After how long without a write a thread goes; None if none does. LANGGRAPH_THREAD_TTL goes before `checkpointer`.

    Raises:
        InvalidConfig: it is neither a number of minutes nor a JSON object. Nothing was opened.
    """
    given = environment.get(_THREADS, "").strip()
    try:
        minutes: Any = float(given) if given and not given.startswith("{") else None
    except ValueError:
        raise InvalidConfig(f"{_THREADS} is neither minutes nor a JSON object: {given[:80]!r}. Nothing was opened.") from None
    if minutes is None:
        ttl = _object(environment, _THREADS) if given else _object(environment, _CHECKPOINTER).get("ttl") or {}
        if ttl.get("strategy", "delete") != "delete":
            log(events.TTL_STRATEGY, strategy=repr(ttl["strategy"]))
            return None
        minutes = ttl.get("default_ttl")
    try:
        return None if minutes is None else timedelta(minutes=minutes)
    except (TypeError, OverflowError, ValueError):
        raise InvalidConfig(f"{minutes!r} is no number of minutes for `ttl` of threads. Nothing was opened.") from None


async def declare(space: Space, ttl: timedelta) -> RetentionRules | None:
    """Have threads go to which nothing was written for so long. None: a rule is there already, or it could not be set."""
    try:
        known = [rule.threads_older_than_ms for rule in (await space.retention.get()).rules if not rule.prefix]
        if known:
            if known != [int(ttl.total_seconds() * 1000)]:
                log(events.TTL_OTHER_RULE, space=space.name)
            return None
        return await space.retention.set(threads_older_than=ttl)
    except ShoalError as error:
        log(events.TTL_TROUBLE, reason=why(error))
        return None


def _object(environment: Mapping[str, str], name: str) -> dict[str, Any]:
    try:
        found = json.loads(environment.get(name) or "{}")
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise InvalidConfig(f"{name} is no JSON object. Nothing was opened.")
    return found
