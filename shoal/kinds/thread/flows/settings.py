"""An author's setting, which is a hash of its configuration and the versions of its dependencies, and how two settings differ.

Law: a part that only one of two settings has is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from shoal import values
from shoal.errors import DriftRefused

_NAMED_MAX = 10  # Names in a text.


def setting_of(configuration: Mapping[str, Any] | None, dependencies: Mapping[str, str] | None) -> bytes:
    """A packed map: the SHA-256 of the configuration with its keys sorted, and versions by name. Empty if both are None.

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
        'Run with the recorded setting, or resume with on_drift="warn".',
        differences=list(differences),
    )


def differences_of(recorded: Mapping[str, Any], running: Mapping[str, Any]) -> Iterator[str]:
    """The differences between a running setting and a recorded one, in words."""
    if "configuration" in recorded and "configuration" in running and recorded["configuration"] != running["configuration"]:
        yield f"configuration {running['configuration'][:12]} instead of {recorded['configuration'][:12]}"
    if "dependencies" in recorded and "dependencies" in running:
        before, now = recorded["dependencies"], running["dependencies"]
        for name in sorted(before.keys() | now.keys()):
            if before.get(name) != now.get(name):
                yield f"{name} {now.get(name, 'absent')} instead of {before.get(name, 'absent')}"


def some(names: tuple[str, ...]) -> str:
    """The first names, and the number of the others."""
    shown = ", ".join(names[:_NAMED_MAX])
    return shown if len(names) <= _NAMED_MAX else f"{shown} and {len(names) - _NAMED_MAX} more"
