"""Fields that a client of HTTP leaves out have the defaults of the protocol."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import NODEFAULT

from shoal.api.derived import OPERATIONS
from shoal.api.http.exchange import Seconds


def test_a_duration_that_is_left_out_is_in_seconds() -> None:
    looked, wrong = 0, list[Any]()
    for derived in OPERATIONS:
        defaults = {field.name: field.default for field in msgspec.structs.fields(derived.kind)}
        for name, shown, form, default, _ in derived._fields:
            if form.given is not Seconds or default is NODEFAULT or name in derived.http.defaults or form.take is None:
                continue
            looked += 1
            exchange: Any = None
            if (found := form.take(exchange, default, shown)) != defaults[name]:
                wrong.append((derived.kind.__name__, shown, found, defaults[name]))
    assert looked > 5
    assert wrong == []
