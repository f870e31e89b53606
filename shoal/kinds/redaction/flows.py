"""Redaction of a space: its rules are set, taken away and tried.

Laws:
- Rules are set only if a node keeps them: it compiles their patterns, and has the hooks that they name.
- Setting and taking away are answered once all owners hold that, or say that they may not.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct, field

from shoal.errors import InvalidInput
from shoal.kinds.redaction.state import rules
from shoal.kinds.redaction.state.rules import Pattern, Rules
from shoal.names import RESERVED, check_name
from shoal.protocol.base import Elements, Http
from shoal.protocol.requests import (
    Durability,
    PutEntry,
    ReadRedaction,
    RedactionRules,
    RedactionTried,
    RemoveEntry,
    TryRedaction,
)
from shoal.workflows.connection import Connection, Flow


class PatternToSet(Struct, frozen=True):
    """A regular expression of RE2, and the text that stands in the place of its matches."""

    name: str  # Under which its replacements are told.
    regex: str  # In RE2's syntax.
    replace: str | None = None  # None: the name in brackets.
    numbers: bool = False  # Whether numbers are looked at too, as their decimal digits.


def recorded(given: PatternToSet) -> Pattern:
    """A pattern as it is recorded."""
    return Pattern(given.name, given.regex, f"[{given.name}]" if given.replace is None else given.replace, given.numbers)


async def set_rules(connection: Connection, told: Rules) -> RedactionRules:
    """Set the rules of a space, in place of those that are there. Returns them as the node keeps them then.

    Raises:
        InvalidInput: they replace nothing, or the node cannot keep them. Nothing was written.
        Unsupported: RE2 is not installed at the node.
        Unavailable, OutcomeUnknown: not all owners hold them yet; the node that was asked does.
    """
    check_name("space", told.space)
    if told.space == RESERVED:
        raise InvalidInput(f"{RESERVED!r} is the space of the nodes themselves, which has no rules. Nothing was written.")
    if told.is_empty:
        raise InvalidInput(
            "rules need one of credentials, cards, patterns, hooks. Nothing was written. `unset` takes the rules away."
        )
    record = rules.packed(told)
    await connection.read(TryRedaction(told.space, [], record))
    await connection.write(PutEntry(RESERVED, rules.RULES, rules.key_of(told.space), record), key=None, durability="all")
    return await connection.read(ReadRedaction(told.space))


async def unset_rules(connection: Connection, space: str) -> RedactionRules:
    """Take the rules of a space away: from now on its writes are stored as they are. Rules that are set concurrently stay."""
    check_name("space", space)
    await connection.write(RemoveEntry(RESERVED, rules.RULES, rules.key_of(space)), key=None, durability="all")
    return await connection.read(ReadRedaction(space))


async def try_texts(connection: Connection, space: str, texts: list[str], told: Rules | None = None) -> RedactionTried:
    """Texts as they would be stored, and what would be replaced; by the rules of the space, unless others are given.

    Nothing is written, and no hook is asked.
    """
    record = None if told is None or told.is_empty else rules.packed(told)
    return await connection.read(TryRedaction(check_name("space", space), texts, record))


class SetRedaction(Flow[RedactionRules], frozen=True):
    """Set the rules of redaction of a space, on all nodes, in place of those that are there."""

    http: ClassVar = (Http("PUT", "/redaction", "Set the rules of redaction of a space", example={"credentials": True}),)

    space: str
    credentials: bool = False  # Whether keys and tokens of known services are replaced.
    cards: bool = False  # Whether numbers of payment cards are replaced.
    patterns: Elements[PatternToSet] = field(default_factory=list)  # Regular expressions whose matches are replaced.
    hooks: Elements[str] = field(default_factory=list)  # Hooks of the nodes, in the order in which they are asked.
    files: bool = False  # Whether files are taken, which nothing looks into.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> RedactionRules:
        """Set them on all nodes, and read them as the serving node keeps them then."""
        return await set_rules(connection, _rules(self))


class UnsetRedaction(Flow[RedactionRules], frozen=True):
    """Take the rules of redaction of a space away, on all nodes."""

    http: ClassVar = (
        Http("DELETE", "/redaction", "Take the rules of redaction of a space away, or with `dry_run` show which would go"),
    )

    space: str
    dry_run: bool = False  # Only show the rules that would go.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> RedactionRules:
        """Take them away, and read what is left."""
        if self.dry_run:
            return await connection.read(ReadRedaction(check_name("space", self.space)))
        return await unset_rules(connection, self.space)


class PreviewRedaction(Flow[RedactionTried], frozen=True):
    """Say what the rules of a space, or these, would replace in texts. Nothing is written, and no hook is asked."""

    http: ClassVar = (
        Http("POST", "/redaction/test", "What rules of redaction would replace in texts", example={"texts": ["plain"]}),
    )

    space: str
    texts: Elements[str]  # Each is looked at by itself.
    credentials: bool = False  # Whether keys and tokens of known services are replaced.
    cards: bool = False  # Whether numbers of payment cards are replaced.
    patterns: Elements[PatternToSet] = field(default_factory=list)  # Regular expressions whose matches are replaced.

    async def run(self, connection: Connection, *, key: str | None, durability: Durability) -> RedactionTried:
        """Ask the serving node, which has RE2."""
        return await try_texts(connection, self.space, self.texts, _rules(self))


def _rules(asked: SetRedaction | PreviewRedaction) -> Rules:
    patterns = tuple(map(recorded, asked.patterns))
    told = Rules(asked.space, asked.credentials, asked.cards, patterns)
    return told if isinstance(asked, PreviewRedaction) else told._replace(hooks=tuple(asked.hooks), files=asked.files)
