"""Bounds that are constants of shoal's modules, changed for a while, so that small runs reach them.

A bound is named as its constant, in small letters. It is changed in each module that has it: that of the definition, and
those that import it. How nodes serve each kind is imported here, for bounds stand there. Code reads a bound where it uses it,
so nodes that run already follow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from shoal import kinds
from shoal.config import Config

for _part in ("handler", "serving"):
    list(kinds.modules(_part))


def parted(wanted: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The settings among these, and the bounds."""
    settings = {name: value for name, value in wanted.items() if name in Config.__struct_fields__}
    return settings, {name: value for name, value in wanted.items() if name not in settings}


@contextmanager
def altered(**bounds: float) -> Iterator[None]:
    """Within, each of these bounds has the given value.

    Raises:
        LookupError: no module that is imported has such a constant. Nothing was changed.
    """
    constants = {name.upper(): value for name, value in bounds.items()}
    before = [(module, constant, getattr(module, constant)) for constant in constants for module in _modules(constant)]
    if missing := constants.keys() - {constant for _, constant, _ in before}:
        raise LookupError(f"{min(missing).lower()} is neither a setting nor a bound")
    for module, constant, _ in before:
        setattr(module, constant, constants[constant])
    try:
        yield
    finally:
        for module, constant, value in before:
            setattr(module, constant, value)


def _modules(constant: str) -> list[ModuleType]:
    loaded = [module for name, module in sys.modules.items() if name.startswith(("shoal.", "simulation.", "tests."))]
    return [module for module in loaded if constant in vars(module)]
