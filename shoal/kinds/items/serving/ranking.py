"""Searches of items by the nearness of their vectors.

Laws:
- The ranking is exact: every vector of the namespace is compared, except those of items that an
  index rules out. The result is read, filtered and compared again in the last step, so that it
  reflects every put, delete and expiry between the steps.
- A step compares a bounded number of vectors in memory, or reads a bounded number of items;
  other tasks get their turn between two steps.
- The vectors in memory are derived from the stored ones, are loaded when a search first needs
  them, and have a bound in bytes: past it the least recently searched namespace is dropped, and
  vectors without room are read again by each search.
"""

from __future__ import annotations

import heapq
import importlib
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from itertools import islice
from types import ModuleType
from typing import TYPE_CHECKING

from shoal.config import Config
from shoal.errors import InvalidInput, Unsupported
from shoal.kinds.items import state as items
from shoal.kinds.items.serving.indexes import Indexes
from shoal.kinds.items.serving.items import (
    INDEX_BUILD_ROWS_MAX,
    ITEM_SCAN_ROWS_MAX,
    check_matches,
    check_namespace,
    check_vector,
    fits,
    told,
)
from shoal.kinds.items.serving.searches import SearchScope, plan
from shoal.node.handler import Memory, Scans, Target, View
from shoal.node.naming import PAGE_BYTES_MAX
from shoal.node.transaction import Transaction
from shoal.protocol.base import FILTER_TERMS_MAX
from shoal.protocol.requests import Ranked, RankedItems, RankItems
from shoal.records import NamedTuple
from shoal.values.filtering import Filter
from shoal.values.forms import FLOAT_BYTES

VECTOR_PAGE_ROWS_MAX = 8192  # Vectors in memory compared in one step of a semantic search.
VECTOR_MOVES_MAX = 10_000  # Items written since their vectors were loaded; beyond this, they are loaded again.
ITEM_RANKS_MAX = 10_000  # Nearest items that a semantic search can return.

if TYPE_CHECKING:
    from shoal.kinds.items.serving.matrix import Matrix, Vector, Vectors

_ATTEMPTS_MAX = 3  # If found items changed before they could be shown.
_NOISE = 1e-4  # A product of 32-bit floats differs a little with the order of its terms.


Ranking = Generator[None, None, RankedItems]


class Root(NamedTuple):
    """Names a matrix: the vectors with `dims` numbers below a namespace."""

    target: Target
    rest: tuple[str, ...]
    dims: int


