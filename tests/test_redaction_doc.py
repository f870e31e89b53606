"""What docs/REDACTION.md shows runs as it is written, and gives what it says."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import shoal
from shoal.cli.main import app
from shoal.config import Config
from shoal.errors import RedactionFailed
from shoal.kinds.redaction.serving.hooks import Hook, Text, Writing, of_file
from shoal.kinds.redaction.state import rules
from shoal.protocol.requests import RedactionRules

TEXT = (Path(__file__).parent.parent / "docs" / "REDACTION.md").read_text()
SHOWN = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("nth", range(len(blocks("python"))))
async def test_a_snippet_runs_and_prints_what_it_says(nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    snippet = blocks("python")[nth]
    said: list[str] = []
    there: dict[str, Any] = {"print": lambda value: said.append(str(value))}
    exec(compile("async def snippet():\n" + textwrap.indent(snippet, "    "), "REDACTION.md", "exec"), there)
    await there["snippet"]()
    assert said == SHOWN.findall(snippet)


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    install, *commands = blocks("sh")[0].splitlines()
    assert "'.[redaction]'" in install
    with shoal.sync.open(tmp_path / "state"):
        pass  # The page says that it is there.
    said = [CliRunner().invoke(app, shlex.split(line, comments=True)[1:], catch_exceptions=False) for line in commands]
    assert [each.exit_code for each in said] == [0] * len(commands)
    tried, told, written, shown, _ = said
    assert tried.stdout == "my key is [credentials]\ntext 1: 1 × credentials\n"
    assert "[mail]" in told.stdout
    assert shown.stdout.splitlines()[:2] == told.stdout.splitlines()[:2]
    assert "redacted before it was stored: 1 × mail at /value" in written.stderr
    with shoal.sync.open(tmp_path / "state") as store:
        assert store.space("crew").register("note").get() == "write to [mail]"
        assert store.space("crew").redaction.get() == RedactionRules("crew")


def test_the_file_of_hooks_is_one(tmp_path: Path) -> None:
    [block] = blocks("toml")
    (tmp_path / "hooks.toml").write_text(block)
    assert set(of_file(str(tmp_path / "hooks.toml"))) == {"names", "medical"}
    [served] = re.findall(r"`shoal serve --set (\w+)=", TEXT)
    assert getattr(Config(), served) == ""


async def test_the_question_and_the_answer_have_the_form_that_is_shown() -> None:
    question, answer = blocks("json")[0].splitlines()
    asked: list[Any] = []

    async def ask(sent: bytes, _bytes_max: int) -> bytes:
        asked.append(json.loads(sent))
        return answer.encode()

    found = await Hook("names", ask=ask).replacements(Writing("crew", "save", [Text("/channels/messages/0", "Ada came")]))
    assert asked == [json.loads(question)]
    assert [(each.nth, each.text, each.rule, each.count) for each in found] == [(0, "[name] came", "names", 1)]


async def test_a_hook_that_fails_may_be_tried_again(tmp_path: Path) -> None:
    def failing(_: Writing) -> Any:
        raise RuntimeError

    async with shoal.open(tmp_path, redact={"names": failing}) as store:
        await store.space("crew").redaction.set(hooks=["names"])
        with pytest.raises(RedactionFailed) as caught:
            await store.space("crew").register("note").set("Ada came")
    assert caught.value.retryable


NAMED = {
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "GitHub": "ghp_" + "a1B2" * 9,
    "GitLab": "glpat-" + "a1B2" * 5,
    "OpenAI": "sk-proj-" + "a1B2" * 12,
    "Anthropic": "sk-ant-api03-" + "a1B2" * 12,
    "Google": "AIza" + "a1B2c" * 7,
    "Slack": "xoxb-" + "123456789012-123456789012-" + "a1B2" * 6,
    "Stripe": "sk_" + "live_" + "a1B2" * 6,
    "npm": "npm_" + "a1B2" * 9,
    "PyPI": "pypi-" + "AgEIcHlwaS5vcmc" + "a1B2" * 20,
    "Hugging Face": "hf_" + "aBcD" * 9,
    "SendGrid": "SG." + "a1B2c3" * 3 + "abcd." + "a1B2" * 10 + "abc",
    "JSON Web Tokens": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ." + "a1B2" * 10,
    "private keys in PEM": "-----BEGIN PRIVATE KEY-----\n" + "a1B2" * 16 + "\n-----END PRIVATE KEY-----",
    "`Authorization:` headers": "Authorization: Bearer " + "a1B2" * 8,
    "passwords in URLs": "postgresql://ada:hunter2secret@db.example.org/crew",
}
"""One of each kind that the page names."""


@pytest.mark.parametrize("kind", NAMED)
async def test_each_kind_that_the_page_names_is_replaced(kind: str, tmp_path: Path) -> None:
    [row] = re.findall(r"^\| `credentials` \| (.+) \|$", TEXT, re.MULTILINE)
    assert kind in row
    async with shoal.open(tmp_path) as store:
        tried = await store.space("crew").redaction.test(f"see {NAMED[kind]} there", credentials=True)
    assert [each.rule for each in tried.replaced] == ["credentials"], tried.texts
    assert tried.texts[0].startswith("see ")
    assert NAMED[kind] not in tried.texts[0]


def test_the_page_names_no_kind_that_is_not_tried() -> None:
    [row] = re.findall(r"^\| `credentials` \| (.+) \|$", TEXT, re.MULTILINE)
    listed = re.split(r", | and ", row.removeprefix("keys and tokens of "))
    assert set(listed) == set(NAMED)
    assert rules.CREDENTIAL_PATTERNS
