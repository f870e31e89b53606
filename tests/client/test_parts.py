"""A handle made of parts shows their methods as its own."""

from __future__ import annotations

import inspect

import pytest

from shoal import Thread
from shoal.client.arguments import of_part
from shoal.kinds.thread.handle.history import ThreadBranches


class Counting:
    def __init__(self, start: int) -> None:
        self.total = start

    async def add(self, by: int = 1) -> int:
        """Add to the total."""
        self.total += by
        return self.total


class Handle:
    def __init__(self, start: int) -> None:
        self._counting = Counting(start)

    add = of_part("_counting", Counting.add)


async def test_a_method_is_that_of_the_handles_own_part() -> None:
    one, other = Handle(1), Handle(10)
    assert (await one.add(2), await other.add(), await one.add()) == (3, 11, 4)


def test_a_method_has_the_signature_and_the_docstring_of_its_part() -> None:
    assert str(inspect.signature(Handle(1).add)) == "(by: 'int' = 1) -> 'int'"
    assert Handle.add.__doc__ == "Add to the total."
    assert inspect.iscoroutinefunction(Handle.add)
    assert inspect.iscoroutinefunction(Handle(1).add)


def test_the_bases_of_a_thread_are_no_parts() -> None:
    assert Thread.__bases__ == (object,)
    assert Thread.heads is ThreadBranches.heads


def test_a_part_does_not_hide_a_method_that_does_not_exist() -> None:
    with pytest.raises(AttributeError):
        Handle(1).absent  # type: ignore[attr-defined]  # noqa: B018
