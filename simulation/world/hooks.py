"""A hook of redaction that every simulated node has: what it does with a write, the write's texts say.

Law: the same texts have the same answer or the same failure, at each node and each time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping

from shoal.kinds.redaction.serving.hooks import Function, Writing

NAMES = "names"
FAILURES = ("hook:raise", "hook:hang", "hook:form")
"""A write with one of these in a text has no answer."""
SLOW = "hook:slow"
HANGS_S = 60.0  # Longer than any hook is waited for.
SLOW_S = 0.3
NAME = re.compile(r"Ada-[a-z0-9]+")


async def _names(writing: Writing) -> object:
    whole = " ".join(each.text for each in writing.texts)
    if "hook:raise" in whole:
        raise ValueError(whole)
    if "hook:hang" in whole:
        await asyncio.sleep(HANGS_S)
    if "hook:form" in whole:
        return whole
    if SLOW in whole:
        await asyncio.sleep(SLOW_S)
    made = {nth: NAME.sub("[name]", each.text) for nth, each in enumerate(writing.texts)}
    return {nth: text for nth, text in made.items() if text != writing.texts[nth].text}


HOOKS: Mapping[str, Function] = {NAMES: _names}
