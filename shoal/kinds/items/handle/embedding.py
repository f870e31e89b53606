"""Vectors of texts: the user's function, and the texts of a value that it gets."""

from __future__ import annotations

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from shoal import values
from shoal.errors import InvalidInput

Vectors = Sequence[Sequence[float]]
Embed = Callable[[list[str]], Vectors | Awaitable[Vectors]]


class Embedding:
    """A function that makes vectors of texts, and the fields of an item whose texts it gets."""

    def __init__(self, embed: Embed, fields: Sequence[str] | None) -> None:
        self._embed = embed
        self._fields = fields

    async def of_value(self, value: Any) -> Vectors:
        """One vector for each text that the value has."""
        texts = [_text(value)] if self._fields is None else [text for name in self._fields for text in _texts(value, name)]
        return await self._vectors(texts) if texts else []

    async def of_query(self, query: str) -> Sequence[float]:
        """The vector of a query."""
        return (await self._vectors([query]))[0]

    async def _vectors(self, texts: list[str]) -> Vectors:
        """Call the function.

        Raises:
            InvalidInput: it did not return one vector for each text.
        """
        made = self._embed(texts)
        vectors = await made if inspect.isawaitable(made) else made
        if len(vectors) != len(texts):
            raise InvalidInput(f"`embed` returned {len(vectors)} vectors for {len(texts)} texts. Nothing was written.")
        return vectors


def _texts(value: Any, name: str) -> list[str]:
    """The text of a field; empty if the value has no such field."""
    for step in [name] if isinstance(value, dict) and name in value else name.split("."):
        if not isinstance(value, dict) or value.get(step) is None:
            return []
        value = value[step]
    return [_text(value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(values.to_json(value), sort_keys=True, ensure_ascii=False)
