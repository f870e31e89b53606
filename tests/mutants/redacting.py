"""Bugs in what is replaced before it is stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from shoal.errors import RedactionFailed
from shoal.kinds.redaction.serving import fields, redactor
from shoal.kinds.redaction.serving.hooks import Hook, Replacement, Writing
from shoal.kinds.redaction.serving.patterns import Engine
from shoal.kinds.redaction.serving.redactor import Redactor, Seen
from shoal.kinds.redaction.state.rules import Rules
from shoal.protocol.requests import Replaced
from tests.mutants.mutant import Mutant


def rules_are_read_once(patch: pytest.MonkeyPatch) -> None:
    sound = Redactor.of

    def of(self: Redactor, space: str) -> Any:
        if self._seen is not None:
            self._seen = self._partitions.load(redactor._RECORDS.partition).vector
        return sound(self, space)

    patch.setattr(Redactor, "of", of)


def patterns_are_compiled_once_for_a_space(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(redactor, "_timeless", lambda told: Rules(told.space))


def a_hook_that_fails_is_left_out(patch: pytest.MonkeyPatch) -> None:
    _forgive(patch, "failed (")


def a_hook_that_takes_too_long_is_left_out(patch: pytest.MonkeyPatch) -> None:
    _forgive(patch, "did not answer within")


def _forgive(patch: pytest.MonkeyPatch, what: str) -> None:
    sound = Hook.replacements

    async def replacements(self: Hook, writing: Writing) -> list[Replacement]:
        try:
            return await sound(self, writing)
        except RedactionFailed as failed:
            if what in failed.message:
                return []
            raise

    patch.setattr(Hook, "replacements", replacements)


def an_error_tells_what_a_hook_was_given(patch: pytest.MonkeyPatch) -> None:
    sound = Hook.replacements

    async def replacements(self: Hook, writing: Writing) -> list[Replacement]:
        try:
            return await sound(self, writing)
        except RedactionFailed as failed:
            raise RedactionFailed(f"{failed.message} It was asked about {writing.texts}.") from None

    patch.setattr(Hook, "replacements", replacements)


def only_the_first_write_of_a_batch_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    sound = Redactor._one

    async def one(self: Redactor, write: Any, path: str, key: str | None) -> tuple[Any, list[Replaced]]:
        return (write, []) if path not in ("", "/writes/0") else await sound(self, write, path, key)

    patch.setattr(Redactor, "_one", one)


def numbers_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    sound = Engine.__init__

    def init(self: Engine, told: Rules) -> None:
        sound(self, told)
        self.numbers = False

    patch.setattr(Engine, "__init__", init)


def names_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    _leave(patch, lambda _, treatment: treatment in (fields._name, fields._names, fields._key))


def metadata_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    _leave(patch, lambda name, _: name == "metadata")


def _leave(patch: pytest.MonkeyPatch, is_left: Any) -> None:
    sound = fields._treatments_of

    def treatments(request: Any) -> Mapping[str, Any]:
        return {name: each for name, each in sound(request).items() if not is_left(name, each)}

    patch.setattr(fields, "_treatments_of", treatments)


def only_one_of_the_patterns_of_a_text_runs(patch: pytest.MonkeyPatch) -> None:
    sound = Engine.concerned

    def concerned(self: Engine, text: bytes, /) -> Sequence[int]:
        return sound(self, text)[:1]

    patch.setattr(Engine, "concerned", concerned)
    patch.setattr(Engine, "hits", lambda self, text: text.find(b"[") < 0 and any(each.regex.search(text) for each in self._all))


def only_one_replacement_is_told(patch: pytest.MonkeyPatch) -> None:
    sound = Redactor.redacted

    async def redacted(self: Redactor, request: Any, key: str | None) -> tuple[Any, Seen | None]:
        made, seen = await sound(self, request, key)
        return made, seen and seen._replace(replaced=seen.replaced[:1])

    patch.setattr(Redactor, "redacted", redacted)


_REDACTED = ("41",)

MUTANTS = tuple(
    Mutant(plant, breaks, _REDACTED, profile="redacted")
    for plant, breaks in (
        (rules_are_read_once, "rules of redaction are read once, and never again"),
        (patterns_are_compiled_once_for_a_space, "the patterns of a space are compiled once, whatever its rules say later"),
        (a_hook_that_fails_is_left_out, "a hook of redaction that fails lets the write pass"),
        (a_hook_that_takes_too_long_is_left_out, "a hook of redaction that takes too long lets the write pass"),
        (an_error_tells_what_a_hook_was_given, "the error of a hook tells what it was given"),
        (only_the_first_write_of_a_batch_is_looked_at, "of a batch only the first write is redacted"),
        (numbers_are_not_looked_at, "numbers of cards are not found where they are numbers"),
        (names_are_not_looked_at, "names are not looked at for secrets"),
        (metadata_are_not_looked_at, "metadata of a checkpoint are not redacted"),
        (only_one_of_the_patterns_of_a_text_runs, "of several patterns that a text concerns one runs"),
        (only_one_replacement_is_told, "of several replacements one is told"),
    )
)
