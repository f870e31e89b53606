"""The vectors of a namespace's items in memory, for comparing all of them with one.

Laws:
- It holds vectors of one length, each divided by its norm, so that a product is a cosine;
  a vector of zeros stays as it is, and is near nothing.
- Up to the path `frontier` it holds those of every item, except for the paths in `moved`, whose
  items were written since; past it none. So it can be filled, and used, in pieces.
- Importing this needs NumPy, which the extra `vectors` installs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

_ROWS_MIN = 64
_PATH_BYTES = 200  # About the cost of a path in the lists beside the vectors.
_EMPTY_BYTES = 4096  # About the cost of an empty matrix.

Vector = NDArray[np.float32]
Vectors = NDArray[np.float32]  # One row each.


class Matrix:
    """The vectors of one namespace with `dims` numbers each. An item may have several."""

    def __init__(self, dims: int) -> None:
        self.dims = dims
        self.frontier: bytes | None = b""  # None: there is nothing past it.
        self.moved: set[bytes] = set()
        self._paths: list[bytes] = []  # In order, each as often as its item has vectors.
        self._rows: list[int] = []  # Of `_data`, by the place in `_paths`.
        self._free: list[int] = []
        self._data: Vectors = np.zeros((0, dims), np.float32)

    @property
    def size_bytes(self) -> int:
        """About the memory that it needs."""
        return _EMPTY_BYTES + self._data.nbytes + len(self._paths) * _PATH_BYTES

    def holds(self, path: bytes) -> bool:
        """Whether the path is in the part that is filled."""
        return self.frontier is None or path <= self.frontier

    def replace(self, path: bytes, found: Vectors) -> None:
        """Set the vectors of an item, which have unit length; none removes it."""
        start, stop = bisect_left(self._paths, path), bisect_right(self._paths, path)
        self._free += self._rows[start:stop]
        self._paths[start:stop] = [path] * len(found)
        self._rows[start:stop] = self._stored(found)

    def extend(self, paths: Sequence[bytes], found: Vectors) -> None:
        """Add vectors, one for each path. The paths are in order, and beyond all that are there."""
        self._paths += paths
        self._rows += self._stored(found)

    def _stored(self, found: Vectors) -> list[int]:
        while len(self._free) < len(found):
            self._grow()
        rows = [self._free.pop() for _ in range(len(found))]
        self._data[rows] = found
        return rows

    def nearest(self, vector: Vector, after: bytes, limit: int) -> tuple[int, bytes, Iterator[tuple[bytes, float]]]:
        """Compare about `limit` vectors after a path; the vectors of one item are never split.

        Returns their number, the last of their paths, and the paths with their nearness, the nearest first.
        """
        start = bisect_right(self._paths, after) if after else 0
        stop = start + limit
        if stop < len(self._paths):
            stop = bisect_right(self._paths, self._paths[stop - 1])
        rows, paths = self._rows[start:stop], self._paths[start:stop]
        if not rows:
            return 0, after, iter(())
        if rows == list(range(rows[0], rows[0] + len(rows))):
            part = self._data[rows[0] : rows[0] + len(rows)]  # In the order of filling: a view without a copy.
        else:
            part = self._data[rows]
        return len(rows), paths[-1], ranked(paths, part, vector)

    def _grow(self) -> None:
        size = len(self._data)
        more = max(_ROWS_MIN, size // 2)
        self._data = np.concatenate([self._data, np.zeros((more, self.dims), np.float32)])
        self._free += range(size + more - 1, size - 1, -1)


def units(packed: Sequence[bytes], dims: int) -> Vectors:
    """Unpack vectors of `dims` numbers each, one row per vector, scaled to unit length; a vector of zeros stays."""
    found = np.frombuffer(b"".join(packed), "<f4").astype(np.float64).reshape(len(packed), dims)
    norms = np.sqrt(np.einsum("ij,ij->i", found, found))
    return (found / np.where(norms, norms, 1.0)[:, np.newaxis]).astype(np.float32)


def ranked(paths: Sequence[bytes], found: Vectors, vector: Vector) -> Iterator[tuple[bytes, float]]:
    """Each path with the nearness of its row, the nearest first; equally near ones stay in order."""
    scores = _products(found, vector)
    return ((paths[nth], float(scores[nth])) for nth in np.argsort(-scores, kind="stable"))


def nearest(found: Vectors, vector: Vector) -> float | None:
    """The nearness of the nearest of these; None if there is none."""
    return float(np.max(_products(found, vector))) if len(found) else None


def _products(found: Vectors, vector: Vector) -> NDArray[np.float32]:
    """The product of each row and a vector, none longer than 1.

    Such products are finite, so what the processor reports comes from the lanes beyond the data that its library computes with:
    programs that turn warnings into errors would fail now and then.
    """
    with np.errstate(all="ignore"):
        return found @ vector
