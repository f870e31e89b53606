"""What is made on something else than an open store is told what to write, and so is a missing package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import shoal
from shoal.errors import InvalidInput
from shoal.integrations.langgraph import ShoalSaver, ShoalStore


@pytest.mark.parametrize("kind", [ShoalSaver, ShoalStore])
@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("./x", r'`with {}\.open\("\./x"\) as made:`'),
        (Path("x"), r'\.open\("x"\)'),
        ("http://n1:7400", r'\.connect\("http://n1:7400"\)'),
        (shoal.open("./x"), "got Opening"),
        (None, "got NoneType"),
    ],
)
def test_anything_but_an_open_store_is_refused_with_advice(kind: type, given: object, shown: str) -> None:
    with pytest.raises(InvalidInput, match=shown.format(kind.__name__)):
        kind(given)


def test_a_missing_package_is_named_with_the_extra_that_has_it() -> None:
    script = """
import sys
sys.modules["langgraph"] = None
import shoal.integrations.langgraph
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "needs the package langgraph-checkpoint" in ended.stderr
    assert "pip install '.[langgraph]'" in ended.stderr


def test_a_package_that_is_too_old_is_named_with_the_extra() -> None:
    script = """
import langgraph.checkpoint.base
del langgraph.checkpoint.base.DeltaChannelHistory
import shoal.integrations.langgraph
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "langgraph-checkpoint, 4.3.1 or newer" in ended.stderr.splitlines()[-1]
    assert "pip install '.[langgraph]'" in ended.stderr.splitlines()[-1]