class Nearest:
    """The `count` nearest paths so far; of equally near ones, the least."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._heap: list[tuple[float, _Last]] = []

    def takes(self, score: float, path: bytes) -> bool:
        """Whether `put` would keep this one."""
        return len(self._heap) < self._count or (score, _Last(path)) > self._heap[0]

    def put(self, score: float, path: bytes) -> None:
        """Add a path, if it is among the nearest."""
        entry = (score, _Last(path))
        if len(self._heap) < self._count:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)

    def ranks(self) -> list[tuple[bytes, float]]:
        """The paths with their nearness, the nearest first."""
        return [(last.path, score) for score, last in sorted(self._heap, reverse=True)]


class _Last:
    """A path in reversed order: the least path is the greatest."""

    __slots__ = ("path",)

    def __init__(self, path: bytes) -> None:
        self.path = path

    def __lt__(self, other: _Last) -> bool:
        return self.path > other.path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Last) and self.path == other.path

    __hash__ = None  # type: ignore[assignment]


class Rankings(Memory):
    """Semantic searches, and the vectors in memory that they share."""

    def __init__(self, config: Config, now_ms: Callable[[], int], indexes: Indexes) -> None:
        self._config = config
        self._now_ms = now_ms
        self._indexes = indexes
        self._matrices: OrderedDict[Root, Matrix] = OrderedDict()  # The one that was searched last at the end.
        self.scans: Scans = {RankItems: self.ranked}

    def ranked(self, view: Callable[[], View], request: RankItems) -> Ranking:
        """Rank items step by step. `view` gives the items as they are now.

        Raises:
            InvalidInput, InvalidValue, TooLarge: the namespace, vector, filter or page is not legal.
            Unsupported: NumPy is not installed.
        """
        check_namespace(request.items, request.rest)
        check_vector(request.vector)
        if not 0 <= request.skip <= ITEM_RANKS_MAX - request.limit:
            raise InvalidInput(
                f"a semantic search returns at most the {ITEM_RANKS_MAX} nearest items; "
                f"got skip {request.skip} and limit {request.limit}."
            )
        check_matches(request.matches)
        filter = Filter(request.filter, terms_max=FILTER_TERMS_MAX)
        numeric = _numeric()
        search = _Search(self, request, filter, numeric.units([request.vector], len(request.vector) // FLOAT_BYTES)[0], numeric)
        for _ in range(_ATTEMPTS_MAX):
            yield from search.compare(view)
            found, settled = search.shown(view())
            if settled:
                break
        return found

    # ── what is in memory ─────────────────────────────────────────────────────

    def matrix(self, root: Root, make: Callable[[int], Matrix]) -> Matrix:
        """The matrix of this name, made empty if it is not in memory. From then on its items are watched."""
        found = self._matrices.get(root)
        if found is None:
            found = self._matrices[root] = make(root.dims)
            self._indexes.watched.add(root.target)
        self._matrices.move_to_end(root)
        return found

    def fits(self, root: Root) -> bool:
        """Whether a matrix may grow, after less recently used ones were dropped for room."""
        while self._bytes() > self._config.vector_cache_bytes and next(iter(self._matrices)) != root:
            self._matrices.popitem(last=False)
        return self._bytes() <= self._config.vector_cache_bytes

    def forget_partition(self, number: int) -> None:
        """Drop the vectors of a partition's items, because its rows were replaced."""
        for root in [root for root in self._matrices if root.target.partition == number]:
            del self._matrices[root]

    def _bytes(self) -> int:
        return sum(matrix.size_bytes for matrix in self._matrices.values())

    def ended(self, transaction: Transaction, target: Target) -> None:
        """Drop the vectors of an object whose generation ends."""
        self._forget(target)
        self.replaced(transaction, target)

    def replaced(self, transaction: Transaction, target: Target) -> None:
        """Drop the vectors of an object once its rows are replaced."""
        transaction.when_written(lambda: self._forget(target))

    def _forget(self, target: Target) -> None:
        for root in [root for root in self._matrices if root.target == target]:
            del self._matrices[root]
        self._indexes.watched.discard(target)

    def moved(self, target: Target, path: bytes) -> None:
        """An item of an object was written."""
        roots = [root for root in self._matrices if root.target == target]
        if not roots:
            self._indexes.watched.discard(target)
        for root in roots:
            matrix = self._matrices[root]
            if path.startswith(items.labels_of(root.rest)) and matrix.holds(path):
                matrix.moved.add(path)
                if len(matrix.moved) > VECTOR_MOVES_MAX:
                    del self._matrices[root]


