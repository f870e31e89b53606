"""docs/PROTOCOL.md says which version is spoken, and its listings follow from the code (`tests.protocol.listing`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from shoal.protocol.frames import PROTOCOL, Hello, encode_hello
from tests.protocol import listing

TEXT = listing.PAGE.read_text()


def test_a_new_message_is_listed_behind_the_one_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = TEXT.splitlines()
    pop = next(nth for nth, line in enumerate(lines) if line.startswith("write pop-set("))
    page = tmp_path / "PROTOCOL.md"
    page.write_text("\n".join([*lines[:pop], *lines[pop + 1 :]]).replace("`pop-set`, ", "") + "\n")
    monkeypatch.setattr(listing, "PAGE", page)
    assert listing.page() == TEXT


def test_the_version_is_the_one_that_is_spoken() -> None:
    assert f"# The session protocol, version {PROTOCOL}\n" in TEXT
    assert f"\n`protocol` is {PROTOCOL}. A node" in TEXT
    assert f"`{encode_hello(Hello(PROTOCOL, 'x')).hex(' ')}`" in TEXT.replace("68656c6c6f", "68 65 6c 6c 6f")
