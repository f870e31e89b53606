"""The vectors of a namespace's items in memory, for comparing all of them with one.

Laws:
- It holds vectors of one length, each divided by its norm, so that a product is a cosine;
  a vector of zeros stays, and is near nothing.
- Up to the path `frontier` it holds those of every item, but for the paths in `moved`, whose
  items were written since; past it none. So it can be filled, and used, in pieces.
- Importing this needs NumPy, which the extra `vectors` brings.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from shoal.values.vectors import FLOAT_BYTES

_ROWS_MIN = 64
_PATH_BYTES = 200  # About what a path costs in the lists beside the vectors.
_EMPTY_BYTES = 4096  # About what a matrix costs that holds nothing.

Vector = NDArray[np.float32]


class Matrix:
    def __init__(self, dims: int) -> None:
        self.dims = dims
        self.frontier: bytes | None = b""  # None: there is nothing past it.
        self.moved: set[bytes] = set()
        self._paths: list[bytes] = []  # In order, each as often as its item has vectors.
        self._rows: list[int] = []  # Of `_data`, by the place in `_paths`.
        self._free: list[int] = []
        self._data: NDArray[np.float32] = np.zeros((0, dims), np.float32)

    @property
    def size_bytes(self) -> int:
        return _EMPTY_BYTES + self._data.nbytes + len(self._paths) * _PATH_BYTES

    def holds(self, path: bytes) -> bool:
        return self.frontier is None or path <= self.frontier

    def replace(self, path: bytes, found: Sequence[Vector]) -> None:
        """These are now the vectors of the item."""
        start, stop = bisect_left(self._paths, path), bisect_right(self._paths, path)
        self._free += self._rows[start:stop]
        rows: list[int] = []
        for vector in found:
            if not self._free:
                self._grow()
            rows.append(self._free.pop())
            self._data[rows[-1]] = vector
        self._paths[start:stop] = [path] * len(rows)
        self._rows[start:stop] = rows

    def nearest(self, vector: Vector, after: bytes, limit: int) -> tuple[int, bytes, Iterator[tuple[bytes, float]]]:
        """Compare the next vectors after a path, about `limit`, of no item a part: how many, the last of their paths, and
        the paths with their nearness, the nearest first."""
        start = bisect_right(self._paths, after) if after else 0
        stop = start + limit
        if stop < len(self._paths):
            stop = bisect_right(self._paths, self._paths[stop - 1])
        rows, paths = self._rows[start:stop], self._paths[start:stop]
        if not rows:
            return 0, after, iter(())
        if rows == list(range(rows[0], rows[0] + len(rows))):
            part = self._data[rows[0] : rows[0] + len(rows)]  # As it was filled: nothing need be copied.
        else:
            part = self._data[rows]
        scores = part @ vector
        order = np.argsort(-scores, kind="stable")
        return len(rows), paths[-1], ((paths[nth], float(scores[nth])) for nth in order)

    def _grow(self) -> None:
        size = len(self._data)
        more = max(_ROWS_MIN, size // 2)
        self._data = np.concatenate([self._data, np.zeros((more, self.dims), np.float32)])
        self._free += range(size + more - 1, size - 1, -1)


def vectors(packed: Sequence[bytes], dims: int) -> list[Vector]:
    """Of unit length; those of another number of dimensions are left out."""
    return [unit(one) for one in packed if len(one) == dims * FLOAT_BYTES]


def unit(packed: bytes) -> Vector:
    vector = np.frombuffer(packed, "<f4").astype(np.float64)
    norm = sqrt(float(vector @ vector))
    return (vector / norm if norm else vector).astype(np.float32)


def nearest(found: Sequence[Vector], vector: Vector) -> float | None:
    """How near the nearest of these is; None if there is none."""
    return max(float(one @ vector) for one in found) if found else None
