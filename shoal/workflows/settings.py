"""The setting that an author runs with: a hash of its configuration, and its dependencies' versions. How two settings differ.

Law: what one of two settings does not mention is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from shoal import values
from shoal.errors import DriftRefused

_NAMED_MAX = 10  # In a text.


def setting_of(configuration: Mapping[str, Any] | None, dependencies: Mapping[str, str] | None) -> bytes:
    """A packed map: SHA-256 of the configuration, whatever the order of its keys, and versions by name.

    Raises:
        InvalidValue: a value of the configuration cannot be serialised.
    """
    setting: dict[str, Any] = {}
    if configuration is not None:
        setting["configuration"] = sha256(values.encode(_sorted(dict(configuration)), where="configuration")).hexdigest()
    if dependencies is not None:
        setting["dependencies"] = dict(sorted(dependencies.items()))
    return values.encode(setting, where="dependencies") if setting else b""


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value, key=repr)}
    if isinstance(value, list):
        return [_sorted(element) for element in value]
    return value


def drift_refused(thread: str, differences: tuple[str, ...]) -> DriftRefused:
    """The error for a setting that differs."""
    return DriftRefused(
        f"thread {thread!r} was saved with another setting: {some(differences)}. Nothing was written. "
        'Run with what was recorded, or resume with on_drift="warn".',
        differences=list(differences),
    )


def differences_of(recorded: Mapping[str, Any], running: Mapping[str, Any]) -> Iterator[str]:
    """How a running setting differs from a recorded one, in words."""
    if "configuration" in recorded and "configuration" in running and recorded["configuration"] != running["configuration"]:
        yield f"configuration {running['configuration'][:12]} instead of {recorded['configuration'][:12]}"
    if "dependencies" in recorded and "dependencies" in running:
        before, now = recorded["dependencies"], running["dependencies"]
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                yield f"{name} {now.get(name, 'absent')} instead of {before.get(name, 'absent')}"


def some(names: tuple[str, ...]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(names[:_NAMED_MAX])
    return shown if len(names) <= _NAMED_MAX else f"{shown} and {len(names) - _NAMED_MAX} more"
