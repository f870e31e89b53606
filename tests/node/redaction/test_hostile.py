"""Rules and writes that would have a secret stored all the same, by accident or not."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from shoal.errors import RedactionRefused
from shoal.kinds.redaction.serving.hooks import Text, Writing, of_file
from shoal.kinds.redaction.serving.patterns import Engine
from shoal.kinds.redaction.state.rules import Pattern, Rules
from shoal.protocol import requests
from tests.node.conftest import Bench
from tests.node.redaction.test_writes import SECRET, is_clean

pytest.importorskip("re2")


@pytest.mark.parametrize("first", [r"x\Qsecret", r"\Qxsecret", r"xsecre(?:t)\Q"])
def test_a_pattern_that_quotes_to_its_end_leaves_the_others_as_they_are(first: str) -> None:
    """Joined with others it would quote them, too, and none would find anything any more."""
    engine = Engine(Rules("crew", False, False, (Pattern("a", first, "[a]"), Pattern("b", r"\Qother\E", "[b]"))))
    for text in (b"an xsecret", b"another"):
        assert engine.hits(text)
        assert engine.matches(text)
    assert not engine.hits(b"nothing")


async def test_a_bound_of_a_journal_stores_no_name_that_is_refused(bench: Bench) -> None:
    await bench.space.redaction.set(credentials=True)
    with pytest.raises(RedactionRefused):
        await bench.node.session().call(requests.SetRetention("crew", SECRET, events=5))
    assert is_clean(bench.storage)


@pytest.mark.real_time("processes")
async def test_a_command_gets_none_of_the_keys_of_its_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_ENCRYPTION_KEY", "00" * 32)
    monkeypatch.setenv("MODEL", "small")
    program = "import json, os; print(json.dumps({'replaced': [{'nth': 0, 'text': ' '.join(sorted(os.environ))}]}))"
    file = tmp_path / "hooks.toml"
    file.write_text(f"[hooks.names]\ncommand = {json.dumps([sys.executable, '-c', program])}\ntimeout_s = 20\n")
    [answer] = await of_file(str(file))["names"].replacements(Writing("crew", "save", [Text("/a", "text")]))
    assert "MODEL" in answer.text.split()
    assert not [name for name in answer.text.split() if name.startswith("SHOAL_")]
