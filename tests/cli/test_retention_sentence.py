"""The sentences of `shoal retention show`: what one says of a rule is what it does."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.cli.commands.retention import _sentence
from shoal.protocol.requests import RetentionRule


@pytest.mark.parametrize(
    ("bounds", "said"),
    [
        ({"keep_last": 20}, "keep the last 20 checkpoints of a branch"),
        ({"older_than_ms": 30_000}, "checkpoints go that are older than 30s"),
        (
            {"keep_last": 20, "older_than_ms": 30_000},
            "keep the last 20 checkpoints of a branch, and what is younger than 30s",
        ),
        ({"threads_older_than_ms": 60_000}, "whole threads go 1m after the last write"),
    ],
)
def test_a_rule_is_said_as_it_acts(bounds: dict[str, Any], said: str) -> None:
    assert _sentence(RetentionRule("", **bounds)) == f"all threads: {said}"
