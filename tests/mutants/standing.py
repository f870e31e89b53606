"""Bugs in standing rules of retention."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from shoal.kinds.retention.serving import keeper
from shoal.kinds.retention.serving.keeper import Keeper
from shoal.kinds.retention.state import Rule
from shoal.kinds.thread.serving import pruning
from shoal.kinds.thread.state import dag
from shoal.node.handler import Target
from shoal.protocol.requests import RetainThread
from tests.mutants.mutant import Mutant


def a_rule_keeps_one_less(patch: pytest.MonkeyPatch) -> None:
    sound = pruning._line

    def line(leads: dict[bytes, dag.Lead], head: bytes, count: int) -> Iterator[bytes]:
        return sound(leads, head, max(1, count - 1))

    patch.setattr(pruning, "_line", line)


def a_label_keeps_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pruning, "_labelled", lambda rows, label, id: False)


def a_rule_lets_whole_threads_go(patch: pytest.MonkeyPatch) -> None:
    """One that does not say so."""
    sound = keeper._request

    def request(target: Target, rule: Rule) -> RetainThread:
        return replace(sound(target, rule), thread_older_than_ms=rule.threads_older_than_ms or 0)

    patch.setattr(keeper, "_request", request)


def nobody_is_in_charge_of_a_space(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Keeper, "_is_mine", lambda self, space: False)


def a_thread_is_looked_at_once(patch: pytest.MonkeyPatch) -> None:
    """If nothing goes of it then, nothing ever does."""
    sound = Keeper._thread

    async def thread(self: Keeper, target: Target, rule: Rule, waits_for: str) -> str:
        return waits_for if target in self._quiet else await sound(self, target, rule, waits_for)

    patch.setattr(Keeper, "_thread", thread)


MUTANTS = (
    Mutant(a_rule_keeps_one_less, "a rule keeps one checkpoint less than it says", ("15",)),
    Mutant(a_label_keeps_nothing, "a rule lets labelled checkpoints go", ("15",)),
    Mutant(a_rule_lets_whole_threads_go, "a rule lets whole threads go that does not say so", ("3",)),
    Mutant(nobody_is_in_charge_of_a_space, "no node carries out the rules of a space", ("15",)),
    Mutant(a_thread_is_looked_at_once, "a thread of which nothing goes is not looked at again", ("15",)),
)
