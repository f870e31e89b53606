"""Write docs/ERRORS.md from the declarations in the code: `python -m tests.reference`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from shoal import errors
from shoal.api import problems
from shoal.errors import ShoalError

DOCS = Path(__file__).parent.parent / "docs"

ERRORS = """# Errors

This page is made from `shoal/errors.py` by `python -m tests.reference`.

Every error that Shoal raises on purpose is a `shoal.errors.ShoalError`. Its text says what happened, whether anything
was written, and what to do. Beside the text it has:

- `error.written`: `"no"`; `"yes"`; or `"unknown"` if the write may or may not be applied. The table shows what holds
  for the class; a single error may say otherwise. After a bug in a node (`ShoalError` itself, code `error`) it is
  `"unknown"`.
- `error.retryable`: whether the same call, unchanged, may succeed later or on another node. It is true for `Retryable`
  and the classes below it. Where `written` is `"unknown"`, repeat the call with the same idempotency key, so that it is
  applied once.
- `error.detail`: more, by name. `error.message`: the text. `error.code` and `error.status`: what it is called in
  problem documents and on the wire, and its HTTP status.

```python
try:
    await thread.save(state, key="turn-7")
except shoal.errors.Retryable as error:
    ...  # Wait (for error.detail.get("retry_after_s"), if it is there), then save again with key="turn-7".
except shoal.errors.Conflict:
    ...  # The state has moved on: load it, decide again.
```

The client retries by itself for as long as `request_timeout_s` where that is safe: a call that did not reach a node, a
write that has a key (each has one), a stream that broke. What it raises in the end is the last error. Over HTTP a
problem document has the members `code`, `written` and `retryable`, and the details beside them; 429 and 503 come with
`Retry-After`.
"""

HTTP = """
## Over HTTP alone

The node refuses these requests before it reads what they ask for. Nothing was written, and the same request is refused again.

| code | status | when |
|---|---|---|
"""


class Described(NamedTuple):
    error: type[ShoalError]
    depth: int
    meaning: str


def described() -> Iterator[Described]:
    """Every class, in the order in which the module's docstring draws them, and what it says of each."""
    yield Described(ShoalError, 0, "the root; raised itself, it means a bug in a node: see its log")
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"(.*?)[├└]── (\w+) +(.*)", line):
            yield Described(getattr(errors, found[2]), len(found[1]) // 4, found[3])


def errors_page() -> str:
    lines = [ERRORS]
    header = ["| class | code | status | meaning | written | retry |", "|---|---|---|---|---|---|"]
    lines += header
    for error, depth, meaning in described():
        more = "" if error in (ShoalError, errors.Retryable) else " ".join((error.__doc__ or "").split())
        text = f"{meaning[0].upper()}{meaning[1:].rstrip(', …')}.{' ' + more if more else ''}".replace("|", "\\|")
        indent = "&nbsp;" * 3 * depth
        retry = "yes" if error.retryable else "no"
        lines.append(f"| {indent}`{error.__name__}` | `{error.code}` | {error.status} | {text} | {error.written} | {retry} |")
    lines.append(HTTP.rstrip())
    for _, error in sorted(inspect.getmembers(problems, _is_of_http), key=lambda member: (member[1].status, member[1].code)):
        text = " ".join((error.__doc__ or "").split())
        lines.append(f"| `{error.code}` | {error.status} | {text} |")
    return "\n".join(lines) + "\n"


def _is_of_http(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, ShoalError) and found.__module__ == problems.__name__


PAGES = {"ERRORS.md": errors_page}


def main() -> None:
    for name, page in PAGES.items():
        (DOCS / name).write_text(page())


if __name__ == "__main__":
    main()
