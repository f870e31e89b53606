"""Every bound that a value meets is on one page, and the errors lead there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import shoal
from shoal import values
from shoal.config import Config, MiB, checked
from shoal.errors import InvalidConfig, TooLarge

PAGE = (Path(__file__).parents[1] / "docs" / "CONFIGURATION.md").read_text().split("## How large a value may be")[1]
SECTION = PAGE.split("## [listener]")[0]
UNITS = {"KiB": 1024, "MiB": MiB}


def test_each_bound_is_the_default_of_its_setting() -> None:
    rows = [row.split(" | ") for row in SECTION.splitlines() if row.startswith("| ") and "`" in row]
    assert len(rows) >= 9
    for _, sizes, settings, *_ in rows:
        names = re.findall(r"`(\w+)`", settings)
        shown = [int(number) * UNITS[unit] for number, unit in re.findall(r"(\d+) (KiB|MiB)", sizes)]
        assert shown == [getattr(Config(), name) for name in names]


async def test_an_error_of_a_large_value_names_setting_and_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with shoal.open(tmp_path / "state", config=Config(request_bytes_max=1000)) as store:
        with pytest.raises(TooLarge, match=r"request_bytes_max.*How large a value may be"):
            await store.space("s").register("r").set("x" * 2000)
    monkeypatch.setattr("shoal.values.codec.VALUE_BYTES_MAX", 1000)
    with pytest.raises(TooLarge, match=r"no setting changes.*`request_bytes_max`.*How large a value may be"):
        values.encode("x" * 2000)


def test_peers_must_take_what_clients_may_send() -> None:
    large = Config(join="a:1,b:1", request_bytes_max=100 * MiB)
    with pytest.raises(InvalidConfig, match="peer_message_bytes_max must be at least request_bytes_max"):
        checked(large)
    checked(Config(request_bytes_max=100 * MiB))
    checked(Config(join="a:1,b:1", request_bytes_max=30 * MiB))
