"""The rules of redaction of a space: `space.redaction`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from shoal.client.arguments import named
from shoal.client.connection import StoreConnection
from shoal.errors import InvalidInput
from shoal.kinds.redaction import flows
from shoal.kinds.redaction.flows import PatternToSet
from shoal.kinds.redaction.state.rules import Rules
from shoal.protocol import requests


@named
class SpaceRedaction:
    """The parts of writes of a space that are replaced before it is stored: names, numbers of cards, keys.

    Setting and taking away take the right `admin` in the space of the nodes, `.shoal`, because the nodes act by it.
    """

    def __init__(self, connection: StoreConnection, space: str) -> None:
        self._connection = connection
        self._space = space

    async def set(
        self,
        *,
        credentials: bool = False,
        cards: bool = False,
        patterns: Mapping[str, str] | Sequence[PatternToSet] | None = None,
        hooks: Sequence[str] = (),
        files: bool = False,
    ) -> requests.RedactionRules:
        """Set the rules, in place of those that are there. It is answered once all owners hold them.

        `credentials`: keys and tokens of known services, private keys, passwords in URLs. `cards`: numbers of payment cards.
        `patterns`: regular expressions in RE2's syntax, by name, whose matches are replaced by the name in brackets; or a list
        of `PatternToSet`, which say by what. `hooks`: names of hooks of the nodes, which see all texts and are asked in
        this order. `files`: take files, which nothing looks into; else they are refused.

        Raises:
            InvalidInput: they replace nothing, a pattern is none that RE2 takes, or the node has no such hook.
            Unsupported: RE2 is not installed at the node (the extra `redaction`).
            Unavailable, OutcomeUnknown: not all owners hold them yet.
        """
        return await flows.set_rules(self._connection, self._rules(credentials, cards, patterns, tuple(hooks), files))

    async def get(self) -> requests.RedactionRules:
        """The rules, and what the node that serves has replaced and refused by rules since it started."""
        return await self._connection.read(requests.ReadRedaction(self._space))

    async def unset(self) -> requests.RedactionRules:
        """Take the rules away; what was replaced stays so. Returns what is left: rules that were set at the same time."""
        return await flows.unset_rules(self._connection, self._space)

    async def test(
        self,
        *texts: str,
        credentials: bool = False,
        cards: bool = False,
        patterns: Mapping[str, str] | Sequence[PatternToSet] | None = None,
    ) -> requests.RedactionTried:
        """Texts as they would be stored, and what would be replaced: by these rules; without any, by those of the space.

        Nothing is written, and no hook is asked.
        """
        told = self._rules(credentials, cards, patterns, (), False)
        return await flows.try_texts(self._connection, self._space, list(texts), told)

    def _rules(
        self,
        credentials: bool,
        cards: bool,
        patterns: Mapping[str, str] | Sequence[PatternToSet] | None,
        hooks: tuple[str, ...],
        files: bool,
    ) -> Rules:
        if isinstance(patterns, Mapping):
            patterns = [PatternToSet(name, regex) for name, regex in patterns.items()]
        found = list(patterns or ())
        for each in found:
            if not isinstance(each, PatternToSet) or type(each.regex) is not str:
                raise InvalidInput(
                    "patterns= takes regular expressions by name, or a list of PatternToSet; got "
                    f"{type(each).__name__}. Nothing was written.",
                    field="patterns",
                )
        return Rules(self._space, credentials, cards, tuple(map(flows.recorded, found)), hooks, files)
