"""Output that no stored value can turn against the terminal."""

from __future__ import annotations

import json
import uuid

import pytest

from shoal.cli.output import emit, pairs, to_text


def test_text_stays_readable() -> None:
    assert to_text({"größe": "€"}) == '{"größe": "€"}'


def test_no_control_character_reaches_the_terminal() -> None:
    every = "".join(map(chr, range(0xA0)))
    text = to_text(every)
    assert not any(ord(character) < 0x20 or 0x7F <= ord(character) < 0xA0 for character in text)
    assert json.loads(text) == every


def test_a_type_that_json_lacks_is_tagged() -> None:
    assert json.loads(to_text(uuid.UUID(int=1))) == {"$type": "uuid", "value": str(uuid.UUID(int=1))}


def test_a_document_for_machines_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    emit({"a": "b\nc"})
    assert capsys.readouterr().out == '{"a": "b\\nc"}\n'


def test_pairs_are_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    pairs({"a": 1, "long": 2})
    assert capsys.readouterr().out == "a     1\nlong  2\n"
