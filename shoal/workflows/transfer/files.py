"""Exports in files: written whole or not at all, and checked before they are imported."""

from __future__ import annotations

import asyncio
import os
from contextlib import aclosing, suppress
from pathlib import Path
from typing import IO

from shoal.errors import InvalidInput, TooLarge
from shoal.workflows.connection import Connection
from shoal.workflows.transfer.exporting import Wanted, export
from shoal.workflows.transfer.importing import Aim, ImportReport, import_from
from shoal.workflows.transfer.lines import blocks_of, lines

PART = ".part"  # The name of a file that is being written ends so.

_SHOWN = 200  # Characters of a path that an error shows.


async def written(connection: Connection, wanted: Wanted, file: str | os.PathLike[str] | IO[bytes]) -> int:
    """Write an export. Returns how many lines.

    Raises:
        NotFound: there is no such thread.
        InvalidInput: the file exists, or cannot be written; or a thread is named without its space.
    """
    if wanted.thread is not None and wanted.space is None:
        raise InvalidInput("a thread is named without its space. Nothing was exported.")
    if not isinstance(file, str | os.PathLike):
        return await _copied(connection, wanted, file)
    path = _path(file)
    part = path.with_name(path.name + PART)
    try:
        _check_free(path)
        with _opened(part, "wb") as opened:
            count = await _copied(connection, wanted, opened)
            opened.flush()
            await asyncio.to_thread(os.fsync, opened.fileno())
        part.replace(path)
    except OSError as error:
        raise InvalidInput(f"{str(path)[:_SHOWN]} cannot be written: {error.strerror}.") from None
    finally:
        with suppress(OSError):
            part.unlink()
    return count


async def _copied(connection: Connection, wanted: Wanted, file: IO[bytes]) -> int:
    count = 0
    async with aclosing(export(connection, wanted)) as made:
        async for line in made:
            await asyncio.to_thread(file.write, line)
            count += 1
    return count


async def check(file: str | os.PathLike[str]) -> None:
    """Read an export as a whole, before anything is written.

    Raises:
        InvalidInput, TooLarge: it is no export, is cut or was altered, or cannot be read. Nothing was written.
    """
    path = _path(file)
    try:
        with _opened(path, "rb") as opened:
            async with aclosing(lines(blocks_of(opened))) as checked:
                async for _ in checked:
                    pass
    except OSError as error:
        raise _unreadable(path, error) from None
    except (InvalidInput, TooLarge) as error:
        raise type(error)(error.message.replace("Nothing more was written", "Nothing was written"), **error.detail) from None


async def read(
    connection: Connection, file: str | os.PathLike[str] | IO[bytes], aim: Aim, *, checked: bool = False
) -> ImportReport:
    """Import an export. A file is checked as a whole before anything is written, unless it was; a pipe as it comes.

    Raises:
        as `import_from` and `check`.
    """
    if not isinstance(file, str | os.PathLike):
        return await import_from(connection, blocks_of(file), aim)
    if not checked:
        await check(file)
    path = _path(file)
    try:
        with _opened(path, "rb") as opened:
            return await import_from(connection, blocks_of(opened), aim)
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> InvalidInput:
    return InvalidInput(f"{str(path)[:_SHOWN]} cannot be read: {error.strerror}. Nothing was written.")


def _path(file: str | os.PathLike[str]) -> Path:
    """The path of a file.

    Raises:
        InvalidInput: no file can have it.
    """
    path = Path(file)
    if not path.name or "\0" in str(path):
        raise InvalidInput(f"{str(path)[:_SHOWN]!r} is no path of a file. Nothing was read or written.")
    return path


def _opened(path: Path, mode: str) -> IO[bytes]:
    return path.open(mode)


def _check_free(path: Path) -> None:
    if path.exists():
        raise InvalidInput(f"{path} exists. Nothing was exported. Remove it, or choose another name.")