class _Search:
    """The comparison for one request, which may be repeated."""

    def __init__(self, rankings: Rankings, request: RankItems, filter: Filter, vector: Vector, numeric: ModuleType) -> None:
        self._rankings = rankings
        self._config = rankings._config
        self._request = request
        self._filter = filter
        self._vector = vector
        self._numeric = numeric
        self._limit = min(max(1, request.limit), self._config.page_items_max)
        self._picks = bool(filter.wanted or request.matches)  # Then items are read that are not shown.
        self._best = Nearest(0)
        self._compared = 0

    def compare(self, view: Callable[[], View]) -> Generator[None, None, None]:
        self._best = Nearest(self._request.skip + self._limit)
        self._compared = 0
        first = view()
        standings = self._rankings._indexes.of(first.target) if self._filter.wanted else {}
        place = SearchScope(first.transaction, first.rows.key(b""), self._request.rest, b"")
        chosen = plan(place, self._filter.wanted, standings)
        paths = chosen.paths(place) if chosen.how == "lookup" else None
        if paths is not None:
            for nth, path in enumerate(paths, 1):
                self._compare_stored(view(), path)
                if nth % INDEX_BUILD_ROWS_MAX == 0:
                    yield
            return
        root = Root(first.target, tuple(self._request.rest), len(self._vector))
        after: bytes | None = b""
        while after is not None:
            after = self._piece(view(), root, after)
            yield

    def shown(self, view: View) -> tuple[RankedItems, bool]:
        """The found items as they are now, and whether none of them changed since it was compared."""
        found: list[tuple[float, bytes, Ranked]] = []
        size, settled, more = 0, True, False
        for path, compared in self._best.ranks()[self._request.skip :]:
            if size >= PAGE_BYTES_MAX:
                more = True
                break
            item, score = self._read(view, path)
            if item is None or score is None:
                settled = False
                continue
            settled = settled and abs(score - compared) < _NOISE
            found.append((-score, path, Ranked(told(self._request.items, item), score)))
            size += sum(len(entry.value) for entry in item.entries)
        return RankedItems([ranked for *_, ranked in sorted(found)], more, self._compared), settled

    def _piece(self, view: View, root: Root, after: bytes) -> bytes | None:
        """Compare the next vectors; returns the path to continue after, or None at the end."""
        matrix = self._rankings.matrix(root, self._numeric.Matrix)
        for path in list(islice(matrix.moved, ITEM_SCAN_ROWS_MAX)):
            matrix.replace(path, self._vectors(view, path))
            matrix.moved.discard(path)
        if matrix.moved:
            return after
        if matrix.frontier is not None and after >= matrix.frontier:
            return self._load(view, root, matrix, after)
        limit = ITEM_SCAN_ROWS_MAX if self._picks else VECTOR_PAGE_ROWS_MAX
        count, last, found = matrix.nearest(self._vector, after, limit)
        self._compared += count
        self._take(view, found)
        return last if count >= limit else matrix.frontier

    def _load(self, view: View, root: Root, matrix: Matrix, after: bytes) -> bytes | None:
        """Compare vectors from storage. They stay in memory if there is room, and if the matrix holds all before them."""
        keep = after == matrix.frontier and self._rankings.fits(root)
        paths: list[bytes] = []
        packed: list[bytes] = []
        path, read, limit = after, 0, INDEX_BUILD_ROWS_MAX
        for path, stored in islice(items.with_vectors(view.rows, self._request.rest, after=after), limit):
            read += 1
            fitting = self._fitting(self._shown_of(view, path, stored))
            paths += [path] * len(fitting)
            packed += fitting
        found = self._numeric.units(packed, root.dims)
        if keep:
            matrix.extend(paths, found)
            matrix.frontier = path if read == limit else None
        self._compared += len(paths)
        self._take(view, self._numeric.ranked(paths, found, self._vector))
        return path if read == limit else None

    def _take(self, view: View, found: Iterable[tuple[bytes, float]]) -> None:
        """Add those that are nearer than the found ones, if their items match. The nearest come first."""
        taken: set[bytes] = set()
        for path, score in found:
            if path in taken:
                continue
            if not self._best.takes(score, path):
                return
            taken.add(path)
            if self._matching(view, path) is not None:
                self._best.put(score, path)

    def _shown_of(self, view: View, path: bytes, stored: Mapping[bytes, tuple[bytes, ...]]) -> tuple[bytes, ...]:
        """The vectors of an item's shown entry; `stored` are the vectors of all its entries by position."""
        row = view.rows.get(items.ITEM + path)
        return () if row is None else stored.get(items.of_row(path, row).latest.position, ())

    def _vectors(self, view: View, path: bytes) -> Vectors:
        row = view.rows.get(items.ITEM + path)
        return self._units(() if row is None else items.vectors_of(view.rows, path, items.of_row(path, row).latest))

    def _units(self, packed: Sequence[bytes]) -> Vectors:
        found: Vectors = self._numeric.units(self._fitting(packed), len(self._vector))
        return found

    def _fitting(self, packed: Sequence[bytes]) -> list[bytes]:
        """Those with as many numbers as the request's vector."""
        return [one for one in packed if len(one) == len(self._request.vector)]

    def _compare_stored(self, view: View, path: bytes) -> None:
        item, score = self._read(view, path)
        if item is not None and score is not None:
            self._compared += 1
            self._best.put(score, path)

    def _read(self, view: View, path: bytes) -> tuple[items.Item | None, float | None]:
        item = self._matching(view, path)
        if item is None:
            return None, None
        found = self._units(items.vectors_of(view.rows, path, item.latest))
        return item, self._numeric.nearest(found, self._vector)

    def _matching(self, view: View, path: bytes) -> items.Item | None:
        stored = view.rows.get(items.ITEM + path)
        if stored is None:
            return None
        item = items.of_row(path, stored)
        if item.is_expired(self._rankings._now_ms()) or not fits([self._request.items, *item.rest], self._request.matches):
            return None
        return item if self._filter.matches(item.latest.value) else None


def _numeric() -> ModuleType:
    try:
        return importlib.import_module("shoal.kinds.items.serving.matrix")
    except ImportError:
        raise Unsupported(
            "this node cannot compare vectors, because NumPy is not installed there. Nothing was written. "
            "Install it on the node, in a clone of Shoal: pip install '.[vectors]'"
        ) from None
