"""The state that is saved: an agent's, about 1 KB packed, of which nearly all changes with every save."""

from __future__ import annotations

from random import Random
from typing import Any

_MESSAGES = 5
_WORDS = "plan fetch invoice customer refund check ledger total approve search result summary retry tool answer"
_random = Random(1)
_TEXTS = [" ".join(_random.choices(_WORDS.split(), k=20)) for _ in range(997)]


def state(agent: int, step: int) -> dict[str, Any]:
    first = agent * 31 + step
    return {
        "step": step,
        "messages": [
            {"role": ("user", "assistant", "tool")[n % 3], "content": _TEXTS[n % len(_TEXTS)]}
            for n in range(first, first + _MESSAGES)
        ],
        "plan": {"goal": "settle the open invoices", "done": step, "next": _TEXTS[(first * 7) % len(_TEXTS)]},
        "usage": {"tokens_in": step * 812, "tokens_out": step * 190, "cost": step * 0.0031},
    }
