"""`Rows` over a dict: the obvious twin of the node's transaction."""

from __future__ import annotations

from collections.abc import Iterator


class DictRows:
    """Rows of one object in memory. `canonical` is what replicas compare."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}

    def get(self, key: bytes, /) -> bytes | None:
        return self.rows.get(key)

    def size(self, key: bytes, /) -> int | None:
        value = self.rows.get(key)
        return None if value is None else len(value)

    def put(self, key: bytes, value: bytes, /) -> None:
        self.rows[key] = value

    def delete(self, key: bytes, /) -> None:
        self.rows.pop(key, None)

    def scan(
        self, prefix: bytes, /, *, after: bytes | None = None, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        keys = sorted((k for k in self.rows if k.startswith(prefix)), reverse=reverse)
        if after is not None:
            keys = [k for k in keys if (k < after if reverse else k > after)]
        return iter([(k, self.rows[k]) for k in keys[:limit]])

    def canonical(self) -> list[tuple[bytes, bytes]]:
        return sorted(self.rows.items())


class BuriedRows(DictRows):
    """Counts the rows that scans pass: as in RocksDB, one that was deleted is passed like any other."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0
        self._deleted: set[bytes] = set()

    def put(self, key: bytes, value: bytes, /) -> None:
        self._deleted.discard(key)
        super().put(key, value)

    def delete(self, key: bytes, /) -> None:
        if key in self.rows:
            self._deleted.add(key)
        super().delete(key)

    def scan(
        self, prefix: bytes, /, *, after: bytes | None = None, reverse: bool = False, limit: int | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        assert not reverse
        last = prefix if after is None else max(after, prefix)
        for key, value in super().scan(prefix, after=after, limit=limit):
            self.passed += 1 + sum(1 for deleted in self._deleted if last < deleted < key)
            last = key
            yield key, value
