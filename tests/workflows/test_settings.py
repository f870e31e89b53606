"""The setting that an author ran with, and how two of them differ."""

from __future__ import annotations

from shoal import values
from shoal.kinds.thread.flows.checkpoints import differences_of, setting_of, some


def test_the_order_of_keys_makes_no_other_setting() -> None:
    assert setting_of({"a": 1, "b": {"c": 2, "d": 3}}, None) == setting_of({"b": {"d": 3, "c": 2}, "a": 1}, None)


def test_nothing_given_is_no_setting() -> None:
    assert setting_of(None, None) == b""


def test_a_part_that_one_of_them_leaves_out_is_not_compared() -> None:
    recorded = values.decode(setting_of({"model": "x"}, {"lib": "1"}))
    assert list(differences_of(recorded, values.decode(setting_of({"model": "x"}, None)))) == []
    assert list(differences_of(recorded, values.decode(setting_of(None, {"lib": "2"})))) == ["lib 2 instead of 1"]


def test_of_many_names_the_first_are_shown() -> None:
    assert some(("a", "b")) == "a, b"
    assert some(tuple("abcdefghijklm")).endswith("i, j and 3 more")
