"""LangGraph's `index`: which texts of a value are embedded, and by what.

Law: a put has one vector for each text that its fields name, as InMemoryStore has it; what the
put before it had is replaced.
"""

from __future__ import annotations

from collections.abc import Sequence

from langgraph.store.base import IndexConfig, PutOp, ensure_embeddings, get_text_at_path

from shoal.errors import InvalidInput

Vectors = Sequence[Sequence[float]]


class Embedding:
    def __init__(self, index: IndexConfig) -> None:
        """
        Raises:
            InvalidInput: it names no dimensions or no embedding.
        """
        if not index.get("dims") or not index.get("embed"):
            raise InvalidInput("an `index` names the vectors' `dims` and how to `embed` texts. Nothing was written.")
        self._dims = index["dims"]
        self._fields = index.get("fields") or ["$"]
        self._embeddings = ensure_embeddings(index["embed"])

    async def of_puts(self, puts: Sequence[PutOp]) -> list[Vectors]:
        """The vectors of each put; all texts are embedded at once."""
        texts = [self._texts(put) for put in puts]
        different = list(dict.fromkeys(text for of_put in texts for text in of_put))
        made = await self._embeddings.aembed_documents(different) if different else []
        if len(made) != len(different):
            raise InvalidInput(f"`embed` gave {len(made)} vectors for {len(different)} texts. Nothing was written.")
        vectors = dict(zip(different, map(self._checked, made), strict=True))
        return [[vectors[text] for text in of_put] for of_put in texts]

    async def of_query(self, query: str) -> Sequence[float]:
        return self._checked(await self._embeddings.aembed_query(query))

    def _checked(self, vector: Sequence[float]) -> Sequence[float]:
        if len(vector) != self._dims:
            raise InvalidInput(
                f"`embed` gave a vector of {len(vector)} numbers, and `dims` is {self._dims}. Nothing was written."
            )
        return vector

    def _texts(self, put: PutOp) -> list[str]:
        if put.value is None or put.index is False:
            return []
        fields = self._fields if put.index is None else put.index
        return list(dict.fromkeys(text for field in fields for text in get_text_at_path(put.value, field)))
