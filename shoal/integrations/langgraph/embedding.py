"""LangGraph's `index`: the texts of a value that are embedded, and the embedding.

Law: a put has one vector for each text that its fields name, as in InMemoryStore; they replace
the vectors of the put before.
"""

from __future__ import annotations

from collections.abc import Sequence

from langgraph.store.base import IndexConfig, PutOp, ensure_embeddings, get_text_at_path

from shoal.errors import InvalidInput

Vectors = Sequence[Sequence[float]]


class Embedding:
    """An `index` of LangGraph: its dimensions, its embedding and the fields of values that are embedded."""

    def __init__(self, index: IndexConfig) -> None:
        """
        Raises:
            InvalidInput: `index` has no dimensions or no embedding.
        """
        if not index.get("dims") or not index.get("embed"):
            raise InvalidInput("an `index` must have `dims`, of the vectors, and `embed`, for texts. Nothing was written.")
        self._dims = index["dims"]
        self._fields = index.get("fields") or ["$"]
        self._embeddings = ensure_embeddings(index["embed"])

    async def of_puts(self, puts: Sequence[PutOp]) -> list[Vectors]:
        """The vectors of each put. All different texts are embedded in one call."""
        texts = [self._texts(put) for put in puts]
        different = list(dict.fromkeys(text for of_put in texts for text in of_put))
        made = await self._embeddings.aembed_documents(different) if different else []
        if len(made) != len(different):
            raise InvalidInput(f"`embed` returned {len(made)} vectors for {len(different)} texts. Nothing was written.")
        vectors = dict(zip(different, map(self._checked, made), strict=True))
        return [[vectors[text] for text in of_put] for of_put in texts]

    async def of_query(self, query: str) -> Sequence[float]:
        """The vector of a query.

        Raises:
            InvalidInput: the embedding returned another number of dimensions.
        """
        return self._checked(await self._embeddings.aembed_query(query))

    def _checked(self, vector: Sequence[float]) -> Sequence[float]:
        if len(vector) != self._dims:
            raise InvalidInput(
                f"`embed` returned a vector of {len(vector)} numbers, but `dims` is {self._dims}. Nothing was written."
            )
        return vector

    def _texts(self, put: PutOp) -> list[str]:
        if put.value is None or put.index is False:
            return []
        fields = self._fields if put.index is None else put.index
        return list(dict.fromkeys(text for field in fields for text in get_text_at_path(put.value, field)))
