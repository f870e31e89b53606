"""Bounds that are constants of shoal's modules, changed for a while, so that small runs reach them.

A bound is named as its constant, in small letters. It is changed in each module that has it: that of the definition, and
those that import it. Code reads a bound where it uses it, so nodes that run already follow.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from shoal.config import Config


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
    before = {constant: _value(constant) for constant in constants}
    _set(constants)
    try:
        yield
    finally:
        _set(before)


def _value(constant: str) -> Any:
    for module in _modules(constant):
        return getattr(module, constant)
    raise LookupError(f"{constant.lower()} is neither a setting nor a bound")


def _set(constants: Mapping[str, Any]) -> None:
    for constant, value in constants.items():
        for module in _modules(constant):
            setattr(module, constant, value)


def _modules(constant: str) -> list[ModuleType]:
    loaded = [module for name, module in sys.modules.items() if name.startswith(("shoal.", "simulation.", "tests."))]
    return [module for module in loaded if constant in vars(module)]
