"""What a planted bug is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from shoal.crdt.rows import Rows, Stamp
from shoal.node import mutation
from shoal.node.handler import WriteContext
from shoal.storage.keys import Kind

Plant = Callable[[pytest.MonkeyPatch], None]


def patch_applier(patch: pytest.MonkeyPatch, kind: type, apply: Callable[[Rows, Stamp, Any], None]) -> None:
    """Carry out changes of this kind otherwise, wherever they come from."""
    sound = mutation._APPLIERS[kind]
    patch.setitem(
        mutation._APPLIERS, kind, sound._replace(apply=lambda rows, stamp, change, _attached: apply(rows, stamp, change))
    )


def forget_implied_keys(patch: pytest.MonkeyPatch, *kinds: Kind) -> None:
    """Changes of objects of these kinds have no key that is derived from their request's."""
    sound = WriteContext.implied_key.fget  # type: ignore[attr-defined]
    patch.setattr(WriteContext, "implied_key", property(lambda self: None if self.target.kind in kinds else sound(self)))


class Mutant(NamedTuple):
    plant: Plant
    breaks: str  # What a reader of the table is told.
    invariants: tuple[str, ...]  # As docs/VERIFICATION.md numbers them: a violation of any of these has found it.
    profile: str = "default"  # How the plans are drawn that look for it.
    composites: frozenset[str] = frozenset()  # Plans that have one of these are run first; none: all in the order of the seeds.
    nodes_min: int = 0  # Of those that are run first.

    @property
    def name(self) -> str:
        return self.plant.__name__.replace("_", "-")

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is in the program while this context is open."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            yield
