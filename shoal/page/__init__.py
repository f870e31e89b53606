"""The page that a node shows in a browser: its files, as they stand in this package.

They are plain modules, styles and text, used as they are: `app.js` and what it imports, `style.css`, `vendor/` with the
libraries of others, `client/` with the client for JavaScript (in the source tree a link to `clients/js/src`).

Law: only files of this package that stood in it when it was first asked have a name here, and no name leads out of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType

from shoal.records import NamedTuple

INDEX = "index.html"
"""The page itself, from which everything else is loaded."""

_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}


class File(NamedTuple):
    """A file of the page."""

    path: Path
    content_type: str


@cache
def listed() -> Mapping[str, File]:
    """The files by their names within the page, such as `kit/table.js`."""
    top = Path(str(files(__name__)))
    return MappingProxyType(
        {
            path.relative_to(top).as_posix(): File(path, _TYPES[path.suffix])
            # Its folders are named, because `**` does not follow the link to the client.
            for folder in (top, *(each for each in top.iterdir() if each.is_dir()))
            for path in sorted(folder.rglob("*") if folder != top else folder.glob("*"))
            if path.is_file() and path.suffix in _TYPES
        }
    )
