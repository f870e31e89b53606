"""A server of as much of S3 as a backup needs, over a directory: `python -m tests.support.object_server DIRECTORY PORT`.

Laws:
- What is answered is in the directory, so that a server which is killed and begun again has it all; a put is made whole or not
  at all.
- With the arguments WHEN and NTH it kills itself at the nth put, `before` it is made or `after`, when it is not answered yet.
"""

from __future__ import annotations

import os
import signal
import sys
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, get_ident
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.etree import ElementTree
from xml.sax.saxutils import escape

_lock = Lock()


class Handler(BaseHTTPRequestHandler):
    """One request. `root` is the directory; `when` and `nth` say where the server kills itself."""

    protocol_version = "HTTP/1.1"
    root: Path
    when = ""
    nth = 0

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self._step("before")
        path = self._path()
        part = self.root / f"part-{get_ident()}"
        part.write_bytes(content)
        try:
            if self.headers.get("If-None-Match") == "*":
                os.link(part, path)
                part.unlink()
            else:
                part.rename(path)
        except FileExistsError:
            part.unlink()
            self._answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
            return
        self._step("after")
        self._answer(200, b"", {"ETag": _tag(content)})

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._list(query)
            return
        try:
            content = self._path().read_bytes()
        except FileNotFoundError:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
            return
        headers = {"ETag": _tag(content), "Last-Modified": "Sun, 29 Nov 2026 00:00:00 GMT"}
        asked = self.headers.get("Range")
        if asked is None:
            self._answer(200, content, headers)
            return
        first, _, last = asked.removeprefix("bytes=").partition("-")
        part = content[int(first) : int(last) + 1 if last else None]
        told = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
        self._answer(206, part, headers | {"Content-Range": told})

    def do_POST(self) -> None:
        asked = ElementTree.fromstring(self.rfile.read(int(self.headers["Content-Length"])))
        names = [each.text or "" for each in asked.iter() if each.tag.endswith("Key")]
        for name in names:
            (self.root / quote(name, safe="")).unlink(missing_ok=True)
        told = "".join(f"<Deleted><Key>{escape(name)}</Key></Deleted>" for name in names)
        self._answer(200, f"<DeleteResult>{told}</DeleteResult>".encode())

    def _list(self, query: dict[str, list[str]]) -> None:
        prefix, after = query.get("prefix", [""])[0], query.get("start-after", [""])[0]
        names = sorted(unquote(each.name) for each in self.root.iterdir() if not each.name.startswith("part-"))
        found = [name for name in names if name.startswith(prefix) and name > after]
        told = "".join(self._listed(name) for name in found)
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{told}</ListBucketResult>".encode())

    def _listed(self, name: str) -> str:
        size = (self.root / quote(name, safe="")).stat().st_size
        return (
            f"<Contents><Key>{escape(name)}</Key><LastModified>2026-11-29T00:00:00.000Z</LastModified>"
            f'<ETag>"0"</ETag><Size>{size}</Size></Contents>'
        )

    def _path(self) -> Path:
        """The file of an object; the first part of the address is the bucket."""
        name = unquote(urlsplit(self.path).path).lstrip("/").partition("/")[2]
        return self.root / quote(name, safe="")

    def _step(self, when: str) -> None:
        with _lock:
            if when == "before":
                Handler.nth -= 1
            if Handler.nth == 0 and when == self.when:
                os.kill(os.getpid(), signal.SIGKILL)

    def _answer(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


def _tag(content: bytes) -> str:
    return f'"{md5(content, usedforsecurity=False).hexdigest()}"'


def main() -> None:
    Handler.root = Path(sys.argv[1])
    if len(sys.argv) > 3:
        Handler.when, Handler.nth = sys.argv[3], int(sys.argv[4])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()


if __name__ == "__main__":
    main()
